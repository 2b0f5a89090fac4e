"""Devices, nodes and links of one replica: what is declared, what is assumed and said, what each link carries."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from servelint.composition import (
    DEFAULT_EFFICIENCY,
    DEFAULT_LAUNCH_S,
    Assumption,
    build_topology,
    efficiency_of,
    overridden,
)
from servelint.hardware import (
    DEFAULT_NETWORK_BYTES_PER_S,
    PCIE_BYTES_PER_S_PER_LANE,
    Accelerator,
    Instance,
    Link,
    Topology,
)
from servelint.manager import Plugins
from servelint.spec.document import parse
from servelint.spec.model import Hardware
from servelint.testing import samples


def hardware(plugins: Plugins, keys: str = "") -> Hardware:
    document = parse("spec.toml", f'servelint = 1\n[hardware]\naccelerator = "any"\n{keys}', plugins.policies)
    assert document.problems == []
    assert document.deployment is not None
    assert document.deployment.hardware is not None
    return document.deployment.hardware


def accelerator(domain: int = 8, **changes: Any) -> Accelerator:
    made = samples.accelerator()
    link = None if domain == 1 else Link("direct", 400e9, domain)
    return evolve(made, link=link, pcie_generation=5, pcie_lanes=16, **changes)


def built(plugins: Plugins, devices: int, keys: str = "", domain: int = 8) -> tuple[Topology, dict[str, Assumption]]:
    topology, assumed = build_topology(accelerator(domain), hardware(plugins, keys), devices)
    return topology, {".".join(map(str, a.path)): a for a in assumed}


@pytest.mark.parametrize(
    ("devices", "keys", "domain", "per_node"),
    [
        (4, "", 8, 4),
        (8, "", 8, 8),
        (16, "", 8, 8),
        (16, "", 1, 8),
        (144, "", 72, 72),
        (16, "devices_per_node = 4", 8, 4),
        (16, "nodes = 4", 8, 4),
        (10, "nodes = 3", 8, 4),
        (9, "nodes = 3", 8, 3),
    ],
)
def test_devices_of_a_node(plugins: Plugins, devices: int, keys: str, domain: int, per_node: int) -> None:
    topology, assumed = built(plugins, devices, keys, domain)
    assert (topology.devices, topology.devices_per_node) == (devices, per_node)
    said = assumed.get("hardware.devices_per_node")
    # A node that holds all of them is no assumption.
    assert (said.value if said else None) == (per_node if not keys and devices > per_node else None)


@pytest.mark.parametrize(
    ("devices", "keys", "domain", "said"),
    [
        (8, "", 8, False),
        (16, "", 8, True),
        (9, "devices_per_node = 8", 8, True),
        (16, "devices_per_node = 4", 72, False),
        (73, "devices_per_node = 4", 72, True),
    ],
)
def test_the_network_is_assumed_where_it_is_crossed(
    plugins: Plugins, devices: int, keys: str, domain: int, said: bool
) -> None:
    topology, assumed = built(plugins, devices, keys, domain)
    assert topology.network_bytes_per_s == DEFAULT_NETWORK_BYTES_PER_S == 400e9 / 8
    assert ("hardware.network.bandwidth" in assumed) == said
    if said:
        assert assumed["hardware.network.bandwidth"].value == DEFAULT_NETWORK_BYTES_PER_S


@pytest.mark.parametrize(("per", "share"), [("node", 4), ("device", 1)])
def test_a_declared_network_is_shared_by_a_node_or_is_each_devices(plugins: Plugins, per: str, share: int) -> None:
    keys = f'devices_per_node = 4\nnetwork = {{ bandwidth = "400 GB/s", per = "{per}" }}'
    topology, assumed = built(plugins, 8, keys)
    assert topology.network_bytes_per_s == 400e9 / share
    assert "hardware.network.bandwidth" not in assumed


def test_without_peer_to_peer_there_is_no_link_and_half_a_bus(plugins: Plugins) -> None:
    bus = 32e9 * 128 / 130 / 8 * 16
    for keys in ("", "peer_to_peer = true"):
        topology, _ = built(plugins, 2, keys)
        assert topology.pcie_bytes_per_s == pytest.approx(bus)
        assert topology.accelerator.link is not None
        assert topology.scale_up_domain == 8
    topology, _ = built(plugins, 2, "peer_to_peer = false")
    assert topology.pcie_bytes_per_s == pytest.approx(bus / 2)
    assert topology.accelerator.link is None
    assert topology.scale_up_domain == 1


def test_a_declared_bus_replaces_what_it_names(plugins: Plugins) -> None:
    narrow, _ = built(plugins, 2, "pcie = { lanes = 4 }")
    assert narrow.pcie_bytes_per_s == pytest.approx(32e9 * 128 / 130 / 8 * 4)
    older, _ = built(plugins, 2, "pcie = { generation = 3 }")
    assert older.pcie_bytes_per_s == pytest.approx(8e9 * 128 / 130 / 8 * 16)


def test_bytes_a_lane() -> None:
    # GT/s of the PCI Express base specifications, less the line code of each.
    assert {g: round(rate / 1e6) for g, rate in PCIE_BYTES_PER_S_PER_LANE.items()} == {
        1: 250,
        2: 500,
        3: 985,
        4: 1969,
        5: 3938,
        6: 7562,
    }


def test_efficiency_is_declared_measured_or_a_default(plugins: Plugins) -> None:
    part = accelerator(measured={"memory": 0.91, "launch_s": 3e-6}, measured_basis="a stream kernel")
    keys = 'efficiency = { compute = 0.7, source = "lab" }'
    efficiency, assumed = efficiency_of(part, hardware(plugins, keys))
    assert (efficiency.memory, efficiency.compute, efficiency.link) == (0.91, 0.7, DEFAULT_EFFICIENCY["link"])
    assert efficiency.launch_s == 3e-6
    said = {a.path[-1]: (a.value, a.reason, a.source.kind) for a in assumed}
    assert said["memory"] == (0.91, "a stream kernel", "datasheet")
    assert said["link"][0] == 0.6
    assert said["link"][2] == "default"
    assert "compute" not in said
    assert efficiency.source.kind == "spec"


def test_a_part_without_measurements_says_so(plugins: Plugins) -> None:
    efficiency, assumed = efficiency_of(accelerator(measured={}), hardware(plugins))
    assert (efficiency.memory, efficiency.compute, efficiency.link) == (0.8, 0.55, 0.6)
    assert efficiency.launch_s == DEFAULT_LAUNCH_S == 6.5e-6
    assert [a.path[-1] for a in assumed] == ["memory", "compute", "link"]
    assert efficiency.source.kind == "datasheet"
    measured, said = efficiency_of(accelerator(measured={"link": 0.5}, measured_basis=""), hardware(plugins))
    assert measured.link == 0.5
    assert said[2].reason == "measured on this part"


def test_an_override_replaces_what_it_names_and_remembers_the_key(plugins: Plugins) -> None:
    keys = 'override = { dense_flops = { bf16 = "5e14 FLOP/s" }, memory = "70 GB", source = "lab" }'
    part = accelerator()
    found = overridden(part, hardware(plugins, keys))
    assert found.dense_flops == {**part.dense_flops, "bf16": 5e14}
    assert found.memory_bytes == found.runtime_visible_bytes == 70_000_000_000
    assert found.memory_bandwidth_bytes_per_s == part.memory_bandwidth_bytes_per_s
    path = ("hardware", "override")
    assert found.replaced == {
        "compute.dense_flops.bf16": (*path, "dense_flops", "bf16"),
        "memory.runtime_visible_bytes": (*path, "memory"),
        "memory.published_bytes": (*path, "memory"),
    }
    assert overridden(part, hardware(plugins)) is part


def test_a_mesh_gives_a_group_what_its_members_reach() -> None:
    mesh = Link("mesh", 448e9, 8, "mesh", peer_bytes_per_s=64e9)
    assert [mesh.group_bytes_per_s(n) for n in (1, 2, 4, 8)] == [64e9, 64e9, 192e9, 448e9]
    # Links to seven peers together are no more than the ports that the device has.
    ported = Link("mesh", 300e9, 8, "mesh", peer_bytes_per_s=64e9)
    assert ported.group_bytes_per_s(8) == 300e9
    switched = Link("switched", 448e9, 8, "switched", peer_bytes_per_s=64e9)
    assert switched.group_bytes_per_s(2) == 448e9


@pytest.mark.parametrize(("reach", "domain"), [(None, 8), (8, 8), (4, 4), (2, 2), (1, None)])
def test_an_instance_reaches_as_far_as_its_links(reach: int | None, domain: int | None) -> None:
    instance = Instance("any/8", "any", 8, link_domain=reach)
    link = instance.reached(accelerator()).link
    assert (link.domain if link else None) == domain


def test_usable_memory_is_what_the_runtime_sees_or_what_the_driver_leaves_of_it() -> None:
    part = accelerator()
    seen = evolve(part, runtime_visible_bytes=79_000_000_000, driver_total_bytes=80_000_000_000)
    assert seen.usable_memory == (79_000_000_000, "runtime-visible total")
    driver = evolve(part, runtime_visible_bytes=None, driver_total_bytes=80_000_000_000, compute_capability="9.0")
    assert driver.usable_memory[0] == 80_000_000_000 * 9894 // 10_000
    # Only the CUDA runtime was seen to withhold some.
    other = evolve(driver, compute_capability=None)
    assert other.usable_memory == (80_000_000_000, "driver total")
    bare = evolve(part, runtime_visible_bytes=None, driver_total_bytes=None)
    assert bare.usable_memory[0] == part.memory_bytes
