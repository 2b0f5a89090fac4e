"""CLM008 stale-evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from servelint.plugin import Case, Finding, Lacks, Related, Review, Rule, Severity
from servelint_rules.clm.evidence import measured, named
from servelint_rules.clm.samples import SPEC, changed

ENGINE = '[engine]\nname = "vllm"\nversion = "0.11.0"\n'
CLAIM = """\
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 32 }
evidence = "bench.json" # expect: CLM008
"""


class StaleEvidence(Rule):
    """Evidence is of another release or artifact than what is deployed.

    What it checks
    --------------
    The engine's release that a run (or an ``[[evidence]]``) was measured with against the one that is deployed, by
    its first two numbers; the artifact of an ``[[evidence]]`` of kind ``benchmark`` against the model; its date
    against the one that the file records. Other models, hardware and settings of a claim's run are CLM003's; other
    artifacts of task evaluations are QNT001's.

    Why it is bad
    -------------
    Between releases defaults move: the share of memory, the batched tokens, prefix caching, graph sizes. The same
    flags then give another capacity and another latency.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Measure again with the release that is deployed.

    Source
    ------
    vLLM, vllm/config and vllm/engine/arg_utils.py by release: the defaults that moved.
    """

    code = "CLM008"
    name = "stale-evidence"
    severity = Severity.WARNING
    questions = ("is this benchmark of what is deployed",)
    failing = (
        Case(
            "a run of an older release",
            SPEC + ENGINE + CLAIM,
            flip=("engine.version", '"0.10.2"'),
            files=(("bench.json", changed(version='"0.10.1"')),),
        ),
        Case(
            "a benchmark of another model",
            SPEC + '[[evidence]]\nkind = "benchmark"\nartifact = "meta-llama/Llama-3.1-70B" # expect: CLM008\n',
            flip=("evidence[0].artifact", '"meta-llama/Llama-3.1-8B"'),
        ),
        Case(
            "a benchmark with an older release",
            SPEC + ENGINE + '[[evidence]]\nkind = "benchmark"\nengine_version = "0.9.2" # expect: CLM008\n',
            flip=("evidence[0].engine_version", '"0.11.1"'),
        ),
        Case(
            "a file that is older than it is said to be",
            SPEC + '[[evidence]]\nkind = "benchmark"\nfile = "bench.json"\ndate = 2026-11-03 # expect: CLM008\n',
            flip=("evidence[0].date", "2026-11-02"),
            files=(("bench.json", changed()),),
        ),
    )
    passing = (
        Case(
            "another patch of the same release",
            SPEC + ENGINE + CLAIM.replace(" # expect: CLM008", ""),
            files=(("bench.json", changed(version='"0.11.2"')),),
        ),
        Case(
            "no release recorded",
            SPEC + ENGINE + CLAIM.replace("2000", "1999").replace(" # expect: CLM008", ""),
            files=(("bench.json", changed()),),
        ),
        Case(
            "a date within a day, for clocks differ",
            SPEC + '[[evidence]]\nkind = "benchmark"\nfile = "bench.json"\ndate = 2026-11-02\n',
            files=(("bench.json", changed()),),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare releases, artifacts and dates."""
        deployed = review.engine_version
        key = ("engine", "version") if review.declared("engine", "version") else ("engine", "image")
        related = (Related(key, "what is deployed"),) if review.declared(*key) else ()
        if deployed is None:
            yield Lacks("engine.version")
        for item, run in measured(review):
            engine = review.engine
            if run.engine_version is None or deployed is None or engine is None:
                continue
            same = run.engine is None or review.plugins.engines.get(run.engine.lower()) is engine
            if same and _differ(run.engine_version, deployed):
                yield Finding(
                    item.key,
                    f"{named(run)} was measured with {engine.name} {run.engine_version}, deployed is {deployed}",
                    help=f"measure again with {deployed}",
                    related=related,
                )
        for i, evidence in enumerate(review.deployment.evidence):
            if evidence.kind != "benchmark":
                continue
            if evidence.engine_version and deployed and _differ(evidence.engine_version, deployed):
                yield Finding(
                    ("evidence", i, "engine_version"),
                    f"the benchmark was measured with release {evidence.engine_version}, deployed is {deployed}",
                    help=f"measure again with {deployed}",
                    related=related,
                )
            models = review.plugins.models
            own = models.resolve(review.deployment.model.id or "")
            other = models.resolve(evidence.artifact or "")
            if own is not None and other is not None and own != other:
                yield Finding(
                    ("evidence", i, "artifact"),
                    f"the benchmark is of {evidence.artifact}, deployed is {review.deployment.model.id}",
                    help="name a benchmark of the model that is deployed",
                    related=(Related(("model", "id"), "what is deployed"),),
                )
            yield from _dated(review, i)


def _dated(review: Review, i: int) -> Iterator[Finding]:
    evidence = review.deployment.evidence[i]
    if evidence.file is None or evidence.date is None:
        return
    runs = review.measured(("evidence", i, "file"), evidence.file)
    dates = {d for run in runs if (d := _day(run.date)) is not None}
    declared = evidence.date if isinstance(evidence.date, date) else _day(str(evidence.date))
    if len(dates) != 1 or declared is None:
        return
    (recorded,) = dates
    declared = date(declared.year, declared.month, declared.day)
    if (declared - recorded).days > 1:
        yield Finding(
            ("evidence", i, "date"),
            f"the file was written on {recorded}, {(declared - recorded).days} days before the date that is stated",
            equation=f"{declared} - {recorded} = {(declared - recorded).days} days",
            help=f"state {recorded}, or name the newer file",
            related=(Related(("evidence", i, "file"), "the file"),),
        )


def _day(text: str | None) -> date | None:
    found = re.match(r"(\d{4})-?(\d{2})-?(\d{2})", text or "")
    try:
        return date(*map(int, found.groups())) if found else None
    except ValueError:
        return None


def _differ(measured_with: str, deployed: str) -> bool:
    """Whether two releases differ in their first two numbers; False where one is no release."""
    pair = [re.match(r"v?(\d+)\.(\d+)", text) for text in (measured_with, deployed)]
    if pair[0] is None or pair[1] is None:
        return False
    return pair[0].groups() != pair[1].groups()
