"""Composes hardware, model, engine and policies into graph, memory ledger and scheduler.

What the spec does not set is filled from the engine, then from the policy's own defaults; every filled value
is an `Assumption`. Names that no plugin provides become `Unresolved` values, not exceptions, so that all of
them are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from attrs import evolve, frozen

from servelint import contract, layout, memory
from servelint.architecture import Architecture, Block
from servelint.blame import Provider
from servelint.cost import Pricer
from servelint.descriptors import Default, Engine, Policy
from servelint.formats import Format
from servelint.graph import StepGraph
from servelint.hardware import DEFAULT_NETWORK_BYTES_PER_S, Accelerator, Efficiency, Topology
from servelint.layout import Formats
from servelint.lineage import Input, KeyPath, Lineage, Source
from servelint.manager import Plugins
from servelint.memory import MemoryLedger, Reserve
from servelint.scheduler import Scheduler
from servelint.spec.model import Deployment, Hardware
from servelint.spec.schema import kinds
from servelint.values import Value

T = TypeVar("T")

DEFAULT_EFFICIENCY = {"memory": 0.8, "compute": 0.55, "link": 0.6}
"""Sustained fractions where neither spec nor datasheet has measured ones. See docs/conventions.md."""

DEFAULT_LAUNCH_S = 6.5e-6
DEFAULT_COLLECTIVE_S = {"scale_up": 5e-6, "pcie": 4e-6, "network": 40e-6}
"""Seconds of one small collective, its launch included; over PCIe per device of the group."""


class Assumption(NamedTuple):
    """A value that the spec does not set: which, what stands for it, and why."""

    path: KeyPath
    value: object
    reason: str
    source: Source


class Unresolved(NamedTuple):
    """A name in the spec that no plugin provides, or a file that cannot be used."""

    path: KeyPath
    message: str


@frozen(eq=False, repr=False)
class Setup(Value):
    """The resolved nouns of a deployment: what policies work on."""

    plugins: Plugins
    deployment: Deployment
    architecture: Architecture
    topology: Topology
    formats: Formats
    engine: Engine
    engine_version: str | None


class Context:
    """What a policy function may read: the resolved nouns, other policies' configs, and sources."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.deployment = setup.deployment
        self.plugins = setup.plugins
        self.architecture = setup.architecture
        self.topology = setup.topology
        self.accelerator = setup.topology.accelerator
        self.formats = setup.formats
        self.configs: dict[str, Any] = {}
        self.sources: dict[tuple[str, str], Source] = {}
        self.assumptions: list[Assumption] = []
        self._blocks = {block.name: block for block in setup.architecture.blocks}

    def config(self, policy: str) -> Any:
        """Return the resolved config of another policy, None before it is resolved or when not provided."""
        return self.configs.get(policy)

    def source(self, policy: str, field: str) -> Source:
        """Return where a policy's value came from: the spec, the engine, or a default."""
        return self.sources.get((policy, field), Source("spec", "", "", ("policy", policy, field)))

    def input(self, policy: str, field: str, unit: str = "") -> Input:
        """Return a policy's value as a lineage input."""
        value = getattr(self.configs[policy], field)
        return Input(f"{policy}.{field}", value, unit, self.source(policy, field))

    def block(self, name: str) -> Block | None:
        """Return the block that an op or a ledger entry belongs to, by its (op's) name; None outside the layers."""
        return self._blocks.get(name.partition(".")[0])

    def assume(self, path: KeyPath, value: object, reason: str, source: Source) -> None:
        """Record a value that stands for a key that the spec does not set."""
        contract.assumption(path, reason, source)
        self.assumptions.append(Assumption(path, value, reason, source))

    def format(self, name: str) -> Format:
        """Return a number format by name; CatalogueError if no plugin provides it."""
        return self.plugins.format(name)


class Composition:
    """One composed replica: graph, memory, scheduler and pricer, each computed once, on demand."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.context = Context(setup)
        self._resolve_configs()

    def _resolve_configs(self) -> None:
        context, setup = self.context, self.setup
        engine, plugins = setup.engine, setup.plugins
        engine_defaults = plugins.engine_defaults(engine, setup.engine_version, context)
        for policy in plugins.active:
            declared = setup.deployment.policies.get(policy.name)
            config = policy.config() if declared is None else declared
            filled: dict[str, Default] = {}
            for _, (name, _, _) in kinds(policy.config).items():
                default = engine_defaults.get((policy.name, name))
                if default is not None and getattr(config, name) is None:
                    filled[name] = default
            config = self._fill(policy, config, filled, plugins.engine_provider(engine.name))
            if policy.defaults is not None:
                own = plugins.policy_defaults(policy, config, context)
                own = {n: d for n, d in own.items() if getattr(config, n) is None}
                config = self._fill(policy, config, own, plugins.policy_provider(policy.name))
            context.configs[policy.name] = config

    def _fill(self, policy: Policy, config: Any, values: Mapping[str, Default], provider: Provider) -> Any:
        if not values:
            return config
        for name, default in values.items():
            self.context.sources[policy.name, name] = default.source
            if default.reason:
                self.context.assume(("policy", policy.name, name), default.value, default.reason, default.source)
        with self.setup.plugins.blamed(provider, f"filling in policy {policy.name!r}"):
            return evolve(config, **{name: default.value for name, default in values.items()})

    @cached_property
    def graph(self) -> StepGraph:
        """The composed step graph; InfeasibleError when a policy cannot be applied to this model."""
        graph = layout.lay(self.setup.architecture, self.setup.formats)
        return self._applied(graph, lambda policy: policy.graph)

    @cached_property
    def memory(self) -> MemoryLedger:
        """The memory ledger of one device."""
        setup = self.setup
        visible, which = setup.topology.accelerator.usable_memory
        lineage = Lineage(
            f"usable bytes = {which}",
            (Input("visible memory", visible, "B", setup.topology.accelerator.usable_source),),
        )
        ledger = memory.lay(setup.architecture, setup.formats, visible, lineage)
        engine, plugins = setup.engine, setup.plugins
        for name, default in plugins.engine_reserves(engine, setup.engine_version, self.context).items():
            held = Input(name, default.value, "B", default.source)
            ledger = ledger.with_reserve(Reserve(name, default.value, Lineage(default.reason, (held,))))
        ledger = self._applied(ledger, lambda policy: policy.memory)
        return plugins.engine_caches(engine, setup.engine_version, ledger, self.context)

    @cached_property
    def scheduler(self) -> Scheduler:
        """Admission, batching and host limits."""
        return self._applied(Scheduler(), lambda policy: policy.scheduler)

    def _applied(self, thing: T, function: Callable[[Policy], Callable[[Any, T, Context], T] | None]) -> T:
        plugins = self.setup.plugins
        for policy in plugins.active:
            change = function(policy)
            if change is not None:
                thing = plugins.made_by(policy, change, self.context.configs[policy.name], thing, self.context)
        return thing

    @cached_property
    def pricer(self) -> Pricer:
        """Prices step shapes of this composition."""
        return Pricer(self.graph, self.setup.topology)

    @property
    def max_model_len(self) -> int:
        """The longest context a request may have: declared, else what the model was trained for."""
        return self.setup.deployment.model.max_model_len or self.setup.architecture.max_position


def resolve_formats(plugins: Plugins, architecture: Architecture) -> Formats:
    """Return the formats that the checkpoint is stored in."""
    stored = plugins.format(architecture.stored)
    quantization = architecture.quantization
    if quantization is None:
        return Formats(stored, stored)
    cache = plugins.format(quantization.kv_cache) if quantization.kv_cache else stored
    tensors = {name: stored if own is None else plugins.format(own) for name, own in quantization.tensors}
    return Formats(stored, cache, plugins.format(quantization.format), quantization.covers, tensors)


def overridden(accelerator: Accelerator, hardware: Hardware) -> Accelerator:
    """Return the accelerator with ``hardware.override`` applied, each replaced figure with its key."""
    override = hardware.override
    if override is None:
        return accelerator
    changes: dict[str, Any] = {}
    replaced: dict[str, KeyPath] = {}
    path: KeyPath = ("hardware", "override")
    if override.dense_flops:
        changes["dense_flops"] = {**accelerator.dense_flops, **override.dense_flops}
        replaced |= {f"compute.dense_flops.{p}": (*path, "dense_flops", p) for p in override.dense_flops}
    if override.memory_bandwidth:
        changes["memory_bandwidth_bytes_per_s"] = override.memory_bandwidth
        replaced["memory.bandwidth_bytes_per_s"] = (*path, "memory_bandwidth")
    if override.memory:
        changes |= {"runtime_visible_bytes": int(override.memory), "memory_bytes": int(override.memory)}
        replaced |= {f"memory.{n}": (*path, "memory") for n in ("runtime_visible_bytes", "published_bytes")}
    return evolve(accelerator, **changes, replaced={**accelerator.replaced, **replaced})


def efficiency_of(accelerator: Accelerator, hardware: Hardware) -> tuple[Efficiency, list[Assumption]]:
    """Return sustained fractions and latencies: the spec's, the datasheet's measured ones, or stated defaults."""
    declared = hardware.efficiency
    values: dict[str, float] = {}
    assumptions = []
    for name in ("memory", "compute", "link"):
        own = getattr(declared, name) if declared is not None else None
        if own is not None:
            values[name] = own
            continue
        fraction = accelerator.measured.get(name)
        if fraction is not None:
            value, reason = fraction, accelerator.measured_basis or "measured on this part"
            source = accelerator.source("efficiency", name)
        else:
            value, reason = DEFAULT_EFFICIENCY[name], "no measurement for this part: a stated default"
            source = Source("default", "docs/conventions.md", f"efficiency.{name}")
        values[name] = value
        assumptions.append(Assumption(("hardware", "efficiency", name), value, reason, source))
    return (
        Efficiency(
            values["memory"],
            values["compute"],
            values["link"],
            accelerator.measured.get("launch_s", DEFAULT_LAUNCH_S),
            DEFAULT_COLLECTIVE_S,
            Source("spec", "", "", ("hardware", "efficiency")) if declared else accelerator.source("efficiency", ""),
            accelerator.source("efficiency", "launch_s")
            if "launch_s" in accelerator.measured
            else Source("default", "docs/conventions.md", "launch"),
        ),
        assumptions,
    )


def build_topology(accelerator: Accelerator, hardware: Hardware, devices: int) -> tuple[Topology, list[Assumption]]:
    """Return devices and links of one replica, and what was assumed of them."""
    accelerator = overridden(accelerator, hardware)
    efficiency, assumptions = efficiency_of(accelerator, hardware)
    domain = accelerator.link.domain if accelerator.link else 1
    if hardware.devices_per_node is not None:
        per_node = hardware.devices_per_node
    elif hardware.nodes is not None:
        per_node = -(-devices // hardware.nodes)
    else:
        per_node = min(devices, max(domain, 8))
        if devices > per_node:
            source = Source("default", "docs/conventions.md", "devices per node")
            reason = "8 devices a node, or the scale-up domain where that is larger"
            assumptions.append(Assumption(("hardware", "devices_per_node"), per_node, reason, source))
    network = hardware.network
    if network is not None and network.bandwidth is not None:
        rate = network.bandwidth / (per_node if network.per == "node" else 1)
    else:
        rate = DEFAULT_NETWORK_BYTES_PER_S
        if devices > max(per_node, domain):
            source = Source("default", "docs/conventions.md", "network")
            reason = "one 400 Gbit/s port per device, in one direction"
            assumptions.append(Assumption(("hardware", "network", "bandwidth"), rate, reason, source))
    pcie = hardware.pcie
    if pcie is not None:
        accelerator = evolve(
            accelerator,
            pcie_generation=pcie.generation or accelerator.pcie_generation,
            pcie_lanes=pcie.lanes or accelerator.pcie_lanes,
        )
    pcie_rate = accelerator.pcie_bytes_per_s
    if pcie_rate is not None and hardware.peer_to_peer is False:
        # Staged through host memory: every byte crosses the bus twice.
        pcie_rate /= 2
    if hardware.peer_to_peer is False:
        accelerator = evolve(accelerator, link=None)
    return Topology(accelerator, efficiency, devices, per_node, pcie_rate, rate), assumptions
