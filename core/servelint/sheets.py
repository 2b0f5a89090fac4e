"""A folder of TOML files as entries of a catalogue: ``<group>/<name>.toml`` is the entry ``<group>/<name>``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import tomli

from servelint.descriptors import Entry
from servelint.errors import CatalogueError


class Identified(Protocol):
    """What has an id."""

    @property
    def id(self) -> str:
        """The name that a spec has it by."""


T = TypeVar("T", bound=Identified)


def sheets(
    folder: Path, read: Callable[[Mapping[str, Any], str], T], aliases: Callable[[Path], tuple[str, ...]]
) -> Iterator[Entry[T]]:
    """Yield an entry for every ``<group>/<name>.toml`` below a folder; files are read when asked for.

    ``read`` makes the thing of a parsed file and the file's name.
    """
    for group in sorted(p for p in folder.iterdir() if p.is_dir()):
        for name in sorted(os.listdir(group)):
            if name.endswith(".toml"):
                path = group / name
                yield Entry(f"{group.name}/{path.stem}", partial(_load, path, read), partial(aliases, path))


def parsed(path: Path) -> dict[str, Any]:
    """Return what a file says; CatalogueError, naming it, when it cannot be read."""
    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CatalogueError(f"{path}: {error}") from None


def _load(path: Path, read: Callable[[Mapping[str, Any], str], T]) -> T:
    found = read(parsed(path), str(path))
    expected = f"{path.parent.name}/{path.stem}"
    if found.id != expected:
        raise CatalogueError(f"{path}: its id is {found.id!r}, its place says {expected!r}")
    return found
