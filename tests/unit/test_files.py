"""Files that a spec names: inside the root, regular, small, text."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from servelint.files import read_project_file, read_regular


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


@pytest.mark.parametrize("name", ["../.git/config", "../.GIT/config", "../sub/.svn/config", "token"])
def test_a_repository_s_own_folder_is_never_read(root: Path, name: str) -> None:
    for folder in (".git", ".GIT", "sub/.svn"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "config").write_text("token = secret")
    (root / "specs" / "token").symlink_to(root / ".git" / "config")
    with pytest.raises(ValueError, match="belongs to the repository"):
        read_project_file(root, root / "specs", name, 10**6)


def test_a_root_that_is_a_link_is_its_target(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    assert read_project_file(root.parent / "alias", root.parent / "alias" / "models", "config.json", 100) == "{}"


def test_marks_and_line_ends_of_other_systems_are_read(root: Path) -> None:
    (root / "specs" / "trace.csv").write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    assert read_project_file(root, root / "specs", "trace.csv", 100) == "a\nb\nc"


def test_no_more_than_the_limit_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "long").write_bytes(b"x" * 1000)
    assert len(read_regular(root / "long", 10)) == 11
    assert len(read_regular(root / "long", 1000)) == 1000


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "pipe", "socket", "."])
def test_what_is_no_file_is_not_opened(root: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(ValueError, match="not a regular file"):
            read_regular(path, 100)
