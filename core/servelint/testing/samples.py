"""Models and accelerators made of a few figures, for tests that need a shape rather than a product.

Every block counts its parameters the way a checkpoint of that kind does, so that closed forms hold for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from servelint.architecture import (
    Architecture,
    Attention,
    Block,
    Experts,
    LatentAttention,
    LinearState,
    Quantization,
    Tensor,
)
from servelint.hardware import Accelerator, Link

SOURCE = "servelint.testing.samples"


def attention_block(name: str, layers: Sequence[int], hidden: int, mixer: Attention) -> Block:
    """Return a block of softmax attention: q, k, v and o projections and a norm."""
    keys, values = mixer.kv_heads * mixer.head_dim, mixer.kv_heads * mixer.v_head_dim
    tensors = (
        Tensor("q_proj", "attention", hidden * mixer.q_heads * mixer.head_dim, "heads"),
        Tensor("k_proj", "attention", hidden * keys, "kv_heads"),
        Tensor("v_proj", "attention", hidden * values, "kv_heads"),
        Tensor("o_proj", "attention", mixer.q_heads * mixer.v_head_dim * hidden, "heads", reduced=True),
        Tensor("norm", "norm", hidden, "replicated", matmul=False),
    )
    return Block(name, tuple(layers), tensors, mixer)


def latent_block(name: str, layers: Sequence[int], hidden: int, mixer: LatentAttention) -> Block:
    """Return a block of latent attention: down- and up-projections, output, an indexer's where it has one."""
    heads, rank = mixer.q_heads, mixer.kv_lora_rank
    tensors = [
        Tensor("kv_down", "attention", hidden * (rank + mixer.rope_dim), "replicated"),
        Tensor("q_proj", "attention", hidden * heads * (mixer.nope_dim + mixer.rope_dim), "heads"),
        Tensor("kv_up", "attention", rank * heads * (mixer.nope_dim + mixer.v_head_dim), "heads"),
        Tensor("o_proj", "attention", heads * mixer.v_head_dim * hidden, "heads", reduced=True),
        Tensor("norm", "norm", hidden, "replicated", matmul=False),
    ]
    if mixer.indexer is not None:
        width = (mixer.indexer.heads + 1) * mixer.indexer.head_dim
        tensors.append(Tensor("indexer", "attention", hidden * width, "replicated"))
    return Block(name, tuple(layers), tuple(tensors), mixer)


def state_block(name: str, layers: Sequence[int], hidden: int, width: int, mixer: LinearState) -> Block:
    """Return a block of linear attention or state space: one projection in, one out, a norm."""
    tensors = (
        Tensor("in_proj", "ssm", hidden * 2 * width, "heads"),
        Tensor("out_proj", "ssm", width * hidden, "heads", reduced=True),
        Tensor("norm", "norm", hidden, "replicated", matmul=False),
    )
    return Block(name, tuple(layers), tensors, mixer)


def dense_block(name: str, layers: Sequence[int], hidden: int, width: int) -> Block:
    """Return a gated MLP."""
    tensors = (
        Tensor("gate_up_proj", "mlp", 2 * hidden * width, "width"),
        Tensor("down_proj", "mlp", width * hidden, "width", reduced=True),
        Tensor("norm", "norm", hidden, "replicated", matmul=False),
    )
    return Block(name, tuple(layers), tensors)


def expert_block(
    name: str, layers: Sequence[int], hidden: int, width: int, experts: Experts, shared_width: int = 0
) -> Block:
    """Return a mixture-of-experts block: router, gated routed experts, and shared ones where they have a width."""
    tensors = [
        Tensor("router", "router", hidden * experts.count, "replicated"),
        Tensor("experts", "routed_experts", 3 * hidden * width * experts.count, "experts"),
        Tensor("norm", "norm", hidden, "replicated", matmul=False),
    ]
    if shared_width:
        tensors.append(Tensor("shared_up", "shared_experts", 2 * hidden * shared_width, "width"))
        tensors.append(Tensor("shared_down", "shared_experts", shared_width * hidden, "width", reduced=True))
    return Block(name, tuple(layers), tuple(tensors), experts=experts)


def model(
    hidden: int,
    vocabulary: int,
    blocks: Sequence[Block],
    *,
    id: str = "samples/model",  # noqa: A002
    tied: bool = False,
    positions: int = 0,
    stored: str = "bf16",
    quantization: Quantization | None = None,
    max_position: int = 131_072,
    parallel_blocks: bool = False,
) -> Architecture:
    """Return an architecture of these blocks, with tables, final norm and head."""
    table = vocabulary * hidden
    layers = 1 + max(layer for block in blocks for layer in block.layers)
    learned = Tensor("positions", "embedding", positions * hidden, "replicated", matmul=False)
    return Architecture(
        id=id,
        hidden_size=hidden,
        num_layers=layers,
        vocab_size=vocabulary,
        max_position=max_position,
        blocks=tuple(blocks),
        embedding=Tensor("embed_tokens", "embedding", table, "vocabulary", matmul=False),
        lm_head=None if tied else Tensor("lm_head", "lm_head", table, "vocabulary"),
        final_norm=Tensor("final_norm", "norm", hidden, "replicated", matmul=False),
        positions=learned if positions else None,
        stored=stored,
        quantization=quantization,
        parallel_blocks=parallel_blocks,
        sources=(SOURCE,),
    )


def dense_model() -> Architecture:
    """Return a dense model with grouped-query attention, about 1.2 billion parameters."""
    layers = range(16)
    attention = Attention(q_heads=16, kv_heads=4, head_dim=128, v_head_dim=128)
    blocks = (
        attention_block("full_attention", layers, 2048, attention),
        dense_block("mlp", layers, 2048, 8192),
    )
    return model(2048, 32_768, blocks, id="samples/dense")


def hybrid_model() -> Architecture:
    """Return a model with everything else: latent, sliding and linear layers, dense MLPs and experts."""
    latent = LatentAttention(q_heads=16, kv_lora_rank=256, rope_dim=64, nope_dim=128, v_head_dim=128)
    sliding = Attention(q_heads=16, kv_heads=8, head_dim=64, v_head_dim=64, window=1024)
    state = LinearState(recurrent_elements=16 * 64 * 128, conv_elements=3 * 4096)
    blocks = (
        latent_block("latent_attention", (0, 3, 6, 9), 1024, latent),
        attention_block("sliding_attention", (1, 4, 7, 10), 1024, sliding),
        state_block("linear", (2, 5, 8, 11), 1024, 2048, state),
        dense_block("mlp", (0,), 1024, 4096),
        expert_block("moe", range(1, 12), 1024, 512, Experts(32, 4), 512),
    )
    return model(1024, 32_768, blocks, id="samples/hybrid", tied=True)


def accelerator() -> Accelerator:
    """Return a device with every path: a switched scale-up link, PCIe, an L2, four precisions."""
    return Accelerator(
        id="samples/accelerator",
        name="Sample accelerator",
        vendor="samples",
        form_factor="module",
        family="sample",
        architecture="sample",
        memory_bytes=80 * 10**9,
        memory_bandwidth_bytes_per_s=3e12,
        dense_flops={"fp32": 60e12, "bf16": 1000e12, "fp16": 1000e12, "fp8": 2000e12, "int8": 2000e12},
        sparse_flops={},
        native_formats=("bf16", "fp16", "fp8", "int8"),
        link=Link("switch", 450e9, 8, in_network_reduction=True),
        pcie_generation=5,
        l2_bytes=50 * 2**20,
        sources={"memory": (SOURCE,)},
    )
