"""How rules write numbers in messages: short, with units, the same everywhere."""

from __future__ import annotations

from servelint.units import Dimension, format_quantity


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


def flops(value: float) -> str:
    """FLOP per second."""
    return format_quantity(value, Dimension.FLOPS_PER_SECOND)


def sequences(value: float) -> str:
    """A number of sequences, fractions only below ten."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
