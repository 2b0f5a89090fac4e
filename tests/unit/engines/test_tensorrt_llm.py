"""TensorRT-LLM: what `trtllm-serve` and its file of options set, keys that it refuses, how it is started."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from servelint.launch.invocation import Invocation, Reading, Word
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import starts
from servelint.manager import Plugins
from servelint.place import Place
from servelint.releases import image_release
from servelint.review import Review
from servelint.spec.document import parse
from servelint_plugins.engines import tensorrt_llm
from servelint_plugins.engines.tensorrt_llm_arguments import NESTED, TOP
from servelint_plugins.engines.tensorrt_llm_arguments import read as read_arguments

HERE = Place(1, 1, 1, 2)


def read(text: str = "", options: str = "", files: dict[str, str] | None = None) -> Reading:
    line = tuple(Word(part, HERE) for part in shlex.split(text))
    beside = {name: Word(value, HERE) for name, value in (files or {}).items()}
    nodes = dict(ManifestFile("a.yaml", options).documents[0].items()) if options else {}
    return read_arguments(
        Invocation("chat", "spec", HERE, (), commands=(line,), options=nodes, files=beside), line, None
    )


def settings(reading: Reading) -> dict[str, Any]:
    return {".".join(map(str, s.path)).removeprefix("policy."): s.value for s in reading.settings}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/m --tp_size 8", {"model.id": "org/m", "parallelism.tensor": 8}),
        ("serve org/m --tensor_parallel_size 4 --pp_size 2", {"parallelism.tensor": 4, "parallelism.pipeline": 2}),
        ("m --ep_size 4 --tp_size 4", {"parallelism.expert": 4}),
        ("m --max_batch_size 64 --max_num_tokens 4096", {"batching.max_sequences": 64}),
        ("m --max_seq_len 32768", {"model.max_model_len": 32768}),
        ("m --kv_cache_free_gpu_memory_fraction 0.8", {"kv_cache.memory_utilization": 0.8}),
        ("m --free_gpu_memory_fraction 0.8", {"kv_cache.memory_utilization": 0.8}),
        ("m --enable_chunked_prefill", {"batching.chunked_prefill": True}),
        ("--model-path org/m --tp-size 2", {"model.id": "org/m", "parallelism.tensor": 2}),
    ],
)
def test_flags_set_keys(text: str, expected: dict[str, Any]) -> None:
    found = settings(read(text))
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("tensor_parallel_size: 8", {"parallelism.tensor": 8}),
        ("tensor_parallel_size: 8\nenable_attention_dp: true", {"parallelism.attention_data": 8}),
        ("moe_expert_parallel_size: 8\ntensor_parallel_size: 8", {"parallelism.expert": 8}),
        ("kv_cache_config:\n  free_gpu_memory_fraction: 0.75", {"kv_cache.memory_utilization": 0.75}),
        ("kv_cache_config:\n  enable_block_reuse: false", {"kv_cache.prefix_reuse": False}),
        ("kv_cache_config:\n  tokens_per_block: 64", {"kv_cache.page_size": 64}),
        ("kv_cache_config:\n  dtype: fp8", {"quantization.kv_cache": "fp8"}),
        ("kv_cache_config:\n  host_cache_size: 1000000", {"kv_cache.offload": "host memory"}),
        ("kv_cache_config:\n  max_gpu_total_bytes: 1000000", {"kv_cache.memory_bytes": 1000000}),
        (
            "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3",
            {"speculation.method": "mtp", "speculation.tokens": 3},
        ),
        ("speculative_config:\n  decoding_type: MTP", {"speculation.method": "mtp", "speculation.tokens": 1}),
        (
            "speculative_config: {decoding_type: Eagle3, max_draft_len: 4, speculative_model: a/head}",
            {"speculation.method": "eagle", "speculation.tokens": 4},
        ),
        (
            "speculative_config: {decoding_type: Draft_Target, max_draft_len: 4, speculative_model: a/small}",
            {"speculation.method": "draft", "speculation.draft_model": "a/small"},
        ),
        (
            "scheduler_config:\n  capacity_scheduler_policy: MAX_UTILIZATION",
            {"batching.admission": "MAX_UTILIZATION"},
        ),
        ("attn_backend: FLASHINFER", {"engine.attention_backend": "FLASHINFER"}),
        ("cuda_graph_config: {max_batch_size: 64}", {"engine.cuda_graph_max_batch": 64}),
        ("cuda_graph_config: {batch_sizes: [1, 128, 4]}", {"engine.cuda_graph_max_batch": 128}),
        ("cuda_graph_config: null", {"engine.enforce_eager": True}),
        ("kv_cache_config: {max_tokens: 40000}", {"kv_cache.max_tokens": 40000}),
        (
            "quant_config: {quant_algo: FP8, kv_cache_quant_algo: FP8}",
            {"quantization.weights": "fp8", "quantization.kv_cache": "fp8"},
        ),
        ("enable_chunked_prefill: true\nmax_num_tokens: 2048", {"batching.chunked_prefill": True}),
    ],
)
def test_options_set_keys(options: str, expected: dict[str, Any]) -> None:
    found = read(options=options)
    assert not found.troubles
    assert {key: settings(found).get(key) for key in expected} == expected


def test_the_file_goes_before_the_command() -> None:
    found = read(
        "m --tp_size 2 --max_batch_size 8 --extra_llm_api_options /etc/options.yaml",
        files={"options.yaml": "tensor_parallel_size: 4\nkv_cache_config: {free_gpu_memory_fraction: 0.5}\n"},
    )
    assert settings(found)["parallelism.tensor"] == 4
    assert settings(found)["batching.max_sequences"] == 8
    assert settings(found)["kv_cache.memory_utilization"] == 0.5


def test_a_value_of_a_config_map_stands_where_the_manifest_has_it() -> None:
    text = "data:\n  options.yaml: |\n    # first\n\n    kv_cache_config:\n      tokens_per_block: 64\n"
    node = ManifestFile("a.yaml", text).documents[0].get("data", "options.yaml")
    assert node is not None
    line = tuple(Word(part, HERE) for part in ("m", "--config", "/etc/options.yaml"))
    invocation = Invocation("chat", "spec", HERE, commands=(line,), files={"options.yaml": node})
    (setting,) = (s for s in read_arguments(invocation, line, None).settings if s.path[-1] == "page_size")
    assert setting.value == 64
    assert setting.place[:4] == (6, 25, 6, 27)


def test_a_file_that_is_not_there_is_said() -> None:
    (trouble,) = read("m --config options.yaml").troubles
    assert trouble.kind == "unresolved"


@pytest.mark.parametrize(
    ("options", "kind", "help_"),
    [
        ("free_gpu_memory_fraction: 0.8", "unknown", "move it below kv_cache_config"),
        ("capacity_scheduler_policy: MAX_UTILIZATION", "unknown", "move it below scheduler_config"),
        ("kv_cache_config:\n  max_num_tokens: 8", "unknown", "move it to the top level"),
        ("enable_chunked_prefil: true", "unknown", "did you mean enable_chunked_prefill?"),
        ("kv_cache_config:\n  enable_block_resue: true", "unknown", "did you mean enable_block_reuse?"),
        ("kv_cache_config:\n  free_gpu_memory_fraction: 1.5", "bad-value", ""),
        ("scheduler_config:\n  capacity_scheduler_policy: MOST", "bad-value", ""),
        ("speculative_config:\n  decoding_type: NGram", "bad-value", "add max_draft_len"),
        (
            "tensor_parallel_size: 8\nmoe_expert_parallel_size: 4\nmoe_tensor_parallel_size: 4",
            "unsupported",
            "leave moe_tensor_parallel_size out",
        ),
    ],
)
def test_what_is_refused(options: str, kind: str, help_: str) -> None:
    (trouble,) = read(options=options).troubles
    assert (trouble.kind, trouble.help) == (kind, help_)


def test_a_key_at_the_wrong_level_sets_nothing() -> None:
    assert "kv_cache.memory_utilization" not in settings(read(options="free_gpu_memory_fraction: 0.8"))


@pytest.mark.parametrize(
    "options",
    [
        "enable_something_of_tomorrow: true",
        "kv_cache_config:\n  pool_of_tomorrow: 3",
        "tensor_parallel_size: 8\nmoe_expert_parallel_size: 4\nmoe_tensor_parallel_size: 2",
    ],
)
def test_what_may_be_a_newer_release_is_left_alone(options: str) -> None:
    assert not read(options=options).troubles


def test_a_file_for_something_else_is_not_compared_key_by_key() -> None:
    options = "".join(f"max_num_token{i}: 1\n" for i in range(60))
    assert len(read(options=options).troubles) <= 50


def test_every_table_is_a_key_itself() -> None:
    assert set(NESTED) <= TOP


def test_keys_that_change_no_figure_are_named() -> None:
    assert read("m --host x", "print_iter_log: true").unused == ("--host", "print_iter_log")


@pytest.mark.parametrize("text", ["disaggregated -c a.yaml", "mm_embedding_serve m"])
def test_other_commands_serve_no_model(text: str) -> None:
    assert read(text) == Reading()


@pytest.mark.parametrize(
    "command", ["trtllm-serve m", "trtllm-llmapi-launch trtllm-serve m", "python3 -m dynamo.trtllm m"]
)
def test_what_starts_it(plugins: Plugins, command: str) -> None:
    line = tuple(Word(part, HERE) for part in command.split())
    engine, words = starts(Invocation("x", "t", HERE, commands=(line,)), dict.fromkeys(plugins.engines.values()))
    assert engine is tensorrt_llm.ENGINE
    assert [w.text for w in words] == ["m"]


def test_the_image_tag_is_the_release() -> None:
    assert image_release("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6", tensorrt_llm.ENGINE.release_images) == "1.2.0"


def test_old_builds_hold_a_prompt_for_every_sequence(plugins: Plugins) -> None:
    def tokens(version: str, more: str = "") -> int | None:
        text = (
            'servelint = 1\n[hardware]\naccelerator = "nvidia/a100-sxm4-80gb"\n[model]\n'
            f'id = "meta-llama/Llama-2-7b-hf"\n[engine]\nname = "trtllm"\n{version}{more}'
        )
        review = Review(parse("a.toml", text, plugins.policies), plugins, Path())
        assert review.composition is not None
        return review.composition.scheduler.max_batched_tokens

    assert tokens("") == tokens('version = "1.0.0"\n') == tokens('version = "0.11.0"\n') == 8192
    assert tokens('version = "0.5.0"\n') == 8 * 2048
    assert tokens('version = "0.5.0"\n', "[policy.batching]\nmax_sequences = 64\n") == 64 * 2048


@pytest.mark.parametrize(
    ("stated", "page", "says"),
    [
        ("0.10.0", 64, "TensorRT-LLM default"),
        ("0.11.0", 64, "not found"),
        ("0.19.0", 64, "not found"),
        ("0.20.0", 32, "TensorRT-LLM default"),
        (None, 32, f"{tensorrt_llm.ENGINE.assumed} assumed"),
    ],
)
def test_the_default_page_says_where_its_release_was_not_found(
    stated: str | None, page: int, says: str, plugins: Plugins
) -> None:
    version = f'version = "{stated}"\n' if stated else ""
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
        f'[engine]\nname = "tensorrt-llm"\n{version}'
    )
    review = Review(parse("spec.toml", text, plugins.policies), plugins, Path())
    found = review.assumption("policy", "kv_cache", "page_size")
    assert found is not None
    assert (found.value, says in found.reason, "not found" in found.reason) == (page, True, says == "not found")
