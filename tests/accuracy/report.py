"""Prints the tables of docs/accuracy.md from the measured rows; with ``--write`` puts them into the page.

``python tests/accuracy/report.py [--write] [ROWS.csv]``
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import behaviour
import deployments
import gemms
import memory_logged
import published
from published import Score, UnmappedError

import cases
from servelint.composition import DEFAULT_COLLECTIVE_S, DEFAULT_EFFICIENCY, DEFAULT_LAUNCH_S
from servelint.cost import Pricer
from servelint.shapes import decode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"

LOADS = {
    "closed": "serving, closed loop",
    "offline": "serving, batch not stated",
    "static": "whole batch, prompt to end",
    "decode": "decode",
    "prefill": "prefill",
    "kernel": "kernel",
    "membw": "memory stream",
    "collective": "all-reduce",
}
PHASES = {"closed": "decode", "decode": "decode", "prefill": "prefill", "static": "request"}


class Scored:
    """All rows of a data file: priced, and those that cannot be with their reasons."""

    def __init__(self, path: Path = published.DATA) -> None:
        self.rows = published.read_rows(path)
        self.scores: list[Score] = []
        self.unmapped: Counter[str] = Counter()
        for row in self.rows:
            try:
                self.scores.append(published.score(row))
            except UnmappedError as error:
                self.unmapped[error.reason] += 1

    def estimates(self, wanted: Callable[[Score], bool] = lambda s: True) -> list[Score]:
        """Scores with an estimate, of serving and prompts (no components)."""
        return [s for s in self.scores if s.estimate is not None and s.row.load in PHASES and wanted(s)]


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    lines = [list(header), *[[str(c) for c in row] for row in rows]]
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def errors(scores: list[Score]) -> list[str]:
    """Number of rows, median error, median and 90th percentile of the absolute error."""
    values = [s.error for s in scores]
    sizes = sorted(abs(v) for v in values)
    p90 = sizes[int(0.9 * (len(sizes) - 1))]
    return [
        str(len(values)),
        f"{statistics.median(values):+.0%}",
        f"{statistics.median(sizes):.0%}",
        f"{p90:.0%}",
    ]


ERROR_HEADER = ("rows", "median error", "median absolute", "90th percentile absolute")


def coverage(scored: Scored) -> str:
    """Rows by whether they could be priced, with the reasons."""
    rows: list[tuple[object, object]] = [("priced", len(scored.scores))]
    rows += [(f"not priced: {reason}", n) for reason, n in scored.unmapped.most_common()]
    return table((f"of {len(scored.rows)} rows", ""), rows)


def bounds(scored: Scored) -> str:
    """Measured over bound by kind of load: nothing below 1 but the listed exceptions."""
    rows = []
    for load, name in LOADS.items():
        margins = sorted(s.margin for s in scored.scores if s.row.load == load)
        if margins:
            beaten = sum(m < 1 for m in margins)
            rows.append((name, len(margins), f"{margins[0]:.2f}", f"{statistics.median(margins):.2f}", beaten))
    return table(("what was measured", "rows", "least", "median", "below 1"), rows)


def summary(scored: Scored) -> str:
    """The estimate's error on the rows that a constant was set on, and on all others."""
    groups: list[tuple[str, Callable[[Score], bool]]] = [
        ("fitted: serving on B200", lambda s: published.fitted(s.row)),
        ("held out: serving, other accelerators", lambda s: s.row.load == "closed" and not published.fitted(s.row)),
        ("held out: decode of a fixed batch", lambda s: s.row.load == "decode"),
        ("held out: whole batches", lambda s: s.row.load == "static"),
        ("held out: prefill", lambda s: s.row.load == "prefill"),
    ]
    return table(("rows of", *ERROR_HEADER), ([name, *errors(scored.estimates(wanted))] for name, wanted in groups))


def by(scored: Scored, key: Callable[[Score], tuple[str, str]], names: tuple[str, str]) -> str:
    """Held-out errors by two keys, groups of at least three rows."""
    groups: dict[tuple[str, str], list[Score]] = {}
    for s in scored.estimates(lambda s: not published.fitted(s.row)):
        groups.setdefault(key(s), []).append(s)
    rows = [[*k, *errors(groups[k])] for k in sorted(groups) if len(groups[k]) >= 3]
    return table((*names, *ERROR_HEADER), rows)


def by_hardware(scored: Scored) -> str:
    """Held-out errors by accelerator and phase."""
    return by(scored, lambda s: (s.row.hardware, PHASES[s.row.load]), ("accelerator", "phase"))


def by_engine(scored: Scored) -> str:
    """Held-out errors by engine and phase."""
    return by(scored, lambda s: (s.row.engine, PHASES[s.row.load]), ("engine", "phase"))


def by_degree(scored: Scored) -> str:
    """Held-out serving by tensor-parallel degree and by batch, over all its engines and accelerators."""
    rows: list[list[str]] = []
    kinds: list[tuple[str, Callable[[Score], object], tuple[int, ...]]] = [
        ("tensor", lambda s: s.row.tp, (1, 2, 4, 8)),
        ("batch", lambda s: s.row.batch, (4, 16, 64)),
    ]
    for name, key, values in kinds:
        for value in values:
            scores = scored.estimates(
                lambda s, key=key, value=value: (  # type: ignore[misc]
                    s.row.load == "closed" and not published.fitted(s.row) and key(s) == value
                )
            )
            rows.append([f"{name} {value}", *errors(scores)])
    return table(("serving", *ERROR_HEADER), rows)


def constants(scored: Scored) -> str:
    """Medians of the component facts beside the constants that stand for them."""
    components = published.read_components()
    rows: list[tuple[object, ...]] = []
    for tier, values in published.collective_us(components).items():
        unit = "us a device" if tier == "pcie" else "us"
        rows.append(
            (
                f"all-reduce of at most 64 KiB, {tier}",
                len(values),
                f"{statistics.median(values):.2f} {unit}",
                f"{DEFAULT_COLLECTIVE_S[tier] * 1e6:g} {unit}",
            )
        )
    fractions = published.compute_fractions(components)
    for name, values in sorted(fractions.items()):
        part = next(hardware for hardware, a in published.ARCHITECTURES.items() if a == name)
        used = published.plugins().accelerators.get(published.ACCELERATORS[part]).measured["compute"]
        rows.append((f"share of the compute peak, {name}", len(values), f"{statistics.median(values):.2f}", used))
    medians = statistics.median(statistics.median(v) for v in fractions.values())
    rows.append(("the same, parts without a figure", "", f"{medians:.2f}", DEFAULT_EFFICIENCY["compute"]))
    fit = scored.estimates(lambda s: published.fitted(s.row))
    error = statistics.median(s.error for s in fit)
    rows.append(
        (
            "time of a kernel besides its roofline",
            len(fit),
            f"median error {error:+.0%}",
            f"{DEFAULT_LAUNCH_S * 1e6:g} us",
        )
    )
    return table(("constant", "rows", "median of the rows", "in force"), rows)


SMALL = (
    ("Llama-3.2-1B", "meta-llama/Llama-3.2-1B", 1),
    ("Llama-3.2-3B", "meta-llama/Llama-3.2-3B", 1),
    ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B", 1),
    ("Llama-3.1-70B, tensor 4", "meta-llama/Llama-3.1-70B", 4),
)


def launches(scored: Scored) -> str:
    """What kernels cost besides their rooflines: one sequence of 1,024 tokens on H100 SXM5, BF16."""
    rows = []
    for name, model, tensor in SMALL:
        text = (
            'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
            f'devices = {tensor}\n[model]\nid = "{model}"\n[policy.parallelism]\ntensor = {tensor}\n'
        )
        found = published.review(text).composition
        assert found is not None
        shape = decode(1.0, 1024.0)
        bound, estimate = float(found.pricer.bound(shape)), float(found.pricer.estimate(shape))
        free = Pricer(found.graph, published.without_launches(found.setup.topology)).estimate(shape)
        rows.append((name, f"{bound * 1e3:.2f}", f"{estimate * 1e3:.2f}", f"{1 - float(free) / estimate:.0%}"))
    return table(("model", "bound, ms", "estimate, ms", "of it kernels' own time"), rows)


def imported(scored: Scored) -> str:
    """What `servelint import` reads of published deployments; the rows are others than those that are priced."""
    return deployments.table(deployments.read_all())


LOGGED_HEADER = ("record", "figure", "servelint", "logged", "error", "why, where it is off")

TABLES: dict[str, Callable[[Scored], str]] = {
    "coverage": coverage,
    "bounds": bounds,
    "summary": summary,
    "hardware": by_hardware,
    "engines": by_engine,
    "constants": constants,
    "launches": launches,
    "gemms": lambda _: table(
        ("sequences", "measured, ms", "bound, ms", "estimate, ms", "error of the estimate"), gemms.rows()
    ),
    "degrees": by_degree,
    "deployments": imported,
    "behavior-summary": lambda _: table(("", "number"), behaviour.summary_rows()),
    "behavior": lambda _: table(
        ("case", "figure", "arms", "estimated ratio", "observed", "right direction"), behaviour.rows()
    ),
    "behavior-missing": lambda _: table(("case", "why it is not compared"), behaviour.missing_rows()),
    "memory-summary": lambda _: table(
        ("figures", "number", "median error", "median absolute", "worst"), memory_logged.summary_rows()
    ),
    "memory-given": lambda _: table(LOGGED_HEADER, memory_logged.given_rows()),
    "memory-alone": lambda _: table(LOGGED_HEADER, memory_logged.alone_rows()),
    "cases-summary": lambda _: table(
        ("kind", "expected", "cases", "hold", "share", "the others"), cases.summary_rows()
    ),
    "cases": lambda _: table(("case", "about", "expected", "found", "verdict", "why not"), cases.case_rows()),
    "memory-missing": lambda _: table(("record", "why it is not compared"), memory_logged.missing_rows()),
}


def render(text: str, scored: Scored) -> str:
    """Return the page with every marked table replaced by what the rows give."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n)(?:(?!<!-- end -->).)*(<!-- end -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"the page has not exactly one place for the table {name!r}")
        body = make(scored)
        text = pattern.sub(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)  # type: ignore[misc]
    return text


def main(arguments: list[str]) -> None:
    """Print the tables, or write them into the page."""
    write = "--write" in arguments
    paths = [Path(a) for a in arguments if a != "--write"]
    scored = Scored(*paths)
    if write:
        PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), scored), encoding="utf-8")
        return
    for name, make in TABLES.items():
        print(f"\n{name}\n\n{make(scored)}")


if __name__ == "__main__":
    main(sys.argv[1:])
