"""How rules write numbers in messages: short, with units, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable

from servelint.units import Dimension, format_quantity

DIGITS = 3
"""Significant digits of what is written."""


def size(value: float) -> str:
    """Bytes, decimal prefixes."""
    return format_quantity(value, Dimension.BYTES)


def duration(value: float) -> str:
    """Seconds, in the unit that suits."""
    return format_quantity(value, Dimension.SECONDS)


def tokens(value: float) -> str:
    """A number of tokens, whole, with thousands separators."""
    return f"{value:,.0f}"


def token_rate(value: float) -> str:
    """Tokens per second, whole."""
    return f"{value:,.0f} tok/s"


def request_rate(value: float) -> str:
    """Requests per second."""
    return format_quantity(value, Dimension.REQUESTS_PER_SECOND)


def request_rates(*values: float) -> tuple[str, ...]:
    """Different rates, with as many digits as tell them apart."""
    for digits in range(DIGITS, 8):
        shown = tuple(format_quantity(v, Dimension.REQUESTS_PER_SECOND, digits) for v in values)
        if len(set(shown)) == len(values):
            break
    return shown


def flops(value: float) -> str:
    """FLOP per second."""
    return format_quantity(value, Dimension.FLOPS_PER_SECOND)


def sequences(value: float) -> str:
    """A number of sequences, fractions only below ten."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def counted(value: float, what: str) -> str:
    """A number of things, with the plural that it takes: 1 sequence, 1.5 sequences."""
    shown = sequences(value)
    return f"{shown} {what}" if shown == "1" else f"{shown} {what}s"


def floored(value: float) -> float:
    """The largest number of three digits that is not above: for limits, which have to hold as they are written."""
    return _cut(value, math.floor)


def raised(value: float) -> float:
    """The smallest number of three digits that is not below."""
    return _cut(value, math.ceil)


def _cut(value: float, whole: Callable[[float], int]) -> float:
    if value <= 0 or not math.isfinite(value):
        return value
    digits = DIGITS - 1 - math.floor(math.log10(value))
    # What is a number of three digits already stays one, whatever its last bit.
    scaled = float(f"{value:.12e}") * 10.0**digits
    return whole(round(scaled, 9)) / 10.0**digits
