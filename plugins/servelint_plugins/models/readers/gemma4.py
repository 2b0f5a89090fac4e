"""Gemma 4: global layers with a head size of their own, dense and sparse MLPs side by side."""

from __future__ import annotations

from servelint.architecture import Architecture, Attention, Block, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    attention_blocks,
    experts,
    grouped_attention,
    head_norms,
    matrix,
    mlp,
    norm,
    read_experts,
    read_layer_types,
    read_shape,
    vector,
    width,
)
from servelint_plugins.models.fields import MAX_HEADS, MAX_POSITIONS, Fields
from servelint_plugins.models.readers.vision import gemma4_vision


def read(model_id: str, c: Fields) -> Architecture:
    """Read a Gemma 4 config; the sizes with per-layer embeddings and shared caches are not supported."""
    text = c.required("text_config") if c.text("model_type") == "gemma4" else c
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        text.integer(name, low=0, high=0, default=0)
    shape = read_shape(text)
    mixers = _mixers(text, shape)
    shared = text.flag("attention_k_eq_v", default=False)
    tensors = {kind: _attention(shape.hidden, mixer, kind, shared) for kind, mixer in mixers.items()}
    default = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(shape.layers)]
    layers = read_layer_types(text, shape.layers, default, allowed=tuple(mixers))
    vision = c.section("vision_config")
    return assemble(
        model_id,
        text,
        shape,
        (*attention_blocks(layers, mixers, tensors), _feed_forward(text, shape)),
        tied_default=True,
        extras=gemma4_vision(vision, shape.hidden) if vision is not None else (),
        model_type=c.text("model_type"),
    )


def _mixers(c: Fields, shape: Shape) -> dict[str, Attention]:
    window = c.integer("sliding_window", high=MAX_POSITIONS)
    size = width(c, "global_head_dim", default=shape.head_dim)
    kv_heads = c.integer("num_global_key_value_heads", high=MAX_HEADS, default=shape.kv_heads)
    return {
        "sliding_attention": Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim, window=window),
        "full_attention": Attention(shape.heads, kv_heads, size, size),
    }


def _attention(hidden: int, mixer: Attention, kind: str, shared: bool) -> tuple[Tensor, ...]:
    """Global layers may project key and value at once; both are cached all the same."""
    tensors = grouped_attention(hidden, mixer)
    if shared and kind == "full_attention":
        once = matrix("kv_proj", "attention", hidden * mixer.kv_heads * mixer.head_dim, "kv_heads")
        tensors = tuple(once if t.name == "kv_proj" else t for t in tensors)
    return (
        *tensors,
        *head_norms(mixer),
        norm("input_norm", hidden),
        norm("post_attention_norm", hidden),
    )


def _feed_forward(c: Fields, shape: Shape) -> Block:
    """The dense MLP and, in the sparse sizes, experts that run beside it."""
    layers = tuple(range(shape.layers))
    dense = (
        *mlp(shape.hidden, width(c, "intermediate_size")),
        norm("pre_feedforward_norm", shape.hidden),
        norm("post_feedforward_norm", shape.hidden),
    )
    if not c.flag("enable_moe_block", default=False):
        return Block("mlp", layers, dense)
    routed = read_experts(c, "num_experts", top_k=("top_k_experts",))
    sparse = (
        *experts(shape.hidden, width(c, "moe_intermediate_size"), routed.count),
        vector("router_scales", "router", shape.hidden + routed.count),
        norm("expert_norms", 3 * shape.hidden),
    )
    return Block("moe", layers, (*dense, *sparse), experts=routed)
