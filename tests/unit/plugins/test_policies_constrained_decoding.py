"""Constrained decoding: masks beside the forward pass or after it, compiles on the TTFT path, jump-forward."""

from __future__ import annotations

import pytest

from servelint.composition import Composition
from servelint.distribution import Lengths
from servelint.manager import Plugins
from servelint.service import Mix, Service
from servelint.shapes import decode, prefill
from servelint.testing import compose, review_of

VOCABULARY = 128_256


def spec(policy: str = "", more: str = "") -> str:
    table = f"[policy.constrained_decoding]\n{policy}" if policy else ""
    return '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n' + more + table


def step(composition: Composition, batch: float = 64.0) -> float:
    return float(composition.pricer.estimate(decode(batch, 1000.0)))


def applied(composition: Composition, rows: float) -> float:
    """Bitmask written and read, logits read and written in 16 bit, and two launches."""
    topology = composition.setup.topology
    rate = topology.accelerator.memory_bandwidth_bytes_per_s * topology.efficiency.memory
    return rows * VOCABULARY * (2 / 8 + 4) / rate + 2 * topology.efficiency.launch_s


def test_an_overlapped_mask_is_exposed_by_what_exceeds_the_forward_pass(plugins: Plugins) -> None:
    alone = compose(spec(), plugins)
    forward, apply = step(alone), applied(alone, 64)
    hidden = compose(spec('mask = "10 us"\noverlap = true\n'), plugins)
    assert forward > 64 * 10e-6
    assert step(hidden) == pytest.approx(forward + apply, rel=1e-9)
    exposed = compose(spec('mask = "1 ms"\noverlap = true\n'), plugins)
    assert step(exposed) == pytest.approx(64 * 1e-3 + apply, rel=1e-9)


def test_without_overlap_the_whole_mask_is_exposed(plugins: Plugins) -> None:
    alone = compose(spec(), plugins)
    serial = compose(spec('mask = "10 us"\noverlap = false\n'), plugins)
    assert step(serial) == pytest.approx(step(alone) + 64 * 10e-6 + applied(alone, 64), rel=1e-9)


def test_only_the_constrained_share_pays(plugins: Plugins) -> None:
    alone = compose(spec(), plugins)
    half = compose(spec('mask = "100 us"\noverlap = false\nshare = 0.5\n'), plugins)
    assert step(half) == pytest.approx(step(alone) + 32 * 100e-6 + applied(alone, 32), rel=1e-9)


def test_every_verified_token_needs_a_mask(plugins: Plugins) -> None:
    drafting = '[policy.speculation]\nmethod = "ngram"\ntokens = 3\nacceptance = 0.5\n'
    alone = compose(spec(more=drafting), plugins)
    serial = compose(spec('mask = "10 us"\noverlap = false\n', drafting), plugins)
    shape = decode(8.0, 1000.0, 4.0)
    grown = float(serial.pricer.estimate(shape) - alone.pricer.estimate(shape))
    assert grown == pytest.approx(8 * 4 * 10e-6 + applied(alone, 32), rel=1e-9)


def test_a_prompt_needs_one_mask_at_its_end(plugins: Plugins) -> None:
    alone = compose(spec(), plugins)
    serial = compose(spec('mask = "1 ms"\noverlap = false\n'), plugins)
    grown = float(serial.pricer.estimate(prefill(512.0)) - alone.pricer.estimate(prefill(512.0)))
    assert grown == pytest.approx(1e-3 + applied(alone, 1), rel=1e-6)


def test_each_rank_has_a_host_of_its_own(plugins: Plugins) -> None:
    text = (
        '[hardware]\naccelerator = "nvidia/h200-sxm5-141gb"\n[model]\nid = "deepseek-ai/DeepSeek-V3"\n'
        "[policy.parallelism]\ntensor = 8\nattention_data = 8\nexpert = 8\n"
        '[policy.constrained_decoding]\nmask = "5 ms"\noverlap = true\n'
    )
    rows = {r.name: r for r in compose(text, plugins).pricer.breakdown(decode(60.0, 1000.0))}
    # The fullest of eight ranks has 8 of 60 sequences.
    assert rows["grammar.mask"].seconds == pytest.approx(8 * 5e-3)


def test_masks_and_their_application_stay_outside_the_bound(plugins: Plugins) -> None:
    alone, masked = compose(spec(), plugins), compose(spec('mask = "1 ms"\noverlap = false\n'), plugins)
    shape = decode(64.0, 1000.0)
    assert masked.pricer.bound(shape) == alone.pricer.bound(shape)
    assert masked.pricer.sustained_bound(shape) == alone.pricer.sustained_bound(shape)


@pytest.mark.parametrize("policy", ['mask = "0 s"\noverlap = true\ncache_hit = 1.0\n', 'share = 0.0\nmask = "1 ms"\n'])
def test_identity_settings_change_nothing(policy: str, plugins: Plugins) -> None:
    alone, found = compose(spec(), plugins), compose(spec(policy), plugins)
    assert found.graph.ops == alone.graph.ops
    assert found.scheduler == alone.scheduler


def test_an_empty_table_assumes_nothing(plugins: Plugins) -> None:
    review = review_of(spec() + "[policy.constrained_decoding]\n", plugins)
    assert not [a for a in review.assumptions if a.path[:2] == ("policy", "constrained_decoding")]
    assert review.composition is not None
    assert review.composition.graph.ops == compose(spec(), plugins).graph.ops


def test_cold_compiles_are_on_the_path_to_the_first_token(plugins: Plugins) -> None:
    mix = Mix("fixed", Lengths.fixed(1000), Lengths.fixed(100))
    mask = 'mask = "1 us"\n'

    def ttft(policy: str, percentile: str) -> float:
        return Service(compose(spec(policy), plugins), mix, open_loop=False).point(8.0).ttft(percentile)

    warm = mask + 'compile = "200 ms"\ncache_hit = 1.0\n'
    cold = mask + 'compile = "200 ms"\ncache_hit = 0.75\nshare = 0.8\n'
    without = mask + 'compile = "0 s"\ncache_hit = 0.75\nshare = 0.8\n'
    assert ttft(cold, "mean") - ttft(without, "mean") == pytest.approx(0.2 * 0.8 * 0.25, rel=1e-9)
    assert ttft(cold, "p99") - ttft(without, "p99") == pytest.approx(0.2, rel=1e-3)
    assert ttft(cold, "p50") == pytest.approx(ttft(without, "p50"), rel=1e-3)
    assert compose(spec(warm), plugins).scheduler.first_token_share == 0.0


def test_dynamic_schemas_compile_every_time(plugins: Plugins) -> None:
    found = compose(spec('schemas = "dynamic"\ncompile = "50 ms"\n'), plugins).scheduler
    assert (found.first_token_s, found.first_token_share) == (0.05, 1.0)
    assert compose(spec('schemas = "static"\ncompile = "50 ms"\n'), plugins).scheduler.first_token_share == 0.0


def test_jump_forward_takes_steps_out(plugins: Plugins) -> None:
    found = compose(spec("share = 0.5\njump_forward = 0.4\n"), plugins).scheduler
    assert found.skipped_share == pytest.approx(0.2)
    assert found.yield_per_step == pytest.approx(1 / 0.8)


def test_what_is_left_out_is_assumed_and_said(plugins: Plugins) -> None:
    def assumed(table: str) -> dict[str, object]:
        review = review_of(spec(table), plugins)
        assert review.composition is not None
        return {str(a.path[-1]): a.value for a in review.assumptions if "constrained_decoding" in a.path}

    known = assumed('schemas = "static"\n')
    assert (known["mask"], known["compile"], known["cache_hit"]) == (50e-6, 0.1, 1.0)
    assert (known["share"], known["overlap"]) == (1.0, True)
    fresh = assumed('schemas = "dynamic"\nbackend = "outlines"\n')
    assert (fresh["mask"], fresh["compile"], fresh["cache_hit"]) == (118e-6, 0.1, 0.0)
    for schemas, reason in (("static", "compiled once"), ("dynamic", "new each time")):
        review = review_of(spec(f'schemas = "{schemas}"\n'), plugins)
        assert review.composition is not None
        hit = review.assumption("policy", "constrained_decoding", "cache_hit")
        assert hit is not None
        assert reason in hit.reason


def test_only_cold_schemas_wait_for_a_compile(plugins: Plugins) -> None:
    def waits(table: str) -> tuple[float, float]:
        scheduler = compose(spec(table), plugins).scheduler
        return scheduler.first_token_s, scheduler.first_token_share

    assert waits('share = 0.5\ncache_hit = 0.8\ncompile = "2 s"\n') == (2.0, pytest.approx(0.1))
    assert waits('share = 0.5\ncache_hit = 1.0\ncompile = "2 s"\n') == (0.0, 0.0)
    assert waits('share = 0.5\ncache_hit = 0.8\ncompile = "0 s"\n') == (0.0, 0.0)
