"""Equality, hash and text of the project's frozen values, written once.

attrs generates and compiles these three methods for every class, which is half of what a class costs at
import; with some seventy classes that would be a tenth of a check's start-up. Classes here say
``@frozen(eq=False, repr=False)`` and inherit `Value`, which does the same by looking at the fields. Those of
which a check makes few also say ``slots=False``: slots make attrs build each class twice.
"""

from __future__ import annotations

from typing import Any


class Value:
    """A value: equal to another of its class when all fields are."""

    __slots__ = ()

    def _fields(self) -> tuple[Any, ...]:
        attributes: Any = type(self).__dict__["__attrs_attrs__"]
        return tuple(getattr(self, a.name) for a in attributes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        attributes: Any = type(self).__dict__["__attrs_attrs__"]
        return f"{type(self).__name__}({', '.join(f'{a.name}={getattr(self, a.name)!r}' for a in attributes)})"
