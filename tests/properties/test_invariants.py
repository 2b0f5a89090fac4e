"""The invariants of docs/invariants.md over generated hardware, models, policies and specs.

Each test is named in that document; tests/docs holds the two together. The closed forms of invariant 12 are
written out here from the shapes alone, without the code that lays graphs and ledgers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servelint.architecture import Attention, Experts, Indexer, LatentAttention, LinearState
from servelint.composition import Composition
from servelint.cost import Pricer
from servelint.manager import Plugins
from servelint.shapes import StepShape, decode
from servelint.testing import samples
from servelint.testing.invariants import (
    check_arrays,
    check_conservation,
    check_faster_hardware,
    check_figures_ordered,
    check_identity,
    check_more_bits,
    check_more_load,
    check_more_parameters,
    check_order,
    check_quantization_gain,
    check_rate_scaling,
    check_service,
    check_sharding,
    check_speculation,
    check_traffic,
    totals,
)
from servelint.testing.strategies import (
    Generated,
    decode_shapes,
    deployments,
    plain_floats,
    policy_strategies,
    step_shapes,
    toml,
)

PLUGINS = Plugins()
DEPLOYMENTS = deployments(PLUGINS)
POLICIES = sorted(policy_strategies(PLUGINS))
FACTORS = st.floats(1.0, 100.0)


def composed(generated: Generated) -> Composition:
    composition = generated.compose(PLUGINS)
    assume(composition is not None)
    assert composition is not None
    return composition


def with_policies(generated: Generated, **tables: dict[str, Any]) -> Generated:
    """The deployment with its policy tables replaced by these."""
    head = generated.spec.partition("[policy")[0]
    return generated._replace(spec=head + toml({"policy": tables}))


@given(DEPLOYMENTS, step_shapes())
@settings(max_examples=200, deadline=None)
def test_figures_are_ordered(generated: Generated, shape: StepShape) -> None:
    check_figures_ordered(composed(generated), shape)


@given(DEPLOYMENTS, step_shapes(), FACTORS)
@settings(max_examples=100, deadline=None)
def test_faster_hardware_is_never_slower(generated: Generated, shape: StepShape, factor: float) -> None:
    check_faster_hardware(composed(generated), shape, factor)


@given(DEPLOYMENTS, step_shapes(), st.lists(st.integers(0, 5000), min_size=7, max_size=7))
@settings(max_examples=200, deadline=None)
def test_more_load_is_never_faster(generated: Generated, shape: StepShape, more: list[int]) -> None:
    larger = StepShape(*(value + extra for value, extra in zip(shape[:6], more, strict=False)))
    check_more_load(composed(generated), shape, larger)


@given(DEPLOYMENTS, step_shapes(), FACTORS, st.floats(0.0, 32.0))
@settings(max_examples=100, deadline=None)
def test_more_parameters_or_bits_are_never_faster(
    generated: Generated, shape: StepShape, factor: float, bits: float
) -> None:
    composition = composed(generated)
    check_more_parameters(composition, shape, factor)
    check_more_bits(composition, shape, bits)


@given(DEPLOYMENTS, step_shapes(), st.floats(0.01, 100.0))
@settings(max_examples=100, deadline=None)
def test_times_scale_with_every_rate(generated: Generated, shape: StepShape, factor: float) -> None:
    composition = composed(generated)
    assume(composition.setup.topology.accelerator.l2_bytes >= 0)
    check_rate_scaling(composition, shape, factor)


def devices_of_a_stage(composition: Composition) -> int:
    config = composition.context.config("parallelism")

    return int(config.t * config.d * (1 if config.context_shares_tensor else config.c))


@given(deployments(PLUGINS, policies=("parallelism",)), step_shapes())
@settings(max_examples=150, deadline=None)
def test_sharding_loses_nothing(generated: Generated, shape: StepShape) -> None:
    sharded, whole = composed(generated), composed(with_policies(generated))
    check_sharding(whole, sharded, shape, devices_of_a_stage(sharded))


@given(
    deployments(PLUGINS, policies=("none",)),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 4),
    decode_shapes(),
)
@settings(max_examples=150, deadline=None)
def test_even_sharding_adds_up(generated: Generated, tensor: int, expert: int, pipeline: int, shape: StepShape) -> None:
    blocks = generated.architecture.blocks
    heads = [h for b in blocks if isinstance(b.mixer, Attention) for h in (b.mixer.q_heads, b.mixer.kv_heads)]
    heads += [b.mixer.q_heads for b in blocks if isinstance(b.mixer, LatentAttention)]
    assume(all(h % tensor == 0 for h in heads))
    assume(tensor % expert == 0 and all(b.experts.count % expert == 0 for b in blocks if b.experts))
    assume(pipeline <= generated.architecture.num_layers)
    table = {"tensor": tensor, "expert": expert, "pipeline": pipeline}
    sharded = composed(with_policies(generated, parallelism=table))
    check_sharding(composed(with_policies(generated)), sharded, shape, tensor, exact=True)


@given(DEPLOYMENTS, st.integers(1, 64), st.integers(1, 100_000), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_traffic_grows_as_it_must(generated: Generated, batch: int, context: int, factor: int) -> None:
    composition = composed(generated)
    check_traffic(composition, batch, context, factor)


IDENTITIES: list[tuple[str, dict[str, Any]]] = [
    ("attention", {"kernel": "flash"}),
    ("batching", {}),
    ("constrained_decoding", {"backend": "any", "mask": 0, "compile": 0, "jump_forward": 0}),
    ("constrained_decoding", {"backend": "any", "share": 0, "compile": 0}),
    ("disaggregation", {}),
    ("kv_cache", {}),
    ("moe", {"skew": 1.0, "redundant_experts": 0}),
    ("parallelism", {"tensor": 1, "pipeline": 1, "data": 1, "expert": 1, "attention_data": 1, "context": 1}),
    ("quantization", {"kv_cache": "auto"}),
    ("speculation", {"method": "mtp", "tokens": 0}),
    ("speculation", {"method": "ngram", "tokens": 0, "acceptance": 1.0}),
]


def test_every_policy_has_an_identity() -> None:
    assert {name for name, _ in IDENTITIES} == {policy.name for policy in PLUGINS.policies}


@pytest.mark.parametrize(("name", "identity"), IDENTITIES)
@given(generated=deployments(PLUGINS, policies=("none",)), shape=step_shapes())
@settings(max_examples=25, deadline=None)
def test_identity_changes_nothing(name: str, identity: dict[str, Any], generated: Generated, shape: StepShape) -> None:
    check_identity(composed(generated), composed(with_policies(generated, **{name: identity})), shape)


@given(deployments(PLUGINS, policies=("none",)), step_shapes())
@settings(max_examples=100, deadline=None)
def test_naming_the_stored_format_changes_nothing(generated: Generated, shape: StepShape) -> None:
    plain = composed(generated)
    own = plain.setup.formats.quantized or plain.setup.formats.stored
    table = {"weights": own.name, "kv_cache": plain.setup.formats.cache.name}
    check_identity(plain, composed(with_policies(generated, quantization=table)), shape)


@given(
    deployments(PLUGINS, policies=("none",)),
    st.integers(0, 16),
    st.lists(plain_floats(0.0, 1.0), min_size=2, max_size=2).map(sorted),
)
@settings(max_examples=100, deadline=None)
def test_speculation_expects_between_one_and_all(generated: Generated, k: int, acceptance: list[float]) -> None:
    low, high = (
        composed(with_policies(generated, speculation={"method": "ngram", "tokens": k, "acceptance": a})).scheduler
        for a in acceptance
    )
    check_speculation(low, high)
    check_speculation(high)
    a = acceptance[1]
    closed = k + 1.0 if a == 1.0 else (1 - a ** (k + 1)) / (1 - a)
    assert high.tokens_per_step == pytest.approx(closed, rel=1e-6)


@given(
    deployments(PLUGINS, policies=("none",)),
    st.sampled_from(sorted({f.name for f in PLUGINS.formats.values()})),
    st.sampled_from(("fp8", "bf16", "nvfp4", "auto")),
    step_shapes(),
)
@settings(max_examples=150, deadline=None)
def test_quantization_gains_no_more_than_amdahl(
    generated: Generated, weights: str, cache: str, shape: StepShape
) -> None:
    table = {"weights": weights, "kv_cache": cache}
    check_quantization_gain(composed(generated), composed(with_policies(generated, quantization=table)), shape)


@given(DEPLOYMENTS, st.sampled_from(("bound", "sustained_bound", "estimate")))
@settings(max_examples=100, deadline=None)
def test_service_keeps_to_the_bound(generated: Generated, figure: str) -> None:
    review = generated.review(PLUGINS)
    assume(review.composition is not None)
    assert review.mix is not None
    batches = [1, 2, 3, 5, 8, 64, 300]
    check_service(review.service(review.mix, figure), batches, [1, 2, 100, 1024, 5000, 131_072])  # type: ignore[arg-type]


@given(DEPLOYMENTS, st.lists(step_shapes(), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_arrays_give_what_single_steps_give(generated: Generated, shapes: list[StepShape]) -> None:
    check_arrays(composed(generated), shapes)


@given(DEPLOYMENTS, step_shapes(), st.permutations(sorted(p.name for p in PLUGINS.policies)))
@settings(max_examples=150, deadline=None)
def test_order_of_policies_changes_nothing(generated: Generated, shape: StepShape, priority: list[str]) -> None:
    check_order(composed(generated), shape, priority)


@given(DEPLOYMENTS, step_shapes())
@settings(max_examples=150, deadline=None)
def test_totals_are_conserved(generated: Generated, shape: StepShape) -> None:
    check_conservation(composed(generated), shape)


# Closed forms of invariant 12, from dimensions alone


class Dims(NamedTuple):
    """Dimensions of a model with one kind of mixer and one of feed-forward block in every layer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    width: int
    vocabulary: int
    tensor: int


DIMS = st.builds(
    lambda h, n, k, g, d, w, v, t: Dims(h * 64, n, k * g * t, k * t, d * 16, w * 64 * t, v * 8 * t, t),
    st.integers(1, 64),
    st.integers(1, 96),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(1, 64),
    st.integers(1, 4000),
    st.sampled_from((1, 2, 4, 8)),
)
BATCHES, CONTEXTS, DRAFTS = st.integers(1, 4096), st.integers(0, 200_000), st.integers(1, 9)


def on_sample(d: Dims, blocks: list[Any], extra: str = "") -> Composition:
    """A model of these blocks on the sample accelerator, split over ``tensor`` devices."""
    text = f'[hardware]\naccelerator = "any"\n[model]\nid = "any"\n[policy.parallelism]\ntensor = {d.tensor}\n{extra}'
    model = samples.model(d.hidden, d.vocabulary, blocks)
    composition = Generated(text, model).review(PLUGINS, samples.accelerator()).composition
    assert composition is not None
    return composition


def attention_of(d: Dims, window: int = 0, chunk: int = 0) -> Attention:
    return Attention(d.heads, d.kv_heads, d.dim, d.dim, window, chunk)


def same(found: dict[str, float], expected: dict[str, float]) -> None:
    """Every expected total, and no other but those of latencies and activations."""
    ignored = {"activation bytes", "kernel launches"}
    assert set(found) - ignored == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name


def tables(d: Dims, tokens: float) -> dict[str, float]:
    """Collectives of the vocabulary, and rows of the table that tokens touch, on one device."""
    rows = {"state bytes": 2.0 * d.hidden * tokens}
    if d.tensor == 1:
        return rows
    return rows | {f"send bytes among {d.tensor} devices 1 apart": 2.0 * d.vocabulary / d.tensor * tokens}


def reduced(d: Dims, tokens: float, count: int) -> dict[str, float]:
    """So many all-reduces of the hidden state."""
    if d.tensor == 1:
        return {}
    return {f"all_reduce bytes among {d.tensor} devices 1 apart": 2.0 * d.hidden * tokens * count}


def attention_matrices(d: Dims) -> float:
    return d.hidden * d.dim * (2.0 * d.heads + 2.0 * d.kv_heads)


@given(DIMS, BATCHES, CONTEXTS, DRAFTS, st.sampled_from(("full", "sliding", "chunked")), st.integers(1, 9000))
@settings(max_examples=100, deadline=None)
def test_closed_form_of_a_dense_model(d: Dims, batch: int, context: int, q: int, kind: str, span: int) -> None:
    layers = range(d.layers)
    mixer = attention_of(d, window=span if kind == "sliding" else 0, chunk=span if kind == "chunked" else 0)
    composition = on_sample(
        d,
        [samples.attention_block("a", layers, d.hidden, mixer), samples.dense_block("m", layers, d.hidden, d.width)],
    )
    tokens = float(batch * q)
    matrices = d.layers * (attention_matrices(d) + 3.0 * d.hidden * d.width) + d.hidden * d.vocabulary
    norms = (2.0 * d.layers + 1) * d.hidden
    # What each of the q queries at S, S + 1, ... sees of S + 1, S + 2, ... keys.
    if kind == "full":
        read, pairs = context, sum(context + i + 1 for i in range(q))
    elif kind == "sliding":
        read, pairs = min(context, span - 1), sum(min(context + i + 1, span) for i in range(q))
    else:
        read, pairs = context % span, sum((context + i) % span + 1 for i in range(q))
    t = d.tensor
    expected = {
        "weight bytes": 2.0 * (matrices / t + norms),
        "FLOPs in bf16": 2.0 * matrices / t * tokens + 4.0 * d.layers * d.heads / t * d.dim * batch * pairs,
        f"{kind} cache bytes read": 2.0 * d.layers * 2 * d.kv_heads / t * d.dim * batch * read,
        f"{kind} cache bytes written": 2.0 * d.layers * 2 * d.kv_heads / t * d.dim * tokens,
        **tables(d, tokens),
        **reduced(d, tokens, 2 * d.layers + 1),
    }
    same(totals(composition.graph, decode(float(batch), float(context), float(q))), expected)
    held = 2.0 * (matrices / t + norms + d.hidden * d.vocabulary / t)
    assert composition.memory.weights_bytes == pytest.approx(held, rel=1e-9)
    page = composition.memory.page_size
    paged = -(-context // page) * page
    kept = paged if kind == "full" else min(paged, span)
    sequence = 2.0 * d.layers * 2 * d.kv_heads / t * d.dim * kept
    assert composition.memory.sequence_bytes(context, 0) == pytest.approx(sequence, rel=1e-9)


@given(DIMS, BATCHES, CONTEXTS, st.integers(1, 256), st.integers(1, 8), st.booleans())
@settings(max_examples=100, deadline=None)
def test_closed_form_of_experts(d: Dims, batch: int, context: int, count: int, top_k: int, shared: bool) -> None:
    top_k, layers = min(top_k, count), range(d.layers)
    block = samples.expert_block("e", layers, d.hidden, d.width, Experts(count, top_k), d.width if shared else 0)
    composition = on_sample(d, [samples.attention_block("a", layers, d.hidden, attention_of(d)), block])
    expert, t = 3.0 * d.hidden * d.width, d.tensor
    # An expert is left out by a token with probability 1 - k / E.
    reached = count * (1.0 - ((count - top_k) / count) ** batch)
    always = attention_matrices(d) / t + expert / t * shared + d.hidden * count
    head = d.hidden * d.vocabulary / t
    expected = {
        "weight bytes": 2.0 * (d.layers * (always + reached * expert / t + 2.0 * d.hidden) + head + d.hidden),
        "FLOPs in bf16": 2.0 * batch * (d.layers * (always + top_k * expert / t) + head)
        + 4.0 * d.layers * d.heads / t * d.dim * batch * (context + 1),
        "full cache bytes read": 2.0 * d.layers * 2 * d.kv_heads / t * d.dim * batch * context,
        "full cache bytes written": 2.0 * d.layers * 2 * d.kv_heads / t * d.dim * batch,
        **tables(d, float(batch)),
        **reduced(d, float(batch), 2 * d.layers + 1),
    }
    same(totals(composition.graph, decode(float(batch), float(context))), expected)


@given(DIMS, BATCHES, CONTEXTS, st.integers(1, 64), st.integers(1, 8), st.sampled_from((0, 1, 2048)))
@settings(max_examples=100, deadline=None)
def test_closed_form_of_latent_attention(d: Dims, batch: int, context: int, rank: int, rope: int, top_k: int) -> None:
    rank, rope, layers, t = rank * 16, rope * 16, range(d.layers), d.tensor
    indexer = Indexer(4, 128, top_k, 132.0) if top_k else None
    mixer = LatentAttention(d.heads, rank, rope, d.dim, d.dim, indexer)
    blocks = [samples.latent_block("l", layers, d.hidden, mixer), samples.dense_block("m", layers, d.hidden, d.width)]
    composition = on_sample(d, blocks)
    index = 5.0 * 128 * d.hidden if top_k else 0.0
    whole = d.hidden * (rank + rope) + index
    split = d.heads * (d.hidden * (2 * d.dim + rope) + rank * 2 * d.dim) + 3.0 * d.hidden * d.width
    matrices = d.layers * (whole + split / t) + d.hidden * d.vocabulary / t
    seen, read = (min(context + 1, top_k), min(context, top_k)) if top_k else (context + 1, context)
    expected = {
        "weight bytes": 2.0 * (matrices + (2.0 * d.layers + 1) * d.hidden),
        # Absorbed: scores over latent and rope, values over the latent.
        "FLOPs in bf16": 2.0 * matrices * batch + 2.0 * d.layers * d.heads / t * (2 * rank + rope) * batch * seen,
        "latent cache bytes read": 2.0 * d.layers * (rank + rope) * batch * read,
        "latent cache bytes written": 2.0 * d.layers * (rank + rope) * batch,
        **tables(d, float(batch)),
        **reduced(d, float(batch), 2 * d.layers + 1),
    }
    if top_k:
        # Index keys are of one byte an element: scanned whole, one more written, multiplied as they are stored.
        expected["state bytes"] += 132.0 * d.layers * batch * (context + 1)
        expected["FLOPs in fp8"] = 2.0 * d.layers * 4 * 128 * batch * (context + 1)
    same(totals(composition.graph, decode(float(batch), float(context))), expected)


@given(DIMS, BATCHES, CONTEXTS, st.integers(0, 100_000), st.integers(0, 10_000), st.sampled_from((2.0, 4.0)))
@settings(max_examples=50, deadline=None)
def test_closed_form_of_linear_state(
    d: Dims, batch: int, context: int, recurrent: int, convolution: int, width: float
) -> None:
    mixer, layers, t = LinearState(recurrent, convolution, width), range(d.layers), d.tensor
    blocks = [
        samples.state_block("s", layers, d.hidden, d.width, mixer),
        samples.dense_block("m", layers, d.hidden, d.width),
    ]
    composition = on_sample(d, blocks)
    matrices = d.layers * 6.0 * d.hidden * d.width / t + d.hidden * d.vocabulary / t
    state = d.layers * (recurrent * width + convolution * 2.0) / t
    expected = {
        "weight bytes": 2.0 * (matrices + (2.0 * d.layers + 1) * d.hidden),
        "FLOPs in bf16": 2.0 * matrices * batch + 6.0 * d.layers * recurrent / t * batch,
        **tables(d, float(batch)),
        **reduced(d, float(batch), 2 * d.layers + 1),
    }
    expected["state bytes"] += 2.0 * state * batch
    same(totals(composition.graph, decode(float(batch), float(context))), expected)
    assert composition.memory.sequence_bytes(context, 0) == pytest.approx(state, rel=1e-9)


@given(DIMS, st.integers(1, 64), st.integers(0, 50_000), st.integers(1, 20_000))
@settings(max_examples=50, deadline=None)
def test_closed_form_of_prefill(d: Dims, sequences: int, prefix: int, new: int) -> None:
    layers, t = range(d.layers), d.tensor
    blocks = [
        samples.attention_block("a", layers, d.hidden, attention_of(d)),
        samples.dense_block("m", layers, d.hidden, d.width),
    ]
    composition = on_sample(d, blocks)
    shape = StepShape(prefill_sequences=float(sequences), prefill_tokens=float(new), prefill_context=float(prefix))
    inner = d.layers * (attention_matrices(d) + 3.0 * d.hidden * d.width)
    # The exact triangle over the new block, and the head on the last token of each sequence alone.
    pairs = new * prefix + new * (new + 1) // 2
    flops = 2.0 * inner / t * sequences * new + 2.0 * d.hidden * d.vocabulary / t * sequences
    flops += 4.0 * d.layers * d.heads / t * d.dim * sequences * pairs
    assert totals(composition.graph, shape)["FLOPs in bf16"] == pytest.approx(flops, rel=1e-9)


@given(DIMS, BATCHES, CONTEXTS)
@settings(max_examples=100, deadline=None)
def test_closed_form_of_the_bound(d: Dims, batch: int, context: int) -> None:
    layers, t = range(d.layers), d.tensor
    blocks = [
        samples.attention_block("a", layers, d.hidden, attention_of(d)),
        samples.dense_block("m", layers, d.hidden, d.width),
    ]
    composition = on_sample(d, blocks)
    sample = samples.accelerator()
    assert sample.link is not None
    matrices = d.layers * (attention_matrices(d) + 3.0 * d.hidden * d.width) + d.hidden * d.vocabulary
    flops = 2.0 * matrices / t * batch + 4.0 * d.layers * d.heads / t * d.dim * batch * (context + 1)
    moved = 2.0 * (matrices / t + (2.0 * d.layers + 1) * d.hidden) + 2.0 * d.hidden * batch
    moved += 2.0 * d.layers * 2 * d.kv_heads / t * d.dim * batch * (context + 1)
    # Of an all-reduce every rank receives at least the message once.
    sent = 2.0 * d.hidden * batch * (2 * d.layers + 1) + 2.0 * d.vocabulary / t * batch if t > 1 else 0.0
    seconds = max(
        flops / sample.dense_flops["bf16"],
        moved / sample.memory_bandwidth_bytes_per_s,
        sent / sample.link.per_direction_bytes_per_s,
    )
    pricer = Pricer(composition.graph, composition.setup.topology, l2_credit=False)
    assert pricer.bound(decode(float(batch), float(context))) == pytest.approx(seconds, rel=1e-9)
    credited = max(
        flops / sample.dense_flops["bf16"],
        max(moved - sample.l2_bytes, 0.0) / sample.memory_bandwidth_bytes_per_s,
        sent / sample.link.per_direction_bytes_per_s,
    )
    assert composition.pricer.bound(decode(float(batch), float(context))) == pytest.approx(credited, rel=1e-9)
