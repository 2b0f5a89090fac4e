"""Sources of the catalogue as texts: a reader must be able to open what they name.

A document with its revision, a file of a repository at a commit, or a plain word that only a transcript was
read; never a search, a moving branch or a version with a hole in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

PLUGINS = Path(__file__).parents[3] / "plugins" / "servelint_plugins"
FILES = sorted(p for kind in ("hardware", "models") for p in (PLUGINS / kind / "data").rglob("*.toml"))

VAGUE = {
    "a search, not a place": re.compile(r"content search"),
    "a branch that moves": re.compile(r"@(HEAD|main|master|latest)\b", re.IGNORECASE),
    "a version with a hole": re.compile(r"\bv?\d+\.x\b"),
    "a commit without its repository": re.compile(r"(?<![\w./*-])(?![\w.-]+/[\w.-]+@)[\w./*-]+@[0-9a-f]{7,}"),
    "a commit without a file": re.compile(r"@[0-9a-f]{7,40}(?![0-9a-f]|:\S)"),
    "a repository without a commit": re.compile(r"^[\w.-]+/[\w.-]+(:| .*\.(json|py|yml|md)\b)"),
    "nobody in particular": re.compile(r"^(several|one|some|commonly|public|various) ", re.IGNORECASE),
}
TRANSCRIPT = "no address kept"


def _sources(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("source", "sources"):
                yield from [inner] if isinstance(inner, str) else inner
            else:
                yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)


def _vague(source: str) -> list[str]:
    return [what for what, pattern in VAGUE.items() if pattern.search(source)]


def test_the_catalogue_is_read() -> None:
    assert sum(1 for path in FILES for _ in _sources(tomli.loads(path.read_text("utf-8")))) > 900


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_sources_name_a_place(path: Path) -> None:
    document = tomli.loads(path.read_text("utf-8"))
    found = list(_sources(document))
    assert {source: _vague(source) for source in found if _vague(source)} == {}
    if any(TRANSCRIPT in source for source in found):
        assert any(TRANSCRIPT in note for note in document["notes"]), "the file does not say what it rests on"


@pytest.mark.parametrize(
    "source",
    [
        "nvidia-smi logs in public repositories (content search): 81559 MiB",
        "owner/name@HEAD:README.md",
        "Some whitepaper v2.x Appendix A",
        "name/docs/README.md@744d01e (a figure)",
        "owner/name/data/*/gemm@095f58a (a figure)",
        "owner/name@744d01e18b79 (a figure)",
        "owner/name:docs/README.md",
        "owner/name testdata config.json",
        "several comparison sites",
    ],
)
def test_vague_sources_are_told(source: str) -> None:
    assert _vague(source)


@pytest.mark.parametrize(
    "source",
    [
        "owner/name@744d01e18b79:docs/README.md (a figure)",
        "owner/name@v5.24.0:src/config.py[Config]",
        "A datasheet r4 (us-1758950-r4) / 2188504",
        "A table, as listed in owner/name@744d01e18b79:docs/README.md",
        "arithmetic: 2 x 1593 MHz x 5120 bit / 8 = 2039.04 GB/s",
    ],
)
def test_good_sources_pass(source: str) -> None:
    assert _vague(source) == []
