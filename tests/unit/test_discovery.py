"""Discovery finds what the standard library finds."""

from __future__ import annotations

import os
import subprocess
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


def planted(folder: Path) -> None:
    """A pull request that brings a plugin and modules of its own."""
    made = folder / "evil-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[servelint]\nevil = evil_plugin\n")
    for name in ("evil_plugin", "tomli", "attrs", "pluggy", "servelint_rules"):
        (folder / f"{name}.py").write_text("open('ran', 'w').close()\n")


@pytest.mark.parametrize("finder", ["folders", "standard"])
def test_the_current_folder_brings_no_plugin_by_itself(
    finder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if finder == "standard":
        monkeypatch.setattr(discovery, "_only_folders", lambda: False)
    before = list(sys.path)

    def found() -> bool:
        return "evil" in {p.name for p in entry_points("servelint")}

    for path in (["", *before], [str(tmp_path), *before], [*before, ""]):
        monkeypatch.setattr(sys, "path", path)
        assert not found(), path[0]
    monkeypatch.setattr(sys, "path", [*before, str(tmp_path)])
    assert found(), "an installation may add the folder that is the current one"
    monkeypatch.setenv("PYTHONPATH", f"/nonexistent{os.pathsep}")
    assert not found(), "an empty entry is nobody's wish"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *before])
    assert found()


@pytest.mark.parametrize("command", ["module", "script"])
@pytest.mark.parametrize("listed", [None, "", "/nonexistent" + os.pathsep, os.pathsep + "/nonexistent"])
def test_nothing_of_a_pull_request_runs(command: str, listed: str | None, tmp_path: Path) -> None:
    planted(tmp_path)
    (tmp_path / "a.toml").write_text("servelint = 1\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if listed is not None:
        environment["PYTHONPATH"] = listed
    script = tmp_path / "bin" / "servelint"
    script.parent.mkdir()
    script.write_text("import sys\nfrom servelint.__main__ import main\nsys.exit(main())\n")
    program = ["-m", "servelint"] if command == "module" else [str(script)]
    done = subprocess.run(
        [sys.executable, *program, "check", "a.toml"], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
