"""The document of the invariants and the tests that hold them name each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8").partition("\n## ")[0]
TESTS = (Path(__file__).parent / "test_invariants.py").read_text(encoding="utf-8")


def test_every_test_is_named_once_and_every_name_is_a_test() -> None:
    written = re.findall(r"^def (test_\w+)", TESTS, re.MULTILINE)
    named = re.findall(r"`(test_\w+)`", DOCUMENT)
    assert sorted(named) == sorted(written)


def test_invariants_are_numbered_and_each_has_a_test() -> None:
    items = re.split(r"^(\d+)\. ", DOCUMENT, flags=re.MULTILINE)[1:]
    assert [int(n) for n in items[::2]] == list(range(1, 13))
    for text in items[1::2]:
        # Every sentence of an item is one line that ends in its tests.
        for line in text.strip().splitlines():
            assert re.search(r"`test_\w+`$", line), line


def test_every_check_carries_the_number_of_its_invariant() -> None:
    source = (ROOT / "core" / "servelint" / "testing" / "invariants.py").read_text(encoding="utf-8")
    checks = re.findall(r'^def check_\w+\([^"]*?"""(\d+)[a-d]?\. ', source, re.MULTILINE | re.DOTALL)
    assert [int(n) for n in checks] == sorted(int(n) for n in checks)
    assert {int(n) for n in checks} == set(range(1, 13))
    assert len(checks) == len(re.findall(r"^def check_\w+", source, re.MULTILINE))
