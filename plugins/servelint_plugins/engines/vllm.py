"""vLLM: the defaults that decide memory and batching, by version and device.

Sources: vllm/config/cache.py, vllm/config/scheduler.py and vllm/engine/arg_utils.py at the releases named.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from servelint.plugin import Context, Default, Engine, Source

GIB = 2**30
ASSUMED_VERSION = (0, 11)


def parse_version(version: str | None) -> tuple[int, ...]:
    """Return the numbers of a version text, the assumed one when it has none."""
    numbers = []
    for part in (version or "").removeprefix("v").split(".")[:3]:
        digits = "".join(takewhile(str.isdecimal, part))
        if not digits or len(digits) > 6:
            break
        numbers.append(int(digits))
    return tuple(numbers) or ASSUMED_VERSION


def _source(file: str, field: str) -> Source:
    return Source("engine", f"vllm-project/vllm {file}", field)


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Server defaults: larger on devices of 70 GiB and more, A100 excluded from 0.9.0."""
    numbers = parse_version(version)
    note = "" if version else ", version not declared: 0.11 assumed"
    accelerator = context.accelerator
    large = accelerator.usable_memory[0] >= 70 * GIB
    if numbers >= (0, 9) and accelerator.family == "a100":
        large = False
    utilization = 0.92 if numbers >= (0, 21) else 0.9
    arguments = "vllm/engine/arg_utils.py"
    return {
        ("kv_cache", "memory_utilization"): Default(
            utilization, f"vLLM default{note}", _source("vllm/config/cache.py", "gpu_memory_utilization")
        ),
        ("kv_cache", "page_size"): Default(16, f"vLLM default{note}", _source("vllm/config/cache.py", "block_size")),
        ("kv_cache", "prefix_reuse"): Default(
            True, f"vLLM V1 default{note}", _source("vllm/config/cache.py", "enable_prefix_caching")
        ),
        ("batching", "max_sequences"): Default(
            1024 if large else 256,
            f"vLLM server default for this device{note}",
            _source(arguments, "max_num_seqs"),
        ),
        ("batching", "max_batched_tokens"): Default(
            8192 if large else 2048,
            f"vLLM server default for this device{note}",
            _source(arguments, "max_num_batched_tokens"),
        ),
        ("batching", "chunked_prefill"): Default(
            True, f"vLLM V1 default{note}", _source("vllm/config/scheduler.py", "enable_chunked_prefill")
        ),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Memory outside PyTorch's allocator and CUDA graphs, as start-up logs show them: about 1 GiB together."""
    source = _source("vllm/v1/worker/gpu_worker.py", "non_torch_memory")
    return {"runtime and graphs": Default(1 * GIB, "non-torch memory and CUDA graphs, from start-up logs", source)}


ENGINE = Engine("vllm", defaults, reserve_bytes, sources=("vllm-project/vllm",))
