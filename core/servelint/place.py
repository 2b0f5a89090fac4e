"""A place in a text file: what every located thing carries, whichever parser found it."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A range of a file: 1-based lines and columns in code points, the end exclusive.

    ``file`` is empty for the file that is being checked; it names another one that the place lies in.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    file: str = ""

    @property
    def empty(self) -> bool:
        """Whether the range holds nothing."""
        return (self.line, self.column) == (self.end_line, self.end_column)
