"""Parts of messages and remedies by themselves: steps in words, budgets of nodes and racks, halves of expert groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servelint.architecture import LinearState
from servelint.manager import Plugins
from servelint.service import MixedStep, Objective
from servelint.testing import compose, review_of, samples
from servelint_rules.cnd.cnd002_cold_compile_on_ttft import _certain, _most
from servelint_rules.derivation import _busy, _e2e, _prefilled, _unbounded
from servelint_rules.dis.dis003_transfer_on_ttft import _path as deciding_key
from servelint_rules.hw.hw009_power_envelope import _budgets
from servelint_rules.layouts import parallelism
from servelint_rules.moe.moe004_all_to_all_over_slow_link import _part
from servelint_rules.par.groups import cached_heads, copies_of
from servelint_rules.par.par001_tp_over_slow_link import _link_source
from servelint_rules.slo.slo006_itl_infeasible import _alternatives

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
WORKLOAD = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"


# Steps in words


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (MixedStep(1.0, 512.0, 0.0, 1.0, True), "a full chunk of 512 prompt tokens"),
        (MixedStep(1.0, 512.0, 1024.0, 1.0, True), "a full chunk of 512 prompt tokens after 1,024 earlier ones"),
        (MixedStep(1.0, 300.0, 0.0, 1.0, False), "a prompt of 300 tokens"),
        (MixedStep(1.0, 300.0, 0.9, 1.04, False), "a prompt of 300 tokens"),
        (MixedStep(1.0, 300.0, 1.0, 1.0, False), "the last 300 tokens of a prompt after 1 earlier ones"),
        (MixedStep(1.0, 600.0, 0.0, 2.5, False), "the last 600 tokens of 2.5 prompts"),
        (MixedStep(1.0, 600.0, 512.0, 1.05, False), "the last 600 tokens of 1.1 prompts after 512 earlier ones"),
    ],
)
def test_what_a_step_prefills(step: MixedStep, words: str) -> None:
    assert _prefilled(step) == words


@pytest.mark.parametrize(
    ("slots", "prefill", "words"),
    [
        (0.5, 0.8, "prefill is busy 80% of the time"),
        (0.8, 0.5, "80% of the 1,024 sequence slots are taken"),
        (0.8, 0.8, "prefill is busy 80% of the time"),
        (50.0, 1.0, "999% of the 1,024 sequence slots are taken"),
        (0.0, 50.0, "prefill is busy 999% of the time"),
    ],
)
def test_what_is_busier(slots: float, prefill: float, words: str) -> None:
    point: Any = SimpleNamespace(
        slots_busy=slots, prefill_utilization=prefill, service=SimpleNamespace(batch_limit=1024)
    )
    assert _busy(point) == words
    assert _unbounded(point) == f"without limit: {words}, so the queue never empties"


# Grammar compiles and transfers


@pytest.mark.parametrize(("edge", "beyond"), [(0.3, 1.0), (0.999, 1.0), (2.5, 40.0)])
def test_the_largest_value_for_which_something_holds(edge: float, beyond: float) -> None:
    found = _most(lambda x: x <= edge, beyond)
    assert edge * (1 - 1e-5) <= found <= edge
    assert _most(lambda x: x <= 0, beyond) == 0.0


@pytest.mark.parametrize(
    ("percentile", "cold", "seconds", "certain"),
    [
        ("mean", 0.5, 3.0, True), ("mean", 0.5, 2.0, False), ("mean", 0.5, 1.9, False),
        ("p99", 0.011, 1.01, True), ("p99", 0.009, 5.0, False), ("p99", 0.02, 1.0, False), ("p50", 0.4, 5.0, False),
    ],
)  # fmt: skip
def test_a_compile_breaks_an_objective_on_any_hardware(
    percentile: Any, cold: float, seconds: float, certain: bool, plugins: Plugins
) -> None:
    policy = "[policy.constrained_decoding]\nshare = 1.0\ncache_hit = 0.9\n"
    objective = Objective("ttft", percentile, 1.0, 1.0)
    assert _certain(review_of(f"{H100}{MODEL}{policy}", plugins), objective, cold, seconds) is certain
    # What is only assumed may be otherwise.
    assumed = review_of(f"{H100}{MODEL}{policy.replace('cache_hit = 0.9', '')}", plugins)
    assert not _certain(assumed, objective, cold, seconds)


@pytest.mark.parametrize(
    ("transfer", "moved", "layerwise", "key"),
    [
        ('{ bandwidth = "5 GB/s", setup = "1 s", layerwise = false }', 2.0, False, "layerwise"),
        ('{ bandwidth = "5 GB/s", setup = "1 s", layerwise = false }', 0.5, False, "setup"),
        ('{ bandwidth = "5 GB/s", setup = "1 s" }', 1.0, False, "bandwidth"),
        ('{ bandwidth = "5 GB/s", setup = "1 s", layerwise = true }', 2.0, True, "bandwidth"),
        ('{ bandwidth = "5 GB/s" }', 0.5, True, "bandwidth"),
        ('{ setup = "1 s" }', 2.0, True, "setup"),
    ],
)
def test_the_key_of_a_transfer_that_decides(
    transfer: str, moved: float, layerwise: bool, key: str, plugins: Plugins
) -> None:
    review = review_of(f"{H100}{MODEL}[policy.disaggregation]\ntransfer = {transfer}\n", plugins)
    pools: Any = SimpleNamespace(setup_s=1.0, layerwise=layerwise)
    assert deciding_key(review, pools, moved)[-1] == key


# Power


@pytest.mark.parametrize(
    ("hardware", "power", "budgets"),
    [
        ("devices = 8\n", 'per_node = "6 kW"', [("node", 8)]),
        ("devices = 2\nreplicas = 3\n", 'per_node = "6 kW"', [("node", 2)]),
        ("devices = 16\n", 'per_node = "6 kW"', [("node", 8)]),
        ("devices = 16\nnodes = 4\n", 'per_node = "6 kW"', [("node", 4)]),
        ("devices = 9\nnodes = 2\n", 'per_node = "6 kW"', [("node", 5)]),
        ("devices = 2\nreplicas = 3\ndevices_per_node = 4\n", 'per_node = "6 kW"', [("node", 4)]),
        ("devices = 2\ndevices_per_node = 4\n", 'per_node = "6 kW"', [("node", 2)]),
        ("devices = 8\nreplicas = 4\n", 'per_rack = "20 kW"\nnodes_per_rack = 2', [("rack", 16)]),
        ("devices = 8\nreplicas = 1\n", 'per_rack = "20 kW"\nnodes_per_rack = 2', [("rack", 8)]),
        ("devices = 8\n", 'per_rack = "20 kW"', []),
        (
            "devices = 8\nreplicas = 2\n",
            'per_node = "6 kW"\nper_rack = "20 kW"\nnodes_per_rack = 2',
            [("node", 8), ("rack", 16)],
        ),
    ],
)
def test_devices_that_share_a_budget(
    hardware: str, power: str, budgets: list[tuple[str, int]], plugins: Plugins
) -> None:
    review = review_of(f"{H100}{hardware}[hardware.power]\n{power}\n{MODEL}", plugins)
    assert [(budget.where, budget.devices) for budget in _budgets(review)] == budgets


# Experts


@pytest.mark.parametrize(
    ("table", "devices", "copies", "degrees"),
    [
        ("tensor = 8\nattention_data = 8\nexpert = 8\n", 8, 2, (4, 1, 4, 4)),
        ("tensor = 8\nattention_data = 8\nexpert = 8\n", 8, 8, (1, 1, 1, 1)),
        ("tensor = 8\nexpert = 8\n", 8, 2, None),
        ("tensor = 8\ndata = 2\nattention_data = 8\nexpert = 16\n", 16, 2, (8, 1, 8, 8)),
        ("tensor = 8\ndata = 2\nattention_data = 8\nexpert = 16\n", 16, 4, (4, 1, 4, 4)),
        ("tensor = 2\ndata = 4\nattention_data = 2\nexpert = 8\n", 8, 2, (2, 2, 2, 4)),
        ("tensor = 8\nattention_data = 8\nexpert = 8\n", 8, 3, None),
    ],
)
def test_a_part_of_an_expert_group(
    table: str, devices: int, copies: int, degrees: tuple[int, ...] | None, plugins: Plugins
) -> None:
    model = '[model]\nid = "Qwen/Qwen3-30B-A3B"\nmax_model_len = 8192\n'
    config = parallelism(compose(f"{H100}devices = {devices}\n{model}[policy.parallelism]\n{table}", plugins))
    part = _part(config, copies)
    found = None if part is None else (part.t, part.d, part.attention_ranks, part.expert)
    assert found == degrees


# Lengths of a request, links, and what a step could do without


@pytest.mark.parametrize(("percentile", "tokens"), [("mean", "199"), ("p50", "99"), ("p99", "999")])
def test_the_output_of_a_request_is_that_of_the_percentile(percentile: str, tokens: str) -> None:
    output = SimpleNamespace(mean=200.0, quantile=lambda p: {0.5: 100.0, 0.99: 1000.0}[p])
    point: Any = SimpleNamespace(
        service=SimpleNamespace(mix=SimpleNamespace(output=output)),
        ttft=lambda name: 0.5,
        tpot=lambda name: 0.01,
        e2e=lambda name: 2.0,
    )
    assert _e2e(point, percentile) == f"500 ms to the first token on average + {tokens} tokens x 10 ms = 2 s"


def test_the_source_of_a_link_is_where_its_figure_is_from(plugins: Plugins) -> None:
    def source(hardware: str, tier: str) -> tuple[str, str]:
        review = review_of(f"{H100}{hardware}{MODEL}[policy.parallelism]\ntensor = 16\n", plugins)
        assert review.composition is not None
        found = _link_source(review, review.composition, tier)
        return found.kind, found.where

    declared = 'devices = 16\n[hardware.network]\nbandwidth = "50 GB/s"\n'
    assert source(declared, "network")[0] == "spec"
    assert source("devices = 16\n", "network")[0] != "spec"
    assert source(declared, "pcie") == source("devices = 16\n", "pcie")
    assert source(declared, "pcie")[0] == "datasheet"


@pytest.mark.parametrize(("tokens", "expected"), [(0, False), (1, True), (4, True)])
def test_drafts_of_any_length_could_be_left_out(tokens: int, expected: bool, plugins: Plugins) -> None:
    policy = f'[policy.speculation]\nmethod = "ngram"\ntokens = {tokens}\nacceptance = 0.5\n'
    words = [words for words, _ in _alternatives(compose(f"{H100}{MODEL}{policy}", plugins))]
    assert ("no speculation" in words) is expected
    assert sum(word.endswith(" weights") for word in words) == 2


def test_a_model_that_caches_nothing_holds_no_token_twice(plugins: Plugins) -> None:
    state = LinearState(recurrent_elements=16 * 64 * 128, conv_elements=3 * 4096)
    blocks = (
        samples.state_block("linear", range(4), 1024, 2048, state),
        samples.dense_block("mlp", range(4), 1024, 4096),
    )
    spec = '[hardware]\naccelerator = "any"\ndevices = 4\n[model]\nid = "any"\n[policy.parallelism]\ntensor = 4\n'
    model = samples.model(1024, 32_768, blocks)
    found = compose(spec, plugins, architecture=model, accelerator=samples.accelerator())
    assert (cached_heads(found), copies_of(found)) == (0, 1)
