"""The conformance kit itself: what breaks is reported, waivers need a reason and a failure to waive."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tomli
from attrs import evolve, frozen
from hypothesis import HealthCheck, Phase, find, given, settings

from servelint.architecture import Attention, LatentAttention, LinearState
from servelint.formats import Format
from servelint.manager import Plugins
from servelint.memory import MemoryLedger
from servelint.plugin import (
    API_VERSION,
    Boolean,
    Context,
    Entry,
    Finding,
    Number,
    Policy,
    Reporter,
    Rule,
    StepGraph,
    WeightRead,
    hookimpl,
    key,
)
from servelint.scheduler import Scheduler
from servelint.shapes import decode
from servelint.testing import check_accelerator, check_model, check_plugin, check_policy, compose, review_of, samples
from servelint.testing.invariants import check_more_load, check_sharding, check_speculation, valid_order
from servelint.testing.strategies import MIXERS, Generated, accelerators, architectures, deployments, specs, toml
from servelint.values import Value

PLUGINS = Plugins()


@frozen(eq=False, repr=False)
class OffloadConfig(Value):
    """A third party's policy: a share of the weights is read from elsewhere."""

    share: float | None = key(Number(0.0, 1.0))
    pinned: bool | None = key(Boolean())


def offloaded(config: OffloadConfig, graph: StepGraph, context: Context) -> StepGraph:
    kept = 1.0 - (config.share or 0.0)
    if kept == 1.0:
        return graph
    return graph.mapped(lambda op, d: d.scaled(kept, "offload", "kept here") if isinstance(d, WeightRead) else d)


OFFLOAD = Policy("offload", OffloadConfig, offloaded)


def test_samples_conform() -> None:
    check_accelerator(samples.accelerator(), waivers={"sources": "a sample has no document behind its rates"})
    check_model(samples.dense_model())
    check_model(samples.hybrid_model())


def test_a_policy_of_ones_own_conforms() -> None:
    check_policy(OFFLOAD, tables=[{"share": 0.3, "pinned": True}], identity={"share": 0.0})


def test_an_accelerator_with_swapped_rates_does_not() -> None:
    swapped = evolve(samples.accelerator(), sparse_flops={"bf16": 1.0})
    with pytest.raises(
        AssertionError, match="samples/accelerator does not conform:\n  datasheet: the sparse rate of bf16"
    ):
        check_accelerator(swapped, waivers={"sources": "a sample has no document behind its rates"})


def test_an_accelerator_without_a_rate_cannot_be_priced() -> None:
    with pytest.raises(AssertionError, match="no published compute rate for bf16"):
        check_accelerator(evolve(samples.accelerator(), dense_flops={"fp4": 1e15}))


def test_a_model_that_counts_wrongly_does_not() -> None:
    model = samples.dense_model()
    doubled = evolve(model, blocks=(*model.blocks, model.blocks[0]))
    with pytest.raises(AssertionError, match="parameters: two blocks are called the same"):
        check_model(doubled)


def test_a_policy_that_is_never_off_does_not() -> None:
    def always(config: OffloadConfig, graph: StepGraph, context: Context) -> StepGraph:
        return offloaded(OffloadConfig(0.5), graph, context)

    with pytest.raises(AssertionError, match=r"identity: without the policy, .*weight bytes was"):
        check_policy(Policy("other", OffloadConfig, always))


def test_a_policy_that_depends_on_its_place_does_not() -> None:
    def page(config: OffloadConfig, ledger: MemoryLedger, context: Context) -> MemoryLedger:
        # Reads what the cache policy sets, without saying that it comes after it.
        return evolve(ledger, visible=ledger.budget) if config.pinned else ledger

    with pytest.raises(AssertionError, match="order: policies in the order"):
        check_policy(Policy("placed", OffloadConfig, None, page))


def test_a_policy_that_promises_too_much_does_not() -> None:
    def lucky(config: OffloadConfig, scheduler: Scheduler, context: Context) -> Scheduler:
        return evolve(scheduler, tokens_per_step=2.0) if config.pinned else scheduler

    with pytest.raises(AssertionError, match=r"speculation: 2.0 tokens expected of 0 drafts, outside \[1, 1\]"):
        check_policy(Policy("lucky", OffloadConfig, scheduler=lucky))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bytes": None}, "datasheet: has memory_bytes None, expected a finite number above 0"),
        ({"dense_flops": {"bf16": float("nan")}}, "datasheet: has dense_flops of bf16 nan, expected a finite number"),
        ({"link": "NVLink"}, "datasheet: has the link 'NVLink', expected a Link"),
    ],
)
def test_an_accelerator_of_wrong_types_does_not(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_accelerator(evolve(samples.accelerator(), **changes))


def test_a_model_of_wrong_types_does_not() -> None:
    with pytest.raises(AssertionError, match="parameters: has blocks"):
        check_model(evolve(samples.dense_model(), blocks=[1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph": lambda c, g, x: None}, "policy 'odd' returned NoneType, expected StepGraph"),
        ({"memory": lambda c, m, x: evolve(m, budget=-1.0)}, "policy 'odd' has budget -1.0, expected"),
        ({"scheduler": lambda c, s, x: 1 / 0}, "policy 'odd' failed: ZeroDivisionError"),
        ({"defaults": lambda c, x: {"share": 3}}, "returned 3 for odd.share, expected a Default"),
        ({"after": "kv_cache"}, "policy 'odd' has after 'kv_cache', expected a tuple of texts"),
    ],
)
def test_a_policy_that_returns_wrong_things_does_not(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_policy(Policy("odd", OffloadConfig, **arguments))


class Unmade(Rule):
    """Cannot be made."""

    code, name = "ODD001", "unmade"

    def __init__(self, options: dict[str, float] | None = None) -> None:
        raise LookupError("no table")

    def check(self, review: Any) -> Iterator[Finding]:
        yield Finding((), "never")


def module(**hooks: Any) -> SimpleNamespace:
    marked = {name: hookimpl(lambda f=function: f()) for name, function in hooks.items()}
    return SimpleNamespace(servelint_api=API_VERSION, **marked)


PLUGIN = {
    "servelint_policies": lambda: [OFFLOAD],
    "servelint_models": lambda: [Entry("samples/dense", samples.dense_model)],
    "servelint_reporters": lambda: [Reporter("lines", lambda report: f"{len(report.files)} files")],
}


def test_a_plugin_of_ones_own_conforms() -> None:
    check_plugin(module(**PLUGIN))


@pytest.mark.parametrize(
    ("hook", "made", "message"),
    [
        ("servelint_formats", lambda: [Format("f", -1)], "hooks: servelint_formats: format 'f' has bits -1"),
        ("servelint_formats", lambda: 1 / 0, "hooks: servelint_formats failed: ZeroDivisionError"),
        ("servelint_accelerators", lambda: [Entry("x/y", dict)], "entries: loading accelerator 'x/y' gave dict"),
        ("servelint_models", lambda: [Entry("x/y", samples.dense_model)], "gave one with the id 'samples/dense'"),
        ("servelint_rules", lambda: [Unmade], "rules: making the rule ODD001 failed: LookupError: no table"),
        ("servelint_reporters", lambda: [Reporter("r", len)], "reports: report 'r' in plugin 'p' of unknown returned"),
        ("servelint_rules", lambda: print("hello") or [], "output: it prints 'hello"),
    ],
)
def test_a_plugin_that_breaks_the_contract_does_not(hook: str, made: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_plugin(module(**{**PLUGIN, hook: made}), name="p")


@pytest.mark.parametrize(
    ("waivers", "message"),
    [
        ({"figures": "no"}, "the waiver of 'figures' gives no reason"),
        ({"figures": "we have not looked into it"}, "figures passes: its waiver can go"),
        ({"figuers": "we have not looked into it"}, "there is no check 'figuers'; there are parameters, sources,"),
    ],
)
def test_waivers(waivers: dict[str, str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_model(samples.dense_model(), waivers=waivers)


def test_checks_say_which_figures_break_them() -> None:
    spec = '[hardware]\naccelerator = "any"\n[model]\nid = "any"\n'
    whole = compose(spec, PLUGINS, architecture=samples.dense_model(), accelerator=samples.accelerator())
    half = compose(spec, PLUGINS, architecture=samples.dense_model(), accelerator=samples.accelerator())
    half.graph = whole.graph.mapped(lambda op, d: d.scaled(0.5, "test", "half of it"))
    check_sharding(whole, half, decode(4.0, 100.0), 2)
    with pytest.raises(AssertionError, match="FLOPs of the model, then of all its devices"):
        check_sharding(whole, half, decode(4.0, 100.0), 1)
    with pytest.raises(AssertionError, match="floor at StepShape"):
        check_more_load(whole, decode(400.0, 5000.0), decode(4.0, 100.0))
    with pytest.raises(AssertionError, match="tokens expected"):
        check_speculation(
            Scheduler(verify_tokens=3, tokens_per_step=2.0), Scheduler(verify_tokens=3, tokens_per_step=1.5)
        )


def test_compose_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="unknown key"):
        compose("[hardwear]\n", PLUGINS)
    with pytest.raises(ValueError, match="no plugin provides the accelerator"):
        compose('[hardware]\naccelerator = "acme/x"\n[model]\nid = "Qwen/Qwen3-8B"\n', PLUGINS)
    with pytest.raises(ValueError, match="accelerator or model is not declared"):
        compose('[model]\nid = "Qwen/Qwen3-8B"\n', PLUGINS)


def test_orders_keep_to_their_constraints() -> None:
    names = [p.name for p in valid_order(PLUGINS.policies, ["speculation", "moe"])]
    assert sorted(names) == sorted(p.name for p in PLUGINS.policies)
    for policy in PLUGINS.policies:
        assert all(names.index(o) < names.index(policy.name) for o in policy.after if o in names)
        assert all(names.index(o) > names.index(policy.name) for o in policy.before if o in names)


QUICK = settings(max_examples=2000, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", MIXERS)
def test_every_kind_of_mixer_is_generated(kind: str) -> None:
    model = find(architectures(), lambda a: any(b.name == kind for b in a.blocks), settings=QUICK)
    (mixer,) = (b.mixer for b in model.blocks if b.name == kind)
    latent = ("mla", "sparse", "compressed")
    expected = LinearState if kind == "linear" else LatentAttention if kind in latent else Attention
    assert isinstance(mixer, expected)


def test_hybrids_and_experts_are_generated() -> None:
    mixed = find(architectures(), lambda a: sum(b.mixer is not None for b in a.blocks) == 3, settings=QUICK)
    assert sum(b.count for b in mixed.blocks if b.mixer is not None) == mixed.num_layers
    assert find(architectures(experts=True), lambda a: True, settings=QUICK).is_moe
    assert not find(architectures(experts=False), lambda a: True, settings=QUICK).is_moe


def test_accelerators_of_every_kind_are_generated() -> None:
    assert find(accelerators(), lambda a: a.link is not None and a.link.pattern == "mesh", settings=QUICK).link
    assert find(accelerators(), lambda a: a.link is None and a.l2_bytes > 0, settings=QUICK).l2_bytes
    assert find(accelerators(), lambda a: "fp4" in a.dense_flops, settings=QUICK).dense_flops["fp4"]


@given(deployments(PLUGINS))
@settings(max_examples=50, deadline=None)
def test_generated_deployments_are_valid(generated: Generated) -> None:
    review = generated.review(PLUGINS)
    assert review.architecture is generated.architecture
    assert review.composition is not None or review.infeasible is not None
    assert review.mix is not None


@given(specs(PLUGINS))
@settings(max_examples=50, deadline=None)
def test_generated_specs_are_valid(text: str) -> None:
    assert review_of(text, PLUGINS).document.deployment is not None


def test_every_policy_has_a_generated_table() -> None:
    for policy in PLUGINS.policies:
        if policy.name != "disaggregation":
            found = find(deployments(PLUGINS, policies=(policy.name,)), lambda g: True, settings=QUICK)
            assert f"[policy.{policy.name}]" in found.spec


def test_toml_is_written_so_that_it_is_read_back() -> None:
    table = {"a": 1, "b": {"c d": [1.5, True, 'é\n"\x7f'], "e": {}}, "f": [{"g": "x"}], "h": 1e-7}
    assert tomli.loads(toml(table)) == table


def test_only_strategies_need_hypothesis() -> None:
    code = "import sys, servelint.testing; sys.exit('hypothesis' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
