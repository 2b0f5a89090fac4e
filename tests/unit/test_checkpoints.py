"""Checkpoints by name, methods of quantization, parts of a model outside the devices: what is known of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main
from servelint.manager import Plugins
from servelint.opening import open_manifest
from servelint.review import Review
from servelint.rule import Case, Severity
from servelint.spec.document import parse
from servelint.testing.rules import run_case

H100 = "nvidia/h100-sxm5-80gb"
SPEC = 'servelint = 1\n[hardware]\naccelerator = "{device}"\n[model]\nid = "{model}"\nmax_model_len = 8192\n{more}'


def launched(plugins: Plugins, command: str, device: str = H100) -> Review:
    (document,) = open_manifest("run.sh", command, plugins, {("hardware", "accelerator"): device})
    return Review(document, plugins, Path())


def spec(plugins: Plugins, model: str, more: str = "", device: str = H100) -> Review:
    return Review(
        parse("a.toml", SPEC.format(device=device, model=model, more=more), plugins.policies), plugins, Path()
    )


def gb(review: Review) -> int:
    assert review.memory is not None
    return round(review.memory.weights_bytes / 1e9)


def found(review: Review, plugins: Plugins, code: str) -> list[Any]:
    rule = next(r for r in plugins.rules if r.code == code)
    return list(rule().check(review))


@pytest.mark.parametrize(
    ("name", "base", "format_"),
    [
        ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B", "int4-g128"),
        ("Qwen/Qwen3-32B-GPTQ-Int4", "Qwen/Qwen3-32B", "int4-g128"),
        ("JunHowie/Qwen3-32B-GPTQ-Int8", "Qwen/Qwen3-32B", "int8-g128"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "Qwen/Qwen3-32B", "fp8"),
        ("RedHatAI/Qwen3-32B-FP8-block", "Qwen/Qwen3-32B", "fp8-block128"),
        ("RedHatAI/Qwen3-32B-quantized.w4a16", "Qwen/Qwen3-32B", "int4-g128"),
        ("RedHatAI/Qwen3-32B-quantized.w8a8", "Qwen/Qwen3-32B", "int8"),
        ("unsloth/Qwen3-32B-unsloth-bnb-4bit", "Qwen/Qwen3-32B", "nf4"),
        ("RedHatAI/Qwen3-32B-NVFP4", "Qwen/Qwen3-32B", "nvfp4"),
        ("qwen3_32b-awq", "Qwen/Qwen3-32B", "int4-g128"),
        ("bartowski/Qwen2.5-32B-Instruct-GGUF", "Qwen/Qwen2.5-32B-Instruct", None),
        ("/models/Qwen2.5-32B-Instruct-Q4_K_M.gguf", "Qwen/Qwen2.5-32B-Instruct", "q4_k_m"),
        ("https://h/Qwen2.5-32B-Instruct-Q8_0-00001-of-00002.gguf", "Qwen/Qwen2.5-32B-Instruct", "q8_0"),
    ],
)
def test_a_name_says_model_and_format(name: str, base: str, format_: str | None, plugins: Plugins) -> None:
    read = plugins.checkpoint(name)
    assert read is not None
    assert (plugins.models.resolve(base), format_) == read


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-32B",
        # The catalogue has this one, with the matrices that it leaves alone.
        "Qwen/Qwen3-32B-FP8",
        "Qwen/Qwen3-32B-MLX",
        "Qwen/Qwen3-32B-Thinking",
        "Qwen/Qwen99-32B-AWQ",
        "AWQ",
        "",
        "/models/Qwen3-32B-AWQ",
        "/models/qwen3-32b-ours.gguf",
        "-" * 500 + "AWQ",
    ],
)
def test_a_name_says_nothing(name: str, plugins: Plugins) -> None:
    assert plugins.checkpoint(name) is None


def test_a_checkpoint_is_its_model_in_its_format(plugins: Plugins) -> None:
    assert gb(spec(plugins, "Qwen/Qwen3-32B")) == 66
    awq = spec(plugins, "Qwen/Qwen3-32B-AWQ")
    assert gb(awq) == 19
    said = awq.assumption("policy", "quantization", "weights")
    assert said is not None
    assert (said.value, "Qwen/Qwen3-32B-AWQ" in said.reason) == ("int4-g128", True)
    fp8 = spec(plugins, "RedHatAI/Qwen3-32B-FP8-dynamic")
    assert gb(fp8) == 34
    # What the spec declares is not assumed.
    declared = spec(plugins, "Qwen/Qwen3-32B-AWQ", '[policy.quantization]\nweights = "fp8"\n')
    assert (gb(declared), declared.assumption("policy", "quantization", "weights")) == (34, None)


def test_files_of_weights_need_a_format_where_the_model_has_none_of_its_own(plugins: Plugins) -> None:
    name = "bartowski/Qwen2.5-32B-Instruct-GGUF"
    assert spec(plugins, name).architecture is None
    assert gb(spec(plugins, name, '[policy.quantization]\nweights = "q4_k_m"\n')) == 20
    published = gb(spec(plugins, "openai/gpt-oss-20b"))
    assert gb(spec(plugins, "ggml-org/gpt-oss-20b-GGUF")) == published
    assert gb(spec(plugins, "gpt-oss-20b-mxfp4.gguf")) == published
    # What a format of experts leaves open is not guessed.
    assert spec(plugins, "amd/Qwen3-32B-MXFP4").architecture is None


def test_a_name_without_a_format_is_told_what_to_write(plugins: Plugins) -> None:
    review = spec(plugins, "Qwen/Qwen3-32B-MLX")
    assert review.architecture is None
    (problem,) = review.unresolved
    assert 'set model.id = "Qwen/Qwen3-32B" and policy.quantization.weights' in problem.message


@pytest.mark.parametrize(
    ("command", "weights", "assumed"),
    [
        ("vllm serve {m} --quantization bitsandbytes", "nf4", False),
        ("vllm serve {m} -q awq_marlin", "int4-g128", False),
        ("vllm serve {m} -q gptq_marlin", "int4-g128", True),
        ("vllm serve {m} -q compressed-tensors", "int4-g128", True),
        ("vllm serve {m} -q my_own_method", "int4-g128", True),
        ("vllm serve {m} -q modelopt_fp4", "nvfp4", False),
        ("vllm serve {m} -q fp8", "fp8", False),
        ("vllm serve {m} -q none", None, False),
        ("python -m sglang.launch_server --model-path {m} --quantization w8a8_int8", "int8", False),
        ("python -m sglang.launch_server --model-path {m} --quantization bitsandbytes", "nf4-double", False),
        ("text-generation-launcher --model-id {m} --quantize bitsandbytes-nf4", "nf4-double", False),
        ("text-generation-launcher --model-id {m} --quantize bitsandbytes", "int8-weight-only", False),
        ("text-generation-launcher --model-id {m} --quantize gptq", "int4-g128", False),
        ("text-generation-launcher --model-id {m} --quantize exl2", "int4-g128", True),
    ],
)
def test_every_method_decides_what_weights_take(
    command: str, weights: str | None, assumed: bool, plugins: Plugins
) -> None:
    review = launched(plugins, command.format(m="meta-llama/Llama-3.3-70B-Instruct"))
    assert review.policy("quantization").weights == weights
    said = review.assumption("policy", "quantization", "weights")
    assert (said is not None) is assumed
    if assumed:
        assert said is not None
        assert "4 taken" in said.reason


def test_experts_alone_are_converted(plugins: Plugins) -> None:
    review = launched(plugins, "vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 -q experts_int8")
    assert (review.policy("quantization").covers, gb(review)) == (("routed_experts",), 48)


@pytest.mark.parametrize(
    ("command", "weights"),
    [
        # The method repeats what the checkpoint is stored in, by catalogue or by name.
        ("vllm serve Qwen/Qwen3-32B-FP8 -q fp8", 34),
        ("vllm serve Qwen/Qwen3-32B-FP8 -q compressed-tensors", 34),
        ("vllm serve Qwen/Qwen3-32B-AWQ -q awq_marlin --dtype half", 19),
        ("vllm serve Qwen/Qwen3-32B-AWQ -q fp8", 19),
        # Fewer bits than the model was published in: something else is loaded under its name.
        ("vllm serve Qwen/Qwen3-32B-FP8 -q awq", 19),
    ],
)
def test_a_method_and_what_is_known_of_the_checkpoint(command: str, weights: int, plugins: Plugins) -> None:
    assert gb(launched(plugins, command)) == weights


def test_files_say_their_format_whatever_the_model_is_published_in(plugins: Plugins) -> None:
    published = launched(plugins, "llama-server -hf ggml-org/gpt-oss-20b-GGUF -c 4096")
    assert published.policy("quantization").weights is None
    assert (
        launched(plugins, "llama-server -hf x/gpt-oss-20b-GGUF:Q8_0 -c 4096").policy("quantization").weights == "q8_0"
    )
    first = launched(plugins, "llama-server -hf x/Qwen2.5-32B-Instruct-GGUF -c 4096")
    assert first.policy("quantization").weights == "q4_k_m"
    assert first.assumption("policy", "quantization", "weights") is not None


def test_a_spec_and_the_checkpoint_that_it_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text("vllm serve Qwen/Qwen3-32B-AWQ --max-model-len 8192\n")
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/l40s"\n[model]\nid = "Qwen/Qwen3-32B"\n'
        '[engine]\nname = "vllm"\nargs_from = { file = "run.sh" }\n'
    )
    (tmp_path / "a.toml").write_text(text)
    assert main(["check", str(tmp_path / "a.toml"), "--format", "json"]) == 0
    assert "MEM001" not in {f["code"] for f in json.loads(capsys.readouterr().out)["findings"]}
    # What the spec declares goes before what a name says.
    (tmp_path / "a.toml").write_text(text + '[policy.quantization]\nweights = "bf16"\n')
    assert main(["check", str(tmp_path / "a.toml"), "--format", "json"]) == 1
    codes = {f["code"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert "MEM001" in codes
    assert "SPEC006" not in codes


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("vllm serve {m} --cpu-offload-gb 80", "80 GiB"),
        ("vllm serve {m} --offload-group-size 8", "some layers"),
        ("python -m sglang.launch_server --model-path {m} --cpu-offload-gb 80", "80 GiB"),
        (
            "llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -ngl 40",
            "40 of 80 layers on devices, the rest and the output in host memory",
        ),
        (
            "llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -ngl 80",
            "80 of 80 layers on devices, the output in host memory",
        ),
        ("llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf --n-cpu-moe 20", "experts"),
        ("llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -ot exps=CPU", "--override-tensor"),
        ("llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -nkvo", "KV cache"),
    ],
)
def test_what_lies_outside_the_devices_is_not_judged(command: str, kept: str, plugins: Plugins) -> None:
    review = launched(plugins, command.format(m="meta-llama/Llama-3.3-70B-Instruct"), "nvidia/l4")
    assert kept in str(review.offloaded)
    for code in ("MEM001", "MEM002", "MEM006"):
        (lacks,) = found(review, plugins, code)
        assert kept in lacks.what


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve {m} --cpu-offload-gb 0",
        "python -m sglang.launch_server --model-path {m} --cpu-offload-gb 0",
        "llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -ngl 81",
        "llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -ngl all",
        "llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf -ngl 999999999999",
        "llama-server -m Llama-3.3-70B-Instruct-Q8_0.gguf --n-cpu-moe 0 -ngl 99",
    ],
)
def test_everything_lies_on_the_devices(command: str, plugins: Plugins) -> None:
    review = launched(plugins, command.format(m="meta-llama/Llama-3.3-70B-Instruct"), "nvidia/l4")
    assert review.offloaded is None
    assert [f.severity for f in found(review, plugins, "MEM001")] == [Severity.ERROR]


@pytest.mark.parametrize(
    ("flags", "severity"),
    [
        ("-c 65536 -np 4 -ngl 999", Severity.ERROR),
        ("-c 65536 -np 4 -ngl all", Severity.ERROR),
        ("-c 65536 -np 4 --fit off", Severity.ERROR),
        # 4.29 GB of cache fit beside the weights, if not beside the margin that the server keeps where it chooses.
        ("-c 16384 -np 2 -ngl 99", None),
        # A server that may lower the number of layers starts, and is slow.
        ("-c 65536 -np 4", Severity.WARNING),
        ("-c 65536 -np 4 -ngl auto", Severity.WARNING),
        ("-c 16384 -np 2", None),
    ],
)
def test_a_cache_is_allocated_for_all_slots(flags: str, severity: Severity | None, plugins: Plugins) -> None:
    review = launched(plugins, f"llama-server -m Qwen2.5-32B-Instruct-Q4_K_M.gguf {flags}", "nvidia/rtx-4090")
    assert [f.severity for f in found(review, plugins, "MEM002")] == ([] if severity is None else [severity])


IN_A_SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-4090"
[engine]
name = "llama.cpp"
args = "-m {file}.gguf -c 65536 -np 4{flags}"
{more}
"""


@pytest.mark.parametrize(
    ("flags", "more", "severity"),
    [
        ("", "", Severity.WARNING),
        (" -ngl 99", "", Severity.ERROR),
        (" --fit off", "", Severity.ERROR),
        # What the spec says of its devices goes before what the server would choose.
        ("", "device_layers = 99", Severity.ERROR),
        ("", "device_layers = 20", None),
        ("", 'offload = "experts in host memory"', None),
    ],
)
@pytest.mark.parametrize(
    ("file", "code"), [("Qwen2.5-32B-Instruct-Q4_K_M", "MEM002"), ("Llama-3.3-70B-Instruct-Q4_K_M", "MEM001")]
)
def test_arguments_of_a_spec_are_judged_as_those_of_a_script(
    file: str, code: str, flags: str, more: str, severity: Severity | None, plugins: Plugins
) -> None:
    result = run_case(Case("", IN_A_SPEC.format(file=file, flags=flags, more=more)), plugins)
    said = [f.finding.severity for f in result.findings if f.finding.code == code]
    assert said == ([] if severity is None else [severity])


def test_weights_that_spill_are_a_warning(plugins: Plugins) -> None:
    review = launched(plugins, "llama-server -m Llama-3.3-70B-Instruct-Q4_K_M.gguf -c 8192", "nvidia/rtx-4090")
    (finding,) = found(review, plugins, "MEM001")
    assert (finding.severity, "in host memory" in finding.message) == (Severity.WARNING, True)
    assert review.assumption("engine", "offload") is not None


@pytest.mark.parametrize(
    ("algorithm", "weights", "assumed"),
    [
        ("FP8", "fp8", False),
        ("W4A8_AWQ", "int4-g128", False),
        ("W8A8_SQ_PER_CHANNEL", "int8", False),
        ("W8A16_GPTQ", "int8-g128", False),
        ("MIXED_PRECISION", "int4-g128", True),
        ("NO_QUANT", None, False),
    ],
)
def test_algorithms_of_a_file_of_options(algorithm: str, weights: str | None, assumed: bool, plugins: Plugins) -> None:
    command = (
        f"cat > x.yml <<EOF\nquant_config:\n  quant_algo: {algorithm}\nEOF\n"
        "trtllm-serve meta-llama/Llama-3.3-70B-Instruct --extra_llm_api_options x.yml\n"
    )
    review = launched(plugins, command)
    assert review.policy("quantization").weights == weights
    assert (review.assumption("policy", "quantization", "weights") is not None) is assumed


@pytest.mark.parametrize(
    ("tokens", "severity"),
    [
        # 16-bit weights of 65.5 GB leave 10.95 GB of 76.5 GB: 41,769 tokens, less by what runtime and activations take.
        (32768, None),
        (40960, Severity.WARNING),
        (43008, Severity.ERROR),
    ],
)
def test_a_context_fails_for_certain_without_reserves(tokens: int, severity: Severity | None, plugins: Plugins) -> None:
    command = f"docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B --max-model-len {tokens}"
    review = launched(plugins, command)
    assert [f.severity for f in found(review, plugins, "MEM002")] == ([] if severity is None else [severity])
