"""Suppression comments: ``# servelint: ignore[CODE] reason`` on a line, above a key or table, or for a file.

A comment that silences nothing, names no rule, or gives no reason is itself reported; the rules that say so
are documented here and run by the linter, which alone knows what every other rule found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from servelint.lineage import KeyPath
from servelint.rule import Case, Finding, Rule, Severity
from servelint.spec.document import Document, Place
from servelint.spec.spans import Span
from servelint.suggest import did_you_mean

if TYPE_CHECKING:
    from servelint.manager import Plugins

_OURS = re.compile(r"#\s*servelint:")
_COMMENT = re.compile(r"#\s*servelint:\s*ignore(-file)?\s*\[([^\]\n]*)\]\s*(.*?)\s*(?:#\s*expect.*)?$")


class Suppression:
    """One comment: the codes or names it silences, its reason, and what it covers.

    ``lines`` are the lines of a comment that stands beside a value; ``path`` is the key, value or table that
    stands right below a comment of its own line, and everything in it. Neither: the whole file.
    """

    __slots__ = ("codes", "lines", "path", "reason", "span", "used", "whole_file")

    def __init__(self, span: Span, codes: tuple[str, ...], reason: str, *, whole_file: bool = False) -> None:
        self.span = span
        self.codes = codes
        self.reason = reason
        self.whole_file = whole_file
        self.lines: tuple[int, int] | None = None
        self.path: KeyPath = ()
        self.used: set[str] = set()

    def silences(self, finding: Finding, place: Place) -> bool:
        """Tell whether a finding at a place is silenced, and remember by which code or name."""
        named = [name for name in self.codes if name in (finding.code, finding.name)]
        if not named or not self._covers(finding, place):
            return False
        self.used.update(named)
        return True

    def _covers(self, finding: Finding, place: Place) -> bool:
        if self.whole_file:
            return True
        if self.path and finding.path[: len(self.path)] == self.path:
            return True
        # The comment beside a value of several lines stands where it starts or where it ends.
        return self.lines is not None and (
            self.lines[0] <= place.line <= self.lines[1] or place.end_line == self.lines[0] == self.lines[1]
        )


def suppressions(document: Document) -> list[Suppression]:
    """Return the suppression comments of a document; one that is not understood has no codes."""
    if "servelint:" not in document.text or document.syntax_place is not None:
        return []
    found = []
    lines = document.lines
    for comment in document.spans.comments:
        if _OURS.match(comment.text) is None:
            continue
        match = _COMMENT.match(comment.text)
        if match is None:
            found.append(Suppression(comment.span, (), ""))
            continue
        codes = tuple(dict.fromkeys(c.strip() for c in match[2].split(",") if c.strip()))
        suppression = Suppression(comment.span, codes, match[3], whole_file=bool(match[1]))
        line, column = lines.position(comment.span.start)
        if lines.line_text(line)[: column - 1].strip():
            suppression.lines = (line, line)
        else:
            below = _next_line(document, line)
            suppression.lines = (below, below)
            suppression.path = _path_on(document, below)
        found.append(suppression)
    return found


def _next_line(document: Document, line: int) -> int:
    """The line that a comment of its own line is about: the next that is no comment."""
    lines = document.lines
    below = line + 1
    while below <= len(lines) and lines.line_text(below).lstrip().startswith("#"):
        below += 1
    return below


def _path_on(document: Document, line: int) -> KeyPath:
    """The widest value that starts on a line, or the table whose header stands there; () for neither."""
    lines, spans = document.lines, document.spans
    best: tuple[int, KeyPath] | None = None
    seen: set[KeyPath] = set()
    for leaf in spans.paths():
        for length in range(1, len(leaf) + 1):
            path = leaf[:length]
            if path in seen:
                continue
            seen.add(path)
            key, value = spans.key(path), spans.value(path)
            if value is not None:
                if key is not None and lines.position(key.start)[0] == line and (not best or value.start < best[0]):
                    best = value.start, path
            elif length < len(leaf) and isinstance(leaf[length], int):
                continue  # an array of tables: its elements have headers of their own
            elif any(lines.position(header.start)[0] == line for header in spans.headers(path)):
                best = -1, path
    return best[1] if best else ()


class Verdict(NamedTuple):
    """What is wrong with one comment: the rule that says so, and in which words."""

    suppression: Suppression
    rule: type[_CommentRule]
    message: str


def verdicts(comments: Iterable[Suppression], known: Collection[str], ran: Collection[str]) -> Iterator[Verdict]:
    """Judge the comments after the rules have run.

    ``known`` are all codes and names that a comment may give; ``ran`` those of rules that came to a verdict on
    this file, since only their silence says that a comment is of no use.
    """
    for comment in comments:
        unknown = [code for code in comment.codes if code not in known]
        unused = [code for code in comment.codes if code in ran and code not in comment.used]
        if not comment.codes:
            message = "the comment names no rule: expected # servelint: ignore[CODE] reason"
            yield Verdict(comment, UnknownSuppression, message)
        elif unknown:
            hint = did_you_mean(unknown[0], known)
            message = f"the comment ignores {', '.join(unknown)}, which no rule is called{hint}"
            yield Verdict(comment, UnknownSuppression, message)
        elif unused:
            what = "the comment" if len(unused) == len(comment.codes) else "the name"
            message = f"nothing here is reported by {', '.join(unused)}: {what} can go"
            yield Verdict(comment, UnusedSuppression, message)
        elif not comment.reason:
            yield Verdict(comment, SuppressionWithoutReason, "the comment gives no reason: write one after the bracket")


class _CommentRule(Rule):
    """A rule about suppression comments, which the linter applies when every other rule has run."""

    severity = Severity.WARNING
    questions = ("is the spec valid",)

    def check(self, review: Any) -> Iterable[Finding]:
        """Yield nothing: `verdicts` needs what the other rules found."""
        return ()

    @classmethod
    def finding(cls, message: str) -> Finding:
        """Return a finding of this rule; its place is that of the comment."""
        return Finding((), message, severity=cls.severity, confidence=cls.confidence, code=cls.code, name=cls.name)


class UnusedSuppression(_CommentRule):
    """A suppression comment that silences nothing.

    What it checks
    --------------
    Every code in a ``# servelint: ignore[...]`` comment whose rule ran on this file and came to a verdict.

    Why it is bad
    -------------
    The reason it was written for is gone. Left in place it would hide the finding when it comes back.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Delete the comment, or the code from its list.

    Source
    ------
    docs/cli.md, suppression comments.
    """

    code = "LINT001"
    name = "unused-suppression"
    failing = (
        Case(
            "the value is fine",
            """\
servelint = 1
[hardware]
devices = 1 # servelint: ignore[SPEC003] left over # expect: LINT001
""",
        ),
        Case(
            "one of two codes is of no use",
            """\
servelint = 1
[hardware]
devices = 0 # servelint: ignore[SPEC003,SPEC002] being sized # expect: LINT001
""",
        ),
    )
    passing = (
        Case(
            "it silences a finding",
            """\
servelint = 1
[hardware]
devices = 0 # servelint: ignore[SPEC003] being sized
""",
        ),
        Case(
            "above the key, by name",
            """\
servelint = 1
[hardware]
# servelint: ignore[bad-value] being sized
devices = 0
""",
        ),
    )


class UnknownSuppression(_CommentRule):
    """A suppression comment that names no rule.

    What it checks
    --------------
    The codes and names in every ``# servelint:`` comment against the rules that are loaded.

    Why it is bad
    -------------
    A comment with a typing error silences nothing and looks as if it did.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Write the code or the name of a rule (``servelint catalog rules`` lists them) in brackets; families and
    blanket comments are not accepted.

    Source
    ------
    docs/cli.md, suppression comments.
    """

    code = "LINT002"
    name = "unknown-suppression"
    failing = (
        Case(
            "a code that no rule has",
            """\
servelint = 1
[hardware]
devices = 1 # servelint: ignore[SPEC999] being sized # expect: LINT002
""",
        ),
        Case(
            "no code at all",
            """\
servelint = 1
[hardware]
devices = 1 # servelint: ignore # expect: LINT002
""",
        ),
    )
    passing = (
        Case(
            "a code",
            """\
servelint = 1
# servelint: ignore[SPEC003] being sized
hardware.devices = 0
""",
        ),
        Case(
            "the name of a rule, for the whole file",
            """\
# servelint: ignore-file[bad-value] being sized
servelint = 1
hardware.devices = 0
""",
        ),
    )


class SuppressionWithoutReason(_CommentRule):
    """A suppression comment that gives no reason.

    What it checks
    --------------
    Every suppression comment that is in use has words after its bracket.

    Why it is bad
    -------------
    The next reader cannot tell an accepted risk from a finding that was in the way.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Write the reason after the bracket.

    Source
    ------
    docs/cli.md, suppression comments.
    """

    code = "LINT003"
    name = "suppression-without-reason"
    failing = (
        Case(
            "beside the value",
            """\
servelint = 1
[hardware]
devices = 0 # servelint: ignore[SPEC003] # expect: LINT003
""",
        ),
        Case(
            "above the table",
            """\
servelint = 1
# servelint: ignore[SPEC003] # expect: LINT003
[hardware]
devices = 0
""",
        ),
    )
    passing = (
        Case(
            "with a reason",
            """\
servelint = 1
[hardware]
devices = 0 # servelint: ignore[SPEC003] the fleet is being sized
""",
        ),
        Case(
            "above the table, with a reason",
            """\
servelint = 1
# servelint: ignore[SPEC003] the fleet is being sized
[hardware]
devices = 0
""",
        ),
    )


RULES: tuple[type[_CommentRule], ...] = (UnusedSuppression, UnknownSuppression, SuppressionWithoutReason)
"""The rules about comments, by code."""

NAMES = frozenset(n for rule in RULES for n in (rule.code, rule.name))


def every_rule(plugins: Plugins) -> tuple[type[Rule], ...]:
    """Return the plugins' rules and the linter's own, by code."""
    return tuple(sorted((*plugins.rules, *RULES), key=lambda rule: rule.code))
