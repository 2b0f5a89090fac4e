"""How rules write numbers in messages: short, with units, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable

from servelint.units import Dimension, format_quantity

DIGITS = 3
"""Significant digits of what is written."""


UNLIMITED = "without limit"
"""How an infinite figure reads, such as the time in a queue that never empties."""

LONGEST_S = 100 * 365.25 * 86400
ETERNITY = "over 100 years"


def size(value: float) -> str:
    """Bytes, decimal prefixes."""
    return _quantity(value, Dimension.BYTES)


def duration(value: float) -> str:
    """Seconds, in the unit that suits; lives of a service end before a hundred years do."""
    return ETERNITY if LONGEST_S < value < math.inf else _quantity(value, Dimension.SECONDS)


def tokens(value: float) -> str:
    """A number of tokens, whole, with thousands separators."""
    return UNLIMITED if value == math.inf else f"{value:,.0f}"


def token_rate(value: float) -> str:
    """Tokens per second, whole."""
    return UNLIMITED if value == math.inf else f"{value:,.0f} tok/s"


def request_rate(value: float) -> str:
    """Requests per second."""
    return _quantity(value, Dimension.REQUESTS_PER_SECOND)


def request_rates(*values: float) -> tuple[str, ...]:
    """Different rates, with as many digits as tell them apart."""
    for digits in range(DIGITS, 8):
        shown = tuple(_quantity(v, Dimension.REQUESTS_PER_SECOND, digits) for v in values)
        if len(set(shown)) == len(values):
            break
    return shown


def flops(value: float) -> str:
    """FLOP per second."""
    return _quantity(value, Dimension.FLOPS_PER_SECOND)


def _quantity(value: float, dimension: Dimension, digits: int = DIGITS) -> str:
    return UNLIMITED if value == math.inf else format_quantity(value, dimension, digits)


def sequences(value: float) -> str:
    """A number of sequences, fractions only below ten, and never 0 for what is more."""
    if value == math.inf:
        return UNLIMITED
    if 0 < value < 0.05:
        return f"{value:.1g}" if value >= 1e-4 else "under 0.0001"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def counted(value: float, what: str) -> str:
    """A number of things, with the plural that it takes: 1 sequence, 1.5 sequences."""
    return plural(sequences(value), what)


def plural(shown: str, what: str) -> str:
    """A number that is written already, with the plural that it takes."""
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
