"""The most that a deployment can do in the terms of a claim: rates and latencies from bounds of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from attrs import evolve

from servelint.plugin import CatalogueError, Composition, Review
from servelint.shapes import StepShape, decode, prefill
from servelint.spec.model import Claim
from servelint_rules.layouts import decode_side, on_accelerator, prefill_side
from servelint_rules.show import counted, duration, request_rate, token_rate, tokens

Kind = Literal["output", "total", "requests", "user", "ttft", "itl", "tpot"]
Bound = Literal["bound", "floor", "estimate"]

RATES: dict[str, Kind] = {
    "throughput": "output",
    "output_throughput": "output",
    "goodput": "output",
    "total_throughput": "total",
    "request_rate": "requests",
}
LATENCIES: dict[str, Kind] = {"ttft": "ttft", "itl": "itl", "tpot": "tpot"}


class Sides(NamedTuple):
    """What decodes and what prefills, and how many of the former a replica has."""

    decode: Composition
    prefill: Composition
    copies: int

    def changed(self, change: Callable[[Composition], Composition | None]) -> Sides | None:
        """Return both sides passed through a change; None when one does not compose."""
        decoding = change(self.decode)
        prefilling = decoding if self.prefill is self.decode else change(self.prefill)
        return None if decoding is None or prefilling is None else self._replace(decode=decoding, prefill=prefilling)


class Terms(NamedTuple):
    """A claim in the terms of a bound.

    ``value`` is of one replica (rates) or in seconds; ``factor`` turns the claim's own figure into it.
    ``batch`` is None where the claim states none; a length of 0 is one that nobody states. ``stated`` are the
    lengths that the claim itself states, the others being the workload's.
    """

    kind: Kind
    value: float
    factor: float
    unit: str
    batch: float | None
    context: float
    prompt: float
    output: float
    prefix_hit: float
    stated: frozenset[str]

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.kind not in LATENCIES

    def beats(self, limit: float, tolerance: float) -> bool:
        """Whether the claim is better than a limit by more than rounding."""
        return self.value > limit * (1 + tolerance) if self.is_rate else self.value < limit * (1 - tolerance)

    def shown(self, value: float) -> str:
        """Write a value in the claim's own unit."""
        if not self.is_rate:
            return duration(value)
        own = value / self.factor
        return (request_rate(own) if self.kind == "requests" else token_rate(own)) + self.unit

    def most_favorable(self) -> Terms | None:
        """What the claim leaves open set to what makes most of it possible; None when that decides everything."""
        if self.kind in ("total", "requests") and not self.stated.issuperset(("prompt", "output")):
            return None
        context = self.context if "context" in self.stated else 0.0
        prompt = 1.0 if self.kind == "ttft" and "prompt" not in self.stated else self.prompt
        return self._replace(context=context, prompt=prompt)


class Best(NamedTuple):
    """The best that a bound allows: in the claim's terms, at which batch, from which step of how many seconds."""

    value: float
    batch: float
    shape: StepShape
    seconds: float


def sides(review: Review, claim: Claim) -> Sides | None:
    """The deployment, on the accelerator that the claim says it was measured on; None without a composition."""
    composition = review.composition
    if composition is None:
        return None
    pools = composition.scheduler.disaggregation
    found = Sides(decode_side(composition), prefill_side(composition), 1 if pools is None else pools.decode.replicas)
    named = claim.assumes.accelerator if claim.assumes is not None else None
    if named is None:
        return found
    try:
        other = review.plugins.accelerators.get(named)
    except CatalogueError:
        return None
    own = found.decode.setup.topology.accelerator
    return found if other.id == own.id else found.changed(lambda c: on_accelerator(c, other))


def read(review: Review, claim: Claim) -> Terms | None:
    """Put a claim into the terms of a bound, None when it is about something else or too little is stated."""
    kind = LATENCIES.get(claim.metric) or RATES.get(claim.metric)
    composition = review.composition
    if kind is None or composition is None:
        return None
    at, mix = claim.at, review.mix
    stated = set()
    prompt = output = context = 0.0
    if mix is not None:
        prompt, output, context = mix.prompt.mean, mix.output.mean, mix.mean_context
    if at is not None:
        if at.prompt_tokens is not None:
            prompt = context = at.prompt_tokens
            stated |= {"prompt", "context"}
        if at.output_tokens is not None:
            output = at.output_tokens
            stated.add("output")
            if "prompt" in stated:
                context = prompt + (output - 1) / 2
        if at.context is not None:
            context = at.context
            stated.add("context")
    if kind == "ttft" and not prompt:
        prompt = 1.0
    if kind in ("total", "requests") and not (prompt and output):
        return None
    batch = (at.batch or at.concurrency) if at is not None else None
    factor, unit = 1.0, ""
    if kind in RATES.values():
        if claim.per in ("user", "request"):
            kind, unit = "user", " per sequence"
        elif claim.per == "device":
            factor, unit = float(_devices(composition)), " per device"
        elif claim.per == "deployment" and review.replicas > 1:
            factor, unit = 1 / review.replicas, f" of {review.replicas} replicas"
            batch = None if batch is None else -(-batch // review.replicas)
    own = claim.assumes.prefix_hit if claim.assumes is not None else None
    hit = own if own is not None else mix.prefix_hit if mix is not None else 0.0
    return Terms(
        kind,
        claim.value * factor,
        factor,
        unit,
        batch,
        context,
        prompt,
        output,
        min(hit, 0.999),
        frozenset(stated),
    )


def _devices(composition: Composition) -> int:
    pools = composition.scheduler.disaggregation
    if pools is None:
        return composition.setup.topology.devices
    return sum(p.replicas * p.composition.setup.topology.devices for p in (pools.prefill, pools.decode))


def kept_at_most(review: Review, side: Composition) -> float:
    """Output tokens a sequence and step at best: every draft, where nobody declared how many are accepted."""
    scheduler = side.scheduler
    if review.assumption("policy", "speculation", "acceptance") is None:
        return scheduler.yield_per_step
    return scheduler.verify_tokens / (1 - scheduler.skipped_share)


def best(on: Sides, terms: Terms, figure: Bound, kept: float | None = None) -> Best | None:
    """The best value that a bound allows, None when not one sequence fits.

    Rates are those of all sequences that memory and a declared admission limit hold, where the claim states none.
    ``kept`` stands for the tokens that a step yields.
    """
    if terms.kind == "ttft":
        shape = prefill(*_prefilled(terms))
        seconds = _seconds(on.prefill, figure, shape)
        return Best(seconds, 1.0, shape, seconds)
    scheduler = on.decode.scheduler
    tokens_kept = scheduler.yield_per_step if kept is None else kept
    if terms.kind in ("itl", "tpot", "user"):
        batch = _each(on, terms.batch)
        shape = decode(batch, terms.context, float(scheduler.verify_tokens))
        seconds = _seconds(on.decode, figure, shape)
        value = {"itl": seconds, "tpot": seconds / tokens_kept}.get(terms.kind, tokens_kept / seconds)
        return Best(value, batch, shape, seconds)
    most = float(fitting(on, terms.context))
    if most < 1:
        return None
    # A step reads the weights once, for however many sequences: the rate grows with them.
    batch = most if terms.batch is None else min(_each(on, terms.batch), most)
    shape = _loaded(on, terms, batch, tokens_kept)
    seconds = _seconds(on.decode, figure, shape)
    output = max(terms.output, 1.0)
    counted = {"output": 1.0, "total": (terms.prompt + terms.output) / output}.get(terms.kind, 1 / output)
    return Best(on.copies * counted * batch * tokens_kept / seconds, batch, shape, seconds)


def _each(on: Sides, batch: float | None) -> float:
    """Sequences on each of the pools that decode, at least the one that is looked at."""
    return 1.0 if batch is None else max(batch / on.copies, 1.0)


def _prefilled(terms: Terms) -> tuple[float, float]:
    """Tokens of a prompt to compute, at least one, and those that are cached."""
    new = max(terms.prompt * (1 - terms.prefix_hit), 1.0)
    return new, max(terms.prompt - new, 0.0)


def _seconds(side: Composition, figure: Bound, shape: StepShape) -> float:
    function: Callable[[StepShape], float] = getattr(side.pricer, figure)
    return function(shape)


def _loaded(on: Sides, terms: Terms, batch: float, kept: float) -> StepShape:
    """The average step: decoding, and where prompt tokens count, the prefill of as many requests as finish."""
    shape = decode(batch, terms.context, float(on.decode.scheduler.verify_tokens))
    if terms.kind == "output" or on.prefill is not on.decode or on.decode.scheduler.ranks > 1:
        return shape
    new, cached = _prefilled(terms)
    return shape._replace(
        prefill_sequences=batch * kept / max(terms.output, 1.0), prefill_tokens=new, prefill_context=cached
    )


def fitting(on: Sides, context: float) -> int:
    """Sequences that decode at once on one decode replica: what a declared limit admits, and what memory holds.

    All memory that weights leave counts: what engines reserve is no bound.
    """
    side = on.decode
    whole = evolve(
        side.memory, budget=side.memory.visible, budget_kind="total", reserves=(), cache_bytes=None, token_cap=None
    )
    limit = whole.resident_sequences(max(context, 1.0))
    declared = getattr(side.setup.deployment.policies.get("batching"), "max_sequences", None)
    return min(limit, declared * side.scheduler.ranks) if declared is not None else limit


def described(terms: Terms, found: Best) -> str:
    """Say at which point a limit holds."""
    if terms.kind == "ttft":
        hit = f", {terms.prefix_hit:.0%} of it cached" if terms.prefix_hit else ""
        return f"for a prompt of {tokens(terms.prompt)} tokens{hit}"
    context = f"{tokens(terms.context)} tokens of context" if terms.context else "an empty context"
    fit = " that fit at once" if terms.batch is None and terms.kind in ("output", "total", "requests") else ""
    if found.batch == 1:
        return f"for one sequence with {context}"
    return f"at {counted(found.batch, 'sequence')} with {context}{fit}"
