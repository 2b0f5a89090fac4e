"""``[policy.moe]``: how uneven the experts' load is, and the copies kept against it."""

from __future__ import annotations

from math import ceil

from attrs import evolve, frozen

from servelint.arrays import minimum
from servelint.memory import Weights
from servelint.plugin import (
    ActivationIO,
    Boolean,
    Collective,
    Context,
    Demand,
    Experts,
    Feature,
    Integer,
    Lineage,
    Matmul,
    MemoryLedger,
    Number,
    Op,
    Policy,
    StepGraph,
    WeightRead,
    key,
)
from servelint.values import Value
from servelint_plugins.policies.parallelism import reached_share

NAME = "moe"


@frozen(slots=False, eq=False, repr=False)
class Moe(Value):
    """``skew`` is the busiest expert rank's load over the mean (1: even), measured with the copies in place;
    ``redundant_experts`` are extra copies a layer; ``load_metrics`` says that expert load is recorded."""

    skew: float | None = key(
        Number(1.0, 10_000.0),
        doc="Load of the busiest expert rank over the mean, copies in place; 1 is even. Left out: 1.",
    )
    redundant_experts: int | None = key(
        Integer(0, 100_000), doc="Copies of experts that a layer keeps, in all. Left out: none."
    )
    load_metrics: bool | None = key(Boolean(), doc="Whether the load of experts is recorded, which MOE001 asks for.")


def _ranks(context: Context) -> int:
    parallelism = context.config("parallelism")
    return parallelism.e if parallelism is not None else 1


def _copies(experts: Experts, redundant: int, ranks: int) -> float:
    """Expert weights that a rank holds, copies included, over those it holds without."""
    return ceil((experts.count + redundant) / ranks) / ceil(experts.count / ranks)


def _reached_more(feature: Feature, factor: float) -> Feature:
    """The share of a rank's experts that a step reaches, ``factor`` times as large but never above 1.

    The floor of any routing stays what it is.
    """
    count = feature.count
    return Feature(
        f"{feature.name} on the busiest rank",
        lambda s: minimum(count(s) * factor, 1.0),
        (*feature.args, "skew", factor),
        feature.floor,
    )


def graph(config: Moe, graph: StepGraph, context: Context) -> StepGraph:
    """Give the busiest expert rank its share, and let a step read the copies.

    The step waits for the rank with most tokens. It multiplies, and moves activations, ``skew`` times the mean;
    it reads ``skew`` times as many of its experts, at most all; it receives ``skew`` times as many tokens, at
    most one copy of every token.
    """
    ranks = _ranks(context)
    # The busiest rank gets at most every token.
    skew = min(config.skew or 1.0, float(ranks))
    copies = config.redundant_experts or 0
    if skew == 1.0 and not copies:
        return graph

    def change(op: Op, demand: Demand) -> Demand:
        block = context.block(op.name)
        if block is None or block.experts is None or skew == 1.0:
            return demand
        why, source = "busiest expert rank over the mean", context.input(NAME, "skew")
        if isinstance(demand, Collective):
            if demand.kind != "all_to_all":
                return demand
            most = 1 / reached_share(block.experts, ranks)
            return demand.scaled(min(skew, most), NAME, f"{why}, at most every token", source)
        if not op.name.endswith(".experts"):
            return demand
        if isinstance(demand, WeightRead):
            if demand.axis != "experts":
                return demand
            lineage = demand.lineage.rewritten(NAME, f"experts reached x {why}, at most all", source)
            return evolve(demand, feature=_reached_more(demand.feature, skew), lineage=lineage)
        if isinstance(demand, ActivationIO) or (isinstance(demand, Matmul) and demand.axis == "experts"):
            return demand.scaled(skew, NAME, why, source)
        return demand

    graph = graph.mapped(change)
    return (
        evolve(graph, ops=tuple(_reading_copies(op, copies, ranks, context) for op in graph.ops)) if copies else graph
    )


def _reading_copies(op: Op, copies: int, ranks: int, context: Context) -> Op:
    """Add the reads of redundant copies: part of the estimate only, since a router can leave copies alone."""
    block = context.block(op.name)
    if block is None or block.experts is None:
        return op
    extra = _copies(block.experts, copies, ranks) - 1
    if not extra:
        return op
    reads = tuple(
        ActivationIO(
            d.coefficient * d.format.bytes_per_element * extra,
            d.feature,
            "experts",
            Lineage("bytes of redundant copies read", (context.input(NAME, "redundant_experts"),)),
        )
        for d in op.demands
        if isinstance(d, WeightRead) and d.axis == "experts" and d.format is not None
    )
    return evolve(op, demands=(*op.demands, *reads))


def memory(config: Moe, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Hold the redundant experts' weights."""
    copies = config.redundant_experts
    if not copies:
        return ledger
    ranks = _ranks(context)

    def change(weights: Weights) -> Weights:
        block = context.block(weights.block)
        if block is None or block.experts is None or weights.tensor.role != "routed_experts":
            return weights
        lineage = weights.lineage.rewritten(NAME, "redundant copies", context.input(NAME, "redundant_experts"))
        return evolve(weights, params=weights.params * _copies(block.experts, copies, ranks), lineage=lineage)

    return ledger.mapped(weights=change)


POLICY = Policy(NAME, Moe, graph, memory, after=("parallelism", "quantization"))
