"""llama.cpp's server: the defaults that decide memory and batching; how it is started.

Sources: tools/server/README.md of ggml-org/llama.cpp and its pull request 16736 (slots that share one cache). The
server allocates the whole cache for ``--ctx-size`` tokens when it starts, on devices that hold whatever the weights
leave; the context of a slot is that over the slots, unless they share one cache. When that is full, and idle slots
keep nothing more, requests end with an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from servelint.plugin import Context, Default, Engine, Source

if TYPE_CHECKING:
    from servelint.launch.invocation import Invocation, Reading, Word

MIB = 2**20
README = "ggml-org/llama.cpp tools/server/README.md"
SLOTS = 4
"""Slots of a server that is left to choose; they share one cache."""

UNIFIED_SINCE = 7079
"""The oldest build that is known to choose so (ggml-org/llama.cpp#17300); older ones have one slot unless told."""

REFUSES_SINCE = 7062
"""The oldest build known to refuse a prompt beyond its slot whatever the flags say (ggml-org/llama.cpp#17284)."""

_BUILD = r"(?:^|[-:.])b([0-9]{3,6})(?=$|[-@])"


def build(text: str | None) -> int | None:
    """The build that a version or an image's tag names (``b4719``), None where it names none."""
    found = re.search(_BUILD, text or "")
    return int(found[1]) if found else None


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Four slots; steps of 2048 tokens, computed 512 at a time; no pages, prompts find their slot's prefix."""
    number = build(version)
    automatic = number is None or number >= UNIFIED_SINCE
    note = "llama.cpp default" if version else "llama.cpp default, build not declared: a current one assumed"
    return {
        ("kv_cache", "memory_utilization"): Default(
            1.0, f"{note}: what weights and buffers leave", Source("engine", README, "fit")
        ),
        ("kv_cache", "page_size"): Default(1, note, Source("engine", README, "ctx-size")),
        ("kv_cache", "prefix_reuse"): Default(True, note, Source("engine", README, "cache-prompt")),
        ("batching", "max_sequences"): Default(SLOTS if automatic else 1, note, Source("engine", README, "parallel")),
        ("batching", "max_batched_tokens"): Default(2048, note, Source("engine", README, "batch-size")),
        ("batching", "prefill_chunk"): Default(512, note, Source("engine", README, "ubatch-size")),
        ("batching", "chunked_prefill"): Default(True, note, Source("engine", README, "batch-size")),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """The margin that the server leaves free when it fits its settings to the device."""
    return {"margin": Default(1024 * MIB, "what is left free of a device", Source("engine", README, "fit-target"))}


def _read(invocation: Invocation, arguments: tuple[Word, ...], version: str | None) -> Reading:
    # The table of flags is only needed where a file starts the engine.
    from servelint_plugins.engines.llama_cpp_arguments import read

    return read(invocation, arguments, version)


def pieces(version: str | None, context: Context) -> tuple[str, ...]:
    """None: prompts are always cut."""
    return ()


ENGINE = Engine(
    "llama.cpp",
    defaults,
    reserve_bytes,
    aliases=("llama-cpp", "llamacpp", "llama_cpp"),
    sources=("ggml-org/llama.cpp",),
    when_full="fails",
    starts=(("llama-server",), ("llama.cpp", "server")),
    pieces=pieces,
    images=("ggml-org/llama.cpp", "ggerganov/llama.cpp"),
    read=_read,
)
