"""The plugin contract: loading, blame, isolation, names, order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve, frozen

from servelint import contract
from servelint.blame import Wrong
from servelint.config import Config
from servelint.descriptors import Default, Entry, Policy
from servelint.errors import CatalogueError, CompositionError, PluginError
from servelint.formats import Format
from servelint.hardware import Accelerator
from servelint.hookspecs import API_VERSION, HOOKS, hookimpl
from servelint.lineage import Source
from servelint.lint import lint
from servelint.manager import Plugins
from servelint.rule import Rule
from servelint.spec.schema import Integer, Number
from servelint.testing import samples

THIRD_PARTY = Path(__file__).parent.parent / "data" / "thirdparty"


def plugin(**hooks: Any) -> SimpleNamespace:
    # Builtins take no attributes, so each hook is a function of its own.
    marked = {name: hookimpl(lambda f=function: f()) for name, function in hooks.items()}
    return SimpleNamespace(servelint_api=API_VERSION, **marked)


def load(**modules: object) -> Plugins:
    return Plugins(modules=modules, discover=False)


class Alpha(Rule):
    """First."""

    code, name = "TST001", "first"

    def check(self, review: object) -> Iterator[Any]:
        yield from ()


class Twin(Alpha):
    """The same code again."""

    name = "second"


class Nameless(Alpha):
    """A bad code."""

    code, name = "tst1", "nameless"


@frozen
class Nothing:
    pass


def test_builtins_come_through_entry_points_without_a_fault(plugins: Plugins) -> None:
    assert {"hardware", "models", "policies", "rules", "engines", "workloads", "reports"} <= set(plugins.providers)
    assert plugins.providers["hardware"].distribution == "servelint"
    assert plugins.faults == []


def test_a_raising_hook_is_blamed_and_the_others_go_on() -> None:
    def bad() -> Iterator[Format]:
        yield Format("a", 8)
        raise ValueError("no more formats")

    loaded = load(bad=plugin(servelint_formats=bad), good=plugin(servelint_formats=lambda: [Format("b", 4)]))
    assert set(loaded.formats) == {"b"}
    (fault,) = loaded.faults
    assert fault.provider.plugin == "bad"
    assert "servelint_formats failed: ValueError: no more formats" in fault.message


def test_a_wrong_thing_is_blamed_and_the_right_ones_are_kept() -> None:
    loaded = load(odd=plugin(servelint_formats=lambda: [Format("b", 4), 7]))
    assert set(loaded.formats) == {"b"}
    assert "yielded int, expected Format" in str(loaded.faults[0])


def test_a_plugin_may_even_exit() -> None:
    def leave() -> None:
        raise SystemExit(3)

    loaded = load(rude=plugin(servelint_formats=leave))
    assert loaded.formats == {}
    assert "SystemExit" in str(loaded.faults[0])


def test_a_taken_name_names_both() -> None:
    loaded = load(
        one=plugin(servelint_formats=lambda: [Format("a", 8)]),
        two=plugin(servelint_formats=lambda: [Format("A", 4)]),
    )
    assert loaded.formats["a"].bits == 8
    assert loaded.faults[0].provider.plugin == "two"
    assert "already provided by plugin 'one'" in loaded.faults[0].message


def test_another_contract_version_is_refused_by_name() -> None:
    loaded = load(later=SimpleNamespace(servelint_api="2"), silent=SimpleNamespace())
    messages = {f.provider.plugin: f.message for f in loaded.faults}
    assert messages["later"] == "needs plugin API 2; this servelint offers API 1"
    assert "states no servelint_api" in messages["silent"]


def test_an_unknown_hook_is_refused_with_a_suggestion() -> None:
    loaded = load(typo=plugin(servelint_rule=list), fine=plugin(servelint_formats=lambda: [Format("b", 4)]))
    assert "did you mean 'servelint_rules'" in loaded.faults[0].message
    assert set(loaded.formats) == {"b"}


def test_rules_are_validated() -> None:
    loaded = load(r=plugin(servelint_rules=lambda: [Alpha, Nameless, Twin, int]))
    assert loaded.rules == (Alpha,)
    text = "\n".join(map(str, loaded.faults))
    assert "rule Nameless has the code 'tst1'" in text
    assert "rule 'TST001' is already provided" in text
    assert "rule int is not a Rule" in text


def test_nothing_loaded_is_no_clean_lint() -> None:
    with pytest.raises(PluginError, match="no rules are loaded"):
        load().require_something()
    with pytest.raises(PluginError, match="no accelerators are loaded"):
        load(r=plugin(servelint_rules=lambda: [Alpha])).require_something()


def test_policies_are_ordered_by_after_and_before() -> None:
    made = [Policy("c", Nothing, after=("b",)), Policy("a", Nothing, before=("b",)), Policy("b", Nothing)]
    assert [p.name for p in load(p=plugin(servelint_policies=lambda: made)).policies] == ["a", "b", "c"]


def test_a_cycle_of_policies_names_them_and_their_plugins() -> None:
    one = plugin(servelint_policies=lambda: [Policy("a", Nothing, after=("b",))])
    two = plugin(servelint_policies=lambda: [Policy("b", Nothing, after=("a",))])
    with pytest.raises(CompositionError, match=r"cycle.*'one'") as caught:
        _ = load(one=one, two=two).policies
    assert "'two'" in str(caught.value)


def test_a_missing_requirement_is_named() -> None:
    needy = plugin(servelint_policies=lambda: [Policy("a", Nothing, requires=("paging",))])
    with pytest.raises(CompositionError, match="requires the policy 'paging'"):
        _ = load(p=needy).policies


def test_entries_load_once_and_only_when_asked_for() -> None:
    opened: list[str] = []

    def part(name: str) -> Accelerator:
        opened.append(name)
        return evolve(samples.accelerator(), id=name)

    def entry(name: str) -> Entry[Any]:
        return Entry(name, lambda: part(name), lambda: (f"{name} alias",))

    loaded = load(h=plugin(servelint_accelerators=lambda: [entry("x/one"), entry("x/two")]))
    assert loaded.accelerators.ids() == ("x/one", "x/two")
    assert opened == []
    assert loaded.accelerators.get("X/One") is loaded.accelerators.get("x one alias".replace("x ", "x/"))
    assert opened == ["x/one"]
    with pytest.raises(CatalogueError, match="did you mean 'x/two'"):
        loaded.accelerators.get("x/twoo")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("L40S", "nvidia/l40s"),
        ("l4", "nvidia/l4"),
        ("H100 SXM5 80GB", "nvidia/h100-sxm5-80gb"),
        ("MI300X", "amd/mi300x-oam-192gb"),
        ("NVIDIA/H100-SXM5-80GB", "nvidia/h100-sxm5-80gb"),
        ("H100", None),
    ],
)
def test_a_part_without_its_vendor_is_found(name: str, found: str | None, plugins: Plugins) -> None:
    assert plugins.accelerators.resolve(name) == found


def test_a_name_that_two_owners_have_is_not_found_without_one() -> None:
    entries = [Entry(f"{owner}/one", lambda: SimpleNamespace(id="")) for owner in ("x", "y")]
    loaded = load(h=plugin(servelint_accelerators=lambda: [*entries, Entry("x/two", lambda: SimpleNamespace(id=""))]))
    assert loaded.accelerators.resolve("one") is None
    assert loaded.accelerators.resolve("two") == "x/two"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("H100", ": it may be 'nvidia/h100-nvl-94gb' or 'nvidia/h100-pcie-80gb' or 'nvidia/h100-sxm5-80gb'; name the"),
        ("A100 80GB", ": it may be 'nvidia/a100-pcie-80gb' or 'nvidia/a100-sxm4-80gb'; name the one"),
        ("B200", "; did you mean 'nvidia/b200-sxm6-180gb'?"),
        ("a100-80gb-sxmm", "; did you mean 'nvidia/a100-sxm4-80gb'"),
        ("zzz", "; `servelint catalog hardware` lists them, or give hardware.datasheet"),
    ],
)
def test_suggestions_are_ids(name: str, said: str, plugins: Plugins) -> None:
    with pytest.raises(CatalogueError) as caught:
        plugins.accelerators.get(name)
    assert said in str(caught.value)


def test_suggestions_of_models_are_ids(plugins: Plugins) -> None:
    for name in ("meta-llama/Llama-3.1-8B-Instrct", "mixtral", "gpt-oss"):
        with pytest.raises(CatalogueError) as caught:
            plugins.models.get(name)
        assert set(re.findall(r"'([^']+)'", str(caught.value))) - {name} <= set(plugins.models.ids())
    with pytest.raises(CatalogueError, match=r"`servelint catalog models` lists them, or give model\.config"):
        plugins.models.get("zzz")


def test_many_unknown_names_cost_no_search_each(plugins: Plugins) -> None:
    catalogue = Plugins(discover=True).models
    messages = [catalogue.unknown(f"meta-llama/Llama-3.1-8B-{i:04d}x") for i in range(1000)]
    assert "did you mean" in messages[0]
    assert messages[-1].endswith("; `servelint catalog models` lists them")


def run_with(*folders: str, spec: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(THIRD_PARTY / f) for f in folders)
    return subprocess.run(
        [sys.executable, "-m", "servelint", "check", "-", *arguments],
        input=spec,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


SPEC = """\
servelint = 1
[hardware]
accelerator = "zephyr"
replicas = 1
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.acme_throttle]
share = "10 %"
[policy.quantization]
kv_cache = "acme6"
"""


def test_an_installed_third_party_provides_hardware_policy_format_and_rule() -> None:
    done = run_with("acme", spec=SPEC, arguments=("--concise",))
    assert "ACME001 single-replica" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout


def test_broken_plugins_are_named_and_the_check_goes_on_with_status_2() -> None:
    done = run_with("acme", "broken", "future", spec=SPEC, arguments=("--concise",))
    assert done.returncode == 2
    assert "ACME001" in done.stdout
    assert "plugin 'broken' of broken-servelint 0.3" in done.stdout
    assert "the licence server did not answer" in done.stdout
    assert "plugin 'future' of future-servelint 9.0" in done.stdout
    assert "needs plugin API 7" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_disabled_plugin_is_not_even_imported() -> None:
    done = run_with("acme", "broken", spec=SPEC, arguments=("--concise", "--disable-plugin", "broken"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_hook_is_listed() -> None:
    from servelint import hookspecs

    defined = {n for n, f in vars(hookspecs).items() if n.startswith("servelint_") and callable(f)}
    assert defined == set(HOOKS)


def test_a_policy_that_raises_is_its_own_fault_and_the_rest_is_reported() -> None:
    def explode(config: Any, graph: Any, context: Any) -> Any:
        raise LookupError("no such table")

    bad = plugin(servelint_policies=lambda: [Policy("explosive", Nothing, graph=explode)])
    loaded = Plugins(modules={"bad": bad})
    text = 'servelint = 1\n[hardware]\naccelerator = "nvidia/l4"\n[model]\nid = "meta-llama/Llama-3.1-70B"\n'
    report = lint([("a.toml", text)], loaded, Config(), Path())
    (fault,) = report.faults
    assert fault.provider.plugin == "bad"
    assert "policy 'explosive' failed: LookupError: no such table" in fault.message
    # The spec does not set it, so what the others compose is the deployment.
    assert [f.finding.code for f in report.findings] == ["MEM001"]
    assert loaded.off == {"explosive"}
    # A spec that sets it cannot be judged, neither now nor later in the run; the fault is told once.
    report = lint([("b.toml", text + "[policy.explosive]\n"), ("c.toml", text)], loaded, Config(), Path())
    assert [(f.file, f.finding.code) for f in report.findings] == [("c.toml", "MEM001")]
    assert len(report.faults) == 1


def test_a_policy_that_failed_takes_along_those_that_require_it() -> None:
    made = [Policy("c", Nothing, requires=("d",)), Policy("d", Nothing, requires=("z",)), Policy("b", Nothing)]
    made.append(Policy("z", Nothing))
    loaded = load(p=plugin(servelint_policies=lambda: made))
    loaded.switch_off("z")
    assert [p.name for p in loaded.active] == ["b"]
    assert len(loaded.policies) == 4


def test_a_value_that_follows_from_the_spec_is_nobodys_fault() -> None:
    # 1,192,166,514 devices are more than a spec may declare, not more than degrees in it may come to.
    text = """servelint = 1
    [hardware]
    accelerator = "nvidia/l4"
    [model]
    id = "meta-llama/Llama-3.1-8B"
    [policy.parallelism]
    tensor = 65536
    pipeline = 65536
    """
    loaded = Plugins()
    report = lint([("a.toml", text)], loaded, Config(), Path())
    assert report.faults == ()
    default = Default(10**12, "as long as the context", Source("engine", "x"))
    contract.setting(Integer(1, 10**9), default, "batching.max_batched_tokens")
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises(Wrong, match=r"returned a wrong default for batching\.max_batched_tokens: found "):
            contract.setting(Integer(1, 10**9), default._replace(value=wrong), "batching.max_batched_tokens")
    with pytest.raises(Wrong, match=r"found the number 1\.5"):
        contract.setting(Number(0, 1), default._replace(value=1.5), "speculation.acceptance")


def test_a_plugin_whose_hook_is_refused_leaves_nothing_behind() -> None:
    module = plugin(servelint_formats=lambda: [Format("a", 8)])
    module.servelint_rules = hookimpl(lambda report: [])
    loaded = load(half=module)
    assert loaded.formats == {}
    assert loaded.providers == {}
    (fault,) = loaded.faults
    assert "cannot be registered: PluginValidationError" in fault.message


def test_what_fails_to_load_is_tried_once() -> None:
    tried: list[int] = []
    good = evolve(samples.accelerator(), id="x/two")
    entries = [Entry("x/one", lambda: tried.append(1)), Entry("x/two", lambda: good)]
    loaded = load(h=plugin(servelint_accelerators=lambda: entries))
    for _ in range(2):
        with pytest.raises(PluginError, match="gave NoneType, expected Accelerator"):
            loaded.accelerators.get("x/one")
    assert tried == [1]
    assert list(loaded.accelerators.each()) == [good]
    assert len(loaded.faults) == 1


def test_of_many_wrong_things_a_few_are_told() -> None:
    loaded = load(odd=plugin(servelint_formats=lambda: [Format(f"f{i}", -1) for i in range(100)]))
    assert loaded.formats == {}
    assert len(loaded.faults) == 6
    assert loaded.faults[-1].message == "servelint_formats: 95 more things are wrong"


@pytest.mark.parametrize(
    ("kind", "values"),
    [("quantiles", {"p50": 900.0, "p99": 7000.0}), ("mean", {"mean": 5.0, "min": 10.0}), ("mean", {"mean": 5.0})],
)
def test_built_in_lengths_rise_whatever_the_spec_says(kind: str, values: dict[str, float], plugins: Plugins) -> None:
    knots = plugins.length_knots(values)
    assert knots is not None
    assert sorted(knots) == list(knots)


def test_every_built_in_default_and_entry_keeps_the_contract() -> None:
    from servelint.testing import check_plugin

    for name in ("hardware", "models.hooks", "policies", "engines", "workloads"):
        check_plugin(import_module(f"servelint_plugins.{name}"))
    check_plugin(import_module("servelint_rules"))
    check_plugin(import_module("servelint.report.hooks"))


def test_an_entry_that_cannot_load_is_its_plugins_fault() -> None:
    def broken() -> Any:
        raise OSError("disk on fire")

    loaded = load(h=plugin(servelint_accelerators=lambda: [Entry("x/one", broken)]))
    with pytest.raises(PluginError, match="loading accelerator 'x/one' failed in plugin 'h'"):
        loaded.accelerators.get("x/one")
    assert "disk on fire" in str(loaded.faults[0])


def test_a_report_that_raises_is_its_plugins_fault() -> None:
    from servelint.descriptors import Reporter

    def explode(report: object) -> str:
        raise KeyError("column")

    loaded = load(r=plugin(servelint_reporters=lambda: [Reporter("csv", explode)]))
    with pytest.raises(PluginError, match="report 'csv' failed in plugin 'r'"):
        loaded.render("csv", None)
    assert "KeyError" in str(loaded.faults[0])
