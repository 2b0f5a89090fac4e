"""What the commands share: plugins, configuration, specs from paths, and where output goes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from servelint import config as configuration
from servelint.config import Config
from servelint.errors import ConfigError
from servelint.manager import Plugins
from servelint.report.safe import printable
from servelint.suggest import did_you_mean

if TYPE_CHECKING:
    from servelint.review import Review

MAX_FILES = 10_000
MAX_FILE_BYTES = 5_000_000
"""More than a spec of the largest size can have; the rest of a larger file is not read."""

SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})


class Done(Exception):  # noqa: N818
    """The parser of a command has said all there is to say; ``status`` is the exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Parser(argparse.ArgumentParser):
    """argparse that ends by an exception of its own, prints safely, and suggests the option that was meant.

    A SystemExit that passes by is then never argparse's but a plugin's.
    """

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the command."""
        if message:
            sys.stderr.write(message)
        raise Done(status)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, status 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {printable(message)}\n")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse arguments; an unknown option is an error with a suggestion."""
        parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            options = [o for o in self._option_string_actions if o.startswith("--")]
            hint = did_you_mean(unknown[0].partition("=")[0], options) if unknown[0].startswith("-") else ""
            self.error(f"unknown argument {unknown[0]!r}{hint}")
        return parsed


class Workspace(NamedTuple):
    """The project root, its configuration and the loaded plugins."""

    root: Path
    config: Config
    plugins: Plugins


class Text(NamedTuple):
    """The text of a spec with the name it is reported under."""

    name: str
    text: str


class Unreadable(NamedTuple):
    """A file that could not be read, and why."""

    name: str
    reason: str


def parser(name: str, description: str) -> Parser:
    """Return a parser with the options that every command has."""
    made = Parser(prog=f"servelint {name}", description=description, allow_abbrev=False)
    made.add_argument("--config", metavar="FILE", help="configuration file instead of the project's own")
    made.add_argument("--disable-plugin", metavar="NAME", action="append", default=[], help="do not load a plugin")
    return made


def workspace(arguments: argparse.Namespace, start: Path | None = None) -> Workspace:
    """Find root and configuration, load plugins, and check the configuration against them."""
    root, found = configuration.find_root(start or Path.cwd())
    explicit = arguments.config is not None
    path = Path(arguments.config) if explicit else found
    data = configuration.load(path, explicit)
    where = str(path) if path else "configuration"
    disabled = (*configuration.disabled_plugins(data, where), *arguments.disable_plugin)
    if disabled:
        _check_plugin_names(disabled)
    plugins = Plugins(disabled=disabled)
    return Workspace(root, configuration.structure(data, plugins, where, root), plugins)


def _check_plugin_names(names: Iterable[str]) -> None:
    from importlib.metadata import entry_points

    known = entry_points(group="servelint").names
    for name in names:
        if name not in known:
            raise ConfigError(f"no plugin is called {name!r}, so it cannot be disabled{did_you_mean(name, known)}")


def choice(what: str, value: str, known: Iterable[str]) -> str:
    """Return a value that must be one of the known ones; else ConfigError with a suggestion."""
    names = list(known)
    if value not in names:
        hint = did_you_mean(value, names)
        raise ConfigError(f"{what}: {value!r} is none of {', '.join(names)}{hint}")
    return value


def read_specs(paths: list[str], config: Config) -> Iterator[Text | Unreadable]:
    """Yield every spec once: named files always, files in folders when they are specs.

    A file in a folder is a spec when it has the top-level key ``servelint``. ``-`` is standard input.
    """
    seen: set[Path] = set()
    for name in paths:
        if name == "-":
            yield _decoded(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "<stdin>")
            continue
        path = Path(name)
        for found in _searched(path, config) if os.path.isdir(name) else iter((read_text(path, name),)):
            resolved = Path(found.name).resolve()
            if resolved not in seen:
                seen.add(resolved)
                yield found


def _searched(folder: Path, config: Config) -> Iterator[Text | Unreadable]:
    count = 0
    denied: list[OSError] = []
    for current, folders, files in os.walk(folder, onerror=denied.append, followlinks=False):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for file in sorted(files):
            path = Path(current) / file
            if not file.endswith(".toml") or path.is_symlink() or config.excludes(path.as_posix()):
                continue
            count += 1
            if count > MAX_FILES:
                raise ConfigError(f"{folder}: more than {MAX_FILES:,} TOML files; name the folders to check")
            found = read_text(path, path.as_posix(), only_specs=True)
            if isinstance(found, Unreadable) or is_spec(found.text):
                yield found
    for error in denied:
        yield Unreadable(str(error.filename), f"cannot be read: {error.strerror}")


def is_spec(text: str) -> bool:
    """Tell whether a TOML text has the top-level key ``servelint``, without parsing it."""
    for line in text.lstrip("\ufeff").splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            return False
        key, separator, _ = stripped.partition("=")
        if separator and key.strip().strip("\"'") == "servelint":
            return True
    return False


def read_text(path: Path, name: str, *, only_specs: bool = False) -> Text | Unreadable:
    """Return a file's text; with ``only_specs`` a file that is no UTF-8 and no spec either counts as empty."""
    try:
        if not os.path.isfile(path):
            missing = "it is not a regular file" if os.path.exists(path) else "there is no such file or folder"
            return Unreadable(name, missing)
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        return Unreadable(name, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    found = _decoded(data, name)
    if only_specs and isinstance(found, Unreadable) and not is_spec(data.decode("utf-8", "replace")):
        return Text(name, "")
    return found


def _decoded(data: bytes, name: str) -> Text | Unreadable:
    try:
        # The cut may go through a character; what is left is far above the limit of a spec in any case.
        return Text(name, data.decode("utf-8", "strict" if len(data) <= MAX_FILE_BYTES else "ignore"))
    except UnicodeDecodeError as error:
        return Unreadable(name, f"it is not UTF-8 text (byte {error.start})")


class Composed(NamedTuple):
    """A spec that composes, with the plugins it was composed from."""

    review: Review
    plugins: Plugins


def compose(arguments: argparse.Namespace, name: str) -> Composed | int:
    """Compose one spec; where it cannot be, say why on standard error and return the exit status."""
    from servelint.report.safe import file_name
    from servelint.review import Review
    from servelint.spec.document import parse

    place = workspace(arguments, Path.cwd() if name == "-" else Path(name).parent)
    found = next(read_specs([name], place.config)) if name == "-" else read_text(Path(name), name)
    if isinstance(found, Unreadable):
        raise ConfigError(f"{name}: {found.reason}")
    document = parse(found.name, found.text, place.plugins.policies)
    problems = [(p.path, p.message, p.on_key) for p in document.problems]
    if document.deployment is not None:
        review = Review(document, place.plugins, place.root)
        composition, _ = review.composition, review.mix
        problems = [(u.path, u.message, False) for u in dict.fromkeys(review.unresolved)]
        if review.infeasible is not None:
            problems.append((review.infeasible.path, str(review.infeasible), False))
        for table, noun in (("hardware", review.accelerator), ("model", review.architecture)):
            if noun is None and not problems:
                problems.append(((table,), f"the spec names no {table}, so there is nothing to price", False))
        if composition is not None and not problems:
            return Composed(review, place.plugins)
    for path, message, on_key in problems:
        at = document.place(path, on_key=on_key)
        print(f"{file_name(found.name)}:{at.line}:{at.column}: {printable(message)}", file=sys.stderr)
    print("servelint: the spec cannot be priced", file=sys.stderr)
    settled(place.plugins)
    return 2


def sequences(text: str) -> float:
    """Read a count of sequences of an option."""
    return positive(text, "a count of sequences, such as 64")


def positive(text: str, expected: str = "") -> float:
    """Read a number of at least 1 of an option, with k or M allowed as in 64k; a count of tokens if nothing else."""
    from servelint.units import Dimension, QuantityError, parse_quantity

    try:
        value = parse_quantity(text, Dimension.TOKENS)
    except QuantityError as error:
        said = error.message.replace(error.expected, expected) if expected else error.message
        raise argparse.ArgumentTypeError(said) from None
    if not 1 <= value <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 1 to 100,000,000")
    return float(value)


def use_color(stream: object) -> bool:
    """Color only on a terminal, and not when NO_COLOR asks for none."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(text: str) -> None:
    """Write a command's output, also where the terminal's encoding lacks a character."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write_json(value: Mapping[str, Any]) -> None:
    """Write a command's JSON output."""
    from servelint.report.json import dumps

    sys.stdout.write(dumps(value))


def settled(plugins: Plugins) -> int:
    """Name the plugins that failed on standard error; return the exit status of a command that did its work."""
    for fault in plugins.faults:
        print(f"servelint: plugin fault: {printable(str(fault))}", file=sys.stderr)
    return 2 if plugins.faults else 0
