"""What an exception in a plugin's code means: whose it is, and how it is told to a user.

A plugin may raise anything, also what does not derive from Exception. Only the user's own interrupt ends a run.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

from servelint.errors import PluginError

LONGEST = 1000
"""Characters of an exception's message that are told."""


class Provider(NamedTuple):
    """Who provides a thing: plugin name, its distribution and version, and the module's file."""

    plugin: str
    distribution: str = "unknown"
    version: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} of {self.distribution} {self.version}".rstrip()


class PluginFault(NamedTuple):
    """One plugin's own fault: what failed, in words complete for a user."""

    provider: Provider
    message: str

    def __str__(self) -> str:
        where = f" ({self.provider.file})" if self.provider.file else ""
        return f"{self.provider}{where}: {self.message}"


class Blamed(PluginError):  # noqa: N818
    """What a plugin's code raised, recorded as its fault already: whoever meets it goes on without the thing."""

    def __init__(self, message: str, provider: Provider) -> None:
        super().__init__(message)
        self.provider = provider


class Wrong(Exception):  # noqa: N818
    """A thing of a plugin that breaks the contract; the message completes a sentence about it."""


def ends_run(error: BaseException) -> bool:
    """Tell whether an exception is the user's interrupt; a KeyboardInterrupt that code raises by itself is none.

    Python raises the interrupt of a signal between two instructions, so the innermost frame does not stand at a
    ``raise`` statement then.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    frame = _innermost(error.__traceback__)
    if frame is None or isinstance(error.__context__, KeyboardInterrupt):
        return True
    from opcode import opmap

    return frame.tb_frame.f_code.co_code[frame.tb_lasti] != opmap["RAISE_VARARGS"]


def described(error: BaseException) -> str:
    """Name an exception, its message and its innermost place, without a traceback; never raises itself."""
    try:
        name = str(type(error).__name__)
        said = str(error)
    except BaseException as other:
        if ends_run(other):
            raise
        name, said = "an exception", "whose message cannot be shown"
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]}... ({len(said):,} characters)"
    frame = _innermost(error.__traceback__)
    place = "" if frame is None else f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
    return f"{name}: {said}{place}" if said else f"{name}{place}"


def origin(error: BaseException) -> str:
    """Return the file whose import failed: the first that is no part of the import system; empty if none is."""
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        return error.filename
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and not file.endswith(_IMPORTING):
            return file
        trace = trace.tb_next
    return ""


_IMPORTING = ("servelint/manager.py", "servelint/catalogue.py", "servelint/discovery.py", "importlib/__init__.py")


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def shown(value: object) -> str:
    """Show a plugin's value shortly, by its type where it cannot be shown itself; never raises."""
    try:
        text = str(repr(value))
    except BaseException as error:
        if ends_run(error):
            raise
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
