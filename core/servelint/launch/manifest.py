"""Manifest files: YAML and JSON as nodes with places, and the helpers that readers of formats share.

YAML is composed by PyYAML, never constructed: no tag runs anything. Scalars are resolved by the JSON schema of
YAML 1.2 (``true``, ``null``, numbers), so that ``on`` and ``yes`` stay words as Kubernetes' own parser has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from attrs import field, frozen

from servelint.errors import ManifestError as ManifestError
from servelint.launch.invocation import Invocation, Word
from servelint.launch.shell import Piece, Script, resolve, script
from servelint.place import Place
from servelint.values import Value

MOST_NODES = 100_000
"""A manifest with more values was written by no hand; aliases count each time they are visited."""

MOST_DOCUMENTS = 10_000
MOST_SIGNS = 250_000
"""Signs that separate values; a text with more of them has more values than are read, or is no manifest."""

MOST_SPLIT = 2_000_000
"""Characters of shell text that a file may have in all."""

SEARCHED = 20_000_000
"""Characters that are searched for places of words that are not found."""

_TEMPLATE = re.compile(r"\{\{-?\s*(?:\.|\$|include|if|range|with|toYaml|define|template|end|else)[^{}]{0,2000}\}\}|\{%")
_CONFLICT = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = ("", "~", "null", "Null", "NULL")


class Node:
    """One value of a YAML or JSON document with its place."""

    __slots__ = ("_file", "_node")

    def __init__(self, file: ManifestFile, node: Any) -> None:
        self._file = file
        self._node = node

    @property
    def kind(self) -> str:
        """``mapping``, ``sequence`` or ``scalar``."""
        kind: str = self._node.id
        return kind

    @property
    def place(self) -> Place:
        """Where the value stands."""
        return self._file.place(self._node.start_mark.index, self._node.end_mark.index)

    @property
    def text(self) -> str:
        """The characters of a scalar, empty for anything else."""
        return self._node.value if self._node.id == "scalar" else ""

    @property
    def value(self) -> str | int | float | bool | None:
        """A scalar as JSON would have it; None for null and for anything that is no scalar."""
        if self._node.id != "scalar":
            return None
        text: str = self._node.value
        if self._node.style in ("'", '"', "|", ">"):
            return text
        if text in _NULLS:
            return None
        if text in _WORDS:
            return _WORDS[text]
        if len(text) <= 40 and _INTEGER.match(text):
            return int(text)
        if len(text) <= 40 and _FLOAT.match(text):
            return float(text)
        return text

    @property
    def indent(self) -> int:
        """Columns before every line of a block scalar that its text has lost; 0 for anything else."""
        if self._node.id != "scalar" or self._node.style != "|":
            return 0
        raw = self._file.text[self._node.start_mark.index : self._node.end_mark.index]
        pairs = zip(raw.split("\n")[1:], self.text.split("\n"), strict=False)
        return next((len(line) - len(own.rstrip("\r")) for line, own in pairs if own.strip()), 0)

    @property
    def word(self) -> Word:
        """A scalar as a word."""
        return Word(self.text, self.place)

    def items(self, merges: int = 8) -> Iterator[tuple[str, Node]]:
        """Keys and values of a mapping whose keys are scalars, in order; nothing for anything else.

        Merge keys (``<<``) give the keys of what they name, where the mapping has none of its own; a mapping
        may merge itself, so only so many levels of ``merges`` are followed.
        """
        if self._node.id != "mapping" or merges < 0:
            return
        own = {key.value for key, _ in self._node.value if key.id == "scalar"}
        for key, value in self._node.value:
            self._file.visit()
            if key.id == "scalar" and key.value == "<<" and key.style is None:
                for merged in (value,) if value.id == "mapping" else value.value if value.id == "sequence" else ():
                    yield from ((k, v) for k, v in Node(self._file, merged).items(merges - 1) if k not in own)
            elif key.id == "scalar":
                yield key.value, Node(self._file, value)

    def __iter__(self) -> Iterator[Node]:
        """Items of a sequence in order; nothing for anything else."""
        if self._node.id == "sequence":
            for item in self._node.value:
                self._file.visit()
                yield Node(self._file, item)

    def get(self, *path: str | int) -> Node | None:
        """The value at a path of keys and indices, None where there is none."""
        found: Node | None = self
        for part in path:
            if found is None:
                return None
            if isinstance(part, int):
                items = list(found)
                found = items[part] if -len(items) <= part < len(items) else None
            else:
                found = found._find(part)
        return found

    def _find(self, wanted: str, merges: int = 8) -> Node | None:
        """The value of a key, as `items` has it; what is passed over is not visited."""
        if self._node.id != "mapping" or merges < 0:
            return None
        self._file.visit()
        own, merged = self._file.index(self._node)
        if wanted in own:
            return Node(self._file, own[wanted])
        held = (Node(self._file, value)._find(wanted, merges - 1) for value in merged)
        return next((found for found in held if found is not None), None)

    def string(self, *path: str | int) -> str:
        """The characters of the scalar at a path, empty where there is none."""
        found = self.get(*path)
        return found.text if found is not None else ""

    def scalar(self, *path: str | int) -> Word | None:
        """The scalar at a path as a word, None where there is none or it is null."""
        found = self.get(*path)
        return found.word if found is not None and found.kind == "scalar" and found.value is not None else None

    def walk(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        """This value and everything below it, with its path; at most 40 levels deep."""
        stack: list[tuple[tuple[str | int, ...], Node]] = [((), self)]
        while stack:
            path, node = stack.pop()
            yield path, node
            if len(path) >= 40:
                continue
            children: list[tuple[str | int, Node]] = (
                list(node.items()) if node.kind == "mapping" else list(enumerate(node))
            )
            stack += [((*path, key), child) for key, child in reversed(children)]

    def plain(self, depth: int = 40) -> Any:
        """The value as JSON has it: dict, list, string, number, bool or None; what lies deeper is None."""
        if depth == 0:
            return None
        if self.kind == "mapping":
            return {key: child.plain(depth - 1) for key, child in self.items()}
        if self.kind == "sequence":
            return [child.plain(depth - 1) for child in self]
        return self.value


class ManifestFile:
    """A file that may start an engine: its text, and its YAML (or JSON) documents on demand.

    ``name`` is the path that places in it carry; empty when the file itself is being checked. ``siblings``
    are texts of files beside it by name (``--env runtime.env``); ``inner`` keeps documents that its texts hold.
    """

    def __init__(self, name: str, text: str, file: str = "", siblings: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.text = text
        self.file = file
        self.siblings = dict(siblings or {})
        self._visited = 0
        self._split = 0
        self._indices: dict[int, tuple[dict[str, Any], list[Any]]] = {}
        self._ends: dict[tuple[int, int], int] = {}
        self._scripts: dict[str, Script] = {}
        self.inner: dict[tuple[Place, str], tuple[Node, ...]] = {}

    def visit(self, count: int = 1) -> None:
        """Count visited values; ManifestError when there are absurdly many."""
        self._visited += count
        if self._visited > MOST_NODES:
            raise ManifestError(f"it has more than {MOST_NODES:,} values", Place(1, 1, 1, 1, self.file))

    def index(self, node: Any) -> tuple[dict[str, Any], list[Any]]:
        """The values of a mapping's own keys, and what it merges; an alias costs nothing more."""
        found = self._indices.get(id(node))
        if found is None:
            own: dict[str, Any] = {}
            merged: list[Any] = []
            for key, value in node.value:
                if key.id == "scalar" and key.value == "<<" and key.style is None:
                    merged += (value,) if value.id == "mapping" else value.value if value.id == "sequence" else ()
                elif key.id == "scalar":
                    own.setdefault(key.value, value)
            found = self._indices[id(node)] = own, merged
        return found

    def line(self, number: int) -> str:
        """A line of the text by its number from 1, empty where there is none."""
        if not 0 < number <= len(self._starts):
            return ""
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def place(self, start: int, end: int | None = None) -> Place:
        """Line and column of a range of offsets; what reaches past the last sign of a line is cut there."""
        from bisect import bisect_right

        stop = start if end is None else end
        if stop > start and self.text[stop - 1 : stop] in ("\n", " ", "\r"):
            stop = self._trimmed(start, stop)
        line, last = (bisect_right(self._starts, offset) for offset in (start, max(stop, start)))
        return Place(
            line, start - self._starts[line - 1] + 1, last, max(stop, start) - self._starts[last - 1] + 1, self.file
        )

    def _trimmed(self, start: int, stop: int) -> int:
        """The end of a range without the blanks that it ends with."""
        if (start, stop) not in self._ends:
            self._ends[start, stop] = start + len(self.text[start:stop].rstrip("\n \r"))
        return self._ends[start, stop]

    @cached_property
    def documents(self) -> tuple[Node, ...]:
        """The YAML documents. Raises ManifestError where the text is none, or is a template."""
        import yaml

        # libyaml's loader where the wheel has it; both compose, neither constructs.
        base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

        class Untagged(base):  # type: ignore[misc]
            """Looks no tag up: `Node` reads scalars by itself, and it takes a third of the time."""

            def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
                return "tag:yaml.org,2002:str"

        text = self.text
        if len(text) > MOST_SIGNS and sum(map(text.count, ",:\n")) > MOST_SIGNS:
            # The parser makes all values at once, before any can be counted.
            raise ManifestError(f"it has more than {MOST_NODES:,} values", Place(1, 1, 1, 1, self.file))
        conflict = _CONFLICT.search(text)
        if conflict is not None:
            raise ManifestError("it holds the marks of a merge conflict", self.place(conflict.start(), conflict.end()))
        try:
            composed = yaml.compose_all(text, Loader=Untagged)
            found = tuple(Node(self, node) for node in islice(composed, MOST_DOCUMENTS) if node is not None)
        except yaml.MarkedYAMLError as error:
            self._refuse_template()
            mark = error.problem_mark or error.context_mark
            # YAML has more kinds of line ends than the file is shown with.
            at = min(mark.index, max(len(text) - 1, 0)) if mark else 0
            place = self.place(at, at + 1) if mark else None
            raise ManifestError(
                f"it is not valid YAML: {error.problem or error.context}", place or Place(1, 1, 1, 1, self.file)
            ) from None
        except (yaml.YAMLError, ValueError) as error:
            self._refuse_template()
            raise ManifestError(f"it is not valid YAML: {error}", Place(1, 1, 1, 1, self.file)) from None
        except RecursionError:
            raise ManifestError("it is nested too deeply", Place(1, 1, 1, 1, self.file)) from None
        if len(found) == MOST_DOCUMENTS:
            raise ManifestError(f"it has {MOST_DOCUMENTS:,} documents or more", Place(1, 1, 1, 1, self.file))
        return found

    def _refuse_template(self) -> None:
        template = _TEMPLATE.search(self.text)
        if template is not None:
            raise ManifestError(
                "it is a template: render it first (helm template, kustomize build) and name the result",
                self.place(template.start(), template.end()),
            )

    @property
    def template(self) -> Place | None:
        """Where the file holds a template's expression, None when it has none."""
        found = _TEMPLATE.search(self.text)
        return None if found is None else self.place(found.start(), found.end())

    def script(self, text: str, at: Node | None = None) -> tuple[tuple[tuple[Word, ...], ...], dict[str, Word]]:
        """Split shell text of this file into commands of words, and what it assigns.

        ``at`` is the scalar that holds the text; None when the file is the script. ManifestError for text that
        no shell could split.
        """
        try:
            found = self._commands(text)
        except ValueError as error:
            raise ManifestError(
                f"the command cannot be split: {error}", at.place if at else Place(1, 1, 1, 1, self.file)
            ) from None
        # Where many containers run one script, its words count for each.
        self.visit(sum(map(len, found.commands)))
        locate = self._locator(text, at)
        commands = tuple(tuple(Word(w.text, locate(w)) for w in command) for command in found.commands)
        return commands, {name: Word(piece.text, locate(piece)) for name, piece in found.assigned.items()}

    def _commands(self, text: str) -> Script:
        """Split a text once. ValueError for what no shell splits, or when it has been too much in all."""
        found = self._scripts.get(text)
        if found is None:
            self._split += len(text)
            if self._split > MOST_SPLIT:
                raise ValueError(f"the file's commands have more than {MOST_SPLIT:,} characters")
            found = self._scripts[text] = script(text)
        return found

    def here_documents(self, text: str, at: Node | None = None) -> dict[str, Word]:
        """Texts that shell text writes to files by here-documents, by file name."""
        try:
            found = self._commands(text)
        except ValueError:
            return {}
        locate = self._locator(text, at)
        return {name: Word(piece.text, locate(piece)) for name, piece in found.documents.items()}

    def _locator(self, text: str, at: Node | None) -> Callable[[Piece], Place]:
        if at is None:
            return lambda piece: self.place(piece.start, piece.end)
        start, end = at._node.start_mark.index, at._node.end_mark.index
        raw = self.text[start:end]
        # Where a text is written in another way than it reads, few of its words are found.
        left = [SEARCHED]
        # A block scalar loses its indentation; line by line its text stands in the file as it is.
        state = [0, 0]
        whole = at.place

        def locate(piece: Piece) -> Place:
            wanted = text[piece.start : piece.end]
            first = wanted.split("\n", 1)[0].rstrip("\\ ")
            state[0] = state[0] if piece.start >= state[1] else 0
            found = raw.find(first, state[0]) if first and left[0] > 0 else -1
            if found < 0:
                left[0] -= len(raw) - state[0]
                return whole
            state[0], state[1] = found, piece.start
            return self.place(start + found, start + found + len(first))

        return locate


def resolved(word: Word, lookup: Callable[[str], Word | str | None]) -> Word:
    """Return a word with its variables looked up; the place stays where the word stands."""
    if "$" not in word.text:
        return word

    def text_of(name: str) -> str | None:
        found = lookup(name)
        return found.text if isinstance(found, Word) else found

    result = resolve(word.text, text_of)
    note = ", ".join(part for part in (word.note, result.note) if part)
    return Word(result.text, word.place, note, result.unresolved)


@frozen(slots=False, eq=False, repr=False)
class ManifestFormat(Value):
    """A kind of file that starts engines.

    ``read`` yields an `Invocation` for every engine that a file of this kind starts, and nothing for a file of
    another kind; ManifestError when the file is of this kind and cannot be read. ``endings`` are the endings of
    file names that are tried. ``priority`` orders formats: of those that read a file, the first one's
    invocations count.
    """

    name: str
    read: Callable[[ManifestFile], Iterable[Invocation]] = field(repr=False)
    endings: tuple[str, ...] = (".yaml", ".yml", ".json")
    priority: int = 50
    sources: tuple[str, ...] = ()
