"""Parse and format physical quantities; nothing else in the project knows a unit prefix.

A quantity in a spec is a plain number in SI units or text with a unit; text without one is read only as a
fraction or a count. Decimal and binary prefixes are kept
apart ("80 GB" is 80e9 bytes, "80 GiB" is 80 * 2**30), bits are divided by eight, and arithmetic is done on
integers until the last step, so that "0.1 GB" is exactly 100000000 bytes. Text that two readers could take
for two values is read in one stated way and `ambiguities` says so; text of the wrong dimension is an error.
"""

import math
import re
from enum import Enum
from typing import NamedTuple

__all__ = ["Dimension", "QuantityError", "ambiguities", "format_quantity", "parse_quantity"]


class Dimension(Enum):
    """What a quantity measures, with its SI unit, a description and an example for messages."""

    BYTES = ("B", "an amount of bytes", "80 GB")
    BYTES_PER_SECOND = ("B/s", "a rate in bytes per second", "3.35 TB/s")
    FLOPS_PER_SECOND = ("FLOP/s", "a rate in floating-point operations per second", "989 TFLOP/s")
    SECONDS = ("s", "a time", "50 ms")
    TOKENS = ("tok", "a count of tokens", "8192 tok")
    TOKENS_PER_SECOND = ("tok/s", "a rate in tokens per second", "2400 tok/s")
    REQUESTS_PER_SECOND = ("req/s", "a rate in requests per second", "6 req/s")
    WATTS = ("W", "a power", "700 W")
    FRACTION = ("", "a fraction between 0 and 1", "30 %")
    COUNT = ("", "a whole number", "128")

    def __init__(self, unit: str, description: str, example: str) -> None:
        self.unit = unit
        self.description = description
        self.example = example


class QuantityError(ValueError):
    """A value that cannot be read as the quantity that is due.

    `found` shows the value, `expected` describes what is due with an example, and `suggestion` is text that
    could stand in its place, or `None` when nothing obvious was meant.
    """

    def __init__(self, message: str, found: str, expected: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.found = found
        self.expected = expected
        self.suggestion = suggestion


class _Number(NamedTuple):
    """The number in a text, exactly `digits * 10**exponent`, and the unit that follows it."""

    digits: int
    exponent: int
    text: str
    unit: str


class _Unit(NamedTuple):
    """A unit: one of it is `numerator / denominator` of the SI unit of its dimension, where it has one."""

    dimension: Dimension | None
    description: str
    numerator: int
    denominator: int
    prefix: str = ""


# Nothing that a deployment has is near these; they keep arithmetic on hostile text small.
_LARGEST = 10**30
_SMALLEST = 1e-30
_LARGEST_EXPONENT = 60
_LONGEST_TEXT = 80

_QUANTITY = re.compile(r"([+-]?)([0-9][0-9_,]*)?(?:\.([0-9_]*))?(?:[eE]([+-]?[0-9]+))?\s*(.*)", re.DOTALL)
_DIGITS = re.compile(r"[0-9]+(?:_[0-9]+)*|[0-9]{1,3}(?:,[0-9]{3})+")

_DECIMAL = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_PREFIXES = {"": 1, **_DECIMAL, **_BINARY}

_TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), (1, 1)),
    "ms": (1, 10**3),
    # The micro sign and the Greek letter look alike and are both typed.
    **dict.fromkeys(("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), (1, 10**6)),
    "ns": (1, 10**9),
    **dict.fromkeys(("min", "minute", "minutes"), (60, 1)),
    **dict.fromkeys(("h", "hr", "hour", "hours"), (3600, 1)),
    **dict.fromkeys(("d", "day", "days"), (86400, 1)),
}

# What a noun counts. Symbols go by case, which tells a byte from a bit; words do not.
_SYMBOLS = {"B": "byte", "b": "bit", "W": "watt"}
_WORDS = {
    **dict.fromkeys(("byte", "bytes"), "byte"),
    **dict.fromkeys(("bit", "bits"), "bit"),
    **dict.fromkeys(("flop", "flops", "op", "ops"), "operation"),
    **dict.fromkeys(("tok", "token", "tokens"), "token"),
    **dict.fromkeys(("req", "reqs", "request", "requests"), "request"),
    **dict.fromkeys(("watt", "watts"), "watt"),
}
# Nouns that are rates by themselves, and over how many seconds.
_RATE_SYMBOLS = {"Bps": ("byte", 1), "bps": ("bit", 1)}
_RATE_WORDS = {
    **dict.fromkeys(("flops", "ops"), ("operation", 1)),
    **dict.fromkeys(("rps", "qps"), ("request", 1)),
    "rpm": ("request", 60),
    "tps": ("token", 1),
    "tpm": ("token", 60),
}
_AMOUNTS = {"byte": Dimension.BYTES, "token": Dimension.TOKENS, "watt": Dimension.WATTS}
_RATES = {
    "byte": Dimension.BYTES_PER_SECOND,
    "bit": Dimension.BYTES_PER_SECOND,
    "operation": Dimension.FLOPS_PER_SECOND,
    "token": Dimension.TOKENS_PER_SECOND,
    "request": Dimension.REQUESTS_PER_SECOND,
}
# Where a prefix alone is a unit, as in "32k" tokens or "512Gi" of memory. Not in rates: the "400G" of a network
# is in bits, and "6k" requests may be a minute's.
_BARE_PREFIX = frozenset((Dimension.BYTES, Dimension.TOKENS, Dimension.COUNT))
# Where text needs no unit, as there is but one. The "50" of a time could be of seconds or of milliseconds.
_BARE_NUMBER = frozenset((Dimension.TOKENS, Dimension.FRACTION, Dimension.COUNT))
_BINARY_NOUNS = ("byte", "bit", "token")
_MAYBE_BINARY = (Dimension.BYTES, Dimension.BYTES_PER_SECOND, Dimension.TOKENS, Dimension.COUNT)
_SPACED_NOUNS = ("token", "request")
_NO_UNIT = _Unit(None, "a plain number", 1, 1)
_PERCENT = _Unit(Dimension.FRACTION, "a percentage", 1, 100)

_SCALED = (Dimension.BYTES, Dimension.BYTES_PER_SECOND, Dimension.FLOPS_PER_SECOND, Dimension.WATTS)
_SCALES = ("", "k", "M", "G", "T", "P", "E")


def parse_quantity(value: object, dimension: Dimension) -> float:
    """The SI value of a number, or of text with a unit.

    A plain number is in the dimension's SI unit. Text must carry a unit, except that of tokens, counts and
    fractions. Text and `int` give an `int` when the
    quantity is whole, exact at any size, and the nearest `float` otherwise; a `float` stays one, except that
    a `COUNT` is always an `int`. Digits in text may be grouped, "80_000 MB" or "80,000 MB", and fractions may
    be in percent.

    Raises `QuantityError` for all else: other types and booleans, NaN and infinities, negative values,
    fractions above 1, counts that are not whole, sizes beyond 1e30 or below 1e-30, missing and unknown units,
    and units of another dimension.
    """
    if isinstance(value, str):
        number = _read_number(value, dimension)
        unit = _unit_due(number, value, dimension)
        numerator = number.digits * unit.numerator * 10 ** max(number.exponent, 0)
        denominator = unit.denominator * 10 ** max(-number.exponent, 0)
        whole, rest = divmod(numerator, denominator)
        # Division of integers rounds once, to the nearest float.
        result = numerator / denominator if rest else whole
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise _error("is not a number or text", value, dimension)
    else:
        result = value
    _check_range(result, value, dimension)
    return int(result) if dimension is Dimension.COUNT else abs(result)


def ambiguities(text: str, dimension: Dimension) -> str | None:
    """How text was read, where another reader could take it for another value; else `None`.

    Decimal is the reading of "K", which is no SI prefix, of capital prefixes of tokens, which engines take
    for powers of 1024, and of prefixes of bytes without the "B". Text that `parse_quantity` refuses gives
    `None`.
    """
    try:
        parse_quantity(text, dimension)
        number = _read_number(text, dimension)
        unit = _unit_due(number, text, dimension)
    except QuantityError:
        return None
    prefix = unit.prefix
    if "," in number.text:
        return f"the comma in {_shown(text)} is read as a thousands separator, not as a decimal point"
    if prefix in _DECIMAL and (
        (prefix == "K" and dimension in _MAYBE_BINARY)
        or (dimension is Dimension.TOKENS and prefix != "k")
        or (dimension is Dimension.BYTES and number.unit == prefix)
    ):
        binary = f"{prefix.upper()}i"
        return f"{prefix} in {_shown(text)} is read as {_DECIMAL[prefix]:,}; write {binary} for {_BINARY[binary]:,}"
    if number.unit.endswith("FLOPs"):
        return f"FLOPs in {_shown(text)} is read as a rate, FLOP/s, not as a number of operations"
    return None


def format_quantity(value: float, dimension: Dimension, digits: int = 3) -> str:
    """Text for people that `parse_quantity` reads back: "85.5 GB", "14.7 ms", "131,072 tok", "30 %".

    At least `digits` significant digits are kept, never fewer than the whole part has, and trailing zeros
    are dropped. Bytes, FLOP and watts get the decimal prefix that leaves 1 to 999, seconds s, ms or us; the
    rest keep their unit. Negative and infinite values and NaN have a text too, which is not read back.
    """
    if digits < 1:
        raise ValueError(f"digits must be at least 1, not {digits}")
    unit = dimension.unit
    if not math.isfinite(value):
        return f"{value} {unit}".rstrip()
    sign = "-" if value < 0 else ""
    size = abs(value)
    rounded = float(f"{size:.{digits - 1}e}")
    if dimension in _SCALED:
        step = 0
        while step + 1 < len(_SCALES) and rounded >= 1000 ** (step + 1):
            step += 1
        size, unit = size / 1000**step, _SCALES[step] + unit
    elif dimension is Dimension.SECONDS and 0 < rounded < 1:
        size, unit = (size * 1e3, "ms") if rounded >= 1e-3 else (size * 1e6, "us")
    elif dimension is Dimension.FRACTION:
        size, unit = size * 100, "%"
    return f"{sign}{_fixed(size, digits)} {unit}".rstrip()


def _fixed(size: float, digits: int) -> str:
    """A number of at least 0 without an exponent, with thousands separators."""
    if isinstance(size, int):
        return f"{size:,}"
    exponent = int(f"{size:.{digits - 1}e}".partition("e")[2])
    text = f"{size:,.{max(digits - 1 - exponent, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _read_number(text: str, dimension: Dimension) -> _Number:
    stripped = text.strip()
    if len(stripped) > _LONGEST_TEXT:
        raise _error("is too long for a quantity", text, dimension)
    found = _QUANTITY.match(stripped)
    if found is None or not (found[2] or found[3]):
        if stripped.lower().lstrip("+-")[:3] in ("inf", "nan"):
            raise _error("is not finite", text, dimension)
        raise _error("does not start with a number" if stripped else "is empty", text, dimension)
    sign, whole, fraction, exponent, unit = found.groups(default="")
    written = stripped[: found.start(5)].rstrip()
    if not all(_DIGITS.fullmatch(part) for part in (whole, fraction) if part):
        decimal_comma = written.count(",") == 1 and not fraction
        suggestion = f"{written.replace(',', '.')} {unit}".rstrip() if decimal_comma else None
        raise _error("groups its digits in a way that is not understood", text, dimension, suggestion)
    power = int(exponent or 0)
    if abs(power) > _LARGEST_EXPONENT:
        raise _error("has an exponent beyond all sizes", text, dimension)
    whole, fraction = (part.replace(",", "").replace("_", "") for part in (whole, fraction))
    digits = int(whole + fraction)
    if sign == "-" and digits:
        raise _error("is negative", text, dimension)
    return _Number(digits, power - len(fraction), written, unit)


def _unit_due(number: _Number, text: str, dimension: Dimension) -> _Unit:
    """The unit of a text, when it is of the dimension that is due."""
    unit = _read_unit(number.unit, dimension)
    if unit is None:
        reason = f"has the unknown unit {_shown(number.unit)}"
    elif unit is _NO_UNIT and dimension not in _BARE_NUMBER:
        plain = "seconds" if dimension is Dimension.SECONDS else dimension.unit
        raise _error(f"has no unit: give one, or write the number without quotes ({plain})", text, dimension)
    elif unit is _NO_UNIT or unit.dimension is dimension:
        return unit
    else:
        reason = f"is {unit.description}"
    raise _error(reason, text, dimension, _suggest(number, dimension))


def _read_unit(text: str, dimension: Dimension) -> _Unit | None:
    if not text:
        return _NO_UNIT
    if text in ("%", "percent"):
        return _PERCENT
    if text in _TIMES:
        return _Unit(Dimension.SECONDS, Dimension.SECONDS.description, *_TIMES[text])
    if text in _PREFIXES:
        due = dimension if dimension in _BARE_PREFIX else None
        return _Unit(due, "a number with a prefix but without a unit", _PREFIXES[text], 1, text)
    noun, slash, per = text.replace(" per ", "/").partition("/")
    seconds, parts = _TIMES.get(per.strip(), (0, 1)) if slash else (0, 1)
    if slash and (not seconds or parts != 1):
        return None
    noun = noun.strip()
    for length in range(3):
        prefix, rest = noun[:length], noun[length:]
        word = rest.strip()
        kind = _SYMBOLS.get(word) or _WORDS.get(word.lower())
        if not slash:
            kind, seconds = _RATE_SYMBOLS.get(word) or _RATE_WORDS.get(word.lower()) or (kind, 0)
        if kind is None or prefix not in _PREFIXES:
            continue
        if prefix in _BINARY and kind not in _BINARY_NOUNS:
            return None
        if rest[0].isspace() and kind not in _SPACED_NOUNS:
            return None
        return _measure(kind, seconds, prefix)
    return None


def _measure(kind: str, seconds: int, prefix: str) -> _Unit | None:
    """The unit that counts `kind`, over that many seconds when it is a rate."""
    measured = _RATES.get(kind) if seconds else _AMOUNTS.get(kind)
    if measured is None and seconds:
        return None
    description = measured.description if measured else f"a number of {kind}s"
    return _Unit(measured, description, _PREFIXES[prefix], (8 if kind == "bit" else 1) * (seconds or 1), prefix)


def _suggest(number: _Number, dimension: Dimension) -> str | None:
    """The text with the unit that was probably meant: over time or not, or in another case."""
    unit = number.unit
    cased = (unit[:1] if unit[:1] == "k" else unit[:1].upper()) + unit[1:].replace("b", "B")
    candidates = (
        f"{unit}/s",
        unit.removesuffix("/s"),
        unit.upper().replace("KB", "kB"),
        cased,
        f"{cased}/s",
        unit.lower(),
    )
    for candidate in candidates:
        read = _read_unit(candidate, dimension)
        if read is not None and read.dimension is dimension:
            return f"{number.text} {candidate}"
    return None


def _check_range(result: float, value: object, dimension: Dimension) -> None:
    if isinstance(result, float) and not math.isfinite(result):
        raise _error("is not finite", value, dimension)
    if result < 0:
        raise _error("is negative", value, dimension)
    if result > _LARGEST:
        raise _error("is beyond 1e30 in SI units", value, dimension)
    if 0 < result < _SMALLEST:
        raise _error("is below 1e-30 in SI units", value, dimension)
    if dimension is Dimension.FRACTION and result > 1:
        suggestion = f"{value} %" if result <= 100 and "%" not in str(value) else None
        raise _error("is more than 1", value, dimension, suggestion)
    if dimension is Dimension.COUNT and result != int(result):
        raise _error("is not whole", value, dimension)


def _error(reason: str, value: object, dimension: Dimension, suggestion: str | None = None) -> QuantityError:
    example = dimension.example if dimension is Dimension.COUNT else f'"{dimension.example}"'
    expected = f"{dimension.description}, such as {example}"
    found = _shown(value)
    return QuantityError(f"{found} {reason}; expected {expected}", found, expected, suggestion)


def _shown(value: object) -> str:
    """A value as a message shows it: short, and without control characters."""
    if isinstance(value, str):
        text = value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}..."
        return f'"{repr(text)[1:-1]}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return str(value)
    return f"a value of type {type(value).__name__}"
