"""The parts that model families share: attention, MLP and expert tensors, norms, and final assembly.

Everything is counted as the reference checkpoint stores it. A q/k/v or gate/up group is one tensor,
whether the checkpoint fuses it or not. Buffers (rotary tables, routing-correction biases) are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from servelint.architecture import (
    Architecture,
    Attention,
    Axis,
    Block,
    Experts,
    LatentAttention,
    Role,
    RopeScaling,
    Tensor,
)
from servelint_plugins.models.fields import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Fields,
)
from servelint_plugins.models.quantization import read_quantization

ROPE_KINDS = ("linear", "dynamic", "yarn", "deepseek_yarn", "llama3", "longrope", "su", "ntk")
"""Declared rotary scalings."""

ROPE_UNSCALED = ("default", "mrope", "proportional")
"""Rotary kinds that do not stretch the context."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Shape(NamedTuple):
    """The sizes that nearly every config states."""

    hidden: int
    layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int


def read_shape(
    c: Fields,
    *,
    hidden: tuple[str, ...] = ("hidden_size",),
    layers: tuple[str, ...] = ("num_hidden_layers",),
    heads: tuple[str, ...] = ("num_attention_heads",),
) -> Shape:
    """Read the common sizes; heads must divide evenly where head sizes or groups follow from them."""
    width = c.integer(*hidden, high=MAX_WIDTH)
    query_heads = c.integer(*heads, high=MAX_HEADS)
    kv_heads = c.integer("num_key_value_heads", high=MAX_HEADS, default=query_heads)
    if query_heads % kv_heads:
        raise c.error("num_key_value_heads", kv_heads, f"a divisor of {heads[0]} ({query_heads})")
    if not c.has("head_dim") and width % query_heads:
        raise c.error(heads[0], query_heads, f"a divisor of {hidden[0]} ({width}), or a head_dim")
    return Shape(
        hidden=width,
        layers=c.integer(*layers, high=MAX_LAYERS),
        vocabulary=c.integer("vocab_size", high=MAX_VOCABULARY),
        heads=query_heads,
        kv_heads=kv_heads,
        head_dim=c.integer("head_dim", high=MAX_WIDTH, default=width // query_heads),
    )


def width(c: Fields, *names: str, default: int | None = None, low: int = 1) -> int:
    """A matrix width."""
    return c.integer(*names, low=low, high=MAX_WIDTH, default=default)


def matrix(name: str, role: Role, params: int, axis: Axis, *, reduced: bool = False) -> Tensor:
    """Parameters that multiply."""
    return Tensor(name, role, params, axis, reduced=reduced)


def vector(name: str, role: Role, params: int, axis: Axis = "replicated") -> Tensor:
    """Parameters that do not multiply: biases, sinks, decay constants."""
    return Tensor(name, role, params, axis, matmul=False)


def norm(name: str, params: int, axis: Axis = "replicated") -> Tensor:
    """A norm's weights (and biases)."""
    return Tensor(name, "norm", params, axis, matmul=False)


def compact(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Drop tensors without parameters, so that builders can state optional parts inline."""
    return tuple(t for t in tensors if t.params)


def grouped_attention(
    hidden: int,
    mixer: Attention,
    *,
    q_bias: bool = False,
    kv_bias: bool = False,
    o_bias: bool = False,
    query_outputs: int = 1,
) -> tuple[Tensor, ...]:
    """MHA, MQA or GQA projections. ``query_outputs`` is 2 where q_proj also yields an output gate."""
    q = mixer.q_heads * mixer.head_dim * query_outputs
    return compact(
        (
            matrix("q_proj", "attention", hidden * q, "heads"),
            matrix("kv_proj", "attention", hidden * mixer.cache_elements, "kv_heads"),
            matrix("o_proj", "attention", mixer.q_heads * mixer.v_head_dim * hidden, "heads", reduced=True),
            vector("q_bias", "attention", q if q_bias else 0, "heads"),
            vector("kv_bias", "attention", mixer.cache_elements if kv_bias else 0, "kv_heads"),
            vector("o_bias", "attention", hidden if o_bias else 0),
        )
    )


def head_norms(mixer: Attention) -> tuple[Tensor, ...]:
    """QK norm with one weight vector for all heads."""
    return norm("q_norm", mixer.head_dim), norm("k_norm", mixer.head_dim)


def projection_norms(mixer: Attention) -> tuple[Tensor, ...]:
    """QK norm with weights over the whole projection."""
    return (
        norm("q_norm", mixer.q_heads * mixer.head_dim, "heads"),
        norm("k_norm", mixer.kv_heads * mixer.head_dim, "kv_heads"),
    )


def latent_attention(hidden: int, mixer: LatentAttention, q_rank: int, *, bias: bool = False) -> tuple[Tensor, ...]:
    """MLA projections; ``q_rank`` is 0 where queries are not compressed."""
    head = mixer.nope_dim + mixer.rope_dim
    latent = mixer.kv_lora_rank + mixer.rope_dim
    expanded = mixer.q_heads * (mixer.nope_dim + mixer.v_head_dim)
    queries: tuple[Tensor, ...]
    if q_rank:
        queries = (
            matrix("q_a_proj", "attention", hidden * q_rank, "replicated"),
            norm("q_a_norm", q_rank),
            matrix("q_b_proj", "attention", q_rank * mixer.q_heads * head, "heads"),
            vector("q_a_bias", "attention", q_rank if bias else 0),
        )
    else:
        queries = (matrix("q_proj", "attention", hidden * mixer.q_heads * head, "heads"),)
    return compact(
        (
            *queries,
            matrix("kv_a_proj", "attention", hidden * latent, "replicated"),
            norm("kv_a_norm", mixer.kv_lora_rank),
            matrix("kv_b_proj", "attention", mixer.kv_lora_rank * expanded, "heads"),
            matrix("o_proj", "attention", mixer.q_heads * mixer.v_head_dim * hidden, "heads", reduced=True),
            vector("kv_a_bias", "attention", latent if bias else 0),
            vector("o_bias", "attention", hidden if bias else 0),
        )
    )


def mlp(
    hidden: int, inner: int, *, gated: bool = True, up_bias: bool = False, down_bias: bool = False
) -> tuple[Tensor, ...]:
    """A dense MLP: gate, up and down, or up and down only."""
    up, parts = ("gate_up_proj", 2) if gated else ("up_proj", 1)
    return compact(
        (
            matrix(up, "mlp", parts * hidden * inner, "width"),
            matrix("down_proj", "mlp", inner * hidden, "width", reduced=True),
            vector("up_bias", "mlp", parts * inner if up_bias else 0, "width"),
            vector("down_bias", "mlp", hidden if down_bias else 0),
        )
    )


def experts(
    hidden: int,
    inner: int,
    count: int,
    *,
    gated: bool = True,
    shared_inner: int = 0,
    shared_gate: bool = False,
    bias: bool = False,
) -> tuple[Tensor, ...]:
    """A mixture of experts: router, routed experts, and shared experts of total width ``shared_inner``."""
    up, parts = ("gate_up", 2) if gated else ("up", 1)
    return compact(
        (
            matrix("router", "router", hidden * count, "replicated"),
            vector("router_bias", "router", count if bias else 0),
            matrix(f"experts_{up}", "routed_experts", count * parts * hidden * inner, "experts"),
            matrix("experts_down", "routed_experts", count * inner * hidden, "experts", reduced=True),
            vector(f"experts_{up}_bias", "routed_experts", count * parts * inner if bias else 0, "experts"),
            vector("experts_down_bias", "routed_experts", count * hidden if bias else 0, "experts"),
            matrix(f"shared_{up}", "shared_experts", parts * hidden * shared_inner, "width"),
            matrix("shared_down", "shared_experts", shared_inner * hidden, "width", reduced=True),
            matrix("shared_expert_gate", "shared_experts", hidden if shared_gate else 0, "replicated"),
        )
    )


def read_experts(c: Fields, *count: str, top_k: tuple[str, ...] = ("num_experts_per_tok",)) -> Experts:
    """Number of routed experts and how many run for a token."""
    total = c.integer(*count, high=MAX_EXPERTS)
    return Experts(count=total, top_k=c.integer(*top_k, high=total))


def attention_blocks(
    layers_by_kind: Mapping[str, Sequence[int]],
    mixers: Mapping[str, Attention],
    tensors: Mapping[str, tuple[Tensor, ...]],
) -> tuple[Block, ...]:
    """One block for each kind that has layers, in the order of ``layers_by_kind``."""
    return tuple(
        Block(kind, tuple(layers), tensors[kind], mixer=mixers[kind])
        for kind, layers in layers_by_kind.items()
        if layers
    )


def read_layer_types(c: Fields, layers: int, default: Sequence[str], allowed: Sequence[str]) -> dict[str, list[int]]:
    """Layer indices by kind, from ``layer_types`` where the config has it, else from ``default``."""
    stated = c.texts("layer_types", count=layers, allowed=allowed) if c.has("layer_types") else default
    kinds: dict[str, list[int]] = {kind: [] for kind in allowed}
    for index, kind in enumerate(stated):
        kinds[kind].append(index)
    return kinds


def mtp_extras(hidden: int, layer: Iterable[Tensor], count: int) -> tuple[Tensor, ...]:
    """Multi-token-prediction modules of the DeepSeek form, ``count`` of them.

    Each is one decoder layer behind a projection of the normed embedding and hidden state. Copies of the
    embedding and head that some checkpoints store with it are shared at run time and not counted.
    """
    if not count:
        return ()
    parts = (
        *layer,
        matrix("eh_proj", "mtp", 2 * hidden * hidden, "replicated"),
        norm("embedding_norm", hidden),
        norm("hidden_norm", hidden),
        norm("head_norm", hidden),
    )
    return tuple(
        Tensor(f"mtp_{t.name}", "mtp", count * t.params, t.axis, matmul=t.matmul, reduced=t.reduced) for t in parts
    )


def read_mtp_count(c: Fields) -> int:
    """Number of multi-token-prediction modules that the checkpoint holds."""
    return c.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", low=0, high=64, default=0)


def leading_dense(c: Fields, layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dense and MoE layers of models that keep the first layers dense."""
    if c.has("mlp_layer_types"):
        kinds = c.texts("mlp_layer_types", count=layers, allowed=("dense", "sparse"))
        sparse = tuple(i for i, kind in enumerate(kinds) if kind == "sparse")
        return complement(layers, sparse), sparse
    first = c.integer("first_k_dense_replace", low=0, high=MAX_LAYERS)
    every = c.integer("moe_layer_freq", high=MAX_LAYERS, default=1)
    sparse = tuple(i for i in range(layers) if i >= first and i % every == 0)
    return complement(layers, sparse), sparse


def stepped_sparse(c: Fields, layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dense and MoE layers of the Qwen models: every ``decoder_sparse_step``-th layer, but for a list."""
    step = c.integer("decoder_sparse_step", high=MAX_LAYERS, default=1)
    plain = c.integers("mlp_only_layers", low=0, high=MAX_LAYERS) if c.has("mlp_only_layers") else ()
    sparse = tuple(i for i in range(layers) if i not in plain and (i + 1) % step == 0)
    return complement(layers, sparse), sparse


def complement(layers: int, indices: Iterable[int]) -> tuple[int, ...]:
    """The layers that are not among ``indices``."""
    taken = frozenset(indices)
    return tuple(i for i in range(layers) if i not in taken)


def max_position(c: Fields, *names: str, default: int | None = None) -> int:
    """The longest position that the config declares."""
    return c.integer(*(names or ("max_position_embeddings",)), high=MAX_POSITIONS, default=default)


def read_rope_scaling(c: Fields, longest: int) -> RopeScaling | None:
    """The declared rotary scaling; ``original_max_position`` is 0 where the config declares none."""
    section = c.section("rope_scaling") or c.section("rope_parameters")
    if section is not None and not section.has("rope_type", "type"):
        section = section.section("full_attention") or section
    if section is None or not section.has("rope_type", "type"):
        return None
    kind = section.text("rope_type", "type", allowed=(*ROPE_KINDS, *ROPE_UNSCALED))
    if kind in ROPE_UNSCALED:
        return None
    holder = section if section.has("original_max_position_embeddings") else c
    original = holder.integer("original_max_position_embeddings", high=MAX_POSITIONS, low=0, default=0)
    stretch = longest / original if kind in ("longrope", "su") and original else None
    return RopeScaling(kind, section.number("factor", low=1e-3, high=1e6, default=stretch), original)


def read_dtype(c: Fields) -> tuple[str, tuple[str, ...]]:
    """The checkpoint's 16- or 32-bit format, with a note where the config leaves it out."""
    holder = c.inherited("torch_dtype", "dtype")
    if not holder.has("torch_dtype", "dtype"):
        return "bf16", ("The config states no torch_dtype; bf16 is assumed.",)
    stated = holder.text("torch_dtype", "dtype", allowed=(*DTYPES, *(f"torch.{name}" for name in DTYPES)))
    return DTYPES[stated.removeprefix("torch.")], ()


def assemble(
    model_id: str,
    c: Fields,
    shape: Shape,
    blocks: Sequence[Block],
    *,
    final_norm: int | None = None,
    tied_default: bool = False,
    positions: int = 0,
    head_bias: bool = False,
    extras: Sequence[Tensor] = (),
    longest: int | None = None,
    parallel_blocks: bool = False,
    model_type: str | None = None,
    experts_format: str | None = None,
    notes: Sequence[str] = (),
) -> Architecture:
    """Put an architecture together: tables, head, dtype, quantization and rope scaling are read here.

    ``final_norm`` defaults to one weight per hidden element; ``positions`` are the parameters of a learned
    position table; ``longest`` overrides ``max_position_embeddings``; ``model_type`` is that of the object
    around a nested ``text_config``; ``experts_format`` is that of routed experts in a quantized checkpoint where
    it is another than the rest's. A head's bias counts with the head.
    """
    table = shape.vocabulary * shape.hidden
    holder = c.inherited("tie_word_embeddings")
    tied = holder.flag("tie_word_embeddings", default=tied_default)
    head = None
    if not tied:
        bias = shape.vocabulary if head_bias else 0
        head = matrix("lm_head", "lm_head", table + bias, "vocabulary")
    context = max_position(c) if longest is None else longest
    used = tuple(block for block in blocks if block.layers)
    kind = model_type or c.text("model_type")
    stored, dtype_notes = read_dtype(c)
    holder = c.inherited("quantization_config")
    quantization, quantization_notes = read_quantization(holder, kind, used, extras, experts_format)
    return Architecture(
        id=model_id,
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        vocab_size=shape.vocabulary,
        max_position=context,
        blocks=used,
        embedding=Tensor("embed_tokens", "embedding", table, "vocabulary", matmul=False),
        positions=Tensor("embed_positions", "embedding", positions, "replicated", matmul=False) if positions else None,
        lm_head=head,
        final_norm=norm("final_norm", shape.hidden if final_norm is None else final_norm),
        extras=tuple(extras),
        stored=stored,
        quantization=quantization,
        rope_scaling=read_rope_scaling(c, context),
        parallel_blocks=parallel_blocks,
        model_type=kind,
        notes=(*notes, *dtype_notes, *quantization_notes),
    )
