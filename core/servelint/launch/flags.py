"""Reads command-line arguments the way argparse does: names, prefixes, switches, JSON, releases.

An engine provides the table of its flags; what argparse would do with the words is the same for all of them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from servelint.launch.invocation import Setting, Trouble, Word
from servelint.lineage import KeyPath
from servelint.place import Place
from servelint.releases import release
from servelint.suggest import nearest

if TYPE_CHECKING:
    from servelint.launch.manifest import Node

MOST_TROUBLES = 50
"""Of one command line; who made more mistakes finds out after the first ones."""

MOST_SLIPS, LEAST_LETTERS = 2, 4
"""Letters in which a slip differs at most, and those of a word that is told from another by one."""

MOST_LOOKED_UP = 100
"""Unknown flags of one command line in which a slip is looked for."""

MOST_JSON = 100_000
"""Characters of a value that may be JSON."""

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG]?)\Z")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\Z))')
_SUFFIXED = re.compile(r"\b([0-9]{1,15}(?:\.[0-9]{1,15})?)([kKmMgG])\b")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class Flag(NamedTuple):
    """One flag of an engine.

    ``name`` is its long spelling without dashes; ``path`` the key of a spec that it sets, empty when it changes no
    figure or when the engine's reader treats it by itself. ``kind``: ``text``, ``int``, ``float``, ``switch``
    (``--x`` and ``--no-x``, optionally with true or false), ``json``, ``count`` (an integer that may end in k, K, m
    ...: 1k is 1000, 1K 1024), ``many`` (several words) or ``each`` (a text that adds to those given before it).
    ``sets`` is what a switch means when it is given. ``aliases`` are other spellings, short ones with their dash.
    ``since`` is the first release that is known to have it, ``until`` the first one that is known to have it no
    more, ``instead`` what took its place. ``before`` is the newest older release that is known not to have it yet,
    where that is not the one right before ``since``; between the two nothing is said of the flag.
    """

    name: str
    path: KeyPath = ()
    kind: str = "text"
    aliases: tuple[str, ...] = ()
    sets: bool = True
    since: str = ""
    until: str = ""
    instead: str = ""
    before: str = ""

    def not_yet(self, numbers: tuple[int, ...]) -> bool:
        """Whether a release is known to be older than the flag."""
        if self.before:
            return numbers <= release(self.before)
        return bool(self.since) and numbers < release(self.since)


class Given(NamedTuple):
    """A flag as it was given: its value, the word that holds the value, and the word that names the flag.

    ``more`` are the further words of a flag that takes many; ``value`` is the first one.
    """

    flag: Flag
    value: Any
    word: Word
    spelled: Word
    more: tuple[Word, ...] = ()

    @property
    def largest(self) -> int | None:
        """The largest of the whole numbers that a flag of one or many values holds, None without any."""
        values = self.value if isinstance(self.value, list) else [self.value]
        texts = " ".join(str(value) for value in (*values, *(word.text for word in self.more)))
        return max(map(int, re.findall(r"[0-9]{1,7}", texts)), default=None)

    def setting(self, path: KeyPath | None = None, value: object = None) -> Setting:
        """The setting that the flag makes, at another path or with another value where those are given."""
        note = self.word.note
        return Setting(
            path if path is not None else self.flag.path,
            self.value if value is None else value,
            self.word.place,
            self.spelled.text.partition("=")[0].split(" ", 1)[0],
            note,
        )


class Arguments(NamedTuple):
    """What a command line gives: flags by name (the last one counts), other words, and what is wrong."""

    given: Mapping[str, Given]
    positional: tuple[Word, ...]
    troubles: tuple[Trouble, ...]

    def get(self, name: str) -> Given | None:
        """The flag of that name, None when it was not given."""
        return self.given.get(name)

    def value(self, name: str) -> Any:
        """The value of a flag, None when it was not given."""
        found = self.given.get(name)
        return None if found is None else found.value

    def settings(self) -> list[Setting]:
        """The settings of all flags that set one key of a spec as they stand."""
        return [g.setting() for g in self.given.values() if g.flag.path]


class FlagTable:
    """The flags of an engine, by every spelling.

    ``complete`` says that a flag outside the table is one that no release up to ``checked`` has. ``prefixes``
    tells whether the engine's parser takes unambiguous beginnings of names. ``assumed`` is the release whose defaults
    stand for those of one that is not stated. ``owners`` names the engines that have a flag of exactly some name.
    """

    def __init__(
        self,
        engine: str,
        flags: Iterable[Flag],
        *,
        checked: str = "",
        complete: bool = False,
        prefixes: bool = True,
        assumed: str = "",
        owners: Callable[[str], Sequence[str]] = lambda name: (),
    ) -> None:
        self.engine = engine
        self.flags = {flag.name: flag for flag in flags}
        self.checked = checked
        self.complete = complete
        self.prefixes = prefixes
        self.assumed = assumed
        self.owners = owners
        aliases = [(a, f) for f in self.flags.values() for a in f.aliases]
        self._short = {a[1:]: f for a, f in aliases if a.startswith("-") and not a.startswith("--")}
        self._spelled = {a.lstrip("-"): f for a, f in aliases if a.lstrip("-") not in self._short} | self.flags
        self._sorted = sorted(self._spelled)
        self._near: dict[str, list[str]] = {}

    def nearest(self, name: str) -> list[str]:
        """Names of flags that look like a name; kept, as every engine of a file may have the same mistake."""
        if name not in self._near:
            if len(self._near) >= 1000:
                self._near.clear()
            self._near[name] = nearest(name, self.flags, 2)
        return self._near[name]

    def has(self, name: str) -> bool:
        """Whether some release has a flag of exactly that name."""
        return name in self._spelled

    def meant(self, name: str) -> str:
        """The flag that a name is with a slip of the keyboard, empty where there is none; one cut short goes first."""
        words = name.count("-") + 1
        for known in sorted(self._sorted, key=lambda known: not known.startswith(name)):
            begun = "-".join(known.split("-", words)[:words]) if self.prefixes and words > 1 else known
            if slipped(name, known) or slipped(name, begun):
                return known
        return ""

    def find(self, name: str, version: str | None, dashes: int = 0) -> tuple[Flag | None, tuple[str, ...]]:
        """The flag that a name means; else None, with the names that it could be the beginning of.

        ``dashes`` is how many stand before the name; without any it is the key of a file.
        """
        exact = self._short.get(name) if dashes < 2 else None
        exact = exact or (self._spelled.get(name) if dashes != 1 else None)
        if exact is not None:
            return exact, ()
        if not self.prefixes or len(name) < 2 or dashes == 1:
            return None, ()
        at = bisect_left(self._sorted, name)
        names = takewhile(lambda n: n.startswith(name), self._sorted[at:])
        began = {n: f for n in names if len(n) > 3 and not gone(f := self._spelled[n], version)}
        if len(set(map(id, began.values()))) == 1:
            return next(iter(began.values())), ()
        return None, tuple(sorted(began))


def gone(flag: Flag, version: str | None) -> bool:
    """Whether a release does not have a flag; with no release known, whether any newer one lacks it."""
    numbers = release(version)
    if not numbers:
        return bool(flag.until)
    return bool((flag.until and numbers >= release(flag.until)) or flag.not_yet(numbers))


def read(words: Sequence[Word], table: FlagTable, version: str | None) -> Arguments:
    """Read the words after a command that starts the engine."""
    reader = _Reader(table, version)
    reader.words(words)
    return Arguments(reader.given, tuple(reader.positional), tuple(reader.troubles))


def telling(troubles: Iterable[Trouble], table: FlagTable, asked: Collection[str]) -> tuple[Trouble, ...]:
    """Leave out what is not known of flags that change nothing: ``asked`` are names that an engine's reader reads."""
    silent = {f"--{flag.name}" for flag in table.flags.values() if not flag.path and flag.name not in asked}
    return tuple(t for t in troubles if t.kind != "unresolved" or t.about not in silent)


def read_options(options: Mapping[str, Node], table: FlagTable, version: str | None) -> Arguments:
    """Read flags that a file holds as keys (``tensor_parallel_size: 4``); null stands for not given."""
    reader = _Reader(table, version)
    for name, node in options.items():
        reader.option(name, node)
    return Arguments(reader.given, (), tuple(reader.troubles))


class _Reader:
    def __init__(self, table: FlagTable, version: str | None) -> None:
        self.table = table
        self.version = version
        self.given: dict[str, Given] = {}
        self.positional: list[Word] = []
        self.troubles: list[Trouble] = []
        self._about = ""
        self._looked_up = 0

    def words(self, words: Sequence[Word]) -> None:
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if not word.text.startswith("-") or word.text == "-" or _NUMBER.match(word.text):
                self.positional.append(word)
            elif word.text == "--":
                self.positional += words[position:]
                return
            else:
                position = self._flag(word, words, position)

    def option(self, name: str, node: Node) -> None:
        named = Word(name, node.place)
        self._about = name
        flag, negated = self._named(_plain(name), named)
        if flag is None or (node.kind == "scalar" and node.value is None):
            return
        if node.kind == "scalar":
            self._take(flag, negated, node.word, named)
        elif flag.kind in ("json", "many"):
            self._keep(Given(flag, node.plain(), Word("", node.place), named))
        else:
            self._trouble("bad-value", node.place, f"{name} holds a {node.kind}, expected one value", "")

    def _flag(self, word: Word, words: Sequence[Word], position: int) -> int:
        spelled, equals, value = word.text.partition("=")
        self._about = spelled.split(None, 1)[0]
        if any(sign in spelled for sign in " \t\n"):
            self._one_word(word)
            return position
        dotted = spelled.partition(".")
        flag, negated = self._named(_plain(dotted[0]), word)
        if flag is None:
            # Its value, if it has one, must not be taken for the model.
            follows = position < len(words) and not words[position].text.startswith("-")
            return position + 1 if follows and not equals else position
        if equals:
            value_word = word._replace(text=value, place=_after(word.place, len(spelled) + 1))
        elif flag.kind == "switch":
            follows = position < len(words) and words[position].text.lower() in ("true", "false")
            value_word = words[position] if follows else word._replace(text="")
            position += 1 if follows else 0
        elif flag.kind == "many":
            start = position
            while position < len(words) and not words[position].text.startswith("-"):
                position += 1
            value_word = words[start] if position > start else word._replace(text="")
        elif position < len(words) and (
            not words[position].text.startswith("-") or _NUMBER.match(words[position].text)
        ):
            value_word = words[position]
            position += 1
        else:
            self._trouble("bad-value", word.place, f"{spelled} has no value", f"write {spelled} VALUE")
            return position
        if dotted[2] and flag.kind == "json":
            self._nested(flag, dotted[2], value_word, word)
        else:
            self._take(flag, negated, value_word, word)
        if flag.kind == "many" and not equals and flag.name in self.given:
            self.given[flag.name] = self.given[flag.name]._replace(more=tuple(words[start + 1 : position]))
        return position

    def _one_word(self, word: Word) -> None:
        spelled = word.text.split(None, 1)
        flag, _ = self.table.find(_plain(spelled[0]), self.version, _dashes(spelled[0]))
        known = f"; it is meant for --{flag.name}" if flag is not None else ""
        self._trouble(
            "lost",
            word.place,
            f"the flag and its value are one word, {word.text[:80]!r}: the parser takes a word with a blank for a "
            f"positional argument, so the flag is not set{known}",
            f"make two words of it, {spelled[0]!r} and {spelled[-1]!r}, or write {spelled[0]}={spelled[-1]}",
        )

    def _named(self, name: str, word: Word) -> tuple[Flag | None, bool]:
        """Find the flag that a name means, and whether it was negated; say what is wrong with it."""
        shown = "--" + name if not word.text.startswith("-") or word.text.startswith("--") else word.text
        for candidate, negated in ((name, False), (name.removeprefix("no-"), True)):
            flag, could_be = self.table.find(candidate, self.version, _dashes(word.text))
            if flag is not None and (not negated or (flag.kind == "switch" and name.startswith("no-"))):
                self._check(flag, candidate, shown, word)
                return flag, negated
            if could_be and not negated:
                names = ", ".join("--" + n for n in could_be[:4])
                self._trouble(
                    "ambiguous",
                    word.place,
                    f"{shown} could be {names}: the parser refuses it",
                    "write the name in full",
                )
                return None, False
        self._unknown(name, shown, word)
        return None, False

    def _unknown(self, name: str, shown: str, word: Word) -> None:
        """Say that no release has a flag, where the table knows that."""
        if len(self.troubles) >= MOST_TROUBLES:
            return
        near = self.table.find(name, None)[0] if shown.startswith("--") else None
        # A short flag with a dash too many is none in any release.
        short = [a for a in near.aliases if a == f"-{name}"] if near is not None else []
        close = short or [f"--{n}" for n in self.table.nearest(name)]
        upto = f" up to {self.table.checked}" if self.table.checked else ""
        message, kind = f"no release of {self.table.engine}{upto} has the flag {shown}", "unknown"
        numbers, checked = release(self.version), release(self.table.checked)
        # What another engine calls so is no slip of a flag that this one has.
        others = [] if short else [f"{o}'s" for o in self.table.owners(name) if o != self.table.engine]
        if others:
            message += f": it is {' and '.join(others)}"
            close = []
        if not self.table.complete or (checked and not short and not (numbers and numbers <= checked)):
            # A fork, a release that nobody looked at or a newer one may have flags of its own, but no slips.
            if not word.text.startswith("-"):
                # A key of a file may be one of the program that reads the file.
                return
            self._looked_up += 1
            slip = self.table.meant(name) if not others and self._looked_up <= MOST_LOOKED_UP else ""
            if slip:
                close = [f"--{slip}"]
                message = f"no release of {self.table.engine} that is known has the flag {shown}, and --{slip} is near"
            elif self.table.complete and not numbers:
                kind = "unlisted"
            else:
                return
        help_ = f"did you mean {' or '.join(close)}?" if close else ""
        self._trouble(kind, word.place, message, help_)

    def _check(self, flag: Flag, name: str, shown: str, word: Word) -> None:
        engine, version = self.table.engine, self.version
        numbers = release(version)
        instead = f"use {flag.instead}" if flag.instead else "take it out"
        if not numbers and flag.until and release(flag.until) <= release(self.table.assumed):
            self._trouble(
                "dated",
                word.place,
                f"{engine} has not had {shown} since release {flag.until}, and no release is stated: "
                f"{self.table.assumed}, which is assumed, refuses to start",
                f"{instead}, or state the release that has it",
            )
        elif numbers and flag.until and numbers >= release(flag.until):
            self._trouble(
                "removed",
                word.place,
                f"{engine} {version} does not have {shown}: release {flag.until} no longer parses it",
                instead,
            )
        elif numbers and flag.not_yet(numbers):
            came = f"it came after {flag.before}" if flag.before else f"it came with release {flag.since}"
            self._trouble(
                "not-yet",
                word.place,
                f"{engine} {version} does not have {shown} yet: {came}",
                f"take it out, or use {flag.since} or later",
            )
        elif name != flag.name and name not in (a.lstrip("-") for a in flag.aliases):
            self._trouble(
                "abbreviated",
                word.place,
                f"{shown} is a beginning of --{flag.name}: a release that adds another flag with it refuses it",
                f"write --{flag.name}",
            )

    def _take(self, flag: Flag, negated: bool, value: Word, spelled: Word) -> None:
        if value.unresolved:
            self._about = f"--{flag.name}"
            self._trouble(
                "unresolved",
                value.place,
                f"--{flag.name} is {value.text[:80]!r}, and nothing here sets {value.unresolved}",
                "say what it is with --env FILE",
            )
            return
        try:
            read = _value(flag, value.text)
        except ValueError as error:
            self._trouble("bad-value", value.place, f"--{flag.name}: {error}", "")
            return
        if flag.kind == "switch":
            read = (read is not negated) if flag.sets else (read is negated)
        self._keep(Given(flag, read, value, spelled))

    def _nested(self, flag: Flag, path: str, value: Word, spelled: Word) -> None:
        before = self.given.get(flag.name)
        merged: dict[str, Any] = dict(before.value) if before is not None and isinstance(before.value, dict) else {}
        inner = merged
        *parents, last = path.split(".")[:8]
        for part in parents:
            below = inner.get(part)
            inner[part] = dict(below) if isinstance(below, dict) else {}
            inner = inner[part]
        try:
            inner[last] = json.loads(value.text)
        except (ValueError, RecursionError):
            inner[last] = value.text
        self.given[flag.name] = Given(flag, merged, value, spelled)

    def _keep(self, given: Given) -> None:
        before = self.given.get(given.flag.name)
        if before is not None and before.value != given.value and given.flag.kind != "each":
            self._trouble(
                "lost",
                before.word.place,
                f"--{given.flag.name} is given twice, as {before.word.text[:40]!r} and {given.word.text[:40]!r}: the "
                "last one counts",
                "take one of them out",
            )
        self.given[given.flag.name] = given

    def _trouble(self, kind: Any, place: Place, message: str, help_: str) -> None:
        if len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(Trouble(kind, place, message, help_, self._about))


def slipped(name: str, known: str) -> bool:
    """Whether a name is a known one with a slip: a dash too many or too few, or a letter or two in its longer words.

    Names that differ in a short word (``tp``, ``ep``), in a beginning or in the number of words may both be flags.
    """
    if name == known or abs(len(name) - len(known)) > MOST_SLIPS or name[:1] != known[:1]:
        return False
    if name.replace("-", "") == known.replace("-", ""):
        return True
    ours, theirs = name.split("-"), known.split("-")
    if len(ours) != len(theirs):
        return False
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    return len(pairs) == 1 and all(
        one[:1] == other[:1] and len(other) >= LEAST_LETTERS and _edits(one, other) <= (2 if len(other) >= 9 else 1)
        for one, other in pairs
    )


def _edits(one: str, other: str) -> int:
    """Letters to put in, take out, replace, or swap with the next, from one word to another."""
    before, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row, older = row, [i], before
        for j, b in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b):
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        before = last
    return row[-1]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _dashes(word: str) -> int:
    """How many dashes, up to two, stand before a name."""
    return 2 if word.startswith("--") else 1 if word.startswith("-") else 0


def _after(place: Place, characters: int) -> Place:
    if place.line != place.end_line or place.column + characters >= place.end_column:
        return place
    return place._replace(column=place.column + characters)


def _value(flag: Flag, text: str) -> Any:
    """Read a flag's value. Raises ValueError that says what was expected."""
    if flag.kind == "switch":
        if text == "" or text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ValueError(f"found {text[:40]!r}, expected true or false, or no value")
    if flag.kind == "int":
        if re.fullmatch(r"[-+]?[0-9]{1,15}", text):
            return int(text)
        raise ValueError(f"found {text[:40]!r}, expected an integer")
    if flag.kind == "float":
        if len(text) <= 40 and _NUMBER.match(text):
            return float(text)
        raise ValueError(f"found {text[:40]!r}, expected a number")
    if flag.kind == "count":
        if text.lower() in ("auto", "-1"):
            return "auto"
        found = _COUNT.match(text) if len(text) <= 20 else None
        if found is None:
            raise ValueError(f"found {text[:40]!r}, expected an integer, such as 8192 or 8k")
        return int(float(found[1]) * _DECIMAL[found[2]])
    if flag.kind == "json":
        if len(text) > MOST_JSON:
            raise ValueError(f"found {len(text):,} characters, expected JSON of at most {MOST_JSON:,}")
        for plain in (str, _plain_numbers):
            try:
                return json.loads(plain(text))
            except (ValueError, RecursionError):
                continue
        raise ValueError(f"found {text[:60]!r}, expected JSON")
    return text


def _plain_numbers(text: str) -> str:
    """JSON with numbers like 80g, which newer parsers take outside strings, as integers."""
    parts = _QUOTED.split(text)
    parts[::2] = [
        _SUFFIXED.sub(lambda found: str(int(float(found[1]) * _DECIMAL[found[2]])), part) for part in parts[::2]
    ]
    return "".join(parts)
