"""Who reports a TTFT objective that cold compiles or KV transfers alone break: their own rules, and no other beside."""

from __future__ import annotations

import pytest

from servelint.manager import Plugins
from servelint.rule import Case, Finding
from servelint.testing.rules import run_case
from servelint_rules.cnd.cnd002_cold_compile_on_ttft import ColdCompileOnTtft
from servelint_rules.dis.dis003_transfer_on_ttft import TransferOnTtft
from servelint_rules.eng.eng005_context_split import ContextSplit

LATENCY = {"SLO001", "SLO004", "SLO005", "CND002", "DIS001", "DIS003"}


def findings(plugins: Plugins, spec: str) -> list[Finding]:
    return [located.finding for located in run_case(Case("", spec), plugins).findings]


@pytest.mark.parametrize(
    ("code", "case"),
    [(rule.code, case) for rule in (ColdCompileOnTtft, TransferOnTtft) for case in rule.failing],
    ids=lambda value: value.name if isinstance(value, Case) else value,
)
def test_one_rule_speaks(plugins: Plugins, code: str, case: Case) -> None:
    assert [f.code for f in findings(plugins, case.spec) if f.code in LATENCY] == [code]


def test_an_assumed_compile_is_left_to_the_operating_point(plugins: Plugins) -> None:
    spec = ColdCompileOnTtft.failing[0].spec.replace('compile = "990 ms" # expect: CND002\n', "")
    assert [f.code for f in findings(plugins, spec.replace("1 s", "150 ms")) if f.code in LATENCY] == ["SLO001"]


def test_an_objective_that_is_broken_anyway_is_left_to_the_operating_point(plugins: Plugins) -> None:
    for rule in (ColdCompileOnTtft, TransferOnTtft):
        spec = rule.failing[0].spec.replace("max_sequences = ", "max_sequences = 1 # ")
        codes = {f.code for f in findings(plugins, spec)}
        assert rule.code not in codes
        assert codes & {"SLO001", "SLO007"}


def test_both_delays_together_are_left_to_the_operating_point(plugins: Plugins) -> None:
    """Neither breaks the objective by itself, so no single cause is named."""
    spec = TransferOnTtft.passing[1].spec.replace('"50 GB/s"', '"3 GB/s"')
    assert not [f.code for f in findings(plugins, spec) if f.code in LATENCY - {"DIS001"}]
    both = spec + '[policy.constrained_decoding]\ncache_hit = 0.5\ncompile = "600 ms"\nmask = "20 us"\n'
    codes = [f.code for f in findings(plugins, both) if f.code in LATENCY - {"DIS001"}]
    assert len(codes) == 1


def test_a_divided_context_below_the_declared_one_is_no_contradiction_beside(plugins: Plugins) -> None:
    spec = ContextSplit.failing[1].spec
    assert [f.code for f in findings(plugins, spec)] == ["ENG005"]
    shorter = spec.replace("max_model_len = 8192", "max_model_len = 2048")
    assert [f.code for f in findings(plugins, shorter)] == ["SPEC006"]


def test_slots_of_more_than_memory_holds_are_not_proposed(plugins: Plugins) -> None:
    spec = ContextSplit.failing[0].spec.replace("nvidia/h100-sxm5-80gb", "nvidia/l4").replace("= 4000", "= 16000")
    (finding,) = [f for f in findings(plugins, spec) if f.code == "ENG005"]
    assert "memory does not hold 8 such contexts" in finding.help
    assert str(finding.severity) == "error"
