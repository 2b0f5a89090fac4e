"""``[policy.batching]``: how many sequences run at once and how prompts are cut into steps."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from servelint.plugin import (
    Attention,
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
    admission: str | None = key(
        Text(),
        doc="How requests are admitted, in the engine's words: TensorRT-LLM's `guaranteed_no_evict` (its default) or "
        "`max_utilization`, which evicts.",
    )
    parallel_samples: int | None = key(Integer(1, 1024), doc="Outputs decoded from each prompt. Left out: 1.")


def defaults(config: Batching, context: Context) -> Mapping[str, Default]:
    """A prompt chunk fills the step's token budget unless a smaller one is set."""
    source = Source("default", "docs/conventions.md", "batching")
    return {"parallel_samples": Default(1, "", source)}


def memory(config: Batching, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Reserve the peak activations of a step with a full token budget, and the logits of its outputs.

    Two residual-width tensors and the widest inner tensor (MLP or query, key, value) live at once, in 16
    bit; logits are fp32 rows over the whole vocabulary.
    """
    tokens = config.max_batched_tokens
    if tokens is None:
        return ledger
    architecture = context.architecture
    parallelism = context.config("parallelism")
    t = parallelism.t if parallelism is not None else 1
    widest = 0.0
    for block in architecture.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention):
            width = mixer.q_heads * mixer.head_dim + mixer.cache_elements
        elif isinstance(mixer, LatentAttention):
            width = mixer.q_heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim)
        else:
            wide = [x.params // architecture.hidden_size for x in block.tensors if x.role in ("mlp", "shared_experts")]
            width = max(wide, default=0)
            if block.experts is not None:
                routed = [x.params for x in block.tensors if x.role == "routed_experts"]
                each = max(routed, default=0) // block.experts.count // architecture.hidden_size
                width = max(width, each * block.experts.top_k)
        widest = max(widest, width)
    rows = min(config.max_sequences or tokens, tokens)
    size = tokens * (2 * architecture.hidden_size + widest / t) * 2 + rows * architecture.vocab_size * 4
    return ledger.with_reserve(
        Reserve(
            "peak activations",
            size,
            Lineage(
                "tokens x (2 x hidden + widest / tensor) x 2 B + sequences x vocabulary x 4 B",
                (
                    Input("tokens", tokens, "tok", context.source(NAME, "max_batched_tokens")),
                    Input(
                        "hidden",
                        architecture.hidden_size,
                        "",
                        Source("model", architecture.id, "hidden_size"),
                    ),
                    Input("widest inner width", widest, "", Source("model", architecture.id, "widths")),
                    Input("sequences", rows, "", context.source(NAME, "max_sequences")),
                    Input(
                        "vocabulary",
                        architecture.vocab_size,
                        "",
                        Source("model", architecture.id, "vocab_size"),
                    ),
                ),
            ),
        )
    )


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
        samples=config.parallel_samples or 1,
    )


POLICY = Policy(NAME, Batching, None, memory, scheduler, defaults, after=("parallelism",))
