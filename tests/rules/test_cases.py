"""Every rule's own cases, found through the plugins and never listed by hand."""

from __future__ import annotations

import inspect

import pytest

from servelint.manager import Plugins
from servelint.rule import HEADINGS, Case, Rule
from servelint.testing.rules import check_case, check_flip, expected_findings

RULES = Plugins().rules
CASES = [
    pytest.param(rule, case, kind == "failing", id=f"{rule.code}-{kind}-{i}")
    for rule in RULES
    for kind in ("failing", "passing")
    for i, case in enumerate(getattr(rule, kind))
]
FLIPS = [
    pytest.param(rule, case, id=f"{rule.code}-{i}")
    for rule in RULES
    for i, case in enumerate(rule.failing)
    if case.flip is not None
]


@pytest.mark.parametrize(("rule", "case", "fails"), CASES)
def test_case(rule: type[Rule], case: Case, fails: bool, plugins: Plugins) -> None:
    assert any(code == rule.code for _, code in expected_findings(case.spec)) == fails
    check_case(rule, case, plugins)


@pytest.mark.parametrize(("rule", "case"), FLIPS)
def test_one_number_decides(rule: type[Rule], case: Case, plugins: Plugins) -> None:
    check_flip(rule, case, plugins)


@pytest.mark.parametrize("rule", RULES, ids=[r.code for r in RULES])
def test_documentation_and_cases_are_complete(rule: type[Rule]) -> None:
    assert len(rule.failing) >= 2
    assert len(rule.passing) >= 2
    specs = [case.spec for case in (*rule.failing, *rule.passing)]
    assert len(set(specs)) == len(specs), "two cases are the same spec"
    doc = inspect.cleandoc(rule.__doc__ or "")
    places = [doc.find(f"\n{heading}\n{'-' * len(heading)}\n") for heading in HEADINGS]
    assert all(p > 0 for p in places), f"headings missing in {rule.code}: {HEADINGS}"
    assert places == sorted(places)
    assert rule.questions
    if rule.code != "SPEC001" and rule.code != "SPEC002":
        assert all(case.flip is not None for case in rule.failing), "every failing case names what flips it"
