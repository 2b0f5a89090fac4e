"""Llama 4: chunked local attention with full layers between, one routed and one shared expert a token."""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block
from servelint_plugins.models.builders import (
    assemble,
    attention_blocks,
    complement,
    experts,
    grouped_attention,
    mlp,
    norm,
    read_experts,
    read_layer_types,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from servelint_plugins.models.readers.vision import llama4_vision


def read(model_id: str, c: Fields) -> Architecture:
    """Read a Llama 4 config, multimodal (with ``text_config``) or text only."""
    text = c.required("text_config") if c.text("model_type") == "llama4" else c
    shape = read_shape(text)
    full = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    chunk = text.integer("attention_chunk_size", high=MAX_POSITIONS)
    mixers = {"chunked_attention": evolve(full, chunk=chunk), "full_attention": full}
    bias = text.flag("attention_bias", default=False)
    attention = (
        *grouped_attention(shape.hidden, full, q_bias=bias, kv_bias=bias, o_bias=bias),
        norm("input_norm", shape.hidden),
    )
    layers = read_layer_types(text, shape.layers, _kinds(text, shape.layers), allowed=tuple(mixers))
    inner = width(text, "intermediate_size")
    routed = read_experts(text, "num_local_experts")
    sparse = (
        *experts(shape.hidden, inner, routed.count, shared_inner=inner),
        norm("post_attention_norm", shape.hidden),
    )
    dense = (
        *mlp(shape.hidden, width(text, "intermediate_size_mlp")),
        norm("post_attention_norm", shape.hidden),
    )
    sparse_layers = _sparse_layers(text, shape.layers)
    vision = c.section("vision_config")
    return assemble(
        model_id,
        text,
        shape,
        (
            *attention_blocks(layers, mixers, dict.fromkeys(mixers, attention)),
            Block("mlp", complement(shape.layers, sparse_layers), dense),
            Block("moe", sparse_layers, sparse, experts=routed),
        ),
        extras=llama4_vision(vision, shape.hidden) if vision is not None else (),
        model_type=c.text("model_type"),
    )


def _kinds(c: Fields, layers: int) -> list[str]:
    """Layers without rotary positions attend to everything: every fourth by default."""
    if c.has("no_rope_layers") and c.items("no_rope_layers"):
        rotary = c.integers("no_rope_layers", low=0, high=1, count=layers)
    else:
        every = c.integer("no_rope_layer_interval", high=MAX_LAYERS, default=4)
        rotary = tuple(int((i + 1) % every != 0) for i in range(layers))
    return ["chunked_attention" if local else "full_attention" for local in rotary]


def _sparse_layers(c: Fields, layers: int) -> tuple[int, ...]:
    if c.has("moe_layers"):
        return tuple(sorted(set(c.integers("moe_layers", low=0, high=layers - 1))))
    step = c.integer("interleave_moe_layer_step", high=MAX_LAYERS, default=1)
    return tuple(range(step - 1, layers, step))
