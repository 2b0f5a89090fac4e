"""Loads plugins one by one, blames what fails, and answers look-ups by name.

Discovery is a loop of our own over the entry points, because pluggy's stops at the first broken plugin and
lets generator hooks raise later without a name. A plugin that fails is recorded in ``faults`` and left out;
the run goes on, and its exit status says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from servelint import contract, hookspecs
from servelint.architecture import Architecture, ModelFamily
from servelint.blame import Blamed, PluginFault, Provider, Wrong, described, ends_run, origin, shown
from servelint.catalogue import Catalogue
from servelint.descriptors import Default, Engine, Entry, LengthModel, Policy, Reporter, TraceFormat, TraceRow
from servelint.discovery import EntryPoint, entry_points
from servelint.errors import CatalogueError, CompositionError, InfeasibleError, PluginError
from servelint.formats import Format
from servelint.hardware import Accelerator, Labels
from servelint.lineage import KeyPath, Source
from servelint.rule import Rule, RuleEntry
from servelint.suggest import did_you_mean

if TYPE_CHECKING:
    from servelint.checkpoints import Checkpoint
    from servelint.evidence import EvidenceFormat
    from servelint.instances import Instances
    from servelint.launch.manifest import ManifestFormat
    from servelint.spec.schema import Kind

T = TypeVar("T")

MOST_TOLD = 5
"""Wrong things of one hook that are told one by one."""


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
        self.off: frozenset[str] = frozenset()
        self._accepted: dict[tuple[str, str], object] = {}
        self.providers: dict[str, Provider] = {}
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        blocked = frozenset(disabled)
        if discover:
            self._discover(blocked)
        for name, module in (modules or {}).items():
            if name not in blocked:
                self._register(name, module, Provider(name))
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
                self.record_fault(provider, f"the name {point.name!r} is taken by {first.distribution} {first.version}")
                continue
            seen[point.name] = point
            try:
                module = point.load()
            except BaseException as error:
                self.blame(provider._replace(file=origin(error)), "cannot be imported", error)
                continue
            self._register(point.name, module, provider)

    def _register(self, name: str, module: ModuleType | object, provider: Provider) -> None:
        # A module may answer any question by an exception, or by something that is no answer.
        try:
            file = getattr(module, "__file__", "")
            provider = provider._replace(file=file if type(file) is str else "")
            declared = getattr(module, "servelint_api", None)
            if type(declared) is not str or declared != hookspecs.API_VERSION:
                said = f"needs plugin API {declared if type(declared) is str else shown(declared)}"
                said = "states no servelint_api" if declared is None else said
                self.record_fault(provider, f"{said}; this servelint offers API {hookspecs.API_VERSION}")
                return
            self.providers[name] = provider
            self._manager.register(module, name=name)
        except BaseException as error:
            self.blame(provider, "cannot be registered", error)
            if self.providers.pop(name, None) is not None and self._manager.has_plugin(name):
                # What stood before the hook that pluggy refused is registered by then.
                self._manager.unregister(name=name)

    def _check_hook_names(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            name = self._manager.get_name(error.plugin) or "?"
            provider = self.providers.pop(name, Provider(name))
            self._manager.unregister(name=name)
            self.record_fault(provider, f"{error}{did_you_mean(_hook_in(str(error)), hookspecs.HOOKS)}")
            self._check_hook_names()

    def _yielded(self, hook: str, *kinds: type[Any]) -> Iterator[tuple[Any, Provider]]:
        """Call each implementation of a hook alone and yield what it provides, in plugin order."""
        caller = getattr(self._manager.hook, hook)
        for impl in sorted(caller.get_hookimpls(), key=lambda i: str(i.plugin_name)):
            provider = self.providers.get(impl.plugin_name, Provider(impl.plugin_name))
            try:
                with self.blamed(provider, hook):
                    items = contract.listed(impl.function(), kinds)
            except Blamed:
                continue
            wrong: dict[str, None] = {}
            for item in items:
                said = contract.problem(item, kinds)
                if said:
                    wrong[said] = None
                else:
                    yield item, provider
            for said in list(wrong)[:MOST_TOLD]:
                self.record_fault(provider, f"{hook}: {said}")
            if len(wrong) > MOST_TOLD:
                self.record_fault(provider, f"{hook}: {len(wrong) - MOST_TOLD:,} more things are wrong")

    def _by_name(
        self, what: str, items: Iterable[tuple[T, Provider]], names: Callable[[T], Iterable[str]]
    ) -> dict[str, tuple[T, Provider]]:
        """Index items by name; a taken name is the later plugin's fault and names both."""
        index: dict[str, tuple[T, Provider]] = {}
        for item, provider in items:
            taken = [n for n in names(item) if n.lower() in index]
            if taken:
                first = index[taken[0].lower()][1]
                self.record_fault(provider, f"{what} {taken[0]!r} is already provided by {first}")
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
        return Catalogue(
            "accelerator", index, self, "servelint catalog hardware", "give hardware.datasheet", Accelerator
        )

    @cached_property
    def instances(self) -> Instances:
        """Instance types by id and alias, and the labels of manifests; read only when asked for."""
        from servelint.instances import Instances

        items = list(self._yielded("servelint_instances", Entry, Labels))
        entries = [(i, p) for i, p in items if isinstance(i, Entry)]
        labels = [(i, p) for i, p in items if isinstance(i, Labels)]
        return Instances(
            self._by_name("instance type", entries, lambda e: (e.id,)),
            self._by_name("label", labels, lambda t: (t.key,)),
            self,
        )

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
                Architecture,
            ),
            self._by_name("model family for model_type", families, lambda f: f.model_types),
        )

    @property
    def models(self) -> Catalogue[Architecture]:
        """Models by id and alias."""
        return self._models[0]

    def checkpoint(self, name: str) -> Checkpoint | None:
        """What a name that is no model's says of model and format; None for a model's own, and for any other name."""
        if self.models.resolve(name) is not None:
            return None
        from servelint.checkpoints import checkpoint

        return checkpoint(name, self.models, self.formats)

    def read_config(self, name: str, model_type: str, config: Mapping[str, object]) -> Architecture:
        """Read a published config; CatalogueError if no family reads its ``model_type``, ValueError from the reader."""
        family = self.model_family(model_type)
        provider = self._models[1][model_type.lower()][1]
        with self.blamed(provider, f"reading a {model_type} config", (ValueError, RecursionError, CatalogueError)):
            found = family.read(name, config)
            if not isinstance(found, Architecture):
                raise Wrong(f"gave {type(found).__name__}, expected Architecture")
            return found

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
                    return contract.knots(model.knots(values))
        return None

    def read_trace(self, name: str, lines: Sequence[str]) -> list[TraceRow]:
        """Read a trace in a format that is provided; ValueError names a bad line."""
        trace, provider = self._workloads[1][name.lower()]
        with self.blamed(provider, f"trace format {name!r}", (ValueError,)):
            return contract.rows(trace.read(lines), sum(map(len, lines)) + len(lines))

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
    def _readers(self) -> dict[str, tuple[ManifestFormat | EvidenceFormat, Provider]]:
        from servelint.evidence import EvidenceFormat
        from servelint.launch.manifest import ManifestFormat

        items = self._yielded("servelint_readers", ManifestFormat, EvidenceFormat)
        return self._by_name("file format", items, lambda f: (f.name,))

    @cached_property
    def manifest_formats(self) -> tuple[ManifestFormat, ...]:
        """Kinds of files that start engines, in the order in which they are tried."""
        from servelint.launch.manifest import ManifestFormat

        found = [f for f, _ in self._readers.values() if isinstance(f, ManifestFormat)]
        return tuple(sorted(found, key=lambda f: (f.priority, f.name)))

    @cached_property
    def evidence_formats(self) -> tuple[EvidenceFormat, ...]:
        """Kinds of result files of benchmarks, in the order in which they are tried."""
        from servelint.evidence import EvidenceFormat

        found = [f for f, _ in self._readers.values() if isinstance(f, EvidenceFormat)]
        return tuple(sorted(found, key=lambda f: (f.priority, f.name)))

    @cached_property
    def _rules(self) -> dict[str, tuple[RuleEntry, Provider]]:
        items = ((_entered(item), provider) for item, provider in self._yielded("servelint_rules", type, RuleEntry))
        return self._by_name("rule", items, lambda r: (r.code, r.name))

    @cached_property
    def rule_entries(self) -> tuple[RuleEntry, ...]:
        """Rules by code, not loaded."""
        found = {entry.code: entry for entry, _ in self._rules.values()}
        return tuple(found[code] for code in sorted(found))

    @cached_property
    def rules(self) -> tuple[type[Rule], ...]:
        """Rule classes by code, all of them loaded; what cannot be is its plugin's fault and left out."""
        return tuple(rule for entry in self.rule_entries if (rule := self.load_rule(entry)) is not None)

    def load_rule(self, entry: RuleEntry) -> type[Rule] | None:
        """Return the class of a rule, None when its plugin does not give it."""
        if entry.code not in self._loaded_rules:
            found: type[Rule] | None = None
            with suppress(PluginError), self.blamed(self.rule_provider(entry.code), f"loading the rule {entry.code}"):
                found = contract.loaded_rule(entry.load(), entry)
            self._loaded_rules[entry.code] = found
        return self._loaded_rules[entry.code]

    @cached_property
    def _loaded_rules(self) -> dict[str, type[Rule] | None]:
        return {}

    def rule(self, name: str) -> type[Rule]:
        """Return a rule by code or name; CatalogueError with a suggestion if there is none."""
        found = self._rules.get(name.lower())
        if found is None:
            codes = [n for rule in self.rule_entries for n in (rule.code, rule.name)]
            raise CatalogueError(f"no plugin provides the rule {name!r}{did_you_mean(name, codes)}")
        loaded = self.load_rule(found[0])
        if loaded is None:
            raise PluginError(f"the rule {name!r} could not be loaded")
        return loaded

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
            return contract.text(reporter.render(report))

    def devices_of(self, policy: Policy, config: object) -> int | None:
        """Devices that a policy needs under a config, None when it does not say."""
        if policy.devices is None:
            return None
        with self._policy_blamed(policy, "devices of policy"):
            return contract.devices(policy.devices(config))

    # What a composition asks of policies and engines

    @property
    def active(self) -> tuple[Policy, ...]:
        """The policies in the order of composition, without those that failed in this run."""
        return self.policies if not self.off else tuple(p for p in self.policies if p.name not in self.off)

    def made_by(self, policy: Policy, change: Callable[[Any, T, Any], T], config: object, thing: T, context: Any) -> T:
        """Return what a policy makes of a graph, a ledger or a scheduler; InfeasibleError passes."""
        with self._policy_blamed(policy, "policy"):
            made = change(config, thing, context)
            if made is not thing:
                contract.composed(thing, made)
            return made

    def policy_defaults(self, policy: Policy, config: object, context: Any) -> Mapping[str, Default]:
        """Return the policy's own defaults by field."""
        if policy.defaults is None:
            return {}
        with self._policy_blamed(policy, "defaults of policy"):
            found = policy.defaults(config, context)
            if not isinstance(found, Mapping):
                raise Wrong(f"returned {type(found).__name__}, expected a mapping of fields to Default")
            for name, default in found.items():
                self._check_default(policy.name, name, default, own=True)
            return found

    def engine_defaults(self, engine: Engine, version: str | None, context: Any) -> Mapping[tuple[str, str], Default]:
        """Return the engine's defaults by policy and field."""
        with self.blamed(self.engine_provider(engine.name), f"defaults of engine {engine.name!r}", (InfeasibleError,)):
            found = engine.defaults(version, context)
            if not isinstance(found, Mapping):
                raise Wrong(f"returned {type(found).__name__}, expected a mapping of (policy, field) to Default")
            for key, default in found.items():
                if not isinstance(key, tuple) or len(key) != 2:
                    raise Wrong(f"returned the key {shown(key)}, expected (policy, field)")
                self._check_default(*key, default)
            return found

    def engine_reserves(self, engine: Engine, version: str | None, context: Any) -> Mapping[str, Default]:
        """Return the engine's fixed costs in bytes of a device, by name."""
        with self.blamed(self.engine_provider(engine.name), f"reserve of engine {engine.name!r}", (InfeasibleError,)):
            found = engine.reserve_bytes(version, context)
            if not isinstance(found, Mapping):
                raise Wrong(f"returned {type(found).__name__}, expected a mapping of names to Default")
            for name, reserve in found.items():
                contract.reserve(reserve, name)
            return found

    def engine_caches(self, engine: Engine, version: str | None, ledger: T, context: Any) -> T:
        """Return the memory ledger as the engine pages its caches."""
        if engine.caches is None:
            return ledger
        with self.blamed(self.engine_provider(engine.name), f"caches of engine {engine.name!r}", (InfeasibleError,)):
            made: Any = engine.caches(version, ledger, context)  # type: ignore[arg-type]
            if made is not ledger:
                contract.composed(ledger, made)
            return made  # type: ignore[no-any-return]

    def engine_refusals(
        self, engine: Engine, version: str | None, context: Any
    ) -> tuple[tuple[KeyPath, str, Source], ...]:
        """Return what the engine refuses at start: key paths with messages and sources."""
        if engine.unsupported is None:
            return ()
        with self.blamed(self.engine_provider(engine.name), f"refusals of engine {engine.name!r}"):
            return tuple(contract.refusal(item) for item in islice(engine.unsupported(version, context), 100))

    def engine_dequantizes(
        self, engine: Engine, version: str | None, format_: Format, accelerator: Accelerator
    ) -> bool:
        """Return whether a release, the assumed one where none is given, multiplies weights of a format in 16 bit."""
        if engine.dequantizes is None:
            return False
        with self.blamed(self.engine_provider(engine.name), f"formats of engine {engine.name!r}"):
            found = engine.dequantizes(version or engine.assumed, format_, accelerator)
            if type(found) is not bool:
                raise Wrong(f"returned {shown(found)}, expected a bool")
            return found

    def engine_first_release(self, engine: Engine, model_type: str) -> str:
        """Return the oldest release of an engine that is known to load a model, empty where nothing is known."""
        if engine.first_release is None:
            return ""
        with self.blamed(self.engine_provider(engine.name), f"first release of engine {engine.name!r}"):
            found = engine.first_release(model_type)
            if type(found) is not str:
                raise Wrong(f"returned {shown(found)}, expected a text")
            return found

    def _check_default(self, policy: str, name: str, default: Default, *, own: bool = False) -> None:
        """Hold a default to the key that it fills; what policies that are not provided get is never used."""
        contract.default(default, f"{policy}.{name}")
        if self._accepted.get((policy, name), self) is default.value:
            return
        fields = self._fields_of(policy)
        if name in fields:
            contract.setting(fields[name], default, f"{policy}.{name}")
            self._accepted[policy, name] = default.value
        elif own:
            raise Wrong(f"returned a default for {shown(name)}, which is no field of its table")

    def _fields_of(self, policy: str) -> Mapping[str, Kind]:
        """The kinds of a policy's fields by attribute; empty for a policy that no plugin provides."""
        from servelint.spec.schema import kinds

        found = self._policies.get(policy.lower())
        return {} if found is None else {name: kind for name, kind, _ in kinds(found[0].config).values()}

    @contextmanager
    def _policy_blamed(self, policy: Policy, what: str) -> Iterator[None]:
        """Run a policy's code; one that fails is left out of the rest of the run, with those that require it."""
        try:
            with self.blamed(self.policy_provider(policy.name), f"{what} {policy.name!r}", (InfeasibleError,)):
                yield
        except Blamed as error:
            if error.provider == self.policy_provider(policy.name):
                self.switch_off(policy.name)
            raise

    def blame_tables(self, failed: Mapping[str, BaseException]) -> None:
        """Record what the classes of policy tables raised while a spec was read, as their plugins' faults."""
        for name, error in failed.items():
            self.blame(self.policy_provider(name), f"reading the table of policy {name!r}", error)

    def switch_off(self, name: str) -> None:
        """Leave a policy out of the rest of the run, with those that require it."""
        self.off |= {name}
        for policy in self.active:
            if name in policy.requires and policy.name not in self.off:
                self.switch_off(policy.name)

    def require_something(self) -> None:
        """Raise PluginError when no rule or no accelerator is there: a lint of nothing is never clean."""
        for what, found in (("rules", self.rule_entries), ("accelerators", self.accelerators.ids())):
            if not found:
                faults = "".join(f"\n  {fault}" for fault in self.faults)
                raise PluginError(
                    f"no {what} are loaded: the installation is broken or every such plugin failed{faults}"
                )

    @contextmanager
    def blamed(
        self, provider: Provider, what: str, expected: tuple[type[Exception], ...] = (), where: str = ""
    ) -> Iterator[None]:
        """Run a plugin's code: what it raises becomes its fault, and `Blamed` for the caller.

        What another plugin raised below it, and was blamed for, passes as it is, and so do the ``expected``
        errors, which the contract gives a meaning (a reader's ValueError is about the file).
        """
        passing: tuple[type[Exception], ...] = (Blamed, *expected)
        try:
            yield
        except passing:
            raise
        except BaseException as error:
            raise self.blame(provider, what, error, where) from None

    def blame(self, provider: Provider, what: str, error: BaseException, where: str = "") -> Blamed:
        """Record what a plugin's code raised as its fault, and return it for a caller; the user's interrupt goes on."""
        if ends_run(error):
            raise error
        if os.environ.get("SERVELINT_DEBUG"):
            import traceback

            traceback.print_exception(error)
        if isinstance(error, Wrong):
            did, why = what, f" {error}{where}"
        else:
            did = f"{what if what.startswith('cannot') else f'{what} failed'}{where}"
            why = f": {described(error)}"
        self.record_fault(provider, did + why)
        return Blamed(f"{did} in {provider}{why}", provider)

    def policy_provider(self, name: str) -> Provider:
        """Who provides the policy of that name."""
        return self._policies[name.lower()][1]

    def engine_provider(self, name: str) -> Provider:
        """Who provides the engine of that name."""
        return self._engines[name.lower()][1] if name.lower() in self._engines else Provider(name)

    def reader_provider(self, name: str) -> Provider:
        """Who provides the file format of that name."""
        return self._readers[name.lower()][1]

    def record_fault(self, provider: Provider, message: str) -> None:
        """Record a fault found while a plugin's code ran."""
        fault = PluginFault(provider, message)
        if fault not in self.faults:
            self.faults.append(fault)


def _entered(item: type[Rule] | RuleEntry) -> RuleEntry:
    if isinstance(item, RuleEntry):
        return item
    return RuleEntry(item.code, item.name, lambda: item, (), item.preview)


def _provider(point: EntryPoint) -> Provider:
    return Provider(point.name, point.distribution, point.version)


def _hook_in(message: str) -> str:
    words = [w.strip("'\"") for w in message.split() if w.strip("'\"").startswith("servelint_")]
    return words[0] if words else message
