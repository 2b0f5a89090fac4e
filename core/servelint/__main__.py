"""The command line: ``servelint COMMAND ...``.

Exit status: 0 clean, 1 findings at or above ``--fail-on``, 2 usage, unreadable spec, configuration, plugin or
internal fault. Nothing else.
"""

# No other import comes before the search path is safe, not even of __future__. Who imports this keeps theirs.
import os
import sys

from servelint.searchpath import without_here

if __name__ == "__main__" or os.path.basename(sys.argv[0]).startswith("servelint"):
    sys.path[:] = without_here(sys.path)

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from servelint import __version__
from servelint.errors import ConfigError, ServelintError

# A run makes few cycles and ends soon; collecting during imports costs a tenth of a check's CPU.
gc.set_threshold(50_000, 20, 20)

COMMANDS = {
    "check": "check deployment specs (the default job)",
    "cost": "show the ledger, step times, capacity, frontier and knee of one spec",
    "explain": "show where a figure of a spec comes from",
    "rule": "show a rule: what it checks, why, how to fix",
    "catalog": "list accelerators, instance types, models, policies, engines, formats, readers, rules",
    "model": "show a model's parameters, KV cache and state, by name or from a config.json",
    "import": "write a spec from the file that starts the engine",
}
MODULES = {"import": "import_"}
"""Where a command's name is no name of a module."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status, whatever happens."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    given = _open_streams()
    out = sys.stdout
    status = _status(arguments, out)
    if not given:
        _say("servelint: standard output is closed, so there is nowhere to write to")
        status = 2
    if not _flushed(out):
        status = 2
    _silence_unless_flushed(sys.stderr)
    return status


def _status(arguments: list[str], out: IO[str]) -> int:
    try:
        return _run(arguments)
    except ServelintError as error:
        _say(f"servelint: {_safe(str(error))}")
    except KeyboardInterrupt:
        _say("servelint: interrupted")
    except OSError as error:
        if error.filename is not None:
            _fault(error)
        elif _flushed(out) and not isinstance(error, BrokenPipeError):
            # It names no file, so it is a stream, though nothing waits in it any more.
            _say(f"servelint: the output cannot be written: {error.strerror or _safe(str(error))}")
    except BaseException as error:
        _fault(error)
    return 2


def _fault(error: BaseException) -> None:
    """Report a fault of servelint itself; no traceback reaches a user, SERVELINT_DEBUG=1 shows it to a developer."""
    if os.environ.get("SERVELINT_DEBUG"):
        import traceback

        _say(_safe_lines("".join(traceback.format_exception(error))))
    try:
        text = _safe(str(error))
    except BaseException:
        text = "it cannot be shown"
    _say(f"servelint: internal fault: {type(error).__name__}: {text}; SERVELINT_DEBUG=1 shows where")


def _open_streams() -> bool:
    """Open what the caller closed, so that no file gets the number of a stream; tell whether output was open."""
    given = sys.stdout is not None
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return given


def _say(text: str) -> None:
    """Write a line to standard error, where that is possible."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _silence_unless_flushed(sys.stderr)


def _flushed(out: IO[str]) -> bool:
    """Write what waits in standard output; where that fails, say so, unless it is that the reader went away."""
    error = _silence_unless_flushed(out)
    if error is not None and not isinstance(error, BrokenPipeError):
        _say(f"servelint: standard output cannot be written: {getattr(error, 'strerror', None) or error}")
    return error is None


def _silence_unless_flushed(stream: IO[str]) -> Exception | None:
    """Flush a stream; one that cannot be is led nowhere, or the interpreter would fail on it at its end."""
    try:
        stream.flush()
    except (OSError, ValueError) as error:
        # One with no file behind it, or closed, fails no more.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _safe(text: str) -> str:
    from servelint.report.safe import printable

    return printable(text)


def _safe_lines(text: str) -> str:
    return "\n".join(map(_safe, text.splitlines()))


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"servelint {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        from servelint.suggest import did_you_mean

        print(f"servelint: no command {_safe(name)!r}{did_you_mean(name, COMMANDS)}\n{usage()}", file=sys.stderr)
        return 2
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current folder cannot be used: {error.strerror}") from None
    from importlib import import_module

    from servelint.commands.common import Done, restore

    try:
        status: int = import_module(f"servelint.commands.{MODULES.get(name, name)}").run(arguments[1:])
    except Done as done:
        status = done.status
    finally:
        restore()
    return status


def usage() -> str:
    """The text of ``servelint --help``."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "usage: servelint COMMAND [options]\n\n"
        "Reviews a large-language-model serving deployment before it runs.\n\n"
        f"commands:\n{rows}\n\n"
        "servelint COMMAND --help shows the options of a command."
    )


if __name__ == "__main__":
    sys.exit(main())
