"""What holds the model, and the same deployment with one thing changed, for remedies that quote a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from attrs import evolve

from servelint.errors import PluginError
from servelint.lineage import KeyPath, dotted
from servelint.plugin import Composition, Review
from servelint.service import Objective, Point, Service
from servelint_rules.layouts import fits

Edits = tuple[tuple[KeyPath, str], ...]
BATCHING: KeyPath = ("policy", "batching")
NOTHING: Mapping[str, Any] = {}
MIXES = {"mixed_steps": True}
CUTS = ("chunked_prefill",)

MOST_TOKENS = 16384
"""Token budgets of a step beyond this are not proposed: a step of so many tokens takes a second on large models."""


def sides(composition: Composition) -> tuple[tuple[str, Composition], ...]:
    """What holds the model: (name of the pool, its replica), or the replica itself under an empty name."""
    pools = composition.scheduler.disaggregation
    if pools is None:
        return (("", composition),)
    return (("prefill", pools.prefill.composition), ("decode", pools.decode.composition))


def sound(review: Review, other: Composition | None) -> Composition | None:
    """The deployment with something changed, None where it does not compose or no longer fits: that is no remedy.

    Larger steps take memory from the cache. One that does not fit as it is may be changed all the same: MEM001 and
    MEM002 say what would make it fit.
    """
    if other is None or review.composition is None:
        return None
    return other if fits(other) or not fits(review.composition) else None


def narrower_cache(review: Review) -> Composition | None:
    """The deployment with an FP8 KV cache.

    None where the cache is that narrow already, where it is a latent with a layout of the engine's own, where the
    engine or the device has no such cache (QNT006), or where nothing composes.
    """
    memory = review.memory
    if memory is None or not memory.caches:
        return None
    if any(c.format.bits < 16 or c.axis == "replicated" for c in memory.caches):
        return None
    other = sound(review, review.variant(quantization=evolve(review.policy("quantization"), kv_cache="fp8")))
    if other is None:
        return None
    from servelint_rules.qnt.qnt006_kv_format_unsupported import problems

    return None if any(problems(review, other, review.plugins.format("fp8"), "fp8")) else other


def budget_key(review: Review) -> str:
    """The key of ``policy.batching`` that limits the prompt tokens of a step."""
    return "prefill_chunk" if review.policy("batching").prefill_chunk else "max_batched_tokens"


class Pieces(NamedTuple):
    """What lets others decode between the pieces of a prompt: edits of the spec, and the keys of the policy."""

    edits: Edits = ()
    changes: Mapping[str, Any] = NOTHING


def pieces(review: Review) -> Pieces:
    """What cuts prompts, and lets others decode between the pieces; nothing where they do, or no key does it."""
    composition, batching = review.composition, review.policy("batching")
    if composition is None or review.engine is None:
        return Pieces()
    keys = CUTS if review.engine.pieces is None else review.engine.pieces(review.engine_version, composition.context)
    changes: dict[str, Any] = {}
    if batching.chunked_prefill is False:
        if "chunked_prefill" not in keys:
            return Pieces()
        changes["chunked_prefill"] = True
    elif not composition.scheduler.prompts_first:
        return Pieces()
    if batching.mixed_steps is False and not composition.scheduler.decodes_between:
        between: dict[str, Any] = {"mixed_steps": True, "prefill_decode_interval": 1}
        own = next((name for name in between if name in keys), None)
        if own is not None:
            changes[own] = between[own]
        elif composition.scheduler.chunked:
            return Pieces()
    edits = tuple(((*BATCHING, name), "true" if value is True else str(value)) for name, value in changes.items())
    # An engine that cannot be told to mix what it cuts does so.
    return Pieces(edits, changes if {"mixed_steps", "prefill_decode_interval"} & set(keys) else changes | MIXES)


def allowed(review: Review, composition: Composition) -> bool:
    """Whether the engine refuses no more of a changed deployment than of the declared one."""
    setup = composition.setup
    try:
        refused = review.plugins.engine_refusals(setup.engine, setup.engine_version, composition.context)
    except PluginError:
        return False
    return {text for _, text, _ in refused} <= {text for _, text, _ in review.refusals}


def with_budget(review: Review, tokens: int, changes: Mapping[str, Any] = NOTHING) -> Composition | None:
    """The deployment with another limit of prompt tokens a step, None where that does not compose or fit."""
    batching = evolve(review.policy("batching"), **{budget_key(review): tokens}, **changes)
    return sound(review, review.variant(batching=batching))


def budget_edits(review: Review, tokens: int, admitted: int | None = None) -> Edits:
    """The edits that set the limit of prompt tokens a step, and the admission limit ``admitted`` where one is given.

    vLLM refuses a budget that is less than its admission limit, so that one follows where it is declared.
    """
    key, batching = budget_key(review), review.policy("batching")
    admission: KeyPath = ("policy", "batching", "max_sequences")
    edits: list[tuple[KeyPath, str]] = [(("policy", "batching", key), str(tokens))]
    vllm = review.engine is not None and review.engine.name == "vllm"
    declared = batching.max_sequences if review.declared(*admission) else None
    sequences = admitted or declared or 0
    if vllm and key != "prefill_chunk" and sequences > tokens:
        sequences = tokens
    if sequences and sequences != declared:
        edits.append((admission, str(sequences)))
    return tuple(edits)


def told(edits: Iterable[tuple[KeyPath, str]]) -> str:
    """Edits as a help line has them."""
    return " and ".join(f"{dotted(path)} = {text}" for path, text in edits)


def written(review: Review, path: KeyPath, value: int) -> str:
    """A number as whoever set it would write it: with the flag of the launch arguments, else as a key of the spec."""
    setting = review.document.settings.get(path)
    return f"{dotted(path)} = {value}" if setting is None or setting.assumed else f"{setting.spelling} {value}"


def larger_budgets(review: Review) -> Iterator[tuple[int, Composition]]:
    """The deployment with doublings of the limit of prompt tokens a step."""
    batching = review.policy("batching")
    tokens = getattr(batching, budget_key(review))
    most = min(MOST_TOKENS, batching.max_batched_tokens or MOST_TOKENS) if batching.prefill_chunk else MOST_TOKENS
    while tokens is not None and tokens * 2 <= most:
        tokens *= 2
        composition = with_budget(review, tokens)
        if composition is not None:
            yield tokens, composition


def replicas_for(
    service: Service,
    total: float,
    objectives: tuple[Objective, ...],
    wanted: Callable[[Point], bool] = lambda point: True,
) -> int | None:
    """The fewest replicas that carry ``total`` requests/s and keep every objective; None where no number of them does.

    Each runs at the knee, or at the most that it carries where there are no objectives; ``wanted`` is what its point
    has to be besides.
    """
    knee = service.knee(objectives)
    if knee is None or knee.rate <= 0:
        return None

    def carries(number: int) -> bool:
        point = service.at_rate(total / number)
        return point is not None and not point.misses(objectives, declared=True) and wanted(point)

    def taken(rate: float) -> int:
        return max(math.ceil(total / (rate * service.decode_replicas) - 1e-9), 1)

    needed = taken(knee.rate)
    if not carries(needed):
        # An operating point is found to a fraction of a percent, which may be just the other side of an objective.
        return needed + 1 if carries(needed + 1) else None
    # The knee is a whole number of sequences, and replicas run between it and the next: of few that is far.
    past = service.point(knee.batch + 1).rate
    too_few = taken(past) - 1 if past > knee.rate else needed - 1
    while needed - too_few > 1:
        middle = (needed + too_few) // 2
        needed, too_few = (middle, too_few) if carries(middle) else (needed, middle)
    return needed
