"""CLM004 closed-loop-or-fixed-length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from servelint.plugin import Case, Finding, Lacks, Related, Review, Rule, Severity
from servelint_rules.clm.evidence import Backed, measured, named
from servelint_rules.clm.samples import SPEC, changed
from servelint_rules.show import request_rate, tokens

if TYPE_CHECKING:
    from servelint.evidence import Measurement

SERVED = """\
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 180, p99 = 600 }
"""
CLAIM = """\
[slo]
tpot = { p99 = "100 ms" }
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 32 }
evidence = "bench.json" # expect: CLM004
"""
FIXED = changed(
    completed=2, input_lens="[1000, 1000]", output_lens="[200, 200]", total_input_tokens=2000, total_output_tokens=400
)
SPREAD = FIXED.replace("[1000, 1000]", "[999, 1001]")


class ClosedLoopOrFixedLength(Rule):
    """Evidence from fixed lengths or a closed loop stands for a service with neither.

    What it checks
    --------------
    The run behind a claim against the declared workload: requests that are all of one length, where the workload
    has a distribution; requests that wait for each other, or that are sent all at once, where the workload has a
    rate of arrivals. A warning where an SLO is declared, advice without one.

    Why it is bad
    -------------
    Tails come from the longest prompts and from arrivals that meet. With one length and a closed loop there are
    neither: p99 is close to p50, and no queue forms, at any load.

    The arithmetic
    --------------
    None: the longest declared prompt and the declared rate are set beside those of the run.

    How to fix
    ----------
    Measure with lengths drawn from the workload (a trace, a dataset) at the rate that it arrives.

    Source
    ------
    Schroeder, Wierman, Harchol-Balter, Open versus closed: a cautionary tale (NSDI 2006).
    """

    code = "CLM004"
    name = "closed-loop-or-fixed-length"
    severity = Severity.WARNING
    questions = ("is this benchmark of what is deployed", "why is p99 bad")
    failing = (
        Case(
            "one length for a distribution",
            SPEC + SERVED + CLAIM,
            flip=("claim[0].evidence", '"spread.json"'),
            files=(("bench.json", FIXED), ("spread.json", SPREAD)),
        ),
        Case(
            "a closed loop for a rate",
            SPEC + SERVED + 'rate = "1 req/s"\n' + CLAIM,
            flip=("claim[0].evidence", '"open.json"'),
            files=(("bench.json", changed()), ("open.json", changed(request_rate=10))),
        ),
        Case(
            "all requests at once for the rate of two replicas",
            SPEC.replace("[model]", "replicas = 2\n[model]") + SERVED + 'rate = "2 req/s"\n' + CLAIM,
            flip=("claim[0].evidence", '"open.json"'),
            files=(
                ("bench.json", changed(max_concurrency="null")),
                ("open.json", changed(max_concurrency="null", request_rate=10)),
            ),
        ),
    )
    passing = (
        Case(
            "lengths that differ by a token or two",
            SPEC + SERVED + CLAIM.replace(" # expect: CLM004", ""),
            files=(("bench.json", SPREAD),),
        ),
        Case(
            "a closed loop for a closed loop",
            SPEC + SERVED + "concurrency = 32\n" + CLAIM.replace(" # expect: CLM004", ""),
            files=(("bench.json", changed()),),
        ),
        Case(
            "one length for one length",
            SPEC
            + SERVED.replace("{ p50 = 800, p99 = 3000 }", "1000").replace("{ p50 = 180, p99 = 600 }", "200")
            + CLAIM.replace(" # expect: CLM004", ""),
            files=(("bench.json", FIXED),),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Report runs whose load has less spread than the workload's."""
        if review.mix is None:
            yield Lacks("workload lengths")
            return
        for item, run in measured(review):
            finding = _finding(review, item, run)
            if finding is not None:
                yield finding


def _finding(review: Review, item: Backed, run: Measurement) -> Finding | None:
    said, related, instead = [], [], []
    mix, rate = review.mix, review.rate()
    if mix is not None and run.fixed_lengths and not (mix.prompt.is_fixed and mix.output.is_fixed):
        lengths = " and ".join(
            f"{tokens(found['mean'])} {word}"
            for found, word in ((run.prompt_tokens, "prompt tokens"), (run.output_tokens, "output tokens"))
            if "mean" in found
        )
        said.append(
            f"every request has one length{f' ({lengths})' if lengths else ''}, and the workload's p99 is "
            f"{tokens(mix.prompt.quantile(0.99))} prompt and {tokens(mix.output.quantile(0.99))} output tokens"
        )
        key = next((k for k in ("prompt_tokens", "trace") if review.declared("workload", k)), "output_tokens")
        related.append(Related(("workload", key), "the lengths that are served"))
        instead.append("draw lengths from the workload")
    if rate is not None and (run.closed_loop or (run.unlimited and run.concurrency is None)):
        how = (
            f"{run.concurrency:g} requests wait for each other"
            if run.closed_loop and run.concurrency
            else "requests wait for each other"
            if run.closed_loop
            else "all requests are sent at once"
        )
        offered = request_rate(rate * review.replicas)
        said.append(f"{how}, and the workload arrives at {offered}")
        related.append(Related(("workload", "rate"), "the arrivals that are served"))
        instead.append(f"send {offered} to the deployment, or its share to a replica")
    if not said:
        return None
    return Finding(
        item.key,
        f"{named(run)} has no tail to measure: {'; '.join(said)}",
        help=" and ".join(instead),
        related=tuple(related),
        severity=Severity.WARNING if review.objectives else Severity.INFO,
    )
