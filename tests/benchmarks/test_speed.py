"""How fast pricing, composing and checking are, and a grid of a million points beside single steps.

What is asserted are ratios within one run and the rate of the grid; absolute times are for the table that
pytest-benchmark prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from servelint.composition import Composition
from servelint.config import Config
from servelint.cost import StepCost
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.shapes import decode
from servelint.testing import compose

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
DECODE = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
[policy.parallelism]
tensor = 4
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
"""
CHECKED = (
    DECODE
    + """\
[policy.batching]
max_sequences = 128
max_batched_tokens = 8192
[workload]
prompt_tokens = { p50 = 900, p95 = 4000, p99 = 7000, max = 16384 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "6 req/s"
[[workload.growth]]
name = "document upload"
prompt_tokens = { p50 = 16000, p99 = 64000 }
[slo]
ttft = { p99 = "1.5 s" }
itl = { p99 = "50 ms" }
[[claim]]
metric = "throughput"
value = "2400 tok/s"
at = { concurrency = 128, itl_p99 = "48 ms" }
"""
)
POINTS = 1000
LEAST_POINTS_PER_S = 5e6
GRID = (np.linspace(1.0, 512.0, POINTS).reshape(-1, 1), np.linspace(128.0, 131_072.0, POINTS).reshape(1, -1))


def best_of(function: Callable[[], Any], rounds: int) -> float:
    """Seconds of the fastest of some rounds, which other processes disturb least."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@pytest.fixture(scope="module")
def composition(plugins: Plugins) -> Composition:
    return compose(DECODE, plugins)


def whole_grid(composition: Composition) -> StepCost:
    """Compose anew and price a million operating points."""
    return Composition(composition.setup).pricer.price(decode(*GRID))


def test_one_step(benchmark: Any, composition: Composition) -> None:
    pricer = composition.pricer
    cost = benchmark(lambda: pricer.price(decode(64.0, 4096.0)))
    assert cost.bound_s <= cost.estimate_s


def test_composing(benchmark: Any, composition: Composition) -> None:
    assert benchmark(lambda: Composition(composition.setup).pricer).resources


def test_whole_check(benchmark: Any, plugins: Plugins) -> None:
    linter = Linter(plugins, Config(), ROOT)
    result = benchmark(lambda: linter.check("spec.toml", CHECKED))
    assert result.review is not None


def test_a_million_points(benchmark: Any, composition: Composition) -> None:
    cost = benchmark.pedantic(lambda: whole_grid(composition), rounds=5, warmup_rounds=1)
    for name in ("bound_s", "sustained_bound_s", "estimate_s", "binding"):
        assert np.broadcast_to(getattr(cost, name), (POINTS, POINTS)).shape == (POINTS, POINTS)
    rate = POINTS**2 / benchmark.stats.stats.min
    benchmark.extra_info["points per second"] = rate
    assert rate > LEAST_POINTS_PER_S, f"{rate / 1e6:.1f} million points a second"


def test_the_grid_is_what_its_points_are(composition: Composition) -> None:
    cost, pricer, random = whole_grid(composition), composition.pricer, Random(1)
    batch, context = (axis.ravel() for axis in GRID)
    for _ in range(1000):
        i, j = random.randrange(POINTS), random.randrange(POINTS)
        alone = pricer.price(decode(float(batch[i]), float(context[j])))
        for name in ("bound_s", "sustained_bound_s", "estimate_s", "binding"):
            value = float(np.broadcast_to(getattr(cost, name), (POINTS, POINTS))[i, j])
            assert value == pytest.approx(getattr(alone, name), rel=1e-12, abs=0.0)


def test_ratios(plugins: Plugins, composition: Composition) -> None:
    pricer, linter = composition.pricer, Linter(plugins, Config(), ROOT)
    linter.check("spec.toml", CHECKED)
    step = best_of(lambda: [pricer.price(decode(64.0, 4096.0)) for _ in range(100)], 20) / 100
    composing = best_of(lambda: Composition(composition.setup).pricer, 50)
    checking = best_of(lambda: linter.check("spec.toml", CHECKED), 20)
    point = best_of(lambda: whole_grid(composition), 5) / POINTS**2
    print(
        f"\nstep {step * 1e6:.1f} us, composing {composing * 1e3:.2f} ms, check {checking * 1e3:.1f} ms, "
        f"point of a grid {point * 1e9:.0f} ns"
    )
    # A point of a grid costs a small part of a step alone, composing some dozens of steps.
    assert point < step / 50
    assert composing < 200 * step
    assert composing < checking
