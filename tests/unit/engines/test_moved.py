"""Where defaults move between releases: an engine's ``moved`` names every release at which one does, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servelint.manager import Plugins
from servelint.review import Review
from servelint.spec.document import parse

DEVICES = (
    "nvidia/h100-sxm5-80gb",
    "nvidia/h200-sxm5-141gb",
    "nvidia/b200-sxm6-180gb",
    "nvidia/a100-sxm4-80gb",
    "nvidia/l4",
    "nvidia/l40s",
    "nvidia/t4",
)
RELEASES = {
    "vllm": [f"0.{minor}.{patch}" for minor in range(6, 25) for patch in range(8) if (minor, patch) >= (6, 6)],
    "sglang": [f"0.{m}.{p}" for m, last in ((4, 11), (5, 24)) for p in range(3 if m == 4 else 0, last)],
    "tgi": [
        "1.4.0", "1.4.1", "2.0.0", "2.0.4", "2.1.0", "2.2.0", "2.3.0", "2.3.1", "2.4.0", "2.4.1", "3.0.0", "3.0.2",
        "3.1.0", "3.1.1", "3.2.0", "3.2.3", "3.3.0", "3.3.7",
    ],
}  # fmt: skip
POLICIES = (
    "",
    "[policy.batching]\nmax_batched_tokens = 512\n",
    "[policy.batching]\nchunked_prefill = false\n",
    '[policy.speculation]\nmethod = "eagle"\ntokens = 3\n',
    "[policy.parallelism]\ntensor = 4\nattention_data = 2\n",
)


def defaults(plugins: Plugins, engine: str, device: str, policies: str, model: str) -> list[dict[tuple[str, str], Any]]:
    """The engine's defaults at every release, in their order."""
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "{device}"\n[model]\nid = "{model}"\n[engine]\nname = "{engine}"\n'
    )
    review = Review(parse("spec.toml", text + policies, plugins.policies), plugins, Path())
    assert review.composition is not None, review.infeasible or review.unresolved
    found, context = plugins.engines[engine], review.composition.context
    return [{k: d.value for k, d in found.defaults(release, context).items()} for release in RELEASES[engine]]


@pytest.mark.parametrize("engine", RELEASES)
def test_every_move_is_named(plugins: Plugins, engine: str) -> None:
    moves = set()
    for device in DEVICES:
        for policies in POLICIES:
            for model in (
                "meta-llama/Llama-3.1-8B",
                "google/gemma-3-4b-it",
                "deepseek-ai/DeepSeek-V2-Lite",
                "Qwen/Qwen2.5-VL-7B-Instruct",
            ):
                values = defaults(plugins, engine, device, policies, model)
                moves |= {
                    release
                    for release, now, before in zip(RELEASES[engine][1:], values[1:], values, strict=False)
                    if now != before
                }
    assert plugins.engines[engine].moved[0] == RELEASES[engine][0]
    assert sorted(plugins.engines[engine].moved[1:]) == sorted(moves)


def test_engines_with_releases_name_their_moves(plugins: Plugins) -> None:
    assert {name for name, engine in plugins.engines.items() if engine.moved and name == engine.name} == set(RELEASES)
