"""Published deployments, rendered from their facts, are read: floors of what docs/accuracy.md states."""

from __future__ import annotations

import deployments
import pytest
from deployments import Scores


@pytest.fixture(scope="module")
def scores() -> Scores:
    return deployments.read_all()


def test_every_format_has_a_renderer() -> None:
    assert {row.format for row in deployments.rows()} <= set(deployments.FORMATS)


def test_nearly_all_are_read(scores: Scores) -> None:
    assert scores.rows == 123
    assert scores.parsed > 0.95, dict(scores.refused)


def test_nearly_all_facts_are_right(scores: Scores) -> None:
    wrong = [f"{f.row} {f.role} {f.name}: {f.expected!r}, read {f.found!r}" for f in scores.facts if not f.right]
    assert len(scores.facts) > 600
    assert scores.right > 0.95, wrong


@pytest.mark.parametrize("name", ["model", "tp", "max_model_len", "gpu_memory_utilization", "max_num_seqs"])
def test_facts_that_decide_memory_are_right(scores: Scores, name: str) -> None:
    own = [f for f in scores.facts if f.name == name]
    assert len(own) > 40
    assert sum(f.right for f in own) / len(own) > 0.97


def test_hardware_is_found_where_a_field_states_it(scores: Scores) -> None:
    assert len(scores.stated) > 55
    assert len(scores.located) / len(scores.stated) > 0.65
    # What is left open names a family whose members differ in memory or form factor, or a part without a datasheet.
    assert (len(scores.located) + len(scores.families)) / len(scores.stated) > 0.9
