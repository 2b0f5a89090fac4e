"""Speculation: expected tokens, the draft's passes in the step, what it holds in memory."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.architecture import Attention
from servelint.composition import Composition
from servelint.manager import Plugins
from servelint.resources import WeightRead
from servelint.shapes import StepShape, decode, prefill
from servelint.testing import compose, review_of, samples
from servelint_plugins.policies.speculation import Speculation, _own_layer, _parallelism, expected_tokens

LLAMA_70B, LLAMA_8B = "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-8B"
PARAMS = {LLAMA_70B: 70_553_706_496, LLAMA_8B: 8_030_261_248}
HIDDEN = {LLAMA_70B: 8192, LLAMA_8B: 4096}
KV = {LLAMA_70B: 327_680, LLAMA_8B: 131_072}
VOCABULARY = 128_256
DRAFT = f'method = "draft"\ndraft_model = "{LLAMA_8B}"\n'


def spec(policy: str = "", model: str = LLAMA_70B, tensor: int = 1, more: str = "") -> str:
    table = f"[policy.speculation]\n{policy}" if policy else ""
    return (
        f'[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\ndevices = {tensor}\n[model]\nid = "{model}"\n'
        f"[policy.parallelism]\ntensor = {tensor}\n{more}{table}"
    )


def pass_bytes(model: str, batch: float, context: float, new: float) -> float:
    """HBM bytes of one pass on one device in bf16: weights but the table, rows, cache read and written."""
    table = VOCABULARY * HIDDEN[model]
    rows = batch * new * HIDDEN[model] * 2
    return (PARAMS[model] - table) * 2 + rows + batch * (context + new) * KV[model]


def same(a: Composition, b: Composition) -> bool:
    shapes = [decode(1.0, 100.0), decode(64.0, 4096.0), prefill(2048.0), StepShape(8.0, 512.0, 1.0, 1.0, 0.0, 256.0)]
    return (
        a.graph.ops == b.graph.ops
        and all(a.pricer.price(s)[:4] == b.pricer.price(s)[:4] for s in shapes)
        and a.memory.weights_bytes == b.memory.weights_bytes
        and a.memory.bytes_per_token() == b.memory.bytes_per_token()
        and a.scheduler == b.scheduler
    )


@pytest.mark.parametrize(
    ("acceptance", "k", "tokens"),
    [(0.7, 4, 2.7731), (0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5), (0.8, 3, 2.952), (0.7, 0, 1.0), (0.9, 2, 2.71)],
)
def test_expected_tokens(acceptance: float, k: int, tokens: float) -> None:
    assert expected_tokens(acceptance, k) == pytest.approx(tokens, abs=1e-12)


def test_expected_tokens_stay_in_bounds_and_grow_with_acceptance() -> None:
    for k in (1, 2, 7, 64):
        values = [expected_tokens(a / 1000, k) for a in range(1001)]
        assert values[0] == 1.0
        assert values[-1] == k + 1
        assert all(a < b for a, b in pairwise(values))


def test_70b_with_8b_draft(plugins: Plugins) -> None:
    found = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n"), plugins)
    assert found.scheduler.verify_tokens == 5
    assert found.scheduler.tokens_per_step == pytest.approx(2.7731, abs=5e-5)


def test_a_measured_acceptance_length_replaces_the_formula(plugins: Plugins) -> None:
    kept = [
        compose(spec(DRAFT + f"tokens = 4\nacceptance_length = {n}\n"), plugins).scheduler.tokens_per_step
        for n in (2.4, 9.0)
    ]
    assert kept == [2.4, 5.0]


def test_bytes_of_a_step_are_k_draft_passes_and_a_verify_pass(plugins: Plugins) -> None:
    pricer = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n"), plugins).pricer
    expected = pass_bytes(LLAMA_70B, 2, 1000, 5) + 4 * pass_bytes(LLAMA_8B, 2, 1000, 1)
    assert pricer.price(decode(2.0, 1000.0, 5.0)).hbm_bytes == pytest.approx(expected, rel=1e-12)


def test_flops_of_a_step(plugins: Plugins) -> None:
    pricer = compose(spec(DRAFT + "tokens = 3\nacceptance = 0.7\n"), plugins).pricer
    # What multiplies: all but the table and the norms (two a layer, one at the end).
    target = PARAMS[LLAMA_70B] - 8192 * (VOCABULARY + 2 * 80 + 1)
    draft = PARAMS[LLAMA_8B] - 4096 * (VOCABULARY + 2 * 32 + 1)
    pairs = 4 * 1000 + 4 * 5 / 2
    verify = 2 * target * 4 + 4 * 64 * 128 * 80 * pairs
    passes = 3 * (2 * draft + 4 * 32 * 128 * 32 * 1001)
    assert pricer.price(decode(1.0, 1000.0, 4.0)).flops == pytest.approx(verify + passes, rel=1e-12)


def test_prompts_pass_the_draft_once_whatever_k(plugins: Plugins) -> None:
    one, four = (compose(spec(DRAFT + f"tokens = {k}\nacceptance = 0.7\n"), plugins).pricer for k in (1, 4))
    alone = compose(spec(), plugins).pricer
    shape = prefill(1024.0)
    assert four.price(shape).estimate_s == pytest.approx(one.price(shape).estimate_s, rel=1e-12)
    draft_only = compose(spec(model=LLAMA_8B), plugins).pricer.price(shape)
    assert four.price(shape).flops == pytest.approx(alone.price(shape).flops + draft_only.flops, rel=1e-12)


def test_every_pass_pays_its_collectives(plugins: Plugins) -> None:
    """Two all-reduces a layer and the two of the vocabulary, 10 us each, k times."""
    pricer = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n", tensor=4), plugins).pricer
    rows = [r for r in pricer.breakdown(decode(1.0, 100.0, 5.0)) if r.name.endswith(".collective")]
    drafted = sum(r.instances for r in rows if r.name.startswith("draft."))
    assert drafted == 4 * (2 * 32 + 2)
    seconds = sum(r.seconds for r in rows if r.name.startswith("draft."))
    assert seconds >= drafted * pricer.topology.efficiency.collective_s["scale_up"]


def test_draft_weights_and_cache_take_memory(plugins: Plugins) -> None:
    alone = compose(spec(tensor=4), plugins).memory
    drafted = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n", tensor=4), plugins).memory
    norms = 4096 * (2 * 32 + 1)
    share = (PARAMS[LLAMA_8B] - norms) / 4 + norms
    assert drafted.weights_bytes - alone.weights_bytes == pytest.approx(2 * share, rel=1e-12)
    blocks = {w.block for w in drafted.weights if w.name.startswith("draft.")}
    # Tables, norm and head belong to no block.
    assert blocks == {"draft", *(f"draft.{c.block}" for c in alone.caches), "draft.mlp"}
    assert drafted.bytes_per_token() - alone.bytes_per_token() == KV[LLAMA_8B] / 4


def test_a_draft_on_fewer_devices_is_held_whole_there(plugins: Plugins) -> None:
    alone = compose(spec(tensor=4), plugins).memory
    drafted = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\ndraft_tensor = 1\n", tensor=4), plugins).memory
    assert drafted.weights_bytes - alone.weights_bytes == pytest.approx(2 * PARAMS[LLAMA_8B], rel=1e-12)
    assert drafted.bytes_per_token() - alone.bytes_per_token() == KV[LLAMA_8B]


def test_the_draft_sits_on_the_last_pipeline_stage(plugins: Plugins) -> None:
    def ledger(policy: str) -> Composition:
        text = spec(policy).replace("devices = 1", "devices = 2").replace("tensor = 1", "tensor = 1\npipeline = 2")
        return compose(text, plugins)

    alone, drafted = ledger(""), ledger(DRAFT + "tokens = 4\nacceptance = 0.7\n")
    grown = [drafted.memory.fit(s).weights - alone.memory.fit(s).weights for s in (0, 1)]
    assert grown == [0, 2 * PARAMS[LLAMA_8B]]
    assert all(op.repeats[0] == 0 for op in drafted.graph.ops if op.name.startswith("draft."))


@pytest.mark.parametrize("policy", ['method = "draft"\ntokens = 0\n', "tokens = 4\nacceptance = 0.7\n", ""])
def test_nothing_drafted_changes_nothing(policy: str, plugins: Plugins) -> None:
    assert same(compose(spec(policy), plugins), compose(spec(), plugins))


def test_ngram_costs_only_the_verified_tokens(plugins: Plugins) -> None:
    alone, drafted = (
        compose(spec(), plugins),
        compose(spec('method = "ngram"\ntokens = 3\nacceptance = 0.4\n'), plugins),
    )
    assert drafted.graph.ops == alone.graph.ops
    assert drafted.memory.weights_bytes == alone.memory.weights_bytes
    assert drafted.scheduler.verify_tokens == 4


def test_a_head_on_the_target_shares_its_table_and_head(plugins: Plugins) -> None:
    alone, drafted = (
        compose(spec(), plugins),
        compose(spec('method = "eagle"\ntokens = 3\nacceptance = 0.6\n'), plugins),
    )
    layer = 855_654_400
    projection, final_norm = 2 * 8192 * 8192, 8192
    held = 2 * (layer + projection + final_norm)
    assert drafted.memory.weights_bytes - alone.memory.weights_bytes == pytest.approx(held, rel=1e-12)
    assert drafted.memory.bytes_per_token() - alone.memory.bytes_per_token() == KV[LLAMA_70B] / 80


def test_mtp_layer_agrees_with_the_checkpoint(plugins: Plugins) -> None:
    """The drafting layer has the parameters that the model's own ledger counts as MTP, norms aside."""
    model = plugins.models.get("deepseek-ai/DeepSeek-V3")
    text = spec('method = "mtp"\ntokens = 1\nacceptance = 0.85\n', model=model.id)
    drafted = compose(text, plugins).memory
    held = sum(w.params for w in drafted.weights if w.name.startswith("draft."))
    assert held == pytest.approx(sum(t.params for t in model.extras), rel=1e-5)
    # Part of the checkpoint: experts in its FP8 blocks.
    own = [w for w in drafted.weights if w.name.startswith("draft.") and w.tensor.role == "routed_experts"]
    assert {w.format.name for w in own} == {"fp8-block128"}


def test_each_rank_drafts_for_its_own_sequences(plugins: Plugins) -> None:
    text = spec('method = "mtp"\ntokens = 1\nacceptance = 0.85\n', "deepseek-ai/DeepSeek-V3", 8)
    text = text.replace("tensor = 8\n", "tensor = 8\nattention_data = 8\nexpert = 8\n")
    rows = {r.name: r for r in compose(text, plugins).pricer.breakdown(decode(64.0, 1000.0, 2.0))}
    core = next(r for name, r in rows.items() if name.startswith("draft.") and name.endswith(".core"))
    # 8 of 64 sequences: the latent of 576 elements, read at 1,000 tokens and written for one.
    assert core.hbm_bytes == pytest.approx(8 * 1001 * 576 * 2, rel=1e-12)


def test_verifying_on_moe_touches_more_experts(plugins: Plugins) -> None:
    text = spec('method = "ngram"\ntokens = 3\nacceptance = 0.5\n', "Qwen/Qwen3-30B-A3B")
    pricer = compose(text, plugins).pricer
    experts = [
        next(r for r in pricer.breakdown(decode(2.0, 100.0, q)) if r.name.endswith(".experts")).hbm_bytes
        for q in (1.0, 4.0)
    ]
    # 8 of 128 experts a token: 2 tokens against 8.
    assert experts[1] / experts[0] == pytest.approx((1 - (1 - 8 / 128) ** 8) / (1 - (1 - 8 / 128) ** 2), rel=1e-12)


def test_the_draft_keeps_its_own_format_and_the_caches_share_one(plugins: Plugins) -> None:
    more = '[policy.quantization]\nweights = "fp8"\nkv_cache = "fp8"\n'
    memory = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n", more=more), plugins).memory
    formats = {w.format.name for w in memory.weights if w.name.startswith("draft.")}
    assert formats == {"bf16"}
    assert {c.format.name for c in memory.caches} == {"fp8"}


@pytest.mark.parametrize(
    ("policy", "form"),
    [
        # An MTP layer is part of the checkpoint, a head and a model of its own are not.
        ('method = "mtp"\n', "fp8"),
        ('method = "eagle"\n', "bf16"),
        (f'method = "mtp"\ndraft_model = "{LLAMA_8B}"\n', "bf16"),
        (DRAFT, "bf16"),
    ],
)
def test_the_declared_format_is_that_of_the_checkpoint(policy: str, form: str, plugins: Plugins) -> None:
    more = '[policy.quantization]\nweights = "fp8"\n'
    memory = compose(spec(policy + "tokens = 1\nacceptance = 0.7\n", more=more), plugins).memory
    drafted = {w.format.name for w in memory.weights if w.name.startswith("draft.") and w.tensor.role == "mlp"}
    assert drafted == {form}


def test_a_draft_reaches_as_few_experts_as_its_target_may(plugins: Plugins) -> None:
    text = '[hardware]\naccelerator = "any"\n[model]\nid = "any"\n'
    table = '[policy.speculation]\nmethod = "mtp"\ntokens = 2\nacceptance = 0.7\n'
    found = compose(text + table, plugins, architecture=samples.hybrid_model(), accelerator=samples.accelerator())
    for op in ("draft.moe.experts", "draft.next.moe.experts"):
        reads = [d for d in found.graph.op(op).demands if isinstance(d, WeightRead) and d.axis == "experts"]
        (read,) = reads
        # Four of 32 experts a token: by chance, and when all eight go to the same.
        assert read.feature.count(decode(8.0, 100.0, 3.0)) == pytest.approx(1 - (28 / 32) ** 8)
        assert read.feature.floor(decode(8.0, 100.0, 3.0)) == pytest.approx(4 / 32)


def test_measured_bytes_of_the_target_do_not_scale_the_draft(plugins: Plugins) -> None:
    text = spec(DRAFT + "tokens = 4\nacceptance = 0.7\n").replace(
        f'id = "{LLAMA_70B}"\n', f'id = "{LLAMA_70B}"\nweights_bytes = "100 GB"\n'
    )
    memory = compose(text, plugins).memory
    assert sum(w.bytes_on(0) for w in memory.weights if w.name.startswith("draft.")) == 2 * PARAMS[LLAMA_8B]


def test_speedup_fades_with_the_batch(plugins: Plugins) -> None:
    alone = compose(spec(tensor=4), plugins).pricer
    drafted = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n", tensor=4), plugins).pricer
    speedups = [
        2.7731 * float(alone.estimate(decode(b, 1000.0)) / drafted.estimate(decode(b, 1000.0, 5.0)))
        for b in (1.0, 64.0, 256.0)
    ]
    assert speedups[0] > 1 > speedups[2]
    assert speedups == sorted(speedups, reverse=True)


@pytest.mark.parametrize(
    ("k", "kept", "measured"), [(1, 1.92, 1.78), (2, 2.58, 2.25), (3, 2.82, 2.28), (5, 3.01, 2.15)]
)
def test_mtp_against_published_speedups(k: int, kept: float, measured: float, plugins: Plugins) -> None:
    """DeepSeek-R1 on 8 B200, batch 1: NVIDIA/TensorRT-LLM@01c4ece tech_blog/blog1, speed against no MTP."""
    text = (
        '[hardware]\naccelerator = "nvidia/b200-sxm6-180gb"\ndevices = 8\n[model]\nid = "deepseek-ai/DeepSeek-R1"\n'
        "[policy.parallelism]\ntensor = 8\nexpert = 4\n"
        '[policy.quantization]\nweights = "nvfp4"\ncovers = ["routed_experts", "shared_experts", "mlp"]\n'
    )
    alone = compose(text, plugins).pricer.estimate(decode(1.0, 2048.0))
    policy = f'[policy.speculation]\nmethod = "mtp"\ntokens = {k}\nacceptance_length = {kept}\n'
    drafted = compose(text + policy, plugins).pricer.estimate(decode(1.0, 2048.0, k + 1.0))
    assert kept * alone / drafted == pytest.approx(measured, rel=0.2)


def test_what_is_assumed_is_said(plugins: Plugins) -> None:
    review = review_of(spec(f'draft_model = "{LLAMA_8B}"\ntokens = 4\n'), plugins)
    assumed = {a.path[-1]: a.value for a in review.assumptions if a.path[:2] == ("policy", "speculation")}
    assert assumed == {"method": "draft", "acceptance": 0.7}


@pytest.mark.parametrize(
    ("policy", "assumed"),
    [
        (f"{DRAFT}tokens = 4\n", True),
        (f"{DRAFT}tokens = 4\nacceptance = 0.6\n", False),
        (f"{DRAFT}tokens = 4\nacceptance_length = 2.5\n", False),
        (f"{DRAFT}tokens = 0\n", False),
        ("tokens = 4\n", False),
        ('method = "ngram"\ntokens = 2\n', True),
    ],
)
def test_an_acceptance_is_assumed_where_something_is_drafted_and_none_measured(
    policy: str, assumed: bool, plugins: Plugins
) -> None:
    review = review_of(spec(policy), plugins)
    assert review.composition is not None
    assert bool(review.assumption("policy", "speculation", "acceptance")) == assumed


def test_a_head_need_not_be_in_the_catalogue_and_a_draft_model_does(plugins: Plugins) -> None:
    named = 'draft_model = "somebody/EAGLE3-head"\ntokens = 3\nacceptance = 0.6\n'
    head = compose(spec('method = "eagle"\n' + named), plugins)
    plain = compose(spec('method = "eagle"\ntokens = 3\nacceptance = 0.6\n'), plugins)
    assert head.graph.ops == plain.graph.ops
    with pytest.raises(ValueError, match="no plugin provides the model"):
        compose(spec('method = "draft"\n' + named), plugins)


def test_arrays_price_like_numbers(plugins: Plugins) -> None:
    import numpy as np

    pricer = compose(spec(DRAFT + "tokens = 4\nacceptance = 0.7\n", tensor=4), plugins).pricer
    batches, prompts = np.array([0.0, 1.0, 64.0]), np.array([1.0, 0.0, 2.0])
    grid = pricer.price(StepShape(batches, 1000.0, 5.0, prompts, 0.0, 256.0))
    for i in range(3):
        one = pricer.price(StepShape(float(batches[i]), 1000.0, 5.0, float(prompts[i]), 0.0, 256.0))
        for name in ("bound_s", "sustained_bound_s", "estimate_s", "hbm_bytes", "flops"):
            figures = np.broadcast_to(getattr(grid, name), (3,))
            assert figures[i] == pytest.approx(getattr(one, name), rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_verify_step_waits_for_every_draft_pass(k: int, plugins: Plugins) -> None:
    graph = compose(spec(f"{DRAFT}tokens = {k}\n", tensor=4), plugins).graph
    names = [op.name for op in graph.ops]
    assert any(name.startswith("draft.next.") for name in names) == (k > 1)
    last = "draft.next." if k > 1 else "draft."
    first = next(op for op in graph.ops if not op.name.startswith("draft.") and "tokens" in op.inputs)
    # The target's first op reads what the last draft pass gave, and no later one does again.
    drafted = [v for v in first.inputs if v.startswith("draft.")]
    assert drafted
    assert all(v.startswith(last) for v in drafted)
    later = [op for op in graph.ops if not op.name.startswith("draft.") and "tokens" not in op.inputs]
    assert not [op.name for op in later if any(v.startswith("draft.") for v in op.inputs)]


# How a draft is spread


@pytest.mark.parametrize(
    ("target", "moe", "draft_tensor", "degrees"),
    [
        ("tensor = 8\n", False, None, (8, 1, 1, 1, 1)),
        ("tensor = 4\npipeline = 2\n", False, None, (4, 1, 1, 1, 1)),
        ("tensor = 8\nattention_data = 4\nexpert = 8\n", False, None, (8, 1, 4, 1, 1)),
        ("tensor = 8\nattention_data = 4\nexpert = 8\n", True, None, (8, 1, 4, 8, 1)),
        ("tensor = 8\nattention_data = 4\nexpert = 8\n", True, 8, (8, 1, 4, 8, 1)),
        # Four ranks with sequences of their own, and a draft on two devices of each.
        ("tensor = 8\nattention_data = 4\nexpert = 8\n", True, 2, (2, 4, 1, 1, 1)),
        ("tensor = 8\nattention_data = 4\nexpert = 8\n", True, 4, (4, 1, 1, 1, 1)),
        ("tensor = 4\ndata = 2\nattention_data = 2\n", False, 2, (2, 4, 1, 1, 1)),
        # Four groups of one device each, where the draft needs two.
        ("tensor = 4\ndata = 2\nattention_data = 4\n", False, 2, (2, 2, 1, 1, 1)),
        ("tensor = 8\ncontext = 2\n", False, 1, (1, 1, 1, 1, 1)),
    ],
)
def test_a_draft_is_spread_as_its_target_or_as_declared(
    target: str, moe: bool, draft_tensor: int | None, degrees: tuple[int, ...], plugins: Plugins
) -> None:
    text = f'[hardware]\naccelerator = "any"\ndevices = 8\n[model]\nid = "any"\n[policy.parallelism]\n{target}'
    model = samples.hybrid_model()
    own = compose(text, plugins, architecture=model, accelerator=samples.accelerator()).context.configs["parallelism"]
    context: Any = SimpleNamespace(config=lambda name: own)
    draft = model if moe else samples.dense_model()
    found = _parallelism(Speculation(draft_tensor=draft_tensor), context, draft)
    assert (found.t, found.d, found.attention_ranks, found.expert or 1, found.p) == degrees


def test_a_head_is_the_targets_last_layer(plugins: Plugins) -> None:
    target = samples.hybrid_model()
    own = _own_layer(target)
    assert (own.num_layers, own.positions, own.extras) == (1, None, ())
    # The last layer that attends is the tenth, the last feed-forward part the experts' of the twelfth.
    assert [(b.name, b.layers) for b in own.blocks] == [("sliding_attention", (0,)), ("moe", (0,))]
    (projection,) = [t for t in own.blocks[0].tensors if t.name == "eh_proj"]
    assert projection.params == 2 * target.hidden_size**2
    assert all(t.name != "eh_proj" for t in own.blocks[1].tensors)


def test_a_head_is_of_the_kind_that_comes_last() -> None:
    ends, middle = Attention(8, 8, 32, 32), Attention(8, 2, 32, 32)
    blocks = (
        samples.attention_block("ends", (0, 5), 256, ends),
        samples.attention_block("middle", range(1, 5), 256, middle),
        samples.dense_block("mlp", range(6), 256, 512),
    )
    assert [b.name for b in _own_layer(samples.model(256, 1000, blocks)).blocks] == ["ends", "mlp"]
