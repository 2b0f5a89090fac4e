"""Instance types as TOML, the labels by which manifests name hardware, and the look-up of both.

A check reads none of it unless its spec names an instance: this module is imported, the hook called and the
one file read when `servelint.manager.Plugins.instances` is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from attrs import evolve

from servelint.blame import Provider
from servelint.catalogue import Catalogue
from servelint.composition import Assumption
from servelint.descriptors import Entry
from servelint.errors import CatalogueError, InfeasibleError
from servelint.hardware import Accelerator, Conflict, Instance, LabelMatch, Labels
from servelint.manager import Plugins
from servelint.sheets import parsed, sheets
from servelint.spec.model import Hardware, Network
from servelint.suggest import did_you_mean

_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "id": str, "accelerator": str, "devices": int, "link": str, "link_domain": int, "rdma": bool,
    "network_bytes_per_s": (int, float), "host_memory_bytes": int, "aliases": list, "conflicts": list,
    "gaps": list, "notes": list, "sources": dict,
}  # fmt: skip
SOURCED = ("accelerator", "devices", "network_bytes_per_s", "rdma", "host_memory_bytes")
"""Fields of an instance type that need a source."""


class Instances(Catalogue[Instance]):
    """Instance types by id, by name without the cloud, and by alias; and the labels of manifests."""

    def __init__(
        self,
        entries: Mapping[str, tuple[Entry[Instance], Provider]],
        labels: Mapping[str, tuple[Labels, Provider]],
        plugins: Plugins,
    ) -> None:
        super().__init__(
            "instance type",
            entries,
            plugins,
            "servelint catalog instances",
            "name the accelerator and devices",
            Instance,
        )
        self._labels = labels

    @property
    def label_keys(self) -> tuple[str, ...]:
        """The label keys whose values can be read, in order."""
        return tuple(sorted(labels.key for labels, _ in self._labels.values()))

    @cached_property
    def _short_keys(self) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for key in self._labels:
            found.setdefault(key.rpartition("/")[2], []).append(key)
        return {short: keys[0] for short, keys in found.items() if len(keys) == 1}

    def by_label(self, key: str, value: str) -> LabelMatch | None:
        """Read a label of a manifest; None for a key or a value that no plugin knows.

        Keys compare without case; a key may leave out what stands before the slash where only one key ends so
        (``recipe_node_shape``).
        """
        wanted = key.lower()
        found = self._labels.get(wanted if wanted in self._labels else self._short_keys.get(wanted, ""))
        value = value.strip()
        if found is None or not value:
            return None
        labels, provider = found
        if labels.match is None:
            return self._by_instance(value, labels.cloud)
        with self._plugins.blamed(provider, f"reading the label {labels.key!r}"):
            match = labels.match(value)
        if match is None:
            # The name that a datasheet gives its part.
            id_ = self._plugins.accelerators.resolve(value)
            match = None if id_ is None else LabelMatch((id_,), None, "", f"datasheet: {id_}")
        return match

    def _by_instance(self, value: str, cloud: str) -> LabelMatch | None:
        id_ = self.resolve(f"{cloud}/{value}" if cloud and "/" not in value else value)
        if id_ is None or (cloud and not id_.lower().startswith(f"{cloud.lower()}/")):
            return None
        found = self.get(id_)
        sources = found.sources.get("accelerator", ())
        return LabelMatch((found.accelerator,), found.devices, "", "; ".join(sources), id_)


# Instance types


def instance_sheets(folder: Path) -> Iterator[Entry[Instance]]:
    """Return an entry for every ``<cloud>/<name>.toml`` below a folder; files are read when asked for."""
    return sheets(folder, read_instance, _aliases)


def _aliases(path: Path) -> tuple[str, ...]:
    return _texts(parsed(path).get("aliases", []), f"{path}: aliases")


def _texts(values: Any, what: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise CatalogueError(f"{what} is not a list of texts")
    return tuple(values)


def read_instance(data: Mapping[str, Any], where: str) -> Instance:
    """Return the instance type that a parsed file describes.

    Raises CatalogueError, naming ``where`` and the key, for unknown keys, wrong types, missing figures, figures
    below 1 and figures without sources.
    """
    for key, value in data.items():
        if key not in _FIELDS:
            raise CatalogueError(f"{where}: unknown key {key!r}{did_you_mean(key, _FIELDS)}")
        wrong = isinstance(value, bool) != (_FIELDS[key] is bool) or not isinstance(value, _FIELDS[key])
        if wrong:
            raise CatalogueError(f"{where}: {key} is {value!r:.60}, of the wrong type")
        if isinstance(value, int | float) and not isinstance(value, bool) and not 1 <= value < 1e24:
            raise CatalogueError(f"{where}: {key} is {value!r:.60}, expected a finite number of at least 1")
    for key in ("id", "accelerator", "devices"):
        if not data.get(key):
            raise CatalogueError(f"{where}: {key} is missing")
    sources = {name: _texts(listed, f"{where}: sources.{name}") for name, listed in data.get("sources", {}).items()}
    for key in SOURCED:
        if key in data and not sources.get(key):
            raise CatalogueError(f"{where}: {key} has no sources")
    network = data.get("network_bytes_per_s")
    return Instance(
        data["id"],
        data["accelerator"],
        data["devices"],
        data.get("link", ""),
        None if network is None else float(network),
        data.get("rdma"),
        data.get("host_memory_bytes"),
        _texts(data.get("aliases", []), f"{where}: aliases"),
        tuple(_conflict(c, where) for c in data.get("conflicts", [])),
        _texts(data.get("gaps", []), f"{where}: gaps"),
        _texts(data.get("notes", []), f"{where}: notes"),
        sources,
        data.get("link_domain"),
    )


def _conflict(table: Any, where: str) -> Conflict:
    if not isinstance(table, Mapping) or not isinstance(table.get("field"), str):
        raise CatalogueError(f"{where}: an entry of conflicts has no field")
    return Conflict(table["field"], table.get("value", ""), str(table.get("source", "")), str(table.get("note", "")))


# What an instance type says of a deployment


def filled(hardware: Hardware, instance: Instance, devices: int | None) -> tuple[Hardware, list[Assumption]]:
    """Return ``[hardware]`` with what it leaves out filled in from the instance type, and each value that was.

    ``devices`` are those of a replica where nothing but the instances says how many.
    """
    values: dict[str, Any] = {}
    assumed = []

    def assume(value: object, field: str, reason: str, *path: str) -> None:
        assumed.append(Assumption(("hardware", *path), value, reason, instance.source(field)))

    if hardware.accelerator is None and hardware.datasheet is None:
        assume(instance.accelerator, "accelerator", f"what {instance.id} has", "accelerator")
    if hardware.devices is None and devices is not None:
        assume(devices, "devices", f"every device of {hardware.nodes or 1} x {instance.id}", "devices")
    if hardware.devices_per_node is None and hardware.nodes is None:
        values["devices_per_node"] = instance.devices
        assume(instance.devices, "devices", f"devices of one {instance.id}", "devices_per_node")
    network, rate = hardware.network, instance.network_bytes_per_s_per_device
    if rate is not None and (network is None or network.bandwidth is None):
        rdma = network.rdma if network is not None and network.rdma is not None else instance.rdma
        values["network"] = Network(bandwidth=rate, per="device", rdma=rdma)
        reason = f"the share of a device in the {instance.network_bytes_per_s:,.0f} B/s of one {instance.id}"
        assume(rate, "network_bytes_per_s", reason, "network", "bandwidth")
    if hardware.host_memory is None and instance.host_memory_bytes is not None:
        values["host_memory"] = float(instance.host_memory_bytes)
        assume(values["host_memory"], "host_memory_bytes", f"memory of one {instance.id}", "host_memory")
    return evolve(hardware, **values), assumed


def contradiction(
    hardware: Hardware, instance: Instance, accelerator: Accelerator, devices: int
) -> InfeasibleError | None:
    """Say what ``[hardware]`` has beside an instance type that cannot be so; None when nothing is."""
    if hardware.datasheet is None and hardware.accelerator is not None and accelerator.id != instance.accelerator:
        message = (
            f"{instance.id} has {instance.devices} x {instance.accelerator}, not {accelerator.id}: "
            "leave accelerator out, or name the instance type that has it"
        )
        return InfeasibleError(message, ("hardware", "accelerator"))
    # A rack joins the devices of several nodes, and some count it as one.
    most = max(instance.devices, accelerator.link.domain if accelerator.link is not None else 1)
    if hardware.devices_per_node is not None:
        if hardware.devices_per_node <= most:
            return None
        message = (
            f"{hardware.devices_per_node} devices a node, but {instance.id} has {instance.devices}: "
            f"give at most {instance.devices}, or leave devices_per_node out"
        )
        return InfeasibleError(message, ("hardware", "devices_per_node"))
    if hardware.nodes is None or devices <= hardware.nodes * most:
        return None
    message = (
        f"{devices} devices on {hardware.nodes} nodes, but {instance.id} has {instance.devices}: "
        f"they take {-(-devices // instance.devices)} nodes"
    )
    return InfeasibleError(message, ("hardware", "nodes"))


# Labels of manifests

_SLICE = re.compile(r"-mig-(?P<profile>\d+g\.\d+gb\S*)$|-(?P<shared>shared)$")
_COUNT = re.compile(r"^(?P<name>.+):(?P<count>\d+(\.\d+)?)$")


class _Table(NamedTuple):
    """The values of one label, by their folded names; ``like`` is the file whose values count, too."""

    values: Mapping[str, LabelMatch]
    slices: bool
    counted: bool
    like: Path | None


def label_tables(folder: Path) -> Iterator[Labels]:
    """Yield a label for every TOML file below a folder: ``nvidia.com/gpu.product.toml`` is ``nvidia.com/gpu.product``.

    A file has ``source``, and ``[[values]]`` with ``names``, ``accelerators`` and where it needs them ``devices``,
    ``note`` and a ``source`` of its own. ``count = true`` lets values end in ``:8``; ``slices = true`` reads the
    endings of MIG slices and of shared devices; ``like`` names another file whose values count, too.
    """
    for path in sorted(folder.rglob("*.toml")):
        yield Labels(path.relative_to(folder).with_suffix("").as_posix(), partial(match_label, path, folder))


def match_label(path: Path, folder: Path, value: str) -> LabelMatch | None:
    """Read a value by a label's file; None when neither it nor the file that it is ``like`` has the value."""
    table = _table(path, folder)
    name, count = _folded(value), None
    if table.counted and (counted := _COUNT.match(name)):
        name, number = counted["name"], float(counted["count"])
        if number != int(number) or number < 1:
            return LabelMatch((), None, f"{counted['count']} of a device is not a whole number of devices")
        count = int(number)
    ending = _SLICE.search(name) if table.slices else None
    if ending is not None:
        whole = _lookup(table, folder, name[: ending.start()])
        part = " or ".join(whole.accelerators) if whole is not None and whole.accelerators else "a device"
        what = f"a MIG slice ({ending['profile']})" if ending["profile"] else "a time share"
        return LabelMatch((), None, f"{what} of {part}, not the whole of it", whole.source if whole else "")
    found = _lookup(table, folder, name)
    return found if found is None or count is None else found._replace(devices=count * (found.devices or 1))


def _lookup(table: _Table, folder: Path, name: str) -> LabelMatch | None:
    found = table.values.get(name)
    if found is None and table.like is not None:
        other = _table(table.like, folder)
        found = other.values.get(name)
    return found


def _folded(value: str) -> str:
    """Values compare without case; spaces and underscores are dashes."""
    return value.strip().lower().replace(" ", "-").replace("_", "-")


@lru_cache(maxsize=64)
def _table(path: Path, folder: Path) -> _Table:
    data = parsed(path)
    keys = {"source": str, "slices": bool, "count": bool, "like": str, "values": list}
    for key, value in data.items():
        if key not in keys or not isinstance(value, keys[key]):
            raise CatalogueError(f"{path}: {key} is unknown or of the wrong type{did_you_mean(key, keys)}")
    values: dict[str, LabelMatch] = {}
    for row in data.get("values", []):
        source = str(row.get("source") or data.get("source") or "")
        accelerators = _texts(row.get("accelerators", []), f"{path}: accelerators")
        note = str(row.get("note", ""))
        if not source:
            raise CatalogueError(f"{path}: a row of values has no source")
        if len(accelerators) != 1 and not note:
            raise CatalogueError(f"{path}: {row.get('names')} names no single accelerator and has no note")
        for name in _texts(row.get("names", []), f"{path}: names"):
            if _folded(name) in values:
                raise CatalogueError(f"{path}: the value {name!r} stands in two rows")
            values[_folded(name)] = LabelMatch(accelerators, row.get("devices"), note, source)
    like = data.get("like")
    return _Table(
        values, data.get("slices", False), data.get("count", False), folder / f"{like}.toml" if like else None
    )
