"""Configuration: ``servelint.toml``, or ``[tool.servelint]`` of ``pyproject.toml``, and the project root.

An unknown key, rule or value is an error with a suggestion: a typo must not switch the gate off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import tomli
from attrs import evolve, frozen

from servelint.errors import ConfigError
from servelint.manager import Plugins
from servelint.rule import Rule, Severity
from servelint.suggest import did_you_mean
from servelint.suppress import every_rule
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

    def selects(self, rule: type[Rule]) -> bool:
        """Whether a rule runs at all."""
        if rule.preview and not self.preview and rule.code not in self.select:
            return False
        return _named(rule.code, rule.name, self.select) and not _named(rule.code, rule.name, self.ignore)

    def ignores(self, rule: Rule | type[Rule], file: str) -> bool:
        """Whether a rule is off for a file."""
        return any(
            self.matches(file, pattern) and _named(rule.code, rule.name, names)
            for pattern, names in self.per_file_ignores.items()
        )

    def excludes(self, file: str) -> bool:
        """Whether a file that a search found is left out."""
        return any(self.matches(file, pattern) for pattern in self.exclude)

    def matches(self, file: str, pattern: str) -> bool:
        """Whether a pattern fits a file: its path from the project's folder, a folder above it, or its name."""
        path = Path(file)
        if self.root is not None and (resolved := path.resolve()).is_relative_to(self.root):
            path = resolved.relative_to(self.root)
        shown = path.as_posix()
        return fnmatch(shown, pattern) or fnmatch(path.name, pattern) or fnmatch(shown, pattern.rstrip("/") + "/*")


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
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        for name in FILES:
            if (folder / name).is_file():
                return folder, folder / name
        project = folder / "pyproject.toml"
        if project.is_file() and b"[tool.servelint" in _bytes(project):
            return folder, project
    return repository(start) or start, None


def repository(start: Path) -> Path | None:
    """Return the nearest folder upwards that holds a repository, None outside of one."""
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()[:1_000_000]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def load(path: Path | None, explicit: bool = False) -> dict[str, Any]:
    """Read a configuration file into a plain table; ConfigError if it cannot be used."""
    if path is None:
        return {}
    try:
        data = tomli.loads(_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not valid TOML: {error}") from None
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
    per_file = {
        pattern: check_names(_texts(names, f"{where}: per-file-ignores"), plugins, f"{where}: per-file-ignores")
        for pattern, names in _table(data.get("per-file-ignores", {}), f"{where}: per-file-ignores").items()
    }
    severity = {
        _rule(name, plugins, f"{where}: severity").code: parse_severity(value, f"{where}: severity.{name}")
        for name, value in _table(data.get("severity", {}), f"{where}: severity").items()
    }
    fail_on = parse_severity(data.get("fail-on", "error"), f"{where}: fail-on")
    preview = data.get("preview", False)
    if not isinstance(preview, bool):
        raise ConfigError(f"{where}: preview is {preview!r:.40}, expected true or false")
    return Config(
        check_names(select, plugins, f"{where}: select"),
        check_names(ignore, plugins, f"{where}: ignore"),
        per_file,
        severity,
        _options(_table(data.get("rule", {}), f"{where}: rule"), plugins, where),
        fail_on,
        _texts(data.get("exclude", []), f"{where}: exclude"),
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
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{where}: rule.{name}.{key} is {value!r:.40}, expected a number")
            if not option.minimum <= value <= option.maximum:
                raise ConfigError(
                    f"{where}: rule.{name}.{key} is {value!r:.40}, expected {option.minimum:g} to {option.maximum:g}"
                )
            options.setdefault(rule.code, {})[key] = float(value)
    return options


def check_names(names: tuple[str, ...], plugins: Plugins, where: str) -> tuple[str, ...]:
    """Return the names unchanged when each is ALL, a family, a code or a rule name; else ConfigError."""
    rules = every_rule(plugins)
    known = {"ALL", *(n for rule in rules for n in (rule.code, rule.name, rule.code.rstrip("0123456789")))}
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: no rule or family is called {name!r}{did_you_mean(name, sorted(known))}")
    return names


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
        raise ConfigError(f"{where} is {value!r:.40}, expected one of {', '.join(names)}{hint}")
    return names[value]


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{where} is {value!r:.60}, expected a list of texts")
    return tuple(value)


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {value!r:.60}, expected a table")
    return value


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
    if not any(config.selects(rule) for rule in plugins.rules):
        raise ConfigError("no rule is selected: select and ignore leave nothing to check")
    return evolve(config, suppressions=suppressions)
