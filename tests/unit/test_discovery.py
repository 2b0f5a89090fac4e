"""Discovery finds what the standard library finds."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from servelint import discovery
from servelint.discovery import EntryPoint, entry_points

THIRD_PARTY = Path(__file__).parent.parent / "data" / "thirdparty"


def standard(group: str) -> list[EntryPoint]:
    return sorted(discovery._from_standard_library(group))


@pytest.mark.parametrize("group", ["servelint", "console_scripts", "pytest11", "no such group"])
def test_the_same_as_the_standard_library(group: str) -> None:
    assert discovery._only_folders()
    assert set(entry_points(group)) == set(standard(group))


def test_plugins_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("acme", "future"):
        monkeypatch.syspath_prepend(str(THIRD_PARTY / name))
    found = {p.name: p for p in entry_points("servelint")}
    assert found["acme"] == EntryPoint("acme", "acme_servelint", "acme-servelint", "1.2.0")
    assert set(entry_points("servelint")) == set(standard("servelint"))


def test_the_first_of_two_versions_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("new", "2.0"), ("old", "1.0")):
        place = tmp_path / folder / f"Acme_Two-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Acme.Two\nVersion: {version}\n")
        (place / "entry_points.txt").write_text(
            "[other]\nx = y\n\n[servelint]\n# a note\ntwo = acme.two:thing [extra]\n"
        )
    for folder in ("old", "new"):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    found = [p for p in entry_points("servelint") if p.name == "two"]
    assert found == [EntryPoint("two", "acme.two:thing", "Acme.Two", "2.0")]


def test_anything_but_folders_asks_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"PK\x05\x06" + b"\0" * 18)
    monkeypatch.setattr(sys, "path", [*sys.path, str(archive)])
    assert not discovery._only_folders()
    assert {p.name for p in entry_points("servelint")} >= {"hardware", "rules"}
    monkeypatch.undo()

    class Finder(metadata.DistributionFinder):
        def find_distributions(self, context: object = None) -> list[metadata.Distribution]:  # type: ignore[override]
            return []

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert not discovery._only_folders()


def test_an_attribute_of_a_module_loads() -> None:
    assert EntryPoint("x", "os.path:join", "", "").load() is __import__("os").path.join
