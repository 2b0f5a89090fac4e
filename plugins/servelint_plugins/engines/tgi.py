"""Text Generation Inference: the defaults that decide memory and batching, by release; how it is started.

Sources: launcher/src/main.rs, server/text_generation_server/models/globals.py and models/flash_causal_lm.py of
huggingface/text-generation-inference at its tags: the KV cache is what a trial prefill of max_batch_prefill_tokens
leaves of the device's share, and a part of that share is kept (``TGI_WIGGLE_ROOM``, before 2.3 a figure in the code).
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
CACHE = "huggingface/text-generation-inference server/text_generation_server/models/flash_causal_lm.py"
ROUTER = "huggingface/text-generation-inference router/src/infer/v3/scheduler.rs"
NAMED_ROOM = (2, 3)
"""From here the part of the share that the cache may fill is a variable."""
PREFILL = 4096
"""Prompt tokens of a step; from 2.0 to 2.4.0 of a request, one of output included."""
EDGE = 50
"""Tokens that a step of those releases has beside the longest prompt."""
SEEN_PREFILL = {"gemma3": ((3, 2), 8_000), "qwen2_vl": ((3, 1, 1), 10_000), "qwen2_5_vl": ((3, 1, 1), 10_000)}
"""Model types whose images need longer steps: the first release that makes them, and their tokens."""


def _numbers(version: str | None) -> tuple[int, ...]:
    """The numbers of a release, those of the newest one that was read when it is not known."""
    return release(version) or release(CHECKED)


def room(version: str | None) -> float:
    """The part of the device's share that the cache may fill, by release.

    Before 3.0 it is a part of what is free instead, which is a little more; the share stands for both. Up to 1.4.0
    the cache takes all of it.
    """
    numbers = _numbers(version)
    for first, part in (((3, 3), 0.9), ((3, 1), 0.93), ((3, 0), 0.95), ((2, 4), 0.9), ((1, 4, 1), 0.95)):
        if numbers >= first:
            return part
    return 1.0


def named_room(numbers: tuple[int, ...]) -> bool:
    """Whether that part is a variable of the environment, ``TGI_WIGGLE_ROOM``; a release that is not known has it."""
    return not numbers or numbers >= NAMED_ROOM


def input_edge(numbers: tuple[int, ...]) -> bool:
    """Whether a step takes the longest prompt and an edge where nothing is said of it, as from 2.0 to 2.4.0."""
    return (2, 0) <= numbers < (2, 4, 1)


def _prefill(numbers: tuple[int, ...], context: Context) -> tuple[int, str]:
    """max_batch_prefill_tokens and how it comes about."""
    longest = context.architecture.max_position
    if numbers < (2, 0):
        return PREFILL, "whatever the model"
    if input_edge(numbers):
        return min(PREFILL, longest) - 1 + EDGE, f"the longest prompt and {EDGE}"
    if not _sees(context):
        return min(PREFILL, longest), "more on cards whose rate the launcher knows, from 3.0"
    # The launcher knows no rate of these models, whatever the card.
    first, tokens = SEEN_PREFILL.get(context.architecture.model_type.removesuffix("_text"), ((0,), PREFILL))
    return min(tokens if numbers >= first else PREFILL, longest), "less where it counts too little memory, from 3.0"


def _sees(context: Context) -> bool:
    return any(tensor.role == "vision" for tensor in context.architecture.extras)


def _kernels(numbers: tuple[int, ...], context: Context) -> tuple[int, bool, bool]:
    """Tokens of a page, whether prefixes are reused, and whether prompts are chunked.

    FlashInfer takes heads of 64, 128 and 256; other heads get Flash Decoding, or, on devices before compute
    capability 8 and those of other makers, kernels with pages that know neither prefixes nor chunks.
    """
    if numbers < (2, 3):
        return 16, False, False
    heads = [block.mixer.head_dim for block in context.architecture.blocks if isinstance(block.mixer, Attention)]
    plain = not heads or heads[0] in (64, 128, 256)
    chunks = numbers >= (3, 0) and context.deployment.policies.get("speculation") is None
    if plain:
        return 1, not _sees(context), chunks
    capability = context.accelerator.capability
    paged = not capability or capability < (8, 0)
    return 16 if paged else 256, False, chunks and not paged


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """At most 128 requests at once; prompts of a step by tokens; chunks and prefix reuse by release and heads."""
    numbers = _numbers(version)
    note = "TGI default" if version else f"TGI default, version not declared: {CHECKED} assumed"
    tokens, why = _prefill(numbers, context)
    page, cached, chunked = _kernels(numbers, context)
    kept = (SERVER, "TGI_WIGGLE_ROOM") if named_room(numbers) else (CACHE, "num_blocks")
    return {
        ("kv_cache", "memory_utilization"): Default(
            room(version), f"{note}, of the whole share", Source("engine", *kept)
        ),
        ("kv_cache", "page_size"): Default(page, note, Source("engine", SERVER, "BLOCK_SIZE")),
        ("kv_cache", "prefix_reuse"): Default(cached, note, Source("engine", LAUNCHER, "resolve_attention")),
        ("batching", "max_sequences"): Default(128, note, Source("engine", LAUNCHER, "max_concurrent_requests")),
        ("batching", "max_batched_tokens"): Default(
            tokens, f"{note}, {why}", Source("engine", LAUNCHER, "max_batch_prefill_tokens")
        ),
        ("batching", "chunked_prefill"): Default(chunked, note, Source("engine", LAUNCHER, "PREFILL_CHUNKING")),
        ("batching", "mixed_steps"): Default(chunked, note, Source("engine", ROUTER, "batching_task")),
        ("batching", "prefill_decode_interval"): Default(
            int(not chunked), note, Source("engine", ROUTER, "batching_task")
        ),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Runtime context and communication buffers; graphs are captured in the part that is kept."""
    source = Source("default", "docs/conventions.md", "reserve")
    return {"runtime and graphs": Default(1 * GIB, "runtime context, communication buffers", source)}


def _read(invocation: Invocation, arguments: tuple[Word, ...], version: str | None) -> Reading:
    # The table of flags is only needed where a file starts the engine.
    from servelint_plugins.engines.tgi_arguments import read

    return read(invocation, arguments, version)


def pieces(version: str | None, context: Context) -> tuple[str, ...]:
    """None: what is cut follows from the release and the heads."""
    return ()


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
    pieces=pieces,
    moved=("1.4.0", "1.4.1", "2.0.0", "2.3.0", "2.4.0", "2.4.1", "3.0.0", "3.1.0", "3.1.1", "3.2.0", "3.3.0"),
)
