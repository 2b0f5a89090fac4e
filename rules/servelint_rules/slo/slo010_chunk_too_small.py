"""SLO010 chunk-too-small."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Mix, Point
from servelint_rules.averages import averaged
from servelint_rules.show import duration, request_rates, tokens
from servelint_rules.slo.chunks import same_load, steady
from servelint_rules.variants import budget_key, larger_budgets

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
efficiency = { memory = 0.8, compute = 0.6, link = 0.6, source = "bench/h100.json" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.batching]
max_sequences = 32
max_batched_tokens = 128 # expect: SLO010
[workload]
prompt_tokens = { p50 = 2000, p99 = 6000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "0.8 req/s"
[slo]
ttft = { p99 = "8 s" }
tpot = { p99 = "50 ms" }
"""


class Larger(NamedTuple):
    """The same load with a larger budget: its tokens, and the mean time to the first token."""

    tokens: int
    seconds: float
    max_rate: float


class ChunkTooSmall(Rule):
    """Prompts are cut into so many chunks that the weights are read again and again for a few tokens each.

    What it checks
    --------------
    The budget of prompt tokens of a step against its doublings under the same load: a larger one that keeps every
    objective (an inter-token limit even in a step with a full chunk) and brings the first token ``gain`` times sooner
    on average. Silent where the objectives are missed (SLO001) or the load is not carried (SLO007), both of which
    propose the larger budget; where none is declared, since then nothing says what a longer step may cost; where
    prompts fit into one chunk; on separate pools.

    Why it is bad
    -------------
    A step reads all weights, whatever the number of its tokens. Below the batch at which compute and bandwidth
    balance (about 300 tokens on an H100) a chunk costs as much as one of that size, so half the chunk doubles the
    time to the first token and halves the prompts that can be carried.

    The arithmetic
    --------------
    ``steps of a prompt = prompt / chunk``, each at ``max(weights / bandwidth, FLOPs / rate)`` plus latencies.

    How to fix
    ----------
    The budget of the help line, which is the smallest that brings nearly all of the gain.

    Source
    ------
    Agrawal et al., Sarathi-Serve (arXiv 2403.02310), section 4.3 (the choice of the token budget).
    """

    code = "SLO010"
    name = "chunk-too-small"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("why is TTFT high", "what limits the throughput")
    options = (Option("gain", 1.5, "mean time to the first token over that with the larger budget", 1.0),)
    failing = (
        Case("chunks of an eighth of the balance", SPEC, flip=("policy.batching.max_batched_tokens", "512")),
        Case(
            "a prefill chunk beside a sufficient budget",
            SPEC.replace("max_batched_tokens = 128 # expect: SLO010", "max_batched_tokens = 4096").replace(
                "[workload]", "prefill_chunk = 128 # expect: SLO010\n[workload]"
            ),
            flip=("policy.batching.prefill_chunk", "512"),
        ),
    )
    passing = (
        Case(
            "a chunk near the balance",
            SPEC.replace("max_batched_tokens = 128 # expect: SLO010", "max_batched_tokens = 512"),
        ),
        Case(
            "an inter-token limit that allows no larger one",
            SPEC.replace(" # expect: SLO010", "").replace('tpot = { p99 = "50 ms" }', 'itl = { p99 = "8.7 ms" }'),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Try larger budgets under the same load."""
        point, mix = review.operating_point, review.mix
        if point is None or mix is None:
            yield Lacks("an operating point: workload lengths, hardware and model, and a load that is carried")
            return
        if not review.objectives:
            yield Lacks("slo")
            return
        chunk = point.piece
        if point.service.separate or not chunk or mix.new_prompt <= chunk or not _wasteful(point, mix):
            return
        if point.misses(review.objectives, declared=True):
            return
        now, whole = point.ttft("mean"), _step_s(point, mix.new_prompt, mix.prompt.mean - mix.new_prompt)
        if now < whole * self.option("gain"):
            # No budget does better than the prompt in one step.
            return
        better = [x for x in _larger(review, point) if now >= x.seconds * self.option("gain")]
        if better:
            best = min(x.seconds for x in better)
            yield _finding(review, point, mix, next(x for x in better if x.seconds <= best * 1.1))


def _step_s(point: Point, tokens: float, past: float) -> float:
    """Seconds of one step with so many tokens of a prompt, of those alone where prompts go first."""
    return point.alone_s(tokens, past) if point.service.prompts_first else point.mixed_s(tokens, past)


def _wasteful(point: Point, mix: Mix) -> bool:
    """Whether a step with twice the chunk takes much less than twice as long."""
    past, chunk = mix.prompt.mean / 2, point.piece
    return _step_s(point, 2 * chunk, past) < 1.7 * _step_s(point, chunk, past)


def _larger(review: Review, point: Point) -> Iterator[Larger]:
    """Larger budgets with which the same load keeps every objective, headroom included, and stalls nobody."""
    for budget, composition in larger_budgets(review):
        then = same_load(review, point, composition)
        if then is None or then.misses(review.objectives) or not steady(review, then):
            continue
        if not math.isinf(seconds := then.ttft("mean")):
            yield Larger(budget, seconds, then.service.max_rate)


def _finding(review: Review, point: Point, mix: Mix, larger: Larger) -> Finding:
    key, chunk = budget_key(review), point.piece
    declared = ("policy", "batching", key)
    path: KeyPath = declared if review.declared(*declared) else ("workload",)
    if path == ("workload",):
        path = next((("workload", k) for k in ("prompt_tokens", "trace") if review.declared("workload", k)), path)
    now, past = point.ttft("mean"), mix.prompt.mean / 2
    step = _step_s(point, chunk, past)
    steps = math.ceil(mix.new_prompt / chunk)
    carried = request_rates(point.service.max_rate, larger.max_rate)
    return Finding(
        path,
        f"a prompt of {tokens(mix.new_prompt)} tokens takes {steps} steps of {tokens(chunk)}, each of which reads all "
        f"weights: the first token comes after {duration(now)} on average, and after {duration(larger.seconds)} with "
        f"{key} = {larger.tokens} under the same load, every objective kept (estimates)",
        equation=(
            f"a step with {tokens(chunk)} prompt tokens takes {duration(step)}, with twice as many "
            f"{duration(_step_s(point, 2 * chunk, past))}; at most {carried[0]} are carried a replica, "
            f"then {carried[1]}"
        ),
        inputs=(
            review.policy_input("batching", key, "tok"),
            averaged(review, "mean prompt to compute", round(mix.new_prompt, 1)),
        ),
        help=f"set policy.batching.{key} = {larger.tokens}",
        related=(Related(("workload", "rate"), "the load"),) if review.declared("workload", "rate") else (),
        fix=Fix(f"set {key} to {larger.tokens}", (Edit(declared, str(larger.tokens)),)) if path == declared else None,
    )
