"""vLLM: the defaults that decide memory and batching, by version and device, and what it refuses at start.

Sources: vllm/config/cache.py, vllm/config/scheduler.py and vllm/engine/arg_utils.py at the releases named. The
reader of its arguments and the table of its flags are imported when a launch file is read, never otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from servelint.memory import Weights
from servelint.plugin import (
    Attention,
    Context,
    Default,
    Engine,
    Input,
    LatentAttention,
    LinearState,
    MemoryLedger,
    Source,
)
from servelint.releases import release

if TYPE_CHECKING:
    from servelint.launch.invocation import Invocation, Reading, Word
    from servelint.lineage import KeyPath

GIB = 2**30
ASSUMED_VERSION = (0, 11)
CHECKED_VERSION = (0, 26)
"""The newest minor release whose checks at start were read; nothing is refused in the name of a newer one."""

ARGUMENTS = "vllm/engine/arg_utils.py"
CACHE = "vllm/config/cache.py"
MXFP4 = "vllm/model_executor/layers/quantization/mxfp4.py"
SCHEDULER = "vllm/config/scheduler.py"
TPU_TOKENS = {"tpu-v6e": 1024, "tpu-v5e": 512, "tpu-v5p": 256}
RUNTIME = 0.5 * GIB
BUFFERS = 0.5 * GIB
VISION = 0.5 * GIB
GRAPHS, LAYER_GRAPHS = 0.127 * GIB, 0.0052 * GIB
"""What one device takes, what communication and a vision tower's profile add, what captured graphs take, by themselves
and a layer: see docs/conventions.md."""

LONG_CONTEXT = 32768
"""The V0 engine chunks prompts by itself only above this length."""


def parse_version(version: str | None) -> tuple[int, ...]:
    """Return the numbers of a version text, the assumed one when it has none."""
    return _numbers(version) or ASSUMED_VERSION


def _numbers(version: str | None) -> tuple[int, ...]:
    """The numbers of a release; a fourth one, as of 0.10.1.1, repairs it and moves no default."""
    return release(version)[:3]


def _source(file: str, field: str) -> Source:
    return Source("engine", f"vllm-project/vllm {file}", field)


def _older_core(numbers: tuple[int, ...], context: Context) -> bool:
    """Whether the V0 engine runs: before 0.8, and before 0.11 on devices that FlashAttention does not support."""
    capability = context.accelerator.capability
    return numbers < (0, 8) or (numbers < (0, 11) and bool(capability) and capability < (8, 0))


def _length(context: Context) -> int:
    return context.deployment.model.max_model_len or context.architecture.max_position


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Server defaults: larger on devices of 70 GiB and more, A100 excluded from 0.9.0; the V0 engine's before 0.8."""
    numbers = parse_version(version)
    note = "" if version else ", version not declared: 0.11 assumed"
    utilization = 0.92 if numbers >= (0, 21) else 0.9
    older = _older_core(numbers, context)
    found = {
        ("kv_cache", "memory_utilization"): Default(
            utilization, f"vLLM default{note}", _source(CACHE, "gpu_memory_utilization")
        ),
        ("kv_cache", "page_size"): Default(16, f"vLLM default{note}", _source(CACHE, "block_size")),
    }
    return found | (_older(numbers, context, note) if older else _newer(numbers, context, note))


def _older(numbers: tuple[int, ...], context: Context, note: str) -> dict[tuple[str, str], Default]:
    """Defaults of the V0 engine: whole prompts, no prefix reuse, as many tokens a step as the longest prompt."""
    declared = context.deployment.policies.get("batching")
    chunked = getattr(declared, "chunked_prefill", None)
    length = _length(context)
    mixers = [block.mixer for block in context.architecture.blocks]
    latent = any(isinstance(m, LatentAttention) for m in mixers)
    sliding = any(isinstance(m, Attention) and m.window for m in mixers)
    drafts = context.deployment.policies.get("speculation") is not None
    chunks = length > LONG_CONTEXT and bool(context.accelerator.capability) and not (latent or sliding or drafts)
    chunk = 2048 if numbers >= (0, 6, 5) else 512
    tokens = chunk if (chunks if chunked is None else chunked) else max(length, 2048)
    why = f"default of vLLM's V0 engine{note}"
    return {
        ("kv_cache", "prefix_reuse"): Default(False, why, _source(CACHE, "enable_prefix_caching")),
        ("batching", "max_sequences"): Default(256, why, _source(ARGUMENTS, "max_num_seqs")),
        ("batching", "max_batched_tokens"): Default(tokens, why, _source("vllm/config.py", "max_num_batched_tokens")),
        ("batching", "chunked_prefill"): Default(
            chunks, f"{why}: only above 32K tokens of context", _source(ARGUMENTS, "enable_chunked_prefill")
        ),
    }


def _newer(numbers: tuple[int, ...], context: Context, note: str) -> dict[tuple[str, str], Default]:
    """Defaults of the V1 engine by device."""
    accelerator = context.accelerator
    large = accelerator.usable_memory[0] >= 70 * GIB
    if numbers >= (0, 9) and accelerator.family == "a100":
        large = False
    declared = context.deployment.policies.get("batching")
    sequences, tokens = (1024, 8192) if large else (256, 2048)
    tokens = next((n for name, n in TPU_TOKENS.items() if accelerator.id.endswith(name)), tokens)
    limit = getattr(declared, "max_batched_tokens", None)
    if limit is not None and numbers >= (0, 10, 1):
        sequences = min(sequences, limit)
    if getattr(declared, "chunked_prefill", None) is False and numbers >= (0, 11, 2):
        tokens = max(tokens, _length(context))
    # Recurrent state is not kept for prefixes unless that is asked for.
    stateless = not any(isinstance(block.mixer, LinearState) for block in context.architecture.blocks)
    reuse = "vLLM V1 default" if stateless else "vLLM V1 default for models with recurrent layers"
    return {
        ("kv_cache", "prefix_reuse"): Default(stateless, f"{reuse}{note}", _source(CACHE, "enable_prefix_caching")),
        ("batching", "max_sequences"): Default(
            sequences, f"vLLM server default for this device{note}", _source(ARGUMENTS, "max_num_seqs")
        ),
        ("batching", "max_batched_tokens"): Default(
            tokens, f"vLLM server default for this device{note}", _source(ARGUMENTS, "max_num_batched_tokens")
        ),
        ("batching", "chunked_prefill"): Default(
            True, f"vLLM V1 default{note}", _source(SCHEDULER, "enable_chunked_prefill")
        ),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Memory outside PyTorch's allocator, the vision tower's profile, and from 0.21 on CUDA devices captured graphs.

    Before 0.21 graphs are captured after the cache is sized, outside the budget.
    """
    file = "vllm/v1/worker/gpu_worker.py"
    several = context.topology.devices > 1
    reason = f"runtime context{' and communication buffers' if several else ''}, from start-up logs"
    size = RUNTIME + BUFFERS if several else RUNTIME
    found = {"runtime": Default(size, reason, _source(file, "non_torch_memory"))}
    if any(tensor.role == "vision" for tensor in context.architecture.extras):
        found["vision profile"] = Default(VISION, "images of the profile run, from logs", _source(file, "peak"))
    eager = context.deployment.engine.enforce_eager
    if parse_version(version) >= (0, 21) and context.accelerator.capability and not eager:
        stages = getattr(context.config("parallelism"), "pipeline", None) or 1
        graphs = GRAPHS + LAYER_GRAPHS * -(-context.architecture.num_layers // stages)
        reason = "estimate of the captured graphs by layers, from start-up logs"
        found["graphs"] = Default(graphs, reason, _source(file, "cudagraph_memory_estimate"))
    return found


def caches(version: str | None, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Page windows and recurrent state with the rest of the cache, as the release does and reports it; pad experts."""
    ledger = _padded(ledger, context)
    plain = not ledger.states and not any(cache.held for cache in ledger.caches)
    if plain and ledger.stages == 1:
        return ledger
    from servelint_plugins.engines import vllm_caches

    numbers = parse_version(version)
    # What no release is known to log is reported as the newest does: as what fits.
    logs = _numbers(version) or vllm_caches.LOGS_REQUESTS
    return vllm_caches.caches((0, 7) if _older_core(numbers, context) else numbers, logs, ledger, context)


def _padded(ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Hold MXFP4 experts as Marlin wants them below compute capability 9: the model's width in 256s, theirs in 128s.

    Source: vllm/model_executor/layers/quantization/mxfp4.py, `Mxfp4Backend.MARLIN`.
    """
    capability = context.accelerator.capability
    if not capability or capability >= (9, 0):
        return ledger
    hidden = context.architecture.hidden_size

    def padded(entry: Weights) -> Weights:
        block = context.block(entry.block)
        experts = block.experts if block is not None else None
        if experts is None or entry.tensor.role != "routed_experts" or entry.format.name != "mxfp4":
            return entry
        sides = 2 if "up" in entry.tensor.name else 1
        inner = entry.tensor.params / experts.count / hidden / sides
        # A device holds all of some experts, or a part of each.
        part = inner if ranks > 1 else inner * entry.params / entry.tensor.params
        factor = -(-hidden // 256) * 256 / hidden * (-(-part // 128) * 128 / part)
        if factor == 1:
            return entry
        widths = Input("factor of the padded widths", factor, "", _source(MXFP4, "round_up"))
        lineage = entry.lineage.rewritten("vllm", "widths padded for the kernel", widths)
        return evolve(entry, params=entry.params * factor, lineage=lineage)

    ranks = getattr(context.config("parallelism"), "expert", None) or 1
    return ledger.mapped(weights=padded)


def read(invocation: Invocation, words: tuple[Word, ...], version: str | None) -> Reading:
    """Read what the server's arguments set."""
    from servelint_plugins.engines import vllm_arguments

    return vllm_arguments.read(invocation, words, version)


def unsupported(version: str | None, context: Context) -> Iterator[tuple[KeyPath, str, Source]]:
    """Yield what this release refuses at start; nothing when the release is not declared."""
    from servelint_plugins.engines import vllm_limits

    numbers = _numbers(version)
    if numbers and numbers[:2] <= CHECKED_VERSION:
        yield from vllm_limits.refused(numbers, _older_core(numbers, context), context)


ENGINE = Engine(
    "vllm",
    defaults,
    reserve_bytes,
    sources=("vllm-project/vllm",),
    caches=caches,
    starts=(
        ("vllm", "serve"),
        ("-m", "vllm.entrypoints.openai.api_server"),
        ("-m", "vllm.entrypoints.api_server"),
        ("-m", "vllm.entrypoints.cli.main", "serve"),
        ("-m", "dynamo.vllm"),
    ),
    images=(
        "vllm/vllm-openai",
        "vllm-openai",
        "rocm/vllm",
        "nvidia/vllm",
        "intel/vllm",
        "vllm-ascend",
        "vllm-cpu",
        "vllm-tpu",
        "deep-learning-containers/vllm",
        "rhaiis/vllm",
        "odh-vllm",
        "worker-v1-vllm",
        "worker-vllm",
    ),
    release_images=("vllm/vllm-openai",),
    read=read,
    unsupported=unsupported,
    assumed=".".join(map(str, (*ASSUMED_VERSION, 0))),
    moved=("0.6.6", "0.8.0", "0.9.0", "0.10.1", "0.11.0", "0.11.2", "0.21.0"),
)
