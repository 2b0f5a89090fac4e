"""MEM001 weights-do-not-fit."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import dotted
from servelint.plugin import Case, Composition, Finding, Input, Lacks, MemoryLedger, Related, Review, Rule, Severity
from servelint_rules.layouts import parallelism, tensor_path, widened
from servelint_rules.mem.outside import refused, unplaced
from servelint_rules.show import floored, size
from servelint_rules.variants import sides

FACTORS = (2, 4, 8, 16, 32, 64)
"""How many times the devices are tried for a fit; engines split over powers of two."""


class WeightsDoNotFit(Rule):
    """The weights and fixed costs of a device exceed the memory that the engine may use.

    What it checks
    --------------
    On the fullest device: the weight shard in its stored format with scales, draft weights, runtime context,
    graphs and peak activations, against visible memory times utilization. A declared size of the KV cache must
    fit beside the weights too.

    Why it is bad
    -------------
    The server exits while loading, after the devices are paid for. When weights alone exceed the budget this
    is an error, and also when they leave less than one sequence of the maximum length needs, which keeps the server
    from starting; when only the estimated activations and runtime costs tip it over, a warning.

    The arithmetic
    --------------
    ``weights + reserves <= visible memory x utilization``; weights are parameters of the shard times stored
    bits / 8, metadata included.

    How to fix
    ----------
    More tensor or pipeline parallelism, a narrower weight format, or a device with more memory. The help line
    gives the smallest tensor-parallel degree that fits.

    Source
    ------
    Parameter ledger of the architecture; visible memory of the datasheet; the engine's memory policy.
    """

    code = "MEM001"
    name = "weights-do-not-fit"
    weighs = True
    severity = Severity.ERROR
    questions = ("why did it run out of memory", "does it start")
    failing = (
        Case(
            "a declared cache that does not fit beside the weights",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.kv_cache]
memory_bytes = "70 GB" # expect: MEM001
""",
            flip=("policy.kv_cache.memory_bytes", '"68 GB"'),
        ),
        Case(
            "70B in 16 bit on one H100",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B" # expect: MEM001
""",
            flip=("model.id", '"meta-llama/Llama-3.1-8B"'),
        ),
        Case(
            "70B in 16 bit on two devices of 40 GB",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-40gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B" # expect: MEM001
max_model_len = 2048
""",
            flip=("hardware.devices", "8"),
        ),
        Case(
            "weights that leave less than one sequence takes, whatever the activations do",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
devices = 2
[model]
id = "Qwen/Qwen1.5-72B" # expect: MEM001
[engine]
name = "vllm"
version = "0.3.2"
""",
            flip=("hardware.devices", "8"),
        ),
        Case(
            "a prefill pool that is too small for the model that the decode pool holds",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B" # expect: MEM001
max_model_len = 8192
[policy.disaggregation]
prefill = { tensor = 1 }
decode = { tensor = 4 }
""",
            flip=("policy.disaggregation.prefill.tensor", "4"),
        ),
    )
    passing = (
        Case(
            "a declared cache that fits beside the weights",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.kv_cache]
memory_bytes = "60 GB"
""",
        ),
        Case(
            "70B in 16 bit on four",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
        ),
        Case(
            "the same weights on the next larger device",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the fullest device of the replica, or of each pool, with its budget."""
        lacking = unplaced(review)
        if lacking is not None or review.composition is None:
            yield lacking or Lacks("a composed deployment")
            return
        for pool, side in sides(review.composition):
            fit, declared = side.memory.fit(side.memory.tightest), side.memory.cache_bytes
            if not side.memory.has_room:
                yield self._finding(review, pool, side)
            elif declared is not None and fit.weights + declared > side.memory.visible:
                yield self._cache(review, side, declared)

    def _cache(self, review: Review, side: Composition, declared: float) -> Finding:
        memory = side.memory
        fit = memory.fit(memory.tightest)
        room = memory.visible - fit.weights - fit.reserves
        path = ("policy", "kv_cache", "memory_bytes")
        return Finding(
            path,
            f"a KV cache of {size(declared)} is declared, and beside {size(fit.weights)} of weights a device has "
            f"{size(memory.visible)} in all",
            equation=(
                f"weights {size(fit.weights)} + cache {size(declared)} = {size(fit.weights + declared)} > "
                f"{size(memory.visible)} visible"
            ),
            inputs=(
                review.input("KV cache", declared, "B", *path),
                Input("weights per device", fit.weights, "B", review.source("model", "id")),
                *memory.budget_lineage.inputs[:1],
            ),
            help=f"set it to at most {size(max(room, 0.0))}, or leave it out: the engine takes what is left",
            related=(Related(("hardware", "accelerator"), "the memory it must fit in"),),
        )

    def _finding(self, review: Review, pool: str, side: Composition) -> Finding:
        memory = side.memory
        fit = memory.fit(memory.tightest)
        length = side.max_model_len
        # What reserves take is an estimate; without them nothing is left out that the engine could do without.
        alone = fit.weights > fit.budget
        none_served = not alone and refused(review) and not memory.bare.admits(length)
        certain = (alone or none_served) and not review.spills
        utilization = side.context.configs["kv_cache"].memory_utilization
        stages = f" on the fullest of {memory.stages} stages" if memory.stages > 1 else ""
        where = f"of the {pool} pool" if pool else ""
        need = fit.weights + fit.reserves
        path = ("model", "id") if review.declared("model", "id") else ("model", "config")
        split = tensor_path(review, pool)
        devices = "the memory it must fit in" if split[-1] == "accelerator" else "over so many devices"
        return Finding(
            path,
            " ".join(filter(None, (f"a device{stages}", where, f"has to hold {size(fit.weights)} of weights")))
            + (f" and {size(fit.reserves)} of runtime and activations" if fit.reserves else "")
            + f", and the engine may use {size(fit.budget)} of it"
            + ("; it keeps the layers that do not fit in host memory, and steps wait for them" if review.spills else "")
            + (
                f"; even without the latter, no sequence of {length:,} tokens would fit, which needs "
                f"{size(_request(memory, length))} of cache"
                if none_served
                else ""
            ),
            equation=(
                f"weights {size(fit.weights)} + reserves {size(fit.reserves)} = {size(need)} > "
                f"{size(memory.visible)} visible x {utilization:g} utilization = {size(fit.budget)}"
            ),
            inputs=(
                Input("weights per device", fit.weights, "B", review.source(*path)),
                *(Input(r.name, r.bytes, "B", r.lineage.inputs[0].source) for r in memory.reserves),
                *memory.budget_lineage.inputs,
            ),
            help=_help(review, pool, side),
            related=(Related(split, devices),),
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence="high" if certain else "medium",
        )


def _request(memory: MemoryLedger, length: int) -> float:
    return max(memory.request_bytes(length, stage) for stage in range(memory.stages))


def _help(review: Review, pool: str, side: Composition) -> str:
    memory = side.memory
    fit = memory.fit(memory.tightest)
    if fit.budget <= fit.reserves:
        return "the reserves alone exceed the budget: raise memory_utilization or lower max_batched_tokens"
    params = sum(w.params * w.repeats[memory.tightest] for w in memory.weights)
    bits = fit.weights * 8 / params
    fitting = floored(bits * (fit.budget - fit.reserves) / fit.weights)
    narrower = f"store the weights in fewer than {fitting:g} bits, now {bits:.1f}"
    wide = _wide_enough(side)
    if wide is None:
        return f"add pipeline stages or a device with more memory; or {narrower}"
    then, devices = wide.memory.fit(wide.memory.tightest), wide.setup.topology.devices
    held = ("policy", "disaggregation", pool) if pool else ("hardware",)
    tensor = (*held, "tensor") if pool else ("policy", "parallelism", "tensor")
    edits = [f"{dotted(tensor)} = {parallelism(wide).t}"]
    if review.declared(*held, "devices"):
        edits.append(f"{dotted((*held, 'devices'))} = {devices}")
    return (
        f"set {' and '.join(edits)}: {devices} devices hold {size(then.weights)} of weights each, with "
        f"{size(then.left)} left for the KV cache; or {narrower}"
    )


def _wide_enough(side: Composition) -> Composition | None:
    """The least doubling of the devices that holds the weights; None where the heads do not divide that far."""
    for factor in FACTORS:
        wide = widened(side, factor)
        if wide is None or wide.memory.has_room:
            return wide
    return None
