"""The command line: ``servelint COMMAND ...``.

Exit status: 0 clean, 1 findings at or above ``--fail-on``, 2 usage, unreadable spec, configuration, plugin or
internal fault. Nothing else.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from servelint import __version__
from servelint.errors import ServelintError

# A run makes few cycles and ends soon; collecting during imports costs a tenth of a check's CPU.
gc.set_threshold(50_000, 20, 20)

COMMANDS = {
    "check": "check deployment specs (the default job)",
    "cost": "show the ledger, step times, capacity, frontier and knee of one spec",
    "explain": "show where a figure of a spec comes from",
    "rule": "show a rule: what it checks, why, how to fix",
    "catalog": "list accelerators, models, policies, engines, formats, rules",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except BrokenPipeError:
        # The reader went away; silence the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except ServelintError as error:
        print(f"servelint: {_safe(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("servelint: interrupted", file=sys.stderr)
        return 2
    except (Exception, SystemExit) as error:  # no traceback reaches a user; SERVELINT_DEBUG=1 shows it to a developer
        if os.environ.get("SERVELINT_DEBUG") and isinstance(error, Exception):
            raise
        name = type(error).__name__
        print(
            f"servelint: internal fault: {name}: {_safe(str(error))}; SERVELINT_DEBUG=1 shows where",
            file=sys.stderr,
        )
        return 2


def _safe(text: str) -> str:
    from servelint.report.safe import printable

    return printable(text)


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
    from importlib import import_module

    from servelint.commands.common import Done

    try:
        status: int = import_module(f"servelint.commands.{name}").run(arguments[1:])
    except Done as done:
        status = done.status
    sys.stdout.flush()
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
