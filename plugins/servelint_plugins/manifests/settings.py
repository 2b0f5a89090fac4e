"""Files of keys and values: LMI serving.properties, Triton config.pbtxt, BentoML build arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Invocation, Trouble, Word
from servelint.launch.manifest import ManifestError, ManifestFile
from servelint.place import Place
from servelint_plugins.manifests import common

LMI_SOURCES = ("deepjavalibrary/djl-serving engines/python/setup/djl_python/properties_manager/properties.py",)
TRITON_SOURCES = (
    "triton-inference-server/common protobuf/model_config.proto",
    "triton-inference-server/vllm_backend README.md",
)
BENTOML_SOURCES = ("bentoml/BentoVLLM",)

LMI: Mapping[str, str] = {
    "model_id": "model",
    "tensor_parallel_degree": "tensor-parallel-size",
    "pipeline_parallel_degree": "pipeline-parallel-size",
    "max_rolling_batch_size": "max-num-seqs",
    "max_model_len": "max-model-len",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "max_rolling_batch_prefill_tokens": "max-num-batched-tokens",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "max_num_seqs": "max-num-seqs",
    "quantize": "quantization",
    "quantization": "quantization",
    "dtype": "dtype",
    "kv_cache_dtype": "kv-cache-dtype",
    "block_size": "block-size",
    "enable_prefix_caching": "enable-prefix-caching?",
    "enable_chunked_prefill": "enable-chunked-prefill?",
    "enforce_eager": "enforce-eager?",
    "speculative_draft_model": "speculative-model",
}
"""Options of large-model inference and the flags of vLLM that they are handed on as."""

_LINE = re.compile(r"^[ \t]*(?:option\.|OPTION_)?(?P<key>[A-Za-z_][\w.]*)[ \t]*[=:][ \t]*(?P<value>.*)$", re.M)
_OPTION = re.compile(r"^[ \t]*option\.\w+[ \t]*[=:]", re.M)
_SECTION = re.compile(r"^\[(?P<name>\w+)\][ \t]*\n(?P<body>(?:(?!\[).*(?:\n|\Z))*)", re.M)


def _written(file: ManifestFile, found: re.Match[str], group: str | int) -> Place:
    """Where a value stands, without the blanks after it."""
    start = found.start(group)
    return file.place(start, start + len(found[group].rstrip(" \t")))


def lmi(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the model of a serving.properties, or every one of a list of tests that has such sections."""
    if _OPTION.search(file.text) is None:
        return
    sections = list(_SECTION.finditer(file.text))
    bodies = [(s.start("body"), s.end("body")) for s in sections if s["name"] == "serving_properties"]
    names = [s["body"].strip() for s in sections if s["name"] == "test_name"]
    images = [s["body"].strip() for s in sections if s["name"] == "container"]
    variables = [s["body"] for s in sections if s["name"] == "vars"]
    for number, (start, end) in enumerate(bodies or [(0, len(file.text))]):
        values = {
            m["key"]: Word(m["value"].rstrip(" \t").strip("\"'"), _written(file, m, "value"))
            for m in _LINE.finditer(file.text, start, end)
        }
        place = file.place(start)
        env = {}
        for line in (variables[number] if number < len(variables) else "").splitlines():
            key, separator, value = line.partition("=")
            choices = value.strip("{} ").split(",")
            if separator and len(choices) == 1:
                env[key.strip()] = Word(choices[0].strip(), place)
        rolling = values.get("rolling_batch")
        told = rolling.text.replace("$ENGINE", env.get("ENGINE", Word("", place)).text) if rolling else ""
        troubles: list[Trouble] = []
        words: list[Word] = []
        for key, name in LMI.items():
            word = values.get(key)
            if word is None or word.text == "":
                continue
            if key == "tensor_parallel_degree" and word.text == "max":
                troubles.append(
                    Trouble(
                        "unresolved",
                        word.place,
                        "tensor_parallel_degree is max, every device of the machine, and the file does not say how "
                        "many it has",
                        "name the instance type with --hardware",
                    )
                )
                continue
            if key != "model_id":
                words.append(common.switch(name[:-1], word) if name.endswith("?") else common.flag(name, word))
        image = Word(images[number], place) if number < len(images) else None
        called = names[number] if number < len(names) else ""
        yield Invocation(
            f"serving.properties {called}".rstrip(),
            "lmi",
            place,
            part=(called,) if called else (),
            engine=Word(common.engine_named(told) or "vllm", rolling.place if rolling is not None else place),
            image=image,
            commands=(tuple(words),) if words else (),
            env=env,
            model=common.hub(values.get("model_id")),
            troubles=tuple(troubles),
        )


_PARAMETER = re.compile(
    r"key\s*:\s*\"(?P<key>[^\"]+)\"\s*(?:,\s*)?value\s*(?::\s*)?\{\s*string_value\s*:\s*\"(?P<value>[^\"]*)\"", re.S
)
_BACKEND = re.compile(r"^[ \t]*backend\s*:\s*\"(?P<name>[^\"]+)\"", re.M)
_NO_FLAG = ("model_name", "model", "gpt_model_type", "gpt_model_path", "engine_dir", "tokenizer_dir")
_TRITON: Mapping[str, str] = {
    "tensor_parallel_size": "tensor-parallel-size",
    "pipeline_parallel_size": "pipeline-parallel-size",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "max_model_len": "max-model-len",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "dtype": "dtype",
    "enforce_eager": "enforce-eager?",
    "enable_prefix_caching": "enable-prefix-caching?",
    "enable_chunked_prefill": "enable-chunked-prefill?",
    "kv_cache_dtype": "kv-cache-dtype",
    "quantization": "quantization",
    "block_size": "block-size",
}


def triton(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engine whose arguments stand as parameters of a Triton model.

    ManifestError for a model of the vLLM or TensorRT-LLM backend, whose settings stand elsewhere.
    """
    backend = _BACKEND.search(file.text)
    found = {m["key"]: Word(m["value"], file.place(*m.span("value"))) for m in _PARAMETER.finditer(file.text)}
    words = tuple(
        common.switch(name[:-1], found[key]) if name.endswith("?") else common.flag(name, found[key])
        for key, name in _TRITON.items()
        if key in found
    )
    if not words:
        if backend is not None and backend["name"] in ("vllm", "tensorrtllm"):
            where = "1/model.json" if backend["name"] == "vllm" else "the engine's own config.json"
            raise ManifestError(
                f"a model of the {backend['name']} backend keeps its settings in {where}: name that file",
                file.place(*backend.span("name")),
            )
        return
    yield Invocation(
        "Triton model",
        "triton",
        words[0].place,
        engine=words[0]._replace(text="vllm"),
        commands=(words,),
        model=found.get("model_name") or found.get("model"),
    )


_BENTO: Mapping[str, str] = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "max_model_len": "max-model-len",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "kv_cache_dtype": "kv-cache-dtype",
    "quantization": "quantization",
    "dtype": "dtype",
}


def bentoml(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the model that BentoML's build arguments name. Raises ManifestError for broken TOML that has them."""
    if "[tool.bentoml.build.args" not in file.text:
        return
    import tomli

    try:
        arguments = tomli.loads(file.text)["tool"]["bentoml"]["build"]["args"]
    except RecursionError:
        raise ManifestError("it is nested too deeply", file.place(0)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"it is not valid TOML: {error}", file.place(0)) from None
    if not isinstance(arguments, dict):
        return
    at = file.text.index("[tool.bentoml.build.args")

    def word(key: str) -> Word | None:
        value = arguments.get(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        line = re.compile(rf"^[ \t]*{key}[ \t]*=[ \t]*(.*)$", re.M).search(file.text, at)
        return Word(str(value), _written(file, line, 1) if line is not None else file.place(at))

    model = word("model_id") or word("model")
    if model is None:
        return
    words = [common.flag(flag, found) for key, flag in _BENTO.items() if (found := word(key)) is not None]
    extra = arguments.get("vllm_args") or arguments.get("cli_args")
    if isinstance(extra, list):
        place = file.place(at)
        words += (Word(str(a), place) for a in extra)
    gpu = word("gpu_type")
    name = word("name")
    yield Invocation(
        f"bento {name.text if name is not None else ''}".rstrip(),
        "bentoml",
        model.place,
        part=(name.text,) if name is not None else (),
        engine=model._replace(text="vllm"),
        commands=(tuple(words),) if words else (),
        model=model,
        # A service of these builds has a device for each part of the model.
        devices=word("tp") or (gpu._replace(text="1") if gpu is not None else None),
        hints=common.hint("bentoml/gpu_type", gpu),
    )
