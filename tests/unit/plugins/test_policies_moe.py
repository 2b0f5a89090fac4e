"""Expert skew and redundant experts: what the busiest rank multiplies, reads, receives and holds."""

from __future__ import annotations

from math import comb

import pytest

from servelint.architecture import Attention, Experts
from servelint.composition import Composition
from servelint.cost import OpCost
from servelint.manager import Plugins
from servelint.shapes import StepShape, decode, prefill
from servelint.testing import compose, samples

LOCAL, EXPERTS, TOP_K, RANKS = 32, 256, 8, 8


def found(
    policy: str, plugins: Plugins, parallelism: str = "tensor = 8\nattention_data = 8\nexpert = 8\n"
) -> Composition:
    table = f"[policy.moe]\n{policy}" if policy else ""
    text = (
        '[hardware]\naccelerator = "nvidia/h200-sxm5-141gb"\n[model]\nid = "deepseek-ai/DeepSeek-V3"\n'
        f"[policy.parallelism]\n{parallelism}{table}"
    )
    return compose(text, plugins)


def op(composition: Composition, shape: StepShape, name: str) -> OpCost:
    return next(r for r in composition.pricer.breakdown(shape) if r.name.endswith(name))


@pytest.mark.parametrize(
    ("policy", "parallelism"),
    [
        ("skew = 1.0\n", "tensor = 8\nexpert = 8\n"),
        ("redundant_experts = 0\nload_metrics = true\n", "tensor = 8\nexpert = 8\n"),
        ("skew = 3.0\n", "tensor = 8\n"),
        ("skew = 1.0\nredundant_experts = 0\n", "tensor = 8\n"),
    ],
)
def test_identity_settings_change_nothing(policy: str, parallelism: str, plugins: Plugins) -> None:
    """Without expert parallelism every device holds a slice of every expert: there is no busiest rank."""
    alone, other = found("", plugins, parallelism), found(policy, plugins, parallelism)
    assert other.graph.ops == alone.graph.ops
    assert other.memory.weights_bytes == alone.memory.weights_bytes


def test_the_busiest_rank_multiplies_skew_times_the_mean(plugins: Plugins) -> None:
    shape = prefill(4096.0, 0.0, 8.0)
    even, skewed = (op(found(p, plugins), shape, ".experts") for p in ("", "skew = 1.5\n"))
    # The shared expert, split over the devices, has no skew: 2 x 3 x 7168 x 2048 FLOP a token, 58 layers.
    shared = 2 * 7168 * 2048 / 8 * 8 * 4096 * 58
    assert skewed.flops - shared == pytest.approx(1.5 * (even.flops - shared), rel=1e-9)


def test_sums_of_a_layer_have_no_busiest_rank(plugins: Plugins) -> None:
    """Ranks that hold the same tokens add up what each of their experts gave; nothing travels to the busiest."""
    even, skewed = (found(p, plugins, "tensor = 8\nexpert = 8\n") for p in ("", "skew = 2.0\n"))
    shape = decode(64.0, 1000.0)
    sums = [op(c, shape, ".experts.collective").link_bytes for c in (even, skewed)]
    assert sums[0] == sums[1] > 0
    assert op(skewed, shape, ".experts").flops > op(even, shape, ".experts").flops


def test_no_rank_gets_more_than_every_token(plugins: Plugins) -> None:
    shape = prefill(4096.0, 0.0, 8.0)
    most, more = (op(found(p, plugins), shape, ".experts").flops for p in ("skew = 8.0\n", "skew = 900.0\n"))
    assert most == more


def test_the_busiest_rank_reads_more_of_its_experts_at_most_all(plugins: Plugins) -> None:
    layers, expert = 58, 3 * 7168 * 2048 * (1 + 32 / 8 / 128**2)

    def read(policy: str, batch: float) -> float:
        return float(op(found(policy, plugins), decode(batch, 100.0), ".experts").hbm_bytes)

    shared = read("", 8.0) - LOCAL * expert * layers * (1 - (1 - TOP_K / EXPERTS) ** 8)
    assert read("skew = 1.5\n", 8.0) - shared == pytest.approx(1.5 * (read("", 8.0) - shared), rel=1e-9)
    assert read("skew = 1.5\n", 4096.0) - shared == pytest.approx(LOCAL * expert * layers, rel=1e-9)


def test_the_busiest_rank_receives_at_most_every_token_once(plugins: Plugins) -> None:
    reached = 1 - comb(EXPERTS - LOCAL, TOP_K) / comb(EXPERTS, TOP_K)
    shape = decode(256.0, 1000.0)
    even, skewed, hot = (
        op(found(p, plugins), shape, ".experts.all_to_all").link_bytes for p in ("", "skew = 1.2\n", "skew = 5.0\n")
    )
    assert skewed == pytest.approx(1.2 * even, rel=1e-9)
    assert hot == pytest.approx(even / reached, rel=1e-9)


def test_skew_only_ever_slows_a_step(plugins: Plugins) -> None:
    for shape in (decode(8.0, 1000.0), decode(512.0, 1000.0), prefill(2048.0, 0.0, 8.0)):
        times = [float(found(f"skew = {s}\n", plugins).pricer.estimate(shape)) for s in (1.0, 1.3, 2.0, 4.0)]
        assert times == sorted(times)
        assert times[0] < times[-1]


@pytest.mark.parametrize(("copies", "slots"), [(32, 36), (8, 33), (1, 33)])
def test_redundant_experts_take_memory_in_whole_slots(copies: int, slots: int, plugins: Plugins) -> None:
    def routed(policy: str) -> float:
        ledger = found(policy, plugins).memory
        return sum(w.bytes_on(0) for w in ledger.weights if w.tensor.role == "routed_experts")

    assert routed(f"redundant_experts = {copies}\n") / routed("") == pytest.approx(slots / LOCAL, rel=1e-12)
    # Of shared experts and routers there is one as before.
    others = [
        [(w.name, w.params) for w in found(p, plugins).memory.weights if w.tensor.role != "routed_experts"]
        for p in ("", f"redundant_experts = {copies}\n")
    ]
    assert others[0] == others[1]


def test_copies_are_read_in_the_estimate_and_not_in_the_bound(plugins: Plugins) -> None:
    alone, copied = found("", plugins), found("redundant_experts = 32\n", plugins)
    shape = decode(256.0, 1000.0)
    assert copied.pricer.bound(shape) == alone.pricer.bound(shape)
    grown = op(copied, shape, ".experts").activation_bytes - op(alone, shape, ".experts").activation_bytes
    expert = 3 * 7168 * 2048 * (1 + 32 / 8 / 128**2)
    reached = 1 - (1 - TOP_K / EXPERTS) ** 256
    assert grown == pytest.approx(58 * (36 - LOCAL) * expert * reached, rel=1e-9)


@pytest.mark.parametrize(("copies", "slots"), [(4, 8), (5, 9), (12, 9)])
def test_copies_fill_the_slots_that_experts_leave(copies: int, slots: int, plugins: Plugins) -> None:
    """Sixty experts on eight ranks leave four of 64 slots."""
    blocks = (
        samples.attention_block("attention", range(2), 256, Attention(8, 8, 32, 32)),
        samples.expert_block("moe", range(2), 256, 128, Experts(60, 4)),
    )
    model = samples.model(256, 1000, blocks)
    text = '[hardware]\naccelerator = "any"\n[model]\nid = "any"\n[policy.parallelism]\ntensor = 8\nexpert = 8\n'
    alone, copied = (
        compose(text + more, plugins, architecture=model, accelerator=samples.accelerator())
        for more in ("", f"[policy.moe]\nredundant_experts = {copies}\n")
    )
    held = [sum(w.params for w in c.memory.weights if w.name == "moe.experts") for c in (alone, copied)]
    assert held[1] / held[0] == pytest.approx(slots / 8)
    assert (copied.graph.ops == alone.graph.ops) == (slots == 8)
