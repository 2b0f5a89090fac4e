"""``[policy.moe]``: how uneven the experts' load is, and the copies kept against it."""

from __future__ import annotations

from attrs import evolve, frozen

from servelint.plugin import (
    ActivationIO,
    Boolean,
    Context,
    Demand,
    Integer,
    Matmul,
    MemoryLedger,
    Number,
    Op,
    Policy,
    StepGraph,
    key,
)
from servelint.values import Value

NAME = "moe"


@frozen(eq=False, repr=False)
class Moe(Value):
    """``skew`` is the busiest expert rank's load over the mean (1: even); ``redundant_experts`` are extra
    copies a layer; ``load_metrics`` says that expert load is recorded."""

    skew: float | None = key(Number(1.0, 10_000.0))
    redundant_experts: int | None = key(Integer(0, 100_000))
    load_metrics: bool | None = key(Boolean())


def graph(config: Moe, graph: StepGraph, context: Context) -> StepGraph:
    """Give the busiest expert rank its share: skew multiplies what its tokens cost."""
    skew = config.skew
    parallelism = context.config("parallelism")
    if not skew or skew == 1.0 or parallelism is None or (parallelism.expert or 1) == 1:
        return graph
    # The busiest rank gets at most every token.
    factor = min(skew, float(parallelism.expert))

    def change(op: Op, demand: Demand) -> Demand:
        if not op.name.endswith(".experts") or not isinstance(demand, Matmul | ActivationIO):
            return demand
        if isinstance(demand, Matmul) and demand.axis != "experts":
            return demand
        return demand.scaled(factor, NAME, "busiest expert rank over the mean", context.input(NAME, "skew"))

    return graph.mapped(change)


def memory(config: Moe, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Hold the redundant experts' weights."""
    copies = config.redundant_experts
    if not copies:
        return ledger

    def change(weights):  # type: ignore[no-untyped-def]
        block = context.block(weights.block)
        if block is None or block.experts is None or weights.tensor.role != "routed_experts":
            return weights
        factor = (block.experts.count + copies) / block.experts.count
        lineage = weights.lineage.rewritten(NAME, "redundant copies", context.input(NAME, "redundant_experts"))
        return evolve(weights, params=weights.params * factor, lineage=lineage)

    return ledger.mapped(weights=change)


POLICY = Policy(NAME, Moe, graph, memory, after=("parallelism",))
