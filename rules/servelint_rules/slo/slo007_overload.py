"""SLO007 overload."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import evolve

from servelint.plugin import Case, Composition, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint.service import Mix, Service
from servelint_rules.averages import averaged
from servelint_rules.binding import (
    LIMITS,
    Binding,
    binding,
    cache_equation,
    certainly_over,
    limit_source,
    rate_equation,
)
from servelint_rules.layouts import decode_side
from servelint_rules.show import counted, request_rate, request_rates
from servelint_rules.slo.chunks import stalled
from servelint_rules.variants import (
    budget_edits,
    larger_budgets,
    narrower_cache,
    replicas_for,
    sound,
    told,
)


class Overload(Rule):
    """The offered rate has no operating point within the limits of a replica.

    What it checks
    --------------
    Whether any number of sequences, within KV capacity at the mean context, ``max_sequences`` and the token
    budget of a step, carries ``workload.rate`` shared by the replicas, whatever the latency. Growth scenarios
    are CTX001's; weights or a longest sequence that do not fit are MEM001's and MEM002's; a rate that is carried
    but too slowly is SLO001's.

    Why it is bad
    -------------
    Requests arrive faster than they finish: the queue, and with it the time to first token, grows until
    clients give up. There is no steady state to tune.

    The arithmetic
    --------------
    Little's law: ``rate = sequences x tokens a step / output tokens / step time``, the step carrying its share
    of prefill. The most of it is at the limit that the message names. Error when even the bounds of the steps
    carry less, and no assumed limit is to blame; else warning.

    How to fix
    ----------
    More of what binds (a higher admission limit, a narrower KV cache, another token budget), or what the help line
    says: of token budgets, tensor-parallel degrees within a node and replicas, and of admission limits where it is they
    that bind, what takes the fewest devices. All of it fits in memory and keeps the objectives without stalls.

    Source
    ------
    docs/cost-model.md, operating point under offered load.
    """

    code = "SLO007"
    name = "overload"
    weighs = True
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why does the queue grow", "how many replicas are needed")
    failing = (
        Case(
            "an admission limit far below what the rate needs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 8
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 250, p99 = 800 }
rate = "6 req/s" # expect: SLO007
""",
            flip=("policy.batching.max_sequences", "128"),
        ),
        Case(
            "just above what the replicas carry",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
replicas = 2
efficiency = { memory = 0.8, compute = 0.6, link = 0.6, source = "bench/l4.json" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 16
max_batched_tokens = 2048
[workload]
prompt_tokens = 1000
output_tokens = 300
rate = "2.161 req/s" # expect: SLO007
""",
            flip=("hardware.replicas", "3"),
        ),
        Case(
            "more prompt tokens than compute can prefill",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "Qwen/Qwen3-14B"
max_model_len = 32768
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192
[workload]
prompt_tokens = { p50 = 9000, p99 = 20000 }
output_tokens = 100
rate = "20 req/s" # expect: SLO007
""",
            flip=("workload.rate", '"0.3 req/s"'),
        ),
    )
    passing = (
        Case(
            "just below what the replicas carry",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
replicas = 2
efficiency = { memory = 0.8, compute = 0.6, link = 0.6, source = "bench/l4.json" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 16
max_batched_tokens = 2048
[workload]
prompt_tokens = 1000
output_tokens = 300
rate = "2.16 req/s"
""",
        ),
        Case(
            "a closed loop is never overloaded",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 8
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 250, p99 = 800 }
concurrency = 500
""",
        ),
        Case(
            "long prompts and short outputs at a low rate leave the replica idle most of the time",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 131072
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 100000
output_tokens = 10
rate = "0.02 req/s"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for an operating point at the offered rate."""
        mix, rate = review.mix, review.rate()
        if review.composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
        elif rate is None:
            yield Lacks("workload.rate")
        elif not _does_not_fit(review) and review.service(mix).at_rate(rate) is None:
            yield _finding(review, mix, rate)


def _does_not_fit(review: Review) -> bool:
    """Whether the capacity rules already say that the deployment does not start."""
    if review.composition is None:
        return True
    side = decode_side(review.composition)
    return side.memory.resident_per_rank(side.max_model_len) < 1


def _finding(review: Review, mix: Mix, rate: float) -> Finding:
    service, ideal = review.service(mix), review.service(mix, "bound")
    most, best = service.max_rate, ideal.max_rate
    bound_by = binding(review, service)
    certain = certainly_over(review, ideal, rate)
    offered, carried = request_rates(rate, most)
    each = f"{offered} are offered" if review.replicas == 1 else f"{offered} are offered to each replica"
    bound = f" (by the bound {request_rate(best)})"
    return Finding(
        ("workload", "rate"),
        f"{each} and at most {carried} can be carried{bound}, whatever the latency: {bound_by.text}",
        equation=rate_equation(service, bound_by) or cache_equation(service, mix.mean_context),
        inputs=(
            Input("offered rate a replica", rate, "req/s", review.source("workload", "rate")),
            averaged(review, "mean context", mix.mean_context),
            averaged(review, "mean output", mix.output.mean),
            *(
                Input(LIMITS.get(name, name), limit, "", limit_source(review, name))
                for name, limit in service.limits.items()
            ),
        ),
        help=_help(review, service, bound_by, rate),
        related=(Related(bound_by.path, bound_by.text),),
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence="high" if certain else "medium",
    )


def _help(review: Review, service: Service, bound_by: Binding, rate: float) -> str:
    from servelint_rules.slo.sizes import Load, sizes

    total, objectives = rate * review.replicas, review.objectives

    def carries(composition: Composition | None) -> bool:
        if composition is None:
            return False
        point = Service(composition, service.mix).at_rate(rate)
        return point is not None and not point.misses(objectives) and stalled(review, point) is None

    parts = []
    if bound_by.kind == "max_sequences":
        others = [limit for name, limit in service.limits.items() if name != "max_sequences"]
        point = service.at_rate(rate, min(others, default=math.inf))
        admitted = math.ceil(point.batch / service.scheduler.ranks) if point is not None else 0
        more = review.variant(batching=evolve(review.policy("batching"), max_sequences=admitted or None))
        if admitted and carries(sound(review, more)):
            parts.append(f"policy.batching.max_sequences = {admitted} carries it")
    if bound_by.kind == "KV capacity" and carries(narrower_cache(review)):
        parts.append('policy.quantization.kv_cache = "fp8" carries it')
    if bound_by.kind == "max_batched_tokens":
        larger = next((budget for budget, composition in larger_budgets(review) if carries(composition)), None)
        if larger is not None:
            parts.append(f"{told(budget_edits(review, larger))} carries it")
    if bound_by.kind == "prefill_decode_interval":
        batching, between = review.policy("batching"), service.scheduler.decodes_between
        while between and not parts:
            between //= 2
            if carries(sound(review, review.variant(batching=evolve(batching, prefill_decode_interval=between)))):
                parts.append(f"policy.batching.prefill_decode_interval = {between} carries it")
    load = Load(service.mix, total, objectives)
    alone, cheapest = sizes(review, load, admission=bound_by.kind == "max_sequences")
    here = review.replicas * service.composition.setup.topology.devices
    if parts and alone is not None and cheapest is not None and cheapest.devices >= here:
        # One change carries it on the devices that there are: what is left to say is what more of them do.
        cheapest = alone
    if cheapest is not None and told(cheapest.edits) not in "; ".join(parts):
        # The price is said where more than the number of replicas changes.
        price = f", on {counted(cheapest.devices, 'device')}" if cheapest != alone else ""
        if cheapest != alone and alone is not None:
            price += f" where replicas alone take {alone.devices:,}"
        carry = "carries" if len(cheapest.edits) == 1 else "carry"
        what = "it within the SLO" if objectives else f"{request_rate(total)}, whatever the latency"
        parts.append(f"{told(cheapest.edits)} {carry} {what}{price}")
    if cheapest is None:
        whatever = replicas_for(service, total, ())
        if whatever is not None:
            parts.append(f"hardware.replicas = {whatever} carries {request_rate(total)}, whatever the latency")
    return "; ".join(parts)
