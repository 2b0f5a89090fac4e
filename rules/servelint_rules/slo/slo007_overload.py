"""SLO007 overload."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Related, Review, Rule, Severity, Source
from servelint.service import Mix, Point, Service
from servelint_rules.layouts import altered, decode_side
from servelint_rules.show import duration, request_rate, sequences, tokens

GAIN = 1.1
"""A limit binds when twice of it carries at least this much more; else the hardware itself does."""


class Binding(NamedTuple):
    """What keeps a replica from carrying more: the kind, in words, and the key to look at."""

    kind: str
    text: str
    path: KeyPath


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
    As many replicas as the help line says, or more of what binds: a higher admission limit, a narrower KV
    cache, more devices.

    Source
    ------
    docs/cost-model.md, operating point under offered load.
    """

    code = "SLO007"
    name = "overload"
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
    memory = side.memory
    full = memory.fit(memory.tightest).left <= 0 and memory.cache_bytes is None
    return full or memory.resident_per_rank(side.max_model_len) < 1


def _finding(review: Review, mix: Mix, rate: float) -> Finding:
    service, ideal = review.service(mix), review.service(mix, "bound")
    most, best = service.max_rate, ideal.max_rate
    binding = _binding(review, service)
    certain = best * _slack(review, ideal) < rate
    offered = request_rate(rate)
    each = f"{offered} are offered" if review.replicas == 1 else f"{offered} are offered to each replica"
    bound = f" (by the bound {request_rate(best)})"
    return Finding(
        ("workload", "rate"),
        f"{each} and at most {request_rate(most)} can be carried{bound}, whatever the latency: {binding.text}",
        equation=_equation(service.fullest, service),
        inputs=(
            Input("offered rate a replica", rate, "req/s", review.source("workload", "rate")),
            Input("mean context", mix.mean_context, "tok", review.source("workload")),
            Input("mean output", mix.output.mean, "tok", review.source("workload")),
            *(Input(name, limit, "", _limit_source(review, name)) for name, limit in service.limits.items()),
        ),
        help=_help(review, service, binding, rate),
        related=(Related(binding.path, binding.text),),
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence="high" if certain else "medium",
    )


def _binding(review: Review, service: Service) -> Binding:
    """Name the limit that more of would carry more, or the resource of the step that is used up."""
    name = min(service.limits, key=lambda n: service.limits[n])
    fullest, path = service.fullest, _limit_path(review, name)
    if fullest is None:
        return Binding(name, _limit_text(service, name), path)
    if fullest.batch >= service.batch_limit:
        more = service.point(fullest.batch * 2)
        if more.saturated or more.rate >= fullest.rate * GAIN:
            return Binding(name, _limit_text(service, name), path)
    elif service.separate:
        return Binding(
            "prefill pool", "the prefill pool computes all the time", ("policy", "disaggregation", "prefill")
        )
    else:
        room = fullest.chunk or service.room(fullest.batch)
        if fullest.mixed_s(2 * room, 0.0) < fullest.mixed_s(room, 0.0) * 2 / GAIN:
            name = "max_batched_tokens"
            return Binding(
                name,
                f"prompts fill the token budget of every step ({tokens(room)} tokens beside the decoding sequences)",
                _limit_path(review, name),
            )
    resource = _resource(service, fullest)
    return Binding(
        "hardware",
        f"{resource} is used up: more sequences at once would carry hardly more",
        ("hardware", "accelerator"),
    )


def _resource(service: Service, point: Point) -> str:
    """The resource that decides the kind of step in which most of the time goes."""
    shape = point.shape()
    if point.mixed_share * point.average_mixed_s > point.step_s / 2:
        shape = point.shape(min(point.chunk or math.inf, service.mix.new_prompt))
    resource = decode_side(service.composition).pricer.price(shape).binding_resource
    named = {"compute": "compute", "hbm": "memory bandwidth"}
    return named.get(resource, f"the {resource.removeprefix('link:')} link")


def _limit_text(service: Service, name: str) -> str:
    limit = service.limits[name]
    if name == "KV capacity":
        context = f"{tokens(service.mix.mean_context)} tokens (the mean context)"
        return (
            f"the KV cache holds {sequences(limit)} sequences of {context}"
            if limit
            else (f"the KV cache holds not one sequence of {context}")
        )
    if name == "max_sequences":
        return f"max_sequences admits {sequences(limit)}"
    return f"max_batched_tokens has room for {sequences(limit)} decoding sequences"


def _limit_path(review: Review, name: str) -> KeyPath:
    path: KeyPath = ("policy", "batching", name)
    if name != "KV capacity" and review.declared(*path):
        return path
    return ("hardware", "accelerator")


def _limit_source(review: Review, name: str) -> Source:
    if name == "KV capacity":
        return Source("computed", "memory ledger", "KV capacity / mean context")
    assumed = review.assumption("policy", "batching", name)
    return assumed.source if assumed is not None else review.source("policy", "batching", name)


def _slack(review: Review, service: Service) -> float:
    """By how much the most rate could grow if what was assumed of the limits were set otherwise."""
    kind = _binding(review, service).kind
    if kind in ("max_sequences", "max_batched_tokens"):
        assumed = review.assumption("policy", "batching", kind)
        return math.inf if assumed is not None and assumed.source.kind == "default" else 1.0
    if kind == "KV capacity" and review.composition is not None:
        memory = decode_side(review.composition).memory
        stage = memory.tightest
        if memory.cache_bytes is None and review.assumption("policy", "kv_cache", "memory_utilization"):
            return (memory.visible - memory.fit(stage).weights) / memory.cache_left(stage)
    return GAIN if kind == "hardware" else 1.0


def _equation(fullest: Point | None, service: Service) -> str:
    if fullest is None:
        return ""
    share = service.decode_replicas
    times = f" x {share} decode replicas" if share > 1 else ""
    kept = service.scheduler.yield_per_step
    return (
        f"{sequences(fullest.batch)} sequences x {kept:.3g} tokens a step / {tokens(service.mix.output.mean)} output "
        f"tokens / {duration(fullest.step_s)} (average step, {fullest.mixed_share:.0%} with prefill){times} = "
        f"{request_rate(service.max_rate)}"
    )


def _help(review: Review, service: Service, binding: Binding, rate: float) -> str:
    parts, total = [], rate * review.replicas
    others = [limit for name, limit in service.limits.items() if name != "max_sequences"]
    if binding.kind == "max_sequences" and (point := service.at_rate(rate, min(others))) is not None:
        parts.append(f"max_sequences = {math.ceil(point.batch * service.decode_replicas)} carries it")
    if binding.kind == "KV capacity" and _narrower_carries(review, service, rate):
        parts.append("an FP8 KV cache carries it")
    if service.max_rate > 0:
        parts.append(
            f"{math.ceil(total / service.max_rate)} replicas carry {request_rate(total)}, whatever the latency"
        )
    knee = review.knee
    if knee is not None:
        needed = math.ceil(total / (knee.rate * service.decode_replicas))
        parts.append(f"{needed} replicas carry it within the SLO")
    return "; ".join(parts)


def _narrower_carries(review: Review, service: Service, rate: float) -> bool:
    composition = service.composition
    quantization = composition.context.configs["quantization"]
    other = altered(composition, quantization=evolve(quantization, kv_cache="fp8"))
    return other is not None and Service(other, service.mix).at_rate(rate) is not None
