"""HW010 double-count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from servelint.lineage import KeyPath, dotted
from servelint.plugin import Accelerator, Case, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint_rules.hw.figures import (
    BANDWIDTH,
    MEMORY,
    PART,
    Figure,
    figure_source,
    first_declared,
    near,
    of_another_variant,
    own_figures,
    published_figures,
    shown,
    written,
)
from servelint_rules.hw.hw005_wrong_precision_rate import other_precision

BOARDS = {2: "pair or superchip", 4: "tray", 8: "board", 16: "two boards", 36: "half rack", 72: "rack"}
"""How many devices vendors print figures together for."""

RANKS: Mapping[str, int] = {"mi250x": 2, "tpu7x": 2, "inferentia2": 2, "trainium1": 2, "trainium2": 4}
"""Devices that a framework sees of one part of a family: graphics dies, chiplets, logical cores. The other parts of
several dies show as one."""


class DoubleCount(Rule):
    """Figures of several devices are used for one, or those of one die or core for the whole part.

    What it checks
    --------------
    Memory, bandwidth and compute rates in ``hardware.override``, ``hardware.datasheet`` and ``claim.assumes`` against
    multiples of the part's own: two (H100 NVL pair, GB200 superchip), a tray, a board, a rack, the devices of the
    replica. For parts that a framework sees as several devices (MI250X, TPU7x, Inferentia2, Trainium): an override
    that takes some figures of one die and leaves the others, and degrees of parallelism from launch arguments that
    count dies where this tool counts parts. Sparse rates are HW001's, figures of another variant HW002's, those
    of another precision HW005's; degrees that do not fit ``hardware.devices`` are PAR006's. Memory of one die alone is
    left alone: it may be a slice.

    Why it is bad
    -------------
    "GB200: 372 GB, 16 TB/s" is a superchip of two GPUs, and parallelism multiplies it again: capacity and bandwidth
    come out twice, or eight times, what they are. The other way round, eight ranks on MI250X are four packages.

    The arithmetic
    --------------
    ``given = n x published`` (to 1 %); ``packages = ranks / dies a package``.

    How to fix
    ----------
    Use the figure of one device, as the catalogue has it; divide ranks by what the framework sees of a part, or
    override all of memory, bandwidth and compute with those of one die.

    Source
    ------
    The accelerator's datasheet and its notes, as cited in the catalogue. ROCm/ROCm@e396b4898f45:
    docs/conceptual/gpu-arch/mi250.md (each die of a package is a device).
    """

    code = "HW010"
    name = "double-count"
    severity = Severity.WARNING
    questions = ("does it fit", "is this claim possible")
    failing = (
        Case(
            "the bandwidth of a superchip for one of its GPUs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/gb200-nvl72-186gb"
[hardware.override]
memory_bandwidth = "16 TB/s" # expect: HW010
source = "GB200 superchip column"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.memory_bandwidth", '"8 TB/s"'),
        ),
        Case(
            "the memory of a bridged pair",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-nvl-94gb"
[hardware.override]
memory = "188 GB" # expect: HW010
source = "launch material"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.memory", '"94 GB"'),
        ),
        Case(
            "a claim from the bandwidth of a whole board",
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
memory_bandwidth = "26.8 TB/s" # expect: HW010
""",
            flip=("claim[0].assumes.memory_bandwidth", '"3.35 TB/s"'),
        ),
        Case(
            "the bandwidth of one die beside the memory of the package",
            """\
servelint = 1
[hardware]
accelerator = "amd/mi250x-oam-128gb"
[hardware.override]
memory_bandwidth = "1.6384 TB/s" # expect: HW010
source = "one graphics die"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.override.memory_bandwidth", '"3.2768 TB/s"'),
        ),
        Case(
            "ranks on dies, counted as packages",
            """\
servelint = 1
[hardware]
accelerator = "amd/mi250x-oam-128gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
args = "--tensor-parallel-size 2" # expect: HW010
""",
            flip=("hardware.accelerator", '"amd/mi210-pcie-64gb"'),
        ),
    )
    passing = (
        Case(
            "figures of one GPU of a superchip",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/gb200-nvl72-186gb"
[hardware.override]
memory_bandwidth = "8 TB/s"
memory = "186 GB"
source = "GB200 NVL72 datasheet, per GPU"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "just outside the rounding of a pair's bandwidth",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/gb200-nvl72-186gb"
[hardware.override]
memory_bandwidth = "16.2 TB/s"
source = "a part to come"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "one die throughout",
            """\
servelint = 1
[hardware]
accelerator = "amd/mi250x-oam-128gb"
[hardware.override]
memory = "64 GiB"
memory_bandwidth = "1.6384 TB/s"
dense_flops = { bf16 = "191.5 TFLOP/s" }
source = "one graphics die"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
args = "--tensor-parallel-size 2"
""",
        ),
        Case(
            "two dies that show as one device",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
args = "--tensor-parallel-size 2"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare figures with multiples of the part's own, and ranks with the parts that they take."""
        figures = list(written(review))
        if not figures and not review.document.settings:
            yield Lacks("figures in hardware.override, hardware.datasheet or claim.assumes, or launch arguments")
        for figure, own in figures:
            if (number := together(review, figure, own)) is not None:
                yield _several(review, figure, own, number)
        accelerator = review.accelerator
        if accelerator is None or (ranks := RANKS.get(accelerator.family, 1)) == 1:
            return
        halved = [f for f, own in figures if f.path[0] == "hardware" and _of_a_die(f, own, ranks)]
        if halved and not _whole_die(halved):
            for figure in halved:
                if figure.kind != MEMORY:
                    yield _die(review, figure, accelerator, ranks)
        elif not halved and (path := _launched(review)) is not None:
            yield _packages(review, path, accelerator, ranks)


def together(review: Review, figure: Figure, own: Accelerator) -> int | None:
    """How many devices a figure is of, where it is of several and no other rule says whose it is."""
    published = published_figures(own, figure.kind)
    figures = own_figures(own, figure.kind)
    if not published or figure.value < 1.5 * max(published) or near(figure.value, figures):
        return None
    counts = (*BOARDS, review.devices)
    found = next((n for n in counts if near(figure.value / n, figures)), None)
    if found is None or of_another_variant(review, figure, own) or other_precision(review, figure, own) is not None:
        return None
    return found


def _several(review: Review, figure: Figure, own: Accelerator, number: int) -> Finding:
    each = min(own_figures(own, figure.kind), key=lambda p: abs(figure.value / number - p))
    single = published_figures(own, figure.kind)[0]
    what = BOARDS.get(number, "replica")
    return Finding(
        figure.path,
        f"{shown(figure.kind, figure.value)} is the {figure.what} of {number} x {own.name}, a {what}; one device has "
        f"{shown(figure.kind, single)}, and parallelism multiplies it again",
        equation=f"given {shown(figure.kind, figure.value)} = {number} x {shown(figure.kind, each)}",
        inputs=(
            figure.input(review),
            Input(f"{figure.what} of {own.id}", single, figure.unit, figure_source(own, figure.kind)),
        ),
        help=f"set {dotted(figure.path)} = {figure.text(single)}, the figure of one device",
        related=_part(review, figure.path),
        fix=figure.fix("use the figure of one device", single),
    )


def _of_a_die(figure: Figure, own: Accelerator, ranks: int) -> bool:
    return near(figure.value * ranks, own_figures(own, figure.kind)) and not near(
        figure.value, own_figures(own, figure.kind)
    )


def _whole_die(halved: list[Figure]) -> bool:
    """Whether memory, bandwidth and a compute rate all are of one die: then a device is one."""
    kinds = {figure.kind for figure in halved}
    return {MEMORY, BANDWIDTH} < kinds


def _die(review: Review, figure: Figure, own: Accelerator, ranks: int) -> Finding:
    whole = published_figures(own, figure.kind)[0]
    return Finding(
        figure.path,
        f"{shown(figure.kind, figure.value)} is the {figure.what} of one of the {ranks} devices that a framework sees "
        f"of {own.name}, and other figures are of the whole part: {shown(figure.kind, whole)}",
        equation=f"given {shown(figure.kind, figure.value)} = {shown(figure.kind, whole)} / {ranks}",
        inputs=(
            figure.input(review),
            Input(f"{figure.what} of {own.id}", whole, figure.unit, figure_source(own, figure.kind)),
        ),
        help=f"set it to {figure.text(whole)}, or override memory, bandwidth and compute rate together",
        related=_part(review, figure.path),
        fix=figure.fix("use the figure of the whole part", whole),
    )


def _launched(review: Review) -> KeyPath | None:
    """The degree that launch arguments set and that decides the devices, None where something else does."""
    settings, hardware = review.document.settings, ("hardware", "devices")
    if review.declared("hardware", "instance") or (review.declared(*hardware) and hardware not in settings):
        return None
    degrees = {}
    for key in ("tensor", "data", "pipeline"):
        path = ("policy", "parallelism", key)
        value = settings[path].value if path in settings else None
        if isinstance(value, int) and value > 1:
            degrees[path] = value
    return next(iter(degrees), None) if prod(degrees.values()) == review.devices else None


def _packages(review: Review, path: KeyPath, own: Accelerator, ranks: int) -> Finding:
    devices = review.devices
    memory = own.usable_memory[0]
    return Finding(
        path,
        f"the launch arguments start {devices} ranks, and a framework sees {ranks} devices of each {own.name}: "
        f"{-(-devices // ranks)} of them, not {devices}, with {shown(MEMORY, memory / ranks)} a rank",
        equation=f"{devices} ranks / {ranks} a part = {devices / ranks:g} parts",
        inputs=(
            Input("ranks", devices, "", review.source(*path)),
            Input("memory of the part", float(memory), "B", own.usable_source),
        ),
        help=(
            f"override all of it with the figures of one: memory = {memory / ranks:.0f}, memory_bandwidth = "
            f'"{own.memory_bandwidth_bytes_per_s / ranks / 1e12:g} TB/s" and dense_flops, each the part\'s / {ranks}'
        ),
        related=_part(review, path),
    )


def _part(review: Review, path: KeyPath) -> tuple[Related, ...]:
    places = ((*path[:3], "accelerator"), *PART) if path[0] == "claim" else PART
    return first_declared(review, "the part", *places)
