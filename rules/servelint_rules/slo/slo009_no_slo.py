"""SLO009 no-slo."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Review, Rule, Severity
from servelint.service import Point
from servelint_rules.show import counted, duration, request_rate, token_rate

RATES = ("throughput", "output_throughput", "total_throughput", "goodput", "request_rate")

SPEC = """\
servelint = 1
slo = {}
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
"""


class NoSlo(Rule):
    """A load is declared, and no objective says which of its requests are served well.

    What it checks
    --------------
    A workload with a rate or a number of requests in flight, in a spec without objectives. Silent where nothing fits
    (MEM001, MEM002), and beside claims of a rate of tokens or requests, where SLO002 and CLM006 ask for the latency.

    Why it is bad
    -------------
    Any load up to the point where the queue grows is then served, at any latency: nothing says when to add a
    replica, and neither knee nor goodput is defined.

    The arithmetic
    --------------
    The operating point at the load, and the fullest point within the limits, each with its p99: between them
    everything counts as good.

    How to fix
    ----------
    Declare what users were promised, as percentiles. The help line gives what the deployment keeps at this load.

    Source
    ------
    docs/cost-model.md, operating point and knee; DistServe (arXiv 2401.09670), goodput.
    """

    code = "SLO009"
    name = "no-slo"
    severity = Severity.INFO
    confidence = "high"
    questions = ("is the spec complete", "what does a user see")
    failing = (
        Case(
            "a rate and no limit",
            SPEC + 'rate = "2 req/s" # expect: SLO009\n',
            flip=("slo", '{ itl = { p99 = "200 ms" } }'),
        ),
        Case(
            "a closed loop and no limit",
            SPEC + "concurrency = 16 # expect: SLO009\n",
            flip=("slo", '{ e2e = { p95 = "20 s" } }'),
        ),
    )
    passing = (
        Case("an objective", SPEC.replace("slo = {}", 'slo = { ttft = { p99 = "2 s" } }') + 'rate = "2 req/s"\n'),
        Case("no load", SPEC),
        Case(
            "a claim, which SLO002 asks for its latency",
            SPEC
            + 'rate = "2 req/s"\n[[claim]]\nmetric = "throughput"\nvalue = "400 tok/s" # expect: SLO002\n'
            + "at = { rate = 2 }\n",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for a load without an objective."""
        key = next((k for k in ("rate", "concurrency") if review.declared("workload", k)), None)
        if review.objectives or key is None or any(claim.metric in RATES for _, claim in review.claims):
            return
        mix = review.mix
        if mix is None or review.composition is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        fullest = review.service(mix).fullest
        if fullest is not None:
            yield _finding(review, key, review.operating_point, fullest)


def _finding(review: Review, key: str, point: Point | None, fullest: Point) -> Finding:
    path: KeyPath = ("workload", key)
    most = request_rate(fullest.rate * review.replicas * fullest.service.decode_replicas)
    here = "the declared one is not carried" if point is None else f"at the declared one {_tail(point)}"
    runs = "" if point is None else f"{counted(point.batch, 'sequence')} at this load, {token_rate(point.throughput)}, "
    load = getattr(review.deployment.workload, key)
    return Finding(
        path,
        f"no objective is declared, so every load up to {most} counts as served: {here}, at that one {_tail(fullest)} "
        "(estimates)",
        equation=(
            f"a replica runs {runs}at most {counted(fullest.batch, 'sequence')}, {token_rate(fullest.throughput)}"
        ),
        inputs=(Input(f"workload.{key}", load, "req/s" if key == "rate" else "", review.source(*path)),),
        help="declare [slo] with what users were promised"
        + ("" if point is None else f"; at this load the deployment keeps {_tail(point)}"),
    )


def _tail(point: Point) -> str:
    return f"ITL p99 {duration(point.itl('p99'))}, TTFT p99 {duration(point.ttft('p99'))}"
