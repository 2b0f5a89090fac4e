"""Text Generation Inference: the defaults that decide memory and batching, by release; how it is started.

Sources: launcher/src/main.rs, server/text_generation_server/models/globals.py and models/flash_causal_lm.py of
huggingface/text-generation-inference at its tags: the KV cache is what a trial prefill of max_batch_prefill_tokens
leaves of the device's share, and a part of that share is kept (``TGI_WIGGLE_ROOM``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servelint.plugin import Attention, Context, Default, Engine, Source
from servelint.releases import release

if TYPE_CHECKING:
    from servelint.launch.invocation import Invocation, Reading, Word

GIB = 2**30
CHECKED = "3.3.7"
LAUNCHER = "huggingface/text-generation-inference launcher/src/main.rs"
SERVER = "huggingface/text-generation-inference server/text_generation_server/models/globals.py"


def _numbers(version: str | None) -> tuple[int, ...]:
    """The numbers of a release, those of the newest one that was read when it is not known."""
    return release(version) or release(CHECKED)


def room(version: str | None) -> float:
    """The part of the device's share that the cache may fill, by release.

    Before 3.0 it is a part of what is free instead, which is a little more; the share stands for both.
    """
    numbers = _numbers(version)
    for first, part in (((3, 3), 0.9), ((3, 1), 0.93), ((3, 0), 0.95), ((2, 4), 0.9), ((1, 4), 0.95)):
        if numbers >= first:
            return part
    return 0.95


def _prefill(numbers: tuple[int, ...], context: Context) -> tuple[int, str]:
    """max_batch_prefill_tokens and how it comes about."""
    longest = context.deployment.model.max_model_len or context.architecture.max_position
    return (min(4096, longest) if numbers >= (2, 3) else 4096), "more on cards whose rate the launcher knows, from 3.0"


def _kernels(numbers: tuple[int, ...], context: Context) -> tuple[int, bool, bool]:
    """Tokens of a page, whether prefixes are reused, and whether prompts are chunked.

    FlashInfer takes heads of 64, 128 and 256; other heads get Flash Decoding, or, on devices before compute
    capability 8 and those of other makers, kernels with pages that know neither prefixes nor chunks.
    """
    if numbers < (2, 3):
        return 16, False, False
    heads = [block.mixer.head_dim for block in context.architecture.blocks if isinstance(block.mixer, Attention)]
    plain = not heads or heads[0] in (64, 128, 256)
    seen = not any(tensor.role == "vision" for tensor in context.architecture.extras)
    chunks = numbers >= (3, 0) and context.deployment.policies.get("speculation") is None
    if plain:
        return 1, seen, chunks
    capability = context.accelerator.capability
    paged = not capability or capability < (8, 0)
    return 16 if paged else 256, False, chunks and not paged


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """At most 128 requests at once; prompts of a step by tokens; chunks and prefix reuse by release and heads."""
    numbers = _numbers(version)
    note = "TGI default" if version else f"TGI default, version not declared: {CHECKED} assumed"
    tokens, why = _prefill(numbers, context)
    page, cached, chunked = _kernels(numbers, context)
    return {
        ("kv_cache", "memory_utilization"): Default(
            room(version), f"{note}, of the whole share", Source("engine", SERVER, "TGI_WIGGLE_ROOM")
        ),
        ("kv_cache", "page_size"): Default(page, note, Source("engine", SERVER, "BLOCK_SIZE")),
        ("kv_cache", "prefix_reuse"): Default(cached, note, Source("engine", LAUNCHER, "resolve_attention")),
        ("batching", "max_sequences"): Default(128, note, Source("engine", LAUNCHER, "max_concurrent_requests")),
        ("batching", "max_batched_tokens"): Default(
            tokens, f"{note}, {why}", Source("engine", LAUNCHER, "max_batch_prefill_tokens")
        ),
        ("batching", "chunked_prefill"): Default(chunked, note, Source("engine", LAUNCHER, "PREFILL_CHUNKING")),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Runtime context and communication buffers; graphs are captured in the part that is kept."""
    source = Source("default", "docs/conventions.md", "reserve")
    return {"runtime and graphs": Default(1 * GIB, "runtime context, communication buffers", source)}


def _read(invocation: Invocation, arguments: tuple[Word, ...], version: str | None) -> Reading:
    # The table of flags is only needed where a file starts the engine.
    from servelint_plugins.engines.tgi_arguments import read

    return read(invocation, arguments, version)


ENGINE = Engine(
    "tgi",
    defaults,
    reserve_bytes,
    aliases=("text-generation-inference",),
    sources=("huggingface/text-generation-inference",),
    starts=(("text-generation-launcher",),),
    images=("text-generation-inference",),
    release_images=("huggingface/text-generation-inference",),
    read=_read,
    assumed=CHECKED,
    moved=("1.4.0", "2.3.0", "2.4.0", "3.0.0", "3.1.0", "3.3.0"),
)
