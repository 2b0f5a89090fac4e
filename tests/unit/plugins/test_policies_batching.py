"""The peak of a step with a full token budget, counted by hand, and the limits that batching sets."""

from __future__ import annotations

from typing import Any

import pytest

from servelint.architecture import Architecture, Attention, Experts, LatentAttention
from servelint.composition import Composition
from servelint.manager import Plugins
from servelint.scheduler import Scheduler
from servelint.testing import compose, samples
from servelint_plugins.policies.batching import Batching, scheduler

HIDDEN, VOCABULARY = 1024, 50_000
ATTENTION = Attention(q_heads=16, kv_heads=4, head_dim=64, v_head_dim=64)


def composed(plugins: Plugins, model: Architecture, batching: str, more: str = "") -> Composition:
    spec = f'[hardware]\naccelerator = "any"\n[model]\nid = "any"\n[policy.batching]\n{batching}{more}'
    return compose(spec, plugins, architecture=model, accelerator=samples.accelerator())


def peak(composition: Composition) -> float:
    (reserve,) = [r for r in composition.memory.reserves if r.name == "peak activations"]
    return reserve.bytes


def dense(width: int) -> Architecture:
    blocks = (
        samples.attention_block("attention", range(4), HIDDEN, ATTENTION),
        samples.dense_block("mlp", range(4), HIDDEN, width),
    )
    return samples.model(HIDDEN, VOCABULARY, blocks)


@pytest.mark.parametrize(("tensor", "width"), [(1, 4096), (2, 4096), (1, 512), (4, 512)])
def test_the_widest_inner_tensors_and_three_of_the_residual_width(plugins: Plugins, tensor: int, width: int) -> None:
    more = f"[policy.parallelism]\ntensor = {tensor}\n"
    found = peak(composed(plugins, dense(width), "max_batched_tokens = 2048\nmax_sequences = 8\n", more))
    # Queries and outputs of 16 heads, keys and values of 4; or gate, up and down of the MLP.
    inner = max(16 * (64 + 64) + 4 * (64 + 64), 3 * width)
    assert found == pytest.approx(2048 * (3 * HIDDEN + inner / tensor) * 2)


def test_logits_take_more_when_every_token_is_an_output(plugins: Plugins) -> None:
    found = peak(composed(plugins, dense(512), "max_batched_tokens = 2048\nmax_sequences = 2048\n"))
    assert found == 2048 * HIDDEN * 2 + 2048 * VOCABULARY * 4
    # No more rows than the budget has tokens.
    more = peak(composed(plugins, dense(512), "max_batched_tokens = 2048\nmax_sequences = 4096\n"))
    assert more == found


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize(
    ("top_k", "width", "shared"), [(8, 256, 0), (8, 2048, 0), (1, 256, 0), (1, 256, 1024), (1, 256, 4096)]
)
def test_a_tokens_experts_each_write_a_row(plugins: Plugins, top_k: int, width: int, shared: int, tensor: int) -> None:
    blocks = (
        samples.attention_block("attention", range(4), HIDDEN, ATTENTION),
        samples.expert_block("moe", range(4), HIDDEN, width, Experts(16, top_k), shared),
    )
    model = samples.model(HIDDEN, VOCABULARY, blocks)
    more = f"[policy.parallelism]\ntensor = {tensor}\n"
    found = peak(composed(plugins, model, "max_batched_tokens = 2048\nmax_sequences = 8\n", more))
    # A device's part of gate and up, or the residual row where that is wider, and of down.
    chosen = top_k * (max(2 * width / tensor, HIDDEN) + width / tensor)
    # Attention and the shared expert are divided.
    divided = max(16 * (64 + 64) + 4 * (64 + 64), 3 * shared) / tensor
    assert found == pytest.approx(2048 * (3 * HIDDEN + max(divided, chosen)) * 2)


@pytest.mark.parametrize(("sequences", "formula"), [(8, "3 x hidden"), (2048, "sequences x vocabulary")])
def test_a_peak_is_told_by_what_it_is_of(sequences: int, formula: str, plugins: Plugins) -> None:
    found = composed(plugins, dense(4096), f"max_batched_tokens = 2048\nmax_sequences = {sequences}\n")
    (reserve,) = [r for r in found.memory.reserves if r.name == "peak activations"]
    of = {i.name: float(i.value) for i in reserve.lineage.inputs}
    assert formula in reserve.lineage.formula
    if sequences == 8:
        inner = of["inner width split"] + of["inner width not split"]
        told = of["tokens"] * (3 * of["hidden"] + inner) * 2
    else:
        told = of["tokens"] * of["hidden"] * 2 + of["sequences"] * of["vocabulary"] * 4
    assert told == pytest.approx(reserve.bytes)


def test_engines_count_sequences_by_rank_and_outputs_by_prompt(plugins: Plugins) -> None:
    keys, ranks = "max_batched_tokens = 2048\nmax_sequences = 8\n", "[policy.parallelism]\ndata = 3\n"
    found = composed(plugins, dense(512), keys, ranks).scheduler
    assert (found.max_sequences, found.max_batched_tokens, found.samples) == (24, 2048, 1)
    assert composed(plugins, dense(512), f"{keys}parallel_samples = 4\n").scheduler.samples == 4


@pytest.mark.parametrize(
    ("batching", "chunk"),
    [
        ("max_batched_tokens = 2048\n", 2048),
        ("max_batched_tokens = 2048\nprefill_chunk = 512\n", 512),
        ("max_batched_tokens = 2048\nprefill_chunk = 4096\n", 2048),
    ],
)
def test_a_chunk_is_no_more_than_the_budget(plugins: Plugins, batching: str, chunk: int) -> None:
    scheduler = composed(plugins, dense(512), batching).scheduler
    assert (scheduler.max_batched_tokens, scheduler.chunk_tokens, scheduler.chunked) == (2048, chunk, True)
    whole = composed(plugins, dense(512), f"{batching}chunked_prefill = false\n").scheduler
    assert not whole.chunked


@pytest.mark.parametrize(
    ("config", "chunk"),
    [(Batching(), None), (Batching(prefill_chunk=512), 512), (Batching(max_batched_tokens=256), 256)],
)
def test_a_chunk_needs_a_size(config: Batching, chunk: int | None) -> None:
    context: Any = None
    found = scheduler(config, Scheduler(), context)
    assert (found.chunk_tokens, found.max_sequences, found.samples) == (chunk, None, 1)


@pytest.mark.parametrize("tensor", [1, 4])
def test_latent_attention_expands_keys_and_values_of_every_head(tensor: int, plugins: Plugins) -> None:
    mixer = LatentAttention(q_heads=16, kv_lora_rank=256, rope_dim=32, nope_dim=96, v_head_dim=80)
    blocks = (
        samples.latent_block("attention", range(4), HIDDEN, mixer),
        samples.dense_block("mlp", range(4), HIDDEN, 512),
    )
    more = f"[policy.parallelism]\ntensor = {tensor}\n"
    model = samples.model(HIDDEN, VOCABULARY, blocks)
    found = peak(composed(plugins, model, "max_batched_tokens = 2048\nmax_sequences = 8\n", more))
    # A head's query of 96 + 32, its key of 96 beside the shared 32, its value and its output of 80.
    inner = 16 * ((96 + 32) + 96 + 80 + 80)
    assert found == pytest.approx(2048 * (3 * HIDDEN + inner / tensor) * 2)
