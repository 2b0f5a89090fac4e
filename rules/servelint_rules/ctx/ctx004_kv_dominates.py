"""CTX004 kv-dominates."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Composition,
    Finding,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Miss, Point
from servelint.shapes import decode
from servelint_rules.ctx.traffic import Traffic, traffic
from servelint_rules.derivation import named
from servelint_rules.layouts import decode_side
from servelint_rules.show import counted, duration, size, tokens
from servelint_rules.slo.feasible import unreachable
from servelint_rules.variants import narrower_cache

PACE = ("itl", "tpot", "e2e")
WEIGHTS: KeyPath = ("policy", "quantization", "weights")


class KvDominates(Rule):
    """Decode steps read more KV cache than weights, so narrower weights cannot make them much faster.

    What it checks
    --------------
    Two situations. The spec narrows the weights and leaves the cache in 16 bit, at the operating point an objective of
    the pace (ITL, TPOT, E2E) is missed all the same, and the steps read more cache than weights: advice beside the
    finding that says what is missed (SLO001). Where no objective bounds the pace: one sequence of the workload's p99
    context alone reads more cache than all weights of a device, so that it decodes less than half as fast as a short
    one: a warning.

    Silent where the objectives of the pace are kept, and where one request alone cannot keep them (SLO006).

    Why it is bad
    -------------
    The usual remedies for slow decoding, 4-bit weights and more batching, act on the smaller part: the KV cache is read
    by each sequence for itself and no batch shares it.

    The arithmetic
    --------------
    ``speed-up <= 1 / (1 - f + f / r)`` for a part f of the bytes that shrinks r-fold: of the weights with half the
    bits, and of the cache.

    How to fix
    ----------
    A narrower KV cache where the task allows, a model with fewer KV heads, latent or windowed attention, more devices
    that split the KV heads; fewer sequences at once.

    Source
    ------
    docs/cost-model.md, KV cache. Measured: InternLM/lmdeploy#1608, Llama-3-8B on an
    H800: 30 ms a token at 204,800 tokens, 8.7 ms at 1,024.
    """

    code = "CTX004"
    name = "kv-dominates"
    severity = Severity.WARNING
    confidence = "high"
    questions = ("why is decode slow", "will quantization help")
    options = (
        Option("ratio", 1.0, "KV bytes of a step over its weight bytes from which on the rule speaks", 0.01, 1e6),
    )
    failing = (
        Case(
            "one request of 200K tokens on an 8B model, and no objective for its pace",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h800-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[engine]
name = "vllm"
version = "0.11.0"
[workload]
prompt_tokens = 130000 # expect: CTX004
output_tokens = 1000
concurrency = 1
""",
            flip=("workload.prompt_tokens", "100000"),
        ),
        Case(
            "one step above the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = 121532 # expect: CTX004
output_tokens = 1000
""",
            flip=("workload.prompt_tokens", "121531"),
        ),
        Case(
            "weights are narrowed, and the pace is missed because of the cache",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8" # expect: CTX004
[policy.batching]
max_sequences = 16
[workload]
prompt_tokens = 20000
output_tokens = 500
concurrency = 16 # expect: SLO001
[slo]
tpot = { p50 = "5 ms" }
""",
            flip=("policy.batching.max_sequences", "2"),
        ),
    )
    passing = (
        Case(
            "one step below the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = 121531
output_tokens = 1000
""",
        ),
        Case(
            "a pace that is kept although the cache dominates",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 16
[workload]
prompt_tokens = 20000
output_tokens = 500
concurrency = 16
[slo]
tpot = { p50 = "200 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare cache and weights of a step where its pace matters."""
        mix, composition = review.mix, review.composition
        if mix is None or composition is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        side = decode_side(composition)
        if not side.memory.caches:
            return
        if not any(o.metric in PACE for o in review.objectives):
            yield from self._alone(review, side, mix.context(0.99))
            return
        if not review.declared(*WEIGHTS) or any(c.format.bits < 16 for c in side.memory.caches):
            return
        point = review.operating_point
        misses = [] if point is None else point.misses(review.objectives, declared=True)
        missed = next((m for m in misses if m.objective.metric in PACE), None)
        if point is None or missed is None or missed.objective in unreachable(review):
            return
        shape = point.shape()
        read = traffic(side, shape)
        if read.cache > self.option("ratio") * read.weights:
            yield self._missed(review, side, point, missed, read)

    def _alone(self, review: Review, side: Composition, context: float) -> Iterator[Finding]:
        """One sequence against all weights of a device."""
        memory = side.memory
        if memory.resident_per_rank(context) < 1:
            return
        one = traffic(side, decode(1.0, context, float(side.scheduler.verify_tokens)))
        weights = sum(w.bytes_on(s) for s in range(memory.stages) for w in memory.weights)
        if one.cache <= self.option("ratio") * weights or one.weights <= 0:
            return
        path = _prompt_path(review)
        factor = (one.cache + one.weights) / one.weights
        yield Finding(
            path,
            f"one sequence of {tokens(context)} tokens (p99) reads {size(one.cache)} of KV cache a "
            f"token{_where(side)}, more than the {size(weights)} of weights: it decodes about {factor:.1f} times "
            "slower than a short one, and no objective bounds its pace",
            equation=f"({size(one.cache)} + {size(one.weights)}) / {size(one.weights)} = {factor:.2f}",
            inputs=self._inputs(review, side, context),
            help=_levers(review, one),
            severity=Severity.WARNING,
        )

    def _missed(self, review: Review, side: Composition, point: Point, missed: Miss, read: Traffic) -> Finding:
        objective, context = missed.objective, point.service.mix.mean_context
        return Finding(
            WEIGHTS,
            f"a step of {counted(point.batch, 'sequence')} of {tokens(context)} tokens reads {size(read.cache)} of KV "
            f"cache and {size(read.weights)} of weights{_where(side)}, and {named(objective)} is "
            f"{duration(missed.seconds)}, above {duration(objective.declared_s)}: narrower weights act on the "
            "smaller part",
            equation=f"{size(read.cache)} / ({size(read.cache)} + {size(read.weights)}) = {_share(read):.0%}",
            inputs=self._inputs(review, side, context),
            help=_levers(review, read),
            related=(Related(review.objective_path(objective), "the objective that is missed"),),
            severity=Severity.INFO,
        )

    def _inputs(self, review: Review, side: Composition, context: float) -> tuple[Input, ...]:
        memory = side.memory
        return (
            Input("context", round(context, 1), "tok", review.source("workload")),
            Input("KV bytes per token and device", memory.bytes_per_token(), "B", memory.cache_source),
        )


def _share(read: Traffic) -> float:
    return read.cache / (read.cache + read.weights)


def _where(side: Composition) -> str:
    return " on a device" if side.memory.stages == 1 else f" on the devices of {side.memory.stages} stages together"


def _levers(review: Review, read: Traffic) -> str:
    """What half the bits of weights and of cache would give at most, and what else shrinks the cache."""
    share = _share(read)
    weights = 1 / (1 - (1 - share) / 2)
    parts = [f"weights of half the bits make a step at most {weights:.2f} times faster"]
    if narrower_cache(review) is not None:
        cache = 1 / (1 - share / 2)
        parts.append(f"an FP8 KV cache at most {cache:.2f} times (policy.quantization.kv_cache, where the task allows)")
    parts.append("devices that split the KV heads, or a model with windows or latent attention, shrink it further")
    return "; ".join(parts)


def _prompt_path(review: Review) -> KeyPath:
    keys = ("prompt_tokens", "trace")
    return next((("workload", key) for key in keys if review.declared("workload", key)), ("workload",))
