"""Makes text from a stranger's file safe to print: nothing in it can drive a terminal or a workflow log."""

from __future__ import annotations

_BIDI = frozenset("\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")


def printable(text: str, limit: int = 2000) -> str:
    """Return text with control and direction characters escaped, cut at ``limit`` characters."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _harmless(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def _harmless(c: str) -> bool:
    return c == " " or (c.isprintable() and c not in _BIDI)
