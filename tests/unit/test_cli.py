"""The command line of ``check``: exit status, streams, several inputs, several outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.__main__ import COMMANDS, main
from servelint.commands import common
from servelint.commands.check import verdict
from servelint.commands.common import is_spec, read_specs
from servelint.config import Config
from servelint.hookspecs import API_VERSION, hookimpl
from servelint.lint import Linter, lint
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
        (("rule", "SLO01"), "or 'SLO001'"),
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


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "MemoryError"])
@pytest.mark.parametrize("debug", ["", "1"])
def test_whatever_is_raised_is_status_2(
    kind: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(getattr(__import__("builtins"), kind)):  # type: ignore[misc]
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(argv: list[str]) -> int:
        raise Own(0)

    monkeypatch.setattr("servelint.commands.check.run", fail)
    monkeypatch.setenv("SERVELINT_DEBUG", debug)
    status, _, err = run(capsys, "check")
    assert status == 2
    assert ("interrupted" if kind == "KeyboardInterrupt" else "internal fault: Own: it cannot be shown") in err
    assert ("Traceback" in err) == (bool(debug) and kind != "KeyboardInterrupt")


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m servelint {command}"
    environment = {**os.environ, **variables}
    return subprocess.run(program, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_standard_error_that_cannot_be_written_changes_no_status(streams: str, buffered: str, here: Path) -> None:
    write(here, a=BAD)
    write_too = "check a.toml --output json=x.json"
    for command, status in ((write_too, 1), ("check gone.toml", 2), ("chek", 2), ("cost b", 2)):
        done = shell(f"{command} {streams}", here, PYTHONUNBUFFERED=buffered)
        assert (done.returncode, done.stderr) == (status, ""), command
        assert "servelint:" not in done.stdout
    assert json.loads((here / "x.json").read_text())["summary"]["errors"] == 1


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    ("streams", "said"),
    [
        (">&-", "standard output is closed"),
        (">/dev/full", "output cannot be written: No space left on device"),
        (">/dev/full 2>/dev/full", ""),
        (">&- 2>&-", ""),
    ],
)
def test_output_that_cannot_be_written_is_status_2(streams: str, said: str, buffered: str, here: Path) -> None:
    write(here, a=GOOD)
    for command in ("check a.toml", "check a.toml --format json", "catalog models --format json", "--version"):
        done = shell(f"{command} {streams}", here, PYTHONUNBUFFERED=buffered)
        assert done.returncode == 2, command
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert "fault" not in done.stderr
    assert shell(f"cost gone.toml {streams}", here, PYTHONUNBUFFERED=buffered).returncode == 2


def test_standard_input_that_is_closed(here: Path) -> None:
    for command in ("check", "cost"):
        done = shell(f"{command} - <&-", here)
        assert done.returncode == 2
        assert "standard input is closed" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_current_folder_that_is_gone(here: Path) -> None:
    (here / "gone").mkdir()
    program = f"cd gone && rmdir ../gone && {sys.executable} -P -m servelint check ."
    done = subprocess.run(program, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "servelint: the current folder cannot be used: No such file or directory\n"


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with secrets beside it and in its repository, and links to them."""
    made = here / "checkout"
    (made / ".git").mkdir(parents=True)
    (here / "outside").mkdir()
    for place in (made / ".git" / "config.toml", here / "outside" / "s.toml"):
        place.write_text('servelint = 1\ntoken = "SECRET"\n')
    (made / "env.toml").symlink_to("/proc/self/environ")
    (made / "file.toml").symlink_to("../outside/s.toml")
    (made / "folder").symlink_to("../outside")
    (made / "git.toml").symlink_to(".git/config.toml")
    (made / "loop.toml").symlink_to("loop.toml")
    (made / "gone.toml").symlink_to("nothing.toml")
    (made / "zero.toml").symlink_to("/dev/zero")
    (made / "sub").mkdir()
    os.mkfifo(made / "sub" / "pipe.toml")
    monkeypatch.setenv("TOKEN", "SECRET")
    return made


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("env.toml", "it is a link that leads out of the project"),
        ("zero.toml", "it is a link that leads out of the project"),
        ("file.toml", "it is a link that leads out of the project"),
        ("folder", "it is a link that leads out of the project"),
        ("folder/s.toml", "it is a link that leads out of the project"),
        ("sub/../file.toml", "it is a link that leads out of the project"),
        ("git.toml", "it lies in .git, which belongs to the repository"),
        (".git/config.toml", "it lies in .git, which belongs to the repository"),
        (".git", "it lies in .git, which belongs to the repository"),
        ("loop.toml", "Too many levels of symbolic links"),
        ("gone.toml", "it is a link to nothing"),
        ("sub/pipe.toml", "it is not a regular file"),
        ("none.toml", "there is no such file or folder"),
        ("sub/pipe.toml/x", "cannot be read: Not a directory"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
@pytest.mark.parametrize("start", ["checkout", ".", "/"])
def test_a_named_file_of_a_stranger_gives_nothing_away(
    name: str,
    reason: str,
    start: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project.parent / start)
    named = name if start == "checkout" else f"checkout/{name}" if start == "." else str(project / name)
    for arguments in (("check", named), ("check", named, "--format", "json"), ("cost", named), ("explain", named)):
        status, out, err = run(capsys, *arguments)
        assert status == 2
        assert reason in out + err
        assert "SECRET" not in out + err
        assert "fault" not in err


def test_links_within_a_project_are_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project / "sub", a=BAD)
    (project / "near.toml").symlink_to("sub/a.toml")
    (project / "inner").symlink_to("sub")
    (project / "sub" / "pipe.toml").unlink()
    for name in ("near.toml", "inner/a.toml", "inner"):
        assert run(capsys, "check", str(project / name))[0] == 1


def test_a_report_is_not_written_through_a_link_of_a_stranger(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    write(project, a=BAD)
    target = project.parent / "outside" / "profile"
    target.write_text("mine")
    (project / "out.json").symlink_to(target)
    (project / "hook.json").symlink_to(".git/hook")
    for name, reason in (("out.json", "leads out of the project"), ("hook.json", "belongs to the repository")):
        status, _, err = run(capsys, "check", "a.toml", "--output", f"json={name}")
        assert status == 2
        assert f"{name}: cannot be written: it" in err
        assert reason in err
    assert target.read_text() == "mine"
    assert not (project / ".git" / "hook").exists()
    assert run(capsys, "check", "a.toml", "--output", f"json={target}")[0] == 1
    assert json.loads(target.read_text())["summary"]["errors"] == 1


@pytest.fixture
def deep(here: Path) -> Iterator[Path]:
    """Folders nested deeper than the standard library can remove."""
    for depth in range(1100):
        os.mkdir("d")
        os.chdir("d")
        if depth in (98, 99, 100):
            Path("a.toml").write_text(BAD)
    os.chdir(here)
    yield here
    subprocess.run(["rm", "-rf", here / "d"], check=True)


def test_folders_nested_without_end(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(deep, z=BAD)
    status, out, _ = run(capsys, "check", "--format", "json")
    found = json.loads(out)
    assert status == 2
    assert [f["file"] for f in found["files"]] == ["z.toml", "d/" * 99 + "a.toml", "d/" * 100 + "a.toml"]
    assert found["unreadable"] == [
        {"file": "/".join(["d"] * 100), "reason": "its folders are not searched: they are more than 100 deep"}
    ]


def test_a_search_is_sorted_and_bounded(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b", "a/y", "a/x", "c"):
        (here / name).mkdir(parents=True)
        write(here / name, two=GOOD, one=GOOD)
    write(here, top=GOOD)
    (here / "a" / "link").symlink_to(here / "b")
    names = [f"{folder}/{file}.toml" for folder in ("a/x", "a/y", "b", "c") for file in ("one", "two")]
    assert [found.name for found in read_specs(["."], Config())] == ["top.toml", *names]
    monkeypatch.setattr(common, "MAX_ENTRIES", 14)
    assert "more than 14 files; name the folders" in run(capsys, "check")[2]
    monkeypatch.setattr(common, "MAX_ENTRIES", 15)
    assert run(capsys, "check")[0] == 0
    monkeypatch.setattr(common, "MAX_CHARACTERS", 8 * len(GOOD))
    status, _, err = run(capsys, "check")
    assert status == 2
    assert "c/two.toml: with this file the specs have more than" in err


def test_specs_are_checked_while_they_are_read(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, a=GOOD, b=GOOD, c=GOOD)
    order: list[str] = []
    read, check = common._read, Linter.check

    def noted(path: str, *given: Any, **named: Any) -> Any:
        order.append(f"read {path}")
        return read(path, *given, **named)

    def checked(self: Linter, name: str, text: str) -> Any:
        order.append(f"check {name}")
        return check(self, name, text)

    monkeypatch.setattr(common, "_read", noted)
    monkeypatch.setattr(Linter, "check", checked)
    assert run(capsys, "check")[0] == 0
    assert order == [f"{what} {name}.toml" for name in "abc" for what in ("read", "check")]


def test_of_a_long_file_only_what_shows_that_it_is_one_is_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, a=f"servelint = 1\n# {'é' * 5_000_000}\n", other="x = 1\n" * 1_000_000)
    assert [len(found.text) for found in read_specs(["."], Config()) if isinstance(found, common.Text)] == [1_000_001]
    status, out, _ = run(capsys, "check")
    assert status == 1
    assert "the file has more than 1,000,000 characters" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("servelint = 1", True),
        ("\ufeffservelint=1", True),
        ("'servelint' = 1", True),
        ('\t"servelint" = 1', True),
        ('"servel\\u0069nt" = 1', True),
        ('"\\U00000073ervelint" = 1', True),
        ('deployment.name = """\n[x]\n"""\nservelint = 1', True),
        ("x = '''\n[x]\n'''\nservelint = 1", True),
        ("x = [\n[1],\n]\r\nservelint = 1", True),
        ("servelint.version = 1", True),
        ('x = """\nservelint = 1\n"""', False),
        ("x = [\n'servelint = 1',\n'servelint=1']", False),
        ("[tool]\nservelint = 1", False),
        ("# servelint = 1", False),
        ("servelints = 1", False),
        ('name = "\\u0069"', False),
        ("servelint = 1\nx = ", True),
        ('deployment.name = """\n[x]\n"""\nservelint = 1\nx = ', True),
        ("[tool]\nservelint = '1'\nx = ", False),
        ("x = ", False),
        ("servelint = 1\nx = " + "[" * 1000, True),
        ("#" * 2_000_000 + "\nservelint = 1", True),
    ],
)
def test_what_a_spec_is(text: str, expected: bool) -> None:
    assert is_spec(text) is expected


FIXABLE = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
dense_flops = { bf16 = "1979 TFLOP/s" } # as the datasheet prints it
source = "datasheet"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
"""


def test_fix_writes_the_spec_and_checks_it(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "spec.toml"
    spec.write_text(FIXABLE, encoding="utf-8")
    assert main(["check", "spec.toml", "--diff"]) == 1
    shown = capsys.readouterr().out
    assert '-dense_flops = { bf16 = "1979 TFLOP/s" } # as the datasheet prints it' in shown
    assert spec.read_text(encoding="utf-8") == FIXABLE
    assert main(["check", "spec.toml", "--fix"]) == 0
    captured = capsys.readouterr()
    assert "fixed spec.toml: HW001 use the dense rate" in captured.err
    fixed = spec.read_text(encoding="utf-8")
    assert fixed == FIXABLE.replace("1979 TFLOP/s", "989.4 TFLOP/s")
    assert main(["check", "spec.toml", "--diff"]) == 0


def test_unsafe_fixes_are_asked_for(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "spec.toml"
    text = FIXABLE.split("[hardware.override]", maxsplit=1)[0] + FIXABLE[FIXABLE.index("[model]") :]
    text = text.replace("8B", "70B").replace("[model]", "devices = 2\n[model]").replace("8192", "100000")
    spec.write_text(text, encoding="utf-8")
    main(["check", "spec.toml", "--fix"])
    assert spec.read_text(encoding="utf-8") == text
    assert "fixable with --fix --unsafe-fixes" in capsys.readouterr().out
    main(["check", "spec.toml", "--fix", "--unsafe-fixes"])
    assert spec.read_text(encoding="utf-8") != text
    assert main(["check", "spec.toml", "--unsafe-fixes"]) == 2
    assert main(["check", "-", "--fix"]) == 2
