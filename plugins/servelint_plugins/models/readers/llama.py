"""Llama and the dense decoders that share its module tree: RMS norm, gated MLP, grouped-query attention.

They differ in biases, QK norm, head size and which layers slide; all of it is in the config or fixed by
the model type.
"""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    attention_blocks,
    grouped_attention,
    head_norms,
    max_position,
    mlp,
    norm,
    projection_norms,
    read_layer_types,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields

QKV_BIAS = frozenset({"qwen2"})
QKV_ONLY = QKV_BIAS | {"seed_oss"}
TIED_BY_DEFAULT = frozenset({"smollm3"})
HEAD_NORMS = frozenset({"qwen3"})
ALWAYS_SLIDING = frozenset({"mistral", "ministral3", "phi3", "starcoder2"})
OPTIONAL_SLIDING = frozenset({"qwen2", "qwen3"})


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of one of the llama-like model types."""
    kind = c.text("model_type")
    if kind == "olmo2":
        return _olmo2(model_id, c)
    shape = read_shape(c)
    blocks = (*attention(c, shape, kind), dense(c, shape))
    return assemble(model_id, c, shape, blocks, tied_default=kind in TIED_BY_DEFAULT)


def _olmo2(model_id: str, c: Fields) -> Architecture:
    """OLMo 2: norms after the sub-layers, QK norm over the whole projection."""
    shape = read_shape(c)
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    bias = c.flag("attention_bias", default=False)
    tensors = (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias),
        *projection_norms(mixer),
        norm("post_attention_norm", shape.hidden),
    )
    block = Block("full_attention", tuple(range(shape.layers)), tensors, mixer=mixer)
    return assemble(model_id, c, shape, (block, dense(c, shape)))


def attention(
    c: Fields, shape: Shape, kind: str, *, bias: bool | None = None, norm_params: int | None = None
) -> tuple[Block, ...]:
    """The attention blocks of a model type, sliding and full apart.

    ``bias`` overrides the config's ``attention_bias``; ``norm_params`` the RMS norm's one per element.
    """
    default, window = _sliding(c, shape.layers, kind)
    full = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    mixers = {"full_attention": full}
    if window:
        mixers["sliding_attention"] = evolve(full, window=window)
    if bias is None:
        bias = c.flag("attention_bias", "qkv_bias", default=kind in QKV_BIAS)
    tensors = (
        *grouped_attention(shape.hidden, full, q_bias=bias, kv_bias=bias, o_bias=bias and kind not in QKV_ONLY),
        *(head_norms(full) if kind in HEAD_NORMS else ()),
        norm("input_norm", shape.hidden if norm_params is None else norm_params),
    )
    layers = read_layer_types(c, shape.layers, default, allowed=tuple(mixers))
    return attention_blocks(layers, mixers, dict.fromkeys(mixers, tensors))


def _sliding(c: Fields, layers: int, kind: str) -> tuple[list[str], int]:
    """Attention kind of every layer, and the window of the sliding ones (0 for none)."""
    full, sliding = "full_attention", "sliding_attention"
    window = c.integer("sliding_window", low=0, high=MAX_POSITIONS, default=0)
    if window >= max_position(c):
        return [full] * layers, 0  # It can never bind.
    if kind in ALWAYS_SLIDING and window:
        return [sliding] * layers, window
    if kind in OPTIONAL_SLIDING and window and c.flag("use_sliding_window", default=False):
        first = c.integer("max_window_layers", low=0, high=MAX_LAYERS, default=layers)
        return [full if i < first else sliding for i in range(layers)], window
    return [full] * layers, 0


def dense(c: Fields, shape: Shape, layers: tuple[int, ...] | None = None) -> Block:
    """The gated MLP block."""
    bias = c.flag("mlp_bias", default=False)
    inner = width(c, "intermediate_size")
    tensors = (
        *mlp(shape.hidden, inner, up_bias=bias, down_bias=bias),
        norm("post_attention_norm", shape.hidden),
    )
    return Block("mlp", tuple(range(shape.layers)) if layers is None else layers, tensors)
