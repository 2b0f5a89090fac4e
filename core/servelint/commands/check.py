"""``servelint check``: specs in, findings out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from servelint.commands.common import Text, Unreadable, choice, parser, read_specs, use_color, workspace, write
from servelint.config import with_overrides
from servelint.errors import ConfigError
from servelint.lint import Report, lint


def run(argv: list[str]) -> int:
    """Run the command; the exit status is the report's verdict."""
    made = parser("check", "Check deployment specs; a folder is searched for them, - reads standard input.")
    made.add_argument("paths", nargs="*", default=["."], metavar="PATH")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text, json, sarif, or a plugin's")
    made.add_argument(
        "--output", metavar="FORMAT=FILE", action="append", default=[], help="also write a report to a file"
    )
    made.add_argument("--select", action="append", metavar="RULES", help="codes, families or names, comma separated")
    made.add_argument("--ignore", action="append", default=[], metavar="RULES", help="the same, left out")
    made.add_argument("--fail-on", metavar="LEVEL", help="error (default), warning or info")
    made.add_argument("--exit-zero", action="store_true", help="exit 0 whatever is found")
    made.add_argument("--no-ignores", action="store_true", help="judge as if there were no suppression comments")
    made.add_argument("--concise", action="store_true", help="one line a finding")
    made.add_argument("--verbose", action="store_true", help="also what was assumed and what rules lacked")
    arguments = made.parse(argv)
    paths: list[str] = arguments.paths
    start = Path(paths[0]) if paths[0] != "-" else Path.cwd()
    place = workspace(arguments, start if os.path.isdir(start) else start.parent)
    plugins = place.plugins
    plugins.require_something()
    select = None if arguments.select is None else _split(arguments.select)
    config = with_overrides(
        place.config, plugins, select, _split(arguments.ignore), arguments.fail_on, not arguments.no_ignores
    )
    outputs = [_output(text) for text in arguments.output]
    choice("--format", arguments.format, plugins.reporters)
    for name, _ in outputs:
        choice("--output", name, plugins.reporters)
    found = list(read_specs(paths, config))
    if not found:
        raise ConfigError(
            f"no spec found in {', '.join(paths)}: a spec is a TOML file with the top-level key servelint"
        )
    report = lint((text for text in found if isinstance(text, Text)), plugins, config, place.root)
    report = report._replace(unreadable=tuple(file for file in found if isinstance(file, Unreadable)))
    status = verdict(report)
    for name, path in outputs:
        try:
            Path(path).write_text(plugins.render(name, report), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    if arguments.format == "text":
        from servelint.report.text import render

        text = render(report, color=use_color(sys.stdout), verbose=arguments.verbose, concise=arguments.concise)
        write(text + _why(report, status, arguments.exit_zero))
    else:
        write(plugins.render(arguments.format, report))
    return 0 if arguments.exit_zero and status == 1 else status


def _split(values: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _output(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path:
        raise ConfigError(f"--output {text!r}: expected FORMAT=FILE, such as sarif=servelint.sarif")
    return name, path


def verdict(report: Report) -> int:
    """Return 2 for plugin faults and files that cannot be read, 1 for findings that fail, else 0."""
    if report.faults or report.unreadable:
        return 2
    worst = report.worst()
    return 1 if worst is not None and worst >= report.config.fail_on else 0


def _why(report: Report, status: int, exit_zero: bool) -> str:
    """Say why the exit status is what it is."""
    if status == 2:
        what = "a plugin or rule failed" if report.faults else "a file could not be read"
        return f"exit status 2: {what}, so the check is incomplete\n"
    level = str(report.config.fail_on)
    if status == 1 and exit_zero:
        return f"exit status 0: --exit-zero, although there are findings of {level} or above\n"
    if status == 1:
        return f"exit status 1: findings of {level} or above\n"
    return f"exit status 0: no finding of {level} or above\n"
