"""The datasheet reader: every table checked, every refusal names the place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelint.datasheet import datasheets, read_datasheet
from servelint.errors import CatalogueError, UnpricedError
from servelint.hardware import CUDA_RESERVE_SHARE, Accelerator, Link
from servelint.manager import Plugins

SHEET: dict[str, Any] = {
    "id": "acme/one",
    "family": "one",
    "memory": {"published_bytes": 80_000_000_000, "bandwidth_bytes_per_s": 2e12, "sources": ["sheet r1"]},
    "compute": {"dense_flops": {"bf16": 3e14}, "sources": ["sheet r1"]},
    "link": {"aggregate_bytes_per_s": 6e11, "domain": 8, "sources": ["sheet r1"]},
    "pcie": {"generation": 4, "sources": ["sheet r1"]},
}


def sheet(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(SHEET)
    for path, value in changes.items():
        *tables, key = path.split("__")
        place = made
        for table in tables:
            place = place.setdefault(table, {})
        if value is None:
            del place[key]
        else:
            place[key] = value
    return made


def test_a_whole_sheet() -> None:
    made = read_datasheet(sheet(), "one.toml")
    assert made.dense_flops == {"bf16": 3e14}
    assert made.link == Link("", 3e11, 8, "switched", 6e11)
    assert made.pcie_bytes_per_s == pytest.approx(31.508e9, rel=1e-4)
    assert made.usable_memory == (80_000_000_000, "published decimal figure")
    assert made.sources["memory"] == ("sheet r1",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memry": {}}, "unknown key 'memry'; did you mean 'memory'"),
        ({"memory__bandwith_bytes_per_s": 1}, "did you mean 'bandwidth_bytes_per_s'"),
        ({"memory__sources": None}, "[memory] has figures but no sources"),
        ({"memory__published_bytes": None}, "the figure memory.published_bytes is missing"),
        ({"memory__bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s is 0, expected a number from 1"),
        ({"memory__published_bytes": "80 GB"}, "published_bytes is '80 GB', of the wrong type"),
        ({"memory__published_bytes": True}, "expected a value"),
        ({"memory__bandwidth_bytes_per_s": float("nan")}, "is nan, expected a number from 1 to 1e+18"),
        ({"memory__bandwidth_bytes_per_s": -1.0}, "is -1.0, expected a number from 1 to 1e+18"),
        ({"memory__bandwidth_bytes_per_s": 1e-300}, "is 1e-300, expected a number from 1 to 1e+18"),
        ({"memory__published_bytes": 10**400}, "expected a number from 1 to 1e+18"),
        ({"link__peer_bytes_per_s": 0}, "[link]: peer_bytes_per_s is 0, expected a number from 1 to 1e+18"),
        ({"link__domain": 0}, "[link]: domain is 0, expected a number from 1 to 100,000"),
        ({"efficiency__memory": 5e-324, "efficiency__sources": ["lab"]}, "expected a number from 0.001 to 1"),
        ({"conflicts": [{"field": "memory.published_bytes", "value": float("inf")}]}, "conflicts: value is inf"),
        ({"conflicts": [{"field": "memory.published_bytes", "value": [1]}]}, "expected a number or text"),
        ({"compute__dense_flops": {"bf17": 1e14}}, "unknown precision 'bf17'"),
        ({"compute__dense_flops": {"bf16": 0}}, "bf16 is 0, expected a number from 1 to 1e+21"),
        ({"compute__dense_flops": {"bf16": "1e15"}}, "bf16 is '1e15', expected a rate in FLOP/s"),
        ({"link__pattern": "star"}, "expected one of switched"),
        (
            {"efficiency__memory": 1.5, "efficiency__sources": ["lab"]},
            "memory is 1.5, expected a number from 0.001 to 1",
        ),
        ({"compute_capability": "9"}, "compute_capability is '9', expected major and minor such as \"9.0\""),
        ({"compute_capability": "gfx942"}, "compute_capability is 'gfx942', expected major and minor"),
        ({"compute_capability": 9.0}, "of the wrong type"),
        ({"aliases": [1]}, "aliases is not a list of texts"),
        ({"conflicts": [{"value": 1}]}, "an entry of conflicts has no field"),
        ({"memory": []}, "of the wrong type"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        read_datasheet(sheet(**changes), "one.toml")
    assert str(caught.value).startswith("one.toml: ")
    assert words in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from(["id", "memory", "compute", "link", "pcie", "efficiency", "aliases", "conflicts", "die"]), VALUES
)
def test_any_value_in_any_place_is_read_or_refused(key: str, value: Any) -> None:
    try:
        read_datasheet({**sheet(), key: value}, "x")
    except CatalogueError:
        return


def test_usable_memory_prefers_what_the_runtime_sees() -> None:
    both = read_datasheet(
        sheet(memory__driver_total_bytes=85_000_000_000, memory__runtime_visible_bytes=84_000_000_000), "x"
    )
    assert both.usable_memory[0] == 84_000_000_000
    driver = read_datasheet(sheet(memory__driver_total_bytes=85_000_000_000, compute_capability="9.0"), "x")
    assert driver.usable_memory[0] == int(85_000_000_000 * (1 - CUDA_RESERVE_SHARE))
    other = read_datasheet(sheet(memory__driver_total_bytes=85_000_000_000), "x")
    assert other.usable_memory == (85_000_000_000, "driver total")


def test_a_precision_falls_back_to_the_next_wider_one() -> None:
    made = read_datasheet(sheet(compute__dense_flops={"fp16": 1e14, "fp32": 1e13}), "x")
    assert made.rate("fp4") == ("fp16", 1e14)
    assert made.rate("bf16") == ("fp16", 1e14)
    assert made.rate("tf32") == ("fp32", 1e13)
    with pytest.raises(UnpricedError, match="no published compute rate for bf16"):
        read_datasheet(sheet(compute__dense_flops={"fp8": 1e14}), "x").rate("bf16")


def test_no_kernel_beats_the_peak_with_narrow_accumulation() -> None:
    rates = {"bf16": 1e14, "fp16": 1e14, "fp16_acc16": 2e14, "fp8": 2e14, "fp8_acc16": 4e14}
    made = read_datasheet(sheet(compute__dense_flops=rates), "x")
    assert [made.peak(p) for p in ("bf16", "fp16", "fp8", "fp4")] == [1e14, 2e14, 4e14, 4e14]
    assert [made.rate(p)[1] for p in ("fp16", "fp8", "fp8_acc16")] == [1e14, 2e14, 4e14]


@pytest.mark.parametrize(("name", "peak"), [("rtx-4090", 660.6e12), ("rtx-5090", 838e12)])
def test_half_rate_parts_have_the_peak_of_their_whitepaper(name: str, peak: float, plugins: Plugins) -> None:
    made = plugins.accelerators.get(f"nvidia/{name}")
    assert made.peak("fp8") == peak == made.peak("int8")
    assert made.rate("fp8") == ("fp8", peak / 2)


def test_a_mesh_gives_a_pair_one_link() -> None:
    mesh = Link("mesh", 448e9, 8, "mesh", 896e9, 64e9)
    assert mesh.group_bytes_per_s(2) == 64e9
    assert mesh.group_bytes_per_s(4) == 192e9
    assert mesh.group_bytes_per_s(8) == 448e9


def test_an_id_must_agree_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "two.toml").write_text('id = "acme/one"\n')
    (tmp_path / "acme" / "bad.toml").write_text("id = \n")
    entries = {e.id: e for e in datasheets(tmp_path)}
    assert set(entries) == {"acme/two", "acme/bad"}
    for entry in entries.values():
        with pytest.raises(CatalogueError):
            entry.load()


def test_every_builtin_loads(plugins: Plugins) -> None:
    for name in plugins.accelerators.ids():
        made = plugins.accelerators.get(name)
        assert isinstance(made, Accelerator)
        assert made.id == name
        for alias in made.aliases:
            assert plugins.accelerators.resolve(alias) == name
