"""The text report: place, message, snippet with caret, equation, inputs, fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servelint.lineage import Input, dotted
from servelint.report.safe import printable
from servelint.rule import Severity
from servelint.spec.document import Document, Place
from servelint.units import Dimension, format_quantity

if TYPE_CHECKING:
    from servelint.lint import Located, Report

_UNITS = {
    "B": Dimension.BYTES,
    "B/s": Dimension.BYTES_PER_SECOND,
    "FLOP/s": Dimension.FLOPS_PER_SECOND,
    "s": Dimension.SECONDS,
    "tok": Dimension.TOKENS,
    "tok/s": Dimension.TOKENS_PER_SECOND,
    "req/s": Dimension.REQUESTS_PER_SECOND,
}
_COLORS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}


class Style:
    """Colors on a terminal, nothing elsewhere."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def paint(self, text: str, code: str) -> str:
        """Return text in a color."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


def value(item: Input) -> str:
    """Write an input's value with its unit."""
    if isinstance(item.value, str):
        return printable(item.value, 100)
    dimension = _UNITS.get(item.unit)
    if dimension is not None and item.value >= 0:
        shown = format_quantity(item.value, dimension)
        # Small byte counts are exact figures of a ledger, not sizes.
        return f"{item.value:,.0f} B" if item.unit == "B" and item.value < 1e6 else shown
    number = f"{item.value:,.6g}" if isinstance(item.value, float) else f"{item.value:,}"
    return f"{number} {item.unit}".strip()


def render(report: Report, *, color: bool = False, verbose: bool = False, concise: bool = False) -> str:
    """Return the whole text of a check."""
    style = Style(color)
    lines: list[str] = []
    documents = {result.document.name: result.document for result in report.files}
    for found in report.findings:
        if concise:
            lines.append(_concise(found, style))
        else:
            lines += [*_finding(found, documents[found.file], style), ""]
    if verbose:
        lines += _lacking(report)
    for fault in report.faults:
        lines.append(style.paint("plugin fault", "31;1") + f": {printable(str(fault))}")
    lines.append(summary(report))
    return "\n".join(lines) + "\n"


def _severity(found: Located) -> Severity:
    return found.finding.severity or Severity.INFO


def _concise(found: Located, style: Style) -> str:
    f, place = found.finding, found.place
    severity = _severity(found)
    label = style.paint(f"{severity} {f.code}", _COLORS[severity])
    return f"{printable(found.file)}:{place.line}:{place.column}: {label} {f.name}: {printable(f.message)}"


def _finding(found: Located, document: Document, style: Style) -> list[str]:
    f, place = found.finding, found.place
    severity = _severity(found)
    head = style.paint(f"{severity}[{f.code}]", f"{_COLORS[severity]};1")
    lines = [f"{head} {style.paint(f.name, '1')}: {printable(f.message)}"]
    key = f" ({printable(dotted(f.path))})" if f.path else ""
    lines.append(f"  --> {printable(found.file)}:{place.line}:{place.column}{key}")
    lines += _snippet(document, place, found.related, severity, style)
    if f.equation:
        lines.append(f"  = because: {printable(f.equation)}")
    for item in f.inputs:
        lines.append(f"  = from:    {printable(item.name)} = {value(item)} [{printable(_source(item, document))}]")
    if f.help:
        lines.append(f"  = {style.paint('fix', '32')}:     {printable(f.help)}")
    if f.confidence and f.confidence != "high":
        lines.append(f"  = note:    confidence {f.confidence}; servelint rule {f.code} explains")
    return lines


def _source(item: Input, document: Document) -> str:
    source = item.source
    if source.kind == "spec" and source.path:
        if document.has(source.path):
            return f"{dotted(source.path)}, line {document.place(source.path).line}"
        return dotted(source.path)
    if source.kind == "default":
        return f"assumed: {source.field or 'default'}, {source.where}"
    if source.kind == "engine":
        return f"engine default: {source.field}, {source.where}"
    return str(source)


def _snippet(
    document: Document,
    place: Place,
    related: tuple[tuple[Place, str], ...],
    severity: Severity,
    style: Style,
) -> list[str]:
    marks = [(place, "", True), *((p, m, False) for p, m in related)]
    marks = sorted(marks, key=lambda m: (m[0].line, m[0].column))
    width = len(str(max(p.line for p, _, _ in marks)))
    bar = " " * (width + 1) + "|"
    lines = [bar]
    previous = None
    for at, message, primary in marks:
        text = document.lines.line_text(at.line).rstrip("\r\n")
        if at.line != previous:
            if previous is not None and at.line > previous + 1:
                lines.append("." * min(3, width + 1))
            lines.append(f"{at.line:>{width}} | {printable(text, 160)}")
        previous = at.line
        start = _width(text[: at.column - 1])
        end_column = at.end_column if at.end_line == at.line else len(text) + 1
        length = max(1, _width(text[at.column - 1 : end_column - 1]))
        if start >= 160:
            start, length = 0, 1
        length = min(length, 160 - start)
        caret = ("^" if primary else "-") * length
        color = _COLORS[severity] if primary else "34"
        lines.append(f"{bar} {' ' * start}{style.paint(caret, color)} {printable(message)}".rstrip())
    lines.append(bar)
    return lines


def _width(text: str) -> int:
    """Columns that text takes on a terminal after escaping; wide characters take two."""
    shown = printable(text, 10_000)
    if shown.isascii():
        return len(shown)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in shown)


def _lacking(report: Report) -> list[str]:
    lines = []
    for result in report.files:
        for code, what in result.lacking:
            lines.append(f"{printable(result.document.name)}: {code} not decided: it lacks {printable(what)}")
        if result.review is not None:
            for a in result.review.assumptions:
                shown = f"{a.value:.6g}" if isinstance(a.value, float) else str(a.value)
                lines.append(
                    f"{printable(result.document.name)}: assumed {printable(dotted(a.path))} = "
                    f"{printable(shown, 80)}: {printable(a.reason)} [{printable(str(a.source))}]"
                )
    return lines


def summary(report: Report) -> str:
    """One line: files, findings by severity, suppressed ones, assumptions."""
    counts = dict.fromkeys((Severity.ERROR, Severity.WARNING, Severity.INFO), 0)
    for found in report.findings:
        counts[_severity(found)] += 1
    suppressed = sum(f.suppressed is not None for result in report.files for f in result.findings)
    assumed = sum(len(result.review.assumptions) for result in report.files if result.review is not None)
    parts = [
        f"{n} {severity}{'s' if n != 1 and severity is not Severity.INFO else ''}"
        for severity, n in counts.items()
        if n
    ]
    what = ", ".join(parts) if parts else "no findings"
    files = f"{len(report.files)} spec{'s' if len(report.files) != 1 else ''}"
    tail = f"; {suppressed} suppressed" if suppressed else ""
    notes = f"; {assumed} values assumed (--verbose lists them)" if assumed else ""
    return f"checked {files}: {what}{tail}{notes}"
