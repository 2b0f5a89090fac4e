"""The span scanner against the reference parser, over documents in random layouts.

The data of a document comes from hypothesis; how it is written (headers, dotted keys, inline tables, arrays
of tables, kinds of quotes, blanks, comments, line ends) comes from a random generator with a drawn seed, so
that a failure shrinks its data quickly and stays reproducible.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import tomli
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servelint.spec.spans import LineIndex, Path, Span, SpanMap, scan

# A scalar is its source text, which tells it from arrays and tables.
Tree = dict[str, Any]

PRINTABLE = st.characters(min_codepoint=0x20, exclude_characters="\x7f", exclude_categories=["Cs"])
ESCAPES = st.sampled_from([r"\b", r"\t", r"\n", r"\f", r"\r", r"\e", r"\"", r"\\", r"\x41", r"\u00e9", r"\U0001F600"])
BASIC_PIECE = PRINTABLE.filter(lambda c: c not in '"\\') | ESCAPES
LONG_BASIC_PIECE = BASIC_PIECE | st.sampled_from(["\n", '"x', '""x', "\\\n  ", "\\  \n\n\t", "'''", "#", "'"])
LITERAL_PIECE = PRINTABLE.filter(lambda c: c != "'")
LONG_LITERAL_PIECE = LITERAL_PIECE | st.sampled_from(["\n", "'x", "''x", '"""', "\\", "#", '"'])
NUMBERS = [
    "0",
    "-17",
    "+99",
    "1_000",
    "0xDEAD_beef",
    "0o755",
    "0b1101",
    "3.14",
    "-0.01",
    "5e+22",
    "1E6",
    "1_0.0_1",
    "inf",
    "-inf",
    "+nan",
    "true",
    "false",
]
DATES = [
    "1979-05-27T07:32:00Z",
    "1979-05-27t07:32:00.999999",
    "1979-05-27 07:32:00-07:00",
    "1979-05-27 07:32",
    "1979-05-27 23:59:59.25",
    "1979-05-27",
    "07:32:00",
    "00:32",
    "23:59:59.5",
]
SCALARS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(NUMBERS),
    st.sampled_from(DATES),
    st.lists(BASIC_PIECE, max_size=6).map(lambda p: f'"{"".join(p)}"'),
    st.lists(LITERAL_PIECE, max_size=6).map(lambda p: f"'{''.join(p)}'"),
    st.tuples(st.lists(LONG_BASIC_PIECE, max_size=8), st.integers(0, 2)).map(
        lambda p: f'"""{"".join(p[0])}{p[1] * chr(34)}"""'
    ),
    st.tuples(st.lists(LONG_LITERAL_PIECE, max_size=8), st.integers(0, 2)).map(
        lambda p: f"'''{''.join(p[0])}{p[1] * chr(39)}'''"
    ),
)
NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "p50", "a-b", "1", "1.5", "true", "é", "", '"', "'", "#", "=", "]", "\t", "x y"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner, max_size=4)
        | st.lists(st.dictionaries(NAMES, inner, max_size=3), min_size=1, max_size=3)
    ),
    max_leaves=12,
)
TREES = st.dictionaries(NAMES, VALUES, max_size=6)


class Writer:
    """Writes one tree as TOML, choosing at random among all forms that keep its meaning."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.comments = 0

    def document(self, tree: Tree) -> str:
        body, sections = self.table(tree, ())
        lines = [*body, *(line for section in sections for line in section)]
        text = "".join(line for each in lines for line in (*self.filler(), each))
        if self.often(0.3):
            text = text.removesuffix("\n")
        return self.line_ends(text)

    def line_ends(self, text: str) -> str:
        kind = self.random.randrange(3)
        if kind == 0:
            return text
        return re.sub("\n", lambda _: "\r\n" if kind == 1 or self.often(0.5) else "\n", text)

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def blank(self) -> str:
        return self.random.choice(["", "", " ", " ", "\t", "  \t"])

    def comment(self) -> str:
        self.comments += 1
        return "#" + self.random.choice(["", " note", " é😀 [x] = {", ' "open', " '''", "# a = 1", "\ttab \x85\u2028."])

    def filler(self) -> Iterator[str]:
        while self.often(0.15):
            yield self.blank() + (self.comment() if self.often(0.6) else "") + "\n"

    def gap(self) -> str:
        """What may stand between the parts of an array or inline table."""
        if self.often(0.7):
            return self.blank()
        return self.blank() + (self.comment() if self.often(0.5) else "") + "\n" + self.gap()

    def end(self) -> str:
        return self.blank() + (self.comment() if self.often(0.2) else "") + "\n"

    def key_part(self, name: str) -> str:
        forms = [self.basic(name)]
        if not re.search(r"['\x00-\x08\x0a-\x1f\x7f]", name):
            forms.append(f"'{name}'")
        if re.fullmatch("[A-Za-z0-9_-]+", name):
            forms += [name] * 4
        return self.random.choice(forms)

    def basic(self, name: str) -> str:
        return '"' + "".join(self.basic_character(c) for c in name) + '"'

    def basic_character(self, character: str) -> str:
        if character in '"\\':
            return "\\" + character
        if (character < " " and character != "\t") or character == "\x7f" or self.often(0.1):
            code = ord(character)
            forms = [f"\\U{code:08x}"]
            if code < 0x10000:
                forms.append(f"\\u{code:04X}")
            if code < 0x100:
                forms.append(f"\\x{code:02x}")
            return self.random.choice(forms)
        return character

    def key(self, names: tuple[str, ...]) -> str:
        text = self.key_part(names[0])
        for name in names[1:]:
            text += f"{self.blank()}.{self.blank()}{self.key_part(name)}"
        return text

    def pair(self, names: tuple[str, ...], value: Any) -> str:
        return f"{self.key(names)}{self.blank()}={self.blank()}{self.value(value)}"

    def value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return self.container("[]", [self.value(each) for each in value])
        return self.container("{}", [self.pair(names, each) for names, each in self.flat(value, ())])

    def container(self, brackets: str, items: list[str]) -> str:
        text = brackets[0] + self.gap()
        for index, item in enumerate(items):
            last = index == len(items) - 1
            text += item + self.gap() + ("," + self.gap() if not last or self.often(0.3) else "")
        return text + brackets[1]

    def flat(self, table: Tree, above: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
        """Pairs of an inline table or of dotted keys: sub-tables as values or as dotted keys, shuffled."""
        pairs: list[tuple[tuple[str, ...], Any]] = []
        for name, value in table.items():
            if isinstance(value, dict) and value and self.often(0.4):
                pairs += self.flat(value, (*above, name))
            else:
                pairs.append(((*above, name), value))
        self.random.shuffle(pairs)
        return pairs

    def table(self, table: Tree, above: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
        """Lines of a table's body, and the sections below it, which may come in any order."""
        pairs: list[tuple[tuple[str, ...], Any]] = []
        sections: list[list[str]] = []
        for name, value in table.items():
            is_array_of_tables = isinstance(value, list) and value and all(isinstance(v, dict) for v in value)
            if isinstance(value, dict) and self.often(0.6):
                sections.append(self.section(value, (*above, name)))
            elif is_array_of_tables and self.often(0.7):
                elements = [self.element(each, (*above, name)) for each in value]
                sections.append([line for element in elements for line in element])
            elif isinstance(value, dict) and value and self.often(0.6):
                pairs += self.flat(value, (name,))
            else:
                pairs.append(((name,), value))
        self.random.shuffle(pairs)
        self.random.shuffle(sections)
        return [self.blank() + self.pair(names, each) + self.end() for names, each in pairs], sections

    def section(self, table: Tree, names: tuple[str, ...]) -> list[str]:
        body, sections = self.table(table, names)
        if body or not sections or self.often(0.5):
            own = [self.header("[", names, "]"), *body]
            # A table may be defined after its sub-tables.
            sections.insert(self.random.randint(0, len(sections)) if self.often(0.3) else 0, own)
        return [line for section in sections for line in section]

    def element(self, table: Tree, names: tuple[str, ...]) -> list[str]:
        body, sections = self.table(table, names)
        return [self.header("[[", names, "]]"), *body, *(line for section in sections for line in section)]

    def header(self, opening: str, names: tuple[str, ...], closing: str) -> str:
        return self.blank() + opening + self.blank() + self.key(names) + self.blank() + closing + self.end()


SEEDS = st.integers(0, 2**32)


@st.composite
def documents(draw: st.DrawFn) -> str:
    return Writer(draw(SEEDS)).document(draw(TREES))


def children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def every_path(value: Any, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for part, child in children(value):
        yield (*above, part), child
        yield from every_path(child, (*above, part))


def leaves(value: Any) -> dict[Path, str]:
    """Leaf paths with the `repr` of their values, which tells 1 from true and makes NaN equal to itself."""
    return {path: repr(child) for path, child in every_path(value) if not any(children(child))}


def cut(text: str, span: Span | None) -> str:
    assert span is not None
    return text[span.start : span.end]


def reparsed(text: str) -> str:
    return repr(tomli.loads(f"x = {text}")["x"])


def inside(inner: Span, outer: Span) -> bool:
    return outer.start < inner.start and inner.end < outer.end


def is_header_table(spans: SpanMap, path: Path) -> bool:
    """Whether an empty table has no value of its own to point at, because it is written as a header."""
    return spans.value(path) is None and bool(spans.headers(path))


@settings(max_examples=300, deadline=None)
@given(documents())
def test_every_leaf_has_a_span_that_reparses_to_its_value(text: str) -> None:
    spans = scan(text)
    expected = {p: v for p, v in leaves(tomli.loads(text)).items() if not is_header_table(spans, p)}
    assert {path: reparsed(cut(text, spans.value(path))) for path in spans.paths()} == expected


@settings(max_examples=150, deadline=None)
@given(documents())
def test_every_container_value_reparses_to_its_value(text: str) -> None:
    spans = scan(text)
    for path, value in every_path(tomli.loads(text)):
        span = spans.value(path)
        if span is not None:
            assert reparsed(cut(text, span)) == repr(value)


@settings(max_examples=150, deadline=None)
@given(documents(), st.randoms(use_true_random=False))
def test_replacing_a_scalar_changes_that_path_only(text: str, random: Random) -> None:
    before = tomli.loads(text)
    scalars = [path for path, value in every_path(before) if not isinstance(value, dict | list)]
    assume(scalars)
    path = random.choice(scalars)
    span = scan(text).value(path)
    assert span is not None
    after = tomli.loads(f'{text[: span.start]}"replaced by a test"{text[span.end :]}')
    assert leaves(after) == {**leaves(before), path: repr("replaced by a test")}


@settings(max_examples=150, deadline=None)
@given(documents())
def test_every_key_has_a_span_that_reparses_to_it(text: str) -> None:
    spans = scan(text)
    for path, _ in every_path(tomli.loads(text)):
        if isinstance(path[-1], str):
            assert tomli.loads(f"{cut(text, spans.key(path))} = 0") == {path[-1]: 0}


@settings(max_examples=150, deadline=None)
@given(documents())
def test_spans_nest_or_are_apart(text: str) -> None:
    spans = scan(text)
    paths = [path for path, _ in every_path(tomli.loads(text))]
    keys = {span for path in paths if (span := spans.key(path))}
    headers = {span for path in paths for span in spans.headers(path)}
    scalars = {span for path in spans.paths() if (span := spans.value(path)) and text[span.start] not in "[{"}
    comments = {comment.span for comment in spans.comments}
    for apart in (sorted(keys | scalars | comments), sorted(headers | scalars | comments)):
        assert all(left.end <= right.start for left, right in pairwise(apart))
    for key in keys:
        for header in headers:
            assert inside(key, header) or key.end <= header.start or header.end <= key.start


@settings(max_examples=150, deadline=None)
@given(documents())
def test_headers_are_found_for_the_tables_they_open(text: str) -> None:
    spans = scan(text)
    for path, value in every_path(tomli.loads(text)):
        for header in spans.headers(path):
            (name,) = tomli.loads(cut(text, header))
            assert name == path[0]
        if isinstance(path[-1], int):
            assert len(spans.headers(path)) == (0 if spans.value(path) else 1)
        elif isinstance(value, list) and spans.value(path) is None:
            assert len(spans.headers(path)) == len(value)


@settings(max_examples=150, deadline=None)
@given(SEEDS, TREES)
def test_every_comment_is_found_and_nothing_else(seed: int, tree: Tree) -> None:
    writer = Writer(seed)
    text = writer.document(tree)
    comments = scan(text).comments
    assert len(comments) == writer.comments
    assert all(cut(text, comment.span) == comment.text for comment in comments)
    bare = text
    for comment in reversed(comments):
        bare = bare[: comment.span.start] + bare[comment.span.end :]
    assert repr(tomli.loads(bare)) == repr(tomli.loads(text))
    assert scan(bare).comments == ()


@settings(max_examples=150, deadline=None)
@given(documents())
def test_a_pair_put_at_the_insert_point_lands_in_that_table(text: str) -> None:
    before = tomli.loads(text)
    spans = scan(text)
    headers = {header for path, _ in every_path(before) for header in spans.headers(path)}
    for path, value in [((), before), *every_path(before)]:
        point = spans.insert_point(path)
        if not isinstance(value, dict):
            assert point is None
            continue
        if point is None:
            assert spans.value(path) is None
            assert not spans.headers(path)
            # Only a header passes through it.
            key = spans.key(path)
            assert key is not None
            assert any(inside(key, header) for header in headers)
            continue
        anchor = next(n for n in range(len(path), -1, -1) if n == 0 or spans.value(path[:n]) or spans.headers(path[:n]))
        dotted = ".".join(Writer(0).basic(str(part)) for part in (*path[anchor:], "added by a test"))
        if spans.value(path[:anchor]):
            new = f", {dotted} = 1" if value else f"{dotted} = 1"
        elif point == 0:
            new = f"{dotted} = 1\n"
        else:
            new = f"\n{dotted} = 1"
        after = leaves(tomli.loads(text[:point] + new + text[point:]))
        expected = {**leaves(before), (*path, "added by a test"): "1"}
        if not value:
            expected.pop(path, None)
        assert after == expected


@settings(max_examples=75, deadline=None)
@given(documents())
def test_a_byte_order_mark_shifts_every_span_by_one(text: str) -> None:
    plain, marked = scan(text), scan("\ufeff" + text)

    def shifted(span: Span | None) -> Span | None:
        return span and Span(span.start + 1, span.end + 1)

    for path, _ in every_path(tomli.loads(text)):
        assert marked.key(path) == shifted(plain.key(path))
        assert marked.value(path) == shifted(plain.value(path))
    assert [c.span for c in marked.comments] == [shifted(c.span) for c in plain.comments]


@settings(max_examples=150, deadline=None)
@given(documents())
def test_best_is_inside_of_its_parent_or_at_its_key(text: str) -> None:
    spans = scan(text)
    for path, _ in every_path(tomli.loads(text)):
        assert spans.best(path) == (spans.value(path) or spans.key(path))
        assert spans.best((*path, "not in the document", 3)) == spans.best(path)


@settings(deadline=None)
@given(st.text(st.sampled_from("\n\r\x0b\x85\u2028é😀a\t"), max_size=30), st.booleans())
def test_positions_match_a_plain_split_into_lines(text: str, marked: bool) -> None:
    mark = "\ufeff" if marked else ""
    index = LineIndex(mark + text)
    lines = text.split("\n")
    assert len(index) == len(lines)
    offset = len(mark)
    for number, line in enumerate(lines, 1):
        is_last = number == len(lines)
        assert index.line_text(number) == (line if is_last else line.removesuffix("\r"))
        for column in range(1, len(line) + 2):
            assert index.position(offset + column - 1) == (number, column)
        offset += len(line) + 1


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(st.sampled_from("ab=.\"'[]{},#\n\\ u0-:T")))
def test_text_that_is_no_toml_ends_in_spans_or_a_value_error(text: str) -> None:
    try:
        spans = scan(text)
    except ValueError:
        return
    for path in spans.paths():
        span = spans.value(path)
        assert span is not None
        assert 0 <= span.start < span.end <= len(text)
