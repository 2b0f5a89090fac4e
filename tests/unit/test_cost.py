"""Pricing: collectives by tier, pipelines, latencies and branches, what a bound leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from servelint import cost
from servelint.architecture import Tensor
from servelint.cost import LinkLoad, Pricer, hbm_bytes_per_unit, link_loads
from servelint.formats import Format
from servelint.graph import Op, StepGraph
from servelint.hardware import Efficiency, Link, Topology
from servelint.lineage import Lineage, Source
from servelint.manager import Plugins
from servelint.resources import (
    ActivationIO,
    CacheIO,
    Collective,
    Demand,
    HostWork,
    Launch,
    Matmul,
    StateIO,
    WeightRead,
)
from servelint.shapes import ONCE, TOKENS, StepShape, decode, prefill
from servelint.testing import compose, samples

NOTE = Lineage("given")
BF16 = Format("bf16", 16)
WEIGHT = Tensor("w", "mlp", 1, "width")
SPENT = Efficiency(0.5, 0.25, 0.8, 2e-6, {"scale_up": 10e-6, "pcie": 25e-6, "network": 40e-6}, Source("default", ""))
SAMPLE = evolve(
    samples.accelerator(),
    dense_flops={"bf16": 1e12, "fp16": 1e12, "fp16_acc16": 2e12},
    memory_bandwidth_bytes_per_s=1e9,
    l2_bytes=0,
    link=Link("switch", 1e8, 4),
)
TOPOLOGY = Topology(SAMPLE, SPENT, 16, 8, 1e7, 1e6)


def flops(amount: float, precision: str = "bf16") -> Matmul:
    return Matmul(amount, ONCE, "width", NOTE, precision, WEIGHT)


def moved(amount: float) -> StateIO:
    return StateIO(amount, ONCE, "replicated", NOTE)


def send(amount: float, kind: Any = "send", group: int = 2, stride: int = 1) -> Collective:
    return Collective(amount, ONCE, "replicated", NOTE, kind, group, stride)


def chain(*demands: tuple[Demand, ...], repeats: tuple[tuple[int, ...], ...] = ()) -> StepGraph:
    ops = [
        Op(f"op{i}", ("tokens",) if i == 0 else (f"v{i - 1}",), (f"v{i}",), given, repeats[i] if repeats else (1,))
        for i, given in enumerate(demands)
    ]
    return StepGraph(tuple(ops), stages=len(ops[0].repeats))


STEP = decode(1.0, 0.0)


def test_a_bound_is_the_largest_total_over_its_peak() -> None:
    pricer = Pricer(chain((flops(3e12), moved(1e9)), (moved(4e9),)), TOPOLOGY)
    assert pricer.bound(STEP) == 5.0
    assert pricer.sustained_bound(STEP) == pytest.approx(max(3 / 0.25, 5 / 0.5))
    # Each op at its own roofline, one after the other.
    assert pricer.estimate(STEP) == pytest.approx(max(3 / 0.25, 1 / 0.5) + 4 / 0.5)
    price = pricer.price(STEP)
    assert price.binding_resource == "compute"
    assert (price.flops, price.hbm_bytes, price.link_bytes) == (3e12, 5e9, 0.0)


def test_latencies_activations_and_host_work_stay_out_of_bounds() -> None:
    outside = (
        ActivationIO(7e9, ONCE, "replicated", NOTE),
        HostWork(3.0, ONCE, "replicated", NOTE),
        Launch(1e5, ONCE, "replicated", NOTE),
    )
    pricer = Pricer(chain((moved(1e9), *outside)), TOPOLOGY)
    assert pricer.bound(STEP) == pytest.approx(1.0)
    assert pricer.sustained_bound(STEP) == pytest.approx(2.0)
    assert pricer.estimate(STEP) == pytest.approx((1 + 7) / 0.5 + 3.0 + 1e5 * 2e-6)


def test_one_l2_capacity_is_taken_off_the_bytes_of_a_step() -> None:
    topology = evolve(TOPOLOGY, accelerator=evolve(SAMPLE, l2_bytes=int(4e8)))
    graph = chain((moved(1e9),), (moved(1e9),))
    assert Pricer(graph, topology).bound(STEP) == pytest.approx(1.6)
    assert Pricer(graph, topology, l2_credit=False).bound(STEP) == pytest.approx(2.0)
    assert Pricer(graph, topology).sustained_bound(STEP) == pytest.approx(3.2)
    assert Pricer(chain((moved(1e8),)), topology).bound(STEP) == 0.0
    # What is read is not less for it.
    assert Pricer(graph, topology).price(STEP).hbm_bytes == 2e9


def test_precisions_share_the_tensor_cores() -> None:
    both = (flops(1e12), Matmul(1e12, ONCE, "width", NOTE, "fp16"))
    assert Pricer(
        chain(both), evolve(TOPOLOGY, accelerator=evolve(SAMPLE, dense_flops={"bf16": 1e12, "fp16": 4e12}))
    ).bound(STEP) == pytest.approx(1.25)


def test_only_a_bound_may_accumulate_in_fp16() -> None:
    pricer = Pricer(chain((flops(1e12, "fp16"),)), TOPOLOGY)
    assert pricer.bound(STEP) == pytest.approx(0.5)
    assert pricer.sustained_bound(STEP) == pytest.approx(1 / 0.25)
    price = pricer.price(STEP)
    assert (price.bound_s, price.sustained_bound_s) == (pricer.bound(STEP), pricer.sustained_bound(STEP))
    assert Pricer(chain((flops(1e12),)), TOPOLOGY).bound(STEP) == pytest.approx(1.0)


def loads(kind: str, group: int, stride: int = 1, topology: Topology = TOPOLOGY) -> list[tuple[str, float, float]]:
    return [(h.tier, h.floor, h.algorithm) for h in link_loads(send(1.0, kind, group, stride), topology)]


def test_an_all_reduce_brings_every_rank_one_message_at_least() -> None:
    assert loads("all_reduce", 4) == [("scale_up", 1.0, 1.5)]
    assert loads("all_reduce", 2) == [("scale_up", 1.0, 1.0)]
    assert loads("all_reduce", 1) == []


def test_an_all_reduce_across_tiers_is_hierarchical() -> None:
    assert loads("all_reduce", 8) == [("scale_up", 0.75, 1.5), ("pcie", 0.25, 0.25)]
    three = loads("all_reduce", 16)
    assert three == [("scale_up", 0.75, 1.5), ("pcie", 0.125, 0.25), ("network", 0.125, 0.125)]
    assert sum(floor for _, floor, _ in three) == 1.0
    assert loads("all_reduce", 4, 4) == [("pcie", 0.5, 1.0), ("network", 0.5, 0.5)]


def test_reduction_in_the_network_moves_the_message_once() -> None:
    link = evolve(SAMPLE.link, in_network_reduction=True)
    topology = evolve(TOPOLOGY, accelerator=evolve(SAMPLE, link=link))
    assert loads("all_reduce", 4, topology=topology) == [("scale_up", 1.0, 1.0)]
    # Not on tiers that do not declare it.
    assert loads("all_reduce", 4, 4, topology=topology) == [("pcie", 0.5, 1.0), ("network", 0.5, 0.5)]


def test_an_all_gather_brings_all_parts_but_the_own() -> None:
    assert loads("all_gather", 4) == [("scale_up", 0.75, 0.75)]
    assert loads("all_gather", 8) == [("scale_up", 0.75, 0.75), ("pcie", 0.125, 0.5)]


def test_all_to_all_and_send_cross_the_slowest_tier() -> None:
    assert loads("all_to_all", 4) == [("scale_up", 1.0, 1.0)]
    # Of 15 peers 8 are in the other node: no algorithm sends less between nodes.
    assert loads("all_to_all", 16) == [("network", 8 / 15, 1.0)]
    assert loads("send", 2, 8) == [("network", 1.0, 1.0)]


def test_links_are_priced_at_the_tier_that_they_cross() -> None:
    pricer = Pricer(chain((send(1e6, group=2),), (send(1e6, group=2, stride=4),), (send(1e6, stride=8),)), TOPOLOGY)
    assert pricer.bound(STEP) == pytest.approx(1.0)
    assert pricer.price(STEP).resources == ("compute", "hbm", "link:scale_up", "link:pcie", "link:network")
    assert pricer.price(STEP).binding_resource == "link:network"
    # The two peers of the PCIe tree take turns.
    latencies = 10e-6 + 2 * 25e-6 + 40e-6
    assert pricer.estimate(STEP) == pytest.approx((0.01 + 0.1 + 1.0) / 0.8 + latencies)
    assert pricer.price(STEP).link_bytes == 3e6


def test_a_pair_in_a_mesh_has_one_link(plugins: Plugins) -> None:
    mi300x = Topology(plugins.accelerators.get("amd/mi300x-oam-192gb"), SPENT, 8)
    pair, whole = (link_loads(send(1.0, "all_reduce", n), mi300x)[0].bytes_per_s for n in (2, 8))
    assert pair == pytest.approx(64e9)
    assert whole == pytest.approx(448e9)


def test_latency_counts_collectives() -> None:
    (load,) = link_loads(send(1.0), TOPOLOGY)
    assert load == LinkLoad("scale_up", 1e8, 1.0, 1.0, 10e-6)
    twice = evolve(send(0.0), count=2.0)
    assert Pricer(chain((twice,)), TOPOLOGY).estimate(STEP) == pytest.approx(20e-6)


def test_a_ring_moves_more_than_the_message() -> None:
    # Four members of a ring move 2 x 3/4 of the message; no less than the message can be had.
    pricer = Pricer(chain((send(1e8, "all_reduce", 4),)), TOPOLOGY)
    assert pricer.bound(STEP) == pytest.approx(1.0)
    assert pricer.estimate(STEP) == pytest.approx(1.5 / 0.8 + 10e-6)
    assert pricer.price(STEP).link_bytes == pricer.breakdown(STEP)[0].link_bytes == pytest.approx(1.5e8)
    # Of eight in two domains three quarters come over the links, a quarter over PCIe.
    both = Pricer(chain((send(1e8, "all_reduce", 8),)), TOPOLOGY)
    assert both.by_resource(STEP) == pytest.approx(
        {"compute": 0, "hbm": 0, "link:scale_up": 0.75, "link:pcie": 0.25 * 1e8 / 1e7}
    )


def test_of_resources_that_take_equally_long_the_first_binds() -> None:
    # 1 TFLOP at a quarter of the peak and 2 GB at half of the bandwidth: four seconds each.
    pricer = Pricer(chain((flops(1e12), moved(2e9))), TOPOLOGY)
    assert pricer.price(STEP).sustained_bound_s == 4.0
    assert pricer.price(STEP).binding_resource == "compute"
    per_token = Matmul(1e12, TOKENS, "width", NOTE, "bf16", WEIGHT)
    grid = Pricer(chain((per_token, moved(4e9))), TOPOLOGY).price(decode(np.array([1.0, 2.0, 3.0]), 0.0))
    assert list(np.asarray(grid.binding)) == [1.0, 0.0, 0.0]


def test_branches_share_the_memory() -> None:
    left, right = (Op(name, ("tokens",), (name,), (moved(1e9),)) for name in ("left", "right"))
    join = Op("join", ("left", "right"), ("out",), (HostWork(0.25, ONCE, "replicated", NOTE),))
    pricer = Pricer(StepGraph((left, right, join)), TOPOLOGY)
    # The longest way is 1 GB and the host's; both branches' bytes have to be moved.
    assert pricer.estimate(STEP) == pytest.approx(2 / 0.5)
    assert pricer.price(STEP).estimate_s == pytest.approx(2 / 0.5)


def test_a_branch_hides_behind_the_longer_one() -> None:
    forward = Op("forward", ("tokens",), ("logits",), (moved(1e9),))
    mask = Op("mask", ("schemas",), ("bits",), (HostWork(0.5, ONCE, "replicated", NOTE),))
    apply = Op("apply", ("logits", "bits"), ("out",), (HostWork(0.25, ONCE, "replicated", NOTE),))
    assert Pricer(StepGraph((forward, mask, apply)), TOPOLOGY).estimate(STEP) == pytest.approx(2.25)
    slow = evolve(mask, demands=(HostWork(3.0, ONCE, "replicated", NOTE),))
    assert Pricer(StepGraph((forward, slow, apply)), TOPOLOGY).estimate(STEP) == pytest.approx(3.25)
    after = evolve(mask, inputs=("logits",))
    assert Pricer(StepGraph((forward, after, apply)), TOPOLOGY).estimate(STEP) == pytest.approx(2.75)


def piped(micro_batches: int = 2, ranks: int = 1, l2: float = 0.0) -> Pricer:
    """Two stages, of 3 GB and 1 GB of weights, and 1 GB a token on the second."""
    weights = WeightRead(5e8, ONCE, "width", NOTE, WEIGHT, BF16)
    tokens = StateIO(1e9, TOKENS.on_fullest_rank(ranks), "replicated", NOTE)
    graph = chain((weights,), (tokens,), repeats=((3, 1), (0, 1)))
    graph = evolve(graph, micro_batches=micro_batches, ranks=ranks)
    return Pricer(graph, evolve(TOPOLOGY, accelerator=evolve(SAMPLE, l2_bytes=int(l2))))


def test_one_sequence_walks_through_all_stages() -> None:
    assert piped().bound(decode(1.0, 0.0)) == pytest.approx(3 + 1 + 1)


def test_micro_batches_read_weights_again() -> None:
    # Two micro-batches: the first stage reads its weights twice; the walk of one is 3 + 2.
    assert piped().bound(decode(2.0, 0.0)) == pytest.approx(max(2 * 3, 2 * (1 + 1), 3 + 2))
    # Of ten sequences each has five: the second stage is the busier one.
    assert piped().bound(decode(10.0, 0.0)) == pytest.approx(max(2 * 3, 2 * (1 + 5), 3 + 6))


def test_a_bound_takes_the_best_number_of_micro_batches() -> None:
    # Three sequences as two micro-batches of 1.5, as one walk, or as the engine's three.
    two, one = max(2 * 3, 2 * (1 + 1.5), 3 + 2.5), 3 + (1 + 3)
    assert piped(4).bound(decode(3.0, 0.0)) == pytest.approx(min(two, one))
    assert piped(4).estimate(decode(3.0, 0.0)) == pytest.approx(max(3 * 6, 3 * 4, 6 + 4))


def test_a_device_takes_the_l2_off_its_own_step() -> None:
    # Once for both micro-batches of the busiest stage, once on each device of the walk of one or of both at once.
    two, one = max(2 * 3 - 0.5, 3 + 2 - 1), 3 + 3 - 1
    assert piped(l2=5e8).bound(decode(2.0, 0.0)) == pytest.approx(min(two, one))
    assert piped(l2=5e8).bound(decode(1.0, 0.0)) == pytest.approx(5 - 1)


def test_ranks_need_a_sequence_each_for_a_micro_batch() -> None:
    # Two sequences on two ranks are one micro-batch, three are two, the fullest of one sequence a rank.
    assert piped(ranks=2).bound(decode(2.0, 0.0)) == pytest.approx(3 + 2)
    assert piped(ranks=2).estimate(decode(2.0, 0.0)) == pytest.approx((3 + 2) / 0.5)
    assert piped(ranks=2).bound(decode(3.0, 0.0)) == pytest.approx(max(2 * 3, 3 + 2))


@pytest.mark.parametrize("sequences", [1.0, 2.0, 3.0, 5.0, 8.0])
@pytest.mark.parametrize("figure", ["bound", "sustained_bound", "estimate"])
def test_prompts_of_a_token_are_laid_out_like_tokens_that_are_decoded(sequences: float, figure: str) -> None:
    priced = getattr(piped(ranks=2), figure)
    assert priced(prefill(1.0, 0.0, sequences)) == pytest.approx(priced(decode(sequences, 0.0)))


def test_estimates_of_stages_follow_the_same_schedule() -> None:
    assert piped().estimate(decode(2.0, 0.0)) == pytest.approx(2 * 6 / 1)
    assert piped().estimate(decode(1.0, 0.0)) == pytest.approx(5 / 0.5)


def deep(columns: list[tuple[int, int, int]], branch: bool = False, l2: int = 0) -> Pricer:
    """Three ops of different resources, so many of each on each stage; ``branch`` has the last one wait for the first
    only.
    """
    demands = (
        (WeightRead(3e8, ONCE, "width", NOTE, WEIGHT, BF16), StateIO(7e7, TOKENS, "replicated", NOTE)),
        (Matmul(3e11, TOKENS, "width", NOTE, "bf16", WEIGHT), WeightRead(1e8, ONCE, "width", NOTE, WEIGHT, BF16)),
        (Collective(1.3e7, TOKENS, "replicated", NOTE, "all_reduce", 4), Launch(3.0, ONCE, "replicated", NOTE)),
    )
    repeats = tuple(zip(*columns, strict=True))
    graph = evolve(chain(*demands, repeats=repeats), micro_batches=len(columns))
    if branch:
        graph = evolve(graph, ops=(*graph.ops[:2], evolve(graph.ops[2], inputs=("v0",))))
    return Pricer(graph, evolve(TOPOLOGY, accelerator=evolve(SAMPLE, l2_bytes=l2)))


def stage_by_stage(pricer: Pricer, shape: StepShape, figure: str) -> float:
    """A bound or an estimate from prices of every stage on its own."""
    graph, stages = pricer.graph, range(pricer.graph.stages)
    alone = [
        Pricer(
            evolve(graph, stages=1, micro_batches=1, ops=tuple(evolve(o, repeats=(o.repeats[s],)) for o in graph.ops)),
            pricer.topology,
        )
        for s in stages
    ]

    def schedule(part: StepShape, count: float) -> float:
        each = [float(getattr(p, figure)(part.micro_batch(count))) for p in alone]
        return max(count * max(each), sum(each))

    def most(part: StepShape, wanted: int, cut: bool = False) -> float:
        prompts = part.prefill_sequences * (part.prefill_tokens if cut else 1.0)
        return max(1.0, min(float(part.batch + prompts), float(wanted)))

    decoding, prompts = shape._replace(prefill_sequences=0.0), shape._replace(batch=0.0)
    if figure == "estimate":
        return max(schedule(part, most(part, len(stages))) for part in (shape, decoding, prompts))
    tried = [(cut, wanted) for cut in (False, True) for wanted in range(1, len(stages) + 1)]
    return max(min(schedule(part, most(part, n, cut)) for cut, n in tried) for part in (shape, decoding))


COLUMNS = st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=2, max_size=9)
SHAPES = st.tuples(
    st.sampled_from((0.0, 1.0, 3.0, 40.5)), st.sampled_from((0.0, 1.0, 2.5)), st.sampled_from((1.0, 700.0))
).map(lambda of: StepShape(batch=of[0], context=100.0, prefill_sequences=of[1], prefill_tokens=of[2]))


@given(COLUMNS, SHAPES, st.booleans(), st.sampled_from(("bound", "sustained_bound", "estimate")))
def test_stages_of_a_kind_cost_what_each_of_them_does(
    columns: list[tuple[int, int, int]], shape: StepShape, branch: bool, figure: str
) -> None:
    pricer = deep(columns, branch)
    expected = stage_by_stage(pricer, shape, figure)
    assert getattr(pricer, figure)(shape) == pytest.approx(expected, rel=1e-12)


def test_work_does_not_grow_with_equal_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    evaluate = cost._evaluate
    monkeypatch.setattr(cost, "_evaluate", lambda *form: evaluated.append(form) or evaluate(*form))

    def work(stages: int, figure: str, l2: int) -> int:
        pricer = deep([(1, 0, 1), *[(2, 2, 2)] * (stages - 2), (1, 1, 0)], l2=l2)
        del evaluated[:]
        # More sequences than stages: every number of micro-batches is another schedule.
        getattr(pricer, figure)(StepShape(batch=5000.0, context=10.0, prefill_sequences=4000.0, prefill_tokens=7.0))
        return len(evaluated)

    for figure in ("bound", "sustained_bound", "estimate"):
        assert 0 < work(2000, figure, 0) <= work(17, figure, 0)
        assert work(2000, figure, 10**9) <= work(17, figure, 10**9)


def test_equal_schedules_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pricer, priced = deep([(1, 1, 1)] * 12), []
    roofline = pricer._roofline
    monkeypatch.setattr(pricer, "_roofline", lambda load, **more: priced.append(load) or roofline(load, **more))
    # One sequence makes one micro-batch, however many are wanted, and without prompts there is nothing to cut.
    pricer.bound(decode(1.0, 100.0))
    assert len(priced) == 1
    pricer.bound(decode(3.0, 100.0))
    assert len(priced) == 1 + 3


def test_only_stages_that_can_be_longest_are_compared() -> None:
    assert deep([(1, 0, 0), (2, 2, 2), (2, 1, 2), (0, 0, 3), (2, 2, 2)])._busiest == [1, 3]
    # Without a branch one path stands for the walk through all stages.
    assert [n for _, n in deep([(1, 0, 1), (2, 2, 2)])._paths.walk] == [1]
    assert [n for _, n in deep([(1, 0, 1), (2, 2, 2), (2, 2, 2)], branch=True)._paths.walk] == [1, 2]


@pytest.mark.parametrize(
    ("stages", "most"),
    [(16, 5), (16, 13), *((40, most) for most in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40))],
)
def test_of_many_stages_some_numbers_of_micro_batches_are_tried(stages: int, most: int) -> None:
    """Weights on the first stage and work of 100 sequences on the others, which balance in so many; to 16 all are."""
    others = stages - 1
    weights = WeightRead(5e8, ONCE, "width", NOTE, WEIGHT, BF16)
    # The first stage reads n GB; a micro-batch walks through 1 GB and its part of the others' n (n - 1).
    work = StateIO(most * (most - 1) / others / 100 * 1e9, TOKENS, "replicated", NOTE)
    graph = chain((weights,), (work,), repeats=((1, *[0] * others), (0, *[1] * others)))
    graph = evolve(graph, micro_batches=stages)
    assert Pricer(graph, TOPOLOGY).bound(decode(100.0, 0.0)) == pytest.approx(most)


@pytest.mark.parametrize("shape", [StepShape(1.0, 0.0, 10.0, 1.0, 0.0, 1.0), StepShape(1.0, 0.0, 1.0, 1.0, 0.0, 10.0)])
def test_company_does_not_cut_a_sequence(shape: StepShape) -> None:
    # A sequence and a prompt, ten tokens of one and one of the other, over two stages of 1 GB a token.
    work = StateIO(1e9, TOKENS, "replicated", NOTE)
    pricer = Pricer(evolve(chain((work,), repeats=((1, 1),)), micro_batches=2), TOPOLOGY)
    assert pricer.estimate(shape) == pytest.approx((10 + 10) / 0.5)


def test_prompts_are_laid_out_whole_or_cut() -> None:
    weights = WeightRead(1e9, ONCE, "width", NOTE, WEIGHT, BF16)
    work = StateIO(1e8, TOKENS, "replicated", NOTE)
    graph = evolve(chain((weights,), (work,), repeats=((1, 0, 0), (2, 9, 9))), micro_batches=3)
    # Two and a half prompts of two tokens: whole, the first stage has 5 GB of weights and 1 GB of tokens, and a
    # prompt walks through 2 GB and 4 GB. Cut in two or in three, either takes 7 s.
    assert Pricer(graph, TOPOLOGY).bound(prefill(2.0, 0.0, 2.5)) == pytest.approx(6.0)


@given(COLUMNS, SHAPES, st.booleans())
def test_a_price_has_the_figures_that_are_asked_for_alone(
    columns: list[tuple[int, int, int]], shape: StepShape, branch: bool
) -> None:
    pricer = deep(columns, branch)
    price = pricer.price(shape)
    assert price[:4] == pytest.approx(
        (pricer.bound(shape), pricer.sustained_bound(shape), pricer.estimate(shape), pricer.floor(shape))
    )


def test_totals_are_those_of_the_busiest_stage_for_each() -> None:
    graph = chain((flops(3e9),), (moved(7e9),), (send(1e9),), repeats=((1, 2, 1), (5, 1, 1), (2, 7, 1)))
    price = Pricer(graph, TOPOLOGY).price(STEP)
    assert (price.flops, price.hbm_bytes, price.link_bytes) == (2 * 3e9, 5 * 7e9, 7e9 * 1)
    # At 100 MB/s the second stage's seven messages take longest.
    assert price.binding_resource == "link:scale_up"


def test_breakdown_and_amounts_name_every_op() -> None:
    graph = chain((flops(1e12), moved(1e9), ActivationIO(5.0, ONCE, "replicated", NOTE)), (send(1e6),))
    graph = graph.with_op(evolve(graph.op("op0"), repeats=(3,)))
    first, second = Pricer(graph, TOPOLOGY).breakdown(STEP)
    assert (first.name, first.instances) == ("op0", 3)
    assert (first.flops, first.hbm_bytes, first.activation_bytes) == (3e12, 3e9, 15.0)
    assert first.seconds == pytest.approx(3 / 0.25)
    assert (second.link_bytes, second.flops) == (1e6, 0.0)
    assert Pricer(graph, TOPOLOGY).amounts(STEP) == [[1e12, 1e9, 5.0], [1e6]]


def test_breakdown_counts_instances_and_amounts_count_units() -> None:
    read, cached = StateIO(1e9, TOKENS, "replicated", NOTE), CacheIO(1e8, TOKENS, "kv_heads", NOTE, BF16)
    launch = Launch(5e4, ONCE, "replicated", NOTE)
    graph = chain((read, cached, launch), (send(1e6),), repeats=((2,), (3,)))
    first, second = Pricer(graph, TOPOLOGY).breakdown(decode(4.0, 0.0))
    # 1.2 GB a token at half of 1 GB/s, and 50,000 launches of 2 us, twice; three messages of 1 MB at 80 MB/s.
    assert first.hbm_bytes == pytest.approx(2 * 4 * 1.2e9)
    assert first.seconds == pytest.approx(2 * (4 * 1.2 / 0.5 + 0.1))
    assert second.link_bytes == 3e6
    assert second.seconds == pytest.approx(3 * (1e-2 / 0.8 + 10e-6))
    assert Pricer(graph, TOPOLOGY).amounts(decode(4.0, 0.0)) == [[4e9, 8e8, 5e4], [1e6]]


def test_what_cannot_be_priced_is_an_error() -> None:
    class Unknown(Demand):
        pass

    with pytest.raises(TypeError, match="op0 carries a demand that cost does not know: Unknown"):
        Pricer(chain((Unknown(1.0, ONCE, "replicated", NOTE),)), TOPOLOGY)
    with pytest.raises(ValueError, match="needs a format"):
        hbm_bytes_per_unit(CacheIO(1.0, ONCE, "replicated", NOTE))
    assert hbm_bytes_per_unit(CacheIO(3.0, ONCE, "replicated", NOTE, BF16)) == 6.0
    assert hbm_bytes_per_unit(flops(1.0)) == 0.0


def test_arrays_bind_where_each_point_does() -> None:
    per_token = Matmul(1e12, TOKENS, "width", NOTE, "bf16", WEIGHT)
    pricer = Pricer(chain((moved(8e9), per_token)), TOPOLOGY)
    price = pricer.price(decode(np.array([1.0, 2.0, 100.0]), 0.0))
    assert [price.resources[int(i)] for i in np.asarray(price.binding)] == ["hbm", "hbm", "compute"]
    assert np.allclose(price.bound_s, [8.0, 8.0, 100.0])


def test_a_grid_of_points_broadcasts(plugins: Plugins) -> None:
    spec = '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\ndevices = 2\n[model]\nid = "Qwen/Qwen3-30B-A3B"\n'
    pricer = compose(spec, plugins).pricer
    batch, context = np.array([1.0, 7.0, 64.0]).reshape(-1, 1), np.array([[0.0, 100.0, 9000.0, 30_000.0]])
    grid = pricer.price(decode(batch, context))
    assert np.broadcast(grid.bound_s, grid.estimate_s).shape == (3, 4)
    for i in range(3):
        for j in range(4):
            one = pricer.price(decode(float(batch[i, 0]), float(context[0, j])))
            for name in ("bound_s", "sustained_bound_s", "estimate_s", "floor_s", "hbm_bytes"):
                whole = np.broadcast_to(getattr(grid, name), (3, 4))
                assert float(whole[i, j]) == pytest.approx(getattr(one, name), rel=1e-12)
