"""Fixes: edits of the text of a spec that change exactly what they say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from servelint import fixes
from servelint.commands import common
from servelint.errors import ConfigError
from servelint.rule import Edit, Finding, Fix
from servelint.spec.document import Document


def document(text: str) -> Document:
    made = Document("spec.toml", text)
    made.data = tomli.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    return made


def apply(text: str, *edits: Edit) -> str:
    fix = Fix("as asked", edits)
    made = document(text)
    return fixes.edited(text, fixes.replacements(made, fix), made, fix)


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("a = 1 # keep\n", Edit(("a",), "2"), "a = 2 # keep\n"),
        ('[t]\nx = "80 GB"\n', Edit(("t", "x"), '"80 GiB"'), '[t]\nx = "80 GiB"\n'),
        ("t = { x = 1, y = 2 }\n", Edit(("t", "y"), "3"), "t = { x = 1, y = 3 }\n"),
        ("[[c]]\nv = 1\n[[c]]\nv = 2\n", Edit(("c", 1, "v"), "9"), "[[c]]\nv = 1\n[[c]]\nv = 9\n"),
        # A key that is not there yet.
        ("[t]\nx = 1 # c\n\n[u]\n", Edit(("t", "y"), "2"), "[t]\nx = 1 # c\ny = 2\n\n[u]\n"),
        ("[t]\n[u]\n", Edit(("t", "y"), "2"), "[t]\ny = 2\n[u]\n"),
        ("t = {}\n", Edit(("t", "y"), "2"), "t = { y = 2 }\n"),
        ("t = { x = 1 }\n", Edit(("t", "y"), "2"), "t = { x = 1, y = 2 }\n"),
        ("[p]\nt.x = 1\n", Edit(("p", "t", "y"), "2"), "[p]\nt.x = 1\nt.y = 2\n"),
        ("[p.a]\nx = 1\n", Edit(("p", "b", "y"), "2"), "[p.a]\nx = 1\n\n[p.b]\ny = 2\n"),
        ("a = 1", Edit(("t", "y"), "2"), "a = 1\n\n[t]\ny = 2\n"),
        ("[t]\r\nx = 1\r\n", Edit(("t", "y"), "2"), "[t]\r\nx = 1\r\ny = 2\r\n"),
        ("\ufeff[t]\nx = 1\n", Edit(("t", "x"), "2"), "\ufeff[t]\nx = 2\n"),
    ],
)
def test_an_edit_changes_one_value(before: str, edit: Edit, after: str) -> None:
    assert apply(before, edit) == after


@pytest.mark.parametrize(
    ("text", "edit", "why"),
    [
        ("[t]\nx = 1\n", Edit(("t",), "2"), "is a table"),
        ("[[c]]\nv = 1\n", Edit(("c", 3, "v"), "2"), "a table that the spec does not have"),
        ("a = 1\n", Edit(("a",), "2\nb = 3"), "changes something else|no longer be TOML"),
        ("a = 1\n", Edit(("a",), "]"), "no longer be TOML"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(text: str, edit: Edit, why: str) -> None:
    with pytest.raises(fixes.FixError, match=why):
        apply(text, edit)


SCALARS = st.one_of(st.integers(0, 99), st.booleans(), st.text("ab #=\"\\'[]{}", max_size=6))


@given(
    st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xyz"), SCALARS), max_size=4), st.data()
)
def test_everything_else_stays(tables: dict[str, dict[str, Any]], data: st.DataObject) -> None:
    from servelint.launch.written import toml

    inline = data.draw(st.booleans())
    lines = []
    for name, table in tables.items():
        if inline:
            lines.append(f"{name} = {toml(table)} # c")
        else:
            lines += [f"[{name}]", *(f"{k} = {toml(v)}" for k, v in table.items())]
    text = "\n".join(lines)
    path = (data.draw(st.sampled_from("abcde")), data.draw(st.sampled_from("xyzw")))
    value = data.draw(SCALARS)
    expected = {name: dict(table) for name, table in tables.items()}
    expected.setdefault(path[0], {})[path[1]] = value
    assert tomli.loads(apply(text, Edit(path, toml(value)))) == expected


def judged(rules: dict[str, Fix]) -> Any:
    """A judge that finds a code wherever its fix's key does not have the fix's value yet."""

    def judge(text: str) -> tuple[Document, Iterable[Finding]]:
        opened = document(text)
        found = []
        for code, fix in rules.items():
            edit = fix.edits[0]
            if opened.value(edit.path) != tomli.loads(f"v = {edit.text}")["v"]:
                found.append(Finding(edit.path, "found", fix=fix, code=code))
        return opened, found

    return judge


def test_safe_fixes_only_unless_asked() -> None:
    judge = judged({"A001": Fix("a", (Edit(("a",), "2"),), safe=True), "B001": Fix("b", (Edit(("b",), "3"),))})
    assert fixes.fixed("a = 1\nb = 1\n", judge) == ("a = 2\nb = 1\n", (("A001", "a"),))
    assert fixes.fixed("a = 1\nb = 1\n", judge, unsafe=True).text == "a = 2\nb = 3\n"


def test_fixes_of_one_key_do_not_go_round_for_ever() -> None:
    judge = judged(
        {"A001": Fix("a", (Edit(("a",), "2"),), safe=True), "B001": Fix("b", (Edit(("a",), "3"),), safe=True)}
    )
    result = fixes.fixed("a = 1\n", judge)
    assert len(result.fixes) <= fixes.MOST_ROUNDS
    assert tomli.loads(result.text)["a"] in (2, 3)


def test_a_file_that_was_changed_meanwhile_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text("servelint = 1\n# mine\n")
    with pytest.raises(ConfigError, match="changed while it was checked"):
        common.rewrite("a.toml", "servelint = 1\n", "servelint = 2\n")
    assert Path("a.toml").read_text() == "servelint = 1\n# mine\n"


def test_a_file_that_cannot_be_written_keeps_what_it_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_bytes(b"servelint = 1\r\n")
    whole = common._whole

    def full(stream: Any, data: bytes) -> None:
        if b"more" in data:
            stream.write(data[:5])
            raise OSError(28, "No space left on device")
        whole(stream, data)

    monkeypatch.setattr(common, "_whole", full)
    with pytest.raises(ConfigError, match="No space left"):
        common.rewrite("a.toml", "servelint = 1\r\n", "more = 1\r\n")
    assert Path("a.toml").read_bytes() == b"servelint = 1\r\n"


def test_a_shorter_text_leaves_nothing_of_the_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_bytes(b"\xef\xbb\xbfkey = 12345\r\n")
    common.rewrite("a.toml", "\ufeffkey = 12345\r\n", "\ufeffkey = 1\r\n")
    assert Path("a.toml").read_bytes() == b"\xef\xbb\xbfkey = 1\r\n"
