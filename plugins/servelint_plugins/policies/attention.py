"""``[policy.attention]``: the attention kernel, which decides whether scores pass through HBM."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from servelint.plugin import (
    ActivationIO,
    Attention,
    Context,
    Default,
    Input,
    LatentAttention,
    Lineage,
    Op,
    Policy,
    Source,
    StateIO,
    StepGraph,
    Text,
    key,
)
from servelint.shapes import score_elements
from servelint.values import Value

NAME = "attention"
SCORE_BYTES = 2
SCORE_PASSES = 4
"""Without tiling the scores are written, read by the softmax, written as probabilities and read again."""


@frozen(slots=False, eq=False, repr=False)
class AttentionConfig(Value):
    """``flash`` tiles the scores on chip; ``naive`` writes the whole score matrix to HBM."""

    kernel: str | None = key(
        Text("flash", "naive"),
        doc="`flash` tiles the score matrix on chip, `naive` writes it to memory. Left out: flash.",
    )


def defaults(config: AttentionConfig, context: Context) -> Mapping[str, Default]:
    """Engines use a tiled kernel wherever one exists."""
    source = Source("default", "docs/conventions.md", "attention kernel")
    return {"kernel": Default("flash", "engines use a tiled kernel", source)}


def graph(config: AttentionConfig, graph: StepGraph, context: Context) -> StepGraph:
    """Add the score matrix's HBM traffic for a kernel that does not tile."""
    if config.kernel != "naive":
        return graph
    ops: list[Op] = []
    for op in graph.ops:
        block = context.block(op.name)
        if block is not None and op.name.endswith(".core") and isinstance(block.mixer, Attention | LatentAttention):
            heads = block.mixer.q_heads
            inputs = (
                Input("query heads", heads, "", Source("model", context.architecture.id, "num_attention_heads")),
                Input("bytes per score", SCORE_BYTES, "B", Source("convention", "docs/conventions.md", "naive")),
            )
            # The matrix itself is unavoidable traffic of this kernel; the softmax passes can be fused.
            written = StateIO(
                float(heads * SCORE_BYTES),
                score_elements(),
                "heads",
                Lineage("score bytes = heads x new x (past + new) x 2 B", inputs),
            )
            passes = ActivationIO(
                float(heads * SCORE_BYTES * (SCORE_PASSES - 1)),
                score_elements(),
                "heads",
                Lineage("softmax passes over the scores = 3 x score bytes", inputs),
            )
            op = evolve(op, demands=(*op.demands, written, passes))
        ops.append(op)
    return evolve(graph, ops=tuple(ops))


POLICY = Policy(NAME, AttentionConfig, graph, None, None, defaults)
