"""SPEC005 missing-input."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.errors import UnpricedError
from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Related, Review, Rule, Severity
from servelint.spec.model import Claim, Workload

LENGTHS = ("prompt_tokens", "output_tokens")
LOADED = (
    "throughput", "output_throughput", "total_throughput", "goodput", "ttft", "itl", "tpot", "e2e",
)  # fmt: skip
"""Metrics whose value depends on how many requests run at once."""


class MissingInput(Rule):
    """Something is declared to be checked, and an input that the check needs is not.

    What it checks
    --------------
    An ``slo`` or a ``[[workload.growth]]`` scenario needs prompt and output lengths, an accelerator and a
    model; a ``[[claim]]`` about throughput or latency needs an operating point (``at.batch``,
    ``at.concurrency`` or ``at.rate``), unless it points to evidence. A section that says nothing without the
    input is a warning; where the spec is merely shorter than it could be (no hardware, no model; a claim beside
    a declared load), it is advice, and so is hardware, also of a pool, that has no published rate. Names that do
    not resolve and traces that cannot be read are SPEC004's.

    Why it is bad
    -------------
    The section looks like a check and is none: the objective is never compared with anything, and a claim of
    tokens per second without the number of requests in flight can be neither confirmed nor refuted.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Add the keys that the message names.

    Source
    ------
    The servelint spec, version 1.
    """

    code = "SPEC005"
    name = "missing-input"
    severity = Severity.WARNING
    questions = ("is the spec complete", "is the spec valid")
    failing = (
        Case(
            "launch arguments that nobody reads",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
args = ["--max-num-seqs", "4"] # expect: SPEC005
""",
            # An empty list says nothing.
            flip=("engine.args", "[]"),
        ),
        Case(
            "a part without a published compute rate",
            """\
servelint = 1
[hardware]
accelerator = "apple/m3-ultra-80c" # expect: SPEC005
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.accelerator", '"nvidia/h100-sxm5-80gb"'),
        ),
        Case(
            "an objective without output lengths",
            """\
servelint = 1
workload = { prompt_tokens = { p50 = 800, p99 = 3000 }, rate = "1 req/s" }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[slo]
itl = { p99 = "80 ms" } # expect: SPEC005
headroom = 0.2
""",
            flip=(
                "workload",
                "{ prompt_tokens = { p50 = 800, p99 = 3000 }, output_tokens = { p50 = 200, p99 = 600 }, "
                'rate = "1 req/s" }',
            ),
        ),
        Case(
            "evidence that no reader knows",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1500 tok/s"
at = { concurrency = 32 }
evidence = "bench/notes.md" # expect: SPEC005
""",
            flip=("claim[0].evidence", '"https://example.com/notes"'),
            files=(("bench/notes.md", "# Notes\n\nIt was fast.\n"),),
        ),
        Case(
            "a claim with a latency and no load",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1500 tok/s" # expect: SPEC005
at = { itl_p99 = "40 ms" }
""",
            flip=("claim[0].at", '{ itl_p99 = "40 ms", concurrency = 32 }'),
        ),
        Case(
            "an objective without a model",
            """\
servelint = 1
model = {}
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "1 req/s"
[slo]
itl = { p99 = "80 ms" } # expect: SPEC005
headroom = 0.2
""",
            flip=("model", '{ id = "meta-llama/Llama-3.1-8B", max_model_len = 8192 }'),
        ),
        Case(
            "a pool's accelerator without a published rate",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.disaggregation.prefill]
devices = 1
[policy.disaggregation.decode]
devices = 1
accelerator = "apple/m4-max-40c" # expect: SPEC005
""",
            flip=("policy.disaggregation.decode.accelerator", '"nvidia/h100-sxm5-80gb"'),
        ),
    )
    passing = (
        Case(
            "the shortest spec with an objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
[slo]
itl = { p99 = "300 ms" }
""",
        ),
        Case(
            "nothing declared to be checked",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[workload]
rate = "2 req/s"
""",
        ),
        Case(
            "a claim that points to its evidence",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1500 tok/s"
evidence = "bench/chat.json"
""",
        ),
        Case(
            "an accelerator that does not resolve is SPEC004's",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gbb" # expect: SPEC004
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
[slo]
itl = { p99 = "80 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding]:
        """Report what declared sections lack."""
        if review.objectives:
            path = review.objective_path(review.objectives[0])
            workload = review.deployment.workload
            lengths = _lengths(review, workload, ("workload",), None) if review.mix is None else []
            yield from _missing("the objectives are compared with nothing", path, lengths, _nouns(review))
        else:
            yield from _growth(review)
        for path, claim in review.claims:
            yield from _claim(review, path, claim)
        yield from _arguments(review)
        if review.composition is None and isinstance(review.infeasible, UnpricedError):
            yield Finding(
                review.infeasible.path,
                str(review.infeasible),
                help="give the rate, with its source, in hardware.override.dense_flops"
                if review.infeasible.path[0] == "hardware"
                else "name a part with a published rate: hardware.override is of the deployment's own, not of a pool's",
                severity=Severity.INFO,
                confidence="high",
            )


def _arguments(review: Review) -> Iterator[Finding]:
    """Launch arguments that no plugin reads, values in them that stand elsewhere, and hardware they do not name."""
    document = review.document
    launched = document.launched
    declared = next((k for k in ("args", "args_from", "env") if getattr(review.deployment.engine, k)), None)
    if declared is not None and (launched is None or not launched.read):
        engine = review.deployment.engine.name
        why = f"no plugin reads arguments of the engine {engine!r}" if engine else "engine.name does not say of which"
        yield Finding(
            ("engine", declared),
            f"engine.{declared} is not read, since {why}: what is checked are the policies of this spec, with defaults "
            "for what they leave out",
            help="state in the policies what the launch arguments set" if engine else "add engine.name",
            severity=Severity.INFO,
            confidence="high",
        )
    for about, trouble in launched.named_troubles().items() if launched is not None else ():
        if trouble.kind == "unresolved":
            yield Finding(
                ("engine", "args", about),
                trouble.message,
                help=trouble.help,
                severity=Severity.INFO,
                confidence="high",
            )
    if document.manifest and launched is not None:
        missing = [k for k in _nouns(review) if k == "hardware.accelerator" or not launched.invocation.model]
        if missing:
            hints = launched.invocation.hints[:3] if "hardware.accelerator" in missing else ()
            said = ", ".join(f"{hint.label} = {hint.value.text[:80]}" for hint in hints)
            yield Finding(
                ("hardware",) if "hardware.accelerator" in missing else ("model",),
                f"the manifest does not say what {' and '.join(missing)} is, so memory and speed are not judged"
                + (f"; it says {said}, which names no single part of the catalogue" if said else ""),
                help="name the accelerator with --hardware, or write a spec with `servelint import`",
                severity=Severity.INFO,
                confidence="high",
            )


def _growth(review: Review) -> Iterator[Finding]:
    """Scenarios that are declared and never checked; beside an objective they lack what it lacks."""
    base = review.deployment.workload
    composed = dict(review.growth)
    for i, scenario in enumerate(base.growth if base is not None else ()):
        at: KeyPath = ("workload", "growth", i)
        key = next((k for k in (*LENGTHS, "rate", "name") if review.declared(*at, k)), None)
        lengths = _lengths(review, scenario, at, base) if i not in composed else []
        yield from _missing("the growth scenario is not checked", (*at, key) if key else at, lengths, _nouns(review))


def _missing(effect: str, path: KeyPath, lengths: list[str], nouns: list[str]) -> Iterator[Finding]:
    if not lengths and not nouns:
        return
    listed = " and ".join((*lengths, *nouns))
    yield Finding(
        path,
        f"{effect}: the spec declares no {listed}",
        help=f"add {listed}",
        severity=Severity.WARNING if lengths else Severity.INFO,
        confidence="high",
    )


def _nouns(review: Review) -> list[str]:
    """What of hardware and model is not declared at all."""
    keys = []
    if not any(review.declared("hardware", k) for k in ("accelerator", "instance", "datasheet")):
        keys.append("hardware.accelerator")
    if not any(review.declared("model", k) for k in ("id", "config")):
        keys.append("model.id")
    return keys


def _lengths(review: Review, workload: Workload | None, path: KeyPath, base: Workload | None) -> list[str]:
    """The length keys that neither a workload nor its base declares; none where a trace stands for them."""
    if any(w is not None and w.trace is not None for w in (workload, base)):
        return []
    missing = [k for k in LENGTHS if all(getattr(w, k, None) is None for w in (workload, base))]
    if not missing and review.mix is None:
        # Declared, but in a form that no length model reads, such as a standard deviation without a mean.
        return [f"usable {k} (quantiles, or a mean with std)" for k in LENGTHS if _odd(review, path, k)]
    return [f"workload.{k}" for k in missing]


def _odd(review: Review, path: KeyPath, key: str) -> bool:
    value = review.document.value((*path, key))
    return isinstance(value, dict) and not any(
        set(value) <= set(m.keys) and set(m.required) <= set(value) for m in review.plugins.length_models
    )


def _claim(review: Review, path: KeyPath, claim: Claim) -> Iterator[Finding]:
    at, workload = claim.at, review.deployment.workload
    review.evidence(path, claim)  # whether its kind is known shows when it is read
    if claim.evidence in review.unknown_evidence:
        yield Finding(
            (*path, "evidence"),
            f"the evidence {claim.evidence!r:.100} is compared with nothing: it is no result file that is read",
            help="name the file that the benchmark wrote: docs/evidence.md lists the tools that are read",
            severity=Severity.INFO,
            confidence="high",
        )
    if claim.metric not in LOADED or claim.evidence is not None:
        return
    if at is not None and not (at.batch is at.concurrency is at.rate is None):
        return
    load = next((k for k in ("rate", "concurrency") if getattr(workload, k, None) is not None), None)
    yield Finding(
        (*path, "value"),
        f"the {claim.metric} is claimed at no operating point"
        + (f"; it can only be compared at the deployment's own workload.{load}" if load else ""),
        help="add at.concurrency, at.batch or at.rate: how many requests were in flight, or how many arrived",
        related=(Related(("workload", load), "the only load that the spec declares"),) if load else (),
        severity=Severity.INFO if load else Severity.WARNING,
        confidence="high",
    )
