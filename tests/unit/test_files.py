"""Files that a spec names: inside the root, regular, small, text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servelint.files import read_project_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "specs").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "root" / "models").mkdir()
    (tmp_path / "root" / "models" / "config.json").write_text("{}")
    return tmp_path / "root"


def test_a_file_inside_the_root(root: Path) -> None:
    assert read_project_file(root, root / "specs", "../models/config.json", 100) == "{}"


@pytest.mark.parametrize("name", ["../../secret.txt", "/etc/hostname", "..", "../../../../../../etc/passwd"])
def test_nothing_outside_the_root(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"outside the project root|not a regular file"):
        read_project_file(root, root / "specs", name, 10**6)


def test_a_link_does_not_lead_out(root: Path) -> None:
    (root / "specs" / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "specs" / "folder").symlink_to(root.parent)
    for name in ("link.txt", "folder/secret.txt"):
        with pytest.raises(ValueError, match="outside the project root"):
            read_project_file(root, root / "specs", name, 10**6)


def test_loops_pipes_folders_sizes_and_bytes(root: Path) -> None:
    (root / "specs" / "loop").symlink_to(root / "specs" / "loop")
    os.mkfifo(root / "specs" / "pipe")
    (root / "specs" / "big").write_text("x" * 101)
    (root / "specs" / "binary").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("loop", "does not exist or cannot be opened"),
        ("pipe", "not a regular file"),
        (".", "not a regular file"),
        ("big", "101 bytes, the limit is 100"),
        ("binary", "not UTF-8"),
        ("missing", "does not exist"),
        ("a\0b", "not a usable path"),
        ("x" * 2000, "not a usable path"),
    ):
        with pytest.raises(ValueError, match=words):
            read_project_file(root, root / "specs", name, 100)
