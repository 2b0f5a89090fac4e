"""``[policy.constrained_decoding]``: grammar compilation, token masks, and steps saved by jump-forward.

The mask of a step is host work beside the forward pass when the engine overlaps them, and after it
otherwise; either way it is applied to the logits on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from servelint.plugin import (
    OUTPUTS,
    SEQUENCES,
    ActivationIO,
    Boolean,
    Context,
    Default,
    Dimension,
    HostWork,
    Input,
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

_fraction = Quantity(Dimension.FRACTION, 0, 1, positive=False)
_seconds = Quantity(Dimension.SECONDS, 0, 3600, positive=False)


@frozen(eq=False, repr=False)
class ConstrainedDecoding(Value):
    """``share`` of requests are constrained; ``compile`` seconds a new schema, ``mask`` seconds a token;
    ``jump_forward`` is the share of output tokens that the grammar fixes and no step computes."""

    backend: str | None = key(Text())
    share: float | None = key(_fraction)
    schemas: str | None = key(Text("static", "dynamic"))
    cache_hit: float | None = key(_fraction)
    compile: float | None = key(_seconds)
    mask: float | None = key(_seconds)
    overlap: bool | None = key(Boolean())
    jump_forward: float | None = key(Quantity(Dimension.FRACTION, 0, 0.99, positive=False))
    cache_key: tuple[str, ...] | None = key(Many(Text("schema", "tokenizer", "engine_version")))


def declared(config: Any) -> bool:
    """Whether the spec says anything of constrained decoding."""
    return bool(config.backend or config.share or config.schemas or config.mask or config.compile)


def defaults(config: ConstrainedDecoding, context: Context) -> Mapping[str, Default]:
    """All requests constrained, static schemas compiled once, masks overlapped with the forward pass."""
    if not declared(config):
        return {}
    source = Source("default", "docs/conventions.md", "constrained decoding")
    hit = 0.0 if config.schemas == "dynamic" else 1.0
    return {
        "share": Default(1.0, "not declared", source),
        "cache_hit": Default(hit, "a dynamic schema is new each time, a static one is compiled once", source),
        "overlap": Default(True, "engines build masks during the forward pass", source),
        "jump_forward": Default(0.0, "not declared", source),
        "mask": Default(50e-6, "warm mask of one token, XGrammar order of magnitude", source),
        "compile": Default(0.1, "cold compile of a JSON schema, order of magnitude", source),
    }


def graph(config: ConstrainedDecoding, graph: StepGraph, context: Context) -> StepGraph:
    """Add the host branch and the mask's application to the logits."""
    share, seconds = config.share or 0.0, config.mask or 0.0
    if not declared(config) or share * seconds == 0.0:
        return graph
    head = graph.op("lm_head")
    last = next(op for op in reversed(graph.ops) if any(v in op.outputs for v in _finals(graph)))
    build = HostWork(
        share * seconds,
        SEQUENCES,
        "replicated",
        Lineage(
            "mask seconds = constrained sequences x seconds a mask",
            (context.input(NAME, "share"), context.input(NAME, "mask", "s")),
        ),
    )
    vocabulary = context.architecture.vocab_size
    applied = ActivationIO(
        share * (vocabulary / 8 + 2 * 2 * vocabulary),
        OUTPUTS,
        "replicated",
        Lineage(
            "bitmask read and logits rewritten = rows x (vocabulary / 8 + 4 B x vocabulary)",
            (Input("vocabulary", vocabulary, "", Source("model", context.architecture.id, "vocab_size")),),
        ),
    )
    placed = head.repeats
    waits = ("schemas",) if config.overlap else last.outputs
    mask = Op("grammar.mask", waits, ("grammar.bitmask",), (build,), placed, (), NAME)
    apply = Op("grammar.apply", ("grammar.bitmask", *last.outputs), ("logits.masked",), (applied,), placed, (), NAME)
    return graph.with_ops(mask, apply)


def _finals(graph: StepGraph) -> set[str]:
    read = {v for op in graph.ops for v in op.inputs}
    return {v for op in graph.ops for v in op.outputs if v not in read}


def scheduler(config: ConstrainedDecoding, scheduler: Scheduler, context: Context) -> Scheduler:
    """Put cold compiles on the path to the first token, and take out the steps that jump-forward saves."""
    if not declared(config):
        return scheduler
    share = config.share or 0.0
    return evolve(
        scheduler,
        skipped_share=share * (config.jump_forward or 0.0),
        first_token_s=config.compile or 0.0,
        first_token_share=share * (1.0 - (config.cache_hit or 0.0)),
    )


POLICY = Policy(NAME, ConstrainedDecoding, graph, None, scheduler, defaults, after=("parallelism", "speculation"))
