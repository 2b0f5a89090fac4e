"""Whole outputs of a few specs, compared with committed ones.

``SERVELINT_UPDATE_SNAPSHOTS=1 pytest tests/snapshots`` writes them anew; the diff is then read, not trusted.
The rules are named, so that a new rule changes no output here.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main

HERE = Path(__file__).parent
SPECS = sorted(path.stem for path in (HERE / "specs").glob("*.toml"))
EXPECTED = HERE / "expected"
RULES = "SPEC001,SPEC002,SPEC003,SPEC004,HW001,MEM001,SLO001,LINT"
CHECKS = {"txt": ("--verbose",), "json": ("--format", "json"), "sarif": ("--format", "sarif")}
COSTS = {
    "cost.txt": ("cost",),
    "explain.txt": ("explain", "kv_capacity_tokens"),
    "mermaid": ("cost", "--graph", "mermaid"),
}
PRICED = "past_the_knee"


def hold(name: str, text: str) -> None:
    """Compare an output with the committed one, or write it."""
    path = EXPECTED / name
    if os.environ.get("SERVELINT_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert rounded(text) == rounded(path.read_text(encoding="utf-8")), (
        f"{name}: SERVELINT_UPDATE_SNAPSHOTS=1 writes it anew"
    )


def rounded(text: str) -> str:
    """Round long numbers: sums differ in their last digits between Python releases (3.12 compensates them)."""
    return re.sub(r"\d+\.\d{9,}(?:e-?\d+)?", lambda m: f"{float(m[0]):.10g}", text)


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(HERE / "specs")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> str:
        main(arguments)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", CHECKS)
def test_check(spec: str, kind: str, output: Any) -> None:
    text = output("check", f"{spec}.toml", "--select", RULES, *CHECKS[kind])
    hold(f"{spec}.{kind}", normalized(text) if kind == "sarif" else text)


@pytest.mark.parametrize("kind", COSTS)
def test_cost_and_explain(kind: str, output: Any) -> None:
    command, *rest = COSTS[kind]
    hold(f"{PRICED}.{kind}", output(command, f"{PRICED}.toml", *rest))


def normalized(text: str) -> str:
    """SARIF without the texts of rules that the run did not need, and whatever folder holds the repository."""
    log = json.loads(text)
    (run,) = log["runs"]
    used = {result["ruleId"] for result in run["results"]}
    driver = run["tool"]["driver"]
    driver["rules"] = [rule if rule["id"] in used else {"id": rule["id"]} for rule in driver["rules"]]
    for rule in driver["rules"]:
        rule.pop("help", None)
    for result in run["results"]:
        for place in (*result["locations"], *result.get("relatedLocations", ())):
            artifact = place["physicalLocation"]["artifactLocation"]
            artifact["uri"] = artifact["uri"].rpartition("/")[2]
        assert len(result["partialFingerprints"].pop("servelint/v1")) == 32
    return json.dumps(log, indent=2) + "\n"


def test_every_expected_output_belongs_to_a_spec() -> None:
    names = {f"{spec}.{kind}" for spec in SPECS for kind in CHECKS} | {f"{PRICED}.{kind}" for kind in COSTS}
    assert {path.name for path in EXPECTED.iterdir()} == names
