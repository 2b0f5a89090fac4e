"""Pricing a step: the only place where a demand is divided by a capacity.

Three figures, never mixed:

* ``bound``: no schedule on this hardware is faster. Total demand on each resource over its peak; the
  largest counts. One L2 capacity is subtracted from the HBM bytes; activations, launches, latencies and
  host time stay outside.
* ``sustained bound``: the same with measured fractions of the peak.
* ``estimate``: what an engine is expected to do: the longest path through the graph, each op at its own
  sustained roofline plus latencies, never below the sustained bound.

`Pricer` compiles a graph for a topology once; after that a step shape of numbers, or of numpy arrays, is
priced by evaluating each feature once and a few multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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
from servelint.shapes import ONCE, Feature, StepShape

Terms = tuple[tuple[float, int], ...]
"""A linear form: (coefficient, index of a feature) pairs."""


class LinkLoad(NamedTuple):
    """Bytes one device moves in one direction over one tier, per message byte.

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

    All-reduce of M bytes among n: at least (n-1)/n M arrive at every rank; the ring moves 2 (n-1)/n M,
    in-network reduction M. All-gather of M: (n-1)/n M. Across tiers an all-reduce is hierarchical and
    sends 1/inner of the message over the outer one; all-to-all and send cross the slowest tier.
    """
    hops = topology.hops(demand.group, demand.stride)
    link = topology.accelerator.link
    if demand.kind in ("all_to_all", "send"):
        hops = hops[-1:]
        return tuple(LinkLoad(h.tier, h.bytes_per_s, 1.0, 1.0, h.latency_s) for h in hops)
    loads = []
    for hop in hops:
        share = (hop.fanout - 1) / hop.fanout
        if demand.kind == "all_gather":
            # The outer tier carries every inner group's part once to each member of the group.
            loads.append(LinkLoad(hop.tier, hop.bytes_per_s, share, share, hop.latency_s))
            continue
        in_network = hop.tier == "scale_up" and link is not None and link.in_network_reduction
        algorithm = 1.0 if in_network else 2 * share
        loads.append(LinkLoad(hop.tier, hop.bytes_per_s, share / hop.inner, algorithm / hop.inner, hop.latency_s))
    return tuple(loads)


class _Form:
    """A linear form over features under construction."""

    __slots__ = ("terms",)

    def __init__(self) -> None:
        self.terms: dict[int, float] = {}

    def add(self, coefficient: float, feature: int) -> None:
        if coefficient:
            self.terms[feature] = self.terms.get(feature, 0.0) + coefficient

    def frozen(self) -> Terms:
        return tuple((c, f) for f, c in self.terms.items())


def _evaluate(terms: Terms, values: Sequence[Number]) -> Number:
    total: Number = 0.0
    for coefficient, feature in terms:
        total = total + coefficient * values[feature]
    return total


class _OpForms(NamedTuple):
    """One op compiled: seconds at peak by resource, all for one instance."""

    compute: Terms
    hbm: Terms
    activations: Terms
    links: tuple[tuple[str, Terms], ...]
    fixed: Terms


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
        self._l2 = topology.accelerator.l2_bytes if l2_credit else 0
        self._bandwidth = topology.accelerator.memory_bandwidth_bytes_per_s
        self._tiers: list[str] = []
        self._tier_rate: dict[str, float] = {}
        self._compile()

    def _feature(self, feature: Feature) -> int:
        index = self._index.get(feature)
        if index is None:
            index = self._index[feature] = len(self._features)
            self._features.append(feature)
        return index

    def _compile(self) -> None:
        topology = self.topology
        efficiency = topology.efficiency
        graph = self.graph
        stages = graph.stages
        self._ops: list[_OpForms] = []
        stage_compute = [_Form() for _ in range(stages)]
        stage_hbm = [_Form() for _ in range(stages)]
        stage_links: list[dict[str, _Form]] = [{} for _ in range(stages)]
        for op in graph.ops:
            compute, hbm, activations, fixed = _Form(), _Form(), _Form(), _Form()
            links: dict[str, _Form] = {}
            floors: dict[str, _Form] = {}
            for demand in op.demands:
                f = self._feature(demand.feature)
                if isinstance(demand, Matmul):
                    _, rate = topology.accelerator.rate(demand.precision)
                    compute.add(demand.coefficient / rate, f)
                elif isinstance(demand, WeightRead | CacheIO | StateIO):
                    hbm.add(hbm_bytes_per_unit(demand), f)
                elif isinstance(demand, ActivationIO):
                    activations.add(demand.coefficient, f)
                elif isinstance(demand, Collective):
                    for load in link_loads(demand, topology):
                        if load.tier not in self._tier_rate:
                            self._tiers.append(load.tier)
                            self._tier_rate[load.tier] = load.bytes_per_s
                        # Seconds, not bytes: on a mesh the rate depends on the size of the group.
                        seconds = demand.coefficient / load.bytes_per_s
                        links.setdefault(load.tier, _Form()).add(seconds * load.algorithm, f)
                        floors.setdefault(load.tier, _Form()).add(seconds * load.floor, f)
                        fixed.add(load.latency_s * demand.count, self._feature(ONCE))
                elif isinstance(demand, HostWork):
                    fixed.add(demand.coefficient, f)
                elif isinstance(demand, Launch):
                    fixed.add(demand.coefficient * efficiency.launch_s, f)
                else:
                    raise TypeError(f"{op.name} carries a demand that cost does not know: {type(demand).__name__}")
            self._ops.append(
                _OpForms(
                    compute.frozen(),
                    hbm.frozen(),
                    activations.frozen(),
                    tuple((tier, form.frozen()) for tier, form in links.items()),
                    fixed.frozen(),
                )
            )
            for stage, repeats in enumerate(op.repeats):
                if not repeats:
                    continue
                for c, f in self._ops[-1].compute:
                    stage_compute[stage].add(c * repeats, f)
                for c, f in self._ops[-1].hbm:
                    stage_hbm[stage].add(c * repeats, f)
                for tier, form in floors.items():
                    total = stage_links[stage].setdefault(tier, _Form())
                    for c, f in form.frozen():
                        total.add(c * repeats, f)
        self._stage_totals = [
            (c.frozen(), h.frozen(), tuple((t, form.frozen()) for t, form in links.items()))
            for c, h, links in zip(stage_compute, stage_hbm, stage_links, strict=True)
        ]
        self.resources = ("compute", "hbm", *(f"link:{tier}" for tier in self._tiers))
        self._order = graph.order
        self._predecessors = graph.predecessors

    # Features

    def _values(self, shape: StepShape) -> list[Number]:
        return [feature.count(shape) for feature in self._features]

    def _floors(self, shape: StepShape) -> list[Number]:
        return [feature.floor(shape) for feature in self._features]

    def _micro(self, shape: StepShape) -> tuple[StepShape, Number]:
        """Return the micro-batch that a stage works on at a time, and how many there are."""
        wanted = self.graph.micro_batches
        if wanted == 1:
            return shape, 1.0
        sequences = shape.batch + shape.prefill_sequences
        # A micro-batch of less than one sequence does not exist.
        count = maximum(1.0, minimum(sequences, float(wanted)))
        return shape.micro_batch(count), count

    # Figures

    def _stage_seconds(
        self, values: Sequence[Number], compute: float, memory: float, link: float
    ) -> list[list[Number]]:
        """Return, per stage, the seconds of each resource for one micro-batch."""
        stages = []
        for c_terms, h_terms, l_terms in self._stage_totals:
            hbm = _evaluate(h_terms, values)
            if self._l2:
                hbm = maximum(hbm - self._l2, 0.0)
            seconds = [_evaluate(c_terms, values) / compute, hbm / (memory * self._bandwidth)]
            by_tier = dict(l_terms)
            seconds += [_evaluate(by_tier.get(tier, ()), values) / link for tier in self._tiers]
            stages.append(seconds)
        return stages

    def _combine(self, stage_times: Sequence[Number], count: Number) -> Number:
        """Combine stages: the busiest one over all micro-batches, or one walk through every stage."""
        busiest, walk = stage_times[0], stage_times[0]
        for t in stage_times[1:]:
            busiest, walk = maximum(busiest, t), walk + t
        if len(stage_times) == 1:
            return busiest * count
        return maximum(busiest * count, walk)

    def _roofline(self, values: Sequence[Number], count: Number, fractions: tuple[float, float, float]) -> Number:
        times = []
        for seconds in self._stage_seconds(values, *fractions):
            longest = seconds[0]
            for s in seconds[1:]:
                longest = maximum(longest, s)
            times.append(longest)
        return self._combine(times, count)

    @cached_property
    def _sustained_fractions(self) -> tuple[float, float, float]:
        e = self.topology.efficiency
        return e.compute, e.memory, e.link

    def bound(self, shape: StepShape) -> Number:
        """Seconds that no schedule on this hardware can beat."""
        micro, count = self._micro(shape)
        return self._roofline(self._values(micro), count, (1.0, 1.0, 1.0))

    def floor(self, shape: StepShape) -> Number:
        """Like `bound`, with routed experts at the fewest that any routing could touch."""
        micro, count = self._micro(shape)
        return self._roofline(self._floors(micro), count, (1.0, 1.0, 1.0))

    def sustained_bound(self, shape: StepShape) -> Number:
        """The bound at the sustained fractions of the peaks, in seconds."""
        micro, count = self._micro(shape)
        return self._roofline(self._values(micro), count, self._sustained_fractions)

    def estimate(self, shape: StepShape) -> Number:
        """Seconds that an engine is expected to take."""
        micro, count = self._micro(shape)
        values = self._values(micro)
        return maximum(self._path(values, count), self._roofline(values, count, self._sustained_fractions))

    def _op_seconds(self, forms: _OpForms, values: Sequence[Number]) -> Number:
        compute, memory, link = self._sustained_fractions
        longest: Number = _evaluate(forms.compute, values) / compute if forms.compute else 0.0
        if forms.hbm or forms.activations:
            moved = _evaluate(forms.hbm, values) + _evaluate(forms.activations, values)
            longest = maximum(longest, moved / (memory * self._bandwidth))
        for _, terms in forms.links:
            longest = maximum(longest, _evaluate(terms, values) / link)
        return longest + _evaluate(forms.fixed, values) if forms.fixed else longest

    def _path(self, values: Sequence[Number], count: Number) -> Number:
        """Longest path through the graph; with pipeline stages, each stage's own path is combined."""
        seconds = [self._op_seconds(forms, values) for forms in self._ops]
        return self._combine([self._stage_path(seconds, stage) for stage in range(self.graph.stages)], count)

    def _stage_path(self, seconds: Sequence[Number], stage: int) -> Number:
        finish: list[Number] = [0.0] * len(seconds)
        longest: Number = 0.0
        for i in self._order:
            before = self._predecessors[i]
            start: Number = 0.0
            if before:
                start = finish[before[0]]
                for j in before[1:]:
                    start = maximum(start, finish[j])
            repeats = self.graph.ops[i].repeats[stage]
            finish[i] = start + repeats * seconds[i] if repeats else start
            longest = finish[i] if longest is start else maximum(longest, finish[i])
        return longest

    def price(self, shape: StepShape) -> StepCost:
        """Return every figure of a step; fields of the shape may be arrays that broadcast."""
        micro, count = self._micro(shape)
        values = self._values(micro)
        stages = self._stage_seconds(values, 1.0, 1.0, 1.0)
        compute, memory, link = self._sustained_fractions
        fractions = [compute, memory, *[link] * len(self._tiers)]
        bound_times, sustained_times = [], []
        worst: list[Number] = []
        for seconds in stages:
            bound, slow = seconds[0], seconds[0] / fractions[0]
            sustained = [slow]
            for s, eta in zip(seconds[1:], fractions[1:], strict=True):
                bound = maximum(bound, s)
                sustained.append(s / eta)
                slow = maximum(slow, s / eta)
            bound_times.append(bound)
            sustained_times.append(slow)
            worst = sustained if not worst else [maximum(a, b) for a, b in zip(worst, sustained, strict=True)]
        sustained_bound = self._combine(sustained_times, count)
        flops, hbm, moved = self._totals(values, count)
        return StepCost(
            bound_s=self._combine(bound_times, count),
            sustained_bound_s=sustained_bound,
            estimate_s=maximum(self._path(values, count), sustained_bound),
            floor_s=self.floor(shape),
            binding=_argmax(worst),
            resources=self.resources,
            flops=flops,
            hbm_bytes=hbm,
            link_bytes=moved,
        )

    def _totals(self, values: Sequence[Number], count: Number) -> tuple[Number, Number, Number]:
        """FLOPs, HBM bytes (L2 credit not applied, activations not counted) and link bytes of the busiest stage."""
        best: tuple[Number, Number, Number] = (0.0, 0.0, 0.0)
        for stage in range(self.graph.stages):
            totals = [_evaluate(form, values) * count for form in self._stage_amounts[stage]]
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
        for stage in range(self.graph.stages):
            forms = (_Form(), _Form(), _Form())
            for op, (flops, hbm, _, link) in zip(self.graph.ops, self._amounts, strict=True):
                for form, terms in zip(forms, (flops, hbm, link), strict=True):
                    for c, f in terms:
                        form.add(c * op.repeats[stage], f)
            stages.append((forms[0].frozen(), forms[1].frozen(), forms[2].frozen()))
        return stages

    def breakdown(self, shape: StepShape) -> list[OpCost]:
        """Return every op's share of a step, summed over its instances on all stages."""
        micro, count = self._micro(shape)
        values = self._values(micro)
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


def _argmax(rows: Sequence[Number]) -> Number:
    """Index of the largest of several values, elementwise; the first of equals."""
    best, index = rows[0], 0.0 if is_plain(rows[0]) else rows[0] * 0
    for i, row in enumerate(rows[1:], 1):
        if is_plain(best) and is_plain(row):
            if row > best:
                best, index = row, float(i)
        else:
            import numpy as np

            index = np.where(row > best, float(i), index)
            best = np.maximum(best, row)
    return index
