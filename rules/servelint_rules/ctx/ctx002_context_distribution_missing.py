"""CTX002 context-distribution-missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from servelint.distribution import Lengths, percentile_share
from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Mix, Objective, Point
from servelint.spec.model import Workload
from servelint_rules.show import duration, request_rate, tokens

LENGTHS = ("prompt_tokens", "output_tokens")
TAIL_KEYS = frozenset({"p90", "p95", "p99", "p999", "max", "std"})
"""Keys of a length table that say something of the long requests."""
DEVIATES = (
    (0.01, -2.326), (0.1, -1.282), (0.25, -0.674), (0.5, 0.0),
    (0.75, 0.674), (0.9, 1.282), (0.95, 1.645), (0.99, 2.326),
)  # fmt: skip
"""(probability, standard normal deviate) at which a lognormal is taken."""
P99 = 2.326


class Break(NamedTuple):
    """What no longer holds: in words, and the objective it is, None for the offered rate."""

    words: str
    objective: Objective | None


class Doubt(NamedTuple):
    """A length that stands for a distribution: its place and key, the workload it belongs to, its offered rate."""

    path: KeyPath
    key: str
    mix: Mix
    rate: float | None


class ContextDistributionMissing(Rule):
    """Lengths are one number or a mean, and a tail objective stands or falls with their spread.

    What it checks
    --------------
    ``prompt_tokens`` and ``output_tokens`` of the workload and its growth scenarios that say nothing of the long
    requests (a number, a mean, a median), without a trace. With the same mean and a p99 of ``tail`` times it, is a
    percentile objective of p90 or higher missed, or the rate no longer carried, that holds as declared? Silent
    when the answer does not change, and when it fails already.

    Why it is bad
    -------------
    Sized by the mean, the deployment is sized for the request that causes no trouble. The p99 of the latency is
    made by the p99 of the lengths: long prompts take many chunks, delay each other and the tokens of the others.

    The arithmetic
    --------------
    A lognormal with the declared mean and ``p99 = tail x mean``; the operating point and its percentiles follow.
    The default of 3.6 is the ratio of public conversation and code traces; agent and document traffic is at 5 to
    7.

    How to fix
    ----------
    Give ``{ p50 = ..., p99 = ... }`` from production logs, or a ``trace``. The help line says up to which p99 the
    objective holds.

    Source
    ------
    Azure/AzurePublicDataset data/AzureLLMInferenceTrace_conv.csv (mean 1,155, p99 4,142) and _code.csv (mean
    2,048, p99 7,436); kvcache-ai/Mooncake FAST25-release conversation trace (mean 12,035, p99 85,400).
    """

    code = "CTX002"
    name = "context-distribution-missing"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("why is p99 bad", "is the spec complete", "what happens at long context")
    options = (Option("tail", 3.6, "p99 of the lengths over their mean, where only the mean is known", 1.0, 10.0),)
    failing = (
        Case(
            "a TTFT objective that holds for the mean prompt only",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = 4000 # expect: CTX002
output_tokens = { p50 = 200, p99 = 600 }
rate = "1 req/s"
[slo]
ttft = { p99 = "400 ms" }
""",
            flip=("workload.prompt_tokens", "{ p50 = 3500, p99 = 5000 }"),
        ),
        Case(
            "an end-to-end objective and a mean output",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 3000 }
output_tokens = { mean = 400 } # expect: CTX002
rate = "1 req/s"
[slo]
e2e = { p99 = "8 s" }
""",
            flip=("workload.output_tokens", "{ p50 = 380, p99 = 500 }"),
        ),
        Case(
            "a growth scenario given as one number",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 65536
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "0.5 req/s"
[[workload.growth]]
name = "attachments"
prompt_tokens = 8000 # expect: CTX002
[slo]
ttft = { p99 = "900 ms" }
""",
            flip=("workload.growth[0].prompt_tokens", "{ p50 = 7500, p99 = 9000 }"),
        ),
    )
    passing = (
        Case(
            "one number, and an objective that the tail keeps",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = 4000
output_tokens = { p50 = 200, p99 = 600 }
rate = "1 req/s"
[slo]
ttft = { p99 = "4 s" }
""",
        ),
        Case(
            "one number and an objective in the median",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = 4000
output_tokens = { p50 = 200, p99 = 600 }
rate = "1 req/s"
[slo]
ttft = { p50 = "400 ms" }
""",
        ),
        Case(
            "a distribution that happens to be narrow",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 4000, p99 = 4000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "1 req/s"
[slo]
ttft = { p99 = "400 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Ask of every single length whether its spread would change the verdict."""
        if review.composition is None or review.mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        tails = tuple(o for o in review.objectives if o.percentile != "mean" and percentile_share(o.percentile) >= 0.9)
        if not tails and not (review.rate() is not None and review.growth):
            yield Lacks("an objective in a high percentile")
            return
        reported: set[KeyPath] = set()
        for doubt in _doubts(review):
            if doubt.path in reported or _breaks(review, doubt.mix, doubt.rate, tails) is not None:
                continue
            broken = _breaks(review, _stretched(review, doubt, self.option("tail")), doubt.rate, tails)
            if broken is not None:
                reported.add(doubt.path)
                yield self._finding(review, doubt, broken, tails)

    def _finding(self, review: Review, doubt: Doubt, broken: Break, tails: tuple[Objective, ...]) -> Finding:
        tail = self.option("tail")
        mean = _lengths(doubt).mean
        holds = _longest(review, doubt, tails, tail)
        related = (
            (Related(review.objective_path(broken.objective), "the objective that depends on it"),)
            if broken.objective is not None
            else (Related(("workload", "rate"), "the rate that depends on it"),)
        )
        return Finding(
            doubt.path,
            f"{doubt.key} stands for {tokens(mean)} tokens in every request: so it holds, but with a p99 of "
            f"{tail:g} times the mean, as in public conversation traces, {broken.words}",
            equation=f"lognormal, mean {tokens(mean)}, p99 {tail:g} x {tokens(mean)} = {tokens(tail * mean)} tokens",
            inputs=(
                review.input(f"mean {doubt.key}", round(mean, 1), "tok", *doubt.path),
                Input("p99 over mean", tail, "", review.source("workload")),
            ),
            help=(
                f"give its distribution, {doubt.key} = {{ p50 = ..., p99 = ... }}, or a trace; the deployment holds up "
                f"to a p99 of about {tokens(holds)} tokens"
            ),
            related=related,
        )


def _doubts(review: Review) -> Iterator[Doubt]:
    """Yield every length that says nothing of its tail, with the workload that it decides."""
    base, mix = review.deployment.workload, review.mix
    if base is None or mix is None:
        return
    scenarios: list[tuple[KeyPath, Workload, Mix]] = [(("workload",), base, mix)]
    scenarios += [(("workload", "growth", i), base.growth[i], scenario) for i, scenario in review.growth]
    for path, workload, found in scenarios:
        if workload.trace is not None or (workload is not base and base.trace is not None):
            continue
        for key in LENGTHS:
            own = getattr(workload, key)
            declared = own if own is not None else getattr(base, key)
            if _says_nothing(declared):
                place = path if own is not None else ("workload",)
                yield Doubt((*place, key), key, found, review.rate(workload))


def _says_nothing(declared: object) -> bool:
    return not TAIL_KEYS & set(declared) if isinstance(declared, Mapping) else declared is not None


def _lengths(doubt: Doubt) -> Lengths:
    return doubt.mix.prompt if doubt.key == "prompt_tokens" else doubt.mix.output


def _stretched(review: Review, doubt: Doubt, tail: float) -> Mix:
    """The same requests with a lognormal in place of the single length, cut where the model's context ends."""
    lengths = _lengths(doubt)
    other = doubt.mix.output if doubt.key == "prompt_tokens" else doubt.mix.prompt
    # p99 / mean = exp(2.326 s - s^2 / 2), solved for s; beyond exp(2.326^2 / 2) = 15 no lognormal reaches it.
    sigma = P99 - math.sqrt(max(P99**2 - 2 * math.log(tail), 0.0))
    room = math.inf if review.composition is None else review.composition.max_model_len - other.mean
    longest = max(room, lengths.mean)
    knots = [(p, min(lengths.mean * math.exp(z * sigma - sigma**2 / 2), longest)) for p, z in DEVIATES]
    name = f"{doubt.mix.name}, {doubt.key} with a p99 of {tail:.3f} times the mean"
    mix = doubt.mix._replace(name=name, total=None)
    stretched = Lengths(knots)
    return mix._replace(prompt=stretched) if doubt.key == "prompt_tokens" else mix._replace(output=stretched)


def _point(review: Review, mix: Mix, rate: float | None) -> Point | None:
    service = review.service(mix)
    if rate is not None:
        return service.at_rate(rate)
    limit, wanted = float(service.batch_limit), review.concurrency()
    if wanted is not None:
        limit = min(limit, wanted)
    return service.point(limit) if limit >= 1 else None


def _breaks(review: Review, mix: Mix, rate: float | None, tails: tuple[Objective, ...]) -> Break | None:
    """Say what a mix breaks of the tail objectives and the offered rate, None when it holds."""
    point = _point(review, mix, rate)
    if point is None:
        return Break(f"the {request_rate(rate)} a replica are no longer carried", None) if rate is not None else None
    misses = point.misses(tails, declared=True)
    if not misses:
        return None
    worst = max(misses, key=lambda m: m.seconds / m.objective.declared_s)
    objective = worst.objective
    shown = "has no limit" if math.isinf(worst.seconds) else f"becomes {duration(worst.seconds)}"
    name = f"{objective.metric.upper()} {objective.percentile}"
    return Break(f"{name} {shown} against {duration(objective.declared_s)}", objective)


def _longest(review: Review, doubt: Doubt, tails: tuple[Objective, ...], tail: float) -> float:
    """The longest p99 with which everything holds, by bisection, to two digits."""
    low, high = 1.0, tail
    for _ in range(4):
        middle = (low + high) / 2
        if _breaks(review, _stretched(review, doubt, middle), doubt.rate, tails) is None:
            low = middle
        else:
            high = middle
    return float(f"{low * _lengths(doubt).mean:.1e}")
