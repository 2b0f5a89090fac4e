"""MEM008: what makes a step smaller is named, with what the same deployment then has left for its cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servelint.manager import Plugins
from servelint.review import Review
from servelint.rule import Finding
from servelint.spec.document import parse
from servelint_rules.mem.mem008_step_outweighs_cache import StepOutweighsCache
from servelint_rules.show import size

SPEC = """\
servelint = 1
[hardware]
accelerator = "{device}"
[model]
id = "{model}"
max_model_len = {length}
[engine]
name = "{engine}"
version = "{version}"
[policy.quantization]
weights = "{weights}"
[policy.batching]
{batching}
"""
EDIT = re.compile(r"policy\.batching\.(\w+) = (\d+)")
GEMMA = {"device": "nvidia/l4", "model": "google/gemma-2-9b", "version": "0.13.0", "weights": "fp8", "length": 8192}
LLAMA = {"device": "nvidia/rtx-3090", "model": "meta-llama/Llama-3.1-8B", "version": "0.11.0", "length": 16384}


def reviewed(plugins: Plugins, batching: dict[str, int], **given: object) -> Review:
    values = {"engine": "vllm", "weights": "bf16", **given}
    text = SPEC.format(**values, batching="\n".join(f"{key} = {n}" for key, n in batching.items()))
    return Review(parse("a.toml", text, plugins.policies), plugins, Path())


def found(review: Review, **options: float) -> list[Finding]:
    return [f for f in StepOutweighsCache(options).check(review) if isinstance(f, Finding)]


@pytest.mark.parametrize(
    ("given", "batching", "edits"),
    [
        # Sorted logits of 600 sequences: half of the tokens leaves them as they are.
        (GEMMA, {"max_sequences": 600}, {"max_sequences": 256}),
        (GEMMA, {"max_sequences": 600, "max_batched_tokens": 2048}, {"max_sequences": 256}),
        (LLAMA, {"max_batched_tokens": 29000}, {"max_batched_tokens": 16384}),
        (LLAMA, {"max_batched_tokens": 29000, "max_sequences": 16}, {"max_batched_tokens": 16384}),
    ],
)
def test_the_key_that_the_buffers_grow_with_is_named(
    given: dict[str, object], batching: dict[str, int], edits: dict[str, int], plugins: Plugins
) -> None:
    (finding,) = found(reviewed(plugins, batching, **given))
    said = {key: int(n) for key, n in EDIT.findall(finding.help)}
    assert said == edits
    (key,) = edits
    assert finding.path[-1] == key
    assert ("600 sequences" in finding.message) is (key == "max_sequences")
    after = reviewed(plugins, batching | said, **given)
    assert not found(after)
    assert after.memory is not None
    assert f"about {size(after.memory.fit(0).left)} are then left" in finding.help


def test_a_budget_below_the_slots_brings_them_along(plugins: Plugins) -> None:
    """The engine refuses a step of fewer tokens than slots."""
    batching = {"max_batched_tokens": 29000, "max_sequences": 1000}
    (finding,) = found(reviewed(plugins, batching, **LLAMA), ratio=0.02)
    said = {key: int(n) for key, n in EDIT.findall(finding.help)}
    assert said["max_sequences"] <= said["max_batched_tokens"]
    assert not found(reviewed(plugins, batching | said, **LLAMA), ratio=0.02)


def test_it_is_silent_where_no_smaller_step_helps(plugins: Plugins) -> None:
    """128 tokens for one sequence take 14 MB beside 6.2 GB."""
    review = reviewed(plugins, {"max_batched_tokens": 29000}, **LLAMA)
    assert found(review, ratio=0.01)
    assert not found(review, ratio=0.001)
