"""What is wrong with text that is no TOML, and the cure of the common mistakes.

The parser says what it expected; this module looks at the text around that place for what a person meant.
Imported only when a spec does not parse.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tomli

from servelint.spec.spans import scan

_NUMBER = re.compile(r"([+-]?[0-9][0-9_.]*)([ \t]*)\Z")
_UNIT = re.compile(r"([ \t]*)([A-Za-zµμ%][^,;#\]}\n]*)")
_GROUPED = re.compile(r"(?:,[0-9]{3})+(?![0-9])")
_WORD = re.compile(r"[^,#\]}\n]*")
_PAIR = re.compile(r"[ \t]*((?:[A-Za-z0-9_.-]++|\"[^\"\n]*+\"|'[^'\n]*+'|[ \t]++(?!=))++)[ \t]*=")
_HEADER = re.compile(r"[ \t]*(\[\[?)[^\n]*?\]\]?[ \t]*(?:#[^\n]*)?\Z")
_LONG = re.compile(r"=[ \t]*(\"\"\"|\'\'\')")
_LITERAL = re.compile(r"^[^#\"'\n]*=[ \t]*'[^'\n]*$", re.MULTILINE)
_CONSTANTS = {
    **dict.fromkeys(("true", "yes", "on"), "write true, in lower case"),
    **dict.fromkeys(("false", "no", "off"), "write false, in lower case"),
    **dict.fromkeys(("none", "null", "nil"), "TOML has no null; leave the key out"),
}
_CURLY = "“”„‘’"
_TWICE = ("Cannot overwrite a value", "Cannot declare", "Cannot mutate immutable namespace")


def explained(text: str, pos: int, message: str) -> str:
    """Say what is wrong at an offset of a text, given the parser's words, and what to write instead."""
    if message.startswith(_TWICE) and len(text) <= MOST_TEXT:
        found = _defined_twice(text, pos)
        if found:
            return found
    cure = _cure(text, pos, message)
    return f"{message[:1].lower()}{message[1:]}{f'; {cure}' if cure else ''}"


def _cure(text: str, pos: int, message: str) -> str:
    if text.lstrip()[:1] == "{":
        return "a spec is TOML, not JSON"
    if message.startswith(("Illegal character '\\n'", "Unterminated", 'Expected "\'"', "Expected '\"'")):
        return _unclosed(text if message[:1] != "I" else "")
    start = text.rfind("\n", 0, pos) + 1
    if message.startswith("Invalid value"):
        return _unquoted(text, pos)
    if message.startswith("Unescaped '\\'"):
        return r"write \\ for a backslash, or the string in single quotes"
    if message.startswith("Expected '='") and text[pos : pos + 1] == ":":
        return "a pair is written key = value"
    number = _NUMBER.search(text[max(start, pos - 80) : pos])
    if number is None:
        return ""
    unit = _UNIT.match(text, pos)
    if unit:
        return f'write a value with its unit in quotes: "{number[1]}{number[2] or unit[1]}{unit[2].rstrip()[:40]}"'
    grouped = _GROUPED.match(text, pos)
    if grouped:
        return f"digits are not grouped by commas: {number[1]}{grouped[0].replace(',', '_')}"
    return ""


def _unclosed(text: str) -> str:
    """The cure of a string that goes on to the end of its line or of the text, with its line where that is clear."""
    begins = next((m for m in _LONG.finditer(text) if text.find(m[1], m.end()) < 0), None) or _LITERAL.search(text)
    which = f"the string that begins on line {text.count(chr(10), 0, begins.end()) + 1}" if begins else "the string"
    return f"end {which} with the quote that it began with"


def _unquoted(text: str, pos: int) -> str:
    """The cure of a value that begins with what no value begins with."""
    word = _WORD.match(text, pos)
    found = word[0].strip() if word else ""
    if not found:
        return "a value is missing"
    if found[0] in _CURLY:
        return f'quotes are straight: "{found.strip(_CURLY)[:60]}"'
    known = _CONSTANTS.get(found.lower())
    if known:
        return known
    if found[0] == "." and found[1:2].isdigit():
        return f"a number begins with a digit: 0{found[:20]}"
    return f'write text in quotes: "{found[:60]}"' if found[0].isalpha() or found[0] in "/~_.$<" else ""


class _Statement(NamedTuple):
    """The key path that a line defines, and the brackets it does so with, none for a pair."""

    path: tuple[str, ...]
    brackets: str


def _defined_twice(text: str, pos: int) -> str:
    """Name what is defined twice and where it was first; empty when the text before does not tell."""
    start = text.rfind("\n", 0, pos) + 1
    # A value of several lines ends below its key; the text up to the key is TOML, up to any later line it is not.
    for _ in range(MOST_LINES_BACK if len(text) < 20_000 else 1):
        try:
            return _first_defined(text[:start], text[start:].partition("\n")[0])
        except (ValueError, RecursionError, IndexError):
            if start == 0:
                return ""
            start = text.rfind("\n", 0, start - 1) + 1
    return ""


MOST_TEXT = 200_000
"""A longer text is not read a second time."""

MOST_LINES_BACK = 20
MOST_CHARACTERS = 1000
"""Of a line that is looked at; nobody defines a thing in a longer one."""


def _first_defined(before: str, line: str) -> str:
    """Say where what a line defines was defined before; ValueError when the text before is no whole TOML."""
    value: Any = tomli.loads(before)
    if len(line) > MOST_CHARACTERS:
        return ""
    statement = _statement(line, before)
    path: tuple[str | int, ...] = ()
    for part in statement.path:
        if isinstance(value, list):
            path, value = (*path, len(value) - 1), value[-1]
        if not isinstance(value, dict) or part not in value:
            break
        path, value = (*path, part), value[part]
    found = scan(before).key(path)
    if not path or found is None:
        return ""
    name = ".".join(statement.path)[:80]
    first = before.count("\n", 0, found.start) + 1
    if not statement.brackets:
        return f'the key "{name}" has a value since line {first}; a key is set once'
    if isinstance(value, list) and statement.brackets == "[":
        return f"line {first} begins an array of tables; write [[{name}]], with two brackets, here too"
    if isinstance(value, dict) and statement.brackets == "[[":
        return f"line {first} begins one table; write [[{name}]], with two brackets, there too"
    if isinstance(value, dict):
        return f"the table [{name}] began on line {first}; a table is written once, with all of its keys"
    return f'"{name}" has a value since line {first}, so it is no table'


def _statement(line: str, before: str) -> _Statement:
    """What a line defines: a header by itself, a pair below the nearest header above; ValueError for other lines."""
    header = _HEADER.match(line)
    if header:
        return _Statement(_path(tomli.loads(line)), header[1])
    pair = _PAIR.match(line)
    if pair is None:
        raise ValueError("neither a header nor a pair")
    own = _path(tomli.loads(f"{pair[1]} = 0"))
    for above in reversed(before.split("\n")):
        if len(above) <= MOST_CHARACTERS and _HEADER.match(above):
            return _Statement((*_path(tomli.loads(above)), *own), "")
    return _Statement(own, "")


def _path(data: Any) -> tuple[str, ...]:
    """The one key path of a text that defines one thing."""
    path: tuple[str, ...] = ()
    while isinstance(data, dict | list) and data:
        if isinstance(data, list):
            data = data[0]
        else:
            ((name, data),) = data.items()
            path = (*path, name)
    return path
