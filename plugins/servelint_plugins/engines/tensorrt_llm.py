"""TensorRT-LLM: the defaults of its LLM API that decide memory and batching; how its server is started.

Sources: tensorrt_llm/llmapi/llm_args.py and tensorrt_llm/commands/serve.py of NVIDIA/TensorRT-LLM, the same from
0.20 to 1.3; tensorrt_llm/_torch/pyexecutor/_util.py: the pool takes its share of what a trial step of
max_num_tokens leaves free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servelint.plugin import Context, Default, Engine, Source

if TYPE_CHECKING:
    from servelint.launch.invocation import Invocation, Reading, Word

GIB = 2**30
FILE = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py"


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Prompts are not chunked unless asked for; pages of 32 tokens with reuse; who is admitted can finish."""
    note = "TensorRT-LLM default" if version else "TensorRT-LLM default, version not declared"
    return {
        ("kv_cache", "memory_utilization"): Default(
            0.9, f"{note}, of what is free after weights", Source("engine", FILE, "free_gpu_memory_fraction")
        ),
        ("kv_cache", "page_size"): Default(32, note, Source("engine", FILE, "tokens_per_block")),
        ("kv_cache", "prefix_reuse"): Default(True, note, Source("engine", FILE, "enable_block_reuse")),
        ("batching", "max_sequences"): Default(2048, note, Source("engine", FILE, "max_batch_size")),
        ("batching", "max_batched_tokens"): Default(8192, note, Source("engine", FILE, "max_num_tokens")),
        ("batching", "chunked_prefill"): Default(False, note, Source("engine", FILE, "enable_chunked_prefill")),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Runtime buffers and graphs."""
    source = Source("default", "docs/conventions.md", "reserve")
    return {"runtime and graphs": Default(1 * GIB, "runtime context, graphs, communication buffers", source)}


def _read(invocation: Invocation, arguments: tuple[Word, ...], version: str | None) -> Reading:
    # The table of flags is only needed where a file starts the engine.
    from servelint_plugins.engines.tensorrt_llm_arguments import read

    return read(invocation, arguments, version)


ENGINE = Engine(
    "tensorrt-llm",
    defaults,
    reserve_bytes,
    aliases=("trtllm", "trt-llm", "tensorrt_llm"),
    sources=("NVIDIA/TensorRT-LLM",),
    budget_kind="free",
    starts=(("trtllm-serve",), ("dynamo.trtllm",)),
    images=("tensorrt-llm", "tensorrtllm", "trtllm"),
    release_images=("nvidia/tensorrt-llm",),
    read=_read,
)
