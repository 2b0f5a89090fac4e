"""Checked access to a published ``config.json``: every value is typed, bounded, and named when refused.

A config is outside data. Readers never touch the mapping itself, so a wrong, missing or absurd value can
only end as a ValueError that names the field, what was found and what is supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

MAX_LAYERS = 2_000
MAX_WIDTH = 1_000_000
MAX_HEADS = 100_000
MAX_VOCABULARY = 10_000_000
MAX_EXPERTS = 100_000
MAX_POSITIONS = 1_000_000_000
MAX_ITEMS = 100_000


def describe(value: object) -> str:
    """A short text of any value, safe for huge integers and deep nesting."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)} items"
    return f"a value of type {type(value).__name__}"


class Fields:
    """One object of a config, with getters that check type and range.

    A getter takes the field's name and its older spellings; JSON null counts as absent. Without a default
    an absent field is an error. ``parent`` is the object around a nested ``text_config``.
    """

    __slots__ = ("_values", "_where", "parent", "subject")

    def __init__(
        self, subject: str, values: Mapping[str, object], where: str = "", parent: Fields | None = None
    ) -> None:
        self.subject = subject
        self.parent = parent
        self._values = values
        self._where = where

    def raw(self, *names: str) -> tuple[str, object]:
        """The first of ``names`` that is present and not null with its value, else the first and None."""
        for name in names:
            value = self._values.get(name)
            if value is not None:
                return name, value
        return names[0], None

    def over(self, defaults: Mapping[str, object]) -> Fields:
        """This object with ``defaults`` for fields that it leaves out."""
        stated = {name: value for name, value in self._values.items() if value is not None}
        return Fields(self.subject, {**defaults, **stated}, self._where, self.parent)

    def has(self, *names: str) -> bool:
        """Whether one of ``names`` is present and not null."""
        return self.raw(*names)[1] is not None

    def states(self, name: str) -> bool:
        """Whether the config has the field, be it null."""
        return name in self._values

    def names(self) -> tuple[str, ...]:
        """Keys of this object that are text, as they stand."""
        return tuple(name for name in self._values if isinstance(name, str))

    def error(self, name: str, found: object, supported: str) -> ValueError:
        """The error for a field: its path, what was found, what is supported."""
        state = "is missing" if found is None else f"is {describe(found)}"
        return ValueError(f"{self.subject}: config field '{self._where}{name}' {state}; supported: {supported}")

    def integer(self, *names: str, high: int, low: int = 1, default: int | None = None) -> int:
        """An integer from ``low`` to ``high``."""
        name, value = self.raw(*names)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, value, f"an integer from {low} to {high}")
        return value

    def number(self, *names: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from ``low`` to ``high``."""
        name, value = self.raw(*names)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.error(name, value, f"a number from {low:g} to {high:g}")
        result = float(value)
        if not isfinite(result):
            raise self.error(name, value, "a finite number")
        return result

    def flag(self, *names: str, default: bool) -> bool:
        """A boolean."""
        name, value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, *names: str, allowed: Iterable[str] | None = None, default: str | None = None) -> str:
        """A string, one of ``allowed`` if that is given."""
        name, value = self.raw(*names)
        if value is None and default is not None:
            return default
        choices = None if allowed is None else tuple(allowed)
        if not isinstance(value, str) or len(value) > 2_000 or (choices is not None and value not in choices):
            raise self.error(name, value, "a string" if choices is None else "one of " + ", ".join(choices))
        return value

    def items(self, *names: str, count: int | None = None) -> list[object]:
        """An array, of exactly ``count`` items if that is given."""
        name, value = self.raw(*names)
        if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
            raise self.error(name, value, f"an array of at most {MAX_ITEMS} items")
        if count is not None and len(value) != count:
            raise self.error(name, value, f"an array of {count} items, one a layer")
        return list(value)

    def texts(self, *names: str, count: int | None = None, allowed: Iterable[str] | None = None) -> tuple[str, ...]:
        """An array of strings, each one of ``allowed`` if that is given."""
        name, _ = self.raw(*names)
        choices = None if allowed is None else tuple(allowed)
        result: list[str] = []
        for value in self.items(*names, count=count):
            if not isinstance(value, str) or (choices is not None and value not in choices):
                wanted = "strings" if choices is None else "items among " + ", ".join(choices)
                raise self.error(name, value, f"an array of {wanted}")
            result.append(value)
        return tuple(result)

    def integers(self, *names: str, low: int, high: int, count: int | None = None) -> tuple[int, ...]:
        """An array of integers, each from ``low`` to ``high``."""
        name, _ = self.raw(*names)
        result: list[int] = []
        for value in self.items(*names, count=count):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise self.error(name, value, f"an array of integers from {low} to {high}")
            result.append(value)
        return tuple(result)

    def section(self, name: str) -> Fields | None:
        """A nested object, or None where there is none."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return Fields(self.subject, value, f"{self._where}{name}.", self)

    def required(self, name: str) -> Fields:
        """A nested object that must be there."""
        section = self.section(name)
        if section is None:
            raise self.error(name, None, "an object")
        return section

    def inherited(self, *names: str) -> Fields:
        """This object or, where it lacks the field, the object around it."""
        if not self.has(*names) and self.parent is not None and self.parent.has(*names):
            return self.parent
        return self
