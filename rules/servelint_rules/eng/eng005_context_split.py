"""ENG005 context-split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.show import tokens
from servelint_rules.spec.spec006_contradiction import divided_below

if TYPE_CHECKING:
    from servelint.launch.invocation import Setting

LENGTH: KeyPath = ("model", "max_model_len")
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[engine]
name = "llama.cpp"
version = "b5000"
args = "-c 32768 -np 8" # expect: ENG005
[workload]
prompt_tokens = 4000
output_tokens = 97
rate = "0.2 req/s"
"""
DECLARED = (
    SPEC[: SPEC.index("[workload]")]
    .replace('B"\n[engine]', 'B"\nmax_model_len = 8192 # expect: ENG005\n[engine]')
    .replace('8" # expect: ENG005', '8"')
)


class Need(NamedTuple):
    """The longest context that a request is to have, in words, and the key that says so."""

    context: float
    words: str
    path: KeyPath


class ContextSplit(Rule):
    """The engine divides the context over its slots, so that a request gets less than declared.

    What it checks
    --------------
    A context that launch arguments set and the engine divides over slots or lets slots share: that a request may have
    ``model.max_model_len`` where the spec declares it, else ``deployment.sized_for`` and the ``percentile`` of the
    workload's contexts. Slots that are wide enough are never reported, however the context is written; whether the
    requests of slots that share one cache fit in it together is MEM003's.

    Why it is bad
    -------------
    llama.cpp's ``--ctx-size`` is of all slots together. A request that is longer than its slot is refused, or its
    output is cut. That does not show at start.

    The arithmetic
    --------------
    ``slot = context / slots``, the whole context where slots share it. Error where not even the median prompt fits,
    else a warning.

    How to fix
    ----------
    Write the slots times what a request may have, or fewer slots. The help line has both numbers.

    Source
    ------
    ggml-org/llama.cpp tools/server/README.md; #11681, #17767.
    """

    code = "ENG005"
    name = "context-split"
    severity = Severity.WARNING
    questions = ("what runs", "are the flags right", "why is a request refused")
    options = (Option("percentile", 0.99, "share of requests whose context a slot has to hold", 0.0, 1.0),)
    failing = (
        Case("one token more than a slot holds", SPEC, flip=("workload.output_tokens", "96")),
        Case("a slot has less than the spec declares", DECLARED, flip=("model.max_model_len", "4096")),
    )
    passing = (
        Case("a slot that just holds it", SPEC.replace("= 97", "= 96").replace(" # expect: ENG005", "")),
        Case(
            "the whole context is one slot's",
            SPEC.replace("-np 8", "-np 1").replace(" # expect: ENG005", ""),
        ),
        Case(
            "a small slot, and no word of what requests need",
            SPEC[: SPEC.index("[workload]")].replace(" # expect: ENG005", ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what a slot has with what a request is to have."""
        launched = review.document.launched
        made = launched.settings.get(LENGTH) if launched is not None else None
        if made is None or not isinstance(made.value, int) or made.slots == 1:
            return
        slot = made.value
        need = self._need(review, made)
        if need is None:
            yield Lacks("what a request is to have: model.max_model_len, deployment.sized_for or workload lengths")
        elif need.context > slot:
            yield _too_long(review, made, slot, need)

    def _need(self, review: Review, made: Setting) -> Need | None:
        for other in review.document.contradictions:
            if other.path == LENGTH and divided_below(other):
                return Need(float(str(other.declared)), "the spec declares", LENGTH)
        found = []
        sized, mix = review.deployment.deployment.sized_for, review.mix
        if sized is not None:
            found.append(Need(sized, "the fleet is sized for", ("deployment", "sized_for")))
        if mix is not None:
            share = self.option("percentile")
            found.append(Need(mix.context(share), f"{share:.3g} of all requests have up to", _lengths(review)))
        return max(found, key=lambda n: n.context) if found else None


def _lengths(review: Review) -> KeyPath:
    keys = ("prompt_tokens", "trace")
    return next((("workload", key) for key in keys if review.declared("workload", key)), ("workload",))


def _too_long(review: Review, made: Setting, slot: int, need: Need) -> Finding:
    written, slots, mix = made.written, made.slots, review.mix
    part = (
        f"over {slots} slots is {tokens(slot)} tokens a request" if made.divided else f"is all that {slots} slots share"
    )
    how = f"{made.spelling} {tokens(written)} {part}"
    typical = mix is not None and mix.prompt.quantile(0.5) >= slot
    return Finding(
        LENGTH,
        f"{how}, and {need.words} {tokens(need.context)}" + (": not even the median prompt fits" if typical else ""),
        equation=(f"{tokens(written)} / {slots} = " if made.divided else "")
        + f"{tokens(slot)} < {tokens(need.context)}",
        inputs=(Input("context of a request", need.context, "tok", review.source(*need.path)),),
        help=_help(review, made, need.context),
        related=(Related(need.path, f"{tokens(need.context)} tokens"),) if need.path != LENGTH else _arguments(review),
        severity=Severity.ERROR if typical else Severity.WARNING,
    )


def _arguments(review: Review) -> tuple[Related, ...]:
    """Where the launch arguments are named."""
    for path in (("engine", "args_from", "file"), ("engine", "args"), ("engine", "env")):
        if review.declared(*path):
            return (Related(path, "the launch arguments"),)
    return ()


def _help(review: Review, made: Setting, context: float) -> str:
    written, slots, each = made.written, made.slots if made.divided else 1, math.ceil(context)

    def held(length: float) -> float:
        """How many contexts memory could hold, were the cache made for them."""
        memory = review.memory
        return math.inf if memory is None else evolve(memory, token_cap=None).resident_per_rank(length)

    most, fewer, parts = held(each), written // each, []
    if most >= slots:
        parts.append(f"set {made.spelling} {each * slots}" + (f", {slots} x {each}" if slots > 1 else ""))
    elif most >= 1:
        fits = f"{int(most)} slots and {made.spelling} {each * int(most)}"
        parts.append(f"set {fits}: memory does not hold {slots} such contexts")
    if slots > 1 and fewer and held(written / fewer) >= fewer:
        parts.append(f"set --parallel {fewer} and keep {made.spelling} {written}")
    return "; or ".join(parts or ["shorten the context: memory does not hold one of this length"])
