"""Reading files of a project that a stranger may have written.

Only regular files inside the project root, never a repository's own folder (a checkout may keep a token there),
and only up to a size.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal, NamedTuple

REPOSITORIES = frozenset({".git", ".hg", ".svn"})

# Neither opening nor reading waits for somebody at the other end of a pipe.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Text(NamedTuple):
    """The text of a file with the name it is reported under, and what it is taken for.

    ``kind`` is ``spec``, ``manifest`` (it was named to be checked as one) or ``candidate`` (found in a folder).
    """

    name: str
    text: str
    kind: Literal["spec", "manifest", "candidate"] = "spec"


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return the first ``limit`` + 1 bytes of a file.

    Raises ValueError when it is no regular file, OSError when it cannot be opened or read.
    """
    # Opening a device can already have an effect, so its kind is looked at first.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a regular file")
    with open(os.open(path, _FLAGS), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return stream.read(limit + 1) or b""


def refuse_repositories(real: str | Path) -> None:
    """Raise ValueError for a path inside the folder in which a repository keeps itself."""
    for part in Path(real).parts:
        if part.lower() in REPOSITORIES:
            raise ValueError(f"it lies in {part}, which belongs to the repository and is never read")


def read_project_file(root: Path, base: Path, name: str, limit: int) -> str:
    """Return the text of a file named by a spec in the folder ``base``.

    Raises ValueError when the path leaves ``root`` (also by a link) or enters a repository's own folder, when it
    is no regular file, when it is larger than ``limit`` bytes, or when it is not UTF-8.
    """
    if "\0" in name or len(name) > 1000:
        raise ValueError("it is not a usable path")
    path = Path(os.path.realpath(base / name))
    if not path.is_relative_to(os.path.realpath(root)):
        raise ValueError("it lies outside the project root")
    refuse_repositories(path)
    try:
        size = path.stat().st_size
        data = read_regular(path, limit)
    except OSError:
        raise ValueError("it does not exist or cannot be opened") from None
    if len(data) > limit:
        raise ValueError(f"it has {max(size, len(data)):,} bytes, the limit is {limit:,}")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from None
