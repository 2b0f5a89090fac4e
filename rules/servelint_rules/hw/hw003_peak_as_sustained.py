"""HW003 peak-as-sustained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from servelint.composition import DEFAULT_EFFICIENCY
from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Option, Review, Rule, Severity, Source


class Usual(NamedTuple):
    """The sustained fraction to expect of a resource, its source, and whether it was measured on the part."""

    value: float
    source: Source
    measured: bool


class PeakAsSustained(Rule):
    """A peak rate is taken for what a kernel sustains.

    What it checks
    --------------
    The sustained fractions in ``hardware.efficiency``, in the efficiency table of an inline datasheet, and in
    ``claim.assumes.efficiency``: 1.0, or so near to it that nobody measured it (option ``peak``). The link's
    fraction matters only with several devices.

    Why it is bad
    -------------
    With fractions of 1.0 the estimate is the bound: the latency that no schedule can beat is shown as the one
    to expect, every operating point looks better than it is, and the SLO holds on paper only.

    The arithmetic
    --------------
    ``step time >= bytes / (fraction x peak)``. Decode attention was measured at 0.90 of an H100's bandwidth and
    dense GEMMs at 0.85 of its BF16 rate: fractions of 1.0 are 11 % and 18 % too fast there.

    How to fix
    ----------
    Give the measured fraction and its source, or leave the key out: the datasheet's measurement, or a stated
    default, then applies.

    Source
    ------
    The efficiency table of each accelerator's datasheet in the catalogue; docs/conventions.md for the defaults.
    """

    code = "HW003"
    name = "peak-as-sustained"
    severity = Severity.WARNING
    questions = ("is this claim possible", "why is it slower than planned")
    options = (Option("peak", 0.99, "fraction of the peak from which on it counts as the peak itself", 0.5, 1.0),)
    failing = (
        Case(
            "memory bandwidth at its peak",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.efficiency]
memory = 1.0 # expect: HW003
compute = 0.8
source = "vendor sheet"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.efficiency.memory", "0.9"),
        ),
        Case(
            "the limit itself counts as the peak",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.efficiency]
compute = 0.99 # expect: HW003
source = "vendor sheet"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.efficiency.compute", "0.98"),
        ),
        Case(
            "a claim computed from peak rates",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1500 tok/s"
at = { concurrency = 32, itl_p99 = "40 ms" }
[claim.assumes]
efficiency = 1.0 # expect: HW003
""",
            flip=("claim[0].assumes.efficiency", "0.8"),
        ),
    )
    passing = (
        Case(
            "just below the limit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.efficiency]
memory = 0.98
source = "bench/stream.json"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "one device has no link to use",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 1
[hardware.efficiency]
link = 1.0
source = "not used"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "no fraction declared: the datasheet's measurement applies",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look at every fraction that the spec writes down."""
        found = list(_fractions(review))
        if not found:
            yield Lacks("hardware.efficiency or claim.assumes.efficiency")
        for path, resource, fraction in found:
            usual = _usual(review, resource)
            if fraction >= self.option("peak") and fraction > usual.value:
                yield self._finding(review, path, resource, fraction, usual)

    def _finding(self, review: Review, path: KeyPath, resource: str, fraction: float, usual: Usual) -> Finding:
        return Finding(
            path,
            f"{fraction:g} of the peak {resource} rate is the bound, not what kernels sustain: {usual.value:g} "
            f"{'was measured on this part' if usual.measured else 'is the stated default'}, so times that rest on "
            f"it come out {1 - usual.value / fraction:.0%} too short",
            equation=(
                f"time = demand / (fraction x peak): {usual.value:g} / {fraction:g} = "
                f"{usual.value / fraction:.2f} of the time"
            ),
            inputs=(
                review.input(f"{resource} fraction", fraction, "", *path),
                Input(f"usual {resource} fraction", usual.value, "", usual.source),
            ),
            help=f"use {usual.value:g}, or a measured fraction with its source, or leave the key out",
            fix=Fix(f"use {usual.value:g}", (Edit(path, f"{usual.value:g}"),), safe=True),
        )


def _fractions(review: Review) -> Iterator[tuple[KeyPath, str, float]]:
    """Yield (place, resource, fraction) for every fraction that the spec gives."""
    hardware = review.deployment.hardware
    resources = [name for name in DEFAULT_EFFICIENCY if name != "link" or review.devices > 1]
    for name in resources:
        fraction = getattr(hardware.efficiency, name, None)
        if fraction is not None:
            yield ("hardware", "efficiency", name), name, fraction
    if hardware.datasheet is not None and review.accelerator is not None:
        for name in resources:
            if name in review.accelerator.measured:
                yield ("hardware", "datasheet", "efficiency", name), name, review.accelerator.measured[name]
    for path, claim in review.claims:
        if claim.assumes is not None and claim.assumes.efficiency is not None:
            yield (*path, "assumes", "efficiency"), "memory", claim.assumes.efficiency


def _usual(review: Review, resource: str) -> Usual:
    accelerator = review.accelerator
    if accelerator is not None and review.deployment.hardware.datasheet is None:
        fraction = accelerator.measured.get(resource)
        if fraction is not None:
            return Usual(fraction, accelerator.source("efficiency", resource), True)
    source = Source("default", "docs/conventions.md", f"efficiency.{resource}")
    return Usual(DEFAULT_EFFICIENCY[resource], source, False)
