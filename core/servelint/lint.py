"""Runs rules over documents: suppressions, selection, isolation of what crashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from servelint import contract
from servelint.blame import Blamed, PluginFault, Wrong, shown
from servelint.config import Config
from servelint.errors import ManifestError
from servelint.files import Text
from servelint.lineage import KeyPath, dotted
from servelint.manager import Plugins
from servelint.opening import open_manifest, open_spec
from servelint.place import Place
from servelint.review import Review
from servelint.rule import Finding, Lacks, Rule, RuleEntry, Severity, collect
from servelint.spec.document import Document
from servelint.suppress import NAMES, Suppressions, verdicts

PROBLEM_NAMES = {
    "SPEC001": "invalid-toml",
    "SPEC002": "unknown-key",
    "SPEC003": "bad-value",
    "SPEC004": "unknown-reference",
}


class Located(NamedTuple):
    """A finding with the checked file and its place; ``suppressed`` holds the reason when a comment silences it."""

    file: str
    finding: Finding
    place: Place
    related: tuple[tuple[Place, str], ...] = ()
    suppressed: str | None = None

    @property
    def where(self) -> str:
        """The file that the place lies in: the checked one, or a launch file that it names."""
        return self.place.file or self.file


class FileResult(NamedTuple):
    """What a check of one file gave."""

    document: Document
    review: Review | None
    findings: tuple[Located, ...]
    lacking: tuple[tuple[str, str], ...]


class Report(NamedTuple):
    """What a whole run gave.

    ``faults`` are plugins' and rules' own, ``unreadable`` files that could not be read, with the reason; both
    make the run fail with 2. ``skipped`` are manifests of a searched folder that could not be read. ``root`` is the
    project's folder.
    """

    files: tuple[FileResult, ...]
    faults: tuple[PluginFault, ...]
    config: Config
    plugins: Plugins
    root: Path = Path()
    unreadable: tuple[tuple[str, str], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def findings(self) -> tuple[Located, ...]:
        """Findings that are not suppressed, by file and place."""
        return tuple(f for result in self.files for f in result.findings if f.suppressed is None)

    @property
    def found(self) -> Iterator[tuple[Located, Document]]:
        """The same, each with its document: a manifest gives several documents under one name."""
        for result in self.files:
            for located in result.findings:
                if located.suppressed is None:
                    yield located, result.document

    def worst(self) -> Severity | None:
        """The highest severity found."""
        return max((f.finding.severity or Severity.INFO for f in self.findings), default=None)


class Linter:
    """Checks documents with the selected rules of the plugins."""

    def __init__(self, plugins: Plugins, config: Config, root: Path) -> None:
        self.plugins = plugins
        self.config = config
        self.root = root
        self.rules = [rule for rule in plugins.rule_entries if config.selects(rule)]
        self._known = frozenset(n for rule in plugins.rule_entries for n in (rule.code, rule.name)) | frozenset(
            {*PROBLEM_NAMES, *PROBLEM_NAMES.values(), *NAMES}
        )
        self._instances: dict[str, Rule | None] = {}

    def made(self, entry: RuleEntry) -> Rule | None:
        """Return a rule with its options, None when it cannot be made; then that is the fault of its plugin."""
        if entry.code not in self._instances:
            rule = self.plugins.load_rule(entry)
            self._instances[entry.code] = None if rule is None else self._instance(rule)
        return self._instances[entry.code]

    def _instance(self, rule: type[Rule]) -> Rule | None:
        try:
            with self.plugins.blamed(self.plugins.rule_provider(rule.code), f"making the rule {rule.code}"):
                made = rule(dict(self.config.options.get(rule.code, {})))
                if not isinstance(made, rule):
                    raise Wrong(f"gave {shown(made)}")
                return made
        except Blamed:
            return None

    def check(self, name: str, text: str) -> FileResult:
        """Check one spec text under a file name."""
        return self.judge(open_spec(name, text, self.plugins, self.root))

    def judge(self, document: Document) -> FileResult:
        """Check one opened document."""
        lacking: list[tuple[str, str]] = []
        review = Review(document, self.plugins, self.root)
        found: list[Finding] = []
        decided: set[str] = set()
        for entry in self._rules_for(document.name):
            if entry.when and not any(document.has(path) for path in entry.when):
                # It has nothing to say of such a spec, so it is not even loaded.
                if document.deployment is not None:
                    lacking.append((entry.code, " or ".join(map(dotted, entry.when))))
                continue
            rule = self.made(entry)
            if rule is None or (document.deployment is None and not getattr(rule, "reads_problems", False)):
                # Rules of the spec itself report what kept it from being structured.
                continue
            before = len(lacking)
            reported = self._run(rule, review, lacking)
            if reported is None:
                # What failed once is left out of the rest of the run.
                self.rules = [other for other in self.rules if other is not entry]
                continue
            found += reported
            if len(lacking) == before:
                decided |= {rule.code, rule.name}
        located = self._located(document, found, decided)
        return FileResult(document, review if document.deployment else None, located, tuple(lacking))

    def _rules_for(self, name: str) -> list[RuleEntry]:
        return [rule for rule in self.rules if not self.config.ignores(rule, name)]

    def _run(self, rule: Rule, review: Review, lacking: list[tuple[str, str]]) -> list[Finding] | None:
        """Return what a rule found, None when it failed; then it is the fault of its plugin."""
        found: list[Finding] = []
        lacked: list[tuple[str, str]] = []
        kind = type(rule)
        provider = self.plugins.rule_provider(kind.code)
        try:
            with self.plugins.blamed(provider, f"rule {kind.code}", where=f" on {review.document.name}"):
                for item in collect(rule, review):
                    if isinstance(item, Lacks):
                        lacked.append((kind.code, contract.lack(item)))
                    else:
                        held = _as_certain_as_its_weights(kind, contract.finding(item, kind), review)
                        found.append(self._with_severity(kind, held))
                    if len(found) + len(lacked) > contract.MOST:
                        raise Wrong(f"yields more than {contract.MOST:,} findings, which has no end")
        except Blamed as error:
            if error.provider == provider:
                return None
            # What it asked for failed in another plugin, which was blamed for that.
            lacking.append((kind.code, f"what {error.provider} did not give"))
            return []
        lacking += lacked
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
        if finding.fix is not None and any(edit.path in document.settings for edit in finding.fix.edits):
            # What launch arguments set stands in no text that is edited here.
            finding = finding._replace(fix=None)
        # No label is better than one at a wrong place.
        related = tuple((document.place(r.path), r.message) for r in finding.related if document.points_at(r.path))
        comment = comments.silencing(finding, place) if comments else None
        reason = None if comment is None else comment.reason or "no reason given"
        return Located(document.name, finding, place, related, reason)


def _as_certain_as_its_weights(rule: type[Rule], finding: Finding, review: Review) -> Finding:
    """The finding, a warning instead of an error where it rests on a format of the weights that is a guess."""
    if not rule.weighs or finding.severity is not Severity.ERROR or not review.guesses_weights:
        return finding
    return finding._replace(severity=Severity.WARNING, confidence="medium")


def lint(
    texts: Iterable[Text | tuple[str, str]],
    plugins: Plugins,
    config: Config,
    root: Path,
    given: Mapping[KeyPath, object] | None = None,
) -> Report:
    """Check specs and manifests; ``given`` are keys that manifests leave open.

    A candidate is left out when a spec of the same run has read it, and skipped when it cannot be read.
    """
    linter = Linter(plugins, config, root)
    files: list[FileResult] = []
    unreadable: list[tuple[str, str]] = []
    skipped: list[tuple[str, str]] = []
    read: set[str] = set()
    for name, text, kind in (Text(*item) for item in texts):
        if kind == "spec":
            files.append(linter.check(name, text))
            read |= {os.path.realpath(other) for other in files[-1].document.texts}
            continue
        if kind == "candidate" and os.path.realpath(name) in read:
            continue
        try:
            documents = open_manifest(name, text, plugins, given)
        except ManifestError as error:
            reason = f"{error} (line {error.place.line})" if error.place.line > 1 else str(error)
            (unreadable if kind == "manifest" else skipped).append((name, reason))
            continue
        files += map(linter.judge, documents)
        if not documents and kind == "manifest":
            unreadable.append((name, "nothing in it starts an engine that any plugin reads"))
    return Report(tuple(files), tuple(plugins.faults), config, plugins, root, tuple(unreadable), tuple(skipped))
