"""One deployment under review: everything that rules and reports ask of it, computed once, on demand.

Names that do not resolve and choices that do not compose are values here (`Review.unresolved`,
`Review.infeasible`), for the rules to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve

from servelint.architecture import Architecture, Quantization
from servelint.catalogue import Catalogue
from servelint.composition import Assumption, Composition, Setup, Unresolved, build_topology, resolve_formats
from servelint.cost import Pricer
from servelint.datasheet import DatasheetError, read_datasheet
from servelint.descriptors import Engine
from servelint.distribution import Lengths
from servelint.errors import CatalogueError, InfeasibleError, PluginError, UnpricedError
from servelint.files import read_project_file
from servelint.hardware import Accelerator, Instance
from servelint.lineage import Input, KeyPath, Source
from servelint.manager import Plugins
from servelint.memory import MemoryLedger
from servelint.releases import image_release
from servelint.scheduler import Scheduler
from servelint.service import Figure, Mix, Objective, Point, Service
from servelint.spec.document import Document
from servelint.spec.model import Claim, Deployment, Hardware, PrefixHit, Workload
from servelint.suggest import did_you_mean

if TYPE_CHECKING:
    from servelint.checkpoints import Checkpoint
    from servelint.evidence import Measurement
    from servelint.measured import Evidence

T = TypeVar("T")

DEFAULT_ENGINE = "generic"
LATENCIES = ("ttft", "itl", "tpot", "e2e")

TRACE_BYTES = 8_000_000
"""The largest trace that is read."""

ALL_TRACES_BYTES = 16_000_000
"""What the traces of one spec may have together: each growth scenario can have its own."""

CONFIG_BYTES = 5_000_000
"""The largest model config that is read."""


class Review:
    """A spec and everything composed from it. ``root`` is the folder that files must lie in."""

    def __init__(self, document: Document, plugins: Plugins, root: Path) -> None:
        self.document = document
        self.plugins = plugins
        self.root = root
        self.unresolved: list[Unresolved] = []
        self.infeasible: InfeasibleError | None = None
        self._topology_assumptions: list[Assumption] = []
        self._instance_assumptions: list[Assumption] = []
        self._checkpoint_assumptions: list[Assumption] = []
        self._services: dict[tuple[Mix, Figure], Service] = {}
        self._traces: dict[tuple[str, str | None], Mix | ValueError | None] = {}
        self._trace_bytes = 0
        self.unknown_evidence: set[str] = set()
        self._evidence: dict[str, tuple[Measurement, ...]] = {}

    @property
    def deployment(self) -> Deployment:
        """The structured spec."""
        if self.document.deployment is None:
            raise ValueError("a spec with problems has no deployment")
        return self.document.deployment

    def declared(self, *path: str | int) -> bool:
        """Whether the spec sets a key."""
        return self.document.has(path)

    def source(self, *path: str | int) -> Source:
        """The spec itself as the source of a value."""
        return Source("spec", self.document.name, "", path)

    def input(self, name: str, value: float | int | str, unit: str, *path: str | int) -> Input:
        """A value that the spec sets, as an input of a finding."""
        return Input(name, value, unit, self.source(*path))

    # Nouns

    @cached_property
    def accelerator(self) -> Accelerator | None:
        """The accelerator as its datasheet has it, None when the spec names none that resolves."""
        hardware = self.deployment.hardware
        if hardware.datasheet is not None:
            try:
                return read_datasheet(hardware.datasheet, "hardware.datasheet", require_sources=False)
            except DatasheetError as error:
                self.unresolved.append(Unresolved(("hardware", "datasheet", *error.path), str(error)))
                return None
        instance = self.instance
        if hardware.accelerator is not None:
            found = self._resolved(("hardware", "accelerator"), self.plugins.accelerators, hardware.accelerator)
        elif instance is not None:
            found = self._resolved(("hardware", "instance"), self.plugins.accelerators, instance.accelerator)
        else:
            return None
        return found if found is None or instance is None else instance.reached(found)

    @cached_property
    def instance(self) -> Instance | None:
        """The instance type that the spec names, None without one that resolves.

        Beside an accelerator or a datasheet, a name that no plugin provides says nothing and is no error: it may
        be one of a cluster of one's own.
        """
        hardware = self.deployment.hardware
        name = hardware.instance
        if name is None:
            return None
        named = hardware.accelerator is not None or hardware.datasheet is not None
        if named and self.plugins.instances.resolve(name) is None:
            return None
        return self._resolved(("hardware", "instance"), self.plugins.instances, name)

    @cached_property
    def hardware(self) -> Hardware:
        """``[hardware]`` as the spec has it, and from its instance type what it leaves out."""
        if self.instance is None:
            return self.deployment.hardware
        from servelint.instances import filled

        devices = None if self._needed else self.devices
        hardware, self._instance_assumptions = filled(self.deployment.hardware, self.instance, devices)
        return hardware

    @cached_property
    def architecture(self) -> Architecture | None:
        """The model, None when the spec names none that resolves."""
        model = self.deployment.model
        if model.config is not None:
            return self._config_architecture(model.config)
        if model.id is None:
            return None
        named = self.plugins.checkpoint(model.id)
        if named is not None and (made := self._checkpoint(named)) is not None:
            return self._overridden(made)
        found = self._resolved(("model", "id"), self.plugins.models, model.id)
        return None if found is None else self._overridden(found)

    def _checkpoint(self, named: Checkpoint) -> Architecture | None:
        """The model that a checkpoint was made of, in the checkpoint's format; None where nothing says that."""
        model, name = self.plugins.models.get(named.base), self.deployment.model.id
        declared = getattr(self.deployment.policies.get("quantization"), "weights", None)
        if named.format is None:
            return None if declared is None and model.quantization is None else model
        stored, own = self.plugins.format(named.format), model.quantization
        if own is not None and own.format == stored.name:
            return model
        if "attention" not in stored.covers:
            # Of a format for experts alone the name does not say what the rest is stored in.
            return None
        if declared is None:
            path = ("policy", "quantization", "weights")
            reason = f"the name of the checkpoint, {name}, says that it is {model.id} in this format"
            source = self.source("model", "id")
            self._checkpoint_assumptions = [Assumption(path, stored.name, reason, source)]
        return evolve(model, quantization=Quantization(stored.name, stored.covers, stored.group))

    def _resolved(self, path: KeyPath, catalogue: Catalogue[T], name: str) -> T | None:
        try:
            return catalogue.get(name)
        except (CatalogueError, PluginError) as error:
            self.unresolved.append(Unresolved(path, f"{error}{self._made_of(path, name)}"))
            return None

    def _made_of(self, path: KeyPath, name: str) -> str:
        """What to write for a checkpoint of a known model whose name does not say its format."""
        if path != ("model", "id"):
            return ""
        from servelint.checkpoints import beginning

        base = beginning(name, self.plugins.models)
        return (
            f'; if it is {base!r} in another format, set model.id = "{base}" and policy.quantization.weights to that '
            "format"
            if base is not None
            else ""
        )

    def _overridden(self, architecture: Architecture) -> Architecture:
        override = self.deployment.model.override
        if override is None:
            return architecture
        return evolve(
            architecture,
            max_position=override.max_position or architecture.max_position,
            stored=override.stored or architecture.stored,
            quantization=None if override.stored else architecture.quantization,
        )

    def _config_architecture(self, name: str) -> Architecture | None:
        import json

        path = ("model", "config")
        try:
            text = read_project_file(self.root, Path(self.document.name).parent, name, CONFIG_BYTES)
            config = json.loads(text)
            if not isinstance(config, dict):
                raise ValueError("it is not a JSON object")
            nested = config.get("text_config")
            inner = nested.get("model_type") if isinstance(nested, dict) else None
            model_type = config.get("model_type") or inner
            if not isinstance(model_type, str):
                raise ValueError('it has no "model_type"')
            return self._overridden(self.plugins.read_config(self.deployment.model.id or name, model_type, config))
        except PluginError:
            return None
        except (ValueError, CatalogueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            self.unresolved.append(Unresolved(path, f"the model config {name!r} cannot be used: {reason}"))
            return None

    @cached_property
    def engine(self) -> Engine | None:
        """The engine whose defaults apply; a neutral one when the spec names none."""
        name = self.deployment.engine.name
        found = self.plugins.engines.get((name or DEFAULT_ENGINE).lower())
        if found is None and name is not None:
            hint = did_you_mean(name, self.plugins.engines, "`servelint catalog engines` lists them")
            message = f"no plugin provides the engine {name!r}{hint}"
            self.unresolved.append(Unresolved(("engine", "name"), message))
            return None
        return found or Engine(DEFAULT_ENGINE, lambda v, c: {}, lambda v, c: {})

    @property
    def offloaded(self) -> str | None:
        """What the engine keeps outside the devices, so that nothing here knows what they hold; None where nothing."""
        engine, model = self.deployment.engine, self.architecture
        layers = engine.device_layers
        if engine.offload is not None and (layers is None or not self._offload_assumed):
            return engine.offload
        if layers is None or model is None or layers > model.num_layers:
            return None
        rest = "the output" if layers == model.num_layers else "the rest and the output"
        return f"{layers} of {model.num_layers} layers on devices, {rest} in host memory"

    @property
    def spills(self) -> bool:
        """Whether the engine starts when not everything fits, and keeps what does not in host memory."""
        return self._offload_assumed and self.deployment.engine.device_layers is None

    @property
    def _offload_assumed(self) -> bool:
        setting = self.document.settings.get(("engine", "offload"))
        return setting is not None and setting.assumed

    @property
    def engine_version(self) -> str | None:
        """The declared version, else the one that the tag of the engine's own image names, else None."""
        declared, engine = self.deployment.engine, self.engine
        if declared.version is not None or declared.image is None or engine is None:
            return declared.version
        return image_release(declared.image, engine.release_images)

    @cached_property
    def devices(self) -> int:
        """Devices of a replica: declared, else what the policies need, else those of the instances, else one."""
        hardware = self.deployment.hardware
        if hardware.devices is not None or self._needed:
            return hardware.devices or self._needed
        return self.instance.devices * (hardware.nodes or 1) if self.instance is not None else 1

    @cached_property
    def _needed(self) -> int:
        """Devices that the policies need; 0 when none says."""
        needed = [0]
        for policy in self.plugins.active:
            if policy.name in self.deployment.policies:
                try:
                    needed.append(self.plugins.devices_of(policy, self.deployment.policies[policy.name]) or 0)
                except PluginError:
                    # Recorded as the plugin's fault; the composition does without what failed, or is not made.
                    continue
        return max(needed)

    def _check_names(self) -> bool:
        """Resolve the names inside policy tables and claims, and say whether those of the policies exist."""
        policies, before = self.deployment.policies, len(self.unresolved)
        quantization = policies.get("quantization")
        for name in ("weights", "kv_cache", "activations"):
            value = getattr(quantization, name, None)
            if value is not None and value != "auto":
                try:
                    self.plugins.format(value)
                except CatalogueError as error:
                    self.unresolved.append(Unresolved(("policy", "quantization", name), str(error)))
        speculation = policies.get("speculation")
        draft = getattr(speculation, "draft_model", None)
        # An EAGLE head or MTP layer is priced from the target: the name of its checkpoint need not be known.
        from_target = getattr(speculation, "method", None) in ("eagle", "mtp")
        if draft is not None and not from_target and self.plugins.models.resolve(draft) is None:
            self.unresolved.append(
                Unresolved(("policy", "speculation", "draft_model"), self.plugins.models.unknown(draft))
            )
        for side in ("prefill", "decode"):
            pool = getattr(policies.get("disaggregation"), side, None)
            wanted = getattr(pool, "accelerator", None)
            if wanted is not None and self.plugins.accelerators.resolve(wanted) is None:
                path = ("policy", "disaggregation", side, "accelerator")
                self.unresolved.append(Unresolved(path, self.plugins.accelerators.unknown(wanted)))

        known = len(self.unresolved) == before
        for place, claim in self.claims:
            assumed = claim.assumes.accelerator if claim.assumes is not None else None
            if assumed is not None and not self.plugins.accelerators.related(assumed):
                self.unresolved.append(
                    Unresolved((*place, "assumes", "accelerator"), self.plugins.accelerators.unknown(assumed))
                )
            if claim.evidence is not None:
                self.measured((*place, "evidence"), claim.evidence)
        for i, evidence in enumerate(self.deployment.evidence):
            if evidence.kind == "benchmark" and evidence.file is not None:
                self.measured(("evidence", i, "file"), evidence.file)
        return known

    # Composition

    @cached_property
    def setup(self) -> Setup | None:
        """The resolved nouns, None when one of them is missing or unknown."""
        accelerator, architecture, engine = self.accelerator, self.architecture, self.engine
        names = self._check_names()
        if self.instance is not None and accelerator is not None:
            from servelint.instances import contradiction

            self.infeasible = contradiction(self.deployment.hardware, self.instance, accelerator, self.devices)
        if accelerator is None or architecture is None or engine is None or not names or self.infeasible is not None:
            return None
        topology, assumed = build_topology(accelerator, self.hardware, self.devices)
        self._topology_assumptions = assumed
        try:
            formats = resolve_formats(self.plugins, architecture)
        except CatalogueError as error:
            path = ("model", "override", "stored") if self.declared("model", "override", "stored") else ("model",)
            self.unresolved.append(Unresolved(path, str(error)))
            return None
        return Setup(
            self.plugins,
            self.deployment if self.instance is None else evolve(self.deployment, hardware=self.hardware),
            architecture,
            topology,
            formats,
            engine,
            self.engine_version,
        )

    @cached_property
    def composition(self) -> Composition | None:
        """The composed replica, None when it cannot be composed (`infeasible` then says why)."""
        return self._composed()

    def _spared(self) -> bool:
        """Tell whether a composition without the policies that failed is still that of the spec.

        It is where the spec leaves them alone, and they would neither have filled in values nor asked for devices.
        """
        if self.document.failed:
            return False
        return not any(
            p.name in self.deployment.policies or p.defaults is not None or p.devices is not None
            for p in self.plugins.policies
            if p.name in self.plugins.off
        )

    def _composed(self) -> Composition | None:
        setup = self.setup
        if setup is None or not self._spared():
            return None
        off = self.plugins.off
        try:
            composition = Composition(setup)
            composition.memory, composition.scheduler, composition.pricer  # noqa: B018
        except PluginError:
            # Recorded as the plugin's fault. Another policy may fail when this one is left out, each once.
            return None if self.plugins.off == off else self._composed()
        except UnpricedError as error:
            places = ("datasheet", "accelerator", "instance")
            place = next((p for p in places if self.declared("hardware", p)), "accelerator")
            path = error.path if error.path[:1] == ("policy",) else ("hardware", place)
            self.infeasible = UnpricedError(str(error), path)
            return None
        except InfeasibleError as error:
            self.infeasible = error
            return None
        return composition

    @cached_property
    def refusals(self) -> tuple[tuple[KeyPath, str, Source], ...]:
        """Combinations that the engine refuses at start: the key that decides, why, and where the engine says so."""
        setup, composition = self.setup, self.composition
        if setup is None or composition is None:
            return ()
        try:
            return self.plugins.engine_refusals(setup.engine, setup.engine_version, composition.context)
        except PluginError:
            return ()

    def variant(self, **policies: Any) -> Composition | None:
        """Compose the same deployment with some policy tables replaced; None takes one out.

        For the question "what if": without speculation, co-located instead of disaggregated. Returns None
        when the deployment itself, or the variant, does not compose.
        """
        setup = self.setup
        if setup is None or self.composition is None:
            return None
        changed = {**self.deployment.policies, **policies}
        kept = {name: config for name, config in changed.items() if config is not None}
        try:
            other = Composition(evolve(setup, deployment=evolve(setup.deployment, policies=kept)))
            other.memory, other.scheduler, other.pricer  # noqa: B018
        except (InfeasibleError, PluginError):
            return None
        return other

    @property
    def memory(self) -> MemoryLedger | None:
        """The memory ledger of a device; with separate pools the decode pool's, unless only the other is full."""
        composition = self.composition
        if composition is None:
            return None
        pools = composition.scheduler.disaggregation
        if pools is None:
            return composition.memory
        ledgers = (pools.decode.composition.memory, pools.prefill.composition.memory)
        return next((m for m in ledgers if not m.has_room), ledgers[0])

    @property
    def pricer(self) -> Pricer | None:
        """Prices decode steps: of the decode pool where there are pools."""
        composition = self.composition
        if composition is None:
            return None
        pools = composition.scheduler.disaggregation
        return composition.pricer if pools is None else pools.decode.composition.pricer

    @property
    def scheduler(self) -> Scheduler | None:
        """Admission and batching."""
        return self.composition.scheduler if self.composition else None

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Every value that the spec does not set."""
        own: list[Assumption] = [
            *self._instance_assumptions,
            *self._topology_assumptions,
            *self._checkpoint_assumptions,
            *self._launch_assumptions,
        ]
        if not self.declared("engine", "name"):
            own.append(
                Assumption(
                    ("engine", "name"),
                    DEFAULT_ENGINE,
                    "not declared",
                    Source("default", "docs/conventions.md", "engine"),
                )
            )
        if self.composition is not None:
            own += self.composition.context.assumptions
        return tuple(own)

    @property
    def _launch_assumptions(self) -> Iterator[Assumption]:
        """What the launch arguments leave open and their engine's reader filled in."""
        for path, setting in self.document.settings.items():
            if setting.assumed:
                source = Source("spec", setting.place.file or self.document.name, "", path)
                yield Assumption(path, setting.value, f"{setting.spelling}: {setting.note}", source)

    @property
    def guesses_weights(self) -> bool:
        """Whether the launch arguments leave the format of the weights open, and their engine's reader filled it in.

        What a checkpoint's name says is no guess: whoever published it said so.
        """
        setting = self.document.settings.get(("policy", "quantization", "weights"))
        if setting is None or not setting.assumed:
            return False
        from servelint.checkpoints import BY_NAME

        return setting.note != BY_NAME

    def assumption(self, *path: str | int) -> Assumption | None:
        """What stands for a key that the spec does not set."""
        return next((a for a in self.assumptions if a.path == path), None)

    def policy(self, name: str) -> Any:
        """The resolved config of a policy, None without a composition."""
        return self.composition.context.configs.get(name) if self.composition else None

    def policy_input(self, policy: str, field: str, unit: str = "") -> Input:
        """A policy's value with its source, for a finding."""
        if self.composition is None:
            raise ValueError("no composition")
        return self.composition.context.input(policy, field, unit)

    # Workload and objectives

    @cached_property
    def mix(self) -> Mix | None:
        """The base workload, None when prompt or output lengths are not declared."""
        workload = self.deployment.workload
        return None if workload is None else self._mix("base workload", workload, ("workload",), None)

    @cached_property
    def growth(self) -> tuple[tuple[int, Mix], ...]:
        """Growth scenarios by index; what one leaves out is the base workload's."""
        workload = self.deployment.workload
        if workload is None:
            return ()
        scenarios = []
        for i, scenario in enumerate(workload.growth):
            mix = self._mix(scenario.name or f"growth scenario {i + 1}", scenario, ("workload", "growth", i), workload)
            if mix is not None:
                scenarios.append((i, mix))
        return tuple(scenarios)

    def _mix(self, name: str, workload: Workload, path: KeyPath, base: Workload | None) -> Mix | None:
        """The mix of one table; what it leaves out is the base's."""

        def declared(key: str) -> Any:
            own = getattr(workload, key)
            return own if own is not None or base is None else getattr(base, key)

        hit, cv = declared("prefix_hit"), declared("arrival_cv")
        share = min(hit.value if isinstance(hit, PrefixHit) else (hit or 0.0), 0.999)
        if share and self.scheduler is not None and not self.scheduler.prefix_reuse:
            share = 0.0
        if workload.trace is not None:
            traced = self._trace(workload, path)
        else:
            traced = self._trace(base, ("workload",)) if base is not None and base.trace is not None else None
        prompt = self._lengths(declared("prompt_tokens")) or (traced.prompt if traced else None)
        output = self._lengths(declared("output_tokens")) or (traced.output if traced else None)
        whole = None
        if traced is not None and (workload.trace is not None or not self._sets_lengths(workload)):
            # A trace gives prompt and output together; lengths beside it in the same table say less.
            prompt, output, whole = traced.prompt, traced.output, traced.total
        if prompt is None or output is None:
            return None
        extra = (declared("images_per_prompt") or 0.0) * (declared("encoder_tokens") or 0.0)
        if extra:
            encoded = Lengths.fixed(extra)
            prompt, whole = prompt.plus(encoded), whole.plus(encoded) if whole is not None else None
        return Mix(name, prompt, output, share, 1.0 if cv is None else cv, whole)

    @staticmethod
    def _sets_lengths(workload: Workload) -> bool:
        return workload.prompt_tokens is not None or workload.output_tokens is not None

    def _lengths(self, declared: float | Mapping[str, float] | None) -> Lengths | None:
        if declared is None:
            return None
        if not isinstance(declared, Mapping):
            return Lengths.fixed(declared)
        try:
            knots = self.plugins.length_knots(declared)
        except PluginError:
            return None
        return None if knots is None else Lengths(knots)

    def _trace(self, workload: Workload, path: KeyPath) -> Mix | None:
        trace = workload.trace
        file = trace if isinstance(trace, str) else trace.file if trace is not None else ""
        wanted = None if isinstance(trace, str) or trace is None else trace.format
        at = (*path, "trace")
        formats = self.plugins.trace_formats
        if wanted is not None and wanted.lower() not in formats:
            hint = did_you_mean(wanted, formats, f"there are {', '.join(sorted(formats))}")
            message = f"no plugin provides the trace format {wanted!r}{hint}"
            self.unresolved.append(Unresolved((*at, "format"), message))
            return None
        key = (file, wanted.lower() if wanted else None)
        if key not in self._traces:
            try:
                self._traces[key] = self._read_trace(*key)
            except PluginError:
                self._traces[key] = None
            except ValueError as error:
                self._traces[key] = error
        found = self._traces[key]
        if isinstance(found, ValueError):
            self.unresolved.append(Unresolved(at, f"the trace {file!r} cannot be used: {found}"))
            return None
        return found

    def _read_trace(self, file: str, wanted: str | None) -> Mix:
        """Read a trace file; a ValueError says why it cannot be used."""
        formats = self.plugins.trace_formats
        suffix = Path(file).suffix.lower()
        chosen = formats[wanted] if wanted else next(
            (f for _, f in sorted(formats.items()) if suffix in f.extensions), None
        )  # fmt: skip
        if chosen is None:
            raise ValueError(f"its format is not declared and {suffix or 'no ending'} tells none")
        if self._trace_bytes < ALL_TRACES_BYTES:
            text = read_project_file(self.root, Path(self.document.name).parent, file, TRACE_BYTES)
            self._trace_bytes += len(text)
        if self._trace_bytes >= ALL_TRACES_BYTES:
            raise ValueError(f"with it the traces of this spec have over {ALL_TRACES_BYTES:,} bytes, the limit")
        # Only these end a line of a file, and so count in messages.
        rows = self.plugins.read_trace(chosen.name, text.split("\n"))
        if not rows:
            raise ValueError("it has no requests")
        prompts, outputs = [r.prompt_tokens for r in rows], [r.output_tokens for r in rows]
        total = Lengths.empirical([p + o for p, o in zip(prompts, outputs, strict=True)])
        return Mix("trace", Lengths.empirical(prompts), Lengths.empirical(outputs), total=total)

    @cached_property
    def objectives(self) -> tuple[Objective, ...]:
        """Every line of the SLO, the headroom applied once to the limit."""
        slo = self.deployment.slo
        if slo is None:
            return ()
        keep = 1 - slo.headroom
        return tuple(
            Objective(metric, percentile, limit, limit * keep)
            for metric in LATENCIES
            for percentile, limit in (getattr(slo, metric) or {}).items()
        )

    def objective_path(self, objective: Objective) -> KeyPath:
        """Where an objective stands in the spec."""
        return ("slo", objective.metric, objective.percentile)

    @property
    def replicas(self) -> int:
        """Replicas that share the offered load."""
        return self.deployment.hardware.replicas or 1

    def concurrency(self, workload: Workload | None = None) -> float | None:
        """Requests at once of one decoding replica in a closed loop, at least one; None when none is declared."""
        base = self.deployment.workload
        own = workload.concurrency if workload is not None else None
        declared = own if own is not None else base.concurrency if base is not None else None
        return None if declared is None else self.per_replica(declared)

    def per_replica(self, requests: float) -> float:
        """The share of one decoding replica in requests at once of the whole deployment, rounded up to whole ones."""
        pools = self.scheduler.disaggregation if self.scheduler is not None else None
        replicas = self.replicas * (pools.decode.replicas if pools is not None else 1)
        return float(max(1, -(-requests // replicas)))

    def rate(self, workload: Workload | None = None) -> float | None:
        """Offered requests per second of one replica."""
        base = self.deployment.workload
        declared = workload.rate if workload is not None and workload.rate is not None else base.rate if base else None
        return None if declared is None else declared / self.replicas

    def service(self, mix: Mix, figure: Figure = "estimate") -> Service:
        """The replica under a mix; composed reviews only."""
        if self.composition is None:
            raise ValueError("no composition")
        key = (mix, figure)
        if key not in self._services:
            self._services[key] = Service(self.composition, mix, figure, open_loop=self.rate() is not None)
        return self._services[key]

    @cached_property
    def operating_point(self) -> Point | None:
        """Where the base workload runs: at its rate, its concurrency, or full admission; None if nowhere."""
        workload, mix = self.deployment.workload, self.mix
        if workload is None or mix is None or self.composition is None:
            return None
        service = self.service(mix)
        rate = self.rate()
        if rate is not None:
            return service.at_rate(rate)
        # Past the fullest point prompts arrive faster than they are prefilled: more never decode at once.
        fullest = service.fullest
        wanted = self.concurrency()
        return fullest if fullest is None or wanted is None else service.point(min(fullest.batch, wanted))

    @cached_property
    def knee(self) -> Point | None:
        """The point of most throughput that meets the SLO; None without one or when nothing meets it."""
        if self.mix is None or self.composition is None or not self.objectives:
            return None
        return self.service(self.mix).knee(self.objectives)

    @cached_property
    def sized_for(self) -> float | None:
        """The context the fleet was sized for: declared, else the base workload's p95 of prompt + output."""
        declared = self.deployment.deployment.sized_for
        if declared is not None:
            return declared
        return None if self.mix is None else self.mix.context(0.95)

    @cached_property
    def claims(self) -> tuple[tuple[KeyPath, Claim], ...]:
        """Claims with their places."""
        return tuple((("claim", i), claim) for i, claim in enumerate(self.deployment.claims))

    def evidence(self, path: KeyPath, claim: Claim) -> Evidence | None:
        """What the file behind a claim says; None without one, or where no reader knows it (or it cannot be read)."""
        if claim.evidence is None:
            return None
        runs = self.measured((*path, "evidence"), claim.evidence)
        if not runs:
            return None
        from servelint.measured import bind

        return bind(claim, claim.evidence, runs)

    def measured(self, path: KeyPath, file: str) -> tuple[Measurement, ...]:
        """The runs of a result file that a key of the spec names; none where it cannot be read, or is of no known kind.

        The first is among ``unresolved``, the second among ``unknown_evidence``.
        """
        from servelint.measured import UnknownKindError, is_file, runs_of

        if file not in self._evidence:
            self._evidence[file] = ()
            if not is_file(file):
                return ()
            try:
                self._evidence[file] = runs_of(file, self.plugins, self.root, Path(self.document.name).parent)
            except UnknownKindError:
                self.unknown_evidence.add(file)
            except ValueError as error:
                self.unresolved.append(Unresolved(path, f"the evidence {file!r} cannot be used: {error}"))
        return self._evidence[file]
