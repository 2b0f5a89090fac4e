"""Where each key, value, header and comment of a TOML document sits in its text.

A finding points at the smallest value that causes it and a fix replaces exactly that text, but a TOML parser
returns values without positions. This scanner reads the same text a second time and keeps only positions:
validity and values stay with the parser, so `scan` is meant for text that `tomli` has accepted, TOML 1.1
layouts included. It works a statement at a time with compiled patterns and an explicit stack, so a deeply
nested document costs no Python recursion.

Offsets count code points of the text as given, a byte order mark and carriage returns included, and spans are
half open. `LineIndex` turns an offset into a line and a column.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Comment", "LineIndex", "Path", "Span", "SpanMap", "scan"]

Path = tuple[str | int, ...]
"""Keys from the root of the document down; an `int` indexes an array or an array of tables."""


class Span(NamedTuple):
    """Half-open range of code-point offsets, `text[start:end]`."""

    start: int
    end: int


class Comment(NamedTuple):
    """One comment: `text` is its exact source, from the `#` up to the line break."""

    span: Span
    text: str


_BOM = "\ufeff"
_GAP = r"[ \t]*+"
_BASIC = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LITERAL = r"'[^']*+'"
_KEY_PART = rf"[A-Za-z0-9_-]++|{_BASIC}|{_LITERAL}"
# A whole dotted key, read loosely: dots count as bare characters and blanks as long as the key goes on.
_KEY = rf"(?:[A-Za-z0-9_.-]++|{_BASIC}|{_LITERAL}|[ \t]++(?![ \t=\]]))++"
# A multi-line string may end in five quotes: two of its own, then the delimiter.
_LONG_BASIC = r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"{3,5}+'
_LONG_LITERAL = r"'''[^']*+(?:'(?!'')[^']*+)*+'{3,5}+"
# The one scalar with a space inside is a date and time; everything else bare ends at a delimiter.
_BARE = r"(?:[0-9-]{10} (?=[0-9]{2}:))?[^\s\[\]{},#]++"
_SCALAR = rf"{_LONG_BASIC}|{_LONG_LITERAL}|{_BASIC}|{_LITERAL}|{_BARE}"
_COMMENT = r"(?P<comment>#[^\r\n]*+)"
# Commas only separate, so they are skipped like blanks, whatever they stand in.
_SKIP = r"[ \t\r\n,]*+"

# What can start a statement or go on with an inline table. The name of the last group that took part tells
# what was found: a key, with a bracket before it in a header, or a comment; none is the end. The patterns are
# few and short because compiling them is most of what importing this module costs.
_KEYED = re.compile(
    rf"{_SKIP}(?:(?P<bracket>\[\[?+)?+{_GAP}(?P<key>{_KEY}){_GAP}(?:=|\]\]?)|{_COMMENT}|\}}|\Z)", re.DOTALL
)
# What can stand after an equals sign or go on with an array.
_VALUE = re.compile(rf"{_SKIP}(?:(?P<scalar>{_SCALAR})|(?P<opener>[\[{{])|{_COMMENT}|\])", re.DOTALL)
_KEY_PARTS = re.compile(_KEY_PART, re.DOTALL)
_ESCAPE = re.compile(r"\\(x..|u.{4}|U.{8}|.)")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}


class _Node:
    """What is known of one path. Offsets stay plain tuples until someone asks for a `Span`."""

    __slots__ = ("children", "elements", "end", "headers", "key", "value")

    def __init__(self, key: tuple[int, int] | None) -> None:
        self.key = key
        self.value: tuple[int, int] | None = None
        self.children: dict[str | int, _Node] | None = None
        self.headers: list[tuple[int, int]] | None = None
        self.elements = 0
        """Tables opened so far by `[[...]]`; 0 when the node is no array of tables."""
        self.end = -1
        """End of the last pair written in this table's body or below it by a dotted key; -1 without one."""


class SpanMap:
    """Positions of a scanned document, by path; an unknown path gives nothing rather than an error."""

    __slots__ = ("_root", "_text", "comments")

    def __init__(self, text: str, root: _Node, comments: tuple[Comment, ...]) -> None:
        self._text = text
        self._root = root
        self.comments: tuple[Comment, ...] = comments
        """Every comment in document order, those inside arrays and inline tables included."""

    def key(self, path: Path) -> Span | None:
        """Span of the key part that defines `path`, quotes included.

        Each prefix of a dotted key or header has its own part. A table's own header wins over a header that
        only passes through it. An array of tables has the part in its first `[[...]]`, and each element the
        part in its own; an element of an array value has none.
        """
        node = self._find(path)
        return None if node is None or node.key is None else Span(*node.key)

    def value(self, path: Path) -> Span | None:
        """Span of a scalar, array or inline table, delimiters included; `None` for tables made by headers."""
        node = self._find(path)
        return None if node is None or node.value is None else Span(*node.value)

    def headers(self, path: Path) -> tuple[Span, ...]:
        """Spans of a table's header, brackets included, or of all headers of an array of tables."""
        node = self._find(path)
        return () if node is None or node.headers is None else tuple(Span(*span) for span in node.headers)

    def best(self, path: Path) -> Span:
        """The narrowest place to point at for `path`: its value, else its key (in its header, for a table).

        A path that is not in the document gets the best span of its nearest ancestor that is, and the root
        `Span(0, 0)`.
        """
        node = self._walk(path)[-1]
        return Span(*(node.value or node.key or (0, 0)))

    def paths(self) -> Iterator[Path]:
        """Paths of all leaves: scalars, and arrays and inline tables with nothing in them."""
        pending: list[tuple[Path, _Node]] = [((), self._root)]
        while pending:
            path, node = pending.pop()
            if node.children:
                pending.extend(((*path, part), child) for part, child in reversed(node.children.items()))
            elif node.value is not None:
                yield path

    def insert_point(self, table_path: Path) -> int | None:
        """Offset after the last pair of a table, where another pair can be added.

        - The root, a table with a header, a table made by dotted keys: the end of the line of its last pair,
          else of its header, past a trailing comment. A line break and the pair go there; for dotted keys
          the pair is written from the nearest header on.
        - A root without pairs: the start of the document, where the pair comes before the line break.
        - An inline table: the end of its last value, where a comma and the pair go, or just inside the brace
          when it is empty.
        - `None` for what takes no pair: values, arrays, unknown paths, and tables that exist only through the
          headers of their sub-tables.
        """
        nodes = self._walk(table_path)
        node = nodes[-1]
        if len(nodes) <= len(table_path):
            return None
        if any(above.value is not None for above in nodes):
            return self._inline_insert_point(node)
        if node is self._root and node.end < 0:
            return len(_BOM) if self._text.startswith(_BOM) else 0
        end = node.end
        if end < 0 and node.headers and not node.elements:
            end = node.headers[0][1]
        return None if end < 0 else _end_of_line(self._text, end)

    def _inline_insert_point(self, node: _Node) -> int | None:
        end = 0
        if node.value is not None:
            if self._text[node.value[0]] != "{":
                return None
            end = node.value[0] + 1
        pending = list((node.children or {}).values())
        while pending:
            child = pending.pop()
            if child.value is not None:
                end = max(end, child.value[1])
            elif child.children:
                pending.extend(child.children.values())
        return end

    def _find(self, path: Path) -> _Node | None:
        nodes = self._walk(path)
        return nodes[-1] if len(nodes) > len(path) else None

    def _walk(self, path: Path) -> list[_Node]:
        """The nodes along `path` from the root down, as far as the document has them."""
        nodes = [self._root]
        for part in path:
            child = (nodes[-1].children or {}).get(part)
            if child is None:
                break
            nodes.append(child)
        return nodes


class LineIndex:
    """Lines and columns of a text, both counted from 1, columns in code points.

    Lines end at a line feed, with or without a carriage return before it. A leading byte order mark takes no
    column and is left out of the first line's text.
    """

    __slots__ = ("_starts", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        """Count of lines; a final line break opens one more, empty line."""
        return len(self._lines())

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a code-point offset, the end of the text included; else a `ValueError`."""
        if not 0 <= offset <= len(self._text):
            raise ValueError(f"offset {offset} is outside of the text, which has {len(self._text)} characters")
        starts = self._lines()
        line = max(bisect_right(starts, offset), 1)
        return line, max(offset - starts[line - 1], 0) + 1

    def line_text(self, line: int) -> str:
        """Text of a line without its line break; a `ValueError` when there is no such line."""
        starts = self._lines()
        if not 1 <= line <= len(starts):
            raise ValueError(f"line {line} is outside of the text, which has {len(starts)} lines")
        start = starts[line - 1]
        return self._text[start : _end_of_line(self._text, start)]

    def _lines(self) -> list[int]:
        if self._starts is None:
            starts = [len(_BOM) if self._text.startswith(_BOM) else 0]
            found = self._text.find("\n")
            while found >= 0:
                starts.append(found + 1)
                found = self._text.find("\n", found + 1)
            self._starts = starts
        return self._starts


def scan(text: str) -> SpanMap:
    """Positions of everything in a document that the parser has accepted.

    The text may still have its byte order mark; offsets then count it. Text that is not TOML either raises
    `ValueError` or gives spans without meaning, so parse first.
    """
    root = table = _Node(None)
    pairs = root.children = {}
    comments: list[Comment] = []
    next_key, next_value = _KEYED.match, _VALUE.match
    pos = len(_BOM) if text.startswith(_BOM) else 0
    while True:
        found = next_key(text, pos)
        if found is None:
            raise ValueError(f"no TOML statement at offset {pos}")
        pos = found.end()
        kind = found.lastgroup
        if kind is None:
            return SpanMap(text, root, tuple(comments))
        if kind == "comment":
            comments.append(_comment(found))
            continue
        if found["bracket"]:
            table = _open_table(root, text, found)
            pairs = _children(table)
            continue
        name = found["key"]
        dotted: list[_Node] = []
        if "." in name or name[0] in "\"'":
            *dotted, node = _descend(table, text, *found.span("key"))
        else:
            node = pairs[name] = _Node(found.span("key"))
        found = next_value(text, pos)
        if found is None or found.lastgroup is None:
            raise ValueError(f"no TOML value at offset {pos}")
        pos = found.end()
        if found.lastgroup == "scalar":
            node.value = found.span("scalar")
        else:
            pos = _scan_container(node, text, pos - 1, comments)
        table.end = pos
        for prefix in dotted:
            prefix.end = pos


def _open_table(root: _Node, text: str, found: re.Match[str]) -> _Node:
    """The table that a header opens, with its key and header noted."""
    node = _descend(root, text, *found.span("key"))[-1]
    *_, last = _KEY_PARTS.finditer(text, *found.span("key"))
    header = (found.start("bracket"), found.end())
    if found["bracket"] == "[[":
        array = node
        node = _children(array)[array.elements] = _Node(last.span())
        array.elements += 1
        array.headers = array.headers or []
        array.headers.append(header)
    node.key = last.span()
    node.headers = [header]
    return node


def _descend(node: _Node, text: str, start: int, end: int) -> list[_Node]:
    """The nodes that the key in `text[start:end]` names below `node`, made where they are new."""
    chain: list[_Node] = []
    for found in _KEY_PARTS.finditer(text, start, end):
        if node.elements and node.children:
            node = node.children[node.elements - 1]
        name = found[0]
        if name[0] in "\"'":
            name = _unquote(name)
        children = _children(node)
        child = children.get(name)
        if child is None:
            child = children[name] = _Node(found.span())
        chain.append(child)
        node = child
    return chain


def _scan_container(node: _Node, text: str, start: int, comments: list[Comment]) -> int:
    """Note what is inside the array or inline table that opens at `start`; returns the offset after it."""
    enclosing: list[tuple[_Node, int]] = []
    pos = start + 1
    while True:
        child = None
        if text[start] == "[":
            found = _VALUE.match(text, pos)
            if found and found.lastgroup and found.lastgroup != "comment":
                inside = _children(node)
                child = inside[len(inside)] = _Node(None)
        else:
            found = _KEYED.match(text, pos)
            if found and found.lastgroup == "key":
                child = _descend(node, text, *found.span("key"))[-1]
                found = _VALUE.match(text, found.end())
        if found is None:
            raise ValueError(f"no TOML value at offset {pos}")
        pos = found.end()
        if found.lastgroup == "comment":
            comments.append(_comment(found))
        elif child is None:
            node.value = (start, pos)
            if not enclosing:
                return pos
            node, start = enclosing.pop()
        elif found.lastgroup == "scalar":
            child.value = found.span("scalar")
        else:
            enclosing.append((node, start))
            node, start = child, pos - 1


def _children(node: _Node) -> dict[str | int, _Node]:
    if node.children is None:
        node.children = {}
    return node.children


def _comment(found: re.Match[str]) -> Comment:
    return Comment(Span(*found.span("comment")), found["comment"])


def _unquote(part: str) -> str:
    """The key that a quoted key part stands for."""
    inner = part[1:-1]
    if part[0] == "'" or "\\" not in inner:
        return inner
    return _ESCAPE.sub(_unescape, inner)


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)


def _end_of_line(text: str, offset: int) -> int:
    """Offset of the line break that ends the line of `offset`, or of the end of the text."""
    end = text.find("\n", offset)
    if end < 0:
        return len(text)
    return end - 1 if end > offset and text[end - 1] == "\r" else end
