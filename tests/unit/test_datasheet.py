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
        ({"memory__bandwidth_bytes_per_s": 0}, "the figure memory.bandwidth_bytes_per_s is missing"),
        ({"memory__published_bytes": "80 GB"}, "published_bytes is '80 GB', of the wrong type"),
        ({"memory__published_bytes": True}, "expected a value"),
        ({"memory__bandwidth_bytes_per_s": float("nan")}, "expected a finite number"),
        ({"memory__bandwidth_bytes_per_s": -1.0}, "expected a finite number"),
        ({"compute__dense_flops": {"bf17": 1e14}}, "unknown precision 'bf17'"),
        ({"compute__dense_flops": {"bf16": 0}}, "expected FLOP/s above 0"),
        ({"link__pattern": "star"}, "expected one of switched"),
        ({"efficiency__memory": 1.5, "efficiency__sources": ["lab"]}, "expected a fraction above 0 and at most 1"),
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
