"""CND004 cold-and-warm-mixed."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Scheduler, Severity
from servelint.service import Objective
from servelint.spec.model import Claim
from servelint_rules.delays import COMPILE
from servelint_rules.show import duration
from servelint_rules.slo.feasible import first_token

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.constrained_decoding]
cache_hit = 0.9
compile = "535 ms"
mask = "20 us"
[workload]
prompt_tokens = 800
output_tokens = 200
rate = "4 req/s"
[[claim]]
metric = "ttft"
value = "120 ms" # expect: CND004
"""


class ColdAndWarmMixed(Rule):
    """One latency figure stands for requests with a compiled schema and for those that compile one first.

    What it checks
    --------------
    Claims of TTFT and end-to-end latency of a deployment in which more than ``cold`` of the requests wait for a
    compile, against the least that such a request takes: the declared compile and the bound of the mean prompt's
    prefill. A claim below it is one of the warm path, or a mean of both. Claims that state percentiles beside the
    figure are not judged, nor are those where the spec does not say how long a compile takes; objectives are CND002's.

    Why it is bad
    -------------
    The two paths differ by the whole compile, often several times the rest of the latency. A figure measured after
    a warm-up promises every caller what only those with a known schema get, and a mean is what nobody gets.

    The arithmetic
    --------------
    ``least of a cold request = compile + bound of the prefill``, ``cold = share x (1 - cache_hit)``.

    How to fix
    ----------
    State two figures, cold and warm, each with its share of the requests; or percentiles of all requests.

    Source
    ------
    Compile times of JSON schemas: guidance-ai/jsonschemabench, MaskBench; docs/cost-model.md, constrained decoding.
    """

    code = "CND004"
    name = "cold-and-warm-mixed"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("is this claim possible", "why is structured output slow")
    options = (
        Option("cold", 0.01, "share of requests with a cold compile up to which a figure may leave them out", 0, 1),
    )
    failing = (
        Case("a warm figure beside cold requests", SPEC, flip=("policy.constrained_decoding.cache_hit", "0.995")),
        Case(
            "just above the share that a figure may leave out",
            SPEC.replace("cache_hit = 0.9", "cache_hit = 0.989").replace('"120 ms"', '"530 ms"'),
            flip=("claim[0].value", '"600 ms"'),
        ),
    )
    passing = (
        Case(
            "just below it",
            SPEC.replace("cache_hit = 0.9", "cache_hit = 0.991").replace(" # expect: CND004", ""),
        ),
        Case(
            "percentiles beside the figure",
            SPEC.replace(" # expect: CND004", '\nat = { ttft_p50 = "110 ms", ttft_p99 = "700 ms" }'),
        ),
        Case(
            "a compile time that nobody declared",
            SPEC.replace('compile = "535 ms"\n', "").replace(" # expect: CND004", ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare each latency claim with the least of a cold request."""
        scheduler, composition = review.scheduler, review.composition
        if scheduler is None or composition is None or scheduler.first_token_share <= self.option("cold"):
            return
        claims = [(path, claim) for path, claim in review.claims if claim.metric in ("ttft", "e2e")]
        if claims and not review.declared(*COMPILE):
            yield Lacks("policy.constrained_decoding.compile")
            return
        for path, claim in claims:
            least, prefill = _least(review, scheduler.first_token_s)
            if claim.value < least and not _has_percentiles(claim):
                yield self._finding(review, scheduler, path, claim, (least, prefill))

    def _finding(
        self, review: Review, scheduler: Scheduler, path: KeyPath, claim: Claim, bounds: tuple[float, float]
    ) -> Finding:
        least, prefill = bounds
        cold, metric = scheduler.first_token_share, "TTFT" if claim.metric == "ttft" else "end-to-end latency"
        warm = "" if cold >= 1 else f", the other {1 - cold:.1%} do not"
        hits = ("policy", "constrained_decoding", "cache_hit")
        return Finding(
            (*path, "value"),
            f"a {metric} of {duration(claim.value)} is one figure for two paths: {cold:.1%} of requests compile their "
            f"schema first and take at least {duration(least)} to the first token{warm}",
            equation=(
                f"{duration(scheduler.first_token_s)} of compile + {duration(prefill)} bound of the prefill = "
                f"{duration(least)} > {duration(claim.value)}"
            ),
            inputs=(
                review.input("claim", claim.value, "s", *path, "value"),
                review.policy_input("constrained_decoding", "compile", "s"),
                Input("cold share of requests", cold, "", review.source("policy", "constrained_decoding")),
            ),
            help=_help(cold, least),
            related=tuple(
                Related(p, words)
                for p, words in ((COMPILE, "what a cold request waits for"), (hits, "who is warm"))
                if review.declared(*p)
            ),
        )


def _least(review: Review, compiled_s: float) -> tuple[float, float]:
    """Least seconds to the first token of a request that compiles its schema for so long, and those of its prefill."""
    alone = first_token(review, Objective("ttft", "mean", 0.0, 0.0))
    prefill = 0.0 if alone is None else alone.bound_s
    return prefill + compiled_s, prefill


def _help(cold: float, least: float) -> str:
    if cold >= 1:
        return f"quote at least {duration(least)}: no request of this deployment is warm; or declare the hits there are"
    return (
        f"state the warm figure for {1 - cold:.1%} of the requests and a cold one of at least {duration(least)} for "
        f"{cold:.1%}; or ttft_p50 and ttft_p99 of all of them under claim.at"
    )


def _has_percentiles(claim: Claim) -> bool:
    """Whether the claim says how the latency is distributed."""
    return any(getattr(claim.at, f"ttft_{p}", None) is not None for p in ("p50", "p90", "p95", "p99"))
