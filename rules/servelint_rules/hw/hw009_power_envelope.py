"""HW009 power-envelope."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Option, Review, Rule, Severity, Source
from servelint.units import Dimension, format_quantity
from servelint_rules.hw.figures import PART, first_declared

NODE = 8
"""Most devices of a node where nothing says how many it has."""


class Budget(NamedTuple):
    """What a node or rack may draw, the devices in it, and its key."""

    path: KeyPath
    watts: float
    devices: int
    where: str


class PowerEnvelope(Rule):
    """The devices draw more than the node or rack may, or nothing says what they draw.

    What it checks
    --------------
    ``hardware.power.per_node`` and ``per_rack`` against the devices there at their power limit: ``per_device``, else
    the power of the datasheet. More than the budget for the devices alone is a warning; advice, where they leave their
    hosts less than the share ``host``, and where a budget is declared and nothing says what a device draws. Devices
    of a node: declared, of the instance type, else those of the replica. Silent without a budget.

    Why it is bad
    -------------
    Over the budget a breaker opens, or the power cap of the rack slows every device at once, in prefill first, when all
    of them compute: exactly under load. Sized from datasheet rates, the deployment then misses its objectives.

    The arithmetic
    --------------
    ``devices x power per device <= budget``, and ``<= budget x (1 - host)`` for the hosts, fans and network beside
    them.

    How to fix
    ----------
    Limit the devices to the power that the help line gives (``per_device``; compute rates fall with it), put fewer
    in a node or rack, or get the power.

    Source
    ------
    Power of the accelerator's datasheet, as cited in the catalogue. The share of hosts: NVIDIA DGX A100 (8 x 400 W of
    6.5 kW), DGX H100 (8 x 700 W of 10.2 kW) and DGX B200 (8 x 1,000 W of 14.3 kW) user guides: 44 to 51 %.
    """

    code = "HW009"
    name = "power-envelope"
    severity = Severity.WARNING
    questions = ("why is it slower than planned", "does it fit")
    options = (
        Option(
            "host",
            0.3,
            "share of a node's or rack's power that hosts, fans and network are expected to take; published nodes of "
            "eight devices take 0.44 to 0.51",
            0.0,
            0.9,
        ),
    )
    failing = (
        Case(
            "eight devices in a node that gives them a quarter less",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
power = { per_node = "4.2 kW" } # expect: HW009
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
            flip=("hardware.power.per_node", '"10.2 kW"'),
        ),
        Case(
            "a node's share of devices that stand in two",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
nodes = 2
power = { per_node = "2.1 kW" } # expect: HW009
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
            flip=("hardware.power.per_node", '"5.1 kW"'),
        ),
        Case(
            "one watt less than devices and hosts take",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
power = { per_node = "7999 W" } # expect: HW009
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
            flip=("hardware.power.per_node", '"8000 W"'),
        ),
        Case(
            "a rack of four nodes",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
devices_per_node = 8
replicas = 4
power = { per_rack = "17 kW", nodes_per_rack = 4 } # expect: HW009
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
            flip=("hardware.power.nodes_per_rack", "1"),
        ),
        Case(
            "a part that does not say what it draws",
            """\
servelint = 1
[hardware]
power = { per_node = "4 kW" } # expect: HW009
[hardware.datasheet]
id = "acme/a1"
memory = { published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12, sources = ["A1 datasheet"] }
compute = { dense_flops = { bf16 = 500e12 }, sources = ["A1 datasheet"] }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.power", '{ per_node = "4 kW", per_device = "600 W" }'),
        ),
    )
    passing = (
        Case(
            "just what devices and hosts take",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
power = { per_node = "8 kW" }
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
        ),
        Case(
            "devices limited to what the node has for them",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
power = { per_node = "6 kW", per_device = "500 W" }
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
        ),
        Case(
            "no budget",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what the devices of a node and a rack draw with their budgets."""
        power, accelerator = review.deployment.hardware.power, review.accelerator
        budgets = list(_budgets(review))
        if power is None or not budgets or accelerator is None:
            yield Lacks(
                "hardware.power.per_node, or per_rack with nodes_per_rack, an accelerator, and its devices a node"
            )
            return
        if power.per_device is not None:
            watts, source = power.per_device, review.source("hardware", "power", "per_device")
        elif accelerator.power_w is not None:
            watts, source = accelerator.power_w, accelerator.source("power", "tdp_w")
        else:
            yield Finding(
                budgets[0].path,
                f"a budget of {_watts(budgets[0].watts)} is declared, and nothing says what {accelerator.name} draws",
                help="set hardware.power.per_device, or power.tdp_w of the datasheet",
                severity=Severity.INFO,
            )
            return
        for budget in budgets:
            if (finding := self._over(review, budget, watts, source)) is not None:
                yield finding

    def _over(self, review: Review, budget: Budget, watts: float, source: Source) -> Finding | None:
        drawn, host = budget.devices * watts, self.option("host")
        alone = drawn > budget.watts * (1 + 1e-9)
        if not alone and drawn <= budget.watts * (1 - host) * (1 + 1e-9):
            return None
        limit = floor(budget.watts * (1 - host) / budget.devices)
        left = (
            f"{_watts(drawn - budget.watts)} more than the {budget.where} may"
            if alone
            else f"which leaves {1 - drawn / budget.watts:.0%} of the {budget.where}'s {_watts(budget.watts)} for "
            f"everything else; {host:.0%} is little for hosts, fans and network"
        )
        kept = ("hardware", "power", "per_device")
        return Finding(
            budget.path,
            f"{budget.devices} devices of {_watts(watts)} draw {_watts(drawn)} at full load, {left}",
            equation=(
                f"{budget.devices} x {_watts(watts)} = {_watts(drawn)} > {_watts(budget.watts)}"
                + ("" if alone else f" x (1 - {host:g}) = {_watts(budget.watts * (1 - host))}")
            ),
            inputs=(
                review.input(f"budget of the {budget.where}", budget.watts, "W", *budget.path),
                Input("power per device", watts, "W", source),
                Input("devices", budget.devices, "", review.source("hardware")),
            ),
            help=(
                f'limit the devices to {limit} W (hardware.power.per_device = "{limit} W"), or give the '
                f"{budget.where} {_watts(drawn / (1 - host))}"
            ),
            related=first_declared(review, f"{_watts(watts)} a device", kept, *PART),
            severity=Severity.WARNING if alone else Severity.INFO,
            fix=Fix(f"limit the devices to {limit} W", (Edit(kept, f'"{limit} W"'),))
            if review.declared(*kept) and limit
            else None,
        )


def _watts(value: float) -> str:
    return format_quantity(value, Dimension.WATTS, 4)


def _budgets(review: Review) -> Iterator[Budget]:
    hardware = review.hardware
    power = hardware.power
    if power is None:
        return
    total = review.devices * review.replicas
    link = review.accelerator.link if review.accelerator is not None else None
    if hardware.devices_per_node is not None:
        node = min(hardware.devices_per_node, total)
    elif hardware.nodes is not None:
        node = -(-review.devices // hardware.nodes)
    elif link is not None and link.domain > NODE:
        # The link joins several nodes, and nothing says how many devices each has.
        return
    else:
        node = min(review.devices, NODE)
    if power.per_node is not None:
        yield Budget(("hardware", "power", "per_node"), power.per_node, node, "node")
    if power.per_rack is not None and power.nodes_per_rack is not None:
        rack = min(node * power.nodes_per_rack, total)
        yield Budget(("hardware", "power", "per_rack"), power.per_rack, rack, "rack")
