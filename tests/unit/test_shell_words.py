"""Variables in words of command lines: look-up, defaults, sums of products."""

from __future__ import annotations

import pytest

from servelint.launch.shell import resolve

KNOWN = {"A": "8", "B": "2", "TEXT": "x y", "SELF": "$SELF $SELF", "OUTER": "$A"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$((A * B))", "16"),
        ("$(($A * ${B}))", "16"),
        ("$(( A*B + 1 - 3 ))", "14"),
        ("--tp=$((A))", "--tp=8"),
        ("$((OUTER * 2))", "16"),
        ("$(A)/${B:-9}/${C:-9}", "8/2/9"),
    ],
)
def test_what_can_be_told(text: str, expected: str) -> None:
    assert resolve(text, KNOWN.get) == (expected, resolve(text, KNOWN.get).note, "")


@pytest.mark.parametrize(
    "text", ["$((A / B))", "$((C * 2))", "$((TEXT + 1))", "$((A ** B))", "$(())", "$((9999999999 * 2))"]
)
def test_what_cannot_be_told_stays(text: str) -> None:
    assert resolve(text, KNOWN.get).text.startswith("$((")


def test_a_circle_ends() -> None:
    assert len(resolve("$SELF", KNOWN.get).text) < 100_001


def test_what_nothing_sets_is_named() -> None:
    assert resolve("--x=$(MISSING)", KNOWN.get).unresolved == "MISSING"
