"""SGLang: the defaults that decide memory and batching, by release, device and degrees; how it is started.

Sources: python/sglang/srt/server_args.py of sgl-project/sglang at the releases that
`servelint_plugins.engines.sglang_flags` names (from 0.5.20 arg_groups/memory_hook.py), and
model_executor/model_runner_kv_cache_mixin.py: the pool is what is free after loading less the share that is left
out, so weights and pool together take the static share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from servelint.formats import Format
from servelint.memory import Weights
from servelint.plugin import Context, Default, Engine, Input, LatentAttention, Lineage, MemoryLedger, Source
from servelint.releases import release

if TYPE_CHECKING:
    from servelint.launch.invocation import Invocation, Reading, Word
    from servelint.lineage import KeyPath

GIB = 2**30
MIB = 2**20
FILE = "sgl-project/sglang python/sglang/srt/server_args.py"
RUNNER = "sgl-project/sglang python/sglang/srt/model_executor/model_runner.py"
ASSUMED = (0, 5, 23)
LEAST_CAPABILITY = (7, 5)
NO_INTERVAL = (0, 5, 16)
"""The newest release that was read without ``--prefill-decode-interval``, and in which any draft unmixes steps."""
OVERRIDES = "sgl-project/sglang python/sglang/srt/arg_groups/model_overrides/qwen3_vl.py"
LET_IN = ("qwen3_vl", "qwen3_vl_moe")
"""Models for which the newest release read decodes 22 steps between two of prompts, on large parts of Hopper."""
MIXED_DRAFTS = ("eagle", "mtp")
"""Methods of speculation with which newer ones mix steps (python/sglang/srt/speculative/spec_info.py)."""
PLAIN_VIT_PARAMS = 12 * 24 * 1024**2
"""Parameters of the vision tower that the correction of the static share takes as its unit (ViT-L/14)."""

LOADED_SCALES = (0, 5, 14), (0, 5, 17)
"""Releases whose MXFP4 experts keep the scales as they were loaded beside those that the kernels read. Their sources
were read without a release's name; where that began and ended was not found, and these are of the months between."""
MARLIN = "sgl-project/sglang python/sglang/srt/layers/quantization/mxfp4_marlin_moe.py"
SCALED = 32
"""Elements of MXFP4 that share a scale."""

TEXT_ONLY = ("gemma3", "llama4", "step3_vl")
"""Model types that are served without their vision tower unless ``--enable-multimodal`` asks for it: sgl-project/sglang
python/sglang/srt/configs/model_config.py, mm_disabled_models."""


WIDE, LOADED = Format("bf16", 16), Format("fp32", 32)


def _release(version: str | None) -> tuple[int, ...]:
    """The numbers of a release, those of the newest one that was read when it is not known."""
    return release(version) or ASSUMED


def _chunk(visible: float, numbers: tuple[int, ...]) -> int:
    """chunked_prefill_size by device memory class."""
    if numbers < (0, 4, 9):
        return 2048 if visible < 25_000 * MIB else 8192
    if numbers < (0, 5, 3):
        classes: tuple[tuple[int, int], ...] = ((35, 2048), (160, 8192))
    elif numbers < (0, 5, 20):
        classes = ((35, 2048), (60, 4096), (160, 8192))
    else:
        classes = ((20, 2048), (60, 4096), (160, 8192))
    return next((size for limit, size in classes if visible < limit * GIB), 16384)


def _graph_batch(visible: float, tensor: int, numbers: tuple[int, ...]) -> int:
    """The largest batch that a CUDA graph is captured for, from 0.5.3."""
    small = ((48, 160) if numbers >= (0, 5, 20) else (24, 80)) if numbers >= (0, 5, 5) else (16, 80)
    for limit, one, many in ((20, 8, 8), (35, *small), (60, 32, 160), (160, 256, 512)):
        if visible < limit * GIB:
            return one if tensor < 4 else many
    return 512


def _prefill_graphs(tokens: int) -> int:
    """How many sizes of prompt steps are captured, from 0.5.12."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, tokens + 1, 512))
    return sum(len(range(start, min(stop, tokens + 1), step)) for start, stop, step in steps)


class _Shape:
    """What the reserve is computed from: the spec's degrees and batching, and the device's memory in bytes."""

    def __init__(self, context: Context, numbers: tuple[int, ...]) -> None:
        policies = context.deployment.policies
        degrees, batching = policies.get("parallelism"), policies.get("batching")
        self.visible = context.accelerator.usable_memory[0]
        self.graphs = context.deployment.engine.cuda_graph_max_batch
        self.pipeline = getattr(degrees, "pipeline", None) or 1
        self.attention = getattr(degrees, "attention_data", None) or 1
        others = self.pipeline * (getattr(degrees, "data", None) or 1)
        self.tensor = getattr(degrees, "tensor", None) or max(context.topology.devices // others, 1)
        self.speculation = getattr(policies.get("speculation"), "method", None)
        self.mla = any(isinstance(block.mixer, LatentAttention) for block in context.architecture.blocks)
        text_only = context.architecture.model_type in TEXT_ONLY
        self.vision = (
            0 if text_only else sum(tensor.params for tensor in context.architecture.extras if tensor.role == "vision")
        )
        chunked = getattr(batching, "chunked_prefill", None) is not False
        self.default_chunk = _chunk(self.visible, numbers)
        self.chunk = (getattr(batching, "prefill_chunk", None) or self.default_chunk) if chunked else 0
        self.prompts = getattr(batching, "max_batched_tokens", None) or 16384


def _share_by_degree(shape: _Shape) -> float:
    """The static share up to 0.4.6: fixed by the degrees, more of a device that has more than 80 GiB."""
    degree = shape.tensor * shape.pipeline
    if shape.visible > 81920 * MIB:
        share = 0.88
    else:
        share = next(s for limit, s in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88)) if degree >= limit)
    if shape.visible > 96 * GIB:
        share = min(share + 48 * GIB * (1 - share) / shape.visible, (shape.visible - 18 * GIB) / shape.visible)
    return share


def _reserve_by_class(shape: _Shape) -> float:
    """Bytes outside the static share from 0.4.9 to 0.5.1, by device memory class."""
    degree = shape.tensor * shape.pipeline
    for limit, base, each in ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5)):
        if shape.visible < limit * GIB:
            reserve = base + each * degree
            break
    else:
        reserve = 32.0
    return (reserve + 2 * (shape.speculation is not None) + 4 * (shape.attention > 1)) * GIB


def _reserve_by_tokens(shape: _Shape, numbers: tuple[int, ...]) -> float:
    """Bytes outside the static share from 0.5.3: activations of a prompt chunk, graphs, a term for the degrees."""
    graphs = shape.graphs or _graph_batch(shape.visible, shape.tensor, numbers)
    mib = 512 + 1.5 * max(shape.chunk or shape.prompts, 2048) + graphs * 2
    mib += shape.tensor * shape.pipeline / 8 * 1024
    if shape.attention > 1:
        mib += graphs * shape.attention * (4.5 if graphs > 300 else 3)
    if numbers >= (0, 5, 12) and shape.pipeline == 1:
        mib += 1536 if shape.mla else 8 * _prefill_graphs(shape.chunk or shape.prompts)
    if shape.visible > 60 * GIB:
        mib = max(mib, 10 * 1024)
    if numbers < (0, 5, 16) and shape.speculation == "draft":
        mib += 6 * 1024
    elif numbers < (0, 5, 16) and shape.speculation not in (None, "ngram"):
        mib += (4 if numbers >= (0, 5, 12) else 2) * 1024
    return mib * MIB


def _static_share(shape: _Shape, numbers: tuple[int, ...]) -> tuple[float, str]:
    """mem_fraction_static and how it comes about."""
    if numbers < (0, 4, 9):
        share, reason = _share_by_degree(shape), "fixed by the degrees of parallelism"
    else:
        reserve = _reserve_by_class(shape) if numbers < (0, 5, 3) else _reserve_by_tokens(shape, numbers)
        share, reason = (shape.visible - reserve) / shape.visible, f"all but {reserve / GIB:.1f} GiB"
    if shape.vision:
        larger = shape.vision / PLAIN_VIT_PARAMS - 1.0
        share *= 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * larger))
        reason += ", less for the vision tower by its size"
    return min(max(share, 0.1), 1.0), reason


def defaults(version: str | None, context: Context) -> Mapping[tuple[str, str], Default]:
    """Static share of memory computed from the reserve, prompt chunks by memory class.

    Between releases that were read the older one's rules hold. Requests are 512 for each context that the pool
    holds, at least 2048 and at most 4096: the least of it stands here.
    """
    numbers = _release(version)
    note = (
        "SGLang default" if version else f"SGLang default, version not declared: {'.'.join(map(str, ASSUMED))} assumed"
    )
    shape = _Shape(context, numbers)
    share, why = _static_share(shape, numbers)
    chunk = shape.default_chunk
    return {
        ("kv_cache", "memory_utilization"): Default(
            share, f"{note}, {why}", Source("engine", FILE, "mem_fraction_static")
        ),
        ("kv_cache", "page_size"): Default(1, note, Source("engine", FILE, "page_size")),
        ("kv_cache", "prefix_reuse"): Default(True, note, Source("engine", FILE, "disable_radix_cache")),
        ("batching", "max_sequences"): Default(2048, note, Source("engine", FILE, "max_running_requests")),
        ("batching", "max_batched_tokens"): Default(16384, note, Source("engine", FILE, "max_prefill_tokens")),
        ("batching", "prefill_chunk"): Default(chunk, note, Source("engine", FILE, "chunked_prefill_size")),
        ("batching", "chunked_prefill"): Default(True, note, Source("engine", FILE, "chunked_prefill_size")),
        ("batching", "mixed_steps"): Default(
            False, f"{note}, prompts go first", Source("engine", FILE, "enable_mixed_chunk")
        ),
    } | _between(numbers, context, note)


def _between(numbers: tuple[int, ...], context: Context, note: str) -> dict[tuple[str, str], Default]:
    """Decoding steps between two of prompts, where the engine sets any by itself."""
    part = context.accelerator
    hopper = bool(part.capability) and part.capability[0] == 9 and part.usable_memory[0] >= 60 * GIB
    if not (numbers >= (0, 5, 23) and hopper and context.architecture.model_type in LET_IN):
        return {}
    source = Source("engine", OVERRIDES, "prefill_decode_interval")
    return {("batching", "prefill_decode_interval"): Default(22, f"{note} for this model on Hopper", source)}


def reserve_bytes(version: str | None, context: Context) -> Mapping[str, Default]:
    """Runtime context and graphs; like activations they live outside the static share while they fit there."""
    source = Source("default", "docs/conventions.md", "reserve")
    return {"runtime and graphs": Default(1 * GIB, "runtime context, graphs, communication buffers", source)}


def laid(version: str | None, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Return the ledger with what kernels of compute capability 9 hold beside, or otherwise than, the checkpoint.

    The first output projection of DeepSeek-V4 in 16 bit, unless `SGLANG_OPT_FP8_WO_A_GEMM` asks otherwise
    (sgl-project/sglang#28983). MXFP4 experts have no kernel of their own: the weights are repacked for Marlin, and
    between `LOADED_SCALES` the scales of the loader, in fp32, stay beside the repacked ones.
    """
    if not (context.accelerator.compute_capability or "").startswith("9."):
        return ledger
    first, last = LOADED_SCALES
    scales: list[Weights] = []

    def held(entry: Weights) -> Weights:
        if entry.tensor.name == "o_a_proj" and entry.format.bits < 16:
            return evolve(entry, format=WIDE)
        if first <= numbers <= last and entry.tensor.role == "routed_experts" and entry.format.name == "mxfp4":
            params = Input("params", entry.params, "", Source("model", context.architecture.id, entry.tensor.name))
            shared = Input("params of a scale", SCALED, "", Source("engine", MARLIN, "w13_weight_scale_inv"))
            why = Lineage("scales as loaded = params / 32 x 4 B", (params, shared))
            name = f"{entry.name} scales as loaded"
            scales.append(evolve(entry, name=name, params=entry.params / SCALED, format=LOADED, lineage=why))
        return entry

    numbers = _release(version)
    changed = ledger.mapped(weights=held)
    return evolve(changed, weights=(*changed.weights, *scales))


def unsupported(version: str | None, context: Context) -> Iterator[tuple[KeyPath, str, Source]]:
    """Yield what the server's checks refuse, for the releases in which they were read.

    Drafts with pipeline stages (from 0.5.23 a variable allows them), prompt chunks that end within a page, and from
    0.5.7 devices below compute capability 7.5.
    """
    numbers = _release(version) if version is not None else ()
    if not (0, 4, 6) <= numbers <= ASSUMED:
        return
    degrees, batching, cache = (context.config(name) for name in ("parallelism", "batching", "kv_cache"))
    speculation = context.config("speculation")
    capability = context.accelerator.capability
    if capability and capability < LEAST_CAPABILITY and numbers >= (0, 5, 7):
        message = (
            f"compute capability 7.5 is the least, and {context.accelerator.name} has {capability[0]}.{capability[1]}"
        )
        yield ("hardware", "accelerator"), message, Source("engine", RUNNER, "load_model")
    if degrees.p > 1 and speculation.active and numbers <= (0, 5, 20):
        message = f"speculative decoding does not go with {degrees.p} pipeline stages in SGLang {version}"
        yield ("policy", "speculation", "method"), message, Source("engine", FILE, "check_server_args")
    if batching.prefill_decode_interval and numbers <= NO_INTERVAL:
        message = f"SGLang {version} knows no decoding step between two of prompts: --prefill-decode-interval is newer"
        yield ("policy", "batching", "prefill_decode_interval"), message, Source("engine", FILE, "ServerArgs")
    chunk, page = batching.prefill_chunk, cache.page_size or 1
    if batching.chunked_prefill and chunk and chunk % page and degrees.attention_ranks == 1:
        declared = getattr(context.deployment.policies.get("batching"), "prefill_chunk", None)
        path = ("policy", "batching", "prefill_chunk") if declared else ("policy", "kv_cache", "page_size")
        message = f"a prompt chunk of {chunk:,} tokens is no multiple of the page of {page:,}"
        yield path, message, Source("engine", FILE, "check_server_args")


def pieces(version: str | None, context: Context) -> tuple[str, ...]:
    """What a release and drafts allow: up to 0.5.16 those switch mixed steps off, in newer ones some do.

    With drafts and attention groups prompts and decoding sequences never share a step.
    """
    numbers, speculation = _release(version), context.config("speculation")
    groups = context.config("parallelism").attention_ranks > 1
    mixes = not speculation.active or (numbers > NO_INTERVAL and speculation.method in MIXED_DRAFTS and not groups)
    ways = (*(("mixed_steps",) if mixes else ()), *(("prefill_decode_interval",) if numbers > NO_INTERVAL else ()))
    return ("chunked_prefill", *ways) if ways else ()


def _read(invocation: Invocation, arguments: tuple[Word, ...], version: str | None) -> Reading:
    # The table of flags is only needed where a file starts the engine.
    from servelint_plugins.engines.sglang_arguments import read

    return read(invocation, arguments, version)


ENGINE = Engine(
    "sglang",
    defaults,
    reserve_bytes,
    sources=("sgl-project/sglang",),
    budget_kind="static",
    caches=laid,
    starts=(("sglang.launch_server",), ("sglang", "serve"), ("dynamo.sglang",)),
    images=("sglang", "sgl-dev"),
    release_images=("lmsysorg/sglang",),
    read=_read,
    unsupported=unsupported,
    pieces=pieces,
    assumed=".".join(map(str, ASSUMED)),
    moved=("0.4.3", "0.4.9", "0.5.3", "0.5.5", "0.5.12", "0.5.16", "0.5.20"),
)
