"""How an engine is started, as a manifest or a spec has it, and what that says in the keys of a spec.

A manifest format turns a file into `Invocation` values: words of command lines, options of the engine's own
configuration files, environment, image, hints at the hardware, each with its place. An engine turns an
invocation into a `Reading`: `Setting` values by key path of the spec, and what is wrong with the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from attrs import frozen

from servelint.lineage import KeyPath
from servelint.place import Place
from servelint.values import Value

if TYPE_CHECKING:
    from servelint.launch.manifest import Node


class Word(NamedTuple):
    """One word of a command line, or one value, with its place.

    ``note`` says what stands between the file and the word: a variable that was looked up, a template's
    default. ``unresolved`` names the variable that nothing in the file sets; ``text`` then still holds it.
    """

    text: str
    place: Place
    note: str = ""
    unresolved: str = ""


def count_of(word: Word | None) -> int | None:
    """A word as a count, None where it is none."""
    return int(word.text) if word is not None and word.text.isdecimal() and len(word.text) <= 6 else None


class Hint(NamedTuple):
    """What a manifest says of the hardware: a label (or field) and its value."""

    label: str
    value: Word


class Trouble(NamedTuple):
    """Something wrong with a manifest or with launch arguments, at a place.

    ``kind`` decides which rule reports it: ``unknown`` (the release never had the flag), ``unlisted`` (no release that
    is known had it, and none is stated), ``removed``, ``dated`` (only releases older than the assumed one had it),
    ``not-yet``, ``lost`` (the value silently does not take effect), ``bad-value``, ``abbreviated``,
    ``ambiguous``, ``unresolved`` (a value stands outside the file) and ``unsupported`` (the engine refuses
    the combination). ``help`` says what to write instead, ``about`` names the flag or key.
    """

    kind: Literal[
        "unknown",
        "unlisted",
        "removed",
        "dated",
        "not-yet",
        "lost",
        "bad-value",
        "abbreviated",
        "ambiguous",
        "unresolved",
        "unsupported",
    ]
    place: Place
    message: str
    help: str = ""
    about: str = ""


@frozen(slots=False, eq=False, repr=False)
class Invocation(Value):
    """One serving process, or group of equal ones, as a file starts it.

    ``name`` says which of the file's it is (``Deployment chat, container vllm``); ``part`` are the names it can
    be chosen by (container, service, object, role). ``commands`` are command lines, each a tuple of words, in
    order; with an image alone, the arguments of its entry point. ``options`` are settings that a file holds as
    keys, in the spelling of the engine's flags (``-`` and ``_`` are the same) or of its configuration file;
    ``files`` are texts and mappings that lie beside it (config maps, here-documents) by file name. ``devices``
    counts devices of one pod, ``pods`` the pods of one replica.
    """

    name: str
    format: str
    place: Place
    part: tuple[str, ...] = ()
    engine: Word | None = None
    version: Word | None = None
    image: Word | None = None
    commands: tuple[tuple[Word, ...], ...] = ()
    options: Mapping[str, Node] = {}
    env: Mapping[str, Word] = {}
    files: Mapping[str, Node | Word] = {}
    model: Word | None = None
    devices: Word | None = None
    pods: Word | None = None
    replicas: Word | None = None
    role: str | None = None
    hints: tuple[Hint, ...] = ()
    troubles: tuple[Trouble, ...] = ()


class Setting(NamedTuple):
    """One key of a spec, as a launch file sets it: the TOML value, its place, and how the file spells it.

    Where the engine divides a number over slots, or lets them share it, ``written`` is that number as the file has it,
    and ``slots`` how many they are; the value is then what one of them may have. ``assumed``: the file does not say the
    value, which its note explains; what a spec declares goes before it.
    """

    path: KeyPath
    value: object
    place: Place
    spelling: str
    note: str = ""
    written: int = 0
    slots: int = 1
    assumed: bool = False

    @property
    def divided(self) -> bool:
        """Whether the value is a part of what is written."""
        return self.slots > 1 and isinstance(self.value, int) and self.value < self.written


class Reading(NamedTuple):
    """What an engine makes of an invocation.

    ``unused`` are flags that are known and change no figure.
    """

    settings: tuple[Setting, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    unused: tuple[str, ...] = ()
