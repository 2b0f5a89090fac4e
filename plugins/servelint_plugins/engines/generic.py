"""The engine of a spec that names none: stated defaults, no engine's own."""

from __future__ import annotations

from collections.abc import Mapping

from servelint.plugin import Context, Default, Engine, Source

GIB = 2**30


def _source(field: str) -> Source:
    return Source("default", "docs/conventions.md", field)


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Continuous batching with chunked prefill, sized like the common engines' defaults."""
    return {
        ("batching", "max_sequences"): Default(256, "no engine declared", _source("batching")),
        ("batching", "max_batched_tokens"): Default(8192, "no engine declared", _source("batching")),
        ("batching", "chunked_prefill"): Default(True, "no engine declared", _source("batching")),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """One GiB a device for runtime context, graphs and communication buffers."""
    return {
        "runtime and graphs": Default(1 * GIB, "runtime context, graphs, communication buffers", _source("reserve"))
    }


def pieces(version: str | None, context: Context) -> tuple[str, ...]:
    """Nothing is known of what it lacks."""
    return "chunked_prefill", "mixed_steps", "prefill_decode_interval"


ENGINE = Engine("generic", defaults, reserve_bytes, pieces=pieces)
