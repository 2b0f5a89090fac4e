"""The deployment spec, version 1: one frozen attrs class a table.

Sizes are bytes, rates per second, times seconds. A None is a key that the spec does not set; what stands for
it then (an engine's default, a stated one) is decided in composition and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from servelint.spec.schema import (
    Anything,
    Ascending,
    Boolean,
    Either,
    Integer,
    Named,
    Number,
    Problems,
    Quantity,
    Table,
    Tables,
    Text,
    key,
)
from servelint.units import Dimension
from servelint.values import Value

TOKENS_MAX = 100_000_000
QUANTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999")
PERCENTILES = ("mean", "p50", "p75", "p90", "p95", "p99", "p999")

_tokens = Quantity(Dimension.TOKENS, 0, TOKENS_MAX, positive=False)
_bytes = Quantity(Dimension.BYTES, 0, 1e18)
_rate = Quantity(Dimension.BYTES_PER_SECOND, 0, 1e18)
_flops = Quantity(Dimension.FLOPS_PER_SECOND, 0, 1e21)
_seconds = Quantity(Dimension.SECONDS, 0, 1e7)
_fraction = Quantity(Dimension.FRACTION, 0, 1, positive=False)
_efficiency = Quantity(Dimension.FRACTION, 0, 1)
_lengths = Either(
    Quantity(Dimension.TOKENS, 1, TOKENS_MAX),
    Ascending(_tokens, (*QUANTILES, "mean", "std", "min", "max")),
)
_latency = Ascending(_seconds, PERCENTILES)


@frozen(eq=False, repr=False)
class DeploymentTable(Value):
    """``[deployment]``: what it is called, what it is for, the context it was sized for."""

    name: str | None = key(Text())
    goal: str | None = key(Text("latency", "throughput", "long-context"))
    sized_for: float | None = key(_tokens)


@frozen(eq=False, repr=False)
class Pcie(Value):
    """``hardware.pcie``: generation and lanes of the slot."""

    generation: int | None = key(Integer(1, 6))
    lanes: int | None = key(Integer(1, 16))


@frozen(eq=False, repr=False)
class Network(Value):
    """``hardware.network``: scale-out bandwidth in one direction, per device or per node."""

    bandwidth: float | None = key(_rate)
    per: str = key(Text("device", "node"), default="device")
    rdma: bool | None = key(Boolean())


@frozen(eq=False, repr=False)
class EfficiencyTable(Value):
    """``[hardware.efficiency]``: sustained fractions of the peaks, and where they were measured."""

    memory: float | None = key(_efficiency)
    compute: float | None = key(_efficiency)
    link: float | None = key(_efficiency)
    source: str | None = key(Text())


@frozen(eq=False, repr=False)
class Override(Value):
    """``[hardware.override]``: figures that replace the datasheet's."""

    dense_flops: Mapping[str, float] | None = key(Named(_flops))
    memory_bandwidth: float | None = key(_rate)
    memory: float | None = key(_bytes)
    source: str | None = key(Text())


@frozen(eq=False, repr=False)
class Price(Value):
    """``[hardware.price]``: what one device costs an hour; never built in."""

    per_device_hour: float | None = key(Number(0, 1e6))
    currency: str | None = key(Text())
    date: object = key(Anything())


@frozen(eq=False, repr=False)
class Hardware(Value):
    """``[hardware]``: which devices, how many, how they are joined."""

    accelerator: str | None = key(Text())
    instance: str | None = key(Text())
    devices: int | None = key(Integer(1, 100_000))
    devices_per_node: int | None = key(Integer(1, 1024))
    nodes: int | None = key(Integer(1, 100_000))
    replicas: int | None = key(Integer(1, 1_000_000))
    peer_to_peer: bool | None = key(Boolean())
    pcie: Pcie | None = key(Table(Pcie))
    network: Network | None = key(Table(Network))
    host_memory: float | None = key(_bytes)
    efficiency: EfficiencyTable | None = key(Table(EfficiencyTable))
    override: Override | None = key(Table(Override))
    datasheet: Mapping[str, Any] | None = key(Either(Boolean(), Anything()))
    price: Price | None = key(Table(Price))


@frozen(eq=False, repr=False)
class ModelOverride(Value):
    """``model.override``: what a published config leaves out or has wrong.

    ``max_position`` is the longest context that the model was trained or scaled for; ``stored`` the format that
    the whole checkpoint is stored in.
    """

    max_position: int | None = key(Integer(1, TOKENS_MAX))
    stored: str | None = key(Text())


@frozen(eq=False, repr=False)
class ModelTable(Value):
    """``[model]``: a name from the catalogue, or the path of a published config."""

    id: str | None = key(Text())
    config: str | None = key(Text())
    max_model_len: int | None = key(Integer(1, TOKENS_MAX))
    weights_bytes: float | None = key(_bytes)
    override: ModelOverride | None = key(Table(ModelOverride))


@frozen(eq=False, repr=False)
class ArgsFrom(Value):
    """``engine.args_from``: the file and the part of it that holds the real launch arguments."""

    file: str = key(Text(), required=True)
    container: str | None = key(Text())
    service: str | None = key(Text())
    path: str | None = key(Text())


@frozen(eq=False, repr=False)
class EngineTable(Value):
    """``[engine]``: the serving engine and how it is launched."""

    name: str | None = key(Text())
    version: str | None = key(Text())
    image: str | None = key(Text())
    args: object = key(Either(Anything(), Anything()))
    args_from: ArgsFrom | None = key(Table(ArgsFrom))
    env: Mapping[str, Any] | None = key(Anything())
    attention_backend: str | None = key(Text())


@frozen(eq=False, repr=False)
class Trace(Value):
    """``workload.trace``: a trace file and its format."""

    file: str = key(Text(), required=True)
    format: str | None = key(Text())


@frozen(eq=False, repr=False)
class PrefixHit(Value):
    """``workload.prefix_hit``: the share of prompt tokens found in the prefix cache, and how it is known."""

    value: float = key(_fraction, required=True)
    basis: str | None = key(Text("measured", "assumed", "trace"))
    source: str | None = key(Text())


@frozen(eq=False, repr=False)
class Workload(Value):
    """``[workload]`` or one ``[[workload.growth]]``: lengths, arrivals, cache hits.

    Lengths are a number of tokens or a table of quantiles.
    """

    name: str | None = key(Text())
    prompt_tokens: float | Mapping[str, float] | None = key(_lengths)
    output_tokens: float | Mapping[str, float] | None = key(_lengths)
    trace: Trace | str | None = key(Either(Text(), Table(Trace)))
    rate: float | None = key(Quantity(Dimension.REQUESTS_PER_SECOND, 0, 1e9))
    arrival_cv: float | None = key(Number(0, 100))
    concurrency: int | None = key(Integer(1, 1_000_000))
    prefix_hit: PrefixHit | float | None = key(Either(_fraction, Table(PrefixHit)))
    images_per_prompt: float | None = key(Number(0, 10_000))
    encoder_tokens: float | None = key(_tokens)
    growth: tuple[Any, ...] = ()


def _growth() -> Any:
    return key(Tables(Workload, "workload.growth"), default=())


@frozen(eq=False, repr=False)
class BaseWorkload(Workload):
    """``[workload]``: the base workload with its growth scenarios."""

    growth: tuple[Workload, ...] = _growth()


@frozen(eq=False, repr=False)
class Slo(Value):
    """``[slo]``: objectives in seconds by percentile, and the headroom kept from every limit."""

    ttft: Mapping[str, float] | None = key(_latency)
    itl: Mapping[str, float] | None = key(_latency)
    tpot: Mapping[str, float] | None = key(_latency)
    e2e: Mapping[str, float] | None = key(_latency)
    headroom: float = key(Quantity(Dimension.FRACTION, 0, 0.95, positive=False), default=0.0)


@frozen(eq=False, repr=False)
class ClaimAt(Value):
    """``claim.at``: the operating point of a claim."""

    concurrency: int | None = key(Integer(1, 1_000_000))
    batch: int | None = key(Integer(1, 1_000_000))
    context: float | None = key(_tokens)
    prompt_tokens: float | None = key(_tokens)
    output_tokens: float | None = key(_tokens)
    rate: float | None = key(Quantity(Dimension.REQUESTS_PER_SECOND, 0, 1e9))
    itl_mean: float | None = key(_seconds)
    itl_p50: float | None = key(_seconds)
    itl_p90: float | None = key(_seconds)
    itl_p95: float | None = key(_seconds)
    itl_p99: float | None = key(_seconds)
    tpot_mean: float | None = key(_seconds)
    tpot_p50: float | None = key(_seconds)
    tpot_p99: float | None = key(_seconds)
    ttft_mean: float | None = key(_seconds)
    ttft_p50: float | None = key(_seconds)
    ttft_p90: float | None = key(_seconds)
    ttft_p95: float | None = key(_seconds)
    ttft_p99: float | None = key(_seconds)


@frozen(eq=False, repr=False)
class ClaimAssumes(Value):
    """``claim.assumes``: what the claim was computed from."""

    accelerator: str | None = key(Text())
    dense_flops: float | Mapping[str, float] | None = key(Either(_flops, Named(_flops)))
    memory_bandwidth: float | None = key(_rate)
    precision: str | None = key(Text())
    engine: str | None = key(Text())
    efficiency: float | None = key(_efficiency)
    prefix_hit: float | None = key(_fraction)


_token_rate = Quantity(Dimension.TOKENS_PER_SECOND, 0, 1e12)
CLAIM_METRICS: Mapping[str, Quantity | Number] = {
    "throughput": _token_rate,
    "output_throughput": _token_rate,
    "total_throughput": _token_rate,
    "goodput": _token_rate,
    "request_rate": Quantity(Dimension.REQUESTS_PER_SECOND, 0, 1e9),
    "ttft": _seconds,
    "itl": _seconds,
    "tpot": _seconds,
    "e2e": _seconds,
    "speedup": Number(0, 1e6),
    "concurrency": Number(0, 1e9),
    "cost_per_million_tokens": Number(0, 1e9),
}
"""What a claim may be about, and the dimension of its value."""


@frozen(eq=False, repr=False)
class Claim(Value):
    """One ``[[claim]]``: a figure that somebody states of this deployment, in SI units of its metric."""

    metric: str = key(Text(*CLAIM_METRICS), required=True)
    value: Any = key(Anything(), required=True)
    per: str = key(Text("replica", "device", "deployment", "user", "request"), default="replica")
    at: ClaimAt | None = key(Table(ClaimAt))
    assumes: ClaimAssumes | None = key(Table(ClaimAssumes))
    evidence: str | None = key(Text())
    quoted_from: str | None = key(Text())

    def __attrs_post_init__(self) -> None:
        """Read the value in the metric's dimension, which its own kind cannot know."""
        try:
            value = CLAIM_METRICS[self.metric].parse(self.value)
        except Problems as error:
            raise Problems([p._replace(path=("value", *p.path)) for p in error.problems]) from None
        object.__setattr__(self, "value", value)


@frozen(eq=False, repr=False)
class Evidence(Value):
    """One ``[[evidence]]``: a measurement that the deployment rests on."""

    kind: str = key(Text("task-eval", "benchmark", "kernel-trace", "expert-load"), required=True)
    artifact: str | None = key(Text())
    file: str | None = key(Text())
    tasks: Mapping[str, float] | None = key(Named(Number(-1e9, 1e9)))
    engine_version: str | None = key(Text())
    date: object = key(Anything())


@frozen(eq=False, repr=False)
class Deployment(Value):
    """A whole spec. ``policies`` maps the name of a policy table to its config, of the plugin's own class."""

    deployment: DeploymentTable = key(Table(DeploymentTable), default=DeploymentTable())
    hardware: Hardware = key(Table(Hardware), default=Hardware())
    model: ModelTable = key(Table(ModelTable), default=ModelTable())
    engine: EngineTable = key(Table(EngineTable), default=EngineTable())
    workload: BaseWorkload | None = key(Table(BaseWorkload))
    slo: Slo | None = key(Table(Slo))
    claims: tuple[Claim, ...] = key(Tables(Claim, "claim"), default=(), name="claim")
    evidence: tuple[Evidence, ...] = key(Tables(Evidence, "evidence"), default=())
    policies: Mapping[str, Any] = {}
