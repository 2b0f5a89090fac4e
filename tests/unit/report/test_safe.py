"""What a stranger's text may do to a terminal or a build log: nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelint.report.json import dumps
from servelint.report.safe import cells, file_name, printable, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\r\nb", "a\\r\\nb"),
        ("\u202eevil", "\\u202eevil"),
        ("\x85\u2028", "\\x85\\u2028"),
        ("\udcff", "\\udcff"),
        ("雪 é", "雪 é"),
        ("##[error]x", "#\\x23[error]x"),
        ("##vso[task.setvariable]x", "#\\x23vso[task.setvariable]x"),
        ("## heading", "## heading"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert "".join(cells(text)) == shown


@given(st.text())
def test_nothing_drives_a_terminal(text: str) -> None:
    for shown in (printable(text), "".join(cells(text)), file_name(text)):
        assert all(c == " " or c.isprintable() for c in shown)
        assert "##[" not in shown
        assert "\u202e" not in shown


@given(st.text())
def test_cells_are_one_a_character(text: str) -> None:
    assert len(cells(text)) == len(text)


@given(st.recursive(st.text() | st.floats() | st.none(), lambda inner: st.lists(inner)))
def test_json_is_ascii_and_no_command(value: object) -> None:
    written = dumps(value)
    assert written.isascii()
    assert "##[" not in written
    assert "\x1b" not in written
    json.loads(written)


def test_long_text_is_cut() -> None:
    assert printable("x" * 3000) == "x" * 1997 + "..."


def test_a_name_cannot_start_a_workflow_command() -> None:
    assert file_name("::error::x.toml") == "./::error::x.toml"
    assert file_name("  ::error::x.toml").startswith("./")
    assert file_name("a::b.toml") == "a::b.toml"


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("雪", 2), ("e\u0301", 1), ("❤\ufe0f", 1), ("é", 1)])
def test_width(text: str, columns: int) -> None:
    assert width(text) == columns
