"""The conformance kit: does an accelerator, a model or a policy keep every invariant of cost?

Each function runs named checks on fixed samples and raises one AssertionError with all that fail. A check is
waived by name and with a reason; a waiver that nothing needs is a failure too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from copy import copy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from servelint import contract
from servelint.architecture import Architecture, Attention, LatentAttention
from servelint.blame import Provider, Wrong, described
from servelint.composition import Composition
from servelint.config import Config
from servelint.descriptors import Policy
from servelint.errors import InfeasibleError, ServelintError
from servelint.hardware import Accelerator, Instance
from servelint.lint import Linter, Report
from servelint.manager import Plugins
from servelint.shapes import StepShape, decode, prefill
from servelint.spec.schema import Boolean, Integer, Kind, Many, Number, Quantity, Table, Text, kinds
from servelint.testing import samples
from servelint.testing.compositions import compose
from servelint.testing.invariants import (
    check_arrays,
    check_conservation,
    check_faster_hardware,
    check_figures_ordered,
    check_identity,
    check_more_bits,
    check_more_load,
    check_more_parameters,
    check_order,
    check_rate_scaling,
    check_same_graph,
    check_sharding,
    check_speculation,
    check_traffic,
    valid_order,
)

SHAPES = (
    decode(1.0, 0.0),
    decode(7.0, 1000.0),
    decode(64.0, 4096.0, 5.0),
    decode(512.0, 100_000.0),
    prefill(1000.0, 500.0),
    StepShape(16.0, 3000.0, 1.0, 2.0, 100.0, 700.0, 0.0),
)
"""Steps that every composition is priced at."""

MORE = StepShape(3.0, 500.0, 1.0, 1.0, 10.0, 100.0, 0.0, 0.0)
"""What is added to a step to see that it gets no faster."""

Checks = Mapping[str, Callable[[], None]]
Waivers = Mapping[str, str]


def _run(what: str, checks: Checks, waivers: Waivers | None) -> None:
    waived = waivers or {}
    failures = [f"there is no check {name!r}; there are {', '.join(checks)}" for name in waived if name not in checks]
    failures += [f"the waiver of {n!r} gives no reason" for n, reason in waived.items() if len(reason.split()) < 3]
    for name, check in checks.items():
        try:
            check()
        except Exception as error:
            if name not in waived:
                told = isinstance(error, AssertionError | ServelintError | Wrong)
                failures.append(f"{name}: {error if told else described(error)}")
        else:
            if name in waived:
                failures.append(f"{name} passes: its waiver can go")
    assert not failures, f"{what} does not conform:\n" + "\n".join(f"  {failure}" for failure in failures)


_INSTALLED: list[Plugins] = []


def installed() -> Plugins:
    """Return the plugins that are installed, loaded once; anew when what was checked made one of them fail."""
    if not _INSTALLED or _INSTALLED[0].faults or _INSTALLED[0].off:
        _INSTALLED[:] = [Plugins()]
    return _INSTALLED[0]


def _of_cost(compositions: Callable[[], Sequence[Composition]]) -> dict[str, Callable[[], None]]:
    """The checks that hold for every composition, at every one of `SHAPES`."""

    def each(check: Callable[[Composition, StepShape], None]) -> Callable[[], None]:
        def run() -> None:
            for composition in compositions():
                for shape in SHAPES:
                    check(composition, shape)

        return run

    def load(composition: Composition, shape: StepShape) -> None:
        check_more_load(composition, shape, StepShape(*(a + b for a, b in zip(shape, MORE, strict=True))))

    def larger(composition: Composition, shape: StepShape) -> None:
        check_more_parameters(composition, shape, 1.5)
        check_more_bits(composition, shape, 2.0)

    def arrays() -> None:
        for composition in compositions():
            check_arrays(composition, SHAPES)

    return {
        "figures": each(check_figures_ordered),
        "faster": each(lambda c, s: check_faster_hardware(c, s, 1.5)),
        "load": each(load),
        "larger": each(larger),
        "scaling": each(lambda c, s: check_rate_scaling(c, s, 3.0)),
        "arrays": arrays,
    }


# Whole plugins


def check_plugin(plugin: object, *, name: str = "under test", waivers: Waivers | None = None) -> None:
    """Hold a plugin, usually its module, to the contract; whoever runs it would see each failure as its fault.

    Checks: ``hooks`` (it loads, and yields right things of names of its own), ``entries`` (each loads, with its
    aliases), ``rules`` (each can be made), ``reports`` (each reporter renders a check of nothing), ``output``
    (nothing of this prints: standard output belongs to the report).
    """
    printed = StringIO()
    with redirect_stdout(printed):
        found = Plugins(modules={name: plugin}, discover=False)

    def faultless(ask: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            before = len(found.faults)
            with redirect_stdout(printed):
                ask()
            faults = found.faults[before:]
            assert not faults, "; ".join(fault.message for fault in faults)

        return run

    def hooks() -> None:
        assert not found.faults, "; ".join(fault.message for fault in found.faults)
        faultless(lambda: [getattr(found, kind) for kind in _PROVIDED])()

    def entries() -> None:
        for catalogue in (found.accelerators, found.models, found.instances):
            list(catalogue.each())
            catalogue.resolve("no such name")

    def rules() -> None:
        linter = Linter(found, Config(select=("ALL",), preview=True), Path())
        for entry in linter.rules:
            linter.made(entry)

    def reports() -> None:
        report = Report((), (), Config(), found)
        for reporter in found.reporters.values():
            found.render(reporter.name, report)

    def output() -> None:
        assert not printed.getvalue(), f"it prints {printed.getvalue()[:60]!r}"

    checks = {
        "hooks": hooks,
        "entries": faultless(entries),
        "rules": faultless(rules),
        "reports": faultless(reports),
        "output": output,
    }
    _run(f"plugin {name}", checks, waivers)


_PROVIDED = (
    "accelerators", "models", "instances", "length_models", "formats", "_policies", "engines", "manifest_formats",
    "rules", "reporters",
)  # fmt: skip


# Accelerators


def check_accelerator(
    accelerator: Accelerator, *, plugins: Plugins | None = None, waivers: Waivers | None = None
) -> None:
    """Hold an accelerator to its own figures and to every invariant, alone and in a group of two.

    Checks: ``datasheet``, ``sources``, ``figures``, ``faster``, ``load``, ``larger``, ``scaling``,
    ``arrays``.
    """
    found = plugins or installed()

    @lru_cache(maxsize=1)
    def compositions() -> list[Composition]:
        return [
            _composed(f"{accelerator.id} with {model.id}", devices, policies, found, model, accelerator)
            for model in (samples.dense_model(), samples.hybrid_model())
            for devices, policies in (
                (1, ""),
                (2, ""),
                (1, '[policy.quantization]\nweights = "fp8"\nkv_cache = "fp8"\n'),
            )
        ]

    checks = {
        "datasheet": lambda: _check_datasheet(accelerator),
        "sources": lambda: _check_sources(accelerator),
        **_of_cost(compositions),
    }
    _run(f"accelerator {accelerator.id}", checks, waivers)


def check_instance(instance: Instance, *, plugins: Plugins | None = None, waivers: Waivers | None = None) -> None:
    """Hold an instance type to the catalogue and to its own figures.

    Checks: ``accelerator`` (an id of the catalogue), ``figures`` (bandwidth and memory of a real node),
    ``sources`` (each figure has one), ``gaps`` (each missing one is named).
    """
    found = plugins or installed()
    checks = {
        "accelerator": lambda: _check_instance_accelerator(instance, found),
        "figures": lambda: _check_instance_figures(instance),
        "sources": lambda: _check_instance_sources(instance),
        "gaps": lambda: _check_instance_gaps(instance),
    }
    _run(f"instance type {instance.id}", checks, waivers)


def _check_instance_accelerator(instance: Instance, plugins: Plugins) -> None:
    resolved = plugins.accelerators.resolve(instance.accelerator)
    assert resolved == instance.accelerator, f"accelerator {instance.accelerator!r} is no id of the catalogue"
    link = plugins.accelerators.get(resolved).link
    reach = instance.link_domain
    assert reach is None or link is None or reach <= max(link.domain, instance.devices), (
        f"link_domain is {reach}, the part's link reaches {link.domain}"
    )


def _check_instance_figures(instance: Instance) -> None:
    assert instance.id.count("/") == 1, f"the id {instance.id!r} is not cloud/name"
    assert 1 <= instance.devices <= 1024, f"{instance.devices} devices a node"
    rate = instance.network_bytes_per_s
    # From a few Mbit/s of a shared host to ten times the fastest node of 2026.
    assert rate is None or 1e7 <= rate <= 1e13, f"network_bytes_per_s is {rate}"
    memory = instance.host_memory_bytes
    assert memory is None or 1e9 <= memory <= 1e14, f"host_memory_bytes is {memory}"


def _check_instance_sources(instance: Instance) -> None:
    for name in ("accelerator", "devices", "network_bytes_per_s", "rdma", "host_memory_bytes"):
        assert getattr(instance, name) is None or instance.sources.get(name), f"{name} has no sources"


def _check_instance_gaps(instance: Instance) -> None:
    for name in ("network_bytes_per_s", "rdma", "host_memory_bytes"):
        named = any(name in gap for gap in instance.gaps)
        assert getattr(instance, name) is not None or named, f"{name} is left out, and no gap says so"


def _composed(
    what: str, devices: int, policies: str, plugins: Plugins, model: Architecture, accelerator: Accelerator
) -> Composition:
    spec = f'[hardware]\naccelerator = "any"\ndevices = {devices}\n[model]\nid = "any"\n{policies}'
    try:
        return compose(spec, plugins, architecture=model, accelerator=accelerator)
    except InfeasibleError as error:
        raise AssertionError(f"{what}, {devices} devices: {error}") from None


def _check_datasheet(a: Accelerator) -> None:
    contract.accelerator(a)
    for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
        value = getattr(a, name)
        assert math.isfinite(value), f"{name} is {value}"
        assert value > 0, f"{name} is {value}"
    assert a.dense_flops, "it has no dense rate"
    for precision, rate in {**a.dense_flops, **a.sparse_flops}.items():
        assert math.isfinite(rate) and rate > 0, f"the rate of {precision} is {rate}"  # noqa: PT018
    for precision, rate in a.sparse_flops.items():
        dense = a.dense_flops.get(precision, 0.0)
        assert rate >= dense, f"the sparse rate of {precision}, {rate:g}, is below the dense one, {dense:g}"
    visible, which = a.usable_memory
    # Drivers of parts sold by decimal size report up to 8 % more; no runtime sees much less than is sold.
    assert 0.8 * a.memory_bytes <= visible <= 1.1 * a.memory_bytes, f"{which} of {visible} for {a.memory_bytes} sold"
    if a.runtime_visible_bytes is not None and a.driver_total_bytes is not None:
        assert a.runtime_visible_bytes <= a.driver_total_bytes, "the runtime sees more than the driver"
    link = a.link
    if link is not None:
        assert link.domain >= 1, f"a scale-up domain of {link.domain}"
        assert 0 < link.group_bytes_per_s(2) <= link.per_direction_bytes_per_s, "a pair is faster than a device"
        if link.aggregate_bytes_per_s is not None:
            assert link.per_direction_bytes_per_s <= link.aggregate_bytes_per_s, "one direction is more than both"
    for name in ("memory", "compute", "link"):
        assert 0 < a.measured.get(name, 1.0) <= 1, f"the measured {name} is {a.measured[name]} of its peak"


def _check_sources(accelerator: Accelerator) -> None:
    for group in ("memory", "compute"):
        assert accelerator.sources.get(group), f"the figures of {group} have no sources"


# Models


def check_model(architecture: Architecture, *, plugins: Plugins | None = None, waivers: Waivers | None = None) -> None:
    """Hold a model to its own counts and to every invariant, whole, sharded and quantized.

    Checks: ``parameters``, ``sources``, ``traffic``, ``sharding``, ``conservation``, ``figures``, ``faster``,
    ``load``, ``larger``, ``scaling``, ``arrays``.
    """
    found, sample = plugins or installed(), samples.accelerator()
    whole = lru_cache(maxsize=1)(lambda: _composed(architecture.id, 1, "", found, architecture, sample))
    split = lru_cache(maxsize=1)(lambda: _composed(architecture.id, 4, "", found, architecture, sample))

    def sharding() -> None:
        for shape in SHAPES:
            check_sharding(whole(), split(), shape, 4)

    def conservation() -> None:
        for composition in (whole(), split()):
            for shape in SHAPES:
                check_conservation(composition, shape)

    checks = {
        "parameters": lambda: _check_parameters(architecture),
        "sources": lambda: _check_model_sources(architecture),
        "traffic": lambda: check_traffic(whole(), 3, 8192),
        "sharding": sharding,
        "conservation": conservation,
        **_of_cost(lambda: (whole(), split())),
    }
    _run(f"model {architecture.id}", checks, waivers)


def _check_parameters(a: Architecture) -> None:
    contract.architecture(a)
    assert sum(a.params_by_role.values()) == a.params_total, "the roles do not add up to the parameters"
    assert 0 < a.params_active <= a.params_serving <= a.params_total, (
        f"{a.params_active} active of {a.params_serving} serving of {a.params_total} parameters"
    )
    names = [block.name for block in a.blocks]
    assert len(set(names)) == len(names), f"two blocks are called the same: {', '.join(names)}"
    for block in a.blocks:
        assert "." not in block.name, f"the block name {block.name!r} has a dot"
        assert block.layers, f"block {block.name} has no layers"
        assert len(set(block.layers)) == block.count, f"block {block.name} has a layer twice"
        assert max(block.layers) < a.num_layers, f"block {block.name} is beyond the {a.num_layers} layers"
        tensors = [t.name for t in block.tensors]
        assert len(set(tensors)) == len(tensors), f"two tensors of {block.name} are called the same"
        assert all(t.params > 0 for t in block.tensors), f"a tensor of {block.name} has no parameters"
        if block.experts is not None:
            assert 1 <= block.experts.top_k <= block.experts.count, f"{block.experts} in {block.name}"
        mixer = block.mixer
        if isinstance(mixer, Attention):
            assert mixer.q_heads % mixer.kv_heads == 0, f"{mixer.q_heads} heads share {mixer.kv_heads} in {block.name}"
            assert not (mixer.window and mixer.chunk), f"{block.name} has both a window and chunks"
        if isinstance(mixer, Attention | LatentAttention):
            assert mixer.sequence_bytes(1, 1.0) > 0, f"{block.name} caches nothing"
    per_token = sum(a.kv_elements_per_token().values())
    one = a.kv_bytes_per_sequence(1, 1.0) - a.indexer_bytes_per_token()
    assert one == per_token, f"the first token caches {one} elements, {per_token} a token"


def _check_model_sources(architecture: Architecture) -> None:
    assert architecture.sources, "its figures have no source"


# Policies


def check_policy(
    policy: Policy,
    *,
    tables: Sequence[Mapping[str, Any]] = (),
    identity: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
    waivers: Waivers | None = None,
) -> None:
    """Hold a policy to every invariant, on a dense and a hybrid model, on one device and on four.

    ``tables`` are settings to try besides those that its config class allows key by key; ``identity`` is the
    setting that changes nothing, by default an empty table. Settings that cannot be composed are passed
    over, as long as one can. Checks: ``feasible``, ``identity``, ``order``, ``speculation``, ``figures``,
    ``faster``, ``load``, ``larger``, ``scaling``, ``arrays``.
    """
    wrong = contract.problem(policy, (Policy,))
    assert not wrong, f"policy does not conform:\n  {wrong}"
    found = _with_policy(plugins or installed(), policy)

    @lru_cache(maxsize=1)
    def compositions() -> list[Composition]:
        tried = [dict(table) for table in tables] + list(_tables_of(policy.config))
        return [c for table in tried for c in _settings(policy, table, found)]

    def feasible() -> None:
        assert compositions(), "no setting of it can be composed"

    def same() -> None:
        plain, changed = _settings(policy, None, found), _settings(policy, identity or {}, found)
        assert len(plain) == len(changed), "its identity setting cannot be composed"
        for before, after in zip(plain, changed, strict=True):
            for shape in SHAPES:
                check_identity(before, after, shape)
        # Where it is not provided at all; on one device, since on more a default may have to split.
        absent = _settings(policy, None, _without_policy(found, policy), (1,))
        for before, after in zip(absent, _settings(policy, identity or {}, found, (1,)), strict=True):
            for shape in SHAPES:
                check_same_graph(before, after, shape, f"without the policy, then its identity setting at {shape}")

    def order() -> None:
        others = [p.name for p in found.policies if p.name != policy.name]
        for composition in compositions():
            for priority in ([policy.name, *others], [*reversed(others), policy.name]):
                check_order(composition, SHAPES[1], priority)

    def speculation() -> None:
        for composition in compositions():
            check_speculation(composition.scheduler)

    checks = {
        "feasible": feasible,
        "identity": same,
        "order": order,
        "speculation": speculation,
        **_of_cost(compositions),
    }
    _run(f"policy {policy.name}", checks, waivers)


def _with_policy(plugins: Plugins, policy: Policy) -> Plugins:
    """The plugins with this policy, in place of one of the same name."""
    changed = copy(plugins)
    changed.faults, changed.off = [], frozenset()
    # Cached properties: what is there already is not asked of the hooks.
    changed._policies = {**plugins._policies, policy.name.lower(): (policy, Provider("under test"))}
    changed.policies = valid_order([p for p, _ in changed._policies.values()], ())
    return changed


def _without_policy(plugins: Plugins, policy: Policy) -> Plugins:
    """The plugins without this policy and those that require it."""
    changed = copy(plugins)
    changed.policies = tuple(p for p in plugins.policies if p.name != policy.name and policy.name not in p.requires)
    return changed


def _settings(
    policy: Policy, table: Mapping[str, Any] | None, plugins: Plugins, devices: Sequence[int] = (1, 4)
) -> list[Composition]:
    """The compositions that have a setting of the policy: each model, on one device and on four."""
    found = []
    for model in (samples.dense_model(), samples.hybrid_model()):
        for count in devices:
            lines = "" if table is None else f"[policy.{policy.name}]\n" + "".join(
                f"{key} = {_toml(value)}\n" for key, value in table.items()
            )  # fmt: skip
            spec = f'[hardware]\naccelerator = "any"\ndevices = {count}\n[model]\nid = "any"\n{lines}'
            try:
                found.append(compose(spec, plugins, architecture=model, accelerator=samples.accelerator()))
            except InfeasibleError:
                continue
    return found


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _tables_of(cls: type[Any]) -> Iterator[dict[str, Any]]:
    """Settings of one key each: what its kind allows, at the small end."""
    yield {}
    for name, (_, kind, _) in kinds(cls).items():
        for value in _values(kind):
            yield {name: value}


def _values(kind: Kind) -> list[Any]:
    if isinstance(kind, Boolean):
        return [False, True]
    if isinstance(kind, Text):
        return list(kind.choices)
    if isinstance(kind, Integer):
        return sorted({kind.minimum, min(kind.minimum + 1, kind.maximum), min(4, kind.maximum)} - {0})
    if isinstance(kind, Quantity):
        return [x for x in (0.25, 1.0) if kind.minimum <= x <= kind.maximum]
    if isinstance(kind, Number):
        return [kind.minimum, min(kind.minimum + 1.0, kind.maximum)]
    if isinstance(kind, Many):
        return [[value] for value in _values(kind.kind)]
    return list(_tables_of(kind.cls)) if isinstance(kind, Table) else []
