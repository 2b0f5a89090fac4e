"""SLO006 itl-infeasible."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve

from servelint.plugin import (
    Case,
    CatalogueError,
    Composition,
    Finding,
    Input,
    Lacks,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.service import Objective
from servelint.shapes import StepShape
from servelint_rules.layouts import altered, decode_side, parallelism, tensor_path, widened
from servelint_rules.show import duration, tokens
from servelint_rules.slo.feasible import Alone, arithmetic, pace, peaks

WIDER = (2, 4, 8, 16)
NARROWER = (("fp8", "FP8"), ("int4", "4-bit"))


class ItlInfeasible(Rule):
    """The decode step of a single sequence takes longer than the ITL or TPOT objective.

    What it checks
    --------------
    Each percentile of ``slo.itl`` and ``slo.tpot`` against the bound of a decode step with one sequence at the
    workload's mean context (a median, if that is shorter). With speculation ITL is the whole step, drafts
    included, and TPOT is the step over the tokens that it keeps. An objective that only larger batches break is
    SLO001's.

    Why it is bad
    -------------
    A decode step reads every weight that a token touches. No batching, admission limit or number of replicas
    makes the step of one sequence shorter.

    The arithmetic
    --------------
    ``weight bytes + cache bytes`` of a device over its bandwidth, FLOPs over the dense rate, message bytes over
    the links; the largest counts. Error when it exceeds the objective even with the fewest experts that routing
    can touch (and, for an acceptance that nobody declared, with every draft kept), else warning.

    How to fix
    ----------
    Fewer bytes a token: narrower weights, a smaller model; or more devices that read at once (tensor
    parallelism); for TPOT, speculation. The help line says which of them meet the objective.

    Source
    ------
    docs/cost-model.md, bound of a decode step.
    """

    code = "SLO006"
    name = "itl-infeasible"
    weighs = True
    severity = Severity.ERROR
    questions = ("why is ITL high", "is this objective possible")
    failing = (
        Case(
            "70B in 16 bit on two devices cannot do 20 ms",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 2048
[policy.kv_cache]
memory_utilization = 0.95
[policy.batching]
max_sequences = 8
max_batched_tokens = 512
[workload]
prompt_tokens = 400
output_tokens = 100
rate = "0.05 req/s"
[slo]
itl = { p50 = "20 ms" } # expect: SLO006
""",
            flip=("slo.itl.p50", '"60 ms"'),
        ),
        Case(
            "one step above the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 500
output_tokens = 100
rate = "0.02 req/s"
[slo]
tpot = { p50 = "26.81 ms" } # expect: SLO006
""",
            flip=("policy.quantization.weights", '"int4"'),
        ),
        Case(
            "with speculation ITL is the whole step, drafts included",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[policy.speculation]
method = "draft"
tokens = 5
acceptance = 0.95
draft_model = "meta-llama/Llama-3.1-8B"
draft_tensor = 1
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "0.02 req/s"
[slo]
itl = { p50 = "20 ms" } # expect: SLO006
""",
            flip=("policy.speculation.tokens", "1"),
        ),
    )
    passing = (
        Case(
            "at the boundary",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 500
output_tokens = 100
rate = "0.02 req/s"
[slo]
tpot = { p50 = "26.82 ms" }
""",
        ),
        Case(
            "only a larger batch breaks it",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[workload]
prompt_tokens = 2000
output_tokens = 300
concurrency = 200
[slo]
itl = { p50 = "10 ms" }
""",
        ),
        Case(
            "a token of the speculated steps meets what the step does not",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[policy.speculation]
method = "eagle"
tokens = 3
acceptance = 0.8
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = "0.02 req/s"
[slo]
tpot = { p50 = "5 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare each ITL and TPOT objective with the bound of one sequence's step."""
        objectives = [o for o in review.objectives if o.metric in ("itl", "tpot")]
        if not objectives:
            yield Lacks("slo.itl or slo.tpot")
            return
        for objective in objectives:
            one = pace(review, objective)
            if one is None or review.composition is None:
                yield Lacks("a composed deployment and workload lengths")
                return
            if one.bound_s > objective.declared_s:
                yield self._finding(review, decode_side(review.composition), objective, one)

    def _finding(self, review: Review, side: Composition, objective: Objective, one: Alone) -> Finding:
        path = review.objective_path(objective)
        metric = objective.metric.upper()
        certain = one.floor_s > objective.declared_s
        step_s = one.bound_s * one.tokens
        kept = f"; {one.tokens:.2f} tokens a step: {duration(one.bound_s)} a token" if one.tokens != 1 else ""
        drafts = " with its drafts" if side.scheduler.verify_tokens > 1 else ""
        what = "a token of one sequence" if objective.metric == "tpot" else f"the decode step{drafts} of one sequence"
        return Finding(
            path,
            f"{what} takes at least {duration(one.bound_s)} on idle hardware, above the {metric} "
            f"{objective.percentile} objective of {duration(objective.declared_s)}",
            equation=(
                f"bound of one sequence at {tokens(float(one.shape.context))} tokens of context: "
                f"{arithmetic(side, one.shape, step_s)}{kept}"
            ),
            inputs=(
                Input("context", float(one.shape.context), "tok", review.source("workload")),
                Input(
                    "weights a device", side.memory.weights_bytes, "B", Source("computed", "memory ledger", "weights")
                ),
                review.input(f"{metric} {objective.percentile}", objective.declared_s, "s", *path),
                *peaks(side),
            ),
            help=_help(side, objective, one),
            related=(Related(tensor_path(review, "" if side is review.composition else "decode"), _devices(side)),),
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence="high" if certain else "medium",
        )


def _devices(side: Composition) -> str:
    t = parallelism(side).t
    return f"the weights are read by {t} devices at once" if t > 1 else "one device reads all of the weights"


def _help(side: Composition, objective: Objective, one: Alone) -> str:
    """Which single change meets the objective: narrower weights, more devices, no drafts."""
    limit, parts = objective.declared_s, []
    for name, other in _alternatives(side):
        seconds = _seconds(other, one.shape, objective)
        if seconds <= limit:
            parts.append(f"{name}: at least {duration(seconds)}")
    for factor in WIDER:
        wide = widened(side, factor)
        if wide is not None and (seconds := _seconds(wide, one.shape, objective)) <= limit:
            parts.append(f"tensor = {parallelism(wide).t}: at least {duration(seconds)}")
            break
    if parts:
        return "what would meet it by the bound: " + "; ".join(parts)
    return f"neither narrower weights nor more devices alone meet it; the bound as deployed is {duration(one.bound_s)}"


def _alternatives(side: Composition) -> Iterator[tuple[str, Composition]]:
    quantization = side.context.configs["quantization"]
    for name, shown in NARROWER:
        try:
            side.context.format(name)
        except CatalogueError:
            continue
        other = altered(side, quantization=evolve(quantization, weights=name))
        if other is not None:
            yield f"{shown} weights", other
    if side.scheduler.verify_tokens > 1:
        speculation = side.context.configs["speculation"]
        other = altered(side, speculation=evolve(speculation, tokens=0))
        if other is not None:
            yield "no speculation", other


def _seconds(side: Composition, shape: StepShape, objective: Objective) -> float:
    bound: Callable[[StepShape], float] = side.pricer.bound  # type: ignore[assignment]
    kept = side.scheduler.yield_per_step if objective.metric == "tpot" else 1.0
    return bound(shape._replace(new_tokens=float(side.scheduler.verify_tokens))) / kept
