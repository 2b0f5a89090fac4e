"""The draft that SPD001 names is the one that gives most, so that SPD004 has nothing to add."""

from __future__ import annotations

import re

from servelint.manager import Plugins
from servelint.rule import Case
from servelint.testing.rules import run_case

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.3-70B-Instruct"
max_model_len = 32768
[engine]
name = "vllm"
version = "0.11.0"
[policy.parallelism]
tensor = 4
[policy.speculation]
method = "eagle"
tokens = {tokens}
acceptance = 0.7
[policy.batching]
max_sequences = 256
[workload]
prompt_tokens = {{ p50 = 1200, p99 = 8000 }}
output_tokens = {{ p50 = 300, p99 = 1500 }}
concurrency = 256
"""


def helps(tokens: int, plugins: Plugins) -> dict[str, str]:
    found = run_case(Case("", SPEC.format(tokens=tokens)), plugins).findings
    return {f.finding.code: f.finding.help for f in found if f.finding.code.startswith("SPD")}


def test_the_draft_that_is_named_first_needs_no_second_remedy(plugins: Plugins) -> None:
    said = re.match(
        r"set policy.speculation.tokens = (\d+) at this batch \((\d+) tokens just pay\)", helps(5, plugins)["SPD001"]
    )
    assert said is not None
    best, longest = map(int, said.groups())
    assert best < longest < 5
    assert helps(best, plugins) == {}
    # The longest that pays is not the best: that is what SPD004 would say of it.
    assert "SPD001" not in helps(longest, plugins)
    assert helps(longest, plugins)["SPD004"] == f"set policy.speculation.tokens = {best}"
