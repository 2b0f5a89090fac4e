"""``[policy.quantization]``: formats of weights, activations and KV cache.

Bytes follow the stored format. Arithmetic follows it only where the accelerator has a native path for the
format and the activations are in it too; otherwise the weights are dequantized and multiply at the 16-bit
rate.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servelint.layout import quantizes
from servelint.memory import Cache, Weights
from servelint.plugin import (
    CacheIO,
    Context,
    Demand,
    Format,
    Input,
    Integer,
    Many,
    Matmul,
    MemoryLedger,
    Op,
    Policy,
    Source,
    StepGraph,
    Tensor,
    Text,
    WeightRead,
    key,
)
from servelint.values import Value

NAME = "quantization"
SIXTEEN_BIT = ("bf16", "fp16")
ROLES = (
    "attention", "mlp", "shared_experts", "routed_experts", "ssm", "mtp", "router", "lm_head", "embedding",
)  # fmt: skip


@frozen(slots=False, eq=False, repr=False)
class QuantizationConfig(Value):
    """Format names; ``covers`` are the tensor roles stored in the weight format."""

    weights: str | None = key(
        Text(),
        doc="Format that covered weights are stored in: `servelint catalog formats` lists them. Left out, or `auto`: "
        "the checkpoint's.",
    )
    kv_cache: str | None = key(Text(), doc="Format of the KV cache. Left out, or `auto`: the checkpoint's.")
    activations: str | None = key(
        Text(),
        doc="Format of activations in GEMMs; a 16-bit one keeps narrower weights from multiplying at their own rate. "
        "Left out: the weight format's own.",
    )
    covers: tuple[str, ...] | None = key(
        Many(Text(*ROLES)),
        doc="Kinds of weights that are stored in the format. Left out: those that the format usually covers.",
    )
    group_size: int | None = key(Integer(1, 65536), doc="Elements that share a scale. Left out: the format's own.")


def weight_format(config: QuantizationConfig, context: Context) -> Format | None:
    """The declared weight format with its group size applied, None when the checkpoint's own is kept."""
    if config.weights in (None, "auto"):
        return None
    declared = context.format(config.weights)
    own = context.formats.quantized or context.formats.stored
    if declared is own and not config.covers and config.group_size in (None, own.group):
        # Naming the stored format again changes nothing, not even what it covers.
        return None
    if config.group_size and declared.group and config.group_size != declared.group:
        ratio = declared.group / config.group_size
        declared = evolve(declared, group=config.group_size, metadata_bits=declared.metadata_bits * ratio)
    return declared


def native_precision(format: Format, activations: str | None, context: Context) -> str | None:  # noqa: A002
    """The precision that a GEMM of these weights runs at natively, None when there is no such path."""
    compute = format.compute
    if compute is None or compute not in context.accelerator.dense_flops:
        return None
    # Both sides of a GEMM are in its precision, or it is not native.
    if activations not in (None, "auto") and context.format(activations).compute != compute:
        return None
    return compute


def _reformatted(tensor: Tensor, stored: Format, new: Format | None, config: QuantizationConfig) -> Format:
    if new is None or new is stored or not quantizes(config.covers or new.covers, tensor):
        return stored
    return new


def graph(config: QuantizationConfig, graph: StepGraph, context: Context) -> StepGraph:
    """Give covered tensors their format, and each GEMM the rate that the hardware has for it."""
    new = weight_format(config, context)
    cache = context.format(config.kv_cache) if config.kv_cache not in (None, "auto") else None
    measured = _measured_ratio(config, context)

    def change(op: Op, demand: Demand) -> Demand:
        if isinstance(demand, WeightRead) and demand.tensor is not None and demand.format is not None:
            fmt = _reformatted(demand.tensor, demand.format, new, config)
            if fmt is not demand.format:
                width = Input("bytes per parameter", fmt.bytes_per_element, "B", context.source(NAME, "weights"))
                lineage = demand.lineage.rewritten(NAME, f"stored as {fmt.name}", width)
                demand = evolve(demand, format=fmt, lineage=lineage)
            if measured != 1.0:
                demand = demand.scaled(measured, NAME, "scaled to the measured weight bytes")
            return demand
        if isinstance(demand, Matmul) and demand.tensor is not None:
            stored = context.formats.of(demand.tensor)
            fmt = _reformatted(demand.tensor, stored, new, config)
            native = native_precision(fmt, config.activations, context)
            if native is not None and native != demand.precision and native not in SIXTEEN_BIT:
                rate = Input(
                    f"{native} rate",
                    context.accelerator.dense_flops[native],
                    "FLOP/s",
                    context.accelerator.source("compute", f"dense_flops.{native}"),
                )
                lineage = demand.lineage.rewritten(NAME, f"native {native} GEMM", rate)
                return evolve(demand, precision=native, lineage=lineage)
            return demand
        if isinstance(demand, CacheIO) and cache is not None and demand.format is not cache:
            width = Input("bytes per element", cache.bytes_per_element, "B", context.source(NAME, "kv_cache"))
            lineage = demand.lineage.rewritten(NAME, f"cached as {cache.name}", width)
            return evolve(demand, format=cache, lineage=lineage)
        return demand

    return graph.mapped(change)


def _measured_ratio(config: QuantizationConfig, context: Context) -> float:
    """How the measured weight bytes of the spec compare with the ledger's."""
    measured = context.deployment.model.weights_bytes
    if measured is None:
        return 1.0
    new = weight_format(config, context)
    return measured / sum(
        tensor.params * count * _reformatted(tensor, context.formats.of(tensor), new, config).bytes_per_element
        for tensor, count in context.architecture.tensors()
        if tensor.role != "mtp"
    )


def memory(config: QuantizationConfig, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Store covered weights and the KV cache in their formats."""
    new = weight_format(config, context)
    cache = context.format(config.kv_cache) if config.kv_cache not in (None, "auto") else None

    def stored(w: Weights) -> Weights:
        fmt = _reformatted(w.tensor, w.format, new, config)
        if fmt is w.format:
            return w
        width = Input("bytes per parameter", fmt.bytes_per_element, "B", context.source(NAME, "weights"))
        return evolve(w, format=fmt, lineage=w.lineage.rewritten(NAME, f"stored as {fmt.name}", width))

    def cached(c: Cache) -> Cache:
        if cache is None or c.format is cache:
            return c
        width = Input("bytes per element", cache.bytes_per_element, "B", context.source(NAME, "kv_cache"))
        return evolve(c, format=cache, lineage=c.lineage.rewritten(NAME, f"cached as {cache.name}", width))

    ledger = ledger.mapped(weights=stored, caches=cached)
    measured = context.deployment.model.weights_bytes
    if measured is None:
        return ledger
    ratio = _measured_ratio(config, context)
    total = Input("measured weight bytes", measured, "B", Source("spec", "", "", ("model", "weights_bytes")))
    return ledger.mapped(
        weights=lambda w: evolve(
            w,
            params=w.params * ratio,
            lineage=w.lineage.rewritten(NAME, "scaled to the measured weight bytes", total),
        )
    )


POLICY = Policy(NAME, QuantizationConfig, graph, memory)
