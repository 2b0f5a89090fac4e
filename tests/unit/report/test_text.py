"""The text report: carets under what they mean, also under tabs, wide characters and endless lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servelint.blame import PluginFault, Provider
from servelint.lint import Located, Report
from servelint.place import Place
from servelint.report.safe import width
from servelint.report.text import render
from servelint.rule import Finding, Severity


def snippet(report: Report) -> list[str]:
    """The lines of the first snippet, without its frame."""
    lines = render(report).splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith("|"))
    end = next(i for i in range(start + 1, len(lines)) if lines[i].endswith("|"))
    return lines[start + 1 : end]


def pointed(lines: list[str]) -> str:
    """The characters that the caret of a two-line snippet stands under, by columns of the terminal."""
    source, caret = lines[0].partition("| ")[2], lines[1].partition("| ")[2]
    begin, end = caret.index("^"), caret.rindex("^") + 1
    column, under = 0, ""
    for c in source:
        if begin <= column < end:
            under += c
        column += width(c)
    return under


@pytest.mark.parametrize(
    ("line", "under"),
    [
        ("devices = 0", "0"),
        ("\tdevices = \t0", "0"),
        ('"雪雪" = 0', '"雪雪"'),
        ('name = "雪雪é" # \u202e\ndevices = 0', "0"),
        ("devices = 0 # \x01"[:-2], "0"),
        ('sized_for = "雪 tok"', '"雪 tok"'),
        ("devices = [0,\n1]", "[0,"),
    ],
)
def test_the_caret_stands_under_the_value(line: str, under: str, checked: Any) -> None:
    table = "deployment" if "sized_for" in line else "hardware"
    report = checked(f"servelint = 1\n[{table}]\n{line}\n")
    found = next(f for f in report.findings if "雪雪é" not in f.finding.message and f.finding.path[-1] != "name")
    only = report._replace(files=(report.files[0]._replace(findings=(found,)),))
    assert pointed(snippet(only)) == under


@pytest.mark.parametrize("before", [0, 100, 139, 140, 1000, 200_000])
@pytest.mark.parametrize("after", [0, 1000])
def test_an_endless_line_is_cut_around_the_value(before: int, after: int, checked: Any) -> None:
    padding = f'name = "{"x" * before}", ' if before else ""
    tail = f" # {'y' * after}" if after else ""
    report = checked(f"servelint = 1\nhardware = {{ {padding}devices = 0 }}{tail}\n")
    found = next(f for f in report.findings if f.finding.path[-1] == "devices")
    lines = snippet(report._replace(files=(report.files[0]._replace(findings=(found,)),)))
    assert pointed(lines) == "0"
    assert max(map(len, lines)) < 170


def test_two_labels_on_one_line_and_on_two(checked: Any) -> None:
    report = checked("servelint = 1\n[hardware]\n\n\ndevices = 0\n")
    primary = Place(5, 11, 5, 12)
    same, other = (Place(5, 1, 5, 8), "this key"), (Place(2, 2, 2, 10), "in this table")
    finding = Finding(("hardware", "devices"), "no", severity=Severity.ERROR, code="TST001", name="t")
    located = Located("a.toml", finding, primary, (same, other))
    lines = snippet(report._replace(files=(report.files[0]._replace(findings=(located,)),)))
    assert lines == [
        "2 | [hardware]",
        "  |  -------- in this table",
        "..",
        "5 | devices = 0",
        "  |           ^",
        "  | ------- this key",
    ]


def test_a_finding_of_the_whole_file_has_no_snippet(checked: Any) -> None:
    text = render(checked("[hardware]\ndevices = 1\n"))
    assert '"servelint" is missing' in text
    assert "|" not in text


def test_hostile_names_and_values_stay_text(checked: Any) -> None:
    report = checked(
        'servelint = 1\n[hardware]\n"\\u001b]0;x" = 1 # \u202e##[error]\n', names=("::error::\x1b[2J\n.toml",)
    )
    for concise in (False, True):
        text = render(report, concise=concise)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "##[" not in text
        assert not any(line.lstrip().startswith("::") for line in text.splitlines())


def test_everything_that_went_wrong_is_named(checked: Any) -> None:
    report = checked("servelint = 1\n")
    fault = PluginFault(Provider("acme", "acme-servelint", "1.0", "/x/acme.py"), "cannot be imported")
    text = render(report._replace(faults=(fault,), unreadable=(("b.toml", "it is not UTF-8 text (byte 3)"),)))
    assert "plugin fault: plugin 'acme' of acme-servelint 1.0 (/x/acme.py): cannot be imported" in text
    assert "cannot read b.toml: it is not UTF-8 text (byte 3)" in text
    assert text.endswith("checked 1 spec: no findings; 1 values assumed (--verbose lists them); 1 not readable\n")


def test_verbose_lists_what_was_assumed_and_lacked(checked: Any) -> None:
    text = render(checked("servelint = 1\n"), verbose=True)
    assert "a.toml: MEM001 not decided: it lacks " in text
    assert "a.toml: assumed engine.name = generic" in text


def test_the_summary_counts(checked: Any) -> None:
    spec = "servelint = 1\n[hardware]\ndevices = 0\nreplicas = 0 # servelint: ignore[SPEC003] known\n"
    assert "checked 2 specs: 2 errors; 2 suppressed" in render(checked(spec, spec))


def test_one_line_a_finding(checked: Any) -> None:
    lines = render(checked("servelint = 1\nhardware.devices = 0\n"), concise=True).splitlines()
    assert (
        lines[0]
        == "a.toml:2:20: error SPEC003 bad-value: found the integer 0, expected a whole number from 1 to 100,000"
    )
    assert len(lines) == 2


def test_inputs_say_where_they_come_from(checked: Any, tmp_path: Path) -> None:
    spec = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
[policy.kv_cache]
memory_utilization = 0.8
"""
    text = render(checked(spec))
    assert "utilization = 0.8 [policy.kv_cache.memory_utilization, line 7]" in text
    assert "visible memory = 85 GB [datasheet: nvidia/h100-sxm5-80gb memory.runtime_visible_bytes]" in text
    assert "= because: weights" in text
    assert "= fix: " in text
