"""PAR007 linear-scaling-assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Service
from servelint.shapes import StepShape, decode
from servelint.spec.model import Claim
from servelint_rules.layouts import altered, decode_side, parallelism, tensor_path
from servelint_rules.par.groups import joined, share_of
from servelint_rules.show import counted, duration, floored

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
[[claim]]
metric = "speedup"
value = 8 # expect: PAR007
at = { batch = 8, context = 2000 }
"""
LARGE = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
devices = 4
[model]
id = "Qwen/Qwen3-32B"
max_model_len = 8192
[policy.parallelism]
tensor = 4
[[claim]]
metric = "speedup"
value = 3.8 # expect: PAR007
at = { batch = 16, context = 300 }
"""


class LinearScalingAssumed(Rule):
    """A claim takes the devices of a tensor-parallel group as its speed-up.

    What it checks
    --------------
    Claims of a ``speedup`` of at least the option ``linear`` times the tensor-parallel degree, where the step on one
    device is not that much longer and one device would not do that much less when full. Where the deployment also
    quantizes or speculates, a speed-up may be of those, and nothing is said.

    Why it is bad
    -------------
    Messages, launches and everything that each device does for itself do not shrink with the group. A plan that
    multiplies the figure of one device is short by the difference, and most at small batches.

    The arithmetic
    --------------
    ``speed-up = T(1 device) / T(tensor)`` of the decode step at the claim's batch and context (estimate); with
    workload lengths also the ratio of the most requests a second, since a larger group holds more sequences. The
    larger of the two counts.

    How to fix
    ----------
    Claim what the help line says, or what was measured with the group.

    Source
    ------
    docs/cost-model.md, parallelism and collectives; Amdahl's law.
    """

    code = "PAR007"
    name = "linear-scaling-assumed"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("is this claim possible", "which parallelism")
    options = (
        Option("linear", 0.95, "share of the tensor-parallel degree from which a speed-up is called linear", 0.5, 1.0),
        Option("tolerance", 0.1, "share by which a claim may exceed the estimate", 0.0, 1.0),
    )
    failing = (
        Case("eight devices, eight times as fast", SPEC, flip=("claim[0].value", "2.5")),
        Case("just what is called linear", LARGE, flip=("claim[0].value", "3.79")),
    )
    passing = (
        Case("what the estimate gives", SPEC.replace("8 # expect: PAR007", "2.5")),
        Case("just not what is called linear", LARGE.replace("3.8 # expect: PAR007", "3.79")),
        Case(
            "a speed-up that may be of the drafts",
            SPEC.replace(" # expect: PAR007", "").replace(
                "[[claim]]", '[policy.speculation]\nmethod = "ngram"\ntokens = 3\nacceptance = 0.6\n[[claim]]'
            ),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare claimed speed-ups with that of the group."""
        claims = [(path, claim) for path, claim in review.claims if claim.metric == "speedup"]
        composition = review.composition
        if not claims:
            return
        if composition is None:
            yield Lacks("a composed deployment")
            return
        side = decode_side(composition)
        t = parallelism(side).t
        wanted = [(path, claim) for path, claim in claims if claim.value >= self.option("linear") * t]
        other = review.declared("policy", "quantization") or composition.scheduler.verify_tokens > 1
        if t == 1 or other or not wanted:
            return
        alone = _alone(side)
        if alone is None:
            return
        for path, claim in wanted:
            found = _load(review, claim)
            if found is None:
                yield Lacks("a batch: claim.at, or a workload")
                continue
            yield from self._judged(review, (path, claim), side, alone, found)

    def _judged(
        self,
        review: Review,
        claimed: tuple[KeyPath, Claim],
        side: Composition,
        alone: Composition,
        load: tuple[float, float],
    ) -> Iterator[Finding]:
        path, claim = claimed
        batch, context = load
        shape, t = decode(batch, context), parallelism(side).t
        one, group = _seconds(alone)(shape), _seconds(side)(shape)
        most = max(one / group, _full(review, side, alone))
        if claim.value <= most * (1 + self.option("tolerance")):
            return
        waiting = share_of(side, joined(side), shape)
        value = (*path, "value")
        yield Finding(
            value,
            f"a speed-up of {claim.value:g} is claimed for tensor = {t}, as if every device added all of its own: a "
            f"decode step of {counted(batch, 'sequence')} takes {duration(group)} instead of {duration(one)} on one "
            f"device, {one / group:.2g} times as fast (estimate)",
            equation=(
                f"{duration(one)} / {duration(group)} = {one / group:.3g}; collectives take {waiting:.0%} of the "
                "group's step, and launches do not shrink"
            ),
            inputs=(
                Input("claimed speed-up", claim.value, "", review.source(*value)),
                Input("tensor", t, "", side.context.source("parallelism", "tensor")),
                Input("sequences", batch, "", review.source(*path)),
                Input("context", context, "tok", review.source(*path)),
            ),
            help=f"claim at most {floored(most):g}",
            related=(Related(tensor_path(review), "the group"),),
        )


def _alone(side: Composition) -> Composition | None:
    """One device of the group that does everything, whether or not the weights would fit."""
    config = parallelism(side)
    changed = evolve(config, tensor=1, attention_data=1, context=1, expert=None)
    return altered(side, parallelism=changed) if config.d == 1 else None


def _seconds(composition: Composition) -> Callable[[StepShape], float]:
    return composition.pricer.estimate  # type: ignore[return-value]


def _load(review: Review, claim: Claim) -> tuple[float, float] | None:
    """Sequences and cached tokens of each at which a claim is made."""
    at, mix, point = claim.at, review.mix, review.operating_point
    batch = float(at.batch or at.concurrency or 0) if at is not None else 0.0
    context = at.context if at is not None else None
    if context is None and at is not None and at.prompt_tokens is not None:
        context = at.prompt_tokens + (at.output_tokens or 0.0) / 2
    if context is None and mix is not None:
        context = mix.mean_context
    if not batch and point is not None:
        batch = max(point.batch, 1.0)
    return (batch, context) if batch and context is not None else None


def _full(review: Review, side: Composition, alone: Composition) -> float:
    """How many times the requests a second of one device the group carries when both are full; 0 where unknown."""
    mix = review.mix
    if mix is None or not alone.memory.has_room:
        return 0.0
    one, group = (Service(c, mix, open_loop=review.rate() is not None).max_rate for c in (alone, side))
    return group / one if one > 0 else 0.0
