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
    architectures,
    decode_shapes,
    deployments,
    parallelism_tables,
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
    shared = config.t % config.c == 0
    return int(config.t * config.d * (1 if shared else config.c))


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
def test_even_sharding_adds_up(
    generated: Generated, tensor: int, expert: int, pipeline: int, shape: StepShape
) -> None:
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
    check_quantization_gain(
        composed(generated), composed(with_policies(generated, quantization=table)), shape
    )


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
