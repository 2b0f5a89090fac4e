"""Trace formats: Azure LLM inference traces (CSV) and Mooncake traces (JSON Lines)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date
from functools import lru_cache
from typing import Any

from servelint.plugin import TraceFormat, TraceRow

MAX_ROWS = 200_000
"""A trace for a lint is a sample; more rows would only cost time."""

MAX_TOKENS = 100_000_000


# Digits are ASCII: those of other scripts, and underscores, which int() reads, are none of a trace.
_WHOLE = r"-?[0-9]{1,12}"
_TIME = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,20})?)"
    r"(?:Z|([+-])([01][0-9]):?([0-5][0-9]))?"
)


def _tokens(value: object, what: str, line: int) -> int:
    text = value.strip() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if not re.fullmatch(_WHOLE, text):
        raise ValueError(f"line {line}: {what} is {_shown(value)}, expected a whole number, 0 to {MAX_TOKENS:,}")
    value = int(text)
    if not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"line {line}: {what} is {value}, expected 0 to {MAX_TOKENS:,}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:40])
    return f"{value!r:.40}" if isinstance(value, int | float) else f"a {type(value).__name__}"


def _limited(rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
    for i, row in enumerate(rows):
        if i >= MAX_ROWS:
            raise ValueError(f"it has more than {MAX_ROWS:,} requests")
        yield row


def read_azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Read TIMESTAMP, ContextTokens, GeneratedTokens rows; timestamps carry up to seven fraction digits."""
    return _limited(_azure(lines))


def _azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    import csv

    wanted = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    reader = csv.reader(lines)
    rows = _rows(reader, csv.Error)
    header = [name.strip() for name in next(rows, [])]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ValueError(f"line 1: the column {missing[0]} is missing")
    at, prompt, output = (header.index(name) for name in wanted)
    start: float | None = None
    for row in rows:
        number = reader.line_num
        if not row:
            continue
        if len(row) < len(header):
            raise ValueError(f"line {number}: {len(row)} columns, expected {len(header)}")
        seconds = _timestamp(row[at], number)
        start = seconds if start is None else start
        yield TraceRow(
            seconds - start,
            _tokens(row[prompt], "ContextTokens", number),
            _tokens(row[output], "GeneratedTokens", number),
        )


def _rows(reader: Any, wrong: type[Exception]) -> Iterator[list[str]]:
    """The rows of a CSV reader, whose own error is none that names a line."""
    try:
        yield from reader
    except wrong as error:
        raise ValueError(f"line {reader.line_num}: it is not CSV: {error}") from None


def _timestamp(text: str, line: int) -> float:
    """Seconds since 1970; a time without a zone is read as UTC."""
    found = re.fullmatch(_TIME, text.strip())
    day = _day(found[1]) if found else None
    if found is None or day is None:
        expected = "expected a date and time from 1970 on, such as 2023-11-16 18:17:03.979"
        raise ValueError(f"line {line}: the timestamp is {text[:40]!r}, {expected}")
    seconds = day * 86400.0 + int(found[2]) * 3600 + int(found[3]) * 60 + float(found[4])
    if found[5]:
        seconds -= int(found[5] + "1") * (int(found[6]) * 3600 + int(found[7]) * 60)
    return seconds


@lru_cache(64)
def _day(text: str) -> int | None:
    """Days since 1970; None for earlier ones and for dates that the calendar does not have."""
    try:
        days = date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None
    return days if days >= 0 else None


def read_mooncake(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Read JSON objects with timestamp (ms), input_length and output_length."""
    return _limited(_mooncake(lines))


def _mooncake(lines: Iterable[str]) -> Iterator[TraceRow]:
    import json

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number}: it is not a JSON object") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: it is not a JSON object")
        for name in ("timestamp", "input_length", "output_length"):
            if name not in row:
                raise ValueError(f"line {number}: the field {name} is missing")
        stamp = row["timestamp"]
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not abs(stamp) < 1e15:
            raise ValueError(f"line {number}: the timestamp is {_shown(stamp)}, expected milliseconds")
        yield TraceRow(
            stamp / 1000,
            _tokens(row["input_length"], "input_length", number),
            _tokens(row["output_length"], "output_length", number),
        )


FORMATS = (
    TraceFormat("azure", read_azure, (".csv",), ("Azure/AzurePublicDataset data/*.csv",)),
    TraceFormat("mooncake", read_mooncake, (".jsonl",), ("kvcache-ai/Mooncake FAST25-release",)),
)
