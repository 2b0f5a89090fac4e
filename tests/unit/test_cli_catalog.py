"""``catalog``: what is installed, in SI units, with sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servelint.__main__ import main
from servelint.commands.catalog import KINDS
from servelint.manager import Plugins


@pytest.fixture
def catalog(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> str:
        assert main(["catalog", *arguments]) == 0
        return capsys.readouterr().out

    return run


def entries(catalog: Any, kind: str, *name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(catalog(kind, *name, "--format", "json"))[kind]
    return found


def test_hardware(catalog: Any, plugins: Plugins) -> None:
    found = entries(catalog, "hardware")
    assert [h["id"] for h in found] == list(plugins.accelerators.ids())
    for h in found:
        assert h["usable_memory_bytes"] > 0
        assert h["memory_bandwidth_bytes_per_s"] > 1e9
        assert h["scale_up_domain"] >= 1
        assert all(h["sources"].values())
        assert h["provider"]["distribution"] == "servelint"
    (h100,) = entries(catalog, "hardware", "H100-SXM5")
    assert h100["id"] == "nvidia/h100-sxm5-80gb"
    assert h100["memory_bytes"] == 80e9
    assert h100["dense_flops"]["bf16"] == 989.4e12
    assert h100["sparse_flops"]["bf16"] == 1978.9e12
    assert h100["link_bytes_per_s_per_direction"] == 450e9
    assert h100["power_w"] == 700


def test_models(catalog: Any, plugins: Plugins) -> None:
    found = {m["id"]: m for m in entries(catalog, "models")}
    assert list(found) == list(plugins.models.ids())
    llama = found["meta-llama/Llama-3.1-70B"]
    assert llama["params_total"] == 70_553_706_496
    assert llama["kv_bytes_per_token"] == {"full": 327_680, "sliding": 0, "chunked": 0, "indexer": 0}
    assert llama["layers"] == {"full_attention": 80, "mlp": 80}
    assert not llama["lm_head_tied"]
    assert llama["params_embedding"] == llama["params_lm_head"] == 128_256 * 8192
    deepseek = found["deepseek-ai/DeepSeek-V3"]
    assert deepseek["kv_bytes_per_token"]["full"] == 70_272
    assert deepseek["params_active"] < deepseek["params_total"] / 10
    assert deepseek["params_total"] - deepseek["params_extras"] == 671_026_404_352
    assert llama["params_extras"] == 0
    for m in found.values():
        assert sum(m["params_by_role"].values()) == m["params_total"]
        assert m["sources"], m["id"]


def test_policies_formats_engines_and_rules(catalog: Any, plugins: Plugins) -> None:
    policies = entries(catalog, "policies")
    assert [p["name"] for p in policies] == [p.name for p in plugins.policies]
    kv = next(p for p in policies if p["name"] == "kv_cache")
    assert kv["keys"]["page_size"].startswith("a whole number")
    (fp8,) = entries(catalog, "formats", "fp8")
    assert (fp8["bits"], fp8["bytes_per_element"]) == (8, 1)
    assert {f["name"] for f in entries(catalog, "formats")} == {f.name for f in plugins.formats.values()}
    assert {e["name"] for e in entries(catalog, "engines")} == {e.name for e in plugins.engines.values()}
    assert entries(catalog, "engines", "trtllm")[0]["name"] == "tensorrt-llm"
    assert {r["code"] for r in entries(catalog, "rules")} >= {r.code for r in plugins.rules} | {"LINT001"}


@pytest.mark.parametrize("kind", KINDS)
def test_text_has_a_line_an_entry(kind: str, catalog: Any, plugins: Plugins) -> None:
    lines = catalog(kind).splitlines()
    head = kind in ("hardware", "formats")
    assert len(lines) - head == len(entries(catalog, kind))
    assert all(len(line) < 300 for line in lines)


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("hardware", "h100-sxm", "memory_bandwidth_bytes_per_s: 3,350,000,000,000"),
        ("models", "meta-llama/Llama-3.1-8B", "params_total: 8,030,261,248"),
        ("policies", "parallelism", "tensor: a whole number"),
        ("formats", "fp8", "bytes_per_element: 1"),
        ("engines", "vllm", "name: vllm"),
        ("rules", "SLO001", "How to fix"),
        ("rules", "unused-suppression", "LINT001"),
    ],
)
def test_one_entry(kind: str, name: str, shown: str, catalog: Any) -> None:
    assert shown in catalog(kind, name)


def test_listing_models_loads_none(plugins: Plugins, catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from servelint.manager import Catalogue

    def refuse(self: Any, name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(Catalogue, "get", refuse)
    assert "meta-llama/Llama-3.1-8B\n" in catalog("models")
