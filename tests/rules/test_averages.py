"""Findings say where a mean is of quantiles that were interpolated, since another curve through them has another."""

from __future__ import annotations

import math

import pytest

from servelint.distribution import Lengths
from servelint.manager import Plugins
from servelint.rule import Case
from servelint.testing.rules import run_case

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.batching]
max_sequences = 8
max_batched_tokens = 2048
[workload]
prompt_tokens = {prompt}
output_tokens = {output}
rate = "20 req/s"
"""
OF = "mean context (of the interpolated quantiles)"


@pytest.mark.parametrize(
    ("prompt", "output", "name"),
    [
        ("{ p50 = 1000, p99 = 8000 }", "300", OF),
        ("1000", "{ p50 = 300, p99 = 1200 }", OF),
        ("1000", "300", "mean context"),
        ("{ mean = 1500, p99 = 8000 }", "300", "mean context"),
        ("{ mean = 1500, std = 1000 }", "300", "mean context"),
    ],
)
def test_a_mean_says_what_it_is_of(prompt: str, output: str, name: str, plugins: Plugins) -> None:
    found = run_case(Case("", SPEC.format(prompt=prompt, output=output)), plugins).findings
    (overload,) = (f.finding for f in found if f.finding.code == "SLO007")
    assert [i.name for i in overload.inputs if i.name.startswith("mean context")] == [name]


def test_the_two_means_of_the_manual(plugins: Plugins) -> None:
    knots = plugins.length_knots({"p50": 1000.0, "p99": 8000.0})
    assert knots is not None
    assert Lengths(knots).mean == pytest.approx(1937, abs=1)
    # Of a lognormal ln(p99 / p50) = z sigma and mean = p50 exp(sigma^2 / 2).
    sigma = math.log(8) / 2.3263479
    mean = 1000 * math.exp(sigma**2 / 2)
    knots = plugins.length_knots({"mean": mean, "p99": 8000.0})
    assert knots is not None
    assert Lengths(knots).quantile(0.5) == pytest.approx(1000, rel=0.01)
    assert mean == pytest.approx(1491, abs=1)
