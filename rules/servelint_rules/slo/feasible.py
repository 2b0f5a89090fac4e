"""What no schedule can beat on one request alone: the bounds under an objective.

SLO005 and SLO006 report objectives below them; other rules leave those objectives out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from servelint.distribution import percentile_share
from servelint.graph import demands_of
from servelint.plugin import Composition, Input, Matmul, Review
from servelint.service import Objective
from servelint.shapes import StepShape, decode, prefill
from servelint_rules.layouts import decode_side, prefill_side
from servelint_rules.show import duration, flops, size


class Alone(NamedTuple):
    """One request with the hardware to itself: its step, what the step yields, and its least seconds.

    ``bound_s`` touches the expected experts, ``floor_s`` the fewest; both are for one token (TPOT) or step.
    """

    shape: StepShape
    tokens: float
    bound_s: float
    floor_s: float


def first_token(review: Review, objective: Objective) -> Alone | None:
    """The prefill of the objective's percentile of the prompts; None without a composition and lengths."""
    composition, mix = review.composition, review.mix
    if composition is None or mix is None:
        return None
    share = objective.percentile
    prompt = mix.prompt.mean if share == "mean" else mix.prompt.quantile(percentile_share(share))
    new = mix.computed(prompt)
    return alone(prefill_side(composition), prefill(new, max(prompt - new, 0.0)), prompt)


def pace(review: Review, objective: Objective) -> Alone | None:
    """The decode step of one sequence (ITL), or its share of a token (TPOT); None as above."""
    composition, mix = review.composition, review.mix
    if composition is None or mix is None:
        return None
    side = decode_side(composition)
    context = mix.mean_context
    if objective.percentile != "mean":
        # Of short sequences' tokens a low percentile may consist alone.
        context = min(context, mix.prompt.quantile(percentile_share(objective.percentile)))
    found = alone(side, decode(1.0, context, float(side.scheduler.verify_tokens)), 1.0)
    if objective.metric != "tpot":
        return found
    scheduler = side.scheduler
    # An acceptance that nobody declared is no bound: then at best every draft is kept.
    most = scheduler.verify_tokens / (1 - scheduler.skipped_share)
    certain = most if review.assumption("policy", "speculation", "acceptance") else scheduler.yield_per_step
    kept = scheduler.yield_per_step
    return found._replace(tokens=kept, bound_s=found.bound_s / kept, floor_s=found.floor_s / certain)


def alone(composition: Composition, shape: StepShape, tokens: float) -> Alone:
    """Price a shape on a replica or pool."""
    bound: Callable[[StepShape], float] = composition.pricer.bound  # type: ignore[assignment]
    floor: Callable[[StepShape], float] = composition.pricer.floor  # type: ignore[assignment]
    return Alone(shape, tokens, bound(shape), floor(shape))


def unreachable(review: Review) -> tuple[Objective, ...]:
    """Objectives that one request alone does not meet."""
    found = []
    for objective in review.objectives:
        least = {"ttft": first_token, "itl": pace, "tpot": pace}.get(objective.metric)
        one = least(review, objective) if least is not None else None
        if one is not None and one.bound_s > objective.declared_s:
            found.append(objective)
    return tuple(found)


def arithmetic(composition: Composition, shape: StepShape, seconds: float) -> str:
    """How a bound of ``seconds`` came about: the bytes, FLOPs or link that no schedule gets around."""
    pricer = composition.pricer
    accelerator = pricer.topology.accelerator
    if pricer.graph.stages > 1:
        return f"{pricer.graph.stages} pipeline stages in turn, each at its peak: {duration(seconds)}"
    cost = pricer.price(shape)
    read, work, sent = float(cost.hbm_bytes), float(cost.flops), float(cost.link_bytes)
    bandwidth, kept = accelerator.memory_bandwidth_bytes_per_s, accelerator.l2_bytes
    if _same(max(read - kept, 0.0) / bandwidth, seconds):
        l2 = f" - {size(kept)} that the L2 may keep" if kept else ""
        return f"({size(read)} of weights and cache a device{l2}) / {size(bandwidth)}/s = {duration(seconds)}"
    if _same(_compute_s(composition, shape), seconds):
        return f"{work / 1e12:,.1f} TFLOP a device / {flops(work / seconds)} dense = {duration(seconds)}"
    return f"{size(sent)} a device over its links, with nothing else in the way: {duration(seconds)}"


def peaks(composition: Composition) -> tuple[Input, ...]:
    """The datasheet figures that a bound rests on."""
    accelerator = composition.setup.topology.accelerator
    rates = {}
    for _, demand in demands_of(composition.graph, Matmul):
        if isinstance(demand, Matmul) and demand.tensor is not None:
            name, _ = accelerator.rate(demand.precision)
            rates[name] = accelerator.peak(demand.precision)
    return (
        Input(
            "memory bandwidth",
            accelerator.memory_bandwidth_bytes_per_s,
            "B/s",
            accelerator.source("memory", "bandwidth_bytes_per_s"),
        ),
        *(
            Input(f"dense {name} rate", rate, "FLOP/s", accelerator.source("compute", f"dense_flops.{name}"))
            for name, rate in rates.items()
        ),
    )


def _compute_s(composition: Composition, shape: StepShape) -> float:
    accelerator = composition.setup.topology.accelerator
    return sum(
        float(demand.coefficient * demand.feature.count(shape)) * op.count / accelerator.peak(demand.precision)
        for op, demand in demands_of(composition.graph, Matmul)
        if isinstance(demand, Matmul)
    )


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * b
