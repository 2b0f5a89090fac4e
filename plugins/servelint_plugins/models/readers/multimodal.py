"""Multimodal models whose text part is one of the plain decoders: Qwen-VL before Qwen3.5, Mistral 3."""

from __future__ import annotations

from servelint.architecture import Architecture, Tensor
from servelint_plugins.models.builders import assemble, read_shape
from servelint_plugins.models.fields import Fields
from servelint_plugins.models.readers import llama, moe
from servelint_plugins.models.readers.vision import pixtral, qwen2_vision, qwen3_vision, qwen25_vision

TEXT_KINDS = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3"}


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config with a nested ``text_config``, or the flat one of early Qwen2-VL."""
    kind = c.text("model_type", allowed=(*TEXT_KINDS, "mistral3"))
    if kind == "mistral3":
        return mistral3(model_id, c)
    text = c.section("text_config") or c
    shape = read_shape(text)
    attention = llama.attention(text, shape, TEXT_KINDS[kind])
    if kind == "qwen3_vl_moe":
        feed_forward = moe.qwen_feed_forward(text, shape, shared=False)
    else:
        feed_forward = (llama.dense(text, shape),)
    return assemble(
        model_id,
        text,
        shape,
        (*attention, *feed_forward),
        extras=_vision(c, kind),
        model_type=kind,
    )


def mistral3(model_id: str, c: Fields) -> Architecture:
    """A Mistral decoder with a Pixtral tower."""
    text = c.required("text_config")
    kind = text.text("model_type", allowed=("mistral", "ministral3"))
    shape = read_shape(text)
    vision = c.section("vision_config")
    extras = pixtral(vision, c, shape.hidden) if vision is not None else ()
    blocks = (*llama.attention(text, shape, kind), llama.dense(text, shape))
    return assemble(model_id, text, shape, blocks, extras=extras, model_type="mistral3")


def _vision(c: Fields, kind: str) -> tuple[Tensor, ...]:
    section = c.section("vision_config")
    if section is None:
        return ()
    readers = {"qwen2_vl": qwen2_vision, "qwen2_5_vl": qwen25_vision}
    return (readers.get(kind, qwen3_vision)(section),)
