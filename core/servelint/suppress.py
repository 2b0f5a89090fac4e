"""Suppression comments: ``# servelint: ignore[CODE] reason`` on a line, above a key, or for a whole file."""

from __future__ import annotations

import re

from servelint.rule import Finding
from servelint.spec.document import Document, Place
from servelint.spec.spans import Span

_COMMENT = re.compile(r"#\s*servelint:\s*ignore(-file)?\s*\[([^\]\n]*)\]\s*(.*?)\s*(?:#\s*expect.*)?$")


class Suppression:
    """One comment: the codes or names it silences, its reason, the lines it covers (None: the file)."""

    def __init__(self, span: Span, codes: tuple[str, ...], reason: str, lines: tuple[int, int] | None) -> None:
        self.span = span
        self.codes = codes
        self.reason = reason
        self.lines = lines
        self.used = False

    def covers(self, finding: Finding, place: Place) -> bool:
        """Tell whether a finding at a place is silenced."""
        if finding.code not in self.codes and finding.name not in self.codes:
            return False
        return self.lines is None or self.lines[0] <= place.line <= self.lines[1]


def suppressions(document: Document) -> list[Suppression]:
    """Return the suppression comments of a document."""
    if "servelint:" not in document.text or document.syntax_place is not None:
        return []
    found = []
    lines = document.lines
    for comment in document.spans.comments:
        match = _COMMENT.match(document.text[comment.span.start : comment.span.end])
        if match is None:
            continue
        codes = tuple(c.strip() for c in match[2].split(",") if c.strip())
        line, column = lines.position(comment.span.start)
        alone = not lines.line_text(line)[: column - 1].strip()
        covered: tuple[int, int] | None
        if match[1]:
            covered = None
        elif alone:
            covered = _below(document, line)
        else:
            covered = (line, line)
        found.append(Suppression(comment.span, codes, match[3], covered))
    return found


def _below(document: Document, line: int) -> tuple[int, int]:
    """The lines of the key, value or table that stands right below a comment of its own line."""
    lines, spans = document.lines, document.spans
    for path in spans.paths():
        key, value = spans.key(path), spans.value(path)
        if key is None or value is None:
            continue
        start = lines.position(key.start)[0]
        if start == line + 1:
            return start, lines.position(value.end)[0]
    text = lines.line_text(line + 1).strip() if line < document.text.count("\n") + 1 else ""
    if text.startswith("["):
        end = line + 2
        last = document.text.count("\n") + 1
        while end <= last and not lines.line_text(end).lstrip().startswith("["):
            end += 1
        return line + 1, end - 1
    return line + 1, line + 1
