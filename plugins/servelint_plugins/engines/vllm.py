"""vLLM: the defaults that decide memory and batching, by version and device, and what it refuses at start.

Sources: vllm/config (to 0.10.0 one file, vllm/config.py), vllm/engine/arg_utils.py and vllm/envs.py at the releases
named. The reader of its arguments and the table of its flags are imported when a launch file is read, never otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from servelint.plugin import (
    Accelerator,
    Attention,
    Context,
    Default,
    Engine,
    Format,
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
SCHEDULER = "vllm/core/scheduler.py"
SPARSE = "vllm/v1/attention/backends/mla/sparse_swa.py"
NAMED_LARGE = ("h100", "h200")
"""Parts of names of devices that have the larger defaults before 0.8.5, whatever their memory."""
TPU_TOKENS = {"tpu-v6e": 1024, "tpu-v5e": 512, "tpu-v5p": 256}
RUNTIME = 0.5 * GIB
BUFFERS = 0.5 * GIB
VISION = 0.5 * GIB
GRAPHS, LAYER_GRAPHS = 0.127 * GIB, 0.0052 * GIB
"""What one device takes, what communication and a vision tower's profile add, what captured graphs take, by themselves
and a layer: see docs/conventions.md."""

SORTS_LOGITS = (0, 11, 1), (0, 17)
"""Between these (e66d787bc, c656ba3b4) the profile run sorts logits, as the older core does. Before, an installed
FlashInfer samples without, as in the images; after, kernels in Triton or FlashInfer do."""
LATENT = (0, 7, 1)
"""From here the latent of MLA is cached (cabaf4eff); before, the heads are."""

LONG_CONTEXT = 32768
"""The V0 engine chunks prompts by itself only above this length."""

SEEN_TOKENS = (((0, 6, 3), 5120), ((0, 6), 4096))
"""Tokens that a step of the V0 engine takes at least with a multimodal model, and the release from which on."""

CONFIG_FILES = (("cache", (0, 10, 1)), ("scheduler", (0, 10, 1)), ("model", (0, 11)), ("speculative", (0, 11)))
"""Parts of the configuration with a file of their own, and the release from which on they have it."""


def parse_version(version: str | None) -> tuple[int, ...]:
    """Return the numbers of a version text, the assumed one when it has none."""
    return _numbers(version) or ASSUMED_VERSION


def _numbers(version: str | None) -> tuple[int, ...]:
    """The numbers of a release; a fourth one, as of 0.10.1.1, repairs it and moves no default."""
    return release(version)[:3]


def config_file(numbers: tuple[int, ...], part: str) -> str:
    """The file that a part of the configuration stands in: to 0.10.0 one has all, from 0.10.1 some have their own."""
    if numbers < (0, 10, 1):
        return "vllm/config.py"
    return f"vllm/config/{part}.py" if numbers >= dict(CONFIG_FILES)[part] else "vllm/config/__init__.py"


def _source(file: str, field: str) -> Source:
    return Source("engine", f"vllm-project/vllm {file}", field)


def _older_core(numbers: tuple[int, ...], context: Context) -> bool:
    """Whether the V0 engine runs: before 0.8, and before 0.10.2 on devices that FlashAttention does not support.

    Source: vllm/engine/arg_utils.py, ``_is_v1_supported_oracle``.
    """
    capability = context.accelerator.capability
    return numbers < (0, 8) or (numbers < (0, 10, 2) and bool(capability) and capability < (8, 0))


def _length(context: Context) -> int:
    return context.deployment.model.max_model_len or context.architecture.max_position


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Server defaults: larger on devices of 70 GiB and more, A100 excluded from 0.9.0; before 0.8 the V0 engine's."""
    numbers = parse_version(version)
    note = "" if version else ", version not declared: 0.11 assumed"
    utilization = 0.92 if numbers >= (0, 20) else 0.9
    older = _older_core(numbers, context)
    cache = config_file(numbers, "cache")
    found = {
        ("kv_cache", "memory_utilization"): Default(
            utilization, f"vLLM default{note}", _source(cache, "gpu_memory_utilization")
        ),
        ("kv_cache", "page_size"): _page(numbers, context, note),
    }
    return found | (_older(numbers, context, note) if older else _newer(numbers, context, note))


def _page(numbers: tuple[int, ...], context: Context, note: str) -> Default:
    """Pages of 16 tokens; compressed attention wants larger ones."""
    if not any(isinstance(b.mixer, LatentAttention) and b.mixer.window for b in context.architecture.blocks):
        return Default(16, f"vLLM default{note}", _source(config_file(numbers, "cache"), "block_size"))
    from servelint_plugins.engines import vllm_compressed

    reason = "what vLLM's backend of compressed attention prefers"
    return Default(vllm_compressed.PAGE, reason, _source(SPARSE, "get_preferred_block_size"))


def _older(numbers: tuple[int, ...], context: Context, note: str) -> dict[tuple[str, str], Default]:
    """Defaults of the V0 engine: whole prompts, no prefix reuse, as many tokens a step as the longest prompt."""
    declared = context.deployment.policies.get("batching")
    chunked = getattr(declared, "chunked_prefill", None)
    length = _length(context)
    chunks = _chunks(numbers, length, context)
    chunk = 2048 if numbers >= (0, 6, 5) else 512
    cuts = chunks if chunked is None else chunked
    tokens = chunk if cuts else max(length, 2048)
    if _sees(context):
        tokens = max(tokens, next((least for first, least in SEEN_TOKENS if numbers >= first), 0))
    why = f"default of vLLM's V0 engine{note}"
    return {
        ("kv_cache", "prefix_reuse"): Default(
            False, why, _source(config_file(numbers, "cache"), "enable_prefix_caching")
        ),
        ("batching", "max_sequences"): Default(256, why, _source(ARGUMENTS, "max_num_seqs")),
        ("batching", "max_batched_tokens"): Default(
            tokens, why, _source(config_file(numbers, "scheduler"), "max_num_batched_tokens")
        ),
        ("batching", "chunked_prefill"): Default(
            chunks, f"{why}: from 0.5.3 above 32K tokens of context", _source(ARGUMENTS, "enable_chunked_prefill")
        ),
        ("batching", "mixed_steps"): Default(
            cuts, f"{why}: whole prompts go first, in steps of their own", _source(SCHEDULER, "_schedule_default")
        ),
    }


def _sees(context: Context) -> bool:
    return any(tensor.role == "vision" for tensor in context.architecture.extras)


def _chunks(numbers: tuple[int, ...], length: int, context: Context) -> bool:
    """Whether the V0 engine cuts prompts into chunks where nothing is asked for.

    Source: vllm/engine/arg_utils.py, ``use_long_context``; what latent attention excludes is in vllm/config.py to 0.7.
    """
    mixers = [block.mixer for block in context.architecture.blocks]
    policies = context.deployment.policies
    # ROCm devices count as CUDA ones up to 0.6.4.
    device = bool(context.accelerator.capability) or (context.accelerator.vendor == "AMD" and numbers < (0, 6, 5))
    excluded = (
        policies.get("speculation") is not None
        or any(isinstance(m, Attention) and m.window for m in mixers)
        or (numbers >= (0, 6, 2) and _sees(context))
        # Before 0.7.1 latent attention runs as attention with keys and values of every head.
        or (numbers >= (0, 7, 1) and any(isinstance(m, LatentAttention) for m in mixers))
        or ((0, 5, 4) <= numbers <= (0, 6, 2) and any(isinstance(m, LinearState) for m in mixers))
        or (numbers < (0, 6, 1) and getattr(policies.get("kv_cache"), "prefix_reuse", None) is True)
    )
    return numbers >= (0, 5, 3) and length > LONG_CONTEXT and device and not excluded


def _newer(numbers: tuple[int, ...], context: Context, note: str) -> dict[tuple[str, str], Default]:
    """Defaults of the V1 engine by device."""
    accelerator = context.accelerator
    large = accelerator.usable_memory[0] >= 70 * GIB
    if numbers < (0, 8, 5):
        large = any(part in accelerator.name.lower() for part in NAMED_LARGE)
    elif numbers >= (0, 9) and accelerator.family == "a100":
        large = False
    declared = context.deployment.policies.get("batching")
    sequences, tokens = (1024, 8192) if large else (256, 2048)
    if numbers < (0, 8, 4):
        sequences = 1024
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
        ("kv_cache", "prefix_reuse"): Default(
            stateless, f"{reuse}{note}", _source(config_file(numbers, "cache"), "enable_prefix_caching")
        ),
        ("batching", "max_sequences"): Default(
            sequences, f"vLLM server default for this device{note}", _source(ARGUMENTS, "max_num_seqs")
        ),
        ("batching", "max_batched_tokens"): Default(
            tokens, f"vLLM server default for this device{note}", _source(ARGUMENTS, "max_num_batched_tokens")
        ),
        ("batching", "chunked_prefill"): Default(
            True, f"vLLM V1 default{note}", _source(config_file(numbers, "scheduler"), "enable_chunked_prefill")
        ),
    }


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Memory outside PyTorch's allocator, the vision tower's profile, and from 0.20 on CUDA devices captured graphs.

    Before 0.20 graphs are captured after the cache is sized, outside the budget.
    Source: vllm/envs.py, ``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS``.
    """
    file = "vllm/v1/worker/gpu_worker.py"
    several = context.topology.devices > 1
    reason = f"runtime context{' and communication buffers' if several else ''}, from start-up logs"
    size = RUNTIME + BUFFERS if several else RUNTIME
    found = {"runtime": Default(size, reason, _source(file, "non_torch_memory"))}
    if _sees(context):
        found["vision profile"] = Default(VISION, "images of the profile run, from logs", _source(file, "peak"))
    eager = context.deployment.engine.enforce_eager
    if parse_version(version) >= (0, 20) and context.accelerator.capability and not eager:
        stages = getattr(context.config("parallelism"), "pipeline", None) or 1
        graphs = GRAPHS + LAYER_GRAPHS * -(-context.architecture.num_layers // stages)
        reason = "estimate of the captured graphs by layers, from start-up logs"
        found["graphs"] = Default(graphs, reason, _source(file, "cudagraph_memory_estimate"))
    return found


def caches(version: str | None, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Page windows and recurrent state with the rest of the cache, as the release does and reports it; pad experts."""
    numbers = parse_version(version)
    if any(entry.format.name == "mxfp4" for entry in ledger.weights):
        from servelint_plugins.engines import vllm_experts

        ledger = vllm_experts.held(numbers, ledger, context)
    if numbers < LATENT and any(isinstance(b.mixer, LatentAttention) for b in context.architecture.blocks):
        from servelint_plugins.engines import vllm_caches

        ledger = vllm_caches.expanded(numbers, ledger, context)
    older = _older_core(numbers, context)
    if _numbers(version) and (older or SORTS_LOGITS[0] <= numbers < SORTS_LOGITS[1]):
        from servelint_plugins.engines import vllm_profile

        ledger = vllm_profile.sampled(numbers, ledger, context, older=older)
        ledger = vllm_profile.multiplied(numbers, ledger, context)
    plain = not ledger.states and not any(cache.held for cache in ledger.caches)
    if plain and ledger.stages == 1:
        return ledger
    from servelint_plugins.engines import vllm_caches

    # What no release is known to log is reported as the newest does: as what fits.
    logs = _numbers(version) or vllm_caches.LOGS_REQUESTS
    return vllm_caches.caches((0, 7) if older else numbers, logs, ledger, context)


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


def dequantizes(version: str, format_: Format, accelerator: Accelerator) -> bool:
    """Return whether a release has weight-only kernels for a format on a device that lacks its arithmetic."""
    from servelint_plugins.engines import vllm_limits

    return vllm_limits.loads(_numbers(version), format_.name, accelerator.capability)


def first_release(model_type: str) -> str:
    """Return the oldest release that loads a model, or that the model's recipe asks for."""
    from servelint_plugins.engines import vllm_limits

    return (vllm_limits.LOADS_FROM | vllm_limits.RECIPE_FROM).get(model_type, "")


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
    dequantizes=dequantizes,
    first_release=first_release,
    assumed=".".join(map(str, (*ASSUMED_VERSION, 0))),
    moved=("0.6.6", "0.7.1", "0.8.0", "0.8.4", "0.8.5", "0.9.0", "0.10.1", "0.10.2", "0.11.2", "0.20.0"),
)
