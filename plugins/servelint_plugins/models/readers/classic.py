"""Decoders with layer norms and a plain two-matrix MLP, from GPT-2 to Falcon and StarCoder2."""

from __future__ import annotations

from servelint.architecture import Architecture, Attention, Block, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    grouped_attention,
    max_position,
    mlp,
    norm,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_HEADS, Fields
from servelint_plugins.models.readers import llama


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of one of this module's model types."""
    return {
        "opt": opt,
        "gpt2": gpt2,
        "gpt_bigcode": gpt2,
        "gptj": gptj,
        "gpt_neox": gpt_neox,
        "starcoder2": starcoder2,
        "falcon": falcon,
        "mpt": mpt,
        "phi": phi,
    }[c.text("model_type")](model_id, c)


def _layered(shape: Shape, attention: tuple[Tensor, ...], feed_forward: tuple[Tensor, ...]) -> tuple[Block, Block]:
    layers = tuple(range(shape.layers))
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    return Block("full_attention", layers, attention, mixer=mixer), Block("mlp", layers, feed_forward)


def opt(model_id: str, c: Fields) -> Architecture:
    """OPT: learned positions with two spare rows, tied tables, biases throughout."""
    shape = read_shape(c)
    bias = c.flag("enable_bias", default=True)
    if width(c, "word_embed_proj_dim", default=shape.hidden) != shape.hidden:
        raise c.error("word_embed_proj_dim", c.raw("word_embed_proj_dim")[1], f"hidden_size ({shape.hidden})")
    if not c.flag("do_layer_norm_before", default=True):
        raise c.error("do_layer_norm_before", False, "true")
    affine = 2 * shape.hidden if c.flag("layer_norm_elementwise_affine", default=True) else 0
    mixer = Attention(shape.heads, shape.heads, shape.head_dim, shape.head_dim)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias),
        norm("input_norm", affine),
    )
    feed_forward = (
        *mlp(shape.hidden, width(c, "ffn_dim"), gated=False, up_bias=bias, down_bias=bias),
        norm("post_attention_norm", affine),
    )
    return assemble(
        model_id,
        c,
        shape,
        _layered(shape, attention, feed_forward),
        final_norm=affine,
        tied_default=True,
        positions=(max_position(c) + 2) * shape.hidden,
    )


def gptj(model_id: str, c: Fields) -> Architecture:
    """GPT-J: attention and MLP in parallel behind one norm, an untied head with bias."""
    shape = read_shape(c, hidden=("n_embd",), layers=("n_layer",), heads=("n_head",))
    mixer = Attention(shape.heads, shape.heads, shape.head_dim, shape.head_dim)
    attention = (*grouped_attention(shape.hidden, mixer), norm("input_norm", 2 * shape.hidden))
    inner = width(c, "n_inner", default=4 * shape.hidden)
    return assemble(
        model_id,
        c,
        shape,
        _layered(shape, attention, mlp(shape.hidden, inner, gated=False, up_bias=True, down_bias=True)),
        final_norm=2 * shape.hidden,
        head_bias=True,
        longest=max_position(c, "n_positions"),
        parallel_blocks=True,
    )


def starcoder2(model_id: str, c: Fields) -> Architecture:
    """StarCoder2: grouped-query attention with biases, sliding on every layer, tied tables."""
    shape = read_shape(c)
    bias = c.flag("use_bias", default=True)
    feed_forward = (
        *mlp(shape.hidden, width(c, "intermediate_size"), gated=False, up_bias=bias, down_bias=bias),
        norm("post_attention_norm", 2 * shape.hidden),
    )
    attention = llama.attention(c, shape, "starcoder2", bias=bias, norm_params=2 * shape.hidden)
    blocks = (*attention, Block("mlp", tuple(range(shape.layers)), feed_forward))
    return assemble(model_id, c, shape, blocks, final_norm=2 * shape.hidden, tied_default=True)


def gpt2(model_id: str, c: Fields) -> Architecture:
    """GPT-2 and StarCoder: learned positions, tied tables, biases; StarCoder has one key and value head."""
    one_head = c.text("model_type") == "gpt_bigcode" and c.flag("multi_query", default=True)
    shape = read_shape(c, hidden=("n_embd",), layers=("n_layer",), heads=("n_head",))
    if one_head:
        shape = shape._replace(kv_heads=1)
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=True, kv_bias=True, o_bias=True),
        norm("input_norm", 2 * shape.hidden),
    )
    inner = width(c, "n_inner", default=4 * shape.hidden)
    feed_forward = (
        *mlp(shape.hidden, inner, gated=False, up_bias=True, down_bias=True),
        norm("post_attention_norm", 2 * shape.hidden),
    )
    longest = max_position(c, "n_positions", "n_ctx")
    return assemble(
        model_id,
        c,
        shape,
        _layered(shape, attention, feed_forward),
        final_norm=2 * shape.hidden,
        tied_default=True,
        positions=longest * shape.hidden,
        longest=longest,
    )


def gpt_neox(model_id: str, c: Fields) -> Architecture:
    """GPT-NeoX and Pythia: biases throughout, an untied head, attention and MLP in parallel by default."""
    shape = read_shape(c)
    bias = c.flag("attention_bias", default=True)
    mixer = Attention(shape.heads, shape.heads, shape.head_dim, shape.head_dim)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias),
        norm("input_norm", 2 * shape.hidden),
    )
    feed_forward = (
        *mlp(shape.hidden, width(c, "intermediate_size"), gated=False, up_bias=True, down_bias=True),
        norm("post_attention_norm", 2 * shape.hidden),
    )
    return assemble(
        model_id,
        c,
        shape,
        _layered(shape, attention, feed_forward),
        final_norm=2 * shape.hidden,
        parallel_blocks=c.flag("use_parallel_residual", default=True),
    )


def falcon(model_id: str, c: Fields) -> Architecture:
    """Falcon: one key and value head, or groups and a second norm in the new architecture; tied tables."""
    shape = read_shape(c, layers=("num_hidden_layers", "n_layer"), heads=("num_attention_heads", "n_head"))
    grouped = c.flag("new_decoder_architecture", default=False)
    parallel = c.flag("parallel_attn", default=True) or grouped
    if grouped:
        kv_heads = c.integer("num_kv_heads", "n_head_kv", high=shape.heads)
        norms = c.integer("num_ln_in_parallel_attn", low=1, high=2, default=2)
    else:
        kv_heads = 1 if c.flag("multi_query", default=True) else shape.heads
        norms = 1 if parallel else 2
    shape = shape._replace(kv_heads=kv_heads)
    bias = c.flag("bias", default=False)
    mixer = Attention(shape.heads, kv_heads, shape.head_dim, shape.head_dim)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias),
        norm("input_norm", 2 * shape.hidden),
    )
    inner = width(c, "ffn_hidden_size", default=4 * shape.hidden)
    feed_forward = (
        *mlp(shape.hidden, inner, gated=False, up_bias=bias, down_bias=bias),
        *((norm("mlp_norm", 2 * shape.hidden),) if norms == 2 else ()),
    )
    return assemble(
        model_id,
        c,
        shape,
        _layered(shape, attention, feed_forward),
        final_norm=2 * shape.hidden,
        tied_default=True,
        longest=max_position(c, "max_position_embeddings", "max_seq_len", default=2048),
        parallel_blocks=parallel,
    )


def mpt(model_id: str, c: Fields) -> Architecture:
    """MPT: no biases, ALiBi in place of positions, tied tables."""
    for name in ("no_bias", "use_bias"):
        if c.has(name) and c.flag(name, default=True) != (name == "no_bias"):
            raise c.error(name, c.raw(name)[1], "a model without biases")
    attn = c.section("attn_config")
    if attn is not None and not attn.flag("alibi", default=True):
        raise attn.error("alibi", False, "true")
    heads = attn.integer("kv_n_heads", high=MAX_HEADS, default=0, low=0) if attn is not None else 0
    shape = read_shape(
        c.over({"num_key_value_heads": heads} if heads else {}),
        hidden=("d_model",),
        layers=("n_layers",),
        heads=("n_heads",),
    )
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    attention = (*grouped_attention(shape.hidden, mixer), norm("input_norm", shape.hidden))
    inner = shape.hidden * c.integer("expansion_ratio", high=1_000, default=4)
    feed_forward = (*mlp(shape.hidden, inner, gated=False), norm("post_attention_norm", shape.hidden))
    blocks = _layered(shape, attention, feed_forward)
    longest = max_position(c, "max_seq_len")
    return assemble(model_id, c, shape, blocks, tied_default=True, longest=longest)


def phi(model_id: str, c: Fields) -> Architecture:
    """Phi-1.5 and Phi-2: attention and MLP in parallel behind one norm, biases, a head with bias."""
    shape = read_shape(c)
    if c.flag("qk_layernorm", default=False):
        raise c.error("qk_layernorm", True, "false")
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=True, kv_bias=True, o_bias=True),
        norm("input_norm", 2 * shape.hidden),
    )
    inner = width(c, "intermediate_size")
    return assemble(
        model_id,
        c,
        shape,
        _layered(shape, attention, mlp(shape.hidden, inner, gated=False, up_bias=True, down_bias=True)),
        final_norm=2 * shape.hidden,
        head_bias=True,
        parallel_blocks=True,
    )
