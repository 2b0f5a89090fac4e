"""Suppression comments: ``# servelint: ignore[CODE] reason`` on a line, above a key or table, or for a file.

A comment that silences nothing, names no rule, or gives no reason is itself reported; the rules that say so
are documented here and run by the linter, which alone knows what every other rule found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from servelint.lineage import KeyPath
from servelint.place import Place
from servelint.rule import Case, Finding, Rule, Severity
from servelint.spec.document import Document
from servelint.spec.spans import Span
from servelint.suggest import did_you_mean

if TYPE_CHECKING:
    from servelint.manager import Plugins

MOST_HINTS = 20
MOST_NAMES = 10
LONGEST_NAME = 80
DEEPEST = 20
"""No finding is at a longer key path than this; a file may have keys of any length."""

# Compiled at the first comment that needs them: most specs have none.
_OURS = r"#\s*servelint:"
_COMMENT = r"#\s*servelint:\s*ignore(-file)?\s*\[([^\]\n]*)\]"
_EXPECTATION = r"#\s*expect"

_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"
"""Letters to Unicode that show nothing: fillers of Hangul."""


class Suppression:
    """One comment: the codes or names it silences, its reason, and which of them silenced something."""

    __slots__ = ("codes", "reason", "span", "used")

    def __init__(self, span: Span, codes: tuple[str, ...] = (), reason: str = "") -> None:
        self.span = span
        self.codes = codes
        self.reason = reason
        self.used: set[str] = set()


class Suppressions:
    """The suppression comments of a document; one that is not understood has no codes.

    A comment beside a value covers the findings of its line. On a line of its own it covers the key, value or
    table that stands right below, and everything in it. Look-ups do not depend on how many comments there are.
    """

    def __init__(self, document: Document) -> None:
        self.comments: list[Suppression] = []
        self._files: dict[str, Suppression] = {}
        self._lines: dict[tuple[str, int], Suppression] = {}
        self._paths: dict[tuple[str, KeyPath], Suppression] = {}
        self._named_at = document.place(("engine", "args_from")).line if document.texts else 0
        if "servelint:" in document.text and document.syntax_place is None:
            self._collect(document)

    def _collect(self, document: Document) -> None:
        lines = document.lines
        paths: dict[int, KeyPath] | None = None
        below: list[int] | None = None
        for comment in document.comments:
            if re.match(_OURS, comment.text) is None:
                continue
            match = re.match(_COMMENT, comment.text)
            if match is None:
                self.comments.append(Suppression(comment.span))
                continue
            codes = tuple(dict.fromkeys(c.strip() for c in match[2].split(",") if c.strip()))
            made = Suppression(comment.span, codes, _reason(comment.text[match.end() :]))
            self.comments.append(made)
            if match[1]:
                for code in codes:
                    self._files.setdefault(code, made)
                continue
            line, column = lines.position(comment.span.start)
            if not lines.line_text(line)[: column - 1].strip():
                below = _next_lines(document) if below is None else below
                line = below[line]
                paths = _paths_by_line(document) if paths is None else paths
                for code in codes if line in paths else ():
                    self._paths.setdefault((code, paths[line]), made)
            for code in codes:
                self._lines.setdefault((code, line), made)

    def silencing(self, finding: Finding, place: Place) -> Suppression | None:
        """Return the comment that silences a finding at a place, and note that it is of use; None if none does."""
        for name in (finding.code, finding.name) if self.comments else ():
            # A comment beside a value of several lines stands where it starts or where it ends.
            found = None
            if not place.file:
                found = self._lines.get((name, place.line)) or self._lines.get((name, place.end_line))
            else:
                # What a launch file sets is silenced in the spec, where it names that file.
                found = self._paths.get((name, ("engine", "args_from"))) or self._lines.get((name, self._named_at))
            for length in range(len(finding.path), 0, -1):
                found = found or self._paths.get((name, finding.path[:length]))
            found = found or self._files.get(name)
            if found is not None:
                found.used.add(name)
                return found
        return None


def _reason(text: str) -> str:
    """The words after the bracket; empty when there is none that a reader can see."""
    expected = re.search(_EXPECTATION, text)
    text = text[: expected.start() if expected else None].strip()
    return text if any(c.isalnum() and c not in _BLANK_LETTERS for c in text) else ""


def _next_lines(document: Document) -> list[int]:
    """For each line, by its number, the one that a comment on it is about: the next that is no comment."""
    lines = document.lines
    count = len(lines)
    below = [count + 1] * (count + 1)
    for line in range(count, 1, -1):
        comment = lines.line_text(line).lstrip().startswith("#")
        below[line - 1] = below[line] if comment else line
    return below


def _paths_by_line(document: Document) -> dict[int, KeyPath]:
    """For each line the widest value that starts on it, or the table whose header it is."""
    lines, spans = document.lines, document.spans
    found: dict[int, tuple[int, KeyPath]] = {}
    seen: set[KeyPath] = set()
    for leaf in spans.paths():
        for length in range(1, min(len(leaf), DEEPEST) + 1):
            path = leaf[:length]
            if path in seen:
                continue
            seen.add(path)
            key, value = spans.key(path), spans.value(path)
            if value is not None:
                line = lines.position(key.start)[0] if key is not None else 0
                if line and (line not in found or value.start < found[line][0]):
                    found[line] = value.start, path
            elif length == len(leaf) or not isinstance(leaf[length], int):
                # An array of tables has no header of its own: its elements have.
                for header in spans.headers(path):
                    found[lines.position(header.start)[0]] = -1, path
    return {line: path for line, (_, path) in found.items()}


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
    hints = 0
    for comment in comments:
        unknown = [code for code in comment.codes if code not in known]
        unused = [code for code in comment.codes if code in ran and code not in comment.used]
        if not comment.codes:
            message = "the comment names no rule: expected # servelint: ignore[CODE] reason"
            yield Verdict(comment, UnknownSuppression, message)
        elif unknown:
            # A suggestion takes time, and a file can have any number of comments.
            hint = did_you_mean(unknown[0], known) if hints < MOST_HINTS else ""
            hints += 1
            message = f"the comment ignores {_listed(unknown)}, which no rule is called{hint}"
            yield Verdict(comment, UnknownSuppression, message)
        elif unused:
            what = "the comment" if len(unused) == len(comment.codes) else "the name"
            message = f"nothing here is reported by {_listed(unused)}: {what} can go"
            yield Verdict(comment, UnusedSuppression, message)
        elif not comment.reason:
            message = "the comment gives no reason: write one in words after the bracket"
            yield Verdict(comment, SuppressionWithoutReason, message)


def _listed(names: list[str]) -> str:
    """The first names, as much of each as a reader needs to find it: a comment can have any number of any length."""
    first = ", ".join(name[:LONGEST_NAME] for name in names[:MOST_NAMES])
    return first if len(names) <= MOST_NAMES else f"{first} and {len(names) - MOST_NAMES:,} more"


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
    Every suppression comment that is in use has words after its bracket: letters or digits, not only marks or
    characters that cannot be seen.

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
