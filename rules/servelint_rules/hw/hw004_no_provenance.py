"""HW004 no-provenance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from servelint.lineage import KeyPath, dotted
from servelint.plugin import Case, Finding, Lacks, Review, Rule, Severity

SOURCED = ("memory", "compute", "link", "pcie", "power", "die", "native", "efficiency")
"""Tables of a datasheet whose figures have sources."""

PLACEHOLDER = re.compile(r"\W*(?:todo|tbd|tba|fixme|unknown|none|n/?a|x+)?\W*", re.IGNORECASE)
"""A text that stands where a source should and names none."""


class Unsourced(NamedTuple):
    """Figures without a source: their places, where the source would stand, and whether something stands there."""

    figures: tuple[KeyPath, ...]
    key: KeyPath
    placeholder: bool = False


class NoProvenance(Rule):
    """Figures of the hardware are declared without saying where they come from.

    What it checks
    --------------
    ``hardware.override`` and ``hardware.efficiency`` with figures and no ``source``; tables of an inline
    ``hardware.datasheet`` without ``sources``; a source that is a placeholder ("TODO", "n/a"). Figures of the
    catalogue have sources already. Whether a source is right, or has its revision, nothing here can know; wrong
    figures are the other HW rules'.

    Why it is bad
    -------------
    Every bound, every estimate and every objective that is met rests on these figures, and they replace sourced ones.
    Vendors revise datasheets (dense and sparse columns, memory, clocks): a figure without its document and revision
    can neither be checked nor renewed, and nobody dares to change it.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Name document and revision ("NVIDIA H100 datasheet, 2024-03, dense column"), or the file of the measurement; or
    take the figures out and let the catalogue's stand.

    Source
    ------
    docs/plugins.md: what a datasheet of a plugin has to have.
    """

    code = "HW004"
    name = "no-provenance"
    severity = Severity.INFO
    questions = ("is this claim possible",)
    failing = (
        Case(
            "an override without a source",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
override = { memory_bandwidth = "3.2 TB/s" } # expect: HW004
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=(
                "hardware.override",
                '{ memory_bandwidth = "3.2 TB/s", source = "bench/2026-05-stream-triad.json" }',
            ),
        ),
        Case(
            "a placeholder",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
efficiency = { memory = 0.82, source = "TODO" } # expect: HW004
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=("hardware.efficiency.source", '"bench/2026-05-stream-triad.json"'),
        ),
        Case(
            "a table of an inline datasheet without sources",
            """\
servelint = 1
[hardware.datasheet]
id = "acme/a1"
name = "Acme A1"
memory = { published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12 } # expect: HW004
compute = { dense_flops = { bf16 = 500e12 }, sources = ["Acme A1 datasheet, revision 3"] }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
            flip=(
                "hardware.datasheet.memory",
                "{ published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12, "
                'sources = ["Acme A1 datasheet, revision 3"] }',
            ),
        ),
    )
    passing = (
        Case(
            "an override with its measurement",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
override = { memory_bandwidth = "3.2 TB/s", source = "bench/2026-05-stream-triad.json" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "the catalogue's figures",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
        Case(
            "a source without any figure",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
override = { source = "TODO" }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for the source beside every group of figures."""
        hardware = review.deployment.hardware
        if hardware.override is None and hardware.efficiency is None and hardware.datasheet is None:
            yield Lacks("hardware.override, hardware.efficiency or hardware.datasheet")
            return
        for name in ("override", "efficiency"):
            if (lack := _unsourced(review, name)) is not None:
                yield _finding(review, lack)
        if review.accelerator is not None and (lack := _datasheet(hardware.datasheet or {})) is not None:
            yield _finding(review, lack)


def _unsourced(review: Review, name: str) -> Unsourced | None:
    table, path = getattr(review.deployment.hardware, name), ("hardware", name)
    declared = review.document.value(path)
    if table is None or not isinstance(declared, Mapping):
        return None
    figures = tuple((*path, key) for key in declared if key != "source")
    source = table.source
    if not figures or (source is not None and PLACEHOLDER.fullmatch(source) is None):
        return None
    return Unsourced(figures, (*path, "source"), source is not None)


def _datasheet(datasheet: Mapping[str, Any]) -> Unsourced | None:
    path = ("hardware", "datasheet")
    lacking = [n for n in SOURCED if datasheet.get(n) and not _named(datasheet[n].get("sources", []))]
    return Unsourced(tuple((*path, n) for n in lacking), (*path, lacking[0], "sources")) if lacking else None


def _named(sources: list[str]) -> bool:
    return any(PLACEHOLDER.fullmatch(source) is None for source in sources)


def _finding(review: Review, lack: Unsourced) -> Finding:
    names = ", ".join(dotted(path) for path in lack.figures)
    stands = f"{review.document.value(lack.key)!r} names none" if lack.placeholder else "no source is given"
    several = len(lack.figures) > 1
    return Finding(
        lack.key if lack.placeholder else lack.figures[0],
        f"every figure of this deployment rests on {names}, and {stands}: "
        f"{'they' if several else 'it'} can be neither checked nor renewed",
        help=f"set {dotted(lack.key)} to document and revision, or to the file of the measurement",
    )
