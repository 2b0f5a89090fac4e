"""Operating points, held against closed forms on step times that are linear in what a step does.

With ``T = fixed + decode x new tokens + read x cached tokens + prompt x prefilled tokens`` everything has a
closed form: Little's law, saturation, the queue. Real compositions then hold the monotonicities.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.distribution import Lengths
from servelint.manager import Plugins
from servelint.review import Review
from servelint.scheduler import Disaggregation, Pool, Scheduler
from servelint.service import Mix, Objective, Service, _any_of, _beyond, _normal_quantile
from servelint.shapes import StepShape
from servelint.spec.document import parse
from servelint.testing import review_of

FIXED, DECODE, READ, PROMPT = 10e-3, 20e-6, 0.0, 30e-6


class LinearPricer:
    """Step times linear in the shape; every other figure is a fraction of the estimate."""

    graph = SimpleNamespace(stages=1)

    def __init__(
        self, fixed: float = FIXED, decode: float = DECODE, read: float = READ, prompt: float = PROMPT
    ) -> None:
        self.fixed, self.decode, self.read, self.prompt = fixed, decode, read, prompt

    def estimate(self, s: StepShape) -> float:
        work = s.batch * (s.new_tokens * self.decode + s.context * self.read)
        return self.fixed + work + s.prefill_sequences * s.prefill_tokens * self.prompt

    def bound(self, s: StepShape) -> float:
        return self.estimate(s) / 2


class Memory:
    """Room for ``tokens`` cached tokens."""

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.caches = ()

    def resident_sequences(self, context: float) -> int:
        return int(self.tokens / context)


def composed(scheduler: Scheduler | None = None, pricer: LinearPricer | None = None, tokens: float = 1e9) -> Any:
    return SimpleNamespace(
        scheduler=scheduler or Scheduler(chunked=False),
        pricer=pricer or LinearPricer(),
        memory=Memory(tokens),
        setup=SimpleNamespace(
            architecture=SimpleNamespace(num_layers=4, blocks=(), state_bytes_per_sequence=lambda: 4e6)
        ),
    )


def mix(prompt: float = 1000, output: float = 200, **changes: Any) -> Mix:
    return Mix("test", Lengths.fixed(prompt), Lengths.fixed(output), **changes)


def spread(**changes: Any) -> Mix:
    prompt = Lengths(((0.0, 100), (0.5, 800), (0.9, 3000), (1.0, 9000)))
    return Mix("test", prompt, Lengths.fixed(200), **changes)


# Little's law


def test_batch_at_a_rate_without_prefill_cost() -> None:
    service = Service(composed(pricer=LinearPricer(prompt=0.0)), mix())
    point = service.at_rate(20.0)
    assert point is not None
    # B = r O (f + d B)
    expected = 20 * 200 * FIXED / (1 - 20 * 200 * DECODE)
    assert expected == pytest.approx(43.478, abs=1e-3)
    assert point.batch == pytest.approx(expected, rel=0.002)
    assert point.throughput == pytest.approx(20 * 200, rel=0.002)


@pytest.mark.parametrize("chunk", [None, 256, 384])
def test_prefill_takes_its_time_however_it_is_cut(chunk: int | None) -> None:
    scheduler = Scheduler(max_batched_tokens=4096, chunk_tokens=chunk, chunked=chunk is not None)
    point = Service(composed(scheduler), mix()).at_rate(10.0)
    assert point is not None
    # B = r O (f + d B + p P B / O)
    expected = 10 * 200 * FIXED / (1 - 10 * 200 * DECODE - 10 * 1000 * PROMPT)
    assert point.batch == pytest.approx(expected, rel=0.002)
    assert point.rate == pytest.approx(10.0, rel=0.002)
    assert point.mixed_share == pytest.approx(point.batch / 200 * (math.ceil(1000 / chunk) if chunk else 1))


def test_a_point_never_carries_less_than_is_offered() -> None:
    service = Service(composed(), spread())
    for rate in (0.01, 0.7, 3.0, 9.0):
        point = service.at_rate(rate)
        assert point is not None
        assert rate <= point.rate <= rate * 1.003


def test_below_one_sequence_the_replica_idles() -> None:
    service = Service(composed(), mix())
    point = service.at_rate(0.05)
    assert point is not None
    # A sequence decodes 0.05 x 200 x 10 ms of every second.
    assert point.batch == pytest.approx(0.05 * 200 * (FIXED + DECODE), rel=0.01)
    assert point.plain_s == pytest.approx(FIXED + DECODE)
    assert point.rate == pytest.approx(0.05, rel=0.003)
    assert point.prefill_utilization < 0.003


def test_long_prompts_and_short_outputs_at_a_low_rate_do_not_queue() -> None:
    scheduler = Scheduler(max_batched_tokens=8192, chunk_tokens=8192)
    point = Service(composed(scheduler), mix(100_000, 10)).at_rate(0.001)
    assert point is not None
    assert not point.saturated
    # 13 chunks, each with the fixed part of a step.
    alone = 13 * FIXED + 100_000 * PROMPT
    assert point.ttft("p99") == pytest.approx(alone, rel=0.01)


def test_speculation_divides_the_steps_and_jump_forward_skips_them() -> None:
    plain = Service(composed(pricer=LinearPricer(prompt=0.0, decode=0.0)), mix()).at_rate(20.0)
    drafted = Scheduler(chunked=False, verify_tokens=4, tokens_per_step=2.5, skipped_share=0.2)
    point = Service(composed(drafted, LinearPricer(prompt=0.0, decode=0.0)), mix()).at_rate(20.0)
    assert plain is not None
    assert point is not None
    assert plain.batch / point.batch == pytest.approx(2.5 / 0.8, rel=0.004)
    assert point.itl("p50") == pytest.approx(FIXED)
    assert point.tpot("mean") == pytest.approx(FIXED / (2.5 / 0.8))
    assert point.shape().new_tokens == 4


# Limits


def test_the_least_limit_counts() -> None:
    scheduler = Scheduler(max_sequences=64, max_batched_tokens=100, verify_tokens=5, chunked=False)
    service = Service(composed(scheduler, tokens=33_000), mix())
    assert service.limits == {"KV capacity": 30, "max_sequences": 64, "max_batched_tokens": 20}
    assert service.batch_limit == 20
    ranked = Scheduler(max_batched_tokens=100, verify_tokens=5, chunked=False, ranks=4)
    assert Service(composed(ranked), mix()).limits["max_batched_tokens"] == 80


def test_no_point_beyond_the_limit() -> None:
    service = Service(composed(Scheduler(max_sequences=16, chunked=False)), mix())
    most = service.max_rate
    step = FIXED + 16 * DECODE + 16 / 200 * 1000 * PROMPT
    assert most == pytest.approx(16 / 200 / step)
    assert service.at_rate(most * 0.999) is not None
    assert service.at_rate(most * 1.001) is None
    lifted = service.at_rate(most * 1.001, 32)
    assert lifted is not None
    assert 16 < lifted.batch < 17


def test_nothing_fits() -> None:
    service = Service(composed(tokens=500), mix())
    assert service.batch_limit == 0
    assert service.at_rate(0.001) is None
    assert service.max_rate == 0.0
    assert service.fullest is None
    assert service.knee(()) is None
    assert service.frontier() == []
    # Nor where prompts alone would leave a share of the time.
    crowded = Service(composed(Scheduler(max_batched_tokens=1000, chunk_tokens=1000), tokens=500), mix(50_000, 10))
    assert crowded.point(1.0).saturated
    assert crowded.fullest is None


@pytest.mark.parametrize(("prompt", "idle"), [(1_000_000, False), (1_500_000, True)])
def test_a_sequence_that_decodes_less_than_a_thousandth_of_the_time_is_none(prompt: float, idle: bool) -> None:
    # Outputs of one token, and a step takes 1,000 tokens of prompts: one sequence in 1,000 or in 1,500 steps.
    scheduler = Scheduler(max_batched_tokens=1001, chunk_tokens=1000)
    assert (Service(composed(scheduler), mix(prompt, 1)).fullest is None) == idle


def test_the_token_budget_saturates() -> None:
    scheduler = Scheduler(max_sequences=400, max_batched_tokens=1000, chunk_tokens=1000)
    service = Service(composed(scheduler), mix(400, 100))
    # B / 100 x 400 prompt tokens a step in a budget of 1000 - B.
    assert service.fullest is not None
    assert service.fullest.batch == 1000 / (1 + 400 / 100)
    assert not service.point(200.0).saturated
    assert service.point(201.0).saturated
    assert service.fullest.chunk == 800
    assert service.max_rate == pytest.approx(200 / 100 / (FIXED + 200 * DECODE + 800 * PROMPT))


@pytest.mark.parametrize(("over", "carried"), [(0.99, True), (1.0005, True), (1.003, False)])
def test_where_prefill_is_the_limit_the_rate_just_below_it_is_carried(over: float, carried: bool) -> None:
    scheduler = Scheduler(max_sequences=400, max_batched_tokens=1000, chunk_tokens=1000)
    service = Service(composed(scheduler), mix(400, 100))
    # Two in a thousand, to which a batch is found.
    point = service.at_rate(service.max_rate * over)
    assert (point is not None) == carried
    assert point is None or (not point.saturated and point.rate >= 0.998 * service.max_rate * over)


def test_the_rate_of_a_full_batch_is_carried() -> None:
    # Eight sequences of 64 tokens in steps of a 64th of a second, to the last bit.
    pricer = LinearPricer(fixed=1 / 64, decode=0.0, prompt=0.0)
    service = Service(composed(Scheduler(max_sequences=8, chunked=False), pricer), mix(100, 64))
    point = service.at_rate(8.0)
    assert point is not None
    assert point.batch == 8.0
    assert service.at_rate(8.01) is None


def test_one_sequence_at_a_time_is_a_service() -> None:
    service = Service(composed(Scheduler(max_sequences=1, chunked=False)), mix())
    assert service.fullest is not None
    assert service.fullest.batch == 1.0
    assert service.max_rate == pytest.approx(1 / 200 / (FIXED + DECODE + 1000 / 200 * PROMPT))
    assert [p.batch for p in service.frontier()] == [1.0]
    carried = service.at_rate(0.1)
    assert carried is not None
    assert carried.rate == pytest.approx(0.1, rel=0.003)
    # The slot is held while a sequence decodes and for the prefill of its prompt.
    point = service.point(0.5)
    assert point.slots_busy == pytest.approx(point.rate * (200 * point.step_s + point.prefill_s(1000)))
    assert 0.4 < point.slots_busy < 1


def test_a_batch_that_fills_the_budget_leaves_a_token_for_prompts() -> None:
    service = Service(composed(Scheduler(max_batched_tokens=100, chunk_tokens=100)), mix())
    assert [service.room(b) for b in (1.0, 98.5, 99.0, 100.0, 150.0)] == [99.0, 1.5, 1.0, 1.0, 1.0]
    assert service.chunk(150.0) == 1.0


def test_samples_of_a_prompt_share_its_prefill() -> None:
    service = Service(composed(Scheduler(max_sequences=64, chunked=False, samples=4)), mix())
    point = service.point(40.0)
    # Four outputs of 200 tokens for each prompt of 1,000.
    assert point.requests_per_step == pytest.approx(40 / (4 * 200))
    assert point.step_s == pytest.approx(FIXED + 40 * DECODE + 40 / 800 * 1000 * PROMPT)
    assert point.rate == pytest.approx(40 / 800 / point.step_s)
    assert point.slots_busy == pytest.approx(4 * point.rate * (200 * point.step_s + point.prefill_s(1000)) / 64)


def test_the_frontier_has_a_dozen_points_up_to_the_limit() -> None:
    service = Service(composed(Scheduler(max_sequences=2**11, chunked=False)), mix(1, 100_000))
    assert [p.batch for p in service.frontier()] == [2.0**i for i in range(12)]


def test_prompts_that_are_not_cut_share_steps() -> None:
    scheduler = Scheduler(max_batched_tokens=8192, chunked=False)
    point = Service(composed(scheduler), mix(100, 50)).point(200.0)
    # Four prompts start in every step, which is far from what a step has room for.
    assert point.mixed_share == 1.0
    assert point.average_mixed_s == pytest.approx(FIXED + 200 * DECODE + 400 * PROMPT)
    assert not point.saturated
    assert point.prefill_utilization < 0.7


def test_ranks_fill_steps_of_their_own() -> None:
    scheduler = Scheduler(max_batched_tokens=1000, chunk_tokens=1000, ranks=4)
    point = Service(composed(scheduler), mix(500, 100)).point(80.0)
    assert point.requests_per_step == pytest.approx(0.8)
    assert point.mixed_share == pytest.approx(0.2)
    assert point.chunk == 980
    assert point.shape(500.0).prefill_sequences == 4


# Latency


def test_itl_is_the_step_that_a_token_waits_for() -> None:
    scheduler = Scheduler(max_batched_tokens=2048, chunk_tokens=512)
    point = Service(composed(scheduler), mix(1200, 200)).point(4.0)
    # 4 / 200 requests a step, two full chunks and one of 176 tokens each.
    assert point.mixed_share == pytest.approx(0.06)
    plain = FIXED + 4 * DECODE
    assert point.itl("p50") == pytest.approx(plain)
    assert point.itl("p90") == pytest.approx(plain)
    assert point.itl("p95") == pytest.approx(plain + 176 * PROMPT)
    assert point.itl("p99") == pytest.approx(plain + 512 * PROMPT)
    assert point.itl("mean") == pytest.approx(plain + 0.02 * 1200 * PROMPT)
    assert point.step_s == pytest.approx(point.itl("mean"))


def test_tpot_spreads_over_requests() -> None:
    point = Service(composed(), mix()).point(10.0)
    assert point.tpot("p50") == pytest.approx(point.tpot("mean"))
    share = 10 / 200
    spread_99 = 2.3263 * math.sqrt(share * (1 - share) / 200)
    assert point.tpot("p99") == pytest.approx(point.plain_s + (share + spread_99) * 1000 * PROMPT, rel=1e-4)


def test_users_whose_prompts_take_longer_than_their_answers_decode_for_a_share_of_the_time() -> None:
    scheduler = Scheduler(max_batched_tokens=1024, chunk_tokens=1024)
    closed = Service(composed(scheduler), mix(100_000, 10), open_loop=False)
    assert closed.point(1.0).saturated
    fullest = closed.fullest
    assert fullest is not None
    assert not fullest.saturated
    # A tenth of a request for each decoding sequence a step, and all that the budget has goes to prompts.
    assert fullest.batch == pytest.approx(1023 * 10 / 100_000, rel=0.02)
    opened = Service(composed(scheduler), mix(100_000, 10)).fullest
    assert opened is not None
    assert fullest.rate == pytest.approx(opened.rate, rel=0.01)


def test_a_lone_user_waits_for_nobodys_prefill() -> None:
    scheduler = Scheduler(max_batched_tokens=8192, chunk_tokens=8192)
    closed = Service(composed(scheduler), mix(4000, 20), open_loop=False)
    assert closed.point(1.0).delayed_share == 0.0
    assert closed.point(1.0).itl("p99") == closed.point(1.0).plain_s
    assert closed.point(1.0).tpot("p99") == pytest.approx(FIXED + DECODE)
    # Of two users one decodes while the other prefills: 1 token waits in a mixed step, 2 go on in a plain one.
    assert closed.point(2.0).mixed_share == pytest.approx(0.1)
    assert closed.point(2.0).delayed_share == pytest.approx(0.1 / (0.1 + 2 * 0.9))
    opened = Service(composed(scheduler), mix(4000, 20))
    assert opened.point(1.0).itl("p99") == pytest.approx(FIXED + DECODE + 4000 * PROMPT)


def test_ttft_of_an_idle_replica_is_the_prefill_of_that_percentile() -> None:
    service = Service(composed(), spread())
    point = service.point(1 / 512)
    for percentile, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        prompt = service.mix.prompt.quantile(share)
        assert point.ttft(percentile) == pytest.approx(FIXED + prompt * PROMPT, rel=0.01)


def test_the_queue_is_that_of_m_d_1() -> None:
    scheduler = Scheduler(max_batched_tokens=10_000, chunk_tokens=1000)
    service = Service(composed(scheduler, LinearPricer(decode=0.0)), mix(1000, 10))
    point = service.at_rate(12.0)
    assert point is not None
    served = FIXED + 1000 * PROMPT
    rho = point.rate * served
    wait = rho / (1 - rho) * served / 2
    assert point.prefill_utilization == pytest.approx(rho)
    assert point.queue_s == pytest.approx(wait)
    assert point.ttft("mean") == pytest.approx(wait + served)
    # The chance of a longer wait is rho exp(-t rho / W).
    assert point.ttft("p99") == pytest.approx(served + wait / rho * math.log(rho / 0.01), rel=1e-4)
    bursty = Service(composed(scheduler, LinearPricer(decode=0.0)), mix(1000, 10, arrival_cv=3.0)).at_rate(12.0)
    assert bursty is not None
    assert bursty.queue_s == pytest.approx(9 * wait, rel=0.02)
    regular = Service(composed(scheduler, LinearPricer(decode=0.0)), mix(1000, 10, arrival_cv=0.0)).at_rate(12.0)
    assert regular is not None
    assert regular.queue_s == 0.0
    closed = Service(composed(scheduler), mix(1000, 10), open_loop=False)
    assert closed.point(4.0).queue_s == 0.0


def test_a_cold_compile_is_on_the_way_to_the_first_token() -> None:
    scheduler = Scheduler(chunked=False, first_token_s=2.0, first_token_share=0.02)
    idle = Service(composed(scheduler), mix()).point(1 / 1024)
    alone = FIXED + 1000 * PROMPT
    assert idle.ttft("p90") == pytest.approx(alone, rel=0.01)
    assert idle.ttft("p99") == pytest.approx(2.0 + alone, rel=0.01)
    assert idle.ttft("mean") == pytest.approx(alone + 0.04, rel=0.01)


def test_a_cold_compile_moves_the_percentiles_of_the_rest() -> None:
    scheduler = Scheduler(chunked=False, first_token_s=10.0, first_token_share=0.2)
    requests = spread()
    idle = Service(composed(scheduler), requests).point(1 / 4096)
    # Half of all requests are a fifth that compile, and 3/8 of the others: halfway from the median to the quarter.
    middle = (requests.prompt.quantile(0.5) + requests.prompt.quantile(0.75)) / 2
    assert idle.ttft("p50") == pytest.approx(FIXED + middle * PROMPT, rel=0.01)


def test_end_to_end_goes_by_the_length_of_the_output() -> None:
    output = Lengths(((0.0, 20), (0.5, 100), (1.0, 2000)))
    point = Service(composed(), Mix("test", Lengths.fixed(1000), output)).point(8.0)
    for percentile, tokens in (("mean", output.mean), ("p50", 100.0), ("p999", output.quantile(0.999))):
        assert point.e2e(percentile) == pytest.approx(point.ttft("mean") + (tokens - 1) * point.tpot("mean"))


def test_end_to_end_is_first_token_and_pace() -> None:
    point = Service(composed(), mix()).point(8.0)
    assert point.e2e("p99") == pytest.approx(point.ttft("mean") + 199 * point.tpot("mean"))


def test_prefix_hits_are_not_computed() -> None:
    cold, warm = mix(), mix(prefix_hit=0.75)
    assert warm.new_prompt == 250
    assert warm.computed(1000) == 250
    assert mix(prefix_hit=0.999).computed(10) == 1.0
    rates = [Service(composed(Scheduler(max_sequences=32, chunked=False)), m).max_rate for m in (cold, warm)]
    assert rates[1] > rates[0]
    assert Service(composed(), warm).point(1 / 512).ttft("p50") == pytest.approx(FIXED + 250 * PROMPT, rel=0.01)


# Knee and headroom


def objective(metric: str, seconds: float, headroom: float = 0.0, percentile: str = "p99") -> Objective:
    return Objective(metric, percentile, seconds, seconds * (1 - headroom))


def test_the_knee_keeps_the_limit_with_headroom_once() -> None:
    service = Service(composed(Scheduler(max_sequences=512, chunked=False), LinearPricer(prompt=0.0)), mix())
    goal = objective("itl", 14e-3, headroom=0.1)
    knee = service.knee((goal,))
    assert knee is not None
    # f + d B = 0.9 x 14 ms
    assert knee.batch == math.floor((0.9 * 14e-3 - FIXED) / DECODE + 1e-9) == 130
    assert knee.misses((goal,)) == []
    assert service.point(131.0).misses((goal,))[0].seconds == pytest.approx(FIXED + 131 * DECODE)
    assert service.point(131.0).misses((goal,), declared=True) == []
    assert service.point(201.0).misses((goal,), declared=True)


def test_the_knee_keeps_every_objective() -> None:
    service = Service(composed(Scheduler(max_sequences=512, chunked=False), LinearPricer(prompt=0.0)), mix())
    easy, hard = objective("itl", 18e-3), objective("tpot", 12e-3)
    for goals in ((easy, hard), (hard, easy)):
        knee = service.knee(goals)
        assert knee is not None
        # f + d B = 12 ms
        assert knee.batch == 100
    assert service.knee((easy, objective("ttft", FIXED / 2))) is None


def test_a_knee_below_one_sequence_says_which_rate_is_kept() -> None:
    service = Service(composed(Scheduler(max_batched_tokens=1000, chunk_tokens=1000)), mix(50_000, 10))
    alone = 50 * FIXED + 50_000 * PROMPT
    goal = objective("ttft", alone * 2)
    knee = service.knee((goal,))
    assert knee is not None
    assert 0 < knee.batch < 1
    assert knee.ttft("p99") <= alone * 2
    assert service.point(knee.batch * 1.03).ttft("p99") > alone * 2
    assert service.knee((objective("ttft", alone * 0.9),)) is None


def test_headroom_of_a_spec_is_applied_once(plugins: Plugins) -> None:
    found = review("tpot = { p99 = 0.02 }\nheadroom = 0.25\n", plugins)
    assert [(o.declared_s, o.limit_s) for o in found.objectives] == [(0.02, 0.015)]
    assert found.knee is not None
    assert found.mix is not None
    assert found.knee.tpot("p99") <= 0.015
    next_one = found.service(found.mix).point(found.knee.batch + 1)
    assert 0.015 < next_one.tpot("p99") < 0.02


# Disaggregation


def disaggregated(
    prefill_replicas: int = 1, decode_replicas: int = 1, layerwise: bool = False, decode: LinearPricer | None = None
) -> Any:
    pools = Disaggregation(
        Pool(composed(pricer=LinearPricer(fixed=0.0, prompt=100e-6)), prefill_replicas),
        Pool(composed(Scheduler(max_sequences=64, chunked=False), decode or LinearPricer()), decode_replicas),
        1e9,
        5e-3,
        layerwise,
    )
    return composed(Scheduler(chunked=False, disaggregation=pools))


def test_separate_prefill_delays_no_token() -> None:
    point = Service(disaggregated(), mix()).point(32.0)
    assert point.mixed_share == 0.0
    assert point.itl("p999") == point.plain_s == pytest.approx(FIXED + 32 * DECODE)


def test_the_transfer_is_on_the_way_to_the_first_token() -> None:
    # 4 MB of state at 1 GB/s after 5 ms of setup; streamed by layer only a quarter of it is left at the end.
    idle = Service(disaggregated(), mix()).point(1 / 1024)
    assert idle.ttft("p50") == pytest.approx(0.1 + 5e-3 + 4e-3, rel=0.01)
    streamed = Service(disaggregated(layerwise=True), mix()).point(1 / 1024)
    assert streamed.ttft("p50") == pytest.approx(0.1 + 5e-3 + 1e-3, rel=0.01)


def test_a_prompt_that_fills_a_step_of_its_pool_has_it_alone() -> None:
    budget = Scheduler(max_batched_tokens=1000, chunked=False)
    pools = Disaggregation(Pool(composed(budget, PairPricer(among=1e-6)), 1), Pool(composed(), 1), 1e9, 0.0, False)
    service = Service(composed(Scheduler(chunked=False, disaggregation=pools)), mix(250))
    # Four prompts of 250 share a step; one of 1,000 has all of its query-key pairs.
    assert service.pool_share_s(250.0) == pytest.approx((FIXED + 4 * 1e-6 * 250**2) / 4)
    assert service.pool_share_s(1000.0) == pytest.approx(FIXED + 1e-6 * 1000**2)


def test_the_slower_pool_limits_the_rate() -> None:
    # One prefill replica computes ten prompts a second; 64 sequences a decode replica finish 28.4 a second.
    decode_rate = 64 / 200 / (FIXED + 64 * DECODE)
    assert decode_rate == pytest.approx(28.37, abs=0.01)
    for prefills, decodes, most in ((1, 1, 10.0), (2, 1, 20.0), (3, 1, decode_rate), (8, 2, 2 * decode_rate)):
        service = Service(disaggregated(prefills, decodes), mix())
        # Batches are whole sequences, so a saturated pool is met to within one.
        assert service.max_rate == pytest.approx(most, rel=0.05)
        assert service.max_rate <= most * (1 + 1e-9)
        assert service.at_rate(most * 1.01) is None
        point = service.at_rate(service.max_rate * 0.9)
        assert point is not None
        assert point.rate * decodes == pytest.approx(service.max_rate * 0.9, rel=0.003)
        assert point.prefill_utilization == pytest.approx(service.max_rate * 0.9 / (10.0 * prefills), rel=0.003)


# Real compositions


def review(slo: str, plugins: Plugins, hardware: str = "", prompt: str = "{ p50 = 900, p99 = 7000 }") -> Review:
    text = f"""\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
{hardware}
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[workload]
prompt_tokens = {prompt}
output_tokens = {{ p50 = 250, p99 = 1200 }}
rate = "2 req/s"
[slo]
{slo}"""
    document = parse("spec.toml", text, plugins.policies)
    assert document.problems == []
    return Review(document, plugins, Path())


SPLITS = ["", "devices = 4\n[policy.parallelism]\ntensor = 2\npipeline = 2", "devices = 2"]


@pytest.mark.parametrize("hardware", SPLITS)
@pytest.mark.parametrize("figure", ["bound", "sustained_bound", "estimate"])
def test_more_sequences_carry_more_and_wait_longer(hardware: str, figure: Any, plugins: Plugins) -> None:
    found = review("itl = { p99 = 0.2 }", plugins, hardware)
    assert found.mix is not None
    points = [p for p in found.service(found.mix, figure).frontier() if p.batch >= 2]
    assert len(points) > 5
    for low, high in pairwise(points):
        assert high.rate >= low.rate
        assert high.itl("mean") >= low.itl("mean")
        assert high.itl("p99") >= low.itl("p99") * (1 - 1e-9)
        assert high.tpot("p99") >= low.tpot("p99")


def test_figures_are_ordered(plugins: Plugins) -> None:
    found = review("itl = { p99 = 0.2 }", plugins)
    assert found.mix is not None
    bound, sustained, estimate = (found.service(found.mix, f) for f in ("bound", "sustained_bound", "estimate"))
    assert bound.limits == estimate.limits
    assert bound.max_rate >= sustained.max_rate >= estimate.max_rate > 0
    for batch in (1.0, 17.0, 200.0):
        points = [s.point(batch) for s in (bound, sustained, estimate)]
        assert [p.step_s for p in points] == sorted(p.step_s for p in points)
        assert points[0].throughput <= batch / points[0].plain_s


def test_longer_contexts_hold_fewer_sequences(plugins: Plugins) -> None:
    found = review("itl = { p99 = 0.2 }", plugins)
    assert found.mix is not None
    limits = [found.service(found.mix.at_context(c)).limits["KV capacity"] for c in (500, 2000, 8000, 16000)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] > 10 * limits[-1]


def test_a_low_rate_is_carried_whatever_the_lengths(plugins: Plugins) -> None:
    found = review("ttft = { p99 = 5.0 }", plugins, prompt="15000")
    assert found.mix is not None
    for rate in (1e-4, 1e-3, 1e-2, 0.1):
        point = found.service(found.mix).at_rate(rate)
        assert point is not None
        assert point.rate == pytest.approx(rate, rel=0.003)
        assert point.ttft("p99") < 3.0


def test_any_of_tiny_chances_is_their_sum() -> None:
    for chance in (1e-300, 1e-30, 1e-17):
        assert _any_of(chance, 8) == pytest.approx(8 * chance, rel=1e-12)
    assert _any_of(0.25, 2) == pytest.approx(1 - 0.75**2)
    assert _any_of(1.0, 4) == _any_of(1.0 + 1e-12, 4) == 1.0


@pytest.mark.parametrize("rate", [1e-21, 1e-19, 1e-9, 1.0])
def test_ranks_in_lockstep_carry_the_least_rates(rate: float, plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "Qwen/Qwen3-30B-A3B"
[policy.parallelism]
data = 2
expert = 2
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = 1
"""
    found = review_of(text, plugins)
    assert found.mix is not None
    point = found.service(found.mix).at_rate(rate)
    assert point is not None
    figures = [point.rate, point.ttft("p99"), point.itl("p99"), point.tpot("p99"), point.tpot("p50"), point.e2e("p99")]
    assert all(math.isfinite(f) and f > 0 for f in figures)


@pytest.mark.parametrize("share", [1.0 + 1e-15, 1.0, 0.5, 1e-300, -1e-18])
def test_a_share_that_rounding_takes_past_its_ends_has_a_spread(share: float, plugins: Plugins) -> None:
    found = review("itl = { p99 = 0.2 }", plugins)
    assert found.mix is not None
    point = found.service(found.mix).point(4.0)
    vars(point)["delayed_share"] = share
    assert 0.0 <= point.delayed_share_of_request("p99") <= 1.0


POOLS = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192
[policy.disaggregation]
prefill = { tensor = 1, replicas = 1 }
decode = { tensor = 1, replicas = NUMBER }
transfer = { bandwidth = "50 GB/s" }
[workload]
prompt_tokens = { p50 = 5000, p99 = 12000 }
output_tokens = { p50 = 60, p99 = 200 }
rate = "5 req/s"
"""


@pytest.mark.parametrize("number", range(1, 7))
def test_a_rate_that_fewer_decode_replicas_carry_is_carried_by_more(number: int, plugins: Plugins) -> None:
    document = parse("spec.toml", POOLS.replace("NUMBER", str(number)), plugins.policies)
    review = Review(document, plugins, Path())
    point = review.operating_point
    assert point is not None
    assert point.rate * point.service.decode_replicas == pytest.approx(5.0, rel=0.005)


# Slots


@pytest.mark.parametrize("kept", [1.0, 1.5])
@pytest.mark.parametrize(
    ("arrival_cv", "outputs"),
    [(1.0, ((0.0, 200), (1.0, 200))), (2.0, ((0.0, 20), (1.0, 400))), (0.5, ((0.0, 200), (1.0, 200)))],
)
def test_the_wait_for_a_slot_is_that_of_a_g_g_c_queue(
    arrival_cv: float, outputs: tuple[tuple[float, float], ...], kept: float
) -> None:
    output = Lengths(outputs)
    requests = Mix("test", Lengths.fixed(100), output, arrival_cv=arrival_cv)
    scheduler = Scheduler(max_sequences=8, chunked=False, verify_tokens=3, tokens_per_step=kept)
    service = Service(composed(scheduler, LinearPricer(prompt=0.0)), requests)
    point = service.point(7.0)
    held = output.mean / kept * point.step_s + point.prefill_s(100)
    busy = point.rate * held / 8
    assert point.slots_busy == pytest.approx(busy)
    assert 0.8 < busy < 1
    chance, wait = point.slot_wait
    # Sakasegawa's chance, and Allen and Cunneen's mean of the squared variations of arrivals and outputs.
    assert chance == pytest.approx(busy ** (math.sqrt(2 * 9) - 1))
    varied = arrival_cv**2 + output.second_moment / output.mean**2 - 1
    assert wait == pytest.approx(chance * held * varied / 2 / 8 / (1 - busy))
    assert point.wait[0] == pytest.approx(1 - (1 - point.prefill_utilization) * (1 - chance))
    assert point.wait[1] == pytest.approx(point.queue_s + wait)
    assert Service(service.composition, requests, open_loop=False).point(7.0).slot_wait == (0.0, 0.0)


def test_all_slots_taken_is_a_wait_without_end() -> None:
    service = Service(composed(Scheduler(max_sequences=8, chunked=False), LinearPricer(prompt=0.0)), mix(100, 10))
    point = service.point(8.0)
    # Eight decode, and the prefill of others needs a slot besides.
    assert point.slots_busy > 1
    assert point.slot_wait == (1.0, math.inf)
    assert point.ttft("p50") == math.inf


def test_a_scheduler_that_nobody_set_changes_nothing() -> None:
    plain = Scheduler()
    assert plain.yield_per_step == 1.0
    assert (plain.first_token_s, plain.first_token_share) == (0.0, 0.0)
    assert (plain.samples, plain.ranks, plain.verify_tokens, plain.lockstep) == (1, 1, 1, False)
    assert plain.chunked
    assert plain.prefix_reuse
    assert (plain.max_sequences, plain.max_batched_tokens, plain.chunk_tokens, plain.disaggregation) == (None,) * 4


# Prompts that go first, in steps of their own

FIRST = Scheduler(chunk_tokens=400, max_batched_tokens=1000, mixed=False)
PLAIN = FIXED + 4 * DECODE
PROMPT_OF_1000 = 3 * FIXED + 1000 * PROMPT
"""Three steps of prompts alone, of 400, 400 and 200 tokens."""


def test_a_token_waits_for_whole_prompts_that_go_first() -> None:
    point = Service(composed(FIRST), mix(1000, 200), open_loop=False).point(4.0)
    # 4 requests of 200 tokens end every 50 steps: as often a prompt comes.
    assert point.requests_per_step == pytest.approx(1 / 50)
    assert point.plain_s == pytest.approx(PLAIN)
    assert point.average_mixed_s == pytest.approx(PLAIN + PROMPT_OF_1000)
    assert point.step_s == pytest.approx(PLAIN + PROMPT_OF_1000 / 50)
    assert point.itl("p99") == pytest.approx(PLAIN + PROMPT_OF_1000)
    assert point.mixed_step("p99") == (pytest.approx(PLAIN + PROMPT_OF_1000), 1000, 0, 1, False)
    # Nobody decodes beside it; its last step also takes what others bring meanwhile, a fiftieth of a prompt.
    assert point.ttft("mean") == pytest.approx(PROMPT_OF_1000 + 1000 / 50 * PROMPT)
    beside = Service(composed(Scheduler(chunk_tokens=400, max_batched_tokens=1000)), mix(1000, 200), open_loop=False)
    assert beside.point(4.0).itl("p99") < point.itl("p99")


def test_what_arrives_during_prompts_is_let_in_before_the_next_token() -> None:
    point = Service(composed(FIRST), mix(1000, 200)).point(4.0)
    # Of a step, prompts take a share of the seconds, in which as large a share of requests arrives.
    step = PLAIN + PROMPT_OF_1000 / 50
    assert point.step_s == pytest.approx(step)
    assert point.mixed_share == pytest.approx(PLAIN / step / 50)
    assert point.average_mixed_s == pytest.approx(PLAIN + PROMPT_OF_1000 * step / PLAIN)
    assert point.prefill_utilization == pytest.approx(point.rate * (1000 * PROMPT + 2.5 * FIXED))
    assert not point.saturated
    assert Service(composed(FIRST), mix(1000, 1)).point(4.0).saturated is False


def test_short_prompts_share_steps_of_their_own() -> None:
    point = Service(composed(FIRST), mix(100, 10), open_loop=False).point(100.0)
    # 10 prompts of 100 tokens come with every step, four of which fill one.
    assert point.requests_per_step == pytest.approx(10)
    assert point.average_mixed_s == pytest.approx(FIXED + 100 * DECODE + 2.5 * FIXED + 1000 * PROMPT)
    # The step that one is in has room for three more.
    assert point.ttft("mean") == pytest.approx(FIXED + 400 * PROMPT)


@pytest.mark.parametrize(("batch", "company"), [(10.0, 21.0), (40.0, 84.0), (200.0, 380.0), (300.0, 380.0)])
def test_a_short_end_of_a_prompt_has_company_in_its_step(batch: float, company: float) -> None:
    """Of 420 tokens 20 are left for a second step, which what arrives with a token fills up to 400."""
    point = Service(composed(FIRST), mix(420, 200), open_loop=False).point(batch)
    assert point.ttft("mean") == pytest.approx(2 * FIXED + (420 + company) * PROMPT)


@pytest.mark.parametrize("between", [1, 4])
def test_sequences_decode_between_two_steps_of_prompts(between: int) -> None:
    scheduler = Scheduler(chunk_tokens=400, max_batched_tokens=1000, mixed=False, decodes_between=between)
    point = Service(composed(scheduler), mix(1000, 200), open_loop=False).point(4.0)
    chunk = FIXED + 400 * PROMPT
    assert point.itl("p99") == pytest.approx(PLAIN + chunk)
    assert point.ttft("mean") == pytest.approx(PROMPT_OF_1000 + 1000 / 50 * PROMPT + 2 * between * PLAIN)
    # A step in so many takes a chunk: 1,000 tokens a request are 400 x 1 / between of it at most.
    most = 400 / between / 1000
    batches = [most * 200 * (1 + by) for by in (-1e-6, 1e-6)]
    assert [Service(composed(scheduler), mix(1000, 200)).point(b).saturated for b in batches] == [False, True]
    assert Service(composed(scheduler), mix(1000, 200)).point(batches[1]).mixed_share == pytest.approx(1 / between)


@pytest.mark.parametrize("open_loop", [True, False])
@pytest.mark.parametrize("batch", [20.0, 200.0, 800.0])
def test_ranks_in_lockstep_prefill_what_arrives(batch: float, open_loop: bool) -> None:
    """The prompts of all ranks in the average step are those that arrive in it, whoever waits for whom."""
    scheduler = Scheduler(chunk_tokens=8000, mixed=False, ranks=4, lockstep=True)
    tokens_only = LinearPricer(fixed=0.0, decode=1e-9, prompt=PROMPT)
    point = Service(composed(scheduler, tokens_only), mix(4000, 100), open_loop=open_loop).point(batch)
    prompts = (point.step_s - point.plain_s) / (4000 * PROMPT)
    assert prompts == pytest.approx(point.requests_per_step)
    assert point.requests_per_step == pytest.approx(batch / 100)


def test_the_interval_of_ranks_in_lockstep_is_one_for_all() -> None:
    scheduler = Scheduler(chunk_tokens=8000, mixed=False, ranks=8, lockstep=True, decodes_between=8)
    service = Service(composed(scheduler), mix(4000, 100))
    assert service.point(80.0).mixed_share == pytest.approx(1 / 8)
    assert not service.point(80.0).saturated
    # 8 ranks take 2 prompts each with every eighth step: 200 sequences bring as many.
    assert [service.point(200.0 * (1 + by)).saturated for by in (-1e-6, 1e-6)] == [False, True]


def test_mixed_steps_have_decoding_steps_between_them_too() -> None:
    scheduler = Scheduler(chunk_tokens=400, max_batched_tokens=1000, decodes_between=4)
    point = Service(composed(scheduler), mix(1000, 200), open_loop=False).point(1.0)
    # Of five steps one takes a chunk: 400 tokens of 1,000 a request, which comes with every 200.
    assert point.ttft("mean") == pytest.approx(
        3 * (FIXED + DECODE) + (1000 + 1000 / 200) * PROMPT + 2 * 4 * (FIXED + DECODE)
    )
    most = 400 / 5 / 1000 * 200
    service = Service(composed(scheduler), mix(1000, 200))
    assert [service.point(most * (1 + by)).saturated for by in (-1e-6, 1e-6)] == [False, True]


def test_whole_prompts_stay_whole() -> None:
    scheduler = Scheduler(max_batched_tokens=500, mixed=False, decodes_between=1)
    service = Service(composed(scheduler), mix(400, 100))
    # One prompt of 400 tokens to a step of 500, and not one and a quarter.
    assert service.prompt_room == 400
    assert [service.point(100.0 * (1 + by)).saturated for by in (-1e-6, 1e-6)] == [False, True]
    two = Service(composed(Scheduler(max_batched_tokens=500, mixed=False)), mix(200, 100), open_loop=False).point(500.0)
    assert two.average_mixed_s - two.plain_s == pytest.approx(2.5 * FIXED + 1000 * PROMPT)


def test_prompts_that_go_first_take_no_budget_from_decoding() -> None:
    scheduler = Scheduler(max_batched_tokens=16, mixed=False)
    assert "max_batched_tokens" not in Service(composed(scheduler), mix()).limits
    assert Service(composed(Scheduler(max_batched_tokens=16)), mix()).limits["max_batched_tokens"] == 16


# Chances of a wait


@pytest.mark.parametrize("busy", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("low", "high"), [(1.0, 3.0), (0.5, 0.5), (0.0, 2.0)])
@pytest.mark.parametrize("scale", [0.0, 0.7, 4.0])
def test_a_prefill_and_a_wait_end_late_as_often_as_their_sum_does(
    busy: float, low: float, high: float, scale: float
) -> None:
    def exact(t: float) -> float:
        """The mean over prefills, by the midpoint rule, of what the wait alone exceeds what is left of t."""
        parts = 4000
        each = [low + (high - low) * (i + 0.5) / parts for i in range(parts)]
        waits = busy if scale > 0 else 0.0
        return sum(1.0 if x > t else waits * math.exp((x - t) / scale) if waits else 0.0 for x in each) / parts

    for t in (low - 0.2, low + 0.1, (low + high) / 2 + 0.01, high + 0.3, high + 5.0):
        assert _beyond(t, low, high, busy, scale) == pytest.approx(exact(t), abs=5e-4)


def test_a_fixed_prefill_is_over_at_its_end_unless_something_waits() -> None:
    assert _beyond(2.0, 2.0, 2.0, 0.25, 1.0) == 0.25
    assert _beyond(2.0, 2.0, 3.0, 0.25, 1.0) == 1.0
    assert _beyond(3.0, 2.0, 3.0, 0.25, 0.0) == 0.0


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_the_quantile_is_that_of_a_normal_distribution(p: float) -> None:
    assert _normal_quantile(p) == pytest.approx(NormalDist().inv_cdf(p), abs=1e-6)


@pytest.mark.parametrize(("p", "far"), [(0.0, -8.0), (-0.5, -8.0), (1.0, 8.0), (1.5, 8.0)])
def test_beyond_every_quantile_lie_eight_deviations(p: float, far: float) -> None:
    assert _normal_quantile(p) == far


# The last piece of a prompt


class PairPricer(LinearPricer):
    """Step times in the query-key pairs of prompts: new tokens among themselves, and with what lies before them."""

    def __init__(self, among: float = 0.0, before: float = 0.0) -> None:
        super().__init__(fixed=0.0, decode=0.0)
        self.among, self.before = among, before

    def estimate(self, s: StepShape) -> float:
        pairs = self.among * s.prefill_tokens**2 + self.before * s.prefill_tokens * s.prefill_context
        return FIXED + s.prefill_sequences * pairs


def test_company_has_the_query_key_pairs_of_its_pieces() -> None:
    scheduler = Scheduler(max_batched_tokens=4096, chunk_tokens=2048)
    point = Service(composed(scheduler, PairPricer(among=1e-9)), mix(300, 100)).point(400.0)
    a_step = 400.0 / 100
    company = min(a_step * 300.0, 2048 - 500.0)
    assert company == 1200.0
    # Four pieces of 300 tokens and one of 500.
    assert point._last_s(500.0, 500.0) == pytest.approx(FIXED + 1e-9 * (500.0**2 + company * 300.0))


@pytest.mark.parametrize(("tokens", "last"), [(2000.0, 464), (2048.0, 512)])
def test_chunks_read_what_came_before_them(tokens: float, last: int) -> None:
    scheduler = Scheduler(max_batched_tokens=520, chunk_tokens=512)
    point = Service(composed(scheduler, PairPricer(before=1e-9)), mix(1000, 1000)).point(1e-9)
    # Three pieces of 512 tokens after 0, 512 and 1,024, and a last one after 1,536, which may fill the chunk.
    pairs = 512 * (0 + 512 + 1024) + last * 1536
    assert point.prefill_s(tokens) == pytest.approx(4 * FIXED + 1e-9 * pairs)


def test_company_reads_what_came_before_it() -> None:
    scheduler = Scheduler(max_batched_tokens=4096, chunk_tokens=512)
    point = Service(composed(scheduler, PairPricer(before=1e-9)), mix(1000, 1000)).point(10.0)
    # Ten tokens of others come along, of pieces with 0 or 512 tokens before them.
    assert point._last_s(1000.0, 488.0) == pytest.approx(FIXED + 1e-9 * (488 * 512 + 10 * 256))


@pytest.mark.parametrize(
    ("number", "tokens", "last", "seconds"),
    [
        (2, 500.0, 500.0, 500e-6),
        (2, 5000.0, 1000.0, 1000e-6 + 4000e-9),
        (2, 100.0, 100.0, 1e-6 * (100**2 + 1200 * 300) / 1300),
        (1, 500.0, 500.0, 1e-6 * (500**2 + 1200 * 300) / 1700),
    ],
)
def test_a_prompt_walks_through_stages_as_a_whole(number: int, tokens: float, last: float, seconds: float) -> None:
    class Walk(LinearPricer):
        graph = SimpleNamespace(stages=number)

        def estimate(self, s: StepShape) -> float:
            return s.prefill_tokens * 1e-6 + s.prefill_context * 1e-9

    scheduler = Scheduler(max_batched_tokens=4096, chunk_tokens=2048)
    point = Service(composed(scheduler, Walk()), mix(300, 100)).point(400.0)
    # The step has 1,200 tokens in pieces of 300 beside it; of equal pieces with as many pairs one walks, or the
    # prompt itself where it is longer.
    assert point._last_s(tokens, last) == pytest.approx(seconds)


def test_a_last_piece_alone_reads_the_chunks_before_it_and_gives_a_token() -> None:
    class Outputs(PairPricer):
        def estimate(self, s: StepShape) -> float:
            return super().estimate(s) + s.prefill_sequences * s.prefill_outputs * 1e-3

    point = Service(composed(Scheduler(chunked=False), Outputs(before=1e-9)), mix(1000, 1000)).point(1e-12)
    assert point._last_s(1000.0, 200.0) == pytest.approx(FIXED + 1e-9 * 200 * 800 + 1e-3)


def test_ranks_that_prefill_by_chance_take_what_lies_between_one_and_all() -> None:
    """Pairs of 2.5 equal pieces on every rank lie between those of two and of three."""
    scheduler = Scheduler(max_batched_tokens=8192, chunk_tokens=4096, ranks=4, lockstep=True)
    point = Service(composed(scheduler, PairPricer(among=1e-9)), mix(400, 100)).point(40.0)
    together = point._together
    assert 1.0 < together < 4.0
    # As many ranks as meet by chance have one piece each, or all four have several.
    alone = FIXED + 1e-9 * together * 600.0**2
    halves, thirds = (FIXED + 1e-9 * 4 * n * (600.0 / n) ** 2 for n in (2, 3))
    for pieces, every in ((2.0, halves), (2.5, (halves + thirds) / 2), (3.0, thirds)):
        expected = alone + (together - 1) / 3 * (every - alone)
        assert point.mixed_s(600.0, 0.0, 1.0, pieces) == pytest.approx(expected)
    assert point.mixed_s(600.0, 0.0, 1.0, 1.0) == pytest.approx(alone)
    assert point.mixed_s(600.0, 0.0, 1.0, 0.5) == pytest.approx(alone)


def test_a_single_rank_prefills_pieces_of_any_number() -> None:
    scheduler = Scheduler(max_batched_tokens=8192, chunk_tokens=4096)
    point = Service(composed(scheduler, PairPricer(among=1e-9)), mix(400, 100)).point(40.0)
    assert point.mixed_s(600.0, 0.0, 1.0, 2.5) == pytest.approx(FIXED + 1e-9 * 600.0**2 / 2.5)


def test_prefill_occupies_the_steps_that_its_chunks_take_on_average() -> None:
    scheduler = Scheduler(max_batched_tokens=512, chunk_tokens=512)
    point = Service(composed(scheduler, PairPricer(before=1e-9)), mix(2000, 1000)).point(4.0)
    # Four sequences decode, which leaves 508 tokens of a step: a chunk halfway through a prompt of 2,000.
    step = FIXED + 1e-9 * 508 * (2000 - 508) / 2
    assert point.prefill_utilization == pytest.approx(point.rate * 2000 / 508 * step)


@pytest.mark.parametrize(("batch", "together"), [(8.0, 1.0), (600.0, 3.0)])
def test_without_a_budget_prefill_occupies_steps_of_what_arrives_in_one(batch: float, together: float) -> None:
    point = Service(composed(Scheduler(chunked=False)), mix()).point(batch)
    # A prompt is prefilled alone where fewer arrive, or with as many as do.
    step = FIXED + batch * DECODE + together * 1000 * PROMPT
    assert point.prefill_utilization == pytest.approx(point.rate * step / together)


@pytest.mark.parametrize(("prompt", "pieces"), [(2000, 1.0), (300, 508 / 300), (100, 5.08)])
def test_prefill_occupies_steps_of_as_many_prompts_as_they_hold(prompt: float, pieces: float) -> None:
    class Outputs(PairPricer):
        def estimate(self, s: StepShape) -> float:
            return super().estimate(s) + s.prefill_sequences * s.prefill_outputs * 1e-3

    scheduler = Scheduler(max_batched_tokens=512, chunk_tokens=512)
    point = Service(composed(scheduler, Outputs(among=1e-9)), mix(prompt, 1000)).point(4.0)
    # Each of the pieces gives a token.
    step = FIXED + pieces * (1e-9 * (508 / pieces) ** 2 + 1e-3)
    assert point.prefill_utilization == pytest.approx(point.rate * prompt / 508 * step)


@pytest.mark.parametrize(("most", "limit"), [(1, 1.5), (2, 2.5), (7, 7.5)])
def test_the_knee_is_the_last_whole_number_that_holds(most: int, limit: float) -> None:
    pricer = LinearPricer(fixed=0.0, decode=1e-3, prompt=0.0)
    service = Service(composed(Scheduler(max_batched_tokens=4096, chunked=False), pricer), mix(100, 100))
    knee = service.knee((objective("itl", limit * 1e-3),))
    assert knee is not None
    assert knee.batch == most
