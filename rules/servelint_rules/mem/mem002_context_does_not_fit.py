"""MEM002 context-does-not-fit."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, MemoryLedger, Related, Review, Rule, Severity
from servelint.served import SEEN, percent, refused_by
from servelint_rules.mem.outside import refused, unplaced
from servelint_rules.show import size
from servelint_rules.variants import narrower_cache, sides

PATH: KeyPath = ("model", "max_model_len")
ROUND = 256
"""Tokens that a proposed size of a cache is a multiple of."""


class ContextDoesNotFit(Rule):
    """One sequence of the maximum length exceeds the KV capacity.

    What it checks
    --------------
    The KV cache and state of one sequence of ``model.max_model_len`` tokens (the model's own limit when the
    spec sets none) against what weights and reserves leave on the tightest device. As the engine's own check does:
    vLLM adds the tokens of a step to every window, and from 0.11.1 to 0.15 counts the layers of all pipeline stages.
    llama.cpp allocates the cache of all slots at start: there the whole ``--ctx-size`` counts.

    Why it is bad
    -------------
    Engines refuse to start; those that start preempt the first request that long for ever. Where it would fit but for
    the estimated runtime context, graphs and activations, this is a warning; where the spec sets no length and the
    engine is not known to refuse the model's own, advice only.

    The arithmetic
    --------------
    ``ceil(length / page) x page x KV bytes per token <= budget - weights - reserves``, per device, windows and
    fixed state taken into account.

    How to fix
    ----------
    Lower ``max_model_len`` to the length that the help line gives, store the KV cache in fewer bits, or add
    devices.

    Source
    ------
    KV layout of the architecture; the engine's memory policy.
    """

    code = "MEM002"
    name = "context-does-not-fit"
    weighs = True
    severity = Severity.ERROR
    questions = ("why did it run out of memory", "does it start")
    failing = (
        Case(
            "70B FP8 on one H100 at full length",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 131072 # expect: MEM002
[policy.quantization]
weights = "fp8"
[policy.kv_cache]
memory_utilization = 0.65
""",
            flip=("model.max_model_len", "32768"),
        ),
        Case(
            "the model's own length, when none is declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[engine]
name = "vllm"
[model]
id = "meta-llama/Llama-3.1-8B" # expect: MEM002
""",
            flip=("model.id", '"Qwen/Qwen2.5-0.5B"'),
        ),
        Case(
            "a release that counts the layers of all stages",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
devices = 2
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 100000 # expect: MEM002
[engine]
name = "vllm"
version = "0.12.0"
[policy.parallelism]
tensor = 1
pipeline = 2
""",
            flip=("model.max_model_len", "80000"),
        ),
        Case(
            "a cap on the cache's tokens",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768 # expect: MEM002
[engine]
name = "sglang"
version = "0.5.9"
[policy.kv_cache]
max_tokens = 32767
""",
            flip=("policy.kv_cache.max_tokens", "32768"),
        ),
        Case(
            "a cache that is allocated for all slots at start",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-4090"
[model]
id = "Qwen/Qwen2.5-32B-Instruct"
[engine]
name = "llama.cpp"
args = "-m Qwen2.5-32B-Instruct-Q4_K_M.gguf -c 65536 -np 4 -ctk q8_0 -ctv q8_0 -ngl 99" # expect: MEM002
""",
            flip=("engine.args", '"-m Qwen2.5-32B-Instruct-Q4_K_M.gguf -c 26624 -np 4 -ctk q8_0 -ctv q8_0 -ngl 99"'),
        ),
    )
    passing = (
        Case(
            "the same length in an FP8 cache",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 131072
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
""",
        ),
        Case(
            "weights that do not fit are MEM001's, not this rule's",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-70B"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare one longest sequence with the KV capacity of the replica, or of each pool."""
        lacking = unplaced(review)
        if lacking is not None or review.composition is None:
            yield lacking or Lacks("a composed deployment")
            return
        length = review.composition.max_model_len
        for pool, side in sides(review.composition):
            memory = side.memory
            if not memory.has_room and memory.cache_bytes is None:
                continue
            allocated = self._allocated(review, memory)
            if allocated is not None:
                yield allocated
            elif not memory.admits(length):
                yield self._finding(review, pool, memory, length)

    def _allocated(self, review: Review, memory: MemoryLedger) -> Finding | None:
        """The whole cache of an engine that allocates it at start, for all slots together, where it certainly fails."""
        setting = review.document.settings.get(PATH)
        if setting is None or not setting.written or not isinstance(setting.value, int):
            return None
        slots, each, bare = setting.slots if setting.divided else 1, setting.value, memory.bare
        stage = min(range(memory.stages), key=lambda s: bare.fit(s).left - slots * memory.sequence_bytes(each, s))
        need, room = slots * memory.sequence_bytes(each, stage), memory.fit(stage).left
        if need <= bare.fit(stage).left:
            return None
        most = int(setting.written * room / need) // ROUND * ROUND
        over = f" of {setting.slots} slots" if setting.slots > 1 else ""
        spilling = review.spills
        return Finding(
            PATH,
            f"the server allocates its KV cache at start, {size(need)} for the {setting.written:,} tokens{over}, and a "
            f"device has {size(room)} left"
            + ("; it keeps layers in host memory instead, and steps wait for them" if spilling else ""),
            equation=(
                f"{slots} x {size(need / slots)} = {size(need)} > {size(room)} = budget "
                f"{size(memory.fit(stage).budget)} - weights - reserves"
            ),
            inputs=(
                Input(setting.spelling, setting.written, "tok", review.source(*PATH)),
                *memory.budget_lineage.inputs,
            ),
            help=f"set {setting.spelling} {most}, the most that fits; or more devices" if most else "more devices",
            related=(Related(("hardware", "accelerator"), "the memory it must fit in"),),
            severity=Severity.WARNING if spilling else Severity.ERROR,
            confidence="medium" if spilling else "high",
        )

    def _finding(self, review: Review, pool: str, memory: MemoryLedger, length: int) -> Finding:
        stage = min(range(memory.stages), key=lambda s: memory.cache_left(s) - memory.request_bytes(length, s))
        need, left, per_token = (
            memory.request_bytes(length, stage),
            memory.cache_left(stage),
            memory.bytes_per_token(stage),
        )
        fits = longest(memory, length)
        declared = review.declared("model", "max_model_len")
        paths = (("model", "max_model_len"), ("model", "id"), ("model", "config"))
        path = next((p for p in paths if review.declared(*p)), ("model",))
        own = "" if declared else " (the model's own limit: the spec sets no max_model_len)"
        where = f" of the {pool} pool" if pool else ""
        every = f", which this release counts for all {memory.stages} stages" if memory.asks_for_all_stages else ""
        # What runtime, graphs and activations take is an estimate; without them there may be room.
        severity = Severity.WARNING if memory.bare.admits(length) else Severity.ERROR
        if review.spills:
            severity = Severity.WARNING
        if not refused(review):
            severity = Severity.INFO
        fit, model = memory.fit(stage), ("model", "id") if review.declared("model", "id") else ("model", "config")
        whole = abs(memory.paged(length) * per_token - need) < 1
        product = f"{memory.paged(length):,} tokens x {per_token:,.0f} B a token and device"
        return Finding(
            path,
            f"one sequence of {length:,} tokens{own} needs {size(need)} of KV cache{every} on a device{where} "
            f"that has {size(left)} left",
            equation=(
                f"{product if whole else 'windows, fixed state and cached tokens of all layers'} = {size(need)} > "
                f"{size(left)} = {_room(memory, stage)}"
            ),
            inputs=(
                Input("max_model_len", length, "tok", review.source(*path)),
                Input("KV bytes per token and device", per_token, "B", memory.cache_source)
                if memory.caches
                else Input("state bytes", need, "B", review.source(*path)),
                Input("weights per device", fit.weights, "B", review.source(*model)),
                *(Input(r.name, r.bytes, "B", r.lineage.inputs[0].source) for r in memory.reserves),
                *memory.budget_lineage.inputs,
            ),
            help=_help(review, fits, length),
            related=(Related(("hardware", "accelerator"), "the memory it must fit in"),),
            fix=(
                Fix(f"set max_model_len to {fits}", (Edit(path, str(fits)),))
                if declared and fits and refused_by(review, fits) <= SEEN
                else None
            ),
            severity=severity,
            confidence="high" if severity is Severity.ERROR else "medium",
        )


def _room(memory: MemoryLedger, stage: int) -> str:
    """Where the room for the cache of a stage comes from."""
    fit = memory.fit(stage)
    if memory.cache_bytes is not None:
        return "the declared size of the cache"
    if memory.cache_left(stage) < fit.left:
        return f"the {memory.token_cap or 0:,} tokens that the cache is given"
    return f"budget {size(fit.budget)} - weights {size(fit.weights)} - reserves {size(fit.reserves)}"


def _help(review: Review, fits: int, length: int) -> str:
    narrow, parts = narrower_cache(review), []
    if fits:
        share = refused_by(review, fits)
        cost = f", and refuses {percent(share)} of the prompts" if share > SEEN else ""
        parts.append(f"set model.max_model_len = {fits}, the most that fits{cost}")
    if narrow is not None and (wider := min(longest(side.memory, length) for _, side in sides(narrow))) > fits:
        length_too = "" if wider == length else f"model.max_model_len = {wider} and "
        parts.append(f'set {length_too}policy.quantization.kv_cache = "fp8", which fits {wider:,} tokens')
    return "; or ".join((*parts, "more devices"))


def longest(memory: MemoryLedger, limit: int) -> int:
    """Return the longest sequence that fits, in whole pages."""
    found = memory.longest_request(limit)
    return found if found == limit else found // memory.page_size * memory.page_size
