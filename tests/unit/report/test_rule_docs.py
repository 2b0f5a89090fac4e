"""A rule's page: read from the docstring, the same in text, JSON and Markdown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main
from servelint.manager import Plugins
from servelint.report.rule_docs import as_object, markdown, missing, plain, sections
from servelint.report.rule_pages import FAMILIES, index, pages
from servelint.report.rule_pages import main as write_pages
from servelint.report.show import Style
from servelint.rule import HEADINGS, Case, Option, Rule
from servelint.suppress import every_rule


class Example(Rule):
    """One line on
    what is wrong.

    What it checks
    --------------
    The ``key``, and::

        more

    Why it is bad
    -------------
    It is.

    The arithmetic
    --------------
    ``a | b``

    How to fix
    ----------
    Do.

    Source
    ------
    None.
    """

    code, name = "TST001", "example"
    options = (Option("share", 0.25, "a ``share`` | of it", 0, 1), Option("limit", 3, "no end"))
    failing = (Case("bad", "servelint = 1\n", files=(("x.json", "{\n" * 30),)),)
    passing = (Case("good", "servelint = 1 # ok\n"),)

    def check(self, review: Any) -> Any:
        return ()


def test_sections() -> None:
    parts = sections(Example)
    assert list(parts) == ["", *HEADINGS]
    assert parts[""] == "One line on\nwhat is wrong."
    assert parts["What it checks"] == "The ``key``, and::\n\n    more"


def test_sections_do_not_depend_on_the_indentation_that_the_interpreter_keeps() -> None:
    import inspect

    class Stripped(Example):
        __doc__ = inspect.cleandoc(Example.__doc__ or "")

    assert sections(Stripped) == sections(Example)


def test_text_markdown_and_json_say_the_same() -> None:
    text, page, data = plain(Example, Style(False)), markdown(Example), as_object(Example, None)
    assert "  share = 0.25 (0 to 1): a ``share`` | of it" in text
    assert "  limit = 3 (at least 0): no end" in text
    assert "| `share` | 0.25 | 0 to 1 | a `share` \\| of it |" in page
    assert "| `limit` | 3 | at least 0 | no end |" in page
    assert data["options"][0] == {
        "name": "share",
        "default": 0.25,
        "minimum": 0,
        "maximum": 1,
        "doc": "a ``share`` | of it",
    }
    assert list(data["documentation"]) == ["what_it_checks", "why_it_is_bad", "the_arithmetic", "how_to_fix", "source"]
    for shown in (text, page):
        assert "servelint: ignore[TST001]" in shown
        assert "... 10 more lines" in shown
        assert "The `key`" in shown


def test_every_rule_has_a_page(plugins: Plugins) -> None:
    made = pages(every_rule(plugins))
    assert set(made) == {"index.md", *(f"{r.code}.md" for r in every_rule(plugins))}
    for rule in every_rule(plugins):
        page = made[f"{rule.code}.md"]
        assert page.startswith(f"# {rule.code} {rule.name}\n")
        assert all(f"\n## {heading}\n" in page for heading in HEADINGS)
        assert page.count("```") % 2 == 0
        assert f"[{rule.code}]({rule.code}.md)" in made["index.md"]
        assert rule.code.rstrip("0123456789") in FAMILIES


def test_the_index_has_all_three_ways_in(plugins: Plugins) -> None:
    text = index(list(every_rule(plugins)))
    assert "### SLO: Latency and throughput" in text
    assert "* Throughput past the SLO: [SLO001](SLO001.md) throughput-past-slo" in text
    for rule in plugins.rules:
        for question in rule.questions:
            assert f"* {question[:1].upper()}{question[1:]}? " in text
    assert index([Example]).count("### TST") == 1


def test_writing_removes_pages_of_rules_that_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "OLD001.md").write_text("gone")
    (tmp_path / "keep.txt").write_text("no page")
    assert write_pages([str(tmp_path)]) == 0
    assert not (tmp_path / "OLD001.md").exists()
    assert (tmp_path / "keep.txt").exists()
    assert (tmp_path / "LINT001.md").exists()
    assert write_pages([]) == 2
    assert "usage" in capsys.readouterr().err


SPEC = 'servelint = 1\n[hardware]\naccelerator = "nvidia/l4"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'


def without_docstrings(*arguments: str, folder: Path, optimize: str = "2") -> subprocess.CompletedProcess[str]:
    """Run Python with -OO, or with another level."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONOPTIMIZE": optimize, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("rule", "SLO001"), ("rule", "--all"), ("catalog", "rules", "SLO001")])
def test_a_page_says_that_python_runs_without_docstrings(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = without_docstrings("servelint", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Python runs without docstrings (-OO or PYTHONOPTIMIZE=2)" in done.stdout
    assert "SLO001 throughput-past-slo: warning" in done.stdout


def test_no_page_is_written_without_docstrings(tmp_path: Path) -> None:
    (tmp_path / "OLD001.md").write_text("kept")
    done = without_docstrings("servelint.report.rule_pages", ".", folder=tmp_path)
    assert done.returncode == 2
    assert "without docstrings" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["OLD001.md"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "a.toml", "--verbose"),
        ("check", "a.toml", "--format", "json"),
        ("cost", "a.toml"),
        ("cost", "a.toml", "--graph", "mermaid"),
        ("explain", "a.toml", "memory_budget"),
        ("catalog", "hardware"),
        ("catalog", "models", "meta-llama/Llama-3.1-8B"),
        ("catalog", "engines"),
        ("model", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_every_other_command_is_the_same_without_docstrings(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SPEC)
    usual = without_docstrings("servelint", *arguments, folder=tmp_path, optimize="0")
    stripped = without_docstrings("servelint", *arguments, folder=tmp_path)
    assert usual.stdout
    assert (stripped.returncode, stripped.stdout, stripped.stderr) == (usual.returncode, usual.stdout, usual.stderr)


def test_sarif_and_policies_do_without_docstrings(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SPEC)
    log = json.loads(without_docstrings("servelint", "check", "a.toml", "--format", "sarif", folder=tmp_path).stdout)
    for rule in log["runs"][0]["tool"]["driver"]["rules"]:
        assert rule["shortDescription"]["text"] == rule["name"] == rule["help"]["text"]
    policies = without_docstrings("servelint", "catalog", "policies", folder=tmp_path)
    assert policies.returncode == 0
    assert "policy.batching" in policies.stdout


def test_a_rule_without_documentation_says_so() -> None:
    class Silent(Example):
        __doc__ = None

    assert missing(Example) == ""
    assert missing(Silent) == "The rule has no documentation."
    assert "The rule has no documentation." in plain(Silent, Style(False))
    assert "The rule has no documentation." in markdown(Silent)
    assert as_object(Silent, None)["summary"] == "The rule has no documentation."


def test_the_command(plugins: Plugins, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        assert main(["rule", *arguments]) == 0
        return capsys.readouterr().out

    assert run("slo001") == run("throughput-past-slo")
    assert run("LINT001").startswith("LINT001 unused-suppression: warning")
    rules = json.loads(run("--all", "--format", "json"))["rules"]
    assert [r["code"] for r in rules] == [r.code for r in every_rule(plugins)]
    assert next(r for r in rules if r["code"] == "SLO001")["provider"]["distribution"] == "servelint"
    assert next(r for r in rules if r["code"] == "LINT001")["provider"] is None
    assert run("--all").count("How to fix") >= len(rules)
