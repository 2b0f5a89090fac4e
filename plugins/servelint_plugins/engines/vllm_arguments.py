"""What the arguments of vLLM's server set, in keys of a spec: flags, environment, ``--config`` files.

Sources, of vllm-project/vllm as red-hat-data-services/vllm-cpu and opendatahub-io/vllm keep its releases from
0.4.3 to 0.24.0: vllm/engine/arg_utils.py (flags, defaults, what falls back to the V0 engine),
vllm/config/cache.py, vllm/config/parallel.py and vllm/config/speculative.py (values and combinations that are
refused), vllm/utils/argparse_utils.py (how words are read). Environment: kserve/kserve
(``VLLM_ADDITIONAL_ARGS``) and runpod-workers/worker-vllm (flags as upper-case names).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from servelint.launch.flags import Arguments, Given, gone, read_options, telling
from servelint.launch.flags import read as read_flags
from servelint.launch.invocation import Invocation, Reading, Setting, Trouble, Word
from servelint.launch.manifest import ManifestError
from servelint.lineage import KeyPath
from servelint.releases import release, repository
from servelint_plugins.engines import methods
from servelint_plugins.engines.layers import file_beside, own_server
from servelint_plugins.engines.vllm import ENGINE
from servelint_plugins.engines.vllm_flags import CHECKED, table

OTHER_COMMANDS = ("bench", "chat", "collect-env", "complete", "run-batch")
"""Subcommands that serve nothing."""

LAUNCHERS = ("bash", "env", "sh", "python", "python3", "ray", "sleep", "tail", "torchrun", "uv")
"""Commands after which nothing is known to be an argument of the server."""

CACHE_FORMATS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "fp8_ds_mla": "fp8",
    "fp8_per_token_head": "fp8",
    "int8_per_token_head": "int8",
    "nvfp4": "nvfp4",
}
"""Names of ``--kv-cache-dtype`` and of formats; scales beside the elements, where a name has them, are left out."""

_FP8 = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
_MORE = (*_FP8, "fp8_inc", "bfloat16", "fp8_ds_mla")
CHOICES: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "kv-cache-dtype": (
        ("0.6.6", "0.9.2", _FP8),
        ("0.10.0", "0.10.1.1", (*_FP8, "fp8_inc")),
        ("0.11.2", "0.16.0", _MORE),
        ("0.18.0", "0.19.1", (*_MORE, "float16")),
    ),
    "block-size": (
        ("0.6.6", "0.7.3", ("8", "16", "32", "64", "128")),
        ("0.8.5", "0.10.1.1", ("1", "8", "16", "32", "64", "128")),
        ("0.13.0", "0.16.0", ("1", "8", "16", "32", "64", "128", "256")),
    ),
}
"""Values that a flag takes, from one release to another, both read; nothing is said of releases in between."""

WEIGHT_METHODS = {
    "bitsandbytes": "nf4",
    "fp8_per_block": "fp8-block128",
    "fp8_per_tensor": "fp8",
    "modelopt": "fp8",
    "mxfp8": "mxfp8",
}
"""Values of ``--quantization`` that are this engine's own, or that others mean otherwise."""

WEIGHTS: KeyPath = ("policy", "quantization", "weights")

DTYPES = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
}
DRAFT_METHODS = {"ngram": "ngram", "[ngram]": "ngram", "ngram_gpu": "ngram", "suffix": "ngram", "draft_model": "draft"}
HEADS = ("eagle", "eagle3", "dflash", "medusa", "mlp_speculator")
OFFLOADING = {
    "OffloadingConnector": "host memory",
    "SimpleCPUOffloadConnector": "host memory",
    "LMCacheConnector": "LMCache",
    "LMCacheConnectorV1": "LMCache",
    "LMCacheMPConnector": "LMCache",
    "FlexKVConnectorV1": "FlexKV",
    "HF3FSKVConnector": "3FS",
    "MooncakeStoreConnector": "Mooncake store",
}
"""Connectors that keep evicted blocks, and where; the others only hand blocks to another instance."""

FALLS_BACK = ("num-scheduler-steps", "preemption-mode", "scheduler-delay-factor", "logits-processor-pattern")
"""Flags with which releases 0.8 to 0.10 start the V0 engine."""

TENSOR: KeyPath = ("policy", "parallelism", "tensor")
CHUNKED: KeyPath = ("policy", "batching", "chunked_prefill")
SEQUENCES: KeyPath = ("policy", "batching", "max_sequences")
REUSE: KeyPath = ("policy", "kv_cache", "prefix_reuse")
OFFLOAD: KeyPath = ("policy", "kv_cache", "offload")
BACKEND: KeyPath = ("engine", "attention_backend")
EAGER: KeyPath = ("engine", "enforce_eager")
KEPT: KeyPath = ("engine", "offload")
LARGEST: KeyPath = ("engine", "cuda_graph_max_batch")
SIZES = ("max-cudagraph-capture-size", "cudagraph-capture-sizes", "cuda-graph-sizes")
"""Flags that give the largest captured step, or list the sizes."""
MODEL: KeyPath = ("model", "id")


def read(invocation: Invocation, words: tuple[Word, ...], version: str | None) -> Reading:
    """Read the words after the command; a command that serves nothing sets nothing."""
    server = _server_words(words)
    if server is None:
        return Reading()
    return _Reader(invocation, server, version).reading()


def _server_words(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """The arguments of the server, None where the words start something else."""
    left = list(words)
    if left and left[0].text.rpartition("/")[2] == "vllm":
        left.pop(0)
    first = left[0].text if left else ""
    if first in OTHER_COMMANDS or first.rpartition("/")[2] in LAUNCHERS or first.endswith((".py", ".sh")):
        return None
    return tuple(left[1:] if first == "serve" else left)


def between(numbers: tuple[int, ...], first: str, last: str = CHECKED) -> bool:
    """Whether a release is known and lies from one release to another, both included."""
    return bool(numbers) and release(first) <= numbers <= release(last)


class _Reader:
    def __init__(self, invocation: Invocation, words: tuple[Word, ...], version: str | None) -> None:
        self.invocation = invocation
        self.version = version
        self.numbers = release(version)
        self.settings: dict[KeyPath, Setting] = {}
        self.troubles: list[Trouble] = []
        self.used: set[str] = set()
        self.asked: set[str] = set()
        self.words = (*words, *_additional(invocation.env))
        # A fork, a build with plug-ins, or vLLM-Omni may have flags of its own.
        self.table = table(own_server(invocation, ENGINE) and all(w.text != "--omni" for w in self.words))
        self.line = read_flags(tuple(_spelled_out(self.words)), self.table, version)
        self.given: dict[str, Given] = {}
        for arguments in (*self._beside(), self.line):
            self.given |= arguments.given
            self.troubles += arguments.troubles

    def reading(self) -> Reading:
        """Everything that the arguments set."""
        for name, given in self.given.items():
            if given.flag.path and given.value != "auto":
                self._set(name, given.flag.path, given.value)
        self._model()
        self._parallelism()
        self._formats()
        self._speculation()
        self._cache()
        self._offload()
        self._attention_backend()
        self._graphs()
        self._values()
        self._combinations()
        self._engine_core()
        unused = tuple(f"--{name}" for name in self.given if name not in self.used)
        troubles = telling(self.troubles, table(), self.used | self.asked | {"model", "config"})
        return Reading(tuple(self.settings.values()), troubles, unused)

    def _beside(self) -> Iterator[Arguments]:
        """Arguments that stand elsewhere than in the command: environment, options, the ``--config`` file."""
        found = read_flags(tuple(_from_environment(self.invocation, bool(self.words))), self.table, self.version)
        spelled = {n: g.spelled._replace(text=n.upper().replace("-", "_")) for n, g in found.given.items()}
        yield found._replace(given={n: g._replace(spelled=spelled[n]) for n, g in found.given.items()})
        yield read_options(self.invocation.options, self.table, self.version)
        config = self.line.get("config")
        if config is not None:
            yield self._config_file(config)

    def _config_file(self, config: Given) -> Arguments:
        path = config.word.text
        self.used.add("config")
        try:
            options = file_beside(self.invocation, path)
        except ManifestError as error:
            self._trouble("bad-value", config.word, f"the file {path[:80]!r} cannot be read: {error}", "")
            return Arguments({}, (), ())
        if options is None:
            self._trouble(
                "unresolved",
                config.word,
                f"the arguments in {path[:80]!r} stand outside this file and are not read",
                "set the keys of the spec that they decide",
            )
            return Arguments({}, (), ())
        return read_options(options, self.table, self.version)

    def _set(self, name: str, path: KeyPath, value: object, note: str = "") -> None:
        """Let a flag set a key; the note says what its own value was where that is not the key's."""
        given = self.given[name]
        self.used.add(name)
        setting = given.setting(path, value)
        if note:
            setting = setting._replace(note=", ".join(part for part in (setting.note, note) if part))
        self.settings[path] = setting

    def _trouble(self, kind: Any, at: Word, message: str, help_: str) -> None:
        self.troubles.append(Trouble(kind, at.place, message, help_))

    def _value(self, name: str) -> Any:
        self.asked.add(name)
        found = self.given.get(name)
        return None if found is None else found.value

    def _count(self, name: str, default: int = 1) -> int:
        value = self._value(name)
        return value if isinstance(value, int) and value > 0 else default

    def _object(self, name: str) -> Mapping[str, Any]:
        value = self._value(name)
        return value if isinstance(value, dict) else {}

    def _model(self) -> None:
        started = [w.text for command in self.invocation.commands for w in command]
        by_module = any(text.endswith(".api_server") for text in started)
        positional = [w for w in self.line.positional if w.text.lower() not in ("true", "false")]
        named = self.given.get("model")
        word = named.word if named is not None else None
        spelling = "--model"
        if positional and not by_module:
            word, spelling = positional[0], "the first argument"
        if named is not None:
            self.used.add("model")
        if word is None or not word.text:
            return
        if word.unresolved:
            self._trouble(
                "unresolved",
                word,
                f"the model is {word.text[:80]!r}, and nothing here sets {word.unresolved}",
                "say what it is with --env FILE",
            )
            return
        if _is_folder(word.text):
            served = self.given.get("served-model-name")
            if self.invocation.model is not None and not _is_folder(self.invocation.model.text):
                return
            if served is not None and "/" in str(served.word.text) and not _is_folder(served.word.text):
                self._set("served-model-name", MODEL, served.word.text, f"the name of {word.text[:60]}")
                return
        self.settings[MODEL] = Setting(MODEL, word.text, word.place, spelling, word.note)

    def _parallelism(self) -> None:
        tensor, data = self._count("tensor-parallel-size"), self._count("data-parallel-size")
        if self._value("enable-expert-parallel") and tensor * data > 1:
            self._set(
                "enable-expert-parallel", ("policy", "parallelism", "expert"), tensor * data, "tensor x data devices"
            )
        open_words = any("$" in w.text for w in self.words) or any(t.kind == "unresolved" for t in self.troubles)
        # Arguments that a spec holds or points into need not be all: the spec may declare the degree by itself.
        partial = self.invocation.format in ("spec", "path")
        if TENSOR not in self.settings and not partial and not open_words and self.given:
            self.settings[TENSOR] = Setting(
                TENSOR, 1, self.invocation.place, "--tensor-parallel-size", "not given: one device"
            )
        redundant = self._value("num-redundant-experts") or self._object("eplb-config").get("num_redundant_experts")
        if isinstance(redundant, int) and not isinstance(redundant, bool) and redundant > 0:
            name = "num-redundant-experts" if "num-redundant-experts" in self.given else "eplb-config"
            self._set(name, ("policy", "moe", "redundant_experts"), redundant)

    def _formats(self) -> None:
        cache = self._value("kv-cache-dtype")
        if cache in CACHE_FORMATS:
            name = CACHE_FORMATS[cache]
            self._set(
                "kv-cache-dtype", ("policy", "quantization", "kv_cache"), name, "" if name == cache else str(cache)
            )
        method = self._value("quantization")
        found = methods.method(method, WEIGHT_METHODS)
        if found is not None:
            self._set("quantization", WEIGHTS, found.format, found.note)
            self.settings[WEIGHTS] = self.settings[WEIGHTS]._replace(assumed=bool(found.note))
            if method == "experts_int8":
                self._set("quantization", (*WEIGHTS[:2], "covers"), ["routed_experts"])
        dtype = self._value("dtype")
        if method is None and dtype in DTYPES:
            self._set("dtype", ("policy", "quantization", "activations"), DTYPES[dtype])
        elif method is None and dtype in ("float", "float32"):
            self._set("dtype", WEIGHTS, "fp32")

    def _speculation(self) -> None:
        config = dict(self._object("speculative-config"))
        names = dict.fromkeys(config, "speculative-config")
        for flag, key in (
            ("speculative-model", "model"),
            ("num-speculative-tokens", "num_speculative_tokens"),
            ("speculative-draft-tensor-parallel-size", "draft_tensor_parallel_size"),
            ("spec-method", "method"),
            ("spec-model", "model"),
            ("spec-tokens", "num_speculative_tokens"),
        ):
            if flag in self.given:
                config[key] = self._value(flag)
                names[key] = flag
        model, method = str(config.get("model") or ""), str(config.get("method") or "").lower()
        if not model and not method:
            return
        decides = "method" if method else "model"
        if not method:
            low = model.lower()
            method = low if low in DRAFT_METHODS else "eagle" if "eagle" in low else "draft_model"
        ours = "mtp" if method == "mtp" or method.endswith("_mtp") else DRAFT_METHODS.get(method)
        ours = ours or ("eagle" if method in HEADS else None)
        if ours is None:
            return
        path: KeyPath = ("policy", "speculation")
        self._set(names[decides], (*path, "method"), ours, "" if ours == method else method)
        for key, ending in (("num_speculative_tokens", "tokens"), ("draft_tensor_parallel_size", "draft_tensor")):
            value = config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and (ours != "ngram" or ending == "tokens"):
                self._set(names[key], (*path, ending), value)
        if ours == "draft" and model:
            self._set(names["model"], (*path, "draft_model"), model)

    def _cache(self) -> None:
        kept = next((OFFLOADING[c] for c in _connectors(self._object("kv-transfer-config")) if c in OFFLOADING), None)
        if kept is not None:
            self._set("kv-transfer-config", OFFLOAD, kept)
        size = self._value("kv-offloading-size")
        if isinstance(size, int | float) and size > 0:
            backend = "LMCache" if self._value("kv-offloading-backend") == "lmcache" else "host memory"
            self._set("kv-offloading-size", OFFLOAD, backend, f"{size:g} GiB over all tensor-parallel ranks")

    def _offload(self) -> None:
        """Weights that stay in host memory; how many of a device's bytes is not modelled."""
        size = self._value("cpu-offload-gb")
        if isinstance(size, int | float) and size > 0:
            self._set("cpu-offload-gb", KEPT, f"{size:g} GiB of weights a device in host memory")
        elif self._count("offload-group-size", 0):
            self._set("offload-group-size", KEPT, "weights of some layers in host memory")

    def _attention_backend(self) -> None:
        backend = self._object("attention-config").get("backend")
        if isinstance(backend, str) and BACKEND not in self.settings:
            self._set("attention-config", BACKEND, backend)
        environment = self.invocation.env.get("VLLM_ATTENTION_BACKEND")
        if environment is not None and environment.text and not environment.unresolved and BACKEND not in self.settings:
            self.settings[BACKEND] = Setting(BACKEND, environment.text, environment.place, "VLLM_ATTENTION_BACKEND")

    def _graphs(self) -> None:
        compiled = self._object("compilation-config")
        if self._value("enforce-eager") is not None:
            self._set("enforce-eager", EAGER, self._value("enforce-eager"))
        if str(compiled.get("cudagraph_mode") or "").upper() == "NONE":
            self._set("compilation-config", EAGER, True, "no mode")
        sizes = compiled.get("cudagraph_capture_sizes")
        listed = [size for size in sizes if isinstance(size, int)] if isinstance(sizes, list) else []
        largest = compiled.get("max_cudagraph_capture_size") or max(listed, default=0)
        if isinstance(largest, int) and largest > 0:
            self._set("compilation-config", LARGEST, largest)
        for name in SIZES:
            self.asked.add(name)
            given = self.given.get(name)
            if given is not None and given.largest:
                self._set(name, LARGEST, given.largest)

    def _values(self) -> None:
        """Values that the parser of this release refuses."""
        for name, ranges in CHOICES.items():
            given = self.given.get(name)
            for first, last, known in ranges:
                if given is not None and between(self.numbers, first, last) and str(given.value) not in known:
                    self._trouble(
                        "bad-value",
                        given.word,
                        f"vLLM {self.version} takes --{name} {', '.join(known)}, not {str(given.value)[:40]!r}",
                        "choose one of these, or a newer release",
                    )
        for given in self.line.given.values():
            if given.flag.kind == "switch" and given.word.text and self._takes_no_value(given):
                switched = given.value is given.flag.sets
                self._trouble(
                    "bad-value",
                    given.word,
                    f"vLLM {self.version} takes no value after --{given.flag.name}: its parser refuses "
                    f"{given.word.text[:40]!r}",
                    f"write --{'' if switched else 'no-'}{given.flag.name}",
                )
        length = self.given.get("max-model-len")
        if length is not None and between(self.numbers, "0.6.6", "0.7.3") and length.word.text[-1:].isalpha():
            self._trouble(
                "bad-value",
                length.word,
                f"vLLM {self.version} takes a plain number of tokens, not {length.word.text[:40]!r}",
                f"write {length.value}" if isinstance(length.value, int) else "",
            )

    def _takes_no_value(self, given: Given) -> bool:
        if between(self.numbers, "0.8.5"):
            return True
        return between(self.numbers, "0.6.6", "0.7.3") and given.flag.name != "enable-chunked-prefill"

    def _combinations(self) -> None:
        """Arguments that the engine refuses together."""
        tensor, context = self._count("tensor-parallel-size"), self._count("decode-context-parallel-size")
        if tensor % context and between(self.numbers, "0.11.0"):
            self._trouble(
                "unsupported",
                self.given["decode-context-parallel-size"].word,
                f"decode context parallel {context} does not divide tensor parallel {tensor}: vLLM splits a "
                "tensor-parallel group into groups of that size",
                f"use a divisor of {tensor}",
            )
        balanced = self.given.get("enable-eplb")
        if balanced is None or not balanced.value or not between(self.numbers, "0.10.0"):
            return
        if not self._value("enable-expert-parallel"):
            self._trouble(
                "unsupported",
                balanced.spelled,
                "vLLM balances experts only over expert-parallel ranks, and --enable-expert-parallel is not given",
                "add --enable-expert-parallel",
            )

    def _engine_core(self) -> None:
        """What the older engine core (V0) leaves off unless it is asked for."""
        older = self._older_core()
        if older is not None:
            at, spelling = older
            length = self._value("max-model-len")
            values: list[tuple[KeyPath, object]] = [(REUSE, False), (SEQUENCES, 256)]
            if isinstance(length, int) and length <= 32768:
                values.append((CHUNKED, False))
            for path, value in values:
                if path not in self.settings:
                    self.settings[path] = Setting(path, value, at.place, spelling, "default of the V0 engine")
            return
        chunked = self.line.get("enable-chunked-prefill")
        whole = chunked is not None and chunked.value is False
        if chunked is not None and whole and not chunked.word.text and between(self.numbers, "0.8.5", "0.10.1.1"):
            self.settings.pop(CHUNKED, None)
            self._trouble(
                "lost",
                chunked.spelled,
                f"the V1 engine of vLLM {self.version} always cuts prompts into chunks, whatever the flag says",
                "take it out",
            )

    def _older_core(self) -> tuple[Word, str] | None:
        """The word that makes a release with both engine cores start the older one, and how it is spelled."""
        if not between(self.numbers, "0.8", "0.10.99"):
            return None
        switch = self.invocation.env.get("VLLM_USE_V1")
        if switch is not None:
            return (switch, "VLLM_USE_V1") if switch.text == "0" else None
        for name in FALLS_BACK:
            given = self.given.get(name)
            if given is None or gone(given.flag, self.version):
                # A release that no longer parses the flag starts nothing.
                continue
            if not (name == "num-scheduler-steps" and given.value == 1):
                return given.spelled, f"--{name}"
        return None


def _is_folder(model: str) -> bool:
    return model.startswith(("/", ".", "~", "s3://", "gs://", "hf://", "oci://", "pvc://"))


def _connectors(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the connector of a ``--kv-transfer-config`` and of those that it joins."""
    name = config.get("kv_connector")
    if isinstance(name, str):
        yield name
    extra = config.get("kv_connector_extra_config")
    joined = extra.get("connectors") if isinstance(extra, dict) else None
    for inner in joined if isinstance(joined, list) else ():
        if isinstance(inner, dict) and isinstance(inner.get("kv_connector"), str):
            yield inner["kv_connector"]


def _spelled_out(words: Iterable[Word]) -> Iterator[Word]:
    """Words with ``-O3`` left out (a level of compilation, no figure) and ``-O.key`` spelled in full."""
    level = False
    for word in words:
        text = word.text
        if level and text in ("0", "1", "2", "3"):
            level = False
            continue
        if level:
            yield word._replace(text="--compilation-config")
        level = text == "-O"
        if level or (text.startswith("-O") and text[2:].lstrip("=") in ("0", "1", "2", "3")):
            continue
        yield word._replace(text=f"--compilation-config{text[2:]}") if text.startswith(("-O.", "-O{", "-O=")) else word


def _additional(env: Mapping[str, Word]) -> Iterator[Word]:
    """Arguments that KServe's runtimes take from one variable."""
    found = env.get("VLLM_ADDITIONAL_ARGS")
    if found is None or found.unresolved or not found.text:
        return
    try:
        parts = shlex.split(found.text)
    except ValueError:
        return
    yield from (found._replace(text=part) for part in parts)


def _from_environment(invocation: Invocation, has_words: bool) -> Iterator[Word]:
    """Flags as upper-case variables, as an image that starts the engine from its environment has them."""
    image = repository(invocation.image.text) if invocation.image is not None else ""
    if "runpod" not in image and "worker-vllm" not in image and (has_words or "MODEL_NAME" not in invocation.env):
        return
    flags = table().flags
    for variable, value in invocation.env.items():
        name = "model" if variable == "MODEL_NAME" else variable.lower().replace("_", "-")
        flag = flags.get(name)
        if flag is None or not variable.isupper() or not value.text or value.unresolved:
            continue
        if flag.kind == "switch":
            off = value.text.lower() in ("false", "0", "no", "off")
            yield value._replace(text=f"--{'no-' if off else ''}{name}")
        else:
            yield value._replace(text=f"--{name}={value.text}")
