"""MiniMax-M3: grouped-query attention whose layers, but for the first, pick blocks of keys by an index."""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Attention, Block, Indexer, Tensor
from servelint_plugins.models.builders import (
    Shape,
    assemble,
    complement,
    experts,
    grouped_attention,
    head_norms,
    matrix,
    mlp,
    norm,
    read_experts,
    read_shape,
    width,
)
from servelint_plugins.models.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, Fields
from servelint_plugins.models.readers.vision import encoder_layer

SPARSE = "minimax_m3_sparse"


def read(model_id: str, outer: Fields) -> Architecture:
    """Read a config of model type ``minimax_m3`` or, with its vision tower, ``minimax_m3_vl``."""
    kind = outer.text("model_type")
    c = outer.required("text_config") if kind == "minimax_m3_vl" else outer
    shape = read_shape(c)
    index = c.section("sparse_attention_config") or c
    sparse = _listed(c, index, shape.layers)
    routed_layers = _routed(c, shape.layers)
    vision = outer.section("vision_config") if kind == "minimax_m3_vl" else None
    declared = c.integer("num_mtp_modules", low=0, high=64, default=0)
    note = f"The config declares {declared} MTP modules; they are not counted, the reference implementation has none."
    blocks = (*_attention(c, shape, index, sparse), *_feed_forward(c, shape, routed_layers))
    return assemble(
        model_id,
        c,
        shape,
        blocks,
        extras=_vision(vision, outer, shape.hidden) if vision is not None else (),
        model_type=kind,
        notes=(note,) if declared else (),
    )


def _listed(c: Fields, index: Fields, layers: int) -> tuple[int, ...]:
    """Layers that attend to what their index picks."""
    if index.has("sparse_attention_freq"):
        flags = index.integers("sparse_attention_freq", low=0, high=1, count=layers)
        return tuple(i for i, flag in enumerate(flags) if flag)
    if not c.has("layer_types"):
        return ()
    kinds = c.texts("layer_types", count=layers, allowed=(SPARSE, "full_attention"))
    return tuple(i for i, kind in enumerate(kinds) if kind == SPARSE)


def _routed(c: Fields, layers: int) -> tuple[int, ...]:
    """Layers with experts: all, unless the config lists them."""
    if c.has("moe_layer_freq"):
        flags = c.integers("moe_layer_freq", low=0, high=1, count=layers)
        return tuple(i for i, flag in enumerate(flags) if flag)
    if not c.has("mlp_layer_types"):
        return tuple(range(layers))
    kinds = c.texts("mlp_layer_types", count=layers, allowed=("dense", "sparse"))
    return tuple(i for i, kind in enumerate(kinds) if kind == "sparse")


def _attention(c: Fields, shape: Shape, index: Fields, sparse: tuple[int, ...]) -> tuple[Block, ...]:
    mixer = Attention(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim)
    c.text("qk_norm_type", allowed=("per_head",), default="per_head")
    tensors = (*grouped_attention(shape.hidden, mixer), *head_norms(mixer), norm("input_norm", shape.hidden))
    full = Block("full_attention", complement(shape.layers, sparse), tensors, mixer=mixer)
    if not sparse:
        return (full,)
    size = width(index, "sparse_index_dim", "index_head_dim")
    block = index.integer("sparse_block_size", "index_block_size", high=MAX_POSITIONS)
    picked = index.integer("sparse_topk_blocks", "index_topk_blocks", high=MAX_POSITIONS)
    heads = index.integer("sparse_num_index_heads", "index_n_heads", high=MAX_HEADS)
    # The index keeps one key a token in 16 bit; blocks are scored by their best key.
    indexer = Indexer(heads, size, min(picked * block, MAX_POSITIONS), 2.0 * size)
    indexed = (
        *tensors,
        matrix("indexer_q_proj", "attention", shape.hidden * heads * size, "replicated"),
        matrix("indexer_k_proj", "attention", shape.hidden * size, "replicated"),
        norm("indexer_q_norm", size),
        norm("indexer_k_norm", size),
    )
    return full, Block("sparse_attention", sparse, indexed, mixer=evolve(mixer, indexer=indexer))


def _feed_forward(c: Fields, shape: Shape, routed_layers: tuple[int, ...]) -> tuple[Block, ...]:
    hidden, after = shape.hidden, norm("post_attention_norm", shape.hidden)
    dense = complement(shape.layers, routed_layers)
    blocks = []
    if dense:
        blocks.append(Block("mlp", dense, (*mlp(hidden, width(c, "dense_intermediate_size")), after)))
    if routed_layers:
        routed = read_experts(c, "num_local_experts")
        count = c.integer("n_shared_experts", low=0, high=1_000, default=1)
        shared = count * width(c, "shared_intermediate_size", low=0, default=0)
        sparse = experts(hidden, width(c, "intermediate_size"), routed.count, shared_inner=shared)
        blocks.append(Block("moe", routed_layers, (*sparse, after), experts=routed))
    return tuple(blocks)


def _vision(c: Fields, outer: Fields, hidden: int) -> tuple[Tensor, ...]:
    """A tower of plain encoder layers, and the projector with its merging of patches."""
    size, inner = width(c, "hidden_size"), width(c, "intermediate_size")
    holder = c.section("img_token_compression_config") or c
    merged = hidden * holder.integer("spatial_merge_size", high=64, default=2) ** 2
    frames = holder.integer("temporal_patch_size", high=64, default=2)
    patch = c.integer("num_channels", high=1_000, default=3) * width(c, "patch_size") ** 2 * frames
    layers = c.integer("num_hidden_layers", high=MAX_LAYERS)
    tower = patch * size + 2 * size + layers * encoder_layer(size, inner)
    between = width(outer, "projector_hidden_size", default=hidden)
    projector = (size + merged + 2) * between + 2 * (between + 1) * hidden
    return (
        Tensor("vision_tower", "vision", tower, "replicated"),
        Tensor("vision_projector", "vision", projector, "replicated"),
    )
