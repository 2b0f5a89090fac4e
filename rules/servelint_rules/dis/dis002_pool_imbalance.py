"""DIS002 pool-imbalance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Disaggregation,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Pool,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Point, Service
from servelint_rules.show import counted, request_rate, sequences

BASE: KeyPath = ("policy", "disaggregation")
GAIN = 1.1
"""Another ratio of the same devices is named when it carries at least this much more."""

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192
[policy.disaggregation]
transfer = { bandwidth = "50 GB/s" }
[policy.disaggregation.prefill]
tensor = 1
replicas = 6 # expect: DIS002
[policy.disaggregation.decode]
tensor = 1
replicas = 2
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 400, p99 = 1500 }
rate = "6 req/s"
[slo]
ttft = { p99 = "2 s" }
itl = { p99 = "40 ms" }
"""
SUMMARIES = (
    SPEC.replace("replicas = 6 # expect: DIS002", "replicas = 1")
    .replace("replicas = 2\n", "replicas = 5 # expect: DIS002\n")
    .replace("{ p50 = 800, p99 = 3000 }", "{ p50 = 5000, p99 = 12000 }")
    .replace("{ p50 = 400, p99 = 1500 }", "{ p50 = 60, p99 = 200 }")
    .replace("6 req/s", "1 req/s")
    .replace('"2 s"', '"4 s"')
)

FIVE = SPEC.replace("replicas = 2\n", "replicas = 3\n").replace("replicas = 6 # expect: DIS002", "replicas = 2")


class Carried(NamedTuple):
    """Replicas of both pools, the knee of one decode replica, and requests per second within the SLO."""

    prefill: int
    decode: int
    rate: float
    point: Point | None


class PoolImbalance(Rule):
    """The ratio of prefill to decode replicas leaves part of one pool without work.

    What it checks
    --------------
    The load that both pools carry together within the SLO at the declared lengths, and how many replicas of either
    would carry as much (less the option ``loss``). It is reported when the replicas beyond that are at least
    ``share`` of all devices: as advice when it is one, which may be kept as a spare, else as a warning. Silent at a
    declared rate that is not carried within the SLO (SLO001, SLO007), and where nothing meets it.

    Why it is bad
    -------------
    The pools cannot lend each other devices. Every request passes both, so the slower one limits what is served, and
    the devices of the other that go beyond its pace are paid for and idle. A change of prompt or output lengths
    moves the right ratio.

    The arithmetic
    --------------
    A prefill replica takes ``1 / E[prefill]`` requests a second, a decode replica ``batch x tokens a step / (E[output]
    x step)`` at the largest batch that keeps the SLO. The pools carry the least of ``replicas x`` each, less what the
    queue before prefill costs of the TTFT.

    How to fix
    ----------
    Take the replicas out that the help line names, or move them to the other pool.

    Source
    ------
    Zhong et al., DistServe (arXiv 2401.09670), placement by the rates of both phases; docs/cost-model.md.
    """

    code = "DIS002"
    name = "pool-imbalance"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("how many replicas are needed", "does disaggregation pay", "what is idle")
    options = (
        Option("share", 0.25, "share of all devices that may be without work", 0.0, 1.0),
        Option("loss", 0.02, "share of the load within the SLO that fewer replicas may cost", 0.0, 1.0),
    )
    failing = (
        Case("long outputs, and most devices prefill", SPEC, flip=("policy.disaggregation.prefill.replicas", "1")),
        Case(
            "one idle replica of four",
            SPEC.replace("replicas = 6 #", "replicas = 2 #"),
            flip=("policy.disaggregation.decode.replicas", "3"),
        ),
        Case("long prompts, and most devices decode", SUMMARIES, flip=("policy.disaggregation.decode.replicas", "1")),
    )
    passing = (
        Case("one prefill replica is enough", SPEC.replace("replicas = 6 # expect: DIS002", "replicas = 1")),
        Case(
            "one idle replica of five",
            SPEC.replace("replicas = 6 # expect: DIS002", "replicas = 2").replace(
                "replicas = 2\n[w", "replicas = 3\n[w"
            ),
        ),
        Case("no objectives", SPEC[: SPEC.index("[slo]")].replace(" # expect: DIS002", "")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Take replicas out of either pool as long as the rest carries as much."""
        scheduler, mix = review.scheduler, review.mix
        pools = scheduler.disaggregation if scheduler is not None else None
        if pools is None or pools.prefill.replicas + pools.decode.replicas == 2:
            return
        if mix is None or not review.objectives:
            yield Lacks("workload lengths and slo")
            return
        if review.operating_point is None:
            return
        now = _carried(review, pools, pools.prefill.replicas, pools.decode.replicas)
        declared = review.rate() or 0.0
        if now.point is None or now.rate < declared:
            return
        load = max(now.rate * (1 - self.option("loss")), declared)
        needed = (
            ("prefill", _fewest(now.prefill, lambda n: _carries(review, pools, n, now.decode, load))),
            ("decode", _fewest(now.decode, lambda n: _carries(review, pools, now.prefill, n, load))),
        )
        sides = {"prefill": pools.prefill, "decode": pools.decode}
        name, fewest = max(needed, key=lambda x: (sides[x[0]].replicas - x[1]) * _devices(sides[x[0]]))
        idle, devices = sides[name].replicas - fewest, sum(p.replicas * _devices(p) for p in sides.values())
        if idle and idle * _devices(sides[name]) >= self.option("share") * devices:
            yield self._finding(review, pools, now, now.point, name, fewest, devices)

    def _finding(
        self, review: Review, pools: Disaggregation, now: Carried, knee: Point, name: str, fewest: int, devices: int
    ) -> Finding:
        pool, other = (pools.prefill, pools.decode) if name == "prefill" else (pools.decode, pools.prefill)
        idle = pool.replicas - fewest
        path = _path(review, name)
        others = "decode" if name == "prefill" else "prefill"
        better = _moved(review, pools, now, name, idle)
        keys = {side: f"policy.disaggregation.{side}.replicas" for side in ("prefill", "decode")}
        remedies = [f"set {keys[name]} = {fewest}, which carries as much"]
        if better is not None:
            remedies.append(
                f"set {keys['prefill']} = {better.prefill} and {keys['decode']} = {better.decode}, which carry "
                f"{request_rate(better.rate)} on as many devices"
            )
        return Finding(
            path,
            f"{pool.replicas} {name} replicas and {counted(other.replicas, f'{others} replica')} carry "
            f"{request_rate(now.rate)} within the SLO, and so do {fewest} and {other.replicas}: "
            f"{idle * _devices(pool)} of {devices} devices have no work at any load that the {others} pool carries",
            equation=(
                f"at {request_rate(now.rate)} prefill is busy {min(knee.prefill_utilization, 1.0):.0%} of the time, "
                f"and each decode replica runs {sequences(knee.batch)} of at most "
                f"{knee.service.batch_limit:,} sequences"
            ),
            inputs=(
                Input("prefill replicas", pools.prefill.replicas, "", review.source(*_path(review, "prefill"))),
                Input("decode replicas", pools.decode.replicas, "", review.source(*_path(review, "decode"))),
                Input("devices of both pools", devices, "", review.source(*BASE)),
            ),
            help="; or ".join(remedies),
            related=(Related(_path(review, others), f"the {others} pool"),),
            fix=Fix(f"{name} on {counted(fewest, 'replica')}", (Edit(path, str(fewest)),))
            if path[-1] == "replicas"
            else None,
            severity=Severity.INFO if idle == 1 else Severity.WARNING,
        )


def _devices(pool: Pool) -> int:
    return pool.composition.setup.topology.devices


def _path(review: Review, name: str) -> KeyPath:
    """The key that decides how many replicas a pool has."""
    keys = [(*BASE, name, key) for key in ("replicas", "devices", "tensor")]
    return next((key for key in keys if review.declared(*key)), BASE)


def _service(review: Review, pools: Disaggregation, prefill: int, decode: int) -> Service:
    """The deployment with other numbers of replicas, which no step depends on."""
    mix = review.mix
    if mix is None or review.composition is None:
        raise ValueError("no workload")
    if (prefill, decode) == (pools.prefill.replicas, pools.decode.replicas):
        return review.service(mix)
    service = Service(review.composition, mix, open_loop=review.rate() is not None)
    service.pools = evolve(
        pools, prefill=evolve(pools.prefill, replicas=prefill), decode=evolve(pools.decode, replicas=decode)
    )
    return service


def _carried(review: Review, pools: Disaggregation, prefill: int, decode: int) -> Carried:
    """What the pools carry within the SLO with other numbers of replicas."""
    service = _service(review, pools, prefill, decode)
    knee = review.knee if service.pools is pools else service.knee(review.objectives)
    if knee is None:
        return Carried(prefill, decode, 0.0, None)
    # A knee is a whole number of sequences, which of few is a coarse step.
    low, high = knee.batch, min(knee.batch + 1, float(service.batch_limit))
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        point = service.point(middle)
        low, high = (low, middle) if point.saturated or point.misses(review.objectives) else (middle, high)
    knee = service.point(low)
    return Carried(prefill, decode, knee.rate * decode, knee)


def _carries(review: Review, pools: Disaggregation, prefill: int, decode: int, load: float) -> bool:
    """Whether they carry a load within the SLO."""
    service = _service(review, pools, prefill, decode)
    low, high = 0.0, float(service.batch_limit)
    if service.point(high).rate * decode < load:
        return False
    while high - low > 0.002 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if service.point(middle).rate * decode >= load else (middle, high)
    point = service.point(high)
    return not point.saturated and not point.misses(review.objectives)


def _fewest(most: int, enough: Callable[[int], bool]) -> int:
    """The fewest replicas that are enough, where all of them are."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _moved(review: Review, pools: Disaggregation, now: Carried, name: str, idle: int) -> Carried | None:
    """The ratio that carries most when idle replicas join the other pool, where both are of the same devices."""
    one, two = (p.composition.setup.topology for p in (pools.prefill, pools.decode))
    if one.devices != two.devices or one.accelerator.id != two.accelerator.id:
        return None
    sign = 1 if name == "prefill" else -1
    tried = sorted({max(idle * i // 8, 1) for i in range(1, 9)})
    found = [_carried(review, pools, now.prefill - sign * n, now.decode + sign * n) for n in tried]
    best = max(found, key=lambda c: c.rate)
    return best if best.rate >= GAIN * now.rate else None
