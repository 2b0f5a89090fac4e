"""Recorded cases of behavior: the estimate points the way that was observed, but where it is said why not."""

from __future__ import annotations

import behaviour
import pytest
import recorded


@pytest.fixture(scope="module")
def compared() -> tuple[behaviour.Compared, ...]:
    return behaviour.compared()


def test_every_case_of_what_went_wrong_is_compared_or_has_a_reason() -> None:
    told = {arms.case for arms in behaviour.COMPARISONS}
    assert told & behaviour.NOT_COMPARED.keys() == set()
    wrong = {c.id for c in recorded.cases("behaviour") if not c.negative and c.confidence != "low"}
    assert wrong <= told | behaviour.NOT_COMPARED.keys()


def test_most_point_the_right_way(compared: tuple[behaviour.Compared, ...]) -> None:
    priced = [c for c in compared if c.right is not None]
    assert len(priced) >= 25
    assert sum(bool(c.right) for c in priced) >= 0.6 * len(priced)


def test_what_points_the_wrong_way_has_a_reason(compared: tuple[behaviour.Compared, ...]) -> None:
    assert {c.case.id for c in compared if c.right is False} == behaviour.WRONG.keys()


def test_what_follows_from_bytes_is_within_a_few_percent(compared: tuple[behaviour.Compared, ...]) -> None:
    """Room in a cache, and decode steps that memory decides, need no knowledge of an engine."""
    exact = ("qwen3-4b-l4-fp8kv-gain", "dgx-spark-llama70b-3toks")
    found = [c for c in compared if c.arms.case in exact or c.arms.figure == "room"]
    assert len(found) >= 5
    assert all(c.error is not None and abs(c.error) < 0.03 for c in found)


def test_an_arm_has_the_devices_of_its_degrees() -> None:
    case = next(c for c in recorded.cases("behaviour") if c.id == "mistral7b-8a100-tp8-slower")
    assert behaviour.reviewed(behaviour.arm(case, {"tp": 1})).devices == 1
    assert behaviour.reviewed(behaviour.arm(case, {"tp": 8})).devices == 8
    assert behaviour.reviewed(case).devices == 8
