"""MOE004 all-to-all-over-slow-link."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

from attrs import evolve

from servelint.graph import demands_of
from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    Case,
    Collective,
    Composition,
    Finding,
    InfeasibleError,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Point, Service
from servelint_rules.layouts import fits, parallelism, relaid, within_fast_links
from servelint_rules.par.groups import share_of
from servelint_rules.show import counted, duration, size

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 16
devices_per_node = 8
replicas = 1
network = { bandwidth = "100 Gbit/s", per = "node" }
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
data = 2
expert = 16 # expect: MOE004
[policy.batching]
max_sequences = 64
[workload]
prompt_tokens = 1500
output_tokens = 500
concurrency = 256
"""


class Apart(NamedTuple):
    """The same devices as more replicas within fast links: the keys to set, how many, and where the load then runs."""

    edits: tuple[tuple[KeyPath, int], ...]
    copies: int
    point: Point


class AllToAllOverSlowLink(Rule):
    """Tokens travel to their experts and back over a slow link, and the model fits within a fast one.

    What it checks
    --------------
    Expert ranks with tokens of their own that reach beyond the scale-up link onto PCIe or the network: the share of
    the estimated decode step that dispatch and combine take at the operating point, against the option ``share``, and
    whether replicas within the fast links (each with all experts) do the average step of their part of the load in at
    most 1 - ``gain`` of the time. Where they do not, or memory needs all the devices, spreading the experts is right.
    Experts that do not divide over the ranks are PAR002's; pools of disaggregated serving are not looked at.

    Why it is bad
    -------------
    Every expert layer sends each token to up to top-k ranks and back, twice a layer, in every step. Over a link that
    is tens of times slower than the scale-up link the devices wait for messages.

    The arithmetic
    --------------
    ``2 x tokens x distinct remote ranks (or nodes) x hidden size x bytes / bandwidth + latency`` a layer, over the
    step; the replicas read all experts each, and are priced with it.

    How to fix
    ----------
    The layout in the help line; a faster network (RDMA, a port for each device) where the experts need all devices.

    Source
    ------
    docs/cost-model.md, parallelism and collectives (expert parallelism).
    """

    code = "MOE004"
    name = "all-to-all-over-slow-link"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("which parallelism", "why is it slower with more GPUs")
    options = (
        Option("share", 0.25, "share of the decode step that dispatch and combine may take over slow links", 0.0, 1.0),
        Option("gain", 0.1, "share by which replicas within fast links have to shorten the average step", 0.0, 1.0),
    )
    failing = (
        Case(
            "experts over two nodes and Ethernet",
            SPEC,
            flip=("hardware.network", '{ bandwidth = "3.2 Tbit/s", per = "node" }'),
        ),
        Case(
            "the last bandwidth that is too little",
            SPEC.replace("100 Gbit/s", "810 Gbit/s"),
            flip=("hardware.network.bandwidth", '"815 Gbit/s"'),
        ),
    )
    passing = (
        Case(
            "a port for each device",
            SPEC.replace("100 Gbit/s", "3.2 Tbit/s").replace(" # expect: MOE004", ""),
        ),
        Case("the first that is enough", SPEC.replace("100 Gbit/s", "815 Gbit/s").replace(" # expect: MOE004", "")),
        Case(
            "experts within a node",
            SPEC.replace("devices = 16", "devices = 8").replace("data = 2\nexpert = 16 # expect: MOE004", "expert = 8"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price dispatch and combine, and replicas that need them within fast links only."""
        composition = review.composition
        if composition is None:
            yield Lacks("a composed deployment")
            return
        config = parallelism(composition)
        ranks = config.expert or 1
        if ranks == 1 or composition.scheduler.disaggregation is not None or within_fast_links(composition, ranks):
            return
        names = frozenset(
            op.name
            for op, demand in demands_of(composition.graph, Collective)
            if isinstance(demand, Collective) and demand.kind == "all_to_all"
        )
        if not names:
            return
        point = review.operating_point
        if point is None:
            yield Lacks("an operating point (workload)")
            return
        share = share_of(composition, names, point.shape())
        if share <= self.option("share"):
            return
        best = min(_apart(review, composition, point), key=lambda a: a.point.step_s, default=None)
        if best is not None and best.point.step_s <= point.step_s * (1 - self.option("gain")):
            yield self._finding(review, composition, point, share, best)

    def _finding(self, review: Review, composition: Composition, point: Point, share: float, best: Apart) -> Finding:
        config, topology = parallelism(composition), composition.setup.topology
        slow = topology.hops(config.expert)[-1]
        link = "PCIe" if slow.tier == "pcie" else "the network between nodes"
        path = ("policy", "parallelism", "expert")
        keys = ("pcie" if slow.tier == "pcie" else "network", "accelerator", "instance")
        where = next((("hardware", key) for key in keys if review.declared("hardware", key)), ("hardware",))
        return Finding(
            path,
            f"{share:.0%} of the decode step of {duration(point.plain_s)} at {counted(point.batch, 'sequence')} "
            f"(estimate) goes into sending tokens to {config.expert} expert ranks over {link}; {best.copies} replicas "
            f"within fast links take {duration(best.point.step_s)} for the average step of their part instead of "
            f"{duration(point.step_s)}",
            equation=(
                f"{duration(share * point.plain_s)} of {duration(point.plain_s)} at {size(slow.bytes_per_s)}/s each "
                f"x {topology.efficiency.link:.0%}; {duration(best.point.step_s)} / {duration(point.step_s)} = "
                f"{best.point.step_s / point.step_s:.2f} with {counted(best.point.batch, 'sequence')} in each replica"
            ),
            inputs=(
                Input("expert ranks", config.expert, "", composition.context.source("parallelism", "expert")),
                Input("sequences", point.batch, "", review.source("workload")),
                Input("sustained link fraction", topology.efficiency.link, "", topology.efficiency.source),
            ),
            help="set " + " and ".join(f"{dotted(p)} = {value}" for p, value in best.edits),
            related=(Related(where, f"{link}: {size(slow.bytes_per_s)}/s a device"),),
        )


def _apart(review: Review, composition: Composition, point: Point) -> Iterator[Apart]:
    """Replicas of a part of the devices, their expert ranks joined by fast links, that hold the model."""
    config, total = parallelism(composition), composition.setup.topology.devices
    group = config.t * config.d
    for copies in range(2, group + 1):
        if group % copies:
            continue
        changed = _part(config, copies)
        if changed is None or not within_fast_links(composition, changed.t * changed.d):
            continue
        devices = total // copies
        other = relaid(composition, changed, devices)
        try:
            if not fits(other):
                return
            service = Service(other, point.service.mix, open_loop=point.service.open_loop)
            batch = point.batch / copies
            if service.batch_limit < batch:
                return
        except InfeasibleError:
            continue
        yield Apart(_edits(review, config, changed, devices, copies), copies, service.point(batch))


def _part(config: Any, copies: int) -> Any:
    """The degrees of one of so many parts of the expert group, None where they do not divide."""
    data = config.d // gcd(config.d, copies)
    left = copies // gcd(config.d, copies)
    if config.t % left or config.attention_ranks % left or config.c > 1:
        return None
    tensor, attention = config.t // left, config.attention_ranks // left
    expert = tensor * data if tensor * data > 1 else 1
    return evolve(config, tensor=tensor, data=data, attention_data=attention, expert=expert)


def _edits(review: Review, config: Any, changed: Any, devices: int, copies: int) -> tuple[tuple[KeyPath, int], ...]:
    names = ("tensor", "data", "attention_data", "expert")
    place = ("policy", "parallelism")
    edits: list[tuple[KeyPath, int]] = [
        ((*place, name), getattr(changed, name)) for name in names if getattr(changed, name) != getattr(config, name)
    ]
    if review.declared("hardware", "devices"):
        edits.append((("hardware", "devices"), devices))
    return (*edits, (("hardware", "replicas"), review.replicas * copies))
