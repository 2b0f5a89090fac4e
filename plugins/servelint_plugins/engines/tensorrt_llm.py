"""TensorRT-LLM: the defaults of its LLM API that decide memory and batching; how its server is started.

Sources: tensorrt_llm/llmapi/llm_args.py and tensorrt_llm/commands/serve.py of NVIDIA/TensorRT-LLM, the same from
0.20 to 1.3, and examples/llama/build.py for builds before 0.11; tensorrt_llm/plugin/plugin.py and the notes of
release 0.10.0 (docs/source/release-notes.md) for pages before 0.20; tensorrt_llm/_torch/pyexecutor/_util.py: the pool
takes its share of what a trial step of max_num_tokens leaves free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servelint.plugin import Context, Default, Engine, Source
from servelint.releases import release

if TYPE_CHECKING:
    from servelint.launch.invocation import Invocation, Reading, Word

GIB = 2**30
BUILT = (0, 11)
"""From here an engine is built for 8,192 tokens a step; before, for the longest prompt of every sequence at once."""
BUILD = "NVIDIA/TensorRT-LLM examples/llama/build.py"
INPUT, BATCH = 2048, 8
"""Defaults of the builds of 2023: the longest prompt, and sequences."""
FILE = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py"
PAGES = (
    ((0, 20), 32, FILE),
    ((0, 10), 64, "NVIDIA/TensorRT-LLM docs/source/release-notes.md"),
    ((0,), 128, "NVIDIA/TensorRT-LLM@035b99e0d09d tensorrt_llm/plugin/plugin.py"),
)
"""Tokens of a page by the release from which on that was read; build scripts of 2023 have 64 or 128, by model."""
PAGES_OPEN = (0, 11), (0, 20)
"""Releases between the last that was read with 64 and the first with 32: which of them changed it was not found."""
ASSUMED = "1.3"
"""The newest release that was read."""


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Prompts are not chunked unless asked for; pages with reuse; who is admitted can finish.

    Before 0.11 an engine is built for the longest prompt of every sequence at once, and its buffers are as large.
    """
    note = "TensorRT-LLM default" if version else f"TensorRT-LLM default, version not declared: {ASSUMED} assumed"
    sequences, tokens, file = 2048, 8192, FILE
    if () < release(version) < BUILT:
        sequences, file = BATCH, BUILD
        longest = context.deployment.model.max_model_len or context.architecture.max_position
        declared = getattr(context.deployment.policies.get("batching"), "max_sequences", None)
        tokens = (declared or BATCH) * min(INPUT, longest)
        note += ", prompts of 2,048 tokens in every sequence"
    numbers = release(version) or release(ASSUMED)
    page, where = next((page, where) for first, page, where in PAGES if numbers >= first)
    between = PAGES_OPEN[0] <= numbers < PAGES_OPEN[1]
    paged = "TensorRT-LLM default of 0.10; which release made it 32 by 0.20 was not found" if between else note
    return {
        ("kv_cache", "memory_utilization"): Default(
            0.9, f"{note}, of what is free after weights", Source("engine", FILE, "free_gpu_memory_fraction")
        ),
        ("kv_cache", "page_size"): Default(page, paged, Source("engine", where, "tokens_per_block")),
        ("kv_cache", "prefix_reuse"): Default(True, note, Source("engine", FILE, "enable_block_reuse")),
        ("batching", "max_sequences"): Default(sequences, note, Source("engine", file, "max_batch_size")),
        ("batching", "max_batched_tokens"): Default(tokens, note, Source("engine", file, "max_num_tokens")),
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
    when_full="waits",
    starts=(("trtllm-serve",), ("dynamo.trtllm",)),
    images=("tensorrt-llm", "tensorrtllm", "trtllm"),
    release_images=("nvidia/tensorrt-llm",),
    read=_read,
    assumed=ASSUMED,
)
