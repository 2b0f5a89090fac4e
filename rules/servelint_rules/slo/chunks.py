"""How prompts are cut, for the rules that say so: a step with a long prompt, and the same load with another budget."""

from __future__ import annotations

from servelint.distribution import percentile_share
from servelint.plugin import Composition, Review
from servelint.service import Mix, Objective, Point, Service

LONG = 0.99
"""The prompt whose stall is looked at: one in a hundred is longer."""
STALL, GROWTH = 3.0, 1.5
"""Defaults of SLO008: a step over its limit that is a stall, and the growth of load that a percentile survives."""


def stall_s(point: Point, mix: Mix) -> float:
    """Seconds of a step that also prefills a long prompt, or as much of it as a chunk takes."""
    prompt = mix.prompt.quantile(LONG)
    new = mix.computed(prompt)
    taken = min(new, point.chunk) if point.chunk else new
    return point.mixed_s(taken, max(prompt - new, 0.0))


def paced(review: Review) -> tuple[Objective, ...]:
    """Percentiles of the inter-token latency that the SLO limits."""
    return tuple(o for o in review.objectives if o.metric == "itl" and o.percentile != "mean")


def steady(review: Review, point: Point) -> bool:
    """Whether even a step with a long prompt keeps every limit of the inter-token latency."""
    limits = [o.limit_s for o in paced(review)]
    return not limits or point.service.separate or stall_s(point, point.service.mix) <= min(limits)


def stalled(review: Review, point: Point, stall: float = STALL, growth: float = GROWTH) -> Objective | None:
    """The inter-token limit that is kept only because stalls are rare; None when none is."""
    if point.service.separate or not point.mixed_share:
        return None
    for objective in paced(review):
        if stall_s(point, point.service.mix) < objective.limit_s * stall:
            continue
        sooner = nearer(objective, growth)
        if sooner is not None and point.itl(sooner) > objective.limit_s:
            return objective
    return None


def nearer(objective: Objective, growth: float) -> str | None:
    """The percentile that leaves ``1 / growth`` of the tail of an objective's: what that much more load would see."""
    share = f"{1 - (1 - percentile_share(objective.percentile)) / growth:.8f}"
    return f"p{share[2:].rstrip('0').ljust(2, '0')}" if share.startswith("0.") else None


def same_load(review: Review, point: Point, composition: Composition | None) -> Point | None:
    """The load of a point on another composition; None where it does not carry it."""
    if composition is None:
        return None
    service, rate = Service(composition, point.service.mix, open_loop=point.service.open_loop), review.rate()
    if rate is not None:
        return service.at_rate(rate)
    return service.point(point.batch) if service.batch_limit >= point.batch else None
