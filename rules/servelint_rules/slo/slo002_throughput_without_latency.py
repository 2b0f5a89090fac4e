"""SLO002 throughput-without-latency."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Lacks, Review, Rule, Severity
from servelint.service import Point
from servelint.spec.model import Claim, ClaimAt
from servelint_rules.show import counted, duration, token_rate

THROUGHPUTS = ("throughput", "output_throughput", "total_throughput")
SHARED = ("replica", "device", "deployment")
"""What a throughput is shared by; per user or request it is a latency itself."""
LATENCIES = tuple(name for name in ClaimAt.__annotations__ if name.partition("_")[0] in ("itl", "tpot", "ttft"))


class ThroughputWithoutLatency(Rule):
    """A claim of tokens per second says nothing of the latency at which they came.

    What it checks
    --------------
    Each ``[[claim]]`` of a throughput, in a spec without objectives: does ``claim.at`` give an ``itl_*``,
    ``tpot_*`` or ``ttft_*``? Silent where it gives one (a mean is SLO003's), where the claim is per user or
    request, for goodput, which carries its objectives (CLM006), and where the claim points to evidence.

    Why it is bad
    -------------
    Throughput rises with the batch as long as memory lasts, and latency rises with it. Without a percentile any
    figure can be reached, and it says nothing of what a user gets.

    The arithmetic
    --------------
    ``throughput = batch x tokens per step / step time``, ``ITL >= step time``: the same formula read twice.

    How to fix
    ----------
    Give the percentile that was measured with the figure, or an ``[slo]`` to hold it against. Where the claim
    has an operating point, the help line gives the latency that this deployment would have there.

    Source
    ------
    docs/cost-model.md, operating point.
    """

    code = "SLO002"
    name = "throughput-without-latency"
    severity = Severity.WARNING
    questions = ("is this claim possible", "what does a user see")
    failing = (
        Case(
            "a batch and no latency",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "2400 tok/s" # expect: SLO002
at = { concurrency = 64 }
""",
            flip=("claim[0].at", '{ concurrency = 64, itl_p99 = "40 ms" }'),
        ),
        Case(
            "a figure for the whole fleet, with the workload but no objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
replicas = 2
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "8 req/s"
[[claim]]
metric = "output_throughput"
value = "4000 tok/s" # expect: SLO002
per = "deployment"
at = { concurrency = 64 }
""",
            flip=("claim[0].at", '{ concurrency = 64, ttft_p95 = "400 ms" }'),
        ),
        Case(
            "one figure with a latency and one without",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "2400 tok/s"
at = { concurrency = 64, tpot_p99 = "40 ms" }
[[claim]]
metric = "throughput"
value = "1200 tok/s" # expect: SLO002
at = { concurrency = 16 }
""",
            flip=("claim[1].at", '{ concurrency = 16, tpot_p99 = "40 ms" }'),
        ),
        Case(
            "one figure with evidence and one without",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1200 tok/s"
at = { concurrency = 16 }
evidence = "bench.json"
[[claim]]
metric = "throughput"
value = "2400 tok/s" # expect: SLO002
at = { concurrency = 64 }
""",
            flip=("claim[1].at", '{ concurrency = 64, tpot_p99 = "40 ms" }'),
        ),
    )
    passing = (
        Case(
            "a percentile with the figure",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "2400 tok/s"
at = { concurrency = 64, tpot_p99 = "40 ms" }
""",
        ),
        Case(
            "an objective to hold the figure against",
            """\
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
[slo]
itl = { p99 = "80 ms" }
[[claim]]
metric = "throughput"
value = "1200 tok/s"
at = { concurrency = 16 }
""",
        ),
        Case(
            "tokens per second of one user are a latency",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "100 tok/s"
per = "user"
at = { concurrency = 4 }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for a latency beside every throughput."""
        if review.objectives:
            return
        for path, claim in review.claims:
            if claim.metric not in THROUGHPUTS or claim.per not in SHARED or _latency(claim):
                continue
            if claim.evidence is not None:
                yield Lacks("the latency percentiles in the evidence of a claim")
                continue
            yield self._finding(review, (*path, "value"), claim)

    def _finding(self, review: Review, path: tuple[str | int, ...], claim: Claim) -> Finding:
        point = _point(review, claim)
        return Finding(
            path,
            f"{token_rate(claim.value)} per {claim.per} is claimed without a latency percentile, and the spec has no "
            "objective: some batch reaches almost any figure",
            equation=_equation(point) if point is not None else "",
            inputs=(review.input(f"claimed {claim.metric}", claim.value, "tok/s", *path),),
            help=_help(point),
            confidence="high",
        )


def _latency(claim: Claim) -> bool:
    return claim.at is not None and any(getattr(claim.at, name) is not None for name in LATENCIES)


def _point(review: Review, claim: Claim) -> Point | None:
    """Where this deployment would run at the claim's operating point; None when it cannot be computed."""
    mix, at = review.mix, claim.at
    if mix is None or review.composition is None or at is None:
        return None
    service = review.service(mix)
    shared = review.replicas if claim.per == "deployment" else 1
    batch = at.batch or at.concurrency
    if batch is not None:
        batch = -(-batch // (shared * service.decode_replicas))
        return service.point(float(batch)) if batch <= service.batch_limit else None
    return service.at_rate(at.rate / shared) if at.rate is not None else None


def _equation(point: Point) -> str:
    return (
        f"{counted(point.batch, 'sequence')} on a replica: step {duration(point.step_s)} (estimate), "
        f"{token_rate(point.throughput)}, ITL p99 {duration(point.itl('p99'))}"
    )


def _help(point: Point | None) -> str:
    if point is None:
        return "give at.itl_p99, at.tpot_p99 or at.ttft_p99 as measured with the figure, or an [slo]"
    return (
        f"give at.itl_p99 as measured (the estimate there is {duration(point.itl('p99'))}), or an [slo] to hold the "
        "figure against"
    )
