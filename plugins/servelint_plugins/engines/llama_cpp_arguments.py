"""What the arguments and the environment of llama.cpp's server set, in keys of a spec.

Sources: tools/server/README.md (flags, their variables) and tools/quantize/README.md (names of file types) of
ggml-org/llama.cpp. The table holds the flags that decide memory and speed and some that often stand beside them;
a flag outside it is left alone.
"""

from __future__ import annotations

import re
from functools import cache

from servelint.launch.flags import Flag, FlagTable, read_options
from servelint.launch.flags import read as read_flags
from servelint.launch.invocation import Invocation, Reading, Setting, Word
from servelint_plugins.engines.layers import Layers, from_environment
from servelint_plugins.engines.llama_cpp import REFUSES_SINCE, SLOTS, UNIFIED_SINCE, build

PARALLEL = ("policy", "parallelism")
BATCHING = ("policy", "batching")
QUANTIZATION = ("policy", "quantization")
SPECULATION = ("policy", "speculation")

_FLAGS = (
    Flag("model", (), "text", ("-m",)),
    Flag("hf-repo", (), "text", ("-hf", "-hfr")),
    Flag("hf-file", (), "text", ("-hff",)),
    Flag("model-url", (), "text", ("-mu",)),
    Flag("ctx-size", (), "int", ("-c",)),
    Flag("parallel", (), "int", ("-np",)),
    Flag("kv-unified", (), "switch", ("-kvu",)),
    Flag("no-kv-unified", (), "switch", ("-no-kvu",)),
    Flag("kv-unified-per-slot", (), "int"),
    Flag("context-shift", (), "switch"),
    Flag("no-context-shift", (), "switch"),
    Flag("batch-size", (), "int", ("-b",)),
    Flag("ubatch-size", (), "int", ("-ub",)),
    Flag("cache-type-k", (), "text", ("-ctk",)),
    Flag("cache-type-v", (), "text", ("-ctv",)),
    Flag("flash-attn", (), "many", ("-fa",)),
    Flag("gpu-layers", (), "text", ("-ngl", "--n-gpu-layers")),
    Flag("split-mode", (), "text", ("-sm",)),
    Flag("tensor-split", (), "text", ("-ts",)),
    Flag("main-gpu", (), "int", ("-mg",)),
    Flag("device", (), "text", ("-dev",)),
    Flag("model-draft", (), "text", ("-md", "--spec-draft-model")),
    Flag("hf-repo-draft", (), "text", ("-hfd", "-hfrd", "--spec-draft-hf")),
    Flag("draft-max", (), "int", ("--draft", "--draft-n", "--spec-draft-n-max")),
    Flag("draft-min", (), "int", ("--draft-n-min", "--spec-draft-n-min")),
    Flag("spec-type", (), "text"),
    Flag("cache-prompt", (), "switch"),
    Flag("cont-batching", (), "switch", ("-cb",)),
    Flag("no-cont-batching", (), "switch", ("-nocb",)),
    Flag("kv-offload", (), "switch", ("-kvo",)),
    Flag("no-kv-offload", (), "switch", ("-nkvo",)),
    Flag("cpu-moe", (), "switch", ("-cmoe",)),
    Flag("n-cpu-moe", (), "int", ("-ncmoe",)),
    Flag("n-cpu-ffn", (), "int", ("-ncffn",)),
    Flag("override-tensor", (), "each", ("-ot",)),
    Flag("n-predict", (), "int", ("-n", "--predict")),
    Flag("threads", (), "int", ("-t",)),
    Flag("threads-batch", (), "int", ("-tb",)),
    Flag("threads-http", (), "int"),
    Flag("alias", (), "text", ("-a",)),
    Flag("host", (), "text"),
    Flag("port", (), "int"),
    Flag("api-key", (), "each"),
    Flag("jinja", (), "switch"),
    Flag("metrics", (), "switch"),
    Flag("mlock", (), "switch"),
    Flag("mmap", (), "switch"),
    Flag("no-mmap", (), "switch"),
    Flag("embeddings", (), "switch", ("--embedding",)),
    Flag("swa-full", (), "switch"),
    Flag("fit", (), "text", ("-fit",)),
    Flag("cache-ram", (), "int", ("-cram",)),
    Flag("mmproj", (), "text", ("-mm",)),
)

VARIABLES = {
    "LLAMA_ARG_MODEL": "model",
    "LLAMA_ARG_MODEL_URL": "model-url",
    "LLAMA_ARG_HF_REPO": "hf-repo",
    "LLAMA_ARG_HF_FILE": "hf-file",
    "LLAMA_ARG_CTX_SIZE": "ctx-size",
    "LLAMA_ARG_N_PARALLEL": "parallel",
    "LLAMA_ARG_KV_UNIFIED": "kv-unified",
    "LLAMA_ARG_KV_UNIFIED_PER_SLOT": "kv-unified-per-slot",
    "LLAMA_ARG_CONTEXT_SHIFT": "context-shift",
    "LLAMA_ARG_NO_CONTEXT_SHIFT": "no-context-shift",
    "LLAMA_ARG_BATCH": "batch-size",
    "LLAMA_ARG_UBATCH": "ubatch-size",
    "LLAMA_ARG_CACHE_TYPE_K": "cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "cache-type-v",
    "LLAMA_ARG_FLASH_ATTN": "flash-attn",
    "LLAMA_ARG_N_GPU_LAYERS": "gpu-layers",
    "LLAMA_ARG_CPU_MOE": "cpu-moe",
    "LLAMA_ARG_N_CPU_MOE": "n-cpu-moe",
    "LLAMA_ARG_N_CPU_FFN": "n-cpu-ffn",
    "LLAMA_ARG_OVERRIDE_TENSOR": "override-tensor",
    "LLAMA_ARG_KV_OFFLOAD": "kv-offload",
    "LLAMA_ARG_FIT": "fit",
    "LLAMA_ARG_SPLIT_MODE": "split-mode",
    "LLAMA_ARG_TENSOR_SPLIT": "tensor-split",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "model-draft",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "hf-repo-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "draft-max",
    "LLAMA_ARG_DRAFT_MAX": "draft-max",
    "LLAMA_ARG_SPEC_TYPE": "spec-type",
    "LLAMA_ARG_CACHE_PROMPT": "cache-prompt",
    "LLAMA_ARG_CONT_BATCHING": "cont-batching",
}

CACHE_FORMATS = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "q8_0": "q8_0",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "iq4_nl": "iq4_nl",
}
_FILE_TYPE = re.compile(
    r"(?:^|[-_.:/])(I?Q[1-8](?:_K_XL|_K_[SML]|_XXS|_XS|_NL|_[01KSML])?|BF16|F16|F32)(?=$|[-.:/])", re.IGNORECASE
)
FILE_TYPES = {
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    **{name.upper(): name for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q6_k")},
    **{name.upper(): name for name in ("q2_k", "q3_k_s", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m")},
    **{name.upper(): name for name in ("iq4_xs", "iq4_nl")},
}
SPECULATION_KINDS = {
    "draft-simple": "draft",
    "draft-eagle3": "eagle",
    "draft-dflash": "eagle",
    "draft-mtp": "mtp",
    "ngram-simple": "ngram",
    "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram",
    "ngram-cache": "ngram",
}


@cache
def table() -> FlagTable:
    """The server's flags; no beginnings of names are taken."""
    return FlagTable("llama.cpp", _FLAGS, prefixes=False)


def read(invocation: Invocation, words: tuple[Word, ...], version: str | None) -> Reading:
    """Return what an invocation of llama.cpp's server sets."""
    flags = Layers(
        read_options(invocation.options, table(), None),
        from_environment(invocation.env, VARIABLES, table(), None),
        read_flags(words, table(), None),
    )
    number = build(version)
    if number is None and invocation.image is not None:
        number = build(invocation.image.text)
        if number is not None:
            path = ("engine", "version")
            flags.settings[path] = Setting(path, f"b{number}", invocation.image.place, "image")
    _model(flags)
    _slots(flags, number)
    _long_prompts(flags, invocation, number)
    _batches(flags)
    _devices(flags, invocation)
    _cache(flags)
    _offload(flags, invocation)
    _speculation(flags)
    switch = invocation.env.get("GGML_CUDA_DISABLE_GRAPHS")
    if switch is not None and switch.text not in ("", "0") and not switch.unresolved:
        eager = ("engine", "enforce_eager")
        flags.settings[eager] = Setting(eager, True, switch.place, "GGML_CUDA_DISABLE_GRAPHS", switch.note)
    return flags.reading(table())


def file_type(name: str) -> str | None:
    """The format of a GGUF file's weights by its name, None where the name says none that is known."""
    found = _FILE_TYPE.findall(name.removesuffix(".gguf"))
    return FILE_TYPES.get(found[-1].upper()) if found else None


def _model(flags: Layers) -> None:
    repository, file = flags.get("hf-repo"), flags.get("hf-file")
    if repository is not None:
        name, colon, kind = repository.value.partition(":")
        flags.set("hf-repo", ("model", "id"), name)
        # A file goes before the type in the name; without either the server takes Q4_K_M.
        named = f":{kind}" if file is None else file.value
        stated = file_type(named) or ("" if colon or file is not None else "q4_k_m")
        path = (*QUANTIZATION, "weights")
        if stated:
            flags.set("hf-repo", path, stated, "" if colon else "the type that is fetched first")
            flags.settings[path] = flags.settings[path]._replace(assumed=not colon and file is None)
        return
    for source in ("model", "model-url"):
        given = flags.get(source)
        if given is not None:
            flags.set(source, ("model", "id"), given.value)
            kind = file_type(given.value) or ""
            if kind:
                flags.set(source, (*QUANTIZATION, "weights"), kind, "by the file's name")
            return


def _slots(flags: Layers, number: int | None) -> None:
    """Slots, and the context of each: --ctx-size, the whole cache, is divided over them unless they share it."""
    context, stated = flags.value("ctx-size") or 0, flags.value("parallel")
    known = stated is not None and stated > 0
    automatic = number is None or number >= UNIFIED_SINCE
    slots = stated if known and stated is not None else SLOTS if automatic else 1
    shared = flags.value("kv-unified")
    if shared is None:
        shared = not flags.value("no-kv-unified") and not known and automatic
    if known:
        flags.set("parallel", (*BATCHING, "max_sequences"))
    if context > 0:
        flags.set("ctx-size", ("policy", "kv_cache", "max_tokens"))
    each = flags.value("kv-unified-per-slot")
    if each:
        flags.set("kv-unified-per-slot", ("model", "max_model_len"))
    elif context > 0:
        note = "" if shared or slots == 1 else f"{context} over {slots} slots"
        path = ("model", "max_model_len")
        flags.set("ctx-size", path, context if shared else max(context // slots, 1), note)
        if path in flags.settings:
            flags.settings[path] = flags.settings[path]._replace(written=context, slots=slots)


def _long_prompts(flags: Layers, invocation: Invocation, number: int | None) -> None:
    """Whether prompts beyond a slot are cut: by builds that shift contexts, which was the default of older ones."""
    if number is not None and number >= REFUSES_SINCE:
        return
    path = ("engine", "truncates")
    if flags.value("no-context-shift") or flags.value("context-shift") is False:
        flags.set("no-context-shift" if flags.value("no-context-shift") else "context-shift", path, False)
    elif flags.value("context-shift"):
        flags.set("context-shift", path)
    elif number is not None:
        note = f"not given: builds before b{REFUSES_SINCE} may cut prompts that are too long"
        flags.settings[path] = Setting(path, True, invocation.place, "--no-context-shift", note, assumed=True)


def _batches(flags: Layers) -> None:
    batch, part = flags.value("batch-size"), flags.value("ubatch-size")
    if batch is not None and batch > 0:
        flags.set("batch-size", (*BATCHING, "max_batched_tokens"))
    if part is not None and part > 0:
        flags.set("ubatch-size", (*BATCHING, "prefill_chunk"))
    if flags.value("cache-prompt") is False:
        flags.set("cache-prompt", ("policy", "kv_cache", "prefix_reuse"), False)


def _devices(flags: Layers, invocation: Invocation) -> None:
    mode = str(flags.value("split-mode") or "layer")
    shares = str(flags.value("tensor-split") or "")
    count = sum(part.strip() not in ("", "0", "0.0") for part in re.split(r"[,/]", shares)) if shares else 0
    name = "tensor-split"
    if not count and invocation.devices is not None and invocation.devices.text.isdecimal():
        count = int(invocation.devices.text[:6])
        name = "split-mode" if flags.get("split-mode") is not None else ""
    if count < 2 or mode == "none":
        return
    axis = "tensor" if mode in ("row", "tensor") else "pipeline"
    path = (*PARALLEL, axis)
    if name:
        flags.set(name, path, count, f"split by {mode}")
    elif invocation.devices is not None:
        flags.settings[path] = Setting(path, count, invocation.devices.place, "devices", f"split by {mode}")


def _cache(flags: Layers) -> None:
    keys, values = (CACHE_FORMATS.get(str(flags.value(name))) for name in ("cache-type-k", "cache-type-v"))
    path = (*QUANTIZATION, "kv_cache")
    if keys is not None and (values is None or values == keys):
        # Keys alone in a narrow format leave half of the cache at 16 bits.
        if values is not None:
            flags.set("cache-type-k", path, keys)
    elif keys is not None and values is not None:
        wider = max((keys, values), key=_bits)
        flags.set("cache-type-k" if wider == keys else "cache-type-v", path, wider, "the wider one of keys and values")


def _offload(flags: Layers, invocation: Invocation) -> None:
    """What stays in host memory, or is placed by hand; how many of a device's bytes that is is not modelled."""
    path = ("engine", "offload")
    layers = str(flags.value("gpu-layers") or "")
    if layers.isdecimal():
        flags.set("gpu-layers", ("engine", "device_layers"), min(int(layers[:7]), 1_000_000))
    if flags.value("no-kv-offload") or flags.value("kv-offload") is False:
        flags.set(
            "no-kv-offload" if flags.value("no-kv-offload") else "kv-offload", path, "the KV cache in host memory"
        )
    if flags.value("override-tensor") is not None:
        flags.set("override-tensor", path, "tensors where --override-tensor puts them")
    for name, kept in (("n-cpu-ffn", "MLPs"), ("n-cpu-moe", "experts"), ("cpu-moe", "experts")):
        if (flags.value(name) or 0) > 0:
            flags.set(name, path, f"{kept} in host memory")
    fitted = layers in ("", "auto") and str(flags.value("fit") or "on") != "off"
    if fitted and flags.given and path not in flags.settings:
        kept, note = "layers that do not fit, in host memory", "not given: as many layers as fit"
        flags.settings[path] = Setting(path, kept, invocation.place, "--gpu-layers", note, assumed=True)


def _bits(name: str) -> int:
    return int("".join(c for c in name if c.isdigit())[:2].rstrip("0") or 0) if name[0] != "f" else 99


def _speculation(flags: Layers) -> None:
    drafts = next((n for n in ("model-draft", "hf-repo-draft") if flags.get(n) is not None), None)
    kind = next((k for k in str(flags.value("spec-type") or "").split(",") if k in SPECULATION_KINDS), None)
    method = SPECULATION_KINDS[kind] if kind is not None else "draft" if drafts is not None else None
    if method is None:
        return
    source = "spec-type" if kind is not None else drafts or ""
    flags.set(source, (*SPECULATION, "method"), method)
    if (flags.value("draft-max") or 0) > 0:
        flags.set("draft-max", (*SPECULATION, "tokens"))
    elif method != "ngram":
        flags.set(source, (*SPECULATION, "tokens"), 3, "the server's default")
    if method == "draft" and drafts is not None:
        flags.set(drafts, (*SPECULATION, "draft_model"), str(flags.value(drafts)).partition(":")[0])
