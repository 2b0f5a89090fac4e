"""The text report of a check: place, message, snippet with carets, equation, inputs, fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servelint.lineage import dotted
from servelint.place import Place
from servelint.report.safe import cells, file_name, guarded, printable, width
from servelint.report.show import COLORS, Style, source_text, value
from servelint.rule import Severity
from servelint.spec.document import Document

if TYPE_CHECKING:
    from servelint.lint import Located, Report

COLUMNS = 140
"""Source lines longer than this are cut around what a caret points at."""


def render(report: Report, *, color: bool = False, verbose: bool = False, concise: bool = False) -> str:
    """Return the whole text of a check."""
    style = Style(color)
    lines: list[str] = []
    for found, document in report.found:
        if concise:
            lines.append(_concise(found, style))
        else:
            lines += [*_finding(found, document, style), ""]
    if verbose:
        lines += _lacking(report)
        lines += [f"{file_name(name)}: skipped: {printable(reason)}" for name, reason in report.skipped]
    for name, reason in report.unreadable:
        lines.append(style.paint("cannot read", "31;1") + f" {printable(name)}: {printable(reason)}")
    for fault in report.faults:
        lines.append(style.paint("plugin fault", "31;1") + f": {printable(str(fault))}")
    lines.append(summary(report))
    return guarded("\n".join(lines) + "\n", color=color)


def _severity(found: Located) -> Severity:
    return found.finding.severity or Severity.INFO


def _concise(found: Located, style: Style) -> str:
    f, place = found.finding, found.place
    severity = _severity(found)
    label = style.paint(printable(f"{severity} {f.code}"), COLORS[severity])
    return f"{file_name(found.where)}:{place.line}:{place.column}: {label} {printable(f.name)}: {printable(f.message)}"


def _finding(found: Located, document: Document, style: Style) -> list[str]:
    f, place = found.finding, found.place
    severity = _severity(found)
    head = style.paint(printable(f"{severity}[{f.code}]"), f"{COLORS[severity]};1")
    lines = [f"{head} {style.paint(printable(f.name), '1')}: {printable(f.message)}"]
    key = f" ({printable(dotted(f.path))})" if f.path else ""
    lines.append(f"  --> {printable(found.where)}:{place.line}:{place.column}{key}")
    if not place.empty or found.related:
        lines += _snippet(document, place, found.related, severity, style)
    if f.equation:
        lines.append(f"  = because: {printable(f.equation)}")
    for item in f.inputs:
        source = printable(source_text(item.source, document))
        lines.append(f"  = from:    {printable(item.name)} = {value(item)} [{source}]")
    if f.help:
        lines.append(f"  = {style.paint('fix', '32')}:     {printable(f.help)}")
    if f.confidence and f.confidence != "high":
        lines.append(f"  = note:    confidence {printable(f.confidence)}; servelint rule {printable(f.code)} explains")
    return lines


def _snippet(
    document: Document,
    place: Place,
    related: tuple[tuple[Place, str], ...],
    severity: Severity,
    style: Style,
) -> list[str]:
    marks = sorted(
        [(place, "", True), *((at, message, False) for at, message in related)],
        key=lambda mark: (mark[0].file != place.file, mark[0].file, mark[0].line, not mark[2], mark[0].column),
    )
    digits = len(str(max(at.line for at, _, _ in marks)))
    bar = " " * (digits + 1) + "|"
    lines = [bar]
    previous, above, file = 0, "", place.file
    for at, message, primary in marks:
        text, start, length = _window(document.line_text(at), at)
        if at.file != file:
            # The other place lies in another file, which a line of its own names.
            lines += [bar, f"{' ' * digits}--- {printable(at.file or document.name)}:{at.line}:{at.column}"]
            previous, above, file = 0, "", at.file
        if previous and at.line > previous + 1:
            lines.append("." * min(3, digits + 1))
        if at.line != previous or text != above:
            lines.append(f"{at.line:>{digits}} | {text}".rstrip())
        previous, above = at.line, text
        caret = style.paint(("^" if primary else "-") * length, COLORS[severity] if primary else "34")
        lines.append(f"{bar} {' ' * start}{caret} {printable(message)}".rstrip())
    lines.append(bar)
    return lines


def _window(line: str, at: Place) -> tuple[str, int, int]:
    """Return the shown part of a line, and where on it the caret starts and how long it is, in columns."""
    begin = min(at.column - 1, len(line))
    end = min(at.end_column - 1 if at.end_line == at.line else len(line), len(line))
    # Lines of minified files can be endless; only what can be shown is looked at.
    first = 0 if len(line) <= COLUMNS else max(0, begin - COLUMNS // 3)
    shown = cells(line[first : first + 2 * COLUMNS])
    begin, end = begin - first, min(end - first, len(shown))
    start = width("".join(shown[:begin]))
    length = max(1, width("".join(shown[begin:end])))
    text, taken = "", 0
    for cell in shown:
        taken += width(cell)
        if taken > COLUMNS:
            break
        text += cell
    cut = len(line) > first + 2 * COLUMNS or taken > COLUMNS
    length = max(1, min(length, width(text) - start))
    if first:
        text, start = f"... {text}", start + 4
    return f"{text} ..." if cut else text, start, length


def _lacking(report: Report) -> list[str]:
    lines = []
    for result in report.files:
        name = file_name(result.document.name)
        for code, what in result.lacking:
            lines.append(f"{name}: {printable(code)} not decided: it lacks {printable(what)}")
        if result.review is not None:
            for a in result.review.assumptions:
                shown = f"{a.value:.6g}" if isinstance(a.value, float) else str(a.value)
                lines.append(
                    f"{name}: assumed {printable(dotted(a.path))} = "
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
    # What a launch file sets is not rewritten.
    own = (found.finding.fix for found, document in report.found if not (document.manifest or found.place.file))
    with_fix = [fix for fix in own if fix is not None]
    safe = sum(fix.safe for fix in with_fix)
    if safe:
        tail += f"; {safe} fixable with --fix"
    if len(with_fix) > safe:
        tail += f"; {len(with_fix) - safe} {'more ' if safe else ''}fixable with --fix --unsafe-fixes"
    notes = f"; {assumed} values assumed (--verbose lists them)" if assumed else ""
    unread = f"; {len(report.unreadable)} not readable" if report.unreadable else ""
    if report.skipped:
        unread += f"; {len(report.skipped)} manifest{'s' * (len(report.skipped) > 1)} skipped (--verbose says why)"
    return f"checked {files}: {what}{tail}{notes}{unread}"
