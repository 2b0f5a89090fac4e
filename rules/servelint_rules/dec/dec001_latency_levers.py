"""DEC001 latency-levers."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Lacks, Option, Review, Rule, Severity
from servelint.service import Point
from servelint_rules.averages import averaged
from servelint_rules.dec.levers import GOAL, advice, at_load, by_request, changes, goal
from servelint_rules.show import counted, duration, tokens
from servelint_rules.slo.feasible import unreachable

PACES = ("itl", "tpot", "e2e")

SPEC = """\
servelint = 1
deployment = { goal = "latency" } # expect: DEC001
slo = { ttft = { p99 = "2 s" } }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.batching]
max_sequences = 16
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 300, p99 = 900 }
rate = "0.2 req/s"
"""


class LatencyLevers(Rule):
    """Single-stream latency matters most: what would shorten a request, with the number of each.

    What it checks
    --------------
    A deployment with ``goal = "latency"`` that limits no pace (ITL, TPOT, end to end), or that misses an objective
    at its load: weights in eight and four bits, an FP8 KV cache, speculation, and tensor parallelism within the
    fast domain, each composed and priced at the same load. It speaks when the best of them gains ``gain``. Silent
    where every objective is kept, a pace among them: then nothing more is asked for; where one request alone cannot
    keep one (SLO005, SLO006), and where the load is not carried (SLO007).

    Why it is bad
    -------------
    It is no defect. A single stream reads all weights for every token, so bytes and the devices that read them
    decide its pace; more batch, more replicas and more FLOPS do not change it.

    The arithmetic
    --------------
    A mean request takes ``TTFT + (output - 1) x TPOT`` at the operating point; the gain of a lever is that over the
    same with it. The gains of levers together are not their product.

    How to fix
    ----------
    Fewer bytes first, drafts next, then as many devices as the objective needs and no more. Narrower weights and
    caches are new artifacts with evaluations of their own; the acceptance of drafts is assumed until measured.

    Source
    ------
    docs/cost-model.md; Leviathan et al. (arXiv 2211.17192) for speculation.
    """

    code = "DEC001"
    name = "latency-levers"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("how does it get faster", "which parallelism", "does speculation help")
    options = (Option("gain", 1.2, "least gain of the best lever", 1.0),)
    failing = (
        Case("no pace is limited", SPEC, flip=("slo", '{ ttft = { p99 = "2 s" }, tpot = { p99 = "60 ms" } }')),
        Case(
            "a pace just below what the deployment keeps",
            SPEC.replace('ttft = { p99 = "2 s" } }', 'tpot = { p99 = "17 ms" } }').replace(
                'rate = "0.2 req/s"', 'rate = "0.2 req/s" # expect: SLO001'
            ),
            flip=("deployment", '{ name = "chat" }'),
        ),
    )
    passing = (
        Case(
            "a pace that is kept",
            SPEC.replace(" # expect: DEC001", "").replace('ttft = { p99 = "2 s" } }', 'tpot = { p99 = "19 ms" } }'),
        ),
        Case("no goal", SPEC.replace('goal = "latency" } # expect: DEC001', 'name = "chat" }')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price the levers of a single stream."""
        if goal(review) != "latency":
            return
        if review.composition is None or review.mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        point = at_load(review, review.composition)
        if point is None:
            return
        if any(o.metric in PACES for o in review.objectives) and not point.misses(review.objectives):
            return
        if unreachable(review):
            return
        now = point.e2e("mean")
        levers = by_request(review, now, changes(review, "weights", "cache", "speculation", "tensor"))
        if levers and levers[0].gain >= self.option("gain"):
            yield advice(
                review,
                GOAL,
                f"a mean request takes {duration(now)} at {counted(point.batch, 'sequence')} (goal: latency)",
                levers,
                _equation(point),
                (averaged(review, "mean output", point.service.mix.output.mean),),
                (("policy", "quantization"), ("policy", "parallelism", "tensor"), ("hardware", "devices")),
            )


def _equation(point: Point) -> str:
    output = point.service.mix.output.mean
    return (
        f"{duration(point.ttft('mean'))} to the first token + {tokens(max(output - 1, 0))} tokens x "
        f"{duration(point.tpot('mean'))} = {duration(point.e2e('mean'))}"
    )
