"""CTX007: what length is proposed, what memory and the model allow, and what other rules already say."""

from __future__ import annotations

from pathlib import Path

import pytest

from servelint.__main__ import main
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing.rules import run_case

SPEC = """\
servelint = 1
[hardware]
accelerator = "{device}"
[model]
id = "{model}"
{limit}
[engine]
name = "{engine}"
{args}
[workload]
prompt_tokens = {prompt}
output_tokens = {output}
rate = "0.01 req/s"
"""


def found(plugins: Plugins, **given: object) -> list[Finding]:
    values = {
        "device": "nvidia/h100-sxm5-80gb",
        "model": "Qwen/Qwen3-8B",
        "limit": "",
        "engine": "generic",
        "args": "",
        "output": 100,
        **given,
    }
    result = run_case(Case("", SPEC.format(**values)), plugins)
    assert not plugins.faults
    return [f.finding for f in result.findings if f.finding.code == "CTX007"]


@pytest.mark.parametrize(
    ("prompt", "severity", "share"),
    [
        # log-linear from 4,000 at 0.99 to 5,000 at 1: half of the last percent is above sqrt(4,000 x 5,000).
        ("{ p50 = 1000, p99 = 4000, max = 5000 }", Severity.WARNING, "0.50% of the prompts"),
        ("{ p50 = 1000, p99 = 4473 }", Severity.ERROR, "1.0% of the prompts"),
    ],
)
def test_one_percent_of_the_prompts_is_an_error(plugins: Plugins, prompt: str, severity: Severity, share: str) -> None:
    limit = 4473 if "max" in prompt else 4472
    (finding,) = found(plugins, prompt=prompt, limit=f"max_model_len = {limit}", output=1)
    assert finding.severity is severity
    assert finding.message.startswith(share)


def test_a_longest_prompt_sets_the_length_and_the_p99_is_said(plugins: Plugins) -> None:
    prompt = "{ p50 = 1000, p99 = 8000, max = 16000 }"
    (finding,) = found(plugins, prompt=prompt, limit="max_model_len = 4096", output=1)
    assert finding.help.startswith("set model.max_model_len = 16001, which takes every prompt; ")
    assert finding.fix is not None
    assert not found(plugins, prompt=prompt, limit="max_model_len = 16001", output=1)


def test_what_memory_does_not_hold_is_not_proposed(plugins: Plugins) -> None:
    # 16.4 GB of weights leave about 3 GB of an L4: some 23,000 tokens in 16 bit, twice as many in 8.
    (narrow,) = found(plugins, device="nvidia/l4", prompt=30000, limit="max_model_len = 8192")
    assert narrow.help.startswith('set model.max_model_len = 30100 and policy.quantization.kv_cache = "fp8"')
    (none,) = found(plugins, device="nvidia/a10", prompt=40000, limit="max_model_len = 8192", model="Qwen/Qwen3-14B")
    assert "memory holds" in none.help
    assert "set model" not in none.help
    assert none.fix is None


def test_the_positions_of_the_model_are_a_limit(plugins: Plugins) -> None:
    (finding,) = found(plugins, prompt=50000, limit="max_model_len = 8192")
    assert "40,960 positions and 50,100 are asked for" in finding.help
    assert "set model" not in finding.help


def test_a_context_over_slots_is_left_to_its_rule(plugins: Plugins) -> None:
    args = 'args = "-c 8192 -np 8"'
    text = SPEC.format(
        device="nvidia/h100-sxm5-80gb", model="Qwen/Qwen3-8B", limit="", engine="llama.cpp", args=args,
        prompt=1000, output=100,
    )  # fmt: skip
    codes = [f.finding.code for f in run_case(Case("", text), plugins).findings]
    assert "ENG005" in codes
    assert "CTX007" not in codes
    (one,) = found(plugins, engine="llama.cpp", args='args = "-c 1024 -np 1"', prompt=1024)
    assert one.severity is Severity.ERROR


def test_prompts_that_the_engine_cuts_are_not_refused(plugins: Plugins) -> None:
    args = 'version = "0.5.9"\nargs = ["--context-length", "4096", "--allow-auto-truncate"]'
    (finding,) = found(plugins, engine="sglang", args=args, prompt=5000)
    assert finding.severity is Severity.WARNING
    assert "cut before they are answered" in finding.message


def test_what_is_priced_and_never_runs_is_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SPEC.format(
        device="nvidia/h100-sxm5-80gb", model="Qwen/Qwen3-8B", limit="max_model_len = 4096", engine="generic", args="",
        prompt=6000, output=100,
    )  # fmt: skip
    Path("a.toml").write_text(text, encoding="utf-8")
    main(["cost", "a.toml"])
    assert "100.0% of the prompts have max_model_len tokens (4,096) or more and are refused" in capsys.readouterr().out
