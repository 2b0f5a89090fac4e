"""The plugin guide lists every hook, and its snippets are the tested third-party plugin's own code."""

from __future__ import annotations

import re
from pathlib import Path

from servelint.hookspecs import HOOKS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
PLUGIN = (ROOT / "tests" / "data" / "thirdparty" / "acme" / "acme_servelint.py").read_text(encoding="utf-8")


def test_every_hook_is_listed() -> None:
    assert set(re.findall(r"^\| `(servelint_\w+)`", GUIDE, re.M)) == set(HOOKS)


def test_snippets_run_in_the_tests() -> None:
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(snippets) == 3
    squeezed = re.sub(r"\n+", "\n", PLUGIN)
    for snippet in snippets:
        assert re.sub(r"\n+", "\n", snippet).strip() in squeezed


def test_every_hook_documents_itself_with_an_example() -> None:
    from servelint import hookspecs

    for name in HOOKS:
        doc = getattr(hookspecs, name).__doc__
        assert f"def {name}():" in doc, name
