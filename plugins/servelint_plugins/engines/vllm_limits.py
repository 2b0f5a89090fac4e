"""What vLLM refuses at start on a model and a device, by release: the checks that its configuration makes.

Each was read in the source file that its finding names, at the releases between which it holds; where a check
depends on what no key of a spec says, it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servelint.lineage import KeyPath
from servelint.plugin import Attention, Context, LatentAttention, Source
from servelint_plugins.engines.vllm import config_file

Release = tuple[int, ...]
Refusal = tuple[KeyPath, str, Source]

FP8 = ("fp8", "fp8-block128", "fp8-weight-only")
"""Formats that one method loads."""

QUANTIZATION = "vllm/model_executor/layers/quantization"
LEAST_CAPABILITY: dict[str, tuple[tuple[Release, Release, tuple[int, int], str], ...]] = {
    "fp8": (
        ((0, 4, 1), (0, 4, 1), (9, 0), f"{QUANTIZATION}/fp8.py"),
        ((0, 5, 0), (0, 5, 0), (8, 9), f"{QUANTIZATION}/fp8.py"),
        ((0, 5, 4), (0, 13, 0), (8, 0), f"{QUANTIZATION}/fp8.py"),
        ((0, 13, 1), (0, 26, 99), (7, 5), f"{QUANTIZATION}/fp8.py"),
    ),
    "nvfp4": (
        ((0, 9, 1), (0, 13, 0), (8, 0), f"{QUANTIZATION}/modelopt.py"),
        (
            (0, 13, 1),
            (0, 14, 99),
            (8, 0),
            f"{QUANTIZATION}/compressed_tensors/schemes/compressed_tensors_w4a16_nvfp4.py",
        ),
        ((0, 15, 0), (0, 26, 99), (7, 5), f"{QUANTIZATION}/modelopt.py"),
    ),
    "mxfp4": (((0, 10, 1), (0, 26, 99), (8, 0), f"{QUANTIZATION}/mxfp4.py"),),
}
"""From a release to another: the compute capability below which weights of a format are refused, and where that
is checked (``get_min_capability``). Of several methods that load a format the most lenient one counts; NVFP4 in 0.14
passes that of modelopt on Turing and has no kernel there (vllm-project/vllm#33076). What is loaded on a device without
the arithmetic runs with weight-only kernels (quantization/utils/marlin_utils_fp8.py and marlin_utils_fp4.py)."""

LOADS_FROM = {
    "deepseek_v3": "0.6.6",
    "gemma3": "0.8.0",
    "gemma3_text": "0.8.0",
    "gemma4": "0.19.0",
    "glm4_moe": "0.10.0",
    "gpt_oss": "0.10.1",
    "llama4": "0.8.3",
    "qwen3": "0.8.4",
    "qwen3_moe": "0.8.4",
    "qwen3_vl": "0.11.0",
    "qwen3_vl_moe": "0.11.0",
}
"""By ``model_type``, the first release that loads the model: vllm-project/vllm#11559 (DeepSeek-V3),
modelscope/ms-swift#3660 (Gemma 3), kubeai-project/kubeai#495 (Llama 4), vllm-project/vllm#17327 (Qwen3),
zai-org/GLM-4.5#5, xorbitsai/inference#4426 (Qwen3-VL), the release notes of v0.10.1 (gpt-oss) and v0.19.0 (Gemma 4)."""

RECIPE_FROM = {
    "deepseek_v32": "0.12.0",
    "deepseek_v4": "0.20.0",
    "glm_moe_dsa": "0.16.0",
    "minimax_m2": "0.11.0",
    "minimax_m3": "0.24.0",
    "qwen3_5": "0.17.0",
    "qwen3_5_moe": "0.17.0",
    "qwen3_next": "0.10.0",
}
"""By ``model_type``, the release that its recipe asks for (``min_vllm_version`` in
vllm-project/recipes@8959cf64:models): older ones may load the model, and nobody recommends them for it."""

LEAST_BF16 = (8, 0)
CONVERTS_BF16 = (0, 9)
"""Compute capability below which bfloat16 is refused, and the release from which on a checkpoint in it is converted
where nothing asks for it (vllm/config.py, ``_get_and_verify_dtype``)."""

BF16_FILES = (
    ((0, 2), "vllm/config.py"),
    ((0, 10, 2), "vllm/worker/worker.py"),
    ((99,), "vllm/platforms/cuda.py"),
)
"""Where that is checked, before the release beside it: up to 0.10.1 the V0 engine runs on such devices."""

MTP_WITHOUT_STAGES: dict[str, Release] = {
    "deepseek_v3": (0, 14, 1),
    "deepseek_v32": (0, 14, 1),
    "deepseek_v4": (0, 21),
    "glm4_moe": (0, 14, 1),
    "glm_moe_dsa": (0, 16),
    "mimo": (0, 14, 1),
    "minimax_m3": (0, 24),
    "qwen3_5": (0, 21),
    "qwen3_5_moe": (0, 21),
    "qwen3_next": (0, 14, 1),
}
"""Model types whose MTP draft cannot be cut into pipeline stages, and the release from which on that was read."""

LISTED_STAGES = (
    "aquila", "deepseek_v2", "gpt2", "internlm", "internlm2", "internvl_chat", "jais", "llama", "mistral", "mixtral",
    "nemotron", "phi3", "qwen", "qwen2", "qwen2_moe", "qwen2_vl",
)  # fmt: skip
"""Model types that releases 0.5.4 to 0.6.2 list as those that can be cut into pipeline stages."""

WITHOUT_STAGES: dict[str, tuple[Release, Release]] = {
    "jamba": ((0, 6, 4), (0, 6, 4)),
    "minimax_m1": ((0, 10, 2), (0, 21, 99)),
}
"""Model types whose class cannot, from a release to another."""

FLASH = ("FLASH_ATTN", "FLASH_ATTN_VLLM_V1")


def refused(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    """Yield what a release refuses; ``older`` says that its V0 engine runs."""
    for check in (_batch, _stages, _drafts, _experts, _weights, _sixteen_bit, _cache, _context):
        yield from check(numbers, older, context)


def _source(file: str, field: str) -> Source:
    return Source("engine", f"vllm-project/vllm {file}", field)


def _declared(context: Context, policy: str, field: str) -> Any:
    return getattr(context.deployment.policies.get(policy), field, None)


def _decides(context: Context, policy: str, *fields: str) -> KeyPath:
    """The first of the fields that the spec declares."""
    return "policy", policy, next((f for f in fields if _declared(context, policy, f) is not None), fields[0])


def _batch(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    config = context.config("batching")
    tokens, sequences = config.max_batched_tokens, config.max_sequences
    file = config_file(numbers, "scheduler")
    if tokens is None:
        return
    if sequences is not None and tokens < sequences:
        path = _decides(context, "batching", "max_batched_tokens", "max_sequences")
        yield (
            path,
            f"max_num_batched_tokens {tokens:,} is less than max_num_seqs {sequences:,}",
            _source(file, "max_num_batched_tokens"),
        )
    length = context.deployment.model.max_model_len or context.architecture.max_position
    if config.chunked_prefill is False and tokens < length and (older or numbers >= (0, 11, 2)):
        path = _decides(context, "batching", "max_batched_tokens", "chunked_prefill")
        yield (
            path,
            f"without chunked prefill max_num_batched_tokens {tokens:,} has to hold a prompt of max_model_len "
            f"{length:,} tokens",
            _source(file, "max_num_batched_tokens"),
        )


def _stages(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    stages, model_type = context.config("parallelism").p, context.architecture.model_type
    if stages == 1 or not model_type:
        return
    first, last = WITHOUT_STAGES.get(model_type, ((99,), (0,)))
    listed = (0, 5, 4) <= numbers <= (0, 6, 2) and model_type.removesuffix("_text") not in LISTED_STAGES
    if listed or first <= numbers <= last:
        yield (
            ("policy", "parallelism", "pipeline"),
            f"{context.architecture.id} ({model_type}) cannot be cut into {stages} pipeline stages in this release",
            _source("vllm/config.py" if listed else "vllm/model_executor/models/registry.py", "SupportsPP"),
        )


def _drafts(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    config, parallel = context.config("speculation"), context.config("parallelism")
    if config is None or not config.active:
        return
    file = config_file(numbers, "speculative")
    if config.draft_tensor not in (None, 1, parallel.t):
        yield (
            ("policy", "speculation", "draft_tensor"),
            f"draft_tensor_parallel_size {config.draft_tensor} is neither 1 nor the target's {parallel.t}",
            _source(file, "draft_tensor_parallel_size"),
        )
    if config.method == "draft" and not older and (0, 10) <= numbers <= (0, 14, 1):
        where = "vllm/engine/arg_utils.py" if numbers < (0, 11) else file
        yield (
            ("policy", "speculation", "method"),
            "speculative decoding with a draft model is not supported in the V1 engine of this release",
            _source(where, "speculative_config"),
        )
    if parallel.p == 1:
        return
    stages = f"{parallel.p} pipeline stages"
    if (0, 6, 6) <= numbers < (0, 8):
        yield (
            ("policy", "parallelism", "pipeline"),
            f"speculative decoding and {stages} exclude each other in this release",
            _source("vllm/spec_decode/spec_decode_worker.py", "pipeline_parallel_size"),
        )
    elif config.method == "mtp" and _without_stages(numbers, context.architecture.model_type):
        yield (
            ("policy", "parallelism", "pipeline"),
            f"the MTP draft takes over {stages}, and its model class cannot be cut into stages",
            _source("vllm/config/model.py", "verify_with_parallel_config"),
        )


def _without_stages(numbers: Release, model_type: str) -> bool:
    first = MTP_WITHOUT_STAGES.get(model_type.removesuffix("_text"))
    return first is not None and numbers >= first


def _experts(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    expert = _declared(context, "parallelism", "expert")
    if expert is not None and expert > 1 and not context.architecture.is_moe and numbers >= (0, 8, 5):
        yield (
            ("policy", "parallelism", "expert"),
            f"expert parallelism needs experts, and {context.architecture.id} has none",
            _source(config_file(numbers, "model"), "_verify_with_expert_parallelism"),
        )


def _weights(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    capability = context.accelerator.capability
    declared = _declared(context, "quantization", "weights")
    own = context.formats.quantized or context.formats.stored
    format_ = own if declared in (None, "auto") else context.format(declared)
    for first, last, least, file in LEAST_CAPABILITY.get("fp8" if format_.name in FP8 else format_.name, ()):
        if capability and first <= numbers <= last and capability < least:
            yield (
                ("model", "id") if declared in (None, "auto") else ("policy", "quantization", "weights"),
                f"{format_.name} weights need compute capability {least[0]}.{least[1]}, and "
                f"{context.accelerator.name} has {capability[0]}.{capability[1]}",
                _source(file, "get_min_capability"),
            )


def loads(numbers: Release, name: str, capability: Release) -> bool:
    """Whether a release is known to load weights of a format on a device of a compute capability."""
    limits = LEAST_CAPABILITY.get("fp8" if name in FP8 else name, ())
    return any(first <= numbers <= last and least <= capability for first, last, least, _ in limits)


def _sixteen_bit(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    capability = context.accelerator.capability
    config = context.config("quantization")
    if not capability or capability >= LEAST_BF16 or config is None:
        return
    # Activations say what a narrower format of weights leaves open.
    key = next((k for k in ("activations", "weights") if getattr(config, k) not in (None, "auto")), None)
    if key is not None:
        path: KeyPath = ("policy", "quantization", key)
        name = context.format(getattr(config, key)).name
    else:
        path = ("model", "id") if context.deployment.model.id is not None else ("model", "config")
        converted = numbers >= CONVERTS_BF16 or _launched(context)
        name = "" if converted else context.formats.stored.name
    if name == "bf16":
        yield (
            path,
            f"bfloat16 needs compute capability {LEAST_BF16[0]}.{LEAST_BF16[1]}, and {context.accelerator.name} has "
            f"{capability[0]}.{capability[1]}: ask for fp16 (--dtype half)",
            _source(next(file for last, file in BF16_FILES if numbers < last), "bfloat16"),
        )


def _launched(context: Context) -> bool:
    """Whether a file starts the engine: one that was not read may say another format."""
    return context.deployment.engine.args_from is not None


def _cache(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    declared = _declared(context, "quantization", "kv_cache")
    capability = context.accelerator.capability
    if declared in (None, "auto") or not capability or numbers < (0, 11, 2):
        return
    if context.format(declared).name != "fp8":
        return
    backend = (context.deployment.engine.attention_backend or "").upper()
    shown = f"{capability[0]}.{capability[1]}"
    if (backend in FLASH and capability[0] != 9) or backend == "FLEX_ATTENTION":
        file = "flash_attn.py" if backend in FLASH else "flex_attention.py"
        where = f" on compute capability {shown}" if backend in FLASH else ""
        yield (
            ("engine", "attention_backend"),
            f"the attention backend {backend} reads no FP8 KV cache{where}",
            _source(f"vllm/v1/attention/backends/{file}", "supports_kv_cache_dtype"),
        )
    latent = any(isinstance(b.mixer, LatentAttention) and b.mixer.indexer is None for b in context.architecture.blocks)
    if latent and not backend and numbers <= (0, 16) and capability[0] not in (9, 10):
        yield (
            ("policy", "quantization", "kv_cache"),
            f"no MLA attention backend of this release reads an FP8 KV cache on compute capability {shown}",
            _source("vllm/v1/attention/backends/mla/triton_mla.py", "supported_kv_cache_dtypes"),
        )


def _context(numbers: Release, older: bool, context: Context) -> Iterator[Refusal]:
    config = context.config("parallelism")
    attending = [b.mixer for b in context.architecture.blocks if isinstance(b.mixer, Attention)]
    if config.c == 1 or not config.context_shares_tensor or not attending or numbers < (0, 11, 2):
        return
    heads = {(m.q_heads, m.kv_heads) for m in attending}
    if len(heads) != 1:
        return
    queries, keys = heads.pop()
    most = config.t // keys
    source = _source("vllm/config/model.py", "decode_context_parallel_size")
    path: KeyPath = ("policy", "parallelism", "context")
    if config.t <= keys or config.c > most:
        yield (
            path,
            f"decode context parallel {config.c} shares out copies of {keys} KV heads, and tensor parallel "
            f"{config.t} has {max(most, 1)} of each",
            source,
        )
    elif (queries // keys) % config.c:
        yield (
            path,
            f"decode context parallel {config.c} does not divide the {queries // keys} query heads of a KV head",
            source,
        )
