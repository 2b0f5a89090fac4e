"""The committed rule pages are those that the rules' own texts give."""

from __future__ import annotations

from pathlib import Path

from servelint.manager import Plugins
from servelint.report.rule_pages import own_rules, pages

FOLDER = Path(__file__).parents[2] / "docs" / "rules"


def test_pages_are_current(plugins: Plugins) -> None:
    expected = pages(own_rules(plugins))
    assert {p.name for p in FOLDER.glob("*.md")} == set(expected)
    stale = [name for name, text in expected.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run: python -m servelint.report.rule_pages docs/rules"
