"""Trace formats: Azure LLM inference traces (CSV) and Mooncake traces (JSON Lines)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from servelint.plugin import TraceFormat, TraceRow

MAX_ROWS = 200_000
"""A trace for a lint is a sample; more rows would only cost time."""

MAX_TOKENS = 100_000_000


def _tokens(text: object, what: str, line: int) -> int:
    try:
        value = int(str(text))
    except ValueError:
        raise ValueError(f"line {line}: {what} is {str(text)[:40]!r}, expected a whole number") from None
    if not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"line {line}: {what} is {value}, expected 0 to {MAX_TOKENS:,}")
    return value


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
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ValueError(f"line 1: the column {missing[0]} is missing")
    at, prompt, output = (header.index(name) for name in wanted)
    start: float | None = None
    for number, row in enumerate(reader, 2):
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


def _timestamp(text: str, line: int) -> float:
    whole, _, fraction = text.strip().partition(".")
    digits = "".join(c for c in fraction if c.isdigit())[:9]
    try:
        moment = datetime.fromisoformat(whole.replace(" ", "T"))
    except ValueError:
        raise ValueError(f"line {line}: the timestamp is {text[:40]!r}, expected a date and time") from None
    return moment.timestamp() + (int(digits) / 10 ** len(digits) if digits else 0.0)


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
            raise ValueError(f"line {number}: the timestamp is {str(stamp)[:40]!r}, expected milliseconds")
        yield TraceRow(
            stamp / 1000,
            _tokens(row["input_length"], "input_length", number),
            _tokens(row["output_length"], "output_length", number),
        )


FORMATS = (
    TraceFormat("azure", read_azure, (".csv",), ("Azure/AzurePublicDataset data/*.csv",)),
    TraceFormat("mooncake", read_mooncake, (".jsonl",), ("kvcache-ai/Mooncake FAST25-release",)),
)
