"""Catalogues: what plugins list by id, found by the names that users write, and loaded when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from servelint import contract
from servelint.blame import Blamed, Provider
from servelint.descriptors import Entry
from servelint.errors import CatalogueError
from servelint.suggest import meant, nearest

if TYPE_CHECKING:
    from servelint.manager import Plugins

T = TypeVar("T")

MOST_SUGGESTED = 50
"""Unknown names of a run for which near matches are looked up; more are no typing errors."""

MOST_OF_FAMILY = 6

_SIZE = r"(\d+x)?\d+(\.\d+)?[bm]$"
"""The word of a model's name that says how many parameters it has."""


class Catalogue(Generic[T]):
    """Entries by name: ids first, then ids without their owner, then aliases; every entry loads once.

    ``listed`` is the command that lists the ids, ``otherwise`` what a user can do without an entry, ``made`` the
    class of what an entry loads.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, tuple[Entry[T], Provider]],
        plugins: Plugins,
        listed: str,
        otherwise: str = "",
        made: type = object,
    ) -> None:
        self.kind = kind
        self._listed, self._otherwise = listed, otherwise
        self._entries = entries
        self._plugins = plugins
        self._made = made
        self._loaded: dict[str, T] = {}
        self._failed: dict[str, Blamed] = {}
        self._suggested: dict[str, str] = {}

    def ids(self) -> tuple[str, ...]:
        """All ids in order."""
        return tuple(sorted(entry.id for entry, _ in self._entries.values()))

    @cached_property
    def _short(self) -> dict[str, str]:
        """Folded ids without what stands before the slash, where only one entry has them."""
        found: dict[str, list[str]] = {}
        for key in self._entries:
            found.setdefault(_fold(key.rpartition("/")[2]), []).append(key)
        return {name: keys[0] for name, keys in found.items() if len(keys) == 1}

    @cached_property
    def _named(self) -> list[tuple[str, str]]:
        """Aliases as they are written, each with the key of its entry."""
        named: list[tuple[str, str]] = []
        for key, (entry, provider) in self._entries.items():
            named += [(alias, key) for alias in self._aliases_of(entry, provider)]
        return named

    def _aliases_of(self, entry: Entry[T], provider: Provider) -> Sequence[str]:
        """An entry's aliases as they are written, none where its provider fails at them."""
        with suppress(Blamed), self._plugins.blamed(provider, f"reading the aliases of {self.kind} {entry.id!r}"):
            return contract.aliases(entry.aliases())
        return ()

    def _akin(self, name: str) -> str:
        """The key of an entry whose id begins as the name does and that has it as an alias; else empty.

        The usual alias adds a suffix to an id (``-Instruct``); to find it, only these entries' files are read.
        """
        for key, (entry, provider) in self._entries.items():
            if not (name.startswith(key) or key.startswith(name)):
                continue
            if _fold(name) in map(_fold, self._aliases_of(entry, provider)):
                return key
        return ""

    @cached_property
    def _aliases(self) -> dict[str, str]:
        aliases: dict[str, str] = {}
        for alias, key in self._named:
            taken = aliases.setdefault(_fold(alias), key)
            if taken != key:
                entry, provider = self._entries[key]
                first = self._entries[taken][1]
                message = f"{self.kind} alias {alias!r} of {entry.id!r} is already provided by {first}"
                self._plugins.record_fault(provider, message)
        return aliases

    @cached_property
    def _spelled(self) -> dict[str, str]:
        """Ids and aliases, with and without owner, with one separator for all, where only one entry has them."""
        found: dict[str, set[str]] = {}
        for name, key in (*((key, key) for key in self._entries), *self._named):
            for part in (name, name.rpartition("/")[2]):
                found.setdefault(_spelling(part), set()).add(key)
        return {name: keys.pop() for name, keys in found.items() if len(keys) == 1}

    def resolve(self, name: str) -> str | None:
        """Return the id that a name or alias stands for, None if there is none."""
        key = name.lower()
        if key not in self._entries:
            key = (
                self._short.get(_fold(name))
                or self._akin(key)
                or self._aliases.get(_fold(name))
                or self._spelled.get(_spelling(name), "")
            )
        return self._entries[key][0].id if key else None

    def related(self, name: str) -> tuple[str, ...]:
        """Return the ids that a name stands for or is part of: ``h100`` names every H100."""
        found = self.resolve(name)
        if found is not None:
            return (found,)
        folded = _fold(name)
        return tuple(id_ for id_, own in self._folded if folded in own) or tuple(self._family(name))

    @cached_property
    def _folded(self) -> list[tuple[str, str]]:
        return [(entry.id, _fold(entry.id)) for entry, _ in self._entries.values()]

    def provider(self, id: str) -> Provider:  # noqa: A002
        """Who provides the entry of that id."""
        return self._entries[id.lower()][1]

    def get(self, name: str) -> T:
        """Load an entry by id or alias; CatalogueError with a suggestion if there is none."""
        found = self.resolve(name)
        if found is None:
            raise CatalogueError(self.unknown(name, self._otherwise))
        if found in self._failed:
            raise self._failed[found]
        if found not in self._loaded:
            entry, provider = self._entries[found.lower()]
            try:
                with self._plugins.blamed(provider, f"loading {self.kind} {found!r}"):
                    made = entry.load()
                    contract.loaded(made, self._made, found)
            except Blamed as error:
                self._failed[found] = error
                raise
            self._loaded[found] = made
        return self._loaded[found]

    def each(self, name: str | None = None) -> Iterator[T]:
        """Yield the entry of a name, or all that load, in order; CatalogueError if there is none of that name."""
        wanted = None if name is None else self.resolve(name)
        if name is not None and wanted is None:
            raise CatalogueError(self.unknown(name))
        for id_ in (wanted,) if wanted is not None else self.ids():
            try:
                found = self.get(id_)
            except Blamed:
                if wanted is not None:
                    raise
                continue
            yield found

    def unknown(self, name: str, otherwise: str = "") -> str:
        """Say that no plugin provides the name, with the ids that may be meant, else what lists them."""
        if name not in self._suggested:
            # A search of the whole catalogue for each of a thousand wrong names would take seconds.
            told = len(self._suggested) < MOST_SUGGESTED
            self._suggested[name] = self._hint(name) if told else ""
        tail = f", or {otherwise}" if otherwise else ""
        hint = self._suggested[name] or f"; `{self._listed}` lists them{tail}"
        return f"no plugin provides the {self.kind} {name!r:.120}{hint}"

    def _family(self, name: str) -> list[str]:
        """Return the ids that have each word of a name, or one that begins with it, in any order."""
        wanted = _words(name)
        if not wanted or min(map(len, wanted)) < 2:
            return []
        return [id_ for id_, words in self._by_words if all(any(w.startswith(p) for w in words) for p in wanted)]

    @cached_property
    def _by_words(self) -> list[tuple[str, list[str]]]:
        return [(id_, _words(id_)) for id_ in self.ids()]

    def _hint(self, name: str) -> str:
        """Say which ids a name may mean: several of a family, else the nearest; empty when there is none."""
        family = self._family(name)
        if 2 <= len(family) <= MOST_OF_FAMILY:
            return f": it may be {' or '.join(map(repr, family))}; name the one that is meant"
        return meant(family if len(family) == 1 else self._near(name))

    def _alike(self, name: str) -> list[str]:
        """Return the ids of the size in a name that share most of its other words; none where it has no size.

        A model of another size is never what was meant, however alike its letters are.
        """
        wanted = set(_words(name))
        sizes = {word for word in wanted if re.match(_SIZE, word)}
        scored = []
        for id_, words in self._by_words:
            shared = wanted.intersection(words)
            if sizes and sizes <= shared and any(len(word) > 2 for word in shared - sizes):
                # Of those with as many words in common, the ones with least besides.
                scored.append((-len(shared), len(words), id_))
        return [id_ for _, _, id_ in sorted(scored)[:3]]

    def _near(self, name: str) -> list[str]:
        """Return the ids nearest to a name, by id or alias."""
        alike = self._alike(name)
        if alike:
            return alike
        keys = {**self._aliases, **self._short, **{_fold(key): key for key in self._entries}}
        found = nearest(_fold(name), keys, 6)
        return list(dict.fromkeys(self._entries[keys[folded]][0].id for folded in found))[:3]


def _fold(name: str) -> str:
    """Names compare without case, spaces, dashes and underscores."""
    return name.lower().replace(" ", "").replace("_", "").replace("-", "")


def _spelling(name: str) -> str:
    """Return a name with a dash for each point, space and underscore: ``llama_3_1_8b`` is ``llama-3.1-8b``."""
    return name.lower().replace(".", "-").replace("_", "-").replace(" ", "-")


def _words(name: str) -> list[str]:
    return [word for word in name[:80].lower().replace("/", " ").replace("-", " ").replace("_", " ").split() if word]
