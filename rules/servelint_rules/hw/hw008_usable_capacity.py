"""HW008 usable-capacity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    Accelerator,
    Case,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Review,
    Rule,
    Severity,
)
from servelint_rules.hw.figures import MEMORY, PART, Figure, first_declared, known, of_another_variant
from servelint_rules.hw.hw010_double_count import together
from servelint_rules.show import size


class Planned(NamedTuple):
    """The memory of a device that the spec plans with, and where it says so."""

    path: KeyPath
    value: float
    what: str


class UsableCapacity(Rule):
    """The plan counts more memory of a device than its runtime sees.

    What it checks
    --------------
    ``hardware.override.memory``, and the memory of an inline datasheet of a part that the catalogue has, against what
    a runtime sees of that part: its own total, else what the driver reports. Less is left alone, since it may be a
    slice. A figure of another variant of the product is HW002's, one of several devices together HW010's.

    Why it is bad
    -------------
    The figure on the box is neither what the driver reports nor what a process can allocate: ECC, the firmware's
    and the runtime's share are gone, and "24 GB" of an L4 are 23.6. The engine sizes its cache by what it sees, so the
    planned sequences do not fit; and a plan that fits by a hair does not start.

    The arithmetic
    --------------
    ``planned <= visible x (1 + tolerance)``. 80 GiB are 85.9 GB, and an H100 of 80 GB shows 85.0 GB.

    How to fix
    ----------
    Leave the key out: what the runtime sees then counts. Or use the figure of the message.

    Source
    ------
    Totals that the CUDA or HIP runtime, else the driver, reported of the part, as cited in the catalogue.
    """

    code = "HW008"
    name = "usable-capacity"
    severity = Severity.WARNING
    questions = ("does it fit",)
    options = (
        Option(
            "tolerance",
            0.005,
            "relative excess that still counts as what the runtime sees; drivers differ by about as much",
            0.0,
            0.1,
        ),
    )
    failing = (
        Case(
            "the binary reading of the figure on the box",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
memory = "80 GiB" # expect: HW008
source = "product page"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.memory", '"80 GB"'),
        ),
        Case(
            "the decimal figure of a part that shows less",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[hardware.override]
memory = "24 GB" # expect: HW008
source = "L4 datasheet"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
""",
            flip=("hardware.override.memory", '"23.7 GB"'),
        ),
        Case(
            "an inline datasheet of a known part without what the runtime sees",
            """\
servelint = 1
[hardware.datasheet]
id = "nvidia/t4"
compute_capability = "7.5"
compute = { dense_flops = { fp16 = 65e12 }, sources = ["T4 datasheet"] }
[hardware.datasheet.memory]
published_bytes = 16_000_000_000 # expect: HW008
bandwidth_bytes_per_s = 320e9
sources = ["T4 datasheet"]
[model]
id = "Qwen/Qwen2.5-1.5B"
max_model_len = 4096
[policy.quantization]
weights = "fp16"
""",
            flip=("hardware.datasheet.memory.published_bytes", "15_630_000_000"),
        ),
    )
    passing = (
        Case(
            "just within the tolerance",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[hardware.override]
memory = "23.7 GB"
source = "L4, torch.cuda.mem_get_info"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
""",
        ),
        Case(
            "the decimal figure of a part that shows more",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[hardware.override]
memory = "80 GB"
source = "H100 datasheet"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a slice of a device",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[hardware.override]
memory = "40 GB"
source = "MIG 3g.40gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the planned memory with what the runtime sees of the part."""
        part, planned = known(review), _planned(review)
        if planned is None:
            yield Lacks("hardware.override.memory or hardware.datasheet.memory")
            return
        seen = _seen(part) if part is not None else None
        if part is None or seen is None:
            yield Lacks("what a runtime or driver sees of the device's memory")
            return
        visible, field = seen
        figure = Figure(planned.path, MEMORY, planned.value)
        if planned.value <= visible * (1 + self.option("tolerance")):
            return
        if of_another_variant(review, figure, part) or together(review, figure, part) is not None:
            return
        yield _finding(review, planned, part, visible, field)


def _planned(review: Review) -> Planned | None:
    hardware, accelerator = review.deployment.hardware, review.accelerator
    if hardware.override is not None and hardware.override.memory is not None:
        return Planned(("hardware", "override", "memory"), hardware.override.memory, "the override")
    if hardware.datasheet is None or accelerator is None:
        return None
    path: KeyPath = ("hardware", "datasheet", "memory")
    usable, _ = accelerator.usable_memory
    for name in ("runtime_visible_bytes", "driver_total_bytes", "published_bytes"):
        if review.declared(*path, name):
            return Planned((*path, name), usable, f"{name} of the datasheet")
    return None


def _seen(part: Accelerator) -> tuple[float, str] | None:
    """What the runtime sees; only the driver's total where nothing says that: it is no less."""
    for name in ("runtime_visible_bytes", "driver_total_bytes"):
        value = getattr(part, name)
        if value is not None:
            return float(value), name
    return None


def _finding(review: Review, planned: Planned, part: Accelerator, visible: float, field: str) -> Finding:
    lost = planned.value - visible
    who = "the runtime sees" if field == "runtime_visible_bytes" else "the driver reports"
    at_most = f"{visible:.0f}"
    override = planned.path[1] == "override"
    mended = planned.path if override else ("hardware", "datasheet", "memory", "runtime_visible_bytes")
    return Finding(
        planned.path,
        f"{planned.what} counts {size(planned.value)} a device, and {who} {size(visible)} of {part.name}: "
        f"{size(lost)} ({lost / planned.value:.1%}) are not there",
        equation=f"{size(planned.value)} - {size(visible)} = {size(lost)}",
        inputs=(
            review.input("planned memory", planned.value, "B", *planned.path),
            Input("visible memory", visible, "B", part.source("memory", field)),
        ),
        help=(
            f"set it to at most {at_most} bytes, or leave it out" if override else f"set {dotted(mended)} = {at_most}"
        ),
        related=first_declared(review, "the part", *PART),
        fix=Fix("use what the runtime sees", (Edit(mended, at_most),), safe=True),
    )
