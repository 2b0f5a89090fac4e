"""Reads TOML that may be hostile: what would take the parser seconds is refused."""

from __future__ import annotations

import re
from typing import Any

import tomli

MOST_STEPS = 4_000_000
"""What `_steps` may come to: about half a second. Real files stay below a hundredth of it."""

_PART = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[\w-]+)"""
_KEY = re.compile(rf"^[ \t]*(\[?)\[?[ \t]*({_PART}(?:[ \t]*\.[ \t]*{_PART})*)", re.MULTILINE)


def loads(text: str) -> dict[str, Any]:
    """Parse TOML; raises tomli.TOMLDecodeError, another ValueError or RecursionError where it cannot be read."""
    dots, keys = text.count("."), text.count("=")
    if (dots + 1) * (dots + keys) > MOST_STEPS and _steps(text) > MOST_STEPS:
        raise ValueError("its keys and table names have too many parts")
    return tomli.loads(text)


def _steps(text: str) -> int:
    """Estimate the parser's work on keys: for each part of one, the parts before it, those of its table included."""
    depth = steps = 0
    for found in _KEY.finditer(text):
        parts = found[2].count(".") + 1
        if found[1]:
            depth, steps = parts, steps + parts
        else:
            steps += parts * (depth + parts)
    return steps
