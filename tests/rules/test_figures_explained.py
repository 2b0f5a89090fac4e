"""Numbers that stand side by side say what each of them counts, and every figure of a message can be worked out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servelint.__main__ import main
from servelint.config import Config
from servelint.lint import Text, lint
from servelint.manager import Plugins
from servelint.rule import Case, Finding
from servelint.testing.rules import run_case

DRAFTING = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.3-70B-Instruct"
max_model_len = 32768
[engine]
name = "vllm"
version = "0.11.0"
[policy.parallelism]
tensor = 4
[policy.speculation]
method = "eagle"
tokens = 5
acceptance = 0.7
[policy.batching]
max_sequences = 256
[workload]
prompt_tokens = { p50 = 1200, p99 = 8000 }
output_tokens = { p50 = 300, p99 = 1500 }
LOAD
[slo]
ttft = { p99 = "2 s" }
tpot = { p99 = "50 ms" }
"""
CLAIMED = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.3-70B-Instruct"
max_model_len = 8192
[policy.parallelism]
tensor = 2
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 1000
output_tokens = 500
[[claim]]
metric = "speedup"
value = 4
"""
SCRIPT = "docker run --gpus all vllm/vllm-openai:v0.11.0 --model openai/gpt-oss-120b --tensor-parallel-size 2\n"


def found(spec: str, code: str, plugins: Plugins) -> Finding:
    (one,) = (f.finding for f in run_case(Case("", spec), plugins).findings if f.finding.code == code)
    return one


def test_who_waits_for_what_is_said(plugins: Plugins) -> None:
    spec = DRAFTING.replace("LOAD", "concurrency = 256")
    late, cascade = found(spec, "SLO001", plugins), found(spec, "MEM003", plugins)
    assert re.match(
        r"of the 256 requests that the declared concurrency keeps, the KV cache holds \d+ sequences", late.message
    )
    assert late.help.startswith("keep at most ")
    assert "for every objective" in late.help
    assert "asks for 256 sequences" in cascade.message
    assert "latency aside" in cascade.help


def test_a_limit_in_tokens_is_counted_in_sequences(plugins: Plugins) -> None:
    overload = found(DRAFTING.replace("LOAD", 'rate = "50 req/s"'), "SLO007", plugins)
    # 8,192 tokens a step, of which a sequence that verifies five drafts takes six.
    assert {i.name: i.value for i in overload.inputs}["sequences that max_batched_tokens has room for"] == 8192 // 6


def test_a_limit_of_a_speed_up_can_be_worked_out(plugins: Plugins) -> None:
    claim = found(CLAIMED, "QNT002", plugins)
    most = float(re.search(r"at most ([\d.]+)x", claim.message)[1])  # type: ignore[index]
    steps = re.findall(r"(\d+) sequences a step of ([\d.]+) ms = ([\d,]+) tok/s", claim.equation)
    rates = [float(rate.replace(",", "")) for _, _, rate in steps]
    assert rates[0] / rates[1] == pytest.approx(most, abs=0.01)
    for number, milliseconds, rate in steps:
        assert int(number) / float(milliseconds) * 1e3 == pytest.approx(float(rate.replace(",", "")), rel=0.005)


def test_room_for_the_cache_adds_up(plugins: Plugins) -> None:
    spec = DRAFTING.replace("LOAD", "concurrency = 1").replace("h100-sxm5-80gb", "l40s").replace("32768", "131072")
    short = found(spec, "MEM002", plugins)
    numbers = re.search(
        r"> ([\d.]+) GB = budget ([\d.]+) GB - weights ([\d.]+) GB - reserves ([\d.]+) GB", short.equation
    )
    assert numbers is not None, short.equation
    left, budget, weights, reserves = map(float, numbers.groups())
    assert budget - weights - reserves == pytest.approx(left, abs=0.1)
    assert "weights per device" in {i.name for i in short.inputs}


def test_no_label_where_only_the_command_line_says_it(plugins: Plugins) -> None:
    given = {("hardware", "accelerator"): "nvidia/a10"}
    text = Text("serve.sh", SCRIPT, "manifest")
    report = lint([text], plugins, Config(select=("MEM",)), Path(), given)
    labels = {(place.line, place.column): words for f in report.findings for place, words in f.related}
    assert report.findings
    # What splits the weights stands in the file; the memory stands nowhere.
    assert labels == {(1, SCRIPT.index("size 2") + 6): "over so many devices"}


def test_every_objective_has_its_column(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(DRAFTING.replace("LOAD", "concurrency = 64"), encoding="utf-8")
    main(["cost", "a.toml"])
    lines = capsys.readouterr().out.splitlines()
    heads = next(line for line in lines if line.split()[:2] == ["batch", "tok/s"])
    assert re.findall(r"(\w+ p\d+)", heads) == ["ITL p50", "ITL p99", "TPOT p99", "TTFT p50", "TTFT p99"]
    assert any("misses tpot p99" in line for line in lines)


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.11.0", "as if windows kept every token"), ("0.21.0", "every window has room for the 2,048 tokens")],
)
def test_a_capacity_below_what_is_resident_says_how_the_engine_counts(
    version: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = f"""\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "openai/gpt-oss-20b"
max_model_len = 32768
[engine]
name = "vllm"
version = "{version}"
"""
    Path("a.toml").write_text(spec, encoding="utf-8")
    main(["cost", "a.toml"])
    out = capsys.readouterr().out
    assert re.search(rf"capacity: [\d,]+ tokens, as the engine reports it: {why}", out)
