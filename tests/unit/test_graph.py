"""The step graph: composed by names, refused when it does not compose, exported."""

from __future__ import annotations

import networkx as nx
import pytest
from attrs import evolve

from servelint.architecture import Architecture, Attention, Indexer, LatentAttention
from servelint.errors import GraphError
from servelint.graph import Op, StepGraph, demands_of, kinds_of_stages
from servelint.layout import launch
from servelint.lineage import Lineage
from servelint.manager import Plugins
from servelint.resources import ActivationIO, CacheIO, Demand, HostWork, Launch, Matmul, StateIO
from servelint.shapes import ONCE, StepShape, decode, prefill
from servelint.testing import compose, samples


def op(name: str, inputs: str, outputs: str, seconds: float = 0.0, repeats: tuple[int, ...] = (1,)) -> Op:
    work = HostWork(seconds, ONCE, "replicated", Lineage("given"))
    return Op(name, tuple(inputs.split()), tuple(outputs.split()), (work,), repeats, origin=f"plugin {name}")


CHAIN = StepGraph((op("a", "tokens", "x"), op("b", "x", "y"), op("c", "x y", "z")))


def test_edges_follow_from_names() -> None:
    assert CHAIN.predecessors == ((), (0,), (0, 1))
    assert CHAIN.order == (0, 1, 2)
    assert [o.name for o in StepGraph(tuple(reversed(CHAIN.ops))).ops] == ["c", "b", "a"]
    backwards = StepGraph(tuple(reversed(CHAIN.ops)))
    assert [backwards.ops[i].name for i in backwards.order] == ["a", "b", "c"]


def test_two_producers_of_one_value_are_named() -> None:
    graph = StepGraph((op("a", "tokens", "x"), op("b", "tokens", "x")))
    with pytest.raises(GraphError, match=r"'x' is produced by both 'a' \(plugin a\) and 'b' \(plugin b\)"):
        _ = graph.predecessors


def test_a_value_that_nothing_produces_is_named() -> None:
    with pytest.raises(GraphError, match=r"'b' \(plugin b\) reads 'x'"):
        _ = StepGraph((op("b", "x", "y"),)).order


def test_a_cycle_is_named() -> None:
    graph = StepGraph((op("a", "y", "x"), op("b", "x", "y")))
    with pytest.raises(GraphError, match=r"cycle: (a -> b -> a|b -> a -> b)"):
        _ = graph.order


def test_an_unknown_op_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(GraphError, match=r"no operation named 'd'.*a, b, c"):
        CHAIN.op("d")
    with pytest.raises(GraphError, match="no operation named 'd'"):
        CHAIN.inserted_after("d", op("n", "", ""))
    with pytest.raises(GraphError, match="no operation named 'd'"):
        CHAIN.with_op(op("d", "tokens", "w"))


def test_an_inserted_op_comes_between() -> None:
    graph = CHAIN.inserted_after("a", op("n", "", "extra"))
    names = [o.name for o in graph.ops]
    before = {names[i]: {names[j] for j in p} for i, p in enumerate(graph.predecessors)}
    assert before == {"a": set(), "n": {"a"}, "b": {"n"}, "c": {"n", "b"}}
    # A second one comes between the first and what it was put before.
    twice = graph.inserted_after("a", op("m", "", ""))
    names = [o.name for o in twice.ops]
    assert {names[j] for j in twice.predecessors[names.index("n")]} == {"m"}


def test_replaced_and_added_ops() -> None:
    replaced = CHAIN.with_op(op("b", "x", "y", 5.0))
    assert replaced.op("b").demands[0].coefficient == 5.0
    assert replaced.op("a") is CHAIN.op("a")
    assert [o.name for o in CHAIN.with_ops(op("d", "z", "w")).ops] == ["a", "b", "c", "d"]


def test_mapping_keeps_what_does_not_change() -> None:
    assert CHAIN.mapped(lambda o, d: d).ops[0] is CHAIN.ops[0]
    doubled = CHAIN.mapped(lambda o, d: evolve(d, coefficient=7.0) if o.name == "b" else d)
    assert [o.demands[0].coefficient for o in doubled.ops] == [0.0, 7.0, 0.0]
    assert doubled.ops[0] is CHAIN.ops[0]


def test_demands_by_kind(plugins: Plugins) -> None:
    graph = compose(
        '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "openai-community/gpt2"\n', plugins
    ).graph
    assert {type(d) for _, d in demands_of(graph, Matmul, Launch)} == {Matmul, Launch}
    everything = list(demands_of(graph))
    assert len(everything) == sum(len(o.demands) for o in graph.ops)


def test_counts_over_stages() -> None:
    assert op("a", "tokens", "x", repeats=(3, 4)).count == 7
    assert launch(3.0).coefficient == 3.0


def test_stages_of_equal_content_are_one_kind() -> None:
    staged = StepGraph(
        (op("a", "tokens", "x", repeats=(1, 2, 2, 1)), op("b", "x", "y", repeats=(3, 4, 4, 5))), stages=4
    )
    assert staged.stage_kinds == ((0, 1), (1, 2), (3, 1))
    assert CHAIN.stage_kinds == ((0, 1),)
    assert kinds_of_stages(3, ()) == ((0, 3),)


def test_an_op_says_how_many_of_it_every_stage_has() -> None:
    staged = StepGraph((op("a", "tokens", "x", repeats=(1, 2)), op("b", "x", "y")), stages=2)
    with pytest.raises(GraphError, match=r"'b' \(plugin b\) has instances on 1 stages; the graph has 2"):
        assert staged.stage_kinds


def test_networkx_measures_the_path_that_the_estimate_takes(plugins: Plugins) -> None:
    composition = compose(
        '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\ndevices = 2\n[model]\nid = "Qwen/Qwen3-8B"\n'
        '[policy.constrained_decoding]\nbackend = "any"\nmask = "2 ms"\noverlap = true\n',
        plugins,
    )
    shape = decode(16.0, 2000.0)
    pricer = composition.pricer
    seconds = {row.name: float(row.seconds) for row in pricer.breakdown(shape)}
    graph = composition.graph.to_networkx(lambda o: seconds[o.name])
    assert nx.is_directed_acyclic_graph(graph)
    assert set(graph.nodes) == {o.name for o in composition.graph.ops} | {"end"}
    assert nx.dag_longest_path_length(graph) == pytest.approx(pricer.estimate(shape), rel=1e-12)
    assert "weight" not in next(iter(composition.graph.to_networkx().edges(data=True)))[2]


def laid_out(plugins: Plugins, model: Architecture) -> StepGraph:
    spec = '[hardware]\naccelerator = "any"\n[model]\nid = "any"\n'
    return compose(spec, plugins, architecture=model, accelerator=samples.accelerator()).graph


def test_kernels_of_a_layer_are_counted_as_engines_fuse_them(plugins: Plugins) -> None:
    """Norm, GEMM; rotation, attention; GEMM; norm, GEMM; activation, GEMM. Latents take six before and two after."""
    launched = {
        op.name: demand.coefficient
        for model in (samples.dense_model(), samples.hybrid_model())
        for op, demand in demands_of(laid_out(plugins, model), Launch)
    }
    assert launched == {
        "embedding": 1,
        "full_attention.in_proj": 2,
        "full_attention.core": 2,
        "full_attention.out_proj": 1,
        "latent_attention.in_proj": 6,
        "latent_attention.core": 2,
        "latent_attention.out_proj": 2,
        "sliding_attention.in_proj": 2,
        "sliding_attention.core": 2,
        "sliding_attention.out_proj": 1,
        "linear.in_proj": 2,
        "linear.core": 2,
        "linear.out_proj": 1,
        "mlp.up_proj": 2,
        "mlp.down_proj": 2,
        "moe.router": 3,
        "moe.experts": 5,
        "lm_head": 3,
    }


def test_what_a_layer_moves_and_multiplies_beside_its_weights(plugins: Plugins) -> None:
    graph = laid_out(plugins, samples.hybrid_model())

    def of(name: str, kind: type[Demand]) -> float:
        return sum(d.coefficient for d in graph.op(name).demands if isinstance(d, kind))

    # The residual stream of 1,024 elements of two bytes comes in and goes out, the output is written once.
    assert of("linear.in_proj", ActivationIO) == 2 * 1024 * 2
    assert of("mlp.up_proj", ActivationIO) == 2 * 1024 * 2
    assert of("mlp.down_proj", ActivationIO) == 1024 * 2
    assert of("linear.out_proj", ActivationIO) == 1024 * 2
    # Queries of 16 heads and as many outputs of 64.
    assert of("sliding_attention.core", ActivationIO) == 16 * (64 + 64) * 2
    assert of("latent_attention.core", ActivationIO) == 16 * (128 + 64 + 128) * 2
    # A state, recurrent in fp32 and convolutional in 16 bit, is read and written once a sequence.
    assert of("linear.core", StateIO) == 2 * (16 * 64 * 128 * 4 + 3 * 4096 * 2)
    # Decay, update and read-out are six operations an element.
    assert of("linear.core", Matmul) == 6 * 16 * 64 * 128
    # A token goes to four experts and comes back; logits of 32,768 are written and read.
    assert of("moe.experts", ActivationIO) == 2 * 1024 * 4 * 2
    assert of("lm_head", ActivationIO) == 2 * 32_768 * 2


def caches_of(model: Architecture, plugins: Plugins) -> list[str]:
    return [d.kind for _, d in demands_of(laid_out(plugins, model), CacheIO)]


@pytest.mark.parametrize(("limits", "kind"), [({}, "full"), ({"window": 256}, "sliding"), ({"chunk": 256}, "chunked")])
def test_a_cache_is_named_by_what_is_read_of_it(limits: dict[str, int], kind: str, plugins: Plugins) -> None:
    block = samples.attention_block("attention", range(2), 256, Attention(8, 2, 32, 32, **limits))
    # Read and written.
    assert caches_of(samples.model(256, 1000, (block,)), plugins) == [kind] * 2


@pytest.mark.parametrize(
    ("stored", "multiplied"),
    [("bf16", {"bf16"}), ("fp16", {"fp16"}), ("fp32", {"fp32", "bf16"}), ("int4-g128", {"bf16"})],
)
def test_matrices_multiply_as_they_are_stored_or_in_16_bit(stored: str, multiplied: set[str], plugins: Plugins) -> None:
    block = samples.attention_block("attention", range(2), 256, Attention(8, 2, 32, 32))
    graph = laid_out(plugins, samples.model(256, 1000, (block,), stored=stored))
    assert {d.precision for _, d in demands_of(graph, Matmul)} == multiplied


@pytest.mark.parametrize(("width", "precision"), [(64 + 4.0, "fp8"), (64 * 2.0, "bf16"), (64 * 2 + 4.0, "bf16")])
def test_an_index_multiplies_as_its_keys_are_stored(width: float, precision: str, plugins: Plugins) -> None:
    mixer = LatentAttention(8, 128, 32, 64, 64, Indexer(4, 64, 256, width))
    block = samples.latent_block("attention", range(2), 256, mixer)
    graph = laid_out(plugins, samples.model(256, 1000, (block,)))
    (index,) = [d for _, d in demands_of(graph, Matmul) if "index heads" in d.lineage.formula]
    assert index.precision == precision
    assert index.coefficient == 2 * 4 * 64


def test_a_long_prompt_expands_its_latents(plugins: Plugins) -> None:
    heads, rank, rope, nope, value = 8, 128, 32, 64, 48
    block = samples.latent_block("attention", range(2), 256, LatentAttention(heads, rank, rope, nope, value))
    core = laid_out(plugins, samples.model(256, 1000, (block,))).op("attention.core")
    scores = next(d for d in core.demands if isinstance(d, Matmul))

    def flops(shape: StepShape) -> float:
        return scores.coefficient * float(scores.feature.count(shape))

    # Against latents of 128 and 32 elements, and against keys of 64 and 32 and values of 48.
    assert flops(decode(1.0, 999.0)) == 2 * heads * (rank + rope + rank) * 1000
    assert flops(prefill(1000.0)) == 2 * heads * (nope + rope + value) * 1000 * 1001 / 2
    # To expand a cached token takes as much as 2 x 8 x 128 x 112, which ten new tokens on a thousand do not gain.
    assert flops(prefill(10.0, 1000.0)) == 2 * heads * (rank + rope + rank) * (10 * 1000 + 55)
