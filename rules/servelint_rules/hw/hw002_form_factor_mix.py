"""HW002 form-factor-mix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import (
    Accelerator,
    Case,
    CatalogueError,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.spec.model import ClaimAssumes
from servelint.units import Dimension, format_quantity
from servelint_rules.hw.hw001_sparse_flops import deployed_precision
from servelint_rules.show import flops, size

BANDWIDTH = "memory_bandwidth"
MEMORY = "memory"


class Figure(NamedTuple):
    """A figure that somebody wrote down: where, of what (a precision, or one of the two above), how much."""

    path: KeyPath
    kind: str
    value: float


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
        Option("tolerance", 0.01, "relative distance within which a figure counts as the published one", 0.0, 0.1),
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
            yield from self._mixed(review, accelerator, _overridden(review))
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
                yield from self._mixed(review, named, _assumed(review, path, assumed))
        if not looked:
            yield Lacks("hardware.override, hardware.datasheet or claim.assumes")

    def _mixed(self, review: Review, own: Accelerator, figures: Iterable[Figure]) -> Iterator[Finding]:
        """Report figures that are not this SKU's and are another one's of its family."""
        others: list[Accelerator] | None = None
        for figure in figures:
            if self._is(figure, own) or (figure.kind == MEMORY and figure.value < own.memory_bytes):
                continue
            if others is None:
                others = [o for o in _family(review, own.family) if o.id != own.id]
            if theirs := self._whose(figure, others):
                yield _finding(review, figure, own, theirs)

    def _datasheet(self, review: Review, inline: Accelerator) -> Iterator[Finding]:
        """Judge an inline datasheet by its id, else by the variant that most of its figures belong to."""
        figures = list(_inline(inline))
        table = review.deployment.hardware.datasheet or {}
        key = next((k for k in ("id", "name") if isinstance(table.get(k), str)), None)
        several = variants(review, str(table[key])) if key else []
        if len(several) == 1:
            yield from self._mixed(review, several[0], figures)
            return
        if not several or key is None:
            return
        fitting = {o.id: sum(self._is(f, o) for f in figures) for o in several}
        nearest = max(several, key=lambda o: fitting[o.id])
        odd = list(self._mixed(review, nearest, figures)) if fitting[nearest.id] > 1 else []
        yield from odd
        if not odd and not table.get("form_factor"):
            yield _ambiguous(review, ("hardware", "datasheet", key), str(table[key]), several)

    def _near(self, value: float, published: Iterable[float]) -> bool:
        return any(p > 0 and abs(value / p - 1) <= self.option("tolerance") for p in published)

    def _is(self, figure: Figure, sku: Accelerator) -> bool:
        return self._near(figure.value, (*_published(sku, figure.kind), *_rival(sku, figure.kind)))

    def _whose(self, figure: Figure, others: Iterable[Accelerator]) -> list[Accelerator]:
        """The variants that print the figure; those of which only another document says so if none does."""
        others = list(others)
        return [o for o in others if self._near(figure.value, _published(o, figure.kind))] or [
            o for o in others if self._near(figure.value, _rival(o, figure.kind))
        ]


def variants(review: Review, name: str) -> list[Accelerator]:
    """Return the catalogue's SKUs that a name can mean: one for an id or alias, several for a mere family."""
    catalogue = review.plugins.accelerators
    found = catalogue.resolve(name)
    if found is not None:
        return [catalogue.get(found)]
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    scores: dict[str, int] = {}
    for id in catalogue.ids():  # noqa: A001
        parts = id.lower().partition("/")[2].split("-")
        if parts[0] in words:
            # "sxm" is "sxm5" without its generation.
            scores[id] = sum(
                any(w == p or (w.isalpha() and len(w) > 2 and p.startswith(w)) for w in words) for p in parts
            )
    best = max(scores.values(), default=0)
    skus = [sku for id in scores if scores[id] == best and (sku := _loaded(review, id)) is not None]  # noqa: A001
    return skus if len({sku.family for sku in skus}) == 1 else []


def _loaded(review: Review, id: str) -> Accelerator | None:  # noqa: A002
    try:
        return review.plugins.accelerators.get(id)
    except CatalogueError:
        return None


def _family(review: Review, family: str) -> list[Accelerator]:
    """Every SKU of a family; only ids that contain its name are read."""
    ids = [id for id in review.plugins.accelerators.ids() if family in id.lower()]  # noqa: A001
    return [sku for id in ids if (sku := _loaded(review, id)) is not None and sku.family == family]  # noqa: A001


def _overridden(review: Review) -> Iterator[Figure]:
    override = review.deployment.hardware.override
    if override is None:
        return
    at = ("hardware", "override")
    for precision, value in (override.dense_flops or {}).items():
        yield Figure((*at, "dense_flops", precision), precision, value)
    if override.memory_bandwidth is not None:
        yield Figure((*at, "memory_bandwidth"), BANDWIDTH, override.memory_bandwidth)
    if override.memory is not None:
        yield Figure((*at, "memory"), MEMORY, override.memory)


def _inline(inline: Accelerator) -> Iterator[Figure]:
    at = ("hardware", "datasheet")
    for precision, value in inline.dense_flops.items():
        yield Figure((*at, "compute", "dense_flops", precision), precision, value)
    yield Figure((*at, "memory", "bandwidth_bytes_per_s"), BANDWIDTH, inline.memory_bandwidth_bytes_per_s)
    yield Figure((*at, "memory", "published_bytes"), MEMORY, inline.memory_bytes)


def _assumed(review: Review, path: KeyPath, assumed: ClaimAssumes) -> Iterator[Figure]:
    at = (*path, "assumes")
    if isinstance(assumed.dense_flops, Mapping):
        for precision, value in assumed.dense_flops.items():
            yield Figure((*at, "dense_flops", precision), precision, value)
    elif assumed.dense_flops is not None:
        meant = assumed.precision or deployed_precision(review)
        if meant is not None:
            yield Figure((*at, "dense_flops"), meant, assumed.dense_flops)
    if assumed.memory_bandwidth is not None:
        yield Figure((*at, "memory_bandwidth"), BANDWIDTH, assumed.memory_bandwidth)


def _published(sku: Accelerator, kind: str) -> tuple[float, ...]:
    """What a SKU's datasheet prints for a kind of figure, the main one first."""
    if kind == BANDWIDTH:
        return (sku.memory_bandwidth_bytes_per_s,)
    if kind == MEMORY:
        totals = (sku.memory_bytes, sku.driver_total_bytes, sku.runtime_visible_bytes)
        return tuple(float(total) for total in totals if total)
    rates = (sku.dense_flops.get(kind), sku.sparse_flops.get(kind))
    return tuple(rate for rate in rates if rate)


def _rival(sku: Accelerator, kind: str) -> tuple[float, ...]:
    """What other documents print for it."""
    fields = {
        BANDWIDTH: ("memory.bandwidth_bytes_per_s",),
        MEMORY: ("memory.published_bytes",),
    }.get(kind, (f"compute.dense_flops.{kind}", f"compute.sparse_flops.{kind}"))
    return tuple(float(c.value) for c in sku.conflicts if c.field in fields and isinstance(c.value, int | float))


def _shown(kind: str, value: float) -> str:
    if kind == BANDWIDTH:
        return format_quantity(value, Dimension.BYTES_PER_SECOND)
    return size(value) if kind == MEMORY else flops(value)


def _finding(review: Review, figure: Figure, own: Accelerator, theirs: list[Accelerator]) -> Finding:
    published = _published(own, figure.kind)
    given = _shown(figure.kind, figure.value)
    names = " and ".join(f"{o.name} ({o.id})" for o in theirs)
    what = {BANDWIDTH: "memory bandwidth", MEMORY: "memory"}.get(figure.kind, f"{figure.kind.upper()} rate")
    unit = {BANDWIDTH: "B/s", MEMORY: "B"}.get(figure.kind, "FLOP/s")
    group = "memory" if figure.kind in (BANDWIDTH, MEMORY) else "compute"
    have = f"{own.name} has {_shown(figure.kind, published[0])}" if published else f"{own.name} has no such figure"
    help_text = f"if the devices are that part, name {theirs[0].id}"
    if published:
        help_text = f"use {_shown(figure.kind, published[0])}; {help_text}"
    return Finding(
        figure.path,
        f"{given} is the {what} of {names}; {have}",
        equation=(
            f"given {given} = published {_shown(figure.kind, _nearest(figure, theirs[0]))}"
            + (f"; {figure.value / published[0]:.2f} of this part's" if published else "")
        ),
        inputs=(
            review.input("given figure", figure.value, unit, *figure.path),
            *(Input(f"{what} of {o.id}", _nearest(figure, o), unit, o.source(group, figure.kind)) for o in theirs),
            *(Input(f"{what} of {own.id}", p, unit, own.source(group, figure.kind)) for p in published[:1]),
        ),
        help=help_text,
        related=_named(review, figure.path, own),
        fix=_fix(figure, published[0]) if published else None,
    )


def _nearest(figure: Figure, sku: Accelerator) -> float:
    figures = (*_published(sku, figure.kind), *_rival(sku, figure.kind))
    return min(figures, key=lambda p: abs(figure.value - p))


def _named(review: Review, path: KeyPath, own: Accelerator) -> tuple[Related, ...]:
    places: tuple[KeyPath, ...] = (
        ((*path[:3], "accelerator"),) if path[0] == "claim" else (("hardware", "datasheet", "id"),)
    )
    for place in (*places, ("hardware", "accelerator"), ("hardware", "datasheet", "name")):
        if review.declared(*place):
            return (Related(place, f"this part is {own.name}, {own.form_factor}"),)
    return ()


def _fix(figure: Figure, value: float) -> Fix:
    if figure.path[:2] == ("hardware", "datasheet"):
        text = f"{value:.0f}"
    elif figure.kind == BANDWIDTH:
        text = f'"{value / 1e12:g} TB/s"'
    elif figure.kind == MEMORY:
        text = f'"{value / 1e9:g} GB"'
    else:
        text = f'"{value / 1e12:g} TFLOP/s"'
    return Fix("use this part's own figure", (Edit(figure.path, text),))


def _ambiguous(review: Review, path: KeyPath, name: str, several: list[Accelerator]) -> Finding:
    bandwidths = sorted({sku.memory_bandwidth_bytes_per_s for sku in several})
    spread = " to ".join(_shown(BANDWIDTH, b) for b in dict.fromkeys((bandwidths[0], bandwidths[-1])))
    ids = ", ".join(sku.id for sku in several)
    return Finding(
        path,
        f"{name!r} can be {len(several)} products with {spread}: {ids}",
        equation="; ".join(f"{s.id}: {_shown(BANDWIDTH, s.memory_bandwidth_bytes_per_s)}" for s in several),
        inputs=tuple(
            Input(f"bandwidth of {s.id}", s.memory_bandwidth_bytes_per_s, "B/s", s.source("memory", "bandwidth"))
            for s in several
        ),
        help=f"name one of {ids}",
        severity=Severity.INFO,
        confidence="high",
    )
