"""The plugin module of the built-in reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from servelint.descriptors import Reporter
from servelint.hookspecs import API_VERSION, hookimpl

servelint_api = API_VERSION


def _text(report: Any) -> str:
    from servelint.report.text import render

    return render(report)


def _json(report: Any) -> str:
    from servelint.report.json import render

    return render(report)


def _sarif(report: Any) -> str:
    from servelint.report.sarif import render

    return render(report)


@hookimpl
def servelint_reporters() -> Iterable[Reporter]:
    """Yield the built-in output formats."""
    yield Reporter("text", _text, "snippet, arithmetic and fix, for people")
    yield Reporter("json", _json, "everything, for programs")
    yield Reporter("sarif", _sarif, "SARIF 2.1.0, for code scanning")
