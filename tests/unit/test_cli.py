"""The command line of ``check``: exit status, streams, several inputs, several outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.__main__ import COMMANDS, main
from servelint.commands.check import verdict
from servelint.config import Config
from servelint.hookspecs import API_VERSION, hookimpl
from servelint.lint import lint
from servelint.manager import Plugins
from servelint.rule import Rule

GOOD = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
BAD = "servelint = 1\n[hardware]\ndevices = 0\n"
WARNS = "servelint = 1 # servelint: ignore[SPEC003] nothing to ignore\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("spec", "options", "status"),
    [
        (GOOD, (), 0),
        (BAD, (), 1),
        (BAD, ("--exit-zero",), 0),
        (BAD, ("--format", "json"), 1),
        (BAD, ("--format", "sarif"), 1),
        (WARNS, (), 0),
        (WARNS, ("--fail-on", "warning"), 1),
        (WARNS, ("--fail-on", "info"), 1),
        ("servelint = \n", (), 1),
        (BAD, ("--select", "SPEC004"), 0),
        (BAD, ("--ignore", "SPEC"), 0),
        (BAD, ("--ignore", "bad-value"), 0),
    ],
)
def test_exit_status(
    spec: str, options: tuple[str, ...], status: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, a=spec)
    assert run(capsys, "check", "a.toml", *options)[0] == status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chek",), "no command 'chek'; did you mean 'check'"),
        (("check", "--selct", "MEM"), "unknown argument '--selct'; did you mean '--select'"),
        (("check", "--format"), "expected one argument"),
        (("check", ".", "--format", "sarf"), "did you mean 'sarif'"),
        (("check", ".", "--output", "sarif"), "expected FORMAT=FILE"),
        (("check", ".", "--output", "srif=x"), "did you mean 'sarif'"),
        (("check", ".", "--output", "json=/nonexistent/x.json"), "cannot be written"),
        (("check", ".", "--select", "MEMM"), "did you mean 'MEM'"),
        (("check", ".", "--select", ""), "no rule is selected"),
        (("check", ".", "--fail-on", "warn"), "did you mean 'warning'"),
        (("check", ".", "--disable-plugin", "rule"), "no plugin is called 'rule', so it cannot be disabled; did you"),
        (("check", ".", "--disable-plugin", "rules"), "no rules are loaded"),
        (("check", "--config", "none.toml"), "cannot be read"),
        (("check", "empty"), "no spec found in empty"),
        (("cost",), "required: SPEC"),
        (("cost", "a.toml", "--batch", "-1"), "negative"),
        (("cost", "a.toml", "--context", "0.5"), "expected a number from 1 to 100,000,000"),
        (("cost", "a.toml", "--batch", "abc"), "expected a count of sequences, such as 64"),
        (("cost", "a.toml", "--context", "abc"), "expected a count of tokens"),
        (("cost", "a.toml", "--graph", "dott"), "did you mean 'dot'"),
        (("explain", "none.toml"), "there is no such file"),
        (("explain", "a.toml", "kv_bytes"), "did you mean 'kv_bytes_per_token'"),
        (("rule",), "name one rule"),
        (("rule", "SLO01"), "did you mean 'SLO001'"),
        (("catalog", "hardwares"), "did you mean 'hardware'"),
        (("catalog", "hardware", "h1000-sxm"), "did you mean"),
        (("catalog", "formats", "fp88"), "did you mean 'fp8"),
    ],
)
def test_usage_is_status_2_with_a_suggestion(
    arguments: tuple[str, ...], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, a=GOOD)
    (here / "empty").mkdir()
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert f"usage: servelint {command}" in out


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, "servelint 0.1.0\n")
    assert run(capsys, "--help")[0] == 0
    assert run(capsys)[0] == 2


def test_an_unreadable_file_does_not_hide_the_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, a=BAD)
    (here / "latin.toml").write_bytes(b'servelint = 1\nname = "\xe9"\n')
    status, out, _ = run(capsys, "check", "a.toml", "gone.toml", "latin.toml")
    assert status == 2
    assert "error[SPEC003]" in out
    assert "cannot read gone.toml: there is no such file or folder" in out
    assert "cannot read latin.toml: it is not UTF-8 text (byte 22)" in out
    assert "exit status 2: a file could not be read" in out
    status, out, _ = run(capsys, "check", "gone.toml", "--format", "json")
    assert status == 2
    assert [u["file"] for u in json.loads(out)["unreadable"]] == ["gone.toml"]


def test_a_folder_is_searched_for_specs_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, a=BAD, other="[tool]\nservelint = 1\n", quoted="'servelint' = 1\n")
    (here / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (here / "node_modules").mkdir()
    write(here / "node_modules", b=BAD)
    (here / "sub").mkdir()
    write(here / "sub", c=BAD)
    (here / "sub" / "link.toml").symlink_to(here / "a.toml")
    status, out, _ = run(capsys, "check", ".", "a.toml", "--format", "json")
    assert status == 1
    assert [f["file"] for f in json.loads(out)["files"]] == ["a.toml", "quoted.toml", "sub/c.toml"]


def test_exclude_and_per_file_ignores_are_relative_to_the_root(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "servelint.toml").write_text('exclude = ["old"]\n[per-file-ignores]\n"lab/*" = ["SPEC003"]\n')
    for folder in ("old", "lab"):
        (here / folder).mkdir()
        write(here / folder, a=BAD)
    assert run(capsys, "check", "lab")[0] == 0
    assert run(capsys, "check", str(here / "lab" / "a.toml"))[0] == 0
    assert "no spec found" in run(capsys, "check", "old")[2]
    assert run(capsys, "check", "old/a.toml")[0] == 1


def test_standard_input(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "servelint", "check", "-", "--concise"],
        input=BAD.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(b"<stdin>:3:11: error SPEC003 bad-value: ")


def test_several_outputs_in_one_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, a=BAD)
    status, out, _ = run(capsys, "check", "a.toml", "--output", "sarif=x.sarif", "--output", "json=x.json")
    assert status == 1
    assert "error[SPEC003]" in out
    assert json.loads((here / "x.sarif").read_text())["version"] == "2.1.0"
    assert json.loads((here / "x.json").read_text())["summary"] == {"errors": 1, "warnings": 0, "info": 0}


def test_no_color_off_a_terminal_and_color_on_one(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, a=BAD)
    assert "\x1b" not in run(capsys, "check", "a.toml")[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31;1m" in run(capsys, "check", "a.toml")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(capsys, "check", "a.toml")[1]


def test_output_survives_a_narrow_encoding(here: Path) -> None:
    write(here, a='servelint = 1\n[deployment]\nnam = "雪"\n')
    done = subprocess.run(
        [sys.executable, "-m", "servelint", "check", "a.toml"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert rb"\u96ea" in done.stdout


def test_a_reader_that_goes_away_is_no_traceback(here: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m servelint catalog hardware --format json | head -c 1",
        shell=True,
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr


class Leaves(Rule):
    """Tries to end the run with success."""

    code, name = "TST001", "leaves"

    def check(self, review: Any) -> Any:
        raise SystemExit(0)


class Wrong(Rule):
    """Yields what no report could show."""

    code, name = "TST002", "wrong"

    def check(self, review: Any) -> Any:
        yield "a text"


@pytest.mark.parametrize("rule", [Leaves, Wrong])
def test_a_rule_that_fails_makes_the_run_fail(rule: type[Rule], plugins: Plugins) -> None:
    module = SimpleNamespace(servelint_api=API_VERSION, servelint_rules=hookimpl(lambda: [rule]))
    own = Plugins(modules={"bad": module}, discover=False)
    report = lint([("a.toml", "servelint = 1\n")], own, Config(), Path())
    assert [f.provider.plugin for f in report.faults] == ["bad"]
    assert verdict(report) == 2


def test_a_plugin_cannot_end_the_process_with_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(argv: list[str]) -> int:
        raise SystemExit(0)

    monkeypatch.setattr("servelint.commands.check.run", leave)
    assert main(["check"]) == 2


def test_an_internal_fault_is_status_2_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> int:
        raise RuntimeError("\x1b[2Jgone")

    monkeypatch.setattr("servelint.commands.check.run", fail)
    monkeypatch.delenv("SERVELINT_DEBUG", raising=False)
    status, out, err = run(capsys, "check")
    assert status == 2
    assert out == ""
    assert err == "servelint: internal fault: RuntimeError: \\x1b[2Jgone; SERVELINT_DEBUG=1 shows where\n"


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (("cost",), {"networkx", "numpy", "rich"}),
        (("explain",), {"networkx", "numpy", "rich", "servelint.report.sarif"}),
        (("check",), {"networkx", "numpy", "rich", "servelint.report.sarif", "servelint.report.explain"}),
    ],
)
def test_commands_import_only_what_they_use(arguments: tuple[str, ...], unneeded: set[str], here: Path) -> None:
    write(here, a=GOOD)
    program = (
        "import sys; from servelint.__main__ import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "a.toml"], capture_output=True, text=True, check=True
    )
    assert not unneeded & set(done.stderr.split())
