"""The figures that a spec writes down of its hardware, and the SKUs of the catalogue that they can be of.

Shared by the rules of this family, which ask of the same figures whose they are: HW002 of another variant of the
product, HW005 of another precision, HW008 more memory than there is, HW010 of several devices together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Accelerator, CatalogueError, Edit, Fix, Input, Related, Review, Source
from servelint.spec.model import ClaimAssumes
from servelint.units import Dimension, format_quantity
from servelint_rules.hw.hw001_sparse_flops import deployed_precision
from servelint_rules.show import flops, size

BANDWIDTH = "memory_bandwidth"
MEMORY = "memory"

PART: tuple[KeyPath, ...] = (("hardware", "accelerator"), ("hardware", "instance"), ("hardware", "datasheet", "id"))
"""The keys that say which part is deployed."""

TOLERANCE = 0.01
"""Relative distance within which a figure counts as a published one; documents round to three digits."""


class Figure(NamedTuple):
    """A figure that somebody wrote down: where, of what (a precision, or one of the two above), how much."""

    path: KeyPath
    kind: str
    value: float

    @property
    def what(self) -> str:
        """What it is a figure of, in words."""
        return {BANDWIDTH: "memory bandwidth", MEMORY: "memory"}.get(self.kind, f"{self.kind.upper()} rate")

    @property
    def unit(self) -> str:
        """Its SI unit."""
        return {BANDWIDTH: "B/s", MEMORY: "B"}.get(self.kind, "FLOP/s")

    @property
    def compute(self) -> bool:
        """Whether it is a compute rate."""
        return self.kind not in (BANDWIDTH, MEMORY)

    def input(self, review: Review) -> Input:
        """The figure as an input of a finding."""
        return review.input("given figure", self.value, self.unit, *self.path)

    def text(self, value: float) -> str:
        """A value in TOML, as the key of this figure would have it."""
        if self.path[:2] == ("hardware", "datasheet"):
            return f"{value:.0f}"
        if self.kind == BANDWIDTH:
            return f'"{value / 1e12:g} TB/s"'
        return f'"{value / 1e9:g} GB"' if self.kind == MEMORY else f'"{value / 1e12:g} TFLOP/s"'

    def fix(self, description: str, value: float) -> Fix:
        """The edit that puts another value in its place."""
        return Fix(description, (Edit(self.path, self.text(value)),))


def near(value: float, published: Iterable[float], tolerance: float = TOLERANCE) -> bool:
    """Whether a figure is one of the published ones, as far as documents round."""
    return any(abs(value - p) <= tolerance * p for p in published)


def shown(kind: str, value: float) -> str:
    """A figure of a kind, for people."""
    if kind == BANDWIDTH:
        return format_quantity(value, Dimension.BYTES_PER_SECOND)
    return size(value) if kind == MEMORY else flops(value)


def figure_source(sku: Accelerator, kind: str) -> Source:
    """The source of a SKU's figure of a kind."""
    return sku.source("memory" if kind in (BANDWIDTH, MEMORY) else "compute", kind)


def first_declared(review: Review, text: str, *places: KeyPath) -> tuple[Related, ...]:
    """The first of some keys that the spec declares, as what a finding is related to."""
    found = next((place for place in places if review.declared(*place)), None)
    return () if found is None else (Related(found, text),)


# What the spec writes down


def overridden(review: Review) -> Iterator[Figure]:
    """Figures of ``hardware.override``."""
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


def inline_figures(inline: Accelerator) -> Iterator[Figure]:
    """Figures of an inline datasheet."""
    at = ("hardware", "datasheet")
    for precision, value in inline.dense_flops.items():
        yield Figure((*at, "compute", "dense_flops", precision), precision, value)
    yield Figure((*at, "memory", "bandwidth_bytes_per_s"), BANDWIDTH, inline.memory_bandwidth_bytes_per_s)
    yield Figure((*at, "memory", "published_bytes"), MEMORY, inline.memory_bytes)


def assumed_figures(review: Review, path: KeyPath, assumed: ClaimAssumes) -> Iterator[Figure]:
    """Figures of ``claim.assumes``; a rate without its precision is of the deployed one."""
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


def written(review: Review) -> Iterator[tuple[Figure, Accelerator]]:
    """Yield every figure of override, inline datasheet and claims, with the SKU of the catalogue that it is said of.

    Left out are those of a part that the catalogue does not have, or whose name fits several.
    """
    hardware, accelerator = review.deployment.hardware, review.accelerator
    own = known(review)
    if own is not None and hardware.override is not None:
        for figure in overridden(review):
            yield figure, own
    if own is not None and accelerator is not None and hardware.datasheet is not None:
        for figure in inline_figures(accelerator):
            yield figure, own
    for path, claim in review.claims:
        if claim.assumes is None:
            continue
        named = own
        if claim.assumes.accelerator is not None:
            named = only_variant(review, claim.assumes.accelerator)
        if named is not None:
            for figure in assumed_figures(review, path, claim.assumes):
                yield figure, named


def known(review: Review) -> Accelerator | None:
    """The catalogue's SKU of the deployed part; of an inline datasheet the one that its id or name fits alone."""
    table, accelerator = review.deployment.hardware.datasheet, review.accelerator
    if table is None or accelerator is None:
        return accelerator
    for key in ("id", "name"):
        if isinstance(table.get(key), str):
            return only_variant(review, table[key])
    return None


# The catalogue's SKUs


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


def only_variant(review: Review, name: str) -> Accelerator | None:
    """The one SKU that a name means, None where it fits none or several."""
    several = variants(review, name)
    return several[0] if len(several) == 1 else None


def _loaded(review: Review, id: str) -> Accelerator | None:  # noqa: A002
    try:
        return review.plugins.accelerators.get(id)
    except CatalogueError:
        return None


def family_of(review: Review, family: str) -> list[Accelerator]:
    """Every SKU of a family; only ids that contain its name are read."""
    ids = [id for id in review.plugins.accelerators.ids() if family in id.lower()]  # noqa: A001
    return [sku for id in ids if (sku := _loaded(review, id)) is not None and sku.family == family]  # noqa: A001


def published_figures(sku: Accelerator, kind: str) -> tuple[float, ...]:
    """What a SKU's datasheet prints for a kind of figure, the main one first."""
    if kind == BANDWIDTH:
        return (sku.memory_bandwidth_bytes_per_s,)
    if kind == MEMORY:
        totals = (sku.memory_bytes, sku.driver_total_bytes, sku.runtime_visible_bytes)
        return tuple(float(total) for total in totals if total)
    rates = (sku.dense_flops.get(kind), sku.sparse_flops.get(kind))
    return tuple(rate for rate in rates if rate)


def rival_figures(sku: Accelerator, kind: str) -> tuple[float, ...]:
    """What other documents print for it."""
    fields = {
        BANDWIDTH: ("memory.bandwidth_bytes_per_s",),
        MEMORY: ("memory.published_bytes",),
    }.get(kind, (f"compute.dense_flops.{kind}", f"compute.sparse_flops.{kind}"))
    return tuple(float(c.value) for c in sku.conflicts if c.field in fields and isinstance(c.value, int | float))


def own_figures(sku: Accelerator, kind: str) -> tuple[float, ...]:
    """Everything that is published of a SKU for a kind of figure."""
    return (*published_figures(sku, kind), *rival_figures(sku, kind))


def of_another_variant(review: Review, figure: Figure, own: Accelerator) -> bool:
    """Whether HW002 speaks: the figure is not this SKU's and is another one's of its family."""
    if near(figure.value, own_figures(own, figure.kind)) or (figure.kind == MEMORY and figure.value < own.memory_bytes):
        return False
    others = (o for o in family_of(review, own.family) if o.id != own.id)
    return any(near(figure.value, own_figures(o, figure.kind)) for o in others)
