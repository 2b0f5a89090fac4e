"""Errors that core raises for its callers to catch: one base, a class for each thing that can be wrong."""

from __future__ import annotations

from servelint.place import Place


class ServelintError(Exception):
    """Something servelint can explain to a user; the message is complete and needs no traceback."""


class GraphError(ServelintError):
    """A step graph that does not compose: a cycle, a missing value, two producers of one value."""


class CompositionError(ServelintError):
    """Policies that cannot be ordered or that lack a requirement."""


class PluginError(ServelintError):
    """A plugin that cannot be used; the message names plugin, distribution and version."""


class CatalogueError(ServelintError):
    """A name that no plugin provides, or a catalogue file that does not hold what it must."""


class ConfigError(ServelintError):
    """Configuration or command line that cannot be used."""


class ManifestError(ServelintError):
    """A manifest that cannot be read, with the place that keeps it from being read."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.place = place


class InfeasibleError(ServelintError):
    """A composition that the model or the hardware cannot take, at the key path that asks for it."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class UnpricedError(InfeasibleError):
    """A composition that could run, but whose hardware lacks a published figure to price it with."""
