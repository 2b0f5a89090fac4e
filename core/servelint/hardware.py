"""Accelerators and topologies: datasheet figures with provenance, and the links a group of devices crosses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from attrs import evolve, frozen

from servelint.errors import UnpricedError
from servelint.lineage import KeyPath, Source
from servelint.releases import release
from servelint.values import Value

PCIE_BYTES_PER_S_PER_LANE = {
    # One direction after line encoding: PCI Express Base Specification, 8b/10b to 2.0, 128b/130b to 5.0,
    # 242 of 256 FLIT bytes in 6.0.
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}

DEFAULT_NETWORK_BYTES_PER_S = 50e9
"""Scale-out bandwidth per device and direction when the spec gives none: one 400 Gbit/s port each."""

CUDA_RESERVE_SHARE = 0.0106
"""Largest share of driver-reported memory that the CUDA runtime was seen to withhold (A100 80GB: 0.85 of
80.00 GiB); used for parts whose runtime-visible figure is not known."""


@frozen(eq=False, repr=False)
class Link(Value):
    """A scale-up link. Published figures are usually ``aggregate``, both directions added.

    ``pattern``: ``switched`` gives every group the full one-direction rate; in a ``mesh`` or ``torus`` a
    pair of peers sees ``peer_bytes_per_s``; ``pair`` joins two devices by a bridge.
    """

    kind: str
    per_direction_bytes_per_s: float
    domain: int
    pattern: Literal["switched", "mesh", "torus", "pair"] = "switched"
    aggregate_bytes_per_s: float | None = None
    peer_bytes_per_s: float | None = None
    in_network_reduction: bool = False

    def group_bytes_per_s(self, group: int) -> float:
        """One-direction bytes/s that a device has within a group of that size."""
        if self.peer_bytes_per_s is None or self.pattern == "switched":
            return self.per_direction_bytes_per_s
        return min(self.per_direction_bytes_per_s, max(group - 1, 1) * self.peer_bytes_per_s)


@frozen(eq=False, repr=False)
class Efficiency(Value):
    """Sustained fractions of the peak, each in (0, 1], and the latencies that a bound leaves out.

    ``launch_s`` is what a kernel of a captured graph takes besides its roofline; ``collective_s`` the time of
    one small collective by tier, its launch included, over PCIe per device of the group. ``source`` says what
    they were measured on.
    """

    memory: float
    compute: float
    link: float
    launch_s: float
    collective_s: Mapping[str, float]
    source: Source
    launch_source: Source = Source("default", "docs/conventions.md", "launch")


@frozen(eq=False, repr=False)
class Conflict(Value):
    """Two published figures for one field: the one used is in the datasheet, the other stands here."""

    field: str
    value: float | str
    source: str
    note: str = ""


@frozen(eq=False, repr=False)
class Accelerator(Value):
    """One SKU in one form factor. Sizes in bytes, rates per second, dense rates with fp32 accumulation.

    ``dense_flops`` and ``sparse_flops`` map a precision to FLOP/s; a missing precision has no such path.
    ``measured`` holds sustained fractions measured on the part (or its architecture, as
    ``measured_basis`` says) under ``memory``, ``compute``, ``link``. ``sources`` maps a field group to the
    documents its figures come from, and ``replaced`` a figure (``memory.usable``) to the key of the spec that
    stands for it.
    """

    id: str
    name: str
    vendor: str
    form_factor: str
    family: str
    architecture: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    dense_flops: Mapping[str, float]
    sparse_flops: Mapping[str, float]
    native_formats: tuple[str, ...]
    link: Link | None = None
    pcie_generation: int | None = None
    pcie_lanes: int = 16
    power_w: float | None = None
    driver_total_bytes: int | None = None
    runtime_visible_bytes: int | None = None
    memory_kind: str = ""
    compute_capability: str | None = None
    dies: int = 1
    l2_bytes: int = 0
    sram_per_sm_bytes: int | None = None
    sms: int | None = None
    measured: Mapping[str, float] = {}
    measured_basis: str = ""
    aliases: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}
    replaced: Mapping[str, KeyPath] = {}

    @property
    def capability(self) -> tuple[int, ...]:
        """CUDA compute capability as two numbers, major and minor; empty on other devices."""
        numbers = release(self.compute_capability)
        return numbers if len(numbers) == 2 else ()

    @property
    def usable_memory(self) -> tuple[int, str]:
        """Bytes that the runtime sees, and which figure that is.

        The CUDA-visible total; else the driver's total less the documented reserve (CUDA parts) or whole;
        else the published decimal figure.
        """
        if self.runtime_visible_bytes is not None:
            return self.runtime_visible_bytes, "runtime-visible total"
        if self.driver_total_bytes is not None:
            if self.compute_capability is None:
                return self.driver_total_bytes, "driver total"
            return (
                int(self.driver_total_bytes * (1 - CUDA_RESERVE_SHARE)),
                f"driver total less {CUDA_RESERVE_SHARE:.2%} that the CUDA runtime withholds",
            )
        return self.memory_bytes, "published decimal figure"

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """One-direction PCIe bytes/s after encoding, None when the part has no PCIe figure."""
        per_lane = PCIE_BYTES_PER_S_PER_LANE.get(self.pcie_generation or 0)
        return None if per_lane is None else per_lane * self.pcie_lanes

    def rate(self, precision: str) -> tuple[str, float]:
        """Return the precision an op really runs at, and its dense FLOP/s.

        A precision without a path of its own runs at the next wider one that has a rate; 16-bit formats
        stand in for each other (V100 and T4 have fp16 only). UnpricedError when none has.
        """
        for name in (precision, *WIDER.get(precision, ())):
            flops = self.dense_flops.get(name)
            if flops:
                return name, flops
        message = f"{self.id} has no published compute rate for {precision}, so nothing can be priced"
        raise UnpricedError(message, ("hardware", "accelerator"))

    def peak(self, precision: str) -> float:
        """Return the dense FLOP/s that no kernel beats: fp16 and fp8 may accumulate in fp16 where that is faster."""
        name, flops = self.rate(precision)
        return max(flops, self.dense_flops.get(f"{name}_acc16", 0.0))

    @property
    def usable_source(self) -> Source:
        """The source of `usable_memory`."""
        for name in ("runtime_visible_bytes", "driver_total_bytes"):
            if getattr(self, name) is not None:
                return self.source("memory", name)
        return self.source("memory", "published_bytes")

    def source(self, group: str, name: str) -> Source:
        """The source of a figure in force: ``group`` is the datasheet's table, ``name`` the field in it."""
        path = self.replaced.get(f"{group}.{name}")
        if path is not None:
            return Source("spec", "", "", path)
        return Source("datasheet", self.id, f"{group}.{name}".rstrip("."))


WIDER: Mapping[str, tuple[str, ...]] = {
    "fp4": ("fp6", "fp8", "bf16", "fp16", "tf32", "fp32"),
    "fp6": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "fp8": ("bf16", "fp16", "tf32", "fp32"),
    "int4": ("int8", "bf16", "fp16", "tf32", "fp32"),
    "int8": ("bf16", "fp16", "tf32", "fp32"),
    "fp8_acc16": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "fp16_acc16": ("fp16", "bf16", "tf32", "fp32"),
    "fp16": ("bf16", "tf32", "fp32"),
    "bf16": ("fp16", "tf32", "fp32"),
    "tf32": ("fp32",),
}
"""Which wider precision an op falls back to when the part has no path for its own, in order."""


class Hop(NamedTuple):
    """One tier that a group of devices crosses.

    ``fanout`` members meet on this tier, each standing for ``inner`` devices joined by faster tiers.
    """

    tier: str
    fanout: int
    inner: int
    bytes_per_s: float
    latency_s: float


@frozen(eq=False, repr=False)
class Topology(Value):
    """Devices of one replica and the links between them, nearest first.

    ``efficiency`` are the sustained fractions and latencies in force.
    """

    accelerator: Accelerator
    efficiency: Efficiency
    devices: int = 1
    devices_per_node: int = 8
    pcie_bytes_per_s: float | None = None
    network_bytes_per_s: float = DEFAULT_NETWORK_BYTES_PER_S

    @property
    def scale_up_domain(self) -> int:
        """Devices that reach each other over the scale-up link."""
        link = self.accelerator.link
        return 1 if link is None else link.domain

    def hops(self, group: int, stride: int = 1) -> tuple[Hop, ...]:
        """Return the tiers that a group of ``group`` devices, ``stride`` apart, crosses, fastest first."""
        if group <= 1:
            return ()
        accelerator, hops, inner = self.accelerator, [], 1
        node = max(self.devices_per_node, self.scale_up_domain)
        for tier, size in (("scale_up", self.scale_up_domain), ("pcie", node), ("network", 0)):
            members = group if size == 0 else max(1, min(group, size // stride))
            fanout = -(-members // inner)
            if fanout > 1:
                # Peers on a PCIe tree take turns at its root; a switch or a one-shot kernel does not wait for each.
                latency = self.efficiency.collective_s[tier] * (fanout if tier == "pcie" else 1)
                hops.append(Hop(tier, fanout, inner, self._bandwidth(tier, fanout, accelerator), latency))
                inner = members
        return tuple(hops)

    def _bandwidth(self, tier: str, fanout: int, accelerator: Accelerator) -> float:
        if tier == "scale_up" and accelerator.link is not None:
            return accelerator.link.group_bytes_per_s(fanout)
        if tier == "pcie" and self.pcie_bytes_per_s:
            return self.pcie_bytes_per_s
        return self.network_bytes_per_s

    def slowest(self, group: int, stride: int = 1) -> Hop | None:
        """Return the slowest tier that the group crosses, None for a group of one."""
        return min(self.hops(group, stride), key=lambda hop: hop.bytes_per_s, default=None)


class Instance(NamedTuple):
    """One instance type of a cloud: a node, its devices, and what joins it to others. Whole devices only.

    ``accelerator`` is an id of the catalogue and ``devices`` how many a node has. ``network_bytes_per_s`` is
    what the node sends at most, in one direction, decimal; devices share it evenly. ``rdma`` says whether
    devices reach the network without the host's CPU, and ``link`` what joins the devices of a node.
    ``link_domain`` is how many devices the scale-up link reaches where that are fewer than the part's datasheet
    has: a node with part of the board. None is a figure without a source: ``gaps`` says which. ``conflicts`` are
    published figures other than those used, and ``sources`` maps a field to the documents that have it.
    """

    id: str
    accelerator: str
    devices: int
    link: str = ""
    network_bytes_per_s: float | None = None
    rdma: bool | None = None
    host_memory_bytes: int | None = None
    aliases: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}
    link_domain: int | None = None

    @property
    def network_bytes_per_s_per_device(self) -> float | None:
        """Bytes/s in one direction that each device has when all of them send."""
        return None if self.network_bytes_per_s is None else self.network_bytes_per_s / self.devices

    def reached(self, accelerator: Accelerator) -> Accelerator:
        """The node's part, its link no longer than ``link_domain``."""
        link, reach = accelerator.link, self.link_domain
        if link is None or reach is None or reach >= link.domain:
            return accelerator
        return evolve(accelerator, link=evolve(link, domain=reach) if reach > 1 else None)

    def source(self, name: str) -> Source:
        """The instance type as the source of one of its figures."""
        return Source("datasheet", self.id, name)


class LabelMatch(NamedTuple):
    """What a label of a manifest says of the hardware.

    ``accelerators`` are ids: one where the value names one part, several where it names a family (``note`` then
    says what is open), none where it names a slice or share of a device, or one that has no datasheet.
    ``devices`` is their number where the value states it, ``instance`` the type of instance that it names.
    """

    accelerators: tuple[str, ...]
    devices: int | None = None
    note: str = ""
    source: str = ""
    instance: str | None = None

    @property
    def accelerator(self) -> str | None:
        """The one part that the value names, None where it names several or none."""
        return self.accelerators[0] if len(self.accelerators) == 1 else None


class Labels(NamedTuple):
    """A label or key of manifests that names hardware, and the function that reads its values.

    ``match`` returns None for a value that it does not know. Without it the values are instance types, of the
    one ``cloud`` where one is given.
    """

    key: str
    match: Callable[[str], LabelMatch | None] | None = None
    cloud: str = ""
