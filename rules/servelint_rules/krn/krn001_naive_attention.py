"""KRN001 naive-attention."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import (
    Attention,
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    LatentAttention,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.shapes import StepShape, prefill
from servelint_rules.layouts import altered, prefill_side
from servelint_rules.qnt.weights import written
from servelint_rules.show import duration, size, tokens

PATH: KeyPath = ("policy", "attention", "kernel")
SCORE_BYTES = 2
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.attention]
kernel = "naive" # expect: KRN001
[policy.batching]
chunked_prefill = false
max_batched_tokens = 8192
[workload]
prompt_tokens = 8192
output_tokens = 200
rate = "0.2 req/s"
"""


class NaiveAttention(Rule):
    """The attention kernel writes the score matrix to memory.

    What it checks
    --------------
    ``policy.attention.kernel = "naive"``: the time of prefilling the longest prompt that is declared (its p99; without
    a workload one of ``max_model_len``), or a chunk of it at its end, against the same with a kernel that tiles the
    scores on chip. From the option ``slowdown`` on it is reported.

    Why it is bad
    -------------
    The matrix grows with the square of the prompt, and each layer writes it, reads it for the softmax, and reads
    the probabilities again. A tiled kernel moves none of it, and no output differs.

    The arithmetic
    --------------
    ``scores = heads x new tokens x (past + new) x 2 B`` a layer and pass: 134 MB for one head and 8,192 tokens; with
    the softmax four passes.

    How to fix
    ----------
    ``kernel = "flash"``, and a check in the engine's start-up log that it is what runs. Where a device, head size or
    bias leaves no tiled kernel, shorter prompt chunks.

    Source
    ------
    Dao et al., FlashAttention (arXiv 2205.14135); docs/cost-model.md, attention.
    """

    code = "KRN001"
    name = "naive-attention"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is it slower than planned",)
    options = (Option("slowdown", 1.1, "times the prefill of a tiled kernel from which on it is reported", 1.0, 100.0),)
    failing = (
        Case("a prompt of 8,192 tokens", SPEC, flip=("policy.attention.kernel", '"flash"')),
        Case(
            "the shortest prompt that notices it",
            SPEC.replace("= 8192\noutput", "= 1168\noutput"),
            flip=("workload.prompt_tokens", "1167"),
        ),
        Case(
            "the longest context, without a workload",
            SPEC.partition("[workload]")[0],
            flip=("policy.attention.kernel", '"flash"'),
        ),
    )
    passing = (
        Case("a tiled kernel", SPEC.replace('"naive" # expect: KRN001', '"flash"')),
        Case("no kernel declared", SPEC.replace('[policy.attention]\nkernel = "naive" # expect: KRN001\n', "")),
        Case(
            "prompts too short to notice",
            SPEC.replace(" # expect: KRN001", "").replace("= 8192\noutput", "= 64\noutput"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price the prefill with both kernels."""
        config, composition = review.policy("attention"), review.composition
        if composition is None or config is None:
            yield Lacks("a composed deployment")
            return
        if config.kernel != "naive":
            return
        side = prefill_side(composition)
        tiled = altered(side, attention=evolve(side.context.configs["attention"], kernel="flash"))
        if tiled is None:
            return
        shape = _shape(review, side)
        own, then = float(side.pricer.estimate(shape)), float(tiled.pricer.estimate(shape))
        if own <= then or own < then * self.option("slowdown"):
            return
        yield self._finding(review, side, shape, own, then)

    def _finding(self, review: Review, side: Composition, shape: StepShape, own: float, then: float) -> Finding:
        architecture = side.setup.architecture
        mixers = [b.mixer for b in architecture.blocks]
        heads = max((m.q_heads for m in mixers if isinstance(m, Attention | LatentAttention)), default=0)
        new, past = float(shape.prefill_tokens), float(shape.prefill_context)
        matrix = heads * new * (past + new) * SCORE_BYTES
        after = f" after {tokens(past)} earlier ones" if past else ""
        prompts = ("workload", "prompt_tokens")
        return Finding(
            PATH,
            f"attention writes {size(matrix)} of scores a layer for {tokens(new)} prompt tokens{after}, and reads them "
            f"again: prefilling them takes {duration(own)} instead of {duration(then)} with a tiled kernel",
            equation=(
                f"{heads} heads x {tokens(new)} x {tokens(past + new)} x {SCORE_BYTES} B = {size(matrix)} a layer and "
                f"pass; {duration(own)} / {duration(then)} = {own / then:.2f}x"
            ),
            inputs=(
                review.policy_input("attention", "kernel"),
                Input("query heads", heads, "", Source("model", architecture.id, "num_attention_heads")),
            ),
            help='set policy.attention.kernel = "flash" and check in the start-up log that it runs',
            related=(Related(prompts, "the prompts"),) if review.declared(*prompts) else (),
            fix=Fix("use a tiled kernel", (Edit(PATH, '"flash"'),)) if written(review, PATH) else None,
        )


def _shape(review: Review, side: Composition) -> StepShape:
    """The last step of the longest prompt: whole, or the chunk at its end."""
    mix = review.mix
    prompt = mix.prompt.quantile(0.99) if mix is not None else float(side.max_model_len)
    new = mix.computed(prompt) if mix is not None else prompt
    chunk = side.scheduler.chunk_tokens if side.scheduler.chunked else None
    new = min(new, float(chunk)) if chunk else new
    return prefill(new, max(prompt - new, 0.0))
