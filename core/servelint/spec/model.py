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
    Arguments,
    Ascending,
    Boolean,
    Date,
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

MOST_CLAIMS = 32
MOST_GROWTH = 64
"""Each is priced by itself; with more a check would take seconds."""

_tokens = Quantity(Dimension.TOKENS, 0, TOKENS_MAX, positive=False)
_length = Quantity(Dimension.TOKENS, 1, TOKENS_MAX)
_bytes = Quantity(Dimension.BYTES, 0, 1e18)
_rate = Quantity(Dimension.BYTES_PER_SECOND, 0, 1e18)
_watts = Quantity(Dimension.WATTS, 0, 1e9)
_flops = Quantity(Dimension.FLOPS_PER_SECOND, 0, 1e21)
_seconds = Quantity(Dimension.SECONDS, 0, 1e7)
_fraction = Quantity(Dimension.FRACTION, 0, 1, positive=False)
_efficiency = Quantity(Dimension.FRACTION, 0.001, 1)
_lengths = Either(
    _length,
    Ascending(_tokens, (*QUANTILES, "mean", "std", "min", "max")),
)
_latency = Ascending(_seconds, PERCENTILES)


@frozen(slots=False, eq=False, repr=False)
class DeploymentTable(Value):
    """``[deployment]``: what it is called, what it is for, the context it was sized for."""

    name: str | None = key(Text(), doc="What reports call the deployment.")
    goal: str | None = key(
        Text("latency", "throughput", "long-context"),
        doc="What the deployment is built for: the DEC rules then say what would serve it better.",
    )
    sized_for: float | None = key(
        _length,
        doc="Context in tokens, prompt and output together, that the fleet was sized for. "
        "Left out: the 95th percentile of the base workload, growth not counted.",
    )


@frozen(slots=False, eq=False, repr=False)
class Pcie(Value):
    """``hardware.pcie``: generation and lanes of the slot."""

    generation: int | None = key(Integer(1, 6), doc="PCIe generation. Left out: the datasheet's.")
    lanes: int | None = key(Integer(1, 16), doc="Lanes of a device's slot. Left out: the datasheet's.")


@frozen(slots=False, eq=False, repr=False)
class Network(Value):
    """``hardware.network``: scale-out bandwidth in one direction, per device or per node."""

    bandwidth: float | None = key(
        _rate, doc="Network bandwidth in one direction, bytes (or bits) a second. Left out: 50 GB/s a device."
    )
    per: str = key(
        Text("device", "node"),
        default="device",
        doc="Whose bandwidth it is; that of a node is shared by its devices. Left out: device.",
    )
    rdma: bool | None = key(Boolean(), doc="Whether devices reach the network without the host.", judged=False)


@frozen(slots=False, eq=False, repr=False)
class EfficiencyTable(Value):
    """``[hardware.efficiency]``: sustained fractions of the peaks, and where they were measured."""

    memory: float | None = key(
        _efficiency,
        doc="Share of the memory bandwidth that a large kernel sustains. Left out: the datasheet's measurement, "
        "else the default in [conventions.md](conventions.md).",
    )
    compute: float | None = key(
        _efficiency,
        doc="Share of the dense compute peak that GEMMs and attention of a prefill sustain. Left out: as above.",
    )
    link: float | None = key(
        _efficiency, doc="Share of one direction of a link that a large collective moves. Left out: as above."
    )
    source: str | None = key(Text(), doc="Where the fractions were measured: document and revision, or file.")


@frozen(slots=False, eq=False, repr=False)
class Override(Value):
    """``[hardware.override]``: figures that replace the datasheet's."""

    dense_flops: Mapping[str, float] | None = key(
        Named(_flops),
        doc="Dense rate (without structured sparsity) in FLOP/s by precision: bf16, fp16, fp8, fp4, int8, tf32, fp32 "
        "... Precisions that are left out keep the datasheet's rate.",
    )
    memory_bandwidth: float | None = key(_rate, doc="Memory bandwidth of a device, bytes a second.")
    memory: float | None = key(_bytes, doc="Memory of a device that the runtime sees, in bytes.")
    source: str | None = key(Text(), doc="Where the figures come from: document and revision, or measurement.")


@frozen(slots=False, eq=False, repr=False)
class Price(Value):
    """``[hardware.price]``: what one device costs an hour; never built in."""

    per_device_hour: float | None = key(Number(0, 1e6), doc="Price of one device for an hour.")
    currency: str | None = key(Text(), doc="Its currency.")
    date: object = key(Date(), doc="When it was the price.")


@frozen(slots=False, eq=False, repr=False)
class Power(Value):
    """``hardware.power``: what a node and a rack may draw, and what the devices are limited to."""

    per_device: float | None = key(
        _watts, doc="Power limit that each device is set to. Left out: the power of its datasheet."
    )
    per_node: float | None = key(_watts, doc="Power that one node may draw, its host included.")
    per_rack: float | None = key(_watts, doc="Power that one rack may draw, all its nodes together.")
    nodes_per_rack: int | None = key(Integer(1, 1024), doc="Nodes of one rack, which `per_rack` needs.")


@frozen(slots=False, eq=False, repr=False)
class Hardware(Value):
    """``[hardware]``: which devices, how many, how they are joined."""

    accelerator: str | None = key(
        Text(), doc="Id or alias of the device: `servelint catalog hardware` lists them. `datasheet` goes before it."
    )
    instance: str | None = key(
        Text(),
        doc="A cloud's instance type, as `aws/p5.48xlarge`: `servelint catalog instances` lists them. Where they are "
        "left out, it stands for the accelerator, the devices of a node and the network's bandwidth. Beside an "
        "accelerator or a datasheet, one that no plugin provides is not read.",
    )
    devices: int | None = key(
        Integer(1, 100_000), doc="Devices of one replica. Left out: as many as the degrees of parallelism need, else 1."
    )
    devices_per_node: int | None = key(
        Integer(1, 1024),
        doc="Devices of one node. Left out: `devices / nodes`, else 8, or the scale-up domain where that is larger.",
    )
    nodes: int | None = key(
        Integer(1, 100_000), doc="Nodes that one replica spans; read where `devices_per_node` is left out."
    )
    replicas: int | None = key(
        Integer(1, 1_000_000), doc="Identical replicas that share the offered load evenly. Left out: 1."
    )
    peer_to_peer: bool | None = key(
        Boolean(),
        doc="Whether devices reach each other's memory. false: no scale-up link, and half of the PCIe rate. "
        "Left out: as the datasheet has it.",
    )
    pcie: Pcie | None = key(Table(Pcie), doc="The slot of a device.")
    network: Network | None = key(Table(Network), doc="The network between nodes.")
    host_memory: float | None = key(_bytes, doc="Memory of one host, in bytes.", judged=False)
    efficiency: EfficiencyTable | None = key(
        Table(EfficiencyTable), doc="Sustained fractions of the peaks; bounds do not use them."
    )
    override: Override | None = key(Table(Override), doc="Figures that replace those of the datasheet.")
    datasheet: Mapping[str, Any] | None = key(Named(Anything()), doc="A device that no plugin provides.")
    power: Power | None = key(Table(Power), doc="What a node and a rack may draw.")
    price: Price | None = key(Table(Price), doc="What a device costs.")


@frozen(slots=False, eq=False, repr=False)
class ModelOverride(Value):
    """``model.override``: what a published config leaves out or has wrong.

    ``max_position`` is the longest context that the model was trained or scaled for; ``stored`` the format that
    the whole checkpoint is stored in.
    """

    max_position: int | None = key(
        Integer(1, TOKENS_MAX), doc="Longest context in tokens that the model was trained or scaled for."
    )
    stored: str | None = key(
        Text(), doc="Format that the whole checkpoint is stored in: `servelint catalog formats` lists them."
    )


@frozen(slots=False, eq=False, repr=False)
class ModelTable(Value):
    """``[model]``: a name from the catalogue, or the path of a published config."""

    id: str | None = key(
        Text(), doc="Id or alias of the model: `servelint catalog models` lists them. Beside `config` only a name."
    )
    config: str | None = key(
        Text(),
        doc="Path of a published config.json, relative to the spec and inside the project; it is read instead of the "
        "catalogue.",
    )
    max_model_len: int | None = key(
        Integer(1, TOKENS_MAX),
        doc="Longest context in tokens that a request may have. Left out: what the model was trained for.",
    )
    max_prompt_tokens: int | None = key(
        Integer(1, TOKENS_MAX),
        doc="Longest prompt in tokens, where the engine limits it apart from `max_model_len`. Left out: what leaves "
        "room for one token of output.",
    )
    weights_bytes: float | None = key(
        _bytes, doc="Measured size of the whole checkpoint; weights are scaled to it. Left out: from the formats."
    )
    override: ModelOverride | None = key(
        Table(ModelOverride), doc="What the catalogue or the config leaves out or has wrong."
    )


@frozen(slots=False, eq=False, repr=False)
class ArgsFrom(Value):
    """``engine.args_from``: the file and the part of it that holds the real launch arguments."""

    file: str = key(Text(), required=True, doc="The manifest or script, relative to the spec and inside the project.")
    container: str | None = key(Text(), doc="Its container, of a pod; any name of a part.")
    service: str | None = key(Text(), doc="Its service, of a compose file; any name of a part.")
    path: str | None = key(Text(), doc="Key path of the arguments in it, where no reader knows the file.")


@frozen(slots=False, eq=False, repr=False)
class EngineTable(Value):
    """``[engine]``: the serving engine and how it is launched."""

    name: str | None = key(
        Text(),
        doc="The engine, whose defaults stand for what policies leave out: `servelint catalog engines` lists them. "
        "Left out: neutral defaults.",
    )
    version: str | None = key(
        Text(),
        doc="Its release, which decides defaults. Left out: the tag of `image`, else one that the assumptions name.",
    )
    image: str | None = key(Text(), doc="Container image; a tag that begins with a digit is the version.")
    args: object = key(
        Arguments(),
        doc="The launch arguments, as one text or word by word: they are what runs. Keys that they set need not be "
        "repeated; where a policy differs, the arguments count and SPEC006 says so. [engines.md](engines.md) says what "
        "is read.",
    )
    args_from: ArgsFrom | None = key(
        Table(ArgsFrom),
        doc="The file that starts the engine; read like `args`, with image, model and hardware where it names them. "
        "[manifests.md](manifests.md) lists the kinds of files.",
    )
    env: Mapping[str, Any] | None = key(
        Named(Anything()), doc="Environment of the engine; goes before that of the file."
    )
    attention_backend: str | None = key(
        Text(), doc="The engine's attention backend; ENG004, QNT006 and QNT007 know what some of them do not read."
    )
    enforce_eager: bool | None = key(
        Boolean(), doc="Whether every step is launched kernel by kernel, without device graphs. Left out: with graphs."
    )
    cuda_graph_max_batch: int | None = key(
        Integer(1, 1_000_000),
        doc="The largest step that is captured in a device graph: its tokens in vLLM, its sequences elsewhere. Left "
        "out: the engine's default.",
    )
    truncates: bool | None = key(
        Boolean(),
        doc="Whether the engine cuts prompts that are too long. Left out: it refuses them.",
    )
    offload: str | None = key(
        Text(),
        doc="What of the model the engine keeps outside the devices, such as `experts in host memory`. How much that "
        "is is not modelled: MEM001, MEM002 and MEM006 then decide nothing, and steps take longer than is estimated.",
    )
    device_layers: int | None = key(
        Integer(0, 1_000_000),
        doc="Layers that the devices hold, the output counted as one; the engine keeps the others in host memory. "
        "Fewer than all are an `offload`. Left out: all.",
    )


@frozen(slots=False, eq=False, repr=False)
class Trace(Value):
    """``workload.trace``: a trace file and its format."""

    file: str = key(Text(), required=True, doc="Path of the trace, relative to the spec and inside the project.")
    format: str | None = key(Text(), doc="`azure` (CSV) or `mooncake` (JSON Lines). Left out: by the file's ending.")


@frozen(slots=False, eq=False, repr=False)
class PrefixHit(Value):
    """``workload.prefix_hit``: the share of prompt tokens found in the prefix cache, and how it is known."""

    value: float = key(_fraction, required=True, doc="Share of prompt tokens whose keys and values are cached.")
    basis: str | None = key(Text("measured", "assumed", "trace"), doc="How the share is known.")
    source: str | None = key(Text(), doc="Where it was measured, for readers.", judged=False)


@frozen(slots=False, eq=False, repr=False)
class Workload(Value):
    """``[workload]`` or one ``[[workload.growth]]``: lengths, arrivals, cache hits.

    Lengths are a number of tokens or a table of quantiles.
    """

    name: str | None = key(Text(), doc="What reports call the scenario.")
    prompt_tokens: float | Mapping[str, float] | None = key(
        _lengths, doc="Prompt length in tokens, cached prefix included: a number, or quantiles."
    )
    output_tokens: float | Mapping[str, float] | None = key(
        _lengths, doc="Output length in tokens: a number, or quantiles."
    )
    trace: Trace | str | None = key(
        Either(Text(), Table(Trace)), doc="A file of requests, which stands for both lengths; or only its path."
    )
    rate: float | None = key(
        Quantity(Dimension.REQUESTS_PER_SECOND, 0, 1e9),
        doc="Offered requests a second of the **whole deployment** (an open loop). Left out, with `concurrency`, too: "
        "every replica is full.",
    )
    arrival_cv: float | None = key(
        Number(0, 100), doc="Standard deviation over mean of the time between arrivals. Left out: 1 (Poisson)."
    )
    concurrency: int | None = key(
        Integer(1, 1_000_000),
        doc="Requests in flight in the **whole deployment**, each followed by the next (a closed loop). `rate` goes "
        "before it.",
    )
    prefix_hit: PrefixHit | float | None = key(
        Either(_fraction, Table(PrefixHit)),
        doc="Share of prompt tokens found in the prefix cache, which are not prefilled. Left out: none.",
    )
    images_per_prompt: float | None = key(
        Number(0, 10_000), doc="Images of a prompt; with `encoder_tokens` they lengthen every prompt. Left out: none."
    )
    encoder_tokens: float | None = key(
        _tokens, doc="Tokens that the language model sees of one image. The encoder itself is not priced."
    )
    growth: tuple[Any, ...] = ()


def _growth() -> Any:
    return key(
        Tables(Workload, "workload.growth", MOST_GROWTH),
        default=(),
        doc="Scenarios of what may come; keys as in `[workload]`.",
    )


@frozen(slots=False, eq=False, repr=False)
class BaseWorkload(Workload):
    """``[workload]``: the base workload with its growth scenarios."""

    growth: tuple[Workload, ...] = _growth()


@frozen(slots=False, eq=False, repr=False)
class Slo(Value):
    """``[slo]``: objectives in seconds by percentile, and the headroom kept from every limit."""

    ttft: Mapping[str, float] | None = key(_latency, doc="Time to the first token, over requests.")
    itl: Mapping[str, float] | None = key(_latency, doc="Time between two tokens, over tokens.")
    tpot: Mapping[str, float] | None = key(_latency, doc="Mean time of an output token after the first, over requests.")
    e2e: Mapping[str, float] | None = key(_latency, doc="Time to the last token, over requests.")
    headroom: float = key(
        Quantity(Dimension.FRACTION, 0, 0.95, positive=False),
        default=0.0,
        doc="Share of every limit that is kept free: limits are multiplied by 1 - headroom. Left out: 0.",
    )


@frozen(slots=False, eq=False, repr=False)
class ClaimAt(Value):
    """``claim.at``: the operating point of a claim."""

    concurrency: int | None = key(Integer(1, 1_000_000), doc="Requests in flight.")
    batch: int | None = key(Integer(1, 1_000_000), doc="Sequences that decode at once; goes before `concurrency`.")
    context: float | None = key(_length, doc="Cached tokens of a sequence. Left out: from the lengths.")
    prompt_tokens: float | None = key(_length, doc="Prompt length. Left out: the workload's mean.")
    output_tokens: float | None = key(_length, doc="Output length. Left out: the workload's mean.")
    rate: float | None = key(Quantity(Dimension.REQUESTS_PER_SECOND, 0, 1e9), doc="Requests a second that arrived.")
    itl_mean: float | None = key(_seconds, doc="ITL measured beside the figure: the mean.")
    itl_p50: float | None = key(_seconds, doc="ITL measured beside the figure: p50.")
    itl_p90: float | None = key(_seconds, doc="ITL measured beside the figure: p90.")
    itl_p95: float | None = key(_seconds, doc="ITL measured beside the figure: p95.")
    itl_p99: float | None = key(_seconds, doc="ITL measured beside the figure: p99.")
    tpot_mean: float | None = key(_seconds, doc="TPOT measured beside the figure: the mean.")
    tpot_p50: float | None = key(_seconds, doc="TPOT measured beside the figure: p50.")
    tpot_p99: float | None = key(_seconds, doc="TPOT measured beside the figure: p99.")
    ttft_mean: float | None = key(_seconds, doc="TTFT measured beside the figure: the mean.")
    ttft_p50: float | None = key(_seconds, doc="TTFT measured beside the figure: p50.")
    ttft_p90: float | None = key(_seconds, doc="TTFT measured beside the figure: p90.")
    ttft_p95: float | None = key(_seconds, doc="TTFT measured beside the figure: p95.")
    ttft_p99: float | None = key(_seconds, doc="TTFT measured beside the figure: p99.")


@frozen(slots=False, eq=False, repr=False)
class ClaimAssumes(Value):
    """``claim.assumes``: what the claim was computed from."""

    accelerator: str | None = key(Text(), doc="What it was measured on, where that is another device.")
    dense_flops: float | Mapping[str, float] | None = key(
        Either(_flops, Named(_flops)), doc="Compute rate that it rests on, in FLOP/s; also by precision."
    )
    memory_bandwidth: float | None = key(_rate, doc="Memory bandwidth that it rests on.")
    precision: str | None = key(Text(), doc="Precision that `dense_flops` is of. Left out: the deployment's.")
    engine: str | None = key(Text(), doc="Engine that it was measured with.")
    efficiency: float | None = key(_efficiency, doc="Sustained fraction that it rests on.")
    prefix_hit: float | None = key(_fraction, doc="Share of prompt tokens that were cached. Left out: the workload's.")


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


@frozen(slots=False, eq=False, repr=False)
class Claim(Value):
    """One ``[[claim]]``: a figure that somebody states of this deployment, in SI units of its metric."""

    metric: str = key(
        Text(*CLAIM_METRICS),
        required=True,
        doc="What the figure is. Compared with bounds and with the SLO are output throughput (`throughput`, "
        "`output_throughput`, `goodput`), `total_throughput` (prompt and output), `request_rate`, `ttft`, `itl` and "
        "`tpot`; `e2e` with its evidence, `cost_per_million_tokens` with the price at the declared load; "
        "`speedup` with what narrower formats or tensor parallelism give (QNT002, PAR007), `concurrency` with what a "
        "draft leaves room for (SPD003).",
    )
    value: Any = key(
        Anything(),
        required=True,
        doc='The figure in its unit: `"2400 tok/s"`, `"3 req/s"`, `"40 ms"`; a plain number for the rest.',
    )
    per: str = key(
        Text("replica", "device", "deployment", "user", "request"),
        default="replica",
        doc="Whose figure it is. Left out: replica.",
    )
    at: ClaimAt | None = key(Table(ClaimAt), doc="The operating point that it is claimed at.")
    assumes: ClaimAssumes | None = key(Table(ClaimAssumes), doc="What it was measured on or computed from.")
    evidence: str | None = key(
        Text(),
        doc="The measurement behind it: a result file of a benchmark, relative to the spec and inside the project. "
        "[evidence.md](evidence.md) lists the tools that are read; the address of a page is not read.",
    )
    quoted_from: str | None = key(Text(), doc="Who published it.", judged=False)

    def __attrs_post_init__(self) -> None:
        """Read the value in the metric's dimension, which its own kind cannot know."""
        try:
            value = CLAIM_METRICS[self.metric].parse(self.value)
        except Problems as error:
            raise Problems([p._replace(path=("value", *p.path)) for p in error.problems]) from None
        object.__setattr__(self, "value", value)


@frozen(slots=False, eq=False, repr=False)
class Evidence(Value):
    """One ``[[evidence]]``: a measurement that the deployment rests on."""

    kind: str = key(
        Text("task-eval", "benchmark", "kernel-trace", "expert-load"),
        required=True,
        doc="What was measured. Rules look for `task-eval` (QNT001), `expert-load` (MOE001), `benchmark` (CLM008, "
        "CLM009) and `kernel-trace` (KRN003).",
    )
    artifact: str | None = key(Text(), doc="Name of what was evaluated: the quantized model, not its base.")
    file: str | None = key(Text(), doc="Where the measurement is; of a `benchmark` it is read.")
    tasks: Mapping[str, float] | None = key(
        Named(Number(-1e9, 1e9)), doc="Change of each task's score against the base model."
    )
    engine_version: str | None = key(Text(), doc="Release that it was measured with.")
    date: object = key(Date(), doc="When it was measured.")


@frozen(slots=False, eq=False, repr=False)
class Deployment(Value):
    """A whole spec. ``policies`` maps the name of a policy table to its config, of the plugin's own class."""

    deployment: DeploymentTable = key(Table(DeploymentTable), default=DeploymentTable(), doc="Name and purpose.")
    hardware: Hardware = key(Table(Hardware), default=Hardware(), doc="Devices, how many, how they are joined.")
    model: ModelTable = key(Table(ModelTable), default=ModelTable(), doc="The model that is served.")
    engine: EngineTable = key(Table(EngineTable), default=EngineTable(), doc="The serving engine.")
    workload: BaseWorkload | None = key(Table(BaseWorkload), doc="Who calls it: lengths, arrivals, cache hits.")
    slo: Slo | None = key(Table(Slo), doc="Objectives of latency.")
    claims: tuple[Claim, ...] = key(
        Tables(Claim, "claim", MOST_CLAIMS),
        default=(),
        name="claim",
        doc="Figures that somebody states of the deployment.",
    )
    evidence: tuple[Evidence, ...] = key(
        Tables(Evidence, "evidence"), default=(), doc="Measurements that the deployment rests on."
    )
    policies: Mapping[str, Any] = {}
