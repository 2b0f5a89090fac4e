"""What ``servelint cost`` shows, as a JSON object.

Every time is named for what it is: ``bound``, ``sustained_bound`` or ``estimate``; rates and latencies of a
service (frontier, knee, operating point) are made of estimates.
"""

from __future__ import annotations

from typing import Any

from servelint.graph import Op
from servelint.memory import MemoryLedger
from servelint.report.figures import Figures, Step
from servelint.report.json import assumption_object, head, lineage_object
from servelint.resources import (
    CacheIO,
    Collective,
    Demand,
    HostWork,
    Launch,
    Matmul,
    WeightRead,
)
from servelint.service import Point
from servelint.spec.document import Document

PERCENTILES = ("p50", "p99")


def unit_of(demand: Demand) -> str:
    """Return the unit that a demand's amount is in."""
    if isinstance(demand, Matmul):
        return "FLOP"
    if isinstance(demand, HostWork):
        return "s"
    return "" if isinstance(demand, Launch) else "B"


def as_object(figures: Figures) -> dict[str, Any]:
    """Return everything as JSON values; times in seconds, sizes in bytes, rates per second."""
    review = figures.review
    stream, memory = figures.single_stream, figures.memory
    knee, point = review.knee, review.operating_point
    steps: dict[str, Any] = {name: step_object(figures, step) for name, step in figures.steps.items()}
    steps.setdefault("mixed", None)
    return {
        **head(),
        "file": review.document.name,
        "deployment": deployment_object(figures),
        "notes": figures.notes,
        "steps": steps,
        "weights_bytes_per_device": memory.weights_bytes,
        "kv_bytes_per_token": figures.kv_bytes_per_token,
        "kv_bytes_per_token_per_device": memory.bytes_per_token(),
        "state_bytes_per_sequence": figures.state_bytes_per_sequence,
        "kv_bytes_per_sequence": figures.kv_bytes_per_sequence(figures.context),
        "kv_bytes_of_decode_batch": figures.kv_bytes_per_sequence(figures.context) * figures.batch,
        "max_model_len_tokens": figures.max_model_len,
        "kv_capacity_tokens": figures.kv_capacity_tokens,
        "kv_capacity_tokens_per_replica": _times(figures.kv_capacity_tokens, memory.ranks),
        "resident_context_tokens": figures.context,
        "max_resident_sequences": figures.max_resident_sequences,
        "max_resident_sequences_at_max_model_len": memory.resident_sequences(figures.max_model_len),
        "memory": memory_object(memory, review.document),
        "machine_balance_flops_per_byte": figures.machine_balance,
        "single_stream": {
            "weight_bytes_read": stream.read_bytes,
            "intensity_flops_per_byte": stream.intensity,
            "machine_balance_flops_per_byte": stream.balance,
            "times_below_balance": stream.balance / stream.intensity if stream.intensity else None,
            "ceiling_tokens_per_s": stream.ceiling_tokens_per_s,
            "resident_weights_ceiling_tokens_per_s": stream.resident_ceiling_tokens_per_s,
        },
        "crossover_batch": figures.crossover_batch,
        "operating_point": None if point is None else point_object(point),
        "limits_sequences": {} if figures.service is None else dict(figures.service.limits),
        "objectives": [
            {"metric": o.metric, "percentile": o.percentile, "declared_s": o.declared_s, "limit_s": o.limit_s}
            for o in review.objectives
        ],
        "knee": None if knee is None else point_object(knee),
        "frontier": [point_object(p) for p in figures.frontier],
        "assumptions": [assumption_object(a) for a in review.assumptions],
    }


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def deployment_object(figures: Figures) -> dict[str, Any]:
    """What is priced: names and numbers of devices, model and engine."""
    review, setup = figures.review, figures.composition.setup
    return {
        "name": review.deployment.deployment.name,
        "accelerator": setup.topology.accelerator.id,
        "devices": setup.topology.devices,
        "replicas": review.replicas,
        "model": setup.architecture.id,
        "engine": setup.engine.name,
        "engine_version": setup.engine_version,
    }


def step_object(figures: Figures, step: Step) -> dict[str, Any]:
    """One step: its shape, its three times, its demands by resource and by op with their lineage."""
    cost, shape = step.cost, step.shape
    document = figures.review.document
    return {
        "basis": step.basis,
        "shape": {
            "batch": shape.batch,
            "context_tokens": shape.context,
            "new_tokens": shape.new_tokens,
            "prefill_sequences": shape.prefill_sequences,
            "prefill_tokens": shape.prefill_tokens,
            "prefill_context_tokens": shape.prefill_context,
        },
        "bound_s": cost.bound_s,
        "sustained_bound_s": cost.sustained_bound_s,
        "estimate_s": cost.estimate_s,
        "floor_s": cost.floor_s,
        "binding_resource": cost.binding_resource,
        "bound_by_resource_s": step.composition.pricer.by_resource(shape),
        "flops": cost.flops,
        "hbm_bytes": cost.hbm_bytes,
        "hbm_bytes_by_kind": figures.hbm_bytes_by_kind(step),
        "link_bytes": cost.link_bytes,
        "ops": [
            {
                "name": op.name,
                "origin": op.origin,
                "instances": op.count,
                "repeats_by_stage": list(op.repeats),
                "flops": priced.flops,
                "hbm_bytes": priced.hbm_bytes,
                "activation_bytes": priced.activation_bytes,
                "link_bytes": priced.link_bytes,
                "estimate_s": priced.seconds,
                "demands": [demand_object(d, amount, document) for d, amount in demands],
            }
            for priced, (op, demands) in zip(step.composition.pricer.breakdown(shape), figures.rows(step), strict=True)
        ],
    }


def demand_object(demand: Demand, amount: float, document: Document | None = None) -> dict[str, Any]:
    """One demand of one instance of an op, with where it comes from."""
    unit = unit_of(demand)
    result: dict[str, Any] = {
        "kind": type(demand).__name__,
        {"FLOP": "flops", "B": "bytes", "s": "seconds", "": "count"}[unit]: amount,
        "feature": demand.feature.name,
        "axis": demand.axis,
    }
    if isinstance(demand, Matmul):
        result["precision"] = demand.precision
    if isinstance(demand, WeightRead | CacheIO) and demand.format is not None:
        result["format"] = demand.format.name
    if isinstance(demand, Collective):
        result |= {"collective": demand.kind, "group": demand.group, "stride": demand.stride}
    return result | {"lineage": lineage_object(demand.lineage, document)}


def memory_object(memory: MemoryLedger, document: Document | None = None) -> dict[str, Any]:
    """The memory ledger of a device, in bytes, per pipeline stage where stages differ."""
    fits = [memory.fit(stage) for stage in range(memory.stages)]
    return {
        "visible_bytes": memory.visible,
        "budget_bytes": memory.budget,
        "budget_lineage": lineage_object(memory.budget_lineage, document),
        "ranks": memory.ranks,
        "page_size_tokens": memory.page_size,
        "stages": [
            {
                "weights_bytes": fit.weights,
                "reserves_bytes": fit.reserves,
                "kv_bytes": memory.cache_left(stage),
                "left_bytes": fit.left,
            }
            for stage, fit in enumerate(fits)
        ],
        "weights": [
            {
                "name": w.name,
                "role": w.tensor.role,
                "format": w.format.name,
                "params_per_device_and_layer": w.params,
                "bytes_by_stage": [w.bytes_on(stage) for stage in range(memory.stages)],
                "lineage": lineage_object(w.lineage, document),
            }
            for w in memory.weights
        ],
        "reserves": [
            {"name": r.name, "bytes": r.bytes, "lineage": lineage_object(r.lineage, document)} for r in memory.reserves
        ],
        "caches": [
            {
                "block": c.block,
                "format": c.format.name,
                "bytes_per_token_and_layer": c.bytes_per_token,
                "layers_by_stage": list(c.repeats),
                "held_tokens": c.held or None,
                "lineage": lineage_object(c.lineage, document),
            }
            for c in memory.caches
        ],
        "states": [
            {
                "block": s.block,
                "bytes_per_sequence_and_layer": s.bytes,
                "layers_by_stage": list(s.repeats),
                "lineage": lineage_object(s.lineage, document),
            }
            for s in memory.states
        ],
    }


def point_object(point: Point) -> dict[str, Any]:
    """A steady state of one replica; every time is made of estimates."""
    return {
        "batch": point.batch,
        "output_tokens_per_s": point.throughput,
        "requests_per_s": point.rate,
        "step_estimate_s": point.step_s,
        **{
            f"{metric}_s": {name: point.latency(metric, name) for name in ("mean", *PERCENTILES)}
            for metric in ("ttft", "itl", "tpot", "e2e")
        },
        "prefill_utilization": point.prefill_utilization,
    }


def op_of(figures: Figures, name: str) -> tuple[Step, Op, list[tuple[Demand, float]]] | None:
    """Find an op by ``name`` (in the decode step), or by ``step.name``; None when there is none."""
    step_name, _, rest = name.partition(".")
    step, wanted = figures.steps.get(step_name), rest
    if step is None:
        step, wanted = figures.steps["decode"], name
    return next(((step, op, demands) for op, demands in figures.rows(step) if op.name == wanted), None)
