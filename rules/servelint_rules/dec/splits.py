"""Ways to split a model over the devices of a replica, priced for a goal, for the rules of DEC that ask which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from servelint.plugin import Composition, Experts, Review
from servelint.service import Mix
from servelint_rules.dec.levers import Change, Lever, at_load, carried, goal, laid_out, ranked, request_s
from servelint_rules.layouts import heads_divide, parallelism, within_fast_links
from servelint_rules.show import counted, duration, request_rate
from servelint_rules.variants import allowed


class Measured(NamedTuple):
    """What a split does for both goals: seconds of a mean request at the load, requests a second and device."""

    request_s: float | None
    rate: float


def measured(review: Review, composition: Composition, mix: Mix) -> Measured:
    """Price a split."""
    return Measured(request_s(review, composition), carried(review, composition, mix))


def gained(review: Review, now: Measured, change: Change, mix: Mix) -> Lever | None:
    """What a split gains for the goal: a shorter request for latency, more requests a device else."""
    if goal(review) == "latency":
        seconds = request_s(review, change.composition)
        if seconds is None or now.request_s is None:
            return None
        return Lever(change.words, now.request_s / seconds, f"{duration(seconds)} a mean request")
    rate = carried(review, change.composition, mix)
    return Lever(change.words, rate / now.rate, f"{request_rate(rate)} a device") if now.rate > 0 else None


def best_first(review: Review, now: Measured, found: Iterable[Change], mix: Mix) -> list[Lever]:
    """The splits that gain, most first."""
    levers = (gained(review, now, change, mix) for change in found if allowed(review, change.composition))
    return ranked(lever for lever in levers if lever is not None)


def shown(now: Measured) -> str:
    """Both figures of the present split."""
    request = "" if now.request_s is None else f"a mean request takes {duration(now.request_s)}, "
    return f"{request}a device carries {request_rate(now.rate)} within the objectives"


def step(review: Review, composition: Composition) -> str:
    """The steps of the present split at the load."""
    point = at_load(review, composition)
    if point is None:
        return "the load is not carried"
    batch = counted(max(point.batch, 1.0), "sequence")
    return f"a step of {batch} takes {duration(point.plain_s)}, with prefill {duration(point.average_mixed_s)}"


def one_device(review: Review, composition: Composition) -> Composition | None:
    """The model on one device of the same part, None where that does not hold it with the longest context."""
    return laid_out(composition, 1, tensor=1, pipeline=1, expert=1, data=1, attention_data=1, context=1)


def degrees(composition: Composition, devices: int) -> Iterator[int]:
    """Tensor-parallel degrees within the fast domain that divide the devices, and that the heads of the model allow."""
    for t in range(1, devices + 1):
        if devices % t == 0 and within_fast_links(composition, t) and heads_divide(composition, t):
            yield t


def splits(composition: Composition, devices: int) -> Iterator[Change]:
    """Every tensor-parallel degree within the fast domain, and pipeline stages for what is left of the devices."""
    config = parallelism(composition)
    for t in degrees(composition, devices):
        p = devices // t
        if (t, p) == (config.t, config.p) or p > composition.setup.architecture.num_layers:
            continue
        other = laid_out(composition, devices, tensor=t, pipeline=p, expert=1, attention_data=1)
        if other is not None:
            words = f"tensor parallelism {t}" + (f" in {p} pipeline stages" if p > 1 else "")
            yield Change(words, other)


def spread(composition: Composition, devices: int) -> Iterator[Change]:
    """Experts over all devices, attention data-parallel, for mixtures whose experts divide."""
    experts = [b.experts for b in composition.setup.architecture.blocks if isinstance(b.experts, Experts)]
    if not experts or any(e.count % devices for e in experts):
        return
    other = laid_out(composition, devices, tensor=devices, pipeline=1, expert=devices, attention_data=devices)
    if other is not None:
        yield Change(f"experts over {devices} devices, attention data-parallel", other)


def plain(composition: Composition) -> bool:
    """Whether only tensor and pipeline parallelism split the replica, which is not two pools."""
    config = parallelism(composition)
    return composition.scheduler.disaggregation is None and config.d == config.c == config.attention_ranks == 1
