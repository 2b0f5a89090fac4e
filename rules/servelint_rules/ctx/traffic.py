"""What a step reads and computes, split into what weights and what the context ask for."""

from __future__ import annotations

from typing import NamedTuple

from servelint.plugin import CacheIO, Composition, Matmul, StateIO, StepShape, WeightRead


class Traffic(NamedTuple):
    """HBM bytes that a step reads on all devices of a replica's stages, by what they are of."""

    weights: float
    cache: float


def traffic(composition: Composition, shape: StepShape) -> Traffic:
    """Bytes of weights, and of cache and state, in one step on a device (summed over pipeline stages)."""
    pricer = composition.pricer
    weights = cache = 0.0
    for op, amounts in zip(pricer.graph.ops, pricer.amounts(shape), strict=True):
        for demand, amount in zip(op.demands, amounts, strict=True):
            if isinstance(demand, WeightRead):
                weights += float(amount) * op.count
            elif isinstance(demand, CacheIO | StateIO):
                cache += float(amount) * op.count
    return Traffic(weights, cache)


class Work(NamedTuple):
    """FLOPs of a step on a device: those that grow with the square of the prompt, and all."""

    quadratic: float
    total: float

    @property
    def share(self) -> float:
        """Share of the work that grows with the square of the prompt."""
        return self.quadratic / self.total


QUADRATIC = ("attended pairs", "latent attention FLOPs")
"""Names of features that pair every token with every earlier one; those cut by windows and chunks say so."""


def work(composition: Composition, shape: StepShape) -> Work:
    """FLOPs of a prefill by how they grow."""
    pricer = composition.pricer
    flops = [
        (demand.feature.name, float(amount) * op.count)
        for op, amounts in zip(pricer.graph.ops, pricer.amounts(shape), strict=True)
        for demand, amount in zip(op.demands, amounts, strict=True)
        if isinstance(demand, Matmul)
    ]
    return Work(sum(n for name, n in flops if _pairs_all(name)), sum(n for _, n in flops))


def _pairs_all(name: str) -> bool:
    return name.startswith(QUADRATIC) and " in the window" not in name and " in the chunk" not in name
