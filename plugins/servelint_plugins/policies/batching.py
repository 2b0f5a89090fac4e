"""``[policy.batching]``: how many sequences run at once and how prompts are cut into steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from attrs import evolve, frozen

from servelint.plugin import (
    Attention,
    Block,
    Boolean,
    Context,
    Default,
    Input,
    Integer,
    LatentAttention,
    Lineage,
    MemoryLedger,
    Policy,
    Reserve,
    Scheduler,
    Source,
    Text,
    key,
)
from servelint.values import Value

NAME = "batching"


@frozen(slots=False, eq=False, repr=False)
class Batching(Value):
    """Limits of one replica's scheduler: sequences at once, new tokens a step, chunking of prompts."""

    max_sequences: int | None = key(
        Integer(1, 1_000_000),
        doc="Most sequences that run at once, for each data-parallel rank. Left out: the engine's default.",
    )
    max_batched_tokens: int | None = key(
        Integer(1, 100_000_000),
        doc="Most new tokens of a step, decoding sequences and prompt chunks together. Left out: the engine's default.",
    )
    chunked_prefill: bool | None = key(
        Boolean(), doc="Whether prompts are cut to fit beside decoding sequences. Left out: the engine's default."
    )
    prefill_chunk: int | None = key(
        Integer(1, 100_000_000), doc="Most prompt tokens of a step. Left out: what `max_batched_tokens` leaves."
    )
    mixed_steps: bool | None = key(
        Boolean(),
        doc="Whether a step holds prompts beside decoding sequences. If not, prompts go first, in steps of their own, "
        "and decoding waits until all that have arrived are through. Left out: the engine's default.",
    )
    prefill_decode_interval: int | None = key(
        Integer(0, 100_000),
        doc="Steps that decode after each step of prompts alone, before the next one. 0: none has to. Left out: 0.",
    )
    admission: str | None = key(
        Text(),
        doc="How requests are admitted, in the engine's words: TensorRT-LLM's `guaranteed_no_evict` (its default) or "
        "`max_utilization`, which evicts.",
    )
    parallel_samples: int | None = key(Integer(1, 1024), doc="Outputs decoded from each prompt. Left out: 1.")


def defaults(config: Batching, context: Context) -> Mapping[str, Default]:
    """A prompt chunk fills the step's token budget unless a smaller one is set."""
    source = Source("default", "docs/conventions.md", "batching")
    return {"parallel_samples": Default(1, "", source), "prefill_decode_interval": Default(0, "", source)}


RESIDUALS = 3
"""Tensors of the residual width that live beside the widest inner ones: the stream, its norm, the output."""


class _Widths(NamedTuple):
    """Elements of a token that live at once inside a block: those that tensor parallelism splits, those it does not."""

    split: float
    whole: float = 0.0


def _widths(block: Block, hidden: int, t: int) -> _Widths:
    """Inner tensors of a block at its peak: queries, keys, values and output; up and down sides of an MLP."""
    mixer = block.mixer
    if isinstance(mixer, Attention):
        return _Widths(mixer.q_heads * (mixer.head_dim + mixer.v_head_dim) + mixer.cache_elements)
    if isinstance(mixer, LatentAttention):
        # Keys and values are expanded for prompts.
        return _Widths(mixer.q_heads * (2 * mixer.nope_dim + mixer.rope_dim + 2 * mixer.v_head_dim))
    inner = _Widths(sum(x.params for x in block.tensors if x.role in ("mlp", "shared_experts")) / hidden)
    if block.experts is None:
        return inner
    routed = sum(x.params for x in block.tensors if x.role == "routed_experts")
    each = routed / block.experts.count / hidden
    # A token's experts write as many rows of the residual width, in the buffer of the up side where that is wider.
    up, down = each * 2 / 3 / t, each / 3 / t
    chosen = block.experts.top_k * (max(up, hidden) + down)
    return max(inner, _Widths(0.0, chosen), key=lambda w: w.split / t + w.whole)


def memory(config: Batching, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Reserve the peak of a step with a full token budget: its activations, or the logits of its outputs.

    Three residual-width tensors and a block's inner ones live at once, in 16 bit. Logits, fp32 rows over the whole
    vocabulary, come when those are gone.
    """
    tokens = config.max_batched_tokens
    if tokens is None:
        return ledger
    architecture = context.architecture
    parallelism = context.config("parallelism")
    t = parallelism.t if parallelism is not None else 1
    hidden = architecture.hidden_size
    all_widths = [_widths(block, hidden, t) for block in architecture.blocks]
    widest = max(all_widths, key=lambda w: w.split / t + w.whole, default=_Widths(0.0))
    rows = min(config.max_sequences or tokens, tokens)
    body = tokens * (RESIDUALS * hidden + widest.split / t + widest.whole) * 2
    head = tokens * hidden * 2 + rows * architecture.vocab_size * 4

    def of_model(name: str, value: float) -> Input:
        return Input(name, value, "", Source("model", architecture.id, name))

    token_input = Input("tokens", tokens, "tok", context.source(NAME, "max_batched_tokens"))
    if body >= head:
        formula = "tokens x (3 x hidden + inner width split / tensor + inner width not split) x 2 B"
        inputs = (
            token_input,
            of_model("hidden", hidden),
            of_model("inner width split", widest.split),
            of_model("inner width not split", widest.whole),
        )
    else:
        formula = "tokens x hidden x 2 B + sequences x vocabulary x 4 B"
        inputs = (
            token_input,
            of_model("hidden", hidden),
            Input("sequences", rows, "", context.source(NAME, "max_sequences")),
            of_model("vocabulary", architecture.vocab_size),
        )
    return ledger.with_reserve(Reserve("peak activations", max(body, head), Lineage(formula, inputs)))


def scheduler(config: Batching, scheduler: Scheduler, context: Context) -> Scheduler:
    """Set the limits of a replica; engines count sequences per data-parallel rank."""
    chunked = config.chunked_prefill is not False
    budget = config.max_batched_tokens
    chunk = min(config.prefill_chunk or budget or 0, budget or config.prefill_chunk or 0) or None
    sequences = config.max_sequences
    return evolve(
        scheduler,
        max_sequences=None if sequences is None else sequences * scheduler.ranks,
        max_batched_tokens=budget,
        chunk_tokens=chunk if chunked else None,
        chunked=chunked,
        mixed=config.mixed_steps is not False,
        decodes_between=config.prefill_decode_interval or 0,
        samples=config.parallel_samples or 1,
    )


POLICY = Policy(NAME, Batching, None, memory, scheduler, defaults, after=("parallelism",))
