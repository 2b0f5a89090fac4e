"""``[policy.constrained_decoding]``: grammar compilation, token masks, and steps saved by jump-forward.

The mask of a step is host work beside the forward pass when the engine overlaps them, and after it
otherwise; either way it is applied to the logits on the device.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from servelint.plugin import (
    ONCE,
    OUTPUTS,
    ActivationIO,
    Boolean,
    Context,
    Default,
    Dimension,
    HostWork,
    Input,
    Launch,
    Lineage,
    Many,
    Op,
    Policy,
    Quantity,
    Scheduler,
    Source,
    StepGraph,
    Text,
    key,
)
from servelint.values import Value

NAME = "constrained_decoding"

LOGIT_BYTES = 2
MASK_S, COMPILE_S = 50e-6, 0.1
BENCH = Source("default", "guidance-ai/jsonschemabench@00c3d01:maskbench/README.md", "one thread, JSON schemas")
"""XGrammar 0.1.10 takes 8 us (median) and 117 us (p90) for a warm mask and 535 ms (median) for a cold compile,
LLGuidance 0.6.7 1 ms (median) for a compile."""
MASKS_S = {"outlines": 118e-6}
"""Backends that are slow enough to name: the median of Outlines 0.1.13 on the same schemas; its mean is 59 ms."""

_fraction = Quantity(Dimension.FRACTION, 0, 1, positive=False)
_seconds = Quantity(Dimension.SECONDS, 0, 3600, positive=False)


@frozen(slots=False, eq=False, repr=False)
class ConstrainedDecoding(Value):
    """``share`` of requests are constrained; ``compile`` seconds a new schema, ``mask`` host seconds a token,
    warm; ``jump_forward`` is the share of constrained output tokens that the grammar fixes and no step computes."""

    backend: str | None = key(
        Text(),
        doc="The grammar engine. Only `outlines` changes the default of `mask`; for others give `mask` and `compile`.",
    )
    share: float | None = key(_fraction, doc="Share of requests that are constrained. Left out: all.")
    schemas: str | None = key(
        Text("static", "dynamic"),
        doc="Whether schemas are the same for every request; decides the default of `cache_hit`.",
    )
    cache_hit: float | None = key(
        _fraction,
        doc="Share of constrained requests whose schema is compiled already. Left out: 1, and 0 for dynamic schemas.",
    )
    compile: float | None = key(_seconds, doc="Time to compile a new schema. Left out: 100 ms.")
    mask: float | None = key(
        _seconds,
        doc="Host time of one token's mask, warm. Left out: 50 us, on which no finding rests; of `outlines` 118 us.",
    )
    overlap: bool | None = key(Boolean(), doc="Whether masks are built during the forward pass. Left out: true.")
    jump_forward: float | None = key(
        Quantity(Dimension.FRACTION, 0, 0.99, positive=False),
        doc="Share of constrained output tokens that the grammar fixes and no step computes. Left out: none.",
    )
    cache_key: tuple[str, ...] | None = key(
        Many(Text("schema", "tokenizer", "engine_version")), doc="What compiled schemas are cached by."
    )


def active(config: ConstrainedDecoding, context: Context) -> bool:
    """Whether the spec sets anything of constrained decoding, and some requests are constrained."""
    declared = context.deployment.policies.get(NAME)
    return declared is not None and declared != ConstrainedDecoding() and config.share != 0.0


def defaults(config: ConstrainedDecoding, context: Context) -> Mapping[str, Default]:
    """All requests constrained, static schemas compiled once, masks overlapped with the forward pass."""
    if not active(config, context):
        return {}
    source = Source("default", "docs/conventions.md", "constrained decoding")
    own = MASKS_S.get((config.backend or "").lower())
    hit = 0.0 if config.schemas == "dynamic" else 1.0
    reason = "a dynamic schema is new each time" if config.schemas == "dynamic" else "schemas are compiled once"
    return {
        "share": Default(1.0, "not declared: every request", source),
        "cache_hit": Default(hit, reason, source),
        "overlap": Default(True, "engines build masks during the forward pass", source),
        "jump_forward": Default(0.0, "", source),
        "mask": Default(own, "not declared: the median of the backend", BENCH)
        if own is not None
        else Default(MASK_S, "not declared: between the median and p90 of XGrammar", BENCH),
        "compile": Default(COMPILE_S, "not declared: between the medians of LLGuidance and XGrammar", BENCH),
    }


def graph(config: ConstrainedDecoding, graph: StepGraph, context: Context) -> StepGraph:
    """Add the host branch and the mask's application to the logits.

    Every row of logits that is sampled from needs a mask of its own: one a sequence, k+1 when a step verifies
    k drafts. A host serves the sequences of its own data-parallel rank.
    """
    share, seconds = config.share or 0.0, config.mask or 0.0
    if not active(config, context) or share * seconds == 0.0:
        return graph
    head = graph.op("lm_head")
    finals = _finals(graph)
    rows = OUTPUTS.on_fullest_rank(graph.ranks)
    build = HostWork(
        share * seconds,
        rows,
        "replicated",
        Lineage(
            "mask seconds = constrained rows x seconds a mask",
            (context.input(NAME, "share"), context.input(NAME, "mask", "s")),
        ),
    )
    vocabulary = context.architecture.vocab_size
    applied = ActivationIO(
        share * (2 * vocabulary / 8 + 2 * LOGIT_BYTES * vocabulary),
        rows,
        "replicated",
        Lineage(
            "bitmask copied in and read, logits read and written = rows x vocabulary x (2 / 8 + 2 x 2) B",
            (Input("vocabulary", vocabulary, "", Source("model", context.architecture.id, "vocab_size")),),
        ),
    )
    launches = Launch(2, ONCE, "replicated", Lineage("bitmask copy and masking kernel"))
    waits = ("schemas",) if config.overlap else finals
    mask = Op("grammar.mask", waits, ("grammar.bitmask",), (build,), head.repeats, (), NAME)
    apply = Op(
        "grammar.apply",
        ("grammar.bitmask", *finals),
        ("grammar.logits",),
        (applied, launches),
        head.repeats,
        (),
        NAME,
    )
    return graph.with_ops(mask, apply)


def _finals(graph: StepGraph) -> tuple[str, ...]:
    """Values that no op reads: the step's logits."""
    read = {v for op in graph.ops for v in op.inputs}
    return tuple(v for op in graph.ops for v in op.outputs if v not in read)


def scheduler(config: ConstrainedDecoding, scheduler: Scheduler, context: Context) -> Scheduler:
    """Put cold compiles on the path to the first token, and take out the steps that jump-forward saves."""
    if not active(config, context):
        return scheduler
    share = config.share or 0.0
    cold = share * (1.0 - (config.cache_hit or 0.0))
    return evolve(
        scheduler,
        skipped_share=share * (config.jump_forward or 0.0),
        first_token_s=(config.compile or 0.0) if cold else 0.0,
        first_token_share=cold if config.compile else 0.0,
    )


POLICY = Policy(NAME, ConstrainedDecoding, graph, None, scheduler, defaults, after=("parallelism", "speculation"))
