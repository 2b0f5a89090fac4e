"""What keeps a replica from carrying more requests, for the rules that say so: named, and derived in numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Review, Source
from servelint.service import Point, Service
from servelint_rules.layouts import decode_side
from servelint_rules.show import counted, duration, plural, request_rate, sequences, size, tokens

GAIN = 1.1
"""A limit binds when twice of it carries at least this much more; else the hardware itself does."""


class Binding(NamedTuple):
    """What keeps a replica from carrying more: the kind, in words, and the key to look at.

    ``prompts`` says that prompts fill every step; else as many sequences decode as may.
    """

    kind: str
    text: str
    path: KeyPath
    prompts: bool = False


def binding(review: Review, service: Service) -> Binding:
    """Name the limit that more of would carry more, or the resource of the step that is used up."""
    name = min(service.limits, key=lambda n: service.limits[n])
    fullest, path = service.fullest, limit_path(review, name)
    if fullest is None:
        return Binding(name, limit_text(service, name), path)
    prompts = fullest.batch < service.batch_limit
    if not prompts:
        more = service.point(fullest.batch * 2)
        if more.saturated or more.rate >= fullest.rate * GAIN:
            return Binding(name, limit_text(service, name), path)
    elif service.separate:
        pool = ("policy", "disaggregation", "prefill")
        return Binding("prefill pool", "the prefill pool computes all the time", pool, True)
    elif between := service.scheduler.decodes_between:
        name = "prefill_decode_interval"
        text = f"prompts get a step only after {counted(between, 'decoding step')}, and fill it"
        return Binding(name, text, limit_path(review, name), True)
    else:
        room = fullest.chunk or service.room(fullest.batch)
        if fullest.mixed_s(2 * room, 0.0) < fullest.mixed_s(room, 0.0) * 2 / GAIN:
            name = "max_batched_tokens"
            text = f"prompts fill the token budget of every step ({tokens(room)} tokens beside the decoding sequences)"
            return Binding(name, text, limit_path(review, name), True)
    resource = _resource(service, fullest)
    prefill = fullest.mixed_share * fullest.average_mixed_s / fullest.step_s
    mostly = f", {prefill:.0%} of the time in steps with prefill" if prefill > 0.5 else ""
    what = "prompt tokens a step" if prompts else "sequences at once"
    return Binding(
        "hardware",
        f"{resource} is used up{mostly}: more {what} would carry hardly more",
        ("hardware", "accelerator"),
        prompts,
    )


def _resource(service: Service, point: Point) -> str:
    """The resource that decides the kind of step in which most of the time goes."""
    shape = point.shape()
    if point.mixed_share * point.average_mixed_s > point.step_s / 2:
        shape = point.prompts_shape(most=service.mix.new_prompt)
    resource = decode_side(service.composition).pricer.price(shape).binding_resource
    named = {"compute": "compute", "hbm": "memory bandwidth"}
    return named.get(resource, f"the {resource.removeprefix('link:')} link")


def limit_text(service: Service, name: str) -> str:
    """A limit in words, with its number."""
    limit = service.limits[name]
    if name == "KV capacity":
        context = f"{tokens(service.mix.mean_context)} tokens (the mean context)"
        return f"the KV cache holds {counted(limit, 'sequence') if limit else 'not one sequence'} of {context}"
    if name == "max_sequences":
        return f"max_sequences admits {sequences(limit)}"
    return f"max_batched_tokens has room for {counted(limit, 'decoding sequence')}"


LIMITS = {
    "KV capacity": "sequences that the KV cache holds",
    "max_batched_tokens": "sequences that max_batched_tokens has room for",
}
"""What the numbers of limits count, where the name of the limit does not say it."""


def limit_path(review: Review, name: str) -> KeyPath:
    """The key that sets a limit, the device where none does."""
    path: KeyPath = ("policy", "batching", name)
    if name != "KV capacity" and review.declared(*path):
        return path
    return ("hardware", "accelerator")


def limit_source(review: Review, name: str) -> Source:
    """Where a limit comes from."""
    if name == "KV capacity":
        return Source("computed", "memory ledger", "KV capacity / mean context")
    assumed = review.assumption("policy", "batching", name)
    return assumed.source if assumed is not None else review.source("policy", "batching", name)


def certainly_over(review: Review, ideal: Service, rate: float) -> bool:
    """Whether no schedule carries a rate, however what was only assumed of the limits were set.

    ``ideal`` is the service in the figure ``bound``, ``rate`` that of one replica in requests per second.
    """
    return ideal.max_rate * _slack(review, ideal) < rate


def _slack(review: Review, service: Service) -> float:
    """By how much the most rate could grow if what was assumed of the limits were set otherwise."""
    kind = binding(review, service).kind
    if kind in ("max_sequences", "max_batched_tokens", "prefill_decode_interval"):
        assumed = review.assumption("policy", "batching", kind)
        return math.inf if assumed is not None and assumed.source.kind == "default" else 1.0
    if kind == "KV capacity":
        memory = decode_side(service.composition).memory
        stage = memory.tightest
        if memory.cache_bytes is None and review.assumption("policy", "kv_cache", "memory_utilization"):
            return (memory.visible - memory.fit(stage).weights) / memory.cache_left(stage)
    return GAIN if kind == "hardware" else 1.0


def rate_equation(service: Service, bound_by: Binding) -> str:
    """How the most requests per second come about at the point where no more fit; empty when nothing fits."""
    fullest = service.fullest
    if fullest is None:
        return ""
    most = request_rate(service.max_rate)
    share = fullest.mixed_share
    parts = (
        f" ({share:.1%} x {duration(fullest.average_mixed_s)} with prefill + {1 - share:.1%} x "
        f"{duration(fullest.plain_s)} without)"
    )
    step = f"{duration(fullest.step_s)} a step{parts if share else ''}"
    if bound_by.prompts and not service.separate:
        prompt = service.mix.new_prompt
        ranks = service.scheduler.ranks
        every = f" on {ranks} ranks" if ranks > 1 else ""
        return (
            f"{tokens(fullest.requests_per_step * prompt)} prompt tokens in an average step{every} / "
            f"{tokens(prompt)} prompt tokens to compute a request / {step} = {most}"
        )
    pool = service.decode_replicas
    times = f" x {pool} decode replicas" if pool > 1 else ""
    kept = service.scheduler.yield_per_step
    return (
        f"{counted(fullest.batch, 'sequence')} x {plural(f'{kept:.3g}', 'token')} a step / "
        f"{tokens(service.decoded_per_request)} output tokens a request / {step}{times} = {most}"
    )


def cache_equation(service: Service, context: float) -> str:
    """How many sequences of ``context`` tokens the KV cache of a device holds."""
    memory = decode_side(service.composition).memory
    stage = memory.tightest
    # Windows and fixed state make a sequence smaller than its tokens times the bytes of a new one.
    each, room = memory.sequence_bytes(context, stage), memory.cache_left(stage)
    ranks = service.scheduler.ranks
    every = f" on each of {ranks} ranks" if ranks > 1 else ""
    return (
        f"{size(room)} of KV memory a device / {size(each)} a sequence of {tokens(context)} tokens = "
        f"{math.floor(room / each * 10) / 10:,.1f} sequences{every}"
    )
