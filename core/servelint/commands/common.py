"""What the commands share: plugins, configuration, specs from paths, and where output goes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from servelint import config as configuration
from servelint.config import Config
from servelint.errors import ConfigError
from servelint.manager import Plugins
from servelint.suggest import did_you_mean

MAX_FILES = 10_000
SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})


class Workspace(NamedTuple):
    """The project root, its configuration and the loaded plugins."""

    root: Path
    config: Config
    plugins: Plugins


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every command has."""
    made = argparse.ArgumentParser(prog=f"servelint {name}", description=description, allow_abbrev=False)
    made.add_argument("--config", metavar="FILE", help="configuration file instead of the project's own")
    made.add_argument("--disable-plugin", metavar="NAME", action="append", default=[], help="do not load a plugin")
    return made


def workspace(arguments: argparse.Namespace, start: Path | None = None) -> Workspace:
    """Find root and configuration, load plugins, and check the configuration against them."""
    root, found = configuration.find_root(start or Path.cwd())
    explicit = arguments.config is not None
    path = Path(arguments.config) if explicit else found
    data = configuration.load(path, explicit)
    disabled = (*configuration.disabled_plugins(data), *arguments.disable_plugin)
    plugins = Plugins(disabled=disabled)
    config = configuration.structure(data, plugins, str(path) if path else "configuration")
    for name in arguments.disable_plugin:
        known = set(plugins.providers) | set(disabled)
        if name not in known:
            raise ConfigError(f"--disable-plugin: no plugin is called {name!r}{did_you_mean(name, known)}")
    return Workspace(root, config, plugins)


def read_specs(paths: list[str], config: Config) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every spec: named files always, files in folders when they are specs.

    A file in a folder is a spec when it has the top-level key ``servelint``. ``-`` is standard input.
    """
    for name in paths:
        if name == "-":
            yield "<stdin>", _decoded(sys.stdin.buffer.read(5_000_000), "<stdin>")
            continue
        path = Path(name)
        if path.is_dir():
            yield from _searched(path, config)
        elif path.is_file():
            yield name, read_text(path)
        else:
            raise ConfigError(f"{name}: there is no such file or folder")


def _searched(folder: Path, config: Config) -> Iterator[tuple[str, str]]:
    from fnmatch import fnmatch

    count = 0
    for current, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for file in sorted(files):
            if not file.endswith(".toml"):
                continue
            path = Path(current) / file
            if any(fnmatch(path.as_posix(), pattern) for pattern in config.exclude) or path.is_symlink():
                continue
            count += 1
            if count > MAX_FILES:
                raise ConfigError(f"{folder}: more than {MAX_FILES:,} TOML files; name the folders to check")
            text = read_text(path)
            if is_spec(text):
                yield path.as_posix(), text


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


def read_text(path: Path) -> str:
    """Return a file's text; ConfigError when it cannot be read as UTF-8."""
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: it is not a regular file")
        with path.open("rb") as stream:
            return _decoded(stream.read(5_000_000), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: it is not UTF-8 text (byte {error.start})") from None


def use_color(stream: object) -> bool:
    """Color only on a terminal, and not when NO_COLOR asks for none."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
