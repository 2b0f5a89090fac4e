"""Command lines out of shell text: words with their offsets, variables looked up, here-documents kept.

Nothing is run. What a shell would do beyond plain words (substitution of commands, globbing, functions,
loops) is left as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

MOST_WORDS = 20_000
"""A script with more words starts no engine that anybody wrote by hand."""

_OPERATORS = ";&|()<>\n"
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_REDIRECTION = re.compile(r"&>>?|[<>]+&?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_VARIABLE = re.compile(
    r"\$\((?P<kubernetes>[A-Za-z_][A-Za-z0-9_.-]*)\)"
    r"|\$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)(?::?[-=](?P<default>[^{}$]*))?\}"
    r"|\$(?P<plain>[A-Za-z_][A-Za-z0-9_]*)"
)


_ARITHMETIC = re.compile(r"\$\(\((?P<terms>[\w\s${}*+-]{1,200})\)\)")


class Piece(NamedTuple):
    """One word with the offsets that it has in the text; ``quoted`` when a variable in it is literal."""

    text: str
    start: int
    end: int
    quoted: bool = False


class Script(NamedTuple):
    """Commands in order, each a tuple of words; what the script assigns; here-documents by target file."""

    commands: tuple[tuple[Piece, ...], ...]
    assigned: Mapping[str, Piece]
    documents: Mapping[str, Piece]


class Resolved(NamedTuple):
    """A text with its variables looked up: what was used, and the first that nothing sets."""

    text: str
    note: str = ""
    unresolved: str = ""


def script(text: str) -> Script:
    """Split shell text into commands.

    Raises ValueError for a quotation that is not closed, or too many words.
    """
    documents: dict[str, Piece] = {}
    commands: list[tuple[Piece, ...]] = []
    assigned: dict[str, Piece] = {}
    words: list[Piece] = []
    # Here-documents of the line: the word that ends each, and the command that reads it.
    pending: list[tuple[str, list[Piece]]] = []
    position = count = 0
    while position < len(text):
        sign = text[position]
        heredoc = _HEREDOC.match(text, position) if sign == "<" else None
        if heredoc is not None:
            pending.append((heredoc[2], words))
            position = heredoc.end()
            count += 1
        elif sign == "\n" and pending:
            _end(words, commands, assigned)
            position += 1
            # Several of one line are read by one command.
            targets = {id(command): _target(command) for _, command in pending}
            for terminator, command in pending:
                start = position
                position, stop = _body(text, start, terminator)
                documents[targets[id(command)] or terminator] = Piece(text[start:stop], start, stop)
            pending, words = [], []
        elif redirection := _REDIRECTION.match(text, position):
            # A redirection stays among the words until the command ends: it may name a here-document's file.
            words.append(Piece(">", position, position + 1))
            position = redirection.end()
            count += 1
        elif sign in _OPERATORS:
            _end(words, commands, assigned)
            words = []
            position += 1
        elif sign == "\\" and text[position + 1 : position + 3].lstrip("\r").startswith("\n"):
            position = text.index("\n", position) + 1
        elif sign in " \t\r":
            position += 1
        elif sign == "#":
            stop = text.find("\n", position)
            position = len(text) if stop < 0 else stop
        else:
            piece, position = _word(text, position)
            words.append(piece)
            count += 1
        if count > MOST_WORDS:
            raise ValueError(f"it has more than {MOST_WORDS:,} words")
    _end(words, commands, assigned)
    return Script(tuple(commands), assigned, documents)


def _end(words: list[Piece], commands: list[tuple[Piece, ...]], assigned: dict[str, Piece]) -> None:
    """Add a command without its redirections and assignments."""
    plain: list[Piece] = []
    skipping = False
    for word in words:
        if word.text == ">" and word.end - word.start == 1:
            if plain and plain[-1].end == word.start and plain[-1].text.isdecimal():
                plain.pop()
            skipping = True
        elif skipping:
            skipping = False
        else:
            plain.append(word)
    kept = _without_assignments(plain, assigned)
    if kept:
        commands.append(tuple(kept))


def _word(text: str, start: int) -> tuple[Piece, int]:
    parts: list[str] = []
    position, quoted = start, False
    while position < len(text):
        sign = text[position]
        if sign == "'":
            close = text.find("'", position + 1)
            if close < 0:
                raise ValueError(f"a quotation is not closed (offset {position})")
            inner = text[position + 1 : close]
            quoted = quoted or "$" in inner
            parts.append(inner)
            position = close + 1
        elif sign == '"':
            position = _double(text, position + 1, parts)
        elif sign == "\\" and position + 1 < len(text):
            if text[position + 1] == "\n":
                position += 2
                continue
            parts.append(text[position + 1])
            position += 2
        elif text.startswith("$(", position) or text.startswith("${", position):
            close = _closing(text, position + 1)
            parts.append(text[position:close])
            position = close
        elif sign in " \t\r" or sign in _OPERATORS:
            break
        else:
            parts.append(sign)
            position += 1
    return Piece("".join(parts), start, position, quoted), position


def _double(text: str, position: int, parts: list[str]) -> int:
    opened = position - 1
    while position < len(text):
        sign = text[position]
        if sign == '"':
            return position + 1
        if sign == "\\" and position + 1 < len(text):
            following = text[position + 1]
            parts.append({"\n": ""}.get(following, following if following in '"\\$`' else "\\" + following))
            position += 2
        elif text.startswith("$(", position) or text.startswith("${", position):
            close = _closing(text, position + 1)
            parts.append(text[position:close])
            position = close
        else:
            parts.append(sign)
            position += 1
    raise ValueError(f"a quotation is not closed (offset {opened})")


def _closing(text: str, position: int) -> int:
    """Return the offset after the bracket that closes the one at ``position``, else the end."""
    opening = text[position]
    closing = ")" if opening == "(" else "}"
    depth = 0
    while position < len(text):
        if text[position] == opening:
            depth += 1
        elif text[position] == closing:
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(text)


def _body(text: str, position: int, terminator: str) -> tuple[int, int]:
    """Return where the text goes on after a here-document, and where its body ends."""
    while position < len(text):
        line_end = text.find("\n", position)
        line_end = len(text) if line_end < 0 else line_end
        if text[position:line_end].strip() == terminator:
            return min(line_end + 1, len(text)), position
        position = line_end + 1
    return len(text), len(text)


def _target(words: list[Piece]) -> str:
    """Return the file that a command's output goes to, by its last name."""
    for before, word in pairwise(words):
        if before.text == ">" and word.text != ">":
            return word.text.rpartition("/")[2]
    if words and words[0].text == "tee":
        return words[-1].text.rpartition("/")[2]
    return ""


def _without_assignments(words: list[Piece], assigned: dict[str, Piece]) -> list[Piece]:
    """Take ``NAME=value`` in front of a command (or of nothing, or exported) into what is assigned."""
    first = 0
    if words and words[0].text in ("export", "exec", "env", "nohup", "time", "sudo", "set", "local", "declare"):
        first = 1
    for piece in words[first:]:
        name, separator, value = piece.text.partition("=")
        if not separator or _NAME.match(name) is None:
            break
        first += 1
        assigned[name] = Piece(value, piece.start + len(name) + 1, piece.end, piece.quoted)
    return words[first:]


def resolve(text: str, lookup: Callable[[str], str | None]) -> Resolved:
    """Look variables up: ``$NAME``, ``${NAME}``, ``${NAME:-default}``, Kubernetes' ``$(NAME)``, ``$((A * B))``.

    A value may itself hold variables; four levels are followed, which also ends a circle.
    """
    notes: list[str] = []
    missing: list[str] = []
    # What variables may grow the text to; a doubling value would otherwise eat the memory.
    budget = 100_000

    def replaced(match: re.Match[str]) -> str:
        name = match["kubernetes"] or match["braced"] or match["plain"]
        value = lookup(name)
        if value is None and match["default"] is not None:
            notes.append(f"default of ${{{name}}}")
            return match["default"]
        if value is None:
            missing.append(name)
            return match[0]
        notes.append(f"value of ${name}")
        return value

    def computed(match: re.Match[str]) -> str:
        # Names need no dollar sign here; sums of products are what start-up scripts reckon.
        terms = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: lookup(name[1]) or name[0], match["terms"])
        total = _sum_of_products(terms)
        if total is None:
            return f"$(({terms}))"
        notes.append("computed")
        return str(total)

    for _ in range(4):
        if "$" not in text:
            break
        missing.clear()
        changed = _VARIABLE.sub(replaced, _ARITHMETIC.sub(computed, text))
        if changed == text or len(changed) > budget:
            break
        text = changed
    return Resolved(text, ", ".join(dict.fromkeys(notes)), missing[0] if missing else "")


def _sum_of_products(text: str) -> int | None:
    """The value of integers joined by ``+``, ``-`` and ``*``, None for anything else."""
    if re.fullmatch(r"\s*-?\d{1,9}(?:\s*[*+-]\s*\d{1,9}){0,20}\s*", text) is None:
        return None
    total = 0
    for sign, product in re.findall(r"([+-]?)\s*(\d+(?:\s*\*\s*\d+)*)", text):
        value = 1
        for factor in re.findall(r"\d+", product):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total
