"""What the commands share: plugins, configuration, specs from paths, and where output goes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO, cast

from servelint import config as configuration
from servelint import toml
from servelint.config import Config
from servelint.errors import ConfigError, ManifestError
from servelint.files import Text, read_regular
from servelint.lineage import KeyPath
from servelint.manager import Plugins
from servelint.report.safe import guarded, printable
from servelint.suggest import did_you_mean

if TYPE_CHECKING:
    from io import FileIO

    from servelint.review import Review
    from servelint.spec.document import Document

MAX_FILES = 10_000
MAX_CHARACTERS = 20_000_000
"""Of all specs of a run together: findings show lines of them, so they are kept to its end."""

MAX_ENTRIES = 1_000_000
MAX_DEPTH = 100
"""Of the folders that are searched."""

MANIFESTS = (".yaml", ".yml")
"""Endings of files in a folder that may start an engine; others have to be named."""

_ENGINES = re.compile(r"vllm|sglang|trtllm|tensorrt|text-generation|llama[-.]?(?:cpp|server)", re.IGNORECASE)
_VERSION = re.compile(r"""^[ \t]*(?:servelint|"servelint"|'servelint')[ \t]*=[ \t]*(\d)?""", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)

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
    set_aside()
    if disabled:
        _check_plugin_names(disabled)
    plugins = Plugins(disabled=disabled)
    return Workspace(root, configuration.structure(data, plugins, where, root), plugins)


def _check_plugin_names(names: Iterable[str]) -> None:
    from servelint.discovery import entry_points

    known = sorted({point.name for point in entry_points("servelint")})
    for name in names:
        if name not in known:
            raise ConfigError(f"no plugin is called {name!r}, so it cannot be disabled{did_you_mean(name, known)}")


def given_hardware(name: str | None, plugins: Plugins) -> dict[KeyPath, object]:
    """The key of a spec that ``--hardware`` sets; ConfigError for a name of no accelerator and no instance type."""
    if name is None:
        return {}
    for key, catalogue in (("accelerator", plugins.accelerators), ("instance", plugins.instances)):
        found = catalogue.resolve(name)
        if found is not None:
            return {("hardware", key): found}
    raise ConfigError(f"--hardware: {plugins.accelerators.unknown(name)}")


def choice(what: str, value: str, known: Iterable[str]) -> str:
    """Return a value that must be one of the known ones; else ConfigError with a suggestion."""
    names = list(known)
    if value not in names:
        hint = did_you_mean(value, names)
        raise ConfigError(f"{what}: {value!r} is none of {', '.join(names)}{hint}")
    return value


def read_specs(paths: list[str], config: Config) -> Iterator[Text | Unreadable]:
    """Yield every spec and manifest once: named files always, files in folders when they are one.

    A file in a folder is a spec when it has the top-level key ``servelint``. A YAML file there is a candidate for a
    manifest when it has the name of an engine; those come last, when every spec has read its launch files. ``-``
    is standard input. ConfigError when there is more than a run can hold.
    """
    seen: set[str] = set()
    later: list[str] = []
    size = 0
    for name in paths:
        if name == "-":
            yield read_input()
            continue
        for found in _searched(name, config, later) if os.path.isdir(name) else iter((read_named(name),)):
            resolved = os.path.realpath(found.name)
            if resolved in seen:
                continue
            seen.add(resolved)
            if isinstance(found, Text):
                size += len(found.text)
                if size > MAX_CHARACTERS:
                    raise ConfigError(
                        f"{found.name}: with this file the specs have more than {MAX_CHARACTERS:,} characters; "
                        "check fewer at once"
                    )
            yield found
    for name in later:
        found = _read(name, name, only_specs=True)
        resolved = os.path.realpath(name)
        if isinstance(found, Text) and resolved not in seen and size + len(found.text) <= MAX_CHARACTERS:
            seen.add(resolved)
            if _ENGINES.search(found.text) is not None:
                size += len(found.text)
                yield found._replace(kind="candidate")


def _searched(folder: str, config: Config, later: list[str]) -> Iterator[Text | Unreadable]:
    try:
        configuration.confined(folder)
    except ValueError as error:
        yield Unreadable(folder, str(error))
        return
    entries = count = 0
    waiting = [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        folders, files = [], []
        try:
            with os.scandir(current) as listing:
                for entry in listing:
                    entries += 1
                    if entry.is_symlink():
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        files += [entry.name] if entry.name.endswith((".toml", *MANIFESTS)) else []
                    elif entry.name.lower() not in SKIPPED:
                        folders.append(entry.name)
                    if entries > MAX_ENTRIES:
                        raise ConfigError(f"{folder}: more than {MAX_ENTRIES:,} files; name the folders to check")
        except OSError as error:
            yield Unreadable(Path(current).as_posix(), f"cannot be read: {error.strerror}")
        for file in sorted(files):
            path = Path(current, file).as_posix()
            if config.excludes(path):
                continue
            if not file.endswith(".toml"):
                later += [path] if len(later) < MAX_FILES else []
                continue
            count += 1
            if count > MAX_FILES:
                raise ConfigError(f"{folder}: more than {MAX_FILES:,} TOML files; name the folders to check")
            found = _read(path, path, only_specs=True)
            if isinstance(found, Unreadable) or is_spec(found.text):
                yield found
        if folders and depth == MAX_DEPTH:
            reason = f"its folders are not searched: they are more than {MAX_DEPTH} deep"
            yield Unreadable(Path(current).as_posix(), reason)
        else:
            waiting += [(os.path.join(current, name), depth + 1) for name in sorted(folders, reverse=True)]


def is_spec(text: str) -> bool:
    """Tell whether a TOML text has the top-level key ``servelint``; of one that is no TOML, whether it looks so."""
    escapes = any(mark in text for mark in (r"\u", r"\U", r"\x"))
    if "servelint" not in text and not escapes:
        return False
    text = text.removeprefix("\ufeff")
    found = _VERSION.search(text)
    header = _HEADER.search(text)
    first = found is not None and (header is None or found.start() < header.start())
    if first and '"""' not in text and "'''" not in text:
        return True
    try:
        return "servelint" in toml.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError):
        return first or any(match[1] for match in _VERSION.finditer(text))


def read_named(name: str) -> Text | Unreadable:
    """Return the text of a file that the command line names. No link in its path leads out of the project."""
    try:
        real = configuration.confined(name)
    except (OSError, ValueError) as error:
        return Unreadable(name, str(error))
    found = _read(real, name)
    if isinstance(found, Text) and not name.endswith(".toml") and not is_spec(found.text):
        return found._replace(kind="manifest")
    return found


def read_input() -> Text | Unreadable:
    """Return the text of standard input."""
    try:
        # It is None where the caller closed it.
        data = sys.stdin.buffer.read(_most_bytes() + 1) if sys.stdin is not None else None
    except (OSError, ValueError) as error:
        return Unreadable("<stdin>", f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if data is None:
        return Unreadable("<stdin>", "standard input is closed")
    found = _decoded(data, "<stdin>")
    if isinstance(found, Text) and not is_spec(found.text) and _ENGINES.search(found.text) and not _parses(found.text):
        # No spec, no TOML, and it names an engine: a manifest that was piped in.
        return found._replace(kind="manifest")
    return found


def _parses(text: str) -> bool:
    try:
        toml.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except (ValueError, RecursionError):
        return False
    return True


def _read(path: str, name: str, *, only_specs: bool = False) -> Text | Unreadable:
    """Return a file's text; with ``only_specs`` a file that is no UTF-8 and no spec either counts as empty."""
    try:
        data = read_regular(path, _most_bytes())
    except FileNotFoundError:
        dangling = os.path.islink(name)
        return Unreadable(name, "it is a link to nothing" if dangling else "there is no such file or folder")
    except OSError as error:
        return Unreadable(name, f"cannot be read: {error.strerror}")
    except ValueError as error:
        return Unreadable(name, str(error))
    found = _decoded(data, name)
    if only_specs and isinstance(found, Unreadable) and not is_spec(data.decode("utf-8", "replace")):
        return Text(name, "")
    return found


def _most_bytes() -> int:
    from servelint.spec.document import MAX_BYTES

    # A character takes at most four bytes.
    return 4 * MAX_BYTES


def _decoded(data: bytes, name: str) -> Text | Unreadable:
    most = _most_bytes()
    try:
        # The cut may go through a character. A spec that is too long needs only to be recognized as such.
        text = data.decode("utf-8", "strict" if len(data) <= most else "ignore")
    except UnicodeDecodeError as error:
        return Unreadable(name, f"it is not UTF-8 text (byte {error.start})")
    return Text(name, text[: most // 4 + 1])


class Composed(NamedTuple):
    """A spec that composes, with the plugins it was composed from."""

    review: Review
    plugins: Plugins


def compose(arguments: argparse.Namespace, name: str) -> Composed | int:
    """Compose one spec; where it cannot be, say why on standard error and return the exit status."""
    from servelint.report.safe import file_name
    from servelint.review import Review

    place = workspace(arguments, None if name == "-" else configuration.project_folder(name))
    found = read_input() if name == "-" else read_named(name)
    if isinstance(found, Unreadable):
        raise ConfigError(f"{name}: {found.reason}")
    document = _opened(found, place)
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


def _opened(found: Text, place: Workspace) -> Document:
    """Open a spec, or the one engine that a manifest starts."""
    from servelint.opening import open_manifest, open_spec

    if found.kind == "spec":
        return open_spec(found.name, found.text, place.plugins, place.root)
    try:
        documents = open_manifest(found.name, found.text, place.plugins)
    except ManifestError as error:
        raise ConfigError(f"{found.name}:{error.place.line}:{error.place.column}: {error}") from None
    if len(documents) != 1:
        names = "; ".join(d.launched.invocation.name for d in documents if d.launched is not None)
        said = f"starts {len(documents)} engines: {names}" if documents else "starts no engine that any plugin reads"
        raise ConfigError(f"{found.name} {said}; `servelint import` writes a spec of one")
    return documents[0]


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


class _Aside:
    """Stands for standard output while plugins run; it cannot be closed, as what a plugin closes is not its own."""

    def write(self, text: str) -> int:
        if sys.stderr is not None:
            sys.stderr.write(guarded(str(text)))
        return len(text)

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


_kept: TextIO | None = None
"""Standard output, once it was set aside."""


def set_aside() -> None:
    """Keep standard output for the command: what plugins print from here on goes to standard error."""
    global _kept
    if _kept is None:
        _kept, sys.stdout = sys.stdout, cast(TextIO, _Aside())


def restore() -> None:
    """Make standard output what it was."""
    global _kept
    if _kept is not None:
        sys.stdout, _kept = _kept, None


def use_color(stream: object) -> bool:
    """Color only on a terminal, and not when NO_COLOR asks for none."""
    isatty = getattr(_kept if isinstance(stream, _Aside) else stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(text: str, *, raw: bool = False) -> None:
    """Write a command's output, also where the terminal's encoding lacks a character.

    Whatever names a spec or a plugin has, no line of it is a command to a terminal or a build log. ``raw`` is for
    the reports of plugins, which may be such commands on purpose.
    """
    if not raw:
        text = guarded(text, color=use_color(sys.stdout))
    stream = _kept or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def save(path: str, text: str) -> None:
    """Write a file that the command line names; below the current folder it may be no link out of the project."""
    try:
        if configuration.is_below_here(path):
            configuration.confined(path)
        # Line ends are those of the text: a fixed spec keeps its own.
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            stream.write(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def rewrite(path: str, before: str, after: str) -> None:
    """Write a file that was read before; ConfigError where somebody else changed it, or it cannot be written.

    Neither loses anything: the file is written in place, and what it held comes back where that fails.
    """
    found = read_named(path)
    if isinstance(found, Unreadable) or found.text != before:
        raise ConfigError(f"{path}: it was changed while it was checked, so it is not written; run the command again")
    try:
        with open(path, "r+b", buffering=0) as stream:
            try:
                _whole(stream, after.encode())
            except OSError:
                _whole(stream, before.encode())
                raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None


def _whole(stream: FileIO, data: bytes) -> None:
    stream.seek(0)
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]
    stream.truncate()


def write_json(value: Mapping[str, Any]) -> None:
    """Write a command's JSON output."""
    from servelint.report.json import dumps

    (_kept or sys.stdout).write(dumps(value))


def settled(plugins: Plugins) -> int:
    """Name the plugins that failed on standard error; return the exit status of a command that did its work."""
    for fault in plugins.faults:
        print(f"servelint: plugin fault: {printable(str(fault))}", file=sys.stderr)
    return 2 if plugins.faults else 0
