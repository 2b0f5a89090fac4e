"""What one run's figures say against each other: each check at its limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from servelint.consistency import Inconsistency, check, tail
from servelint.evidence import Measurement

SOUND = Measurement(
    tool="bench",
    closed_loop=True,
    concurrency=32.0,
    duration_s=100.0,
    completed=1000,
    failed=0,
    total_output_tokens=200_000.0,
    request_throughput=10.0,
    output_throughput=2000.0,
    prompt_tokens={"mean": 1000.0},
    output_tokens={"mean": 200.0},
    ttft_s={"mean": 0.1, "p50": 0.09, "p99": 0.3},
    tpot_s={"mean": 3.1 / 199, "p50": 0.0155, "p99": 0.018},
    e2e_s={"mean": 3.2, "p50": 3.1, "p99": 5.0},
)


def kinds(**changes: Any) -> list[str]:
    return [found.kind for found in check(evolve(SOUND, **changes))]


def only(**changes: Any) -> Inconsistency:
    (found,) = check(evolve(SOUND, **changes))
    return found


def test_figures_that_agree() -> None:
    assert kinds() == []
    assert list(check(Measurement(tool="says nothing"))) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"output_throughput": math.nan},
        {"duration_s": -1.0},
        {"request_throughput": math.inf},
        {"ttft_s": {"mean": -0.1}},
        {"tpot_s": {"p99": math.nan}},
    ],
)
def test_no_numbers_are_impossible_and_end_the_check(changes: dict[str, Any]) -> None:
    found = only(**changes)
    assert (found.kind, found.impossible) == ("number", True)


@pytest.mark.parametrize(
    "changes",
    [
        {"ttft_s": {"p50": 0.2, "p99": 0.19}},
        {"e2e_s": {"mean": 3.2, "max": 3.1}},
        {"prompt_tokens": {"mean": 9.0, "min": 10.0}},
        {"ttft_s": {"mean": 3.3}, "tpot_s": {}},
    ],
)
def test_statistics_out_of_order_are_impossible(changes: dict[str, Any]) -> None:
    found = only(**changes)
    assert (found.kind, found.impossible) == ("order", True)


def test_rounding_is_let_pass() -> None:
    assert kinds(ttft_s={"mean": 0.1, "p50": 0.1001, "p99": 0.1}) == []


def test_pace_that_is_too_short() -> None:
    exact = 3.1 / 199
    assert kinds(tpot_s={"mean": exact / 1.249}) == []
    found = only(tpot_s={"mean": exact / 2})
    assert found.kind == "pace"
    assert "2x too short" in found.message
    assert "quote a TPOT of 15.58 ms" in found.help
    assert "(3.2 s - 100 ms) / (200 - 1) = 15.58 ms" in found.equation


def test_pace_that_is_too_long() -> None:
    exact = 3.1 / 199
    assert kinds(tpot_s={"mean": exact * 1.56}) == []
    assert kinds(tpot_s={"mean": exact * 1.57}) == ["pace"]


def test_a_rate_that_was_not_kept() -> None:
    open_loop = {"closed_loop": False, "concurrency": None}
    assert kinds(**open_loop, requested_rate=10.5, achieved_rate=10.0) == []
    found = only(**open_loop, requested_rate=10.6, achieved_rate=10.0, schedule_delay_s={"p99": 5.5})
    assert found.kind == "load"
    assert "asked for 10.6 requests/s and sent 10 (94%), the last ones 5.5 s late" in found.message


def test_a_rate_by_what_came_back() -> None:
    open_loop = {"closed_loop": False, "concurrency": None}
    # 1,000 requests at 10.4/s are sent in 96.2 s, and the slowest takes 5 s more.
    assert kinds(**open_loop, requested_rate=10.4) == []
    assert kinds(**open_loop, requested_rate=12.0) == ["load"]
    assert kinds(closed_loop=True, requested_rate=12.0) == []


def test_littles_law() -> None:
    assert kinds(concurrency=None, mean_concurrency=27.9) == []
    assert kinds(concurrency=None, mean_concurrency=27.7) == ["flight"]
    assert kinds(concurrency=28.0) == []
    assert kinds(concurrency=27.0) == ["flight"]


def test_totals_over_duration() -> None:
    assert kinds(output_throughput=2100.0) == []
    assert kinds(output_throughput=2110.0) == ["totals"]
    assert kinds(duration_s=94.0, total_output_tokens=None) == ["totals"]
    # Tokens of failed requests may be counted with the tokens alone.
    assert kinds(output_throughput=2110.0, total_output_tokens=None, completed=1000, failed=400) == ["failed"]


def test_an_idle_cache_under_load() -> None:
    assert kinds(kv_usage=0.0) == ["idle"]
    assert kinds(kv_usage=0.001) == []
    idle = evolve(SOUND, kv_usage=0.0, request_throughput=0.3, duration_s=None, output_throughput=None)
    assert [f.kind for f in check(evolve(idle, total_output_tokens=None))] == []


def test_a_warm_cache() -> None:
    assert kinds(cache_hit=0.06, prompts="random") == ["warm"]
    assert kinds(cache_hit=0.05, prompts="random") == []
    assert kinds(cache_hit=0.6, prompts="sharegpt") == []


def test_failures() -> None:
    assert kinds(failed=10) == []
    assert kinds(failed=11) == ["failed"]
    assert kinds(incomplete=250) == []
    assert kinds(incomplete=251) == ["incomplete"]


def test_a_run_that_its_tool_rejects() -> None:
    assert kinds(invalid="it was cancelled") == ["rejected"]


def test_tails_of_few_requests() -> None:
    assert tail(SOUND) is None
    found = tail(evolve(SOUND, completed=999))
    assert found is not None
    assert "p99 rests on 9.99 of 999 requests" in found.message
    assert "at least 1,000 requests" in found.help
    assert tail(evolve(SOUND, completed=60, ttft_s={"mean": 0.1}, tpot_s={}, e2e_s={})) is None


FIGURES = st.none() | st.floats(allow_nan=True, allow_infinity=True)
STATISTICS = st.dictionaries(
    st.sampled_from(["mean", "min", "max", "p50", "p99", "p999"]), FIGURES.filter(lambda v: v is not None)
)


@given(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(
                ("requested_rate", "achieved_rate", "concurrency", "mean_concurrency", "duration_s", "kv_usage",
                 "cache_hit", "request_throughput", "output_throughput", "total_output_tokens"), FIGURES,
            ),
            **dict.fromkeys(("completed", "failed", "incomplete"), st.none() | st.integers(-5, 10**9)),
            **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s", "output_tokens", "prompt_tokens"), STATISTICS),
            "closed_loop": st.none() | st.booleans(),
        }
    )
)  # fmt: skip
def test_no_figures_break_the_checks(figures: dict[str, Any]) -> None:
    run = Measurement(tool="any", **figures)
    for found in (*check(run), tail(run)):
        assert found is None or found.message
