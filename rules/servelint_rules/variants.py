"""What holds the model, and the same deployment with a narrower cache, for remedies that quote a number."""

from __future__ import annotations

from attrs import evolve

from servelint.plugin import Composition, Review


def sides(composition: Composition) -> tuple[tuple[str, Composition], ...]:
    """What holds the model: (name of the pool, its replica), or the replica itself under an empty name."""
    pools = composition.scheduler.disaggregation
    if pools is None:
        return (("", composition),)
    return (("prefill", pools.prefill.composition), ("decode", pools.decode.composition))


def narrower_cache(review: Review) -> Composition | None:
    """The deployment with an FP8 KV cache.

    None where the cache is that narrow already, where it is a latent with a layout of the engine's own, or where
    nothing composes.
    """
    memory = review.memory
    if memory is None or not memory.caches:
        return None
    if any(c.format.bits < 16 or c.axis == "replicated" for c in memory.caches):
        return None
    return review.variant(quantization=evolve(review.policy("quantization"), kv_cache="fp8"))
