"""The accelerator datasheets as data: well-formed, possible, sourced, and equal to the collected facts.

Reads the TOML directly, so that a fault in a datasheet and a fault in its loader cannot hide each other.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli

ROOT = Path(__file__).parents[3]
DATA = ROOT / "plugins" / "servelint_plugins" / "hardware" / "data"
FACTS = ROOT / "tests" / "data" / "facts" / "hardware.jsonl"

PRECISIONS = frozenset({"fp32", "tf32", "bf16", "fp16", "fp16_acc16", "fp8", "fp8_acc16", "fp6", "int8", "fp4", "int4"})
TOP = frozenset(
    {
        "id",
        "name",
        "vendor",
        "form_factor",
        "family",
        "architecture",
        "compute_capability",
        "aliases",
        "dies_per_device",
        "gaps",
        "notes",
        "conflicts",
    }
)
TABLES: dict[str, frozenset[str]] = {
    "memory": frozenset(
        {
            "kind",
            "published_bytes",
            "driver_total_bytes",
            "runtime_visible_bytes",
            "bandwidth_bytes_per_s",
            "sources",
        }
    ),
    "compute": frozenset({"dense_flops", "sparse_flops", "sources"}),
    "link": frozenset(
        {
            "kind",
            "aggregate_bytes_per_s",
            "per_direction_bytes_per_s",
            "domain",
            "pattern",
            "peer_bytes_per_s",
            "in_network_reduction",
            "sources",
        }
    ),
    "pcie": frozenset({"generation", "lanes", "sources"}),
    "power": frozenset({"tdp_w", "sources"}),
    "die": frozenset({"l2_bytes", "sram_per_sm_bytes", "sms", "sources"}),
    "native": frozenset({"formats", "sources"}),
    "efficiency": frozenset({"memory", "compute", "link", "launch_s", "sources", "basis"}),
}
REQUIRED_TOP = TOP - {"compute_capability", "dies_per_device", "conflicts"}
CONFLICT = frozenset({"field", "value", "source", "note"})
PATTERNS = frozenset({"switched", "mesh", "pair", "torus"})

# Sparse rates that are not twice the dense one, and the words of the file's notes that say so.
UNEVEN_SPARSITY = {
    ("nvidia/b300-sxm6-270gb", "fp4"): "FP4 dense is not half of sparse",
    ("nvidia/gb300-nvl72-279gb", "fp4"): "FP4 dense is not half of sparse",
    ("aws/trainium2", "tf32"): "3.84x the dense BF16 rate",
    ("aws/trainium2", "bf16"): "3.84x the dense BF16 rate",
    ("aws/trainium2", "fp16"): "3.84x the dense BF16 rate",
}
# Usable totals further than 10 % from the published size, and the words of the notes that say so.
UNEVEN_CAPACITY = {("apple/m4-max-40c", "runtime_visible_bytes"): "default GPU working set"}

_HOPPER_SPARSE = {
    "tf32": 989_400_000_000_000,
    "bf16": 1_978_900_000_000_000,
    "fp16": 1_978_900_000_000_000,
    "fp8": 3_957_800_000_000_000,
    "int8": 3_957_800_000_000_000,
}
_WHITEPAPER = "the architecture whitepaper prints one more digit than the datasheet"
_HIGHER = "datasheets conflict and a bound needs the higher figure"
# Where a datasheet departs from the collected fact: the value chosen instead, and why.
OVERRIDES: dict[tuple[str, str], tuple[int, str]] = {
    ("nvidia/h100-pcie-80gb", "memory.bandwidth_bytes_per_s"): (2_039_000_000_000, _HIGHER),
    ("nvidia/b300-sxm6-270gb", "memory.bandwidth_bytes_per_s"): (8_000_000_000_000, _HIGHER),
    **{
        (sku, f"compute.sparse_flops.{precision}"): (value, _WHITEPAPER)
        for sku in ("nvidia/h100-sxm5-80gb", "nvidia/h200-sxm5-141gb", "nvidia/h800-sxm5-80gb")
        for precision, value in _HOPPER_SPARSE.items()
    },
}


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return tomli.load(stream)


SHEETS: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{path.stem}": _read(path) for path in sorted(DATA.glob("*/*.toml"))
}
RECORDS: list[dict[str, Any]] = [json.loads(line) for line in FACTS.read_text("utf-8").splitlines()]
each_sheet = pytest.mark.parametrize("key", SHEETS)


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _at(sheet: dict[str, Any], path: str) -> Any:
    value: Any = sheet
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _our_id(record: dict[str, Any]) -> str:
    vendor, _, sku = str(record["id"]).partition("-")
    return f"{vendor}/{sku}"


def test_the_catalog_is_there() -> None:
    assert len(SHEETS) >= 52
    assert len(RECORDS) == 31


@each_sheet
def test_only_known_keys(key: str) -> None:
    sheet = SHEETS[key]
    assert set(sheet) <= TOP | set(TABLES)
    assert set(sheet) >= REQUIRED_TOP | {"memory"}
    for name, known in TABLES.items():
        assert set(sheet.get(name, {})) <= known, name
    for rates in ("dense_flops", "sparse_flops"):
        assert set(sheet.get("compute", {}).get(rates, {})) <= PRECISIONS
    assert sheet.get("link", {}).get("pattern", "switched") in PATTERNS
    assert isinstance(sheet["gaps"], list)
    assert isinstance(sheet["notes"], list)


@each_sheet
def test_the_id_is_the_path(key: str) -> None:
    sheet = SHEETS[key]
    assert sheet["id"] == key
    assert _normal(sheet["vendor"]) == key.partition("/")[0]
    assert re.fullmatch(r"[a-z]+/[a-z0-9]+(-[a-z0-9]+)*", key)
    assert sheet["architecture"] == sheet["architecture"].lower()
    assert ("compute_capability" in sheet) == (key.startswith("nvidia/"))


def test_a_name_means_one_part() -> None:
    owners: dict[str, set[str]] = {}
    for key, sheet in SHEETS.items():
        for name in (key, key.partition("/")[2], *sheet["aliases"]):
            owners.setdefault(_normal(name), set()).add(key)
    assert {name: keys for name, keys in owners.items() if len(keys) > 1} == {}
    members = Counter(_normal(sheet["family"]) for sheet in SHEETS.values())
    assert [name for name in owners if members[name] > 1] == []


@each_sheet
def test_numbers_have_sources(key: str) -> None:
    sheet = SHEETS[key]
    for name in TABLES:
        table = sheet.get(name)
        if table is None:
            continue
        assert set(table) > {"sources"}, f"[{name}] says nothing"
        assert table["sources"], name
        for source in table["sources"]:
            assert source.strip() == source
            assert len(source) > 8
            # A file of a repository is a source only together with the commit it was read at.
            assert not re.match(r"[\w.-]+/[\w.-]+:", source), source


@each_sheet
def test_numbers_are_whole_and_positive(key: str) -> None:
    sheet = SHEETS[key]
    for name in TABLES:
        if name == "efficiency":
            continue
        stack = [sheet.get(name, {})]
        while stack:
            for value in stack.pop().values():
                if isinstance(value, dict):
                    stack.append(value)
                elif not isinstance(value, str | list | bool):
                    assert isinstance(value, int)
                    assert value > 0


@each_sheet
def test_usable_memory_is_near_the_published(key: str) -> None:
    sheet = SHEETS[key]
    memory = sheet["memory"]
    published = memory["published_bytes"]
    for field in ("driver_total_bytes", "runtime_visible_bytes"):
        if field not in memory:
            assert any(field in gap for gap in sheet["gaps"]) or _is_tpu(key), field
            continue
        near = abs(memory[field] / published - 1) <= 0.10
        words = UNEVEN_CAPACITY.get((key, field))
        assert near != (words is not None), (field, memory[field] / published)
        if words is not None:
            assert any(words in note for note in sheet["notes"])
    if {"driver_total_bytes", "runtime_visible_bytes"} <= set(memory):
        assert memory["runtime_visible_bytes"] <= memory["driver_total_bytes"]


def _is_tpu(key: str) -> bool:
    """A TPU has no driver total: the compiler's own limit is the only figure there is."""
    return key.startswith("google/")


@each_sheet
def test_sparsity_doubles_the_rate(key: str) -> None:
    sheet = SHEETS[key]
    compute = sheet.get("compute", {})
    dense = compute.get("dense_flops", {})
    for precision, sparse in compute.get("sparse_flops", {}).items():
        even = abs(sparse / dense[precision] / 2 - 1) <= 0.02
        words = UNEVEN_SPARSITY.get((key, precision))
        assert even != (words is not None), (precision, sparse / dense[precision])
        if words is not None:
            assert any(words in note for note in sheet["notes"])


@each_sheet
def test_narrower_is_not_slower(key: str) -> None:
    dense = SHEETS[key].get("compute", {}).get("dense_flops", {})
    ladder = [dense[p] for p in ("tf32", "bf16", "fp8", "fp4") if p in dense]
    assert ladder == sorted(ladder)
    for precision in ("fp16", "fp8"):
        if f"{precision}_acc16" in dense:
            assert dense[f"{precision}_acc16"] > dense[precision]


@each_sheet
def test_machine_balance(key: str) -> None:
    sheet = SHEETS[key]
    bf16 = _at(sheet, "compute.dense_flops.bf16")
    if bf16 is not None:
        assert 20 < bf16 / sheet["memory"]["bandwidth_bytes_per_s"] < 800


@each_sheet
def test_compute_or_a_gap(key: str) -> None:
    sheet = SHEETS[key]
    for name in ("compute", "power"):
        assert name in sheet or any(gap.startswith(name) for gap in sheet["gaps"]), name
    dense = sheet.get("compute", {}).get("dense_flops", {})
    for precision in sheet.get("native", {}).get("formats", []):
        assert precision in PRECISIONS
        assert precision in dense or any(precision in gap for gap in sheet["gaps"]), precision


@each_sheet
def test_links_add_up(key: str) -> None:
    sheet = SHEETS[key]
    link = sheet.get("link")
    if link is None:
        return
    assert link["domain"] >= 1
    one_way = link.get("per_direction_bytes_per_s")
    if one_way is None:
        assert any("link.per_direction_bytes_per_s" in gap for gap in sheet["gaps"])
        return
    assert one_way * 2 == link["aggregate_bytes_per_s"]
    if link["pattern"] in {"mesh", "torus"}:
        assert 0 < link["peer_bytes_per_s"] < one_way
    else:
        assert "peer_bytes_per_s" not in link


@each_sheet
def test_pcie_is_a_real_slot(key: str) -> None:
    pcie = SHEETS[key].get("pcie")
    if pcie is not None:
        assert pcie["generation"] in {3, 4, 5, 6}
        assert pcie["lanes"] in {4, 8, 16}


@each_sheet
def test_efficiency_is_a_sustained_fraction(key: str) -> None:
    sheet = SHEETS[key]
    efficiency = sheet.get("efficiency")
    if efficiency is None:
        assert any(gap.startswith("efficiency") for gap in sheet["gaps"])
        return
    assert efficiency["basis"].startswith(("measured", "compute measured", "memory measured", "memory and compute"))
    for field in ("memory", "compute", "link"):
        if field in efficiency:
            assert 0.3 < efficiency[field] <= 0.98
        elif field != "link" or "link" in sheet:
            assert any(f"efficiency.{field}" in gap for gap in sheet["gaps"]), field


@each_sheet
def test_conflicts_name_a_field_and_another_value(key: str) -> None:
    sheet = SHEETS[key]
    for conflict in sheet.get("conflicts", []):
        assert set(conflict) <= CONFLICT
        assert conflict["source"]
        table, _, rest = conflict["field"].partition(".")
        leaf = rest.partition(".")
        assert leaf[0] in TABLES[table]
        assert not leaf[2] or leaf[2] in PRECISIONS
        chosen = _at(sheet, conflict["field"])
        assert conflict["value"] != chosen
        if table == "memory" and chosen is not None and conflict["value"] > chosen:
            # The higher figure is the bound, so passing it over needs a reason.
            assert conflict.get("note") or conflict["field"] != "memory.bandwidth_bytes_per_s"


def _expected(record: dict[str, Any]) -> dict[str, int | None]:
    """Digits of one collected fact, by path in the datasheet; None: the part has no such path."""
    values: dict[str, int | None] = {
        "memory.published_bytes": record["memory_bytes"],
        "memory.bandwidth_bytes_per_s": record["bandwidth_Bps"],
        "power.tdp_w": record["tdp_W"],
        "pcie.generation": record["pcie_gen"],
        "die.l2_bytes": record["l2_bytes"],
        "die.sram_per_sm_bytes": record["sram_per_sm"],
        "die.sms": record["sm_count"],
        "link.aggregate_bytes_per_s": record["link"]["aggregate_bidirectional_Bps"],
        "link.per_direction_bytes_per_s": record["link"]["per_direction_Bps"],
    }
    if values["link.aggregate_bytes_per_s"] is not None:
        values["link.domain"] = record["link"]["domain_size"]
    usable = record["usable"] or {}
    values["memory.driver_total_bytes"] = usable.get("nvidia_smi_total_bytes")
    values["memory.runtime_visible_bytes"] = usable.get("cuda_visible_bytes")
    if "fp16_accumulate_dense_flops" in record:
        values["compute.dense_flops.fp16_acc16"] = round(record["fp16_accumulate_dense_flops"])
    # Unknown is not a claim, except for rates, where a null says that there is no such path.
    known = {path: value for path, value in values.items() if value is not None}
    return {
        **known,
        **{f"compute.dense_flops.{p}": v for p, v in record["dense_flops"].items()},
        **{f"compute.sparse_flops.{p}": v for p, v in record["sparse_flops"].items()},
    }


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record["id"]))
def test_facts_are_reproduced_to_the_digit(record: dict[str, Any]) -> None:
    key = _our_id(record)
    sheet = SHEETS[key]
    wrong: dict[str, tuple[Any, Any]] = {}
    for path, fact in _expected(record).items():
        value = OVERRIDES[key, path][0] if (key, path) in OVERRIDES else fact
        if _at(sheet, path) != value:
            wrong[path] = (value, _at(sheet, path))
    assert wrong == {}
    capability = record["compute_capability"]
    if key.startswith("nvidia/"):
        assert sheet["compute_capability"] == capability
    visible = (record["usable"] or {}).get("cuda_visible_GiB")
    if visible is not None:
        assert abs(sheet["memory"]["runtime_visible_bytes"] / 2**30 - visible) < 0.01


@pytest.mark.parametrize(("key", "path"), OVERRIDES)
def test_an_override_is_a_recorded_conflict(key: str, path: str) -> None:
    record = next(record for record in RECORDS if _our_id(record) == key)
    fact = _expected(record)[path]
    value, reason = OVERRIDES[key, path]
    assert value != fact
    assert reason
    table = path.rpartition(".")[0]
    recorded = [c for c in SHEETS[key]["conflicts"] if c["field"].startswith(table)]
    exact = any(c["field"] == path and c["value"] == fact for c in recorded)
    # The sparse rates of one sheet are one conflict, kept once under the BF16 rate.
    assert exact or (table == "compute.sparse_flops" and bool(recorded))
