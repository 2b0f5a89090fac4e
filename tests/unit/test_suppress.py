"""Suppression comments: what they cover, and what is said of those that are of no use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import FileResult, Linter
from servelint.manager import Plugins
from servelint.rule import HEADINGS, Case, Rule, Severity
from servelint.suppress import RULES, every_rule
from servelint.testing.rules import check_case

CASES = [
    pytest.param(rule, case, id=f"{rule.code}-{kind}-{i}")
    for rule in RULES
    for kind in ("failing", "passing")
    for i, case in enumerate(getattr(rule, kind))
]


def checked(plugins: Plugins, text: str, config: Config | None = None) -> FileResult:
    return Linter(plugins, config or Config(), Path()).check("a.toml", text)


def outcome(result: FileResult) -> list[tuple[int, str, bool]]:
    """(line, code, suppressed) of every finding about the spec itself or its comments."""
    return [
        (f.place.line, f.finding.code, f.suppressed is not None)
        for f in result.findings
        if f.finding.code.startswith(("SPEC00", "LINT"))
    ]


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_case(rule: type[Rule], case: Case, plugins: Plugins) -> None:
    check_case(rule, case, plugins)


@pytest.mark.parametrize("rule", RULES)
def test_documentation_is_complete(rule: type[Rule]) -> None:
    doc = rule.__doc__ or ""
    places = [doc.find(f"{heading}\n") for heading in HEADINGS]
    assert all(p > 0 for p in places)
    assert places == sorted(places)
    assert rule.problem() == ""


def test_every_rule_has_the_linters_own(plugins: Plugins) -> None:
    rules = every_rule(plugins)
    assert set(RULES) < set(rules)
    assert [r.code for r in rules] == sorted(r.code for r in rules)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "servelint = 1\n[hardware]\ndevices = 0 # servelint: ignore[SPEC003] sizing\n",
            [(3, "SPEC003", True)],
            id="on the line",
        ),
        pytest.param(
            "servelint = 1\n[hardware]\n# servelint: ignore[SPEC003] sizing\ndevices = 0\nreplicas = 0\n",
            [(4, "SPEC003", True), (5, "SPEC003", False)],
            id="above a key, not the next one",
        ),
        pytest.param(
            "servelint = 1\n# servelint: ignore[SPEC003] sizing\n# and a word on it\n[hardware]\ndevices = 0\n"
            "replicas = 0\n[slo]\nheadroom = 2\n",
            [(5, "SPEC003", True), (6, "SPEC003", True), (8, "SPEC003", False)],
            id="above a table, the whole table and no other",
        ),
        pytest.param(
            "servelint = 1\n# servelint: ignore[SPEC003] sizing\n[workload]\nrate = 0\n[[workload.growth]]\nrate = 0\n",
            [(4, "SPEC003", True), (6, "SPEC003", True)],
            id="above a table, with its sub-tables",
        ),
        pytest.param(
            "servelint = 1\n[[workload.growth]]\nrate = 0\n# servelint: ignore[SPEC003] sizing\n"
            "[[workload.growth]]\nrate = 0\n",
            [(3, "SPEC003", False), (6, "SPEC003", True)],
            id="above one element of an array of tables",
        ),
        pytest.param(
            "servelint = 1\n[workload]\n# servelint: ignore[SPEC003] sizing\n"
            "prompt_tokens = { p50 = 9, p99 = 8 }\noutput_tokens = { p50 = 9, p99 = 8 }\n",
            [(4, "SPEC003", True), (5, "SPEC003", False)],
            id="above a key, everything in its value",
        ),
        pytest.param(
            "servelint = 1\n# servelint: ignore[SPEC003] sizing\nhardware.devices = 0\nhardware.replicas = 0\n",
            [(3, "SPEC003", True), (4, "SPEC003", False)],
            id="above a dotted key, not its table",
        ),
        pytest.param(
            "servelint = 1\n[hardware]\ndevices = [\n  1,\n] # servelint: ignore[SPEC003] sizing\n",
            [(3, "SPEC003", True)],
            id="where a value of several lines ends",
        ),
        pytest.param(
            "# servelint: ignore-file[bad-value] sizing\nservelint = 1\n[hardware]\ndevices = 0\nreplicas = 0\n",
            [(4, "SPEC003", True), (5, "SPEC003", True)],
            id="for the file, by name",
        ),
        pytest.param(
            'servelint = 1\n[hardware]\naccelerator = "# servelint: ignore[SPEC004] no comment"\n',
            [(3, "SPEC004", False)],
            id="not inside a string",
        ),
    ],
)
def test_what_a_comment_covers(text: str, expected: list[tuple[int, str, bool]], plugins: Plugins) -> None:
    assert [o for o in outcome(checked(plugins, text)) if o[1] != "SPEC005"] == expected


def test_the_reason_is_kept(plugins: Plugins) -> None:
    found = checked(plugins, "servelint = 1\nhardware.devices = 0 # servelint: ignore[SPEC003] until March\n")
    assert [f.suppressed for f in found.findings if f.finding.code == "SPEC003"] == ["until March"]


def test_no_use_is_reported_only_of_rules_that_came_to_a_verdict(plugins: Plugins) -> None:
    # MEM001 has no hardware to decide on, and the broken spec keeps every other rule from running.
    for spec in ("servelint = 1\n", "servelint = 1\nbroken = 1\n"):
        result = checked(plugins, "# servelint: ignore-file[MEM001] known\n" + spec)
        assert not [f for f in result.findings if f.finding.code.startswith("LINT")]


def test_no_use_is_not_reported_of_rules_that_are_not_selected(plugins: Plugins) -> None:
    text = "# servelint: ignore-file[SPEC003] known\nservelint = 1\n"
    assert outcome(checked(plugins, text)) == [(1, "LINT001", False)]
    assert outcome(checked(plugins, text, Config(select=("SPEC004", "LINT")))) == []
    assert outcome(checked(plugins, text, Config(ignore=("LINT001",)))) == []


def test_an_unknown_code_gets_a_suggestion(plugins: Plugins) -> None:
    result = checked(plugins, "servelint = 1 # servelint: ignore[MEM0001] known\n")
    (message,) = [f.finding.message for f in result.findings if f.finding.code == "LINT002"]
    assert "did you mean 'MEM001'" in message


def test_a_family_is_no_rule(plugins: Plugins) -> None:
    assert (1, "LINT002", False) in outcome(checked(plugins, "servelint = 1 # servelint: ignore[MEM] known\n"))


def test_findings_about_comments_take_severity_and_suppression(plugins: Plugins) -> None:
    text = "servelint = 1 # servelint: ignore[SPEC003]\n"
    config = Config(severity={"LINT001": Severity.ERROR})
    assert [f.finding.severity for f in checked(plugins, text, config).findings] == [Severity.ERROR]
    hushed = checked(plugins, "# servelint: ignore-file[LINT001] generated\n" + text)
    assert outcome(hushed) == [(2, "LINT001", True)]


def test_audit_mode_knows_no_comments(plugins: Plugins) -> None:
    text = "servelint = 1\nhardware.devices = 0 # servelint: ignore[SPEC003]\n"
    assert outcome(checked(plugins, text, Config(suppressions=False))) == [(2, "SPEC003", False)]


@pytest.mark.parametrize(
    "text",
    [
        "# servelint: ignore[A]" + " " * 300_000,
        "# servelint: ignore[A] " + "x " * 200_000,
        "# servelint: ignore[A] " + "# " * 200_000,
        "# servelint: ignore" + " " * 300_000 + "[A]",
        "#" + " " * 300_000 + "servelint: ignore[A",
        "# servelint: ignore[" + "A," * 200_000 + "B] x",
        "[hardware]\n" + "# servelint: ignore[MEM001] x\n" * 20_000,
        "# servelint: ignore[MEM001] x\n" * 20_000 + "devices = 1",
    ],
    ids=["spaces", "words", "marks", "before the bracket", "no end", "codes", "lines", "lines above a key"],
)
def test_comments_of_any_size_take_no_time(text: str, plugins: Plugins) -> None:
    began = time.process_time()
    result = checked(plugins, f"servelint = 1\n{text}\n")
    assert time.process_time() - began < 4.0
    assert all(len(f.finding.message) < 2000 for f in result.findings)


@pytest.mark.parametrize(
    "reason", ["", "  ", "\u202e", "\u200b\u200d", "\ufeff", "\u3164", "\u2800", "-", "...", "\u202e # expect: x"]
)
def test_what_cannot_be_seen_or_read_is_no_reason(reason: str, plugins: Plugins) -> None:
    text = f"servelint = 1\n[hardware]\ndevices = 0 # servelint: ignore[SPEC003] {reason}\n"
    assert outcome(checked(plugins, text)) == [(3, "SPEC003", True), (3, "LINT003", False)]


@pytest.mark.parametrize("reason", ["x", "7", "Gr\u00f6\u00dfe", "\u5c06\u6765", "\u202eok", "being sized # expect: x"])
def test_a_word_of_any_script_is_a_reason(reason: str, plugins: Plugins) -> None:
    text = f"servelint = 1\n[hardware]\ndevices = 0 # servelint: ignore[SPEC003] {reason}\n"
    assert outcome(checked(plugins, text)) == [(3, "SPEC003", True)]
