"""What grows without limit is said in words, and is null for programs: no message, table or tree shows ``inf``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main
from servelint.report.show import quantity
from servelint_rules import show

SLOTS = """\
servelint = 1
[hardware]
replicas = 20
accelerator = "google/tpu7x"
[model]
weights_bytes = 1000000000
id = "Qwen/Qwen3-235B-A22B-Instruct-2507"
[engine]
name = "trtllm"
[workload]
rate = 1
output_tokens = 1
prompt_tokens = { p99 = 1, p999 = 20000000 }
[slo]
e2e = { p90 = 1 }
"""
OVERLOAD = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
rate = 60
output_tokens = 2
prompt_tokens = 4000
[slo]
ttft = { p99 = 2, mean = 1 }
e2e = { p99 = 2 }
"""
INFINITE = re.compile(r"(?<![\w/])-?(?:inf|nan)(?!\w)", re.IGNORECASE)


def refused(constant: str) -> None:
    raise AssertionError(f"JSON has no {constant}")


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(spec: str, *arguments: str) -> str:
        Path("a.toml").write_text(spec, encoding="utf-8")
        main(arguments)
        out, err = capsys.readouterr()
        assert not err
        if "json" in arguments or "sarif" in arguments:
            json.loads(out, parse_constant=refused)
            return out
        assert INFINITE.search(out) is None, INFINITE.search(out)
        return out

    return run


def test_every_command_says_it_in_words(output: Any) -> None:
    checked = output(SLOTS, "check", "a.toml", "--verbose")
    assert "where E2E p90 grows without limit" in checked
    assert re.search(r"E2E p90 = without limit: .* so the queue never empties", checked)
    assert "without limit" in output(SLOTS, "cost", "a.toml")
    for figure in ("e2e.p90", "ttft.mean", "ttft.p99"):
        assert "without limit" in output(SLOTS, "explain", "a.toml", figure)


def test_an_overload_shows_no_infinite_figure(output: Any) -> None:
    assert "SLO007" in output(OVERLOAD, "check", "a.toml", "--verbose")
    for command in (("cost", "a.toml"), ("explain", "a.toml", "e2e.p99"), ("explain", "a.toml", "operating_point")):
        assert output(OVERLOAD, *command)


@pytest.mark.parametrize("spec", [SLOTS, OVERLOAD])
def test_and_null_to_programs(spec: str, output: Any) -> None:
    for command in (
        ("check", "a.toml", "--format", "json"),
        ("check", "a.toml", "--format", "sarif"),
        ("cost", "a.toml", "--format", "json"),
        ("cost", "a.toml", "--graph", "json"),
        ("explain", "a.toml", "ttft.p99", "--format", "json"),
    ):
        assert output(spec, *command)


def test_an_infinite_figure_is_null(output: Any) -> None:
    tree = json.loads(output(SLOTS, "explain", "a.toml", "ttft.p99", "--format", "json"))["lineage"]
    assert tree["value"] is None


@pytest.mark.parametrize(
    "write",
    [show.size, show.duration, show.tokens, show.token_rate, show.request_rate, show.flops, show.sequences],
)
def test_rules_write_an_infinite_figure_in_words(write: Callable[[float], str]) -> None:
    assert write(math.inf) == "without limit"
    assert INFINITE.search(write(1e300)) is None


@pytest.mark.parametrize("unit", ["B", "B/s", "FLOP", "FLOP/s", "s", "tok", "tok/s", "req/s", ""])
def test_reports_write_an_infinite_figure_in_words(unit: str) -> None:
    assert quantity(math.inf, unit) == "without limit"
    assert quantity(math.nan, unit) == "not known"
    assert quantity(-math.inf, unit) == "not known"
    assert quantity(16**4000, unit) in ("an integer of 16,001 bits", "over 100 years")


def test_a_time_beyond_any_service_is_no_number_of_seconds() -> None:
    assert show.duration(3.1e9) == quantity(3.1e9, "s") == "3,100,000,000 s"
    assert show.duration(3.2e9) == quantity(3.2e9, "s") == "over 100 years"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (1e-9, "under 0.0001"), (0.00046, "0.0005"), (0.04, "0.04"), (0.05, "0.1")]
)
def test_less_than_a_sequence_is_not_none(value: float, shown: str) -> None:
    assert show.sequences(value) == shown
