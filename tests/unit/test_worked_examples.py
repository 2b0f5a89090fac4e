"""The worked examples of the documentation, each with the figure that has to come out.

Bounds here are plain rooflines: without activations and without the L2 credit, with the KV cache in 16 bit
unless said otherwise.
"""

from __future__ import annotations

import pytest

from servelint.cost import Pricer
from servelint.graph import Op
from servelint.manager import Plugins
from servelint.resources import CacheIO, Demand, Matmul, StateIO, WeightRead
from servelint.shapes import StepShape, decode, distinct_expert_share, prefill
from servelint.testing import compose

H100 = "nvidia/h100-sxm5-80gb"
H200 = "nvidia/h200-sxm5-141gb"
LLAMA_8B = "meta-llama/Llama-3.1-8B"
LLAMA_70B = "meta-llama/Llama-3.1-70B"
FP8_WEIGHTS = '[policy.quantization]\nweights = "fp8"\n'
FP8 = '[policy.quantization]\nweights = "fp8"\nkv_cache = "fp8"\n'


def spec(accelerator: str, model: str, policies: str = "", devices: int = 1) -> str:
    return f'[hardware]\naccelerator = "{accelerator}"\ndevices = {devices}\n[model]\nid = "{model}"\n{policies}'


def tensor_parallel(degree: int) -> str:
    return f"[policy.parallelism]\ntensor = {degree}\n"


def bound_s(text: str, plugins: Plugins, shape: StepShape) -> float:
    composition = compose(text, plugins)
    return float(Pricer(composition.graph, composition.setup.topology, l2_credit=False).bound(shape))


def read_bytes(demand: Demand) -> float:
    assert isinstance(demand, WeightRead | CacheIO)
    assert demand.format is not None
    return demand.coefficient * demand.format.bytes_per_element


def balance(plugins: Plugins, precision: str) -> float:
    h100 = plugins.accelerators.get(H100)
    return h100.dense_flops[precision] / h100.memory_bandwidth_bytes_per_s


def test_machine_balance_of_h100(plugins: Plugins) -> None:
    assert balance(plugins, "bf16") == pytest.approx(989.4e12 / 3.35e12, rel=1e-12)
    assert balance(plugins, "fp8") == pytest.approx(1978.9e12 / 3.35e12, rel=1e-12)
    assert [round(balance(plugins, p)) for p in ("bf16", "fp8")] == [295, 591]


def test_weight_only_single_stream_ceiling(plugins: Plugins) -> None:
    """70 GB of FP8 weights over the bandwidth of one H100: 47.9 tokens a second."""
    h100 = plugins.accelerators.get(H100)
    assert h100.memory_bandwidth_bytes_per_s / 70e9 == pytest.approx(47.9, abs=0.05)


def matrices(text: str, plugins: Plugins, name: str) -> tuple[Op, float, float]:
    """An op, the FLOPs of one token in its matrices, and the bytes they are read in."""
    op = compose(text, plugins).graph.op(name)
    flops = sum(d.coefficient for d in op.demands if isinstance(d, Matmul))
    read = sum(read_bytes(d) for d in op.demands if isinstance(d, WeightRead))
    return op, flops, read


def test_single_stream_is_295_times_below_balance(plugins: Plugins) -> None:
    _, flops, read = matrices(spec(H100, LLAMA_70B, FP8_WEIGHTS), plugins, "mlp.down_proj")
    assert flops / read == pytest.approx(2.0, rel=1e-12)
    assert balance(plugins, "fp8") / 2.0 == pytest.approx(295, abs=0.5)


@pytest.mark.parametrize(("policies", "precision"), [("", "bf16"), (FP8_WEIGHTS, "fp8")])
def test_weight_only_crossover_batch(plugins: Plugins, policies: str, precision: str) -> None:
    """From 295 sequences on, multiplying takes as long as reading, in BF16 and in native FP8."""
    op, flops, read = matrices(spec(H100, LLAMA_70B, policies), plugins, "mlp.down_proj")
    assert {d.precision for d in op.demands if isinstance(d, Matmul)} == {precision}
    assert balance(plugins, precision) / (flops / read) == pytest.approx(295, abs=0.5)


def cached_bytes(plugins: Plugins, batch: float, context: float) -> float:
    return sum(
        read_bytes(demand) * demand.feature.count(decode(batch, context)) * op.count
        for op in compose(spec(H100, LLAMA_70B), plugins).graph.ops
        for demand in op.demands
        if isinstance(demand, CacheIO) and not demand.write
    )


def test_kv_of_llama_70b(plugins: Plugins) -> None:
    composition = compose(spec(H100, LLAMA_70B), plugins)
    assert composition.memory.bytes_per_token() == 327_680
    assert composition.memory.sequence_bytes(131_072, 0) == pytest.approx(42.9e9, abs=0.05e9)
    assert composition.setup.architecture.kv_bytes_per_sequence(131_072) == 327_680 * 131_072
    assert cached_bytes(plugins, 1.0, 131_072.0) == 327_680 * 131_072


def test_kv_of_a_full_batch(plugins: Plugins) -> None:
    assert cached_bytes(plugins, 32.0, 16_384.0) == pytest.approx(171.8e9, abs=0.05e9)


def test_context_growth_multiplies_kv_traffic(plugins: Plugins) -> None:
    assert cached_bytes(plugins, 8.0, 65_536.0) / cached_bytes(plugins, 8.0, 4_096.0) == 16


def test_kv_of_deepseek_v3(plugins: Plugins) -> None:
    composition = compose(spec(H200, "deepseek-ai/DeepSeek-V3", tensor_parallel(8), 8), plugins)
    assert composition.memory.bytes_per_token() == 61 * 576 * 2 == 70_272


def test_naive_attention_scores(plugins: Plugins) -> None:
    """One head, one layer, a prompt of 8192 tokens: 134.2 MB of scores."""
    composition = compose(spec(H100, LLAMA_8B, '[policy.attention]\nkernel = "naive"\n'), plugins)
    core = composition.graph.op("full_attention.core")
    heads = composition.setup.architecture.blocks[0].mixer.q_heads  # type: ignore[union-attr]
    (scores,) = (d for d in core.demands if isinstance(d, StateIO))
    one_head = scores.coefficient * scores.feature.count(prefill(8192.0)) / heads
    assert one_head == 8192 * 8192 * 2 == pytest.approx(134.2e6, abs=0.05e6)


def test_h200_gains_its_bandwidth_and_no_more(plugins: Plugins) -> None:
    h100, h200 = (bound_s(spec(name, LLAMA_8B), plugins, decode(16.0, 4096.0)) for name in (H100, H200))
    assert h100 / h200 == pytest.approx(4.8 / 3.35, rel=1e-9)
    assert h100 / h200 <= 1.433


ANCHORS = {
    "8B": (spec(H100, LLAMA_8B), 64.0, 4096.0, 14.74e-3, 0.005e-3),
    "70B-TP4": (spec(H100, LLAMA_70B, FP8 + tensor_parallel(4), 4), 64.0, 4096.0, 8.472e-3, 0.0005e-3),
    "DeepSeek": (spec(H200, "deepseek-ai/DeepSeek-V3", tensor_parallel(8), 8), 64.0, 4096.0, 19.30e-3, 0.005e-3),
    "gpt-oss": (spec(H100, "openai/gpt-oss-120b"), 64.0, 8192.0, 22.61e-3, 0.005e-3),
    "Gemma-3": (spec(H100, "google/gemma-3-27b-it"), 4.0, 131_072.0, 29.47e-3, 0.005e-3),
}


@pytest.mark.parametrize("anchor", ANCHORS)
def test_anchor_of_the_bound(plugins: Plugins, anchor: str) -> None:
    text, batch, context, seconds, last_digit = ANCHORS[anchor]
    assert bound_s(text, plugins, decode(batch, context)) == pytest.approx(seconds, abs=last_digit)


def test_experts_that_a_batch_reaches() -> None:
    """64 tokens, top 8 of 256: 222.4 experts in expectation, 8 at the very least."""
    reached = distinct_expert_share(256, 8)
    assert 256 * reached.count(decode(64.0, 4096.0)) == pytest.approx(222.4, abs=0.05)
    assert 256 * reached.floor(decode(64.0, 4096.0)) == 8


def test_tokens_of_a_verify_step(plugins: Plugins) -> None:
    """70B with an 8B draft, four drafts, acceptance 0.7."""
    policies = f'[policy.speculation]\nmethod = "draft"\ntokens = 4\nacceptance = 0.7\ndraft_model = "{LLAMA_8B}"\n'
    scheduler = compose(spec(H100, LLAMA_70B, policies + tensor_parallel(4), 4), plugins).scheduler
    assert scheduler.tokens_per_step == pytest.approx(2.7731, abs=1e-12)
    assert scheduler.verify_tokens == 5
