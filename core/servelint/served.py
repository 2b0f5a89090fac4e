"""The longest requests that a deployment serves, and what becomes of those that are longer.

How many positions a model has and whether launch arguments change that, what the spec or its arguments limit, and the
shares of a workload beyond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from servelint.lineage import KeyPath

if TYPE_CHECKING:
    from servelint.architecture import Architecture
    from servelint.review import Review
    from servelint.service import Mix

LENGTH: KeyPath = ("model", "max_model_len")
PROMPT: KeyPath = ("model", "max_prompt_tokens")
TRUNCATES: KeyPath = ("engine", "truncates")
SEEN = 5e-5
"""Shares below this would be written as nothing; a sum of two distributions is not known that well."""

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


class Limit(NamedTuple):
    """Tokens that a request may have in all, and its prompt, with a token of output to come."""

    tokens: int
    prompt: int


class Excess(NamedTuple):
    """Shares of requests whose prompt alone is too long, and of those that only their output makes too long."""

    prompts: float
    outputs: float


def limit(review: Review) -> Limit | None:
    """The longest request that is served: declared, else by the model's positions; None where neither is known."""
    composition, model = review.composition, review.deployment.model
    if composition is None or (model.max_model_len is None and rescaled(review)):
        return None
    most = model.max_model_len or positions(composition.setup.architecture)
    return Limit(most, min(most - 1, model.max_prompt_tokens or most)) if most > 0 else None


def excess(mix: Mix, longest: Limit) -> Excess:
    """What of a mix is too long."""
    prompts = 1 - mix.prompt.share_within(longest.prompt)
    return Excess(prompts, max(1 - mix.whole.share_within(longest.tokens) - prompts, 0.0))


def refused_by(review: Review, tokens: int) -> float:
    """The share of the declared prompts, growth aside, that a length of so many tokens would refuse."""
    return 0.0 if review.mix is None else excess(review.mix, Limit(tokens, tokens - 1)).prompts


def truncates(review: Review) -> bool:
    """Whether the engine cuts prompts that are too long, or may: it is not certain then that they are refused."""
    return bool(review.deployment.engine.truncates)


def too_long(review: Review, longest: Limit, found: Excess) -> str:
    """The share of prompts that are too long, in words, and what becomes of them."""
    setting = review.document.settings.get(TRUNCATES)
    fate = "refused, whatever the load"
    if truncates(review):
        fate = "cut before they are answered"
        fate += ", or refused" if setting is not None and setting.assumed else ""
    return f"{percent(found.prompts)} of the prompts have {longest.prompt + 1:,} tokens or more and are {fate}"


def percent(share: float) -> str:
    """A share with the digits that tell it from none and from all."""
    return f"{share:.2%}" if share < 0.01 else f"{share:.1%}" if share < 0.9995 else f"{share:.0%}"
