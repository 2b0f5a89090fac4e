"""MEM003 kv-pressure-cascade."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.distribution import Lengths
from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    MemoryLedger,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Mix, Service
from servelint_rules.averages import averaged
from servelint_rules.show import counted, sequences, size, token_rate, tokens
from servelint_rules.variants import narrower_cache, written

CONCURRENCY: KeyPath = ("workload", "concurrency")
SIZED_FOR: KeyPath = ("deployment", "sized_for")
SLOTS: KeyPath = ("policy", "batching", "max_sequences")
CAP: KeyPath = ("policy", "kv_cache", "max_tokens")
ROUND = 256
"""Tokens that the largest cache is a multiple of."""
POSITIONS = (0.125, 0.375, 0.625, 0.875)
"""Shares of the output at which a running sequence is looked at: it is equally likely anywhere in it."""


class Held(NamedTuple):
    """Bytes of KV cache and state that a running sequence holds, and the room for them, on the tightest device.

    ``prompt`` is what it holds when it is admitted, before its output grows.
    """

    mean: float
    deviation: float
    prompt: float
    room: float

    def demand(self, count: float, spread: float, k: float) -> float:
        """Mean plus ``k`` deviations of what ``count`` sequences hold whose number has the variance ``spread``."""
        return count * self.mean + k * self.sigma(count, spread)

    def sigma(self, count: float, spread: float) -> float:
        """Standard deviation of the sum: of the lengths, and of the number of sequences."""
        return math.sqrt(count * self.deviation**2 + spread * self.mean**2)

    def evicted(self, count: float, spread: float) -> float:
        """Share of admitted sequences that do not fit once they have grown, the sum being about normal.

        No more are admitted than have room for their prompts; the rest waits and costs nothing.
        """
        count = min(count, self.room / self.prompt)
        sigma, over = self.sigma(count, spread), count * self.mean - self.room
        if sigma <= 0:
            return max(over, 0.0) / self.mean / count
        z = over / sigma
        above = 0.5 * (1 + math.erf(z / math.sqrt(2)))
        return (sigma * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) + over * above) / self.mean / count

    def safe(self, k: float) -> int:
        """The largest fixed number of sequences whose demand fits: the root of a quadratic in sqrt(count)."""
        half = k * self.deviation
        root = (math.sqrt(half**2 + 4 * self.mean * self.room) - half) / (2 * self.mean)
        return int(root**2 * (1 + 1e-12))


class Load(NamedTuple):
    """How many sequences the load keeps on a rank: mean, variance, and where the spec says so."""

    number: float
    spread: float
    path: KeyPath
    words: str
    severity: Severity


class KvPressureCascade(Rule):
    """More sequences run at once than the KV cache holds once their contexts have grown.

    What it checks
    --------------
    The sequences that the load keeps in flight (at the declared rate those of the operating point with their
    fluctuation; a declared concurrency; without either, as advice, a declared ``max_sequences``), as far as
    admission lets them in, times the bytes that a running sequence holds. The sum over sequences has a mean and a
    deviation; pressure is mean plus ``sigmas`` deviations above the room for KV. An engine's default
    ``max_sequences`` never causes a finding, it only limits one. Prompt tokens found in the prefix cache count
    as shared. Silent where the load cannot be carried even in the mean (SLO007), where not one sequence fits
    (MEM002), where all that admission lets in fits at full length, where blocks are offloaded, and for TensorRT-LLM,
    which by default admits only what it can finish.

    llama.cpp, whose slots may share one cache of ``--ctx-size`` tokens, evicts nothing that runs. There also, without a
    load: whether its slots hold a context of ``deployment.sized_for`` each; a warning, since slots share a cache
    because they are seldom all full at once.

    Why it is bad
    -------------
    Engines admit by prompt length. When contexts grow past the cache they evict the youngest sequences and
    later prefill them again; that work slows every step, sequences stay longer, more of them overlap, and more
    are evicted. Throughput falls although nothing ran out of memory.

    llama.cpp has no such way out: when the cache that its slots share is full, requests that run end with an error.
    With one request at a time none of it shows.

    The arithmetic
    --------------
    ``n x m + k x sqrt(n x s^2 + V x m^2) <= room``, m and s the mean and deviation of a sequence's bytes over the
    time it runs, V the variance of the number in flight: 0 for a fixed one, ``n (1 + cv^2) / 2`` at a rate. Of the
    ``min(n, room / prompt)`` that are admitted, those that do not fit on average are evicted once in their time
    and their tokens prefilled again: with as many output as prompt tokens at most a third. From ``evicted`` on, 1 %
    of requests, the p99 feels it. Where requests fail instead it is a warning at once, and an error where a declared
    concurrency does not fit on average.

    How to fix
    ----------
    Admit no more sequences than the help line says and let the rest wait, or make room: a narrower KV cache,
    more memory per replica, more replicas; for llama.cpp a larger ``--ctx-size``, as far as memory holds it.

    Source
    ------
    Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention
    (arXiv 2309.06180), section 4.5. Recompute preemption observed: vllm-project/vllm#25780 (1,024 prompt and 1,024
    output tokens: a third of the prefilled tokens were recomputed) and #18115. Requests that failed: ggml-org/llama.cpp
    #16736, #23652.
    """

    code = "MEM003"
    name = "kv-pressure-cascade"
    weighs = True
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why did throughput collapse", "why is p99 bad", "how many requests run at once")
    options = (
        Option("sigmas", 2.0, "deviations above the mean that the KV cache must hold (2: 98 % of the time)", 0.0, 6.0),
        Option("evicted", 0.01, "share of requests evicted from which on it is a warning, below it advice", 0.0, 1.0),
    )
    failing = (
        Case(
            "a closed loop of more conversations than fit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 64 # expect: MEM003
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
concurrency = 64
""",
            flip=("policy.batching.max_sequences", "29"),
        ),
        Case(
            "one sequence more than fits",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 32 # expect: MEM003
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
concurrency = 64
""",
            flip=("policy.batching.max_sequences", "31"),
        ),
        Case(
            "a rate whose bursts do not fit, and a default admission limit that does not stop them",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
[policy.quantization]
weights = "fp8"
[policy.batching]
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
rate = "0.7 req/s" # expect: MEM003
""",
            flip=("workload.rate", '"0.4 req/s"'),
        ),
        Case(
            "slots that share less than their requests need together",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 33000
[engine]
name = "llama.cpp"
[policy.batching]
max_sequences = 8 # expect: MEM003
[policy.kv_cache]
max_tokens = 33000
[workload]
prompt_tokens = 4000
output_tokens = 400
concurrency = 8
""",
            flip=("policy.batching.max_sequences", "7"),
        ),
        Case(
            "slots that share less than each of them is sized for",
            """\
servelint = 1
[deployment]
sized_for = 8193
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[engine]
name = "llama.cpp"
[policy.batching]
max_sequences = 4 # expect: MEM003
[policy.kv_cache]
max_tokens = 32768
""",
            flip=("deployment.sized_for", "8192"),
        ),
    )
    passing = (
        Case(
            "the last number that fits",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 31
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
concurrency = 64
""",
        ),
        Case(
            "a default admission limit far above what fits, and a load far below it",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
rate = "0.2 req/s"
""",
        ),
        Case(
            "no load declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
""",
        ),
        Case(
            "slots that divide the context cannot outgrow it",
            """\
servelint = 1
[deployment]
sized_for = 8192
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[engine]
name = "llama.cpp"
version = "b5000"
args = "-c 32768 -np 4"
[workload]
prompt_tokens = 8000
output_tokens = 191
concurrency = 4
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what the load keeps in the KV cache with the room for it."""
        mix, scheduler = review.mix, review.scheduler
        if scheduler is None or review.composition is None:
            yield Lacks("a composed deployment")
            return
        if (why := _reserves(review)) is not None:
            yield Lacks(why)
            return
        pool = scheduler.disaggregation
        side = pool.decode.composition if pool is not None else review.composition
        if _fails(review) and _planned(review):
            yield from _slots(review, side)
            return
        if mix is None:
            yield Lacks("workload lengths")
            return
        service = review.service(mix)
        load = _load(review, service)
        if load is None:
            yield Lacks("a load that can be carried: workload.rate or workload.concurrency")
            return
        ranks, k = side.scheduler.ranks, self.option("sigmas")
        admitted = _admitted(service) / ranks
        held = _held(side.memory, mix)
        if held is None or held.room < held.mean or side.memory.resident_per_rank(side.max_model_len) >= admitted:
            return
        count, spread = load.number / ranks, load.spread / ranks
        # No more run than admission lets in.
        count, spread = min(
            ((count, spread), (admitted, 0.0)), key=lambda running: held.demand(running[0], running[1], k)
        )
        if count < 2 or held.demand(count, spread, k) <= held.room * (1 + 1e-9):
            return
        yield self._finding(review, service, load, held, count, spread, ranks)

    def _finding(
        self, review: Review, service: Service, load: Load, held: Held, count: float, spread: float, ranks: int
    ) -> Finding:
        k, safe, mix = self.option("sigmas"), held.safe(self.option("sigmas")), service.mix
        declared = review.declared(*SLOTS)
        path = SLOTS if declared else load.path
        each = " on each of the ranks" if ranks > 1 else ""
        mean, high = count * held.mean, held.demand(count, spread, k)
        evicted = held.evicted(count, spread)
        again, added = _recompute(service, evicted, min(count * ranks, float(max(service.batch_limit, 1))))
        if _fails(review):
            certain = load.path == CONCURRENCY and mean > held.room
            severity = Severity.ERROR if certain else Severity.WARNING
            then = "the engine evicts nothing that runs, and requests fail when the cache is full"
        else:
            severity = load.severity if evicted >= self.option("evicted") else Severity.INFO
            then = (
                f"about {evicted:.1%} of those admitted are evicted and prefilled again, {token_rate(again)} or "
                f"{added:.1%} on top of the prompts, and each eviction prolongs the overlap that causes the next"
            )
        return Finding(
            path,
            f"{load.words} {counted(count, 'sequence')}{each}, which hold {size(mean)} of KV cache a device on average "
            f"and {size(high)} at {k:g} deviations, where {size(held.room)} are free: {then}",
            equation=(
                f"{sequences(count)} x {size(held.mean)} + {k:g} x {size(held.sigma(count, spread))} = {size(high)} > "
                f"{size(held.room)}; a sequence holds {size(held.mean)} +- {size(held.deviation)} "
                f"(mean context {tokens(mix.mean_context)} tokens)"
            ),
            inputs=(
                Input("sequences", round(count, 1), "", review.source(*load.path)),
                averaged(review, "mean context", round(mix.mean_context, 1)),
                *_per_token(review),
                Input("room for KV cache a device", held.room, "B", review.source(*_room_path(review))),
                review.policy_input("batching", "max_sequences"),
            ),
            help=_help(review, load, held, safe, ranks, service.decode_replicas, high, mix.mean_context),
            related=_related(review, path, load),
            severity=severity,
            fix=Fix(f"admit {counted(safe, 'sequence')}", (Edit(path, str(safe)),))
            if declared and safe and _carried(review, safe)
            else None,
        )


def _reserves(review: Review) -> str | None:
    """What would have to be known where an engine does not evict and recompute."""
    if review.declared("policy", "kv_cache", "offload"):
        return "how fast evicted blocks come back from where policy.kv_cache.offload puts them"
    engine = review.engine
    if engine is not None and engine.when_full == "waits":
        admission = getattr(review.policy("batching"), "admission", None) or ""
        if admission.lower() != "max_utilization":
            return "a capacity scheduler that evicts (TensorRT-LLM's default admits only what it can finish)"
    return None


def _fails(review: Review) -> bool:
    return review.engine is not None and review.engine.when_full == "fails"


def _planned(review: Review) -> bool:
    """Whether the spec states what a request is to have, and no load that says how many run."""
    workload = review.deployment.workload
    loaded = workload is not None and (workload.concurrency is not None or workload.rate is not None)
    return review.declared(*SIZED_FOR) and not loaded


def _slots(review: Review, side: Composition) -> Iterator[Finding | Lacks]:
    """Whether all slots hold the context that the fleet is sized for, where requests of a full cache fail."""
    declared_size, most = review.deployment.deployment.sized_for, side.scheduler.max_sequences
    if declared_size is None or most is None or declared_size > side.max_model_len:
        return
    sized = math.ceil(declared_size)
    admitted, fits = most // side.scheduler.ranks, side.memory.resident_per_rank(sized)
    if not 1 <= fits < admitted:
        return
    declared = review.declared(*SLOTS)
    path = SLOTS if declared else SIZED_FOR
    need = admitted * sized
    yield Finding(
        path,
        f"{counted(admitted, 'sequence')} may run at once, and the KV cache holds {sequences(fits)} of the "
        f"{tokens(sized)} tokens that the fleet is sized for: the engine evicts nothing that runs, and "
        "requests fail when the cache is full",
        equation=f"{sequences(admitted)} x {tokens(sized)} = {tokens(need)} > {sequences(fits)} x {tokens(sized)}",
        inputs=(
            review.policy_input("batching", "max_sequences"),
            review.input("context", declared_size, "tok", *SIZED_FOR),
            Input("KV cache", side.memory.capacity_tokens(sized), "tok", review.source(*_room_path(review))),
        ),
        help=_admit(review, int(fits)) + _larger(review, side.memory, need, sized),
        related=(Related(SIZED_FOR, f"{tokens(sized)} tokens a request"),) if declared else (),
        severity=Severity.WARNING,
    )


def _admit(review: Review, most: int, ranks: int = 1) -> str:
    """The advice to admit no more, as the spec or its launch arguments would say it."""
    each = " a rank" if ranks > 1 else ""
    return f"admit at most {counted(most, 'sequence')}{each} ({written(review, SLOTS, most)})"


def _larger(review: Review, memory: MemoryLedger, need: int, length: float) -> str:
    """The advice to give the cache more tokens, as far as the memory holds them."""
    cap, most = memory.token_cap, evolve(memory, token_cap=None).capacity_tokens(length)
    if need <= most:
        return f"; or let the cache hold more ({written(review, CAP, need)})"
    more = most // ROUND * ROUND
    held = f"memory holds {tokens(most)} of the {tokens(need)} tokens"
    # Without a cap the cache has all that there is.
    return f"; {held}" if cap is None or more <= cap else f"; {held}: {written(review, CAP, more)} is the most"


def _room_path(review: Review) -> KeyPath:
    """What decides the room for the cache: its size in tokens where that is declared, else the memory."""
    return CAP if review.declared(*CAP) else ("hardware",)


def _load(review: Review, service: Service) -> Load | None:
    workload = review.deployment.workload
    rate = review.rate()
    if rate is not None:
        point = service.at_rate(rate)
        if point is None:
            return None
        # The number in a G/G/infinity system with exponential stays has this variance.
        spread = point.batch * (1 + service.mix.arrival_cv**2) / 2
        return Load(point.batch, spread, ("workload", "rate"), "the offered rate keeps", Severity.WARNING)
    if workload is not None and workload.concurrency is not None:
        count = -(-workload.concurrency // (review.replicas * service.decode_replicas))
        words = "the declared concurrency asks for"
        return Load(float(count), 0.0, CONCURRENCY, words, Severity.WARNING)
    if review.declared(*SLOTS):
        return Load(_admitted(service), 0.0, SLOTS, "full admission, should a load ever fill it, keeps", Severity.INFO)
    return None


def _carried(review: Review, admitted: int) -> bool:
    """Whether the declared rate is carried with so few admitted: else SLO007 would speak next."""
    mix, rate = review.mix, review.rate()
    if mix is None or rate is None:
        return True
    other = review.variant(batching=evolve(review.policy("batching"), max_sequences=admitted))
    return other is not None and Service(other, mix).at_rate(rate) is not None


def _admitted(service: Service) -> float:
    """Sequences of a replica that admission and token budget let run at once, whatever the KV cache holds."""
    scheduler = service.scheduler
    limits = [math.inf]
    if scheduler.max_sequences is not None:
        limits.append(float(scheduler.max_sequences))
    if scheduler.max_batched_tokens is not None and scheduler.mixed and not service.separate:
        limits.append(float(max(scheduler.max_batched_tokens // scheduler.verify_tokens, 1) * scheduler.ranks))
    return min(limits)


def _held(memory: MemoryLedger, mix: Mix) -> Held | None:
    """Moments of a running sequence's bytes on the device that runs out first, None when nothing is cached.

    A request runs as many steps as it has output tokens, so at any moment long outputs are over-represented, at a
    position that is equally likely anywhere in the output.
    """
    prompt = mix.prompt.scaled(1 - mix.prefix_hit, 1.0) if mix.prefix_hit else mix.prompt
    context = mix._replace(prompt=prompt).mean_context
    needs = [(memory.sequence_bytes(context, s), memory.cache_left(s), s) for s in range(memory.stages)]
    needs = [(need, room, s) for need, room, s in needs if need > 0]
    if not needs:
        return None
    _, room, stage = min(needs, key=lambda n: n[1] / n[0])
    held = [(weight, memory.sequence_bytes(tokens, stage)) for weight, tokens in _running(prompt, mix.output)]
    mean = sum(weight * each for weight, each in held)
    deviation = math.sqrt(sum(weight * (each - mean) ** 2 for weight, each in held))
    return Held(mean, deviation, memory.sequence_bytes(prompt.mean, stage), room)


def _running(prompt: Lengths, output: Lengths) -> Iterator[tuple[float, float]]:
    """Yield (weight, tokens in the cache) of a sequence at a moment while it runs."""
    length = sum(o.weight * o.tokens for o in output.nodes)
    for o in output.nodes:
        biased = o.weight * o.tokens / length / len(POSITIONS)
        for p in prompt.nodes:
            for share in POSITIONS:
                yield biased * p.weight, p.tokens + share * o.tokens


def _recompute(service: Service, evicted: float, batch: float) -> tuple[float, float]:
    """Tokens a second that evictions prefill again, and their share of the prompts' own."""
    point, mix = service.point(batch), service.mix
    again = point.rate * evicted * mix.mean_context
    return again, evicted * mix.mean_context / mix.computed(mix.prompt.mean)


def _per_token(review: Review) -> tuple[Input, ...]:
    memory = review.memory
    if memory is None or not memory.caches:
        return ()
    lineage = memory.caches[0].lineage.inputs
    return (Input("KV bytes per token and device", memory.bytes_per_token(), "B", lineage[0].source),)


def _related(review: Review, path: KeyPath, load: Load) -> tuple[Related, ...]:
    places = [(load.path, "how many sequences the load keeps")] if path != load.path else []
    for place in (CAP, ("policy", "quantization", "kv_cache"), ("hardware", "accelerator")):
        if review.declared(*place):
            places.append((place, "the memory they must fit in"))
            break
    return tuple(Related(place, text) for place, text in places)


def _help(
    review: Review, load: Load, held: Held, safe: int, ranks: int, decoding: int, high: float, length: float
) -> str:
    # Not one may fit of those that the percentile is about.
    text = _admit(review, safe, ranks) if safe else "serve shorter requests: of the longest not one fits by itself"
    if load.severity is Severity.WARNING and load.number > safe * ranks > 0:
        whole = load.number * review.replicas * decoding
        replicas = f"{math.ceil(whole / (safe * ranks))} replicas{' that decode' if decoding > 1 else ''}"
        text += f"; the load's {sequences(whole)} then take {replicas}, latency aside"
    memory = review.memory
    if memory is not None and memory.token_cap is not None and review.declared(*CAP):
        text += _larger(review, memory, math.ceil(memory.token_cap * high / held.room), length)
    elif narrower_cache(review) is not None:
        text += "; or make room: an FP8 KV cache holds about twice as many"
    return text
