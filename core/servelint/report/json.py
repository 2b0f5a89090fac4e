"""The JSON report of a check, and the objects that every command's JSON is made of.

A contract, versioned: every quantity is in SI under a name that carries its unit. docs/cli.md documents it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from servelint import __version__
from servelint.lineage import Input, Lineage, dotted
from servelint.place import Place
from servelint.report.safe import printable
from servelint.rule import Severity
from servelint.spec.document import Document

if TYPE_CHECKING:
    from servelint.composition import Assumption
    from servelint.lint import FileResult, Located, Report

SCHEMA_VERSION = 1
LONGEST = 20_000
_SUFFIX = {
    "B": "bytes",
    "B/s": "bytes_per_s",
    "FLOP/s": "flops",
    "s": "s",
    "tok": "tokens",
    "tok/s": "tokens_per_s",
    "req/s": "requests_per_s",
}


def render(report: Report) -> str:
    """Return the JSON text of a check."""
    counts = dict.fromkeys(sorted(Severity, reverse=True), 0)
    for found in report.findings:
        counts[found.finding.severity or Severity.INFO] += 1
    return dumps(
        {
            **head(),
            "files": [_file(result) for result in report.files],
            "findings": [_finding(found, document) for found, document in report.found],
            "summary": {f"{severity}s" if severity > Severity.INFO else "info": n for severity, n in counts.items()},
            "unreadable": [{"file": name, "reason": text(reason)} for name, reason in report.unreadable],
            "plugin_faults": [
                {
                    "plugin": fault.provider.plugin,
                    "distribution": fault.provider.distribution,
                    "version": fault.provider.version,
                    "file": fault.provider.file,
                    "message": text(fault.message),
                }
                for fault in report.faults
            ],
        }
    )


def head() -> dict[str, Any]:
    """The keys that every JSON output begins with."""
    return {"schema_version": SCHEMA_VERSION, "tool": {"name": "servelint", "version": __version__}}


def dumps(value: Any) -> str:
    """Write JSON that every parser takes: no NaN or infinity, keys in the order given, only ASCII.

    A build log acts on ``##[command]`` wherever it stands, so the second sign is written as an escape.
    """
    written = json.dumps(finite(value), indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    return written.replace("##", "#\\u0023")


def finite(value: Any) -> Any:
    """Replace what JSON cannot say: infinite and undefined numbers become null, tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        # A file name may hold bytes that are no UTF-8; Python keeps them as lone surrogates.
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {finite(str(k)): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def text(message: str) -> str:
    """Return a message for people without anything that could drive a terminal once it is decoded."""
    return printable(message, LONGEST)


def _file(result: FileResult) -> dict[str, Any]:
    """One checked file: what was assumed, what rules lacked, what comments silenced."""
    assumptions = result.review.assumptions if result.review is not None else ()
    return {
        "file": result.document.name,
        "assumptions": [assumption_object(a) for a in assumptions],
        "lacking": [{"code": code, "needs": text(what)} for code, what in result.lacking],
        "suppressed": [
            {"code": f.finding.code, "line": f.place.line, "reason": text(f.suppressed)}
            for f in result.findings
            if f.suppressed is not None
        ],
    }


def assumption_object(a: Assumption) -> dict[str, Any]:
    """A value that the spec does not set: key path, value, reason, source."""
    return {
        "key_path": dotted(a.path),
        "value": a.value if isinstance(a.value, str | int | float | bool | None) else str(a.value),
        "reason": text(a.reason),
        "source": text(str(a.source)),
    }


def place_object(place: Place) -> dict[str, int]:
    """Line and column keys of a place."""
    return {
        "line": place.line,
        "column": place.column,
        "end_line": place.end_line,
        "end_column": place.end_column,
    }


def input_object(item: Input, document: Document | None = None) -> dict[str, Any]:
    """An input of a finding or figure: name, value, unit, source, and its line where the spec has it."""
    result: dict[str, Any] = {
        "name": text(item.name),
        "value": text(item.value) if isinstance(item.value, str) else item.value,
        "unit": item.unit,
        "source": text(str(item.source)),
    }
    suffix = _SUFFIX.get(item.unit)
    if suffix:
        result["quantity"] = suffix
    if document is not None and item.source.path and document.has(item.source.path):
        place = document.origin(item.source.path)
        result["line"] = place.line
        if place.file:
            result["file"] = place.file
    return result


def lineage_object(lineage: Lineage, document: Document | None = None) -> dict[str, Any]:
    """A formula with its inputs and the changes that policies made."""
    return {
        "formula": lineage.formula,
        "inputs": [input_object(i, document) for i in lineage.inputs],
        "rewrites": [
            {"by": r.by, "formula": r.formula, "inputs": [input_object(i, document) for i in r.inputs]}
            for r in lineage.rewrites
        ],
    }


def _finding(found: Located, document: Document) -> dict[str, Any]:
    f = found.finding
    fix = None
    if f.fix is not None:
        fix = {
            "description": text(f.fix.description),
            "safe": f.fix.safe,
            "edits": [
                {"key_path": dotted(e.path), "text": e.text, **place_object(document.place(e.path))}
                for e in f.fix.edits
            ],
        }
    return {
        "code": f.code,
        "name": f.name,
        "severity": str(f.severity),
        "confidence": f.confidence,
        "message": text(f.message),
        "file": found.where,
        **place_object(found.place),
        "key_path": dotted(f.path),
        "equation": text(f.equation),
        "help": text(f.help),
        "related": [
            {"file": place.file or found.file, **place_object(place), "message": text(message)}
            for place, message in found.related
        ],
        "inputs": [input_object(i, document) for i in f.inputs],
        "fix": fix,
    }
