"""PAR001 tp-over-slow-link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import NamedTuple

from attrs import evolve

from servelint.graph import demands_of
from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Collective,
    Composition,
    Finding,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.service import Service
from servelint.shapes import StepShape, decode
from servelint_rules.layouts import altered, decode_side, heads_divide, parallelism, tensor_path, within_fast_links
from servelint_rules.show import counted, duration, size

BATCH, CONTEXT = 32, 2048
"""The decode step that stands for a deployment without a workload: sequences and tokens of context."""
TIERS = {"scale_up": "the scale-up link", "pcie": "PCIe", "network": "the network between nodes"}
WORTH = 0.95
"""Another layout counts as faster when its average step takes at most this share of the present one, and its
decode step is not longer than the present one by as much."""


class Load(NamedTuple):
    """The decode step that is looked at, and whether the workload gives its batch."""

    shape: StepShape
    batch: float
    declared: bool


class Layout(NamedTuple):
    """A way to use the devices: its keys in words, a decode step and the average step with prefill, in seconds."""

    text: str
    decode_s: float
    step_s: float


class TpOverSlowLink(Rule):
    """The tensor-parallel group crosses a slow link, and waits for it for a large share of each step.

    What it checks
    --------------
    Whether the group reaches beyond the scale-up domain (NVLink, Infinity Fabric, ...) onto PCIe or the network,
    and which share of the estimated decode step its collectives then take: at the operating point, else at 32
    sequences. For disaggregated serving, the decode pool.

    Why it is bad
    -------------
    Tensor parallelism joins the group twice a layer, in every step. Over a link that is tens of times slower
    than the scale-up link, devices wait for messages instead of computing; prefill, whose messages are
    thousands of tokens long, suffers most.

    The arithmetic
    --------------
    ``collectives x (latency + message / bandwidth) / step``, a message being ``sequences x hidden size x 2 B``,
    on each tier that the group crosses. The same devices are then priced as smaller tensor-parallel groups with
    pipeline stages across the slow link. A warning when one of these is faster, advice when none is.

    How to fix
    ----------
    Tensor parallelism within the fast domain and pipeline stages across it, as the help line prices it; fewer
    devices a replica; or a faster link (peer-to-peer, bridges, RDMA).

    Source
    ------
    docs/cost-model.md, parallelism and collectives.
    """

    code = "PAR001"
    name = "tp-over-slow-link"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is it slower with more GPUs", "which parallelism")
    options = (Option("share", 0.25, "share of the decode step that collectives over slow links may take", 0.0, 1.0),)
    failing = (
        Case(
            "one group over two nodes and Ethernet",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices_per_node = 8
network = { bandwidth = "100 Gbit/s", per = "node", rdma = false }
[model]
id = "meta-llama/Llama-3.1-405B"
max_model_len = 8192
[policy]
quantization = { weights = "fp8" }
parallelism = { tensor = 16 } # expect: PAR001
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 300, p99 = 1000 }
rate = "0.3 req/s"
""",
            flip=("policy.parallelism", "{ tensor = 8, pipeline = 2 }"),
        ),
        Case(
            "PCIe through the host",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-4090"
devices = 4 # expect: PAR001
peer_to_peer = false
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
""",
            flip=("hardware.devices", "1"),
        ),
        Case(
            "one sequence more than the share allows",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
efficiency = { memory = 0.85, compute = 0.6, link = 0.6, source = "bench/l40s.json" }
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[policy.parallelism]
tensor = 4 # expect: PAR001
[workload]
prompt_tokens = 1000
output_tokens = 200
concurrency = 42
""",
            flip=("workload.concurrency", "41"),
        ),
    )
    passing = (
        Case(
            "at the share",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
efficiency = { memory = 0.85, compute = 0.6, link = 0.6, source = "bench/l40s.json" }
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[policy.parallelism]
tensor = 4
[workload]
prompt_tokens = 1000
output_tokens = 200
concurrency = 41
""",
        ),
        Case(
            "within the scale-up domain",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
""",
        ),
        Case(
            "PCIe, and the weights take much longer than the messages",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.quantization]
weights = "int4"
[policy.parallelism]
tensor = 2
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price the collectives of the tensor-parallel group."""
        if review.composition is None:
            yield Lacks("a composed deployment")
            return
        side = decode_side(review.composition)
        config = parallelism(side)
        if within_fast_links(side, config.t):
            return
        load = _load(review, side)
        waiting, total = _waiting(side, load.shape)
        if total > 0 and waiting / total > self.option("share"):
            yield self._finding(review, side, load, waiting, total)

    def _finding(self, review: Review, side: Composition, load: Load, waiting: float, total: float) -> Finding:
        config, topology = parallelism(side), side.setup.topology
        slow = topology.hops(config.t)[-1]
        pool = "decode" if side is not review.composition else ""
        path = tensor_path(review, pool)
        now = _layout(review, side, load, "", side)
        others = sorted(_layouts(review, side, load), key=lambda other: other.step_s)
        better = [o for o in others if o.step_s < now.step_s * WORTH and o.decode_s * WORTH < now.decode_s]
        messages = _messages(side)
        batch = counted(load.batch, "sequence")
        link = TIERS.get(slow.tier, slow.tier)
        return Finding(
            path,
            f"{waiting / total:.0%} of the decode step of {duration(now.decode_s)} at {batch} (estimate) goes into the "
            f"collectives of tensor = {config.t} over {link}"
            + ("" if better else "; no other split of these devices is faster in decoding and prefill"),
            equation=(
                f"{messages:.0f} collectives a step take {duration(waiting)}: {size(slow.bytes_per_s)}/s a device and "
                f"direction x {topology.efficiency.link:.0%} sustained, {duration(slow.latency_s)} latency on {link}; "
                f"everything else takes {duration(total - waiting)}"
            ),
            inputs=(
                Input("tensor", config.t, "", side.context.source("parallelism", "tensor")),
                Input("sequences", load.batch, "", review.source("workload" if load.declared else "policy")),
                Input(f"{slow.tier} bandwidth", slow.bytes_per_s, "B/s", _link_source(review, side, slow.tier)),
                Input("sustained link fraction", topology.efficiency.link, "", topology.efficiency.source),
            ),
            help=_help(now, others, better, slow.tier),
            related=(Related(_link_path(review, slow.tier), f"{link}: {size(slow.bytes_per_s)}/s a device"),),
            severity=Severity.WARNING if better else Severity.INFO,
        )


def _load(review: Review, side: Composition) -> Load:
    """The decode step of the operating point, where rate or concurrency give one; else of a stated batch."""
    point, mix = review.operating_point, review.mix
    new = float(side.scheduler.verify_tokens)
    offered = review.declared("workload", "rate") or review.declared("workload", "concurrency")
    if point is not None and offered:
        batch = max(point.batch, 1.0)
        return Load(decode(batch, point.service.mix.mean_context, new), batch, True)
    context = mix.mean_context if mix is not None else float(min(CONTEXT, side.max_model_len))
    return Load(decode(float(BATCH), context, new), float(BATCH), False)


def _joins(side: Composition) -> Iterator[tuple[str, Collective, int]]:
    """Collectives within the tensor-parallel group: op, demand, instances."""
    config = parallelism(side)
    groups = {config.t, config.attention_tensor}
    for op, demand in demands_of(side.graph, Collective):
        within = isinstance(demand, Collective) and demand.stride == 1 and demand.group in groups
        if isinstance(demand, Collective) and within and demand.kind != "all_to_all":
            yield op.name, demand, op.count


def _messages(side: Composition) -> float:
    return sum(demand.count * count for _, demand, count in _joins(side))


def _waiting(side: Composition, shape: StepShape) -> tuple[float, float]:
    """Seconds of a step in collectives of the tensor-parallel group, and in all."""
    names = {name for name, _, _ in _joins(side)}
    rows = side.pricer.breakdown(shape)
    return sum(float(r.seconds) for r in rows if r.name in names), sum(float(r.seconds) for r in rows)


def _layout(review: Review, side: Composition, load: Load, text: str, other: Composition) -> Layout:
    estimate: Callable[[StepShape], float] = other.pricer.estimate  # type: ignore[assignment]
    decode_s = estimate(load.shape)
    if review.mix is None or side is not review.composition:
        return Layout(text, decode_s, decode_s)
    service = Service(other, review.mix, open_loop=review.rate() is not None)
    return Layout(text, decode_s, service.point(load.batch).step_s)


def _layouts(review: Review, side: Composition, load: Load) -> Iterator[Layout]:
    """The same devices with smaller tensor-parallel groups, and pipeline stages across the slow link."""
    config = parallelism(side)
    slow = side.setup.topology.hops(config.t)[-1].tier
    for t in range(1, config.t):
        hops = side.setup.topology.hops(t)
        if config.t % t or not heads_divide(side, t) or (slow == "network" and hops and hops[-1].tier == slow):
            continue
        stages = config.p * config.t // t
        split = evolve(
            config, tensor=t, pipeline=stages, pipeline_layers=None, attention_data=gcd(config.attention_ranks, t)
        )
        other = altered(side, parallelism=split)
        if other is not None and other.memory.has_room:
            yield _layout(review, side, load, f"tensor = {t}, pipeline = {stages}", other)


def _help(now: Layout, others: list[Layout], better: list[Layout], tier: str) -> str:
    def against(other: Layout) -> str:
        plain = f"a decode step takes {duration(other.decode_s)} instead of {duration(now.decode_s)}"
        if other.step_s == other.decode_s:
            return f"{other.text}: {plain}"
        mean = f"the average step, prefill included, takes {duration(other.step_s)} instead of {duration(now.step_s)}"
        return f"{other.text}: {mean}; {plain}"

    faster = {
        "pcie": "a scale-up link, or peer-to-peer over PCIe",
        "network": "RDMA and more bandwidth between the nodes",
    }.get(tier, "a faster link")
    if better:
        return against(better[0])
    nearest = f"the nearest is {against(others[0])}; " if others else ""
    return f"{nearest}use fewer devices a replica and more replicas, or {faster}"


def _link_path(review: Review, tier: str) -> KeyPath:
    paths: dict[str, tuple[KeyPath, ...]] = {
        "network": (("hardware", "network", "bandwidth"), ("hardware", "network")),
        "pcie": (("hardware", "pcie"), ("hardware", "peer_to_peer")),
    }
    found = (path for path in paths.get(tier, ()) if review.declared(*path))
    return next(found, ("hardware", "accelerator"))


def _link_source(review: Review, side: Composition, tier: str) -> Source:
    assumed = review.assumption("hardware", "network", "bandwidth") if tier == "network" else None
    if assumed is not None:
        return assumed.source
    path = _link_path(review, tier)
    if path == ("hardware", "accelerator"):
        return side.setup.topology.accelerator.source("pcie" if tier == "pcie" else "link", "")
    return review.source(*path)
