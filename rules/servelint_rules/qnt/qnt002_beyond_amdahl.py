"""QNT002 beyond-amdahl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Format, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.shapes import StepShape, decode, prefill
from servelint.spec.model import Claim
from servelint_rules.clm.limits import Best, Sides, Terms, best, fitting, read
from servelint_rules.qnt.weights import weights_path, wide_name, with_formats
from servelint_rules.show import counted, duration, size, tokens

FIGURES = ("bound", "sustained_bound", "estimate")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "int4-g128"
[[claim]]
metric = "speedup"
value = 3.0 # expect: QNT002
at = { batch = 32, context = 4000 }
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-8b-int4"
tasks = { code = -0.4 }
"""


class Limit(NamedTuple):
    """The largest speed-up that the narrower formats allow, the step that it is of, and the division that gives it."""

    value: float
    shape: StepShape
    before: Composition
    after: Composition
    how: str = ""


class BeyondAmdahl(Rule):
    """A claimed speed-up of quantization is more than the shrunk part of the step allows.

    What it checks
    --------------
    Claims of ``speedup`` of a deployment whose weights or KV cache have fewer than 16 bits, read as the speed-up over
    the same deployment in 16 bit. The limit is the largest ratio of step times, in bound, sustained bound and
    estimate, of the decode step at the claim's sequences and context and of the prefill of its prompt; where it
    states no sequences, over all batches, and of the throughputs of as many as memory holds. Silent where
    speculation or another device can be what is compared, and on several devices up to as many times as there are
    devices (PAR007).

    Why it is bad
    -------------
    Only the bytes in the format shrink. The KV cache that a decode step reads, the tables that stay in 16 bit, the
    arithmetic of weights that are dequantized, launches and collectives stay: with four-bit weights and a full cache
    the step is hardly twice as fast, and a plan for four times the load fails.

    The arithmetic
    --------------
    ``speed-up <= 1 / (1 - f + f / r)``, f the share of the step in what shrinks, r by how much; compute, where it
    then decides, limits it further.

    How to fix
    ----------
    Claim at most what the help line says, at the sequences and context that are served, or name in the claim what
    else changed.

    Source
    ------
    Amdahl (1967); docs/cost-model.md, quantization.
    """

    code = "QNT002"
    name = "beyond-amdahl"
    severity = Severity.WARNING
    questions = ("is this claim possible", "may I quantize this")
    options = (Option("tolerance", 0.05, "how far beyond the limit a claim may lie and count as rounding", 0.0, 0.5),)
    failing = (
        Case("three times with a full cache", SPEC, flip=("claim[0].value", "1.5")),
        Case("just beyond what counts as rounding", SPEC.replace("3.0", "1.557"), flip=("claim[0].value", "1.556")),
        Case(
            "four times for four bits, at any load",
            SPEC.replace("3.0", "4.0").replace("at = { batch = 32, context = 4000 }\n", ""),
            flip=("claim[0].value", "3.0"),
        ),
        Case(
            "an FP8 cache speeds up nothing but the cache",
            SPEC.replace('weights = "int4-g128"', 'kv_cache = "fp8"').replace("3.0", "1.9"),
            flip=("claim[0].value", "1.3"),
        ),
    )
    passing = (
        Case(
            "what four bits give one sequence",
            SPEC.replace("batch = 32", "batch = 1").replace("3.0 # expect: QNT002", "2.8"),
        ),
        Case("16 bit says nothing of quantization", SPEC.replace("int4-g128", "bf16").replace(" # expect: QNT002", "")),
        Case(
            "two devices may be what is twice as fast",
            SPEC.replace("[model]", "devices = 2\n[model]").replace("3.0 # expect: QNT002", "2.0"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every claimed speed-up with the largest ratio of steps."""
        claims = [(path, claim) for path, claim in review.claims if claim.metric == "speedup"]
        if not claims:
            return
        composition = review.composition
        if composition is None or composition.scheduler.disaggregation is not None:
            yield Lacks("a composed deployment without pools of its own")
            return
        if next(_formats(composition), None) is None:
            return
        if composition.scheduler.verify_tokens > 1:
            yield Lacks("what the speed-up is over: quantization or speculation")
            return
        config, wide = review.policy("quantization"), wide_name(review)
        before = with_formats(review, weights=wide, kv_cache=wide)
        kept = ("weights", "kv_cache", "activations", "covers", "group_size")
        # Laid anew like the other, so that a measured size of the checkpoint is in neither.
        after = with_formats(review, **{name: getattr(config, name) for name in kept})
        if before is None or after is None:
            return
        devices = composition.setup.topology.devices
        for path, claim in claims:
            elsewhere = claim.assumes is not None and claim.assumes.accelerator is not None
            if elsewhere or claim.value <= devices * (1 + 1e-9):
                continue
            terms = read(review, Claim("throughput", claim.value, at=claim.at))
            if terms is None:
                continue
            limit = _limit(before, after, terms)
            if claim.value > limit.value * (1 + self.option("tolerance")):
                yield _finding(review, path, claim, terms, limit)


def _limit(before: Composition, after: Composition, terms: Terms) -> Limit:
    """The largest of the ratios that a reading of the claim allows."""
    shapes = [prefill(max(terms.prompt, 1.0))] if terms.prompt else []
    if terms.batch is not None:
        shapes.append(decode(terms.batch, terms.context))
    else:
        most, batch = fitting(Sides(after, after, 1), terms.context), 1
        while batch <= most or batch == 1:
            shapes.append(decode(float(batch), terms.context))
            batch *= 2
    limit = max((_ratio(before, after, s) for s in shapes), key=lambda x: x.value)
    if terms.batch is None:
        # More sequences fit, too.
        own, wide = (best(Sides(side, side, 1), terms, "bound") for side in (after, before))
        if own is not None and (wide is None or own.value / wide.value > limit.value):
            value = own.value / wide.value if wide is not None else float("inf")
            limit = Limit(value, own.shape, before, after, _more(terms, own, wide))
    return limit


def _ratio(before: Composition, after: Composition, shape: StepShape) -> Limit:
    """The largest ratio of the step's times, in any of the three figures."""
    found = Limit(0.0, shape, before, after)
    for figure in FIGURES:
        then: Callable[[StepShape], float] = getattr(before.pricer, figure)
        now: Callable[[StepShape], float] = getattr(after.pricer, figure)
        seconds, were = now(shape), then(shape)
        if were > found.value * seconds:
            ratio = were / seconds
            how = f"by the {figure.replace('_', ' ')} the step takes {duration(were)} and then {duration(seconds)}"
            found = Limit(ratio, shape, before, after, f"{how}: {ratio:.2f}x")
    return found


def _more(terms: Terms, own: Best, wide: Best | None) -> str:
    """Why throughput grows by more than a step gets shorter: narrower formats leave room for more sequences."""
    held = f"{counted(own.batch, 'sequence')} a step of {duration(own.seconds)} = {terms.shown(own.value)} as deployed"
    if wide is None:
        return f"{held}, and in 16 bit memory does not hold one"
    return (
        f"memory then holds more of them: by the bound {held}, {counted(wide.batch, 'sequence')} a step of "
        f"{duration(wide.seconds)} = {terms.shown(wide.value)} in 16 bit, {own.value / wide.value:.2f}x"
    )


def _finding(review: Review, path: KeyPath, claim: Claim, terms: Terms, limit: Limit) -> Finding:
    shape = limit.shape
    batch = float(shape.batch)
    context = f"{tokens(float(shape.context))} tokens of context" if shape.context else "an empty context"
    where = (
        f"at {counted(batch, 'sequence')} with {context}"
        if batch
        else f"in prefilling {tokens(float(shape.prefill_tokens))} tokens"
    )
    named = "" if terms.batch is not None else ", where it is largest"
    value = (*path, "value")
    config = review.policy("quantization")
    changed = weights_path(review)
    if config.weights in (None, "auto") and config.kv_cache not in (None, "auto"):
        changed = ("policy", "quantization", "kv_cache")
    stated = next((k for k in ("batch", "concurrency", "context") if review.declared(*path, "at", k)), None)
    return Finding(
        value,
        f"the claimed speed-up of {claim.value:g}x is more than the narrower formats allow: at most "
        f"{limit.value:.2f}x {where}{named}",
        equation=_equation(limit),
        inputs=(
            review.input("claimed speed-up", claim.value, "", *value),
            *(
                Input("bits an element", f.bits_per_element, "bit", f.source)
                for f in {f.name: f for f in _formats(limit.after)}.values()
            ),
        ),
        help=f"claim at most {int(limit.value * 100) / 100:g}, or state what else is faster",
        related=(
            *((Related((*path, "at", stated), "the point that the claim states"),) if stated else ()),
            Related(changed, "what shrinks"),
        ),
    )


def _formats(side: Composition) -> Iterator[Format]:
    memory = side.memory
    yield from (w.format for w in memory.weights if w.format.bits < 16)
    yield from (c.format for c in memory.caches if c.format.bits < 16)


def _equation(limit: Limit) -> str:
    """Amdahl's law in the bytes of the step, and what decides where they do not."""
    before, after = (side.pricer.price(limit.shape) for side in (limit.before, limit.after))
    read_before, read_after = float(before.hbm_bytes), float(after.hbm_bytes)
    ratios = {round(16 / f.bits_per_element, 3) for f in _formats(limit.after)}
    text = f"{size(read_before)} a device and step in 16 bit, {size(read_after)} as deployed"
    ratio = ratios.pop() if len(ratios) == 1 else 0.0
    if ratio > 1 and read_before > read_after:
        share = (1 - read_after / read_before) / (1 - 1 / ratio)
        text += (
            f": {share:.0%} of the bytes shrink {ratio:.2f}x, 1 / (1 - {share:.2f} + {share:.2f} / {ratio:.2f}) = "
            f"{read_before / read_after:.2f}x"
        )
    else:
        text += f": {read_before / read_after:.2f}x"
    return f"{text}; {limit.how}"
