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
SWIZZLED = (0, 11, 1)
"""From here (PyTorch 2.9) scales are laid out anew for Triton's kernels on compute capability 9; the layer keeps the
loaded ones."""
TRITON_ENDS = (0, 12)
"""From here (c17610e2b) Triton's kernels are not taken on compute capability 12."""
SCALE_SHARE = 0.25 / 4.25
"""Bits of an 8-bit scale for each 32 elements, in those of an element."""
SCALE_ROWS, SCALE_COLUMNS = 256, 2
"""What scales that are laid out anew are padded to: 32 rows for each of 8 warps, columns in pairs."""


class _Kernel(NamedTuple):
    """Multiples that the model's width and the experts' are padded to, and whether scales are kept twice."""

    name: str
    hidden: int = 1
    inner: int = 64
    scales: bool = False


MARLIN = _Kernel("Marlin", 256, 128)
TRITON = _Kernel("Triton")
FLASHINFER = _Kernel("FlashInfer", 256, 256)


def _kernel(numbers: tuple[int, ...], context: Context) -> _Kernel | None:
    """The kernel of a CUDA part; None where it is not known. Not gpt-oss's: Marlin's up to compute capability 9."""
    capability = context.accelerator.capability
    own = context.architecture.model_type == "gpt_oss"
    if not capability or (capability >= (10, 0) and not own):
        return None
    if capability < (9, 0) or not own:
        return MARLIN
    if capability < (10, 0):
        return TRITON._replace(scales=numbers >= SWIZZLED)
    if capability < (11, 0):
        return FLASHINFER
    return MARLIN if numbers >= TRITON_ENDS else None


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
