"""What is proposed to carry a load: the limit that binds is raised first, every budget is tried, and it fits."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing.rules import run_case

EDIT = re.compile(r"(hardware\.\w+|policy\.\w+\.\w+) = (\d+)")
TABLES = ("hardware", "policy.parallelism", "policy.batching")


class Deployment(NamedTuple):
    """A spec by the numbers that remedies change."""

    accelerator: str
    model: str
    numbers: dict[str, int]
    rate: int = 5
    limits: str = 'ttft = { p99 = "2 s" }\nitl = { p99 = "50 ms" }'

    def text(self) -> str:
        lines = ["servelint = 1", "[model]", self.model, "[engine]", 'name = "vllm"', 'version = "0.11.0"']
        for table in TABLES:
            lines.append(f"[{table}]")
            if table == "hardware":
                lines.append(f'accelerator = "{self.accelerator}"')
            for path, number in self.numbers.items():
                head, _, key = path.rpartition(".")
                if head == table:
                    lines.append(f"{key} = {number}")
        return "\n".join(
            (*lines, "[workload]", "prompt_tokens = { p50 = 1000, p99 = 8000 }",
             "output_tokens = { p50 = 300, p99 = 1200 }", f'rate = "{self.rate} req/s"', "[slo]", self.limits, "")
        )  # fmt: skip


ONE_AT_ONCE = Deployment(
    "nvidia/h100-sxm5-80gb",
    'id = "Qwen/Qwen3-32B"\nmax_model_len = 32768',
    {"hardware.devices": 4, "policy.parallelism.pipeline": 4, "policy.batching.max_sequences": 1},
)
SHORT_CHUNKS = Deployment(
    "nvidia/a100-sxm4-80gb",
    'id = "meta-llama/Llama-3.3-70B-Instruct"\nmax_model_len = 131072',
    {
        "hardware.devices": 4,
        "hardware.replicas": 2,
        "policy.parallelism.tensor": 4,
        "policy.batching.max_batched_tokens": 2048,
    },
)
LITTLE_MEMORY = Deployment(
    "nvidia/a10",
    'id = "meta-llama/Llama-3.1-8B-Instruct"\nmax_model_len = 33248',
    {"hardware.replicas": 4, "policy.batching.max_sequences": 512, "policy.batching.max_batched_tokens": 2048},
)


def findings(deployment: Deployment, plugins: Plugins) -> list[Finding]:
    found = [f.finding for f in run_case(Case("", deployment.text()), plugins).findings]
    assert not plugins.faults
    return found


def proposed(deployment: Deployment, plugins: Plugins) -> Deployment:
    """The deployment with what the last part of SLO007's help line says."""
    (overload,) = (f for f in findings(deployment, plugins) if f.code == "SLO007")
    edits = {path: int(number) for path, number in EDIT.findall(overload.help.split("; ")[-1])}
    assert edits, overload.help
    return deployment._replace(numbers={**deployment.numbers, **edits})


def devices(deployment: Deployment) -> int:
    return deployment.numbers.get("hardware.devices", 1) * deployment.numbers.get("hardware.replicas", 1)


@pytest.mark.parametrize(
    ("deployment", "most"),
    [
        # One sequence at once takes over a thousand replicas; more at once a handful.
        (ONE_AT_ONCE, 44),
        # Chunks of 1,024 and 512 tokens are worse than those of 2,048, and those of 256 better than all of them.
        (SHORT_CHUNKS, 44),
        (LITTLE_MEMORY, 60),
    ],
    ids=["one sequence at once", "short chunks", "little memory"],
)
def test_the_fewest_devices_are_found_and_fit(deployment: Deployment, most: int, plugins: Plugins) -> None:
    then = proposed(deployment, plugins)
    assert devices(then) <= most
    after = findings(then, plugins)
    assert not [f.message for f in after if f.severity is Severity.ERROR or f.code[:3] in ("SLO", "MEM")]


@pytest.mark.parametrize("deployment", [ONE_AT_ONCE, SHORT_CHUNKS, LITTLE_MEMORY], ids=["one", "short", "little"])
def test_one_replica_less_is_too_few_with_every_budget(deployment: Deployment, plugins: Plugins) -> None:
    """Checks of the edited specs count by themselves: nothing of the search is used."""
    then = proposed(deployment, plugins)
    fewer = then.numbers["hardware.replicas"] - 1
    assert fewer >= 1
    for budget in (256, 512, 1024, 2048, 4096):
        sequences = then.numbers.get("policy.batching.max_sequences", budget)
        numbers = {
            **then.numbers,
            "hardware.replicas": fewer,
            "policy.batching.max_batched_tokens": budget,
            "policy.batching.max_sequences": min(sequences, budget),
        }
        after = findings(then._replace(numbers=numbers), plugins)
        assert [f for f in after if f.severity is Severity.ERROR or f.code[:3] in ("SLO", "MEM")], budget


def test_the_limit_that_is_named_is_raised(plugins: Plugins) -> None:
    then = proposed(ONE_AT_ONCE, plugins)
    (overload,) = (f for f in findings(ONE_AT_ONCE, plugins) if f.code == "SLO007")
    assert "max_sequences admits 1" in overload.message
    assert then.numbers["policy.batching.max_sequences"] > 1
    # It is not raised further than the load asks for.
    half = {**then.numbers, "policy.batching.max_sequences": then.numbers["policy.batching.max_sequences"] // 2}
    assert {f.code for f in findings(then._replace(numbers=half), plugins)} & {"SLO001", "SLO007"}


def test_a_larger_budget_that_leaves_no_room_for_one_sequence_is_not_proposed(plugins: Plugins) -> None:
    large = LITTLE_MEMORY._replace(numbers={**LITTLE_MEMORY.numbers, "policy.batching.max_batched_tokens": 8192})
    assert "MEM002" in {f.code for f in findings(large, plugins)}
    assert "MEM002" not in {f.code for f in findings(LITTLE_MEMORY, plugins)}
    assert proposed(LITTLE_MEMORY, plugins).numbers["policy.batching.max_batched_tokens"] < 8192


RARE = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 16
devices_per_node = 8
replicas = {replicas}
[model]
id = "deepseek-ai/DeepSeek-V3"
[engine]
name = "sglang"
version = "0.5.9"
[policy.parallelism]
tensor = 16
attention_data = 16
[policy.kv_cache]
memory_utilization = 0.9
[policy.speculation]
method = "mtp"
tokens = 3
[policy.batching]
prefill_chunk = {chunk}
mixed_steps = true
[workload]
prompt_tokens = {{ p50 = 1000, p99 = 8000 }}
output_tokens = {{ p50 = 300, p99 = 1200 }}
rate = "5 req/s"
[slo]
itl = {{ p99 = "50 ms" }}
"""


def test_replicas_that_are_enough_only_while_long_prompts_are_rare_are_not_proposed_alone(plugins: Plugins) -> None:
    """SLO001 would give way to SLO008."""
    spec = RARE.format(replicas=1, chunk=8192)
    (late,) = (f.finding for f in run_case(Case("", spec), plugins).findings if f.finding.code == "SLO001")
    chunk, replicas = re.findall(r" = (\d+)", late.help)
    alone = re.search(r"(\d+) replicas alone keep the objective only while long prompts are rare", late.help)
    assert alone is not None, late.help

    def codes(replicas: str, chunk: str) -> set[str]:
        found = run_case(Case("", RARE.format(replicas=replicas, chunk=chunk)), plugins)
        return {f.finding.code for f in found.findings} & {"SLO001", "SLO007", "SLO008"}

    assert codes(alone[1], "8192") == {"SLO008"}
    assert codes(replicas, chunk) == set()
