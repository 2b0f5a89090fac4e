"""The invariants of the cost model as checks that any test can call.

Each takes composed things and raises AssertionError with the figures that break it. They hold for every
hardware, model, policy and spec; docs/invariants.md numbers them. Times are in seconds throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import pairwise

from attrs import evolve

from servelint.architecture import Architecture, Attention, LatentAttention
from servelint.composition import Composition
from servelint.cost import Pricer, link_loads
from servelint.descriptors import Policy
from servelint.graph import Op, StepGraph
from servelint.hardware import Accelerator, Topology
from servelint.resources import (
    ActivationIO,
    CacheIO,
    Collective,
    Demand,
    HostWork,
    Launch,
    Matmul,
    StateIO,
    WeightRead,
)
from servelint.scheduler import Scheduler
from servelint.service import Service
from servelint.shapes import StepShape, decode

EXACT = 1e-12
"""Relative slack where the same sums are taken in another order."""

CLOSE = 1e-9
"""Relative slack where different formulas have to agree."""

FIGURES = ("floor", "bound", "sustained_bound", "estimate")


def _figures(pricer: Pricer, shape: StepShape) -> dict[str, float]:
    return {name: float(getattr(pricer, name)(shape)) for name in FIGURES}


def _pricer(composition: Composition, topology: Topology | None = None, graph: StepGraph | None = None) -> Pricer:
    return Pricer(graph or composition.graph, topology or composition.setup.topology)


def _not_above(low: float, high: float, what: str, slack: float = EXACT) -> None:
    assert low <= high * (1 + slack) or math.isclose(low, high, rel_tol=slack), f"{what}: {low!r} > {high!r}"


def _equal(left: float, right: float, what: str, slack: float = CLOSE) -> None:
    assert math.isclose(left, right, rel_tol=slack, abs_tol=0.0), f"{what}: {left!r} is not {right!r}"


# Totals


def amount(demand: Demand) -> float:
    """FLOPs, bytes, messages, seconds or launches of one unit of a demand's feature, before any feature counts."""
    if isinstance(demand, WeightRead | CacheIO):
        assert demand.format is not None, "a weight or cache demand has no format"
        return demand.coefficient * demand.format.bytes_per_element
    return demand.coefficient


def resource(demand: Demand) -> str:
    """Name what a demand asks for, as far as its price depends on it."""
    if isinstance(demand, Matmul):
        return f"FLOPs in {demand.precision}"
    if isinstance(demand, WeightRead):
        return "weight bytes"
    if isinstance(demand, CacheIO):
        return f"{demand.kind} cache bytes {'written' if demand.write else 'read'}"
    if isinstance(demand, StateIO):
        return "state bytes"
    if isinstance(demand, ActivationIO):
        return "activation bytes"
    if isinstance(demand, Collective):
        return f"{demand.kind} bytes among {demand.group} devices {demand.stride} apart"
    if isinstance(demand, HostWork):
        return "host seconds"
    return "kernel launches" if isinstance(demand, Launch) else type(demand).__name__


def totals(graph: StepGraph, shape: StepShape) -> dict[str, float]:
    """Return what a step demands of each resource on one device of every stage, all instances added."""
    found: dict[str, list[float]] = {}
    for op in graph.ops:
        for demand in op.demands:
            value = amount(demand) * float(demand.feature.count(shape)) * op.count
            found.setdefault(resource(demand), []).append(value)
    return {name: math.fsum(values) for name, values in found.items()}


def ledger_totals(composition: Composition, context: float) -> dict[str, float]:
    """Return the figures of the memory ledger that a rule could quote, by name."""
    ledger = composition.memory
    found = {"visible": float(ledger.visible), "budget": float(ledger.budget), "ranks": float(ledger.ranks)}
    for stage in range(ledger.stages):
        fit = ledger.fit(stage)
        found |= {
            f"weights of stage {stage}": fit.weights,
            f"reserves of stage {stage}": fit.reserves,
            f"sequence on stage {stage}": ledger.sequence_bytes(context, stage),
        }
    return found


def _same_totals(before: Mapping[str, float], after: Mapping[str, float], what: str, slack: float) -> None:
    for name in {**before, **after}:
        left, right = before.get(name, 0.0), after.get(name, 0.0)
        if slack:
            _equal(left, right, f"{what}: {name}", slack)
        else:
            assert left == right, f"{what}: {name} was {left!r} and is {right!r}"


def _same_scheduler(before: Scheduler, after: Scheduler, what: str) -> None:
    for name in Scheduler.__annotations__:
        left, right = getattr(before, name), getattr(after, name)
        if name == "disaggregation":
            assert (left is None) == (right is None), f"{what}: only one of the two is disaggregated"
        elif isinstance(left, float):
            _equal(left, right, f"{what}: scheduler {name}", EXACT)
        else:
            assert left == right, f"{what}: scheduler {name} was {left!r} and is {right!r}"


# 1


def check_figures_ordered(composition: Composition, shape: StepShape) -> None:
    """1. floor <= bound <= sustained bound <= estimate; all finite and at least 0, priced alone or together."""
    pricer = composition.pricer
    figures = _figures(pricer, shape)
    for name, seconds in figures.items():
        assert math.isfinite(seconds), f"the {name} of {shape} is {seconds}"
        assert seconds >= 0, f"the {name} of {shape} is negative: {seconds}"
    for low, high in pairwise(FIGURES):
        assert figures[low] <= figures[high], f"{low} {figures[low]!r} > {high} {figures[high]!r} at {shape}"
    priced = pricer.price(shape)
    together = (priced.floor_s, priced.bound_s, priced.sustained_bound_s, priced.estimate_s)
    for (name, alone), at_once in zip(figures.items(), together, strict=True):
        _equal(alone, float(at_once), f"{name} priced alone and together", EXACT)
    assert 0 <= priced.binding < len(priced.resources), f"no resource number {priced.binding}"
    for name in ("flops", "hbm_bytes", "link_bytes"):
        value = float(getattr(priced, name))
        assert math.isfinite(value), f"{name} of {shape} is {value}"
        assert value >= 0, f"{name} of {shape} is {value}"


# 2


def faster(
    topology: Topology, *, memory: float = 1.0, compute: float = 1.0, link: float = 1.0, latency: float = 1.0
) -> Topology:
    """Return the topology with rates multiplied and latencies divided by the factors; sizes stay."""
    old = topology.accelerator
    joined = old.link
    if joined is not None:
        joined = evolve(
            joined,
            per_direction_bytes_per_s=joined.per_direction_bytes_per_s * link,
            peer_bytes_per_s=None if joined.peer_bytes_per_s is None else joined.peer_bytes_per_s * link,
        )
    accelerator: Accelerator = evolve(
        old,
        memory_bandwidth_bytes_per_s=old.memory_bandwidth_bytes_per_s * memory,
        dense_flops={name: rate * compute for name, rate in old.dense_flops.items()},
        link=joined,
    )
    efficiency = evolve(
        topology.efficiency,
        launch_s=topology.efficiency.launch_s / latency,
        collective_s={tier: s / latency for tier, s in topology.efficiency.collective_s.items()},
    )
    return evolve(
        topology,
        accelerator=accelerator,
        efficiency=efficiency,
        pcie_bytes_per_s=None if topology.pcie_bytes_per_s is None else topology.pcie_bytes_per_s * link,
        network_bytes_per_s=topology.network_bytes_per_s * link,
    )


def check_faster_hardware(composition: Composition, shape: StepShape, factor: float) -> None:
    """2a. More bandwidth, more FLOP/s, faster links or lower latencies never make a step slower."""
    before = _figures(composition.pricer, shape)
    for what in ("memory", "compute", "link", "latency"):
        topology = faster(composition.setup.topology, **{what: factor})
        for name, seconds in _figures(_pricer(composition, topology), shape).items():
            _not_above(seconds, before[name], f"{name} at {shape} with {what} x {factor}")


def chunks(architecture: Architecture) -> list[int]:
    """Chunk lengths of local-attention layers; traffic falls back where a chunk ends."""
    return [b.mixer.chunk for b in architecture.blocks if isinstance(b.mixer, Attention) and b.mixer.chunk]


def check_more_load(composition: Composition, shape: StepShape, larger: StepShape) -> None:
    """2b. More sequences, context or tokens never make a step faster (with local attention: within a chunk).

    Every field of ``larger`` is at least that of ``shape``; it is cut so that no chunk ends in between.
    """
    for chunk in chunks(composition.setup.architecture):
        for name in ("context", "prefill_context"):
            low = float(getattr(shape, name))
            last = (low // chunk + 1) * chunk - 1e-6
            larger = larger._replace(**{name: min(float(getattr(larger, name)), max(last, low))})
    before, after = _figures(composition.pricer, shape), _figures(composition.pricer, larger)
    for name, seconds in before.items():
        _not_above(seconds, after[name], f"{name} at {shape}, then {larger}")


def _with_demands(composition: Composition, change: Callable[[Demand], Demand]) -> StepGraph:
    return composition.graph.mapped(lambda op, demand: change(demand))


def check_more_parameters(composition: Composition, shape: StepShape, factor: float) -> None:
    """2c. A model with more parameters is never faster: every matrix ``factor`` times as large."""

    def grown(demand: Demand) -> Demand:
        weighs = isinstance(demand, WeightRead) or (isinstance(demand, Matmul) and demand.tensor is not None)
        return evolve(demand, coefficient=demand.coefficient * factor) if weighs else demand

    larger = _pricer(composition, graph=_with_demands(composition, grown))
    after = _figures(larger, shape)
    for name, seconds in _figures(composition.pricer, shape).items():
        _not_above(seconds, after[name], f"{name} at {shape} with {factor} x the parameters")


def check_more_bits(composition: Composition, shape: StepShape, bits: float) -> None:
    """2d. More stored bits on the same compute path never make a step faster."""

    def widened(demand: Demand) -> Demand:
        if not isinstance(demand, WeightRead | CacheIO) or demand.format is None:
            return demand
        return evolve(demand, format=evolve(demand.format, bits=demand.format.bits + bits))

    wider = _pricer(composition, graph=_with_demands(composition, widened))
    after = _figures(wider, shape)
    for name, seconds in _figures(composition.pricer, shape).items():
        _not_above(seconds, after[name], f"{name} at {shape} with {bits} bits more")


# 3


def check_rate_scaling(composition: Composition, shape: StepShape, factor: float) -> None:
    """3. Every rate times c and every latency over c: every time is over c."""

    def sooner(demand: Demand) -> Demand:
        late = isinstance(demand, HostWork)
        return evolve(demand, coefficient=demand.coefficient / factor) if late else demand

    topology = faster(composition.setup.topology, memory=factor, compute=factor, link=factor, latency=factor)
    after = _figures(_pricer(composition, topology, _with_demands(composition, sooner)), shape)
    for name, seconds in _figures(composition.pricer, shape).items():
        _equal(seconds / factor, after[name], f"{name} at {shape} with every rate x {factor}")


# 4


def sharded_flops(graph: StepGraph, shape: StepShape) -> float:
    """FLOPs of a device that sharding divides: those of replicated matrices are left out."""
    return math.fsum(
        demand.coefficient * float(demand.feature.count(shape)) * op.count
        for op in graph.ops
        for demand in op.demands
        if isinstance(demand, Matmul) and demand.axis != "replicated"
    )


def check_sharding(
    whole: Composition, sharded: Composition, shape: StepShape, devices: int, *, exact: bool = False
) -> None:
    """4. Over all devices, weight bytes and FLOPs come to at least those of one device with everything.

    ``devices`` share each stage. With ``exact`` every head, expert and sequence count divides evenly and
    each sharded tensor lies on the devices exactly once; FLOPs then add up to the total.
    """
    for what, before, after in (
        ("FLOPs", sharded_flops(whole.graph, shape), devices * sharded_flops(sharded.graph, shape)),
        (
            "weight bytes",
            math.fsum(w.bytes_on(0) for w in whole.memory.weights),
            devices * math.fsum(w.bytes_on(s) for w in sharded.memory.weights for s in range(sharded.memory.stages)),
        ),
    ):
        _not_above(before, after, f"{what} of the model, then of all its devices", CLOSE)
    if not exact:
        return
    _equal(sharded_flops(whole.graph, shape), devices * sharded_flops(sharded.graph, shape), "FLOPs over all devices")
    for one, part in zip(whole.memory.weights, sharded.memory.weights, strict=True):
        if one.tensor.axis != "replicated" and sum(part.repeats) == sum(one.repeats):
            held = devices * math.fsum(part.bytes_on(s) for s in range(sharded.memory.stages))
            _equal(one.bytes_on(0), held, f"bytes of {one.name} over all devices")


# 5


def _read(composition: Composition, shape: StepShape, *kinds: type[Demand], only: Sequence[str] = ()) -> float:
    return math.fsum(
        amount(demand) * float(demand.feature.count(shape)) * op.count
        for op in composition.graph.ops
        for demand in op.demands
        if isinstance(demand, kinds)
        and not getattr(demand, "write", False)
        and (not only or getattr(demand, "kind", "") in only)
    )


def check_traffic(composition: Composition, batch: int, context: int, factor: int = 2) -> None:
    """5. Weight bytes do not depend on the batch (dense models), KV bytes grow with batch and context.

    For full attention they are linear in both; past the window those of sliding layers stand still.
    ``batch`` is counted per rank that serves sequences of its own.
    """
    architecture = composition.setup.architecture
    sequences = batch * composition.graph.ranks
    one, more, longer = (
        decode(float(sequences), float(context)),
        decode(float(sequences * factor), float(context)),
        decode(float(sequences), float(context * factor)),
    )
    if not architecture.is_moe:
        left, right = _read(composition, one, WeightRead), _read(composition, more, WeightRead)
        _equal(left, right, f"weight bytes at batch {batch} and {batch * factor}", EXACT)
    read = _read(composition, one, CacheIO)
    _equal(read * factor, _read(composition, more, CacheIO), f"KV bytes of {factor} times the batch")
    full = _read(composition, one, CacheIO, only=("full",))
    _equal(
        full * factor, _read(composition, longer, CacheIO, only=("full",)), f"KV bytes of {factor} times the context"
    )
    windows = [b.mixer.window for b in architecture.blocks if isinstance(b.mixer, Attention) and b.mixer.window]
    if windows:
        past = max(windows)
        stands = [
            _read(composition, decode(float(sequences), float(c)), CacheIO, only=("sliding",))
            for c in (past, past + context)
        ]
        _equal(stands[0], stands[1], "KV bytes of sliding layers past the window", EXACT)


# 6


def check_identity(plain: Composition, identity: Composition, shape: StepShape) -> None:
    """6. A policy's identity setting leaves every total of graph, memory and scheduler exactly as it was."""
    what = "identity setting"
    check_same_graph(plain, identity, shape, what)
    context = float(max(shape.context, shape.prefill_context, 1.0))
    _same_totals(ledger_totals(plain, context), ledger_totals(identity, context), what, 0.0)
    _same_scheduler(plain.scheduler, identity.scheduler, what)
    before, after = _figures(plain.pricer, shape), _figures(identity.pricer, shape)
    assert before == after, f"{what}: seconds were {before} and are {after}"


def check_same_graph(before: Composition, after: Composition, shape: StepShape, what: str) -> None:
    """6. Every total of the step graph is exactly the same in both."""
    _same_totals(totals(before.graph, shape), totals(after.graph, shape), what, 0.0)


# 7


def check_speculation(scheduler: Scheduler, better: Scheduler | None = None) -> None:
    """7. Expected tokens of a verify step lie in [1, k+1]; a better acceptance never lowers them."""
    kept, k = scheduler.tokens_per_step, scheduler.verify_tokens - 1
    assert 1.0 <= kept <= k + 1, f"{kept} tokens expected of {k} drafts, outside [1, {k + 1}]"
    if better is not None:
        _not_above(kept, better.tokens_per_step, "tokens expected at the lower and the higher acceptance")


# 8


def check_quantization_gain(before: Composition, after: Composition, shape: StepShape) -> None:
    """8. Fewer bits gain no more than Amdahl allows: 1 / sum(share of time / that resource's own gain).

    Each op's time belongs to the resource that it waits for; latencies gain nothing. No figure gains more
    than the larger of the bit ratio and the rate ratio. Plain rooflines: without the L2 credit.
    """
    byte_gain, rate_gain = _best_gains(before, after)
    old, new = (Pricer(c.graph, c.setup.topology, l2_credit=False) for c in (before, after))
    for name in FIGURES:
        gain = _gain(float(getattr(old, name)(shape)), float(getattr(new, name)(shape)))
        _not_above(gain, max(byte_gain, rate_gain), f"speedup of the {name} at {shape}, then the best ratio", CLOSE)
    gains = {"compute": rate_gain, "memory": byte_gain, "link": 1.0, "latency": 1.0}
    shares = dict.fromkeys(gains, 0.0)
    for op in before.graph.ops:
        seconds = seconds_by_resource(op, before.setup.topology, shape)
        shares["latency"] += seconds.pop("latency") * op.count
        waits = max(seconds, key=lambda name: seconds[name])
        shares[waits] += seconds[waits] * op.count
    least = math.fsum(share / gains[name] for name, share in shares.items())
    after_s = math.fsum(
        (max(s["compute"], s["memory"], s["link"]) + s["latency"]) * op.count
        for op in after.graph.ops
        for s in [seconds_by_resource(op, after.setup.topology, shape)]
    )
    _not_above(least, after_s, f"seconds of all ops that Amdahl allows at {shape}, then those after", CLOSE)
    if before.graph.micro_batches == 1:
        for composition, pricer in ((before, old), (after, new)):
            for row, op in zip(pricer.breakdown(shape), composition.graph.ops, strict=True):
                s = seconds_by_resource(op, composition.setup.topology, shape)
                whole = (max(s["compute"], s["memory"], s["link"]) + s["latency"]) * op.count
                _equal(whole, float(row.seconds), f"seconds of {op.name}")


def _best_gains(before: Composition, after: Composition) -> tuple[float, float]:
    """The largest ratio of bytes, and of compute rates, of any demand before and after; at least 1."""
    byte_gain, rate_gain = 1.0, 1.0
    accelerators = [c.setup.topology.accelerator for c in (before, after)]
    for op in before.graph.ops:
        for was, now in zip(op.demands, after.graph.op(op.name).demands, strict=True):
            if isinstance(was, Matmul) and isinstance(now, Matmul):
                for rate in (Accelerator.peak, lambda a, p: a.rate(p)[1]):
                    old, new = (rate(a, d.precision) for a, d in zip(accelerators, (was, now), strict=True))
                    rate_gain = max(rate_gain, new / old)
            elif isinstance(was, WeightRead | CacheIO) and amount(was) > 0:
                byte_gain = max(byte_gain, _gain(amount(was), amount(now)))
    return byte_gain, rate_gain


def _gain(before: float, after: float) -> float:
    return before / after if after > 0 else math.inf if before > 0 else 1.0


def seconds_by_resource(op: Op, topology: Topology, shape: StepShape) -> dict[str, float]:
    """Sustained seconds of one instance of an op on compute, memory and its slowest link, and its latencies."""
    efficiency, accelerator = topology.efficiency, topology.accelerator
    seconds = {"compute": 0.0, "memory": 0.0, "link": 0.0, "latency": 0.0}
    by_tier: dict[str, float] = {}
    for demand in op.demands:
        units = amount(demand) * float(demand.feature.count(shape))
        if isinstance(demand, Matmul):
            seconds["compute"] += units / (efficiency.compute * accelerator.rate(demand.precision)[1])
        elif isinstance(demand, HostWork):
            seconds["latency"] += units
        elif isinstance(demand, Launch):
            seconds["latency"] += units * efficiency.launch_s
        elif isinstance(demand, Collective):
            for load in link_loads(demand, topology):
                moved = units * load.algorithm / (efficiency.link * load.bytes_per_s)
                by_tier[load.tier] = by_tier.get(load.tier, 0.0) + moved
                seconds["latency"] += load.latency_s * demand.count * float(demand.launches.count(shape))
        else:
            seconds["memory"] += units / (efficiency.memory * accelerator.memory_bandwidth_bytes_per_s)
    seconds["link"] = max(by_tier.values(), default=0.0)
    return seconds


# 9


def check_service(service: Service, batches: Sequence[int], contexts: Sequence[int]) -> None:
    """9. Throughput(B) <= B x tokens a step / bound(B); the step of a batch never shrinks as it grows.

    Resident sequences never grow with the context. ``batches`` and ``contexts`` ascend.
    """
    pools = service.scheduler.disaggregation
    composition = service.composition if pools is None else pools.decode.composition
    step, resident = 0.0, math.inf
    for batch in batches:
        point = service.point(float(batch))
        best = batch * service.scheduler.yield_per_step / float(composition.pricer.bound(point.shape()))
        _not_above(point.throughput, best, f"throughput at batch {batch}, then what the bound allows", CLOSE)
        _not_above(step, point.plain_s, f"inter-token latency below batch {batch}, then at it", CLOSE)
        step = point.plain_s
    for context in contexts:
        fitting = composition.memory.resident_sequences(context)
        assert 0 <= fitting <= resident, f"{fitting} sequences of {context} tokens fit, {resident} of fewer"
        resident = fitting


# 10


def check_arrays(composition: Composition, shapes: Sequence[StepShape], slack: float = EXACT) -> None:
    """10. Pricing shapes as arrays gives what pricing each alone gives, point by point."""
    import numpy as np

    pricer = composition.pricer
    stacked = StepShape(*(np.array([float(getattr(s, name)) for s in shapes]) for name in StepShape._fields))
    together = pricer.price(stacked)
    alone = [pricer.price(shape) for shape in shapes]
    for name in ("bound_s", "sustained_bound_s", "estimate_s", "floor_s", "flops", "hbm_bytes", "link_bytes"):
        column = np.broadcast_to(getattr(together, name), (len(shapes),))
        for i, cost in enumerate(alone):
            _equal(float(getattr(cost, name)), float(column[i]), f"{name} of {shapes[i]} alone and in an array", slack)
    for name in FIGURES:
        column = np.broadcast_to(getattr(pricer, name)(stacked), (len(shapes),))
        for i, shape in enumerate(shapes):
            _equal(
                float(getattr(pricer, name)(shape)), float(column[i]), f"{name} of {shape} alone and in an array", slack
            )


# 11


def valid_order(policies: Sequence[Policy], priority: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies in an order that their ``after`` and ``before`` allow, early names of ``priority`` first."""
    index = {policy.name: policy for policy in policies}
    waits = {name: {o for o in policy.after if o in index} for name, policy in index.items()}
    for name, policy in index.items():
        for later in policy.before:
            if later in waits:
                waits[later].add(name)
    rank = {name: i for i, name in enumerate(priority)}
    ordered: list[str] = []
    while len(ordered) < len(index):
        ready = [n for n in index if n not in ordered and waits[n] <= set(ordered)]
        ordered.append(min(ready, key=lambda n: (rank.get(n, len(rank)), n)))
    return tuple(index[name] for name in ordered)


def reordered(composition: Composition, priority: Sequence[str]) -> Composition:
    """Return the same deployment composed with its policies in another order that their constraints allow."""
    plugins = copy(composition.setup.plugins)
    plugins.policies = valid_order(plugins.policies, priority)
    return Composition(evolve(composition.setup, plugins=plugins))


def check_order(composition: Composition, shape: StepShape, priority: Sequence[str]) -> None:
    """11. The order in which policies that do not name each other are applied changes no total."""
    other = reordered(composition, priority)
    what = f"policies in the order {', '.join(p.name for p in other.setup.plugins.policies)}"
    _same_totals(totals(composition.graph, shape), totals(other.graph, shape), what, EXACT)
    context = float(max(shape.context, 1.0))
    _same_totals(ledger_totals(composition, context), ledger_totals(other, context), what, EXACT)
    _same_scheduler(composition.scheduler, other.scheduler, what)
    after = _figures(other.pricer, shape)
    for name, seconds in _figures(composition.pricer, shape).items():
        _equal(seconds, after[name], f"{what}: {name}", EXACT)


# 12


def check_conservation(composition: Composition, shape: StepShape) -> None:
    """12. Ops add up: their shares to the step's totals, the weights and caches they read to the memory ledger."""
    graph, ledger = composition.graph, composition.memory
    architecture = composition.setup.architecture
    if graph.stages == 1:
        rows, whole = composition.pricer.breakdown(shape), composition.pricer.price(shape)
        for name in ("flops", "hbm_bytes", "link_bytes"):
            added = math.fsum(float(getattr(row, name)) for row in rows)
            _equal(added, float(getattr(whole, name)), f"{name} of all ops and of the step")
    multiplied = {f"{block.name}.{tensor.name}" for block in architecture.blocks for tensor in block.tensors}
    multiplied |= {architecture.final_norm.name, (architecture.lm_head or architecture.embedding).name}
    for name, read in _weights_read(graph).items():
        held = [w for w in ledger.weights if w.name == name]
        assert held, f"the graph reads {name}, which the memory ledger does not hold"
        multiplied.discard(name)
        resident = math.fsum(w.bytes_on(stage) for w in held for stage in range(ledger.stages))
        if architecture.lm_head is None and name == architecture.embedding.name:
            # A tied table stands on both ends of a pipeline and multiplies on the last.
            resident = max(w.bytes_on(ledger.stages - 1) for w in held)
        _not_above(read, resident, f"bytes of {name} read, then resident", CLOSE)
        if not _copied(composition, name):
            _equal(read, resident, f"bytes of {name} read and resident")
    assert not multiplied, f"no op reads {', '.join(sorted(multiplied))}"
    _check_cache(composition)


def _weights_read(graph: StepGraph) -> dict[str, float]:
    read: dict[str, list[float]] = {}
    for op in graph.ops:
        if op.origin != "model":
            continue
        for demand in op.demands:
            if isinstance(demand, WeightRead) and demand.tensor is not None:
                block = f"{op.name.partition('.')[0]}." if op.layers else ""
                read.setdefault(block + demand.tensor.name, []).append(amount(demand) * op.count)
    return {name: math.fsum(values) for name, values in read.items()}


def _copied(composition: Composition, name: str) -> bool:
    """Whether the ledger holds more copies than a step reads."""
    copies = getattr(composition.context.config("moe"), "redundant_experts", None)
    return bool(copies) and any(
        w.name == name and w.tensor.role == "routed_experts" for w in composition.memory.weights
    )


def _check_cache(composition: Composition) -> None:
    """One sequence reads what it holds, in layers that read all they hold."""
    ledger = composition.memory
    context = 4096 * ledger.page_size
    for block in composition.setup.architecture.blocks:
        mixer = block.mixer
        if not isinstance(mixer, Attention | LatentAttention):
            continue
        if getattr(mixer, "chunk", 0) or getattr(mixer, "indexer", None):
            continue
        read = math.fsum(
            amount(demand) * float(demand.feature.count(decode(1.0, float(context)))) * op.count
            for op in composition.graph.ops
            if op.name == f"{block.name}.core"
            for demand in op.demands
            if isinstance(demand, CacheIO) and not demand.write
        )
        # A window holds the new token, too, which is written and not yet there to be read.
        held = math.fsum(
            c.bytes_on(stage, context)
            * ((c.held - 1) / c.held if c.held == mixer.window <= context and c.held else 1.0)
            for c in ledger.caches
            if c.block == block.name
            for stage in range(ledger.stages)
        )
        _equal(read, held, f"cache bytes of {block.name} read and resident")
