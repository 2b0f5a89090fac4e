"""DeepSeek-V2, V3 and what follows their module tree: Kimi-K2, Kimi-Linear, DeepSeek-V3.2 and GLM-5 with an indexer."""

from __future__ import annotations

from attrs import evolve

from servelint.architecture import Architecture, Block, Indexer, LatentAttention, Tensor
from servelint_plugins.models.builders import Shape, complement, latent_attention, matrix, norm, vector, width
from servelint_plugins.models.fields import MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from servelint_plugins.models.readers.moe import with_shared_experts
from servelint_plugins.models.readers.state import KimiDelta
from servelint_plugins.models.readers.vision import kimi_vision

WITH_INDEXER = frozenset({"deepseek_v32", "glm_moe_dsa"})


def read(model_id: str, c: Fields) -> Architecture:
    """Read a config of one of this module's model types."""
    kind = c.text("model_type")
    if kind == "kimi_linear":
        return _kimi_linear(model_id, c)
    text = c.required("text_config") if kind == "kimi_k25" else c
    shape, mixer, q_rank = _latent(text)
    bias = text.flag("attention_bias", default=False)
    tensors = (
        *latent_attention(shape.hidden, mixer, q_rank, bias=bias),
        norm("input_norm", shape.hidden),
    )
    layers = tuple(range(shape.layers))
    if kind not in WITH_INDEXER:
        vision = c.section("vision_config") if kind == "kimi_k25" else None
        return with_shared_experts(
            model_id,
            text,
            shape,
            Block("latent_attention", layers, tensors, mixer=mixer),
            vision=kimi_vision(vision, shape.hidden) if vision is not None else (),
            model_type=kind,
        )
    indexer = _indexer(c)
    indexed = (*tensors, *_indexer_tensors(c, shape.hidden, q_rank, indexer))
    owners = _index_owners(c, shape.layers)
    # Layers that reuse the index of an earlier one attend as sparsely, but scan and keep no keys.
    borrowed = evolve(indexer, heads=0, head_dim=0, bytes_per_token=0.0)
    blocks = [Block("latent_attention", owners, indexed, mixer=evolve(mixer, indexer=indexer))]
    if len(owners) < shape.layers:
        others = complement(shape.layers, owners)
        blocks.append(Block("latent_attention_shared_index", others, tensors, mixer=evolve(mixer, indexer=borrowed)))
    return with_shared_experts(model_id, c, shape, *blocks)


def _kimi_linear(model_id: str, c: Fields) -> Architecture:
    """Kimi-Linear: MLA in some layers, Kimi Delta Attention in the others; the rest as DeepSeek-V3 has it."""
    shape, mixer, q_rank = _latent(c)
    linear = c.required("linear_attn_config")
    # Layers are numbered from 1.
    numbers = linear.integers("full_attn_layers", low=1, high=shape.layers)
    attending = tuple(sorted({number - 1 for number in numbers}))
    delta = KimiDelta(
        linear.integer("num_heads", high=MAX_HEADS),
        width(linear, "head_dim"),
        linear.integer("short_conv_kernel_size", high=1_000),
    )
    before = norm("input_norm", shape.hidden)
    blocks = (
        Block("latent_attention", attending, (*latent_attention(shape.hidden, mixer, q_rank), before), mixer=mixer),
        Block(
            "linear_attention",
            complement(shape.layers, attending),
            (*delta.tensors(shape.hidden), before),
            mixer=delta.mixer,
        ),
    )
    return with_shared_experts(model_id, _named_as_deepseek(c), shape, *blocks)


def _named_as_deepseek(c: Fields) -> Fields:
    """The config with the names that DeepSeek's has for the same fields."""
    return c.over(
        {
            "n_routed_experts": c.integer("num_experts", high=MAX_EXPERTS),
            "num_experts_per_tok": c.integer("num_experts_per_token", high=MAX_EXPERTS),
            "n_shared_experts": c.integer("num_shared_experts", low=0, high=1_000, default=0),
            "max_position_embeddings": c.integer("model_max_length", high=MAX_POSITIONS),
        }
    )


def _latent(c: Fields) -> tuple[Shape, LatentAttention, int]:
    """Shape, MLA sizes, and the rank of compressed queries (0 for none)."""
    heads = c.integer("num_attention_heads", high=MAX_HEADS)
    rope = width(c, "qk_rope_head_dim")
    nope = width(c, "qk_nope_head_dim")
    shape = Shape(
        hidden=width(c, "hidden_size"),
        layers=c.integer("num_hidden_layers", high=MAX_LAYERS),
        vocabulary=c.integer("vocab_size", high=MAX_VOCABULARY),
        heads=heads,
        kv_heads=1,
        head_dim=nope + rope,
    )
    if not c.states("q_lora_rank"):
        raise c.error("q_lora_rank", None, "an integer, or null where queries are not compressed")
    mixer = LatentAttention(
        q_heads=heads,
        kv_lora_rank=width(c, "kv_lora_rank"),
        rope_dim=rope,
        nope_dim=nope,
        v_head_dim=width(c, "v_head_dim"),
    )
    return shape, mixer, width(c, "q_lora_rank", low=0, default=0)


def _index_owners(c: Fields, layers: int) -> tuple[int, ...]:
    """Layers with an index of their own: all, unless ``indexer_types`` says which share."""
    if not c.has("indexer_types"):
        return tuple(range(layers))
    kinds = c.texts("indexer_types", count=layers, allowed=("full", "shared"))
    if kinds[0] != "full":
        raise c.error("indexer_types", kinds[0], "an array that starts with full")
    return tuple(i for i, kind in enumerate(kinds) if kind == "full")


def _indexer(c: Fields) -> Indexer:
    """The lightning indexer; keys are cached in fp8 with one fp32 scale for each 128 elements."""
    size = width(c, "index_head_dim")
    return Indexer(
        heads=c.integer("index_n_heads", high=MAX_HEADS),
        head_dim=size,
        top_k=c.integer("index_topk", high=MAX_POSITIONS),
        bytes_per_token=float(size + 4 * -(-size // 128)),
    )


def _indexer_tensors(c: Fields, hidden: int, q_rank: int, indexer: Indexer) -> tuple[Tensor, ...]:
    if not q_rank:
        raise c.error("q_lora_rank", None, "an integer of 1 or more: the indexer reads compressed queries")
    return (
        matrix("indexer_q_proj", "attention", q_rank * indexer.heads * indexer.head_dim, "replicated"),
        matrix("indexer_k_proj", "attention", hidden * indexer.head_dim, "replicated"),
        matrix("indexer_weights_proj", "attention", hidden * indexer.heads, "replicated"),
        vector("indexer_k_norm", "attention", 2 * indexer.head_dim),
    )
