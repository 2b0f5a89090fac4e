"""CND002 cold-compile-on-ttft."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from servelint.distribution import percentile_share
from servelint.plugin import Case, Finding, Lacks, Related, Review, Rule, Severity
from servelint.service import Objective, Point
from servelint_rules.delays import COMPILE, Delayed, late_by_compiles, with_compiles
from servelint_rules.derivation import latency_equation, named
from servelint_rules.show import duration, floored

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[policy.constrained_decoding]
share = 1.0
cache_hit = 0.5
compile = "990 ms" # expect: CND002
mask = "20 us"
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 150, p99 = 500 }
rate = "4 req/s"
[slo]
ttft = { p99 = "1 s" }
"""
DYNAMIC = SPEC.replace("cache_hit = 0.5\n", 'schemas = "dynamic"\n').replace('"990 ms"', '"535 ms"')


class ColdCompileOnTtft(Rule):
    """Compiling grammars that are not cached breaks a percentile of the time to first token.

    What it checks
    --------------
    Every TTFT objective at the operating point, with cold compiles and without them: it is reported when the
    compiles alone make the difference. Silent where the spec does not say how long a compile takes, and where the
    objective is broken without them too, which SLO001, SLO005 or SLO007 report.

    Why it is bad
    -------------
    A request whose schema is new waits for its compile before its prefill starts. When more requests do than lie
    beyond the percentile, the percentile is theirs: the median looks fine, and the tail is the compile.

    The arithmetic
    --------------
    ``cold = share x (1 - cache_hit)``; a percentile p contains a compile when ``cold > 1 - p``. TTFT is queue +
    prefill + compile, the compile with the chance ``cold``. Error when a declared compile is longer than the
    objective by itself and the declared share and hit put it inside the percentile; else a warning.

    How to fix
    ----------
    Compile known schemas before traffic comes, reuse them between requests, or use a backend that compiles faster.
    The help line gives the cache hit and the compile time from which the objective holds.

    Source
    ------
    Dong et al., XGrammar (arXiv 2411.15100); compile times of JSON schemas: guidance-ai/jsonschemabench, MaskBench.
    """

    code = "CND002"
    name = "cold-compile-on-ttft"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is TTFT bad", "why is structured output slow", "why is p99 bad")
    failing = (
        Case("half of the schemas are new", SPEC, flip=("policy.constrained_decoding.compile", '"100 ms"')),
        Case(
            "every schema is new",
            DYNAMIC.replace('ttft = { p99 = "1 s" }', 'ttft = { p99 = "500 ms" }'),
            flip=("policy.constrained_decoding.schemas", '"static"'),
        ),
        Case(
            "slightly more cold requests than the percentile leaves out",
            SPEC.replace("cache_hit = 0.5", "cache_hit = 0.9899").replace('"990 ms"', '"3 s"'),
            flip=("policy.constrained_decoding.cache_hit", "0.99"),
        ),
    )
    passing = (
        Case(
            "no more cold requests than the percentile leaves out",
            SPEC.replace("cache_hit = 0.5", "cache_hit = 0.99").replace('"990 ms" # expect: CND002', '"3 s"'),
        ),
        Case("a compile that the objective has room for", SPEC.replace('"990 ms" # expect: CND002', '"100 ms"')),
        Case("a compile time that nobody declared", SPEC.replace('compile = "990 ms" # expect: CND002\n', "")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare each TTFT objective with and without cold compiles."""
        scheduler = review.scheduler
        if scheduler is None or scheduler.first_token_share <= 0:
            return
        if not review.declared(*COMPILE):
            yield Lacks("policy.constrained_decoding.compile")
            return
        if review.operating_point is None or not any(o.metric == "ttft" for o in review.objectives):
            yield Lacks("slo.ttft and an operating point (workload)")
            return
        late = late_by_compiles(review)
        if late:
            yield _finding(review, max(late, key=lambda x: x.seconds / x.objective.declared_s))


def _finding(review: Review, late: Delayed) -> Finding:
    objective, point = late.objective, late.point
    scheduler, path = point.service.scheduler, review.objective_path(objective)
    certain = _certain(review, objective, scheduler.first_token_share, scheduler.first_token_s)
    return Finding(
        COMPILE,
        f"{scheduler.first_token_share:.1%} of requests wait {duration(scheduler.first_token_s)} for a cold compile: "
        f"{named(objective)} is {duration(late.seconds)} (estimate), above the objective of "
        f"{duration(objective.declared_s)}, and {duration(late.without_s)} without compiles",
        equation=latency_equation(point, objective),
        inputs=(
            review.policy_input("constrained_decoding", "compile", "s"),
            review.policy_input("constrained_decoding", "share"),
            review.policy_input("constrained_decoding", "cache_hit"),
            review.input(f"objective of {named(objective)}", objective.declared_s, "s", *path),
        ),
        help=_help(review, point, objective),
        related=(Related(path, f"the objective: {duration(objective.declared_s)}"), *_cause(review)),
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence="high" if certain else "medium",
    )


def _certain(review: Review, objective: Objective, cold: float, seconds: float) -> bool:
    """Whether what the spec declares breaks the objective on any hardware."""
    if not all(review.declared("policy", "constrained_decoding", key) for key in ("share", "cache_hit")):
        return False
    if objective.percentile == "mean":
        return cold * seconds > objective.declared_s
    return cold > 1 - percentile_share(objective.percentile) and seconds > objective.declared_s


def _cause(review: Review) -> tuple[Related, ...]:
    """The key that makes requests cold."""
    for key, words in (("cache_hit", "the share of schemas that is compiled"), ("schemas", "each one is new")):
        path = ("policy", "constrained_decoding", key)
        if review.declared(*path):
            return (Related(path, words),)
    return ()


def _help(review: Review, point: Point, objective: Objective) -> str:
    scheduler = point.service.scheduler
    share = review.policy("constrained_decoding").share

    def within(**changes: float) -> bool:
        return with_compiles(point, **changes).meets(objective, declared=True)

    most = floored(_most(lambda s: within(first_token_s=s), scheduler.first_token_s))
    # In hundredths of a percent, so that what is written is what was tried; without a cold request the objective holds.
    low, high = math.floor((1 - scheduler.first_token_share / share) * 1e4), 10_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(first_token_share=share * (1 - middle / 1e4)) else (middle, high)
    parts = [f"reach policy.constrained_decoding.cache_hit = {high / 1e4:g}: compile schemas ahead, and reuse them"]
    if most > 0:
        parts.append(f'reach policy.constrained_decoding.compile = "{duration(most)}" at this hit')
    return "; or ".join(parts)


def _most(holds: Callable[[float], bool], beyond: float) -> float:
    """The largest value below ``beyond`` for which a condition holds that holds at 0."""
    low, high = 0.0, beyond
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
