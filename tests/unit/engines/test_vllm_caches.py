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


def test_gemma_4_drafts_on_the_cache_of_the_target(plugins: Plugins) -> None:
    drafts = '[policy.speculation]\nmethod = "{}"\ntokens = 4\n'
    alone = memory(plugins, "0.22.0", GEMMA)
    assert memory(plugins, "0.22.0", GEMMA, drafts.format("mtp")).pool == alone.pool
    assert memory(plugins, "0.22.0", GEMMA, drafts.format("eagle")).pool != alone.pool


FLASH = "deepseek-ai/DeepSeek-V4-Flash"  # 43 layers: 21 with an entry for 4 tokens and an index, 20 for 128, 2 without
MTP = '[policy.speculation]\nmethod = "mtp"\ntokens = 1\n'


def compressed(plugins: Plugins, version: str, more: str = "", model: str = FLASH, cache: str = "fp8") -> MemoryLedger:
    step = "" if "[policy.batching]" in more else "[policy.batching]\nmax_batched_tokens = 8192\n"
    return memory(plugins, version, model, f'[policy.quantization]\nkv_cache = "{cache}"\n{step}{more}')


def test_caches_of_compressed_attention_share_blocks(plugins: Plugins) -> None:
    pool = compressed(plugins, "0.25.0", MTP).pool
    assert pool is not None
    # Pages of 64 entries of 584 B, 64 index keys of 132 B and 2 entries, each in whole 576 B; states in the place of
    # entries. 44 windows make two groups of 22, which have more layers than the others.
    packed, keys, heavy = 37_440, 8_640, 1_728
    assert pool.block_bytes == (22 * packed + 21 * keys + 20 * heavy,)
    assert pool.asked_bytes == (22 * (packed + keys + heavy),)
    assert pool.groups[0] == PageGroup(256, layer_bytes=21 * packed + 21 * keys + 20 * heavy)
    assert sorted(pool.groups[1:]) == [
        PageGroup(4, 7, 1, layer_bytes=21 * packed + 21 * keys),
        PageGroup(8, 127, 1, layer_bytes=20 * packed),
        PageGroup(64, 127, 1, layer_bytes=22 * packed),
        PageGroup(64, 127, 1, layer_bytes=22 * packed),
    ]
    # A sequence that runs: its pages, and windows of 128, 8 and 128 tokens.
    assert pool.blocks(121_344) == 474 + 2 * 3 + 3 + 17


def test_the_logged_size_of_compressed_attention(plugins: Plugins) -> None:
    # vllm-project/vllm#51041 (0.26.0) logs 7.71 GiB, which are 7,965 blocks, and 150,992 tokens.
    held = compressed(plugins, "0.26.0", f"{MTP}[policy.kv_cache]\nmemory_bytes = {7965 * 1_039_680}\n")
    assert held.capacity_tokens(121_344) == 150_992


def test_what_is_asked_for_compressed_attention(plugins: Plugins) -> None:
    # vllm-project/vllm#44376 (before 0.26) logs 6.66 GiB for 30,000 tokens with steps of 16,384.
    held = compressed(plugins, "0.22.0", "[policy.batching]\nmax_batched_tokens = 16384\n")
    assert held.request_bytes(30_000, 0) == (118 + 2 * 259 + 4099 + 2065) * 1_051_776
    assert held.request_bytes(30_000, 0) / GIB == pytest.approx(6.66, abs=0.005)


def test_where_both_kinds_of_compressed_layers_are_as_many(plugins: Plugins) -> None:
    # 30 and 31 layers of them and 61 windows: groups of 31.
    pool = compressed(plugins, "0.25.0", model="deepseek-ai/DeepSeek-V4-Pro").pool
    assert pool is not None
    assert pool.block_bytes == (31 * 37_440 + 30 * 8_640 + 31 * 1_728,)
    windows = [group.layer_bytes for group in pool.groups if group.tokens == 64]
    assert windows == [31 * 37_440, 30 * 37_440]


def test_stages_of_compressed_attention_have_blocks_of_their_own_layers(plugins: Plugins) -> None:
    pool = compressed(plugins, "0.25.0", "[policy.parallelism]\npipeline = 2\n").pool
    assert pool is not None
    whole = compressed(plugins, "0.25.0").pool
    assert whole is not None
    assert pool.groups == whole.groups
    # The layers of both stages are those of one, but for halves of a group that are rounded up.
    assert sum(pool.block_bytes) == pytest.approx(whole.block_bytes[0], rel=0.02)


def test_entries_in_sixteen_bit_are_rows(plugins: Plugins) -> None:
    pool = compressed(plugins, "0.25.0", cache="bf16").pool
    assert pool is not None
    assert pool.block_bytes == (22 * 64 * 1024 + 21 * 8_640 + 20 * 2 * 1024,)


def test_another_model_beside_compressed_attention_is_not_paged_with_it(plugins: Plugins) -> None:
    other = '[policy.speculation]\nmethod = "draft"\ndraft_model = "meta-llama/Llama-3.2-1B"\ntokens = 3\n'
    assert compressed(plugins, "0.25.0", other).pool is None


@pytest.mark.parametrize("page", [64, 100])
def test_pages_that_compressed_attention_does_not_have(plugins: Plugins, page: int) -> None:
    # A window's page of 64 entries would not fit into one of 16; 100 tokens are no whole number of entries.
    assert compressed(plugins, "0.25.0", f"[policy.kv_cache]\npage_size = {page}\n").pool is None
    assert compressed(plugins, "0.25.0").page_size == 256


@pytest.mark.parametrize(
    ("version", "more", "steps"),
    [
        ("0.25.1", "", 1),
        ("0.26.0", "", 2),
        ("0.26.0", "[policy.parallelism]\npipeline = 4\n", 4),
        ("0.26.0", '[policy.speculation]\nmethod = "ngram"\ntokens = 3\n', 1),
        ("0.26.0", '[policy.speculation]\nmethod = "mtp"\ntokens = 3\n', 2),
    ],
)
def test_windows_hold_the_tokens_of_every_step_under_way(plugins: Plugins, version: str, more: str, steps: int) -> None:
    for model in (GEMMA, FLASH):
        pool = memory(plugins, version, model, f"[policy.batching]\nmax_batched_tokens = 4096\n{more}").pool
        assert pool is not None
        assert pool.step_tokens == steps * 4096


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


A100, H100, B200, PRO = "a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm6-180gb", "rtx-pro-6000-blackwell-server"


EXPANDED = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = {tensor}
[model]
id = "deepseek-ai/DeepSeek-V2-Lite"
max_model_len = 8192
[engine]
name = "vllm"
version = "{version}"
[policy.parallelism]
tensor = {tensor}
[policy.kv_cache]
memory_bytes = "35.42 GiB"
"""


@pytest.mark.parametrize(
    ("version", "tensor", "token_bytes"),
    [
        # vllm-project/vllm#10927 logs 5,373 blocks in 35.42 GiB: 27 layers of 16 heads, keys and values of 256 each.
        ("0.6.4", 1, 27 * 16 * 2 * 256 * 2),
        ("0.6.6", 4, 27 * 4 * 2 * 256 * 2),
        ("0.7.0", 1, 27 * 16 * 2 * 192 * 2),
        # Every rank holds the whole latent.
        ("0.7.1", 1, 27 * 576 * 2),
        ("0.7.1", 4, 27 * 576 * 2),
    ],
)
def test_old_releases_cache_the_heads_of_latent_attention(
    plugins: Plugins, version: str, tensor: int, token_bytes: int
) -> None:
    text = EXPANDED.format(version=version, tensor=tensor)
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    assert composition.memory.bytes_per_token() == token_bytes
    assert composition.memory.capacity_tokens(8192) == int(35.42 * GIB / token_bytes) // 16 * 16
    if version == "0.6.4":
        assert composition.memory.capacity_tokens(8192) == 5373 * 16


@pytest.mark.parametrize(
    ("device", "version", "more", "widths"),
    [
        # Widths of 2,880 are 3,072 and 2,944; a half of the experts' is 1,440, which takes 1,536.
        (A100, "0.11.0", "", [3072, 2944]),
        (A100, "0.11.0", "[policy.parallelism]\ntensor = 2\n", [3072, 1536]),
        (A100, "0.11.0", "[policy.parallelism]\ntensor = 2\nexpert = 2\n", [3072, 1472]),
        # Before Triton's kernels came with the package.
        (H100, "0.11.2", "", [3072, 2944]),
        # All widths to 256s, and as Marlin again.
        (B200, "0.14.1", "", [3072, 3072]),
        (PRO, "0.14.1", "", [3072, 2944]),
    ],
)
def test_experts_in_mxfp4_are_padded_for_the_kernel(
    plugins: Plugins, device: str, version: str, more: str, widths: list[int]
) -> None:
    factor = widths[0] * widths[1] / 2880**2
    assert experts(plugins, device, version, more) == pytest.approx([factor, factor])


def test_scales_of_mxfp4_experts_are_held_twice_on_hopper(plugins: Plugins) -> None:
    # 17 parts of which one is scales. The copy's rows: 2 x 2,880 are 23 x 256, 2,880 are 12 x 256; 90 columns.
    twice = [1 + 5888 / 5760 / 17, 1 + 3072 / 2880 / 17]
    assert experts(plugins, H100, "0.12.0") == pytest.approx(twice)
    assert experts(plugins, H100, "0.24.0") == pytest.approx(twice)
    # A half of the experts' width is 1,472: 2 x 1,472 are 12 x 256 rows, and 46 columns of 32.
    halves = experts(plugins, H100, "0.14.1", "[policy.parallelism]\ntensor = 2\n")
    padded = 1472 / 2880
    assert halves == pytest.approx([padded + 3072 / 5760 / 17, padded + 3072 * 1472 / 2880**2 / 17])


def test_other_experts_in_mxfp4_have_widths_that_fit(plugins: Plugins) -> None:
    for device in (H100, B200):
        held = experts(plugins, device, "0.26.0", "[policy.parallelism]\ntensor = 8\n", FLASH)
        assert held == pytest.approx([1 / 8, 1 / 8])


def experts(
    plugins: Plugins, device: str, version: str, more: str = "", model: str = "openai/gpt-oss-20b"
) -> list[float]:
    """What a device holds of the up and the down side of MXFP4 experts, in parameters of the model."""
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "nvidia/{device}"\n[model]\nid = "{model}"\n'
        f'[engine]\nname = "vllm"\nversion = "{version}"\n{more}'
    )
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    held = [w for w in composition.memory.weights if w.tensor.role == "routed_experts" and w.format.name == "mxfp4"]
    assert ["up" in w.tensor.name for w in held] == [True, False]
    return [w.params / w.tensor.params for w in held]


@pytest.mark.parametrize(
    ("version", "each"),
    [
        # Older core: 16-bit logits before 0.6; then the logits in fp32 beside them.
        ("0.5.4", 30),
        ("0.6.4", 38),
        # FlashInfer where it is installed, then always sorted, then kernels in Triton.
        ("0.11.0", 0),
        ("0.11.1", 38),
        ("0.16.0", 38),
        ("0.17.0", 0),
        ("", 0),
    ],
)
def test_logits_that_the_profile_run_sorts(plugins: Plugins, version: str, each: int) -> None:
    def peak(more: str) -> float:
        held = memory(
            plugins, version, "meta-llama/Llama-3.1-8B", f"[policy.batching]\nmax_batched_tokens = 2048\n{more}"
        )
        return next(r.bytes for r in held.reserves if r.name == "peak activations")

    hidden, vocabulary, activations = 4096, 128_256, 226_492_416
    sampled = 2048 * hidden * 2 + 256 * vocabulary * each
    assert peak("max_sequences = 256\n") == (sampled if each else activations)
    # No more rows than the step has tokens; one takes less than the activations of a step.
    assert peak("max_sequences = 4096\n") == 2048 * (hidden * 2 + vocabulary * max(each, 4))
    assert peak("max_sequences = 1\n") == activations


def test_the_older_core_profiles_fewer_sequences_with_images(plugins: Plugins) -> None:
    def peak(version: str) -> float:
        step = "[policy.batching]\nmax_batched_tokens = 2048\nmax_sequences = 256\n"
        held = memory(plugins, version, "Qwen/Qwen2.5-VL-7B-Instruct", step)
        return next(r.bytes for r in held.reserves if r.name == "peak activations")

    assert peak("0.7.3") == peak("0.17.0") < peak("0.12.0")


def awq_peak(plugins: Plugins, version: str, model: str, devices: int = 1, weights: str = "awq") -> float:
    """Elements of a token at the peak of a profile run, where nothing is sorted."""
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "nvidia/a100-sxm4-80gb"\ndevices = {devices}\n'
        f'[model]\nid = "{model}"\nmax_model_len = 4096\n[engine]\nname = "vllm"\nversion = "{version}"\n'
        f"[policy.batching]\nmax_batched_tokens = 4096\nmax_sequences = 1\n"
    )
    if weights:
        text += f'[policy.quantization]\nweights = "{weights}"\n'
    composition = Review(parse("a.toml", text, plugins.policies), plugins, Path()).composition
    assert composition is not None
    return next(r.bytes for r in composition.memory.reserves if r.name == "peak activations") / 4096 / 2


LLAMA = "meta-llama/Llama-3.1-8B"  # 4,096 wide, MLP 14,336
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"  # the same, eight experts, two of which a token chooses


@pytest.mark.parametrize(
    ("version", "model", "devices", "elements"),
    [
        # Gate and up in one product: nine outputs beside three tensors of the residual width.
        ("0.2.7", LLAMA, 1, 3 * 4096 + 9 * 2 * 14_336),
        ("0.2.2", LLAMA, 2, 3 * 4096 + 9 * 14_336),
        # The down side's output is not split: wider than an eighth of the up side's, which is still there.
        ("0.2.7", LLAMA, 8, 3 * 4096 + 3 * 14_336 / 8 + 9 * 4096),
        # Experts are whole, and gate and up come in turn.
        ("0.2.7", MIXTRAL, 1, 5 * 4096 + 14_336 + 9 * 14_336),
        ("0.2.7", MIXTRAL, 2, 5 * 4096 + 14_336 + 9 * 14_336),
        # From 0.3 weights are widened for many tokens.
        ("0.3.0", LLAMA, 1, 3 * 4096 + 3 * 14_336),
        ("0.3.0", MIXTRAL, 1, 3 * 4096 + 2 * 3 * 14_336),
    ],
)
def test_the_parts_of_awq_s_products(plugins: Plugins, version: str, model: str, devices: int, elements: float) -> None:
    assert awq_peak(plugins, version, model, devices) == elements


def test_weights_are_awq_s_by_name(plugins: Plugins) -> None:
    plain = 3 * 4096 + 3 * 14_336
    parts = 3 * 4096 + 9 * 2 * 14_336
    named = "acme/Llama-3.1-8B-{}"
    assert awq_peak(plugins, "0.2.7", named.format("AWQ"), weights="") == parts
    assert awq_peak(plugins, "0.2.7", named.format("GPTQ"), weights="") == plain
    assert awq_peak(plugins, "0.2.7", LLAMA, weights="int4-g128") == plain
    # Of a checkpoint that is called so, but served in 16 bits, nothing is multiplied that way.
    assert awq_peak(plugins, "0.2.7", named.format("AWQ"), weights="bf16") == plain
