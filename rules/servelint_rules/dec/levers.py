"""What could be changed about a deployment, what each change gains for its goal, and how that is written.

A lever is the same deployment with one thing changed, composed and priced again; gains are ratios of estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from attrs import evolve

from servelint.architecture import Architecture
from servelint.errors import CatalogueError
from servelint.lineage import KeyPath
from servelint.plugin import Composition, Finding, Input, Related, Review, Rule
from servelint.service import Mix, Point, Service
from servelint_rules.layouts import composed, decode_side, fits, parallelism, relaid, widened, within_fast_links
from servelint_rules.show import duration, request_rate, tokens
from servelint_rules.variants import allowed, budget_key, narrower_cache, pieces, with_budget

GOAL: KeyPath = ("deployment", "goal")
NOTEWORTHY = 1.05
"""Levers of less gain than this are not listed."""
DRAFTED, ACCEPTANCE = 3, 0.7
"""What a drafting head is assumed to do where none is deployed; docs/conventions.md has the acceptance."""
FOUR_BIT = {"NVIDIA": "nvfp4"}
"""The format whose blocks a vendor's four-bit path takes; others take those of OCP Microscaling, as the notes of AMD's
datasheets in the catalogue say. NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference (2025)."""

SAFE = 0.85
"""Share of the sequences that fit on average that are proposed for admission: the rest is for contexts that grow."""
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)
"""Budgets of prompt tokens a step that are tried."""


class Change(NamedTuple):
    """A deployment with one thing changed, in words."""

    words: str
    composition: Composition


class Lever(NamedTuple):
    """What a change gains: a ratio above 1 where it helps, and the figure that it leads to."""

    words: str
    gain: float
    then: str

    def __str__(self) -> str:
        return f"{self.words}: {self.then} ({self.gain:.3g}x)"


def goal(review: Review) -> str | None:
    """What the deployment is built for, None where it does not say."""
    return review.deployment.deployment.goal


# What a goal measures


def serving(review: Review, composition: Composition, mix: Mix) -> Service:
    """A replica under a mix; that of the deployment itself is kept by its review."""
    if composition is review.composition:
        return review.service(mix)
    return Service(composition, mix, open_loop=review.rate() is not None)


def at_load(review: Review, composition: Composition) -> Point | None:
    """Where a replica runs at the declared load, one sequence without any; None where it does not carry it."""
    mix, rate = review.mix, review.rate()
    if mix is None:
        return None
    service = serving(review, composition, mix)
    if rate is not None:
        return service.at_rate(rate)
    fullest = service.fullest
    return None if fullest is None else service.point(min(fullest.batch, review.concurrency() or 1.0))


def request_s(review: Review, composition: Composition) -> float | None:
    """Seconds of a mean request at the declared load; None where the load is not carried."""
    point = at_load(review, composition)
    return None if point is None else point.e2e("mean")


def devices_of(composition: Composition) -> int:
    """Devices of a replica, of both pools where there are two."""
    pools = composition.scheduler.disaggregation
    if pools is None:
        return composition.setup.topology.devices
    return sum(p.composition.setup.topology.devices * p.replicas for p in (pools.prefill, pools.decode))


def within(review: Review, composition: Composition, mix: Mix) -> Point | None:
    """The point of most throughput: at the knee, or within the limits where there are no objectives."""
    service = serving(review, composition, mix)
    return service.knee(review.objectives) if review.objectives else service.fullest


def carried(review: Review, composition: Composition, mix: Mix) -> float:
    """Requests a second and device within the objectives; 0 where not one sequence keeps them."""
    point = within(review, composition, mix)
    if point is None:
        return 0.0
    return point.rate * point.service.decode_replicas / devices_of(composition)


def pressed(knee: Point, used: float, rate: float | None, users: float | None) -> bool:
    """Whether the load is at least a share of what the knee carries: with less, carrying more gains nothing.

    ``rate`` is that of one replica in requests per second, ``users`` the requests at once of one that decodes; without
    either every replica is kept as full as it is let.
    """
    if rate is not None:
        return rate / knee.service.decode_replicas >= knee.rate * used
    return users is None or knee.service.point(min(users, knee.batch)).rate >= knee.rate * used


# Changes


def _quantized(review: Review) -> Iterator[Change]:
    """The weights in eight and in four bits, in a format that the device multiplies natively where it has one."""
    composition = review.composition
    if composition is None:
        return
    side = decode_side(composition)
    weights = max(side.memory.weights, key=lambda w: w.bytes_on(side.memory.tightest))
    accelerator = side.setup.topology.accelerator
    four = FOUR_BIT.get(accelerator.vendor, "mxfp4")
    for bits, formats in ((8, ("fp8", "int8", "int8-weight-only")), (4, (four, "int4-g128"))):
        if weights.format.bits <= bits:
            continue
        try:
            # What a part multiplies natively is a precision, which several formats may be computed in.
            computed = {name: review.plugins.format(name).compute for name in formats}
        except CatalogueError:
            continue
        name = next((f for f in formats if computed[f] in accelerator.native_formats), formats[-1])
        config = evolve(review.policy("quantization"), weights=name, covers=None, group_size=None)
        other = review.variant(quantization=config)
        if other is not None:
            yield Change(f"weights in {name}", other)


def _cache(review: Review) -> Iterator[Change]:
    other = narrower_cache(review)
    if other is not None:
        yield Change("KV cache in fp8", other)


def _speculative(review: Review) -> Iterator[Change]:
    composition, config = review.composition, review.policy("speculation")
    if composition is None or config is None:
        return
    if composition.scheduler.verify_tokens > 1:
        other = review.variant(speculation=None)
        if other is not None:
            yield Change("no speculation", other)
        return
    mtp = any(tensor.role == "mtp" for tensor in composition.setup.architecture.extras)
    method, drafted = ("mtp", 1) if mtp else ("eagle", DRAFTED)
    other = review.variant(
        speculation=evolve(config, method=method, tokens=drafted, acceptance=ACCEPTANCE, acceptance_length=None)
    )
    if other is not None:
        yield Change(f"speculation ({method}, {drafted} drafted, {ACCEPTANCE:.0%} of them accepted)", other)


def _wider(review: Review) -> Iterator[Change]:
    """More tensor parallelism, as far as the fast domain and the heads go."""
    composition = review.composition
    if composition is None or composition.scheduler.disaggregation is not None:
        return
    for factor in (2, 4, 8):
        other = widened(composition, factor)
        if other is None:
            return
        t = parallelism(other).t
        if not within_fast_links(other, t):
            return
        yield Change(f"tensor parallelism {t} on {other.setup.topology.devices} devices", other)


def _admitted(review: Review) -> Iterator[Change]:
    """More sequences at once, as many as the KV cache holds once their contexts have grown."""
    composition, mix = review.composition, review.mix
    if composition is None or mix is None:
        return
    limits = review.service(mix).limits
    held, admits = int(limits["KV capacity"] * SAFE), limits.get("max_sequences")
    if admits is None or admits * NOTEWORTHY >= held:
        return
    each = held // max(composition.scheduler.ranks, 1)
    other = review.variant(batching=evolve(review.policy("batching"), max_sequences=each))
    if other is not None:
        yield Change(f"{tokens(each)} sequences admitted", other)


KINDS: dict[str, Callable[[Review], Iterator[Change]]] = {
    "weights": _quantized,
    "cache": _cache,
    "speculation": _speculative,
    "tensor": _wider,
    "batch": _admitted,
}


def changes(review: Review, *kinds: str) -> Iterator[Change]:
    """Every change of the kinds named that composes, holds the model, and that the engine does not refuse."""
    for kind in kinds:
        for change in KINDS[kind](review):
            if fits(change.composition) and allowed(review, change.composition):
                yield change


def chunks(review: Review) -> Iterator[Change]:
    """The deployment with other budgets of prompt tokens a step, as far as it cuts prompts."""
    composition, key = review.composition, budget_key(review)
    if composition is None or composition.scheduler.chunk_tokens is None:
        return
    made = pieces(review)
    what = "".join(f"{path[-1]} = {value}, " for path, value in made.edits)
    for chunk in CHUNKS:
        same = chunk == composition.scheduler.chunk_tokens and not made.edits
        other = None if same else with_budget(review, chunk, made.changes)
        if other is not None and fits(other):
            yield Change(f"{what}{key} of {chunk}", other)


def laid_out(composition: Composition, devices: int, **degrees: Any) -> Composition | None:
    """The same model and policies on so many devices of the same nodes with other degrees of parallelism."""
    config = evolve(parallelism(composition), pipeline_layers=None, **degrees)
    each = min(composition.setup.topology.devices_per_node, devices)
    other = composed(relaid(composition, config, devices, each))
    return other if other is not None and fits(other) else None


def faster(composition: Composition, memory: float = 1.0, bandwidth: float = 1.0, compute: float = 1.0) -> Composition:
    """The same replica on a device with these factors of capacity, bandwidth and compute rates."""
    setup = composition.setup
    part = setup.topology.accelerator
    visible = part.runtime_visible_bytes
    other = evolve(
        part,
        memory_bytes=int(part.memory_bytes * memory),
        driver_total_bytes=None if part.driver_total_bytes is None else int(part.driver_total_bytes * memory),
        runtime_visible_bytes=None if visible is None else int(visible * memory),
        memory_bandwidth_bytes_per_s=part.memory_bandwidth_bytes_per_s * bandwidth,
        dense_flops={name: rate * compute for name, rate in part.dense_flops.items()},
    )
    return Composition(evolve(setup, topology=evolve(setup.topology, accelerator=other)))


# Levers


def by_request(review: Review, now: float, found: Iterable[Change]) -> list[Lever]:
    """What changes gain in the time of a mean request, most first."""
    levers = []
    for words, composition in found:
        point = at_load(review, composition)
        if point is None:
            continue
        seconds = point.e2e("mean")
        keeps = review.objectives and not point.misses(review.objectives)
        levers.append(Lever(words, now / seconds, duration(seconds) + (", every objective kept" if keeps else "")))
    return ranked(levers)


def by_rate(review: Review, mix: Mix, now: float, found: Iterable[Change]) -> list[Lever]:
    """What changes gain in requests a second and device within the objectives, most first."""
    levers = []
    for words, composition in found:
        rate = carried(review, composition, mix)
        levers.append(Lever(words, rate / now if now > 0 else 0.0, f"{request_rate(rate)} a device"))
    return ranked(levers)


def ranked(levers: Iterable[Lever]) -> list[Lever]:
    """The levers that gain anything worth the line, most first."""
    return sorted((lever for lever in levers if lever.gain >= NOTEWORTHY), key=lambda lever: -lever.gain)


def listed(levers: list[Lever]) -> str:
    """Levers in words, in their order."""
    return "in the order of gain: " + "; ".join(map(str, levers))


def advice(
    review: Review,
    path: KeyPath,
    situation: str,
    levers: list[Lever],
    equation: str,
    inputs: tuple[Input, ...] = (),
    related: tuple[KeyPath, ...] = (),
) -> Finding:
    """A finding that names the best lever in its message and all of them in its help."""
    best = levers[0]
    return Finding(
        path,
        f"{situation}; {best.words} would gain most: {best.then}, {best.gain:.3g} times as good (estimates)",
        equation=equation,
        inputs=(*inputs, *_load(review)),
        help=listed(levers),
        related=tuple(Related(place, "what would change") for place in related if review.declared(*place)),
    )


def speaks(rule: type[Rule], review: Review) -> bool:
    """Whether another rule, with its default options, reports the deployment: advice then has nothing to add."""
    return any(isinstance(item, Finding) for item in rule().check(review))


def _load(review: Review) -> tuple[Input, ...]:
    workload = review.deployment.workload
    if workload is None:
        return ()
    for key, unit in (("rate", "req/s"), ("concurrency", "")):
        value = getattr(workload, key)
        if value is not None:
            return (Input(f"workload.{key}", value, unit, review.source("workload", key)),)
    return ()


def experts_share(architecture: Architecture) -> float:
    """Parameters that a token multiplies with over those that have to be held; 1 for dense models."""
    return architecture.params_active / architecture.params_serving
