"""The memory ledger: what stands on a device, what is left, how many tokens and sequences that holds."""

from __future__ import annotations

import math

import pytest
from attrs import evolve

from servelint.architecture import Attention, Experts, Indexer, LatentAttention, LinearState, Tensor
from servelint.formats import Format
from servelint.layout import Formats
from servelint.lineage import Lineage
from servelint.manager import Plugins
from servelint.memory import Cache, MemoryLedger, PageGroup, PagePool, Reserve, State, Weights, lay
from servelint.testing import compose, samples

NOTE = Lineage("given")
BF16, FP8 = Format("bf16", 16), Format("fp8", 8)
TENSOR = Tensor("w", "mlp", 100, "width")


def weights(params: float, repeats: tuple[int, ...] = (1,)) -> Weights:
    return Weights("b.w", "b", TENSOR, params, BF16, repeats, NOTE)


def cache(
    elements: float, repeats: tuple[int, ...] = (1,), held: int = 0, shards: int = 1, extra: float = 0.0
) -> Cache:
    return Cache("b", elements, BF16, repeats, "kv_heads", NOTE, extra, held, shards)


def ledger(
    *weights: Weights, caches: tuple[Cache, ...] = (), states: tuple[State, ...] = (), **more: object
) -> MemoryLedger:
    return MemoryLedger(weights, caches, states, 1000.0, 900.0, NOTE, **more)  # type: ignore[arg-type]


def test_what_is_left_is_the_budget_less_weights_and_reserves() -> None:
    held = ledger(weights(100), weights(50)).with_reserve(Reserve("graphs", 60.0, NOTE))
    assert held.fit(0) == (900.0, 300.0, 60.0)
    assert held.fit(0).left == 540.0
    assert held.cache_left(0) == 540.0
    assert ledger(weights(1000)).fit(0).left == -1100.0
    assert ledger(weights(1000)).cache_left(0) == 0.0
    assert evolve(held, cache_bytes=77.0).cache_left(0) == 77.0


@pytest.mark.parametrize(("params", "room"), [(449, True), (450, False), (451, False)])
def test_a_ledger_has_room_where_something_is_left_on_every_stage(params: float, room: bool) -> None:
    assert ledger(weights(params, (0, 1)), stages=2).has_room is room
    assert evolve(ledger(weights(params)), cache_bytes=77.0).has_room is room


@pytest.mark.parametrize(("reserves", "taken"), [(60.0, 0.0), (100.0, 0.0), (160.0, 60.0)])
def test_reserves_stand_beside_a_static_budget_as_far_as_there_is_room(reserves: float, taken: float) -> None:
    held = ledger(weights(100), budget_kind="static").with_reserve(Reserve("graphs", reserves, NOTE))
    # 1,000 bytes are visible and 900 given away.
    assert held.fit(0) == (900.0, 200.0, taken)


def test_what_is_left_out_of_a_cache_takes_nothing() -> None:
    assert Cache("b", 8.0, BF16, (1,), "kv_heads", NOTE).bytes_per_token == 16.0
    small = ledger(caches=(Cache("b", 0.25, BF16, (1,), "kv_heads", NOTE),))
    # Half a byte a token.
    assert small.resident_sequences(1) == small.capacity_tokens(1) == 1800


def test_stages_that_hold_the_same_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stages 2 to 1999 are alike; of equal ones the first is named.
    repeats = (1, 3, *[2] * 1998)
    staged = ledger(weights(100, repeats), caches=(cache(1.0, repeats),), stages=2000)
    looked: list[int] = []
    fit = MemoryLedger.fit
    monkeypatch.setattr(MemoryLedger, "fit", lambda held, stage: looked.append(stage) or fit(held, stage))
    assert staged.tightest == 1
    assert staged.weights_bytes == 600.0
    assert staged.resident_sequences(10) == min(700 // 20, 300 // 60, 500 // 40)
    assert staged.capacity_tokens(10) == 50
    assert set(looked) == {0, 1, 2}
    assert evolve(staged, stages=1).tightest == 0


def test_the_tightest_stage_decides() -> None:
    staged = ledger(weights(100, (1, 3)), caches=(cache(1.0, (4, 1)),), stages=2)
    assert staged.tightest == 1
    assert staged.weights_bytes == 600.0
    assert [staged.sequence_bytes(10, s) for s in (0, 1)] == [80.0, 20.0]
    assert staged.bytes_per_token() == 8.0
    assert staged.bytes_per_token(1) == 2.0
    # 700 B for 80 B a sequence, 300 B for 20 B: the first stage decides here.
    assert staged.resident_sequences(10) == 8
    assert staged.capacity_tokens(10) == 87


def test_sequences_take_whole_pages() -> None:
    paged = ledger(caches=(cache(1.0),), page_size=16)
    assert [paged.paged(n) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert paged.sequence_bytes(17, 0) == 64.0
    assert paged.resident_sequences(17) == 14
    assert paged.capacity_tokens(17) == 448
    assert paged.capacity_tokens(17) % 16 == 0


def test_windows_stop_growing_and_state_does_not_grow() -> None:
    hybrid = ledger(
        caches=(cache(1.0), cache(2.0, held=10, extra=1.0)), states=(State("s", 7.0, (2,), NOTE),), page_size=1
    )
    assert [hybrid.sequence_bytes(n, 0) for n in (0, 10, 1000)] == [14.0, 14 + 20 + 50, 14 + 2000 + 50]
    assert hybrid.bytes_per_token() == 2.0 + 5.0


def test_shards_and_ranks() -> None:
    assert cache(8.0, shards=4, extra=8.0).bytes_per_token == 6.0
    ranked = ledger(caches=(cache(1.0),), ranks=3)
    assert ranked.resident_per_rank(10) == 45
    assert ranked.resident_sequences(10) == 135


def test_an_exact_fit_fits() -> None:
    third = ledger(caches=(cache(0.1),))
    assert third.resident_sequences(900 / 0.2 / 3) == 3


def test_nothing_to_hold_is_no_limit() -> None:
    assert math.isinf(ledger().resident_per_rank(100))
    assert ledger().resident_sequences(100) == 10**9
    assert ledger().capacity_tokens(100) == 10**12


def test_mapping() -> None:
    whole = ledger(weights(10), caches=(cache(1.0),), states=(State("s", 4.0, (1,), NOTE),))
    changed = whole.mapped(
        weights=lambda w: evolve(w, format=FP8),
        caches=lambda c: evolve(c, elements=3.0),
        states=lambda s: evolve(s, bytes=1.0),
    )
    assert (changed.weights_bytes, changed.sequence_bytes(1, 0)) == (10.0, 7.0)
    assert whole.mapped() == whole


def test_a_laid_ledger_holds_the_model() -> None:
    layers = range(4)
    window = Attention(8, 2, 64, 64, window=256)
    latent = LatentAttention(8, 128, 32, 64, 64, Indexer(4, 128, 2048, 132.0))
    blocks = (
        samples.attention_block("swa", (0, 1), 512, window),
        samples.latent_block("mla", (2,), 512, latent),
        samples.state_block("ssm", (3,), 512, 1024, LinearState(1000, 50)),
        samples.expert_block("moe", layers, 512, 256, Experts(8, 2), 128),
    )
    model = samples.model(512, 1000, blocks, positions=64)
    vision = Tensor("vision", "vision", 12_345, "replicated")
    drafts = Tensor("mtp", "mtp", 999, "replicated")
    model = evolve(model, extras=(vision, drafts))
    held = lay(model, Formats(BF16, FP8, FP8, ("routed_experts",)), 1e9, NOTE)
    routed = 4 * 3 * 512 * 256 * 8
    # Towers are loaded with the model, heads for drafting only where they are used.
    assert held.weights_bytes == 2 * (model.params_total - 999 - routed) + routed
    assert {w.name for w in held.weights} >= {
        "embed_tokens",
        "positions",
        "lm_head",
        "final_norm",
        "vision",
        "moe.router",
    }
    assert held.sequence_bytes(10_000, 0) == 2 * 256 * 256 + 10_000 * (160 + 132) + 1000 * 4 + 50 * 2
    assert (held.visible, held.budget) == (1e9, 1e9)


def test_a_tied_table_is_held_once() -> None:
    block = samples.dense_block("mlp", (0,), 64, 64)
    tied, untied = (samples.model(64, 1000, (block,), tied=t) for t in (True, False))
    formats = Formats(BF16, BF16)
    assert lay(untied, formats, 1, NOTE).weights_bytes - lay(tied, formats, 1, NOTE).weights_bytes == 2 * 64 * 1000


@pytest.mark.parametrize(
    ("model", "context", "tokens"),
    [("meta-llama/Llama-3.1-8B", 8192, 131_072.0), ("google/gemma-3-27b-it", 131_072, None)],
)
def test_capacity_is_what_fits(plugins: Plugins, model: str, context: int, tokens: float | None) -> None:
    spec = f'[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "{model}"\n'
    held = compose(spec, plugins).memory
    each = held.sequence_bytes(context, 0)
    if tokens is not None:
        assert each == tokens * context
    left = held.cache_left(0)
    assert held.resident_sequences(context) == left // each
    assert left / each * context - held.page_size < held.capacity_tokens(context) <= left / each * context


def pool(*groups: PageGroup, size: tuple[float, ...] = (10.0,), step: int = 1, alike: bool = False) -> PagePool:
    return PagePool(size, groups, step, alike)


def test_a_group_takes_blocks_for_what_it_keeps() -> None:
    grows, window, state = PageGroup(16), PageGroup(16, window=127, extra=1), PageGroup(784, extra=2, grows=False)
    assert [grows.blocks(n, 8) for n in (1, 16, 17)] == [1, 1, 2]
    # Never more than the context, never more than window and step, and one block where it begins inside of one.
    assert [window.blocks(n, 1024) for n in (16, 1000, 10**6)] == [2, 64, 73]
    assert [state.blocks(n, 1024) for n in (1, 10**6)] == [2, 2]


def test_a_pool_decides_what_a_sequence_takes_and_what_fits() -> None:
    # 900 B hold 90 blocks; full layers take one of 16 tokens each, windows two and at start three.
    shared = ledger(
        caches=(cache(1.0),),
        page_size=16,
        pool=pool(PageGroup(16), PageGroup(16, window=15, extra=1, copies=2), step=17),
    )
    assert shared.sequence_bytes(160, 0) == 10.0 * (10 + 2 * 2)
    assert shared.request_bytes(160, 0) == 10.0 * (10 + 2 * 3)
    assert shared.resident_per_rank(160) == 90 // 14
    assert shared.capacity_tokens(160) == int(90 / 16 * 160)
    assert evolve(shared, cache_bytes=159.0).resident_per_rank(160) == 1
    alike = evolve(shared, pool=evolve(shared.pool, groups_share_blocks=True))
    assert alike.capacity_tokens(160) == 90 // 3 * 16


def test_the_fullest_stage_of_a_pool_decides() -> None:
    staged = ledger(
        weights(100, (1, 1)),
        caches=(cache(1.0, (2, 1)),),
        stages=2,
        pool=pool(PageGroup(1, window=1), PageGroup(1), size=(20.0, 10.0)),
    )
    # Nine blocks of the full group, two of the window's: the newest token comes to those that are kept.
    assert [staged.sequence_bytes(9, s) for s in (0, 1)] == [220.0, 110.0]
    assert staged.capacity_tokens(9) == int(35 / 11 * 9)


def test_an_engine_may_ask_for_more_and_report_less_than_the_blocks() -> None:
    # 900 B hold 90 blocks of 10. The window's layers fill 5 of the 8 B that those of the first group do.
    groups = PageGroup(16, layer_bytes=8.0), PageGroup(16, window=15, extra=1, copies=2, layer_bytes=5.0)
    shared = ledger(caches=(cache(1.0),), page_size=16, pool=evolve(pool(*groups, step=17), asked_bytes=(12.0,)))
    assert shared.sequence_bytes(160, 0) == 10.0 * (10 + 2 * 2)
    assert shared.request_bytes(160, 0) == 12.0 * (10 + 2 * 3)
    # 10 blocks and 6 of 5 / 8: 14 in whole ones.
    assert shared.pool is not None
    assert shared.pool.reported_blocks(160) == 14
    assert shared.capacity_tokens(160) == int(90 / 14 * 160)


def test_an_engine_may_ask_for_all_stages_at_once() -> None:
    staged = ledger(caches=(cache(1.0, (4, 2)),), stages=2)
    assert [staged.request_bytes(10, s) for s in (0, 1)] == [80.0, 40.0]
    asking = evolve(staged, asks_for_all_stages=True)
    assert [asking.request_bytes(10, s) for s in (0, 1)] == [120.0, 120.0]
    assert asking.sequence_bytes(10, 0) == 80.0
    pooled = evolve(asking, pool=pool(PageGroup(1), size=(8.0, 4.0)))
    assert pooled.request_bytes(10, 1) == 120.0


def test_a_start_is_granted_by_what_is_asked_for() -> None:
    # 540 bytes for blocks of 10: a window of 10 tokens with a step of 30 besides, where a running sequence takes one.
    group = PageGroup(1, window=10)
    held = evolve(ledger(weights(180)), pool=PagePool((10.0,), (group,), step_tokens=50))
    assert held.resident_per_rank(1000) >= 1
    # 54 blocks are nine tenths of what it counts for 1,000 tokens.
    assert held.capacity_tokens(1000) == 900
    assert not held.admits(1000)
    assert held.longest_request(1000) == 54
    assert held.admits(54)
    assert held.longest_request(20) == 20
    staged = ledger(weights(350, (1, 1)), caches=(cache(1.0, (4, 2)),), stages=2)
    assert staged.longest_request(1000) == 25
    assert evolve(staged, asks_for_all_stages=True).longest_request(1000) == 16


def test_a_cache_holds_no_more_tokens_than_its_cap() -> None:
    held = ledger(caches=(cache(1.0, (3,)),))
    assert held.capacity_tokens(10) == 150
    assert evolve(held, token_cap=40).capacity_tokens(10) == 40
    assert evolve(held, token_cap=40).cache_left(0) == 240.0
    assert evolve(held, token_cap=400).capacity_tokens(10) == 150
    assert evolve(held, token_cap=40, cache_bytes=60.0).capacity_tokens(10) == 10
    # What is not counted in tokens has no cap.
    state = State("s", 5.0, (1,), NOTE)
    assert evolve(held, states=(state,), token_cap=40).cache_left(0) == 900.0


def test_a_bare_ledger_has_no_reserves() -> None:
    held = ledger(weights(100)).with_reserve(Reserve("runtime", 60.0, NOTE))
    assert held.fit(0).left + 60.0 == held.bare.fit(0).left
