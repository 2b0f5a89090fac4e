"""Hybrids of attention and constant-state layers: Jamba, Nemotron-H, Granite 4, Qwen3-Next, MiniMax-M1."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    complement,
    experts,
    grouped_attention,
    head_norms,
    matrix,
    mlp,
    mtp_extras,
    norm,
    read_experts,
    read_layer_types,
    read_mtp_count,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_HEADS, MAX_LAYERS, Fields
from servelint_plugins.models.readers import llama
from servelint_plugins.models.readers.moe import qwen_feed_forward
from servelint_plugins.models.readers.state import DeltaNet, Mamba1, Mamba2, lightning
from servelint_plugins.models.readers.vision import qwen3_vision


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of one of this module's model types."""
    kind = c.text("model_type")
    return {
        "jamba": jamba,
        "nemotron_h": nemotron_h,
        "granitemoehybrid": granite_hybrid,
        "qwen3_next": qwen3_next,
        "qwen3_5": qwen3_next,
        "qwen3_5_text": qwen3_next,
        "qwen3_5_moe": qwen3_next,
        "qwen3_5_moe_text": qwen3_next,
        "minimax_m1": minimax_m1,
        "minimax_text_01": minimax_m1,
    }[kind](model_id, c)


def _full(shape: Shape) -> Attention:
    return Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)


def _kernel(c: Fields, name: str) -> int:
    return c.integer(name, high=1_000)


def jamba(model_id: str, c: Fields) -> Architecture:
    """Jamba: Mamba-1 layers with an attention layer each period, experts on every other layer."""
    shape = read_shape(c)
    period = c.integer("attn_layer_period", high=MAX_LAYERS)
    offset = c.integer("attn_layer_offset", low=0, high=period - 1)
    attending = tuple(i for i in range(shape.layers) if i % period == offset)
    inner = shape.hidden * c.integer("mamba_expand", high=1_000)
    automatic = c.raw("mamba_dt_rank")[1] == "auto"
    rank = -(-shape.hidden // 16) if automatic else width(c, "mamba_dt_rank")
    mamba = Mamba1(inner, width(c, "mamba_d_state"), _kernel(c, "mamba_d_conv"), rank)
    state = mamba.tensors(
        shape.hidden,
        conv_bias=c.flag("mamba_conv_bias", default=True),
        proj_bias=c.flag("mamba_proj_bias", default=False),
        norms=True,
    )
    mixer = _full(shape)
    input_norm = norm("input_norm", shape.hidden)
    blocks = (
        Block("full_attention", attending, (*grouped_attention(shape.hidden, mixer), input_norm), mixer=mixer),
        Block("mamba", complement(shape.layers, attending), (*state, input_norm), mixer=mamba.mixer),
        *_jamba_feed_forward(c, shape),
    )
    return assemble(model_id, c, shape, blocks)


def _jamba_feed_forward(c: Fields, shape: Shape) -> tuple[Block, ...]:
    routed = read_experts(c, "num_experts")
    period = c.integer("expert_layer_period", high=MAX_LAYERS)
    offset = c.integer("expert_layer_offset", low=0, high=period - 1)
    several = routed.count > 1
    sparse_layers = tuple(i for i in range(shape.layers) if several and i % period == offset)
    inner = width(c, "intermediate_size")
    before = norm("pre_feedforward_norm", shape.hidden)
    return (
        Block("mlp", complement(shape.layers, sparse_layers), (*mlp(shape.hidden, inner), before)),
        Block("moe", sparse_layers, (*experts(shape.hidden, inner, routed.count), before), experts=routed),
    )


def nemotron_h(model_id: str, c: Fields) -> Architecture:
    """Nemotron-H and Nemotron 3: one sub-layer a layer, its kind given by a pattern of letters."""
    pattern = _nemotron_pattern(c)
    shape = read_shape(c.over({"num_hidden_layers": len(pattern)}))
    if shape.layers != len(pattern):
        raise c.error("num_hidden_layers", shape.layers, f"the number of listed layers ({len(pattern)})")
    layers = {letter: tuple(i for i, x in enumerate(pattern) if x == letter) for letter in "M*-E"}
    c.text("mlp_hidden_act", allowed=("relu2",), default="relu2")
    before = norm("input_norm", shape.hidden)
    mixer = _full(shape)
    bias = c.flag("attention_bias", default=False)
    attention = grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias)
    blocks = [Block("full_attention", layers["*"], (*attention, before), mixer=mixer)]
    if layers["M"]:
        mamba = Mamba2(
            heads=c.integer("mamba_num_heads", high=MAX_HEADS),
            head_dim=width(c, "mamba_head_dim"),
            groups=c.integer("n_groups", high=MAX_HEADS),
            state=width(c, "ssm_state_size"),
            kernel=_kernel(c, "conv_kernel"),
        )
        state = mamba.tensors(
            shape.hidden,
            conv_bias=c.flag("use_conv_bias", default=True),
            proj_bias=c.flag("use_bias", "mamba_proj_bias", default=False),
        )
        blocks.append(Block("mamba", layers["M"], (*state, before), mixer=mamba.mixer))
    if layers["-"]:
        bias = c.flag("mlp_bias", default=False)
        plain = mlp(shape.hidden, width(c, "intermediate_size"), gated=False, up_bias=bias, down_bias=bias)
        blocks.append(Block("mlp", layers["-"], (*plain, before)))
    if layers["E"]:
        blocks.append(_nemotron_experts(c, shape, layers["E"], before))
    return assemble(model_id, c, shape, blocks, extras=_nemotron_mtp(c, shape, blocks))


def _nemotron_pattern(c: Fields) -> str:
    """The kind of each layer as a letter: M Mamba-2, * attention, - MLP, E experts."""
    if c.has("layers_block_type") and not c.has("hybrid_override_pattern"):
        return _letters(c, "layers_block_type")
    pattern = c.text("hybrid_override_pattern")
    if not pattern or set(pattern) - set("M*-E"):
        raise c.error("hybrid_override_pattern", pattern, "letters among M, *, - and E, one a layer")
    return pattern


def _letters(c: Fields, name: str) -> str:
    """The pattern of a spelled-out list of layer kinds."""
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
    letters.update(mlp="-", moe="E")
    return "".join(letters[kind] for kind in c.texts(name, allowed=letters))


def _nemotron_experts(c: Fields, shape: Shape, layers: tuple[int, ...], before: Tensor) -> Block:
    """Two-matrix experts, in the larger models on a narrower latent; shared ones have their own width."""
    routed = read_experts(c, "n_routed_experts")
    inner = width(c, "moe_intermediate_size")
    shared = c.integer("n_shared_experts", low=0, high=1_000, default=0)
    sparse = experts(
        shape.hidden,
        inner,
        routed.count,
        gated=False,
        shared_inner=shared * width(c, "moe_shared_expert_intermediate_size", low=0, default=0),
    )
    latent = width(c, "moe_latent_size", low=0, default=0)
    if latent:
        narrow = experts(latent, inner, routed.count, gated=False)
        routed_tensors = tuple(t for t in narrow if t.role == "routed_experts")
        # Every token passes the two projections, as it does the shared experts.
        sparse = (
            *(t for t in sparse if t.role != "routed_experts"),
            *routed_tensors,
            matrix("latent_down", "shared_experts", shape.hidden * latent, "replicated"),
            matrix("latent_up", "shared_experts", latent * shape.hidden, "replicated"),
        )
    return Block("moe", layers, (*sparse, before), experts=routed)


def _nemotron_mtp(c: Fields, shape: Shape, blocks: Sequence[Block]) -> tuple[Tensor, ...]:
    """An MTP module is a run of sub-layers, its kinds given by a pattern of its own."""
    count = read_mtp_count(c)
    if not count:
        return ()
    spelled_out = c.has("mtp_layers_block_type") and not c.has("mtp_hybrid_override_pattern")
    pattern = _letters(c, "mtp_layers_block_type") if spelled_out else c.text("mtp_hybrid_override_pattern")
    tensors = {"*": "full_attention", "M": "mamba", "-": "mlp", "E": "moe"}
    by_name = {block.name: block.tensors for block in blocks}
    if not 0 < len(pattern) <= 64 or any(tensors.get(letter) not in by_name for letter in pattern):
        raise c.error("mtp_hybrid_override_pattern", pattern, "letters that hybrid_override_pattern uses")
    layer = [
        evolve(tensor, name=f"{i}_{tensor.name}")
        for i, letter in enumerate(pattern)
        for tensor in by_name[tensors[letter]]
    ]
    return mtp_extras(shape.hidden, layer, count)


def granite_hybrid(model_id: str, c: Fields) -> Architecture:
    """Granite 4: Mamba-2 and attention layers, each with a shared MLP and, in most sizes, routed experts."""
    shape = read_shape(c)
    allowed = ("mamba", "attention", "linear_attention", "full_attention")
    kinds = c.texts("layer_types", count=shape.layers, allowed=allowed)
    before = norm("input_norm", shape.hidden)
    mixer = _full(shape)
    bias = c.flag("attention_bias", default=False)
    attention = grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias)
    attending = tuple(i for i, kind in enumerate(kinds) if kind in ("attention", "full_attention"))
    blocks = [Block("full_attention", attending, (*attention, before), mixer=mixer)]
    if len(attending) < shape.layers:
        mamba = _granite_mamba(c, shape.hidden)
        state = mamba.tensors(
            shape.hidden,
            conv_bias=c.flag("mamba_conv_bias", default=True),
            proj_bias=c.flag("mamba_proj_bias", default=False),
        )
        others = complement(shape.layers, attending)
        blocks.append(Block("mamba", others, (*state, before), mixer=mamba.mixer))
    blocks.append(_granite_feed_forward(c, shape))
    return assemble(model_id, c, shape, blocks)


def _granite_mamba(c: Fields, hidden: int) -> Mamba2:
    heads = c.integer("mamba_n_heads", high=MAX_HEADS)
    inner = hidden * c.integer("mamba_expand", high=1_000)
    automatic = c.raw("mamba_d_head")[1] in (None, "auto")
    size = inner // heads if automatic else width(c, "mamba_d_head")
    if size * heads != inner:
        raise c.error("mamba_n_heads", heads, f"heads times mamba_d_head equal to the inner width ({inner})")
    return Mamba2(
        heads,
        size,
        groups=c.integer("mamba_n_groups", high=MAX_HEADS),
        state=width(c, "mamba_d_state"),
        kernel=_kernel(c, "mamba_d_conv"),
    )


def _granite_feed_forward(c: Fields, shape: Shape) -> Block:
    layers = tuple(range(shape.layers))
    before = norm("post_attention_norm", shape.hidden)
    shared = width(c, "shared_intermediate_size")
    if not c.integer("num_local_experts", low=0, high=100_000, default=0):
        return Block("mlp", layers, (*mlp(shape.hidden, shared), before))
    routed = read_experts(c, "num_local_experts")
    sparse = experts(shape.hidden, width(c, "intermediate_size"), routed.count, shared_inner=shared)
    return Block("moe", layers, (*sparse, before), experts=routed)


def qwen3_next(model_id: str, outer: Fields) -> Architecture:
    """Qwen3-Next and Qwen3.5: gated DeltaNet layers, every fourth a gated full-attention layer."""
    kind = outer.text("model_type")
    c = outer.required("text_config") if kind in ("qwen3_5", "qwen3_5_moe") else outer
    shape = read_shape(c)
    every = c.integer("full_attention_interval", high=MAX_LAYERS, default=4)
    default = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(shape.layers)]
    layers = read_layer_types(c, shape.layers, default, allowed=("linear_attention", "full_attention"))
    delta = DeltaNet(
        key_heads=c.integer("linear_num_key_heads", high=MAX_HEADS),
        value_heads=c.integer("linear_num_value_heads", high=MAX_HEADS),
        key_dim=width(c, "linear_key_head_dim"),
        value_dim=width(c, "linear_value_head_dim"),
        kernel=_kernel(c, "linear_conv_kernel_dim"),
    )
    mixer = _full(shape)
    before = norm("input_norm", shape.hidden)
    attention = (*_gated_attention(c, shape, mixer), before)
    if kind.startswith("qwen3_5") and "moe" not in kind:
        feed_forward: tuple[Block, ...] = (llama.dense(c, shape),)
    else:
        feed_forward = qwen_feed_forward(c, shape, shared=True)
    linear = (*delta.tensors(shape.hidden), before)
    blocks = (
        Block("full_attention", tuple(layers["full_attention"]), attention, mixer=mixer),
        Block("linear_attention", tuple(layers["linear_attention"]), linear, mixer=delta.mixer),
        *feed_forward,
    )
    vision = outer.section("vision_config")
    extras = (
        *((qwen3_vision(vision),) if vision is not None else ()),
        *mtp_extras(shape.hidden, (*attention, *feed_forward[-1].tensors), read_mtp_count(c)),
    )
    return assemble(model_id, c, shape, blocks, extras=extras, model_type=kind)


def _gated_attention(c: Fields, shape: Shape, mixer: Attention) -> tuple[Tensor, ...]:
    """Softmax attention whose query projection also yields a gate on the output."""
    bias = c.flag("attention_bias", default=False)
    outputs = 2 if c.flag("attn_output_gate", default=True) else 1
    return (
        *grouped_attention(shape.hidden, mixer, q_bias=bias, kv_bias=bias, o_bias=bias, query_outputs=outputs),
        *head_norms(mixer),
    )


def minimax_m1(model_id: str, c: Fields) -> Architecture:
    """MiniMax-Text-01 and M1: lightning attention with softmax attention each eighth layer, all sparse."""
    shape = read_shape(c)
    kinds = c.integers("attn_type_list", low=0, high=1, count=shape.layers)
    before = norm("input_norm", shape.hidden)
    mixer = _full(shape)
    state, linear = lightning(shape.hidden, shape.heads, shape.head_dim)
    routed = read_experts(c, "num_local_experts")
    shared = width(c, "shared_intermediate_size", low=0, default=0)
    sparse = (
        *experts(shape.hidden, width(c, "intermediate_size"), routed.count, shared_inner=shared),
        norm("post_attention_norm", shape.hidden),
    )
    blocks = (
        Block(
            "full_attention",
            _where(kinds, 1),
            (*grouped_attention(shape.hidden, mixer), before),
            mixer=mixer,
        ),
        Block("linear_attention", _where(kinds, 0), (*linear, before), mixer=state),
        Block("moe", tuple(range(shape.layers)), sparse, experts=routed),
    )
    return assemble(model_id, c, shape, blocks)


def _where(kinds: Sequence[int], kind: int) -> tuple[int, ...]:
    return tuple(i for i, found in enumerate(kinds) if found == kind)
