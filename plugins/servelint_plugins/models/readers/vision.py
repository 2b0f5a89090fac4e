"""Parameter counts of the vision towers that multimodal checkpoints carry.

Plain text generation does not use a tower, but a server that loads the checkpoint may hold it. Only the
count is modeled, as one tensor.
"""

from __future__ import annotations

from servelint.architecture import Tensor
from servelint_plugins.models.builders import width
from servelint_plugins.models.fields import MAX_LAYERS, Fields


def encoder_layer(hidden: int, inner: int) -> int:
    """Parameters of one plain transformer encoder layer with biases and two layer norms."""
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 2 * hidden * inner + inner + hidden
    return attention + feed_forward + 4 * hidden


def siglip(c: Fields) -> tuple[Tensor, int]:
    """A SigLIP vision tower, with its attention-pooling head unless the config says it has none."""
    hidden, inner = width(c, "hidden_size"), width(c, "intermediate_size")
    layers = c.integer("num_hidden_layers", high=MAX_LAYERS)
    patch = width(c, "patch_size")
    patches = (width(c, "image_size") // patch) ** 2
    channels = c.integer("num_channels", high=1_000, default=3)
    params = (
        (channels * patch * patch + 1) * hidden + patches * hidden + layers * encoder_layer(hidden, inner) + 2 * hidden
    )
    if c.flag("vision_use_head", default=True):
        params += encoder_layer(hidden, inner) - 2 * hidden + hidden
    return Tensor("vision_tower", "vision", params, "replicated"), hidden


def llama4_vision(c: Fields, hidden: int) -> tuple[Tensor, ...]:
    """The Llama 4 vision tower with its pixel-shuffle MLP, and the projection to the text width."""
    size, inner = width(c, "hidden_size"), width(c, "intermediate_size")
    layers = c.integer("num_hidden_layers", high=MAX_LAYERS)
    patch = width(c, "patch_size")
    positions = (width(c, "image_size") // patch) ** 2 + 1
    channels = c.integer("num_channels", high=1_000, default=3)
    between = width(c, "projector_input_dim")
    output = width(c, "projector_output_dim")
    params = (
        channels * patch * patch * size
        + size
        + positions * size
        + 4 * size
        + layers * encoder_layer(size, inner)
        + inner * between
        + between * output
    )
    return (
        Tensor("vision_tower", "vision", params, "replicated"),
        Tensor("vision_projector", "vision", width(c, "vision_output_dim") * hidden, "replicated"),
    )


def _patches(c: Fields) -> tuple[int, int]:
    """Width and parameters of a convolution over space-time patches, without bias."""
    hidden = width(c, "embed_dim", "hidden_size")
    frames = c.integer("temporal_patch_size", high=1_000)
    channels = c.integer("in_channels", "in_chans", high=1_000, default=3)
    return hidden, channels * frames * width(c, "patch_size") ** 2 * hidden


def _merger(merged: int, output: int) -> int:
    """Two linear layers with biases from merged patches to the text width."""
    return merged * merged + merged + merged * output + output


def qwen2_vision(c: Fields) -> Tensor:
    """The Qwen2-VL tower with its patch merger."""
    hidden, patches = _patches(c)
    merged = hidden * c.integer("spatial_merge_size", high=1_000) ** 2
    layers = c.integer("depth", high=MAX_LAYERS) * encoder_layer(hidden, hidden * c.integer("mlp_ratio", high=1_000))
    params = patches + layers + 2 * hidden + _merger(merged, width(c, "hidden_size"))
    return Tensor("vision_tower", "vision", params, "replicated")


def qwen25_vision(c: Fields) -> Tensor:
    """The Qwen2.5-VL tower: RMS norms and a gated MLP with biases."""
    hidden, patches = _patches(c)
    inner = width(c, "intermediate_size")
    merged = hidden * c.integer("spatial_merge_size", high=1_000) ** 2
    layer = 4 * (hidden * hidden + hidden) + 3 * hidden * inner + 2 * inner + hidden + 2 * hidden
    params = (
        patches + c.integer("depth", high=MAX_LAYERS) * layer + hidden + _merger(merged, width(c, "out_hidden_size"))
    )
    return Tensor("vision_tower", "vision", params, "replicated")


def qwen3_vision(c: Fields) -> Tensor:
    """The Qwen3-VL tower: learned positions, and a merger more for each tapped layer."""
    hidden, patches = _patches(c)
    merged = hidden * c.integer("spatial_merge_size", high=1_000) ** 2
    merger = _merger(merged, width(c, "out_hidden_size"))
    taps = len(c.items("deepstack_visual_indexes")) if c.has("deepstack_visual_indexes") else 0
    params = (
        patches
        + hidden
        + width(c, "num_position_embeddings") * hidden
        + c.integer("depth", high=MAX_LAYERS) * encoder_layer(hidden, width(c, "intermediate_size"))
        + 2 * hidden
        + merger
        + taps * (2 * merged + merger)
    )
    return Tensor("vision_tower", "vision", params, "replicated")


def pixtral(c: Fields, outer: Fields, hidden: int) -> tuple[Tensor, ...]:
    """The Pixtral tower, and Mistral's patch merger and projection to the text width."""
    size, inner = width(c, "hidden_size"), width(c, "intermediate_size")
    channels = c.integer("num_channels", high=1_000, default=3)
    layer = 4 * size * size + 3 * size * inner + 2 * size
    tower = (
        channels * width(c, "patch_size") ** 2 * size + size + c.integer("num_hidden_layers", high=MAX_LAYERS) * layer
    )
    merge = outer.integer("spatial_merge_size", high=1_000, default=2) ** 2
    bias = 2 * hidden if outer.flag("multimodal_projector_bias", default=False) else 0
    projector = size + merge * size * size + size * hidden + hidden * hidden + bias
    return (
        Tensor("vision_tower", "vision", tower, "replicated"),
        Tensor("vision_projector", "vision", projector, "replicated"),
    )


def kimi_vision(c: Fields, hidden: int) -> tuple[Tensor, ...]:
    """Kimi's tower with a grid of learned positions, and its patch-merging projector."""
    size = width(c, "vt_hidden_size", "hidden_size")
    layers = c.integer("vt_num_hidden_layers", "num_hidden_layers", high=MAX_LAYERS)
    grid = width(c, "init_pos_emb_height") * width(c, "init_pos_emb_width")
    tower = (
        (3 * width(c, "patch_size") ** 2 + 1) * size
        + grid * size
        + layers * encoder_layer(size, width(c, "vt_intermediate_size", "intermediate_size"))
        + 2 * size
    )
    height, breadth = c.integers("merge_kernel_size", low=1, high=1_000, count=2)
    projector = 2 * size + _merger(height * breadth * size, hidden)
    return (
        Tensor("vision_tower", "vision", tower, "replicated"),
        Tensor("vision_projector", "vision", projector, "replicated"),
    )


def gemma4_vision(c: Fields, hidden: int) -> tuple[Tensor, ...]:
    """The Gemma 4 tower: learned positions by row and column, QK norm, gated MLP, sandwich norms."""
    size = width(c, "hidden_size")
    head = width(c, "head_dim")
    heads = c.integer("num_attention_heads", high=100_000)
    kv_heads = c.integer("num_key_value_heads", high=100_000, default=heads)
    attention = 2 * size * heads * head + 2 * size * kv_heads * head + 2 * head
    layer = attention + 3 * size * width(c, "intermediate_size") + 4 * size
    tower = (
        2 * width(c, "position_embedding_size") * size
        + 3 * width(c, "patch_size") ** 2 * size
        + c.integer("num_hidden_layers", high=MAX_LAYERS) * layer
    )
    return (
        Tensor("vision_tower", "vision", tower, "replicated"),
        Tensor("vision_projector", "vision", size * hidden, "replicated"),
    )
