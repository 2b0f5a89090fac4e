"""``servelint import``: a spec out of the file that starts the engine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servelint.commands.common import (
    Unreadable,
    choice,
    given_hardware,
    parser,
    read_input,
    read_named,
    save,
    settled,
    workspace,
    write,
    write_json,
)
from servelint.errors import ConfigError, ManifestError
from servelint.launch import roles, written
from servelint.launch.invocation import Invocation
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import Launched, choose, invocations, read
from servelint.launch.written import WRITTEN
from servelint.lineage import KeyPath, dotted
from servelint.manager import Plugins
from servelint.report.safe import printable

if TYPE_CHECKING:
    from servelint.composition import Assumption

LATENCIES = ("ttft", "itl", "tpot", "e2e")


def run(argv: list[str]) -> int:
    """Run the command."""
    made = parser("import", "Write a spec from the file that starts the engine: a manifest, chart values, a script.")
    made.add_argument(
        "files", nargs="+", metavar="FILE", help="the file, - for standard input; several are read as one"
    )
    made.add_argument("--part", action="append", default=[], metavar="NAME", help="which container, service or object")
    made.add_argument("--env", action="append", default=[], metavar="FILE", help="NAME=value lines for variables")
    made.add_argument("--hardware", metavar="ID", help="accelerator or instance type, where the file names none")
    made.add_argument("--model", metavar="ID", help="model by its published name, where the file has a folder")
    made.add_argument(
        "--slo", action="append", default=[], metavar="LATENCY", help='an objective, such as "itl.p99=50 ms"'
    )
    made.add_argument("--prompt-tokens", type=int, metavar="N", help="prompt length of every request")
    made.add_argument("--output-tokens", type=int, metavar="N", help="output length of every request")
    made.add_argument("--rate", metavar="RATE", help='offered load, such as "5 req/s"')
    made.add_argument(
        "--inline", action="store_true", help="write the settings as keys instead of pointing at the file"
    )
    made.add_argument(
        "--output", metavar="FILE", help="write to a file (a folder: one spec a part) instead of standard output"
    )
    made.add_argument("--force", action="store_true", help="replace a spec that import has written before")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text (a spec in TOML) or json")
    arguments = made.parse(argv)
    choice("--format", arguments.format, ("text", "json"))
    place = workspace(arguments, Path.cwd())
    given = _given(arguments, place.plugins)
    env = dict(_environment(arguments.env))
    found: list[tuple[ManifestFile, Invocation]] = []
    for name in arguments.files:
        file = _file(name, env)
        try:
            found += [(file, i) for i in invocations(file, place.plugins)]
        except ManifestError as error:
            raise ConfigError(f"{name}:{error.place.line}:{error.place.column}: {error}") from None
    if not found:
        names = ", ".join(map(printable, arguments.files))
        raise ConfigError(
            f"{names}: nothing in it starts an engine that any plugin reads; `servelint catalog readers` lists the "
            "formats"
        )
    chosen = choose([i for _, i in found], arguments.part)
    if not chosen:
        raise ConfigError(f"no part is called {' and '.join(arguments.part)}; there are: {_names(i for _, i in found)}")
    kept = [(file, i, read(i, place.plugins)) for file, i in found if any(i is c for c in chosen)]
    beside = {id(file): [i for of, i in found if of is file] for file, _ in found}
    both = roles.pair([launched for _, _, launched in kept]) if arguments.format == "text" else None
    if both is not None:
        made_specs = [_joined(kept[0][0], both, place.plugins, given, place.root)]
    else:
        made_specs = [_spec(*one, beside[id(one[0])], place.plugins, given, arguments, place.root) for one in kept]
    if arguments.format == "json":
        from servelint.report.json import head

        write_json({**head(), "invocations": [written.as_object(*made) for made in made_specs]})
    else:
        _write(made_specs, arguments.output, arguments.force)
    return settled(place.plugins)


def _names(found: Iterable[Invocation]) -> str:
    return "; ".join(printable(i.name) for i in found)


def _file(name: str, env: Mapping[str, str]) -> ManifestFile:
    if name != "-" and os.path.isdir(name):
        raise ConfigError(f"{name}: it is a folder; name the file (`servelint check {name}` looks through folders)")
    found = read_input() if name == "-" else read_named(name)
    if isinstance(found, Unreadable):
        raise ConfigError(f"{found.name}: {found.reason}")
    if len(found.text) > 1_000_000:
        raise ConfigError(
            f"{found.name}: it has more than 1,000,000 characters, expected a manifest of at most so many"
        )
    return ManifestFile(found.name, found.text, found.name, env)


def _environment(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        found = read_named(name)
        if isinstance(found, Unreadable):
            raise ConfigError(f"--env {name}: {found.reason}")
        for number, line in enumerate(found.text.splitlines(), 1):
            text = line.strip().removeprefix("export ")
            if not text or text.startswith("#"):
                continue
            key, separator, value = text.partition("=")
            if not separator or not key.strip():
                raise ConfigError(f"--env {name}:{number}: found {text[:60]!r}, expected NAME=value")
            yield key.strip(), value.strip().strip("\"'")


def _given(arguments: argparse.Namespace, plugins: Plugins) -> dict[KeyPath, object]:
    given = given_hardware(arguments.hardware, plugins)
    if arguments.model is not None:
        if plugins.models.resolve(arguments.model) is None:
            raise ConfigError(f"--model: {plugins.models.unknown(arguments.model)}")
        given["model", "id"] = plugins.models.resolve(arguments.model)
    for option, key in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "output_tokens"), ("rate", "rate")):
        value = getattr(arguments, option)
        if value is not None:
            given["workload", key] = value
    for text in arguments.slo:
        name, _, value = text.partition("=")
        metric, _, percentile = name.strip().partition(".")
        if metric not in LATENCIES or not percentile or not value.strip():
            raise ConfigError(f"--slo {text!r}: expected METRIC.PERCENTILE=TIME, such as itl.p99=50 ms")
        given["slo", metric, percentile] = value.strip()
    _check(given, plugins)
    return given


def _check(given: Mapping[KeyPath, object], plugins: Plugins) -> None:
    """ConfigError for a value that no spec could have."""
    from servelint.spec.document import parse

    problems = parse("", written.only(given), plugins.policies).problems
    if problems:
        option = str(problems[0].path[1] if problems[0].path[0] == "workload" else problems[0].path[0])
        raise ConfigError(f"--{option.replace('_', '-')}: {problems[0].message}")


def _spec(
    file: ManifestFile,
    invocation: Invocation,
    launched: Launched,
    beside: Sequence[Invocation],
    plugins: Plugins,
    given: Mapping[KeyPath, object],
    arguments: argparse.Namespace,
    root: Path,
) -> tuple[Launched, str, list[Any]]:
    from servelint.report.json import assumption_object

    assumptions = _assumptions(file, launched, plugins, given, root)
    points = not arguments.inline and not arguments.env and file.name != "<stdin>"
    text = written.spec(
        launched,
        name=file.name,
        args_from=_reference(file, invocation, arguments.output, beside) if points else None,
        given=given,
        notes=_troubles(launched),
        assumed=[f"{dotted(a.path)} = {a.value}: {a.reason}" for a in assumptions],
    )
    return launched, text, [assumption_object(a) for a in assumptions]


def _assumptions(
    file: ManifestFile, launched: Launched, plugins: Plugins, given: Mapping[KeyPath, object], root: Path
) -> list[Assumption]:
    """What is assumed follows from the whole deployment: it is composed once with every setting written out."""
    from servelint.review import Review
    from servelint.spec.document import parse

    inline = written.spec(launched, name=file.name, given=given)
    review = Review(parse("spec.toml", inline, plugins.policies), plugins, root)
    return list(review.assumptions) if review.document.deployment is not None else []


def _troubles(launched: Launched) -> list[str]:
    return [f"{t.message}{'; ' + t.help if t.help else ''} (line {t.place.line})" for t in launched.troubles]


def _joined(
    file: ManifestFile,
    sides: tuple[Launched, Launched],
    plugins: Plugins,
    given: Mapping[KeyPath, object],
    root: Path,
) -> tuple[Launched, str, list[Any]]:
    """One spec of a prefill and a decode side; it holds their settings itself, since it can point at one part only."""
    launched = roles.joined(*sides)
    assumptions = _assumptions(file, launched, plugins, given, root)
    apart = [
        f"The prefill side alone has {dotted(s.path)} = {written.toml(s.value)} (line {s.place.line})"
        for s in roles.differing(*sides)
    ]
    text = written.spec(
        launched,
        name=file.name,
        given=given,
        notes=[*apart, *_troubles(launched)],
        assumed=[f"{dotted(a.path)} = {a.value}: {a.reason}" for a in assumptions],
    )
    return launched, text, []


def _reference(
    file: ManifestFile, invocation: Invocation, output: str | None, beside: Sequence[Invocation]
) -> dict[str, str]:
    folder = "." if output is None else output if os.path.isdir(output) else os.path.dirname(output) or "."
    reference = {"file": os.path.relpath(file.name, folder).replace(os.sep, "/")}
    if len(beside) == 1:
        return reference
    if len(invocation.part) > 1:
        reference["container"] = invocation.part[-1]
        if len(choose(beside, [invocation.part[-1]])) > 1:
            # Roles and objects of a file often call their containers the same.
            reference["service"] = invocation.part[-2]
    elif invocation.part:
        reference["service"] = invocation.part[0]
    return reference


def _keep(path: Path, force: bool) -> None:
    """ConfigError for a file that is there: what was edited by hand, or is something else, must not be lost.

    Even ``force`` replaces only specs that import has written: names in a manifest do not decide what goes.
    """
    if not os.path.lexists(path):
        return
    found = read_named(str(path))
    if isinstance(found, Unreadable) or not found.text.startswith(WRITTEN):
        raise ConfigError(f"{path}: it exists and was not written by servelint import; give another --output")
    if not force:
        raise ConfigError(f"{path}: it exists; --force writes it anew")


def _write(made: list[tuple[Launched, str, list[Any]]], output: str | None, force: bool) -> None:
    if output is None:
        write(("\n# " + "-" * 70 + "\n\n").join(text for _, text, _ in made))
        if len(made) > 1:
            names = "; ".join(printable(launched.invocation.name) for launched, _, _ in made)
            print(f"servelint: {len(made)} specs, one an engine: {names}; --part chooses", file=sys.stderr)
        return
    if len(made) > 1 and not os.path.isdir(output):
        raise ConfigError(
            f"the files start {len(made)} engines: choose one with --part, or give --output a folder: "
            f"{_names(launched.invocation for launched, _, _ in made)}"
        )
    counts: dict[str, int] = {}
    for launched, text, _ in made:
        stem = written.short(launched, launched.invocation.place.file) if launched.invocation.format == "shell" else ""
        stem = stem or "-".join(launched.invocation.part[:2]) or "spec"
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)[:80].strip(".-") or "spec"
        number = counts[safe.lower()] = counts.get(safe.lower(), 0) + 1
        path = Path(output)
        if os.path.isdir(output):
            path /= f"{safe}.toml" if number == 1 else f"{safe}-{number}.toml"
        _keep(path, force)
        save(str(path), text)
        print(f"wrote {printable(str(path))}", file=sys.stderr)
