"""What rules about layouts and decisions reckon with: smaller groups, even stages, other formats, shares of a step."""

from __future__ import annotations

from typing import Any

import pytest

from servelint.composition import Composition
from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding
from servelint.shapes import decode
from servelint.testing import compose, review_of, samples
from servelint.testing.rules import run_case
from servelint_rules.dec.levers import Lever, _admitted, _quantized, _wider, faster, pressed, ranked
from servelint_rules.layouts import parallelism, widened, within_fast_links
from servelint_rules.mem.mem004_page_waste import _largest, _waste
from servelint_rules.par.groups import cached_heads, copies_of, loaded, narrower, offered, regrouped, share_of
from servelint_rules.par.par003_kv_replicated import _changes
from servelint_rules.par.par005_pp_bubble import _others
from servelint_rules.spd.spd003_draft_not_counted import _context, _replicas

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
WORKLOAD = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"
POOLS = (
    "[policy.disaggregation]\nprefill = { tensor = 1, replicas = 1 }\ndecode = { tensor = 1, replicas = 3 }\n"
    'transfer = { bandwidth = "50 GB/s" }\n'
)


def laid_out(plugins: Plugins, devices: int, table: str, model: str = MODEL) -> Composition:
    return compose(f"{H100}devices = {devices}\n{model}[policy.parallelism]\n{table}", plugins)


def findings(code: str, text: str, plugins: Plugins) -> list[Finding]:
    found = run_case(Case("", text), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


# Groups


def test_smaller_groups_are_replicas_of_their_own(plugins: Plugins) -> None:
    found = [(t, c.setup.topology.devices) for t, c in narrower(laid_out(plugins, 8, "tensor = 8\n"))]
    assert found == [(4, 4), (2, 2), (1, 1)]
    large = '[model]\nid = "meta-llama/Llama-3.1-70B"\nmax_model_len = 8192\n'
    # 141 GB of weights take two devices of 80.
    assert [t for t, _ in narrower(laid_out(plugins, 8, "tensor = 8\n", large))] == [4, 2]
    staged = [(t, c.setup.topology.devices) for t, c in narrower(laid_out(plugins, 8, "tensor = 4\npipeline = 2\n"))]
    assert staged == [(2, 4), (1, 2)]


def test_other_groups_of_the_same_devices(plugins: Plugins) -> None:
    eight = laid_out(plugins, 8, "tensor = 8\n")
    other = regrouped(eight, 2, 4)
    assert other is not None
    assert (parallelism(other).t, parallelism(other).p, other.setup.topology.devices) == (2, 4, 8)
    # 32 heads do not divide by three.
    assert regrouped(eight, 3, 2) is None
    assert regrouped(laid_out(plugins, 8, "tensor = 8\nattention_data = 2\n"), 2, 4) is None


@pytest.mark.parametrize(
    ("table", "devices", "copies"),
    [
        ("tensor = 8\n", 8, 1),
        ("tensor = 16\n", 16, 2),
        ("tensor = 32\n", 32, 4),
        ("tensor = 16\ncontext = 2\n", 16, 1),
        ("tensor = 16\nattention_data = 2\n", 16, 1),
        ("tensor = 4\n", 4, 0),
    ],
)
def test_devices_that_hold_the_same_tokens(table: str, devices: int, copies: int, plugins: Plugins) -> None:
    """Eight KV heads on so many devices; fewer devices than heads hold several heads each, and none twice."""
    assert copies_of(laid_out(plugins, devices, table)) == copies


def test_latents_are_one_head_for_all(plugins: Plugins) -> None:
    spec = '[hardware]\naccelerator = "any"\ndevices = 4\n[model]\nid = "any"\n[policy.parallelism]\ntensor = 4\n'
    hybrid = compose(spec, plugins, architecture=samples.hybrid_model(), accelerator=samples.accelerator())
    assert (cached_heads(hybrid), copies_of(hybrid)) == (0, 4)
    dense = compose(spec, plugins, architecture=samples.dense_model(), accelerator=samples.accelerator())
    assert (cached_heads(dense), copies_of(dense)) == (4, 1)


def test_a_share_of_a_step_is_that_of_its_ops(plugins: Plugins) -> None:
    composition = laid_out(plugins, 2, "tensor = 2\n")
    shape = decode(8.0, 1000.0)
    rows = composition.pricer.breakdown(shape)
    total = sum(float(row.seconds) for row in rows)
    names = frozenset(row.name for row in rows)
    assert share_of(composition, names, shape) == pytest.approx(1.0)
    assert share_of(composition, frozenset(), shape) == 0.0
    one = rows[3]
    assert share_of(composition, frozenset({one.name}), shape) == pytest.approx(float(one.seconds) / total)


@pytest.mark.parametrize(
    ("load", "copies", "batch"),
    [("concurrency = 65\n", 2, 33.0), ("concurrency = 65\n", 1, 65.0), ("concurrency = 1\n", 4, 1.0)],
)
def test_copies_share_a_closed_load(load: str, copies: int, batch: float, plugins: Plugins) -> None:
    review = review_of(f"{H100}{MODEL}{WORKLOAD}{load}", plugins)
    assert review.mix is not None
    point = loaded(review, review.service(review.mix), copies)
    assert point is not None
    assert point.batch == batch
    assert offered(review)


def test_copies_share_a_rate(plugins: Plugins) -> None:
    review = review_of(f'{H100}{MODEL}{WORKLOAD}rate = "8 req/s"\n', plugins)
    assert review.mix is not None
    service = review.service(review.mix)
    half = loaded(review, service, 2)
    assert half is not None
    assert half.rate == pytest.approx(4.0, rel=0.01)
    assert offered(review)
    # More than fit at once is carried by no number of copies that leaves each as many.
    idle = review_of(f"{H100}{MODEL}{WORKLOAD}", plugins)
    assert not offered(idle)
    many = review_of(f"{H100}{MODEL}{WORKLOAD}concurrency = 100000\n", plugins)
    assert many.mix is not None
    assert loaded(many, many.service(many.mix), 2) is None


def test_wider_groups_take_nodes_as_large_as_the_fast_links_reach(plugins: Plugins) -> None:
    one = laid_out(plugins, 1, "tensor = 1\n")
    four = widened(one, 4)
    assert four is not None
    assert (four.setup.topology.devices, four.setup.topology.devices_per_node, parallelism(four).t) == (4, 4, 4)
    assert within_fast_links(four, 4)
    sixteen = widened(laid_out(plugins, 8, "tensor = 8\n"), 2)
    assert sixteen is not None
    assert sixteen.setup.topology.devices_per_node == 8
    assert not within_fast_links(sixteen, 16)
    assert widened(laid_out(plugins, 32, "tensor = 32\n"), 2) is None


# Remedies of single rules


def test_ways_to_hold_each_token_once(plugins: Plugins) -> None:
    def changed(table: str, copies: int, moe: bool) -> list[dict[str, int]]:
        config: Any = parallelism(laid_out(plugins, 16, table))
        return list(_changes(config, copies, moe=moe))

    assert changed("tensor = 16\n", 2, False) == [
        {"context": 2}, {"attention_data": 2}, {"tensor": 8, "data": 2},
    ]  # fmt: skip
    assert changed("tensor = 16\n", 4, True) == [
        {"context": 2}, {"attention_data": 2, "expert": 16}, {"tensor": 8, "data": 2, "expert": 16},
        {"context": 4}, {"attention_data": 4, "expert": 16}, {"tensor": 4, "data": 4, "expert": 16},
    ]  # fmt: skip
    assert changed("tensor = 16\ncontext = 2\n", 2, False) == [{"context": 4}]
    assert changed("tensor = 16\nattention_data = 2\n", 2, False) == [{"context": 2}, {"attention_data": 4}]
    # Three copies are not two and one.
    assert changed("tensor = 16\n", 3, False)[0] == {"context": 3}


def test_stages_of_a_pipeline_made_even_or_fewer(plugins: Plugins) -> None:
    def others(table: str) -> list[str]:
        text = f"{H100}devices = 4\n{MODEL}[policy.parallelism]\n{table}{WORKLOAD}concurrency = 4\n"
        review = review_of(text, plugins)
        assert review.composition is not None
        assert review.operating_point is not None
        return [
            " and ".join(f"{path[-1]} = {value}" for path, value in other.edits)
            for other in _others(review.composition, review.operating_point)
        ]

    assert others("tensor = 1\npipeline = 4\n") == ["tensor = 2 and pipeline = 2", "tensor = 4 and pipeline = 1"]
    assert others("tensor = 2\npipeline = 2\n") == ["tensor = 4 and pipeline = 1"]
    # Thirty-two layers over four stages, and over three: eleven, eleven, ten.
    assert others("tensor = 1\npipeline = 4\npipeline_layers = [5, 9, 9, 9]\n") == ["pipeline_layers = [8, 8, 8, 8]"]
    assert others("tensor = 1\npipeline = 3\npipeline_layers = [12, 12, 8]\n") == ["pipeline_layers = [11, 11, 10]"]


@pytest.mark.parametrize(("page", "context", "waste"), [(1, 100.0, 0.0), (16, 92.0, 0.08), (200, 100.0, 0.5)])
def test_half_of_the_last_page_is_empty(page: int, context: float, waste: float) -> None:
    assert _waste(page, context) == pytest.approx(waste)


@pytest.mark.parametrize(
    ("limit", "context", "page"), [(0.08, 92.0, 16), (0.0799, 92.0, 8), (0.5, 1000.0, 256), (0.001, 10.0, 1)]
)
def test_the_largest_page_within_a_waste(limit: float, context: float, page: int) -> None:
    assert _largest(limit, context) == page


def test_pages_of_a_cache_that_windows_bound_are_not_judged(plugins: Plugins) -> None:
    text = plugins.rule("MEM004").failing[0].spec
    assert findings("MEM004", text, plugins)
    mixed = text.replace('id = "meta-llama/Llama-3.1-8B"', 'id = "google/gemma-3-12b-it"')
    assert mixed != text
    assert not findings("MEM004", mixed, plugins)


@pytest.mark.parametrize(
    ("at", "context"),
    [
        ("{ context = 3000, prompt_tokens = 5 }", 3000.0),
        ("{ prompt_tokens = 1000, output_tokens = 300 }", 1150.0),
        ("{ prompt_tokens = 1000 }", 1000.0),
        ("{ batch = 3 }", 1100.0),
    ],
)
def test_the_context_of_a_claim(at: str, context: float, plugins: Plugins) -> None:
    claim = f'[[claim]]\nmetric = "concurrency"\nvalue = 30\nat = {at}\n'
    review = review_of(f"{H100}{MODEL}{WORKLOAD}{claim}", plugins)
    assert _context(review, review.claims[0][1]) == pytest.approx(context, abs=1)


@pytest.mark.parametrize(
    ("hardware", "more", "per", "copies"),
    [("", "", "replica", 1), ("replicas = 4\n", "", "replica", 1), ("replicas = 4\n", "", "deployment", 4),
     ("replicas = 2\n", POOLS, "deployment", 6), ("replicas = 2\n", POOLS, "replica", 3)],
)  # fmt: skip
def test_the_replicas_of_a_claim(hardware: str, more: str, per: str, copies: int, plugins: Plugins) -> None:
    claim = f'[[claim]]\nmetric = "concurrency"\nvalue = 30\nper = "{per}"\n'
    review = review_of(f"{H100}{hardware}{MODEL}{more}{WORKLOAD}{claim}", plugins)
    assert review.composition is not None
    assert _replicas(review, review.composition, review.claims[0][1]) == copies


# Levers of decisions


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("", ["weights in fp8", "weights in int4-g128"]),
        ('[policy.quantization]\nweights = "fp8"\n', ["weights in int4-g128"]),
        ('[policy.quantization]\nweights = "int4-g128"\n', []),
    ],
)
def test_weights_are_tried_in_fewer_bits_than_they_have(weights: str, expected: list[str], plugins: Plugins) -> None:
    assert [change.words for change in _quantized(review_of(f"{H100}{MODEL}{weights}", plugins))] == expected


def test_four_bits_are_native_where_the_part_multiplies_them(plugins: Plugins) -> None:
    text = f'servelint = 1\n[hardware]\naccelerator = "nvidia/b200-sxm6-180gb"\n{MODEL}'
    assert [c.words for c in _quantized(review_of(text, plugins))] == ["weights in fp8", "weights in nvfp4"]
    other = f'servelint = 1\n[hardware]\naccelerator = "amd/mi355x-oam-288gb"\n{MODEL}'
    assert [c.words for c in _quantized(review_of(other, plugins))] == ["weights in fp8", "weights in mxfp4"]
    old = f'servelint = 1\n[hardware]\naccelerator = "nvidia/a100-sxm4-80gb"\n{MODEL}'
    assert [c.words for c in _quantized(review_of(old, plugins))] == ["weights in int8", "weights in int4-g128"]


def test_groups_are_widened_within_the_fast_links(plugins: Plugins) -> None:
    def tried(devices: int) -> list[str]:
        text = f"{H100}devices = {devices}\n{MODEL}[policy.parallelism]\ntensor = {devices}\n"
        return [change.words for change in _wider(review_of(text, plugins))]

    assert tried(1) == [f"tensor parallelism {n} on {n} devices" for n in (2, 4, 8)]
    assert tried(4) == ["tensor parallelism 8 on 8 devices"]
    assert tried(8) == []
    assert list(_wider(review_of(f"{H100}{MODEL}{POOLS}", plugins))) == []


def test_more_sequences_are_admitted_where_the_cache_holds_many_more(plugins: Plugins) -> None:
    def tried(limit: int, table: str = "", devices: int = 1) -> list[str]:
        text = f"{H100}devices = {devices}\n{MODEL}{table}[policy.batching]\nmax_sequences = {limit}\n{WORKLOAD}"
        return [change.words for change in _admitted(review_of(text, plugins))]

    review = review_of(f"{H100}{MODEL}[policy.batching]\nmax_sequences = 8\n{WORKLOAD}", plugins)
    assert review.mix is not None
    held = int(review.service(review.mix).limits["KV capacity"] * 0.85)
    assert tried(8) == [f"{held:,} sequences admitted"]
    assert tried(-int(-held // 1.05)) == []
    assert tried(int(held / 1.06)) == [f"{held:,} sequences admitted"]
    ranks = "[policy.parallelism]\ntensor = 1\ndata = 2\n"
    two = review_of(f"{H100}devices = 2\n{MODEL}{ranks}[policy.batching]\nmax_sequences = 8\n{WORKLOAD}", plugins)
    assert two.mix is not None
    each = int(two.service(two.mix).limits["KV capacity"] * 0.85) // 2
    assert tried(8, ranks, 2) == [f"{each:,} sequences admitted"]


def test_levers_below_a_twentieth_are_left_out_and_the_best_is_first() -> None:
    levers = [Lever("a", 1.05, ""), Lever("b", 2.0, ""), Lever("c", 1.049, ""), Lever("d", 0.5, "")]
    assert [lever.words for lever in ranked(levers)] == ["b", "a"]


def test_a_load_presses_from_a_share_of_the_knee_on(plugins: Plugins) -> None:
    review = review_of(f'{H100}{MODEL}{WORKLOAD}rate = "1 req/s"\n[slo]\ntpot = {{ p99 = "30 ms" }}\n', plugins)
    knee = review.knee
    assert knee is not None
    assert pressed(knee, 0.7, None, None)
    assert pressed(knee, 0.7, knee.rate * 0.701, None)
    assert not pressed(knee, 0.7, knee.rate * 0.699, None)
    # Requests at once carry what they do, and no more of them than there are at the knee.
    assert pressed(knee, 0.999, None, knee.batch * 4)
    share = knee.service.point(knee.batch / 4).rate / knee.rate
    assert pressed(knee, share - 0.001, None, knee.batch / 4)
    assert not pressed(knee, share + 0.001, None, knee.batch / 4)
    pools = review_of(f'{H100}{MODEL}{POOLS}{WORKLOAD}rate = "1 req/s"\n[slo]\ntpot = {{ p99 = "30 ms" }}\n', plugins)
    # Three replicas decode.
    assert pools.knee is not None
    assert not pressed(pools.knee, 0.7, pools.knee.rate * 2.0, None)
    assert pressed(pools.knee, 0.7, pools.knee.rate * 2.2, None)


def test_a_faster_part_is_faster_in_what_is_asked_for(plugins: Plugins) -> None:
    own = compose(f"{H100}{MODEL}", plugins)
    other = faster(own, memory=2.0, bandwidth=3.0, compute=4.0)
    before, after = own.setup.topology.accelerator, other.setup.topology.accelerator
    assert after.memory_bytes == 2 * before.memory_bytes
    assert after.memory_bandwidth_bytes_per_s == 3 * before.memory_bandwidth_bytes_per_s
    assert {n: r / before.dense_flops[n] for n, r in after.dense_flops.items()} == dict.fromkeys(before.dense_flops, 4)
    assert other.memory.visible == pytest.approx(2 * own.memory.visible, rel=1e-6)
