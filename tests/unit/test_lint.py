"""Running rules: isolation, selection, severity, places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.config import Config
from servelint.hookspecs import API_VERSION, hookimpl
from servelint.lint import Linter, lint
from servelint.manager import Plugins
from servelint.rule import Finding, Lacks, Rule, Severity


class Crash(Rule):
    """Fails on every spec."""

    code, name = "TST001", "crash"

    def check(self, review: Any) -> Iterator[Finding]:
        yield Finding(("servelint",), "before the crash")
        raise ZeroDivisionError("oops")


class Speak(Rule):
    """Speaks of every spec."""

    code, name, severity = "TST002", "speak", Severity.INFO

    def check(self, review: Any) -> Iterator[Finding | Lacks]:
        yield Finding(("servelint",), "hello")
        yield Finding(("servelint",), "hello")
        yield Lacks("nothing")


class Preview(Speak):
    """Not yet on by default."""

    code, name, preview = "TST003", "early", True


@pytest.fixture
def own() -> Plugins:
    module = SimpleNamespace(servelint_api=API_VERSION, servelint_rules=hookimpl(lambda: (Crash, Speak, Preview)))
    return Plugins(modules={"tst": module}, discover=False)


def codes(plugins: Plugins, config: Config, name: str = "a.toml") -> list[str]:
    result = Linter(plugins, config, Path()).check(name, "servelint = 1\n")
    return [f.finding.code for f in result.findings]


def test_a_crashing_rule_is_a_fault_and_the_run_goes_on(own: Plugins) -> None:
    report = lint([("a.toml", "servelint = 1\n"), ("b.toml", "servelint = 1\n")], own, Config(), Path())
    # What a rule said before it failed is not trusted.
    assert [f.finding.code for f in report.findings] == ["TST002"] * 2
    # It is left out of the rest of the run.
    assert len(report.faults) == 1
    assert "rule TST001 failed on a.toml: ZeroDivisionError: oops" in report.faults[0].message


def test_equal_findings_are_one_and_what_lacks_is_kept_apart(own: Plugins) -> None:
    result = Linter(own, Config(select=("TST002",)), Path()).check("a.toml", "servelint = 1\n")
    assert [f.finding.message for f in result.findings] == ["hello"]
    assert result.lacking == (("TST002", "nothing"),)
    (found,) = result.findings
    assert (found.place.line, found.place.column, found.place.end_column) == (1, 13, 14)


def test_selection(own: Plugins) -> None:
    assert codes(own, Config(select=("speak",))) == ["TST002"]
    assert codes(own, Config(ignore=("TST",))) == []
    assert codes(own, Config(ignore=("crash",))) == ["TST002"]
    assert codes(own, Config(select=("TST003",))) == ["TST003"]
    assert codes(own, Config(select=("TST",), ignore=("TST001",), preview=True)) == ["TST002", "TST003"]
    per_file = Config(ignore=("TST001",), per_file_ignores={"old/*": ("TST002",)})
    assert codes(own, per_file, "old/a.toml") == []
    assert codes(own, per_file, "new/a.toml") == ["TST002"]


def test_severity_can_be_overridden(own: Plugins) -> None:
    config = Config(select=("TST002",), severity={"TST002": Severity.ERROR})
    report = lint([("a.toml", "servelint = 1\n")], own, config, Path())
    assert report.worst() is Severity.ERROR


def test_findings_come_in_the_order_of_the_file(plugins: Plugins) -> None:
    text = 'servelint = 1\n[hardware]\ndevices = 0\n[model]\nmax_model_len = -1\nidd = "x"\n'
    result = Linter(plugins, Config(), Path()).check("a.toml", text)
    assert [f.place.line for f in result.findings] == [3, 5, 6]
