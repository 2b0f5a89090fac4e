"""SLO008 prefill-stall."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.distribution import percentile_share
from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Mix, Objective, Point
from servelint_rules.derivation import named
from servelint_rules.show import counted, duration, tokens
from servelint_rules.slo.chunks import GROWTH, LONG, STALL, nearer, paced, same_load, stall_s, stalled, steady
from servelint_rules.variants import budget_edits, budget_key, pieces, told, with_budget

SMALLEST_CHUNK = 16
"""Prompt chunks below this many tokens are not tried: that is a page of the cache."""
LARGEST_CHUNK = 8192

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
efficiency = { memory = 0.8, compute = 0.6, link = 0.6, source = "bench/h100.json" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[policy.batching]
max_sequences = 32
max_batched_tokens = 32768
chunked_prefill = false # expect: SLO008
[workload]
prompt_tokens = { p50 = 6000, p99 = 16000 }
output_tokens = { p50 = 400, p99 = 900 }
rate = "0.85 req/s"
[slo]
ttft = { p99 = "4 s" }
itl = { p99 = "60 ms" }
"""

FIRST = SPEC.replace("[policy.batching]\n", '[engine]\nname = "sglang"\n[policy.batching]\n').replace(
    "max_batched_tokens = 32768\nchunked_prefill = false", "prefill_chunk = 1024\nmixed_steps = false"
)
RARE = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
devices = 2
replicas = 8
[model]
id = "Qwen/Qwen2.5-32B"
max_model_len = 32768
[engine]
name = "vllm"
version = "0.11.0"
[policy.parallelism]
tensor = 2
[policy.batching]
max_batched_tokens = 2048 # expect: SLO008
[workload]
prompt_tokens = { p50 = 1998, p99 = 2000 }
output_tokens = 400
rate = "3 req/s"
[slo]
itl = { p99 = "40 ms" }
"""


class PrefillStall(Rule):
    """The inter-token limit is kept only while prompts are rare: each long one stops every stream for longer.

    What it checks
    --------------
    Prompts that are prefilled whole or before all decoding, or in chunks so large that the step that carries one takes
    ``stall`` times the limit of an ITL percentile, where that limit is kept because few enough tokens wait for such a
    step, and is missed from ``growth`` times as many on. A limit that is missed at the declared load is SLO001's, one
    that only its headroom misses SLO004's; separate pools do not stall.

    Why it is bad
    -------------
    A percentile over tokens does not see what is rarer than it, and then sees all of it at once: with a little more
    load it jumps from a plain step to a whole prefill. Users see it before: the text stops.

    The arithmetic
    --------------
    The step of the decoding sequences with one prompt (or its largest chunk) against the limit; the percentile with
    ``1 / growth`` of the tail says whether that much more of the same passes it.

    How to fix
    ----------
    Chunk prompts, and let others decode beside the chunks or between them, so that a step with a chunk keeps the
    limit; the help line gives the largest chunk with which the same load keeps every objective.

    Source
    ------
    Agrawal et al., Sarathi-Serve (arXiv 2403.02310), generation stalls. Observed: vllm-project/vllm#15106 (a chunk of
    2,048 tokens holds the next token back for 1.3 s where the usual gap is 20 ms).
    """

    code = "SLO008"
    name = "prefill-stall"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why does the stream stop", "why is p99 bad")
    options = (
        Option("stall", STALL, "step with a long prompt over the limit from which on it is a stall", 1.0),
        Option("growth", GROWTH, "growth of the load that the percentile has to survive", 1.0, 100.0),
    )
    failing = (
        Case("whole prompts at just under one in a hundred", SPEC, flip=("workload.rate", '"0.3 req/s"')),
        Case(
            "just above the load that may grow by half",
            SPEC.replace("0.85 req/s", "0.7 req/s"),
            flip=("workload.rate", '"0.66 req/s"'),
        ),
        Case(
            "only a small chunk keeps the limit",
            RARE,
            flip=("policy.batching.max_batched_tokens", "128"),
        ),
        Case("prompts that go first", FIRST, flip=("policy.batching.mixed_steps", "true")),
        Case(
            "a budget that takes whole prompts",
            SPEC.replace("max_batched_tokens = 32768\n", "max_batched_tokens = 32768 # expect: SLO008\n").replace(
                "chunked_prefill = false # expect: SLO008", "chunked_prefill = true"
            ),
            flip=("policy.batching.max_batched_tokens", "1024"),
        ),
    )
    passing = (
        Case(
            "a load that may grow by half",
            SPEC.replace("0.85 req/s", "0.66 req/s").replace(" # expect: SLO008", ""),
        ),
        Case(
            "chunks within the limit",
            SPEC.replace("max_batched_tokens = 32768", "max_batched_tokens = 1024").replace(
                "chunked_prefill = false # expect: SLO008", "chunked_prefill = true"
            ),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for a limit that is kept because stalls are rare."""
        if not paced(review):
            return
        point, mix = review.operating_point, review.mix
        if point is None or mix is None:
            yield Lacks("an operating point: workload lengths, hardware and model, and a load that is carried")
        elif not point.misses(review.objectives):
            growth = self.option("growth")
            objective = stalled(review, point, self.option("stall"), growth)
            sooner = nearer(objective, growth) if objective is not None else None
            if objective is not None and sooner is not None:
                yield self._finding(review, point, mix, objective, stall_s(point, mix), point.itl(sooner))

    def _finding(
        self, review: Review, point: Point, mix: Mix, objective: Objective, stall: float, then: float
    ) -> Finding:
        batching, growth = review.policy("batching"), self.option("growth")
        whole = not point.chunk
        path = _path(review, whole)
        prompt = mix.prompt.quantile(LONG)
        taken = min(mix.computed(prompt), point.chunk or float("inf"))
        what = (
            f"a whole prompt of {tokens(taken)} tokens"
            if taken == mix.computed(prompt)
            else f"a chunk of {tokens(taken)}"
        )
        decoding = counted(max(point.batch, 1.0), "decoding sequence")
        return Finding(
            path,
            f"{named(objective)} is {duration(point.itl(objective.percentile))}, within its limit of "
            f"{duration(objective.limit_s)}, only because prefill is rare: a step with {what} stops all "
            f"{decoding} for {duration(stall)}, {stall / objective.limit_s:.0f} times the limit, and with {growth:g} "
            f"times the prompts the same percentile is about {duration(then)} (estimates)",
            equation=(
                f"{point.delayed_share:.2%} of decoded tokens wait for a step with prefill, "
                f"{1 - percentile_share(objective.percentile):.2g} of them may be slower than {named(objective)}; "
                f"plain step {duration(point.plain_s)}, with {what} {duration(stall)}"
            ),
            inputs=(
                review.input(
                    f"objective of {named(objective)}", objective.declared_s, "s", *review.objective_path(objective)
                ),
                Input("long prompt", prompt, "tok", review.source("workload")),
                *([review.policy_input("batching", budget_key(review), "tok")] if batching.max_batched_tokens else []),
            ),
            help=_help(review, point),
            related=(Related(review.objective_path(objective), f"the objective: {duration(objective.declared_s)}"),),
        )


def _path(review: Review, whole: bool) -> KeyPath:
    keys = ("chunked_prefill", "mixed_steps") if whole else (budget_key(review),)
    for key in (*keys, "max_batched_tokens"):
        if review.declared("policy", "batching", key):
            return ("policy", "batching", key)
    return next(
        (path for path in (("engine", "name"), ("slo", "itl")) if review.declared(*path)), ("hardware", "accelerator")
    )


def _help(review: Review, point: Point) -> str:
    """The largest chunk with which no stall is left and every objective is kept: halvings, then what lies between."""
    for chunk in (*_chunks(review, point, LARGEST_CHUNK), *_chunks(review, point, LARGEST_CHUNK * 3 // 4)):
        edits = (*pieces(review).edits, *budget_edits(review, chunk))
        return f"set {told(edits)}: the same load then keeps every objective with every chunk"
    others = dict.fromkeys(named(o) for o in review.objectives if o not in paced(review))
    limits = f"both the inter-token limit and {' and '.join(others)}" if others else "the inter-token limit"
    return f"prefill on a pool of its own: no chunk that carries this load keeps {limits}"


def _chunks(review: Review, point: Point, chunk: int) -> Iterator[int]:
    """Halvings of a chunk, below today's, that mend the stall; the first that does not carry the load is the last."""
    if point.chunk:
        while chunk >= point.chunk:
            chunk //= 2
    while chunk >= SMALLEST_CHUNK:
        composition = _chunked(review, chunk)
        then = same_load(review, point, composition)
        if composition is not None and then is None:
            return
        if then is not None and not then.misses(review.objectives) and steady(review, then):
            yield chunk
        chunk //= 2


def _chunked(review: Review, chunk: int) -> Composition | None:
    return with_budget(review, chunk, pieces(review).changes)
