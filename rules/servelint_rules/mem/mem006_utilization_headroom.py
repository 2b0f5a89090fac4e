"""MEM006 utilization-headroom."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import (
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint_rules.layouts import fits, parallelism, tensor_path
from servelint_rules.mem.outside import GIB, captured_layers, captures, graphs_bytes, unlinked_peers, unplaced
from servelint_rules.show import size
from servelint_rules.variants import sides

UTILIZATION: KeyPath = ("policy", "kv_cache", "memory_utilization")
STEP = 0.01
LOGS = Source("default", "docs/rules/MEM006.md", "start-up logs")


class UtilizationHeadroom(Rule):
    """The utilization leaves less memory than graphs, activations and collectives take outside the budget.

    What it checks
    --------------
    What a device has beyond the engine's budget, by what the engine's fraction is of. Of everything (vLLM, TGI): the
    graphs are captured after the cache has filled the budget, with buffers for collectives where more than two devices
    have no direct link. Of weights and cache alone (SGLang): activations and runtime lie outside too. A declared size
    of the cache: what it leaves beside weights, activations and runtime. TGI sizes the cache by one trial prefill and
    never again: a cache below ``thin`` of the device has no slack for what later prompts take more.

    Silent without graphs (``engine.enforce_eager``), on devices that capture none, for a fraction that SGLang computes
    itself, for TensorRT-LLM, whose fraction is of what is free, and where the weights do not fit (MEM001).

    Why it is bad
    -------------
    The server loads for minutes and then exits in graph capture, or serves until the first long prompt. The advice to
    raise the fraction for more cache leads there; a share of a small device is a small number of bytes.

    The arithmetic
    --------------
    ``visible - budget >= graphs + slack + peers x buffers``, graphs 0.127 GiB + 0.0052 GiB a layer, which is the line
    through logged captures of 16 and 64 layers. Error below the graphs alone, of the one engine that was measured;
    warning below the sum. Static: ``visible - budget >= activations + runtime``, a warning.

    How to fix
    ----------
    The largest fraction that leaves enough is in the help line; or turn graphs off, or capture fewer sizes.

    Source
    ------
    Failed captures: vllm-project/vllm#16199 (0.44 GiB left), #57475 (0.45 GiB failed with 0.46 GiB of graphs, 0.67
    started), #7593 (2.2 GiB left on eight devices over PCIe); logged graphs: #11349, #57475. Late failures of TGI:
    huggingface/text-generation-inference#1374, and #1769 with 0.99.
    """

    code = "MEM006"
    name = "utilization-headroom"
    weighs = True
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why did it run out of memory", "does it start")
    options = (
        Option("slack_gib", 0.06, "GiB beside the graphs that allocators lose", 0.0, 64.0),
        Option("peer_gib", 0.31, "GiB of buffers for each device beyond two that no direct link joins", 0.0, 16.0),
        Option("thin", 0.1, "share of the device that TGI's cache must have, for prompts that take more", 0.0, 1.0),
    )
    failing = (
        Case(
            "0.98 of 22 GiB, and 62 layers of graphs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a10"
[model]
id = "google/gemma-3-27b-it"
max_model_len = 128
[engine]
name = "vllm"
version = "0.11.0"
[policy.quantization]
weights = "int4"
[policy.kv_cache]
memory_utilization = 0.98 # expect: MEM006
""",
            flip=("policy.kv_cache.memory_utilization", "0.97"),
        ),
        Case(
            "one step above the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.kv_cache]
memory_utilization = 0.984 # expect: MEM006
""",
            flip=("policy.kv_cache.memory_utilization", "0.983"),
        ),
        Case(
            "eight devices over PCIe",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
devices = 8
[model]
id = "google/gemma-2-9b"
[engine]
name = "vllm"
version = "0.5.4"
[policy.parallelism]
tensor = 8 # expect: MEM006
""",
            flip=("hardware.accelerator", '"nvidia/a100-sxm4-40gb"'),
        ),
        Case(
            "a static share that leaves no room for a prompt's activations",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "sglang"
version = "0.5.9"
[policy.kv_cache]
memory_utilization = 0.93 # expect: MEM006
""",
            flip=("policy.kv_cache.memory_utilization", "0.85"),
        ),
        Case(
            "a declared cache that leaves weights and activations, and no graphs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.kv_cache]
memory_bytes = "67.4 GB" # expect: MEM006
""",
            flip=("policy.kv_cache.memory_bytes", '"60 GB"'),
        ),
        Case(
            "a cache that TGI has no slack beside",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B" # expect: MEM006
max_model_len = 10049
[engine]
name = "tgi"
version = "2.4.0"
[policy.parallelism]
tensor = 2
[policy.batching]
max_batched_tokens = 10049
""",
            flip=("model.id", '"meta-llama/Llama-3.1-8B"'),
        ),
    )
    passing = (
        Case(
            "one step below the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.kv_cache]
memory_utilization = 0.983
""",
        ),
        Case(
            "no graphs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
args = ["--enforce-eager"]
[policy.kv_cache]
memory_utilization = 0.99
""",
        ),
        Case(
            "devices that a direct link joins",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-40gb"
devices = 8
[model]
id = "google/gemma-2-9b"
[engine]
name = "vllm"
version = "0.5.4"
[policy.parallelism]
tensor = 8
[policy.kv_cache]
memory_utilization = 0.97
""",
        ),
        Case(
            "the static share that SGLang computes",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "sglang"
version = "0.5.9"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what lies outside the budget with what has to, on the replica or each pool."""
        lacking = unplaced(review)
        if lacking is not None or review.composition is None:
            yield lacking or Lacks("a composed deployment")
            return
        for pool, side in sides(review.composition):
            memory = side.memory
            fit, declared = memory.fit(memory.tightest), memory.cache_bytes
            if not memory.has_room or (declared is not None and fit.weights + declared > memory.visible):
                continue
            found = self._static(review, pool, side) if memory.budget_kind == "static" else None
            if memory.budget_kind == "total" and captures(review, side):
                found = self._outside(review, pool, side) or self._thin(review, side)
            if found is not None:
                yield found
                return

    def _outside(self, review: Review, pool: str, side: Composition) -> Finding | None:
        """Graphs and buffers of collectives against what the budget, or the declared cache, leaves."""
        memory = side.memory
        fit, tensor = memory.fit(memory.tightest), parallelism(side).t
        peers = unlinked_peers(side, tensor)
        graphs, slack = graphs_bytes(side), self.option("slack_gib") * GIB
        buffers = peers * self.option("peer_gib") * GIB
        need = graphs + slack + buffers
        if memory.cache_bytes is None:
            room, over = memory.visible - fit.budget, f"{size(memory.visible)} - {size(fit.budget)}"
        else:
            room = memory.visible - fit.weights - fit.reserves - memory.cache_bytes
            parts = (memory.visible, fit.weights, fit.reserves, memory.cache_bytes)
            over = " - ".join(map(size, parts))
        if room >= need:
            return None
        among = f" and buffers among {tensor} devices that no direct link joins" if peers else ""
        parts_text = f"{size(graphs)} of graphs + {size(slack)} of slack"
        if peers:
            parts_text += f" + {peers} x {size(self.option('peer_gib') * GIB)} of buffers"
        certain = room < graphs and memory.cache_bytes is None and side.setup.engine.name == "vllm"
        left = f"{size(room)} of a device" if room > 0 else "nothing"
        layers = captured_layers(side)
        return self._finding(
            review,
            pool,
            side,
            f"{left} is left outside the budget, where the graphs of {layers} layers{among} take about {size(need)}",
            f"{over} = {size(room)} < {size(need)} = {parts_text}",
            need,
            (Input("graphs", round(graphs), "B", LOGS),),
            Severity.ERROR if certain else Severity.WARNING,
        )

    def _static(self, review: Review, pool: str, side: Composition) -> Finding | None:
        """Activations and runtime against what a declared static share leaves."""
        memory = side.memory
        if memory.cache_bytes is not None or not review.declared(*UTILIZATION):
            return None
        fit, room = memory.fit(memory.tightest), memory.visible - memory.budget
        need = sum(r.bytes for r in memory.reserves)
        if room >= need:
            return None
        parts = " + ".join(f"{size(r.bytes)} of {r.name}" for r in memory.reserves)
        return self._finding(
            review,
            pool,
            side,
            f"weights and cache may take {size(fit.budget)}, and the {size(room)} that a device has left must hold "
            f"{size(need)} of activations and runtime",
            f"{size(memory.visible)} - {size(fit.budget)} = {size(room)} < {size(need)} = {parts}",
            need,
            tuple(Input(r.name, r.bytes, "B", r.lineage.inputs[0].source) for r in memory.reserves),
            Severity.WARNING,
        )

    def _thin(self, review: Review, side: Composition) -> Finding | None:
        """A cache of TGI that is so small that what prompts take more than the trial prefill is not there."""
        memory = side.memory
        fit, share = memory.fit(memory.tightest), self.option("thin")
        if side.setup.engine.name != "tgi" or memory.cache_bytes is not None or fit.left >= share * memory.visible:
            return None
        path = next((p for p in (("model", "id"), ("model", "config")) if review.declared(*p)), ("model",))
        return Finding(
            path,
            f"the weights leave TGI {size(fit.left)} of cache on a device, {fit.left / memory.visible:.1%} of it; the "
            "cache is sized by one trial prefill, and prompts that take more than that find nothing free",
            equation=(
                f"budget {size(fit.budget)} - weights {size(fit.weights)} - reserves {size(fit.reserves)} = "
                f"{size(fit.left)} < {share:.0%} x {size(memory.visible)}"
            ),
            inputs=(
                Input("weights per device", fit.weights, "B", review.source(*path)),
                *memory.budget_lineage.inputs,
            ),
            help="more devices, narrower weights, or fewer prompt tokens a step (policy.batching.max_batched_tokens)",
            related=(Related(tensor_path(review), "the devices that hold the weights"),),
        )

    def _finding(
        self,
        review: Review,
        pool: str,
        side: Composition,
        message: str,
        equation: str,
        need: float,
        inputs: tuple[Input, ...],
        severity: Severity,
    ) -> Finding:
        where = f" (of the {pool} pool)" if pool else ""
        cache: KeyPath = ("policy", "kv_cache", "memory_bytes")
        path = next((p for p in (cache, UTILIZATION) if review.declared(*p)), tensor_path(review, pool))
        text, edit = _mended(review, side, need, cache if path == cache else UTILIZATION)
        return Finding(
            path,
            message + where,
            equation=equation,
            inputs=(*inputs, *side.memory.budget_lineage.inputs),
            help=text,
            related=(Related(("hardware", "accelerator"), f"{size(side.memory.visible)} visible"),)
            if path[0] != "hardware" and review.declared("hardware", "accelerator")
            else (),
            severity=severity,
            fix=Fix(f"set {path[-1]} to {edit}", (Edit(path, edit),))
            if edit and path in (cache, UTILIZATION)
            else None,
        )


def _mended(review: Review, side: Composition, need: float, path: KeyPath) -> tuple[str, str]:
    """The largest fraction (or size of the cache) that leaves enough and still holds the longest request, as text."""
    memory, config = side.memory, review.policy("kv_cache")
    none = "more memory, or fewer layers a device; "
    eager = "turn graph capture off (--enforce-eager)" if memory.budget_kind == "total" else "a smaller prefill_chunk"
    if path == UTILIZATION:
        share = math.floor((memory.visible - need) / memory.visible / STEP + 1e-9) * STEP
        if share <= 0:
            return none + eager, ""
        value = f"{share:.2f}"
        changed = evolve(config, memory_utilization=float(value))
    else:
        fit = memory.fit(memory.tightest)
        cache = math.floor((memory.visible - fit.weights - fit.reserves - need) / 1e9)
        if cache <= 0:
            return none + eager, ""
        value, changed = f'"{cache} GB"', evolve(config, memory_bytes=cache * 1e9)
    other = review.variant(kv_cache=changed)
    if other is None or not fits(other):
        return (
            f"less would not hold one request of {review.deployment.model.max_model_len or 'full'} tokens: {eager}",
            "",
        )
    return f"set policy.kv_cache.{path[-1]} = {value}; or {eager}", value
