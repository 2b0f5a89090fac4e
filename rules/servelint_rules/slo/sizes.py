"""The deployment of fewest devices that carries a load: replicas, budgets, admission limits, tensor parallelism.

What is proposed holds the model and its longest sequence, keeps every objective, and does so without stalls (SLO008).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Composition, Review
from servelint.service import Mix, Objective, Service
from servelint_rules.layouts import NODE, altered, parallelism, widened, within_fast_links
from servelint_rules.slo.chunks import stalled
from servelint_rules.variants import (
    MOST_TOKENS,
    Edits,
    budget_edits,
    budget_key,
    pieces,
    replicas_for,
    sound,
)

SMALLEST = 128
"""Token budgets of a step below this are not proposed: they re-read the weights too often."""
MOST_SEQUENCES = 1024
"""Admission limits beyond this are not proposed: what vLLM sets by itself on large devices."""
ADMISSION: KeyPath = ("policy", "batching", "max_sequences")
REPLICAS: KeyPath = ("hardware", "replicas")


class Size(NamedTuple):
    """A deployment that carries a load: the replica, how many of them, and the edits that make it."""

    composition: Composition
    replicas: int
    edits: Edits

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.composition.setup.topology.devices

    @property
    def cost(self) -> tuple[int, int]:
        """What is to be least: devices, then what has to change."""
        return self.devices, len(self.edits)


class Load(NamedTuple):
    """What has to be carried: requests of a mix, so many a second in all, within the objectives."""

    mix: Mix
    total: float
    objectives: tuple[Objective, ...]


def sizes(review: Review, load: Load, admission: bool = False) -> tuple[Size | None, Size | None]:
    """More replicas as they are, and what takes the fewest devices; the first is the second where nothing beats it.

    Tried are token budgets and tensor-parallel degrees within a node, each with the replicas that it takes; and the
    admission limit, where ``admission`` says that it is what binds.
    """
    composition = review.composition
    if composition is None:
        return None, None
    alone = best = _size(review, composition, load, ())
    if composition.scheduler.disaggregation is not None:
        return alone, best
    devices, tensor = composition.setup.topology.devices, parallelism(composition).t
    for factor in (1, 2, 4, 8):
        if best is not None and devices * factor > best.devices:
            break
        wide = composition if factor == 1 else widened(composition, factor) if devices * factor <= NODE else None
        if wide is None:
            continue
        edits: Edits = ()
        if factor > 1:
            if not within_fast_links(wide, tensor * factor):
                continue
            edits = (
                (("hardware", "devices"), str(devices * factor)),
                (("policy", "parallelism", "tensor"), str(tensor * factor)),
            )
        most = best.devices if best is not None else None
        found = min(_tuned(review, wide, load, edits, admission, most), key=lambda size: size.cost, default=None)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return alone, best


def _tuned(
    review: Review, composition: Composition, load: Load, edits: Edits, admission: bool, most: int | None
) -> Iterator[Size]:
    """A replica with every budget; where the admission limit binds, with a large one first, which is trimmed then."""
    limits = list(_larger_limits(review, composition)) if admission else []
    if not limits:
        yield from _budgeted(review, composition, load, edits, None, most)
        return
    opened = altered(composition, batching=evolve(_batching(composition), max_sequences=limits[-1]))
    if opened is None:
        return
    best = min(_budgeted(review, opened, load, edits, limits[-1], most), key=lambda size: size.cost, default=None)
    if best is None:
        return
    current, largest = _batching(composition).max_sequences, _batching(best.composition).max_sequences
    kept = tuple(edit for edit in best.edits if edit[0] not in (ADMISSION, REPLICAS))
    for number in sorted({min(limit, largest) for limit in (current, *limits)}):
        other = altered(best.composition, batching=evolve(_batching(best.composition), max_sequences=number))
        changes = number > current or (number < current and review.declared(*ADMISSION))
        own = (*kept, (ADMISSION, str(number))) if changes else kept
        size = _size(review, other, load, own, best.devices) if other is not None else None
        if size is not None and size.devices <= best.devices:
            yield size
            return


def _larger_limits(review: Review, composition: Composition) -> Iterator[int]:
    """Doublings of the admission limit that the engine takes and memory has room for."""
    batching = _batching(composition)
    number = batching.max_sequences
    while number is not None and (number := number * 2) <= min(MOST_SEQUENCES, batching.max_batched_tokens or math.inf):
        if sound(review, altered(composition, batching=evolve(batching, max_sequences=number))) is None:
            return
        yield number


def _budgeted(
    review: Review, composition: Composition, load: Load, edits: Edits, admitted: int | None, most: int | None
) -> Iterator[Size]:
    """A replica with the budget that it has, and with halvings and doublings of it.

    All of them: between a budget whose chunks are rare enough and one whose every chunk is short enough lie worse ones.
    """
    own = (*edits, (ADMISSION, str(admitted))) if admitted else edits
    size = _size(review, composition, load, own, most)
    if size is not None:
        yield size
        most = size.devices
    made, key = pieces(review), budget_key(review)
    batching = evolve(_batching(composition), **made.changes)
    tokens = getattr(batching, key)
    if tokens is None:
        return
    ceiling = min(MOST_TOKENS, batching.max_batched_tokens or MOST_TOKENS) if batching.prefill_chunk else MOST_TOKENS
    for halving in (True, False):
        budget = tokens
        while SMALLEST <= (budget := budget // 2 if halving else budget * 2) <= ceiling:
            more = budget_edits(review, budget, admitted)
            changed = {str(path[-1]): int(text) for path, text in more}
            other = altered(composition, batching=evolve(batching, **changed))
            size = _size(review, other, load, (*edits, *made.edits, *more), most) if other is not None else None
            if size is not None:
                yield size
                most = size.devices


def _size(review: Review, composition: Composition, load: Load, edits: Edits, most: int | None = None) -> Size | None:
    """The replicas that a deployment takes, None where it does not fit or stalls whatever their number (SLO008).

    None also where it would take more than ``most`` devices: what as many carry is one point, not a search for a knee.
    """
    if edits and sound(review, composition) is None:
        return None
    service = Service(composition, load.mix)
    if most is not None:
        allowed = most // composition.setup.topology.devices
        point = service.at_rate(load.total / allowed) if allowed else None
        if point is None or point.misses(load.objectives, declared=True):
            return None
    needed = replicas_for(service, load.total, load.objectives, lambda point: stalled(review, point) is None)
    if needed is None:
        return None
    if needed != review.replicas:
        edits = (*edits, (REPLICAS, str(needed)))
    return Size(composition, needed, edits)


def _batching(composition: Composition) -> Any:
    """The resolved ``[policy.batching]`` of a replica."""
    return composition.context.configs["batching"]
