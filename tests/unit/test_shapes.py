"""Features of step shapes, counted one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelint.shapes import (
    ONCE,
    OUTPUTS,
    SEQUENCES,
    TOKENS,
    StepShape,
    attended_pairs,
    cached_tokens,
    decode,
    distinct_expert_share,
    latent_attention,
    prefill,
    score_elements,
)

MIXED = StepShape(3.0, 100.0, 2.0, 2.0, 50.0, 10.0, 0.5)


def test_tokens_sequences_and_output_rows() -> None:
    assert TOKENS.count(MIXED) == 3 * 2 + 2 * 10
    assert SEQUENCES.count(MIXED) == 5
    # A prompt yields a row only when it is finished.
    assert OUTPUTS.count(MIXED) == 3 * 2 + 2 * 0.5
    assert ONCE.count(MIXED) == 1.0
    assert cached_tokens().count(MIXED) == 3 * 100 + 2 * 50
    assert score_elements().count(MIXED) == 3 * 2 * 102 + 2 * 10 * 60


@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 50), st.sampled_from(("full", "window", "chunk")))
@settings(max_examples=300, deadline=None)
def test_pairs_are_those_of_the_causal_mask(past: int, new: int, span: int, kind: str) -> None:
    span += 1
    window, chunk = (span if kind == "window" else 0), (span if kind == "chunk" else 0)
    pairs = 0
    for i in range(past, past + new):
        first = max(0, i - window + 1) if window else i - i % chunk if chunk else 0
        pairs += i - first + 1
    feature = attended_pairs(window, chunk)
    assert feature.count(decode(1.0, float(past), float(new))) == pairs
    assert feature.count(prefill(float(new), float(past), 3.0)) == 3 * pairs


def test_cached_tokens_stop_at_a_window_and_start_again_with_a_chunk() -> None:
    assert [cached_tokens(window=128).count(decode(2.0, s)) for s in (64.0, 128.0, 9000.0)] == [128, 254, 254]
    assert [cached_tokens(top=128).count(decode(2.0, s)) for s in (64.0, 128.0, 9000.0)] == [128, 256, 256]
    # A prompt's next piece reads what its first token's window holds, for each of three prompts.
    assert [cached_tokens(window=128).count(prefill(10.0, s, 3.0)) for s in (64.0, 128.0, 9000.0)] == [192, 381, 381]
    assert [cached_tokens(top=128).count(prefill(10.0, s, 3.0)) for s in (64.0, 9000.0)] == [192, 384]
    assert [cached_tokens(chunk=128).count(prefill(10.0, s, 3.0)) for s in (64.0, 130.0)] == [192, 6]
    # A new token is the last of its own window, and is not read back.
    assert cached_tokens(window=1).count(decode(2.0, 64.0)) == 0
    assert [cached_tokens(chunk=128).count(decode(2.0, s)) for s in (64.0, 128.0, 130.0)] == [128, 0, 4]


def test_devices_that_share_a_prompt_have_each_a_part_of_its_tokens() -> None:
    assert TOKENS.on_prompt_share(1) is TOKENS
    shared = TOKENS.on_prompt_share(4)
    assert shared.count(prefill(100.0, 0.0, 3.0)) == shared.floor(prefill(100.0, 0.0, 3.0)) == 75
    assert shared.count(decode(8.0, 100.0)) == 8
    assert OUTPUTS.count(StepShape(3.0, 100.0, 2.0, 2.0, 50.0, 10.0)) == 8


def test_features_are_equal_by_name_and_arguments() -> None:
    assert cached_tokens(128) == cached_tokens(128)
    assert hash(cached_tokens(128)) == hash(cached_tokens(128))
    assert cached_tokens(128) != cached_tokens(256)
    assert TOKENS.on_fullest_rank(2) == TOKENS.on_fullest_rank(2)
    assert TOKENS.on_fullest_rank(2) != TOKENS.on_fullest_rank(4)
    assert TOKENS.on_fullest_rank(1) is TOKENS
    assert repr(TOKENS.on_fullest_rank(2)) == "tokens on the fullest rank('ranks', 2)"


@pytest.mark.parametrize(("batch", "ranks", "fullest"), [(8, 4, 2), (9, 4, 3), (1, 4, 1), (0, 4, 0), (7, 3, 3)])
def test_the_fullest_rank_has_the_rest(batch: int, ranks: int, fullest: int) -> None:
    assert decode(float(batch), 10.0).fullest_rank(ranks).batch == fullest
    assert TOKENS.on_fullest_rank(ranks).count(prefill(10.0, 0.0, float(batch))) == fullest * 10


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_micro_batches_of_the_fullest_rank_add_up_to_it(batch: int, ranks: int, parts: int) -> None:
    micro = decode(float(batch), 10.0).micro_batch(float(parts))
    assert micro.fullest_rank(ranks).batch * parts == pytest.approx(-(-batch // ranks), rel=1e-12)


def test_reached_experts_are_an_expectation_above_a_floor() -> None:
    reached = distinct_expert_share(8, 2)
    assert reached.count(decode(1.0, 0.0)) == pytest.approx(0.25, rel=1e-15)
    assert reached.count(decode(2.0, 0.0)) == 1 - 0.75**2
    assert reached.floor(decode(2.0, 0.0)) == 0.25
    assert reached.floor(decode(0.0, 0.0)) == reached.count(decode(0.0, 0.0)) == 0.0
    assert distinct_expert_share(4, 4).count(decode(3.0, 0.0)) == 1.0


def test_latent_prefill_takes_the_cheaper_form() -> None:
    flops, expanded = latent_attention(100.0, 30.0, 500.0)
    # Absorbed for a short chunk over a long prefix, expanded for a long prompt over a short one.
    short, long = prefill(1.0, 10.0), prefill(20.0, 2.0, 3.0)
    assert (flops.count(short), expanded.count(short)) == (100.0 * 11, 0.0)
    assert (flops.count(long), expanded.count(long)) == (3 * 30.0 * (40 + 210), 3 * 2.0)
    assert (flops.count(decode(2.0, 10.0)), expanded.count(decode(2.0, 10.0))) == (2 * 100.0 * 11, 0.0)
    assert latent_attention(1.0, 9.0, 9.0, top_k=4)[0].count(decode(1.0, 100.0, 2.0)) == 8


def test_arrays_broadcast() -> None:
    batch, context = np.arange(1.0, 4.0).reshape(-1, 1), np.array([[0.0, 5.0]])
    counted = cached_tokens().count(decode(batch, context))
    assert np.array_equal(counted, [[0, 5], [0, 10], [0, 15]])
    assert np.array_equal(TOKENS.on_fullest_rank(2).count(decode(batch, 0.0)), [[1], [1], [2]])


def test_attention_without_a_window_is_full() -> None:
    # Each of 2 new tokens after 100 sees these, itself and the one before; 10 of a prompt after 50 likewise.
    pairs = 3 * (2 * 100 + 3) + 2 * (10 * 50 + 55)
    assert attended_pairs().count(MIXED) == pairs
    assert attended_pairs(0, 0).count(MIXED) == pairs
