"""What the decision rules promise: every row has a rule and a spec, levers stand in order, and their numbers are those
of the edited deployment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import servelint_specs
from servelint import composition
from servelint.config import Config
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.opening import open_spec
from servelint.review import Review
from servelint.rule import Case, Finding, Severity
from servelint.testing.rules import expected_findings, run_case
from servelint_rules.dec.dec001_latency_levers import SPEC as LATENCY
from servelint_rules.dec.dec002_throughput_levers import SPEC as THROUGHPUT
from servelint_rules.dec.levers import at_load, carried
from servelint_rules.show import duration, request_rate

FOLDER = Path(servelint_specs.__file__).parent / "decisions"
ROWS = {
    "single-stream-latency": "DEC001",
    "throughput-per-device": "DEC002",
    "long-context": "DEC003",
    "one-device": "DEC004",
    "inside-a-node": "DEC005",
    "across-nodes": "DEC006",
    "chunk-or-pools": "DEC007",
    "compute-or-bandwidth": "DEC008",
}
"""The spec of each row of the decision table, and the rule that is about it."""
LEVER = re.compile(r"(?:in the order of gain: )?(.+): (.+) \(([\d.]+)x\)")
MOST_COMPOSITIONS = 24


def decisions(plugins: Plugins, case: Case) -> list[Finding]:
    found = [f.finding for f in run_case(case, plugins).findings if f.finding.code.startswith("DEC")]
    assert not plugins.faults, plugins.faults
    return found


def levers(finding: Finding) -> list[tuple[str, str, float]]:
    return [(m[1], m[2], float(m[3])) for part in finding.help.split("; ") if (m := LEVER.fullmatch(part))]


def cases(plugins: Plugins) -> list[Case]:
    own = [case for rule in plugins.rules if rule.code.startswith("DEC") for case in rule.failing]
    return own + [Case(path.name, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]


def review_of(plugins: Plugins, text: str) -> Review:
    return Review(open_spec("spec.toml", text, plugins, Path()), plugins, Path())


def test_each_row_has_a_rule_and_a_spec(plugins: Plugins) -> None:
    assert sorted(rule.code for rule in plugins.rules if rule.code.startswith("DEC")) == sorted(ROWS.values())
    assert {path.name.removesuffix(".toml").removesuffix(".fixed") for path in FOLDER.glob("*.toml")} == set(ROWS)
    for name, code in ROWS.items():
        text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
        assert code in {c for _, c in expected_findings(text)}, name


def test_levers_stand_in_the_order_of_their_gain(plugins: Plugins) -> None:
    checked = set()
    for case in cases(plugins):
        for finding in decisions(plugins, case):
            found = levers(finding)
            assert found, finding.help
            gains = [gain for _, _, gain in found]
            assert gains == sorted(gains, reverse=True)
            assert gains[-1] >= 1.05
            words, then, gain = found[0]
            assert f"{words} would gain most: {then}, {gain:.3g} times" in finding.message
            assert finding.severity is Severity.INFO
            checked.add(finding.code)
    assert checked == set(ROWS.values())


@pytest.mark.parametrize(
    ("words", "edit"),
    [
        ("weights in fp8", '[policy.quantization]\nweights = "fp8"\n'),
        ("weights in int4-g128", '[policy.quantization]\nweights = "int4-g128"\n'),
        (
            "speculation (eagle, 3 drafted, 70% of them accepted)",
            '[policy.speculation]\nmethod = "eagle"\ntokens = 3\nacceptance = 0.7\n',
        ),
        ("tensor parallelism 8 on 8 devices", "[policy.parallelism]\ntensor = 8\n"),
    ],
)
def test_a_latency_lever_is_worth_what_it_says(plugins: Plugins, words: str, edit: str) -> None:
    (finding,) = decisions(plugins, Case("", LATENCY))
    (then, gain) = next((t, g) for w, t, g in levers(finding) if w == words)
    text = LATENCY.replace("devices = 4", "devices = 8") if "8 devices" in words else LATENCY
    before, after = review_of(plugins, LATENCY), review_of(plugins, text + edit)
    assert before.composition is not None
    assert after.composition is not None
    points = at_load(before, before.composition), after.operating_point
    assert points[0] is not None
    assert points[1] is not None
    assert then == f"{duration(points[1].e2e('mean'))}, every objective kept"
    assert gain == pytest.approx(points[0].e2e("mean") / points[1].e2e("mean"), rel=0.01)


def test_a_throughput_lever_is_worth_what_it_says(plugins: Plugins) -> None:
    (finding,) = decisions(plugins, Case("", THROUGHPUT))
    words, then, _ = levers(finding)[0]
    admitted = re.match(r"([\d,]+) sequences admitted", words)
    assert admitted
    after = review_of(plugins, THROUGHPUT.replace("max_sequences = 16", f"max_sequences = {admitted[1]}"))
    assert after.composition is not None
    assert after.mix is not None
    assert then == f"{request_rate(carried(after, after.composition, after.mix))} a device"


def test_decisions_take_few_compositions(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Counted(composition.Composition):
        def __init__(self, setup: Any) -> None:
            made.append(setup)
            super().__init__(setup)

    for name in ("servelint.review", "servelint_rules.layouts", "servelint_rules.dec.levers"):
        monkeypatch.setattr(f"{name}.Composition", Counted)
    for case in cases(plugins):
        text = case.spec
        linter = Linter(plugins, Config(select=tuple(ROWS.values())), Path())
        made.clear()
        linter.check("spec.toml", text)
        assert 0 < len(made) <= MOST_COMPOSITIONS, case.name
