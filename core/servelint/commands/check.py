"""``servelint check``: specs in, findings out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from servelint.commands.common import (
    Unreadable,
    choice,
    given_hardware,
    parser,
    read_specs,
    rewrite,
    save,
    settled,
    use_color,
    workspace,
    write,
)
from servelint.config import Config, project_folder, with_overrides
from servelint.errors import ConfigError, PluginError
from servelint.files import Text
from servelint.lint import Linter, Report, lint
from servelint.manager import Plugins
from servelint.report.safe import file_name, guarded, printable
from servelint.rule import Finding
from servelint.spec.document import Document

if TYPE_CHECKING:
    from servelint.fixes import Applied


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
    made.add_argument("--hardware", metavar="ID", help="accelerator or instance type of manifests that name none")
    made.add_argument("--fix", action="store_true", help="apply safe fixes to the specs, then check")
    made.add_argument("--unsafe-fixes", action="store_true", help="also fixes that change what is deployed")
    made.add_argument("--diff", action="store_true", help="show what fixes would change, write nothing")
    made.add_argument("--exit-zero", action="store_true", help="exit 0 whatever is found")
    made.add_argument("--no-ignores", action="store_true", help="judge as if there were no suppression comments")
    made.add_argument("--concise", action="store_true", help="one line a finding")
    made.add_argument("--verbose", action="store_true", help="also what was assumed and what rules lacked")
    arguments = made.parse(argv)
    paths: list[str] = arguments.paths
    place = workspace(arguments, None if paths[0] == "-" else project_folder(paths[0]))
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
    given = given_hardware(arguments.hardware, plugins)
    unreadable: list[Unreadable] = []
    texts = _texts(paths, config, unreadable)
    if arguments.diff:
        return _diff(texts, Linter(plugins, config, place.root), unreadable, unsafe=arguments.unsafe_fixes)
    if arguments.fix:
        if "-" in paths:
            raise ConfigError("--fix: standard input cannot be rewritten; --diff shows the changes")
        texts = _fixed(texts, Linter(plugins, config, place.root), unsafe=arguments.unsafe_fixes)
    elif arguments.unsafe_fixes:
        raise ConfigError("--unsafe-fixes: it goes with --fix or --diff")
    report = lint(texts, plugins, config, place.root, given)
    if not report.files and not unreadable and not report.unreadable:
        skipped = "".join(f"; {name}: {reason}" for name, reason in report.skipped[:3])
        raise ConfigError(
            f"no spec found in {', '.join(paths)}: a spec is a TOML file with the top-level key servelint, and no "
            f"manifest there starts an engine that any plugin reads{skipped}"
        )
    report = report._replace(unreadable=(*report.unreadable, *unreadable))
    status = verdict(report)
    for name, path in outputs:
        written = _rendered(plugins, name, report)
        if written is not None:
            save(path, written)
    own = None if arguments.format == "text" else _rendered(plugins, arguments.format, report)
    if len(plugins.faults) > len(report.faults):
        report = report._replace(faults=tuple(plugins.faults))
        status = verdict(report)
        own = own and _rendered(plugins, arguments.format, report)
    if own is not None:
        write(own, raw=True)
    else:
        from servelint.report.text import render

        # Where a reporter failed, who reads its format finds nothing rather than another one.
        asked = arguments.format == "text"
        color = asked and use_color(sys.stdout)
        text = render(report, color=color, verbose=arguments.verbose, concise=arguments.concise)
        text += _why(report, status, arguments.exit_zero)
        if asked:
            write(text)
        else:
            sys.stderr.write(guarded(text, color=False))
    return 0 if arguments.exit_zero and status == 1 else status


def _texts(paths: list[str], config: Config, unreadable: list[Unreadable]) -> Iterator[Text]:
    """Yield specs one after the other, so that each is checked before the next is read."""
    for found in read_specs(paths, config):
        if isinstance(found, Unreadable):
            unreadable.append(found)
        else:
            yield found


def _applied(text: Text, linter: Linter, *, unsafe: bool) -> Applied:
    from servelint import fixes

    def judge(changed: str) -> tuple[Document, list[Finding]]:
        result = linter.check(text.name, changed)
        return result.document, [f.finding for f in result.findings if f.suppressed is None]

    return fixes.fixed(text.text, judge, unsafe=unsafe)


def _fixed(texts: Iterator[Text], linter: Linter, *, unsafe: bool) -> Iterator[Text]:
    """Yield texts with their fixes applied; a spec that changes is written first."""
    for text in texts:
        applied = _applied(text, linter, unsafe=unsafe) if text.kind == "spec" else None
        if applied is not None and applied.text != text.text:
            rewrite(text.name, text.text, applied.text)
            for code, description in applied.fixes:
                print(f"fixed {file_name(text.name)}: {code} {printable(description)}", file=sys.stderr)
        yield text if applied is None else text._replace(text=applied.text)


def _diff(texts: Iterator[Text], linter: Linter, unreadable: list[Unreadable], *, unsafe: bool) -> int:
    """Show what fixes would change; status 1 when that is anything."""
    from difflib import unified_diff

    changed = False
    left = 0
    for text in texts:
        if text.kind != "spec":
            continue
        applied = _applied(text, linter, unsafe=unsafe)
        name = file_name(text.name)
        lines = unified_diff(text.text.splitlines(), applied.text.splitlines(), name, name, lineterm="")
        shown = "".join(f"{line}\n" for line in lines)
        changed = changed or bool(shown)
        write(shown)
        if not unsafe:
            result = linter.check(text.name, applied.text)
            left += sum(f.finding.fix is not None and f.suppressed is None for f in result.findings)
    if left:
        print(f"servelint: {left} more with --unsafe-fixes, which change what is deployed", file=sys.stderr)
    elif not changed:
        print("servelint: no fix changes anything", file=sys.stderr)
    for found in unreadable:
        print(f"servelint: {file_name(found.name)}: {printable(found.reason)}", file=sys.stderr)
    settled(linter.plugins)
    return 2 if unreadable or linter.plugins.faults else int(changed)


def _rendered(plugins: Plugins, name: str, report: Report) -> str | None:
    """Render a report; None when its plugin failed, which is a fault of the run then."""
    try:
        return plugins.render(name, report)
    except PluginError:
        return None


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
