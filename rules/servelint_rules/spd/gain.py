"""What drafting gains over the same deployment without it, for the rules that judge it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servelint.plugin import Composition, Related, Review
from servelint.service import Point, Service
from servelint.shapes import decode


def seconds(point: Point, other: Composition) -> Callable[..., float]:
    """Seconds of a step of another composition, in the figure of the point."""
    service = point.service
    return Service(other, service.mix, service.figure, open_loop=service.open_loop).seconds


def speedup(point: Point, alone: Composition) -> Callable[[float], float]:
    """The speed-up against the same deployment without speculation, as a function of the batch."""
    scheduler, context = point.service.scheduler, point.service.mix.mean_context
    plain, own = seconds(point, alone), point.service.seconds
    kept, new = scheduler.tokens_per_step, float(scheduler.verify_tokens)
    return lambda batch: kept * plain(decode(batch, context)) / own(decode(batch, context, new))


def drafted(point: Point, alone: Composition, config: Any) -> Callable[[int], float]:
    """Tokens a second of one sequence by the length of the draft, every pass of the draft taking the same time."""
    batch, context = max(point.batch, 1.0), point.service.mix.mean_context
    plain, k = seconds(point, alone), point.service.scheduler.verify_tokens - 1

    def verify(length: int) -> float:
        return plain(decode(batch, context, length + 1.0))

    each = max(point.service.seconds(decode(batch, context, k + 1.0)) - verify(k), 0.0) / k
    return lambda length: sum(config.acceptance**i for i in range(length + 1)) / (length * each + verify(length))


def related(review: Review) -> tuple[Related, ...]:
    """The key that sets the batch."""
    for path in (("workload", "rate"), ("workload", "concurrency"), ("policy", "batching", "max_sequences")):
        if review.declared(*path):
            return (Related(path, "the batch that the deployment runs at follows from this"),)
    return ()
