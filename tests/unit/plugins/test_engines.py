"""Engine defaults by version and device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from servelint.architecture import Tensor
from servelint.formats import Format
from servelint.lineage import Lineage
from servelint.manager import Plugins
from servelint.memory import MemoryLedger, Reserve, Weights
from servelint.review import Review
from servelint.spec.document import parse
from servelint_plugins.engines.vllm import parse_version


def configs(plugins: Plugins, accelerator: str, engine: str) -> dict[str, Any]:
    head = f'servelint = 1\n[hardware]\naccelerator = "{accelerator}"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
    text = f"{head}[engine]\n{engine}"
    review = Review(parse("a.toml", text, plugins.policies), plugins, Path())
    assert review.composition is not None
    return review.composition.context.configs


@pytest.mark.parametrize(
    ("accelerator", "version", "sequences", "tokens"),
    [
        ("nvidia/h100-sxm5-80gb", "0.11", 1024, 8192),
        ("nvidia/a100-sxm4-80gb", "0.8.5", 1024, 8192),
        ("nvidia/a100-sxm4-80gb", "0.9.0", 256, 2048),
        ("nvidia/l40s", "0.11", 256, 2048),
    ],
)
def test_vllm_sizes_by_device_and_release(
    plugins: Plugins, accelerator: str, version: str, sequences: int, tokens: int
) -> None:
    batching = configs(plugins, accelerator, f'name = "vllm"\nversion = "{version}"\n')["batching"]
    assert (batching.max_sequences, batching.max_batched_tokens) == (sequences, tokens)


def test_the_image_tag_gives_the_version(plugins: Plugins) -> None:
    kv = configs(plugins, "nvidia/h100-sxm5-80gb", 'name = "vllm"\nimage = "vllm/vllm-openai:v0.21.1-cu128"\n')[
        "kv_cache"
    ]
    assert kv.memory_utilization == 0.92


def test_sglang_keeps_a_reserve_out_of_its_static_share(plugins: Plugins) -> None:
    found = configs(plugins, "nvidia/h100-sxm5-80gb", 'name = "sglang"\n')
    # 512 MiB, 1.5 MiB a token of the 8,192-token chunk, graphs and the degrees stay outside: 13.6 of 79.2 GiB.
    assert found["kv_cache"].memory_utilization == pytest.approx(1 - 13.58 / 79.2, abs=0.001)
    assert found["batching"].prefill_chunk == 8192


def test_tensorrt_llm_does_not_chunk_unless_asked(plugins: Plugins) -> None:
    found = configs(plugins, "nvidia/h100-sxm5-80gb", 'name = "trtllm"\n')
    assert found["batching"].chunked_prefill is False


@pytest.mark.parametrize(
    ("version", "page"), [(None, 32), ("1.3.0", 32), ("0.20.0", 32), ("0.19.0", 64), ("0.10.0", 64), ("0.9.0", 128)]
)
def test_pages_of_tensorrt_llm_by_release(plugins: Plugins, version: str | None, page: int) -> None:
    stated = f'version = "{version}"\n' if version else ""
    found = configs(plugins, "nvidia/h100-sxm5-80gb", f'name = "trtllm"\n{stated}')
    assert found["kv_cache"].page_size == page


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.11.0", (0, 11, 0)),
        ("v0.9", (0, 9)),
        ("0.10.1.1", (0, 10, 1)),
        ("latest", (0, 11)),
        (None, (0, 11)),
        ("0.21.0rc1", (0, 21, 0)),
    ],
)
def test_versions(text: str | None, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        # An 80 GB device, 40 GB of weights, 5 GB of other things, a fraction of 0.9.
        ("total", 0.9 * 80e9 - 40e9 - 5e9),
        ("static", 0.9 * 80e9 - 40e9),
        ("free", 0.9 * (80e9 - 40e9 - 5e9)),
    ],
)
def test_one_fraction_has_three_meanings(kind: Any, left: float) -> None:
    bf16 = Format("bf16", 16)
    tensor = Tensor("all", "mlp", 20_000_000_000, "width")
    weights = Weights("all", "", tensor, 20e9, bf16, (1,), Lineage(""))
    ledger = MemoryLedger((weights,), (), (), 80e9, 72e9, Lineage(""), kind, (Reserve("other", 5e9, Lineage("")),))
    assert ledger.fit(0).left == pytest.approx(left)
    crowded = evolve(ledger, reserves=(Reserve("other", 45e9, Lineage("")),))
    assert crowded.fit(0).left < 0
