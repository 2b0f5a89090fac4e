"""Step shapes, and the features of a shape that demands are proportional to.

One composed graph prices every shape. A demand is ``coefficient x feature(shape)``: the coefficient is
fixed by the architecture and the policies, the feature counts tokens, sequences, cached tokens or attended
pairs. Fields of a shape are numbers or numpy arrays, so the same graph prices a whole grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from servelint.arrays import Number, ceil, maximum, minimum, where


class StepShape(NamedTuple):
    """What one engine step processes; every field may be an array.

    ``batch`` sequences decode, each with ``context`` tokens in the cache *before* the step and
    ``new_tokens`` tokens (1, or k+1 when verifying k drafts). In the same step ``prefill_sequences``
    sequences prefill ``prefill_tokens`` new tokens each over ``prefill_context`` cached ones; of them a
    share ``prefill_outputs`` finishes its prompt and yields a token. A shape that is one of several equal
    parts of a step says in ``parts`` how many there are.
    """

    batch: Number = 0.0
    context: Number = 0.0
    new_tokens: Number = 1.0
    prefill_sequences: Number = 0.0
    prefill_context: Number = 0.0
    prefill_tokens: Number = 0.0
    prefill_outputs: Number = 1.0
    parts: Number = 1.0

    def fullest_rank(self, ranks: int) -> StepShape:
        """Return the share of the rank with most sequences: ceil(batch / ranks) of the whole step."""
        return self._replace(
            batch=_fullest(self.batch, ranks, self.parts),
            prefill_sequences=_fullest(self.prefill_sequences, ranks, self.parts),
        )

    def micro_batch(self, count: Number) -> StepShape:
        """Return one of ``count`` equal micro-batches."""
        return self._replace(
            batch=self.batch / count, prefill_sequences=self.prefill_sequences / count, parts=self.parts * count
        )


def _fullest(sequences: Number, ranks: int, parts: Number) -> Number:
    # The guard keeps a part's rounding (b / 3 * 3) from counting as one more sequence.
    return ceil(sequences * parts / ranks * (1 - 1e-12)) / parts


def decode(batch: Number, context: Number, new_tokens: Number = 1.0) -> StepShape:
    """Return a decode step: ``batch`` sequences of ``context`` cached tokens, ``new_tokens`` each."""
    return StepShape(batch=batch, context=context, new_tokens=new_tokens)


def prefill(tokens: Number, context: Number = 0.0, sequences: Number = 1.0) -> StepShape:
    """Return a prefill step: ``sequences`` prompts of ``tokens`` new tokens over a cached prefix."""
    return StepShape(prefill_sequences=sequences, prefill_context=context, prefill_tokens=tokens)


class Feature:
    """A count that a demand is proportional to, as a pure function of a step shape.

    Features are equal when name and arguments are equal, so that a graph evaluates each only once per
    shape. ``floor`` is a count that no routing or caching luck can go below, where it differs from the
    expectation that ``count`` gives.
    """

    __slots__ = ("args", "count", "floor", "name")

    def __init__(
        self,
        name: str,
        count: Callable[[StepShape], Number],
        args: tuple[object, ...] = (),
        floor: Callable[[StepShape], Number] | None = None,
    ) -> None:
        self.name = name
        self.args = args
        self.count = count
        self.floor = floor or count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Feature) and self.name == other.name and self.args == other.args

    def __hash__(self) -> int:
        return hash((self.name, self.args))

    def __repr__(self) -> str:
        return f"{self.name}{self.args}" if self.args else self.name

    def on_fullest_rank(self, ranks: int) -> Feature:
        """Return this feature for the rank with most sequences of ``ranks`` that share them."""
        if ranks == 1:
            return self
        count, floor = self.count, self.floor
        return Feature(
            f"{self.name} on the fullest rank",
            lambda shape: count(shape.fullest_rank(ranks)),
            (*self.args, "ranks", ranks),
            lambda shape: floor(shape.fullest_rank(ranks)),
        )

    def on_prompt_share(self, devices: int) -> Feature:
        """Return this feature for one of ``devices`` that share the new tokens of every prompt."""
        if devices == 1:
            return self
        count, floor = self.count, self.floor

        def shared(shape: StepShape) -> StepShape:
            return shape._replace(prefill_tokens=shape.prefill_tokens / devices)

        return Feature(
            f"{self.name} of a share of each prompt",
            lambda shape: count(shared(shape)),
            (*self.args, "devices", devices),
            lambda shape: floor(shared(shape)),
        )


def _tokens(s: StepShape) -> Number:
    return s.batch * s.new_tokens + s.prefill_sequences * s.prefill_tokens


def _pairs(new: Number, past: Number) -> Number:
    return new * past + new * (new + 1) / 2


def _window_pairs(new: Number, past: Number, window: float) -> Number:
    growing = minimum(maximum(window - past, 0.0), new)
    return growing * past + growing * (growing + 1) / 2 + (new - growing) * window


def _chunk_pairs_to(position: Number, chunk: float) -> Number:
    rest = position % chunk
    return (position - rest) / chunk * (chunk * (chunk + 1) / 2) + rest * (rest + 1) / 2


ONCE = Feature("once per step", lambda s: 1.0)
TOKENS = Feature("tokens", _tokens)
SEQUENCES = Feature("sequences", lambda s: s.batch + s.prefill_sequences)
OUTPUTS = Feature("output rows", lambda s: s.batch * s.new_tokens + s.prefill_sequences * s.prefill_outputs)


def cached_tokens(window: int = 0, chunk: int = 0, *, top: int = 0) -> Feature:
    """Tokens read from the cache: all, those of a ``window`` that ends with the new one, the ``chunk`` so far, or
    as many as an index chooses, ``top``."""
    if top:
        return Feature(
            "cached tokens that are chosen",
            lambda s: s.batch * minimum(s.context, top) + s.prefill_sequences * minimum(s.prefill_context, top),
            (top,),
        )
    if window:
        return Feature(
            "cached tokens in the window",
            lambda s: (
                s.batch * minimum(s.context, window - 1) + s.prefill_sequences * minimum(s.prefill_context, window - 1)
            ),
            (window,),
        )
    if chunk:
        return Feature(
            "cached tokens in the chunk",
            lambda s: s.batch * (s.context % chunk) + s.prefill_sequences * (s.prefill_context % chunk),
            (chunk,),
        )
    return _CACHED


_CACHED = Feature("cached tokens", lambda s: s.batch * s.context + s.prefill_sequences * s.prefill_context)


def attended_pairs(window: int = 0, chunk: int = 0) -> Feature:
    """Query-key pairs under the causal mask: q S + q (q + 1) / 2 a sequence, cut by window or chunk."""
    if window:
        return Feature(
            "attended pairs in the window",
            lambda s: (
                s.batch * _window_pairs(s.new_tokens, s.context, window)
                + s.prefill_sequences * _window_pairs(s.prefill_tokens, s.prefill_context, window)
            ),
            (window,),
        )
    if chunk:
        return Feature(
            "attended pairs in the chunk",
            lambda s: (
                s.batch * (_chunk_pairs_to(s.context + s.new_tokens, chunk) - _chunk_pairs_to(s.context, chunk))
                + s.prefill_sequences
                * (
                    _chunk_pairs_to(s.prefill_context + s.prefill_tokens, chunk)
                    - _chunk_pairs_to(s.prefill_context, chunk)
                )
            ),
            (chunk,),
        )
    return _PAIRS


_PAIRS = Feature(
    "attended pairs",
    lambda s: (
        s.batch * _pairs(s.new_tokens, s.context) + s.prefill_sequences * _pairs(s.prefill_tokens, s.prefill_context)
    ),
)


def distinct_expert_share(experts: int, top_k: int) -> Feature:
    """Share of the experts that T tokens reach under uniform routing: 1 - (1 - k/E)^T, at least k/E."""
    idle = 1.0 - top_k / experts

    def share(s: StepShape) -> Number:
        return 1.0 - idle ** _tokens(s)

    return Feature(
        "share of experts reached",
        share,
        (experts, top_k),
        # At one token both are the same figure, up to its last bit.
        lambda s: minimum(minimum(_tokens(s), 1.0) * (top_k / experts), share(s)),
    )


def latent_attention(
    absorbed_per_pair: float, expanded_per_pair: float, expand_per_token: float, top_k: int = 0
) -> tuple[Feature, Feature]:
    """FLOPs of MLA scores and values, and cached tokens whose keys and values are expanded again.

    Absorbed in decode; a prompt takes the cheaper of absorbed and expanded, the latter re-expanding its cached
    prefix. ``expand_per_token`` weighs one re-expanded token in attention FLOPs (half where its GEMM runs at
    twice the rate), which decides between the two. With ``top_k`` (sparse attention) each query attends to at
    most that many latents.
    """
    args = (absorbed_per_pair, expanded_per_pair, expand_per_token, top_k)

    def pairs(new: Number, past: Number) -> Number:
        return _window_pairs(new, past, top_k) if top_k else _pairs(new, past)

    def expands(s: StepShape, prompt: Number) -> Any:
        return prompt * expanded_per_pair + s.prefill_context * expand_per_token < prompt * absorbed_per_pair

    def flops(s: StepShape) -> Number:
        prompt = pairs(s.prefill_tokens, s.prefill_context)
        each = where(expands(s, prompt), expanded_per_pair, absorbed_per_pair)
        return s.batch * pairs(s.new_tokens, s.context) * absorbed_per_pair + s.prefill_sequences * prompt * each

    def expanded(s: StepShape) -> Number:
        prompt = pairs(s.prefill_tokens, s.prefill_context)
        return s.prefill_sequences * where(expands(s, prompt), s.prefill_context, 0.0)

    return Feature("latent attention FLOPs", flops, args), Feature("re-expanded tokens", expanded, args)


def score_elements() -> Feature:
    """Score-matrix elements that a kernel without tiling writes: new x (past + new) a sequence."""
    return _SCORES


_SCORES = Feature(
    "score matrix elements",
    lambda s: (
        s.batch * s.new_tokens * (s.context + s.new_tokens)
        + s.prefill_sequences * s.prefill_tokens * (s.prefill_context + s.prefill_tokens)
    ),
)
