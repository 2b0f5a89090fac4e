"""What the rules about layouts, experts and drafts propose can be relied on, and what they leave alone stays quiet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.opening import open_spec
from servelint.review import Review
from servelint.rule import Case, Finding
from servelint.testing.rules import run_case
from servelint_rules.layouts import fits


def findings(code: str, text: str, plugins: Plugins) -> list[Finding]:
    found = run_case(Case("", text), plugins, Config(preview=True)).findings
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found if f.finding.code == code]


def failing(code: str, index: int, plugins: Plugins) -> tuple[str, Finding]:
    text = plugins.rule(code).failing[index].spec
    (found,) = findings(code, text, plugins)
    return text, found


def number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    assert match is not None, text
    return float(match[1])


def test_the_acceptance_in_the_help_is_where_drafting_begins_to_pay(plugins: Plugins) -> None:
    text, found = failing("SPD002", 0, plugins)
    least = number(r"it pays above ([\d.]+)$", found.help)
    for acceptance, loses in ((least + 0.01, False), (least - 0.02, True)):
        measured = text.replace("[workload]", f"acceptance = {acceptance:.2f}\n[workload]")
        assert bool(findings("SPD001", measured, plugins)) is loses


def test_the_draft_that_the_help_names_yields_most(plugins: Plugins) -> None:
    text, found = failing("SPD004", 0, plugins)
    best = int(number(r"tokens = (\d+)", found.help))
    claimed = number(r"yield ([\d.]+) tok/s", found.message)
    for other in range(best + 1, 9):
        longer = findings("SPD004", re.sub(r"(\ntokens =) \d+", rf"\1 {other}", text), plugins)
        assert not longer or number(r"instead of ([\d.]+)", longer[0].message) < claimed


@pytest.mark.parametrize("index", [0, 1])
def test_the_sequences_in_the_help_keep_the_experts_busy(index: int, plugins: Plugins) -> None:
    text, found = failing("MOE003", index, plugins)
    needed = int(number(r"at least (\d+) sequence", found.help))
    for load, speaks in ((needed, False), (needed - 1, True)):
        assert bool(findings("MOE003", re.sub(r"concurrency = \d+", f"concurrency = {load}", text), plugins)) is speaks


@pytest.mark.parametrize("index", [0, 1])
def test_the_speed_up_in_the_help_stands(index: int, plugins: Plugins) -> None:
    text, found = failing("PAR007", index, plugins)
    most = number(r"at most ([\d.]+)", found.help)
    assert findings("PAR007", re.sub(r"value = [\d.]+", f"value = {most}", text), plugins) == []


@pytest.mark.parametrize(("engine", "unsupported"), [("vllm", "attention_data"), ("llama.cpp", "context")])
def test_no_layout_is_proposed_that_the_engine_has_no_argument_for(
    engine: str, unsupported: str, plugins: Plugins
) -> None:
    text, _ = failing("PAR003", 2, plugins)
    proposed = findings("PAR003", f'{text}\n[engine]\nname = "{engine}"\n', plugins)
    assert all(unsupported not in f.help for f in proposed)


DEPLOYMENT = """\
servelint = 1
[hardware]
accelerator = "{accelerator}"
devices = {devices}
[model]
id = "{model}"
max_model_len = 16384
[workload]
prompt_tokens = {prompt}
output_tokens = {output}
concurrency = {concurrency}
"""


@pytest.mark.parametrize(
    ("accelerator", "devices", "model", "prompt", "output", "concurrency"),
    [
        # ai-dynamo/dynamo#3774: one aggregated server over eight devices is better than two halves.
        ("nvidia/h200-sxm5-141gb", 8, "openai/gpt-oss-120b", 3000, 300, 64),
        # vllm-project/vllm#1888: one device is right for a model of this size.
        ("nvidia/a100-sxm4-80gb", 1, "mistralai/Mistral-7B-v0.3", 10240, 1024, 30),
        ("nvidia/a100-sxm4-80gb", 2, "mistralai/Mixtral-8x7B-v0.1", 500, 200, 32),
    ],
)
def test_layouts_that_are_known_to_be_good_are_left_alone(
    accelerator: str, devices: int, model: str, prompt: int, output: int, concurrency: int, plugins: Plugins
) -> None:
    text = DEPLOYMENT.format(
        accelerator=accelerator, devices=devices, model=model, prompt=prompt, output=output, concurrency=concurrency
    )
    for code in ("PAR003", "PAR004", "PAR005"):
        assert findings(code, text, plugins) == []


def test_a_small_model_over_eight_devices_loses_to_replicas(plugins: Plugins) -> None:
    """vllm-project/vllm#1888 measured half the requests a second on eight devices."""
    text = DEPLOYMENT.format(
        accelerator="nvidia/a100-sxm4-80gb",
        devices=8,
        model="mistralai/Mistral-7B-v0.3",
        prompt=10240,
        output=1024,
        concurrency=256,
    )
    (found,) = findings("PAR004", text, plugins)
    assert "hardware.replicas = " in found.help


def test_a_declared_cache_makes_no_room_for_weights(plugins: Plugins) -> None:
    """70 billion parameters take 141 GB: 80 GB do not hold them, however large the cache is declared."""
    held = []
    for tensor in (1, 4):
        spec = (
            f'servelint = 1\nhardware = {{ accelerator = "nvidia/h100-sxm5-80gb", devices = {tensor} }}\n'
            'model = { id = "meta-llama/Llama-3.1-70B", max_model_len = 8192 }\n'
            f'[policy]\nparallelism = {{ tensor = {tensor} }}\nkv_cache = {{ memory_bytes = "8 GB" }}\n'
        )
        composition = Review(open_spec("a.toml", spec, plugins, Path()), plugins, Path()).composition
        assert composition is not None
        held.append(fits(composition))
    assert held == [False, True]
