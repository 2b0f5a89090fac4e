"""HW007 link-direction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from servelint.composition import Composition
from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Review, Rule, Severity, Source
from servelint.units import Dimension, format_quantity
from servelint_rules.hw.figures import PART, TOLERANCE, first_declared, known, near

PCIE_TOLERANCE = 0.02
"""PCIe is quoted before its encoding: 128 GB/s for the 126 GB/s of generation 5."""


class OneWay(NamedTuple):
    """A figure that counts one direction, and the known one that counts both: of what, how much, whose."""

    path: KeyPath
    given: float
    both: float
    link: str
    source: Source
    tolerance: float = TOLERANCE


class LinkDirection(Rule):
    """A link's figure of both directions together is used where one direction counts.

    What it checks
    --------------
    ``per_direction_bytes_per_s`` and ``peer_bytes_per_s`` of an inline datasheet's link against its own aggregate
    and against the catalogue's datasheet of the same part; ``hardware.network.bandwidth`` against the network of the
    instance type and the aggregate of the scale-up link; ``policy.disaggregation.transfer.bandwidth`` against the
    links of the smaller replica, when no path of it carries that much in one direction. A finding only where the
    figure is twice what is known for one direction; other distances are measurements or other links.

    Why it is bad
    -------------
    "900 GB/s NVLink" is 450 GB/s each way, "128 GB/s PCIe" 63 GB/s. A collective or a transfer of a KV cache sends
    in one direction what it has to send; with the figure of both it looks twice as fast as it can be.

    The arithmetic
    --------------
    ``given = aggregate of both directions`` (to 1 %, PCIe to 2 %); ``one way = aggregate / 2``.

    How to fix
    ----------
    Use half of the figure.

    Source
    ------
    The accelerator's datasheet and the instance type, as cited in the catalogue; PCI Express Base Specification for
    the rate of a lane.
    """

    code = "HW007"
    name = "link-direction"
    severity = Severity.WARNING
    questions = ("why is it slower than planned", "is this claim possible")
    failing = (
        Case(
            "NVLink's aggregate as the rate of one direction",
            """\
servelint = 1
[hardware]
devices = 8
[hardware.datasheet]
id = "nvidia/h100-sxm5-80gb"
memory = { published_bytes = 80e9, bandwidth_bytes_per_s = 3.35e12, sources = ["H100 datasheet"] }
compute = { dense_flops = { bf16 = 989e12 }, sources = ["H100 datasheet, dense"] }
[hardware.datasheet.link]
kind = "NVLink 4"
per_direction_bytes_per_s = 900e9 # expect: HW007
domain = 8
sources = ["H100 datasheet"]
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""".replace("80e9,", "80_000_000_000,"),
            flip=("hardware.datasheet.link.per_direction_bytes_per_s", "450e9"),
        ),
        Case(
            "a part of one's own whose aggregate says it",
            """\
servelint = 1
[hardware]
devices = 4
[hardware.datasheet]
id = "acme/a1"
memory = { published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12, sources = ["A1 datasheet"] }
compute = { dense_flops = { bf16 = 500e12 }, sources = ["A1 datasheet"] }
[hardware.datasheet.link]
kind = "acme-link"
aggregate_bytes_per_s = 600e9
per_direction_bytes_per_s = 600e9 # expect: HW007
domain = 4
sources = ["A1 datasheet"]
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.datasheet.link.per_direction_bytes_per_s", "300e9"),
        ),
        Case(
            "a transfer faster than the PCIe slot in one direction",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.disaggregation]
prefill = { devices = 1 }
decode = { devices = 1 }
transfer = { bandwidth = "64 GB/s" } # expect: HW007
""",
            flip=("policy.disaggregation.transfer.bandwidth", '"31.5 GB/s"'),
        ),
        Case(
            "both directions of an instance's network",
            """\
servelint = 1
[hardware]
instance = "aws/p5.48xlarge"
devices = 16
network = { bandwidth = "6400 Gbit/s", per = "node" } # expect: HW007
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
pipeline = 2
""",
            flip=("hardware.network.bandwidth", '"3200 Gbit/s"'),
        ),
    )
    passing = (
        Case(
            "half of the aggregate",
            """\
servelint = 1
[hardware]
devices = 4
[hardware.datasheet]
id = "acme/a1"
memory = { published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12, sources = ["A1 datasheet"] }
compute = { dense_flops = { bf16 = 500e12 }, sources = ["A1 datasheet"] }
[hardware.datasheet.link]
kind = "acme-link"
aggregate_bytes_per_s = 600e9
per_direction_bytes_per_s = 300e9
domain = 4
sources = ["A1 datasheet"]
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a transfer over NVLink, below what one direction carries",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.disaggregation]
prefill = { devices = 1 }
decode = { devices = 1 }
transfer = { bandwidth = "128 GB/s" }
""",
        ),
        Case(
            "a network with half of the instance's ports",
            """\
servelint = 1
[hardware]
instance = "aws/p5.48xlarge"
devices = 16
network = { bandwidth = "1600 Gbit/s", per = "node" }
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
pipeline = 2
""",
        ),
        Case(
            "just outside the tolerance of twice the slot",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.disaggregation]
prefill = { devices = 1 }
decode = { devices = 1 }
transfer = { bandwidth = "65 GB/s" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every one-way figure with the known aggregates."""
        found = [*_datasheet(review), *_network(review), *_transfer(review)]
        if not found:
            yield Lacks("hardware.datasheet.link, hardware.network.bandwidth or a transfer's bandwidth, of known links")
        reported = set()
        for item in found:
            if item.path not in reported and near(item.given, (item.both,), item.tolerance):
                reported.add(item.path)
                yield _finding(review, item)


def _datasheet(review: Review) -> Iterator[OneWay]:
    inline = review.accelerator
    if inline is None or inline.link is None or review.deployment.hardware.datasheet is None:
        return
    part, link, path = known(review), inline.link, ("hardware", "datasheet", "link")
    if review.declared(*path, "per_direction_bytes_per_s"):
        at = (*path, "per_direction_bytes_per_s")
        if link.aggregate_bytes_per_s:
            source = review.source(*path, "aggregate_bytes_per_s")
            yield OneWay(at, link.per_direction_bytes_per_s, link.aggregate_bytes_per_s, "the link", source)
        if part is not None and part.link is not None:
            both = part.link.aggregate_bytes_per_s or 2 * part.link.per_direction_bytes_per_s
            source = part.source("link", "aggregate_bytes_per_s")
            yield OneWay(at, link.per_direction_bytes_per_s, both, part.link.kind, source)
    if link.peer_bytes_per_s and part is not None and part.link is not None and part.link.peer_bytes_per_s:
        source = part.source("link", "peer_bytes_per_s")
        peer = f"{part.link.kind} to one peer"
        at = (*path, "peer_bytes_per_s")
        yield OneWay(at, link.peer_bytes_per_s, 2 * part.link.peer_bytes_per_s, peer, source)


def _network(review: Review) -> Iterator[OneWay]:
    """The network, whose figure may be of a device or a node."""
    hardware, path = review.deployment.hardware, ("hardware", "network", "bandwidth")
    network, instance, accelerator = hardware.network, review.instance, review.accelerator
    if network is None or network.bandwidth is None:
        return
    whole = network.per == "node"
    if instance is not None and instance.network_bytes_per_s is not None:
        one_way = instance.network_bytes_per_s / (1 if whole else instance.devices)
        source = instance.source("network_bytes_per_s")
        yield OneWay(path, network.bandwidth, 2 * one_way, f"the network of {instance.id}", source)
    link = accelerator.link if accelerator is not None else None
    if link is not None and accelerator is not None and link.aggregate_bytes_per_s and not whole:
        source = accelerator.source("link", "aggregate_bytes_per_s")
        yield OneWay(path, network.bandwidth, link.aggregate_bytes_per_s, link.kind, source)


def _transfer(review: Review) -> Iterator[OneWay]:
    """The transfer of a sequence between pools, over every link of the smaller replica."""
    config = review.policy("disaggregation")
    transfer, composition = getattr(config, "transfer", None), review.composition
    if transfer is None or transfer.bandwidth is None or composition is None:
        return
    pools = composition.scheduler.disaggregation
    path = ("policy", "disaggregation", "transfer", "bandwidth")
    if pools is None or not review.declared(*path):
        return
    paths = [_ways(pool.composition, path, transfer.bandwidth) for pool in (pools.prefill, pools.decode)]
    # What one side cannot send or the other not take is not transferred.
    if all(transfer.bandwidth > max(way.both for way in ways) / 2 * (1 + TOLERANCE) for ways in paths):
        for ways in paths:
            yield from ways


def _ways(side: Composition, path: KeyPath, given: float) -> list[OneWay]:
    """What joins the devices of a replica to others, all of them together, both directions."""
    topology = side.setup.topology
    accelerator, devices = topology.accelerator, topology.devices
    network = Source("spec", "", "", ("hardware", "network", "bandwidth"))
    ways = [OneWay(path, given, 2 * devices * topology.network_bytes_per_s, "the network ports", network)]
    if accelerator.link is not None:
        both = devices * 2 * accelerator.link.per_direction_bytes_per_s
        source = accelerator.source("link", "aggregate_bytes_per_s")
        ways.append(OneWay(path, given, both, accelerator.link.kind, source))
    if topology.pcie_bytes_per_s:
        both = devices * 2 * topology.pcie_bytes_per_s
        source = accelerator.source("pcie", "generation")
        ways.append(OneWay(path, given, both, "PCIe", source, PCIE_TOLERANCE))
    return ways


def _finding(review: Review, item: OneWay) -> Finding:
    one_way = item.both / 2
    half = item.path[:2] == ("hardware", "datasheet")
    text = f"{one_way:.0f}" if half else f'"{one_way / 1e9:.4g} GB/s"'
    return Finding(
        item.path,
        f"{_rate(item.given)} is what {item.link} carries in both directions together; this key counts one direction, "
        f"{_rate(one_way)}",
        equation=f"given {_rate(item.given)} = 2 x {_rate(one_way)}",
        inputs=(
            review.input("given bandwidth", item.given, "B/s", *item.path),
            Input("both directions", item.both, "B/s", item.source),
        ),
        help=f"set it to {text}",
        related=first_declared(review, "the part that has the link", *PART),
        fix=Fix("use one direction", (Edit(item.path, text),), safe=True),
    )


def _rate(value: float) -> str:
    return format_quantity(value, Dimension.BYTES_PER_SECOND)
