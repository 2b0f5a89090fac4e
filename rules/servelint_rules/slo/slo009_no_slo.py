"""SLO009 no-slo."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint.service import Point
from servelint.shapes import decode
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


SLOW = """\
servelint = 1
slo = {}
[hardware]
accelerator = "nvidia/gb10"
devices = 2
nodes = 2
[model]
id = "meta-llama/Meta-Llama-3-70B"
[workload]
prompt_tokens = 1000
output_tokens = 250
concurrency = 1 # expect: SLO009
"""


class NoSlo(Rule):
    """A load is declared, and no objective says which of its requests are served well.

    What it checks
    --------------
    A workload with a rate or a number of requests in flight, in a spec without objectives. Silent where nothing fits
    (MEM001, MEM002), and beside claims of a rate of tokens or requests, where SLO002 and CLM006 ask for the latency.
    Advice; a warning where the bound of one sequence alone is slower than the option ``reading``, unless the
    deployment's goal is throughput.

    Why it is bad
    -------------
    Any load up to the point where the queue grows is then served, at any latency: nothing says when to add a
    replica, and neither knee nor goodput is defined. Where one sequence alone is slower than people read, no
    setting of the engine will please a user who waits for the text.

    The arithmetic
    --------------
    The operating point at the load, and the fullest point within the limits, each with its p99: between them
    everything counts as good. ``bytes that a step has to read / bandwidth`` of one sequence, over the tokens it keeps.

    How to fix
    ----------
    Declare what users were promised, as percentiles. The help line gives what the deployment keeps at this load.

    Source
    ------
    docs/cost-model.md, operating point and knee; DistServe (arXiv 2401.09670), goodput. Brysbaert, How many words
    do we read per minute? (Journal of Memory and Language 109, 2019): 238 words, about 320 tokens, a minute.
    mark-ramsey-ri/vllm-dgx-spark#1: 3 tok/s of a 70B model in 16 bit on two GB10.
    """

    code = "SLO009"
    name = "no-slo"
    severity = Severity.INFO
    confidence = "high"
    questions = ("is the spec complete", "what does a user see")
    options = (
        Option(
            "reading", 0.19, "seconds a token of one sequence alone from which on nobody could read along", 0.01, 60.0
        ),
    )
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
        Case(
            "a model that memory bandwidth makes slower than reading",
            SLOW,
            flip=("slo", '{ itl = { p99 = "400 ms" } }'),
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
        if fullest is None:
            return
        scheduler = review.composition.scheduler
        alone = review.composition.pricer.bound(decode(1.0, mix.mean_context, float(scheduler.verify_tokens)))
        pace = float(alone) / scheduler.yield_per_step
        slow = pace > self.option("reading") and review.deployment.deployment.goal != "throughput"
        yield _finding(review, key, review.operating_point, fullest, pace if slow else None)


def _finding(review: Review, key: str, point: Point | None, fullest: Point, pace: float | None) -> Finding:
    path: KeyPath = ("workload", key)
    most = request_rate(fullest.rate * review.replicas * fullest.service.decode_replicas)
    here = "the declared one is not carried" if point is None else f"at the declared one {_tail(point)}"
    runs = "" if point is None else f"{counted(point.batch, 'sequence')} at this load, {token_rate(point.throughput)}, "
    load = getattr(review.deployment.workload, key)
    return Finding(
        path,
        f"no objective is declared, so every load up to {most} counts as served: {here}, at that one {_tail(fullest)} "
        "(estimates)"
        + (
            f"; the bound of one sequence alone is {duration(pace)} a token, slower than people read"
            if pace is not None
            else ""
        ),
        equation=(
            f"a replica runs {runs}at most {counted(fullest.batch, 'sequence')}, {token_rate(fullest.throughput)}"
        ),
        inputs=(Input(f"workload.{key}", load, "req/s" if key == "rate" else "", review.source(*path)),),
        help="declare [slo] with what users were promised"
        + ("" if point is None else f"; at this load the deployment keeps {_tail(point)}")
        + (
            ""
            if pace is None
            else "; narrower weights, fewer active parameters or more bandwidth make one sequence faster"
        ),
        severity=Severity.INFO if pace is None else Severity.WARNING,
    )


def _tail(point: Point) -> str:
    return f"ITL p99 {duration(point.itl('p99'))}, TTFT p99 {duration(point.ttft('p99'))}"
