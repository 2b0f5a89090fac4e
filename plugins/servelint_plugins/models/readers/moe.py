"""Mixtures of experts with grouped-query attention: Mixtral, Qwen-MoE, MiniMax-M2, GLM-4.5, Phi-MoE."""

from __future__ import annotations

from servelint.architecture import Architecture, Attention, Block, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    complement,
    experts,
    grouped_attention,
    head_norms,
    leading_dense,
    max_position,
    mtp_extras,
    norm,
    projection_norms,
    read_experts,
    read_mtp_count,
    read_shape,
    stepped_sparse,
    width,
)
from servelint_plugins.models.fields import MAX_HEADS, Fields
from servelint_plugins.models.readers import llama


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of one of this module's model types."""
    kind = c.text("model_type")
    return {
        "mixtral": mixtral,
        "qwen2_moe": qwen_moe,
        "qwen3_moe": qwen_moe,
        "minimax_m2": minimax_m2,
        "glm4_moe": glm4_moe,
        "phimoe": phi_moe,
        "granitemoe": mixtral,
        "dbrx": dbrx,
    }[kind](model_id, c)


def mixtral(model_id: str, c: Fields) -> Architecture:
    """Every layer sparse, experts as wide as ``intermediate_size``, attention as in Mistral."""
    shape = read_shape(c)
    routed = read_experts(c, "num_local_experts")
    sparse = (
        *experts(shape.hidden, width(c, "intermediate_size"), routed.count),
        norm("post_attention_norm", shape.hidden),
    )
    moe = Block("moe", tuple(range(shape.layers)), sparse, experts=routed)
    return assemble(model_id, c, shape, (*llama.attention(c, shape, "mistral"), moe))


def dbrx(model_id: str, c: Fields) -> Architecture:
    """DBRX: sizes in nested objects, layer norms without bias, every layer sparse."""
    attn, ffn = c.required("attn_config"), c.required("ffn_config")
    shape = read_shape(
        c.over({"num_key_value_heads": attn.integer("kv_n_heads", high=MAX_HEADS)}),
        hidden=("d_model",),
        layers=("n_layers",),
        heads=("n_heads",),
    )
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    routed = read_experts(ffn, "moe_num_experts", top_k=("moe_top_k",))
    layers = tuple(range(shape.layers))
    attention = (*grouped_attention(shape.hidden, mixer), norm("input_norm", shape.hidden))
    sparse = (
        *experts(shape.hidden, width(ffn, "ffn_hidden_size"), routed.count),
        norm("post_attention_norm", shape.hidden),
    )
    blocks = (
        Block("full_attention", layers, attention, mixer=mixer),
        Block("moe", layers, sparse, experts=routed),
    )
    return assemble(model_id, c, shape, blocks, longest=max_position(c, "max_seq_len"))


def qwen_moe(model_id: str, c: Fields) -> Architecture:
    """Qwen-MoE: Qwen2-MoE has QKV biases and a gated shared expert, Qwen3-MoE QK norm and no shared one."""
    shape = read_shape(c)
    second = c.text("model_type") == "qwen2_moe"
    attention = llama.attention(c, shape, "qwen2" if second else "qwen3")
    return assemble(model_id, c, shape, (*attention, *qwen_feed_forward(c, shape, shared=second)))


def qwen_feed_forward(c: Fields, shape: Shape, *, shared: bool) -> tuple[Block, ...]:
    """Dense and sparse feed-forward blocks of the Qwen models."""
    routed = read_experts(c, "num_experts", "num_local_experts")
    dense, sparse = stepped_sparse(c, shape.layers)
    tensors = (
        *experts(
            shape.hidden,
            width(c, "moe_intermediate_size"),
            routed.count,
            shared_inner=width(c, "shared_expert_intermediate_size") if shared else 0,
            shared_gate=shared,
        ),
        norm("post_attention_norm", shape.hidden),
    )
    moe = Block("moe", sparse, tensors, experts=routed)
    return (llama.dense(c, shape, dense), moe) if dense else (moe,)


def minimax_m2(model_id: str, c: Fields) -> Architecture:
    """MiniMax-M2: full attention with QK norm over the whole projection, every layer sparse."""
    shape = read_shape(c)
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    per_layer = c.flag("use_qk_norm", default=True)
    if per_layer:
        c.text("qk_norm_type", allowed=("per_layer",), default="per_layer")
    attention = (
        *grouped_attention(shape.hidden, mixer),
        *(projection_norms(mixer) if per_layer else ()),
        norm("input_norm", shape.hidden),
    )
    routed = read_experts(c, "num_local_experts")
    sparse = (
        *experts(shape.hidden, width(c, "intermediate_size"), routed.count),
        norm("post_attention_norm", shape.hidden),
    )
    layers = tuple(range(shape.layers))
    declared = c.integer("num_mtp_modules", low=0, high=64, default=0)
    note = f"The config declares {declared} MTP modules; they are not counted, published checkpoints lack them."
    blocks = (
        Block("full_attention", layers, attention, mixer=mixer),
        Block("moe", layers, sparse, experts=routed),
    )
    return assemble(model_id, c, shape, blocks, notes=(note,) if declared else ())


def glm4_moe(model_id: str, c: Fields) -> Architecture:
    """GLM-4.5 to 4.7: leading dense layers, shared experts, QKV biases, optional QK norm."""
    shape = read_shape(c)
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    bias = c.flag("attention_bias", default=False)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias),
        *(head_norms(mixer) if c.flag("use_qk_norm", default=False) else ()),
        norm("input_norm", shape.hidden),
    )
    return with_shared_experts(
        model_id, c, shape, Block("full_attention", tuple(range(shape.layers)), attention, mixer=mixer)
    )


def with_shared_experts(
    model_id: str,
    c: Fields,
    shape: Shape,
    *attention: Block,
    vision: tuple[Tensor, ...] = (),
    model_type: str | None = None,
) -> Architecture:
    """The DeepSeek form: leading dense layers, then routed and shared experts, and MTP modules.

    An MTP module has the attention of the first of the blocks.
    """
    routed = read_experts(c, "n_routed_experts")
    inner = width(c, "moe_intermediate_size")
    shared = inner * c.integer("n_shared_experts", low=0, high=1_000, default=0)
    sparse: tuple[Tensor, ...] = (
        *experts(shape.hidden, inner, routed.count, shared_inner=shared),
        norm("post_attention_norm", shape.hidden),
    )
    dense_layers, sparse_layers = leading_dense(c, shape.layers)
    blocks = (
        *attention,
        *((llama.dense(c, shape, dense_layers),) if dense_layers else ()),
        Block("moe", sparse_layers, sparse, experts=routed),
    )
    extras = (*vision, *mtp_extras(shape.hidden, (*attention[0].tensors, *sparse), read_mtp_count(c)))
    return assemble(model_id, c, shape, blocks, extras=extras, model_type=model_type)


def phi_moe(model_id: str, c: Fields) -> Architecture:
    """Phi-3.5-MoE: layer norms with bias, attention biases, a head bias."""
    shape = read_shape(c)
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    bias = c.flag("attention_bias", default=False)
    attention = (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias),
        norm("input_norm", 2 * shape.hidden),
    )
    routed = read_experts(c, "num_local_experts")
    sparse = (
        *experts(shape.hidden, width(c, "intermediate_size"), routed.count),
        norm("post_attention_norm", 2 * shape.hidden),
    )
    layers = complement(shape.layers, ())
    blocks = (
        Block("full_attention", layers, attention, mixer=mixer),
        Block("moe", layers, sparse, experts=routed),
    )
    return assemble(
        model_id,
        c,
        shape,
        blocks,
        final_norm=2 * shape.hidden,
        head_bias=c.flag("lm_head_bias", default=False),
    )
