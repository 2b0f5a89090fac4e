"""``[policy.speculation]``: draft k tokens, verify them in one step.

A step then verifies k+1 tokens a sequence, of which (1 - a^(k+1)) / (1 - a) are kept in expectation. The
draft is a subgraph of the same step, composed with the target's own policies on its own architecture: k
passes over the decoding sequences, the first of which also takes the prompts of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from servelint.arrays import Number as Amount
from servelint.arrays import sign
from servelint.composition import resolve_formats
from servelint.plugin import (
    Architecture,
    Block,
    Collective,
    Composition,
    Context,
    Default,
    Demand,
    Dimension,
    Feature,
    InfeasibleError,
    Integer,
    LinearState,
    MemoryLedger,
    Number,
    Op,
    Policy,
    Quantity,
    Scheduler,
    Source,
    StepGraph,
    StepShape,
    Tensor,
    Text,
    key,
)
from servelint.values import Value

NAME = "speculation"


@frozen(slots=False, eq=False, repr=False)
class Speculation(Value):
    """``tokens`` is k; ``acceptance`` the chance that one drafted token is kept given that those before it
    were; ``acceptance_length`` the tokens kept a step, when that was measured instead."""

    method: str | None = key(
        Text("draft", "eagle", "mtp", "ngram"),
        doc="What drafts: another model, a head (EAGLE), the model's own layer (MTP), or a look-up. Left out: none, "
        "or draft where `draft_model` is named.",
    )
    tokens: int | None = key(Integer(0, 64), doc="Tokens drafted a step. Left out: none.")
    acceptance: float | None = key(
        Quantity(Dimension.FRACTION, 0, 1, positive=False),
        doc="Chance that a drafted token is kept when those before it were. Left out, with `acceptance_length`, too: "
        "0.7, and findings are advice.",
    )
    acceptance_length: float | None = key(
        Number(1.0, 65.0),
        doc="Mean tokens kept a step, the verified one included, where that was measured; goes before `acceptance`.",
    )
    draft_model: str | None = key(Text(), doc="The model that drafts, by id or alias.")
    draft_tensor: int | None = key(
        Integer(1, 4096), doc="Devices that the draft is split over. Left out: as the target."
    )

    @property
    def active(self) -> bool:
        """Whether anything is drafted at all."""
        return self.method is not None and bool(self.tokens)


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens kept by one verify step: (1 - a^(k+1)) / (1 - a), k+1 at a = 1; always in [1, k+1].

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192).
    """
    # The sum form keeps the bounds exactly where the closed form loses digits near 1.
    total, power = 1.0, 1.0
    for _ in range(k):
        power *= min(acceptance, 1.0)
        total += power
    return total


def defaults(config: Speculation, context: Context) -> Mapping[str, Default]:
    """A named draft model means drafting with it; without a measured acceptance assume a published one."""
    source = Source("default", "docs/conventions.md", "speculation")
    filled: dict[str, Default] = {}
    if config.method is None and config.tokens and config.draft_model is not None:
        filled["method"] = Default("draft", "a draft model is named", source)
    drafting = config.active or "method" in filled
    if drafting and config.acceptance is None and config.acceptance_length is None:
        filled["acceptance"] = Default(0.7, "not declared; drafts reach 0.6 to 0.8 on chat", source)
    return filled


# The draft


def _own_layer(target: Architecture) -> Architecture:
    """One layer of the target's kind behind a projection, with the target's table and head (EAGLE, MTP).

    The layer's token mixer is the last that attends, its feed-forward part the last one. The projection
    takes embedding and hidden state, 2 x hidden to hidden, and is held whole by every rank.
    """

    def last(blocks: list[Block]) -> list[Block]:
        return [max(blocks, key=lambda b: max(b.layers))] if blocks else []

    mixers = [b for b in target.blocks if b.mixer is not None and b.layers]
    attending = [b for b in mixers if not isinstance(b.mixer, LinearState)]
    layer = [*last(attending or mixers), *last([b for b in target.blocks if b.mixer is None and b.layers])]
    blocks = [evolve(block, layers=(0,)) for block in layer]
    if blocks:
        projection = Tensor("eh_proj", "mtp", 2 * target.hidden_size**2, "replicated")
        blocks[0] = evolve(blocks[0], tensors=(projection, *blocks[0].tensors))
    return evolve(target, num_layers=1, blocks=tuple(blocks), positions=None, extras=())


def _architecture(config: Speculation, context: Context) -> Architecture | None:
    """What drafts: a model of its own, a head on the target, or nothing (n-gram look-up, unknown draft)."""
    if not config.active or config.method == "ngram":
        return None
    if config.method == "draft" and config.draft_model is None:
        raise InfeasibleError(
            'method = "draft" drafts with a model of its own: name it in draft_model', ("policy", NAME, "method")
        )
    if config.draft_model is not None and context.plugins.models.resolve(config.draft_model) is not None:
        return context.plugins.models.get(config.draft_model)
    if config.method == "draft":
        return None
    own = _own_layer(context.architecture)
    # An EAGLE head is trained and stored apart; an MTP layer is part of the target's checkpoint.
    return evolve(own, quantization=None) if config.method == "eagle" else own


def _parallelism(config: Speculation, context: Context, draft: Architecture) -> Any:
    """How the draft is spread: as the target, on one pipeline stage; or ``draft_tensor`` devices each."""
    target = context.config("parallelism")
    if target is None:
        return None
    shape = evolve(target, tensor=target.t, pipeline=1, pipeline_layers=None)
    if not draft.is_moe:
        shape = evolve(shape, expert=1)
    wanted = config.draft_tensor
    if wanted is None or wanted == target.t:
        return shape
    # Ranks with sequences of their own draft apart where the draft fits in one of them.
    apart = target.attention_ranks if wanted * target.attention_ranks <= target.t else 1
    return evolve(shape, tensor=wanted, data=target.d * apart, attention_data=1, context=1, expert=1)


def _draft(config: Speculation, context: Context) -> Composition | None:
    """Compose the draft: its architecture, the target's devices, and those policies that concern it."""
    architecture = _architecture(config, context)
    if architecture is None:
        return None
    deployment, setup = context.deployment, context.setup
    policies = {k: v for k, v in context.configs.items() if k not in ("constrained_decoding", "disaggregation")}
    policies[NAME] = Speculation()
    policies["parallelism"] = _parallelism(config, context, architecture)
    quantization = policies.get("quantization")
    if quantization is not None and (config.method != "mtp" or config.draft_model is not None):
        # The declared weight format is the target's; the cache format holds for both.
        policies["quantization"] = evolve(quantization, weights=None, covers=None, group_size=None)
    return Composition(
        evolve(
            setup,
            architecture=architecture,
            formats=resolve_formats(setup.plugins, architecture),
            deployment=evolve(
                deployment,
                model=evolve(deployment.model, weights_bytes=None),
                policies={k: v for k, v in policies.items() if v is not None},
            ),
        )
    )


def _passes(feature: Feature, *, prompts: bool) -> Feature:
    """Count one single-token pass over the decoding sequences: with the prompts of the step, or without."""

    def over(evaluate: Callable[[StepShape], Amount]) -> Callable[[StepShape], Amount]:
        if prompts:
            return lambda s: evaluate(s._replace(new_tokens=1.0))
        return lambda s: sign(s.batch) * evaluate(s._replace(new_tokens=1.0, prefill_sequences=s.batch * 0.0))

    count = over(feature.count)
    return Feature(
        f"{feature.name} of {'the first draft pass' if prompts else 'a further draft pass'}",
        count,
        feature.args,
        count if feature.floor is feature.count else over(feature.floor),
    )


def _finals(ops: tuple[Op, ...]) -> tuple[str, ...]:
    """Values that no op reads."""
    read = {v for op in ops for v in op.inputs}
    return tuple(v for op in ops for v in op.outputs if v not in read)


def graph(config: Speculation, graph: StepGraph, context: Context) -> StepGraph:
    """Put the draft's passes before the verify pass, on the last pipeline stage."""
    draft = _draft(config, context)
    if draft is None:
        return graph
    ops = draft.graph.ops
    k = config.tokens or 0
    drafted = context.input(NAME, "tokens")
    elsewhere = (0,) * (graph.stages - 1)

    def chain(prefix: str, start: tuple[str, ...], passes: int, reason: str, *, prompts: bool) -> list[Op]:
        def demand_of(demand: Demand) -> Demand:
            lineage = demand.lineage.rewritten(NAME, reason, drafted)
            changed = evolve(demand, feature=_passes(demand.feature, prompts=prompts), lineage=lineage)
            if isinstance(changed, Collective):
                changed = evolve(changed, launches=_passes(changed.launches, prompts=prompts))
            return changed

        laid = []
        for op in ops:
            inputs = [v for i in op.inputs for v in (start if i == "tokens" else (f"{prefix}.{i}",))]
            outputs = tuple(f"{prefix}.{v}" for v in op.outputs)
            repeats = (*elsewhere, op.count * passes)
            laid.append(
                Op(f"{prefix}.{op.name}", tuple(inputs), outputs, tuple(map(demand_of, op.demands)), repeats, (), NAME)
            )
        return laid

    reason = f"the first of {k} draft passes, which takes the step's prompts too"
    passes = chain("draft", ("tokens",), 1, reason, prompts=True)
    final = tuple(f"draft.{v}" for v in _finals(ops))
    if k > 1:
        passes += chain("draft.next", final, k - 1, f"the other {k - 1} of {k} draft passes", prompts=False)
        final = tuple(f"draft.next.{v}" for v in _finals(ops))
    verify = tuple(evolve(op, inputs=(*op.inputs, *final)) if "tokens" in op.inputs else op for op in graph.ops)
    return evolve(graph, ops=(*passes, *verify))


def memory(config: Speculation, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Hold the draft's weights, KV cache and state on the last pipeline stage; a head on the target shares
    its table and head."""
    draft = _draft(config, context)
    if draft is None:
        return ledger
    held, architecture = draft.memory, draft.setup.architecture
    shared: set[str] = set()
    if architecture.id == context.architecture.id:
        shared = {t.name for t in (architecture.embedding, architecture.lm_head) if t is not None}
    elsewhere = (0,) * (ledger.stages - 1)
    reason = "held for the draft"
    return evolve(
        ledger,
        weights=(
            *ledger.weights,
            *(
                evolve(
                    w,
                    name=f"draft.{w.name}",
                    block=f"draft.{w.block}" if w.block else "draft",
                    repeats=(*elsewhere, *w.repeats),
                    lineage=w.lineage.rewritten(NAME, reason),
                )
                for w in held.weights
                if w.name not in shared
            ),
        ),
        caches=(
            *ledger.caches,
            *(
                evolve(
                    c,
                    block=f"draft.{c.block}",
                    repeats=(*elsewhere, *c.repeats),
                    lineage=c.lineage.rewritten(NAME, reason),
                )
                for c in held.caches
            ),
        ),
        states=(
            *ledger.states,
            *(
                evolve(
                    s,
                    block=f"draft.{s.block}",
                    repeats=(*elsewhere, *s.repeats),
                    lineage=s.lineage.rewritten(NAME, reason),
                )
                for s in held.states
            ),
        ),
    )


def scheduler(config: Speculation, scheduler: Scheduler, context: Context) -> Scheduler:
    """A step verifies k+1 tokens a sequence and keeps the expected number."""
    if not config.active:
        return scheduler
    k = config.tokens or 0
    kept = config.acceptance_length
    if kept is None:
        kept = expected_tokens(config.acceptance if config.acceptance is not None else 0.0, k)
    return evolve(scheduler, verify_tokens=k + 1, tokens_per_step=min(kept, float(k + 1)))


POLICY = Policy(NAME, Speculation, graph, memory, scheduler, defaults, after=("parallelism", "quantization", "moe"))
