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


LLAMA = {"device": "nvidia/rtx-4090", "engine": "llama.cpp"}


def test_a_context_of_one_slot_is_raised_by_its_flag(plugins: Plugins) -> None:
    """What the cache is given is no limit of the memory: 9,300 tokens of Qwen3-8B are 1.4 GB."""
    flags = 'args = "-m Qwen3-8B-Q8_0.gguf -c {} -np 1"'
    (finding,) = found(plugins, **LLAMA, args=flags.format(8192), prompt=9000, output=300)
    assert finding.help == "set -c 9300, which takes every prompt and 99% of whole requests"
    assert not found(plugins, **LLAMA, args=flags.format(9300), prompt=9000, output=300)
    args = 'args = "-m Qwen3-32B-Q4_K_M.gguf -c 8192 -np 1"'
    (large,) = found(plugins, **LLAMA, model="Qwen/Qwen3-32B", args=args, prompt=40000)
    assert "memory holds" in large.help
    assert "set " not in large.help


def test_a_cache_of_a_declared_size_grows_with_the_length(plugins: Plugins) -> None:
    args = 'version = "0.5.9"\n[policy.kv_cache]\nmax_tokens = 5000'
    (finding,) = found(plugins, engine="sglang", args=args, limit="max_model_len = 4096", prompt=6000)
    both = "model.max_model_len = 6100 and policy.kv_cache.max_tokens = 6100"
    assert finding.help.startswith(f"set {both}, which takes every prompt")
    assert finding.fix is not None
    assert len(finding.fix.edits) == 2


@pytest.mark.parametrize(
    ("build", "flags", "severity", "fate"),
    [
        (None, "", Severity.ERROR, "refused, whatever the load"),
        (None, "--context-shift", Severity.WARNING, "cut before they are answered"),
        ("b4000", "", Severity.WARNING, "cut before they are answered, or refused"),
        ("b4000", "--context-shift", Severity.WARNING, "cut before they are answered"),
        ("b4000", "--no-context-shift", Severity.ERROR, "refused, whatever the load"),
        # From here on contexts are shifted while output grows, and prompts are refused all the same.
        ("b7062", "--context-shift", Severity.ERROR, "refused, whatever the load"),
        ("b7062", "", Severity.ERROR, "refused, whatever the load"),
    ],
)
def test_builds_that_shift_contexts_cut_prompts(
    build: str | None, flags: str, severity: Severity, fate: str, plugins: Plugins
) -> None:
    version = "" if build is None else f'version = "{build}"\n'
    args = f'{version}args = "-m Qwen3-8B-Q8_0.gguf -c 8192 -np 1 {flags}"'
    (finding,) = found(plugins, **LLAMA, args=args, prompt=9000)
    assert (finding.severity, finding.message.split(" and are ")[1]) == (severity, fate)


@pytest.mark.parametrize(
    ("args", "prompt", "said"),
    [
        (
            'version = "3.0.0"\nargs = "--max-input-tokens 3000 --max-total-tokens 8192"',
            3001,
            "--max-input-tokens 3001",
        ),
        (
            'version = "1.4.5"\nargs = "--max-input-length 3000 --max-total-tokens 8192"',
            3001,
            "--max-input-length 3001",
        ),
        ('version = "3.0.0"\nargs = "--max-input-tokens 3000 --max-total-tokens 8192"', 3000, ""),
    ],
)
def test_a_limit_of_the_prompts_alone(args: str, prompt: int, said: str, plugins: Plugins) -> None:
    findings = found(plugins, engine="tgi", args=args, prompt=prompt)
    assert [f.help.split(",")[0] for f in findings] == ([f"set {said}"] if said else [])
    for finding in findings:
        assert finding.severity is Severity.ERROR
        assert finding.message.startswith("100% of the prompts have 3,001 tokens or more and are refused")
        assert finding.path == ("model", "max_prompt_tokens")


def test_prompt_and_context_are_raised_together(plugins: Plugins) -> None:
    args = 'version = "3.0.0"\nargs = "--max-input-tokens 3000 --max-total-tokens 3500"'
    (finding,) = found(plugins, engine="tgi", args=args, prompt=5000)
    assert finding.help.startswith("set --max-total-tokens 5100 and --max-input-tokens 5000, which takes every prompt")


def test_prompts_that_the_engine_cuts_are_not_refused(plugins: Plugins) -> None:
    args = 'version = "0.5.9"\nargs = ["--context-length", "4096", "--allow-auto-truncate"]'
    (finding,) = found(plugins, engine="sglang", args=args, prompt=5000)
    assert finding.severity is Severity.WARNING
    assert "cut before they are answered" in finding.message


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (
            {"limit": "max_model_len = 4096", "prompt": 6000},
            "100% of the prompts have 4,096 tokens or more and are refused",
        ),
        # Log-linear from 4,000 at 0.99 to 5,000 at 1.
        (
            {"limit": "max_model_len = 4991", "prompt": "{ p50 = 1000, p99 = 4000, max = 5000 }"},
            "0.01% of the prompts have 4,991 tokens or more and are refused",
        ),
        ({"prompt": 50000}, "100% of the prompts have 40,960 tokens or more and are refused"),
        (
            {"engine": "sglang", "args": 'args = "--context-length 4096 --allow-auto-truncate"', "prompt": 6000},
            "100% of the prompts have 4,096 tokens or more and are cut before they are answered",
        ),
        (
            {"engine": "tgi", "args": 'args = "--max-input-tokens 3000 --max-total-tokens 8192"', "prompt": 6000},
            "100% of the prompts have 3,001 tokens or more and are refused",
        ),
    ],
)
def test_what_is_priced_and_never_runs_is_noted(
    given: dict[str, object], note: str, plugins: Plugins, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The rule and the ledger say the same of the same prompts."""
    monkeypatch.chdir(tmp_path)
    values = {"device": "nvidia/h100-sxm5-80gb", "model": "Qwen/Qwen3-8B", "engine": "generic", **given}
    text = SPEC.format(**{"limit": "", "args": "", "output": 100, **values})
    Path("a.toml").write_text(text, encoding="utf-8")
    main(["cost", "a.toml"])
    assert note in capsys.readouterr().out
    (finding,) = found(plugins, **given)
    assert finding.message.startswith(note)


def test_a_length_that_takes_all_is_not_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SPEC.format(
        device="nvidia/h100-sxm5-80gb", model="Qwen/Qwen3-8B", limit="max_model_len = 6001", engine="generic", args="",
        prompt=6000, output=100,
    )  # fmt: skip
    Path("a.toml").write_text(text, encoding="utf-8")
    main(["cost", "a.toml"])
    assert "of the prompts" not in capsys.readouterr().out
