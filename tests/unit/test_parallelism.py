"""Parallelism: what each degree divides, which collectives it adds, what cannot be laid out."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, comb
from typing import Any

import pytest
from attrs import evolve

from servelint.architecture import Architecture, Attention, Experts, LatentAttention, Tensor
from servelint.composition import Composition
from servelint.errors import InfeasibleError
from servelint.hardware import Link
from servelint.manager import Plugins
from servelint.resources import CacheIO, Collective, Matmul, WeightRead
from servelint.shapes import StepShape, decode, prefill
from servelint.testing import compose, samples
from servelint_plugins.policies import parallelism
from servelint_plugins.policies.parallelism import (
    Parallelism,
    _distinct_remote,
    devices,
    reached_share,
    stage_layers,
)

HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, WIDTH, VOCABULARY = 1024, 8, 16, 4, 64, 4096, 32_000
STEP = decode(8.0, 1000.0)


def dense(**more: Any) -> Architecture:
    layers = range(LAYERS)
    mixer = Attention(HEADS, KV_HEADS, DIM, DIM)
    blocks = (
        samples.attention_block("attn", layers, HIDDEN, mixer),
        samples.dense_block("mlp", layers, HIDDEN, WIDTH),
    )
    return samples.model(HIDDEN, VOCABULARY, blocks, **more)


def sparse() -> Architecture:
    layers = range(LAYERS)
    latent = LatentAttention(HEADS, 256, 64, 64, 64)
    blocks = (
        samples.latent_block("attn", layers, HIDDEN, latent),
        samples.dense_block("mlp", (0,), HIDDEN, WIDTH),
        samples.expert_block("moe", range(1, LAYERS), HIDDEN, 512, Experts(16, 2), 512),
    )
    return samples.model(HIDDEN, VOCABULARY, blocks)


def composed(plugins: Plugins, model: Architecture, hardware: str = "", **degrees: Any) -> Composition:
    table = "".join(f"{name} = {value}\n" for name, value in degrees.items())
    spec = f'[hardware]\naccelerator = "any"\n{hardware}[model]\nid = "any"\n[policy.parallelism]\n{table}'
    return compose(spec, plugins, architecture=model, accelerator=samples.accelerator())


def demand(composition: Composition, op: str, kind: type, tensor: str = "") -> float:
    found = [
        d.coefficient
        for d in composition.graph.op(op).demands
        if isinstance(d, kind) and not getattr(d, "write", False) and (not tensor or d.tensor.name == tensor)
    ]
    return sum(found)


def collectives(composition: Composition, shape: StepShape = STEP) -> dict[str, list[tuple[str, float, int, int]]]:
    """Per op: kind, bytes of one instance, group and stride of every collective."""
    return {
        op.name: found
        for op in composition.graph.ops
        if (found := [
            (d.kind, d.coefficient * float(d.feature.count(shape)), d.group, d.stride)
            for d in op.demands
            if isinstance(d, Collective)
        ])
    }  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "needed"),
    [
        ({}, None),
        ({"expert": 4}, None),
        ({"tensor": 4}, 4),
        ({"tensor": 2, "pipeline": 3}, 6),
        ({"data": 4}, 4),
        ({"tensor": 4, "context": 2}, 4),
        ({"context": 2}, 2),
        ({"tensor": 2, "context": 4}, 8),
        # Each attention group has one device, so that context needs more of them.
        ({"tensor": 2, "attention_data": 2, "context": 2}, 4),
    ],
)
def test_devices_that_the_degrees_need(degrees: dict[str, int], needed: int | None) -> None:
    assert devices(Parallelism(**degrees)) == needed


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor": 4, "attention_data": 3}, "attention_data 3 does not divide tensor 4"),
        ({"pipeline": 9}, "pipeline 9 is more than the 8 layers"),
        ({"pipeline": 2, "pipeline_layers": [3, 4]}, "2 stages with 7 layers; 2 stages with 8 layers in all"),
        ({"pipeline": 3, "pipeline_layers": [4, 4]}, "2 stages with 8 layers; 3 stages"),
        ({"tensor": 4, "expert": 3}, "expert 3 does not divide the 4 devices"),
    ],
)
def test_degrees_that_cannot_be_laid_out(plugins: Plugins, degrees: dict[str, Any], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        composed(plugins, dense(), **degrees)


def test_devices_that_nothing_splits_form_one_tensor_group(plugins: Plugins) -> None:
    whole = composed(plugins, dense(), "devices = 8\n", pipeline=2)
    assert whole.context.config("parallelism").tensor == 4
    assert [a for a in whole.context.assumptions if a.path == ("policy", "parallelism", "tensor")]


@pytest.mark.parametrize(
    ("hardware", "degrees", "tensor", "said"),
    [
        ("", {}, 1, False),
        ("devices = 6\n", {"pipeline": 2}, 3, True),
        ("devices = 2\n", {"pipeline": 2}, 1, False),
        ("devices = 2\n", {}, 2, True),
        # Devices that share the tokens of a sequence are those of the group.
        ("devices = 8\n", {"context": 2}, 8, True),
        ("devices = 4096\n", {"pipeline": 2}, 2048, True),
        # What does not divide evenly is not spread.
        ("devices = 5\n", {"pipeline": 2}, 1, False),
        ("devices = 4096\n", {}, 4096, True),
        ("devices = 8192\n", {}, 1, False),
    ],
)
def test_devices_that_the_other_degrees_leave(
    hardware: str, degrees: dict[str, int], tensor: int, said: bool, plugins: Plugins
) -> None:
    found = composed(plugins, dense(), hardware, **degrees).context
    assert found.config("parallelism").tensor == tensor
    assert any(a.path == ("policy", "parallelism", "tensor") for a in found.assumptions) == said


def test_a_lineage_tells_of_shares_and_of_nothing_else(plugins: Plugins) -> None:
    four = composed(plugins, sparse(), tensor=4, data=2)
    reads = {d.tensor.name: d for d in four.graph.op("moe.router").demands if isinstance(d, WeightRead) and d.tensor}
    assert reads["router"].lineage.rewrites == reads["norm"].lineage.rewrites == ()
    for op in ("mlp.up_proj", "attn.core"):
        for given in four.graph.op(op).demands:
            told = [rewrite.formula for rewrite in given.lineage.rewrites]
            assert not [formula for formula in told if "context" in formula]
    held = {w.name: [r.by for r in w.lineage.rewrites] for w in four.memory.weights}
    assert held["moe.router"] == held["attn.norm"] == []
    assert held["mlp.gate_up_proj"] == held["moe.experts"] == ["parallelism"]


@pytest.mark.parametrize(
    ("latent", "degrees", "weights", "inputs"),
    [
        (False, {"tensor": 2}, "attn.q_proj", ["parallelism.tensor"]),
        (False, {"tensor": 2}, "attn.k_proj", ["parallelism.tensor", "KV heads"]),
        (False, {"tensor": 2}, "mlp.down_proj", ["parallelism.tensor"]),
        (True, {"tensor": 2}, "moe.experts", ["parallelism.tensor"]),
        (True, {"tensor": 2, "expert": 2}, "moe.experts", ["parallelism.tensor", "parallelism.expert"]),
        (True, {"tensor": 2, "expert": 2}, "moe.shared_up", ["parallelism.tensor"]),
    ],
)
def test_a_share_names_what_it_came_from(
    latent: bool, degrees: dict[str, int], weights: str, inputs: list[str], plugins: Plugins
) -> None:
    ledger = composed(plugins, sparse() if latent else dense(), **degrees).memory
    (rewrite,) = next(w for w in ledger.weights if w.name == weights).lineage.rewrites
    assert [i.name for i in rewrite.inputs] == inputs


def test_tensor_parallelism_divides_along_each_axis(plugins: Plugins) -> None:
    one, four = composed(plugins, dense()), composed(plugins, dense(), tensor=4)
    for op, kind, tensor, share in (
        ("attn.in_proj", WeightRead, "q_proj", 1 / 4),
        ("attn.in_proj", WeightRead, "k_proj", 1 / 4),
        ("attn.in_proj", WeightRead, "norm", 1.0),
        ("attn.core", CacheIO, "", 1 / 4),
        ("attn.core", Matmul, "", 1 / 4),
        ("mlp.up_proj", Matmul, "gate_up_proj", 1 / 4),
        ("lm_head", WeightRead, "lm_head", 1 / 4),
    ):
        assert demand(four, op, kind, tensor) == demand(one, op, kind, tensor) * share, (op, tensor)
    message = HIDDEN * 2 * 8.0
    assert collectives(four) == {
        "embedding.collective": [("all_reduce", message, 4, 1)],
        "attn.out_proj.collective": [("all_reduce", message, 4, 1)],
        "mlp.down_proj.collective": [("all_reduce", message, 4, 1)],
        "lm_head.collective": [("send", VOCABULARY / 4 * 2 * 8.0, 4, 1)],
    }
    assert collectives(one) == {}


def test_key_heads_are_copied_where_there_are_too_few(plugins: Plugins) -> None:
    one, many = composed(plugins, dense()), composed(plugins, dense(), tensor=16)
    assert demand(many, "attn.core", CacheIO) == demand(one, "attn.core", CacheIO) / KV_HEADS
    assert demand(many, "attn.in_proj", WeightRead, "k_proj") == demand(one, "attn.in_proj", WeightRead, "k_proj") / 4
    assert demand(many, "attn.core", Matmul) == demand(one, "attn.core", Matmul) / 16
    assert many.memory.bytes_per_token() == one.memory.bytes_per_token() / KV_HEADS
    uneven = composed(plugins, dense(), tensor=3)
    assert demand(uneven, "attn.core", CacheIO) == pytest.approx(demand(one, "attn.core", CacheIO) * 2 / 4)
    assert demand(uneven, "attn.core", Matmul) == pytest.approx(demand(one, "attn.core", Matmul) * 6 / 16)


def test_parallel_blocks_need_one_all_reduce(plugins: Plugins) -> None:
    found = collectives(composed(plugins, dense(parallel_blocks=True), tensor=2))
    assert set(found) == {"embedding.collective", "mlp.down_proj.collective", "lm_head.collective"}


def test_latents_and_their_projections_are_replicated(plugins: Plugins) -> None:
    one, four = composed(plugins, sparse()), composed(plugins, sparse(), tensor=4)
    for op, kind, tensor in (("attn.core", CacheIO, ""), ("attn.in_proj", WeightRead, "kv_down")):
        assert demand(four, op, kind, tensor) == demand(one, op, kind, tensor)
    assert demand(four, "attn.in_proj", WeightRead, "kv_up") == demand(one, "attn.in_proj", WeightRead, "kv_up") / 4
    assert demand(four, "moe.router", WeightRead, "router") == demand(one, "moe.router", WeightRead, "router")
    assert four.memory.bytes_per_token() == one.memory.bytes_per_token()


def test_data_ranks_share_sequences_and_copy_weights(plugins: Plugins) -> None:
    one, ranks = composed(plugins, dense()), composed(plugins, dense(), data=4)
    assert ranks.memory.weights_bytes == one.memory.weights_bytes
    assert (ranks.memory.ranks, ranks.scheduler.ranks, ranks.graph.ranks) == (4, 4, 4)
    assert collectives(ranks) == {}
    core = ranks.graph.op("attn.core")
    (read,) = (d for d in core.demands if isinstance(d, CacheIO) and not d.write)
    # Nine sequences: one of the four ranks has three.
    assert read.feature.count(decode(9.0, 100.0)) == 300


def test_attention_ranks_hold_attention_whole_and_share_the_rest(plugins: Plugins) -> None:
    one, ranks = composed(plugins, sparse()), composed(plugins, sparse(), tensor=4, attention_data=4)
    assert demand(ranks, "attn.in_proj", WeightRead) == demand(one, "attn.in_proj", WeightRead)
    assert demand(ranks, "mlp.up_proj", Matmul) == demand(one, "mlp.up_proj", Matmul) / 4
    assert demand(ranks, "moe.experts", Matmul, "experts") == demand(one, "moe.experts", Matmul, "experts") / 4
    (read,) = (d for d in ranks.graph.op("attn.core").demands if isinstance(d, CacheIO) and not d.write)
    assert read.feature.count(decode(9.0, 100.0)) == 300
    message = HIDDEN * 2 * 8.0
    found = collectives(ranks)
    # Tokens are gathered for the MLP and its parts given back.
    assert found["attn.out_proj.collective"] == [("all_gather", message, 4, 1)]
    assert found["mlp.down_proj.collective"] == [("all_gather", message, 4, 1)]
    assert ranks.scheduler.ranks == 4


def test_tokens_of_two_attention_groups_are_gathered(plugins: Plugins) -> None:
    found = collectives(composed(plugins, sparse(), tensor=4, attention_data=2))
    row = HIDDEN * 2
    # Each group of two adds up its own four sequences before the MLP gets all eight.
    assert found["attn.out_proj.collective"] == [("all_reduce", row * 4.0, 2, 1), ("all_gather", row * 8.0, 4, 1)]
    assert found["mlp.down_proj.collective"] == [("all_gather", row * 8.0, 4, 1)]
    pair = collectives(composed(plugins, dense(), tensor=2))
    assert pair["attn.out_proj.collective"] == pair["mlp.down_proj.collective"] == [("all_reduce", row * 8.0, 2, 1)]


def test_state_is_divided_by_heads(plugins: Plugins) -> None:
    one, two = (composed(plugins, samples.hybrid_model(), tensor=n).memory.states for n in (1, 2))
    assert [(s.block, s.bytes) for s in two] == [(s.block, s.bytes / 2) for s in one]
    assert one


@pytest.mark.parametrize(("data", "most"), [(2, 5.0), (3, 3.0), (9, 1.0)])
def test_a_step_waits_for_the_fullest_rank(data: int, most: float, plugins: Plugins) -> None:
    demands = composed(plugins, dense(), data=data).graph.op("mlp.up_proj").demands
    (product,) = (d for d in demands if isinstance(d, Matmul))
    assert product.feature.count(decode(9.0, 100.0)) == most


@pytest.mark.parametrize(
    ("degrees", "experts", "tokens"),
    [
        # Without expert parallelism each rank's sequences go through its own experts; with it, through those of all.
        ({"data": 4}, 1, 3.0),
        ({"data": 2, "expert": 2}, 2, 9.0),
        ({"tensor": 2, "data": 2, "expert": 2}, 4, 9.0),
    ],
)
def test_experts_of_a_device_and_their_tokens(
    degrees: dict[str, int], experts: int, tokens: float, plugins: Plugins
) -> None:
    one, ranks = composed(plugins, sparse()), composed(plugins, sparse(), **degrees)
    for kind in (WeightRead, Matmul):
        share = demand(ranks, "moe.experts", kind, "experts") / demand(one, "moe.experts", kind, "experts")
        assert share == 1 / experts
    (product,) = (
        d
        for d in ranks.graph.op("moe.experts").demands
        if isinstance(d, Matmul) and d.tensor is not None and d.tensor.name == "experts"
    )
    # Of nine sequences the fullest of four ranks has three.
    assert product.feature.count(decode(9.0, 0.0)) == tokens


def test_experts_under_tensor_parallel_attention_need_no_dispatch(plugins: Plugins) -> None:
    four = composed(plugins, sparse(), tensor=4, expert=4)
    assert collectives(four)["moe.experts.collective"] == [("all_reduce", HIDDEN * 2 * 8.0, 4, 1)]
    one = composed(plugins, sparse())
    assert demand(four, "moe.experts", WeightRead, "experts") == demand(one, "moe.experts", WeightRead, "experts") / 4


def test_dispatch_goes_to_the_ranks_of_the_experts(plugins: Plugins) -> None:
    found = collectives(composed(plugins, sparse(), tensor=4, attention_data=4, expert=4))["moe.experts.all_to_all"]
    # Two of sixteen experts, four on a rank: a rank is missed with probability C(12,2) / C(16,2).
    missed = (12 * 11) / (16 * 15)
    copies = 3 * (1 - missed)
    assert [kind for kind, *_ in found] == ["all_to_all", "all_to_all"]
    for _, sent, group, stride in found:
        assert sent == pytest.approx(2.0 * copies * HIDDEN * 2)
        assert (group, stride) == (4, 1)


def remote(groups: int) -> float:
    """Groups other than its own that a token's two of sixteen experts lie in."""
    missed = comb(16 - 16 // groups, 2) / comb(16, 2)
    return (groups - 1) * (1 - missed)


@pytest.mark.parametrize(
    ("domain", "degrees", "routes", "width"),
    [
        # Ranks of one node: a copy for each.
        (8, {"tensor": 8, "attention_data": 8, "expert": 8}, [(remote(8), 8, 1)], HIDDEN),
        (8, {"tensor": 2, "attention_data": 2, "expert": 2}, [(remote(2), 2, 1)], HIDDEN),
        # Two devices of a group each send half of a token.
        (8, {"tensor": 8, "attention_data": 4, "expert": 8}, [(remote(8), 8, 1)], HIDDEN / 2),
        # Two nodes of eight, four nodes of two: a copy for each other node, which hands it on to its devices.
        (
            8,
            {"tensor": 16, "attention_data": 16, "expert": 16},
            [(remote(2), 2, 8), (remote(16) * 7 / 8, 8, 1)],
            HIDDEN,
        ),
        (2, {"tensor": 8, "attention_data": 8, "expert": 8}, [(remote(4), 4, 2), (remote(8) / 2, 2, 1)], HIDDEN),
    ],
)
def test_a_token_goes_once_to_every_node_and_there_to_every_rank(
    domain: int, degrees: dict[str, int], routes: list[tuple[float, int, int]], width: float, plugins: Plugins
) -> None:
    part = evolve(samples.accelerator(), link=Link("switch", 450e9, domain))
    table = "".join(f"{name} = {value}\n" for name, value in degrees.items())
    spec = (
        f'[hardware]\naccelerator = "any"\ndevices_per_node = {domain}\n[model]\nid = "any"\n'
        f"[policy.parallelism]\n{table}"
    )
    found = collectives(compose(spec, plugins, architecture=sparse(), accelerator=part), decode(16.0, 100.0))
    tokens = 16 / degrees["attention_data"]
    expected = [("all_to_all", pytest.approx(tokens * copies * width * 2), n, apart) for copies, n, apart in routes]
    # There and back.
    assert found["moe.experts.all_to_all"] == expected * 2


def test_expert_groups_span_data_ranks(plugins: Plugins) -> None:
    one, both = composed(plugins, sparse()), composed(plugins, sparse(), data=2, tensor=2, expert=4)
    assert demand(both, "moe.experts", WeightRead, "experts") == demand(one, "moe.experts", WeightRead, "experts") / 4
    held = {w.name: w.params for w in both.memory.weights}
    assert held["moe.experts"] == 3 * HIDDEN * 512 * 16 / 4
    # A shared expert is divided within a rank.
    assert held["moe.shared_up"] == 2 * HIDDEN * 512 / 2
    # The whole group's tokens reach an expert, whatever rank they came from.
    (read,) = (
        d
        for d in both.graph.op("moe.experts").demands
        if isinstance(d, WeightRead) and d.tensor and d.tensor.name == "experts"
    )
    assert read.feature.count(decode(8.0, 0.0)) == pytest.approx(1 - (14 / 16) ** 8)


def test_context_parallel_within_a_tensor_group_counts_the_cache_once(plugins: Plugins) -> None:
    one, four = composed(plugins, dense()), composed(plugins, dense(), tensor=4, context=2)
    # Two heads' tokens on a device, half of them: over four devices the cache stands once.
    assert demand(four, "attn.core", CacheIO) == demand(one, "attn.core", CacheIO) / 4
    assert demand(four, "attn.core", Matmul) == demand(one, "attn.core", Matmul) / 4
    assert four.memory.bytes_per_token() * 4 == one.memory.bytes_per_token()
    (joined,) = collectives(four)["attn.core.join"]
    assert [op.name for op in four.graph.ops].count("attn.core.join") == 1
    # Matrices are divided by tensor alone.
    assert four.memory.weights_bytes == composed(plugins, dense(), tensor=4).memory.weights_bytes
    # Partial results of the two groups' heads, in fp32.
    assert joined == ("all_reduce", 8.0 * HEADS / 2 * DIM * 4, 2, 1)


def test_context_parallel_takes_the_place_of_copied_latents(plugins: Plugins) -> None:
    one, eight = composed(plugins, sparse()), composed(plugins, sparse(), tensor=8, context=8)
    assert eight.memory.bytes_per_token() * 8 == one.memory.bytes_per_token()


def test_context_parallel_on_devices_of_its_own(plugins: Plugins) -> None:
    one, two = composed(plugins, dense()), composed(plugins, dense(), tensor=1, context=2)
    assert two.setup.topology.devices == 2
    assert demand(two, "attn.core", CacheIO) == demand(one, "attn.core", CacheIO) / 2
    assert two.memory.weights_bytes == one.memory.weights_bytes
    assert two.memory.bytes_per_token() * 2 == one.memory.bytes_per_token()
    # A prompt is shared out, tokens that are decoded one by one are not.
    for op, tensor in (("mlp.up_proj", "gate_up_proj"), ("attn.in_proj", "q_proj")):
        for kind in (Matmul, WeightRead):
            assert demand(two, op, kind, tensor) == demand(one, op, kind, tensor)
        product = next(d for d in two.graph.op(op).demands if isinstance(d, Matmul))
        assert product.feature.count(prefill(100.0)) == 50
        assert product.feature.count(STEP) == 8
    # Attention itself meets half of the cached tokens with all of the new ones.
    assert demand(two, "attn.core", Matmul) == demand(one, "attn.core", Matmul) / 2
    alone, shared = (next(d for d in c.graph.op("attn.core").demands if isinstance(d, Matmul)) for c in (one, two))
    assert shared.feature.count(prefill(100.0)) == alone.feature.count(prefill(100.0))


@pytest.mark.parametrize(
    ("layers", "stages", "split"), [(8, 2, (4, 4)), (61, 8, (8,) * 5 + (7,) * 3), (5, 3, (2, 2, 1))]
)
def test_layers_are_split_as_evenly_as_they_go(layers: int, stages: int, split: tuple[int, ...]) -> None:
    assert stage_layers(Parallelism(pipeline=stages), layers) == split


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 64, 100, 256, 4096])
@pytest.mark.parametrize(("count", "top_k"), [(8, 2), (8, 8), (8, 7), (60, 4), (256, 8), (1000, 1), (5000, 2500)])
def test_the_share_of_tokens_that_reach_a_group_is_exact(count: int, top_k: int, groups: int) -> None:
    missed = Fraction(comb(count - ceil(count / groups), top_k), comb(count, top_k))
    assert reached_share(Experts(count, top_k), groups) == pytest.approx(float(1 - missed), rel=1e-12)


def test_a_share_takes_few_factors_however_many_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    factors: list[float] = []
    log1p = parallelism.log1p
    monkeypatch.setattr(parallelism, "log1p", lambda x: factors.append(x) or log1p(x))
    assert reached_share(Experts(100_000, 50_000), 4096) == pytest.approx(1 - 2.0**-25, rel=1e-9)
    assert len(factors) == ceil(100_000 / 4096)
    assert reached_share(Experts(100_000, 50_000), 2) == reached_share(Experts(10**6, 10**5), 3) == 1.0
    assert len(factors) < 1000


def test_thousands_of_stages_have_a_layer_each(plugins: Plugins) -> None:
    model = evolve(dense(), num_layers=2000)
    blocks = tuple(evolve(b, layers=tuple(range(2000))) for b in model.blocks)
    staged = composed(plugins, evolve(model, blocks=blocks), pipeline=2000)
    assert staged.graph.op("attn.core").repeats == (1,) * 2000
    # The first stage has the embedding, the last one the head.
    assert staged.graph.stage_kinds == ((0, 1), (1, 1998), (1999, 1))


def test_stages_hold_their_layers_and_send_between(plugins: Plugins) -> None:
    staged = composed(plugins, dense(), pipeline=2, tensor=2, pipeline_layers=[5, 3])
    graph, memory = staged.graph, staged.memory
    assert (graph.stages, graph.micro_batches, memory.stages) == (2, 2, 2)
    assert graph.op("attn.core").repeats == graph.op("mlp.down_proj.collective").repeats == (5, 3)
    assert graph.op("embedding").repeats == (1, 0)
    assert graph.op("lm_head").repeats == graph.op("lm_head.collective").repeats == (0, 1)
    assert graph.op("pipeline.send").repeats == (1, 0)
    # Every device sends its part of the hidden state to the stage two devices on.
    assert collectives(staged)["pipeline.send"] == [("send", HIDDEN / 2 * 2 * 8.0, 2, 2)]
    ranks = collectives(composed(plugins, dense(), pipeline=2, tensor=2, data=2))
    assert ranks["pipeline.send"] == [("send", HIDDEN / 2 * 2 * 4.0, 2, 4)]
    table = VOCABULARY * HIDDEN * 2 / 2
    layer = (memory.fit(0).weights - table) / 5
    assert memory.fit(1).weights - table - 2 * HIDDEN == pytest.approx(3 * layer)
    assert [memory.sequence_bytes(16, s) for s in (0, 1)] == [16 * n * 2 * KV_HEADS / 2 * DIM * 2 for n in (5, 3)]


def test_tables_and_towers_stand_where_they_are_used(plugins: Plugins) -> None:
    vision = Tensor("vision", "vision", 10**6, "replicated")
    model = evolve(dense(tied=True, positions=128), extras=(vision,))
    repeats = {w.name: w.repeats for w in composed(plugins, model, pipeline=2).memory.weights}
    # A tied table multiplies on the last stage.
    assert repeats["embed_tokens"] == (1, 1)
    assert repeats["positions"] == repeats["vision"] == (1, 0)
    assert repeats["final_norm"] == (0, 1)
    untied = {w.name: w.repeats for w in composed(plugins, dense(), pipeline=2).memory.weights}
    assert (untied["embed_tokens"], untied["lm_head"]) == ((1, 0), (0, 1))


def test_no_token_travels_to_more_groups_than_it_has_experts() -> None:
    assert _distinct_remote(Experts(8, 2), 4) == pytest.approx(3 * (1 - 6 * 5 / (8 * 7)))
    # Sixteen groups, eight of which hold an expert: two are reached, one in sixteen of them is the token's own.
    assert _distinct_remote(Experts(8, 2), 16) == pytest.approx(2 * 15 / 16)
    for groups in range(2, 40):
        assert _distinct_remote(Experts(10, 3), groups) <= 3


# What travels to experts, and how many


@pytest.mark.parametrize(("weights", "each"), [("fp8", 1.0), ("int8", 1.0), ("nvfp4", 0.5), ("bf16", 2.0)])
def test_tokens_go_to_experts_as_wide_as_these_multiply_and_come_back_in_16_bit(
    weights: str, each: float, plugins: Plugins
) -> None:
    spec = (
        '[hardware]\naccelerator = "any"\n[model]\nid = "any"\n[policy.parallelism]\n'
        f'tensor = 4\nattention_data = 4\nexpert = 4\n[policy.quantization]\nweights = "{weights}"\n'
        f'activations = "{weights}"\n'
    )
    rates = dict.fromkeys(("bf16", "fp16", "fp8", "int8", "fp4"), 1e15)
    part = evolve(samples.accelerator(), dense_flops=rates)
    found = compose(spec, plugins, architecture=sparse(), accelerator=part)
    there, back = (d.coefficient for d in found.graph.op("moe.experts.all_to_all").demands if isinstance(d, Collective))
    assert there / back == pytest.approx(each / 2)


@pytest.mark.parametrize(
    ("covers", "each"),
    [('["routed_experts"]', 1.0), ('["mlp", "shared_experts"]', 2.0), ('["routed_experts", "mlp"]', 1.0)],
)
def test_only_the_routed_experts_say_how_wide_tokens_travel(covers: str, each: float, plugins: Plugins) -> None:
    spec = (
        '[hardware]\naccelerator = "any"\n[model]\nid = "any"\n[policy.parallelism]\n'
        "tensor = 4\nattention_data = 4\nexpert = 4\n"
        f'[policy.quantization]\nweights = "fp8"\ncovers = {covers}\n'
    )
    found = compose(spec, plugins, architecture=sparse(), accelerator=samples.accelerator())
    there, back = (d.coefficient for d in found.graph.op("moe.experts.all_to_all").demands if isinstance(d, Collective))
    assert there / back == each / 2


@pytest.mark.parametrize(
    ("degrees", "lockstep"),
    [
        ({"tensor": 2, "attention_data": 2}, True),
        ({"tensor": 4}, False),
        ({"data": 2}, False),
        ({"tensor": 4, "expert": 4}, False),
        ({"data": 2, "expert": 2}, True),
        ({"tensor": 2, "data": 2, "expert": 4}, True),
        ({"tensor": 4, "attention_data": 4}, True),
    ],
)
def test_ranks_that_share_experts_or_dense_layers_step_together(
    degrees: dict[str, int], lockstep: bool, plugins: Plugins
) -> None:
    assert composed(plugins, sparse(), **degrees).scheduler.lockstep is lockstep
