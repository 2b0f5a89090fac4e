"""Recorded cases: what ran is not refused, most of what failed is found, and the specs in tests/cases say so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import recorded

import cases
from cases import Outcome

REFUSED = {
    # It passed the check of its shape, which is what the record is about; 1.6T parameters do not fit eight H100.
    "dsv4-pro-fp8-tp8-ok",
}
"""Cases of what ran that get an error, and why."""

SPECS = sorted(cases.FOLDER.rglob("*.toml"))


@pytest.fixture(scope="module")
def all_outcomes() -> list[Outcome]:
    return list(cases.outcomes(cases.KINDS))


@pytest.fixture(scope="module")
def outcomes(all_outcomes: list[Outcome]) -> list[Outcome]:
    return [o for o in all_outcomes if o.case.kind in ("startup", "memory")]


def test_what_ran_is_not_refused(all_outcomes: list[Outcome]) -> None:
    loud = {o.case.id for o in all_outcomes if o.case.negative and o.verdict in ("false alarm", "elsewhere")}
    assert loud <= REFUSED


def test_most_of_what_failed_is_found(outcomes: list[Outcome]) -> None:
    verdicts = Counter(o.verdict for o in outcomes if not o.case.negative)
    assert sum(verdicts.values()) > 60
    assert verdicts["unmapped"] < 15
    assert verdicts["right"] >= 0.75 * (sum(verdicts.values()) - verdicts["unmapped"])


def test_failures_at_start_are_found(all_outcomes: list[Outcome]) -> None:
    expected = [o for o in all_outcomes if o.case.kind == "startup" and not o.case.negative]
    missed = {o.case.id for o in expected if not o.held}
    assert len(expected) >= 33
    assert missed <= cases.WHY.keys() | {o.case.id for o in expected if o.verdict == "unmapped"}
    assert len(missed) <= 4


def test_every_category_has_its_rules(all_outcomes: list[Outcome]) -> None:
    assert {o.case.category for o in all_outcomes} <= cases.RIGHT.keys()
    assert all(o.reason for o in all_outcomes if o.verdict == "unmapped")


def test_no_reason_is_given_for_what_holds(all_outcomes: list[Outcome]) -> None:
    assert {o.case.id for o in all_outcomes if o.held} & cases.WHY.keys() == set()


def test_a_share_of_the_cache_alone_is_a_size_of_it() -> None:
    """The record's planner counted the heads of all four devices on each: there is room for four times its tokens."""
    case = next(c for c in recorded.cases("memory") if c.id == "gemma4-31b-tt-tp-unsharded-kv")
    made = recorded.reviewed(case).composition
    assert made is not None
    assert made.memory.cache_bytes == pytest.approx(0.2 * 32 * 2**30)
    assert made.memory.capacity_tokens(128.0) == pytest.approx(4 * case.observed["kv_tokens"], rel=0.01)


def test_a_platform_outside_of_an_engine_has_no_release_of_it() -> None:
    outside = [c for c in recorded.cases("memory") if c.engine in ("vllm-metal", "vllm-tt")]
    assert len(outside) == 3
    assert {recorded.release(c) for c in outside} == {None}


def test_the_specs_are_current() -> None:
    wanted = cases.files()
    found = {p.relative_to(cases.FOLDER).as_posix() for p in cases.FOLDER.rglob("*.*") if p.is_file()}
    assert found == wanted.keys(), "run: python tests/accuracy/cases.py --write"
    stale = [name for name, text in wanted.items() if (cases.FOLDER / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run: python tests/accuracy/cases.py --write"


@pytest.mark.parametrize("path", SPECS, ids=[path.relative_to(cases.FOLDER).as_posix() for path in SPECS])
def test_a_spec_has_the_findings_that_its_head_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    told = [line.removeprefix("# Found: ") for line in text.splitlines() if line.startswith("# Found: ")]
    assert (cases.said(cases.lint(path, text)) or ["nothing"]) == told


def test_a_change_of_a_case_changes_its_findings() -> None:
    path = cases.FOLDER / "startup" / "mtp-pp4-3090.toml"
    text = path.read_text(encoding="utf-8")
    assert "ENG004" in " ".join(cases.said(cases.lint(path, text)))
    assert "ENG004" not in " ".join(cases.said(cases.lint(path, text.replace("pipeline = 4", "pipeline = 1"))))
