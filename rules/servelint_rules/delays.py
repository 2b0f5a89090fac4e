"""What stands before a first token besides prefill and queue: cold grammar compiles and KV transfers.

CND002 and DIS003 report the TTFT objectives that only these break; SLO001 leaves those to them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attrs import evolve

from servelint.plugin import Review
from servelint.service import Objective, Point, Service

COMPILE = ("policy", "constrained_decoding", "compile")
TRANSFER = ("policy", "disaggregation", "transfer")


class Delayed(NamedTuple):
    """A TTFT objective that the operating point breaks, in seconds, and keeps without the delay."""

    objective: Objective
    point: Point
    seconds: float
    without_s: float


def late_by_compiles(review: Review) -> tuple[Delayed, ...]:
    """TTFT objectives that only cold compiles break; none where the spec does not say how long one takes."""
    point = review.operating_point
    if point is None or point.service.scheduler.first_token_share <= 0 or not review.declared(*COMPILE):
        return ()
    return _late(review, point, with_compiles(point, first_token_share=0.0))


def late_by_transfers(review: Review) -> tuple[Delayed, ...]:
    """TTFT objectives that only the exposed part of the KV transfer breaks, and no cold compile.

    None where the spec says nothing of the transfer: its assumed bandwidth is no cause.
    """
    point = review.operating_point
    if point is None or point.service.pools is None or not review.declared(*TRANSFER):
        return ()
    others = {late.objective for late in late_by_compiles(review)}
    quiet = with_transfer(point, setup_s=0.0, bytes_per_s=float("inf"))
    return tuple(late for late in _late(review, point, quiet) if late.objective not in others)


def delayed(review: Review) -> frozenset[Objective]:
    """All of these objectives."""
    return frozenset(late.objective for late in (*late_by_compiles(review), *late_by_transfers(review)))


def with_compiles(point: Point, **changes: Any) -> Point:
    """The same point with other ``first_token_s`` or ``first_token_share``, which no step depends on."""
    other = _same(point)
    other.scheduler = evolve(other.scheduler, **changes)
    return other.point(point.batch)


def with_transfer(point: Point, **changes: Any) -> Point:
    """The same point with another transfer between its pools, which no step depends on."""
    other = _same(point)
    if other.pools is not None:
        other.pools = evolve(other.pools, **changes)
    return other.point(point.batch)


def _same(point: Point) -> Service:
    service = point.service
    return Service(service.composition, service.mix, service.figure, open_loop=service.open_loop)


def _late(review: Review, point: Point, quiet: Point) -> tuple[Delayed, ...]:
    return tuple(
        Delayed(o, point, point.ttft(o.percentile), quiet.ttft(o.percentile))
        for o in review.objectives
        if o.metric == "ttft" and not point.meets(o, declared=True) and quiet.meets(o, declared=True)
    )
