"""QNT005 metadata-ignored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from servelint.plugin import (
    Architecture,
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Format,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
    Tensor,
)
from servelint_rules.layouts import decode_side
from servelint_rules.qnt.weights import weights_path
from servelint_rules.show import size

PATH = ("model", "weights_bytes")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
weights_bytes = "35.3 GB" # expect: QNT005
[policy.quantization]
weights = "int4-g128"
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-70b-int4"
tasks = { code = -0.4 }
"""


class Ledger(NamedTuple):
    """The checkpoint in its formats, in bytes: all of it, and what P x b / 8 leaves out."""

    total: float
    metadata: float
    wider: float
    params: float
    format: Format


class MetadataIgnored(Rule):
    """The size of the checkpoint was computed as parameters times bits.

    What it checks
    --------------
    ``model.weights_bytes`` of a checkpoint in fewer than 16 bits: whether it is parameters x bits / 8 (of all
    parameters, or of a round number of billions next to them), within the option ``near``, where the
    ledger of its tensors is larger by more than that.

    Why it is bad
    -------------
    The key stands for a measured size, and every figure of memory and of bytes a step is scaled to it. Group scales
    and zero points, and the tensors that stay in 16 bit (embedding, LM head, norms), are left out: in 4 bits a tenth
    and more, which is missing from the KV cache after the server has started.

    The arithmetic
    --------------
    ``sum over tensors of params x (bits + metadata bits) / 8``, each in the format that it is stored in, against
    ``params x bits / 8``.

    How to fix
    ----------
    Leave the key out, so that the ledger counts, or give the measured size of the files.

    Source
    ------
    docs/cost-model.md, quantization; the bits of each format as the catalogue has them.
    """

    code = "QNT005"
    name = "metadata-ignored"
    severity = Severity.WARNING
    questions = ("why did it run out of memory",)
    options = (Option("near", 0.01, "relative distance from parameters x bits / 8 at which a size is that", 0.0, 0.1),)
    failing = (
        Case("70B in 4 bits is not 35 GB", SPEC, flip=("model.weights_bytes", '"39.8 GB"')),
        Case(
            "computed from the name of the model",
            SPEC.replace("35.3 GB", "35 GB"),
            flip=("model.weights_bytes", '"39.8 GB"'),
        ),
        Case(
            "8B in FP8, whose tables stay in 16 bit",
            SPEC.replace("Llama-3.1-70B", "Llama-3.1-8B").replace("35.3 GB", "8.1 GB").replace("int4-g128", "fp8"),
            flip=("model.weights_bytes", '"8.12 GB"'),
        ),
    )
    passing = (
        Case("the size of the files", SPEC.replace("35.3 GB", "39.8 GB").replace(" # expect: QNT005", "")),
        Case(
            "16 bit has no metadata",
            SPEC.replace("Llama-3.1-70B", "Llama-3.1-8B")
            .replace("35.3 GB", "16.06 GB")
            .replace("int4-g128", "bf16")
            .replace(" # expect: QNT005", ""),
        ),
        Case(
            "just outside of what counts as computed",
            SPEC.replace("Llama-3.1-70B", "Llama-3.1-8B")
            .replace("35.3 GB", "8.12 GB")
            .replace("int4-g128", "fp8")
            .replace(" # expect: QNT005", ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare a declared size with parameters times bits, and with the ledger."""
        declared = review.deployment.model.weights_bytes
        if declared is None or review.composition is None:
            yield Lacks("model.weights_bytes and a composed deployment")
            return
        ledger = _ledger(decode_side(review.composition))
        if ledger is None or ledger.format.bits >= 16:
            return
        near, bits = self.option("near"), ledger.format.bits
        billions = int(ledger.params / 1e9)
        for params in (ledger.params, billions * 1e9, (billions + 1) * 1e9):
            computed = params * bits / 8
            if computed and abs(declared / computed - 1) <= near and ledger.total > declared * (1 + 2 * near):
                yield self._finding(review, ledger, params, declared)
                return

    def _finding(self, review: Review, ledger: Ledger, params: float, declared: float) -> Finding:
        format_, architecture = ledger.format, review.architecture
        parts = []
        if ledger.metadata >= 1e-3 * ledger.total:
            each = format_.metadata_bits
            parts.append(f"{size(ledger.metadata)} of scales and zero points ({each:.3g} bits an element)")
        if ledger.wider >= 1e-3 * ledger.total:
            parts.append(f"{size(ledger.wider)} by which tensors that stay wider exceed {format_.bits:g} bits")
        return Finding(
            PATH,
            f"weights_bytes of {size(declared)} is {params / 1e9:.4g}e9 parameters x {format_.bits:g} bits / 8; stored "
            f"as {format_.name} the checkpoint has {size(ledger.total)}: {' and '.join(parts)} are left out",
            equation=(
                f"{params / 1e9:.4g}e9 x {format_.bits:g} / 8 = {size(params * format_.bits / 8)} < sum of tensors x "
                f"(bits + metadata) / 8 = {size(ledger.total)}"
            ),
            inputs=(
                review.input("weights", declared, "B", *PATH),
                Input("bits with metadata", format_.bits_per_element, "bit", format_.source),
                Input(
                    "parameters", ledger.params, "", Source("model", architecture.id if architecture else "", "params")
                ),
            ),
            help=f"give the measured size of the files, about {size(ledger.total)}, or leave the key out, and give in "
            "policy.quantization.covers what is stored in the format where that is more than usual",
            related=(Related(weights_path(review), f"{format_.bits_per_element:.4g} bits an element"),),
            fix=Fix(f"use the ledger's {ledger.total / 1e9:.1f} GB", (Edit(PATH, f'"{ledger.total / 1e9:.1f} GB"'),)),
        )


def _ledger(side: Composition) -> Ledger | None:
    """The whole checkpoint by its tensors' formats, unscaled; None where no tensor that multiplies is known."""
    architecture: Architecture = side.setup.architecture
    formats = {(w.block, w.tensor.name): w.format for w in side.memory.weights}
    blocks = [("", t, 1) for t in _tables(architecture)]
    blocks += [(b.name, t, b.count) for b in architecture.blocks for t in b.tensors]
    by_format: defaultdict[str, float] = defaultdict(float)
    known: dict[str, Format] = {}
    for block, tensor, count in blocks:
        format_ = formats.get((block, tensor.name))
        if format_ is not None:
            known[format_.name] = format_
            by_format[format_.name] += tensor.params * count
    if not by_format:
        return None
    main = known[max(by_format, key=by_format.__getitem__)]
    total = sum(params * known[name].bytes_per_element for name, params in by_format.items())
    params = sum(by_format.values())
    metadata = sum(n * known[name].metadata_bits / 8 for name, n in by_format.items())
    wider = sum(n * (known[name].bits - main.bits) / 8 for name, n in by_format.items())
    return Ledger(total, metadata, wider, params, main)


def _tables(architecture: Architecture) -> Iterator[Tensor]:
    yield architecture.embedding
    for tensor in (architecture.positions, architecture.lm_head):
        if tensor is not None:
            yield tensor
    yield architecture.final_norm
    yield from (t for t in architecture.extras if t.role != "mtp")
