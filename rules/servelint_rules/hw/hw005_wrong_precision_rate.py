"""HW005 wrong-precision-rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.graph import demands_of
from servelint.lineage import KeyPath
from servelint.plugin import (
    Accelerator,
    Case,
    Finding,
    Input,
    Lacks,
    Matmul,
    Review,
    Rule,
    Severity,
)
from servelint.spec.model import ClaimAssumes
from servelint_rules.hw.figures import (
    PART,
    Figure,
    first_declared,
    near,
    of_another_variant,
    only_variant,
    own_figures,
    written,
)
from servelint_rules.hw.hw001_sparse_flops import deployed_precision
from servelint_rules.show import flops
from servelint_rules.variants import sides


class WrongPrecisionRate(Rule):
    """A compute rate is of another precision than the one it stands for, or than the one that is deployed.

    What it checks
    --------------
    Compute rates in ``hardware.override``, ``hardware.datasheet`` and ``claim.assumes`` against every precision of the
    same part: a rate that is not its own precision's, dense or sparse, and is another one's. Then the precision that
    a claim assumes against those that the deployment multiplies in; and overrides of which the deployment multiplies
    in none, which change nothing (advice). A rate that is too low makes everything look slower, which is advice, too;
    a narrow format at the rate of a wider one is left alone, since that is how a fallback is written. A precision's
    own sparse rate is HW001's, the rate of another variant of the product HW002's.

    Why it is bad
    -------------
    Halving the bits doubles the rate that a datasheet prints. Weights in 4 bit multiply in 16 bit all the same
    unless both operands are narrow: a prefill or claim computed from the FP8 or FP4 rate is two to four times too
    fast.

    The arithmetic
    --------------
    ``given rate = published rate of another precision`` (to 1 %); ``factor = rate assumed / dense rate deployed``.

    How to fix
    ----------
    Use the dense rate of the precision that the message gives, or declare the format that really runs in
    ``policy.quantization``.

    Source
    ------
    The accelerator's datasheet, as cited in the catalogue; the formats of the deployment's GEMMs. A published row of
    the kind: 624 TFLOP/s of FP8 for the A100, which is its INT8 rate (stas00/ml-engineering@744d01e18b79:
    compute/accelerator/README.md).
    """

    code = "HW005"
    name = "wrong-precision-rate"
    severity = Severity.WARNING
    questions = ("is this claim possible", "why is it slower than planned")
    failing = (
        Case(
            "FP4's rate for FP8",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
[hardware.override]
dense_flops = { bf16 = "2250 TFLOP/s", fp8 = "18 PFLOP/s" } # expect: HW005
source = "HGX B200 datasheet, 2025-01"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.dense_flops.fp8", '"4500 TFLOP/s"'),
        ),
        Case(
            "the FP8 rate for a BF16 deployment",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1500 tok/s"
at = { concurrency = 32, itl_p99 = "40 ms" }
assumes = { dense_flops = "1979 TFLOP/s", precision = "fp8" } # expect: HW005
""",
            flip=("claim[0].assumes", '{ dense_flops = "989 TFLOP/s", precision = "bf16" }'),
        ),
        Case(
            "a rate for a precision that the part does not have",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[hardware.override]
dense_flops = { bf16 = "312 TFLOP/s", fp8 = "624 TOPS" } # expect: HW005
source = "A100 datasheet, INT8 column"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.dense_flops.fp8", '"312 TFLOP/s"'),
        ),
        Case(
            "an override of a precision that nothing multiplies in",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
override = { dense_flops = { fp8 = "1400 TFLOP/s" }, source = "bench/2026-05-gemm.json" } # expect: HW005
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "int4"
""",
            flip=(
                "hardware.override",
                '{ dense_flops = { bf16 = "700 TFLOP/s" }, source = "bench/2026-05-gemm.json" }',
            ),
        ),
    )
    passing = (
        Case(
            "each precision with its own rate",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
[hardware.override]
dense_flops = { bf16 = "2250 TFLOP/s", fp8 = "4500 TFLOP/s", fp4 = "9 PFLOP/s" }
source = "HGX B200 datasheet, 2025-01"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a rate just outside the rounding of another precision's is a measurement",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
[hardware.override]
dense_flops = { bf16 = "2250 TFLOP/s", fp8 = "18.2 PFLOP/s" }
source = "HGX B200 datasheet, 2025-01"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "FP8 written down at the 16-bit rate that it falls back to",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
dense_flops = { fp8 = "989 TFLOP/s" }
source = "weight-only kernels"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[[evidence]]
kind = "task-eval"
artifact = "acme/llama-3.1-8b-fp8"
tasks = { gsm8k = -0.002 }
""",
        ),
        Case(
            "a claim of the deployed precision",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[[evidence]]
kind = "task-eval"
artifact = "acme/llama-3.1-8b-fp8"
tasks = { gsm8k = -0.002 }
[[claim]]
metric = "throughput"
value = "1500 tok/s"
at = { concurrency = 32, itl_p99 = "40 ms" }
[claim.assumes]
dense_flops = "1979 TFLOP/s"
precision = "fp8"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every compute rate that the spec writes down with those of the other precisions."""
        rates = [(figure, own) for figure, own in written(review) if figure.compute]
        if not rates:
            yield Lacks("a compute rate in hardware.override, hardware.datasheet or claim.assumes")
            return
        taken = set()
        for figure, own in rates:
            if (other := other_precision(review, figure, own)) is not None:
                taken.add(figure.path)
                yield _of_another(review, figure, own, other)
        if review.composition is None:
            yield Lacks("a composed deployment, for the precisions that it multiplies in")
            return
        used = _used(review)
        yield from _override(review, used, taken)
        for path, claim in review.claims:
            if claim.assumes is not None and not any(t[:2] == path for t in taken):
                yield from _claim(review, path, claim.assumes, used)


def other_precision(review: Review, figure: Figure, own: Accelerator) -> str | None:
    """The precision whose rate a figure is, where it is not its own; None too where HW001 or HW002 says whose it is."""
    # A document may print a rate for a precision that the part has no path for.
    has = figure.kind in own.dense_flops
    if not figure.compute or (has and near(figure.value, own_figures(own, figure.kind))):
        return None
    others = [n for n in own.dense_flops if n != figure.kind and near(figure.value, own_figures(own, n))]
    if not others or of_another_variant(review, figure, own):
        return None
    # The dense rate before a sparse one.
    other = min(others, key=lambda n: not near(figure.value, (own.dense_flops[n],)))
    dense = own.dense_flops.get(figure.kind)
    narrow = figure.kind not in ("bf16", "fp16")
    if narrow and (dense is None or figure.value < dense) and other in ("bf16", "fp16", "tf32", "fp32"):
        return None
    return other


def _of_another(review: Review, figure: Figure, own: Accelerator, other: str) -> Finding:
    dense, rate = own.dense_flops.get(figure.kind), own.dense_flops[other]
    sparse = "" if near(figure.value, (rate,)) else " with structured sparsity"
    have = f"in {figure.kind} it has {flops(dense)}" if dense else f"it has no {figure.kind} path"
    fast = dense is None or figure.value > dense
    factor = f"{figure.value / dense:.2f} times this precision's" if dense else "of no precision that it has"
    return Finding(
        figure.path,
        f"{flops(figure.value)} is the {other} rate of {own.name}{sparse}; {have}",
        equation=f"given {flops(figure.value)} = published {other} rate{sparse}: {factor}",
        inputs=(
            figure.input(review),
            Input(f"dense {other} rate", rate, "FLOP/s", own.source("compute", f"dense_flops.{other}")),
            *(
                (Input(f"dense {figure.kind} rate", dense, "FLOP/s", own.source("compute", "dense_flops")),)
                if dense
                else ()
            ),
        ),
        help=f"use {flops(dense)}" if dense else f"take it out: {own.name} multiplies {figure.kind} at a wider rate",
        related=first_declared(review, "the part", *PART),
        severity=Severity.WARNING if fast else Severity.INFO,
        fix=figure.fix(f"use the {figure.kind} rate", dense) if dense else None,
    )


def _used(review: Review) -> dict[str, float]:
    """The rates that GEMMs and attention of the deployment run at: precision, dense FLOP/s."""
    found: dict[str, float] = {}
    if review.composition is None:
        return found
    for _, side in sides(review.composition):
        accelerator = side.setup.topology.accelerator
        for _, demand in demands_of(side.graph, Matmul):
            if isinstance(demand, Matmul):
                name, rate = accelerator.rate(demand.precision)
                found[name] = rate
                # Accumulation in fp16 is the bound of what accumulates in fp32.
                found.setdefault(f"{name}_acc16", accelerator.dense_flops.get(f"{name}_acc16", rate))
    return found


def _override(review: Review, used: Mapping[str, float], taken: set[KeyPath]) -> Iterator[Finding]:
    override = review.deployment.hardware.override
    rates = override.dense_flops if override is not None else None
    path: KeyPath = ("hardware", "override", "dense_flops")
    if not rates or any(name in used for name in rates) or any(t[:3] == path for t in taken):
        return
    names = [name for name in used if not name.endswith("_acc16")]
    yield Finding(
        (*path, next(iter(rates))),
        f"the {' and '.join(rates)} rate changes nothing: the deployment multiplies in {' and '.join(names)}, whose "
        "rates are the datasheet's",
        equation="; ".join(f"{name} runs at {flops(used[name])}" for name in names),
        inputs=tuple(review.input(f"dense {name} rate", rate, "FLOP/s", *path, name) for name, rate in rates.items()),
        help=f"give the {names[0]} rate, or take the override out",
        severity=Severity.INFO,
    )


def _claim(review: Review, path: KeyPath, assumed: ClaimAssumes, used: Mapping[str, float]) -> Iterator[Finding]:
    """The precision whose rate a claim rests on, where the deployment multiplies in another."""
    deployed = deployed_precision(review)
    own = review.accelerator
    if assumed.accelerator is not None:
        own = only_variant(review, assumed.accelerator)
    if own is None or deployed is None or assumed.dense_flops is None:
        return
    at: KeyPath = (*path, "assumes", "precision")
    precision = assumed.precision
    if isinstance(assumed.dense_flops, Mapping):
        precision = next(iter(assumed.dense_flops)) if len(assumed.dense_flops) == 1 else None
        at = (*path, "assumes", "dense_flops", precision or "")
    if precision is None or precision in used or precision not in own.dense_flops:
        return
    runs, rate = own.rate(deployed)
    assumed_rate = own.dense_flops[precision]
    if near(assumed_rate, (rate,)):
        return
    fast = assumed_rate > rate
    yield Finding(
        at,
        f"the claim rests on the {precision} rate of {flops(assumed_rate)}, and the deployment multiplies in {runs}, "
        f"at most at {flops(rate)}",
        equation=f"{flops(assumed_rate)} / {flops(rate)} = {assumed_rate / rate:.2f}",
        inputs=(
            review.input("assumed precision", precision, "", *at),
            Input(f"dense {runs} rate", rate, "FLOP/s", own.source("compute", f"dense_flops.{runs}")),
        ),
        help=f'compute it from {flops(rate)} and precision = "{runs}", or declare {precision} weights and activations '
        "in policy.quantization if that is what runs",
        related=first_declared(
            review,
            f"multiplies in {runs}",
            ("policy", "quantization", "weights"),
            ("model", "id"),
            ("model", "config"),
        ),
        severity=Severity.WARNING if fast else Severity.INFO,
    )
