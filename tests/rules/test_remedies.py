"""What a rule offers as help is found with few compositions, and is the same that trying everything would find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servelint import composition
from servelint.config import Config
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint_rules.ctx.ctx001_long_context_risk import MENDED
from servelint_rules.spd.spd001_speculation_at_high_batch import longest_paying

DEEP = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 1008
[model]
id = "meta-llama/Llama-3.1-405B"
[policy.parallelism]
tensor = 8
pipeline = 126
"""
DRAFTING = """\
[policy.speculation]
method = "ngram"
tokens = {tokens}
acceptance = 0.01
[workload]
prompt_tokens = 1000
output_tokens = 200
rate = 1
"""
SCENARIOS = """\
[policy.batching]
max_batched_tokens = 64
[workload]
prompt_tokens = {{ p50 = 1000, p99 = 4000 }}
output_tokens = 200
rate = 0.01
{growth}
"""


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every composition that is made."""
    made: list[object] = []

    class Counted(composition.Composition):
        def __init__(self, setup: Any) -> None:
            made.append(setup)
            super().__init__(setup)

    for name in ("servelint.review", "servelint_rules.layouts"):
        monkeypatch.setattr(f"{name}.Composition", Counted)
    return made


def helps(plugins: Plugins, spec: str, code: str) -> list[str]:
    result = Linter(plugins, Config(), Path()).check("spec.toml", spec)
    return [f.finding.help for f in result.findings if f.finding.code == code]


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 16, 64])
def test_the_longest_draft_that_pays_is_found_with_few_tries(tokens: int) -> None:
    for most in range(tokens):
        tried: list[int] = []
        assert longest_paying(lambda k, most=most, tried=tried: tried.append(k) or k <= most, tokens) == most  # type: ignore[misc]
        assert len(tried) == len(set(tried)) <= 18
        assert all(0 < k < tokens for k in tried)
        # Too short drafts do not pay either.
        assert longest_paying(lambda k, most=most: most * 3 / 4 <= k <= most, tokens) == most  # type: ignore[misc]


def test_drafts_on_a_deep_pipeline_take_few_compositions(plugins: Plugins, composed: list[object]) -> None:
    (help_,) = helps(plugins, DEEP + DRAFTING.format(tokens=64), "SPD001")
    assert "draft" in help_ or "do not speculate" in help_
    assert len(composed) <= 25


def test_scenarios_share_the_edited_deployments(plugins: Plugins, composed: list[object]) -> None:
    def growth(number: int) -> str:
        table = "[[workload.growth]]\nprompt_tokens = {{ p50 = {}, p99 = 100000 }}\nrate = 5\n"
        return SCENARIOS.format(growth="".join(table.format(30_000 + i) for i in range(number)))

    assert len(helps(plugins, DEEP + growth(1), "CTX001")) == 1
    once = len(composed)
    found = helps(plugins, DEEP + growth(MENDED + 3), "CTX001")
    assert len(found) == MENDED + 3
    # Edits of the deployment do not depend on the scenario, and after the first scenarios none is tried.
    assert len(composed) - once <= once + 9
    assert [f"first {MENDED} scenarios" in text for text in found] == [False] * MENDED + [True] * 3
