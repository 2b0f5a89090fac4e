"""How vLLM holds MXFP4 experts: widths padded for the kernel, and scales laid out anew beside the loaded ones.

Sources: vllm-project/vllm vllm/model_executor/layers/quantization/mxfp4.py and utils/mxfp4_utils.py (0.11.1 to 0.14),
layers/fused_moe/oracle/mxfp4.py (0.24); triton-lang/triton
python/triton_kernels/triton_kernels/tensor_details/layout_details/hopper_scale.py.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import evolve

from servelint.memory import MemoryLedger, Weights
from servelint.plugin import Context, Input, Source

FORMAT = "mxfp4"
PADS = "vllm/model_executor/layers/quantization/mxfp4.py"
TRITON_COMES = (0, 12)
"""From here (9912b8ccb) Triton's kernels come with the package; before, gpt-oss runs on Marlin's where nobody adds
them. They are for compute capability 9 and 10 alone."""
SCALE_SHARE = 0.25 / 4.25
"""Bits of an 8-bit scale for each 32 elements, in those of an element."""
SCALE_ROWS, SCALE_COLUMNS = 256, 2
"""What scales that are laid out anew are padded to: 32 rows for each of 8 warps, columns in pairs."""


class _Kernel(NamedTuple):
    """Multiples that the model's width and the experts' are padded to.

    ``scales``: they are laid out anew (PyTorch from 2.8.1 on), and the layer keeps the loaded ones.
    """

    name: str
    hidden: int
    inner: int
    scales: bool = False


MARLIN = _Kernel("Marlin", 256, 128)
TRITON = _Kernel("Triton", 1, 64, scales=True)
FLASHINFER = _Kernel("FlashInfer", 256, 256)


def _kernel(numbers: tuple[int, ...], context: Context) -> _Kernel | None:
    """The kernel of a CUDA part; None where it is not known, as on 10.0 and later for other models than gpt-oss."""
    capability = context.accelerator.capability
    if not capability:
        return None
    if context.architecture.model_type != "gpt_oss":
        return MARLIN if capability < (10, 0) else None
    if (10, 0) <= capability < (11, 0):
        return FLASHINFER
    return TRITON if (9, 0) <= capability < (10, 0) and numbers >= TRITON_COMES else MARLIN


def held(numbers: tuple[int, ...], ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Hold MXFP4 experts as the kernel of the part wants them."""
    if not any(_is_expert(entry) for entry in ledger.weights):
        return ledger
    kernel = _kernel(numbers, context)
    if kernel is None:
        return ledger
    hidden = context.architecture.hidden_size
    ranks = getattr(context.config("parallelism"), "expert", None) or 1

    def padded(entry: Weights) -> Weights:
        block = context.block(entry.block)
        experts = block.experts if block is not None else None
        if experts is None or not _is_expert(entry):
            return entry
        sides = 2 if "up" in entry.tensor.name else 1
        inner = entry.tensor.params / experts.count / hidden / sides
        # A device holds all of some experts, or a part of each.
        part = inner if ranks > 1 else inner * entry.params / entry.tensor.params
        wide, deep = _up(hidden, kernel.hidden), _up(part, kernel.inner)
        factor = wide / hidden * deep / part
        if kernel.scales:
            rows, columns = (sides * deep, wide) if sides == 2 else (wide, deep)
            laid = _up(rows, SCALE_ROWS) * _up(columns / 32, SCALE_COLUMNS) * 32
            factor += SCALE_SHARE * laid / (sides * hidden * part)
        if factor == 1:
            return entry
        reason = "widths padded for the kernel" + (", scales held twice" if kernel.scales else "")
        source = Source("engine", f"vllm-project/vllm {PADS}", "round_up")
        widths = Input(f"factor of what {kernel.name}'s kernel is given", factor, "", source)
        return evolve(entry, params=entry.params * factor, lineage=entry.lineage.rewritten("vllm", reason, widths))

    return ledger.mapped(weights=padded)


def _is_expert(entry: Weights) -> bool:
    return entry.tensor.role == "routed_experts" and entry.format.name == FORMAT


def _up(size: float, multiple: int) -> float:
    """The next multiple."""
    return -(-size // multiple) * multiple
