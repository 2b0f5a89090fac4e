"""What a rule says of deployments next to its failing cases, compared with the committed words.

Most cases are one device and one load, so that what a rule does with ranks, stages, pools, replicas, closed loops and
other engines is not in them. Here each of these is set beside a rule's first failing case.
``SERVELINT_UPDATE_SNAPSHOTS=1 pytest tests/rules/test_neighbours.py`` writes them anew; the diff is then read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Rule
from servelint.testing.rules import edited, key_path, run_case

EXPECTED = Path(__file__).parent / "neighbours"
RULES = Plugins().rules
CASES = 1
"""Failing cases of a rule that are tried: the first shows the rule at its plainest."""

NEIGHBOURS: dict[str, dict[str, str]] = {
    "two replicas": {"hardware.replicas": "2"},
    "two tensor-parallel ranks": {"hardware.devices": "2", "policy.parallelism.tensor": "2"},
    "two stages": {"hardware.devices": "2", "policy.parallelism.tensor": "1", "policy.parallelism.pipeline": "2"},
    "two data-parallel ranks": {
        "hardware.devices": "2",
        "policy.parallelism.tensor": "1",
        "policy.parallelism.data": "2",
    },
    "two nodes": {"hardware.devices": "16", "hardware.network": '"50 GB/s"', "policy.parallelism.tensor": "16"},
    "pools for prefill and decode": {
        "policy.disaggregation.prefill": "{ tensor = 1, replicas = 1 }",
        "policy.disaggregation.decode": "{ tensor = 1, replicas = 2 }",
        "policy.disaggregation.transfer": '{ bandwidth = "50 GB/s" }',
    },
    "a closed loop": {"workload.rate": "", "workload.concurrency": "48"},
    "an open loop of bursts": {"workload.concurrency": "", "workload.rate": '"3 req/s"', "workload.arrival_cv": "3"},
    "half of every prompt cached": {"workload.prefix_hit": "0.5"},
    "long prompts": {"workload.prompt_tokens": "{ p50 = 20000, p99 = 60000 }"},
    "a longer scenario": {"workload.growth": "[{ prompt_tokens = 16000, output_tokens = 800 }]"},
    "objectives": {"slo.ttft": '{ p99 = "900 ms" }', "slo.tpot": '{ p99 = "40 ms" }'},
    "few sequences, small steps": {"policy.batching.max_sequences": "6", "policy.batching.max_batched_tokens": "256"},
    "an FP8 cache": {"policy.quantization.kv_cache": '"fp8"'},
    "speculation": {
        "policy.speculation.method": '"ngram"',
        "policy.speculation.tokens": "4",
        "policy.speculation.acceptance": "0.6",
    },
    "SGLang": {"engine.name": '"sglang"', "engine.version": '"0.5.0"'},
    "TensorRT-LLM": {"engine.name": '"tensorrt-llm"', "engine.version": '"1.0.0"'},
    "a mixture of experts": {"model.id": '"Qwen/Qwen3-30B-A3B"'},
    "another vendor's part": {"hardware.accelerator": '"amd/mi300x-oam-192gb"'},
}
"""What is set beside a case; an empty value takes the key out."""


def neighbours(case: Case, plugins: Plugins) -> Iterator[tuple[str, Case]]:
    for name, values in NEIGHBOURS.items():
        spec = case.spec
        for path, value in values.items():
            if value:
                spec = edited(spec, key_path(path), value, plugins)
            else:
                spec = re.sub(rf"^{path.rpartition('.')[2]} = .*\n", "", spec, flags=re.M)
        yield name, case._replace(spec=spec)


def words(rule: type[Rule], case: Case, plugins: Plugins) -> list[str]:
    result = run_case(case, plugins, Config(select=(rule.code,), preview=rule.preview))
    found = [f.finding for f in result.findings if f.finding.code == rule.code]
    said = []
    for finding in found:
        said.append(f"  {'.'.join(map(str, finding.path))}: {finding.severity}: {finding.message}")
        said += [f"    {text}" for text in (finding.equation, finding.help) if text]
    return said + [f"  lacks {what}" for code, what in result.lacking if code == rule.code]


def transcript(rule: type[Rule], plugins: Plugins) -> str:
    lines = []
    for case in rule.failing[:CASES]:
        before = words(rule, case, plugins)
        lines.append(f"== {case.name}")
        for name, other in neighbours(case, plugins):
            said = words(rule, other, plugins)
            lines += [f"{name}: as before"] if said == before else [f"{name}:", *(said or ["  nothing"])]
    # A case's folder is a new one each time.
    return re.sub(r"/[\w./-]*/tmp\w+/|/tmp/tmp\w+/", "", "\n".join(lines) + "\n")


@pytest.mark.parametrize("rule", RULES, ids=[r.code for r in RULES])
def test_neighbours_say_what_they_said(rule: type[Rule], plugins: Plugins) -> None:
    path = EXPECTED / f"{rule.code}.txt"
    text = transcript(rule, plugins)
    assert not plugins.faults, plugins.faults
    if os.environ.get("SERVELINT_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name}: SERVELINT_UPDATE_SNAPSHOTS=1 writes it anew"


def test_every_transcript_belongs_to_a_rule() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == {rule.code for rule in RULES}
