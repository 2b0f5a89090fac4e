"""How a spec table is declared: field kinds, and the cattrs hooks that structure by them.

A table is a frozen attrs class whose fields are made with the helpers below. Each carries a *kind* that
parses one TOML value; cattrs dispatches on the kind, and every problem of a file is collected, each with the
key path it belongs to. Kinds import nothing heavy: a check structures its spec before anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import attrs
import cattrs

from servelint.lineage import KeyPath
from servelint.suggest import did_you_mean
from servelint.units import Dimension, QuantityError, ambiguities, format_quantity, parse_quantity

LONGEST_TEXT = 10_000
MOST_KEYS = 1000
MOST_TABLES = 1000

LEAST: Mapping[Dimension, float] = {
    Dimension.BYTES: 1.0,
    Dimension.BYTES_PER_SECOND: 1.0,
    Dimension.FLOPS_PER_SECOND: 1.0,
    Dimension.SECONDS: 1e-9,
    Dimension.TOKENS: 1e-3,
    Dimension.TOKENS_PER_SECOND: 1e-9,
    Dimension.REQUESTS_PER_SECOND: 1e-9,
    Dimension.WATTS: 1e-3,
    Dimension.FRACTION: 1e-9,
    Dimension.COUNT: 1.0,
}
"""The least value above 0 of a dimension, in SI units. Nothing real is less, and no formula over- or underflows."""


class Problem(NamedTuple):
    """One thing wrong in a spec: at which key path, what was found, what was expected.

    ``known`` are the keys that an unknown one's table has; what was probably meant is looked up when all problems
    of a file are known.
    """

    code: str
    path: KeyPath
    message: str
    on_key: bool = False
    known: tuple[str, ...] = ()


class Problems(Exception):  # noqa: N818
    """Collected problems of one table or value, as raised through cattrs."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(p.message for p in problems))
        self.problems = problems


class Kind:
    """Parses one TOML value. ``expected`` completes the sentence "expected ..."."""

    expected = "a value"
    example = ""

    def parse(self, value: object) -> object:
        """Return the parsed value, or raise Problems with paths relative to the value."""
        raise self.wrong(value)

    def wrong(self, value: object, because: str = "") -> Problems:
        """Return the problem of a value that this kind does not take."""
        tail = f": {because}" if because else ""
        hint = f", such as {self.example}" if self.example else ""
        return Problems([Problem("SPEC003", (), f"found {shown(value)}, expected {self.expected}{hint}{tail}")])


def shown(value: object) -> str:
    """Show a found value shortly, with its TOML type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return f'the string "{text}"'
    if isinstance(value, int):
        return f"the integer {value}" if abs(value) < 10**30 else "an integer of over 30 digits"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, Mapping):
        return "a table"
    return f"a {type(value).__name__}"


class Text(Kind):
    """A string; with ``choices`` one of these."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.expected = "one of " + ", ".join(f'"{c}"' for c in choices) if choices else "a string"

    def parse(self, value: object) -> str:
        """Return the parsed value; Problems when it is none of this kind."""
        if not isinstance(value, str):
            raise self.wrong(value)
        if len(value) > LONGEST_TEXT:
            raise self.wrong(value, f"it has {len(value):,} characters, and at most {LONGEST_TEXT:,} are read")
        if self.choices and value not in self.choices:
            raise self.wrong(value, did_you_mean(value, self.choices).removeprefix("; "))
        if not self.choices and not value.strip():
            raise self.wrong(value, "it is empty")
        return value


class Boolean(Kind):
    """true or false."""

    expected = "true or false"

    def parse(self, value: object) -> bool:
        """Return the parsed value; Problems when it is none of this kind."""
        if not isinstance(value, bool):
            raise self.wrong(value)
        return value


class Integer(Kind):
    """A whole number within bounds."""

    def __init__(self, minimum: int = 1, maximum: int = 1_000_000_000) -> None:
        self.minimum, self.maximum = minimum, maximum
        self.expected = f"a whole number from {minimum:,} to {maximum:,}"

    def parse(self, value: object) -> int:
        """Return the parsed value; Problems when it is none of this kind."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise self.wrong(value)
        return value


class Quantity(Kind):
    """A quantity of one dimension: a number in SI units, or a string with its unit.

    With ``positive`` it is at least the larger of ``minimum`` and the `LEAST` of its dimension; without, it may
    also be 0.
    """

    def __init__(
        self,
        dimension: Dimension,
        minimum: float = 0.0,
        maximum: float = math.inf,
        *,
        positive: bool = True,
        accept: tuple[str, ...] = (),
    ) -> None:
        self.dimension, self.maximum, self.positive = dimension, maximum, positive
        self.least = max(minimum, LEAST[dimension])
        self.minimum = self.least if positive else minimum
        self.accept = accept
        self.example = f'"{dimension.example}"'
        unit = f" in {dimension.unit}" if dimension.unit else ""
        self.expected = f"{dimension.description}{unit}"

    def parse(self, value: object) -> float | str:
        """Return the parsed value; Problems when it is none of this kind."""
        if isinstance(value, str) and value in self.accept:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self.wrong(value)
        try:
            number = parse_quantity(value, self.dimension)
        except QuantityError as error:
            raise Problems([Problem("SPEC003", (), str(error))]) from None
        if not self.minimum <= number <= self.maximum or 0 < number < self.least:
            raise self.wrong(value, f"it must be {self.bounds}")
        return number

    @property
    def bounds(self) -> str:
        """What it must be: ``at least 1 B and at most 1 EB``."""
        least = f"at least {amount(self.least, self.dimension)}"
        if self.minimum < self.least:
            least = f"0 or {least}"
        return least if math.isinf(self.maximum) else f"{least} and at most {self.most}"

    @property
    def most(self) -> str:
        """The maximum with its unit."""
        return amount(self.maximum, self.dimension)

    def ambiguity(self, value: object) -> str | None:
        """Say in which two ways a text can be read, None when there is one."""
        return ambiguities(value, self.dimension) if isinstance(value, str) else None


def amount(value: float, dimension: Dimension) -> str:
    """Text of a limit with its unit, as an exponent where it is tiny."""
    if value >= 1e-3:
        return format_quantity(value, dimension)
    return f"{value:g} {dimension.unit}".replace("e-0", "e-").rstrip()


class Number(Kind):
    """A plain number within bounds, without a unit."""

    def __init__(self, minimum: float = 0.0, maximum: float = 1e9) -> None:
        self.minimum, self.maximum = minimum, maximum
        self.expected = f"a number from {minimum:g} to {maximum:g}"

    def parse(self, value: object) -> float:
        """Return the number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.minimum <= value <= self.maximum:
            raise self.wrong(value)
        return value


class Table(Kind):
    """A table structured into an attrs class."""

    expected = "a table"

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def parse(self, value: object) -> object:
        """Return the parsed value; Problems when it is none of this kind."""
        return structure_table(self.cls, value)


class Tables(Kind):
    """An array of at most ``limit`` tables; ``header`` is its key path, for messages."""

    expected = "an array of tables"

    def __init__(self, cls: type[Any], header: str = "...", limit: int = MOST_TABLES) -> None:
        self.cls, self.header, self.limit = cls, header, limit

    def parse(self, value: object) -> tuple[object, ...]:
        """Return the parsed value; Problems when it is none of this kind."""
        if isinstance(value, Mapping):
            raise self.wrong(value, f"write [[{self.header}]], with two brackets, before each")
        return _each(self, value, lambda item: structure_table(self.cls, item), self.limit)


class Many(Kind):
    """An array whose items are all of one kind."""

    def __init__(self, kind: Kind, limit: int = 4096) -> None:
        self.kind, self.limit = kind, limit
        self.expected = f"an array, each item {kind.expected}"

    def parse(self, value: object) -> tuple[object, ...]:
        """Return the parsed value; Problems when it is none of this kind."""
        return _each(self, value, self.kind.parse, self.limit)


class Named(Kind):
    """A table with free keys, all values of one kind; with ``keys`` only these keys."""

    def __init__(self, kind: Kind, keys: tuple[str, ...] = ()) -> None:
        self.kind, self.keys = kind, keys
        names = f" with keys among {', '.join(keys)}" if keys else ""
        each = "" if isinstance(kind, Anything) else f", each value {kind.expected}"
        self.expected = f"a table{names}{each}"

    def parse(self, value: object) -> dict[str, object]:
        """Return the parsed value; Problems when it is none of this kind."""
        if not isinstance(value, Mapping):
            raise self.wrong(value)
        if len(value) > MOST_KEYS:
            raise self.wrong(value, f"it has {len(value):,} keys, and at most {MOST_KEYS:,} are read")
        problems: list[Problem] = []
        result: dict[str, object] = {}
        for key, item in value.items():
            if self.keys and key not in self.keys:
                problems.append(unknown_key(key, self.keys))
                continue
            joined = key + "".join(item) if isinstance(item, Mapping) and len(item) == 1 else ""
            if joined in self.keys:
                # Without quotes p99.9 is the key 9 of a table p99.
                wrong = self.kind.wrong(item, f"the key is written {joined}, without a dot")
                problems += [p._replace(path=(key,)) for p in wrong.problems]
                continue
            try:
                result[key] = converter.structure(item, self.kind)  # type: ignore[arg-type]
            except Problems as error:
                problems += [p._replace(path=(key, *p.path)) for p in error.problems]
        if not result and not problems:
            raise self.wrong(value, "it is empty")
        if problems:
            raise Problems(problems)
        return result


class Ascending(Named):
    """A table of quantiles: the higher the percentile, the larger the value may be; a mean is within the ends."""

    def parse(self, value: object) -> dict[str, object]:
        """Return the values by percentile."""
        result = super().parse(value)
        ordered = sorted((quantile_order(name), name) for name in result if quantile_order(name) is not None)
        for (_, low), (_, high) in pairwise(ordered):
            if result[high] < result[low]:  # type: ignore[operator]
                message = f"{high} is {result[high]:g}, below {low} at {result[low]:g}: quantiles must not fall"
                raise Problems([Problem("SPEC003", (high,), message)])
        mean: Any = result.get("mean")
        for end, beyond in (("min", "below"), ("max", "above")):
            limit: Any = result.get(end)
            if mean is not None and limit is not None and (mean < limit if end == "min" else mean > limit):
                raise Problems([Problem("SPEC003", ("mean",), f"mean is {mean:g}, {beyond} {end} at {limit:g}")])
        return result


def quantile_order(name: str) -> float | None:
    """Order ``min``, ``p50``, ``p999``, ``max`` by probability; None for ``mean`` and ``std``."""
    if name in ("min", "max"):
        return float(name == "max") * 2 - 1
    digits = name[1:]
    if not name.startswith("p") or not digits.isdigit():
        return None
    return int(digits) / (100 if len(digits) <= 2 else 10 ** len(digits))


class Either(Kind):
    """A value of one of two kinds: the first for anything but a table, the second for a table."""

    def __init__(self, plain: Kind, table: Kind) -> None:
        self.plain, self.table = plain, table
        self.expected = f"{plain.expected} or {table.expected}"

    def parse(self, value: object) -> object:
        """Return the parsed value; Problems when it is none of this kind."""
        kind = self.table if isinstance(value, Mapping) else self.plain
        return converter.structure(value, kind)  # type: ignore[arg-type]


class Anything(Kind):
    """Any TOML value, kept as it is (checked elsewhere)."""

    expected = "any value"

    def parse(self, value: object) -> object:
        """Return the parsed value; Problems when it is none of this kind."""
        return value


class Date(Anything):
    """A TOML date, or text that names one."""

    expected = "a date"
    example = "2026-09-17"

    def parse(self, value: object) -> object:
        """Return the parsed value; Problems when it is none of this kind."""
        if not isinstance(value, str) and not hasattr(value, "isoformat"):
            raise self.wrong(value)
        return value


class Arguments(Anything):
    """A command line, as one text or as a list of its words."""

    expected = "a string or an array of strings"
    example = '"--tensor-parallel-size 4"'

    def parse(self, value: object) -> object:
        """Return the parsed value; Problems when it is none of this kind."""
        words = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str) for word in words):
            raise self.wrong(value)
        return value


def _each(kind: Kind, value: object, parse: Any, limit: int) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise kind.wrong(value)
    if len(value) > limit:
        raise kind.wrong(value, f"it has {len(value):,} items, and at most {limit:,} are read")
    problems: list[Problem] = []
    items = []
    for i, item in enumerate(value):
        try:
            items.append(parse(item))
        except Problems as error:
            problems += [p._replace(path=(i, *p.path)) for p in error.problems]
    if problems:
        raise Problems(problems)
    return tuple(items)


def unknown_key(key: str, known: tuple[str, ...]) -> Problem:
    """Return the problem of a key that its table does not have."""
    return Problem("SPEC002", (key,), f'unknown key "{key[:80]}"', True, known)


_KIND = "servelint kind"
_KEY = "servelint key"


def key(
    kind: Kind, *, default: Any = None, required: bool = False, name: str = "", doc: str = "", judged: bool = True
) -> Any:
    """Declare a field of a table: its kind, its default, and the words of its documentation.

    ``judged`` False says that the key is accepted, and that nothing reads it yet.
    """
    metadata = {_KIND: kind, _KEY: name, "doc": doc, "judged": judged}
    return attrs.field(metadata=metadata) if required else attrs.field(default=default, metadata=metadata)


def kinds(cls: type[Any]) -> dict[str, tuple[str, Kind, bool]]:
    """Return, by TOML key, the attribute name, the kind, and whether the key is required."""
    found = _KINDS.get(cls)
    if found is None:
        found = _KINDS[cls] = {
            a.metadata[_KEY] or a.name: (a.name, a.metadata[_KIND], a.default is attrs.NOTHING)
            for a in attrs.fields(cls)
            if _KIND in a.metadata
        }
    return found


_KINDS: dict[type[Any], dict[str, tuple[str, Kind, bool]]] = {}


class Field(NamedTuple):
    """A key of a table as its documentation has it; ``judged`` False: accepted, and nothing reads it yet."""

    name: str
    attribute: str
    kind: Kind
    required: bool
    doc: str
    judged: bool


def documented(cls: type[Any]) -> list[Field]:
    """Return the keys of a table with what is said of them, in the order of their declaration."""
    attributes = {a.name: a.metadata for a in attrs.fields(cls)}
    return [
        Field(name, attribute, kind, required, attributes[attribute]["doc"], attributes[attribute]["judged"])
        for name, (attribute, kind, required) in kinds(cls).items()
    ]


def structure_table(cls: type[Any], value: object) -> Any:
    """Structure a TOML table into an attrs class; Problems holds everything that is wrong in it."""
    if not isinstance(value, Mapping):
        raise Problems([Problem("SPEC003", (), f"found {shown(value)}, expected a table")])
    fields = kinds(cls)
    problems: list[Problem] = []
    arguments: dict[str, object] = {}
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            problems.append(unknown_key(name, tuple(fields)))
            continue
        try:
            arguments[field[0]] = converter.structure(item, field[1])  # type: ignore[arg-type]
        except Problems as error:
            problems += [p._replace(path=(name, *p.path)) for p in error.problems]
    for name, (_, kind, required) in fields.items():
        if required and name not in value:
            problems.append(Problem("SPEC003", (), f'the key "{name}" is missing: expected {kind.expected}', True))
    if problems:
        raise Problems(problems)
    try:
        return cls(**arguments)
    except Problems:
        raise
    except ValueError as error:
        # A validator of the class: it sees several keys at once.
        raise Problems([Problem("SPEC003", (), str(error))]) from None


converter = cattrs.BaseConverter()
converter.register_structure_hook_func(lambda t: isinstance(t, Kind), lambda value, kind: kind.parse(value))
converter.register_structure_hook_func(attrs.has, lambda value, cls: structure_table(cls, value))


def ambiguous_quantities(cls: type[Any], value: object, path: KeyPath = ()) -> list[tuple[KeyPath, str]]:
    """Find texts of a structured table that can be read in two units, with what they could mean."""
    found: list[tuple[KeyPath, str]] = []
    if isinstance(value, Mapping):
        for name, (_, kind, _) in kinds(cls).items():
            if name in value:
                found += _ambiguous(kind, value[name], (*path, name))
    return found


def _ambiguous(kind: Kind, value: object, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(kind, Quantity):
        said = kind.ambiguity(value)
        return [(path, said)] if said else []
    if isinstance(kind, Table):
        return ambiguous_quantities(kind.cls, value, path)
    if isinstance(kind, Tables) and isinstance(value, list):
        return [a for i, item in enumerate(value) for a in ambiguous_quantities(kind.cls, item, (*path, i))]
    if isinstance(kind, Named) and isinstance(value, Mapping):
        return [a for name, item in value.items() for a in _ambiguous(kind.kind, item, (*path, name))]
    if isinstance(kind, Either):
        return _ambiguous(kind.table if isinstance(value, Mapping) else kind.plain, value, path)
    return []
