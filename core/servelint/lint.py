"""Runs rules over documents: suppressions, selection, isolation of what crashes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from servelint.config import Config
from servelint.manager import FORBIDDEN, PluginFault, Plugins
from servelint.review import Review
from servelint.rule import Finding, Lacks, Rule, Severity, collect
from servelint.spec.document import Document, Place, parse
from servelint.spec.schema import Problem
from servelint.suppress import NAMES, Suppressions, verdicts

PROBLEM_NAMES = {
    "SPEC001": "invalid-toml",
    "SPEC002": "unknown-key",
    "SPEC003": "bad-value",
    "SPEC004": "unknown-reference",
}


class Located(NamedTuple):
    """A finding with its file and place; ``suppressed`` holds the reason when a comment silences it."""

    file: str
    finding: Finding
    place: Place
    related: tuple[tuple[Place, str], ...] = ()
    suppressed: str | None = None


class FileResult(NamedTuple):
    """What a check of one file gave."""

    document: Document
    review: Review | None
    findings: tuple[Located, ...]
    lacking: tuple[tuple[str, str], ...]


class Report(NamedTuple):
    """What a whole run gave.

    ``faults`` are plugins' and rules' own, ``unreadable`` files that could not be read, with the reason; both
    make the run fail with 2. ``root`` is the project's folder.
    """

    files: tuple[FileResult, ...]
    faults: tuple[PluginFault, ...]
    config: Config
    plugins: Plugins
    root: Path = Path()
    unreadable: tuple[tuple[str, str], ...] = ()

    @property
    def findings(self) -> tuple[Located, ...]:
        """Findings that are not suppressed, by file and place."""
        return tuple(f for result in self.files for f in result.findings if f.suppressed is None)

    def worst(self) -> Severity | None:
        """The highest severity found."""
        return max((f.finding.severity or Severity.INFO for f in self.findings), default=None)


class Linter:
    """Checks documents with the selected rules of the plugins."""

    def __init__(self, plugins: Plugins, config: Config, root: Path) -> None:
        self.plugins = plugins
        self.config = config
        self.root = root
        self.rules = [rule(dict(config.options.get(rule.code, {}))) for rule in plugins.rules if config.selects(rule)]
        self._known = frozenset(n for rule in plugins.rules for n in (rule.code, rule.name)) | frozenset(
            {*PROBLEM_NAMES, *PROBLEM_NAMES.values(), *NAMES}
        )

    def check(self, name: str, text: str) -> FileResult:
        """Check one spec text under a file name."""
        document = parse(name, text, self.plugins.policies)
        lacking: list[tuple[str, str]] = []
        review = Review(document, self.plugins, self.root)
        found: list[Finding] = []
        rules = self._rules_for(name)
        if document.deployment is None:
            # Rules of the spec itself report what kept it from being structured.
            rules = [rule for rule in rules if getattr(rule, "reads_problems", False)]
        decided: set[str] = set()
        for rule in rules:
            before = len(lacking)
            reported = self._run(rule, review, lacking)
            if reported is None:
                # What failed once is left out of the rest of the run.
                self.rules.remove(rule)
                continue
            found += reported
            if len(lacking) == before:
                decided |= {rule.code, rule.name}
        located = self._located(document, found, decided)
        return FileResult(document, review if document.deployment else None, located, tuple(lacking))

    def _rules_for(self, name: str) -> list[Rule]:
        return [rule for rule in self.rules if not self.config.ignores(rule, name)]

    def _run(self, rule: Rule, review: Review, lacking: list[tuple[str, str]]) -> list[Finding] | None:
        """Return what a rule found, None when it failed; then it is the fault of its plugin."""
        found: list[Finding] = []
        try:
            for item in collect(rule, review):
                if isinstance(item, Lacks):
                    lacking.append((rule.code, item.what))
                else:
                    found.append(self._with_severity(rule, _checked(item)))
        except FORBIDDEN as error:
            provider = self.plugins.rule_provider(rule.code)
            self.plugins.record_fault(
                provider,
                f"rule {rule.code} failed on {review.document.name}: {type(error).__name__}: {error}",
            )
            return None
        return found

    def _with_severity(self, rule: Rule | type[Rule], finding: Finding) -> Finding:
        override = self.config.severity.get(rule.code)
        return finding if override is None else finding._replace(severity=override)

    def _located(self, document: Document, findings: Iterable[Finding], decided: set[str]) -> tuple[Located, ...]:
        comments = Suppressions(document) if self.config.suppressions else None
        located = []
        seen = set()
        for finding in findings:
            place = document.place(finding.path, on_key=finding.on_key)
            key = (finding.code, place, finding.message)
            if key in seen:
                continue
            seen.add(key)
            located.append(self._placed(document, finding, place, comments))
        for verdict in verdicts(comments.comments, self._known, decided) if comments else ():
            if self.config.selects(verdict.rule) and not self.config.ignores(verdict.rule, document.name):
                finding = self._with_severity(verdict.rule, verdict.rule.finding(verdict.message))
                place = document.span_place(verdict.suppression.span)
                located.append(self._placed(document, finding, place, comments))
        return tuple(sorted(located, key=lambda f: (f.place, f.finding.code)))

    def _placed(self, document: Document, finding: Finding, place: Place, comments: Suppressions | None) -> Located:
        related = tuple((document.place(r.path), r.message) for r in finding.related)
        comment = comments.silencing(finding, place) if comments else None
        reason = None if comment is None else comment.reason or "no reason given"
        return Located(document.name, finding, place, related, reason)


def _checked(item: object) -> Finding:
    """Return what a rule yielded; TypeError when a report could not show it."""
    if not isinstance(item, Finding):
        raise TypeError(f"it yielded {type(item).__name__}, expected Finding or Lacks")
    texts = (item.message, item.equation, item.help)
    if not isinstance(item.path, tuple) or not all(isinstance(part, str | int) for part in item.path):
        raise TypeError("it yielded a Finding whose path is no tuple of names and indices")
    if not all(isinstance(t, str) for t in texts):
        raise TypeError("it yielded a Finding whose texts are no strings")
    return item


def problem_finding(problem: Problem) -> Finding:
    """Turn a problem of the spec into a finding."""
    return Finding(
        problem.path,
        problem.message,
        severity=Severity.ERROR,
        confidence="high",
        on_key=problem.on_key,
        code=problem.code,
        name=PROBLEM_NAMES[problem.code],
    )


def lint(texts: Iterable[tuple[str, str]], plugins: Plugins, config: Config, root: Path) -> Report:
    """Check specs given as (file name, text)."""
    linter = Linter(plugins, config, root)
    files = tuple(linter.check(name, text) for name, text in texts)
    return Report(files, tuple(plugins.faults), config, plugins, root)
