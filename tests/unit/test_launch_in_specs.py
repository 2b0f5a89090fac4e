"""Launch arguments in a spec: whose value counts, where it stands, what a file leaves open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servelint import fixes
from servelint.__main__ import main
from servelint.manager import Plugins
from servelint.opening import open_manifest, open_spec
from servelint.rule import Edit, Fix

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 1
[model]
id = "Qwen/Qwen3-8B"
{model}
[engine]
name = "{engine}"
args_from = {{ file = "{file}"{part} }}
{more}
"""
VLLM = """\
services:
  chat:
    image: vllm/vllm-openai:v0.10.2
    command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "32768", "--max-num-seqs", "64"]
"""
SGLANG = """\
services:
  chat:
    image: lmsysorg/sglang:v0.5.12
    command: ["python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B", "--context-length", "32768"]
"""
POD = """\
kind: Pod
metadata: {{name: chat}}
spec:
  nodeSelector: {{{selector}}}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.11.0
    args: ["--model=Qwen/Qwen3-32B"]
    resources: {{limits: {{{limit}: 1}}}}
"""


def checked(
    folder: Path, capsys: pytest.CaptureFixture[str], manifest: str, *, engine: str = "vllm", part: str = "",
    model: str = "", more: str = "",
) -> Any:  # fmt: skip
    (folder / "launch.yaml").write_text(manifest)
    (folder / "spec.toml").write_text(SPEC.format(engine=engine, file="launch.yaml", part=part, model=model, more=more))
    main(["check", str(folder / "spec.toml"), "--format", "json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("engine", "manifest", "declared", "differs"),
    [
        ("vllm", VLLM, "0.6.0", True),
        ("vllm", VLLM, "0.10", False),
        ("vllm", VLLM, "v0.10.2", False),
        ("vllm", VLLM, "0.1", True),
        # The text of one release may begin that of another.
        ("sglang", SGLANG, "0.5.1", True),
        ("sglang", SGLANG, "0.5.12.post1", False),
    ],
)
def test_a_declared_release_is_held_against_the_tag_of_the_image(
    engine: str, manifest: str, declared: str, differs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(tmp_path, capsys, manifest, engine=engine, more=f'version = "{declared}"')
    paths = [f["key_path"] for f in found["findings"] if f["code"] == "SPEC006"]
    assert paths == (["engine.version"] if differs else [])


def test_an_input_that_the_arguments_override_is_that_of_the_launch_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(
        tmp_path,
        capsys,
        VLLM.replace("32768", "900000"),
        model="max_model_len = 8192",
        more="[policy.quantization]\nkv_cache = 'bf16'",
    )
    inputs = [i for f in found["findings"] for i in f["inputs"] if i["value"] == 900000]
    assert inputs
    assert {(Path(i["file"]).name, i["line"]) for i in inputs} == {("launch.yaml", 4)}


def test_a_value_that_the_arguments_override_is_not_fixed_in_the_spec(tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "launch.yaml").write_text(VLLM)
    text = SPEC.format(engine="vllm", file="launch.yaml", part="", model="max_model_len = 8192", more="")
    document = open_spec(str(tmp_path / "spec.toml"), text, plugins, tmp_path)
    assert document.deployment is not None
    assert document.deployment.model.max_model_len == 32768
    with pytest.raises(fixes.FixError, match="set by the launch file"):
        fixes.replacements(document, Fix("shorter", (Edit(("model", "max_model_len"), "4096"),)))
    assert fixes.replacements(document, Fix("more", (Edit(("hardware", "devices"), "2"),)))


@pytest.mark.parametrize("command", ['["--max-num-seqs", "64"]', '["vllm", "serve", "Qwen/Qwen3-8B"]'])
def test_arguments_of_the_spec_come_after_those_of_its_file(command: str, tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "launch.yaml").write_text(f"services: {{a: {{image: 'vllm/vllm-openai:v0.11.0', command: {command}}}}}")
    text = SPEC.format(
        engine="vllm", file="launch.yaml", part="", model="", more='args = ["--max-num-seqs", "7", "-tp", "1"]'
    )
    document = open_spec(str(tmp_path / "spec.toml"), text, plugins, tmp_path)
    assert document.value(("policy", "batching", "max_sequences")) == 7
    assert document.place(("policy", "batching", "max_sequences")).file == ""


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_list_of_words_at_a_path_leaves_the_degree_to_the_spec(engine: str, tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "launch.yaml").write_text('extra: ["--trust-remote-code"]\n')
    text = SPEC.format(
        engine=engine, file="launch.yaml", part=', path = "extra"', model="", more="[policy.parallelism]\ntensor = 4"
    )
    document = open_spec(str(tmp_path / "spec.toml"), text, plugins, tmp_path)
    assert document.contradictions == ()
    assert document.value(("policy", "parallelism", "tensor")) == 4


@pytest.mark.parametrize(
    ("selector", "limit", "hardware"),
    [
        # --hardware is for manifests that name none.
        ("node.kubernetes.io/instance-type: p5.48xlarge", "nvidia.com/gpu", (None, "aws/p5.48xlarge")),
        ("nvidia.com/gpu.product: NVIDIA-L4", "nvidia.com/gpu", ("nvidia/l4", None)),
        ("disk: ssd", "nvidia.com/gpu", ("nvidia/rtx-4090", None)),
        # The label names the whole device, the container takes a slice of it.
        ("nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB", "nvidia.com/mig-1g.10gb", ("nvidia/rtx-4090", None)),
    ],
)
def test_the_hardware_of_a_manifest_is_what_it_names(
    selector: str, limit: str, hardware: tuple[str | None, str | None], plugins: Plugins
) -> None:
    given = {("hardware", "accelerator"): "nvidia/rtx-4090"}
    (document,) = open_manifest("pod.yaml", POD.format(selector=selector, limit=limit), plugins, given)
    assert document.problems == []
    assert (document.value(("hardware", "accelerator")), document.value(("hardware", "instance"))) == hardware


def test_a_slice_of_a_device_is_not_judged_as_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(
        POD.format(selector="nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB", limit="nvidia.com/mig-1g.10gb")
    )
    assert main(["check", str(path), "--format", "json"]) == 0
    assert {f["code"] for f in json.loads(capsys.readouterr().out)["findings"]} == {"SPEC005"}


def test_a_label_that_names_no_part_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD.format(selector="nvidia.com/gpu.product: NVIDIA-XYZ-9", limit="nvidia.com/gpu"))
    main(["check", str(path), "--format", "json"])
    (message,) = [f["message"] for f in json.loads(capsys.readouterr().out)["findings"] if f["code"] == "SPEC005"]
    assert "it says nvidia.com/gpu.product = NVIDIA-XYZ-9" in message


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ("llama-server -m a.gguf -ot x=CPU -ot y=CPU --api-key a --api-key b -c 8192", []),
        ("vllm serve Qwen/Qwen3-8B --middleware a.b --middleware c.d", []),
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs 8 --max-num-seqs 9", ["ENG003"]),
    ],
)
def test_a_flag_that_adds_up_may_be_given_twice(
    command: str, lost: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "start.sh"
    path.write_text(command + "\n")
    main(["check", str(path), "--format", "json", "--hardware", "nvidia/h100-sxm5-80gb"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [f["code"] for f in found if f["code"] == "ENG003"] == lost


@pytest.mark.parametrize(("version", "older"), [("0.10.0", True), ("0.10.2", False)])
def test_a_flag_that_is_no_longer_parsed_starts_no_older_core(version: str, older: bool, plugins: Plugins) -> None:
    text = f"services: {{a: {{image: 'vllm/vllm-openai:v{version}', command: --model m --num-scheduler-steps 8}}}}\n"
    (document,) = open_manifest("compose.yaml", text, plugins)
    assert document.has(("policy", "kv_cache", "prefix_reuse")) is older


def test_the_rank_of_a_node_decides_no_figure(plugins: Plugins) -> None:
    text = SGLANG.replace('"32768"', '"32768", "--nnodes", "2", "--node-rank", "$(RANK)", "--tp", "2"')
    (document,) = open_manifest("compose.yaml", text, plugins)
    assert document.launched is not None
    assert document.launched.troubles == ()


@pytest.mark.parametrize("name", ["h100", "nvidia/h100-sxm5-80bg", ""])
def test_a_mistyped_hardware_switches_nothing_off(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "start.sh"
    path.write_text("vllm serve Qwen/Qwen3-8B\n")
    assert main(["check", str(path), "--hardware", name]) == 2
    assert "--hardware: no plugin provides the accelerator" in capsys.readouterr().err


def test_hardware_may_be_an_instance_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "start.sh"
    path.write_text("vllm serve meta-llama/Llama-3.3-70B-Instruct --max-model-len 8192\n")
    assert main(["check", str(path), "--hardware", "p5.48xlarge", "--format", "json"]) == 1
    assert "MEM001" in {f["code"] for f in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        (
            "text-generation-launcher --model-id Qwen/Qwen3-8B --max-input-tokens 8192 --max-total-tokens 8192",
            ["ENG004"],
        ),
        ("text-generation-launcher --model-id Qwen/Qwen3-8B --max-input-tokens 8191 --max-total-tokens 8192", []),
        (
            "docker run vllm/vllm-openai:v0.11.2 --model Qwen/Qwen3-8B -tp 2 -dcp 3 --max-model-len 8192",
            ["ENG004"],
        ),
        (
            "docker run lmsysorg/sglang:v0.5.1 python -m sglang.launch_server --model-path m --enable-dp-attention",
            ["ENG004"],
        ),
    ],
)
def test_what_the_arguments_reader_calls_refused_is_an_error(
    command: str, codes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "start.sh"
    path.write_text(command + "\n")
    main(["check", str(path), "--format", "json", "--hardware", "nvidia/h100-sxm5-80gb"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [f["code"] for f in found if f["code"] == "ENG004"] == codes
