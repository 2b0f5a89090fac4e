"""Percentiles on the shipped deployments and generated workloads: they rise with the percentile and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servelint.composition import Composition
from servelint.distribution import Lengths
from servelint.manager import Plugins
from servelint.review import Review
from servelint.service import Mix, Point, Service
from servelint.spec.document import parse

SPECS = sorted((Path(__file__).parents[2] / "specs").rglob("*.toml"))
PERCENTILES = ("p50", "p75", "p90", "p95", "p99", "p999")
# A full step has room for fewer prompt tokens when more sequences decode, and a prompt token costs more attention than
# a decoded one: the longest steps get a little shorter then (2.6% at most in 1,500 generated workloads).
FALL = 0.04
"""How much a percentile may fall when the batch rises: a step's budget leaves fewer tokens to prompts then."""


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_percentiles_rise(path: Path, plugins: Plugins) -> None:
    review = Review(parse(str(path), path.read_text(), plugins.policies), plugins, path.parent)
    if review.composition is None or review.mix is None:
        pytest.fail("a shipped spec composes and has a workload")
    service = review.service(review.mix)
    for point in service.frontier(6):
        for metric in ("itl", "ttft", "tpot", "e2e"):
            values = [point.latency(metric, p) for p in PERCENTILES]
            for low, high in pairwise(values):
                assert low <= high * (1 + 1e-3), (metric, point.batch, values)


def test_ranks_in_lockstep_wait_for_whichever_prefills(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 8192
[policy.parallelism]
tensor = 8
attention_data = {ranks}
expert = 8
[workload]
prompt_tokens = 2000
output_tokens = 200
rate = "1 req/s"
"""
    shares = {}
    for ranks in (1, 8):
        document = parse("a.toml", text.replace("{ranks}", str(ranks)), plugins.policies)
        review = Review(document, plugins, Path())
        assert review.mix is not None
        shares[ranks] = review.service(review.mix).point(64.0).mixed_share
    # One rank of eight prefills an eighth as often, and a step is free of prefill only when all eight are.
    assert shares[8] == pytest.approx(1 - (1 - shares[1] / 8) ** 8)


# With the batch


def batches(service: Service, step: float) -> Iterator[Point]:
    """Whole batches that can be prefilled for, ``step`` times apart, of more requests a second each."""
    batch, rate = 1.0, 0.0
    while batch <= service.batch_limit:
        point = service.point(batch)
        if point.saturated:
            return
        if point.rate > rate:
            yield point
            rate = point.rate
        batch = max(batch + 1, round(batch * step))


@pytest.mark.parametrize("open_loop", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_percentiles_rise_with_the_batch(path: Path, open_loop: bool, plugins: Plugins) -> None:
    review = Review(parse(str(path), path.read_text(), plugins.policies), plugins, path.parent)
    assert review.composition is not None
    assert review.mix is not None
    highest: dict[tuple[str, str], float] = {}
    for point in batches(Service(review.composition, review.mix, open_loop=open_loop), 1.2):
        for metric in ("itl", "ttft", "tpot"):
            for percentile in PERCENTILES:
                seconds, key = point.latency(metric, percentile), (metric, percentile)
                assert seconds >= highest.get(key, 0.0) * (1 - FALL), (key, point.batch, seconds, highest[key])
                highest[key] = max(seconds, highest.get(key, 0.0))


PLUGINS = Plugins()
NAMES = ("smallest", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3-h200", "llama-405b-two-nodes", "eagle-low-batch")


@cache
def composed(name: str, budget: int, chunked: bool) -> Composition:
    path = next(p for p in SPECS if p.stem == name)
    review = Review(parse(str(path), path.read_text(), PLUGINS.policies), PLUGINS, path.parent)
    batching = evolve(
        review.policy("batching"),
        max_batched_tokens=budget,
        chunked_prefill=chunked,
        max_sequences=min(budget // 8, 256),
    )
    composition = review.variant(batching=batching)
    assert composition is not None
    return composition


@st.composite
def lengths(draw: st.DrawFn, most: float) -> Lengths:
    median = draw(st.floats(20, most / 4))
    knots = [(0.5, median)]
    for share in (0.95, 0.99):
        knots.append((share, min(knots[-1][1] * draw(st.floats(1.0, 6.0)), most)))
    return Lengths.fixed(median) if draw(st.integers(0, 5)) == 0 else Lengths([(0.0, median / 4), *knots])


MIXES = st.builds(
    lambda prompt, output, hit: Mix("generated", prompt, output, hit),
    lengths(100_000),
    lengths(4_000),
    st.sampled_from((0.0, 0.0, 0.4, 0.9)),
)


@given(st.sampled_from(NAMES), st.sampled_from((512, 1024, 2048, 8192)), st.sampled_from((True, True, False)), MIXES)
@settings(max_examples=100, deadline=None)
def test_percentiles_of_generated_workloads_do_not_fall(name: str, budget: int, chunked: bool, mix: Mix) -> None:
    service = Service(composed(name, budget if chunked else 131_072, chunked), mix, open_loop=False)
    for low, high in pairwise(batches(service, 1.15)):
        for metric in ("itl", "ttft"):
            for percentile in PERCENTILES:
                before, after = low.latency(metric, percentile), high.latency(metric, percentile)
                assert after >= before * (1 - FALL), (metric, percentile, low.batch, before, after)


@given(st.sampled_from(NAMES), st.sampled_from((512, 2048, 8192)), MIXES, st.floats(1.0, 200.0))
@settings(max_examples=100, deadline=None)
def test_cutting_prompts_loses_no_token(name: str, budget: int, mix: Mix, batch: float) -> None:
    point = Service(composed(name, budget, True), mix).point(batch)
    pieces = point._prompts
    carried = pieces.full * point.chunk + pieces.rest * pieces.rest_tokens
    assert carried == pytest.approx(sum(s.weight * mix.computed(s.tokens) for s in mix.prompt.strata()), rel=1e-9)
    assert all(
        p.per_request > 0 and p.sizes[0] <= p.tokens * (1 + 1e-9) <= p.sizes[1] * (1 + 1e-8) for p in point._pieces
    )


def test_the_tail_of_long_prompts_is_their_last_chunks(plugins: Plugins) -> None:
    """Half of the prompts above 16K tokens, one in a hundred at 64K: p99 falls far back in the longest of them."""
    path = next(p for p in SPECS if p.name == "long-context-surprise.toml")
    review = Review(parse(str(path), path.read_text(), plugins.policies), plugins, path.parent)
    assert review.composition is not None
    (_, mix), *_ = review.growth
    service = Service(review.composition, mix, open_loop=False)
    share = sum(s.weight * s.tokens for s in mix.prompt.strata() if s.low >= 48_000 * 0.999) / mix.prompt.mean
    assert share == pytest.approx(0.13, abs=0.02)
    for batch in range(4, 14):
        point = service.point(float(batch))
        last = point.mixed_s(point.chunk, 64_000 - point.chunk, 0.0)
        assert last > 0.093
        assert 0.090 < point.itl("p99") <= last
        step = point.mixed_step("p99")
        assert step is not None
        assert step.full
        assert step.seconds == point.itl("p99")
        # What it is said to be takes as long as it is said to take.
        assert point.mixed_s(step.tokens, step.past, 0.0) == pytest.approx(step.seconds, rel=0.01)
        assert 30_000 < step.past < 64_000


def test_a_request_waits_for_a_slot_when_most_are_taken(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 16
[workload]
prompt_tokens = 500
output_tokens = 400
rate = "1 req/s"
"""
    review = Review(parse("a.toml", text, plugins.policies), plugins, Path())
    assert review.mix is not None
    service = review.service(review.mix)
    quiet, busy, full = (service.point(b) for b in (4.0, 15.0, 16.0))
    assert quiet.slot_wait[1] < 0.02 * quiet.ttft("mean")
    # Sakasegawa and Allen-Cunneen by hand, with outputs that do not vary.
    rho = busy.slots_busy
    held = rho * 16 / busy.rate
    chance = rho ** (34**0.5 - 1)
    assert busy.slot_wait == (pytest.approx(chance), pytest.approx(chance * held / (2 * 16 * (1 - rho))))
    assert busy.ttft("p99") > 3 * quiet.ttft("p99")
    assert full.slots_busy > 1
    assert full.ttft("p99") == float("inf")
    closed = Review(
        parse("a.toml", text.replace('rate = "1 req/s"', "concurrency = 16"), plugins.policies), plugins, Path()
    )
    assert closed.operating_point is not None
    assert closed.operating_point.wait == (0.0, 0.0)
