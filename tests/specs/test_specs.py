"""The shipped specs: each holds exactly the findings that its comments expect, and each failure mode has a clean twin.

The specs say themselves what is expected of them (``# expect: CODE`` at the end of the line); nothing is listed here.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import servelint_specs
from servelint.__main__ import main
from servelint.config import Config
from servelint.lint import FileResult, Linter
from servelint.manager import Plugins
from servelint.rule import Severity
from servelint.testing.rules import expected_findings, found_findings

SPECS = Path(servelint_specs.__file__).parent
FILES = sorted(SPECS.rglob("*.toml"))
MANIFESTS = sorted(SPECS.rglob("*.yaml"))
NAMES = [path.relative_to(SPECS).as_posix() for path in FILES]
FAILING = [path for path in FILES if path.parent != SPECS and not path.name.endswith(".fixed.toml")]
GOOD = [path for path in FILES if path not in FAILING]
FAILURE_MODES = {
    "kv-pressure-cascade": "MEM003",
    "tp-over-slow-link": "PAR001",
    "quantization-eval-gap": "QNT001",
    "throughput-past-slo": "SLO001",
    "long-context-surprise": "CTX001",
    "straggler-experts": "MOE001",
}
"""The spec of each failure mode, and the rule that is about it."""


def named(path: Path) -> str:
    return path.relative_to(SPECS).as_posix()


def twin_of(path: Path) -> Path:
    return path.with_suffix(".fixed.toml")


def data_of(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def results(plugins: Plugins) -> dict[Path, FileResult]:
    linter = Linter(plugins, Config(), SPECS)
    checked = {path: linter.check(str(path), path.read_text(encoding="utf-8")) for path in FILES}
    assert not plugins.faults, plugins.faults
    return checked


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_spec_holds_exactly_what_it_expects(path: Path, results: dict[Path, FileResult]) -> None:
    expected = expected_findings(path.read_text(encoding="utf-8"))
    result = results[path]
    messages = [f"line {f.place.line} {f.finding.code}: {f.finding.message}" for f in result.findings]
    assert found_findings(result, expected) == expected, messages


@pytest.mark.parametrize("path", GOOD, ids=map(named, GOOD))
def test_good_spec_lints_clean(path: Path, results: dict[Path, FileResult]) -> None:
    loud = [f.finding for f in results[path].findings if f.finding.severity in (Severity.ERROR, Severity.WARNING)]
    assert not loud
    review = results[path].review
    assert review is not None
    assert review.composition is not None, review.infeasible or review.unresolved
    if path.parent == SPECS:
        assert review.operating_point is not None, "it has a load and carries it"


@pytest.mark.parametrize("path", FAILING, ids=map(named, FAILING))
def test_failing_spec_has_a_twin_that_differs(path: Path, results: dict[Path, FileResult]) -> None:
    codes = {code for _, code in expected_findings(path.read_text(encoding="utf-8"))}
    assert codes
    twin = twin_of(path)
    assert twin in results, f"{twin.name} is missing"
    assert data_of(twin) != data_of(path)
    assert not codes & {f.finding.code for f in results[twin].findings}


@pytest.mark.parametrize(("name", "code"), FAILURE_MODES.items())
def test_each_failure_mode_is_shown_by_its_rule(name: str, code: str) -> None:
    path = SPECS / "failure-modes" / f"{name}.toml"
    assert code in {c for _, c in expected_findings(path.read_text(encoding="utf-8"))}
    assert twin_of(path).is_file()


def test_no_failure_mode_is_left_unnamed() -> None:
    names = {
        path.name.removesuffix(".toml").removesuffix(".fixed") for path in (SPECS / "failure-modes").glob("*.toml")
    }
    assert names == set(FAILURE_MODES)


def test_command_line_finds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", str(SPECS), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    found = Counter((f["file"], f["line"], f["code"]) for f in report["findings"])
    expected: Counter[tuple[str, int, str]] = Counter()
    for path in (*FILES, *MANIFESTS):
        for (line, code), count in expected_findings(path.read_text(encoding="utf-8")).items():
            assert line, "a finding of a whole file has no line to compare"
            expected[path.as_posix(), line, code] += count
    assert found == expected
    assert {f["file"] for f in report["files"]} == {path.as_posix() for path in (*FILES, *MANIFESTS)}
    assert status == int(any(f["severity"] == "error" for f in report["findings"]))


def test_smallest_spec_declares_nothing_but_the_four_tables() -> None:
    data = data_of(SPECS / "smallest.toml")
    assert set(data) == {"servelint", "hardware", "model", "workload", "slo"}
    assert set(data["hardware"]) == {"accelerator"}
    assert set(data["model"]) == {"id"}


def test_good_specs_use_the_whole_of_the_language(plugins: Plugins) -> None:
    deployments = [data_of(path) for path in GOOD]
    assert len([path for path in GOOD if path.parent == SPECS]) >= 10
    policies = {name for data in deployments for name in data.get("policy", {})}
    assert policies == {policy.name for policy in plugins.policies}
    tables = {name for data in deployments for name in data}
    assert tables >= {"deployment", "hardware", "model", "engine", "policy", "workload", "slo", "claim", "evidence"}
    hardware = {name for data in deployments for name in data["hardware"]}
    assert hardware >= {"efficiency", "price", "network", "pcie", "override", "replicas", "nodes"}
    workload = {name for data in deployments for name in data["workload"]}
    assert workload >= {"trace", "growth", "rate", "concurrency", "arrival_cv", "prefix_hit", "images_per_prompt"}
    vendors = {data["hardware"]["accelerator"].partition("/")[0] for data in deployments}
    assert vendors >= {"nvidia", "amd"}


@pytest.mark.parametrize("path", sorted((SPECS / "traces").glob("*.csv")), ids=lambda path: path.name)
def test_each_vendored_trace_is_used_and_attributed(path: Path) -> None:
    files = [trace["file"] for data in map(data_of, FILES) if (trace := data["workload"].get("trace"))]
    assert f"traces/{path.name}" in files
    attribution = (SPECS / "traces" / "README.md").read_text(encoding="utf-8")
    rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert f"| `{path.name}` | {rows} |" in attribution
    assert "CC-BY 4.0" in attribution
