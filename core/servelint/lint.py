"""Runs rules over documents: suppressions, selection, isolation of what crashes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from servelint.config import Config
from servelint.errors import ServelintError
from servelint.manager import PluginFault, Plugins
from servelint.review import Review
from servelint.rule import Finding, Lacks, Rule, Severity, collect
from servelint.spec.document import Document, Place, parse
from servelint.spec.schema import Problem
from servelint.suppress import Suppression, suppressions

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
    """What a whole run gave. ``faults`` are plugins' and rules' own; they make the run fail with 2."""

    files: tuple[FileResult, ...]
    faults: tuple[PluginFault, ...]
    config: Config
    plugins: Plugins

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
            {*PROBLEM_NAMES, *PROBLEM_NAMES.values()}
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
        for rule in rules:
            found += self._run(rule, review, lacking)
        located = self._located(document, found)
        return FileResult(document, review if document.deployment else None, located, tuple(lacking))

    def _rules_for(self, name: str) -> list[Rule]:
        return [rule for rule in self.rules if not self.config.ignores(rule, name)]

    def _run(self, rule: Rule, review: Review, lacking: list[tuple[str, str]]) -> Iterable[Finding]:
        found: list[Finding] = []
        try:
            for item in collect(rule, review):
                if isinstance(item, Lacks):
                    lacking.append((rule.code, item.what))
                else:
                    found.append(self._with_severity(rule, item))
        except (
            ServelintError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
        ) as error:
            provider = self.plugins.rule_provider(rule.code)
            self.plugins.disable(
                provider,
                f"rule {rule.code} failed on {review.document.name}: {type(error).__name__}: {error}",
            )
        return found

    def _with_severity(self, rule: Rule, finding: Finding) -> Finding:
        override = self.config.severity.get(rule.code)
        return finding if override is None else finding._replace(severity=override)

    def _located(self, document: Document, findings: Iterable[Finding]) -> tuple[Located, ...]:
        comments = suppressions(document)
        located = []
        seen = set()
        for finding in findings:
            place = document.place(finding.path, on_key=finding.on_key)
            key = (finding.code, place, finding.message)
            if key in seen:
                continue
            seen.add(key)
            related = tuple((document.place(r.path), r.message) for r in finding.related)
            reason = None
            for comment in comments:
                if comment.covers(finding, place):
                    comment.used = True
                    reason = comment.reason or "no reason given"
                    break
            located.append(Located(document.name, finding, place, related, reason))
        located += self._about_suppressions(document, comments)
        return tuple(sorted(located, key=lambda f: (f.place, f.finding.code)))

    def _about_suppressions(self, document: Document, comments: list[Suppression]) -> list[Located]:
        found = []
        selected = {n for rule in self.rules for n in (rule.code, rule.name)} | {*PROBLEM_NAMES}
        for comment in comments:
            unknown = [code for code in comment.codes if code not in self._known]
            if unknown:
                code, name = "LINT002", "unknown-suppression"
                message = f"the comment ignores {', '.join(unknown)}, which no rule is called"
            elif not comment.used and all(c in selected for c in comment.codes):
                code, name = "LINT001", "unused-suppression"
                message = f"nothing here is reported by {', '.join(comment.codes)}: the comment can go"
            elif not comment.reason:
                code, name = "LINT003", "suppression-without-reason"
                message = "the comment gives no reason: write one after the bracket"
            else:
                continue
            if not self.config.selects_code(code):
                continue
            finding = Finding((), message, severity=Severity.WARNING, confidence="high", code=code, name=name)
            found.append(Located(document.name, finding, document.span_place(comment.span)))
        return found


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
    return Report(files, tuple(plugins.faults), config, plugins)
