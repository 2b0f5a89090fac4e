"""SLO001 throughput-past-slo."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint.service import Miss, Point
from servelint_rules.show import duration, request_rate, sequences, token_rate


class ThroughputPastSlo(Rule):
    """The configured or claimed operating point breaks a latency objective.

    What it checks
    --------------
    The point where the deployment runs, given by the offered rate, the declared concurrency, or full admission
    when neither is declared; and the point of every throughput claim. At each, every percentile of the SLO.

    Why it is bad
    -------------
    Throughput grows with the batch long after the latency objective is broken. A figure from beyond the knee
    is real and useless: no request inside the SLO is served at it.

    The arithmetic
    --------------
    The step time at the batch, plain and with a chunk of prompt, gives the percentile of the inter-token
    latency; queue and prefill give the time to first token. The knee is the largest batch at which every
    objective holds with its headroom. Error when even the bound breaks the objective, else warning.

    How to fix
    ----------
    Admit no more sequences than the knee, and add replicas for the load beyond it; or shorten the step: a
    smaller prefill chunk, fewer bits, more tensor parallelism.

    Source
    ------
    docs/cost-model.md, operating point and knee.
    """

    code = "SLO001"
    name = "throughput-past-slo"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is p99 bad", "is this claim possible")
    failing = (
        Case(
            "full admission far beyond the knee",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
[policy.batching]
max_sequences = 512 # expect: SLO001
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
[slo]
itl = { p99 = "20 ms" }
""",
            flip=("policy.batching.max_sequences", "8"),
        ),
        Case(
            "a claim at a batch that breaks the objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[slo]
itl = { p99 = "25 ms" }
[[claim]]
metric = "throughput"
value = "5000 tok/s"
at = { concurrency = 128 } # expect: SLO001
""",
            flip=("claim[0].at.concurrency", "4"),
        ),
    )
    passing = (
        Case(
            "the offered rate keeps the batch small, whatever admission allows",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 512
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[slo]
itl = { p99 = "50 ms" }
""",
        ),
        Case(
            "no objective, no knee",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 512
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the operating point, and each claim's, with the SLO."""
        if review.composition is None or review.mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        if not review.objectives:
            yield Lacks("slo")
            return
        point = review.operating_point
        if point is not None and (misses := point.misses(review.objectives, declared=True)):
            yield self._finding(review, point, misses, *_cause(review))
        for path, claim in review.claims:
            at = claim.at
            if claim.metric not in ("throughput", "output_throughput", "goodput", "total_throughput") or at is None:
                continue
            batch = at.batch or at.concurrency
            if batch is None:
                continue
            key = "batch" if at.batch else "concurrency"
            claimed = review.service(review.mix).point(float(batch))
            if misses := claimed.misses(review.objectives, declared=True):
                yield self._finding(review, claimed, misses, (*path, "at", key), "the claim is made at")

    def _finding(self, review: Review, point: Point, misses: list[Miss], path: KeyPath, what: str) -> Finding:
        worst = max(misses, key=lambda m: m.seconds / m.objective.declared_s)
        objective, seconds = worst.objective, worst.seconds
        certain = False
        if review.mix is not None:
            ideal = review.service(review.mix, "bound").point(point.batch)
            certain = any(m.objective == objective for m in ideal.misses((objective,), declared=True))
        figure = "even the bound" if certain else "estimate"
        metric = f"{objective.metric.upper()} {objective.percentile}"
        knee = review.knee
        at_knee = "no batch meets the SLO" if knee is None else (
            f"the knee is at {sequences(knee.batch)} sequences: {token_rate(knee.throughput)} at "
            f"{duration(knee.latency(objective.metric, objective.percentile))}"
        )  # fmt: skip
        return Finding(
            path,
            f"{what} {sequences(point.batch)} sequences and {token_rate(point.throughput)}, where {metric} is "
            f"{_shown(seconds)} ({figure}), above the objective of {duration(objective.declared_s)}; {at_knee}",
            equation=_equation(point, objective.metric, objective.percentile),
            inputs=(
                Input("sequences", point.batch, "", review.source(*path)),
                Input("mean context", point.service.mix.mean_context, "tok", review.source("workload")),
                review.input(metric, objective.declared_s, "s", *review.objective_path(objective)),
                *_efficiency(review),
            ),
            help=_help(review, point, knee),
            related=(Related(review.objective_path(objective), f"the objective: {duration(objective.declared_s)}"),),
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence="high" if certain else "medium",
        )


def _shown(seconds: float) -> str:
    return "without limit" if math.isinf(seconds) else duration(seconds)


def _cause(review: Review) -> tuple[KeyPath, str]:
    """The key that decides where the deployment runs, and how to speak of it."""
    if review.declared("workload", "rate"):
        return ("workload", "rate"), "the offered rate needs"
    if review.declared("workload", "concurrency"):
        return ("workload", "concurrency"), "the declared concurrency runs"
    if review.declared("policy", "batching", "max_sequences"):
        return ("policy", "batching", "max_sequences"), "full admission runs"
    return ("slo",), "with the assumed admission limit the deployment runs"


def _equation(point: Point, metric: str, percentile: str) -> str:
    context = point.service.mix.mean_context
    step = f"plain step {duration(point.plain_s)} at {context:,.0f} tokens of mean context"
    if metric == "ttft":
        return (
            f"TTFT {percentile} = queue (mean {_shown(point.queue_s)}, prefill busy "
            f"{min(point.prefill_utilization, 9.99):.0%} of the time) + prefill in chunks; {step}"
        )
    mixed = point.mixed_share
    return (
        f"{metric.upper()} {percentile} over steps: {step}, {mixed:.1%} of steps carry prompt and take "
        f"{duration(point.average_mixed_s)} on average"
    )


def _efficiency(review: Review) -> tuple[Input, ...]:
    """The sustained fractions that an estimate rests on."""
    composition = review.composition
    if composition is None:
        return ()
    efficiency = composition.setup.topology.efficiency
    inputs = []
    for name in ("memory", "compute"):
        assumed = review.assumption("hardware", "efficiency", name)
        source = assumed.source if assumed else review.source("hardware", "efficiency", name)
        inputs.append(Input(f"sustained {name} fraction", getattr(efficiency, name), "", source))
    return tuple(inputs)


def _help(review: Review, point: Point, knee: Point | None) -> str:
    if knee is None:
        return "shorten the step itself: fewer bits, more tensor parallelism, or a smaller prefill chunk"
    parts = [f"admit at most {sequences(knee.batch)} sequences"]
    rate = review.rate()
    needed = rate if rate is not None else point.rate
    if knee.rate > 0 and needed > knee.rate and not math.isinf(needed):
        replicas = math.ceil(needed * review.replicas / knee.rate)
        if replicas > review.replicas:
            parts.append(
                f"the same load then takes {replicas} replicas instead of {review.replicas} "
                f"({request_rate(knee.rate)} each)"
            )
    return "; ".join(parts)
