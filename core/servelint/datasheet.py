"""Accelerator datasheets as TOML: the reader, and a folder of them as catalogue entries.

Every table is checked against its keys, and a table with figures needs its sources: an unknown key or an
unsourced figure is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servelint.descriptors import Entry
from servelint.errors import CatalogueError
from servelint.hardware import Accelerator, Conflict, Link
from servelint.releases import release
from servelint.sheets import parsed, sheets
from servelint.suggest import did_you_mean

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp16_acc16", "fp8", "fp8_acc16", "fp6", "int8", "fp4", "int4")
PATTERNS = ("switched", "mesh", "torus", "pair")

_TOP: Mapping[str, type] = {
    "id": str, "name": str, "vendor": str, "form_factor": str, "family": str, "architecture": str,
    "compute_capability": str, "aliases": list, "dies_per_device": int, "gaps": list, "notes": list,
    "memory": dict, "compute": dict, "link": dict, "pcie": dict, "power": dict, "die": dict, "native": dict,
    "efficiency": dict, "conflicts": list,
}  # fmt: skip
_TABLES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "memory": {
        "kind": str, "published_bytes": int, "driver_total_bytes": int, "runtime_visible_bytes": int,
        "bandwidth_bytes_per_s": (int, float),
    },
    "compute": {"dense_flops": dict, "sparse_flops": dict},
    "link": {
        "kind": str, "aggregate_bytes_per_s": (int, float), "per_direction_bytes_per_s": (int, float),
        "domain": int, "pattern": str, "peer_bytes_per_s": (int, float), "in_network_reduction": bool,
    },
    "pcie": {"generation": int, "lanes": int},
    "power": {"tdp_w": (int, float)},
    "die": {"l2_bytes": int, "sram_per_sm_bytes": int, "sms": int},
    "native": {"formats": list},
    "efficiency": {
        "memory": (int, float), "compute": (int, float), "link": (int, float), "launch_s": (int, float),
        "basis": str,
    },
}  # fmt: skip

BYTES = (1, 1e18)
RATE = (1, 1e18)
FLOPS = (1, 1e21)
FRACTION = (0.001, 1)

LIMITS: Mapping[str, tuple[float, float]] = {
    "dies_per_device": (1, 1024),
    "memory.published_bytes": BYTES, "memory.driver_total_bytes": BYTES, "memory.runtime_visible_bytes": BYTES,
    "memory.bandwidth_bytes_per_s": RATE,
    "link.aggregate_bytes_per_s": RATE, "link.per_direction_bytes_per_s": RATE, "link.peer_bytes_per_s": RATE,
    "link.domain": (1, 100_000),
    "pcie.generation": (1, 6), "pcie.lanes": (1, 32),
    "power.tdp_w": (0.001, 1e6),
    "die.l2_bytes": (0, 1e12), "die.sram_per_sm_bytes": (1, 1e12), "die.sms": (1, 1e6),
    "efficiency.memory": FRACTION, "efficiency.compute": FRACTION, "efficiency.link": FRACTION,
    "efficiency.launch_s": (0, 1),
}  # fmt: skip
"""The least and the largest value of each number, by table and key: no device is beyond, and no formula that
divides by one of them over- or underflows."""


class DatasheetError(CatalogueError):
    """A datasheet that cannot be read; ``path`` leads to the key within it, as far as one is at fault."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class _Reader:
    """Checked access to one datasheet; every failure names the place."""

    def __init__(self, data: Mapping[str, Any], where: str, require_sources: bool) -> None:
        self.data, self.where, self.require_sources = data, where, require_sources

    def fail(self, message: str, *path: str) -> DatasheetError:
        return DatasheetError(f"{self.where}: {message}", path)

    def check(self) -> None:
        self._check_table(self.data, _TOP)
        for name, keys in _TABLES.items():
            table = self.data.get(name)
            if table is None:
                continue
            self._check_table(table, {**keys, "sources": list}, name)
            sources = table.get("sources") or []
            if self.require_sources and not sources:
                raise self.fail(f"[{name}] has figures but no sources", name)

    def _check_table(self, table: Any, keys: Mapping[str, Any], *path: str) -> None:
        what = f"[{path[0]}]" if path else "the datasheet"
        if not isinstance(table, Mapping):
            raise self.fail(f"{what} is not a table", *path)
        for key, value in table.items():
            at = (*path, key)
            if key not in keys:
                raise self.fail(f"{what} has the unknown key {key!r:.80}{did_you_mean(key, keys)}", *at)
            expected = keys[key]
            if isinstance(value, bool) and expected is not bool:
                raise self.fail(f"{what}: {key} is true or false, expected a value", *at)
            if not isinstance(value, expected):
                raise self.fail(f"{what}: {key} is {value!r:.60}, of the wrong type", *at)
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.check_limits(value, f"{what}: {key}", LIMITS[".".join(at)], *at)

    def check_limits(self, value: float, what: str, limits: tuple[float, float], *path: str) -> None:
        low, high = limits
        if not low <= value <= high:
            raise self.fail(f"{what} is {value!r:.60}, expected a number from {low:,g} to {high:,g}", *path)

    def table(self, name: str) -> Mapping[str, Any]:
        table: Mapping[str, Any] = self.data.get(name) or {}
        return table

    def need(self, table: str, key: str) -> Any:
        value = self.table(table).get(key) if table else self.data.get(key)
        if value is None:
            place = f"{table}.{key}" if table else key
            raise self.fail(f"the figure {place} is missing", *([table] if table in self.data else []))
        return value

    def flops(self, key: str) -> dict[str, float]:
        rates = self.table("compute").get(key) or {}
        for precision, rate in rates.items():
            what, at = f"compute.{key}.{precision}", ("compute", key, precision)
            if precision not in PRECISIONS:
                hint = did_you_mean(precision, PRECISIONS)
                raise self.fail(f"compute.{key} has the unknown precision {precision!r:.80}{hint}", *at)
            if isinstance(rate, bool) or not isinstance(rate, int | float):
                raise self.fail(f"{what} is {rate!r:.60}, expected a rate in FLOP/s", *at)
            self.check_limits(rate, what, FLOPS, *at)
        return dict(rates)

    def texts(self, values: Any, what: str) -> tuple[str, ...]:
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise self.fail(f"{what} is not a list of texts")
        return tuple(values)

    def capability(self) -> str | None:
        text: str | None = self.data.get("compute_capability")
        if text is not None and len(release(text)) != 2:
            message = f'compute_capability is {text!r:.60}, expected major and minor such as "9.0"'
            raise self.fail(message, "compute_capability")
        return text


def read_datasheet(data: Mapping[str, Any], where: str, *, require_sources: bool = True) -> Accelerator:
    """Return the accelerator that a parsed datasheet describes.

    Raises DatasheetError, naming ``where`` and the key, for unknown keys, wrong types, numbers beyond `LIMITS`,
    missing figures and, with ``require_sources``, tables without sources.
    """
    reader = _Reader(data, where, require_sources)
    reader.check()
    memory, die, link = reader.table("memory"), reader.table("die"), reader.table("link")
    efficiency = dict(reader.table("efficiency"))
    identity = data.get("id") or where
    fractions = ("memory", "compute", "link", "launch_s")
    measured: dict[str, float] = {name: float(efficiency[name]) for name in fractions if name in efficiency}
    return Accelerator(
        id=identity,
        name=data.get("name") or identity,
        vendor=data.get("vendor") or "",
        form_factor=data.get("form_factor") or "",
        family=data.get("family") or identity,
        architecture=data.get("architecture") or "",
        memory_bytes=reader.need("memory", "published_bytes"),
        memory_bandwidth_bytes_per_s=float(reader.need("memory", "bandwidth_bytes_per_s")),
        dense_flops=reader.flops("dense_flops"),
        sparse_flops=reader.flops("sparse_flops"),
        native_formats=reader.texts(reader.table("native").get("formats", []), "native.formats"),
        link=_link(reader, link) if link else None,
        pcie_generation=reader.table("pcie").get("generation"),
        pcie_lanes=reader.table("pcie").get("lanes", 16),
        power_w=reader.table("power").get("tdp_w"),
        driver_total_bytes=memory.get("driver_total_bytes"),
        runtime_visible_bytes=memory.get("runtime_visible_bytes"),
        memory_kind=memory.get("kind", ""),
        compute_capability=reader.capability(),
        dies=data.get("dies_per_device", 1),
        l2_bytes=die.get("l2_bytes", 0),
        sram_per_sm_bytes=die.get("sram_per_sm_bytes"),
        sms=die.get("sms"),
        measured=measured,
        measured_basis=efficiency.get("basis", ""),
        aliases=reader.texts(data.get("aliases", []), "aliases"),
        conflicts=tuple(_conflict(reader, c) for c in data.get("conflicts", [])),
        gaps=reader.texts(data.get("gaps", []), "gaps"),
        notes=reader.texts(data.get("notes", []), "notes"),
        sources={
            name: reader.texts(reader.table(name).get("sources", []), f"{name}.sources")
            for name in _TABLES
            if name in data
        },
    )


def _link(reader: _Reader, table: Mapping[str, Any]) -> Link | None:
    pattern = table.get("pattern", "switched")
    if pattern not in PATTERNS:
        expected = f"expected one of {', '.join(PATTERNS)}"
        raise reader.fail(f"link.pattern is {pattern!r:.60}, {expected}", "link", "pattern")
    aggregate = table.get("aggregate_bytes_per_s")
    one_way = table.get("per_direction_bytes_per_s")
    if not one_way:
        if not aggregate:
            return None
        # Published aggregates add both directions.
        one_way = aggregate / 2
    return Link(
        table.get("kind", ""),
        float(one_way),
        max(int(table.get("domain", 1)), 1),
        pattern,
        aggregate,
        table.get("peer_bytes_per_s"),
        bool(table.get("in_network_reduction", False)),
    )


def _conflict(reader: _Reader, table: Any) -> Conflict:
    if not isinstance(table, Mapping) or not isinstance(table.get("field"), str):
        raise reader.fail("an entry of conflicts has no field", "conflicts")
    value = table.get("value", "")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise reader.fail(f"conflicts: value is {value!r:.60}, expected a number or text", "conflicts")
    if not isinstance(value, str):
        reader.check_limits(value, "conflicts: value", (0, FLOPS[1]), "conflicts")
    return Conflict(table["field"], value, str(table.get("source", "")), str(table.get("note", "")))


def datasheets(folder: Path) -> Iterator[Entry[Accelerator]]:
    """Yield an entry for every ``<vendor>/<sku>.toml`` below a folder; files are read when asked for."""
    return sheets(folder, read_datasheet, _aliases)


def _aliases(path: Path) -> tuple[str, ...]:
    aliases = parsed(path).get("aliases", [])
    return tuple(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list) else ()
