"""Pricing a step: the only place where a demand is divided by a capacity.

Three figures, never mixed:

* ``bound``: no schedule on this hardware is faster. Total demand on each resource over its peak; the
  largest counts. One L2 capacity is subtracted from the HBM bytes; activations, launches, latencies and
  host time stay outside.
* ``sustained bound``: the same with measured fractions of the peak.
* ``estimate``: what an engine is expected to do: the longest path through the graph, each op at its own
  sustained roofline plus latencies, never below the sustained bound.

`Pricer` compiles a graph for a topology once; after that a step shape of numbers, or of numpy arrays, is
priced by evaluating each feature once and a few multiply-adds. Pipeline stages of equal content cost the
same and are priced once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from operator import ge
from typing import NamedTuple

from servelint.arrays import Number, is_plain, maximum, minimum
from servelint.graph import StepGraph
from servelint.hardware import Topology
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
from servelint.shapes import Feature, StepShape

Terms = tuple[tuple[float, int], ...]
"""A linear form: (coefficient, index of a feature) pairs."""


class LinkLoad(NamedTuple):
    """Bytes one device receives over one tier, per message byte.

    ``floor`` is what no algorithm can beat, ``algorithm`` what the usual one moves.
    """

    tier: str
    bytes_per_s: float
    floor: float
    algorithm: float
    latency_s: float


def hbm_bytes_per_unit(demand: Demand) -> float:
    """HBM bytes of one unit of a demand's feature, 0 for demands that move none."""
    if isinstance(demand, WeightRead | CacheIO):
        if demand.format is None:
            raise ValueError("a weight or cache demand needs a format")
        return demand.coefficient * demand.format.bytes_per_element
    if isinstance(demand, StateIO):
        return demand.coefficient
    return 0.0


def link_loads(demand: Collective, topology: Topology) -> tuple[LinkLoad, ...]:
    """Resolve a collective to the tiers that its group crosses.

    All-reduce of M bytes among n: every rank receives at least M, the ring moves 2 (n-1)/n M, in-network
    reduction M. All-gather of M: (n-1)/n M. Across tiers an all-reduce is hierarchical and sends 1/inner
    of the message over the outer tier. All-to-all and send are priced on the slowest tier that they cross;
    of their bytes only those for peers beyond the faster tiers cannot avoid it.
    """
    hops = topology.hops(demand.group, demand.stride)
    link = topology.accelerator.link
    if demand.kind in ("all_to_all", "send"):
        return tuple(
            LinkLoad(h.tier, h.bytes_per_s, (demand.group - h.inner) / (demand.group - 1), 1.0, h.latency_s)
            for h in hops[-1:]
        )
    loads = []
    for hop in hops:
        share = (hop.fanout - 1) / hop.fanout
        if demand.kind == "all_gather":
            # The usual algorithm carries every inner group's part once to each member of the group.
            floor, algorithm = share / hop.inner, share
        else:
            in_network = hop.tier == "scale_up" and link is not None and link.in_network_reduction
            # What a rank does not get over the outer tiers has to come over the inner ones: M in all.
            floor = (1.0 if hop is hops[-1] else share) / hop.inner
            algorithm = max(1.0 if in_network else 2 * share, floor * hop.inner) / hop.inner
        loads.append(LinkLoad(hop.tier, hop.bytes_per_s, floor, algorithm, hop.latency_s))
    return tuple(loads)


class _Form:
    """A linear form over features under construction."""

    __slots__ = ("terms",)

    def __init__(self) -> None:
        self.terms: dict[int, float] = {}

    def add(self, coefficient: float, feature: int) -> None:
        if coefficient:
            self.terms[feature] = self.terms.get(feature, 0.0) + coefficient

    def add_form(self, other: _Form, factor: float) -> None:
        for feature, coefficient in other.terms.items():
            self.add(coefficient * factor, feature)

    def frozen(self, factor: float = 1.0) -> Terms:
        return tuple((c * factor, f) for f, c in self.terms.items())


def _evaluate(terms: Terms, values: Sequence[Number]) -> Number:
    total: Number = 0.0
    for coefficient, feature in terms:
        total = total + coefficient * values[feature]
    return total


class _OpForms(NamedTuple):
    """One op compiled: sustained seconds of one instance by resource, and what adds to the longest of them."""

    compute: Terms
    memory: Terms
    links: tuple[Terms, ...]
    fixed: Terms

    def add_to(self, linear: _Form, maxima: list[tuple[Terms, ...]], repeats: int) -> None:
        """Add so many instances: to what adds up, or to the choices of the slowest resource."""
        times = [form for form in (self.compute, self.memory, *self.links) if form]
        added = [self.fixed]
        if len(times) > 1:
            maxima.append(tuple(tuple((c * repeats, f) for c, f in form) for form in times))
        else:
            added += times
        for form in added:
            for coefficient, feature in form:
                linear.add(coefficient * repeats, feature)


class _Segment(NamedTuple):
    """A run of ops without a branch: the segments it waits for, and what its seconds are the sum of.

    Each entry of ``maxima`` counts by its largest form, ``linear`` as it is.
    """

    before: tuple[int, ...]
    linear: Terms
    maxima: tuple[tuple[Terms, ...], ...]


def _walked(path: Sequence[_Segment], values: Sequence[Number]) -> Number:
    """Seconds of the longest way through the segments."""
    finish: list[Number] = []
    for segment in path:
        seconds = _evaluate(segment.linear, values)
        for forms in segment.maxima:
            seconds = seconds + _largest([_evaluate(form, values) for form in forms])
        if segment.before:
            seconds = _largest([finish[i] for i in segment.before]) + seconds
        finish.append(seconds)
    return _largest(finish)


class _Paths(NamedTuple):
    """The ops of stages as segments: of those that can take longest, and of all, each with its number of stages."""

    longest: list[tuple[_Segment, ...]]
    walk: list[tuple[tuple[_Segment, ...], int]]


class _StageForms(NamedTuple):
    """One kind of pipeline stage compiled: seconds of a micro-batch by resource, at peak.

    ``number`` stages are of the kind. ``compute`` is at the fastest accumulator, which only a bound may assume,
    ``usual`` at the fp32 one.
    """

    compute: Terms
    usual: Terms
    hbm: Terms
    links: tuple[Terms, ...]
    number: int


class _Load(NamedTuple):
    """Features of a step's mean micro-batch, how many there are, and features of the fullest one."""

    values: list[Number]
    parts: Number
    fullest: list[Number]


class OpCost(NamedTuple):
    """One op in one step, all instances on the busiest stage or rank.

    ``seconds`` is its own sustained roofline with latencies, times its instances.
    """

    name: str
    instances: int
    flops: Number
    hbm_bytes: Number
    activation_bytes: Number
    link_bytes: Number
    seconds: Number


class StepCost(NamedTuple):
    """A priced step. Seconds, bytes and FLOPs per device of the busiest stage; numbers or arrays."""

    bound_s: Number
    sustained_bound_s: Number
    estimate_s: Number
    floor_s: Number
    binding: Number
    resources: tuple[str, ...]
    flops: Number
    hbm_bytes: Number
    link_bytes: Number

    @property
    def binding_resource(self) -> str:
        """Name of the resource that decides the sustained bound (plain numbers only)."""
        return self.resources[int(self.binding)]


class Pricer:
    """Prices step shapes on one composed graph and topology.

    ``l2_credit`` False leaves the L2 out of the bounds, for comparison with plain rooflines.
    """

    def __init__(self, graph: StepGraph, topology: Topology, *, l2_credit: bool = True) -> None:
        self.graph = graph
        self.topology = topology
        self._features: list[Feature] = []
        self._index: dict[Feature, int] = {}
        self._bandwidth = topology.accelerator.memory_bandwidth_bytes_per_s
        self._l2_s = topology.accelerator.l2_bytes / self._bandwidth if l2_credit else 0.0
        self._compile()

    def _feature(self, feature: Feature) -> int:
        index = self._index.get(feature)
        if index is None:
            index = self._index[feature] = len(self._features)
            self._features.append(feature)
        return index

    def _compile(self) -> None:
        topology, efficiency = self.topology, self.topology.efficiency
        kinds = self.graph.stage_kinds
        totals = [(_Form(), _Form(), _Form()) for _ in kinds]
        links: list[dict[str, _Form]] = [{} for _ in kinds]
        ops = []
        for op in self.graph.ops:
            peak, usual, hbm, activations, fixed = _Form(), _Form(), _Form(), _Form(), _Form()
            floors: dict[str, _Form] = {}
            moved: dict[str, _Form] = {}
            for demand in op.demands:
                f = self._feature(demand.feature)
                if isinstance(demand, Matmul):
                    _, rate = topology.accelerator.rate(demand.precision)
                    usual.add(demand.coefficient / rate, f)
                    peak.add(demand.coefficient / topology.accelerator.peak(demand.precision), f)
                elif isinstance(demand, WeightRead | CacheIO | StateIO):
                    hbm.add(hbm_bytes_per_unit(demand) / self._bandwidth, f)
                elif isinstance(demand, ActivationIO):
                    activations.add(demand.coefficient / self._bandwidth, f)
                elif isinstance(demand, Collective):
                    for load in link_loads(demand, topology):
                        # Seconds, not bytes: on a mesh the rate depends on the size of the group.
                        seconds = demand.coefficient / load.bytes_per_s
                        moved.setdefault(load.tier, _Form()).add(seconds * load.algorithm, f)
                        floors.setdefault(load.tier, _Form()).add(seconds * load.floor, f)
                        fixed.add(load.latency_s * demand.count, self._feature(demand.launches))
                elif isinstance(demand, HostWork):
                    fixed.add(demand.coefficient, f)
                elif isinstance(demand, Launch):
                    fixed.add(demand.coefficient * efficiency.launch_s, f)
                else:
                    raise TypeError(f"{op.name} carries a demand that cost does not know: {type(demand).__name__}")
            memory = _Form()
            memory.add_form(hbm, 1 / efficiency.memory)
            memory.add_form(activations, 1 / efficiency.memory)
            ops.append(
                _OpForms(
                    usual.frozen(1 / efficiency.compute),
                    memory.frozen(),
                    tuple(form.frozen(1 / efficiency.link) for form in moved.values()),
                    fixed.frozen(),
                )
            )
            for (stage, _), total, by_tier in zip(kinds, totals, links, strict=True):
                repeats = op.repeats[stage]
                for sum_of, form in zip(total, (peak, usual, hbm), strict=True):
                    sum_of.add_form(form, repeats)
                for tier, form in floors.items():
                    by_tier.setdefault(tier, _Form()).add_form(form, repeats)
        self._ops = ops
        tiers = tuple(dict.fromkeys(tier for by_tier in links for tier in by_tier))
        self._stages = [
            _StageForms(
                peak.frozen(),
                usual.frozen(),
                hbm.frozen(),
                tuple(by_tier[tier].frozen() if tier in by_tier else () for tier in tiers),
                number,
            )
            for (peak, usual, hbm), by_tier, (_, number) in zip(totals, links, kinds, strict=True)
        ]
        self._busiest = _not_exceeded([tuple(op.repeats[stage] for op in self.graph.ops) for stage, _ in kinds])
        self._one_accumulator = all(stage.compute == stage.usual for stage in self._stages)
        self._has_floors = any(feature.floor is not feature.count for feature in self._features)
        self.resources = ("compute", "hbm", *(f"link:{tier}" for tier in tiers))
        self._fractions = (efficiency.compute, efficiency.memory, *[efficiency.link] * len(tiers))
        self._order = self.graph.order
        self._predecessors = self.graph.predecessors

    # Features

    def _values(self, shape: StepShape) -> list[Number]:
        return [feature.count(shape) for feature in self._features]

    def _floors(self, shape: StepShape) -> list[Number]:
        return [feature.floor(shape) for feature in self._features]

    def _load(self, shape: StepShape) -> _Load:
        """Evaluate the features of the micro-batches that the engine makes of a step."""
        return self._loaded(shape, self._parts(shape, self.graph.micro_batches), self._values)

    def _parts(self, shape: StepShape, wanted: int, *, cut: bool = False) -> Number:
        """Return how many of the wanted micro-batches a step has work for.

        ``cut`` lets prompts be cut into chunks that follow each other through the stages.
        """
        if wanted == 1:
            return 1.0
        ranks = self.graph.ranks
        rank = shape.fullest_rank(ranks) if ranks > 1 else shape
        # A micro-batch of less than one sequence a rank does not exist, of a prompt not less than one token.
        prompts = rank.prefill_sequences * rank.prefill_tokens if cut else rank.prefill_sequences
        return maximum(1.0, minimum(rank.batch + prompts, float(wanted)))

    def _loaded(self, shape: StepShape, count: Number, evaluate: Callable[[StepShape], list[Number]]) -> _Load:
        """Evaluate the features of a step in ``count`` micro-batches."""
        if is_plain(count) and count == 1.0:
            values = evaluate(shape)
            return _Load(values, 1.0, values)
        ranks = self.graph.ranks
        values = evaluate(shape.micro_batch(count))
        if ranks == 1:
            return _Load(values, count, values)
        rank = shape.fullest_rank(ranks)
        fullest = shape._replace(
            batch=minimum(shape.batch, rank.batch * ranks / count),
            prefill_sequences=minimum(shape.prefill_sequences, rank.prefill_sequences * ranks / count),
            parts=count,
        )
        return _Load(values, count, evaluate(fullest))

    # Figures

    def _once(self, stage: _StageForms, values: Sequence[Number], *, peak: bool) -> list[Number]:
        """Seconds of each resource for a micro-batch on a stage, every byte counted."""
        forms = (stage.compute if peak else stage.usual, stage.hbm, *stage.links)
        return [_evaluate(form, values) for form in forms]

    def _credited(self, once: Sequence[Number], count: Number) -> list[Number]:
        """Seconds of each resource for ``count`` micro-batches, one L2 capacity of bytes taken off."""
        seconds = list(once)
        if not (is_plain(count) and count == 1.0):
            seconds = [s * count for s in seconds]
        if self._l2_s:
            seconds[1] = maximum(seconds[1] - self._l2_s, 0.0)
        return seconds

    def _roofline(self, load: _Load, *, sustained: bool = False) -> Number:
        """The busiest stage over all micro-batches, or the fullest one's walk through every stage."""
        peak = not sustained
        if self.graph.stages == 1:
            return self._longest(self._once(self._stages[0], load.values, peak=peak), load.parts, sustained=sustained)
        once = [self._once(stage, load.fullest, peak=peak) for stage in self._stages]
        walk: Number = 0.0
        for stage, each in zip(self._stages, once, strict=True):
            walk = walk + stage.number * self._longest(each, 1.0, sustained=sustained)
        if load.fullest is load.values:
            busiest = [once[kind] for kind in self._busiest]
        else:
            busiest = [self._once(self._stages[kind], load.values, peak=peak) for kind in self._busiest]
        return _largest([walk, *(self._longest(each, load.parts, sustained=sustained) for each in busiest)])

    def _longest(self, once: Sequence[Number], count: Number, *, sustained: bool) -> Number:
        seconds = self._credited(once, count)
        return _largest(self._slowed(seconds) if sustained else seconds)

    def _slowed(self, seconds: Sequence[Number]) -> list[Number]:
        return [s / eta for s, eta in zip(seconds, self._fractions, strict=True)]

    def by_resource(self, shape: StepShape) -> dict[str, Number]:
        """Seconds at peak by resource, each on the stage that has most of it; the L2 taken off, as in the bound."""
        load = self._load(shape)
        stages = [self._credited(self._once(stage, load.values, peak=True), load.parts) for stage in self._stages]
        return dict(zip(self.resources, map(_largest, zip(*stages, strict=True)), strict=True))

    def _least(
        self, shape: StepShape, evaluate: Callable[[StepShape], list[Number]], *, sustained: bool = False
    ) -> Number:
        """The roofline of the fastest schedule: however many micro-batches, prompts whole or cut.

        Every micro-batch reads the weights again, so fewer of them than stages can be faster. Prompts in a
        step never make its decoding sequences faster: those still walk through the stages.
        """
        if self.graph.stages == 1:
            count = self._parts(shape, self.graph.micro_batches)
            return self._roofline(self._loaded(shape, count, evaluate), sustained=sustained)

        def fastest(shape: StepShape, *cuts: bool) -> Number:
            least: Number = math.inf
            for count in self._schedules(shape, cuts):
                least = minimum(least, self._roofline(self._loaded(shape, count, evaluate), sustained=sustained))
            return least

        alone = fastest(shape._replace(prefill_sequences=0.0), False)
        return alone if _absent(shape.prefill_sequences) else maximum(fastest(shape, False, True), alone)

    def _schedules(self, shape: StepShape, cuts: Sequence[bool]) -> list[Number]:
        """Numbers of micro-batches of a step worth pricing, prompts whole or cut; equal ones once."""
        counts = [self._parts(shape, wanted, cut=cut) for cut in cuts for wanted in self._micro_batches]
        return list(dict.fromkeys(counts)) if all(map(is_plain, counts)) else counts

    @property
    def _micro_batches(self) -> tuple[int, ...]:
        """Numbers of micro-batches to try: up to the stages, since more only read the weights more often.

        The engine's own number is among them, so that an estimate, which uses it, is never below a bound.
        """
        stages, own = self.graph.stages, self.graph.micro_batches
        tried = range(1, stages + 1) if stages <= 16 else (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, stages)
        return tuple(sorted({*tried, own}))

    def bound(self, shape: StepShape) -> Number:
        """Seconds that no schedule on this hardware can beat."""
        return self._least(shape, self._values)

    def floor(self, shape: StepShape) -> Number:
        """Like `bound`, with routed experts at the fewest that any routing could touch."""
        return self._least(shape, self._floors)

    def sustained_bound(self, shape: StepShape) -> Number:
        """The bound at the sustained fractions of the peaks, in seconds."""
        return self._least(shape, self._values, sustained=True)

    def estimate(self, shape: StepShape) -> Number:
        """Seconds that an engine is expected to take."""
        if self.graph.stages == 1 or _absent(shape.prefill_sequences) or _absent(shape.batch):
            return self._expected(shape)
        # A sequence is not cut, so neither prompts nor decoding sequences make the others' walk shorter.
        parts = [shape, shape._replace(prefill_sequences=0.0), shape._replace(batch=0.0)]
        counts = [self._parts(part, self.graph.micro_batches) for part in parts]
        # In as many micro-batches less work takes less time.
        different = [p for p, n in zip(parts, counts, strict=True) if not (is_plain(n) and n == counts[0])]
        return _largest([self._expected(part) for part in (shape, *different)])

    def _expected(self, shape: StepShape) -> Number:
        load = self._load(shape)
        return maximum(self._path(load), self._roofline(load, sustained=True))

    def _op_seconds(self, forms: _OpForms, values: Sequence[Number]) -> Number:
        times = (forms.compute, forms.memory, *forms.links)
        return _largest([_evaluate(form, values) for form in times]) + _evaluate(forms.fixed, values)

    @cached_property
    def _paths(self) -> _Paths:
        """What the longest path goes through, on the stages that matter for it."""
        kinds, ops = self.graph.stage_kinds, self.graph.ops
        longest = [self._segments([op.repeats[kinds[kind][0]] for op in ops]) for kind in self._busiest]
        if len(longest[0]) == 1:
            # Without a branch the seconds of all stages add up op by op.
            return _Paths(longest, [(self._segments([op.count for op in ops]), 1)])
        return _Paths(longest, [(self._segments([op.repeats[stage] for op in ops]), n) for stage, n in kinds])

    def _segments(self, repeats: Sequence[int]) -> tuple[_Segment, ...]:
        """So many of each op, runs without a branch taken together."""
        of: dict[int, int] = {}
        found: list[tuple[tuple[int, ...], _Form, list[tuple[Terms, ...]]]] = []
        for i in self._order:
            before = self._predecessors[i]
            if len(before) == 1 and self._followers[before[0]] == 1:
                of[i] = of[before[0]]
            else:
                of[i] = len(found)
                found.append((tuple({of[j] for j in before}), _Form(), []))
            if repeats[i]:
                _, linear, maxima = found[of[i]]
                self._ops[i].add_to(linear, maxima, repeats[i])
        return tuple(_Segment(before, linear.frozen(), tuple(maxima)) for before, linear, maxima in found)

    @cached_property
    def _followers(self) -> list[int]:
        """How many ops wait for each."""
        followers = [0] * len(self._ops)
        for before in self._predecessors:
            for i in before:
                followers[i] += 1
        return followers

    def _path(self, load: _Load) -> Number:
        """Longest path through the graph; with pipeline stages, each stage's own path is combined."""
        longest = _largest([_walked(path, load.values) for path in self._paths.longest])
        if not (is_plain(load.parts) and load.parts == 1.0):
            longest = longest * load.parts
        if self.graph.stages == 1:
            return longest
        walk: Number = 0.0
        for path, number in self._paths.walk:
            walk = walk + number * _walked(path, load.fullest)
        return maximum(longest, walk)

    def price(self, shape: StepShape) -> StepCost:
        """Return every figure of a step; fields of the shape may be arrays that broadcast."""
        load = self._load(shape)
        if self.graph.stages == 1:
            # One evaluation serves both bounds.
            usual = self._credited(self._once(self._stages[0], load.values, peak=False), load.parts)
            slowed = self._slowed(usual)
            sustained = _largest(slowed)
            bound = _largest(usual) if self._one_accumulator else self._roofline(load)
            estimate = maximum(self._path(load), sustained)
        else:
            once = [self._once(stage, load.values, peak=False) for stage in self._stages]
            stages = [self._slowed(self._credited(each, load.parts)) for each in once]
            slowed = [_largest(seconds) for seconds in zip(*stages, strict=True)]
            bound, sustained, estimate = self.bound(shape), self.sustained_bound(shape), self.estimate(shape)
        flops, hbm, moved = self._totals(load.values, load.parts)
        return StepCost(
            bound_s=bound,
            sustained_bound_s=sustained,
            estimate_s=estimate,
            floor_s=self.floor(shape) if self._has_floors else bound,
            binding=_argmax(slowed),
            resources=self.resources,
            flops=flops,
            hbm_bytes=hbm,
            link_bytes=moved,
        )

    def _totals(self, values: Sequence[Number], count: Number) -> tuple[Number, Number, Number]:
        """FLOPs, HBM bytes (L2 credit not applied, activations not counted) and link bytes of the busiest stage."""
        best: tuple[Number, Number, Number] = (0.0, 0.0, 0.0)
        for amounts in self._stage_amounts:
            totals = [_evaluate(form, values) * count for form in amounts]
            best = (maximum(best[0], totals[0]), maximum(best[1], totals[1]), maximum(best[2], totals[2]))
        return best

    @cached_property
    def _amounts(self) -> list[tuple[Terms, Terms, Terms, Terms]]:
        """Per op, for one instance: FLOPs, HBM bytes, activation bytes, link bytes of the usual algorithm."""
        amounts = []
        for op in self.graph.ops:
            forms = (_Form(), _Form(), _Form(), _Form())
            for demand in op.demands:
                f = self._feature(demand.feature)
                if isinstance(demand, Matmul):
                    forms[0].add(demand.coefficient, f)
                elif isinstance(demand, ActivationIO):
                    forms[2].add(demand.coefficient, f)
                elif isinstance(demand, Collective):
                    for load in link_loads(demand, self.topology):
                        forms[3].add(demand.coefficient * load.algorithm, f)
                else:
                    forms[1].add(hbm_bytes_per_unit(demand), f)
            amounts.append((forms[0].frozen(), forms[1].frozen(), forms[2].frozen(), forms[3].frozen()))
        return amounts

    @cached_property
    def _stage_amounts(self) -> list[tuple[Terms, Terms, Terms]]:
        stages = []
        for stage, _ in self.graph.stage_kinds:
            forms = (_Form(), _Form(), _Form())
            for op, (flops, hbm, _, link) in zip(self.graph.ops, self._amounts, strict=True):
                for form, terms in zip(forms, (flops, hbm, link), strict=True):
                    for c, f in terms:
                        form.add(c * op.repeats[stage], f)
            stages.append((forms[0].frozen(), forms[1].frozen(), forms[2].frozen()))
        return stages

    def amounts(self, shape: StepShape) -> list[list[Number]]:
        """Per op and demand, what one instance asks for in a step, over all micro-batches, in the demand's unit.

        FLOPs of a `Matmul`; HBM bytes of reads and writes; message bytes of a `Collective`; seconds of
        `HostWork`; a number of launches.
        """
        values, count, _ = self._load(shape)
        return [
            [(hbm_bytes_per_unit(d) or d.coefficient) * values[self._index[d.feature]] * count for d in op.demands]
            for op in self.graph.ops
        ]

    def breakdown(self, shape: StepShape) -> list[OpCost]:
        """Return every op's share of a step, summed over its instances on all stages."""
        values, count, _ = self._load(shape)
        rows = []
        for op, forms, (flops, hbm, act, link) in zip(self.graph.ops, self._ops, self._amounts, strict=True):
            n = op.count * count
            rows.append(
                OpCost(
                    op.name,
                    op.count,
                    _evaluate(flops, values) * n,
                    _evaluate(hbm, values) * n,
                    _evaluate(act, values) * n,
                    _evaluate(link, values) * n,
                    self._op_seconds(forms, values) * n,
                )
            )
        return rows


def _not_exceeded(stages: Sequence[tuple[int, ...]]) -> list[int]:
    """Indices of the stages that no other has at least as many of every op as: only these can take longest."""
    kept: list[int] = []
    for i in sorted(range(len(stages)), key=lambda i: -sum(stages[i])):
        if not any(all(map(ge, stages[j], stages[i])) for j in kept):
            kept.append(i)
    return sorted(kept)


def _absent(sequences: Number) -> bool:
    """Whether a step has no such sequences at any of its points, as far as a plain number says so."""
    return is_plain(sequences) and sequences == 0


def _largest(values: Sequence[Number]) -> Number:
    return reduce(maximum, values)


def _argmax(rows: Sequence[Number]) -> Number:
    """Index of the largest of several values, elementwise; the first of equals."""
    best: Number = rows[0]
    index: Number = 0.0
    for i, row in enumerate(rows[1:], 1):
        if is_plain(best) and is_plain(row):
            if row > best:
                best, index = row, float(i)
        else:
            import numpy as np

            index = np.where(row > best, float(i), index)
            best = np.maximum(best, row)
    return index
