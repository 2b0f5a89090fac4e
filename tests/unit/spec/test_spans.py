"""Hard hand-made documents, each with the source text of every leaf, and the promises of the span map."""

from collections.abc import Iterator
from typing import Any

import pytest
import tomli

from servelint.spec.spans import LineIndex, Path, Span, SpanMap, scan

Leaves = dict[Path, str]

DOCUMENTS: dict[str, tuple[str, Leaves]] = {
    "nothing": ("", {}),
    "blank lines and a comment": ("\n  \n# only this\n\t\n", {}),
    "one pair without a line end": ("a=1", {("a",): "1"}),
    "blanks around everything": ("\t a \t = \t 1 \t # c", {("a",): "1"}),
    "bare keys that look like values": (
        "1 = 2\n-1 = 3\ntrue = false\ninf = nan\n1979-05-27 = 1979-05-27\n",
        {
            ("1",): "2",
            ("-1",): "3",
            ("true",): "false",
            ("inf",): "nan",
            ("1979-05-27",): "1979-05-27",
        },
    ),
    "a dotted key that looks like a float": ("1.5 = 1.5\n", {("1", "5"): "1.5"}),
    "quoted keys": (
        "'' = 1\n\"a.b\" = 2\n'c\"d' = 3\n\"e'f\" = 4\n\" = \" = 5\n'#' = 6\n",
        {("",): "1", ("a.b",): "2", ('c"d',): "3", ("e'f",): "4", (" = ",): "5", ("#",): "6"},
    ),
    "escapes in keys": (
        r'"\"" = 1' "\n" r'"\\" = 2' "\n" r'"\u00e9\U0001F600\x41\e\t" = 3' "\n" r"'\n' = 4" "\n",
        {('"',): "1", ("\\",): "2", ("é😀A\x1b\t",): "3", ("\\n",): "4"},
    ),
    "dotted keys with blanks and quotes": (
        'a . "b" . \'c\' = 1\na."b.c"=2\n"x y"\t.\t"]" = 3\n',
        {("a", "b", "c"): "1", ("a", "b.c"): "2", ("x y", "]"): "3"},
    ),
    "dotted keys out of order": (
        "a.x = 1\nb.x = 2\na.y.z = 3\nb.y = 4\na.y.w = 5\n",
        {
            ("a", "x"): "1",
            ("a", "y", "z"): "3",
            ("a", "y", "w"): "5",
            ("b", "x"): "2",
            ("b", "y"): "4",
        },
    ),
    "a table after its sub-tables": (
        "[a.b.c]\nx = 1\n[a]\nx = 2\n[a.b]\nx = 3\n",
        {("a", "b", "c", "x"): "1", ("a", "x"): "2", ("a", "b", "x"): "3"},
    ),
    "interleaved tables": (
        "[a.x]\nv = 1\n[b]\nv = 2\n[a.y]\nv = 3\n[b.x]\nv = 4\n",
        {("a", "x", "v"): "1", ("a", "y", "v"): "3", ("b", "v"): "2", ("b", "x", "v"): "4"},
    ),
    "headers with blanks, quotes and comments": (
        '[ a . \'b.c\' ] # first\nx = 1\n\t["]"."#"]# second\nx = 2\n',
        {("a", "b.c", "x"): "1", ("]", "#", "x"): "2"},
    ),
    "dotted keys below a header, sub-table of a dotted table": (
        "[a]\nb.c = 1\nb.d.e = 2\n[a.b.f]\ng = 3\n",
        {("a", "b", "c"): "1", ("a", "b", "d", "e"): "2", ("a", "b", "f", "g"): "3"},
    ),
    "array of tables": (
        "[[a]]\nx = 1\n[[a]]\n[[a]]\nx = 3\n",
        {("a", 0, "x"): "1", ("a", 2, "x"): "3"},
    ),
    "arrays of tables inside of each other": (
        "[[a]]\n[[a.b]]\nx = 1\n[[a.b]]\nx = 2\n[a.b.c]\ny = 3\n[[a.b.c.d]]\nz = 4\n"
        "[[a]]\nx = 5\n[[a.b]]\nx = 6\n[a.e]\ny = 7\n",
        {
            ("a", 0, "b", 0, "x"): "1",
            ("a", 0, "b", 1, "x"): "2",
            ("a", 0, "b", 1, "c", "y"): "3",
            ("a", 0, "b", 1, "c", "d", 0, "z"): "4",
            ("a", 1, "x"): "5",
            ("a", 1, "b", 0, "x"): "6",
            ("a", 1, "e", "y"): "7",
        },
    ),
    "array of tables below a table that comes later": (
        "[[ a . 'b' ]]\nx = 1\n[a]\ny = 2\n[[a.b]]\nx = 3\n",
        {("a", "b", 0, "x"): "1", ("a", "b", 1, "x"): "3", ("a", "y"): "2"},
    ),
    "inline tables": (
        "a = { x = 1, y.z = 2, 'q r' = { s = {} } }\nb={}\n",
        {("a", "x"): "1", ("a", "y", "z"): "2", ("a", "q r", "s"): "{}", ("b",): "{}"},
    ),
    "inline table over several lines": (
        "a = { # open\n  x = 1, # one\n  # between, with } and ]\n  y . z = [\n  ],\n"
        "  w = { v = 2\n  , }\n  ,\n} # end\nb = 3\n",
        {("a", "x"): "1", ("a", "y", "z"): "[\n  ]", ("a", "w", "v"): "2", ("b",): "3"},
    ),
    "arrays": (
        "a = [1,2 , 3,]\nb = []\nc = [ [ ], [[4], 5] ]\nd=['x',\"y]\"]\n",
        {
            ("a", 0): "1",
            ("a", 1): "2",
            ("a", 2): "3",
            ("b",): "[]",
            ("c", 0): "[ ]",
            ("c", 1, 0, 0): "4",
            ("c", 1, 1): "5",
            ("d", 0): "'x'",
            ("d", 1): '"y]"',
        },
    ),
    "array over several lines": (
        "a = [ # open [\n\t1, # one, ]\n\n\t# between\n\t'#'\n\t, # late comma\n\t{ x = 2 },\n] # end\n",
        {("a", 0): "1", ("a", 1): "'#'", ("a", 2, "x"): "2"},
    ),
    "tables in arrays in tables": (
        "a = [{ b = [{ c = [[{ d = 1 }]] }] }, { b = [] }]\n",
        {("a", 0, "b", 0, "c", 0, 0, "d"): "1", ("a", 1, "b"): "[]"},
    ),
    "strings on one line": (
        'a = "" # c\nb = "\\"#\\\\" # c\nc = \'\'\nd = \'\\\' # c\ne = "=[]{},\'"\nf = \'"\'\n',
        {
            ("a",): '""',
            ("b",): '"\\"#\\\\"',
            ("c",): "''",
            ("d",): "'\\'",
            ("e",): '"=[]{},\'"',
            ("f",): "'\"'",
        },
    ),
    "long basic strings": (
        'a = """"""\nb = """\nx = 1\n[y]\n# no comment\n"""\nc = """\\\n  \\"""\\\\"""\nd = """a""b"c"""# c\n',
        {
            ("a",): '""""""',
            ("b",): '"""\nx = 1\n[y]\n# no comment\n"""',
            ("c",): '"""\\\n  \\"""\\\\"""',
            ("d",): '"""a""b"c"""',
        },
    ),
    "long basic strings that end in quotes": (
        'a = """""""\nb = """"""""\nc = """x""""\nd = """x"""""\ne = [""""x""""", """""""" ]\n',
        {
            ("a",): '"""""""',
            ("b",): '""""""""',
            ("c",): '"""x""""',
            ("d",): '"""x"""""',
            ("e", 0): '""""x"""""',
            ("e", 1): '""""""""',
        },
    ),
    "long literal strings": (
        "a = ''''''\nb = '''\n\"\"\"\\\n''x'y'''\nc = '''x''''\nd = ''''x'''''\ne = { f = '''''''' }\n",
        {
            ("a",): "''''''",
            ("b",): "'''\n\"\"\"\\\n''x'y'''",
            ("c",): "'''x''''",
            ("d",): "''''x'''''",
            ("e", "f"): "''''''''",
        },
    ),
    "numbers": (
        "a = +1_000\nb = 0xdead_BEEF\nc = 0o17\nd = 0b1\ne = -0.0\nf = 6.02e+23#c\ng = 1E-2\nh = -inf\ni = +nan\n",
        {
            ("a",): "+1_000",
            ("b",): "0xdead_BEEF",
            ("c",): "0o17",
            ("d",): "0b1",
            ("e",): "-0.0",
            ("f",): "6.02e+23",
            ("g",): "1E-2",
            ("h",): "-inf",
            ("i",): "+nan",
        },
    ),
    "dates and times": (
        "a = 1979-05-27T07:32:00Z\nb = 1979-05-27 07:32:00.5-07:00 # c\nc = 1979-05-27 # 07:32\n"
        "d = [1979-05-27 07:32, 1979-05-27,07:32:00.999 ]\ne = { f = 1979-05-27 00:00:00}\n",
        {
            ("a",): "1979-05-27T07:32:00Z",
            ("b",): "1979-05-27 07:32:00.5-07:00",
            ("c",): "1979-05-27",
            ("d", 0): "1979-05-27 07:32",
            ("d", 1): "1979-05-27",
            ("d", 2): "07:32:00.999",
            ("e", "f"): "1979-05-27 00:00:00",
        },
    ),
    "carriage returns": (
        "# c\r\n[a] # c\r\nx = 1\r\ny = [ # c\r\n 2,\r\n]\r\nz = '''\r\n3'''\r\nw = \"\"\"a \\\r\n  b\"\"\"\r\n",
        {
            ("a", "x"): "1",
            ("a", "y", 0): "2",
            ("a", "z"): "'''\r\n3'''",
            ("a", "w"): '"""a \\\r\n  b"""',
        },
    ),
    "code points beyond the basic plane": (
        "\"😀é\" = '😀' # 😀\nx = [ \"\u0301\", '\u2028' ] # \x85\ny = 1\n",
        {("😀é",): "'😀'", ("x", 0): '"\u0301"', ("x", 1): "'\u2028'", ("y",): "1"},
    ),
    "no blanks at all": (
        "[a]\nb={c=[1,{d=2}],e='f'}#g\n[[h]]#i\nj=[[],{}]",
        {
            ("a", "b", "c", 0): "1",
            ("a", "b", "c", 1, "d"): "2",
            ("a", "b", "e"): "'f'",
            ("h", 0, "j", 0): "[]",
            ("h", 0, "j", 1): "{}",
        },
    ),
    "the same name everywhere": (
        "a.a = { a = [{ a = 1 }] }\n[b.a]\na = 2\n[[b.b]]\na.a = 3\n[b.b.b]\na = 4\n",
        {
            ("a", "a", "a", 0, "a"): "1",
            ("b", "a", "a"): "2",
            ("b", "b", 0, "a", "a"): "3",
            ("b", "b", 0, "b", "a"): "4",
        },
    ),
    "deep nesting": (
        f"a = {'[' * 99}1{']' * 99}\nb = {'{c=' * 99}2{'}' * 99}\n",
        {("a", *[0] * 99): "1", ("b", *["c"] * 99): "2"},
    ),
}


def leaves(value: Any, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    parts: dict[Any, Any] = (
        value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    )
    for part, child in parts.items():
        yield from leaves(child, (*above, part))
    if not parts and above:
        yield above, value


def cut(text: str, span: Span | None) -> str:
    assert span is not None
    return text[span.start : span.end]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_values(name: str) -> None:
    text, expected = DOCUMENTS[name]
    spans = scan(text)
    assert {path: cut(text, spans.value(path)) for path in spans.paths()} == expected


@pytest.mark.parametrize("name", DOCUMENTS)
def test_values_agree_with_the_parser(name: str) -> None:
    text, expected = DOCUMENTS[name]
    parsed = {path: repr(value) for path, value in leaves(tomli.loads(text)) if value != {} or path in expected}
    assert {path: repr(tomli.loads(f"x = {source}")["x"]) for path, source in expected.items()} == parsed


@pytest.mark.parametrize("name", DOCUMENTS)
def test_keys_agree_with_the_parser(name: str) -> None:
    text, expected = DOCUMENTS[name]
    spans = scan(text)
    prefixes = {path[:end] for path in expected for end in range(1, len(path) + 1)}
    for path in prefixes:
        if isinstance(path[-1], str):
            assert tomli.loads(f"{cut(text, spans.key(path))} = 0") == {path[-1]: 0}


SPEC = """\
servelint = 1  # version

[deployment]  # who
name = "chat"

[hardware.efficiency]
memory = 0.82
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"  # eight of them
devices = 8

[workload]
prompt_tokens = { p50 = 900, p95 = 4000 }
output.mean = 300
output.max = 900 # cut there
[[workload.growth]]
name = "upload"
prompt_tokens = {}
[[workload.growth]]  # second
name = "agents"

[slo]
"""


@pytest.fixture
def spec() -> SpanMap:
    return scan(SPEC)


def at(needle: str, inside: str | None = None) -> Span:
    """Span of the only place of `needle`, or of `inside` in it."""
    assert SPEC.count(needle) == 1, needle
    start = SPEC.index(needle) + (needle.index(inside) if inside else 0)
    return Span(start, start + len(inside or needle))


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("servelint",), at("servelint")),
        (("deployment",), at("[deployment]", "deployment")),
        # Its own header wins over the one that passed through it first.
        (("hardware",), at("[hardware]", "hardware")),
        (("hardware", "efficiency"), at("[hardware.efficiency]", "efficiency")),
        (("workload", "prompt_tokens", "p95"), at("p95")),
        (("workload", "output"), at("output.mean", "output")),
        (("workload", "output", "max"), at("output.max", "max")),
        (("workload", "growth"), at('[[workload.growth]]\nname = "upload"', "growth")),
        (("workload", "growth", 0), at('[[workload.growth]]\nname = "upload"', "growth")),
        (("workload", "growth", 1), at("[[workload.growth]]  # second", "growth")),
    ],
)
def test_key(spec: SpanMap, path: Path, key: Span) -> None:
    assert spec.key(path) == key


def test_value_of_containers(spec: SpanMap) -> None:
    assert spec.value(("workload", "prompt_tokens")) == at("{ p50 = 900, p95 = 4000 }")
    assert spec.value(("workload",)) is None
    assert spec.value(("workload", "output")) is None
    assert spec.value(("workload", "growth")) is None


def test_headers(spec: SpanMap) -> None:
    first, second = at('[[workload.growth]]\nname = "upload"'), at("[[workload.growth]]  # second")
    width = len("[[workload.growth]]")
    assert spec.headers(("deployment",)) == (at("[deployment]"),)
    assert spec.headers(("hardware",)) == (at("[hardware]"),)
    assert spec.headers(("workload", "growth", 1)) == (Span(second.start, second.start + width),)
    assert spec.headers(("workload", "growth")) == (
        Span(first.start, first.start + width),
        Span(second.start, second.start + width),
    )
    assert spec.headers(("workload", "output")) == ()
    assert scan("[a.b]\n").headers(("a",)) == ()


@pytest.mark.parametrize(
    ("path", "best"),
    [
        ((), Span(0, 0)),
        (("hardware", "devices"), at("devices = 8", "8")),
        (("workload", "prompt_tokens"), at("{ p50 = 900, p95 = 4000 }")),
        (("workload", "prompt_tokens", "p99"), at("{ p50 = 900, p95 = 4000 }")),
        (("workload", "output"), at("output.mean", "output")),
        (("slo",), at("[slo]", "slo")),
        (("slo", "ttft", "p99"), at("[slo]", "slo")),
        (("workload", "growth", 1, "rate"), at("[[workload.growth]]  # second", "growth")),
        (("workload", "growth", 7), at('[[workload.growth]]\nname = "upload"', "growth")),
        (("engine", "name"), Span(0, 0)),
    ],
)
def test_best(spec: SpanMap, path: Path, best: Span) -> None:
    assert spec.best(path) == best


@pytest.mark.parametrize(
    ("path", "before"),
    [
        ((), "servelint = 1  # version"),
        (("deployment",), 'name = "chat"'),
        (("hardware",), "devices = 8"),
        (("hardware", "efficiency"), "memory = 0.82"),
        (("workload",), "output.max = 900 # cut there"),
        (("workload", "output"), "output.max = 900 # cut there"),
        (("workload", "prompt_tokens"), "{ p50 = 900, p95 = 4000"),
        (("workload", "growth", 0, "prompt_tokens"), "prompt_tokens = {"),
        (("workload", "growth", 1), 'name = "agents"'),
        (("slo",), "[slo]"),
    ],
)
def test_insert_point(spec: SpanMap, path: Path, before: str) -> None:
    point = spec.insert_point(path)
    assert point is not None
    end = at("prompt_tokens = {}", "prompt_tokens = {").end if before == "prompt_tokens = {" else at(before).end
    assert point == end


@pytest.mark.parametrize(
    "path",
    [
        ("servelint",),
        ("workload", "growth"),
        ("workload", "prompt_tokens", "p50"),
        ("engine",),
        ("workload", "growth", 2),
    ],
)
def test_nothing_can_be_put_into_what_is_no_table(spec: SpanMap, path: Path) -> None:
    assert spec.insert_point(path) is None


def test_insert_point_corner_cases() -> None:
    assert scan("[a.b]\nx = 1\n").insert_point(("a",)) is None
    assert scan("a = [1]\n").insert_point(("a",)) is None
    assert scan("a = [{}]\n").insert_point(("a", 0)) == len("a = [{")
    assert scan("a = { b.c = 1, d = 2, b.e = 3, }\n").insert_point(("a", "b")) == len("a = { b.c = 1, d = 2, b.e = 3")
    assert scan("a = { b.c = 1, d = 2, }\n").insert_point(("a", "b")) == len("a = { b.c = 1")
    assert scan("# c\n[a]\n").insert_point(()) == 0
    assert scan("\ufeff[a]\r\n").insert_point(()) == 1
    assert scan("\ufeff[a]  # c\r\n").insert_point(("a",)) == len("\ufeff[a]  # c")


def test_unknown_paths_have_nothing(spec: SpanMap) -> None:
    for path in [("engine",), ("servelint", "x"), ("workload", "growth", 2), ("workload", "growth", "0")]:
        assert spec.key(path) is None
        assert spec.value(path) is None
        assert spec.headers(path) == ()


def test_comments_in_order() -> None:
    text = '#\n[a] # one\r\nb = [ # two\n\'#\', # three\n]\nc = { # four\n}\nd = """\n# none\n""" #five'
    comments = scan(text).comments
    assert [c.text for c in comments] == ["#", "# one", "# two", "# three", "# four", "#five"]
    assert [cut(text, c.span) for c in comments] == [c.text for c in comments]


def test_byte_order_mark_counts_in_offsets() -> None:
    text = "\ufeffa = 1\n"
    spans = scan(text)
    assert spans.key(("a",)) == Span(1, 2)
    assert spans.value(("a",)) == Span(5, 6)


@pytest.mark.parametrize("text", ["a", "a = ", "a = ]", "= 1", "a = [", "[a", "a = {b}", '"\\uzzzz" = 1'])
def test_text_that_is_no_toml_is_refused_when_it_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError):
        scan(text)


class TestLineIndex:
    TEXT = "ab\r\n\n😀 = 1\r\nlast"

    @pytest.mark.parametrize(
        ("offset", "position"),
        [
            (0, (1, 1)),
            (2, (1, 3)),
            (3, (1, 4)),
            (4, (2, 1)),
            (5, (3, 1)),
            (7, (3, 3)),
            (12, (4, 1)),
            (16, (4, 5)),
        ],
    )
    def test_position(self, offset: int, position: tuple[int, int]) -> None:
        assert LineIndex(self.TEXT).position(offset) == position

    def test_lines(self) -> None:
        index = LineIndex(self.TEXT)
        assert [index.line_text(line) for line in range(1, len(index) + 1)] == ["ab", "", "😀 = 1", "last"]

    def test_byte_order_mark_takes_no_column(self) -> None:
        index = LineIndex("\ufeffab\ncd")
        assert [index.position(offset) for offset in (0, 1, 2, 4)] == [(1, 1), (1, 1), (1, 2), (2, 1)]
        assert index.line_text(1) == "ab"

    def test_empty_text_has_one_empty_line(self) -> None:
        index = LineIndex("")
        assert len(index) == 1
        assert index.position(0) == (1, 1)
        assert index.line_text(1) == ""

    def test_only_line_feeds_end_lines(self) -> None:
        assert len(LineIndex("a\rb\x0bc\u2028d\x85e")) == 1

    @pytest.mark.parametrize("offset", [-1, 17])
    def test_offsets_outside_of_the_text(self, offset: int) -> None:
        with pytest.raises(ValueError, match="outside"):
            LineIndex(self.TEXT).position(offset)

    @pytest.mark.parametrize("line", [0, 5])
    def test_lines_outside_of_the_text(self, line: int) -> None:
        with pytest.raises(ValueError, match="outside"):
            LineIndex(self.TEXT).line_text(line)
