"""Makes text from a stranger's file safe to print: nothing in it can drive a terminal or a workflow log.

`printable` is for one string, `paragraphs` for text of several lines; `guarded` is the last guard, which every
text output goes through as a whole.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"##(?=\w*\[)")
# Compiled when an output needs them, which is seldom.
_COLOR = r"\x1b\[[0-9;]*m"
# A log trims blanks before it looks for ``::`` at the start of a line.
_LINE_START = rf"(?m)^((?: |{_COLOR})*):(?=:)"
_STRANGE = r"[^\n -~]"
_DIRECTION = frozenset("\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")


def printable(text: str, limit: int = 2000) -> str:
    """Return text with control and direction characters escaped, cut at ``limit`` characters.

    Build logs act on ``##[command]`` wherever it stands in a line, so these are escaped too.
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if _harmless(c) else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if "##" not in text else _COMMAND.sub(r"#\\x23", text)


def _harmless(c: str) -> bool:
    return c == " " or (c.isprintable() and c not in _DIRECTION)


def paragraphs(text: str) -> str:
    """Return text of several lines with the lines kept, tabs as spaces and the rest as `printable` does."""
    return "\n".join(printable(line.expandtabs(4).rstrip()) for line in text.splitlines())


def guarded(text: str, *, color: bool = False) -> str:
    """Return a whole output with nothing in it that a terminal or a build log acts on; lines are kept.

    What is safe already stays as it is. A line that starts with ``::`` is a command of a workflow, so the first
    colon is escaped. ``color`` keeps the color codes of the output's own `Style`.
    """
    bare = text.replace("\n", "")
    if not (bare.isascii() and bare.isprintable()):
        text = re.sub(rf"{_COLOR}|{_STRANGE}" if color else _STRANGE, _shown, text)
    if "##" in text:
        text = _COMMAND.sub(r"#\\x23", text)
    return re.sub(_LINE_START, r"\1\\x3a", text) if "::" in text else text


def _shown(found: re.Match[str]) -> str:
    c = found[0]
    return c if len(c) > 1 or _harmless(c) else c.encode("unicode_escape").decode("ascii")


def file_name(name: str) -> str:
    """Return a file's name for the start of a line, where a build log would take ``::`` for a command."""
    shown = printable(name)
    return f"./{shown}" if shown.lstrip().startswith("::") else shown


def cells(text: str) -> list[str]:
    """Return what each character of a source line is shown as: tabs as spaces, the rest as `printable` does."""
    shown = ["    " if c == "\t" else c if _harmless(c) else c.encode("unicode_escape").decode("ascii") for c in text]
    if "##" in text:
        for found in _COMMAND.finditer(text):
            shown[found.start() + 1] = "\\x23"
    return shown


def width(text: str) -> int:
    """Return the columns that printable text takes on a terminal: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(c) in ("Mn", "Me") else 2 if east_asian_width(c) in "WF" else 1 for c in text)
