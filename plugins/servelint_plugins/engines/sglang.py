"""SGLang: the defaults that decide memory and batching, by device memory.

Source: python/sglang/srt/server_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from servelint.plugin import Context, Default, Engine, Source

GIB = 2**30
MIB = 2**20
FILE = "sgl-project/sglang python/sglang/srt/server_args.py"


def _chunk(visible: float) -> int:
    """chunked_prefill_size by device memory class."""
    for limit, size in ((35, 2048), (60, 4096), (160, 8192)):
        if visible < limit * GIB:
            return size
    return 16384


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Static share of memory computed from the reserve, prompt chunks by memory class."""
    note = "SGLang default" if version else "SGLang default, version not declared"
    visible = context.accelerator.usable_memory[0]
    chunk = _chunk(visible)
    reserve = 512 * MIB + 1.5 * max(chunk, 2048) * MIB
    if visible > 60 * GIB:
        reserve = max(reserve, 10 * GIB)
    share = max((visible - reserve) / visible, 0.1)
    return {
        ("kv_cache", "memory_utilization"): Default(share, note, Source("engine", FILE, "mem_fraction_static")),
        ("kv_cache", "page_size"): Default(1, note, Source("engine", FILE, "page_size")),
        ("kv_cache", "prefix_reuse"): Default(True, note, Source("engine", FILE, "disable_radix_cache")),
        ("batching", "max_sequences"): Default(2048, note, Source("engine", FILE, "max_running_requests")),
        ("batching", "max_batched_tokens"): Default(16384, note, Source("engine", FILE, "max_prefill_tokens")),
        ("batching", "prefill_chunk"): Default(chunk, note, Source("engine", FILE, "chunked_prefill_size")),
        ("batching", "chunked_prefill"): Default(True, note, Source("engine", FILE, "chunked_prefill_size")),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Runtime context and graphs; like activations they live outside the static share while they fit there."""
    source = Source("default", "docs/conventions.md", "reserve")
    return {"runtime and graphs": Default(1 * GIB, "runtime context, graphs, communication buffers", source)}


ENGINE = Engine("sglang", defaults, reserve_bytes, sources=("sgl-project/sglang",), budget_kind="static")
