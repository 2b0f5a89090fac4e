"""Gemma 1 to 3: tied tables, explicit head size, sandwich norms from Gemma 2 on, local and global layers."""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    attention_blocks,
    grouped_attention,
    head_norms,
    mlp,
    norm,
    read_layer_types,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_LAYERS, MAX_POSITIONS, Fields
from servelint_plugins.models.readers.vision import siglip

GEMMA3_TEXT_DEFAULTS: dict[str, object] = {
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4_096,
    "vocab_size": 262_208,
}
"""Values of the reference configuration class, which published Gemma 3 configs leave out.

Source: huggingface/transformers, class Gemma3TextConfig.
"""


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of one of this module's model types."""
    kind = c.text("model_type")
    if kind == "gemma3":
        text = c.required("text_config").over(GEMMA3_TEXT_DEFAULTS)
        hidden = width(text, "hidden_size")
        return _text(model_id, text, "gemma3_text", extras=_vision(c, hidden), model_type=kind)
    return _text(model_id, c.over(GEMMA3_TEXT_DEFAULTS) if kind == "gemma3_text" else c, kind)


def _text(
    model_id: str, c: Fields, kind: str, *, extras: tuple[Tensor, ...] = (), model_type: str | None = None
) -> Architecture:
    shape = read_shape(c)
    sandwich = kind != "gemma"
    mixers = _mixers(c, shape, kind)
    tensors = (
        *grouped_attention(shape.hidden, mixers["full_attention"]),
        *(head_norms(mixers["full_attention"]) if kind == "gemma3_text" else ()),
        norm("input_norm", shape.hidden),
        *((norm("post_attention_norm", shape.hidden),) if sandwich else ()),
    )
    layers = read_layer_types(c, shape.layers, _pattern(c, shape.layers, kind), allowed=tuple(mixers))
    dense = (
        *mlp(shape.hidden, width(c, "intermediate_size")),
        norm("pre_feedforward_norm", shape.hidden),
        *((norm("post_feedforward_norm", shape.hidden),) if sandwich else ()),
    )
    blocks = (
        *attention_blocks(layers, mixers, dict.fromkeys(mixers, tensors)),
        Block("mlp", tuple(range(shape.layers)), dense),
    )
    return assemble(model_id, c, shape, blocks, tied_default=True, extras=extras, model_type=model_type)


def _mixers(c: Fields, shape: Shape, kind: str) -> dict[str, Attention]:
    full = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    if kind == "gemma":
        return {"full_attention": full}
    window = c.integer("sliding_window", high=MAX_POSITIONS)
    return {"sliding_attention": evolve(full, window=window), "full_attention": full}


def _pattern(c: Fields, layers: int, kind: str) -> list[str]:
    """Gemma 2 alternates, Gemma 3 has five sliding layers to a full one."""
    if kind == "gemma":
        return ["full_attention"] * layers
    usual = 2 if kind == "gemma2" else 6
    every = c.integer("sliding_window_pattern", "_sliding_window_pattern", high=MAX_LAYERS, default=usual)
    return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]


def _vision(c: Fields, hidden: int) -> tuple[Tensor, ...]:
    """The SigLIP tower, and a normed projection of its pooled patches."""
    section = c.section("vision_config")
    if section is None:
        return ()
    tower, size = siglip(section)
    projector = Tensor("vision_projector", "vision", size * hidden + size, "replicated")
    return tower, projector
