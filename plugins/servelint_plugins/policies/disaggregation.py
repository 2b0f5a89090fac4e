"""``[policy.disaggregation]``: prefill and decode on pools of their own, joined by a KV transfer."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from servelint.composition import build_topology
from servelint.errors import UnpricedError
from servelint.plugin import (
    Boolean,
    Composition,
    Context,
    Dimension,
    Disaggregation,
    InfeasibleError,
    Integer,
    Policy,
    Pool,
    Quantity,
    Scheduler,
    Source,
    Table,
    Text,
    key,
)
from servelint.values import Value

NAME = "disaggregation"


@frozen(slots=False, eq=False, repr=False)
class PoolTable(Value):
    """One pool: devices and parallelism of a replica of it, and how many replicas."""

    accelerator: str | None = key(Text(), doc="Device of the pool, by id or alias. Left out: the deployment's.")
    devices: int | None = key(
        Integer(1, 100_000),
        doc="Devices of a replica of the pool; of the whole pool where they are a multiple of what its degrees need. "
        "Left out: what they need, else the deployment's.",
    )
    tensor: int | None = key(Integer(1, 4096), doc="Tensor-parallel degree of the pool.")
    pipeline: int | None = key(
        Integer(1, 4096),
        doc="Pipeline stages of the pool. Where `tensor`, `pipeline` and `devices` are all left out, the "
        "deployment's degrees hold.",
    )
    replicas: int | None = key(
        Integer(1, 1_000_000), doc="Replicas of the pool. Left out: 1, or as many as `devices` has room for."
    )


@frozen(slots=False, eq=False, repr=False)
class Transfer(Value):
    """How KV travels: one-direction bandwidth, fixed setup, and whether layers stream while prefill runs."""

    bandwidth: float | None = key(
        Quantity(Dimension.BYTES_PER_SECOND, 0, 1e15),
        doc="Rate that the KV cache of a sequence travels at, one direction. Left out: the network ports of the "
        "smaller replica.",
    )
    setup: float | None = key(
        Quantity(Dimension.SECONDS, 0, 3600, positive=False), doc="Fixed time of a transfer. Left out: none."
    )
    layerwise: bool | None = key(
        Boolean(), doc="Whether layers are sent while later ones are still prefilled. Left out: true."
    )


@frozen(slots=False, eq=False, repr=False)
class DisaggregationConfig(Value):
    """Both pools are needed; a key that a pool leaves out is the deployment's own."""

    prefill: PoolTable | None = key(Table(PoolTable), doc="The pool that prefills.")
    decode: PoolTable | None = key(Table(PoolTable), doc="The pool that decodes.")
    transfer: Transfer | None = key(Table(Transfer), doc="How the KV cache gets from one to the other.")


def _shape(table: PoolTable, base: Any) -> Any:
    """The parallelism of a pool's replica: its own tensor and pipeline degree, the rest the deployment's."""
    if table.tensor is None and table.pipeline is None and table.devices is None:
        return base
    return evolve(base, tensor=table.tensor, pipeline=table.pipeline, pipeline_layers=None)


def _pool(name: str, table: PoolTable, context: Context) -> Pool:
    """Compose one pool. ``devices`` are a replica's; when they are a multiple of what its degrees need and no
    ``replicas`` are declared, or those that the multiple makes, they are the whole pool's."""
    setup, deployment = context.setup, context.deployment
    path = ("policy", NAME, name)
    policy = next(p for p in context.plugins.policies if p.name == "parallelism")
    shape = _shape(table, deployment.policies.get("parallelism") or policy.config())
    stated = table.tensor is not None or table.pipeline is not None
    needed = (context.plugins.devices_of(policy, shape) if stated else None) or 1
    devices = table.devices or (needed if stated else context.topology.devices)
    replicas = table.replicas or 1
    if needed > devices:
        raise InfeasibleError(f"the {name} pool has {devices} devices, and its degrees need {needed}", path)
    whole, rest = divmod(devices, needed)
    if table.tensor is not None and not rest and table.replicas in (None, whole):
        devices, replicas = needed, whole
    topology = context.topology
    if table.accelerator is not None or devices != topology.devices:
        accelerator, hardware = topology.accelerator, evolve(deployment.hardware, override=None)
        own = table.accelerator is not None and context.plugins.accelerators.get(table.accelerator)
        if own and own.id != accelerator.id:
            # Overrides and measured efficiencies are those of the deployment's own part.
            accelerator, hardware = own, evolve(hardware, efficiency=None)
        topology, assumed = build_topology(accelerator, hardware, devices)
        for a in assumed:
            context.assume((*path, *a.path[1:]), a.value, a.reason, a.source)
    policies = {k: v for k, v in deployment.policies.items() if k != NAME}
    policies["parallelism"] = shape
    composition = Composition(evolve(setup, deployment=evolve(deployment, policies=policies), topology=topology))
    try:
        composition.memory, composition.scheduler, composition.pricer  # noqa: B018
    except UnpricedError as error:
        if table.accelerator is None:
            raise
        raise UnpricedError(f"the {name} pool: {error}", (*path, "accelerator")) from None
    except InfeasibleError as error:
        raise InfeasibleError(f"the {name} pool: {error}", path) from None
    return Pool(composition, replicas)


def devices(config: DisaggregationConfig) -> int | None:
    """Devices of a decode replica, which stand for the deployment where it does not say how many it has."""
    table = config.decode or PoolTable()
    if table.tensor is None and table.pipeline is None:
        return table.devices
    return (table.tensor or 1) * (table.pipeline or 1)


def scheduler(config: DisaggregationConfig, scheduler: Scheduler, context: Context) -> Scheduler:
    """Compose each pool on its own devices."""
    if config.prefill is None and config.decode is None:
        return scheduler
    transfer = config.transfer or Transfer()
    prefill = _pool("prefill", config.prefill or PoolTable(), context)
    decode = _pool("decode", config.decode or PoolTable(), context)
    rate = transfer.bandwidth
    if rate is None:
        # A sequence leaves and arrives over the network ports of the smaller replica.
        sides = [pool.composition.setup.topology for pool in (prefill, decode)]
        slowest = min(side.network_bytes_per_s * side.devices for side in sides)
        rate = slowest * context.topology.efficiency.link
        source = Source("default", "docs/conventions.md", "KV transfer")
        reason = "network ports of the smaller replica at the sustained link fraction"
        context.assume(("policy", NAME, "transfer", "bandwidth"), rate, reason, source)
    return evolve(
        scheduler,
        disaggregation=Disaggregation(prefill, decode, rate, transfer.setup or 0.0, transfer.layerwise is not False),
    )


POLICY = Policy(
    NAME,
    DisaggregationConfig,
    None,
    None,
    scheduler,
    devices=devices,
    requires=("parallelism",),
    after=("constrained_decoding",),
)
