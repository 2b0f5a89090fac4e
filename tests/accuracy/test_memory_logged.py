"""The memory ledger against what engines logged: the layout of the cache is exact, all else is explained."""

from __future__ import annotations

import statistics

import memory_logged
import pytest
import recorded
from memory_logged import ALONE_BOUND, ALONE_WHY, FITTED, GIVEN_BOUND, GIVEN_WHY, Comparison


def of(record: str, what: str, found: tuple[Comparison, ...]) -> Comparison:
    return next(c for c in found if c.key == (record, what))


def test_every_record_is_compared_or_has_a_reason() -> None:
    given, alone, missing = memory_logged.compared()
    assert len(given) > 30
    assert len(alone) > 55
    assert all(m.reason for m in missing)
    assert len({c.record.id for c in (*given, *alone)}) > 35
    assert len(missing) < 15


def test_what_follows_from_a_logged_figure_is_within_two_percent_or_explained() -> None:
    given, _, _ = memory_logged.compared()
    off = {c.record.id for c in given if abs(c.error) > GIVEN_BOUND}
    assert off == set(GIVEN_WHY)
    rest = [abs(c.error) for c in given if c.record.id not in GIVEN_WHY]
    assert len(rest) > 20
    assert max(rest) < GIVEN_BOUND
    assert statistics.median(rest) < 0.002


def test_what_follows_from_the_flags_is_within_five_percent_or_explained() -> None:
    _, alone, _ = memory_logged.compared()
    off = {c.record.id for c in alone if abs(c.error) > ALONE_BOUND}
    assert off == set(ALONE_WHY)
    held_out = [abs(c.error) for c in alone if c.record.id not in {*ALONE_WHY, *FITTED}]
    assert len(held_out) > 10
    assert statistics.median(held_out) < 0.03


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        # Recurrent layers in blocks of the cache, with prefix reuse; an NVFP4 cache.
        ("qwen36-35b-a3b-nvfp4-5090", 567_978),
        ("qwen38-27b-nvfp4-5090l-098", 150_745),
    ],
)
def test_groups_of_blocks_give_the_logged_number_to_the_token(record: str, tokens: int) -> None:
    given, _, _ = memory_logged.compared()
    found = of(record, "KV tokens", given)
    assert found.predicted == found.logged == tokens


def test_the_same_bytes_are_reported_by_release() -> None:
    given, _, _ = memory_logged.compared()
    before, after = (of(f"m27.{n}", "KV tokens", given) for n in (1, 2))
    assert before.predicted == pytest.approx(55_000, rel=0.01)
    # With the longest context that the log does not state, 131,072, this is 530,400 (525,000 logged).
    assert after.predicted / before.predicted > 9


def test_all_stages_are_compared_with_the_memory_of_one() -> None:
    given, _, _ = memory_logged.compared()
    assert of("m06", "cache of the longest sequence, GiB", given).predicted == pytest.approx(71.16, abs=0.01)
    assert of("m06", "longest sequence that fits, tokens", given).predicted == 81_392


def test_activation_peaks_match_the_logged_ones_of_another_length() -> None:
    # The formula was set on the run of 20,000 tokens.
    _, alone, _ = memory_logged.compared()
    assert of("llama31-8b-3090-29k", "peak activations, GiB", alone).error == pytest.approx(0, abs=0.01)


def test_a_release_is_the_stated_one_or_one_of_the_month() -> None:
    by_id = {r.id: r for r in (*recorded.facts(), *recorded.cases("memory"), *recorded.cases("startup"))}
    assert recorded.release(by_id["gemma4-26b-bf16-a100"]) == "0.19.0"
    assert recorded.release(by_id["gptoss120b-h100-v0141-oom"]) == "0.14.1"
    assert recorded.release(by_id["llama3-8b-80g-tp1"]) == recorded.MONTHS["2024-12"]
    assert recorded.release(by_id["m06"]) == recorded.MONTHS["2026-01"]
    assert recorded.release(by_id["kimi-k3-fp8-tp16"]) == "0.5.17"
    assert recorded.release(by_id["m13"]) is None
