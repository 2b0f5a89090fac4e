"""HW002 form-factor-mix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Accelerator, Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.hw.figures import (
    BANDWIDTH,
    MEMORY,
    TOLERANCE,
    Figure,
    assumed_figures,
    family_of,
    figure_source,
    first_declared,
    inline_figures,
    known,
    near,
    overridden,
    own_figures,
    published_figures,
    rival_figures,
    shown,
    variants,
)


class FormFactorMix(Rule):
    """Figures of different variants of one product are mixed, or a name does not say which variant is meant.

    What it checks
    --------------
    Memory, bandwidth and compute figures in ``hardware.override``, ``hardware.datasheet`` and
    ``claim.assumes`` against every variant of the same family (SXM, PCIe, NVL; memory sizes). A finding when a
    figure is not this SKU's and is another one's, or when an inline datasheet takes figures from two. Names in
    ``claim.assumes.accelerator`` and of an inline datasheet that fit several variants are reported as advice; in
    ``hardware.accelerator`` such a name is SPEC004's. A SKU's own sparse rate is HW001's. A smaller memory than
    the SKU has is left alone: it may be a slice.

    Why it is bad
    -------------
    "H100" is three products: 3.35, 2.04 or 3.94 TB/s, 989, 756 or 836 TFLOP/s. A bound computed from the wrong
    one is wrong by up to a factor of two, and a claim checked against it passes or fails by accident.

    The arithmetic
    --------------
    ``|given / published - 1| <= tolerance`` for another variant and for no figure of this one.

    How to fix
    ----------
    Use this SKU's figure, which the message gives, or name the SKU that the figures belong to.

    Source
    ------
    The datasheets of the family's variants, as cited in the catalogue.
    """

    code = "HW002"
    name = "form-factor-mix"
    severity = Severity.WARNING
    questions = ("is this claim possible", "does it fit")
    options = (
        Option("tolerance", TOLERANCE, "relative distance within which a figure counts as the published one", 0.0, 0.1),
    )
    failing = (
        Case(
            "the bandwidth of the SXM part on a PCIe card",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-pcie-80gb"
[hardware.override]
memory_bandwidth = "3.35 TB/s" # expect: HW002
source = "product page"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.memory_bandwidth", '"2.04 TB/s"'),
        ),
        Case(
            "a claim about SXM from the dense rate of NVL",
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
[claim.assumes]
dense_flops = "835 TFLOP/s" # expect: HW002
precision = "bf16"
""",
            flip=("claim[0].assumes.dense_flops", '"989 TFLOP/s"'),
        ),
        Case(
            "a name that fits three products",
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
[claim.assumes]
accelerator = "H100" # expect: HW002
""",
            flip=("claim[0].assumes.accelerator", '"nvidia/h100-sxm5-80gb"'),
        ),
        Case(
            "an inline datasheet with the compute of one variant and the bandwidth of another",
            """\
servelint = 1
[hardware.datasheet]
name = "H100 as bought"
form_factor = "PCIe"
[hardware.datasheet.memory]
published_bytes = 80000000000
bandwidth_bytes_per_s = 2039000000000
[hardware.datasheet.compute.dense_flops]
bf16 = 989.4e12 # expect: HW002
fp8 = 1513e12
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.datasheet.compute.dense_flops.bf16", "756e12"),
        ),
    )
    passing = (
        Case(
            "a figure of the part itself, as another document rounds it",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-pcie-80gb"
[hardware.override]
memory_bandwidth = "2.0 TB/s"
source = "product brief"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a figure just outside the tolerance is a measurement of its own",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-pcie-80gb"
[hardware.override]
memory_bandwidth = "3.3 TB/s"
source = "own measurement"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a slice of the larger part has the smaller part's memory",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[hardware.override]
memory = "40 GB"
source = "half of the device"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a claim that names another variant and uses that one's figures",
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
[claim.assumes]
accelerator = "H100 PCIe"
dense_flops = "756 TFLOP/s"
precision = "bf16"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what the spec writes down with every variant of the family."""
        hardware, accelerator = review.deployment.hardware, review.accelerator
        looked = False
        if accelerator is not None and hardware.override is not None:
            looked = True
            yield from self._mixed(review, accelerator, overridden(review))
        if accelerator is not None and hardware.datasheet is not None:
            looked = True
            yield from self._datasheet(review, accelerator)
        for path, claim in review.claims:
            assumed = claim.assumes
            if assumed is None:
                continue
            looked = True
            named = accelerator
            if assumed.accelerator is not None:
                several = variants(review, assumed.accelerator)
                if len(several) > 1:
                    yield _ambiguous(review, (*path, "assumes", "accelerator"), assumed.accelerator, several)
                    continue
                named = several[0] if several else None
            if named is not None:
                yield from self._mixed(review, named, assumed_figures(review, path, assumed))
        if not looked:
            yield Lacks("hardware.override, hardware.datasheet or claim.assumes")

    def _mixed(self, review: Review, own: Accelerator, figures: Iterable[Figure]) -> Iterator[Finding]:
        """Report figures that are not this SKU's and are another one's of its family."""
        others: list[Accelerator] | None = None
        for figure in figures:
            if self._is(figure, own) or (figure.kind == MEMORY and figure.value < own.memory_bytes):
                continue
            if others is None:
                others = [o for o in family_of(review, own.family) if o.id != own.id]
            if theirs := self._whose(figure, others):
                yield _finding(review, figure, own, theirs)

    def _datasheet(self, review: Review, inline: Accelerator) -> Iterator[Finding]:
        """Judge an inline datasheet by its id, else by the variant that most of its figures belong to."""
        figures = list(inline_figures(inline))
        if (own := known(review)) is not None:
            yield from self._mixed(review, own, figures)
            return
        table = review.deployment.hardware.datasheet or {}
        key = next((k for k in ("id", "name") if isinstance(table.get(k), str)), None)
        several = variants(review, str(table[key])) if key else []
        if not several or key is None:
            return
        fitting = {o.id: sum(self._is(f, o) for f in figures) for o in several}
        nearest = max(several, key=lambda o: fitting[o.id])
        odd = list(self._mixed(review, nearest, figures)) if fitting[nearest.id] > 1 else []
        yield from odd
        if not odd and not table.get("form_factor"):
            yield _ambiguous(review, ("hardware", "datasheet", key), str(table[key]), several)

    def _is(self, figure: Figure, sku: Accelerator) -> bool:
        return near(figure.value, own_figures(sku, figure.kind), self.option("tolerance"))

    def _whose(self, figure: Figure, others: Iterable[Accelerator]) -> list[Accelerator]:
        """The variants that print the figure; those of which only another document says so if none does."""
        others, tolerance = list(others), self.option("tolerance")
        return [o for o in others if near(figure.value, published_figures(o, figure.kind), tolerance)] or [
            o for o in others if near(figure.value, rival_figures(o, figure.kind), tolerance)
        ]


def _finding(review: Review, figure: Figure, own: Accelerator, theirs: list[Accelerator]) -> Finding:
    published = published_figures(own, figure.kind)
    given = shown(figure.kind, figure.value)
    names = " and ".join(f"{o.name} ({o.id})" for o in theirs)
    have = f"{own.name} has {shown(figure.kind, published[0])}" if published else f"{own.name} has no such figure"
    help_text = f"if the devices are that part, name {theirs[0].id}"
    if published:
        help_text = f"use {shown(figure.kind, published[0])}; {help_text}"
    return Finding(
        figure.path,
        f"{given} is the {figure.what} of {names}; {have}",
        equation=(
            f"given {given} = published {shown(figure.kind, _nearest(figure, theirs[0]))}"
            + (f"; {figure.value / published[0]:.2f} of this part's" if published else "")
        ),
        inputs=(
            figure.input(review),
            *(
                Input(f"{figure.what} of {o.id}", _nearest(figure, o), figure.unit, figure_source(o, figure.kind))
                for o in theirs
            ),
            *(
                Input(f"{figure.what} of {own.id}", p, figure.unit, figure_source(own, figure.kind))
                for p in published[:1]
            ),
        ),
        help=help_text,
        related=_named(review, figure.path, own),
        fix=figure.fix("use this part's own figure", published[0]) if published else None,
    )


def _nearest(figure: Figure, sku: Accelerator) -> float:
    return min(own_figures(sku, figure.kind), key=lambda p: abs(figure.value - p))


def _named(review: Review, path: KeyPath, own: Accelerator) -> tuple[Related, ...]:
    places: tuple[KeyPath, ...] = (
        ((*path[:3], "accelerator"),) if path[0] == "claim" else (("hardware", "datasheet", "id"),)
    )
    places = (*places, ("hardware", "accelerator"), ("hardware", "datasheet", "name"))
    return first_declared(review, f"this part is {own.name}, {own.form_factor}", *places)


def _ambiguous(review: Review, path: KeyPath, name: str, several: list[Accelerator]) -> Finding:
    bandwidths = sorted({sku.memory_bandwidth_bytes_per_s for sku in several})
    spread = " to ".join(shown(BANDWIDTH, b) for b in dict.fromkeys((bandwidths[0], bandwidths[-1])))
    ids = ", ".join(sku.id for sku in several)
    return Finding(
        path,
        f"{name!r} can be {len(several)} products with {spread}: {ids}",
        equation="; ".join(f"{s.id}: {shown(BANDWIDTH, s.memory_bandwidth_bytes_per_s)}" for s in several),
        inputs=tuple(
            Input(f"bandwidth of {s.id}", s.memory_bandwidth_bytes_per_s, "B/s", s.source("memory", "bandwidth"))
            for s in several
        ),
        help=f"name one of {ids}",
        severity=Severity.INFO,
        confidence="high",
    )
