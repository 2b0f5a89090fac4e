"""Where a number comes from: formula, inputs, and the source of each input.

Every demand in a step graph and every figure of a finding carries a `Lineage`. It is what
``servelint explain`` prints, and what a finding quotes.
"""

from __future__ import annotations

from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""A place in a spec: table names, keys and array indices from the root."""


class Source(NamedTuple):
    """The origin of one input.

    ``kind`` is ``spec``, ``datasheet``, ``model``, ``engine``, ``default``, ``convention`` or ``computed``;
    ``where`` names the document, plugin or descriptor; ``field`` is the field in it. For ``spec`` the
    ``path`` locates the value in the file, so that a report can give its line.
    """

    kind: str
    where: str
    field: str = ""
    path: KeyPath = ()

    def __str__(self) -> str:
        if self.kind == "spec":
            return "spec " + dotted(self.path)
        place = f"{self.where} {self.field}".strip()
        return f"{self.kind}: {place}" if place else self.kind


class Input(NamedTuple):
    """One named value that entered a formula; ``unit`` is SI and empty for a pure number."""

    name: str
    value: float | int | str
    unit: str
    source: Source


class Rewrite(NamedTuple):
    """One change a policy made to a demand: who, by which formula, from which inputs."""

    by: str
    formula: str
    inputs: tuple[Input, ...] = ()


class Lineage(NamedTuple):
    """A formula in words, its inputs, and the rewrites applied since."""

    formula: str
    inputs: tuple[Input, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    def rewritten(self, by: str, formula: str, *inputs: Input) -> Lineage:
        """Return this lineage with one more rewrite."""
        return Lineage(self.formula, self.inputs, (*self.rewrites, Rewrite(by, formula, inputs)))


def dotted(path: KeyPath) -> str:
    """Write a key path the way TOML does: ``workload.growth[0].name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
