"""A prompt chunk of the wrong size is named as the remedy, whichever way it is wrong."""

from __future__ import annotations

import re

import pytest

from servelint.manager import Plugins
from servelint.rule import Case
from servelint.service import Objective
from servelint.testing.rules import run_case
from servelint_rules.slo.chunks import nearer
from servelint_rules.slo.slo008_prefill_stall import SPEC as STALLED
from servelint_rules.slo.slo010_chunk_too_small import SPEC as SMALL


def helps(plugins: Plugins, spec: str, code: str) -> list[str]:
    return [f.finding.help for f in run_case(Case("", spec), plugins).findings if f.finding.code == code]


def test_a_first_token_that_small_chunks_delay_is_mended_by_larger_ones(plugins: Plugins) -> None:
    spec = SMALL.replace('ttft = { p99 = "8 s" }', 'ttft = { p99 = "400 ms" }')
    assert helps(plugins, spec, "SLO010") == []
    (text,) = helps(plugins, spec, "SLO001")
    found = re.match(r"set policy.batching.max_batched_tokens = (\d+): TTFT p99 is then", text)
    assert found, text
    assert int(found[1]) > 128
    mended = spec.replace("max_batched_tokens = 128", f"max_batched_tokens = {found[1]}")
    assert helps(plugins, mended, "SLO001") == []
    half = spec.replace("max_batched_tokens = 128", f"max_batched_tokens = {int(found[1]) // 2}")
    assert helps(plugins, half, "SLO001")


def test_a_stall_is_said_once(plugins: Plugins) -> None:
    # Near the knee as well: the cause is told, the lack of headroom is not told beside it.
    spec = STALLED.replace("0.85 req/s", "0.9 req/s")
    assert len(helps(plugins, spec, "SLO008")) == 1
    assert helps(plugins, spec, "SLO004") == []


@pytest.mark.parametrize(
    ("percentile", "growth", "expected"),
    [("p99", 2.0, "p995"), ("p95", 2.0, "p975"), ("p90", 2.0, "p95"), ("p50", 5.0, "p90"), ("p999", 2.0, "p9995")],
)
def test_more_load_is_a_higher_percentile(percentile: str, growth: float, expected: str) -> None:
    assert nearer(Objective("itl", percentile, 1.0, 1.0), growth) == expected
