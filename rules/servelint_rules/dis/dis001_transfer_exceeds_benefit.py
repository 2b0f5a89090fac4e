"""DIS001 transfer-exceeds-benefit."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from attrs import evolve

from servelint.composition import Composition
from servelint.lineage import KeyPath
from servelint.plugin import Case, Disaggregation, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Objective, Point, Service, kv_bytes
from servelint_rules.averages import averaged
from servelint_rules.delays import late_by_transfers
from servelint_rules.layouts import with_policies
from servelint_rules.show import duration, floored, raised, request_rate, size, token_rate
from servelint_rules.variants import replicas_for

NO_OBJECTIVES = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
[model]
id = "openai/gpt-oss-120b"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.11.0"
[policy.disaggregation.prefill]
tensor = 4
replicas = 1 # expect: DIS001
[policy.disaggregation.decode]
tensor = 4
[workload]
prompt_tokens = 1000
output_tokens = 250
"""


class Side(NamedTuple):
    """One way to serve the load: requests/s within the SLO, devices, and the point at the load (None: cannot)."""

    rate: float
    devices: int
    point: Point | None

    @property
    def per_device(self) -> float:
        """Requests per second and device within the SLO."""
        return self.rate / self.devices


class TransferExceedsBenefit(Rule):
    """Moving the KV cache between pools costs more than keeping prefill away from decoding saves.

    What it checks
    --------------
    Prefill and decode pools of one part against replicas of the decode pool's shape that prefill in chunks
    beside decoding, on as many devices and under the same load. It is reported when a request loses more time
    in the transfer than it would lose to other requests' prefill, and the split carries no more load a device
    within the SLO either. A transfer that breaks a TTFT objective by itself is DIS003's.

    Without objectives nothing says what the pools are for: then what both ways carry at saturation, unless the split
    carries a declared rate.

    Why it is bad
    -------------
    Disaggregation buys steady decoding with a transfer on every request, two pools that cannot lend each other
    devices, and more to operate. Without a gain it is only the price.

    The arithmetic
    --------------
    ``transfer = setup + KV bytes / bandwidth``, less what layer-wise streaming hides behind prefill;
    ``interference = output tokens x (average step - plain step) / tokens a step`` of the co-located point at
    the same load a device. The knee of each side gives the load a device. Without objectives
    ``rate of the split < (1 - loss) x rate of co-located replicas``, both at saturation on as many devices; ``loss`` is
    a quarter: of public serving measurements on co-located replicas nine in ten are within it (docs/accuracy.md), and
    pools were not measured, so less is no finding.

    How to fix
    ----------
    A faster path (RDMA between the pools, layer-wise streaming), or co-located chunked prefill. The help line
    gives the bandwidth from which the transfer is the smaller of the two.

    Source
    ------
    Zhong et al., DistServe (arXiv 2401.09670); Agrawal et al., Sarathi-Serve (arXiv 2403.02310); ai-dynamo/dynamo#3774
    (a node in two pools of four devices behind the same node undivided).
    """

    code = "DIS001"
    name = "transfer-exceeds-benefit"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("does disaggregation pay", "why is TTFT bad", "what does the KV transfer cost")
    options = (
        Option("gain", 0.0, "share by which the load a device has to grow for the split to pay", -1.0),
        Option("loss", 0.25, "share of the load at saturation that a split without objectives may lose", 0.0, 1.0),
    )
    failing = (
        Case(
            "the KV cache of a 70B model over 10 Gbit Ethernet",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[policy.disaggregation]
prefill = { devices = 4, tensor = 4 }
decode = { devices = 4, tensor = 4 }
transfer = { bandwidth = "1.25 GB/s", layerwise = false } # expect: DIS001
[workload]
prompt_tokens = { p50 = 2000, p99 = 6000 }
output_tokens = { p50 = 150, p99 = 500 }
rate = "0.5 req/s"
[slo]
ttft = { p99 = "30 s" }
itl = { p99 = "400 ms" }
""",
            flip=("policy.disaggregation.transfer.bandwidth", '"200 GB/s"'),
        ),
        Case(
            "a connection that takes two seconds to set up",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.batching]
max_sequences = 128
max_batched_tokens = 1024
[policy.disaggregation]
prefill = { devices = 1 }
decode = { devices = 1 }
[policy.disaggregation.transfer]
bandwidth = "50 GB/s"
setup = "2 s" # expect: DIS001
[workload]
prompt_tokens = { p50 = 2000, p99 = 6000 }
output_tokens = { p50 = 150, p99 = 500 }
rate = "1 req/s"
[slo]
ttft = { p99 = "30 s" }
itl = { p99 = "400 ms" }
""",
            flip=("policy.disaggregation.transfer.setup", '"2 ms"'),
        ),
        Case(
            "a node in two halves, and no objective that they would keep better",
            NO_OBJECTIVES,
            flip=("policy.disaggregation.prefill.replicas", "2"),
        ),
    )
    passing = (
        Case(
            "no objective, and a rate that the pools carry",
            NO_OBJECTIVES.replace(" # expect: DIS001", "") + 'rate = "100 req/s"\n',
        ),
        Case(
            "the same model over RDMA",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[policy.disaggregation]
prefill = { devices = 4, tensor = 4 }
decode = { devices = 4, tensor = 4 }
transfer = { bandwidth = "200 GB/s", layerwise = false }
[workload]
prompt_tokens = { p50 = 2000, p99 = 6000 }
output_tokens = { p50 = 150, p99 = 500 }
rate = "0.5 req/s"
[slo]
ttft = { p99 = "30 s" }
itl = { p99 = "400 ms" }
""",
        ),
        Case(
            "a slow path, but only pools of their own keep the inter-token limit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192
[policy.disaggregation]
prefill = { devices = 4, tensor = 4 }
decode = { devices = 4, tensor = 4 }
transfer = { bandwidth = "1.25 GB/s", layerwise = false }
[workload]
prompt_tokens = { p50 = 2000, p99 = 6000 }
output_tokens = { p50 = 150, p99 = 500 }
rate = "0.5 req/s"
[slo]
ttft = { p99 = "30 s" }
itl = { p99 = "45 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Put both ways of serving the load side by side."""
        scheduler, mix = review.scheduler, review.mix
        pools = scheduler.disaggregation if scheduler is not None else None
        if pools is None:
            return
        if mix is None:
            yield Lacks("workload lengths and slo")
            return
        if not review.objectives:
            yield _unbought(review, pools, self.option("loss"))
            return
        if len({p.composition.setup.topology.accelerator.id for p in (pools.prefill, pools.decode)}) > 1:
            yield Lacks("pools of one part: across parts only a price would compare them")
            return
        if late_by_transfers(review):
            return
        apart = _apart(review, pools)
        load = review.rate() or apart.rate
        alone = Service(_co_located(pools), mix, open_loop=True)
        together = _together(alone, review.objectives, load / apart.devices)
        if apart.point is None:
            # The split carries nothing within the SLO: SLO001, SLO005 and SLO007 say why.
            return
        if together.point is None or together.rate == 0:
            # Co-located replicas do not carry the load at all: the split is what makes it possible.
            return
        moved = _transfer_s(apart, pools)
        delay = mix.output.mean * (together.point.step_s - together.point.plain_s) / alone.scheduler.yield_per_step
        if moved < delay or apart.per_device > together.per_device * (1 + self.option("gain")):
            return
        rates = [token_rate(side.per_device * mix.output.mean) for side in (apart, together)]
        latencies = [duration(side.point.itl("p99")) for side in (apart, together) if side.point is not None]
        held = kv_bytes(alone.composition, mix.prompt.mean)
        yield Finding(
            _path(review),
            f"moving its KV cache costs a request {duration(moved)} on average, and prefilling beside decoding would "
            f"delay it by {duration(delay)}; within the SLO the split carries {rates[0]} a device, co-located chunked "
            f"prefill {rates[1]}"
            + (f" (ITL p99 at this load {latencies[0]} and {latencies[1]})" if len(latencies) == 2 else ""),
            equation=(
                f"{size(held)} of mean prompt / {size(pools.bytes_per_s)}/s + {duration(pools.setup_s)} setup, exposed "
                f"{duration(moved)} >= {mix.output.mean:,.0f} tokens x ({duration(together.point.step_s)} - "
                f"{duration(together.point.plain_s)}) = {duration(delay)}"
            ),
            inputs=(
                Input("transfer bandwidth", pools.bytes_per_s, "B/s", review.source(*_path(review))),
                Input("transfer setup", pools.setup_s, "s", review.source("policy", "disaggregation", "transfer")),
                Input("devices of both pools", apart.devices, "", review.source("policy", "disaggregation")),
            ),
            help=_help(review, pools, delay, alone, together, load),
            related=_related(review),
        )


def _unbought(review: Review, pools: Disaggregation, loss: float) -> Finding | Lacks:
    """What the split loses at saturation, where no objective says what it is for."""
    lacks, mix, rate = Lacks("workload lengths and slo"), review.mix, review.rate()
    sides = (pools.prefill, pools.decode)
    if mix is None or len({p.composition.setup.topology.accelerator.id for p in sides}) > 1:
        return lacks
    service, alone = review.service(mix), Service(_co_located(pools), mix, open_loop=True)
    devices = sum(p.composition.setup.topology.devices * p.replicas for p in sides)
    apart = service.max_rate
    together = alone.max_rate * devices / alone.composition.setup.topology.devices
    if apart <= 0 or apart >= (1 - loss) * together or (rate is not None and apart >= rate):
        return lacks
    point = service.fullest
    busy = f"; prefill is {min(point.prefill_utilization, 1.0):.0%} busy" if point is not None else ""
    return Finding(
        _pool(review),
        f"{devices} devices in two pools carry {request_rate(apart)} at saturation, co-located chunked prefill "
        f"{request_rate(together)}, and no objective is declared that the split would keep better",
        equation=f"{request_rate(apart)} / {request_rate(together)} = {apart / together:.2f} < {1 - loss:g}{busy}",
        inputs=(
            Input("devices of both pools", devices, "", review.source("policy", "disaggregation")),
            averaged(review, "mean prompt", round(mix.prompt.mean, 1)),
            averaged(review, "mean output", round(mix.output.mean, 1)),
        ),
        help="declare the objectives that the split is for (slo.itl), or pools in another ratio; or take the table out",
    )


def _pool(review: Review) -> KeyPath:
    """A key of the pools that the spec sets."""
    base = ("policy", "disaggregation")
    keys = [(*base, pool, key) for pool in ("prefill", "decode") for key in ("replicas", "devices", "tensor")]
    return next((k for k in keys if review.declared(*k)), base)


def _apart(review: Review, pools: Disaggregation) -> Side:
    """The pools as declared: limited by the decode side's knee or by what the prefill side can take."""
    mix = review.mix
    if mix is None:
        raise ValueError("no workload")
    service = review.service(mix)
    sides = (pools.prefill, pools.decode)
    devices = sum(p.composition.setup.topology.devices * p.replicas for p in sides)
    knee = service.knee(review.objectives)
    rate = 0.0 if knee is None else knee.rate * service.decode_replicas
    declared = review.rate()
    return Side(rate, devices, service.at_rate(declared) if declared is not None else knee)


def _together(service: Service, objectives: tuple[Objective, ...], load_per_device: float) -> Side:
    """Replicas of the decode pool's shape that also prefill, under the same load a device."""
    devices = service.composition.setup.topology.devices
    knee = service.knee(objectives)
    return Side(0.0 if knee is None else knee.rate, devices, service.at_rate(load_per_device * devices))


def _co_located(pools: Disaggregation) -> Composition:
    """The decode pool's replica, which prefills in chunks where the spec turns that off."""
    composition = pools.decode.composition
    batching = composition.context.configs["batching"]
    if composition.scheduler.chunk_tokens is not None:
        return composition
    return with_policies(composition, batching=evolve(batching, chunked_prefill=True, mixed_steps=True))


def _transfer_s(apart: Side, pools: Disaggregation) -> float:
    """Mean seconds that the transfer adds to a request; infinite bandwidth leaves the setup."""
    if apart.point is None:
        return inf
    service = apart.point.service
    return sum(
        n.weight * service.transfer_s(n.tokens, service.pool_prefill_s(n.tokens), pools)
        for n in service.mix.prompt.nodes
    )


def _help(review: Review, pools: Disaggregation, delay: float, alone: Service, together: Side, load: float) -> str:
    apart = _apart(review, pools)
    if _transfer_s(apart, evolve(pools, bytes_per_s=inf)) >= delay:
        faster = f"the setup alone takes {duration(pools.setup_s)}"
        sent = _transfer_s(apart, evolve(pools, setup_s=0.0))
        left = delay - sent
        faster += (
            f": bring it below {duration(floored(left))}"
            if left > 0
            else f" and the bytes alone {duration(sent)}: both have to be less than {duration(delay)} together"
        )
    else:
        low, high = pools.bytes_per_s, pools.bytes_per_s
        while _transfer_s(apart, evolve(pools, bytes_per_s=high)) >= delay:
            low, high = high, high * 2
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if _transfer_s(apart, evolve(pools, bytes_per_s=middle)) >= delay else (low, middle)
            )
        faster = f"from {size(raised(high))}/s on the transfer costs less than it saves"
    if not pools.layerwise:
        faster += "; layerwise = true hides what prefill covers"
    needed = replicas_for(alone, load, review.objectives)
    if needed is None:
        return faster
    return (
        f"{faster}; or take the table out: {needed:,} x {together.devices} co-located devices carry "
        f"{request_rate(load)} within the SLO"
    )


def _path(review: Review) -> KeyPath:
    """The key that decides: a setup that outweighs the bytes, else the bandwidth, else a pool."""
    base = ("policy", "disaggregation")
    scheduler, mix = review.scheduler, review.mix
    keys: list[KeyPath] = [(*base, "transfer", "bandwidth"), (*base, "transfer", "setup")]
    if scheduler is not None and scheduler.disaggregation is not None and mix is not None:
        pools = scheduler.disaggregation
        held = kv_bytes(pools.decode.composition, mix.prompt.mean)
        if pools.setup_s > held / pools.bytes_per_s:
            keys.reverse()
    keys += [(*base, pool, key) for pool in ("decode", "prefill") for key in ("devices", "tensor")]
    return next((k for k in keys if review.declared(*k)), base)


def _related(review: Review) -> tuple[Related, ...]:
    path: KeyPath = ("workload", "rate")
    return (Related(path, "the load at which both are compared"),) if review.declared(*path) else ()
