"""Cohere Command: attention and MLP in parallel behind one norm, tied tables; Command-R7B and A slide."""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block
from servelint_plugins.models.builders import (
    assemble,
    attention_blocks,
    grouped_attention,
    max_position,
    mlp,
    norm,
    projection_norms,
    read_layer_types,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields


def read(model_id: str, c: Fields) -> Architecture:
    """Read a ``cohere`` or ``cohere2`` config."""
    shape = read_shape(c)
    second = c.text("model_type") == "cohere2"
    full = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    mixers = {"full_attention": full}
    kinds = ["full_attention"] * shape.layers
    if second:
        window = c.integer("sliding_window", high=MAX_POSITIONS)
        mixers["sliding_attention"] = evolve(full, window=window)
        every = c.integer("sliding_window_pattern", "_sliding_window_pattern", high=MAX_LAYERS, default=4)
        kinds = ["sliding_attention" if (i + 1) % every else kind for i, kind in enumerate(kinds)]
    bias = c.flag("attention_bias", default=False)
    tensors = (
        *grouped_attention(shape.hidden, full, q_bias=bias, kv_bias=bias, o_bias=bias),
        *(projection_norms(full) if c.flag("use_qk_norm", default=False) else ()),
        norm("input_norm", shape.hidden),
    )
    layers = read_layer_types(c, shape.layers, kinds, allowed=tuple(mixers))
    blocks = (
        *attention_blocks(layers, mixers, dict.fromkeys(mixers, tensors)),
        Block("mlp", tuple(range(shape.layers)), mlp(shape.hidden, width(c, "intermediate_size"))),
    )
    # Cohere states the rotary table's first size as max_position_embeddings, the context as model_max_length.
    longest = c.integer("model_max_length", high=MAX_POSITIONS, default=max_position(c))
    return assemble(model_id, c, shape, blocks, tied_default=True, longest=longest, parallel_blocks=True)
