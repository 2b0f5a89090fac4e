"""Loads plugins one by one, blames what fails, and answers look-ups by name.

Discovery is a loop of our own over the entry points, because pluggy's stops at the first broken plugin and
lets generator hooks raise later without a name. A plugin that fails is recorded in ``faults`` and left out;
the run goes on, and its exit status says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import pluggy

from servelint import hookspecs
from servelint.architecture import Architecture, ModelFamily
from servelint.descriptors import Engine, Entry, LengthModel, Policy, Reporter, TraceFormat, TraceRow
from servelint.discovery import EntryPoint, entry_points
from servelint.errors import CatalogueError, CompositionError, PluginError, ServelintError
from servelint.formats import Format
from servelint.hardware import Accelerator
from servelint.rule import Rule
from servelint.suggest import did_you_mean, meant, nearest

T = TypeVar("T")

FORBIDDEN = (SystemExit, Exception)
"""What a plugin may raise without ending the run; KeyboardInterrupt passes."""


class Provider(NamedTuple):
    """Who provides a thing: plugin name, its distribution and version, and the module's file."""

    plugin: str
    distribution: str = "unknown"
    version: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} of {self.distribution} {self.version}".rstrip()


class PluginFault(NamedTuple):
    """One plugin's own fault: what failed, in words complete for a user."""

    provider: Provider
    message: str

    def __str__(self) -> str:
        where = f" ({self.provider.file})" if self.provider.file else ""
        return f"{self.provider}{where}: {self.message}"


class Catalogue(Generic[T]):
    """Entries by name: ids first, then ids without their owner, then aliases; every entry loads once.

    ``listed`` is the command that lists the ids, ``otherwise`` what a user can do without an entry.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, tuple[Entry[T], Provider]],
        plugins: Plugins,
        listed: str,
        otherwise: str = "",
    ) -> None:
        self.kind = kind
        self._listed, self._otherwise = listed, otherwise
        self._entries = entries
        self._plugins = plugins
        self._loaded: dict[str, T] = {}
        self._suggested: dict[str, str] = {}

    def ids(self) -> tuple[str, ...]:
        """All ids in order."""
        return tuple(sorted(entry.id for entry, _ in self._entries.values()))

    @cached_property
    def _short(self) -> dict[str, str]:
        """Folded ids without what stands before the slash, where only one entry has them."""
        found: dict[str, list[str]] = {}
        for key in self._entries:
            found.setdefault(_fold(key.rpartition("/")[2]), []).append(key)
        return {name: keys[0] for name, keys in found.items() if len(keys) == 1}

    @cached_property
    def _aliases(self) -> dict[str, str]:
        aliases: dict[str, str] = {}
        for key, (entry, provider) in self._entries.items():
            try:
                with self._plugins.blamed(provider, f"reading the aliases of {self.kind} {entry.id!r}"):
                    names = tuple(entry.aliases())
            except ServelintError:
                continue
            for alias in names:
                taken = aliases.setdefault(_fold(alias), key)
                if taken != key:
                    first = self._entries[taken][1]
                    message = f"{self.kind} alias {alias!r} of {entry.id!r} is already provided by {first}"
                    self._plugins.record_fault(provider, message)
        return aliases

    def resolve(self, name: str) -> str | None:
        """Return the id that a name or alias stands for, None if there is none."""
        key = name.lower()
        if key not in self._entries:
            key = self._short.get(_fold(name)) or self._aliases.get(_fold(name), "")
        return self._entries[key][0].id if key else None

    def related(self, name: str) -> tuple[str, ...]:
        """Return the ids that a name stands for or is part of: ``h100`` names every H100."""
        found = self.resolve(name)
        if found is not None:
            return (found,)
        folded = _fold(name)
        return tuple(id_ for id_, own in self._folded if folded in own) or tuple(self._family(name))

    @cached_property
    def _folded(self) -> list[tuple[str, str]]:
        return [(entry.id, _fold(entry.id)) for entry, _ in self._entries.values()]

    def provider(self, id: str) -> Provider:  # noqa: A002
        """Who provides the entry of that id."""
        return self._entries[id.lower()][1]

    def get(self, name: str) -> T:
        """Load an entry by id or alias; CatalogueError with a suggestion if there is none."""
        found = self.resolve(name)
        if found is None:
            raise CatalogueError(self.unknown(name, self._otherwise))
        if found not in self._loaded:
            entry, provider = self._entries[found.lower()]
            with self._plugins.blamed(provider, f"loading {self.kind} {found!r}"):
                self._loaded[found] = entry.load()
        return self._loaded[found]

    def unknown(self, name: str, otherwise: str = "") -> str:
        """Say that no plugin provides the name, with the ids that may be meant, else what lists them."""
        if name not in self._suggested:
            # A search of the whole catalogue for each of a thousand wrong names would take seconds.
            told = len(self._suggested) < MOST_SUGGESTED
            self._suggested[name] = self._hint(name) if told else ""
        tail = f", or {otherwise}" if otherwise else ""
        hint = self._suggested[name] or f"; `{self._listed}` lists them{tail}"
        return f"no plugin provides the {self.kind} {name!r:.120}{hint}"

    def _family(self, name: str) -> list[str]:
        """Return the ids that have each word of a name, or one that begins with it, in any order."""
        wanted = _words(name)
        if not wanted or min(map(len, wanted)) < 2:
            return []
        return [id_ for id_, words in self._by_words if all(any(w.startswith(p) for w in words) for p in wanted)]

    @cached_property
    def _by_words(self) -> list[tuple[str, list[str]]]:
        return [(id_, _words(id_)) for id_ in self.ids()]

    def _hint(self, name: str) -> str:
        """Say which ids a name may mean: several of a family, else the nearest; empty when there is none."""
        family = self._family(name)
        if 2 <= len(family) <= MOST_OF_FAMILY:
            return f": it may be {' or '.join(map(repr, family))}; name the one that is meant"
        return meant(family if len(family) == 1 else self._near(name))

    def _near(self, name: str) -> list[str]:
        """Return the ids nearest to a name, by id or alias."""
        keys = {**self._aliases, **self._short, **{_fold(key): key for key in self._entries}}
        found = nearest(_fold(name), keys, 6)
        return list(dict.fromkeys(self._entries[keys[folded]][0].id for folded in found))[:3]


MOST_SUGGESTED = 50
"""Unknown names of a run for which near matches are looked up; more are no typing errors."""

MOST_OF_FAMILY = 6


def _fold(name: str) -> str:
    """Names compare without case, spaces, dashes and underscores."""
    return name.lower().replace(" ", "").replace("_", "").replace("-", "")


def _words(name: str) -> list[str]:
    return [word for word in name[:80].lower().replace("/", " ").replace("-", " ").replace("_", " ").split() if word]


class Plugins:
    """Everything that the loaded plugins provide.

    ``disabled`` names plugins that are not imported. ``modules`` adds plugin modules beside the installed
    ones (tests, embedding); with ``discover`` False only these are used.
    """

    def __init__(
        self,
        *,
        disabled: Iterable[str] = (),
        modules: Mapping[str, ModuleType | object] | None = None,
        discover: bool = True,
    ) -> None:
        self.faults: list[PluginFault] = []
        self.providers: dict[str, Provider] = {}
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        blocked = frozenset(disabled)
        if discover:
            self._discover(blocked)
        for name, module in (modules or {}).items():
            if name not in blocked:
                self._register(name, module, Provider(name, file=str(getattr(module, "__file__", "") or "")))
        self._check_hook_names()

    # Loading

    def _discover(self, blocked: frozenset[str]) -> None:
        seen: dict[str, EntryPoint] = {}
        for point in entry_points(hookspecs.PROJECT):
            if point.name in blocked:
                continue
            provider = _provider(point)
            if point.name in seen:
                if seen[point.name].value == point.value:
                    continue  # the same distribution found twice on the path (editable installs)
                first = _provider(seen[point.name])
                self.faults.append(
                    PluginFault(provider, f"the name {point.name!r} is taken by {first.distribution} {first.version}")
                )
                continue
            seen[point.name] = point
            try:
                module = point.load()
            except FORBIDDEN as error:
                self.faults.append(PluginFault(provider, f"cannot be imported: {_described(error)}"))
                continue
            file = str(getattr(module, "__file__", "") or "")
            self._register(point.name, module, provider._replace(file=file))

    def _register(self, name: str, module: ModuleType | object, provider: Provider) -> None:
        declared = getattr(module, "servelint_api", None)
        if declared != hookspecs.API_VERSION:
            said = "states no servelint_api" if declared is None else f"needs plugin API {declared}"
            self.faults.append(PluginFault(provider, f"{said}; this servelint offers API {hookspecs.API_VERSION}"))
            return
        try:
            self._manager.register(module, name=name)
        except FORBIDDEN as error:
            self.faults.append(PluginFault(provider, f"cannot be registered: {_described(error)}"))
            return
        self.providers[name] = provider

    def _check_hook_names(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            name = self._manager.get_name(error.plugin) or "?"
            provider = self.providers.pop(name, Provider(name))
            self._manager.unregister(name=name)
            self.faults.append(PluginFault(provider, f"{error}{did_you_mean(_hook_in(str(error)), hookspecs.HOOKS)}"))
            self._check_hook_names()

    def _yielded(self, hook: str, *kinds: type[Any]) -> Iterator[tuple[Any, Provider]]:
        """Call each implementation of a hook alone and yield what it provides, in plugin order."""
        caller = getattr(self._manager.hook, hook)
        for impl in sorted(caller.get_hookimpls(), key=lambda i: str(i.plugin_name)):
            provider = self.providers.get(impl.plugin_name, Provider(impl.plugin_name))
            try:
                items = list(impl.function() or ())
            except FORBIDDEN as error:
                self.faults.append(PluginFault(provider, f"{hook} failed: {_described(error)}"))
                continue
            for item in items:
                if _acceptable(item, kinds):
                    yield item, provider
                else:
                    wanted = " or ".join(k.__name__ for k in kinds)
                    self.faults.append(
                        PluginFault(provider, f"{hook} yielded {type(item).__name__}, expected {wanted}")
                    )

    def _by_name(
        self, what: str, items: Iterable[tuple[T, Provider]], names: Callable[[T], Iterable[str]]
    ) -> dict[str, tuple[T, Provider]]:
        """Index items by name; a taken name is the later plugin's fault and names both."""
        index: dict[str, tuple[T, Provider]] = {}
        for item, provider in items:
            taken = [n for n in names(item) if n.lower() in index]
            if taken:
                first = index[taken[0].lower()][1]
                self.faults.append(PluginFault(provider, f"{what} {taken[0]!r} is already provided by {first}"))
                continue
            for name in names(item):
                index[name.lower()] = (item, provider)
        return index

    # Look-ups

    @cached_property
    def accelerators(self) -> Catalogue[Accelerator]:
        """Accelerators by id and alias."""
        items = self._yielded("servelint_accelerators", Entry)
        index = self._by_name("accelerator", items, lambda e: (e.id,))
        return Catalogue("accelerator", index, self, "servelint catalog hardware", "give hardware.datasheet")

    @cached_property
    def _models(self) -> tuple[Catalogue[Architecture], dict[str, tuple[ModelFamily, Provider]]]:
        items = list(self._yielded("servelint_models", Entry, ModelFamily))
        entries = [(i, p) for i, p in items if isinstance(i, Entry)]
        families = [(i, p) for i, p in items if isinstance(i, ModelFamily)]
        return (
            Catalogue(
                "model",
                self._by_name("model", entries, lambda e: (e.id,)),
                self,
                "servelint catalog models",
                "give model.config",
            ),
            self._by_name("model family for model_type", families, lambda f: f.model_types),
        )

    @property
    def models(self) -> Catalogue[Architecture]:
        """Models by id and alias."""
        return self._models[0]

    def read_config(self, name: str, model_type: str, config: Mapping[str, object]) -> Architecture:
        """Read a published config; CatalogueError if no family reads its ``model_type``, ValueError from the reader."""
        family = self.model_family(model_type)
        provider = self._models[1][model_type.lower()][1]
        with self.blamed(provider, f"reading a {model_type} config", (ValueError, RecursionError)):
            return family.read(name, config)

    def model_family(self, model_type: str) -> ModelFamily:
        """Return the family that reads configs of a ``model_type``; CatalogueError if none does."""
        families = self._models[1]
        if model_type.lower() not in families:
            raise CatalogueError(
                f"no plugin reads configs with model_type {model_type!r}{did_you_mean(model_type, families)}; "
                f"supported: {', '.join(sorted(families))}"
            )
        return families[model_type.lower()][0]

    @cached_property
    def _workloads(
        self,
    ) -> tuple[dict[str, tuple[LengthModel, Provider]], dict[str, tuple[TraceFormat, Provider]]]:
        items = list(self._yielded("servelint_workloads", LengthModel, TraceFormat))
        return (
            self._by_name(
                "length model", [(i, p) for i, p in items if isinstance(i, LengthModel)], lambda m: (m.name,)
            ),
            self._by_name(
                "trace format", [(i, p) for i, p in items if isinstance(i, TraceFormat)], lambda m: (m.name,)
            ),
        )

    @property
    def length_models(self) -> tuple[LengthModel, ...]:
        """Length models in the order of their names."""
        return tuple(self._workloads[0][name][0] for name in sorted(self._workloads[0]))

    def length_knots(self, values: Mapping[str, float]) -> Sequence[tuple[float, float]] | None:
        """Return the knots of the first length model (by name) that takes the keys; None if none does."""
        for name in sorted(self._workloads[0]):
            model, provider = self._workloads[0][name]
            if set(values) <= set(model.keys) and set(model.required) <= set(values):
                with self.blamed(provider, f"length model {name!r}"):
                    return model.knots(values)
        return None

    def read_trace(self, name: str, lines: Iterable[str]) -> list[TraceRow]:
        """Read a trace in a format that is provided; ValueError names a bad line."""
        trace, provider = self._workloads[1][name.lower()]
        with self.blamed(provider, f"trace format {name!r}", (ValueError,)):
            return list(trace.read(lines))

    @property
    def trace_formats(self) -> Mapping[str, TraceFormat]:
        """Trace formats by name."""
        return {name: item for name, (item, _) in self._workloads[1].items()}

    @cached_property
    def formats(self) -> Mapping[str, Format]:
        """Number formats by name and alias."""
        items = self._yielded("servelint_formats", Format)
        return {n: f for n, (f, _) in self._by_name("format", items, lambda f: (f.name, *f.aliases)).items()}

    def format(self, name: str) -> Format:
        """Return a number format; CatalogueError with a suggestion if there is none."""
        found = self.formats.get(name.lower())
        if found is None:
            hint = did_you_mean(name, self.formats, "`servelint catalog formats` lists them")
            raise CatalogueError(f"no plugin provides the format {name!r}{hint}")
        return found

    @cached_property
    def _policies(self) -> dict[str, tuple[Policy, Provider]]:
        return self._by_name("policy", self._yielded("servelint_policies", Policy), lambda p: (p.name,))

    @cached_property
    def policies(self) -> tuple[Policy, ...]:
        """Policies in the order of composition; CompositionError names a cycle or a missing requirement."""
        index = self._policies
        after: dict[str, set[str]] = {name: set() for name in sorted(index)}
        for name, (policy, provider) in index.items():
            for other in policy.requires:
                if other not in index:
                    raise CompositionError(
                        f"policy {name!r} ({provider}) requires the policy {other!r}, which no plugin provides"
                    )
            after[name].update(o for o in policy.after if o in index)
            for later in policy.before:
                if later in index:
                    after[later].add(name)
        ordered: list[str] = []
        placed: set[str] = set()
        while len(ordered) < len(after):
            ready = [n for n in after if n not in placed and after[n] <= placed]
            if not ready:
                raise CompositionError(self._cycle_message(after, placed))
            ordered.append(ready[0])
            placed.add(ready[0])
        return tuple(index[name][0] for name in ordered)

    def _cycle_message(self, after: Mapping[str, set[str]], placed: set[str]) -> str:
        import networkx as nx

        graph = nx.DiGraph((b, a) for a, befores in after.items() for b in befores if a not in placed)
        cycle = [edge[0] for edge in nx.find_cycle(graph)]
        named = ", ".join(f"{name!r} ({self._policies[name][1]})" for name in cycle)
        return f"policies cannot be ordered, each must follow the one before it in a cycle: {named}"

    @cached_property
    def _engines(self) -> dict[str, tuple[Engine, Provider]]:
        items = self._yielded("servelint_engines", Engine)
        return self._by_name("engine", items, lambda e: (e.name, *e.aliases))

    @cached_property
    def engines(self) -> Mapping[str, Engine]:
        """Engines by name and alias."""
        return {name: engine for name, (engine, _) in self._engines.items()}

    @cached_property
    def _rules(self) -> dict[str, tuple[type[Rule], Provider]]:
        items = []
        for item, provider in self._yielded("servelint_rules", type):
            problem = item.problem() if issubclass(item, Rule) else "is not a Rule"
            if problem:
                self.faults.append(PluginFault(provider, f"rule {item.__name__} {problem}"))
            else:
                items.append((item, provider))
        return self._by_name("rule", items, lambda r: (r.code, r.name))

    @cached_property
    def rules(self) -> tuple[type[Rule], ...]:
        """Rule classes by code."""
        return tuple(sorted({rule for rule, _ in self._rules.values()}, key=lambda r: r.code))

    def rule(self, name: str) -> type[Rule]:
        """Return a rule by code or name; CatalogueError with a suggestion if there is none."""
        found = self._rules.get(name.lower())
        if found is None:
            codes = [n for rule in self.rules for n in (rule.code, rule.name)]
            raise CatalogueError(f"no plugin provides the rule {name!r}{did_you_mean(name, codes)}")
        return found[0]

    def rule_provider(self, code: str) -> Provider:
        """Who provides the rule of that code."""
        return self._rules[code.lower()][1]

    @cached_property
    def _reporters(self) -> dict[str, tuple[Reporter, Provider]]:
        return self._by_name("reporter", self._yielded("servelint_reporters", Reporter), lambda r: (r.name,))

    @cached_property
    def reporters(self) -> Mapping[str, Reporter]:
        """Output formats of ``check`` by name."""
        return {name: reporter for name, (reporter, _) in self._reporters.items()}

    def render(self, name: str, report: object) -> str:
        """Render a report in a format that is provided."""
        reporter, provider = self._reporters[name.lower()]
        with self.blamed(provider, f"report {name!r}"):
            return str(reporter.render(report))

    def devices_of(self, policy: Policy, config: object) -> int | None:
        """Devices that a policy needs under a config, None when it does not say."""
        if policy.devices is None:
            return None
        with self.blamed(self.policy_provider(policy.name), f"devices of policy {policy.name!r}"):
            return policy.devices(config)

    def require_something(self) -> None:
        """Raise PluginError when no rule or no accelerator is there: a lint of nothing is never clean."""
        for what, found in (("rules", self.rules), ("accelerators", self.accelerators.ids())):
            if not found:
                faults = "".join(f"\n  {fault}" for fault in self.faults)
                raise PluginError(
                    f"no {what} are loaded: the installation is broken or every such plugin failed{faults}"
                )

    @contextmanager
    def blamed(self, provider: Provider, what: str, expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Run a plugin's code: what it raises becomes its fault, and a PluginError for the caller.

        Errors that servelint can explain to a user pass as they are, and so do the ``expected`` ones, which
        the contract gives a meaning (a reader's ValueError is about the file).
        """
        passing: tuple[type[Exception], ...] = (ServelintError, *expected)
        try:
            yield
        except passing:
            raise
        except FORBIDDEN as error:
            self.record_fault(provider, f"{what} failed: {_described(error)}")
            raise PluginError(f"{what} failed in {provider}") from None

    def policy_provider(self, name: str) -> Provider:
        """Who provides the policy of that name."""
        return self._policies[name.lower()][1]

    def engine_provider(self, name: str) -> Provider:
        """Who provides the engine of that name."""
        return self._engines[name.lower()][1] if name.lower() in self._engines else Provider(name)

    def record_fault(self, provider: Provider, message: str) -> None:
        """Record a fault found while a plugin's code ran."""
        fault = PluginFault(provider, message)
        if fault not in self.faults:
            self.faults.append(fault)


def _acceptable(item: object, kinds: tuple[type[Any], ...]) -> bool:
    return isinstance(item, kinds)


def _provider(point: EntryPoint) -> Provider:
    return Provider(point.name, point.distribution, point.version)


def _described(error: BaseException) -> str:
    """Name an exception and its innermost place, without a traceback."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


def _hook_in(message: str) -> str:
    words = [w.strip("'\"") for w in message.split() if w.strip("'\"").startswith("servelint_")]
    return words[0] if words else message
