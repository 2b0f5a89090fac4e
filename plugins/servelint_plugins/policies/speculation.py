"""``[policy.speculation]``: draft k tokens, verify them in one step.

A step then verifies k+1 tokens a sequence, of which (1 - a^(k+1)) / (1 - a) are kept in expectation. The
draft is a subgraph of the same step: k passes for the decoding sequences, one over the prompt in prefill.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servelint.arrays import Number as Amount
from servelint.arrays import sign
from servelint.composition import resolve_formats
from servelint.layout import lay
from servelint.memory import Cache
from servelint.memory import lay as lay_memory
from servelint.plugin import (
    Architecture,
    Block,
    Context,
    Default,
    Demand,
    Dimension,
    Feature,
    InfeasibleError,
    Input,
    Integer,
    Lineage,
    MemoryLedger,
    Number,
    Op,
    Policy,
    Quantity,
    Reserve,
    Scheduler,
    Source,
    StepGraph,
    StepShape,
    Text,
    key,
)

NAME = "speculation"


@frozen
class Speculation:
    """``tokens`` is k; ``acceptance`` the chance that one drafted token is kept given that those before it
    were; ``acceptance_length`` the tokens kept a step, when that was measured instead."""

    method: str | None = key(Text("draft", "eagle", "mtp", "ngram"))
    tokens: int | None = key(Integer(0, 64))
    acceptance: float | None = key(Quantity(Dimension.FRACTION, 0, 1, positive=False))
    acceptance_length: float | None = key(Number(1.0, 65.0))
    draft_model: str | None = key(Text())
    draft_tensor: int | None = key(Integer(1, 4096))

    @property
    def active(self) -> bool:
        """Whether anything is drafted at all."""
        return self.method is not None and bool(self.tokens)


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens kept by one verify step: (1 - a^(k+1)) / (1 - a), k+1 at a = 1; always in [1, k+1]."""
    if acceptance >= 1.0:
        return float(k + 1)
    # The sum form keeps the bounds exactly where the closed form loses digits near 1.
    total, power = 1.0, 1.0
    for _ in range(k):
        power *= acceptance
        total += power
    return total


def defaults(config: Speculation, context: Context) -> dict[str, Default]:
    """Without a measured acceptance assume one that published drafts reach."""
    if not config.active or config.acceptance is not None or config.acceptance_length is not None:
        return {}
    source = Source("default", "docs/conventions.md", "speculation")
    return {"acceptance": Default(0.7, "not declared; drafts reach 0.6 to 0.8 on chat", source)}


def _draft_feature(feature: Feature, k: int) -> Feature:
    """Count k single-token passes over the decoding sequences and one pass over the prompts."""

    def passes(count: Feature, floor: bool, s: StepShape) -> Amount:
        evaluate = count.floor if floor else count.count
        none = s.prefill_sequences * 0.0
        decoding = s._replace(new_tokens=1.0, prefill_sequences=none)
        prompting = s._replace(batch=s.batch * 0.0)
        return k * sign(s.batch) * evaluate(decoding) + sign(s.prefill_sequences) * evaluate(prompting)

    return Feature(
        f"drafted {feature.name}",
        lambda s: passes(feature, False, s),
        (*feature.args, "k", k),
        lambda s: passes(feature, True, s),
    )


def _draft_architecture(config: Speculation, context: Context) -> Architecture | None:
    """The draft: a model of its own, or one layer of the target's kind with its head (EAGLE, MTP)."""
    target = context.architecture
    if config.method == "draft":
        if config.draft_model is None:
            return None
        return context.plugins.models.get(config.draft_model)
    if config.method == "ngram":
        return None
    last = target.num_layers - 1
    blocks = tuple(Block(b.name, (0,), b.tensors, b.mixer, b.experts) for b in target.blocks if last in b.layers)
    if not blocks:
        raise InfeasibleError(f"{target.id} has no last layer to draft with", ("policy", NAME, "method"))
    return evolve(target, num_layers=1, blocks=blocks, extras=(), layout=None)


def _split(config: Speculation, context: Context) -> int:
    parallelism = context.config("parallelism")
    return config.draft_tensor or (parallelism.t if parallelism is not None else 1)


def graph(config: Speculation, graph: StepGraph, context: Context) -> StepGraph:
    """Put the draft's ops before the verify pass."""
    if not config.active:
        return graph
    draft = _draft_architecture(config, context)
    if draft is None:
        return graph
    k = config.tokens or 0
    t = _split(config, context)
    laid = lay(draft, resolve_formats(context.plugins, draft))
    note = Lineage("drafted tokens", (context.input(NAME, "tokens"),))

    def drafted(demand: Demand) -> Demand:
        share = 1.0 if demand.axis == "replicated" else 1.0 / t
        reason = f"{k} draft passes a step, one over each prompt"
        lineage = demand.lineage.rewritten(NAME, reason, *note.inputs)
        return evolve(
            demand,
            coefficient=demand.coefficient * share,
            feature=_draft_feature(demand.feature, k),
            lineage=lineage,
        )

    rest = (0,) * (graph.stages - 1)
    ops = []
    for op in laid.ops:
        inputs = tuple(v if v == "tokens" else f"draft.{v}" for v in op.inputs)
        outputs = tuple(f"draft.{v}" for v in op.outputs)
        ops.append(
            Op(
                f"draft.{op.name}",
                inputs,
                outputs,
                tuple(map(drafted, op.demands)),
                (op.count, *rest),
                (),
                NAME,
            )
        )
    # The verify pass reads the drafted tokens.
    final = ops[-1].outputs
    verify = tuple(evolve(op, inputs=(*op.inputs, *final)) if "tokens" in op.inputs else op for op in graph.ops)
    return evolve(graph, ops=(*ops, *verify))


def memory(config: Speculation, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Hold the draft's weights and its KV cache."""
    if not config.active:
        return ledger
    draft = _draft_architecture(config, context)
    if draft is None:
        return ledger
    t = _split(config, context)
    laid = lay_memory(draft, resolve_formats(context.plugins, draft), 0, Lineage(""))
    shared = set() if config.method == "draft" else {draft.embedding.name, draft.lm_head and draft.lm_head.name}
    size = sum(
        w.bytes_on(0) / (1 if w.tensor.axis == "replicated" else t) for w in laid.weights if w.name not in shared
    )
    rest = (0,) * (ledger.stages - 1)
    caches = tuple(
        Cache(
            f"draft.{c.block}",
            c.elements / (1 if c.axis == "replicated" else t),
            c.format,
            (*c.repeats, *rest),
            c.axis,
            c.lineage.rewritten(NAME, "the draft's own cache"),
            c.extra_bytes,
            c.held,
        )
        for c in laid.caches
    )
    weights = Input("draft parameters", draft.params_serving, "", Source("model", draft.id, "params"))
    ledger = ledger.with_reserve(Reserve("draft weights", size, Lineage("draft weight bytes / tensor", (weights,))))
    return evolve(ledger, caches=(*ledger.caches, *caches))


def scheduler(config: Speculation, scheduler: Scheduler, context: Context) -> Scheduler:
    """A step verifies k+1 tokens a sequence and keeps the expected number."""
    if not config.active:
        return scheduler
    k = config.tokens or 0
    kept = config.acceptance_length
    if kept is None:
        kept = expected_tokens(config.acceptance if config.acceptance is not None else 0.0, k)
    return evolve(scheduler, verify_tokens=k + 1, tokens_per_step=min(max(kept, 1.0), float(k + 1)))


POLICY = Policy(NAME, Speculation, graph, memory, scheduler, defaults, after=("parallelism", "quantization", "moe"))
