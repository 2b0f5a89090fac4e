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


def service(mix: Mix, chunk: int | None = 512, pricer: Pricer | None = None, **scheduler: Any) -> Service:
    budget = {"max_batched_tokens": 8192, "chunk_tokens": chunk, "chunked": chunk is not None}
    composition: Any = SimpleNamespace(
        scheduler=Scheduler(**{**budget, **scheduler}),
        pricer=pricer or Pricer(),
        memory=SimpleNamespace(caches=(), resident_sequences=lambda context: 1_000_000),
        setup=SimpleNamespace(
            architecture=SimpleNamespace(num_layers=4, blocks=(), state_bytes_per_sequence=lambda: 4e6)
        ),
    )
    return Service(composition, mix)


def spread(low: float, high: float, **changes: Any) -> Mix:
    return Mix("test", Lengths(((0.0, low), (1.0, high))), Lengths.fixed(100), **changes)


def test_prompts_of_little_more_than_a_chunk_have_one_and_what_is_left() -> None:
    mix = spread(520, 760)
    point = service(mix).point(4.0)
    full = [p for p in point._pieces if not p.ends]
    rest = [p for p in point._pieces if p.ends]
    assert sum(p.per_request for p in full) == pytest.approx(1.0)
    assert {p.sizes for p in full} == {(512, 512)}
    assert sum(p.per_request for p in rest) == pytest.approx(1.0)
    assert sum(p.per_request * p.tokens for p in rest) == pytest.approx(mix.prompt.mean - 512)
    assert (min(p.sizes[0] for p in rest), max(p.sizes[1] for p in rest)) == pytest.approx((8, 248))
    assert {p.pasts for p in full} == {(0.0, 0.0)}
    assert {p.pasts for p in rest} == {(512.0, 512.0)}


def test_prompts_up_to_a_chunk_are_whole() -> None:
    point = service(spread(100, 512)).point(4.0)
    assert all(p.ends and p.sizes[0] <= p.tokens <= p.sizes[1] <= 512 for p in point._pieces)
    assert sum(p.per_request for p in point._pieces) == pytest.approx(1.0)


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


def test_who_waits_when_more_arrives_than_can_be_prefilled() -> None:
    mix = Mix("test", Lengths.fixed(4000), Lengths.fixed(10))
    point = service(mix).point(64.0)
    assert point.prefill_utilization > 1
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
