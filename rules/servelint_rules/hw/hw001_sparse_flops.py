"""HW001 sparse-flops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from servelint.graph import demands_of
from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    Accelerator,
    Case,
    CatalogueError,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Matmul,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)


class Rate(NamedTuple):
    """A compute rate that somebody wrote down: where, for which precision, of which accelerator."""

    path: KeyPath
    precision: str
    value: float
    accelerator: Accelerator


class SparseFlops(Rule):
    """A structured-sparse compute rate is used for a dense model.

    What it checks
    --------------
    Every compute rate in ``hardware.override``, ``hardware.datasheet``, ``claim.assumes`` and the datasheet
    in use, against the published dense and sparse rates of the same accelerator and precision.

    Why it is bad
    -------------
    Datasheets print rates with 2:4 structured sparsity beside, or instead of, dense ones. A dense checkpoint
    never reaches them: everything computed from the figure is about twice too fast.

    The arithmetic
    --------------
    ``given rate = published sparse rate`` (within the tolerance), while ``published dense rate`` is about half.

    How to fix
    ----------
    Use the dense rate that the message gives. A checkpoint that really is pruned 2:4 needs a datasheet entry
    of its own that says so.

    Source
    ------
    The accelerator's datasheet, as cited in the catalogue.
    """

    code = "HW001"
    name = "sparse-flops"
    severity = Severity.ERROR
    questions = ("is this claim possible",)
    options = (
        Option("tolerance", 0.03, "relative distance within which a rate counts as the published one", 0.0, 0.2),
    )
    failing = (
        Case(
            "an override copied from the sparse column",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
dense_flops = { bf16 = "1979 TFLOP/s" } # expect: HW001
source = "vendor sheet"
[model]
id = "meta-llama/Llama-3.1-8B"
""",
            flip=("hardware.override.dense_flops.bf16", '"989 TFLOP/s"'),
        ),
        Case(
            "a claim that assumes FP8 with sparsity",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 16, itl_p99 = "12 ms" }
[claim.assumes]
dense_flops = "3958 TFLOP/s" # expect: HW001
precision = "fp8"
""",
            flip=("claim[0].assumes.dense_flops", '"1979 TFLOP/s"'),
        ),
        Case(
            "an inline datasheet of a known part",
            """\
servelint = 1
[hardware.datasheet]
id = "nvidia/h100-sxm5-80gb"
[hardware.datasheet.memory]
published_bytes = 80000000000
bandwidth_bytes_per_s = 3350000000000
[hardware.datasheet.compute.dense_flops]
bf16 = 1979e12 # expect: HW001
[model]
id = "meta-llama/Llama-3.1-8B"
""",
            flip=("hardware.datasheet.compute.dense_flops.bf16", "989.4e12"),
        ),
    )
    passing = (
        Case(
            "the dense rate",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
dense_flops = { bf16 = "989 TFLOP/s" }
source = "vendor sheet, dense column"
[model]
id = "meta-llama/Llama-3.1-8B"
""",
        ),
        Case(
            "the dense FP8 rate equals the sparse BF16 rate",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 16, itl_p99 = "12 ms" }
[claim.assumes]
dense_flops = "1979 TFLOP/s"
precision = "fp8"
""",
        ),
        Case(
            "a rate just outside the tolerance is some other figure",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
dense_flops = { bf16 = "1900 TFLOP/s" }
source = "own measurement"
[model]
id = "meta-llama/Llama-3.1-8B"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every rate that the spec writes down with the published ones."""
        rates = list(_rates(review))
        if not rates:
            yield Lacks("a compute rate in hardware.override, hardware.datasheet or claim.assumes")
        for rate in rates:
            published = rate.accelerator
            sparse = published.sparse_flops.get(rate.precision)
            dense = published.dense_flops.get(rate.precision)
            if not sparse or not dense or abs(rate.value / sparse - 1) > self.option("tolerance"):
                continue
            if abs(rate.value / dense - 1) <= self.option("tolerance"):
                continue
            source = published.source("compute", f"sparse_flops.{rate.precision}")
            yield Finding(
                rate.path,
                f"{_tera(rate.value)} is the {rate.precision.upper()} rate of {published.name} with 2:4 structured "
                f"sparsity; a dense model runs at most at {_tera(dense)}",
                equation=(
                    f"given {_tera(rate.value)} = published sparse {_tera(sparse)}; published dense {_tera(dense)}: "
                    f"everything computed from the figure is {rate.value / dense:.2f} times too fast"
                ),
                inputs=(
                    review.input("given rate", rate.value, "FLOP/s", *rate.path),
                    Input("published sparse rate", sparse, "FLOP/s", source),
                    Input(
                        "published dense rate",
                        dense,
                        "FLOP/s",
                        published.source("compute", f"dense_flops.{rate.precision}"),
                    ),
                ),
                help=f"set {dotted(rate.path)} = {_toml(rate, dense)}, the dense rate",
                related=_related(review, rate),
                fix=Fix("use the dense rate", (Edit(rate.path, _toml(rate, dense)),), safe=True),
            )


def _tera(rate: float) -> str:
    """One prefix for both rates of a pair, the one that datasheets print."""
    return f"{rate / 1e12:,.5g} TFLOP/s"


def _toml(rate: Rate, dense: float) -> str:
    """The dense rate as the spec would have it; datasheets hold plain numbers of FLOP/s."""
    return f"{dense / 1e12:g}e12" if "datasheet" in rate.path else f'"{dense / 1e12:g} TFLOP/s"'


def _related(review: Review, rate: Rate) -> tuple[Related, ...]:
    if review.declared("model", "id"):
        return (Related(("model", "id"), "a dense checkpoint: no 2:4 pruning is declared"),)
    return ()


def _rates(review: Review) -> Iterator[Rate]:
    hardware = review.deployment.hardware
    accelerator = review.accelerator
    if accelerator is None:
        return
    if hardware.override is not None:
        for precision, value in (hardware.override.dense_flops or {}).items():
            yield Rate(("hardware", "override", "dense_flops", precision), precision, value, accelerator)
    if hardware.datasheet is not None:
        known = _known(review, accelerator)
        for precision, value in accelerator.dense_flops.items():
            yield Rate(("hardware", "datasheet", "compute", "dense_flops", precision), precision, value, known)
    for path, claim in review.claims:
        assumed = claim.assumes
        if assumed is None or assumed.dense_flops is None:
            continue
        named = _known(review, accelerator) if assumed.accelerator is None else _lookup(review, assumed.accelerator)
        if named is None:
            continue
        at = (*path, "assumes", "dense_flops")
        if isinstance(assumed.dense_flops, Mapping):
            for precision, value in assumed.dense_flops.items():
                yield Rate((*at, precision), precision, value, named)
        else:
            meant = assumed.precision or deployed_precision(review)
            if meant is not None:
                yield Rate(at, meant, assumed.dense_flops, named)


def _lookup(review: Review, name: str) -> Accelerator | None:
    try:
        return review.plugins.accelerators.get(name)
    except CatalogueError:
        return None


def _known(review: Review, accelerator: Accelerator) -> Accelerator:
    """The catalogue's own datasheet of the same part, where there is one."""
    return _lookup(review, accelerator.id) or accelerator


def deployed_precision(review: Review) -> str | None:
    """The precision that most of the deployed FLOPs run at, None without a composition."""
    if review.composition is None:
        return None
    totals: defaultdict[str, float] = defaultdict(float)
    for op, demand in demands_of(review.composition.graph, Matmul):
        if isinstance(demand, Matmul) and demand.tensor is not None:
            totals[demand.precision] += demand.coefficient * op.count
    return max(totals, key=lambda name: totals[name], default=None)
