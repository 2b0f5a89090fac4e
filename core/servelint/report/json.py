"""The JSON report: a contract, versioned, every quantity in SI under a name that carries its unit."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from servelint import __version__
from servelint.lineage import Input, dotted
from servelint.spec.document import Document, Place

if TYPE_CHECKING:
    from servelint.lint import Located, Report

SCHEMA_VERSION = 1
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
    return dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "servelint", "version": __version__},
            "files": [file_object(result) for result in report.files],
            "findings": [_finding(f, documents) for documents in (_documents(report),) for f in report.findings],
            "plugin_faults": [
                {
                    "plugin": fault.provider.plugin,
                    "distribution": fault.provider.distribution,
                    "version": fault.provider.version,
                    "file": fault.provider.file,
                    "message": fault.message,
                }
                for fault in report.faults
            ],
        }
    )


def dumps(value: Any) -> str:
    """Write JSON that every parser takes: no NaN or infinity, keys in the order given."""
    return json.dumps(finite(value), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Replace what JSON cannot say: infinite and undefined numbers become null, tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def _documents(report: Report) -> dict[str, Document]:
    return {result.document.name: result.document for result in report.files}


def file_object(result: Any) -> dict[str, Any]:
    """One checked file: what was assumed, what rules lacked, what comments silenced."""
    assumptions = result.review.assumptions if result.review is not None else ()
    return {
        "file": result.document.name,
        "assumptions": [
            {
                "key_path": dotted(a.path),
                "value": _plain(a.value),
                "reason": a.reason,
                "source": str(a.source),
            }
            for a in assumptions
        ],
        "lacking": [{"code": code, "needs": what} for code, what in result.lacking],
        "suppressed": [
            {"code": f.finding.code, "line": f.place.line, "reason": f.suppressed}
            for f in result.findings
            if f.suppressed is not None
        ],
    }


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


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
        "name": item.name,
        "value": item.value,
        "unit": item.unit,
        "source": str(item.source),
    }
    suffix = _SUFFIX.get(item.unit)
    if suffix:
        result["quantity"] = suffix
    if document is not None and item.source.path and document.has(item.source.path):
        result["line"] = document.place(item.source.path).line
    return result


def _finding(found: Located, documents: dict[str, Document]) -> dict[str, Any]:
    f = found.finding
    document = documents[found.file]
    fix = None
    if f.fix is not None:
        fix = {
            "description": f.fix.description,
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
        "message": f.message,
        "file": found.file,
        **place_object(found.place),
        "key_path": dotted(f.path),
        "equation": f.equation,
        "help": f.help,
        "related": [{**place_object(p), "message": m} for p, m in found.related],
        "inputs": [input_object(i, document) for i in f.inputs],
        "fix": fix,
    }
