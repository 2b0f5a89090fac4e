"""MEM001 weights-do-not-fit."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint_rules.show import size


class WeightsDoNotFit(Rule):
    """The weights and fixed costs of a device exceed the memory that the engine may use.

    What it checks
    --------------
    On the fullest device: the weight shard in its stored format with scales, draft weights, runtime context,
    graphs and peak activations, against visible memory times utilization.

    Why it is bad
    -------------
    The server exits while loading, after the devices are paid for. When weights alone exceed the budget this
    is an error; when only the estimated activations and runtime costs tip it over, a warning.

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
    severity = Severity.ERROR
    questions = ("why did it run out of memory", "does it start")
    failing = (
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
    )
    passing = (
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
        """Compare the fullest device with its budget."""
        memory = review.memory
        if memory is None:
            yield Lacks("hardware.accelerator and model")
            return
        fit = memory.fit(memory.tightest)
        if fit.left > 0:
            return
        certain = fit.weights > fit.budget
        utilization = review.policy("kv_cache").memory_utilization
        degree = review.policy("parallelism").t
        stages = f" on the fullest of {memory.stages} stages" if memory.stages > 1 else ""
        need = fit.weights + fit.reserves
        path = ("model", "id") if review.declared("model", "id") else ("model", "config")
        yield Finding(
            path,
            f"a device{stages} has to hold {size(fit.weights)} of weights"
            + (f" and {size(fit.reserves)} of runtime and activations" if fit.reserves else "")
            + f", and the engine may use {size(fit.budget)} of it",
            equation=(
                f"weights {size(fit.weights)} + reserves {size(fit.reserves)} = {size(need)} > "
                f"{size(memory.visible)} visible x {utilization:g} utilization = {size(fit.budget)}"
            ),
            inputs=(
                Input("weights per device", fit.weights, "B", review.source(*path)),
                *(Input(r.name, r.bytes, "B", r.lineage.inputs[0].source) for r in memory.reserves),
                *memory.budget_lineage.inputs,
            ),
            help=_help(review, degree),
            related=_related(review),
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence="high" if certain else "medium",
        )


def _related(review: Review) -> tuple[Related, ...]:
    for path in (("policy", "parallelism", "tensor"), ("hardware", "devices"), ("hardware", "accelerator")):
        if review.declared(*path):
            return (Related(path, "the memory it must fit in"),)
    return ()


def _help(review: Review, degree: int) -> str:
    memory = review.memory
    if memory is None:
        return ""
    fit = memory.fit(memory.tightest)
    budget = fit.budget - fit.reserves
    if budget <= 0:
        return "the reserves alone exceed the budget: raise memory_utilization or lower max_batched_tokens"
    wanted = degree
    # Sharding divides what is sharded; powers of two are what engines accept.
    while wanted < 1024 and fit.weights * degree / wanted >= budget:
        wanted *= 2
    if wanted >= 1024:
        return f"the weights are {fit.weights / memory.visible:,.0f} times a device's memory"
    each = fit.weights * degree / wanted
    params = sum(w.params * w.repeats[memory.tightest] for w in memory.weights)
    bits = fit.weights * 8 / params
    return (
        f"set policy.parallelism.tensor = {wanted}: about {size(each)} of weights a device, {size(budget - each)} "
        f"left for the KV cache; or store the weights in fewer than {bits * budget / fit.weights:.1f} bits instead of "
        f"{bits:.1f}"
    )
