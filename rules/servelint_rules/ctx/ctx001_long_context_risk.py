"""CTX001 long-context-risk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Related, Review, Rule, Severity, Source
from servelint.service import Figure, Mix, Service
from servelint_rules.layouts import decode_side
from servelint_rules.show import duration, request_rate, size, tokens
from servelint_rules.variants import narrower_cache

FIGURES: tuple[Figure, Figure] = ("estimate", "bound")


class Verdict(NamedTuple):
    """Why a mix of requests does not work: in words, and whether a bound already says so."""

    reason: str
    certain: bool


class LongContextRisk(Rule):
    """Longer contexts that the spec announces break what holds at the context the fleet was sized for.

    What it checks
    --------------
    Every ``[[workload.growth]]`` scenario, and the base workload's p99 when ``deployment.sized_for`` lies
    below it: does the same deployment still carry the load, keep the SLO and hold one sequence, given that it
    does at the sized-for context?

    Why it is bad
    -------------
    Each decode step reads the whole cache of every sequence. A feature that takes contexts from 4K to 64K
    multiplies KV traffic and KV residency by 16: concurrency, throughput and latency fall together, on the day
    the feature ships.

    The arithmetic
    --------------
    ``KV bytes a step = sequences x context x bytes per token``; resident sequences = capacity / (context x
    bytes per token); the step time follows. The largest context that still holds is found by bisection.

    How to fix
    ----------
    Size for the announced context: more memory per sequence (FP8 KV, more devices), a context limit, or a pool
    of its own for long requests.

    Source
    ------
    docs/cost-model.md, KV cache and operating point.
    """

    code = "CTX001"
    name = "long-context-risk"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why did it run out of memory", "why is p99 bad", "what happens at long context")
    failing = (
        Case(
            "document upload takes prompts from 1K to 32K",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "4 req/s"
[[workload.growth]]
name = "document upload"
prompt_tokens = { p50 = 32000, p99 = 100000 } # expect: CTX001
[slo]
itl = { p99 = "200 ms" }
""",
            flip=("workload.growth[0].prompt_tokens", "{ p50 = 1200, p99 = 5000 }"),
        ),
        Case(
            "sized for 4K, p99 at 60K",
            """\
servelint = 1
[deployment]
sized_for = 4096
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[workload]
prompt_tokens = { p50 = 1000, p90 = 3000, p99 = 60000 } # expect: CTX001
output_tokens = 200
rate = "0.05 req/s"
""",
            flip=("workload.prompt_tokens.p99", "3500"),
        ),
    )
    passing = (
        Case(
            "growth that the deployment carries",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[[workload.growth]]
name = "longer chats"
prompt_tokens = { p50 = 2000, p99 = 8000 }
[slo]
itl = { p99 = "200 ms" }
""",
        ),
        Case(
            "no growth, and the size covers the p99",
            """\
servelint = 1
[deployment]
sized_for = 8192
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = 200
rate = "1 req/s"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what holds at the sized-for context with what is announced."""
        mix, sized = review.mix, review.sized_for
        if review.composition is None or mix is None or sized is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        if not review.growth and not review.declared("deployment", "sized_for"):
            yield Lacks("workload.growth or deployment.sized_for")
            return
        base = mix.at_context(sized) if review.declared("deployment", "sized_for") else mix
        if _fails(review, base, None) is not None:
            # Already broken at what it was sized for: other rules say so.
            return
        for i, scenario in review.growth:
            declared = review.deployment.workload.growth[i] if review.deployment.workload else None
            rate = review.rate(declared)
            verdict = _fails(review, scenario, rate)
            if verdict is not None:
                path: KeyPath = ("workload", "growth", i)
                key = next(
                    (k for k in ("prompt_tokens", "output_tokens", "trace") if review.declared(*path, k)),
                    None,
                )
                yield self._finding(review, (*path, key) if key else path, base, scenario, sized, verdict, rate)
        if review.declared("deployment", "sized_for") and mix.context(0.99) > sized:
            tail = mix.at_context(mix.context(0.99))
            verdict = _fails(review, tail, None)
            if verdict is not None:
                tail = tail._replace(name=f"the workload's own p99 of {tokens(mix.context(0.99))} tokens")
                key = "trace" if review.declared("workload", "trace") else "prompt_tokens"
                yield self._finding(review, ("workload", key), base, tail, sized, verdict, review.rate())

    def _finding(
        self,
        review: Review,
        path: KeyPath,
        base: Mix,
        scenario: Mix,
        sized: float,
        verdict: Verdict,
        rate: float | None,
    ) -> Finding:
        if review.composition is None:
            raise ValueError("no composition")
        memory = decode_side(review.composition).memory
        then, now = scenario.mean_context, base.mean_context
        per_token = memory.bytes_per_token()
        resident = [memory.resident_sequences(c) for c in (now, then)]
        # Windows and fixed state make a sequence smaller than its tokens times the bytes of a new one.
        each = memory.sequence_bytes(then, memory.tightest)
        return Finding(
            path,
            f"{scenario.name}: {verdict.reason}; the mean context grows from {tokens(now)} to {tokens(then)} tokens "
            f"({then / now:.1f}x), and the KV cache holds {resident[1]:,} such sequences at once instead of "
            f"{resident[0]:,}",
            equation=(
                f"KV per sequence and device = {size(each)} at {tokens(then)} tokens ({per_token:,.0f} B a token "
                f"before any window is full), read whole in every step; {size(memory.cache_left(memory.tightest))} of "
                f"KV memory a device / {size(each)} = {resident[1]:,} sequences"
            ),
            inputs=(
                Input("mean context", then, "tok", review.source(*path)),
                Input("KV bytes per token and device", per_token, "B", _cache_source(review)),
                *memory.budget_lineage.inputs,
            ),
            help="; ".join(_remedies(review, base, scenario, rate)),
            related=(Related(_sized_path(review), f"sized for a context of {tokens(sized)} tokens"),),
            severity=Severity.ERROR if verdict.certain else Severity.WARNING,
            confidence="high" if verdict.certain else "medium",
        )


def _remedies(review: Review, base: Mix, scenario: Mix, rate: float | None) -> Iterator[str]:
    """What carries the scenario, in numbers, and the context up to which today's deployment holds."""
    composition = review.composition
    if composition is None:
        return
    replicas = _replicas(review, composition, scenario, rate)
    if replicas is not None:
        yield f"to serve it: set hardware.replicas = {replicas} instead of {review.replicas}"
    narrow = narrower_cache(review)
    if narrow is not None:
        fitting = decode_side(narrow).memory.resident_sequences(scenario.mean_context)
        fewer = _replicas(review, narrow, scenario, rate)
        narrowed = f'policy.quantization.kv_cache = "fp8" holds {fitting:,} such sequences'
        if _verdict(review, narrow, scenario, rate) is None:
            yield f"{narrowed} and is enough alone"
        elif fewer is not None and (replicas is None or fewer < replicas):
            yield f"{narrowed}, and {fewer} replicas are enough"
        else:
            narrow = None
    if replicas is None and narrow is None:
        yield "to serve it: a pool of its own with more memory per sequence (more devices a replica, larger devices)"
    holds = _largest_context(review, base, scenario.mean_context, rate)
    if holds:
        yield f"to refuse it: set model.max_model_len to about {tokens(holds)}, up to which today's fleet holds"


def _replicas(review: Review, composition: Composition, mix: Mix, rate: float | None) -> int | None:
    """Replicas that carry the scenario's rate within the SLO, None when no number of them does or no rate is known."""
    if rate is None or decode_side(composition).memory.resident_sequences(mix.context(0.99)) < 1:
        return None
    service = Service(composition, mix)
    knee = service.knee(review.objectives)
    if knee is None or knee.rate <= 0:
        return None
    return math.ceil(rate * review.replicas / (knee.rate * service.decode_replicas) - 1e-9)


def _cache_source(review: Review) -> Source:
    memory = review.memory
    return memory.caches[0].lineage.inputs[0].source if memory and memory.caches else review.source("model")


def _sized_path(review: Review) -> KeyPath:
    if review.declared("deployment", "sized_for"):
        return ("deployment", "sized_for")
    return ("workload", "prompt_tokens") if review.declared("workload", "prompt_tokens") else ("workload",)


def _fails(review: Review, mix: Mix, rate: float | None) -> Verdict | None:
    """Say why the deployment does not work under a mix, None when it does."""
    composition = review.composition
    return None if composition is None else _verdict(review, composition, mix, rate)


def _verdict(review: Review, composition: Composition, mix: Mix, rate: float | None) -> Verdict | None:
    memory, final = decode_side(composition).memory, mix.context(0.99)
    if memory.resident_sequences(final) < 1:
        return Verdict(f"one sequence of {tokens(final)} tokens does not fit in the KV cache", True)
    rate = rate if rate is not None else review.rate()
    shared = composition is review.composition and mix is review.mix
    service = review.service(mix) if shared else Service(composition, mix, open_loop=rate is not None)
    if service.batch_limit < 1:
        return Verdict(f"no sequence of {tokens(mix.mean_context)} tokens fits in the KV cache", True)
    if rate is not None:
        point = service.at_rate(rate)
        if point is None:
            most = request_rate(service.max_rate)
            reason = f"{request_rate(rate)} a replica are offered and at most {most} can be carried"
            return Verdict(reason, Service(composition, mix, "bound").at_rate(rate) is None)
    else:
        workload, point = review.deployment.workload, service.fullest
        wanted = workload.concurrency if workload else None
        if wanted is not None:
            wanted, fitting = max(1, -(-wanted // review.replicas)), service.limits["KV capacity"]
            if fitting < wanted:
                return Verdict(f"{wanted:,} sequences at once are declared and {fitting:,} fit in the KV cache", True)
            point = service.point(min(float(wanted), point.batch)) if point is not None else None
    misses = point.misses(review.objectives, declared=True) if point is not None else []
    if point is None or not misses:
        return None
    worst = max(misses, key=lambda m: m.seconds / m.objective.declared_s)
    objective = worst.objective
    ideal = Service(composition, mix, "bound", open_loop=rate is not None)
    best = ideal.point(point.batch) if rate is None else ideal.at_rate(rate)
    certain = best is None or bool(best.misses((objective,), declared=True))
    becomes = "grows without limit" if math.isinf(worst.seconds) else f"becomes {duration(worst.seconds)}"
    return Verdict(
        f"{objective.metric.upper()} {objective.percentile} {becomes}, above the objective of "
        f"{duration(objective.declared_s)}",
        certain,
    )


def _largest_context(review: Review, base: Mix, upper: float, rate: float | None) -> int:
    """The largest context at which the scenario's rate is carried, by bisection between today's context and its own."""
    low, high = base.mean_context, upper
    if high <= low or _fails(review, base.at_context(low), rate) is not None:
        return 0
    for _ in range(8):
        middle = (low + high) / 2
        if _fails(review, base.at_context(middle), rate) is None:
            low = middle
        else:
            high = middle
    return int(low // 100 * 100)
