"""The README's two commands are well-formed, the main one runs, and its example is real output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.findall(rf"<!-- command: {name} -->\n```sh\n(.*?)```", README, re.S)
    assert len(found) == 1, f"README.md must have exactly one {name} command"
    return str(found[0])


@pytest.mark.parametrize("name", ["main", "test"])
def test_blocks_are_well_formed(name: str) -> None:
    text = block(name)
    assert text.startswith("python3 -m venv .venv\n")
    subprocess.run(["bash", "-n", "-c", text], check=True)
    assert not re.search(r"https?://|/home/|sudo", text)


def test_ci_runs_the_test_block_as_printed() -> None:
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "command: test" in run
    assert "pytest" not in run, ".ci/run must take the command from the README, not repeat it"


@pytest.mark.slow
def test_the_main_command_runs_on_a_fresh_copy(tmp_path: Path) -> None:
    copy = tmp_path / "servelint"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        names = [n for n in listed.stdout.decode().split("\0") if n]
    else:
        names = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file() and ".venv" not in p.parts]
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # The interpreter that runs the tests stands for python3; a link into an environment would inherit it.
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("main")],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit status 0: --exit-zero" in done.stdout
    for code in ("SLO001", "HW001", "CTX001"):
        assert code in done.stdout


def test_the_opening_example_is_what_the_tool_prints() -> None:
    shown = re.search(r"```console\n\$ servelint check (\S+)\n(.*?)```", README, re.S)
    assert shown is not None
    done = subprocess.run(
        [sys.executable, "-m", "servelint", "check", shown[1], "--exit-zero"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown[2].strip() in done.stdout


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
