"""SLO003 mean-for-tail."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.distribution import percentile_share
from servelint.lineage import KeyPath, dotted
from servelint.plugin import Case, Finding, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Objective, Point
from servelint.spec.model import Claim, ClaimAt
from servelint_rules.derivation import latency_equation, named
from servelint_rules.show import counted, duration

TAIL = 0.9
"""Share of requests or tokens from which on a percentile speaks of the slow ones."""
STATED = tuple(name for name in ClaimAt.__annotations__ if name.partition("_")[0] in ("itl", "tpot", "ttft"))
THROUGHPUTS = ("throughput", "output_throughput", "total_throughput", "goodput")

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192
[workload]
prompt_tokens = { p50 = 2000, p99 = 8000 }
output_tokens = { p50 = 250, p99 = 800 }
rate = "2 req/s"
[slo]
itl = { mean = "40 ms" } # expect: SLO003
"""
CLAIM = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "2 req/s"
[[claim]]
metric = "throughput"
value = "1200 tok/s"
"""


def _is_tail(percentile: str) -> bool:
    return percentile != "mean" and percentile_share(percentile) >= TAIL


class MeanForTail(Rule):
    """An objective or a claim speaks of the mean or the median, and nothing of the slow requests.

    What it checks
    --------------
    Each latency of the SLO that is limited in the mean, p50 or p75 only, where the p99 at the operating point exceeds
    that limit; and each throughput claim whose latencies are all of that kind. Advice; a warning where the p99 is
    ``spread`` times the limit. Silent for a limit that is missed itself (SLO001, SLO005, SLO006), for claims without
    any latency (SLO002), and for claims with evidence.

    Why it is bad
    -------------
    Users notice the slow answers. Long prompts, queues and prefill beside decoding make them, hardly move the
    mean, and do not move the median at all: the limit is kept while one request in a hundred hangs.

    The arithmetic
    --------------
    The same operating point, its mean and its p99: the equation says what the p99 consists of.

    How to fix
    ----------
    Limit the p99 (or p95). The help line gives the limit that the deployment keeps today.

    Source
    ------
    Dean and Barroso, The Tail at Scale (Communications of the ACM 56(2), 2013).
    """

    code = "SLO003"
    name = "mean-for-tail"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("why is p99 bad", "what does a user see", "is the spec complete")
    options = (Option("spread", 2.0, "p99 over the limit of the mean or median from which on it is a warning", 1.0),)
    failing = (
        Case(
            "a mean that is kept while long prompts stall everybody",
            SPEC,
            flip=("slo.itl", '{ p95 = "200 ms" }'),
        ),
        Case(
            "just below the p99",
            SPEC.replace('"40 ms"', '"48 ms"'),
            flip=("slo.itl.mean", '"49 ms"'),
        ),
        Case(
            "a median",
            SPEC.replace('itl = { mean = "40 ms" } #', 'ttft = { p50 = "250 ms" } #'),
            flip=("slo.ttft", '{ p50 = "250 ms", p90 = "1 s" }'),
        ),
        Case(
            "a mean after a latency that has a tail",
            SPEC.replace("itl = {", 'ttft = { p99 = "5 s" }\nitl = {'),
            flip=("slo.itl", '{ p95 = "200 ms" }'),
        ),
        Case(
            "a claim with nothing but means",
            CLAIM + "at = { rate = 2, itl_mean = 0.008 } # expect: SLO003\n",
            flip=("claim[0].at", "{ rate = 2, itl_mean = 0.008, itl_p95 = 0.03 }"),
        ),
    )
    passing = (
        Case(
            "a mean beside a tail",
            SPEC.replace('{ mean = "40 ms" } # expect: SLO003', '{ mean = "40 ms", p90 = "200 ms" }'),
        ),
        Case(
            "a mean whose limit the p99 keeps as well",
            SPEC.replace('"40 ms" } # expect: SLO003', '"49 ms" }'),
        ),
        Case(
            "a p99 that keeps the limit and not the headroom below it",
            SPEC.replace('"40 ms" } # expect: SLO003', '"49 ms" }\nheadroom = 0.1'),
        ),
        Case(
            "the lowest percentile that counts as a tail",
            SPEC.replace('{ mean = "40 ms" } # expect: SLO003', '{ p90 = "200 ms" }'),
        ),
        Case(
            "a claim with a percentile",
            CLAIM + "at = { rate = 2, ttft_mean = 0.08, itl_p99 = 0.05 }\n",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for latencies without a tail."""
        point = review.operating_point
        missed = tuple(m.objective for m in point.misses(review.objectives, declared=True)) if point else ()
        for metric in dict.fromkeys(o.metric for o in review.objectives):
            central = [o for o in review.objectives if o.metric == metric]
            if any(_is_tail(o.percentile) for o in central) or any(o in missed for o in central):
                continue
            if point is None:
                yield Lacks("an operating point: workload lengths, hardware and model, and a load that is carried")
            elif not point.meets(tail := central[-1]._replace(percentile="p99"), declared=True):
                yield self._objective(review, central[-1], tail, point)
        for path, claim in review.claims:
            yield from _claim(review, path, claim)

    def _objective(self, review: Review, objective: Objective, tail: Objective, point: Point) -> Finding:
        path = review.objective_path(objective)
        center, slow = (point.latency(o.metric, o.percentile) for o in (objective, tail))
        over = slow / objective.declared_s
        times = "" if math.isinf(over) or over < 1.05 else f", {over:.1f} times the limit"
        return Finding(
            path,
            f"{named(objective)} is limited to {duration(objective.declared_s)} and no higher percentile is: at "
            f"{counted(point.batch, 'sequence')} it is {duration(center)}, and {named(tail)} {duration(slow)}{times} "
            "(estimates)",
            equation=latency_equation(point, tail),
            inputs=(review.input(named(objective), objective.declared_s, "s", *path),),
            help=f"limit {dotted(path[:2])}.p99, too"
            + ("" if math.isinf(slow) else f": the deployment keeps any limit from {duration(slow)} on"),
            severity=Severity.WARNING if over >= self.option("spread") else Severity.INFO,
        )


def _claim(review: Review, path: KeyPath, claim: Claim) -> Iterator[Finding | Lacks]:
    """A throughput claim whose latencies are all means or medians."""
    at = claim.at
    stated = [name for name in STATED if getattr(at, name, None) is not None]
    if claim.metric not in THROUGHPUTS or not stated or any(_is_tail(name.partition("_")[2]) for name in stated):
        return
    if claim.evidence is not None:
        yield Lacks("the latency percentiles in the evidence of a claim")
        return
    first = (*path, "at", stated[0])
    metric, _, percentile = stated[0].partition("_")
    yield Finding(
        first,
        f"the {claim.metric} is claimed with {metric.upper()} {percentile} and no higher percentile: the slow requests "
        "of the same run may be many times slower",
        inputs=(review.input(f"claimed {metric.upper()} {percentile}", getattr(at, stated[0]), "s", *first),),
        help=f"give at.{metric}_p99 as measured with the figure",
        related=(Related((*path, "value"), "the figure"),),
        confidence="high",
    )
