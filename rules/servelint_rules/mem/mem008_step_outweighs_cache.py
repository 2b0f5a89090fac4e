"""MEM008 step-outweighs-cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Composition,
    Finding,
    Input,
    Lacks,
    MemoryLedger,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint_rules.show import counted, sequences, size, tokens
from servelint_rules.variants import sides, told

ACTIVATIONS = "peak activations"
BUDGET: KeyPath = ("policy", "batching", "max_batched_tokens")
SLOTS: KeyPath = ("policy", "batching", "max_sequences")


class Less(NamedTuple):
    """A smaller step: the keys of ``policy.batching`` that make it so, and the ledger that it leaves."""

    sizes: Mapping[KeyPath, int]
    memory: MemoryLedger


class StepOutweighsCache(Rule):
    """The buffers of one step take more memory than the KV cache gets.

    What it checks
    --------------
    On the fullest device: the peak activations of a step with a full token budget (``policy.batching``, or the
    engine's default) against what is left for the KV cache. Only where the cache is short: the declared load keeps more
    sequences than it holds, or, without a load, admission lets in more than fit at full length. Silent where a size of
    the cache is declared, where not one sequence fits (MEM001, MEM002), and where steps of 128 tokens for a single
    sequence would outweigh the cache as well.

    Why it is bad
    -------------
    Engines set aside the buffers of the largest step that their flags allow, and give the cache the rest. A budget of
    whole prompts, or the longest prompt of every slot at once, as TensorRT-LLM before 0.11 is built for, is rarely used
    and always paid: with sequences that wait for cache, or are evicted from it, while the step could be cut.

    The arithmetic
    --------------
    ``peak activations > ratio x (budget - weights - reserves)``, both of a device.

    How to fix
    ----------
    Fewer new tokens a step, with prompts in chunks, or fewer slots where the engine sizes its buffers by them. The help
    line says what that leaves.

    Source
    ------
    vllm-project/vllm#28228 (64,000 tokens a step: 2.3 GiB of cache on 24 GB); NVIDIA/TensorRT-LLM#224 (25 slots: room
    for two sequences).
    """

    code = "MEM008"
    name = "step-outweighs-cache"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("how many requests run at once", "why did throughput collapse")
    options = (Option("ratio", 1.0, "times the cache that the buffers of a step may take", 0.01, 1e6),)
    failing = (
        Case(
            "one token more than the cache outweighs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_batched_tokens = 28020 # expect: MEM008
""",
            flip=("policy.batching.max_batched_tokens", "28019"),
        ),
        Case(
            "buffers of an engine that is built for the longest prompt in each of 25 slots",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a10"
[model]
id = "meta-llama/Llama-2-7b-hf"
[engine]
name = "tensorrt-llm"
version = "0.5.0"
[policy.batching]
max_sequences = 25 # expect: MEM008
""",
            flip=("policy.batching.max_sequences", "8"),
        ),
        Case(
            "a load that the cache beside such a step does not hold",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_batched_tokens = 29000 # expect: MEM008
[workload]
prompt_tokens = 4000
output_tokens = 400
concurrency = 12
""",
            flip=("policy.batching.max_batched_tokens", "16384"),
        ),
    )
    passing = (
        Case(
            "a step in the usual size",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_batched_tokens = 2048
""",
        ),
        Case(
            "a load that the cache holds, whatever such a step takes",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_batched_tokens = 29000
[workload]
prompt_tokens = 4000
output_tokens = 400
concurrency = 4
""",
        ),
        Case(
            "a cache whose size is declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.11.0"
[policy.batching]
max_batched_tokens = 29000
[policy.kv_cache]
memory_bytes = "2.5 GiB"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the buffers of a step with the cache, on the replica or each pool."""
        if review.composition is None:
            yield Lacks("a composed deployment")
            return
        ratio = self.option("ratio")
        for pool, side in sides(review.composition):
            memory = side.memory
            if _step(memory) <= ratio * _room(memory) or memory.cache_bytes is not None or memory.token_cap is not None:
                continue
            if memory.has_room and memory.admits(side.max_model_len) and _short(review, side):
                less = _less(review, pool, side, ratio)
                if less is not None:
                    yield self._finding(review, pool, side, less)
                    return

    def _finding(self, review: Review, pool: str, side: Composition, less: Less) -> Finding:
        memory, length, ratio = side.memory, side.max_model_len, self.option("ratio")
        where = f" of the {pool} pool" if pool else ""
        reserve = next(r for r in memory.reserves if r.name == ACTIVATIONS)
        room, batching = _room(memory), side.context.configs["batching"]
        what = f"{tokens(batching.max_batched_tokens)} tokens"
        if SLOTS in less.sizes:
            what += f" for {counted(batching.max_sequences, 'sequence')}"
        path = next((key for key in less.sizes if review.declared(*key)), ("model", "id"))
        path = path if review.declared(*path) else ("model", "config")
        return Finding(
            path,
            f"a step of {what} sets aside {size(reserve.bytes)} of a device{where}, and the KV cache "
            f"gets the {size(room)} that are left, room for {sequences(memory.resident_per_rank(length))} of "
            f"{tokens(length)} tokens",
            equation=f"{size(reserve.bytes)} > {size(ratio * room)}"
            + (f" = {ratio:g} x {size(room)}" if ratio != 1 else ""),
            inputs=(
                *reserve.lineage.inputs,
                Input("KV cache of a device", room, "B", review.source("hardware")),
                *memory.budget_lineage.inputs,
            ),
            help=_help(less, length),
            related=(Related(("hardware", "accelerator"), "the memory that they share"),)
            if review.declared("hardware", "accelerator")
            else (),
        )


def _step(memory: MemoryLedger) -> float:
    """Bytes that the buffers of a step take on a device."""
    return sum(r.bytes for r in memory.reserves if r.name == ACTIVATIONS)


def _room(memory: MemoryLedger) -> float:
    """Bytes that are left for the cache on the fullest device."""
    return memory.fit(memory.tightest).left


def _short(review: Review, side: Composition) -> bool:
    """Whether more sequences want the cache than it holds."""
    mix, rate, running = review.mix, review.rate(), review.concurrency()
    if mix is not None and rate is not None:
        point = review.service(mix).at_rate(rate)
        running = math.inf if point is None else point.batch
    if mix is not None and running is not None:
        return running > review.service(mix).limits["KV capacity"]
    most = side.scheduler.max_sequences
    return most is not None and side.memory.resident_sequences(side.max_model_len) < most


def _less(review: Review, pool: str, side: Composition, ratio: float) -> Less | None:
    """The largest step, halved each time, that takes at most half of what it then leaves; else the least that helps.

    Halved is what its buffers grow with: the tokens, or the slots where each has its own part or logits of all are
    kept. None where no step that is run in practice leaves the cache more than ``ratio`` asks for.
    """
    from servelint_rules.slo.sizes import SMALLEST

    batching, found = side.context.configs["batching"], None
    declared = review.deployment.policies.get("batching") or batching
    whole = {BUDGET: batching.max_batched_tokens, SLOTS: batching.max_sequences}
    least, sizes, step = {BUDGET: SMALLEST, SLOTS: 1}, dict[KeyPath, int](), _step(side.memory)
    while True:
        tried = []
        for key in (BUDGET, SLOTS) if review.declared(*BUDGET) or not review.declared(*SLOTS) else (SLOTS, BUDGET):
            now = sizes.get(key, whole[key])
            # The next power of two below; none below one.
            if now is None or (half := (1 << (now - 1).bit_length()) // 2) < least[key]:
                continue
            smaller = _consistent(review, {**sizes, key: half}, whole)
            other = review.variant(batching=evolve(declared, **{str(path[-1]): n for path, n in smaller.items()}))
            if other is not None:
                tried.append((dict(sides(other))[pool].memory, smaller))
        if not tried:
            return found
        memory, smaller = min(tried, key=lambda t: _step(t[0]))
        if _step(memory) >= step:
            return found
        step, sizes = _step(memory), smaller
        if step <= ratio * _room(memory):
            found = Less(sizes, memory)
            if step <= _room(memory) / 2:
                return found


def _consistent(review: Review, sizes: dict[KeyPath, int], whole: Mapping[KeyPath, int | None]) -> dict[KeyPath, int]:
    """The sizes, with as many slots as vLLM starts with: it refuses more of them than a step has tokens."""
    budget, slots = sizes.get(BUDGET), sizes.get(SLOTS, whole[SLOTS])
    vllm = review.engine is not None and review.engine.name == "vllm"
    return {**sizes, SLOTS: budget} if vllm and budget and slots and slots > budget else sizes


def _help(less: Less, length: int) -> str:
    edits = told((key, str(n)) for key, n in less.sizes.items())
    how = ", with prompts in chunks" if BUDGET in less.sizes else ""
    return (
        f"set {edits}{how}: about {size(_room(less.memory))} are then left for the cache, room for "
        f"{sequences(less.memory.resident_per_rank(length))} of that length"
    )
