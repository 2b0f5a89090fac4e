"""DEC008 compute-or-bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.plugin import Case, Composition, Finding, Input, Lacks, Review, Rule, Severity
from servelint.service import Mix, Point
from servelint.shapes import prefill
from servelint_rules.dec.levers import (
    GOAL,
    Change,
    advice,
    at_load,
    by_rate,
    carried,
    changes,
    chunks,
    faster,
    goal,
    within,
)
from servelint_rules.show import counted, duration, request_rate

MORE = 1.25

SPEC = """\
servelint = 1
deployment = { goal = "throughput" } # expect: DEC008
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
[policy.batching]
max_sequences = 512
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 300, p99 = 1000 }
output_tokens = { p50 = 600, p99 = 1500 }
rate = "36 req/s" # expect: SLO007
[slo]
tpot = { p99 = "20 ms" }
"""
PROMPTS = (
    SPEC.replace("p50 = 300, p99 = 1000", "p50 = 6000, p99 = 9000")
    .replace("p50 = 600, p99 = 1500", "p50 = 60, p99 = 100")
    .replace('"36 req/s"', '"12 req/s"')
    .replace("20 ms", "200 ms")
)


class ComputeOrBandwidth(Rule):
    """The load asks for more hardware: whether compute, bandwidth or memory would carry it, by phase and in numbers.

    What it checks
    --------------
    A deployment with a goal whose declared load is not carried within its objectives: requests a second within them
    on devices with a quarter more memory bandwidth, compute or memory, each alone, and which resource decides the
    decode step and the prefill. Silent where nothing meets the objectives at any load, where the load is carried, or
    would be with another chunk or more sequences admitted, where no resource gains anything (admission or a link
    binds, which SLO007 names), and for separate pools, whose devices may differ.

    Why it is bad
    -------------
    A datasheet's FLOPS sell devices and decide only prefill and large batches; decoding reads weights and cache. The
    part with the higher peak may carry no request more.

    The arithmetic
    --------------
    The knee of the same replica with one figure of the device times 1.25: requests a second over those now.

    How to fix
    ----------
    Compare offers by the resource that gains, weighted with the phase in which the time goes, at the price of each.

    Source
    ------
    Williams, Waterman and Patterson, Roofline (Communications of the ACM 52(4), 2009).
    """

    code = "DEC008"
    name = "compute-or-bandwidth"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("which hardware", "what limits the throughput")
    failing = (
        Case("decoding at the knee", SPEC, flip=("deployment", '{ name = "batch" }')),
        Case("long prompts and short answers", PROMPTS, flip=("deployment", '{ name = "batch" }')),
    )
    passing = (
        Case(
            "a load that is carried",
            SPEC.replace('"36 req/s" # expect: SLO007', '"28 req/s"').replace(" # expect: DEC008", ""),
        ),
        Case("no goal", SPEC.replace('goal = "throughput" } # expect: DEC008', 'name = "batch" }')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price a device that is better in one respect."""
        if goal(review) is None or not (
            review.declared("workload", "rate") or review.declared("workload", "concurrency")
        ):
            return
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        if composition.scheduler.disaggregation is not None:
            return
        point = review.operating_point
        if point is not None and not point.misses(review.objectives, declared=True):
            return
        knee, now = within(review, composition, mix), carried(review, composition, mix)
        if knee is None or _settled(review):
            return
        levers = by_rate(review, mix, now, _better(composition))
        if levers:
            yield advice(
                review,
                GOAL,
                f"the load needs more than this hardware, of which a device carries {request_rate(now)} within the "
                f"objectives (goal: {goal(review)})",
                levers,
                _phases(knee, mix),
                _figures(composition),
                (("hardware", "accelerator"), ("hardware", "replicas")),
            )


def _settled(review: Review) -> bool:
    """Whether another chunk or more admission carries the load on the same devices."""
    for change in (*chunks(review), *changes(review, "batch")):
        point = at_load(review, change.composition)
        if point is not None and not point.misses(review.objectives, declared=True):
            return True
    return False


def _better(composition: Composition) -> Iterator[Change]:
    yield Change(f"{MORE - 1:.0%} more memory bandwidth", faster(composition, bandwidth=MORE))
    yield Change(f"{MORE - 1:.0%} more compute", faster(composition, compute=MORE))
    yield Change(f"{MORE - 1:.0%} more memory", faster(composition, memory=MORE))


def _phases(knee: Point, mix: Mix) -> str:
    """Which resource decides each phase, and how much of the time prefill takes."""
    pricer = knee.service.composition.pricer
    taken = min(knee.piece or math.inf, mix.new_prompt)
    shapes = (("decoding", knee.shape()), ("prefill", prefill(taken, mix.prompt.mean - mix.new_prompt)))
    names = {"compute": "compute", "hbm": "memory bandwidth"}
    decided = [f"{what} by {names.get(r := pricer.price(s).binding_resource, r)}" for what, s in shapes]
    share = knee.mixed_share * knee.average_mixed_s / knee.step_s
    return (
        f"at the knee of {counted(knee.batch, 'sequence')} {share:.0%} of the time goes into steps with prefill "
        f"({duration(knee.average_mixed_s)} against {duration(knee.plain_s)} without); {' and '.join(decided)}"
    )


def _figures(composition: Composition) -> tuple[Input, ...]:
    part = composition.setup.topology.accelerator
    return (
        Input(
            "memory bandwidth", part.memory_bandwidth_bytes_per_s, "B/s", part.source("memory", "bandwidth_bytes_per_s")
        ),
    )
