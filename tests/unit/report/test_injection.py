"""No text of a spec, a file name or a plugin drives a terminal, a build log, a link or a page: any command."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelint.__main__ import main
from servelint.commands.common import write
from servelint.config import Config
from servelint.descriptors import Engine
from servelint.formats import Format
from servelint.hookspecs import API_VERSION, hookimpl
from servelint.lineage import Input, Source
from servelint.lint import lint
from servelint.manager import Plugins
from servelint.report.lineage_tree import Node, as_text
from servelint.report.rule_docs import as_object, markdown, marked, plain
from servelint.report.rule_pages import index
from servelint.report.safe import guarded, paragraphs
from servelint.report.sarif import render as sarif
from servelint.report.show import Style
from servelint.report.text import render as text
from servelint.rule import Case, Finding, Option, Related, Rule, Severity
from servelint.spec.document import parse

HOSTILE = (
    "::error::pwned",
    " \t ::set-output name=x::y",
    "##[error]x",
    "##vso[task.complete]x",
    "a\n::error::x",
    "a\r::error::x",
    "a\u2028::error::x",
    "a\x85::error::x",
    "%0A::error::x",
    "\x1b]0;title\x07\x1b[2J",
    "\x9b31mred",
    "\u202eevil\u2066",
    "::\x1b[1mstop-commands::x",
)
SPEC = """\
servelint = 1
[deployment]
name = {0}
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[engine]
version = {0}
[workload]
prompt_tokens = 1000
output_tokens = 100
rate = 1
[slo]
ttft = {{ p99 = "1 ms" }}
"""
BROKEN = """\
servelint = 1 # servelint: ignore[{1}]
{0} = 1
[deployment]
name = 1
{0} = {{ {0} = [{0}] }}
[hardware]
accelerator = {0}
[model]
id = {0}
[engine]
name = {0}
[policy.{0}]
x = {0}
"""


def hold(output: str) -> None:
    """Nothing in an output is acted on by a terminal or by a build log, wherever that sees lines begin."""
    for line in output.splitlines():
        assert line == line.rstrip("\n")
        assert all(c == " " or c.isprintable() for c in line), line
        assert not re.search("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]", line), line
        assert not line.lstrip().startswith("::"), line
        assert not re.search(r"##\w*\[", line), line
    assert set(re.findall(r"\s", output)) <= {" ", "\n"}


def specs(hostile: str) -> dict[str, str]:
    quoted = json.dumps(hostile)
    return {"good": SPEC.format(quoted), "bad": BROKEN.format(quoted, hostile.splitlines()[0])}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_command_prints_what_a_spec_could_make_it_print(
    hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"{hostile}.toml"
    for kind, spec in specs(hostile).items():
        Path(name).write_text(spec, encoding="utf-8")
        commands: list[list[str]] = [["check", name, *more] for more in ([], ["--verbose"], ["--concise"])]
        commands += [["check", name, "--format", form] for form in ("json", "sarif")]
        commands += [["check", "."], ["cost", name], ["explain", name], ["explain", name, hostile]]
        if kind == "good":
            commands += [["cost", name, "--graph", form] for form in ("dot", "mermaid", "json")]
            commands += [["cost", name, "--format", "json"], ["explain", name, "deployment.name"]]
            commands += [["explain", name, "ttft.p99"], ["explain", name, "engine.version"]]
        for command in commands:
            main(command)
            out, err = capsys.readouterr()
            hold(out)
            hold(err)
            assert "Traceback" not in err
            assert "internal fault" not in err, command
            assert out or err


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("arguments", [("rule", "{}"), ("catalog", "{}"), ("catalog", "models", "{}"), ("{}",)])
def test_nor_what_the_command_line_says(
    hostile: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.format(hostile) for a in arguments]) == 2
    out, err = capsys.readouterr()
    hold(out)
    hold(err)


def hostile_rule(hostile: str) -> type[Rule]:
    class Hostile(Rule):
        code, severity, confidence = "ACME001", Severity.INFO, f"low{hostile}"
        name = hostile
        questions = (hostile,)
        options = (Option("share", 0.5, hostile),)
        failing = (Case(hostile, f"servelint = 1 # {hostile}\n{hostile}\n", files=((hostile, hostile),)),)
        passing = (Case(hostile, hostile),)

        def check(self, review: Any) -> Any:
            yield Finding(
                ("servelint",),
                hostile,
                equation=hostile,
                help=hostile,
                confidence=hostile,
                inputs=(
                    Input(hostile, hostile, hostile, Source(hostile, hostile)),
                    Input("n", 1, hostile, Source("x", "")),
                ),
                related=(Related(("servelint",), hostile),),
            )

    Hostile.__doc__ = f"{hostile}\n\nWhat it checks\n--------------\n{hostile}\n\x0b{hostile}"
    return Hostile


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nor_what_a_rule_says(hostile: str) -> None:
    rule = hostile_rule(hostile)
    hold(plain(rule, Style(False)))
    hold(index([rule]))
    hold(guarded(markdown(rule)))
    shown = as_object(rule, None)
    names = [case["name"] for case in (*shown["failing"], *shown["passing"])]
    for said in (*shown["documentation"].values(), shown["summary"], shown["name"], shown["confidence"], *names):
        hold(guarded(said))
        assert guarded(said).replace("\\x3a:", "::") == said


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nor_what_a_rule_finds(hostile: str) -> None:
    module = SimpleNamespace(servelint_api=API_VERSION, servelint_rules=hookimpl(lambda: [hostile_rule(hostile)]))
    loaded = Plugins(modules={f"acme{hostile}": module})
    report = lint([(hostile, "servelint = 1\n")], loaded, Config(select=("ACME", "SPEC001")), Path())
    for verbose, concise in ((True, False), (False, True)):
        hold(text(report, verbose=verbose, concise=concise))
    written = sarif(report)
    hold(written)
    rules = json.loads(written)["runs"][0]["tool"]
    for said in strings(rules):
        assert all(c == "\n" or c.isprintable() for c in said), said


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [s for v in inner for s in strings(v)]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nor_a_catalogue(
    hostile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine = Engine("acme", lambda *_: {}, lambda *_: {}, aliases=(hostile,), sources=(hostile,))
    width = Format("acme8", 8.0, compute="fp8", aliases=(hostile,), sources=(hostile,))
    module = SimpleNamespace(
        servelint_api=API_VERSION,
        servelint_rules=hookimpl(lambda: [hostile_rule(hostile)]),
        servelint_engines=hookimpl(lambda: [engine]),
        servelint_formats=hookimpl(lambda: [width]),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("servelint.commands.common.Plugins", lambda **_: Plugins(modules={"acme": module}))
    for command in (
        ("catalog", "engines"),
        ("catalog", "engines", "acme"),
        ("catalog", "formats"),
        ("catalog", "formats", "acme8"),
        ("catalog", "rules"),
        ("catalog", "rules", "ACME001"),
        ("rule", "ACME001"),
        ("rule", "--all"),
    ):
        main(command)
        out, err = capsys.readouterr()
        hold(out)
        hold(err)
        assert out or err


def test_only_a_report_of_a_plugin_is_written_raw(capsys: pytest.CaptureFixture[str]) -> None:
    write("::error::x\x1b[2J\n")
    assert capsys.readouterr().out == "\\x3a:error::x\\x1b[2J\n"
    write("::error::x\n", raw=True)
    assert capsys.readouterr().out == "::error::x\n"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nor_a_tree_of_figures(hostile: str) -> None:
    leaf = Node(hostile, hostile, hostile, hostile, Source(hostile, hostile, hostile), (hostile,))
    number = Node(hostile, 1, hostile, children=(leaf,))
    hold(as_text(number, parse("a.toml", "servelint = 1\n", ()), Style(False)))


@given(st.lists(st.sampled_from(("::", ":", " ", "\n", "\t", "#", "[", "x", "\x1b[1m", "\r", "\x85"))).map("".join))
def test_the_guard_lets_nothing_through_and_changes_nothing_twice(output: str) -> None:
    once = guarded(output)
    hold(once)
    assert guarded(once) == once
    assert guarded(guarded(output, color=True), color=True) == guarded(output, color=True)
    assert once.count("\n") == output.count("\n")


def test_the_guard_keeps_ordinary_output_and_its_own_colors() -> None:
    ordinary = "error[MEM001] a::b: 雪 é\n  --> a.toml:1:1\n\n## heading\n"
    assert guarded(ordinary) == ordinary
    painted = Style(True).paint("::error::x", "31")
    assert guarded(painted, color=True) == "\x1b[31m\\x3a:error::x\x1b[0m"
    assert guarded(painted) == "\\x1b[31m::error::x\\x1b[0m"
    assert guarded("\x1b[2J\x1b[31m", color=True) == "\\x1b[2J\x1b[31m"


def test_lines_of_documentation_are_kept() -> None:
    assert paragraphs("a\n\n\tb\x1b[0m\r\nc \n") == "a\n\n    b\\x1b[0m\nc"


# SARIF


def message_of(said: str) -> str:
    class Says(Rule):
        """Says it."""

        code, name, severity = "ACME001", "says", Severity.INFO

        def check(self, review: Any) -> Any:
            yield Finding(("servelint",), said)

    module = SimpleNamespace(servelint_api=API_VERSION, servelint_rules=hookimpl(lambda: [Says]))
    report = lint([("a.toml", "servelint = 1\n")], Plugins(modules={"acme": module}), Config(select=("ACME",)), Path())
    found: str = json.loads(sarif(report))["runs"][0]["results"][0]["message"]["text"]
    return found


def unescaped(message: str) -> tuple[str, bool]:
    """Read a message as its consumers do: the text, and whether a bracket in it is live."""
    plain, live = "", False
    characters = iter(message)
    for c in characters:
        live = live or c in "[]"
        plain += next(characters, "") if c == "\\" else c
    return plain, live


@pytest.mark.parametrize(
    "said",
    [
        "[x](http://a)",
        "\\[x](http://a)",
        "\\\\[x](http://a)",
        "[x\\](http://a)",
        "[a[b]c](http://a)",
        "![x](http://a)",
        "[" * 50 + "](http://a)",
        "a [ b ](http://a)",
    ],
)
def test_no_brackets_of_a_message_are_a_link(said: str) -> None:
    assert unescaped(message_of(said)) == (said, False)


def test_a_message_without_links_is_left_as_it_is() -> None:
    assert message_of("workload.growth[0].name, a\\b (c) [d]") == "workload.growth[0].name, a\\b (c) [d]"


@pytest.mark.parametrize("said", ["[" * 1_000_000, "\\" * 1_000_000, "[](" * 300_000, "::" * 500_000, "##" * 500_000])
def test_long_hostile_texts_take_no_time(said: str) -> None:
    start = time.process_time()
    message_of(said)
    guarded(said + "\n" + " " * 1_000_000 + said)
    marked(said.replace("[", "`<"))
    assert time.process_time() - start < 5


# Pages


def test_a_page_has_no_html_and_an_example_cannot_end_its_fence() -> None:
    rule = hostile_rule("<img src=x> | ``a<b``")
    rule.failing = (Case("bad", 'servelint = 1 # ```\n```\n<script>\nname = "````"\n'),)
    page = markdown(rule)
    outside = re.sub(r"^(`{3,})toml\n.*?^\1$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert "<script>" in page
    assert "<script>" not in outside
    assert "\\<img src=x>" in outside
    assert re.search(r"(?<!\\)<img", outside) is None
    assert "`a<b`" in outside
    row = next(line for line in page.splitlines() if line.startswith("| `share`"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a < b", "a \\< b"),
        ("``a < b``", "`a < b`"),
        ("``a\n< b`` <c>", "`a\n< b` \\<c>"),
        ("a:\n\n    x < y\n", "a:\n\n    x < y\n"),
        ("stray ` <b>\n\nnext ` <c>", "stray ` \\<b>\n\nnext ` \\<c>"),
    ],
)
def test_marked(said: str, shown: str) -> None:
    assert marked(said) == shown
