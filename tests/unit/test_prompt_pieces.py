"""How prompts fall into the steps of an operating point: their pieces, what is cached before each, ranks that meet."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.distribution import Lengths
from servelint.scheduler import Scheduler
from servelint.service import Mix, MixedStep, Service, _Kind
from servelint.shapes import StepShape

FIXED, DECODE, PROMPT = 10e-3, 20e-6, 30e-6


class Pricer:
    """Step times linear in what is decoded and prefilled, and in the prompts that end in the step."""

    graph = SimpleNamespace(stages=1)

    def __init__(self, read: float = 0.0, output: float = 0.0) -> None:
        self.read, self.output = read, output

    def estimate(self, s: StepShape) -> float:
        each = s.prefill_tokens * PROMPT + s.prefill_context * self.read + s.prefill_outputs * self.output
        return FIXED + s.batch * s.new_tokens * DECODE + s.prefill_sequences * each

    def bound(self, s: StepShape) -> float:
        return self.estimate(s) / 2


def service(
    mix: Mix, chunk: int | None = 512, pricer: Pricer | None = None, open_loop: bool = True, **scheduler: Any
) -> Service:
    budget = {"max_batched_tokens": 8192, "chunk_tokens": chunk, "chunked": chunk is not None}
    composition: Any = SimpleNamespace(
        scheduler=Scheduler(**{**budget, **scheduler}),
        pricer=pricer or Pricer(),
        memory=SimpleNamespace(caches=(), resident_sequences=lambda context: 1_000_000),
        setup=SimpleNamespace(
            architecture=SimpleNamespace(num_layers=4, blocks=(), state_bytes_per_sequence=lambda: 4e6)
        ),
    )
    return Service(composition, mix, open_loop=open_loop)


def spread(low: float, high: float, **changes: Any) -> Mix:
    return Mix("test", Lengths(((0.0, low), (1.0, high))), Lengths.fixed(100), **changes)


@pytest.mark.parametrize(("low", "high"), [(520, 760), (512.25, 512.75)])
def test_prompts_of_little_more_than_a_chunk_have_one_and_what_is_left(low: float, high: float) -> None:
    mix = spread(low, high)
    point = service(mix).point(4.0)
    full = [p for p in point._pieces if not p.ends]
    rest = [p for p in point._pieces if p.ends]
    assert sum(p.per_request for p in full) == pytest.approx(1.0)
    assert {p.sizes for p in full} == {(512, 512)}
    assert sum(p.per_request for p in rest) == pytest.approx(1.0)
    assert sum(p.per_request * p.tokens for p in rest) == pytest.approx(mix.prompt.mean - 512)
    assert (min(p.sizes[0] for p in rest), max(p.sizes[1] for p in rest)) == pytest.approx((low - 512, high - 512))
    assert {p.pasts for p in full} == {(0.0, 0.0)}
    assert {p.pasts for p in rest} == {(512.0, 512.0)}


@pytest.mark.parametrize("knots", [((0.0, 100), (1.0, 512)), ((0.0, 100), (0.3, 512), (1.0, 512))])
def test_prompts_up_to_a_chunk_are_whole(knots: tuple[tuple[float, float], ...]) -> None:
    point = service(Mix("test", Lengths(knots), Lengths.fixed(100))).point(4.0)
    assert all(p.ends and p.sizes[0] <= p.tokens <= p.sizes[1] <= 512 for p in point._pieces)
    assert sum(p.per_request for p in point._pieces) == pytest.approx(1.0)


def test_beyond_half_a_chunk_more_the_last_piece_has_any_size() -> None:
    mix = spread(780, 1_200)
    pieces = service(mix).point(4.0)._pieces
    (rest,) = [p for p in pieces if p.ends]
    # A last piece of half a chunk in the mean, and half a full chunk less than prompts are long.
    assert (rest.per_request, rest.tokens, rest.sizes) == (pytest.approx(1.0), 256, (0.0, 512))
    assert rest.past == pytest.approx(mix.prompt.mean - 256)
    assert {p.sizes for p in pieces if not p.ends} == {(512, 512)}
    assert sum(p.per_request for p in pieces if not p.ends) == pytest.approx(mix.prompt.mean / 512 - 0.5)


@pytest.mark.parametrize(
    ("low", "high", "hit"),
    [(400, 700, 0.0), (800, 1400, 0.5), (400, 1000, 0.0), (1600, 4000, 0.75), (600, 900, 0.0), (2000, 3500, 0.7)],
)
def test_each_length_is_cut_on_its_side_of_a_chunk(low: float, high: float, hit: float) -> None:
    mix = spread(low, high, prefix_hit=hit)
    pieces = service(mix).point(4.0)._pieces
    new = [mix.prompt.quantile((i + 0.5) / 20_000) * (1 - hit) for i in range(20_000)]
    # None up to a chunk, one up to half a chunk more, and half a chunk less than they are long beyond.
    chunks = [0.0 if n <= 512 else 1.0 if n <= 768 else n / 512 - 0.5 for n in new]
    full = sum(p.per_request for p in pieces if not p.ends)
    assert full == pytest.approx(sum(chunks) / len(chunks), rel=1e-3)
    assert sum(p.per_request * p.tokens for p in pieces) == pytest.approx(mix.new_prompt)


def test_long_prompts_are_cut_as_an_exact_cut_is_in_the_mean() -> None:
    mix = spread(2_000, 6_000)
    prompts = service(mix).point(4.0)._prompts
    # The exact cut of a thousand lengths in between.
    lengths = [mix.prompt.quantile((i + 0.5) / 1000) for i in range(1000)]
    wholes = [math.ceil(n / 512) - 1 for n in lengths]
    chunks = sum(wholes) / 1000
    assert prompts.full == pytest.approx(chunks, rel=0.01)
    assert prompts.rest == pytest.approx(1.0)
    ends = [n - 512 * k for n, k in zip(lengths, wholes, strict=True)]
    assert prompts.rest_tokens == pytest.approx(sum(ends) / 1000, rel=0.05)
    before_full = sum(512 * k * (k - 1) / 2 for k in wholes) / sum(wholes)
    assert prompts.full_context == pytest.approx(before_full, rel=0.02)
    assert prompts.rest_context == pytest.approx(sum(512 * k for k in wholes) / 1000, rel=0.02)
    every = chunks + 1
    assert prompts.context == pytest.approx((chunks * before_full + 512 * chunks) / every, rel=0.02)


@pytest.mark.parametrize("hit", [0.25, 0.5])
def test_what_is_cached_already_lies_before_the_first_piece(hit: float) -> None:
    fixed = Mix("test", Lengths.fixed(4000), Lengths.fixed(100), prefix_hit=hit)
    prompts = service(fixed).point(4.0)._prompts
    new = 4000 * (1 - hit)
    wholes = math.ceil(new / 512) - 1
    assert prompts.full == wholes
    assert prompts.full_context == pytest.approx(4000 * hit + (wholes - 1) / 2 * 512)
    assert prompts.rest_tokens == pytest.approx(new - 512 * wholes)
    assert prompts.rest_context == pytest.approx(4000 - prompts.rest_tokens)
    # Lengths that hardly differ come out as one length does.
    near = service(spread(3_990, 4_010, prefix_hit=hit)).point(4.0)._prompts
    assert near.full_context == pytest.approx(prompts.full_context, rel=0.1)


def test_only_the_piece_that_ends_a_prompt_gives_a_token() -> None:
    mix = Mix("test", Lengths.fixed(1536), Lengths.fixed(100))
    point = service(mix, pricer=Pricer(output=1e-3)).point(4.0)
    plain = FIXED + 4 * DECODE
    # 1536 tokens are two chunks that go on and one that ends.
    assert point.mixed_share == pytest.approx(3 * 4 / 100)
    assert point.average_mixed_s == pytest.approx(plain + 512 * PROMPT + 1e-3 / 3)
    assert point.itl("p99") == pytest.approx(plain + 512 * PROMPT + 1e-3)
    assert point.prefill_s(1536) == pytest.approx(3 * (plain + 512 * PROMPT) + 1e-3)


def test_steps_between_two_ends() -> None:
    cheap, dear = MixedStep(0.01, 100, 0, 2.0, False), MixedStep(0.03, 300, 1000, 1.0, True)
    kind = _Kind(0.2, cheap, dear)
    assert kind.at(0.015) == MixedStep(0.015, 150, 250, 1.0, True)
    assert kind.at(0.03)[:3] == (0.03, 300, 1000)
    assert kind.at(0.5)[1:3] == (300, 1000)
    assert kind.at(0.001)[1:3] == (100, 0)
    assert [kind.beyond(t) for t in (0.005, 0.01, 0.02, 0.03, 0.04)] == pytest.approx([0.2, 0.2, 0.1, 0.0, 0.0])
    assert _Kind(0.2, cheap, cheap).at(0.01) == cheap
    # Of steps that take equally long the dearer end stands for all.
    alike = MixedStep(0.01, 300, 1000, 1.0, True)
    assert _Kind(0.2, cheap, alike).at(0.01) == alike


def test_ranks_in_lockstep_prefill_alone_when_prompts_are_rare_and_together_when_not() -> None:
    mix = Mix("test", Lengths.fixed(512), Lengths.fixed(1000))
    rare = service(mix, ranks=8, lockstep=True).point(8.0)
    own = 1.0 / 1000
    assert rare._together == pytest.approx(8 * own / (1 - (1 - own) ** 8))
    assert 1.0 < rare._together < 1.01
    busy = service(mix, ranks=8, lockstep=True).point(8000.0)
    assert busy._together == pytest.approx(8.0)
    apart = service(mix, ranks=8).point(8.0)
    assert apart._together == 8.0


@pytest.mark.parametrize("ranks", [2, 8])
def test_in_lockstep_a_step_of_any_rank_is_mixed_for_all(ranks: int) -> None:
    # A chunk and a last piece of 88 tokens, each in a hundredth of a rank's steps.
    mix = Mix("test", Lengths.fixed(600), Lengths.fixed(1000))
    point, apart = (service(mix, ranks=ranks, lockstep=together).point(10.0 * ranks) for together in (True, False))
    assert apart.mixed_share == pytest.approx(0.02)
    assert point.mixed_share == pytest.approx(1 - 0.98**ranks)
    full, rest, _ = point._shares
    assert full == pytest.approx(rest)


def test_last_pieces_take_the_steps_that_full_chunks_leave() -> None:
    # Two chunks of 512 and a piece of 76 tokens, each for four requests in ten steps.
    mix = Mix("test", Lengths.fixed(1100), Lengths.fixed(100))
    point = service(mix).point(40.0)
    assert point.mixed_share == pytest.approx(1.0)
    # Eight steps have a chunk; the four pieces meet in the other two.
    assert point._shares == pytest.approx((0.8, 0.2, 2.0))
    assert point.step_s == pytest.approx(FIXED + 40 * DECODE + 0.4 * 1100 * PROMPT)


def test_short_prompts_meet_in_steps_up_to_a_chunk() -> None:
    mix = Mix("test", Lengths.fixed(100), Lengths.fixed(100))
    plain = FIXED + 400 * DECODE
    point = service(mix, chunk=2048).point(400.0)
    # Four requests end in every step and as many begin.
    assert point.mixed_share == 1.0
    assert point.itl("p50") == pytest.approx(plain + 4 * 100 * PROMPT)
    assert point.mixed_step("p50") == (pytest.approx(plain + 4 * 100 * PROMPT), 400, 0, 4.0, False)
    # The longest of a spread come with as many more, but not beyond the chunk.
    wide = service(spread(100, 500), chunk=1024).point(300.0)
    assert wide.mixed_share == 1.0
    assert wide.itl("p999") == pytest.approx(FIXED + 300 * DECODE + 1024 * PROMPT)


@pytest.mark.parametrize("open_loop", [True, False])
@pytest.mark.parametrize(
    ("delayed", "between"),
    [
        # One token in a hundred waits longer than for a tenth of prompts, or as long as halfway between the lengths
        # that a tenth and a twentieth exceed.
        (0.01 / 0.1, (0.9, 0.9)),
        (0.01 / 0.075, (0.9, 0.95)),
        (0.01 / 0.5, (0.5, 0.5)),
    ],
)
def test_the_slowest_hundredth_of_tokens_waits_for_the_longest_prompts(
    delayed: float, between: tuple[float, float], open_loop: bool
) -> None:
    # In an open loop the share of steps; in a closed one one of two sequences prefills: s / 2 / (1 - s / 2).
    share = delayed if open_loop else 2 * delayed / (1 + delayed)
    prompt = Lengths(((0.0, 100), (0.5, 800), (0.9, 3000), (1.0, 9000)))
    mix = Mix("test", prompt, Lengths.fixed(2 / share))
    point = service(mix, chunk=None, open_loop=open_loop).point(2.0)
    assert point.delayed_share == pytest.approx(delayed)
    middle = sum(map(prompt.quantile, between)) / 2
    seconds = FIXED + 2 * DECODE + middle * PROMPT
    assert point.itl("p99") == pytest.approx(seconds)
    step = point.mixed_step("p99")
    assert step is not None
    assert step[:3] == pytest.approx((seconds, middle, 0.0))


def test_of_steps_of_one_length_the_likeliest_stands_for_them() -> None:
    # Last pieces are of any size up to a chunk; full chunks come more often.
    point = service(spread(2_000, 6_000)).point(4.0)
    seconds = FIXED + 4 * DECODE + 512 * PROMPT
    assert point.itl("p90") == pytest.approx(seconds)
    step = point.mixed_step("p90")
    assert step is not None
    assert (step.tokens, step.full) == (512, True)


@pytest.mark.parametrize("batch", [1.0, 1.5, 3.0])
def test_in_a_closed_loop_one_of_the_sequences_waits_for_its_own_prompt(batch: float) -> None:
    mix = Mix("test", Lengths.fixed(500), Lengths.fixed(20))
    point = service(mix, open_loop=False).point(batch)
    share = batch / 20
    assert point.mixed_share == pytest.approx(share)
    others = share * (batch - 1) / batch
    assert point.delayed_share == pytest.approx(others / (1 - share + others))
    # Nobody queues who sends the next request when one has finished.
    assert point.wait == (0.0, 0.0)
    assert point.slots_busy == 0.0


def test_a_piece_gives_a_token_and_has_its_tokens_unless_said_otherwise() -> None:
    point = service(Mix("test", Lengths.fixed(1), Lengths.fixed(100)), pricer=Pricer(output=1e-3)).point(4.0)
    plain = FIXED + 4 * DECODE
    assert (point.shape(1.0).prefill_sequences, point.shape(1.0).prefill_outputs) == (1.0, 1.0)
    assert point.mixed_s(100.0, 0.0) == pytest.approx(plain + 100 * PROMPT + 1e-3)
    # A prompt of one token is prefilled like any other.
    assert point.average_mixed_s == pytest.approx(plain + PROMPT + 1e-3)


@pytest.mark.parametrize(("output", "infinite"), [(16, False), (6, True)])
def test_the_queue_has_no_end_from_the_rate_on_that_prefill_takes(output: float, infinite: bool) -> None:
    mix = Mix("test", Lengths.fixed(4000), Lengths.fixed(output))
    point = service(mix, chunk=512).point(1.0)
    assert point.prefill_utilization < 2
    assert (point.prefill_utilization >= 1) == infinite
    assert math.isinf(point.queue_s) == infinite
    assert point.queue_s > 0


def test_who_waits_when_more_arrives_than_can_be_prefilled() -> None:
    mix = Mix("test", Lengths.fixed(4000), Lengths.fixed(10))
    point = service(mix).point(64.0)
    assert point.prefill_utilization > 1
    # Every step has as much of prompts as it takes.
    assert point.mixed_share == 1.0
    assert point.average_mixed_s == pytest.approx(FIXED + 64 * DECODE + 512 * PROMPT)
    assert point.wait == (1.0, math.inf)
    assert point.ttft("p50") == math.inf


def test_a_context_at_the_end_of_a_request() -> None:
    mix = Mix("test", Lengths.fixed(1000), Lengths.fixed(200))
    for context, prompt, output in ((4096.0, 3896.0, 200.0), (150.0, 1.0, 149.0), (2.0, 1.0, 1.0), (1.0, 1.0, 1.0)):
        at = mix.at_context(context)
        assert (at.prompt.mean, at.output.mean) == (prompt, output)
        assert at.context(0.5) == prompt + output
    # A cached token is read by what is still decoded: half the output, each as often as it is long.
    assert mix.mean_context == 1000 + 200 / 2
