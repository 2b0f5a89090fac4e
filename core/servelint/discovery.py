"""Finds the plugins of the entry-point group ``servelint`` in the installed distributions.

`importlib.metadata` does the same, but importing it (with ``email``, ``zipfile``, ``csv``, ``socket``) takes a
fifth of a check's whole CPU. So the folders on ``sys.path`` are read here, the way it reads them; where
distributions can come from anything but folders (an archive on the path, a finder of somebody's own) the
standard library is asked. A test holds both to the same answer. The current folder, which may hold what a stranger
proposes, is left out unless somebody named it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from servelint.searchpath import without_here


class EntryPoint(NamedTuple):
    """A registered plugin: its name, ``module`` or ``module:attribute``, and the distribution that registers it."""

    name: str
    value: str
    distribution: str
    version: str

    def load(self) -> object:
        """Import the module and return it, or the attribute that the value names."""
        from importlib import import_module

        module, _, attributes = self.value.partition(":")
        found: object = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group by name and value; of a distribution found twice, the first on the path."""
    found = _from_folders(group) if _only_folders() else _from_standard_library(group)
    return sorted(found)


def _only_folders() -> bool:
    """Whether folders on the path are the only place that distributions can come from."""
    from importlib.machinery import PathFinder

    others = [f for f in sys.meta_path if f is not PathFinder and hasattr(f, "find_distributions")]
    # Editable installs put finders of their own there, which find modules and no distributions.
    others = [f for f in others if "editable" not in getattr(f, "__module__", "").lower()]
    return not others and not any(os.path.isfile(p) for p in without_here(sys.path))


def _from_folders(group: str) -> Iterator[EntryPoint]:
    seen: set[str] = set()
    for folder in dict.fromkeys(without_here(sys.path)):
        try:
            names = sorted(n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue
        for name in names:
            stem = name.rpartition(".")[0].partition("-")[0].lower().replace("_", "-").replace(".", "-")
            if stem in seen:
                continue
            seen.add(stem)
            place = os.path.join(folder, name)
            text = _read(os.path.join(place, "entry_points.txt"))
            if f"[{group}]" in text:
                distribution, version = _identity(place, stem)
                for key, value in _section(text, group):
                    yield EntryPoint(key, value, distribution, version)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError):
        return ""


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and line and not line.startswith(("#", ";")):
            name, separator, value = line.partition("=")
            if separator:
                # Extras in brackets are an old form that says nothing about the object.
                yield name.strip(), value.partition("[")[0].strip()


def _identity(place: str, stem: str) -> tuple[str, str]:
    """Name and version from the head of a distribution's metadata."""
    fields = {"name": stem, "version": ""}
    for line in (_read(os.path.join(place, "METADATA")) or _read(os.path.join(place, "PKG-INFO"))).splitlines():
        key, separator, value = line.partition(":")
        if not separator:
            break
        if key.lower() in fields:
            fields[key.lower()] = value.strip()
    return fields["name"], fields["version"]


def _from_standard_library(group: str) -> Iterator[EntryPoint]:
    import re
    from importlib import metadata

    seen: set[str] = set()
    for distribution in metadata.distributions(path=without_here(sys.path)):
        # One without a name is a folder that an interrupted removal left behind.
        name = distribution.metadata["Name"] or ""
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if not name or normal in seen:
            continue
        seen.add(normal)
        for point in distribution.entry_points.select(group=group):
            yield EntryPoint(point.name, point.value, name, distribution.version)
