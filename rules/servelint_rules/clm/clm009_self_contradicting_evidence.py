"""CLM009 self-contradicting-evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.clm.evidence import LATENCIES, Backed, backed, named
from servelint_rules.clm.samples import SPEC, changed

if TYPE_CHECKING:
    from servelint.consistency import Inconsistency
    from servelint.evidence import Measurement

PACED = ("tpot", "itl", "goodput")

CLAIM = """\
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 32 }
evidence = "bench.json"
"""
PACE = """\
[[claim]]
metric = "tpot"
value = "7.7 ms"
at = { concurrency = 32 }
evidence = "bench.json" # expect: CLM009
"""
HALF = {"mean_tpot_ms": 7.7}


class SelfContradictingEvidence(Rule):
    """A benchmark's result file contradicts itself.

    What it checks
    --------------
    The run that a claim rests on (``claim.evidence``), and the files of ``[[evidence]]`` of kind ``benchmark``: TTFT
    plus time per output token against the end-to-end latency; the rate that was asked for against the one that was
    kept; requests in flight against rate times latency; throughputs against totals over duration; percentiles in
    order; figures that are negative or not numbers; a KV cache in use of 0 under load; a prefix cache that random
    prompts hit; failed and cut-off requests; a tail of too few requests, where the claim or the SLO is about one.
    What the claim does not rest on is advice; what no system can have measured is an error.

    Why it is bad
    -------------
    At least one of the figures is wrong, often by a factor of two, and it is usually the flattering one that is
    quoted. A rate that was not kept measures the client's queue.

    The arithmetic
    --------------
    ``TTFT + TPOT x (output - 1) = end-to-end``, in means; ``in flight = completed a second x end-to-end``;
    ``throughput = tokens / duration``; a percentile p of n requests rests on ``n x (1 - p)`` of them.

    How to fix
    ----------
    Quote the figure that the message derives, or measure again.

    Source
    ------
    Little, A proof for the queuing formula L = lambda W (1961); docs/evidence.md for each tool's definitions.
    """

    code = "CLM009"
    name = "self-contradicting-evidence"
    severity = Severity.WARNING
    questions = ("is this claim possible", "is this benchmark sound")
    options = (
        Option("pace", 1.25, "factor between the reported time per output token and the one that follows", 1.01, 10),
        Option("totals", 0.05, "relative difference between a throughput and its totals", 0.001, 1),
        Option("flight", 0.15, "relative difference of requests in flight from Little's law", 0.01, 1),
        Option("reached", 0.95, "least share of the requested rate that has to be kept", 0.1, 1),
        Option("failed", 0.01, "share of failed requests that is let pass", 0.0, 1),
        Option("tail", 10, "least requests beyond a percentile that is quoted", 1, 1_000_000),
        Option("warm", 0.05, "share of random prompts found in the prefix cache that is let pass", 0.0, 1),
    )
    failing = (
        Case(
            "a time per token of streamed events",
            SPEC + PACE,
            flip=("claim[0].value", '"15.58 ms"'),
            files=(("bench.json", changed(**HALF)),),
        ),
        Case(
            "a pace one step beyond the factor",
            SPEC
            + """\
[[claim]]
metric = "tpot"
value = "12.46 ms"
at = { concurrency = 32 }
evidence = "bench.json" # expect: CLM009
""",
            flip=("claim[0].evidence", '"other.json"'),
            files=(
                ("bench.json", changed(mean_tpot_ms=12.46, median_tpot_ms=12.4)),
                ("other.json", changed(mean_tpot_ms=12.47, median_tpot_ms=12.4)),
            ),
        ),
        Case(
            "an open loop that did not keep its rate",
            SPEC
            + """\
[[claim]]
metric = "ttft"
value = "100 ms"
at = { rate = "20 req/s" }
evidence = "bench.json" # expect: CLM009
""",
            flip=("claim[0].evidence", '"kept.json"'),
            files=(
                ("bench.json", changed(request_rate=20, max_concurrency="null")),
                (
                    "kept.json",
                    changed(
                        request_rate=20,
                        max_concurrency="null",
                        duration=50.0,
                        request_throughput=20.0,
                        output_throughput=4000.0,
                        total_token_throughput=24000.0,
                    ),
                ),
            ),
        ),
        Case(
            "percentiles out of order",
            SPEC + CLAIM.replace('"bench.json"', '"bench.json" # expect: CLM009'),
            flip=("claim[0].evidence", '"good.json"'),
            files=(("bench.json", changed(p99_ttft_ms=80)), ("good.json", changed(p99_ttft_ms=90))),
        ),
        Case(
            "more in flight than were let in",
            SPEC
            + """\
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 16 }
evidence = "bench.json" # expect: CLM009
""",
            flip=("claim[0].evidence", '"slower.json"'),
            files=(
                ("bench.json", changed(max_concurrency=16)),
                ("slower.json", changed(max_concurrency=16, mean_tpot_ms=7.54, mean_e2el_ms=1600, median_tpot_ms=7.5)),
            ),
        ),
    )
    passing = (
        Case("figures that agree", SPEC + CLAIM, files=(("bench.json", changed(date='"20261102-101500"')),)),
        Case(
            "a pace just within the factor",
            SPEC
            + """\
[[claim]]
metric = "tpot"
value = "12.47 ms"
at = { concurrency = 32 }
evidence = "bench.json"
""",
            files=(("bench.json", changed(mean_tpot_ms=12.47, median_tpot_ms=12.4)),),
        ),
        Case(
            "a rate that is kept but for the last answers",
            SPEC
            + """\
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { rate = "10.3 req/s" }
evidence = "bench.json"
""",
            files=(("bench.json", changed(request_rate=10.3, max_concurrency="null")),),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Report what each run's figures say against each other, once a run."""
        from servelint import consistency

        limits = {option.name: self.option(option.name) for option in self.options}
        told: set[tuple[int, str]] = set()
        heeded: set[tuple[int, str]] = set()
        found = False
        for item in backed(review):
            found = True
            run = item.evidence.run
            if run is None:
                continue
            problems = list(consistency.check(run, limits))
            tail = consistency.tail(run, limits) if _about_tail(review, item) else None
            for problem in (*problems, *((tail,) if tail is not None else ())):
                said = (id(run), problem.kind + problem.message)
                if said not in told:
                    finding = _finding(item, run, problem)
                    # A claim that heeds it leaves it to the next one that does not.
                    (heeded if finding is None else told).add(said)
                    if finding is not None:
                        yield finding
        for i, evidence in enumerate(review.deployment.evidence):
            if evidence.kind != "benchmark" or evidence.file is None:
                continue
            path = ("evidence", i, "file")
            runs = review.measured(path, evidence.file)
            for run in runs:
                found = True
                for problem in consistency.check(run, limits):
                    said = (id(run), problem.kind + problem.message)
                    # Of a sweep, whoever chose a run knows which one saturated.
                    counts = len(runs) == 1 or problem.impossible
                    if counts and said not in told | heeded:
                        told.add(said)
                        yield _stated(path, run, problem, _severity(problem, Severity.INFO))
        if not found:
            yield Lacks("a claim with evidence of a kind that is read")


def _finding(item: Backed, run: Measurement, problem: Inconsistency) -> Finding | None:
    """A finding about a claim's run; None where the claim already quotes what the help line says."""
    if _heeded(item, run, problem):
        return None
    related = (Related((*item.path, "value"), "the figure that rests on it"),)
    severity = _severity(problem, Severity.WARNING if _rests(item, problem) else Severity.INFO)
    return _stated(item.key, run, problem, severity, related)


def _heeded(item: Backed, run: Measurement, problem: Inconsistency) -> bool:
    from servelint.measured import derived_tpot

    claim = item.claim
    if problem.kind == "pace":
        derived = derived_tpot(run)
        return claim.metric == "tpot" and derived is not None and abs(claim.value - derived) <= 0.02 * derived
    rate = claim.at.rate if claim.at is not None else None
    served = run.request_throughput
    return (
        problem.kind == "load"
        and rate is not None
        and served is not None
        and rate <= served * 1.02
        and not (claim.metric in LATENCIES or claim.metric == "goodput")
    )


def _severity(problem: Inconsistency, otherwise: Severity) -> Severity:
    return Severity.ERROR if problem.impossible else otherwise


def _stated(
    path: KeyPath, run: Measurement, problem: Inconsistency, severity: Severity, related: tuple[Related, ...] = ()
) -> Finding:
    return Finding(
        path,
        f"{named(run)} contradicts itself: {problem.message}",
        equation=problem.equation,
        help=problem.help,
        related=related,
        severity=severity,
    )


def _rests(item: Backed, problem: Inconsistency) -> bool:
    """Whether the claimed figure is among those that a contradiction makes doubtful."""
    claim = item.claim
    if problem.kind == "pace":
        return claim.metric in PACED
    if problem.kind == "load":
        # What a full server completes is a throughput that was measured; what waits for it is not.
        return claim.metric in (*LATENCIES, "goodput") or (claim.at is not None and claim.at.rate is not None)
    return problem.kind not in ("idle", "tail")


def _about_tail(review: Review, item: Backed) -> bool:
    """Whether a tail percentile is quoted, or an objective of the claim's metric is one."""
    claim = item.claim
    if claim.metric == "goodput":
        return True
    stated = claim.at is not None and any(getattr(claim.at, f"{m}_p99", None) is not None for m in LATENCIES)
    return stated or any(o.metric == claim.metric and o.percentile in ("p99", "p999") for o in review.objectives)
