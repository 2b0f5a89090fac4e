"""DEC003 long-context-levers."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from servelint.plugin import Case, Composition, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint.service import Mix
from servelint.spec.model import PrefixHit
from servelint_rules.binding import cache_equation
from servelint_rules.dec.levers import (
    GOAL,
    Change,
    Lever,
    advice,
    by_rate,
    carried,
    changes,
    faster,
    goal,
    pressed,
    ranked,
    within,
)
from servelint_rules.show import request_rate, size, tokens

MORE = 1.25
"""What a larger or faster memory is priced with."""
REUSED = 0.5
"""Share of the prompt that prefix reuse is priced with where none is declared."""

SPEC = """\
servelint = 1
deployment = { goal = "long-context" } # expect: DEC003
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 65536
[policy.quantization]
weights = "fp8"
kv_cache = "bf16"
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 20000, p99 = 48000 }
output_tokens = { p50 = 1500, p99 = 3000 }
prefix_hit = { value = 0.8, basis = "measured", source = "router metrics, week 40" }
rate = "0.09 req/s"
[slo]
ttft = { p99 = "60 s" }
"""


class LongContextLevers(Rule):
    """Long contexts dominate: what would carry more of them, with the number of each.

    What it checks
    --------------
    A deployment with ``goal = "long-context"``, under the scenario of its longest contexts (the workload or a growth
    scenario, by its p99): requests a second and device within the objectives, against the same with an FP8 KV cache,
    narrower weights, prefix reuse, and a quarter more memory or bandwidth. It speaks when the load is at least
    ``used`` of that and the best gains ``gain``. Silent where that scenario is not carried at all (CTX001, MEM002,
    SLO001, SLO007).

    Why it is bad
    -------------
    It is no defect. The cache of a long context is read whole for every token and shared by nobody, so fewer bytes
    of it serve twice: more sequences fit, and each step reads less. Narrower weights help only as far as weights
    are what fills memory and steps.

    The arithmetic
    --------------
    ``requests a second at the knee / devices`` of the longest scenario. Prefix reuse saves prefill, not the reads of
    decoding; it is priced with the declared share, else with a half.

    How to fix
    ----------
    The levers in their order. A narrower KV cache has to be evaluated at the lengths that it will serve.

    Source
    ------
    docs/cost-model.md, KV cache and long contexts.
    """

    code = "DEC003"
    name = "long-context-levers"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("what happens at long context", "how many requests run at once")
    options = (
        Option("gain", 1.3, "least gain of the best lever", 1.0),
        Option("used", 0.5, "share of the rate at the knee from which on carrying more is a gain", 0.0, 1.0),
    )
    failing = (
        Case("a 16-bit cache fills the memory", SPEC, flip=("policy.quantization.kv_cache", '"fp8"')),
        Case(
            "a growth scenario decides",
            SPEC.replace("p50 = 20000, p99 = 48000", "p50 = 2000, p99 = 4000").replace(
                "[slo]", "[[workload.growth]]\nprompt_tokens = { p50 = 30000, p99 = 50000 }\n[slo]"
            ),
            flip=("deployment", '{ name = "review" }'),
        ),
    )
    passing = (
        Case(
            "an FP8 cache already",
            SPEC.replace('kv_cache = "bf16"', 'kv_cache = "fp8"').replace(" # expect: DEC003", ""),
        ),
        Case(
            "a load far below what is carried",
            SPEC.replace("0.09 req/s", "0.07 req/s").replace(" # expect: DEC003", ""),
        ),
        Case("no goal", SPEC.replace('goal = "long-context" } # expect: DEC003', 'name = "review" }')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price the levers of long contexts."""
        if goal(review) != "long-context":
            return
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        longest, *load = max(_scenarios(review, mix), key=lambda scenario: scenario[0].context(0.99))
        knee, now = within(review, composition, longest), carried(review, composition, longest)
        if knee is None or not pressed(knee, self.option("used"), *load):
            return
        levers = by_rate(review, longest, now, [*changes(review, "cache", "weights"), *_hardware(composition)])
        levers = ranked([*levers, *_reused(review, composition, longest, now)])
        if levers and levers[0].gain >= self.option("gain"):
            context = longest.context(0.99)
            service = review.service(longest)
            yield advice(
                review,
                GOAL,
                f"a device carries {request_rate(now)} of the requests of {longest.name}, whose p99 context is "
                f"{tokens(context)} tokens (goal: long-context)",
                levers,
                f"{cache_equation(service, longest.mean_context)}; one of {tokens(context)} tokens takes "
                f"{size(_sequence_bytes(composition, context))} a device",
                (Input("p99 context", context, "tok", review.source("workload")),),
                (("policy", "quantization"), ("policy", "kv_cache", "prefix_reuse")),
            )


def _scenarios(review: Review, mix: Mix) -> Iterator[tuple[Mix, float | None, float | None]]:
    """The workload and its growth, each with the rate and the requests at once of one replica."""
    yield mix, review.rate(), review.concurrency()
    base = review.deployment.workload
    for i, scenario in review.growth:
        grown = base.growth[i] if base is not None else None
        yield scenario, review.rate(grown), review.concurrency(grown)


def _sequence_bytes(composition: Composition, context: float) -> float:
    pools = composition.scheduler.disaggregation
    memory = composition.memory if pools is None else pools.decode.composition.memory
    return memory.sequence_bytes(context, memory.tightest)


def _hardware(composition: Composition) -> Iterator[Change]:
    if composition.scheduler.disaggregation is None:
        yield Change(f"{MORE - 1:.0%} more memory", faster(composition, memory=MORE))
        yield Change(f"{MORE - 1:.0%} more memory bandwidth", faster(composition, bandwidth=MORE))


def _reused(review: Review, composition: Composition, mix: Mix, now: float) -> Iterator[Lever]:
    """Prefix reuse, where nothing is reused: with the declared share where the engine is told not to, else a half."""
    if mix.prefix_hit:
        return
    workload = review.deployment.workload
    declared = workload.prefix_hit if workload is not None else None
    share = (declared.value if isinstance(declared, PrefixHit) else declared) or REUSED
    other: Composition | None = composition
    if not composition.scheduler.prefix_reuse:
        other = review.variant(kv_cache=evolve(review.policy("kv_cache"), prefix_reuse=True))
    if other is not None:
        rate = carried(review, other, mix._replace(prefix_hit=min(share, 0.999)))
        yield Lever(f"prefix reuse with {share:.0%} of the prompt cached", rate / now, f"{request_rate(rate)} a device")
