"""CLM006 goodput-incomplete."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Lacks, Related, Review, Rule, Severity
from servelint.spec.model import Claim
from servelint_rules.clm.samples import SPEC, changed

SLO = '[slo]\ntpot = { p99 = "100 ms" }\n'
LENGTHS = """\
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 180, p99 = 600 }
"""
CLAIM = """\
[[claim]]
metric = "goodput"
value = "500 tok/s" # expect: CLM006
at = { rate = "3 req/s" }
"""


class GoodputIncomplete(Rule):
    """A goodput is claimed without what makes it one: limits, offered load, what was refused.

    What it checks
    --------------
    Claims of goodput: that an SLO says which requests are good; that the offered rate is known (``claim.at.rate``,
    ``workload.rate``, the evidence), not only how many requests were in flight; and where evidence is read, that it
    counts failed requests. A claim without any load is SPEC005's.

    Why it is bad
    -------------
    Goodput is the part of the offered load that is served within limits. Without limits it is throughput; without
    the offered load nobody sees what was refused to keep the rest good; in a closed loop nothing is ever refused.

    The arithmetic
    --------------
    ``goodput / offered`` is the share that was good; without one of the two there is none.

    How to fix
    ----------
    Declare ``[slo]`` and ``claim.at.rate``, and name a result file that counts failures.

    Source
    ------
    DistServe (OSDI 2024), goodput as rate within SLO attainment.
    """

    code = "CLM006"
    name = "goodput-incomplete"
    severity = Severity.WARNING
    questions = ("is this claim possible",)
    failing = (
        Case(
            "no limits",
            SPEC.replace("servelint = 1\n", "servelint = 1\nslo = {}\n") + LENGTHS + CLAIM,
            flip=("slo", '{ tpot = { p99 = "100 ms" } }'),
        ),
        Case(
            "a closed loop",
            SPEC + LENGTHS + SLO + CLAIM.replace('rate = "3 req/s"', "concurrency = 8"),
            flip=("claim[0].at", '{ rate = "3 req/s" }'),
        ),
    )
    passing = (
        Case("limits and the offered rate", SPEC + LENGTHS + SLO + CLAIM.replace(" # expect: CLM006", "")),
        Case(
            "the offered rate from the evidence",
            SPEC
            + LENGTHS
            + SLO
            + CLAIM.replace(" # expect: CLM006", "").replace('at = { rate = "3 req/s" }', 'evidence = "bench.json"'),
            files=(("bench.json", changed(request_rate=10, max_concurrency="null", request_goodput=9.0)),),
        ),
        Case(
            "throughput needs no limits", SPEC + CLAIM.replace("goodput", "throughput").replace(" # expect: CLM006", "")
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Report what each claim of goodput leaves out."""
        for path, claim in review.claims:
            if claim.metric != "goodput":
                continue
            missing = list(_missing(review, path, claim))
            if missing:
                yield Finding(
                    (*path, "value"),
                    f"the goodput is no share of anything: {' and '.join(text for text, _ in missing)}",
                    help="; ".join(help_ for _, help_ in missing),
                    related=(Related((*path, "at"), "the load that is stated"),) if claim.at is not None else (),
                )


def _missing(review: Review, path: KeyPath, claim: Claim) -> Iterator[tuple[str, str]]:
    if not review.objectives:
        yield "no SLO says which requests are good", "declare [slo]"
    evidence = review.evidence(path, claim)
    run = evidence.run if evidence is not None else None
    at, workload = claim.at, review.deployment.workload
    rates = (
        at.rate if at is not None else None,
        workload.rate if workload is not None else None,
        run.requested_rate if run is not None else None,
    )
    pointed = at is not None and (at.concurrency is not None or at.batch is not None)
    if all(rate is None for rate in rates) and (pointed or run is not None):
        yield "the offered rate is unknown, only how many requests were in flight", "add at.rate, what was offered"
    if run is not None and run.failed is None:
        yield "its evidence does not count failed requests", "name a result file that counts them"
