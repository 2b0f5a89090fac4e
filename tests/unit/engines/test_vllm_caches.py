"""vLLM's KV cache by release: blocks of hybrids, what a sequence takes of them, and the size that is logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from servelint.manager import Plugins
from servelint.memory import MemoryLedger, PageGroup
from servelint.review import Review
from servelint.spec.document import parse

GIB = 2**30
GEMMA = "google/gemma-4-31B-it"  # 10 full layers of 4 heads of 512, 50 with a window of 1,024 of 16 heads of 256
QWEN = "Qwen/Qwen3.5-27B"  # 16 full layers, 48 recurrent ones


def memory(plugins: Plugins, version: str, model: str, more: str = "", engine: str = "") -> MemoryLedger:
    declared = f'version = "{version}"\n' if version else ""
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "nvidia/a100-sxm4-80gb"\n[model]\nid = "{model}"\n'
        f'max_model_len = 131072\n[engine]\nname = "vllm"\n{declared}{engine}{more}'
    )
    review = Review(parse("a.toml", text, plugins.policies), plugins, Path())
    assert review.composition is not None, (review.infeasible, review.unresolved)
    return review.composition.memory


FIFTY = '[policy.kv_cache]\nmemory_bytes = "50 GiB"\n'


@pytest.mark.parametrize(
    ("version", "tokens"),
    [
        # Every layer keeps every token: 50 GiB / 901,120 B.
        ("0.6.6", 59_568),
        ("0.9.0", 59_568),
        # Six groups of ten layers: 20,480 blocks / 6 x 16.
        ("0.9.1", 54_608),
        ("0.20.0", 54_608),
        # 20,480 blocks, 5,061 for the longest sequence, times 131,072.
        ("0.21.0", 530_400),
        ("", 530_400),
    ],
)
def test_the_logged_size_by_release(plugins: Plugins, version: str, tokens: int) -> None:
    assert memory(plugins, version, GEMMA, FIFTY).capacity_tokens(131_072) == tokens


def test_blocks_have_one_size_and_windows_hold_a_step(plugins: Plugins) -> None:
    pool = memory(plugins, "0.21.0", GEMMA, FIFTY).pool
    assert pool is not None
    # A full layer's tokens take half the bytes, so that a block holds twice as many.
    assert set(pool.groups) == {PageGroup(32), PageGroup(16, window=1023, extra=1, copies=5)}
    assert pool.block_bytes == (10 * 16 * 16_384,)
    assert pool.step_tokens == 2048
    assert pool.blocks(131_072, pool.step_tokens) == 4096 + 5 * 193
    assert pool.blocks(131_072) == 4096 + 5 * 65


def test_blocks_that_leave_the_instance_are_not_grouped(plugins: Plugins) -> None:
    kept = '[policy.kv_cache]\nmemory_bytes = "50 GiB"\noffload = "host memory"\n'
    held = memory(plugins, "0.21.0", GEMMA, kept)
    assert held.pool is not None
    assert [group.window for group in held.pool.groups] == [0]


@pytest.mark.parametrize(
    ("version", "more", "extra"),
    [
        ("0.21.0", "", 1),
        ("0.21.0", "[policy.kv_cache]\nprefix_reuse = true\n", 2),
        ("0.15.0", "[policy.kv_cache]\nprefix_reuse = true\n", 1),
        ("0.21.0", '[policy.speculation]\nmethod = "mtp"\ntokens = 3\n', 4),
    ],
)
def test_recurrent_state_takes_whole_blocks(plugins: Plugins, version: str, more: str, extra: int) -> None:
    pool = memory(plugins, version, QWEN, more).pool
    assert pool is not None
    # State of 3,207,168 B in blocks of 16 tokens of 4,096 B each: 49 of them.
    assert {g.tokens for g in pool.groups} == {784}
    full, state = sorted(pool.groups, key=lambda g: g.grows, reverse=True)
    assert full == PageGroup(784)
    assert state == PageGroup(784, extra=extra, grows=False, copies=3)


def test_before_0_10_state_lies_outside_the_cache(plugins: Plugins) -> None:
    assert memory(plugins, "0.9.1", QWEN).pool is None


def test_models_that_keep_every_state_grow(plugins: Plugins) -> None:
    reuse = "[policy.kv_cache]\nprefix_reuse = true\n"
    pool = memory(plugins, "0.21.0", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", reuse).pool
    assert pool is not None
    assert all(group.grows for group in pool.groups)


def test_kinds_of_nearly_as_many_layers_share_groups(plugins: Plugins) -> None:
    # 18 full layers and as many with a window: one group of each, whatever the release.
    pool = memory(plugins, "0.21.0", "openai/gpt-oss-120b").pool
    assert pool is not None
    assert [group.copies for group in pool.groups] == [1, 1]
    assert pool.block_bytes == (18 * 16 * 2048,)


@pytest.mark.parametrize("version", ["0.11.0", "0.11.1", "0.15.1", "0.16.0"])
def test_the_stages_that_the_start_looks_at(plugins: Plugins, version: str) -> None:
    split = "[policy.parallelism]\npipeline = 4\n"
    held = memory(plugins, version, "meta-llama/Llama-3.1-8B", split)
    assert held.asks_for_all_stages is (version in ("0.11.1", "0.15.1"))
    assert held.sequence_bytes(16, 0) == 16 * 32_768
    assert held.request_bytes(16, 0) == 16 * 32_768 * (4 if held.asks_for_all_stages else 1)


def test_layers_of_one_kind_are_left_alone(plugins: Plugins) -> None:
    for model in ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3.2"):
        assert memory(plugins, "0.21.0", model).pool is None


def test_reserves_by_release_and_devices(plugins: Plugins) -> None:
    def reserves(version: str, more: str = "") -> dict[str, float]:
        held = memory(plugins, version, "meta-llama/Llama-3.1-8B", more)
        return {r.name: r.bytes / GIB for r in held.reserves if r.name != "peak activations"}

    assert reserves("0.19.1") == {"runtime": 0.5}
    assert reserves("0.19.1", "[policy.parallelism]\ntensor = 2\n") == {"runtime": 1.0}
    assert reserves("0.20.0") == {"runtime": 0.5, "graphs": pytest.approx(0.127 + 32 * 0.0052)}
    eager = memory(plugins, "0.21.0", "meta-llama/Llama-3.1-8B", engine="enforce_eager = true\n").reserves
    assert [r.name for r in eager] == ["runtime", "peak activations"]
    halves = reserves("0.21.0", "[policy.parallelism]\npipeline = 2\n")
    assert halves == {"runtime": 1.0, "graphs": pytest.approx(0.127 + 16 * 0.0052)}
    seen = memory(plugins, "0.20.2", "Qwen/Qwen2.5-VL-7B-Instruct").reserves
    assert {r.name: r.bytes / GIB for r in seen}["vision profile"] == 0.5


def test_prompts_are_cut_to_fewer_tokens_before_0_6_5(plugins: Plugins) -> None:
    def peak(version: str) -> float:
        held = memory(plugins, version, "meta-llama/Llama-3.2-1B", "[policy.batching]\nmax_sequences = 1\n")
        return next(r.bytes for r in held.reserves if r.name == "peak activations")

    assert peak("0.6.5") == 4 * peak("0.6.4")


@pytest.mark.parametrize(
    ("device", "more", "factor"),
    [
        # Widths of 2,880 are 3,072 and 2,944; a half of the experts' is 1,440, which takes 1,536.
        ("nvidia/a100-sxm4-80gb", "", 3072 / 2880 * 2944 / 2880),
        ("nvidia/a100-sxm4-80gb", "[policy.parallelism]\ntensor = 2\n", 3072 / 2880 * 1536 / 1440 / 2),
        ("nvidia/a100-sxm4-80gb", "[policy.parallelism]\ntensor = 2\nexpert = 2\n", 3072 / 2880 * 2944 / 2880 / 2),
        ("nvidia/h100-sxm5-80gb", "", 1.0),
    ],
)
def test_experts_in_mxfp4_are_padded_for_marlin(plugins: Plugins, device: str, more: str, factor: float) -> None:
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "{device}"\n[model]\nid = "openai/gpt-oss-20b"\n'
        f'[engine]\nname = "vllm"\nversion = "0.11.0"\n{more}'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    held = [w for w in composition.memory.weights if w.tensor.role == "routed_experts" and w.format.name == "mxfp4"]
    assert held
    assert [w.params / w.tensor.params for w in held] == pytest.approx([factor] * len(held))
