"""gpt-oss: alternating sliding and full attention with sinks, biases everywhere, experts in mxfp4."""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block
from servelint_plugins.models.builders import (
    assemble,
    attention_blocks,
    experts,
    grouped_attention,
    norm,
    read_experts,
    read_layer_types,
    read_shape,
    vector,
    width,
)
from servelint_plugins.models.fields import MAX_POSITIONS, Fields


def read(model_id: str, c: Fields) -> Architecture:
    """Read a gpt-oss config."""
    shape = read_shape(c)
    window = c.integer("sliding_window", high=MAX_POSITIONS)
    full = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    mixers = {"sliding_attention": evolve(full, window=window), "full_attention": full}
    bias = c.flag("attention_bias", default=True)
    tensors = (
        *grouped_attention(shape.hidden, full, q_bias=bias, kv_bias=bias, o_bias=bias),
        vector("sinks", "attention", shape.heads, "heads"),
        norm("input_norm", shape.hidden),
    )
    alternating = [tuple(mixers)[i % 2] for i in range(shape.layers)]
    layers = read_layer_types(c, shape.layers, alternating, allowed=tuple(mixers))
    routed = read_experts(c, "num_local_experts", top_k=("num_experts_per_tok", "experts_per_token"))
    sparse = (
        *experts(shape.hidden, width(c, "intermediate_size"), routed.count, bias=True),
        norm("post_attention_norm", shape.hidden),
    )
    blocks = (
        *attention_blocks(layers, mixers, dict.fromkeys(mixers, tensors)),
        Block("moe", tuple(range(shape.layers)), sparse, experts=routed),
    )
    return assemble(model_id, c, shape, blocks)
