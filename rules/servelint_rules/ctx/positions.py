"""How many positions a model has, and whether launch arguments change that."""

from __future__ import annotations

from servelint.plugin import Architecture, Review

SCALED = ("linear", "dynamic", "ntk")
"""Kinds of scaling whose factor engines apply to the length in the config."""
WORDS = (
    "rope-scaling",
    "rope_scaling",
    "rope-freq",
    "rope-theta",
    "rope_theta",
    "yarn",
    "hf-overrides",
    "hf_overrides",
)
"""Words of launch arguments that change the positions of a model."""
OVERRIDES = ("json-model-override-args", "model-override", "max-position-embeddings", "max_position_embeddings")


def positions(architecture: Architecture) -> int:
    """Positions that engines derive from the config, or the larger figure where its scaling can be read twice."""
    limit, rope = architecture.max_position, architecture.rope_scaling
    if rope is None or rope.factor <= 1:
        return limit
    if rope.kind in SCALED and "gemma" not in architecture.model_type:
        return int(limit * rope.factor)
    if rope.kind == "yarn" and rope.original_max_position:
        return max(limit, int(rope.original_max_position * rope.factor))
    return limit


def rescaled(review: Review) -> bool:
    """Whether the launch arguments change the model's positions."""
    return any(launched_with(review, part) for part in (*WORDS, *OVERRIDES))


def launched_with(review: Review, part: str) -> bool:
    """Whether a word of the launch arguments contains a text."""
    launched = review.document.launched
    if launched is None:
        return False
    return any(part in word.text for command in launched.invocation.commands for word in command)
