"""CTX005 prefill-quadratic."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.shapes import StepShape
from servelint_rules.ctx.traffic import Work, work
from servelint_rules.derivation import named
from servelint_rules.layouts import prefill_side
from servelint_rules.show import duration, tokens
from servelint_rules.slo.feasible import Alone, first_token


class PrefillQuadratic(Rule):
    """Attention dominates the prefill of these prompts, so its time grows with the square of their length.

    What it checks
    --------------
    For each percentile of ``slo.ttft`` that the prefill of its prompt alone, on idle hardware, does not meet: whether
    more than half of its FLOPs are attention that pairs every token with every earlier one. Windows and chunks do not
    count. Beside SLO005 or SLO001, which say that the objective is missed, this says which levers do not move it.

    Why it is bad
    -------------
    A lower precision of weights makes GEMMs faster and leaves attention, which runs in 16 bit, as it is; more batch or
    larger chunks change nothing. Twice the prompt takes four times as long, so that the longest prompts decide.

    The arithmetic
    --------------
    ``attention = 4 x heads x head size x (n c + n (n + 1) / 2)`` FLOPs a layer for n new tokens over c cached ones,
    against ``2 x parameters x n``.

    How to fix
    ----------
    Shorter prompts, or prefix reuse, which takes the square with it; context parallelism; a model whose layers have
    windows or sparse attention; devices that split the heads.

    Source
    ------
    docs/cost-model.md, attention.
    """

    code = "CTX005"
    name = "prefill-quadratic"
    severity = Severity.INFO
    confidence = "high"
    questions = ("why is TTFT high", "will quantization help")
    options = (Option("share", 0.5, "share of a prefill's FLOPs that attention must have", 0.01, 1.0),)
    failing = (
        Case(
            "120K tokens on an 8B model",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = 120000
output_tokens = 200
[slo]
ttft = { p50 = "1 s" } # expect: CTX005, SLO005
""",
            flip=("workload.prompt_tokens", "50000"),
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
prompt_tokens = 53248
output_tokens = 200
[slo]
ttft = { p50 = "1 s" } # expect: CTX005, SLO005
""",
            flip=("workload.prompt_tokens", "53247"),
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
prompt_tokens = 53247
output_tokens = 200
[slo]
ttft = { p50 = "1 s" } # expect: SLO005
""",
        ),
        Case(
            "an objective that leaves the time",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = 120000
output_tokens = 200
[slo]
ttft = { p50 = "60 s" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look at the prefill of each TTFT objective's prompt."""
        objectives = [o for o in review.objectives if o.metric == "ttft"]
        if not objectives:
            return
        for objective in objectives:
            one = first_token(review, objective)
            if one is None or review.composition is None:
                yield Lacks("a composed deployment and workload lengths")
                return
            side = prefill_side(review.composition)
            estimate: Callable[[StepShape], float] = side.pricer.estimate  # type: ignore[assignment]
            seconds = estimate(one.shape)
            if max(seconds, one.bound_s) <= objective.declared_s:
                continue
            found = work(side, one.shape)
            if found.share > self.option("share"):
                path = review.objective_path(objective)
                yield self._finding(review, side, path, named(objective), one, found, seconds)
                return

    def _finding(
        self, review: Review, side: Composition, path: KeyPath, name: str, one: Alone, found: Work, seconds: float
    ) -> Finding:
        new = float(one.shape.prefill_tokens)
        half = one.shape._replace(prefill_tokens=new / 2)
        less = work(side, half).total / found.total
        linear = found.total - found.quadratic
        keys = ("prompt_tokens", "trace")
        prompts: KeyPath = next((("workload", k) for k in keys if review.declared("workload", k)), ("workload",))
        return Finding(
            path,
            f"attention is {found.share:.0%} of the work to prefill {tokens(new)} tokens, about {duration(seconds)} on "
            f"idle hardware and above the objective: {name} grows with the square of the prompt, and narrower weights "
            "leave it as it is",
            equation=(
                f"{found.quadratic / 1e12:,.1f} TFLOP of attention / ({found.quadratic / 1e12:,.1f} + "
                f"{linear / 1e12:,.1f}) TFLOP = {found.share:.0%}"
            ),
            inputs=(Input("prompt", round(one.tokens, 1), "tok", review.source(*prompts)),),
            help=(
                f"half of the tokens to prefill are {less:.0%} of the work: shorter prompts, or prefix reuse; more "
                "context or tensor parallelism; a model with windows or sparse attention"
            ),
            related=(Related(prompts, f"prompts of {tokens(one.tokens)} tokens"),),
        )
