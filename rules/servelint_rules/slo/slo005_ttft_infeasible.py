"""SLO005 ttft-infeasible."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint.service import Mix, Objective
from servelint.shapes import StepShape, prefill
from servelint_rules.layouts import parallelism, prefill_side, widened
from servelint_rules.show import duration, tokens
from servelint_rules.slo.feasible import Alone, arithmetic, first_token, peaks

WIDER = (2, 4, 8, 16)


class TtftInfeasible(Rule):
    """The prefill of one prompt alone takes longer than the TTFT objective.

    What it checks
    --------------
    Each percentile of ``slo.ttft`` against the bound of prefilling a prompt of that percentile's length on idle
    hardware: no queue, no chunks, no decoding beside it, the prefix-cache hits taken off. A TTFT that only
    queues or chunks break is SLO001's.

    Why it is bad
    -------------
    No scheduler, batch size or number of replicas helps a request that is too late when it has the hardware to
    itself.

    The arithmetic
    --------------
    ``prompt x (1 - prefix hit)`` tokens over the cached rest: the FLOPs, bytes and link bytes of that prefill,
    each over its peak; the largest counts. Error when it exceeds the objective even with the fewest experts
    that routing can touch, else warning.

    How to fix
    ----------
    Shorter prompts or more prefix reuse, as the help line says; more tensor parallelism; a precision with a
    higher rate; or an objective that the hardware can meet.

    Source
    ------
    docs/cost-model.md, bound of a prefill.
    """

    code = "SLO005"
    name = "ttft-infeasible"
    weighs = True
    severity = Severity.ERROR
    questions = ("why is TTFT high", "is this objective possible")
    failing = (
        Case(
            "a 70B model on two devices, long prompts, a tight objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 32768
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
[workload]
prompt_tokens = { p50 = 4000, p99 = 24000 }
output_tokens = 200
rate = "0.02 req/s"
[slo]
ttft = { p50 = "600 ms", p99 = "900 ms" } # expect: SLO005
""",
            flip=("slo.ttft.p99", '"8 s"'),
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
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 5719
output_tokens = 100
rate = "0.02 req/s"
[slo]
ttft = { p90 = "400 ms" } # expect: SLO005
""",
            flip=("workload.prompt_tokens", "1000"),
        ),
        Case(
            "prefix hits that are not enough",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "Qwen/Qwen3-32B"
max_model_len = 32768
[policy.quantization]
weights = "int4"
[workload]
prompt_tokens = 16000
output_tokens = 300
rate = "0.02 req/s"
prefix_hit = { value = 0.3, basis = "measured", source = "router metrics, week 40" }
[slo]
ttft = { p95 = "2 s" } # expect: SLO005
""",
            flip=("workload.prefix_hit.value", "0.9"),
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
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 5718
output_tokens = 100
rate = "0.02 req/s"
[slo]
ttft = { p90 = "400 ms" }
""",
        ),
        Case(
            "an objective without workload lengths",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[slo]
ttft = { p90 = "1 ms" }
""",
        ),
        Case(
            "prompts are prefilled on a pool of their own, which is fast enough",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
devices = 2
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.disaggregation]
prefill = { accelerator = "nvidia/h100-sxm5-80gb", devices = 1 }
decode = { devices = 2, tensor = 2 }
transfer = { bandwidth = "5 GB/s" }
[workload]
prompt_tokens = 4000
output_tokens = 100
rate = "0.1 req/s"
[slo]
ttft = { p90 = "400 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare each TTFT objective with the bound of its prompt's prefill."""
        objectives = [o for o in review.objectives if o.metric == "ttft"]
        if not objectives:
            yield Lacks("slo.ttft")
            return
        for objective in objectives:
            one = first_token(review, objective)
            if one is None or review.composition is None or review.mix is None:
                yield Lacks("a composed deployment and workload lengths")
                return
            if one.bound_s > objective.declared_s:
                yield self._finding(review, prefill_side(review.composition), review.mix, objective, one)

    def _finding(self, review: Review, side: Composition, mix: Mix, objective: Objective, one: Alone) -> Finding:
        path = review.objective_path(objective)
        certain = one.floor_s > objective.declared_s
        hit = f", {mix.prefix_hit:.0%} of it cached" if mix.prefix_hit else ""
        prompt = "mean" if objective.percentile == "mean" else objective.percentile
        key = _prompt_path(review)
        return Finding(
            path,
            f"prefilling the {prompt} prompt of {tokens(one.tokens)} tokens{hit} takes at least "
            f"{duration(one.bound_s)} on idle hardware, above the TTFT {objective.percentile} objective of "
            f"{duration(objective.declared_s)}",
            equation=f"bound of {_work(one.shape)}: {arithmetic(side, one.shape, one.bound_s)}",
            inputs=(
                Input("prompt", one.tokens, "tok", review.source(*key)),
                *(
                    [Input("prefix hit", mix.prefix_hit, "", review.source("workload", "prefix_hit"))]
                    if mix.prefix_hit
                    else []
                ),
                review.input(f"TTFT {objective.percentile}", objective.declared_s, "s", *path),
                *peaks(side),
            ),
            help=_help(side, mix, objective, one),
            related=(Related(key, f"the prompts: {prompt} {tokens(one.tokens)} tokens"),),
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence="high" if certain else "medium",
        )


def _work(shape: StepShape) -> str:
    cached = f" over {tokens(float(shape.prefill_context))} cached" if shape.prefill_context else ""
    return f"{tokens(float(shape.prefill_tokens))} new tokens{cached}"


def _prompt_path(review: Review) -> KeyPath:
    return next(
        (("workload", key) for key in ("prompt_tokens", "trace") if review.declared("workload", key)), ("workload",)
    )


def _help(side: Composition, mix: Mix, objective: Objective, one: Alone) -> str:
    """The longest prompt that meets the objective, and the tensor-parallel degree that this prompt needs."""
    parts = []
    longest = _longest(side, mix, objective.declared_s, int(one.tokens))
    if longest:
        parts.append(f"prompts of at most {tokens(longest)} tokens meet it")
    else:
        parts.append(f"not even one token meets it: the objective must be above {duration(_seconds(side, mix, 1.0))}")
    for factor in WIDER:
        wide = widened(side, factor)
        if wide is not None and (seconds := _seconds(wide, mix, one.tokens)) <= objective.declared_s:
            parts.append(f"tensor = {parallelism(wide).t} takes at least {duration(seconds)} for this prompt")
            break
    else:
        parts.append(f"the least that this deployment can promise for this prompt is {duration(one.bound_s)}")
    return "; ".join(parts)


def _longest(side: Composition, mix: Mix, limit_s: float, beyond: int) -> int:
    low, high = 0, beyond
    while high - low > 1:
        middle = (low + high) // 2
        if _seconds(side, mix, float(middle)) <= limit_s:
            low = middle
        else:
            high = middle
    return low


def _seconds(side: Composition, mix: Mix, prompt: float) -> float:
    bound: Callable[[StepShape], float] = side.pricer.bound  # type: ignore[assignment]
    new = mix.computed(prompt)
    return bound(prefill(new, max(prompt - new, 0.0)))
