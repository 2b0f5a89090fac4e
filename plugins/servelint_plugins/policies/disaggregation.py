"""``[policy.disaggregation]``: prefill and decode on pools of their own, joined by a KV transfer."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from servelint.composition import build_topology
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
    Table,
    Text,
    key,
)
from servelint.values import Value

NAME = "disaggregation"


@frozen(eq=False, repr=False)
class PoolTable(Value):
    """One pool: devices and parallelism of a replica of it, and how many replicas."""

    accelerator: str | None = key(Text())
    devices: int | None = key(Integer(1, 100_000))
    tensor: int | None = key(Integer(1, 4096))
    pipeline: int | None = key(Integer(1, 4096))
    replicas: int | None = key(Integer(1, 1_000_000))


@frozen(eq=False, repr=False)
class Transfer(Value):
    """How KV travels: one-direction bandwidth, fixed setup, and whether layers stream while prefill runs."""

    bandwidth: float | None = key(Quantity(Dimension.BYTES_PER_SECOND, 0, 1e15))
    setup: float | None = key(Quantity(Dimension.SECONDS, 0, 3600, positive=False))
    layerwise: bool | None = key(Boolean())


@frozen(eq=False, repr=False)
class DisaggregationConfig(Value):
    """Both pools are needed; a key that a pool leaves out is the deployment's own."""

    prefill: PoolTable | None = key(Table(PoolTable))
    decode: PoolTable | None = key(Table(PoolTable))
    transfer: Transfer | None = key(Table(Transfer))


def _pool(name: str, table: PoolTable, context: Context) -> Pool:
    setup, deployment = context.setup, context.deployment
    accelerator = context.accelerator
    if table.accelerator is not None:
        accelerator = context.plugins.accelerators.get(table.accelerator)
    path = ("policy", NAME, name)
    devices = table.devices or (table.tensor or 1) * (table.pipeline or 1)
    if table.tensor and table.tensor * (table.pipeline or 1) > devices:
        raise InfeasibleError(
            f"the {name} pool has {devices} devices for tensor {table.tensor} x pipeline {table.pipeline or 1}",
            path,
        )
    topology, _ = build_topology(accelerator, evolve(deployment.hardware, override=None), devices)
    base = deployment.policies.get("parallelism")
    policies: dict[str, Any] = {k: v for k, v in deployment.policies.items() if k != NAME}
    shape = evolve(base, tensor=None, pipeline=None, pipeline_layers=None) if base is not None else None
    if shape is None:
        shape = next(p for p in context.plugins.policies if p.name == "parallelism").config()
    policies["parallelism"] = evolve(shape, tensor=table.tensor, pipeline=table.pipeline)
    pool = evolve(setup, deployment=evolve(deployment, policies=policies), topology=topology)
    return Pool(Composition(pool), table.replicas or 1)


def scheduler(config: DisaggregationConfig, scheduler: Scheduler, context: Context) -> Scheduler:
    """Compose each pool on its own devices."""
    if config.prefill is None and config.decode is None:
        return scheduler
    transfer = config.transfer or Transfer()
    rate = transfer.bandwidth or context.topology.network_bytes_per_s
    return evolve(
        scheduler,
        disaggregation=Disaggregation(
            _pool("prefill", config.prefill or PoolTable(), context),
            _pool("decode", config.decode or PoolTable(), context),
            rate,
            transfer.setup or 0.0,
            transfer.layerwise is not False,
        ),
    )


POLICY = Policy(
    NAME,
    DisaggregationConfig,
    None,
    None,
    scheduler,
    requires=("parallelism",),
    after=("constrained_decoding",),
)
