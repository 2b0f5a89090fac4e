"""What joins a group of devices and what it costs, and the same devices grouped otherwise: for the rules on layouts."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from servelint.graph import demands_of
from servelint.plugin import Attention, Collective, Composition, InfeasibleError, LatentAttention, Review
from servelint.service import Point, Service
from servelint.shapes import StepShape
from servelint_rules.layouts import altered, fits, heads_divide, parallelism, relaid


def joined(composition: Composition) -> frozenset[str]:
    """Names of the ops that join tensor-parallel groups."""
    config = parallelism(composition)
    groups = {config.t, config.attention_tensor}
    return frozenset(
        op.name
        for op, demand in demands_of(composition.graph, Collective)
        if isinstance(demand, Collective) and demand.stride == 1 and demand.group in groups
    )


def share_of(composition: Composition, names: frozenset[str], shape: StepShape) -> float:
    """Share of a step's seconds, summed over its ops, that some of them take."""
    rows = composition.pricer.breakdown(shape)
    return sum(float(row.seconds) for row in rows if row.name in names) / sum(float(row.seconds) for row in rows)


def heaviest(point: Point, past: float = 0.0) -> tuple[StepShape, ...]:
    """The plain step of a point, and the one with most prefill after ``past`` tokens, where steps have any."""
    plain = point.shape()
    if point.mixed_share <= 0:
        return (plain,)
    return plain, point.prompts_shape(past)


def regrouped(composition: Composition, tensor: int, pipeline: int) -> Composition | None:
    """The same devices in groups of another size with as many stages as that takes; None where they cannot be."""
    config = parallelism(composition)
    if config.attention_ranks > 1 or not heads_divide(composition, tensor):
        return None
    split = evolve(config, tensor=tensor, pipeline=pipeline, pipeline_layers=None)
    other = altered(composition, parallelism=split)
    return other if other is not None and fits(other) else None


def narrower(composition: Composition) -> Iterator[tuple[int, Composition]]:
    """Smaller tensor-parallel groups, each a replica of its own, that hold the model: (degree, replica)."""
    config, devices = parallelism(composition), composition.setup.topology.devices
    for t in range(config.t - 1, 0, -1):
        if config.t % t or not heads_divide(composition, t):
            continue
        other = relaid(composition, evolve(config, tensor=t), devices * t // config.t)
        try:
            if not fits(other):
                # Fewer devices hold no more.
                return
        except InfeasibleError:
            continue
        yield t, other


def cached_heads(composition: Composition) -> int:
    """Fewest KV heads of the model's attention, 0 where it caches latents; all heads where a release expands those."""
    expanded = {cache.block for cache in composition.memory.caches if cache.axis == "heads"}
    found = []
    for block in composition.setup.architecture.blocks:
        if isinstance(block.mixer, LatentAttention):
            found.append(block.mixer.q_heads if block.name in expanded else 0)
        elif isinstance(block.mixer, Attention):
            found.append(block.mixer.kv_heads)
    return min(found, default=0)


def copies_of(composition: Composition) -> int:
    """Devices of a tensor-parallel group that hold the same tokens of the same head."""
    config = parallelism(composition)
    cached = any(isinstance(b.mixer, Attention | LatentAttention) for b in composition.setup.architecture.blocks)
    group: int = config.attention_tensor
    if not cached or not config.context_shares_tensor:
        return 1
    shared: int = config.c
    return group // max(cached_heads(composition), 1) // shared


def offered(review: Review) -> bool:
    """Whether a load is declared."""
    return review.declared("workload", "rate") or review.declared("workload", "concurrency")


def loaded(review: Review, service: Service, copies: int) -> Point | None:
    """Where one of ``copies`` replicas runs that share the declared load of one; None where it does not carry it."""
    rate, each = review.rate(), review.concurrency()
    if rate is not None:
        return service.at_rate(rate / copies)
    fullest = service.fullest
    if fullest is None or each is None:
        return None
    wanted = -(-each // copies)
    return service.point(wanted) if wanted <= fullest.batch else None
