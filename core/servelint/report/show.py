"""How reports for people write figures, sources and colors: the same in every command."""

from __future__ import annotations

import math

from servelint.lineage import Input, Source, dotted
from servelint.report.safe import printable
from servelint.rule import Severity
from servelint.spec.document import Document
from servelint.units import Dimension, format_quantity

_UNITS = {
    "B": Dimension.BYTES,
    "B/s": Dimension.BYTES_PER_SECOND,
    "FLOP/s": Dimension.FLOPS_PER_SECOND,
    "s": Dimension.SECONDS,
    "tok": Dimension.TOKENS,
    "tok/s": Dimension.TOKENS_PER_SECOND,
    "req/s": Dimension.REQUESTS_PER_SECOND,
}
UNLIMITED = "without limit"
"""How an infinite figure reads, such as the time in a queue that never empties."""

LONGEST_S = 100 * 365.25 * 86400
ETERNITY = "over 100 years"
MOST = 10**30
"""Larger whole numbers are no figures of a deployment; Python refuses to write those of some thousand digits."""

COLORS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}


class Style:
    """Colors on a terminal, nothing elsewhere."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def paint(self, text: str, code: str) -> str:
        """Return text in a color."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


def quantity(value: float | int | str, unit: str = "") -> str:
    """Write a figure with its unit: three digits and a prefix where the unit has prefixes."""
    if isinstance(value, str):
        return printable(value, 100)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return UNLIMITED if value > 0 else "not known"
    if unit == "s" and value > LONGEST_S:
        return ETERNITY
    if isinstance(value, int) and abs(value) > MOST:
        return f"an integer of {value.bit_length():,} bits"
    if unit == "B" and abs(value) < 1e6:
        # Small byte counts are exact figures of a ledger, not sizes.
        # Fractions are of averages; from a thousand bytes on they say nothing.
        return f"{value:,.0f} B" if abs(value) >= 1000 or value == int(value) else f"{value:,.6g} B"
    if unit == "FLOP":
        return format_quantity(value, Dimension.FLOPS_PER_SECOND).replace("/s", "")
    dimension = _UNITS.get(unit)
    if dimension in (Dimension.TOKENS, Dimension.TOKENS_PER_SECOND) and value >= 1000:
        return f"{value:,.0f} {unit}"
    if dimension is not None and value >= 0:
        return format_quantity(float(value), dimension)
    number = f"{value:,}"
    if isinstance(value, float):
        # Four digits say what there is to say; JSON has them all.
        number = f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.6g}"
    return f"{number} {printable(unit, 40)}".strip()


def value(item: Input) -> str:
    """Write an input's value with its unit."""
    return quantity(item.value, item.unit)


def source_text(source: Source, document: Document | None) -> str:
    """Say where a value comes from: the spec's line, the engine, a datasheet's field, an assumption."""
    if source.kind == "spec" and source.path:
        if document is not None and document.has(source.path):
            place = document.origin(source.path)
            where = f"{place.file}:{place.line}" if place.file else f"line {place.line}"
            return f"{dotted(source.path)}, {where}"
        return dotted(source.path)
    if source.kind == "default":
        return f"assumed: {source.field or 'default'}, {source.where}"
    if source.kind == "engine":
        return f"engine default: {source.field}, {source.where}"
    return str(source)
