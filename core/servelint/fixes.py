"""Applies fixes to the text of a spec: value by value, re-parsed before anything is written.

An edit replaces the text of one value, or adds a key that the spec does not have. What a fix changes is
checked against the parsed document: exactly its keys have their new values, everything else is as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from servelint import toml
from servelint.lineage import KeyPath, dotted
from servelint.rule import Edit, Finding, Fix
from servelint.spec.document import Document
from servelint.spec.spans import SpanMap

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
MOST_ROUNDS = 10
"""A fix may bring another finding with a fix of its own; after so many rounds two rules contradict each other."""


class FixError(ValueError):
    """A fix whose edits do not give what they say."""


class Applied(NamedTuple):
    """The text after fixes, and what they were: code and description, in order."""

    text: str
    fixes: tuple[tuple[str, str], ...] = ()


class _Replacement(NamedTuple):
    start: int
    end: int
    text: str


def fixed(text: str, judge: Callable[[str], tuple[Document, Iterable[Finding]]], *, unsafe: bool = False) -> Applied:
    """Apply the fixes of a spec's findings, round by round, until none is left.

    ``judge`` opens a text and returns its document with the findings that count. Fixes that overlap another one
    wait for the next round; a fix that does not apply cleanly is left out.
    """
    done: list[tuple[str, str]] = []
    seen = {text}
    for _ in range(MOST_ROUNDS):
        document, findings = judge(text)
        changed, applied = _round(document, [f for f in findings if _applies(f, unsafe)])
        if not applied or changed in seen:
            break
        seen.add(changed)
        text = changed
        done += applied
    return Applied(text, tuple(done))


def _applies(finding: Finding, unsafe: bool) -> bool:
    return finding.fix is not None and (finding.fix.safe or unsafe)


def _round(document: Document, findings: Iterable[Finding]) -> tuple[str, list[tuple[str, str]]]:
    text = document.text
    taken: list[_Replacement] = []
    touched: set[KeyPath] = set()
    applied: list[tuple[str, str]] = []
    for finding in findings:
        fix = finding.fix
        if fix is None or any(_related(edit.path, path) for edit in fix.edits for path in touched):
            continue
        try:
            made = replacements(document, fix)
            edited(text, made, document, fix)
        except FixError:
            continue
        if any((a.start < b.end and b.start < a.end) or a.start == b.start for a in made for b in taken):
            continue
        taken += made
        touched |= {edit.path for edit in fix.edits}
        applied.append((finding.code, fix.description))
    return _written(text, taken), applied


def _related(one: KeyPath, other: KeyPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def replacements(document: Document, fix: Fix) -> list[_Replacement]:
    """Return the text replacements of a fix's edits. Raises FixError where a key has no place in this file."""
    return [_replacement(document, edit) for edit in fix.edits]


def _replacement(document: Document, edit: Edit) -> _Replacement:
    spans = document.spans
    if edit.path in document.settings or any(c.runs and c.path == edit.path for c in document.contradictions):
        raise FixError(f"{dotted(edit.path)} is set by the launch file")
    span = spans.value(edit.path)
    if span is not None:
        return _Replacement(span.start, span.end, edit.text)
    if document.has(edit.path):
        raise FixError(f"{dotted(edit.path)} is a table")
    return _added(document, spans, edit)


def _added(document: Document, spans: SpanMap, edit: Edit) -> _Replacement:
    """Where a key that the spec does not have goes: into its table, else into a new table at the end."""
    text = document.text
    newline = "\r\n" if "\r\n" in text else "\n"
    for length in range(len(edit.path) - 1, 0, -1):
        table = edit.path[:length]
        at = spans.insert_point(table)
        if at is None:
            continue
        if any(spans.value(table[: i + 1]) is not None for i in range(length)):
            comma = "" if text[at - 1] == "{" else ","
            closing = " " if not comma else ""
            return _Replacement(at, at, f"{comma} {_key(edit.path[length:])} = {edit.text}{closing}")
        headed = next((i for i in range(length, 0, -1) if spans.headers(table[:i])), 0)
        return _Replacement(at, at, f"{newline}{_key(edit.path[headed:])} = {edit.text}")
    head = f"[{_key(edit.path[:-1])}]{newline}" if len(edit.path) > 1 else ""
    before = "" if not text or text.endswith("\n") else newline
    return _Replacement(len(text), len(text), f"{before}{newline}{head}{_key(edit.path[-1:])} = {edit.text}{newline}")


def _key(path: KeyPath) -> str:
    if any(isinstance(part, int) for part in path):
        raise FixError("it is in a table that the spec does not have")
    return ".".join(str(part) if _BARE.match(str(part)) else json.dumps(str(part)) for part in path)


def _written(text: str, made: Iterable[_Replacement]) -> str:
    for start, end, new in sorted(made, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def edited(text: str, made: Iterable[_Replacement], document: Document, fix: Fix) -> str:
    """Return the text with a fix's replacements. Raises FixError unless exactly its keys have the new values."""
    changed = _written(text, made)
    expected: dict[str, Any] = _copied(_parsed(text))
    for edit in fix.edits:
        _set(expected, edit.path, _parsed(f"value = {edit.text}\n").get("value"))
    if _parsed(changed) != expected:
        raise FixError(f"the edit of {', '.join(dotted(e.path) for e in fix.edits)} changes something else, too")
    return changed


def _parsed(text: str) -> dict[str, Any]:
    try:
        return toml.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise FixError(f"it would no longer be TOML: {error}") from None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def _set(data: Any, path: KeyPath, value: object) -> None:
    for part in path[:-1]:
        if isinstance(data, list):
            data = data[int(part)]
            continue
        if part not in data:
            data[part] = {}
        data = data[part]
    data[path[-1]] = value
