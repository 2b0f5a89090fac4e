"""Reading files that a spec names: only regular files inside the project root, only up to a size."""

from __future__ import annotations

import stat
from pathlib import Path


def read_project_file(root: Path, base: Path, name: str, limit: int) -> str:
    """Return the text of a file named by a spec in the folder ``base``.

    Raises ValueError when the path leaves ``root`` (also by a link), when it is no regular file, when it is
    larger than ``limit`` bytes, or when it is not UTF-8.
    """
    if "\0" in name or len(name) > 1000:
        raise ValueError("it is not a usable path")
    inside = root.resolve()
    try:
        path = (base / name).resolve()
        if not path.is_relative_to(inside):
            raise ValueError("it lies outside the project root")
        status = path.stat()
    except (OSError, RuntimeError):
        raise ValueError("it does not exist or cannot be opened") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > limit:
        raise ValueError(f"it has {status.st_size:,} bytes, the limit is {limit:,}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from None
    except OSError:
        raise ValueError("it cannot be opened") from None
