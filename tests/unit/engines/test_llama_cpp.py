"""llama.cpp's server: slots and their context, formats by the file's name, devices, drafts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from servelint.config import Config
from servelint.launch.invocation import Invocation, Reading, Word
from servelint.launch.reading import starts
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.place import Place
from servelint.review import Review
from servelint.spec.document import parse
from servelint_plugins.engines import llama_cpp
from servelint_plugins.engines.llama_cpp_arguments import CACHE_FORMATS, FILE_TYPES, file_type
from servelint_plugins.engines.llama_cpp_arguments import read as read_arguments

HERE = Place(1, 1, 1, 2)


def read(text: str = "", version: str | None = None, devices: str = "", image: str = "", **env: str) -> Reading:
    line = tuple(Word(part, HERE) for part in shlex.split(text))
    return read_arguments(
        Invocation(
            "chat",
            "spec",
            HERE,
            commands=(line,),
            env={name: Word(value, HERE) for name, value in env.items()},
            devices=Word(devices, HERE) if devices else None,
            image=Word(image, HERE) if image else None,
        ),
        line,
        version,
    )


def settings(reading: Reading) -> dict[str, Any]:
    return {".".join(map(str, s.path)).removeprefix("policy."): s.value for s in reading.settings}


@pytest.mark.parametrize(
    ("text", "version", "length", "slots"),
    [
        # The context is divided over slots that were asked for, and shared by those that the server chose.
        ("-c 32768 -np 4", None, 8192, 4),
        ("--ctx-size 32768 --parallel 4", "b5000", 8192, 4),
        ("-c 32768 -np 4 -kvu", None, 32768, 4),
        ("-c 32768", "b9265", 32768, None),
        ("-c 32768 -no-kvu", "b9265", 8192, None),
        ("-c 32768", "b5000", 32768, None),
        ("-c 0 -np 2", None, None, 2),
        ("-np -1 -c 1024", "b9265", 1024, None),
        ("--kv-unified-per-slot 4096 -np 4", None, 4096, 4),
    ],
)
def test_the_context_of_a_slot(text: str, version: str | None, length: int | None, slots: int | None) -> None:
    found = settings(read(text, version))
    assert (found.get("model.max_model_len"), found.get("batching.max_sequences")) == (length, slots)


@pytest.mark.parametrize(
    ("text", "tokens"), [("-c 32768 -np 4", 32768), ("-c 32768", 32768), ("-np 4", None), ("-c 0 -np 4", None)]
)
def test_the_cache_is_as_large_as_the_context_whoever_shares_it(text: str, tokens: int | None) -> None:
    assert settings(read(text)).get("kv_cache.max_tokens") == tokens


SERVED = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[engine]
name = "llama.cpp"
version = "{build}"
args = "{arguments}"
[workload]
prompt_tokens = 4000
output_tokens = 400
{load}
"""


@pytest.mark.parametrize(
    ("build", "arguments", "load", "expected"),
    [
        # A running request holds 4,200 tokens on average, and eight that begin together all end at 4,400.
        ("b9265", "-c 33599 -np 8 -kvu", "concurrency = 8", "ERROR"),
        ("b9265", "-c 33601 -np 8 -kvu", "concurrency = 8", "WARNING"),
        ("b9265", "-c 35200 -np 8 -kvu", "concurrency = 8", None),
        ("b9265", "-c 35200 -np 8", "concurrency = 8", None),
        ("b9265", "-c 16000 -np 4 -kvu", "concurrency = 3", None),
        # Slots that are asked for are there to be used; those of the default only by a load.
        ("b9265", "-c 16000 -np 4 -kvu", "", "WARNING"),
        ("b9265", "-c 16000", "", None),
        ("b9265", "-c 16000", "concurrency = 4", "ERROR"),
        # One slot, as older builds have it, has no one to share with.
        ("b5000", "-c 16000", "concurrency = 4", None),
    ],
)
def test_requests_of_slots_that_share_a_cache_fit_in_it_or_fail(
    plugins: Plugins, build: str, arguments: str, load: str, expected: str | None
) -> None:
    text = SERVED.format(build=build, arguments=arguments, load=load)
    found = Linter(plugins, Config(), Path()).check("a.toml", text).findings
    levels = [f.finding.severity.name for f in found if f.finding.code == "MEM003" and f.finding.severity is not None]
    assert levels == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("text", "value", "written", "slots", "divided"),
    [
        ("-c 32770 -np 4", 8192, 32770, 4, True),
        ("-c 32768 -np 4 -kvu", 32768, 32768, 4, False),
        ("-c 32768", 32768, 32768, 4, False),
        ("-c 32768 -np 1", 32768, 32768, 1, False),
    ],
)
def test_a_setting_says_what_is_written_and_for_how_many(
    text: str, value: int, written: int, slots: int, divided: bool
) -> None:
    (made,) = [s for s in read(text).settings if s.path == ("model", "max_model_len")]
    assert (made.value, made.written, made.slots, made.divided) == (value, written, slots, divided)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-m /models/Llama-3.1-8B-Instruct-Q4_K_M.gguf", {"quantization.weights": "q4_k_m"}),
        ("-hf ggml-org/Qwen3-8B-GGUF:Q8_0", {"model.id": "ggml-org/Qwen3-8B-GGUF", "quantization.weights": "q8_0"}),
        ("-hf ggml-org/Qwen3-8B-GGUF", {"quantization.weights": "q4_k_m"}),
        ("-hf a/b-GGUF -hff b-Q6_K.gguf", {"quantization.weights": "q6_k"}),
        ("-m a.gguf -b 1024 -ub 256", {"batching.max_batched_tokens": 1024, "batching.prefill_chunk": 256}),
        ("-ctk q8_0 -ctv q8_0", {"quantization.kv_cache": "q8_0"}),
        ("-ctk q8_0 -ctv q4_0", {"quantization.kv_cache": "q8_0"}),
        ("-ctk f16 -ctv q8_0", {"quantization.kv_cache": "fp16"}),
        ("--no-cache-prompt", {"kv_cache.prefix_reuse": False}),
        ("-ts 3,1", {"parallelism.pipeline": 2}),
        ("-ts 1,1,1,1 -sm row", {"parallelism.tensor": 4}),
        ("-md small.gguf --draft 8", {"speculation.method": "draft", "speculation.tokens": 8}),
        ("--spec-type draft-mtp", {"speculation.method": "mtp", "speculation.tokens": 3}),
    ],
)
def test_arguments_set_keys(text: str, expected: dict[str, Any]) -> None:
    found = settings(read(text))
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("-m model.gguf", "quantization.weights"),
        ("-hf a/b-GGUF:UD-Q4_K_XL", "quantization.weights"),
        ("-ctk q8_0", "quantization.kv_cache"),
        ("-ts 1,0", "parallelism.pipeline"),
        ("-ts 1,1 -sm none", "parallelism.pipeline"),
    ],
)
def test_arguments_that_set_nothing(text: str, absent: str) -> None:
    assert absent not in settings(read(text))


def test_variables_stand_for_flags() -> None:
    found = settings(read(LLAMA_ARG_CTX_SIZE="4096", LLAMA_ARG_N_PARALLEL="2", LLAMA_ARG_MODEL="/m/x.Q4_0.gguf"))
    assert found["model.max_model_len"] == 2048
    assert found["quantization.weights"] == "q4_0"


@pytest.mark.parametrize(("text", "axis"), [("-m a.gguf", "pipeline"), ("-m a.gguf -sm row", "tensor")])
def test_devices_are_split_by_layers_unless_told(text: str, axis: str) -> None:
    assert settings(read(text, devices="4"))[f"parallelism.{axis}"] == 4


def test_flash_attention_with_and_without_a_value() -> None:
    assert not read("-fa -c 4096").troubles
    assert settings(read("-fa on -c 4096"))["model.max_model_len"] == 4096


def test_flags_that_are_not_in_the_table_are_left_alone() -> None:
    assert not read("--no-such-flag 3 -c 4096").troubles


def test_the_build_of_an_image() -> None:
    found = settings(read("-c 8192", image="ghcr.io/ggml-org/llama.cpp:server-cuda-b4719"))
    assert found["engine.version"] == "b4719"
    assert "engine.version" not in settings(read("-c 8192", image="ghcr.io/ggml-org/llama.cpp:server"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen3-8B-Q5_K_M.gguf", "q5_k_m"),
        ("qwen3-8b-q4_0.gguf", "q4_0"),
        ("model.IQ4_XS.gguf", "iq4_xs"),
        ("model-BF16-00001-of-00002.gguf", "bf16"),
        ("Q4.gguf", None),
        ("IQ2_XXS.gguf", None),
        ("plain.gguf", None),
    ],
)
def test_the_format_by_a_name(name: str, expected: str | None) -> None:
    assert file_type(name) == expected


@pytest.mark.parametrize("name", sorted({*FILE_TYPES.values(), *CACHE_FORMATS.values()}))
def test_every_format_is_in_the_catalogue(plugins: Plugins, name: str) -> None:
    assert name in plugins.formats
    assert name not in CACHE_FORMATS.values() or plugins.formats[name].kv_cache


@pytest.mark.parametrize(
    ("name", "gib"), [("q4_k_m", 4.58), ("q8_0", 7.95), ("q6_k", 6.14), ("q5_k_m", 5.33), ("iq4_xs", 4.17)]
)
def test_weights_are_as_large_as_the_published_files(plugins: Plugins, name: str, gib: float) -> None:
    # tools/quantize/README.md: sizes of Llama-3.1-8B.
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/rtx-4090"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
        f'[engine]\nname = "llama.cpp"\n[policy.quantization]\nweights = "{name}"\n'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    assert composition.memory.weights_bytes / 2**30 == pytest.approx(gib, rel=0.005)


@pytest.mark.parametrize(("version", "slots"), [(None, 4), ("b9265", 4), ("b5000", 1)])
def test_slots_by_build(plugins: Plugins, version: str | None, slots: int) -> None:
    stated = f'version = "{version}"\n' if version else ""
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/rtx-4090"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
        f'[engine]\nname = "llama.cpp"\n{stated}'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    assert composition.context.configs["batching"].max_sequences == slots


@pytest.mark.parametrize("command", ["llama-server -c 1", "/app/llama-server -c 1"])
def test_what_starts_it(plugins: Plugins, command: str) -> None:
    line = tuple(Word(part, HERE) for part in command.split())
    engine, words = starts(Invocation("x", "t", HERE, commands=(line,)), dict.fromkeys(plugins.engines.values()))
    assert (engine, len(words)) == (llama_cpp.ENGINE, 2)
