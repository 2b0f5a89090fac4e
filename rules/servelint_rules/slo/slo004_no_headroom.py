"""SLO004 no-headroom."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Miss, Point
from servelint_rules.derivation import latency_equation, named
from servelint_rules.show import counted, duration, request_rate, request_rates
from servelint_rules.slo.chunks import stalled
from servelint_rules.variants import replicas_for

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
replicas = 2
efficiency = { memory = 0.8, compute = 0.6, link = 0.6, source = "bench/h100.json" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 512
[workload]
prompt_tokens = { p50 = 900, p99 = 1500 }
output_tokens = { p50 = 1200, p99 = 3000 }
"""


class NoHeadroom(Rule):
    """The deployment keeps its objectives, and nothing of the headroom that it was to have.

    What it checks
    --------------
    The operating point against the limits less ``slo.headroom``: a warning where a declared limit is kept only by
    using up the headroom. Where none is declared, as advice: a rate within ``spare`` of the one at the knee. Limits
    that are missed are SLO001's, growth is CTX001's, a cold cache CLM005's, a limit that only rare
    prefill keeps SLO008's. Without a rate or requests in flight
    nothing is said.

    Why it is bad
    -------------
    Load varies within the day and the minute, a replica is away during every roll-out and failure, caches are
    cold after it. Beyond the knee latency rises steeply with the rate, so what was saved comes back as missed
    limits at the worst time.

    The arithmetic
    --------------
    ``limit x (1 - headroom)`` against the percentile at the operating point; the knee is the largest load at which
    all of these hold, ``rate / rate at the knee`` the share that is used.

    How to fix
    ----------
    As many replicas as the help line says, or the load that it gives.

    Source
    ------
    docs/cost-model.md, operating point and knee.
    """

    code = "SLO004"
    name = "no-headroom"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("how many replicas are needed", "what happens when a replica fails", "why is p99 bad")
    options = (
        Option("spare", 0.05, "share of the knee's rate to keep free where slo.headroom is not declared", 0.0, 1.0),
    )
    failing = (
        Case(
            "the headroom is used up",
            SPEC + 'rate = "3.4 req/s" # expect: SLO004\n[slo]\ntpot = { p99 = "12 ms" }\nheadroom = 0.2\n',
            flip=("hardware.replicas", "4"),
        ),
        Case(
            "just above the rate that leaves the headroom",
            SPEC + 'rate = "3.18 req/s" # expect: SLO004\n[slo]\ntpot = { p99 = "12 ms" }\nheadroom = 0.2\n',
            flip=("workload.rate", '"3.16 req/s"'),
        ),
        Case(
            "a closed loop that uses the headroom up",
            SPEC + 'concurrency = 60 # expect: SLO004\n[slo]\ntpot = { p99 = "12 ms" }\nheadroom = 0.2\n',
            flip=("slo.headroom", "0.0"),
        ),
        Case(
            "none declared, and the rate is that of the knee",
            SPEC + 'rate = "5.2 req/s" # expect: SLO004\n[slo]\ntpot = { p99 = "12 ms" }\n',
            flip=("hardware.replicas", "3"),
        ),
    )
    passing = (
        Case(
            "just below the rate that leaves the headroom",
            SPEC + 'rate = "3.16 req/s"\n[slo]\ntpot = { p99 = "12 ms" }\nheadroom = 0.2\n',
        ),
        Case(
            "the same load, and no headroom declared",
            SPEC + 'rate = "3.4 req/s"\n[slo]\ntpot = { p99 = "12 ms" }\n',
        ),
        Case(
            "a limit that is missed is another finding",
            SPEC + 'rate = "7 req/s" # expect: SLO001\n[slo]\ntpot = { p99 = "12 ms" }\nheadroom = 0.2\n',
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the operating point with the limits less the headroom."""
        key = next((k for k in ("rate", "concurrency") if review.declared("workload", k)), None)
        if not review.objectives or key is None:
            return
        point = review.operating_point
        if point is None:
            yield Lacks("an operating point: workload lengths, hardware and model, and a load that is carried")
            return
        slo = review.deployment.slo
        if point.misses(review.objectives, declared=True) or slo is None:
            return
        if slo.headroom:
            misses = point.misses(review.objectives)
            if misses:
                yield _used_up(review, ("workload", key), point, misses)
            return
        # The knee is looked for only where a little more load is too much.
        spare, rate = self.option("spare"), review.rate()
        if rate is None or _carries(review, point, rate / max(1 - spare, 1e-3)):
            return
        knee = review.knee
        # The knee is a whole number of sequences; a load of a fraction of one may lie above it and hold.
        if knee is not None and knee.rate >= point.rate and stalled(review, point) is None:
            yield _close(review, point, knee, rate, spare)


def _carries(review: Review, point: Point, rate: float) -> bool:
    """Whether a replica keeps the objectives at a rate, headroom included."""
    then = point.service.at_rate(rate)
    return then is not None and not then.misses(review.objectives)


def _used_up(review: Review, path: KeyPath, point: Point, misses: list[Miss]) -> Finding:
    worst = max(misses, key=lambda m: m.seconds / m.objective.limit_s)
    objective, metric = worst.objective, named(worst.objective)
    headroom = 1 - objective.limit_s / objective.declared_s
    place = ("slo", "headroom")
    left = 1 - worst.seconds / objective.declared_s
    knee = review.knee
    return Finding(
        path,
        f"{metric} is {duration(worst.seconds)} at {counted(point.batch, 'sequence')} (estimate): within the objective "
        f"of {duration(objective.declared_s)}, but only {left:.0%} below it, and slo.headroom asks for {headroom:.0%}"
        + ("" if knee is None else f"; {_used(point, knee)}"),
        equation=f"{duration(objective.declared_s)} x (1 - {headroom:g}) = {duration(objective.limit_s)}; "
        f"{latency_equation(point, objective)}",
        inputs=(
            review.input(f"objective of {metric}", objective.declared_s, "s", *review.objective_path(objective)),
            review.input("headroom", headroom, "", *place),
            Input("sequences at once", round(point.batch, 1), "", review.source(*path)),
        ),
        help=_help(review, path, point, knee),
        related=(Related(place, f"the headroom: {headroom:.0%} of every limit"),),
        fix=_fix(review, path, point),
    )


def _used(point: Point, knee: Point) -> str:
    """The load beside that at the knee."""
    if point.service.open_loop:
        here, most = request_rates(point.rate, knee.rate)
        return f"the knee with this headroom carries {most} a replica, and {here} arrive"
    return f"the knee with this headroom is {counted(knee.batch, 'sequence')}"


def _help(review: Review, path: KeyPath, point: Point, knee: Point | None) -> str:
    service = point.service
    if knee is not None and path[-1] == "rate":
        needed = _replicas(review, point)
        most = knee.rate * service.decode_replicas * review.replicas
        parts = [f"set hardware.replicas = {needed} instead of {review.replicas}"] if needed else []
        return "; or ".join([*parts, f"keep the rate at {request_rate(most)}, that of the knee"])
    # What is kept in flight is a whole number of requests.
    each = math.floor(knee.batch) * service.decode_replicas if knee is not None else 0
    if not each:
        return "not even one sequence leaves this headroom: shorten the step itself, or state the headroom there is"
    workload = review.deployment.workload
    wanted = workload.concurrency if workload is not None and workload.concurrency else each
    return (
        f"set workload.concurrency = {each * review.replicas}; or "
        f"set hardware.replicas = {math.ceil(wanted / each)} instead of {review.replicas}"
    )


def _replicas(review: Review, point: Point) -> int | None:
    """Replicas that leave the headroom; None where no number does."""
    rate, objectives = review.rate(), review.objectives
    if rate is None:
        return None
    return replicas_for(point.service, rate * review.replicas, objectives, lambda then: not then.misses(objectives))


def _fix(review: Review, path: KeyPath, point: Point) -> Fix | None:
    replicas: KeyPath = ("hardware", "replicas")
    needed = _replicas(review, point) if path[-1] == "rate" and review.declared(*replicas) else None
    return Fix(f"set hardware.replicas to {needed}", (Edit(replicas, str(needed)),)) if needed else None


def _close(review: Review, point: Point, knee: Point, rate: float, spare: float) -> Finding:
    path: KeyPath = ("workload", "rate")
    here, most = request_rates(rate / point.service.decode_replicas, knee.rate)
    replicas = review.replicas
    needed = math.ceil(rate * replicas / (knee.rate * point.service.decode_replicas * (1 - spare)) - 1e-9)
    return Finding(
        path,
        f"{here} arrive at each replica, and the objectives hold up to {most}: {max(1 - point.rate / knee.rate, 0):.0%}"
        " are left for variance, a replica that is away, and cold caches",
        equation=f"{here} / {most} at the knee of {counted(knee.batch, 'sequence')} = {point.rate / knee.rate:.1%}",
        inputs=(
            review.input("offered rate", rate * replicas, "req/s", *path),
            Input("replicas", replicas, "", review.source("hardware", "replicas")),
        ),
        help=f"set hardware.replicas = {max(needed, replicas + 1)} instead of {replicas}; declare slo.headroom, so "
        "that it is held against every limit",
        severity=Severity.INFO,
    )
