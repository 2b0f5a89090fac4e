"""DeepSeek-V4: one shared key-value head with compressed caches, widened residual streams, experts in fp4.

Three kinds of layers: a window of recent tokens only; the window and one cache entry for each few tokens, of
which an index picks some (compressed sparse attention); the window and one entry for each many tokens, all
attended (heavily compressed attention). Keys are values, so an entry is stored once. The matrices that mix
the residual streams count with the norms: their work is below a thousandth of a layer's.
"""

from __future__ import annotations

from collections.abc import Iterable

from servelint.architecture import Architecture, Block, Indexer, LatentAttention, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    experts,
    matrix,
    mtp_extras,
    norm,
    read_experts,
    read_layer_types,
    read_mtp_count,
    read_shape,
    vector,
    width,
)
from servelint_plugins.models.fields import MAX_HEADS, MAX_POSITIONS, Fields

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
STRIDES = {SLIDING: 0, SPARSE: 4, HEAVY: 128}
"""Tokens behind one compressed cache entry by kind of layer, unless a config says other; 0: there is none."""


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of model type ``deepseek_v4``."""
    shape = read_shape(c)
    if shape.kv_heads != 1:
        raise c.error("num_key_value_heads", shape.kv_heads, "1: all query heads share keys and values")
    streams = c.integer("hc_mult", high=64)
    mixing = _mixing(shape.hidden, streams)
    strides = _strides(c)
    blocks = [
        Block(
            kind,
            tuple(layers),
            (
                *_attention(c, shape, kind, strides[kind]),
                vector("stream_mixing", "norm", mixing),
                norm("input_norm", shape.hidden),
            ),
            mixer=_mixer(c, shape, kind, strides[kind]),
        )
        for kind, layers in _layers(c, shape.layers).items()
        if layers
    ]
    routed = read_experts(c, "n_routed_experts", "num_local_experts")
    inner = width(c, "moe_intermediate_size")
    shared = c.integer("n_shared_experts", low=0, high=1_000, default=0)
    sparse = (
        *experts(shape.hidden, inner, routed.count, shared_inner=shared * inner),
        vector("stream_mixing", "norm", mixing),
        norm("post_attention_norm", shape.hidden),
    )
    moe = Block("moe", tuple(range(shape.layers)), sparse, experts=routed)
    head = streams * streams * shape.hidden + streams + 1
    last = (
        *_attention(c, shape, SLIDING, 0),
        vector("attention_mixing", "norm", mixing),
        norm("input_norm", shape.hidden),
    )
    return assemble(
        model_id,
        c,
        shape,
        (*blocks, moe),
        final_norm=shape.hidden + head,
        extras=mtp_extras(shape.hidden, (*last, *sparse, vector("head_mixing", "norm", head)), read_mtp_count(c)),
        experts_format=_experts_format(c),
    )


def _mixing(hidden: int, streams: int) -> int:
    """Parameters that join the residual streams before a sub-layer and spread its result after it."""
    weights = (2 + streams) * streams
    return weights * streams * hidden + weights + 3


def _experts_format(c: Fields) -> str | None:
    """The experts' own format; fp4 has one 8-bit exponent for each 32 elements."""
    holder = c if c.has("expert_dtype") else c.section("quantization_config") or c
    stated = holder.text("expert_dtype", allowed=("fp4", "fp8", "bf16"), default="fp8")
    return "mxfp4" if stated == "fp4" else None


def _strides(c: Fields) -> dict[str, int]:
    rates = c.section("compress_rates")
    if rates is None:
        return STRIDES
    return {k: rates.integer(k, high=MAX_POSITIONS, default=n) if n else 0 for k, n in STRIDES.items()}


def _layers(c: Fields, layers: int) -> dict[str, list[int]]:
    """Layers by kind, as named or by ratio; by default two heavily compressed ones, then both kinds in turn."""
    default = [HEAVY if i < 2 or i % 2 == 0 else SPARSE for i in range(layers)]
    if c.has("compress_ratios") and not c.has("layer_types"):
        by_ratio = {stride: kind for kind, stride in STRIDES.items()}
        # The list goes on over the MTP modules.
        ratios = c.integers("compress_ratios", low=0, high=MAX_POSITIONS)[:layers]
        if len(ratios) < layers or any(ratio not in by_ratio for ratio in ratios):
            known = ", ".join(map(str, by_ratio))
            raise c.error("compress_ratios", c.raw("compress_ratios")[1], f"a ratio a layer ({layers}), among {known}")
        default = [by_ratio[ratio] for ratio in ratios]
    return read_layer_types(c, layers, default, tuple(STRIDES))


def _mixer(c: Fields, shape: Shape, kind: str, stride: int) -> LatentAttention:
    size = shape.head_dim
    if stride and size % stride:
        raise c.error("head_dim", size, f"a multiple of the tokens behind a cache entry ({stride})")
    indexer = None
    if kind == SPARSE:
        keys = width(c, "index_head_dim")
        # Keys are cached in fp8 with one fp32 scale for each 128 elements.
        held = (keys + 4 * -(-keys // 128)) / stride
        top_k = c.integer("index_topk", high=MAX_POSITIONS)
        indexer = Indexer(c.integer("index_n_heads", high=MAX_HEADS), keys, top_k, held, stride)
    return LatentAttention(
        q_heads=shape.heads,
        kv_lora_rank=size,
        rope_dim=0,
        nope_dim=size,
        v_head_dim=size,
        indexer=indexer,
        window=c.integer("sliding_window", high=MAX_POSITIONS),
        stride=stride,
    )


def _attention(c: Fields, shape: Shape, kind: str, stride: int) -> tuple[Tensor, ...]:
    """Low-rank queries, one key-value head, an output projection of low rank within groups of heads."""
    hidden, size = shape.hidden, shape.head_dim
    rank, out_rank = width(c, "q_lora_rank"), width(c, "o_lora_rank")
    groups = c.integer("o_groups", high=MAX_HEADS)
    if shape.heads * size % groups:
        raise c.error("o_groups", groups, f"a divisor of num_attention_heads x head_dim ({shape.heads * size})")
    tensors = [
        matrix("q_a_proj", "attention", hidden * rank, "replicated"),
        norm("q_a_norm", rank),
        matrix("q_b_proj", "attention", rank * shape.heads * size, "heads"),
        matrix("kv_a_proj", "attention", hidden * size, "replicated"),
        norm("kv_a_norm", size),
        matrix("o_a_proj", "attention", shape.heads * size * out_rank, "heads"),
        matrix("o_b_proj", "attention", groups * out_rank * hidden, "heads", reduced=True),
        vector("sinks", "attention", shape.heads, "heads"),
    ]
    if stride:
        tensors += _compressor("compressor", hidden, size, stride, overlapping=kind == SPARSE)
    if kind == SPARSE:
        keys, heads = width(c, "index_head_dim"), c.integer("index_n_heads", high=MAX_HEADS)
        tensors += [
            *_compressor("indexer_compressor", hidden, keys, stride, overlapping=True),
            matrix("indexer_q_proj", "attention", rank * heads * keys, "replicated"),
            matrix("indexer_weights_proj", "attention", hidden * heads, "replicated"),
        ]
    return tuple(tensors)


def _compressor(name: str, hidden: int, size: int, stride: int, *, overlapping: bool) -> Iterable[Tensor]:
    """Keys and their gates, a bias for each place within an entry, a norm; overlapping entries need twice that."""
    wide = 2 * size if overlapping else size
    return (
        matrix(name, "attention", 2 * hidden * wide, "replicated"),
        vector(f"{name}_position_bias", "attention", stride * wide),
        norm(f"{name}_norm", size),
    )
