"""Configuration: ``servelint.toml``, or ``[tool.servelint]`` of ``pyproject.toml``, and the project root.

An unknown key, rule or value is an error with a suggestion: a typo must not switch the gate off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from servelint import toml
from servelint.errors import ConfigError
from servelint.files import read_regular, refuse_repositories
from servelint.manager import Plugins
from servelint.rule import Rule, RuleEntry, Severity
from servelint.suggest import did_you_mean
from servelint.suppress import RULES, every_rule
from servelint.values import Value

KEYS = (
    "select",
    "ignore",
    "extend-select",
    "per-file-ignores",
    "severity",
    "rule",
    "fail-on",
    "exclude",
    "disable-plugins",
    "preview",
)
FILES = ("servelint.toml", ".servelint.toml")
MAX_BYTES = 1_000_000
MOST_PATTERNS = 1_000
LONGEST_PATTERN = 200
LARGEST = 1e300
"""Limits of a configuration; a larger one would let a pull request keep the machine busy."""


@frozen(slots=False, eq=False, repr=False)
class Config(Value):
    """What is selected and how it is judged. Names are codes, families (``MEM``), or rule names.

    ``suppressions`` False judges specs as if they had no suppression comments. Patterns of files are relative
    to ``root``, the project's folder.
    """

    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = {}
    severity: Mapping[str, Severity] = {}
    options: Mapping[str, Mapping[str, float]] = {}
    fail_on: Severity = Severity.ERROR
    exclude: tuple[str, ...] = ()
    disable_plugins: tuple[str, ...] = ()
    preview: bool = False
    suppressions: bool = True
    root: Path | None = None

    def selects(self, rule: type[Rule] | RuleEntry) -> bool:
        """Whether a rule runs at all."""
        if rule.preview and not self.preview and rule.code not in self.select:
            return False
        return _named(rule.code, rule.name, self.select) and not _named(rule.code, rule.name, self.ignore)

    def ignores(self, rule: Rule | type[Rule] | RuleEntry, file: str) -> bool:
        """Whether a rule is off for a file."""
        return bool(self.per_file_ignores) and _named(rule.code, rule.name, self._ignored(file))

    def excludes(self, file: str) -> bool:
        """Whether a file that a search found is left out."""
        return bool(self.exclude) and _any(self.exclude, self._from_root(file))

    def matches(self, file: str, pattern: str) -> bool:
        """Whether a pattern fits a file: its path from the project's folder, a folder above it, or its name."""
        return _any((pattern,), self._from_root(file))

    def _ignored(self, file: str) -> tuple[str, ...]:
        """Return what is off for a file. Every rule asks, so the answer is kept for the file in hand."""
        kept: tuple[str, tuple[str, ...]] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] != file:
            shown = self._from_root(file)
            found = (name for p, names in self.per_file_ignores.items() if _any((p,), shown) for name in names)
            kept = self.__dict__["_kept"] = (file, tuple(dict.fromkeys(found)))
        return kept[1]

    def _from_root(self, file: str) -> str:
        path = Path(file)
        if self.root is not None and (resolved := Path(os.path.realpath(file))).is_relative_to(self.root):
            path = resolved.relative_to(self.root)
        return path.as_posix()


def _any(patterns: Iterable[str], shown: str) -> bool:
    name = os.path.normcase(shown.rpartition("/")[2])
    shown = os.path.normcase(shown)
    for pattern in patterns:
        itself, below = _compiled(pattern)
        if itself.match(shown) or itself.match(name) or below.match(shown):
            return True
    return False


@lru_cache(maxsize=2 * MOST_PATTERNS)
def _compiled(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    itself, below = os.path.normcase(pattern), os.path.normcase(pattern.rstrip("/") + "/*")
    return re.compile(translate(itself)), re.compile(translate(below))


def _named(code: str, name: str, names: Iterable[str]) -> bool:
    for wanted in names:
        if wanted == "ALL" or wanted in (code, name):
            return True
        if wanted.isalpha() and wanted.isupper() and code.rstrip("0123456789") == wanted:
            return True
    return False


def find_root(start: Path) -> tuple[Path, Path | None]:
    """Return the project root and the configuration file for a starting folder.

    The nearest folder upwards with a configuration file, else the nearest with a repository, else ``start``.
    ConfigError for a configuration file that is there and cannot be read: what it says must not be lost.
    """
    start = Path(os.path.realpath(start))
    for folder in (start, *start.parents):
        for name in FILES:
            if os.path.lexists(folder / name):
                _require_own(folder, folder / name)
                return folder, folder / name
        project = folder / "pyproject.toml"
        if os.path.lexists(project) and _configures(folder, project):
            return folder, project
    return repository(start) or start, None


def repository(start: Path) -> Path | None:
    """Return the nearest folder upwards that holds a repository, None outside of one."""
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)


def project_folder(path: str) -> Path:
    """Return the folder from which to look for the project of a path of the command line.

    Links do not lead to another project. Below the current folder, in a project, and at the end of the path, the
    first one ends the way; the others (``/tmp`` on some systems) are no stranger's and are followed.
    """
    here, whole = Path.cwd(), Path(os.path.abspath(path))
    below = whole.is_relative_to(here)
    current = here if below else Path(whole.anchor)
    parts = whole.relative_to(current).parts
    for i, part in enumerate(parts):
        step = current / part
        if os.path.islink(step):
            last = i == len(parts) - 1 and len(current.parts) > 1
            if below or last or find_root(current)[1] is not None or repository(current) is not None:
                break
            step = Path(os.path.realpath(step))
        if not os.path.isdir(step):
            break
        current = step
    return current


def confined(path: str) -> str:
    """Return the real path of a file or folder of the command line, which has to lie in its project.

    ValueError when a link leads out of the project, or to the folder in which a repository keeps itself.
    """
    real = os.path.realpath(path)
    refuse_repositories(real)
    if real != os.path.abspath(path):
        root, _ = find_root(project_folder(path))
        if not Path(real).is_relative_to(root):
            raise ValueError("it is a link that leads out of the project")
    return real


def is_below_here(path: str) -> bool:
    """Whether a path stands in the current folder, where a stranger may have put it."""
    return Path(os.path.abspath(path)).is_relative_to(Path.cwd())


def _require_own(folder: Path, file: Path) -> None:
    """ConfigError unless a configuration file that a search found is a file of the project."""
    real = Path(os.path.realpath(file))
    if real != file and not real.is_relative_to(repository(folder) or folder):
        raise ConfigError(f"{file}: it is a link that leads out of the project, expected a configuration file")
    if not os.path.isfile(real):
        what = "it is a link to nothing" if os.path.islink(file) else "it is not a regular file"
        raise ConfigError(f"{file}: {what}, expected a configuration file")


def _configures(folder: Path, project: Path) -> bool:
    """Whether a ``pyproject.toml`` has a table for servelint, in any of the ways to write it."""
    _require_own(folder, project)
    if b"servelint" not in _bytes(project):
        return False
    tool = _parsed(project).get("tool", {})
    # What is no table is left to the loading, which says so.
    return "servelint" in tool if isinstance(tool, Mapping) else True


def _bytes(path: Path) -> bytes:
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: it has more than {MAX_BYTES:,} bytes, the most that a configuration file may have")
    return data


def _parsed(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    try:
        return toml.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise ConfigError(f"{path}: this TOML is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{path}: this is not valid TOML: {error}") from None


def load(path: Path | None, explicit: bool = False) -> dict[str, Any]:
    """Read a configuration file into a plain table; ConfigError if it cannot be used.

    ``explicit``: the command line names it. Below the current folder it still may be no link out of the project.
    """
    if path is None:
        return {}
    if explicit and is_below_here(str(path)):
        try:
            confined(str(path))
        except ValueError as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
    data = _parsed(path)
    if path.name == "pyproject.toml" and not (explicit and "tool" not in data):
        tool = _table(data.get("tool", {}), f"{path}: tool")
        data = dict(_table(tool.get("servelint", {}), f"{path}: tool.servelint"))
    return data


def disabled_plugins(data: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the plugins that configuration switches off; read before any plugin is imported."""
    return _texts(data.get("disable-plugins", []), f"{where}: disable-plugins")


def structure(data: Mapping[str, Any], plugins: Plugins, where: str, root: Path | None = None) -> Config:
    """Check a configuration table against the loaded plugins and return it."""
    for name in data:
        if name not in KEYS:
            hint = did_you_mean(name, KEYS) or f"; the keys are {', '.join(KEYS)}"
            raise ConfigError(f"{where}: unknown key {name!r}{hint}")
    select = _texts(data.get("select", ["ALL"]), f"{where}: select")
    select = (*select, *_texts(data.get("extend-select", []), f"{where}: extend-select"))
    ignore = _texts(data.get("ignore", []), f"{where}: ignore")
    ignores = _table(data.get("per-file-ignores", {}), f"{where}: per-file-ignores")
    _limit_patterns(tuple(ignores), f"{where}: per-file-ignores")
    per_file = {
        pattern: check_names(_texts(names, f"{where}: per-file-ignores"), plugins, f"{where}: per-file-ignores")
        for pattern, names in ignores.items()
    }
    exclude = _texts(data.get("exclude", []), f"{where}: exclude")
    _limit_patterns(exclude, f"{where}: exclude")
    severity = {
        _rule(name, plugins, f"{where}: severity").code: parse_severity(value, f"{where}: severity.{name}")
        for name, value in _table(data.get("severity", {}), f"{where}: severity").items()
    }
    fail_on = parse_severity(data.get("fail-on", "error"), f"{where}: fail-on")
    preview = data.get("preview", False)
    if not isinstance(preview, bool):
        raise ConfigError(f"{where}: preview is {_shown(preview)}, expected true or false")
    return Config(
        check_names(select, plugins, f"{where}: select"),
        check_names(ignore, plugins, f"{where}: ignore"),
        per_file,
        severity,
        _options(_table(data.get("rule", {}), f"{where}: rule"), plugins, where),
        fail_on,
        exclude,
        disabled_plugins(data, where),
        preview,
        root=root,
    )


def _options(table: Mapping[str, Any], plugins: Plugins, where: str) -> dict[str, dict[str, float]]:
    options: dict[str, dict[str, float]] = {}
    for name, values in table.items():
        rule = _rule(name, plugins, f"{where}: rule")
        known = {option.name: option for option in rule.options}
        for key, value in _table(values, f"{where}: rule.{name}").items():
            option = known.get(key)
            if option is None:
                hint = did_you_mean(key, known) or f"; it has {', '.join(known) or 'no options'}"
                raise ConfigError(f"{where}: rule {rule.code} has no option {key!r}{hint}")
            said = f"{where}: rule.{name}.{key} is {_shown(value)}"
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{said}, expected a number")
            if not option.minimum <= value <= option.maximum or not abs(value) <= LARGEST:
                raise ConfigError(f"{said}, expected {option.minimum:g} to {min(option.maximum, LARGEST):g}")
            options.setdefault(rule.code, {})[key] = float(value)
    return options


def check_names(names: tuple[str, ...], plugins: Plugins, where: str) -> tuple[str, ...]:
    """Return the names, each once, when each is ALL, a family, a code or a rule name; else ConfigError."""
    rules: tuple[RuleEntry | type[Rule], ...] = (*plugins.rule_entries, *RULES)
    known = {"ALL", *(n for rule in rules for n in (rule.code, rule.name, rule.code.rstrip("0123456789")))}
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: no rule or family is called {name!r}{did_you_mean(name, sorted(known))}")
    return tuple(dict.fromkeys(names))


def _rule(name: str, plugins: Plugins, where: str) -> type[Rule]:
    rules = every_rule(plugins)
    for rule in rules:
        if name in (rule.code, rule.name):
            return rule
    hint = did_you_mean(name, [n for rule in rules for n in (rule.code, rule.name)])
    raise ConfigError(f"{where}: no rule is called {name!r}{hint}")


def parse_severity(value: object, where: str) -> Severity:
    """Read ``error``, ``warning`` or ``info``."""
    names = {str(s): s for s in Severity}
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ConfigError(f"{where} is {_shown(value)}, expected one of {', '.join(names)}{hint}")
    return names[value]


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{where} is {_shown(value)}, expected a list of texts")
    return tuple(value)


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {_shown(value)}, expected a table")
    return value


def _shown(value: object) -> str:
    """Write a value of a configuration; some cannot be written: an integer of 5,000 digits, a thousand tables."""
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):
        return f"a value ({type(value).__name__}) that is too large to show"


def _limit_patterns(patterns: tuple[str, ...], where: str) -> None:
    if len(patterns) > MOST_PATTERNS:
        raise ConfigError(f"{where} has {len(patterns):,} patterns, expected at most {MOST_PATTERNS:,}")
    longest = max(map(len, patterns), default=0)
    if longest > LONGEST_PATTERN:
        raise ConfigError(f"{where} has a pattern of {longest:,} characters, expected at most {LONGEST_PATTERN:,}")


def with_overrides(
    config: Config,
    plugins: Plugins,
    select: tuple[str, ...] | None,
    ignore: tuple[str, ...],
    fail_on: str | None,
    suppressions: bool = True,
) -> Config:
    """Return the configuration with what the command line says; ConfigError when no rule is left."""
    if select is not None:
        config = evolve(config, select=check_names(select, plugins, "--select"))
    if ignore:
        config = evolve(config, ignore=(*config.ignore, *check_names(ignore, plugins, "--ignore")))
    if fail_on is not None:
        config = evolve(config, fail_on=parse_severity(fail_on, "--fail-on"))
    if not any(config.selects(rule) for rule in plugins.rule_entries):
        raise ConfigError("no rule is selected: select and ignore leave nothing to check")
    return evolve(config, suppressions=suppressions)
