"""DEC002 throughput-levers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.plugin import Case, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint.service import Mix, Point
from servelint_rules.dec.levers import (
    GOAL,
    Lever,
    advice,
    by_rate,
    carried,
    changes,
    devices_of,
    experts_share,
    goal,
    pressed,
    ranked,
    within,
)
from servelint_rules.show import counted, request_rate, token_rate
from servelint_rules.variants import replicas_for

LEAST_REPLICAS = 2
"""With one, a roll-out or a failure stops the service."""

SPEC = """\
servelint = 1
deployment = { goal = "throughput" } # expect: DEC002
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-14B"
max_model_len = 16384
[policy.batching]
max_sequences = 16
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 300, p99 = 900 }
rate = "2.6 req/s"
[slo]
tpot = { p99 = "60 ms" }
"""


class ThroughputLevers(Rule):
    """Throughput or cost matters most: what would carry more on the same devices, with the number of each.

    What it checks
    --------------
    A deployment with ``goal = "throughput"``: how many requests a second and device it carries within its objectives
    at the knee (without objectives: within its limits), against the same with weights in eight and four bits, an FP8
    KV cache, more sequences admitted, and without or with speculation, where the declared load is at least ``used`` of
    that (with less, carrying more gains nothing); and how many replicas, two at least, carry the load and every growth
    scenario at the knee. It speaks when the best gains ``gain``. Layouts are DEC004 to DEC006, disaggregation is
    DEC007. Silent where nothing meets the objectives, or the load is not carried (SLO001, SLO007).

    Why it is bad
    -------------
    It is no defect. Devices are paid by the hour: a token costs least where the batch is as large as the objectives
    allow, and an admission limit or a full KV cache below that is paid for with idle compute.

    The arithmetic
    --------------
    ``requests a second at the knee / devices``, for each lever with its own knee. A mixture of experts holds all of
    its parameters and multiplies with some: its fleet is sized by the first, its compute by the second.

    How to fix
    ----------
    The levers in their order; narrower weights and caches are new artifacts with evaluations of their own.

    Source
    ------
    docs/cost-model.md, operating point and knee.
    """

    code = "DEC002"
    name = "throughput-levers"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("what limits the throughput", "what does a token cost", "how many replicas are needed")
    options = (
        Option("gain", 1.6, "least gain of the best lever", 1.0),
        Option("used", 0.7, "share of the rate at the knee from which on carrying more is a gain", 0.0, 1.0),
    )
    failing = (
        Case("an admission limit far below the knee", SPEC, flip=("policy.batching.max_sequences", "256")),
        Case(
            "16-bit weights that prefill multiplies at half the rate",
            SPEC.replace("max_sequences = 16", "max_sequences = 512")
            .replace("p50 = 800, p99 = 3000", "p50 = 6000, p99 = 9000")
            .replace("p50 = 300, p99 = 900", "p50 = 60, p99 = 100")
            .replace("60 ms", "200 ms"),
            flip=("deployment", '{ name = "batch" }'),
        ),
        Case(
            "replicas that run almost empty",
            SPEC.replace("[hardware]", "[hardware]\nreplicas = 8"),
            flip=("hardware.replicas", "3"),
        ),
        Case(
            "what the admission limit costs",
            SPEC.replace(
                "[hardware]", '[hardware]\nprice = { per_device_hour = 2.5, currency = "USD", date = "2026-11-01" }'
            ),
            flip=("policy.batching.max_sequences", "256"),
        ),
    )
    passing = (
        Case(
            "admission near the knee",
            SPEC.replace("max_sequences = 16", "max_sequences = 256").replace(" # expect: DEC002", ""),
        ),
        Case(
            "just below the share of the knee from which on more is a gain",
            SPEC.replace("2.6 req/s", "2 req/s").replace(" # expect: DEC002", ""),
        ),
        Case("no goal", SPEC.replace('goal = "throughput" } # expect: DEC002', 'name = "batch" }')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price the levers of a fleet."""
        if goal(review) != "throughput":
            return
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        point, knee = review.operating_point, within(review, composition, mix)
        if point is None or knee is None or point.misses(review.objectives, declared=True):
            return
        now = carried(review, composition, mix)
        levers: list[Lever] = []
        if pressed(knee, self.option("used"), review.rate(), review.concurrency()):
            levers = by_rate(review, mix, now, changes(review, "weights", "cache", "batch", "speculation"))
        if review.replicas >= max(_needed(review, knee), LEAST_REPLICAS) * self.option("gain"):
            levers += _fewer(review, mix)
        levers = ranked(levers)
        if levers and levers[0].gain >= self.option("gain"):
            yield advice(
                review,
                GOAL,
                f"a device carries {request_rate(now)} at the knee of {counted(knee.batch, 'sequence')} a replica, and "
                f"is asked for {request_rate(_asked(point))} (goal: throughput)",
                levers,
                _equation(review, knee, point),
                (Input("devices of a replica", devices_of(composition), "", review.source("hardware")),),
                (("policy", "quantization"), ("policy", "batching", "max_sequences"), ("hardware", "replicas")),
            )


def _asked(point: Point) -> float:
    return point.rate * point.service.decode_replicas / devices_of(point.service.composition)


def _needed(review: Review, knee: Point) -> int:
    """Replicas that the load would take at the knee."""
    rate = review.rate() or 0.0
    return math.ceil(rate * review.replicas / (knee.rate * knee.service.decode_replicas) - 1e-9)


def _fewer(review: Review, mix: Mix) -> Iterator[Lever]:
    """As few replicas as carry the load and its growth within the objectives, headroom included."""
    replicas, base = review.replicas, review.deployment.workload
    scenarios = [(mix, review.rate())]
    scenarios += [(scenario, review.rate(base.growth[i])) for i, scenario in review.growth] if base is not None else []
    needed = LEAST_REPLICAS
    for scenario, rate in scenarios:
        found = None if rate is None else replicas_for(review.service(scenario), rate * replicas, review.objectives)
        if found is None:
            return
        needed = max(needed, found)
    yield Lever(f"{counted(needed, 'replica')} instead of {replicas}", replicas / needed, "the load at the knee")


def _equation(review: Review, knee: Point, point: Point) -> str:
    composition = knee.service.composition
    text = (
        f"{counted(knee.batch, 'sequence')} at the knee give {token_rate(knee.throughput)}, "
        f"{counted(point.batch, 'sequence')} at the load {token_rate(point.throughput)}"
    )
    price = review.deployment.hardware.price
    if price is not None and price.per_device_hour:
        hourly = price.per_device_hour * devices_of(composition) / knee.service.decode_replicas
        costs = [hourly / 3600 / p.throughput * 1e6 for p in (knee, point)]
        currency = f" {price.currency}" if price.currency else ""
        text += f"; a million output tokens cost {costs[0]:.3g}{currency} there and {costs[1]:.3g}{currency} here"
    share = experts_share(composition.setup.architecture)
    if share < 0.9:
        text += f"; a token multiplies with {share:.0%} of the parameters that are held, 1 / {math.floor(1 / share)}"
    return text
