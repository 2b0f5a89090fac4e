"""MEM008 step-outweighs-cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import evolve

from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    Case,
    Composition,
    Finding,
    Input,
    Lacks,
    MemoryLedger,
    Option,
    Related,
    Reserve,
    Review,
    Rule,
    Severity,
)
from servelint_rules.show import sequences, size, tokens
from servelint_rules.variants import sides

ACTIVATIONS = "peak activations"
BUDGET: KeyPath = ("policy", "batching", "max_batched_tokens")
SLOTS: KeyPath = ("policy", "batching", "max_sequences")


class StepOutweighsCache(Rule):
    """The buffers of one step take more memory than the KV cache gets.

    What it checks
    --------------
    On the fullest device: the peak activations of a step with a full token budget (``policy.batching``, or the
    engine's default) against what is left for the KV cache. Only where the cache is short: the declared load keeps more
    sequences than it holds, or, without a load, admission lets in more than fit at full length. Silent where a size of
    the cache is declared, where not one sequence fits (MEM001, MEM002), and where a smaller budget would not help.

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
        for pool, side in sides(review.composition):
            memory = side.memory
            step = next((r for r in memory.reserves if r.name == ACTIVATIONS), None)
            room = memory.fit(memory.tightest).left
            if step is None or memory.cache_bytes is not None or memory.token_cap is not None or room <= 0:
                continue
            if step.bytes > self.option("ratio") * room and memory.admits(side.max_model_len) and _short(review, side):
                yield self._finding(review, pool, side, step, room)
                return

    def _finding(self, review: Review, pool: str, side: Composition, step: Reserve, room: float) -> Finding:
        memory, length, ratio = side.memory, side.max_model_len, self.option("ratio")
        where = f" of the {pool} pool" if pool else ""
        budget = side.scheduler.max_batched_tokens or 0
        by_slots = _sized_by_slots(review, step)
        path = SLOTS if by_slots else BUDGET if review.declared(*BUDGET) else ("model", "id")
        path = path if review.declared(*path) else ("model", "config")
        return Finding(
            path,
            f"a step of {tokens(budget)} tokens sets aside {size(step.bytes)} of a device{where}, and the KV cache "
            f"gets the {size(room)} that are left, room for {sequences(memory.resident_per_rank(length))} of "
            f"{tokens(length)} tokens",
            equation=f"{size(step.bytes)} > {size(ratio * room)}"
            + (f" = {ratio:g} x {size(room)}" if ratio != 1 else ""),
            inputs=(
                *step.lineage.inputs,
                Input("KV cache of a device", room, "B", review.source("hardware")),
                *memory.budget_lineage.inputs,
            ),
            help=_help(review, side, step, by_slots),
            related=(Related(("hardware", "accelerator"), "the memory that they share"),)
            if review.declared("hardware", "accelerator")
            else (),
        )


def _sized_by_slots(review: Review, step: Reserve) -> bool:
    """Whether the engine sizes its steps by the declared slots: half of them take less."""
    declared = review.deployment.policies.get("batching")
    if review.declared(*BUDGET) or not review.declared(*SLOTS) or declared is None:
        return False
    other = review.variant(batching=evolve(declared, max_sequences=max(declared.max_sequences // 2, 1)))
    return other is not None and any(
        r.bytes <= step.bytes / 2 * (1 + 1e-9) for r in other.memory.reserves if r.name == ACTIVATIONS
    )


def _short(review: Review, side: Composition) -> bool:
    """Whether more sequences want the cache than it holds."""
    workload, mix = review.deployment.workload, review.mix
    if workload is not None and mix is not None and (workload.rate is not None or workload.concurrency is not None):
        service, rate = review.service(mix), review.rate()
        if rate is None:
            running = (workload.concurrency or 0) / (review.replicas * service.decode_replicas)
        else:
            point = service.at_rate(rate)
            running = math.inf if point is None else point.batch
        return running > service.limits["KV capacity"]
    most = side.scheduler.max_sequences
    return most is not None and side.memory.resident_sequences(side.max_model_len) < most


def _help(review: Review, side: Composition, step: Reserve, by_slots: bool) -> str:
    """The largest part, halved each time, that takes at most half of what it then leaves."""
    memory, length = side.memory, side.max_model_len
    others = tuple(r for r in memory.reserves if r is not step)

    def left(part: float) -> MemoryLedger:
        return evolve(memory, reserves=(*others, evolve(step, bytes=step.bytes * part)))

    def room(part: float) -> float:
        return left(part).fit(memory.tightest).left

    whole = review.policy("batching").max_sequences if by_slots else side.scheduler.max_batched_tokens or 1
    count = whole
    while count > 1:
        count = 1 << (count - 1).bit_length() - 1
        if step.bytes * count / whole <= room(count / whole) / 2:
            break
    key, how = (SLOTS, "") if by_slots else (BUDGET, ", with prompts in chunks")
    return (
        f"set {dotted(key)} = {count}{how}: about {size(room(count / whole))} are then left for the cache, room for "
        f"{sequences(left(count / whole).resident_per_rank(length))} of that length"
    )
