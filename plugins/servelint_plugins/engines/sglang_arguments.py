"""What the arguments of SGLang's server set, in keys of a spec.

Sources, at the releases that `servelint_plugins.engines.sglang_flags` names: python/sglang/srt/server_args.py
(flags, what follows from what, combinations that are refused), server_args_config_parser.py (``--config``) and
model_executor/model_runner.py (requests are divided over attention groups) of sgl-project/sglang.
"""

from __future__ import annotations

from servelint.errors import ManifestError
from servelint.launch.flags import read as read_flags
from servelint.launch.flags import read_options
from servelint.launch.invocation import Invocation, Reading, Trouble, Word
from servelint.releases import release
from servelint_plugins.engines.layers import Layers, file_beside, own_server
from servelint_plugins.engines.sglang import ENGINE, MIXED_DRAFTS, NO_INTERVAL
from servelint_plugins.engines.sglang_flags import WHOLE, table

PARALLEL = ("policy", "parallelism")
BATCHING = ("policy", "batching")
CACHE = ("policy", "kv_cache")
QUANTIZATION = ("policy", "quantization")
SPECULATION = ("policy", "speculation")

CACHE_FORMATS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
WEIGHT_METHODS = {"bitsandbytes": "nf4-double", "mxfp8": "mxfp8", "nvfp4_online": "nvfp4"}
"""Values of ``--quantization`` that are this engine's own, or that others mean otherwise."""

TORCHAO = {"int8wo": "int8-weight-only", "int8dq": "int8", "fp8wo": "fp8-weight-only", "int4wo-128": "int4-g128"}
WHOLE_GROUP = (
    "deepep",
    "deepep_v2",
    "mooncake",
    "mori",
    "nixl",
    "flashinfer",
    "ascend_fuseep",
    "megamoe",
    "pplx",
)
"""All-to-all backends with which experts are split over the whole tensor-parallel group."""

METHODS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle",
    "NEXTN": "mtp",
    "STANDALONE": "draft",
    "NGRAM": "ngram",
    "DFLASH": "eagle",
}
TREES = ("llama", "grok")
"""Models for which the draft is a tree of 8 tokens where no flag says its shape; a chain of 3 for the others."""


def read(invocation: Invocation, words: tuple[Word, ...], version: str | None) -> Reading:
    """Return what an invocation of SGLang's server sets."""
    return _Reader(invocation, words, version).reading()


class _Reader:
    def __init__(self, invocation: Invocation, words: tuple[Word, ...], version: str | None) -> None:
        self.version = version
        self.numbers = release(version)
        known = not self.numbers or self.numbers in WHOLE
        line = read_flags(words, table(known and own_server(invocation, ENGINE)), version)
        below = [read_options(invocation.options, table(), version)]
        config = line.get("config")
        trouble: Trouble | None = None
        if config is not None:
            path = config.word.text
            try:
                options = file_beside(invocation, path)
            except ManifestError as error:
                options, trouble = {}, Trouble("bad-value", config.word.place, f"the file {path[:80]!r}: {error}")
            if options is None:
                trouble = Trouble(
                    "unresolved",
                    config.word.place,
                    f"--config names {path[:80]!r}, and nothing here holds it: what it sets is not known",
                )
            else:
                below.append(read_options(options, table(), version))
        self.flags = Layers(*below, line)
        self.flags.used.add("config")
        self.flags.troubles += [trouble] if trouble is not None else []
        self.invocation = invocation

    def reading(self) -> Reading:
        """Everything that the arguments set."""
        self.flags.as_they_stand()
        self._parallelism()
        self._batching()
        self._formats()
        self._cache()
        self._offload()
        self._speculation()
        self._graphs()
        self.flags.one_device(self.invocation, "--tp-size")
        return self.flags.reading(table())

    def between(self, first: tuple[int, ...], last: tuple[int, ...]) -> bool:
        """Whether the release is known and lies from one to another, both included."""
        return bool(self.numbers) and first <= self.numbers <= last

    def _parallelism(self) -> None:
        flags = self.flags
        tensor, copies = (max(flags.value(name) or 1, 1) for name in ("tp-size", "dp-size"))
        self.attention = 1
        if (flags.value("attn-dp-size") or 0) > 0:
            self.attention = flags.value("attn-dp-size")
            flags.set("attn-dp-size", (*PARALLEL, "attention_data"))
        elif flags.value("enable-dp-attention") and copies > 1:
            self.attention, copies = copies, 1
            flags.set("dp-size", (*PARALLEL, "attention_data"))
        elif flags.value("enable-dp-attention") and self.between((0, 3), (0, 4, 3)):
            self.attention = tensor
            flags.set("enable-dp-attention", (*PARALLEL, "attention_data"), tensor)
        elif flags.value("enable-dp-attention"):
            refused = self.between((0, 4, 6), (0, 5, 1))
            flags.trouble(
                "unsupported" if refused else "lost",
                "enable-dp-attention",
                "attention is data parallel only where --dp-size is above 1: "
                + ("the server refuses to start" if refused else "the flag is switched off"),
                f"add --dp-size, a divisor of the tensor-parallel {tensor}",
            )
        if copies > 1:
            flags.set("dp-size", (*PARALLEL, "data"))
        backend = flags.value("moe-a2a-backend")
        switch = next((n for n in ("enable-deepep-moe", "enable-ep-moe") if flags.value(n)), None)
        if backend in WHOLE_GROUP and tensor > 1:
            flags.set("moe-a2a-backend", (*PARALLEL, "expert"), tensor, "experts over the tensor-parallel group")
        elif switch is not None and tensor > 1:
            flags.set(switch, (*PARALLEL, "expert"), tensor, "experts over the tensor-parallel group")
        elif (flags.value("ep-size") or 0) > 0:
            flags.set("ep-size", (*PARALLEL, "expert"))
        nodes = flags.value("nnodes") or 1
        devices = tensor * (flags.value("pp-size") or 1) * copies
        if nodes > 1 and devices % nodes == 0:
            flags.set(
                "nnodes", ("hardware", "devices_per_node"), devices // nodes, f"{devices} devices on {nodes} nodes"
            )

    def _batching(self) -> None:
        flags = self.flags
        running = flags.value("max-running-requests")
        if running is not None and running >= self.attention:
            note = f"{running} over {self.attention} attention groups" if self.attention > 1 else ""
            flags.set("max-running-requests", (*BATCHING, "max_sequences"), running // self.attention, note)
        chunk = flags.value("chunked-prefill-size")
        if chunk is not None and chunk > 0:
            flags.set("chunked-prefill-size", (*BATCHING, "prefill_chunk"))
        elif chunk is not None:
            flags.set("chunked-prefill-size", (*BATCHING, "chunked_prefill"), False)

    def _formats(self) -> None:
        flags = self.flags
        cache = CACHE_FORMATS.get(flags.value("kv-cache-dtype") or "auto")
        if cache is not None:
            flags.set("kv-cache-dtype", (*QUANTIZATION, "kv_cache"), cache)
        flags.stored("quantization", (*QUANTIZATION, "weights"), WEIGHT_METHODS)
        stored = TORCHAO.get(flags.value("torchao-config") or "")
        if stored is not None:
            flags.set("torchao-config", (*QUANTIZATION, "weights"), stored, "converted when it is loaded")

    def _cache(self) -> None:
        flags = self.flags
        if flags.value("disable-radix-cache"):
            flags.set("disable-radix-cache", (*CACHE, "prefix_reuse"), False)
        if flags.value("hicache-storage-backend"):
            flags.set("hicache-storage-backend", (*CACHE, "offload"))
        elif flags.value("enable-hierarchical-cache"):
            flags.set("enable-hierarchical-cache", (*CACHE, "offload"), "host memory")

    def _offload(self) -> None:
        """Weights that stay in host memory; how many of a device's bytes is not modelled."""
        size = self.flags.value("cpu-offload-gb") or 0
        if size > 0:
            self.flags.set("cpu-offload-gb", ("engine", "offload"), f"{size} GiB of weights in host memory")
        elif (self.flags.value("offload-group-size") or 0) > 0:
            self.flags.set("offload-group-size", ("engine", "offload"), "weights of some layers in host memory")

    def _graphs(self) -> None:
        for name in ("disable-cuda-graph", "disable-decode-cuda-graph"):
            if self.flags.value(name):
                self.flags.set(name, ("engine", "enforce_eager"), True)
        self.flags.largest(("cuda-graph-bs", "cuda-graph-bs-decode", "cuda-graph-max-bs", "cuda-graph-max-bs-decode"))

    def _mixes(self, algorithm: str) -> bool:
        """Whether steps stay mixed with this kind of draft."""
        newer = not self.numbers or self.numbers > NO_INTERVAL
        return newer and self.attention == 1 and METHODS.get(algorithm) in MIXED_DRAFTS

    def _speculation(self) -> None:
        flags, name = self.flags, "speculative-algorithm"
        algorithm = str(flags.value(name) or "").upper()
        steps = flags.value("speculative-num-steps")
        wide = (flags.value("speculative-eagle-topk") or 1) > 1
        verified = flags.value("speculative-num-draft-tokens")
        draft = flags.value("speculative-draft-model-path")
        method = METHODS.get(algorithm)
        if algorithm and flags.value("enable-mixed-chunk") and not self._mixes(algorithm):
            flags.set("enable-mixed-chunk", (*BATCHING, "mixed_steps"), False, "switched off by speculation")
        if method is None:
            return
        if algorithm == "EAGLE" and draft is None:
            # Without a draft the target's own layer drafts, as with NEXTN.
            method = "mtp"
        flags.set(name, (*SPECULATION, "method"), method)
        if verified is not None and verified > 1 and (wide or steps is None or method == "ngram"):
            flags.set(
                "speculative-num-draft-tokens", (*SPECULATION, "tokens"), verified - 1, "one of them is the target's"
            )
        elif steps is not None and steps > 0:
            flags.set("speculative-num-steps", (*SPECULATION, "tokens"))
        elif method != "ngram":
            model = str(flags.value("model-path") or "").lower()
            tokens = 7 if method == "eagle" and any(part in model for part in TREES) else 3
            flags.set(name, (*SPECULATION, "tokens"), tokens, "the engine's choice for this model")
        if method == "draft" and draft is not None:
            flags.set("speculative-draft-model-path", (*SPECULATION, "draft_model"))
