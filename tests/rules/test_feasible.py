"""One request alone, the limits of a replica in words, and links in both directions, each counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.review import Review
from servelint.rule import Case
from servelint.service import Service
from servelint.shapes import decode, prefill
from servelint.testing import compose, review_of
from servelint.testing.rules import run_case
from servelint_rules.binding import limit_path, limit_text
from servelint_rules.hw.hw007_link_direction import _network, _ways
from servelint_rules.par.groups import narrower
from servelint_rules.qnt.qnt006_kv_format_unsupported import _sparse_e4m3
from servelint_rules.show import request_rates
from servelint_rules.slo.feasible import arithmetic, first_token, pace, peaks, unreachable

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
LENGTHS = "[workload]\nprompt_tokens = { p50 = 1000, p99 = 4000 }\noutput_tokens = 200\n"


def reviewed(slo: str, plugins: Plugins, more: str = "", hardware: str = "") -> Review:
    return review_of(f"{H100}{hardware}{MODEL}{more}{LENGTHS}[slo]\n{slo}\n", plugins)


# One request alone


def test_a_first_token_takes_the_prefill_of_that_percentile(plugins: Plugins) -> None:
    for percentile in ("p50", "p99"):
        review = reviewed(f'ttft = {{ {percentile} = "1 s" }}', plugins)
        found = first_token(review, review.objectives[0])
        assert found is not None
        assert review.mix is not None
        assert review.composition is not None
        prompt = review.mix.prompt.quantile(float(percentile[1:]) / 100)
        assert found.tokens == prompt
        assert found.bound_s == review.composition.pricer.bound(prefill(prompt, 0.0))
        assert found.floor_s == review.composition.pricer.floor(prefill(prompt, 0.0))
    mean = reviewed('ttft = { mean = "1 s" }', plugins)
    found = first_token(mean, mean.objectives[0])
    assert found is not None
    assert mean.mix is not None
    assert found.tokens == mean.mix.prompt.mean


def test_cached_tokens_lie_before_the_prefill(plugins: Plugins) -> None:
    text = f"{H100}{MODEL}[workload]\nprompt_tokens = 1000\noutput_tokens = 200\nprefix_hit = 0.4\n"
    review = review_of(f'{text}[slo]\nttft = {{ p99 = "1 s" }}\n', plugins)
    found = first_token(review, review.objectives[0])
    assert found is not None
    assert (found.shape.prefill_tokens, found.shape.prefill_context) == (pytest.approx(600), pytest.approx(400))


def test_a_pace_is_a_step_of_one_sequence_over_what_it_keeps(plugins: Plugins) -> None:
    review = reviewed('itl = { mean = "9 ms" }\ntpot = { p50 = "9 ms" }', plugins)
    by_metric = {o.metric: pace(review, o) for o in review.objectives}
    itl, tpot = by_metric["itl"], by_metric["tpot"]
    assert itl is not None
    assert tpot is not None
    assert review.mix is not None
    assert review.composition is not None
    bound = review.composition.pricer.bound
    assert itl.bound_s == bound(decode(1.0, review.mix.mean_context, 1.0))
    # Half of all sequences have no more context than the median prompt.
    assert tpot.bound_s == bound(decode(1.0, 1000.0, 1.0))
    drafts = '[policy.speculation]\nmethod = "ngram"\ntokens = 3\n'
    assumed = reviewed('tpot = { mean = "9 ms" }', plugins, drafts)
    found = pace(assumed, assumed.objectives[0])
    declared = reviewed('tpot = { mean = "9 ms" }', plugins, f"{drafts}acceptance = 0.5\n")
    other = pace(declared, declared.objectives[0])
    assert found is not None
    assert other is not None
    assert declared.composition is not None
    assert declared.mix is not None
    step = decode(1.0, declared.mix.mean_context, 4.0)
    # 1 + 1/2 + 1/4 + 1/8 of four tokens; where nobody declared how many are kept, at best all four.
    assert other.tokens == pytest.approx(1.875)
    assert other.bound_s == pytest.approx(declared.composition.pricer.bound(step) / 1.875)
    assert other.floor_s == pytest.approx(declared.composition.pricer.floor(step) / 1.875)
    assert found.floor_s == pytest.approx(declared.composition.pricer.floor(step) / 4)


def test_what_no_request_alone_keeps(plugins: Plugins) -> None:
    # 15 GB in 16 bit at 3.35 TB/s: 4.5 ms, and 8.6 ms for a prompt of 4,000 tokens at 989 TFLOP/s.
    review = reviewed('itl = { p99 = "4 ms" }\ntpot = { p99 = "40 ms" }\nttft = { p99 = "5 ms" }', plugins)
    assert {o.metric for o in unreachable(review)} == {"itl", "ttft"}
    assert unreachable(reviewed('itl = { p99 = "40 ms" }\ne2e = { p99 = "1 ms" }', plugins)) == ()


def test_a_bound_says_what_decides_it(plugins: Plugins) -> None:
    composition = compose(f"{H100}{MODEL}", plugins)

    def said(composition: Any, shape: Any) -> str:
        return arithmetic(composition, shape, composition.pricer.bound(shape))

    assert "of weights and cache a device - 50 MB" in said(composition, decode(1.0, 1000.0)).replace("52.4", "50")
    assert "TFLOP a device / 989 TFLOP/s dense" in said(composition, prefill(4000.0))
    staged = compose(f"{H100}devices = 2\n{MODEL}[policy.parallelism]\ntensor = 1\npipeline = 2\n", plugins)
    assert said(staged, decode(1.0, 1000.0)).startswith("2 pipeline stages in turn, each at its peak: ")
    assert [i.name for i in peaks(composition)] == ["memory bandwidth", "dense bf16 rate"]
    assert [i.value for i in peaks(composition)] == [3.35e12, pytest.approx(989e12, rel=1e-3)]


# Limits


@pytest.mark.parametrize(
    ("name", "limit", "text"),
    [
        ("KV capacity", 0, "the KV cache holds not one sequence of 1,100 tokens (the mean context)"),
        ("KV capacity", 1, "the KV cache holds 1 sequence of 1,100 tokens (the mean context)"),
        ("KV capacity", 40, "the KV cache holds 40 sequences of 1,100 tokens (the mean context)"),
        ("max_sequences", 64, "max_sequences admits 64"),
        ("max_batched_tokens", 24, "max_batched_tokens has room for 24 decoding sequences"),
    ],
)
def test_a_limit_in_words(name: str, limit: int, text: str) -> None:
    service: Any = SimpleNamespace(limits={name: limit}, mix=SimpleNamespace(mean_context=1100.0))
    assert limit_text(service, name) == text


def test_the_key_of_a_limit_is_the_one_that_sets_it(plugins: Plugins) -> None:
    review = review_of(f"{H100}{MODEL}[policy.batching]\nmax_sequences = 4\n", plugins)
    assert limit_path(review, "max_sequences") == ("policy", "batching", "max_sequences")
    assert limit_path(review, "max_batched_tokens") == ("hardware", "accelerator")
    assert limit_path(review, "KV capacity") == ("hardware", "accelerator")


def test_smaller_groups_carry_at_their_knees_what_is_said(plugins: Plugins) -> None:
    """Without a load, the group is compared with as many replicas of each smaller one, all at their knees."""
    text = plugins.rule("PAR004").failing[0].spec
    review = review_of(text, plugins)
    assert review.composition is not None
    assert review.mix is not None
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("rate", "concurrency"))) + "\n"
    review = review_of(text, plugins)
    assert review.composition is not None
    assert review.mix is not None
    assert review.knee is not None
    found = [f.finding for f in run_case(Case("", text), plugins, Config(select=("PAR004",))).findings]
    carried = {}
    whole = review.composition.setup.topology.devices
    for tensor, other in narrower(review.composition):
        knee = Service(other, review.mix, open_loop=review.knee.service.open_loop).knee(review.objectives)
        carried[tensor] = 0.0 if knee is None else knee.rate * (whole // tensor)
    tensor = max(carried, key=carried.__getitem__)
    after, before = request_rates(carried[tensor], review.knee.rate)
    speaks = carried[tensor] >= 1.25 * review.knee.rate
    assert bool(found) is speaks
    if speaks:
        assert f"they carry {after} within every objective instead of {before}" in found[0].message
        assert f"policy.parallelism.tensor = {tensor}" in found[0].help


# Links


def test_what_joins_replicas_counts_both_directions_of_every_device(plugins: Plugins) -> None:
    side = compose(
        f'{H100}devices = 2\n[hardware.network]\nbandwidth = "50 GB/s"\n{MODEL}[policy.parallelism]\ntensor = 2\n',
        plugins,
    )
    found = {way.link: way.both for way in _ways(side, ("x",), 1e9)}
    link = side.setup.topology.accelerator.link
    assert link is not None
    assert found["the network ports"] == 2 * 2 * 50e9
    assert found[link.kind] == 2 * 2 * link.per_direction_bytes_per_s == 2 * 900e9
    assert found["PCIe"] == 2 * 2 * side.setup.topology.pcie_bytes_per_s


@pytest.mark.parametrize(
    ("network", "links"),
    [
        ('bandwidth = "100 GB/s"\n', {"nvlink": 900e9}),
        ('bandwidth = "100 GB/s"\nper = "node"\n', {}),
        ("", {}),
    ],
)
def test_a_network_is_held_against_the_link_of_a_device(
    network: str, links: dict[str, float], plugins: Plugins
) -> None:
    review = review_of(f"{H100}devices = 8\n[hardware.network]\n{network}{MODEL}", plugins)
    found = [way.both for way in _network(review)]
    assert found == list(links.values())


@pytest.mark.parametrize(
    ("release", "capabilities"),
    [((0, 23, 5), (10,)), ((0, 24), (10, 12)), ((0, 24, 0), (10, 12)), ((1, 0, 0), (10, 12))],
)
def test_parts_on_which_sparse_attention_reads_plain_fp8(
    release: tuple[int, ...], capabilities: tuple[int, ...]
) -> None:
    assert _sparse_e4m3(release) == capabilities
