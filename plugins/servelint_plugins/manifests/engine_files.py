"""Configuration files of the engines: vLLM and SGLang ``--config``, TensorRT-LLM options, Triton JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Invocation, Word
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common

SOURCES = (
    "vllm-project/vllm vllm/utils/argparse_utils.py",
    "sgl-project/sglang python/sglang/srt/server_args_config_parser.py",
    "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py",
)
MOST_KEYS = 300
"""No engine has more arguments."""

SHARED = frozenset(
    {
        "model",
        "model-path",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "dtype",
        "quantization",
        "port",
        "host",
        "served-model-name",
        "trust-remote-code",
        "kv-cache-dtype",
        "block-size",
        "attention-backend",
        "uvicorn-log-level",
    }
)
"""Keys that several engines have."""

BENCHMARK: Mapping[str, str] = {
    "tp_size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
    "ep": "moe_expert_parallel_size",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_free_gpu_memory_fraction",
}
"""Keys of files for trtllm-bench beside the arguments themselves, which it keeps under ``llm_api_args``."""


def read(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engine whose options a flat mapping holds; at least two keys must be an engine's own."""
    for document in file.documents:
        if document.kind != "mapping" or document.get("apiVersion") is not None or document.get("services") is not None:
            continue
        options = dict(document.items())
        inner = document.get("llm_api_args")
        if len(options) > MOST_KEYS:
            continue
        engine = "tensorrt-llm" if inner is not None else _engine(options)
        if engine is None:
            continue
        common.refuse_template(file)
        if engine == "tensorrt-llm":
            held = {BENCHMARK.get(k, k): v for k, v in options.items() if k != "llm_api_args"}
            options = {**(dict(inner.items()) if inner is not None else {}), **held}
        model = document.scalar("model") or document.scalar("model-path") or document.scalar("model_path")
        served = document.scalar("served-model-name") or document.scalar("served_model_name")
        yield Invocation(
            f"options of {engine}",
            "engine-options",
            document.place,
            engine=Word(engine, document.place),
            options=options,
            model=common.published(common.hub(model)) or common.published(served) or model,
        )


def _engine(options: Mapping[str, Node]) -> str | None:
    """The engine that the keys belong to; one key alone tells nothing, and a file of shared keys is vLLM's."""
    names = {k.replace("_", "-") for k in options}
    engine = common.engine_of(names)
    if engine is None:
        return "vllm" if "tensor-parallel-size" in names and names <= SHARED else None
    others = [n for n in names if n in SHARED or common.engine_of((n,)) == engine]
    return engine if len(others) > 1 else None
