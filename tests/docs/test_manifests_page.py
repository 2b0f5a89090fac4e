"""docs/manifests.md shows what the commands print; SERVELINT_UPDATE_SNAPSHOTS=1 writes it anew."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "manifests.md"
BLOCK = re.compile(r"```console\n\$ servelint ([^\n]*)\n(.*?)```", re.S)


@pytest.mark.parametrize("number", range(len(BLOCK.findall(PAGE.read_text(encoding="utf-8")))))
def test_examples_print_what_the_page_shows(number: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = list(BLOCK.finditer(text))[number]
    monkeypatch.chdir(ROOT)
    status = main(shlex.split(match[1]))
    printed = capsys.readouterr().out
    assert status in (0, 1)
    if os.environ.get("SERVELINT_UPDATE_SNAPSHOTS"):
        PAGE.write_text(text[: match.start(2)] + printed + text[match.end(2) :], encoding="utf-8")
    else:
        assert match[2] == printed


def test_there_are_examples_of_the_three_kinds() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert {"chat.yaml", "dynamo.yaml", "compose.yaml"} <= set(re.findall(r"manifests/(\w+\.yaml)", page))
