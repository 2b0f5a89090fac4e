"""Specs in, problems out: all of a file at once, each at its place, with what was found and expected."""

from __future__ import annotations

import pytest

from servelint.manager import Plugins
from servelint.spec.document import MAX_BYTES, Document, parse


def read(text: str, plugins: Plugins) -> Document:
    return parse("spec.toml", text, plugins.policies)


def problems(text: str, plugins: Plugins) -> list[tuple[str, int, str]]:
    document = read(text, plugins)
    return [(p.code, document.place(p.path, on_key=p.on_key).line, p.message) for p in document.problems]


def test_the_smallest_spec(plugins: Plugins) -> None:
    document = read("servelint = 1\n", plugins)
    assert document.problems == []
    assert document.deployment is not None
    assert document.deployment.workload is None


def test_all_problems_of_a_file_at_once(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
acelerator = "nvidia/h100-sxm5-80gb"
devices = -3
host_memory = "80 GB/s"
[policy.batching]
max_sequence = 12
[policy.paging]
x = 1
[workload]
prompt_tokens = { p50 = 10, p99 = 5 }
[slo]
itl = { p98 = "5 ms" }
[[claim]]
metric = "throughput"
value = "24 GB"
[[claim]]
metric = "througput"
"""
    found = problems(text, plugins)
    assert {(code, line) for code, line, _ in found} == {
        ("SPEC002", 3),
        ("SPEC003", 4),
        ("SPEC003", 5),
        ("SPEC002", 7),
        ("SPEC004", 8),
        ("SPEC003", 11),
        ("SPEC002", 13),
        ("SPEC003", 16),
        ("SPEC003", 17),
        ("SPEC003", 18),
    }
    by_line = {line: message for _, line, message in found}
    assert "did you mean 'accelerator'" in by_line[3]
    assert "found the integer -3, expected a whole number from 1" in by_line[4]
    assert "80 GB/s" in by_line[5]
    assert "did you mean 'max_sequences'" in by_line[7]
    assert "no plugin provides the policy" in by_line[8]
    assert "p99 is 5, below p50 at 10" in by_line[11]
    assert "tok" in by_line[16]
    assert "did you mean 'throughput'" in by_line[18]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("servelint = 1\n[hardware]\naccelerator =\n", 3, 14, "not valid TOML"),
        ("servelint = 1\nx = 'a\n", 3, 1, "not valid TOML"),
        ("a = 1\na = 2\n", 2, 6, "not valid TOML"),
        ("servelint = 1\n[a]\n[a]\n", 3, 4, "not valid TOML"),
        ("\u00e9 = 1\n", 1, 1, "not valid TOML"),
    ],
)
def test_syntax_errors_have_a_place(text: str, line: int, column: int, words: str, plugins: Plugins) -> None:
    document = read(text, plugins)
    (problem,) = document.problems
    assert problem.code == "SPEC001"
    assert words in problem.message
    place = document.place(problem.path)
    assert (place.line, abs(place.column - column) <= 1) == (line, True)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("", 'the key "servelint" is missing'),
        ("servelint = 2", "reads spec version 1, found 2"),
        ("servelint = true", "reads spec version 1, found True"),
        ('servelint = "1"', "reads spec version 1, found '1'"),
    ],
)
def test_versions(head: str, words: str, plugins: Plugins) -> None:
    assert any(words in message for _, _, message in problems(head + "\n", plugins))


@pytest.mark.parametrize(
    "text",
    [
        "servelint = 1\nx = " + "[" * 5000 + "]" * 5000,
        "servelint = 1\nx = " + "{a=" * 3000 + "1" + "}" * 3000,
        "servelint = 1\nx = " + "9" * 5000,
        "servelint = 1\n" + "#" * MAX_BYTES,
        "\x00",
        "servelint = 1\n[" + ".".join("a" * 900) + "]",
    ],
    ids=["deep arrays", "deep tables", "long integer", "long file", "control character", "deep header"],
)
def test_absurd_text_is_a_problem_and_no_exception(text: str, plugins: Plugins) -> None:
    document = read(text, plugins)
    assert document.problems
    assert document.deployment is None
    for problem in document.problems:
        document.place(problem.path, on_key=problem.on_key)


def test_a_byte_order_mark_and_crlf_do_not_shift_places(plugins: Plugins) -> None:
    text = "\ufeffservelint = 1\r\n[hardware]\r\ndevices = 0\r\n"
    document = read(text, plugins)
    (problem,) = document.problems
    place = document.place(problem.path)
    assert (place.line, place.column, place.end_column) == (3, 11, 12)


def test_quantities_with_units(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
host_memory = "1 TiB"
network = { bandwidth = "400 Gbit/s", per = "device" }
[workload]
prompt_tokens = 8192
output_tokens = { p50 = 100 }
rate = "360 req/min"
[slo]
ttft = { p99 = "1500 ms" }
headroom = "20 %"
[[claim]]
metric = "throughput"
value = "2.4k tok/s"
[[claim]]
metric = "itl"
value = 0.02
"""
    deployment = read(text, plugins).deployment
    assert deployment is not None
    assert deployment.hardware.host_memory == 2**40
    assert deployment.hardware.network is not None
    assert deployment.hardware.network.bandwidth == 50e9
    assert deployment.workload is not None
    assert deployment.workload.rate == 6
    assert deployment.slo is not None
    assert deployment.slo.ttft == {"p99": 1.5}
    assert deployment.slo.headroom == pytest.approx(0.2)
    assert [c.value for c in deployment.claims] == [2400, 0.02]


def test_dotted_inline_and_header_forms_are_the_same_spec(plugins: Plugins) -> None:
    forms = (
        'servelint = 1\n[hardware]\naccelerator = "a"\n[policy.parallelism]\ntensor = 2\n',
        'servelint = 1\nhardware.accelerator = "a"\npolicy.parallelism.tensor = 2\n',
        'servelint = 1\nhardware = { accelerator = "a" }\npolicy = { parallelism = { tensor = 2 } }\n',
    )
    read_forms = [read(f, plugins).deployment for f in forms]
    assert read_forms[0] is not None
    assert read_forms[0] == read_forms[1] == read_forms[2]
