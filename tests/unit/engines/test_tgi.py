"""Text Generation Inference: flags and variables, what they set, defaults by release, what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from servelint.launch.invocation import Invocation, Reading, Word
from servelint.launch.reading import starts
from servelint.manager import Plugins
from servelint.place import Place
from servelint.releases import image_release
from servelint.review import Review
from servelint.spec.document import parse
from servelint_plugins.engines import tgi
from servelint_plugins.engines.tgi_arguments import read as read_arguments

HERE = Place(1, 1, 1, 2)


def read(text: str = "", version: str | None = None, **env: str) -> Reading:
    line = tuple(Word(part, HERE) for part in shlex.split(text))
    variables = {name: Word(value, HERE) for name, value in env.items()}
    return read_arguments(Invocation("chat", "spec", HERE, commands=(line,), env=variables), line, version)


def settings(reading: Reading) -> dict[str, Any]:
    return {".".join(map(str, s.path)).removeprefix("policy."): s.value for s in reading.settings}


@pytest.mark.parametrize(
    ("text", "env", "expected"),
    [
        ("--model-id a/b --num-shard 2", {}, {"model.id": "a/b", "parallelism.tensor": 2}),
        ("", {"MODEL_ID": "a/b", "NUM_SHARD": "4"}, {"model.id": "a/b", "parallelism.tensor": 4}),
        ("--num-shard 8", {"NUM_SHARD": "4"}, {"parallelism.tensor": 8}),
        ("", {"SHARDED": "false"}, {"parallelism.tensor": 1}),
        ("", {"MAX_TOTAL_TOKENS": "8192"}, {"model.max_model_len": 8192}),
        (
            "--max-batch-prefill-tokens 4096",
            {},
            {"batching.max_batched_tokens": 4096, "batching.prefill_chunk": 4096},
        ),
        ("--max-concurrent-requests 64", {}, {"batching.max_sequences": 64}),
        ("--max-concurrent-requests 64 --max-batch-size 16", {}, {"batching.max_sequences": 16}),
        ("--max-concurrent-requests 8 --max-batch-size 16", {}, {"batching.max_sequences": 8}),
        ("--cuda-memory-fraction 0.8", {}, {"kv_cache.memory_utilization": 0.72}),
        (
            "",
            {"CUDA_MEMORY_FRACTION": "0.8", "TGI_WIGGLE_ROOM": "0.95"},
            {"kv_cache.memory_utilization": 0.76},
        ),
        ("", {"TGI_WIGGLE_ROOM": "0.8"}, {"kv_cache.memory_utilization": 0.8}),
        ("", {"TGI_WIGGLE_ROOM": "nan"}, {"kv_cache.memory_utilization": None}),
        ("", {"PREFIX_CACHING": "0", "ATTENTION": "paged"}, {"kv_cache.prefix_reuse": False}),
        ("--lora-adapters a", {}, {"kv_cache.prefix_reuse": False}),
        ("--kv-cache-dtype fp8_e4m3fn", {}, {"quantization.kv_cache": "fp8"}),
        ("--model-id a/b --quantize eetq", {}, {"quantization.weights": "int8-weight-only"}),
        ("", {"MODEL_ID": "a/b", "QUANTIZE": "fp8"}, {"quantization.weights": "fp8"}),
        ("--speculate 3", {}, {"speculation.method": "ngram", "batching.chunked_prefill": False}),
    ],
)
def test_arguments_set_keys(text: str, env: dict[str, str], expected: dict[str, Any]) -> None:
    found = settings(read(text, **env))
    assert {key: found.get(key) for key in expected} == expected


def test_a_setting_is_spelled_as_the_variable() -> None:
    (setting,) = read(NUM_SHARD="2").settings
    assert setting.spelling == "NUM_SHARD"


@pytest.mark.parametrize(
    ("text", "version", "kind"),
    [
        ("--no-such-flag 3", "3.3.7", "unknown"),
        ("--no-such-flag 3", "3.4.0", None),
        ("--no-such-flag 3", None, "unlisted"),
        ("--num-shrad 2", "3.4.0", "unknown"),
        ("--kv-cache-dtype fp8_e5m2", "2.3.1", "not-yet"),
        ("--kv-cache-dtype fp8_e5m2", "2.4.0", None),
        ("--disable-usage-stats", "2.3.0", "removed"),
        ("--disable-usage-stats", "2.2.0", None),
        ("--max-input-tokens 4096 --max-total-tokens 4096", None, "unsupported"),
        ("--max-input-tokens 4095 --max-total-tokens 4096", None, None),
        ("--max-input-length 2048", "1.4.5", "unsupported"),
        ("--max-input-length 2047", "1.4.5", None),
        ("--max-input-tokens 100 --max-input-length 100", "2.0.4", "unsupported"),
        ("--max-total-tokens 4096 --max-batch-total-tokens 4095", "3.3.7", "unsupported"),
        ("--max-total-tokens 4096 --max-batch-total-tokens 4096", "3.3.7", None),
        ("--max-input-tokens 5000 --max-total-tokens 6000 --max-batch-prefill-tokens 4096", "2.3.1", "unsupported"),
        ("--max-input-tokens 5000 --max-total-tokens 6000 --max-batch-prefill-tokens 4096", "2.4.0", None),
        ("--quantize exl2 --num-shard 2", None, "unsupported"),
        ("--quantize exl2 --num-shard 1", None, None),
    ],
)
def test_what_is_wrong_with_arguments(text: str, version: str | None, kind: str | None) -> None:
    assert [t.kind for t in read(text, version).troubles] == ([] if kind is None else [kind])


def test_a_variable_that_a_release_does_not_know_does_nothing_wrong() -> None:
    assert not read("", "2.3.1", KV_CACHE_DTYPE="fp8_e5m2", HF_TOKEN="x").troubles


def test_a_bad_value_of_a_variable_is_found() -> None:
    (trouble,) = read(NUM_SHARD="two").troubles
    assert trouble.kind == "bad-value"


def test_the_capacity_that_the_server_measures_is_not_taken_from_a_flag() -> None:
    assert read("--max-batch-total-tokens 200000").unused == ("--max-batch-total-tokens",)


@pytest.mark.parametrize(
    ("version", "share", "cached", "chunked"),
    [
        (None, 0.9, True, True),
        ("3.3.7", 0.9, True, True),
        ("3.1.1", 0.93, True, True),
        ("3.0.1", 0.95, True, True),
        ("2.4.1", 0.9, True, False),
        ("2.2.0", 0.95, False, False),
        ("1.4.1", 0.95, False, False),
        ("1.4.0", 1.0, False, False),
    ],
)
def test_defaults_by_release(plugins: Plugins, version: str | None, share: float, cached: bool, chunked: bool) -> None:
    stated = f'version = "{version}"\n' if version else ""
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
        f'[engine]\nname = "tgi"\n{stated}'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    cache, batching = (composition.context.configs[name] for name in ("kv_cache", "batching"))
    assert (cache.memory_utilization, cache.prefix_reuse) == (share, cached)
    assert (batching.chunked_prefill, batching.max_sequences) == (chunked, 128)
    # Whole prompts are batches of their own, between which others decode.
    assert (batching.mixed_steps, batching.prefill_decode_interval) == (chunked, 0 if chunked else 1)


@pytest.mark.parametrize(
    ("version", "model", "tokens"),
    [
        ("1.4.5", "meta-llama/Llama-3.1-8B", 4096),
        ("2.0.0", "meta-llama/Llama-3.1-8B", 4145),
        ("2.4.0", "meta-llama/Llama-3.1-8B", 4145),
        ("2.4.1", "meta-llama/Llama-3.1-8B", 4096),
        ("3.3.7", "meta-llama/Llama-3.1-8B", 4096),
        ("1.4.5", "google/gemma-2b", 4096),
        ("2.0.0", "microsoft/phi-2", 2097),
        ("3.3.7", "microsoft/phi-2", 2048),
        ("3.1.0", "Qwen/Qwen2-VL-7B-Instruct", 4096),
        ("3.1.1", "Qwen/Qwen2-VL-7B-Instruct", 10_000),
        ("3.1.1", "Qwen/Qwen2.5-VL-7B-Instruct", 10_000),
        ("3.1.1", "google/gemma-3-4b-it", 4096),
        ("3.2.0", "google/gemma-3-4b-it", 8000),
        (None, "google/gemma-3-4b-it", 8000),
        # Without a vision tower it is another type, and no exception.
        ("3.3.7", "google/gemma-3-1b-it", 4096),
    ],
)
def test_prompt_tokens_of_a_step(plugins: Plugins, version: str | None, model: str, tokens: int) -> None:
    stated = f'version = "{version}"\n' if version else ""
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "{model}"\n'
        f'max_model_len = 2048\n[engine]\nname = "tgi"\n{stated}'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    assert composition.context.configs["batching"].max_batched_tokens == tokens


@pytest.mark.parametrize(
    ("text", "version", "tokens"),
    [
        ("--max-input-tokens 9999 --max-total-tokens 10240", "2.4.0", 10_049),
        ("--max-input-length 9999 --max-total-tokens 10240", "2.0.0", 10_049),
        ("--max-input-tokens 1000 --max-batch-size 8", "2.2.0", 8000),
        ("--max-input-tokens 1000 --max-batch-prefill-tokens 4096", "2.2.0", 4096),
        ("--max-input-tokens 9999 --max-total-tokens 10240", "2.4.1", None),
        ("--max-input-length 999", "1.4.5", None),
        ("--max-input-tokens 9999 --max-total-tokens 10240", None, None),
    ],
)
def test_the_longest_prompt_says_what_a_step_takes(text: str, version: str | None, tokens: int | None) -> None:
    reading = read(text, version)
    found = {s.path[1:]: s.value for s in reading.settings}
    assert found.get(("batching", "max_batched_tokens")) == tokens
    assert found["max_prompt_tokens",] == int(text.split()[1])
    assert not [name for name in reading.unused if name.startswith("--max-input")]


def test_the_part_that_is_kept_is_a_variable_from_2_3() -> None:
    kept = ("policy", "kv_cache", "memory_utilization")
    assert [s.value for s in read("", "2.3.0", TGI_WIGGLE_ROOM="0.8").settings if s.path == kept] == [0.8]
    assert not [s for s in read("", "2.2.0", TGI_WIGGLE_ROOM="0.8").settings if s.path == kept]
    (share,) = read("--cuda-memory-fraction 0.8", "1.4.0", TGI_WIGGLE_ROOM="0.5").settings
    assert share.value == 0.8


@pytest.mark.parametrize(
    ("accelerator", "model", "expected"),
    [
        ("nvidia/t4", "meta-llama/Llama-3.1-8B", (1, True, True)),
        # Heads of 96: Flash Decoding, and pages of 16 where the device has none.
        ("nvidia/h100-sxm5-80gb", "microsoft/Phi-3-mini-4k-instruct", (256, False, True)),
        ("nvidia/t4", "microsoft/Phi-3-mini-4k-instruct", (16, False, False)),
    ],
)
def test_kernels_by_heads_and_device(
    plugins: Plugins, accelerator: str, model: str, expected: tuple[int, bool, bool]
) -> None:
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "{accelerator}"\n[model]\nid = "{model}"\n[engine]\nname = "tgi"\n'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    cache, batching = (composition.context.configs[name] for name in ("kv_cache", "batching"))
    assert (cache.page_size, cache.prefix_reuse, batching.chunked_prefill) == expected


def test_the_capacity_that_a_server_logged(plugins: Plugins) -> None:
    # huggingface/text-generation-inference#2744: Llama-3.1-70B on two A100 holds 30,816 tokens.
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/a100-sxm4-80gb"\n[model]\nid = "meta-llama/Llama-3.1-70B"\n'
        '[engine]\nname = "tgi"\nversion = "2.4.1"\n[policy.parallelism]\ntensor = 2\n'
        "[policy.batching]\nmax_batched_tokens = 10049\n"
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    assert composition.memory.capacity_tokens(composition.max_model_len) == pytest.approx(30816, rel=0.35)


def test_what_starts_it(plugins: Plugins) -> None:
    image = Word("ghcr.io/huggingface/text-generation-inference:3.3.6-rocm", HERE)
    engines = dict.fromkeys(plugins.engines.values())
    assert starts(Invocation("x", "t", HERE, image=image), engines)[0] is tgi.ENGINE
    line = tuple(Word(part, HERE) for part in ["text-generation-launcher", "--port", "80"])
    assert starts(Invocation("x", "t", HERE, commands=(line,)), engines) == (tgi.ENGINE, line[1:])
    assert image_release(image.text, tgi.ENGINE.release_images) == "3.3.6"
