"""SARIF 2.1.0 for code scanning: one run, narrow primary places, rule texts from the rules themselves.

Files are relative to the repository, percent-encoded. Suppressed findings are left out, since a consumer that
does not know suppressions would show them. ``security-severity`` is never set: nothing here is a security
alert. The hash of the primary line is left to the uploader, which computes its own; ours is ``servelint/v1``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from servelint import __version__
from servelint.config import repository
from servelint.lineage import dotted
from servelint.place import Place
from servelint.report.fingerprint import fingerprints
from servelint.report.json import dumps, text
from servelint.report.rule_docs import family, marked, plain_words, provider_of, sections
from servelint.report.safe import printable
from servelint.rule import Rule, Severity
from servelint.suppress import every_rule

if TYPE_CHECKING:
    from servelint.blame import Provider
    from servelint.lint import Located, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MOST_RESULTS = 25_000
"""More than this in a run and code scanning refuses the file; the least severe are left out then."""

LONGEST_DESCRIPTION = 1000
LONGEST_NAME = 255
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PROBLEM = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "recommendation"}


def render(report: Report) -> str:
    """Return the SARIF text of a check."""
    rules = [rule for rule in every_rule(report.plugins) if report.config.selects(rule)]
    components = _Components(report, rules)
    home = repository(report.root.resolve())
    findings = report.findings
    names = {f.file for f in findings} | {f.where for f in findings} | {p.file for f in findings for p, _ in f.related}
    base = home or _above(report.root.resolve(), names)
    uris = {name: _uri(name, base) for name in sorted(names - {""})}
    worst_first = sorted(range(len(findings)), key=lambda i: -(findings[i].finding.severity or Severity.INFO))
    kept = [findings[i] for i in sorted(worst_first[:MOST_RESULTS])]
    prints = fingerprints(kept, {name: uri["uri"] for name, uri in uris.items()})
    run: dict[str, Any] = {
        "tool": components.tool(),
        "automationDetails": {"id": _category(report.root.resolve(), home or report.root.resolve())},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(report, len(findings) - len(kept))],
        "results": [_result(found, components, uris, print_) for found, print_ in zip(kept, prints, strict=True)],
    }
    return dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


class _Components:
    """The driver with servelint's own rules, and an extension for every other distribution with rules."""

    def __init__(self, report: Report, rules: list[type[Rule]]) -> None:
        self._driver: list[type[Rule]] = []
        self._extensions: dict[tuple[str, str], list[type[Rule]]] = {}
        self._place: dict[str, tuple[int | None, int]] = {}
        for rule in rules:
            provider = provider_of(report.plugins, rule)
            if provider is None or provider.distribution == "servelint":
                self._place[rule.code] = (None, len(self._driver))
                self._driver.append(rule)
            else:
                held = self._extensions.setdefault(_extension(provider), [])
                self._place[rule.code] = (list(self._extensions).index(_extension(provider)), len(held))
                held.append(rule)

    def tool(self) -> dict[str, Any]:
        """Return the tool object; names of extensions are those of their distributions."""
        driver = {
            "name": "servelint",
            "version": __version__,
            "semanticVersion": __version__,
            "rules": [_rule(rule) for rule in self._driver],
        }
        extensions = [
            {
                "name": printable(name),
                **({"version": printable(version)} if version else {}),
                "rules": [_rule(rule) for rule in rules],
            }
            for (name, version), rules in self._extensions.items()
        ]
        return {"driver": driver, **({"extensions": extensions} if extensions else {})}

    def reference(self, code: str) -> dict[str, Any]:
        """Return the keys of a result that name its rule."""
        extension, index = self._place.get(code, (None, -1))
        if extension is not None:
            return {"ruleId": code, "rule": {"id": code, "index": index, "toolComponent": {"index": extension}}}
        return {"ruleId": code, "ruleIndex": index} if index >= 0 else {"ruleId": code}


def _extension(provider: Provider) -> tuple[str, str]:
    # A plugin that an embedding program registered belongs to no distribution.
    name = provider.distribution if provider.distribution != "unknown" else provider.plugin
    return name, provider.version


def _rule(rule: type[Rule]) -> dict[str, Any]:
    parts = sections(rule)
    # Without docstrings (-OO) the name is what there is to say.
    summary = parts.pop("") or printable(rule.name)
    about = plain_words(parts.get("What it checks", "") or summary)
    body = [(heading, content) for heading, content in parts.items() if content]
    plain = "\n\n".join([plain_words(summary), *(f"{heading}: {plain_words(content)}" for heading, content in body)])
    markdown = "\n\n".join([marked(summary), *(f"## {heading}\n\n{marked(content)}" for heading, content in body)])
    return {
        "id": rule.code,
        "name": printable(rule.name, LONGEST_NAME),
        "shortDescription": {"text": _cut(plain_words(summary))},
        "fullDescription": {"text": _cut(" ".join(about.split()))},
        "help": {"text": plain, "markdown": markdown},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {
            "precision": printable(rule.confidence),
            "problem.severity": _PROBLEM[rule.severity],
            "tags": ["llm-serving", family(rule.code).lower()],
        },
    }


def _cut(content: str) -> str:
    return content if len(content) <= LONGEST_DESCRIPTION else content[: LONGEST_DESCRIPTION - 3] + "..."


def _result(found: Located, components: _Components, uris: dict[str, dict[str, str]], print_: str) -> dict[str, Any]:
    f = found.finding
    severity = f.severity or Severity.INFO
    lines = [_escaped(f.message) or _escaped(f.name)]
    if f.equation:
        lines.append(f"Because: {_escaped(f.equation)}")
    if f.help:
        lines.append(f"Fix: {_escaped(f.help)}")
    links = [f"[{_linked(message)}]({i})" for i, (_, message) in enumerate(found.related, 1)]
    if links:
        lines.append(f"See {', '.join(links)}.")
    location: dict[str, Any] = {"physicalLocation": _location(uris[found.where], found.place)}
    if f.path:
        location["logicalLocations"] = [{"fullyQualifiedName": text(dotted(f.path))}]
    result: dict[str, Any] = {
        **components.reference(f.code),
        "level": _LEVELS[severity],
        "message": {"text": "\n\n".join(lines)},
        "locations": [location],
        "partialFingerprints": {"servelint/v1": print_},
    }
    if found.related:
        result["relatedLocations"] = [
            {
                "id": i,
                "physicalLocation": _location(uris[place.file or found.file], place),
                "message": {"text": _escaped(message) or "related"},
            }
            for i, (place, message) in enumerate(found.related, 1)
        ]
    return result


def _escaped(message: str) -> str:
    """Return a message in which no text of a spec can become a link, whatever brackets and backslashes it has."""
    shown = text(message)
    return _literal(shown) if "](" in shown else shown


def _linked(message: str) -> str:
    return _literal(text(message)) or "related"


def _literal(shown: str) -> str:
    return shown.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")


def _location(uri: dict[str, str], place: Place) -> dict[str, Any]:
    return {
        "artifactLocation": uri,
        "region": {
            "startLine": place.line,
            "startColumn": place.column,
            "endLine": place.end_line,
            "endColumn": place.end_column,
        },
    }


def _above(root: Path, names: set[str]) -> Path:
    """Return the folder that holds all files where there is no repository: some relative and some not fit no viewer."""
    files = [Path(name).resolve() for name in names - {"", "<stdin>"}]
    return Path(os.path.commonpath([root, *(file.parent for file in files)]))


def _uri(name: str, base: Path) -> dict[str, str]:
    """Return a file's location: relative to the repository when it lies in it, links resolved."""
    if name == "<stdin>":
        return {"uri": "stdin", "uriBaseId": "%SRCROOT%"}
    path = Path(name).resolve()
    if path.is_relative_to(base):
        relative = path.relative_to(base).as_posix()
        return {"uri": quote(os.fsencode(relative), safe="/"), "uriBaseId": "%SRCROOT%"}
    return {"uri": "file://" + quote(os.fsencode(path.as_posix()), safe="/")}


def _category(root: Path, base: Path) -> str:
    """Return the run's identity; what stands before the last slash keeps projects of one repository apart."""
    inside = root.relative_to(base).as_posix() if root.is_relative_to(base) else "."
    return "servelint/" if inside == "." else f"servelint/{text(inside)}/"


def _invocation(report: Report, left_out: int) -> dict[str, Any]:
    notes = [_note("plugin-fault", str(fault)) for fault in report.faults]
    notes += [_note("unreadable-file", f"{name}: {reason}") for name, reason in report.unreadable]
    if left_out:
        notes.append(_note("too-many-results", f"results of lower severity that are left out: {left_out:,}"))
    invocation: dict[str, Any] = {"executionSuccessful": not (report.faults or report.unreadable)}
    if notes:
        invocation["toolExecutionNotifications"] = notes
    return invocation


def _note(name: str, message: str) -> dict[str, Any]:
    return {"descriptor": {"id": name}, "level": "error", "message": {"text": text(message)}}
