"""What ``servelint cost`` shows, for people."""

from __future__ import annotations

import math
from typing import Any

from servelint.lineage import dotted
from servelint.memory import MemoryLedger
from servelint.report.cost import PERCENTILES, deployment_object
from servelint.report.figures import Figures, Step
from servelint.report.safe import guarded, printable
from servelint.report.show import UNLIMITED, Style, quantity
from servelint.review import Review

Rows = list[tuple[str, ...]]

PREFILL = (
    "the estimate of a prefill is hopeful: prompts that were measured took about half as long again in the median, "
    "short ones longer (docs/accuracy.md, by accelerator)"
)

ORDER = ("itl", "tpot", "ttft", "e2e")
"""Latencies of the frontier from a token to a request."""


def as_text(figures: Figures, style: Style) -> str:
    """Return everything for people."""
    review = figures.review
    about = deployment_object(figures)
    name = f"{about['name']}: " if about["name"] else ""
    title = printable(f"{name}{about['model']} on {about['devices']} x {about['accelerator']}")
    engine = printable(f"{about['engine']} {about['engine_version'] or ''}".strip())
    replicas = f"{about['replicas']} replica{'s' if about['replicas'] != 1 else ''}"
    lines = [f"{style.paint(title, '1')}, {replicas}, engine {engine}", ""]
    lines += [f"{style.paint('note', '1')}: {printable(note)}; it is priced all the same" for note in figures.notes]
    lines += [""] if figures.notes else []
    lines += _steps_text(figures, style)
    for step in figures.steps.values():
        if step.name != "mixed":
            lines += _ops_text(figures, step, style)
    lines += _memory_text(figures, style)
    lines += _roofline_text(figures, style)
    lines += _service_text(figures, style)
    lines += [style.paint("Assumed", "1") + ", since the spec does not say:"]
    for a in review.assumptions:
        shown = f"{a.value:.6g}" if isinstance(a.value, float) else str(a.value)
        lines.append(f"  {printable(dotted(a.path))} = {printable(shown, 80)}: {printable(a.reason)}")
    return guarded("\n".join(lines) + "\n", color=style.color)


def table(rows: Rows, notes: list[str] | None = None) -> list[str]:
    """Lay rows out in columns: the first to the left, the others to the right; a note follows its row.

    Cells come out printable, so that names from specs and plugins may stand in them as they are.
    """
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            ["", row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)), note]
        ).rstrip()
        for row, note in zip(rows, notes or [""] * len(rows), strict=True)
    ]


def _amount(value: Any, unit: str) -> str:
    return quantity(float(value), unit) if value else "-"


def _steps_text(figures: Figures, style: Style) -> list[str]:
    rows: Rows = [("", "bound", "sustained bound", "estimate", "binding", "FLOP", "HBM", "link")]
    for step in figures.steps.values():
        c = step.cost
        times = [quantity(float(t), "s") for t in (c.bound_s, c.sustained_bound_s, c.estimate_s)]
        sizes = [_amount(c.flops, "FLOP"), _amount(c.hbm_bytes, "B"), _amount(c.link_bytes, "B")]
        rows.append((step.name, *times, c.binding_resource, *sizes))
    lines = [style.paint("Steps", "1") + f" ({printable(figures.basis)}), per device", *table(rows), ""]
    lines += [f"  {step.name}: {printable(step.words)}" for step in figures.steps.values()]
    lines.append(f"  {PREFILL}")
    if figures.separate:
        lines.append("  no mixed step: prompts are prefilled on a pool of their own")
    elif "mixed" not in figures.steps:
        lines.append("  no mixed step: prompts are prefilled in steps of their own")
    return [*lines, ""]


def _ops_text(figures: Figures, step: Step, style: Style) -> list[str]:
    priced = step.composition.pricer.breakdown(step.shape)
    whole = sum(float(row.seconds) for row in priced) or 1.0
    rows: Rows = [("op", "x", "FLOP", "HBM", "activations", "link", "own estimate", "share")]
    for row in priced:
        rows.append(
            (
                row.name,
                f"{row.instances:,}",
                _amount(row.flops, "FLOP"),
                _amount(row.hbm_bytes, "B"),
                _amount(row.activation_bytes, "B"),
                _amount(row.link_bytes, "B"),
                quantity(float(row.seconds), "s"),
                f"{float(row.seconds) / whole:.1%}",
            )
        )
    kinds = ", ".join(
        f"{printable(kind.replace('_', ' '))} {quantity(size, 'B')}"
        for kind, size in figures.hbm_bytes_by_kind(step).items()
        if size
    )
    peaks = ", ".join(
        f"{printable(name)} {quantity(float(seconds), 's')}"
        for name, seconds in step.composition.pricer.by_resource(step.shape).items()
    )
    graph = step.composition.graph
    summed = f", summed over {graph.stages} stages" if graph.stages > 1 else ""
    return [
        style.paint(f"Ops of the {step.name} step", "1") + f", per device, all layers{summed}",
        *table(rows),
        f"  HBM: {kinds}",
        f"  at peak rates: {peaks}",
        "",
    ]


def _memory_text(figures: Figures, style: Style) -> list[str]:
    memory = figures.memory
    stage = memory.tightest
    fit = memory.fit(stage)
    where = f", stage {stage + 1} of {memory.stages}, the tightest" if memory.stages > 1 else ""
    rows: Rows = [
        ("visible to the runtime", quantity(memory.visible, "B")),
        ("budget of the engine", quantity(memory.budget, "B")),
        ("- weights", quantity(fit.weights, "B")),
        *((f"- {reserve.name}", quantity(reserve.bytes, "B")) for reserve in memory.reserves),
        ("= KV cache and state", quantity(memory.cache_left(stage), "B")),
    ]
    context = figures.context
    capacity = figures.kv_capacity_tokens
    each = figures.kv_bytes_per_sequence(context)
    notes = [_as_sold(figures), *([""] * (len(rows) - 1))]
    lines = [style.paint("Memory of a device", "1") + where, *table(rows, notes)]
    if fit.left < 0:
        lines.append(f"  weights and reserves exceed the budget by {quantity(-fit.left, 'B')}")
    lines += [
        "",
        style.paint("Capacity", "1"),
        f"  KV cache: {quantity(figures.kv_bytes_per_token, 'B')} a token, whole; "
        f"{quantity(memory.bytes_per_token(), 'B')} a token and device",
        f"  {quantity(each, 'B')} a sequence of {context:,.0f} tokens, "
        f"{quantity(each * figures.batch, 'B')} for the decode batch",
        "  capacity: "
        + ("not limited by a cache" if capacity is None else f"{capacity:,} tokens")
        + (f" a rank, {memory.ranks} ranks" if memory.ranks > 1 else "")
        + _with_a_step(memory),
        f"  resident: {_sequences(figures.max_resident_sequences)} of {context:,.0f} tokens, "
        f"{memory.resident_sequences(figures.max_model_len):,} of {figures.max_model_len:,} (the longest)",
        "",
    ]
    return lines


def _with_a_step(memory: MemoryLedger) -> str:
    """Why an engine's own figure is less than the sequences that are resident, times their length."""
    pool = memory.pool
    if pool is None or not any(group.window for group in pool.groups):
        return ""
    if pool.groups_share_blocks:
        return ", as the engine reports it: as if windows kept every token" if len(pool.groups) > 1 else ""
    if pool.step_tokens <= 1:
        return ""
    return f", as the engine reports it: every window has room for the {pool.step_tokens:,} tokens of a step too"


def _as_sold(figures: Figures) -> str:
    """Visible memory in the unit that tools show, beside the size that the part is sold by."""
    accelerator = figures.decode_side.setup.topology.accelerator
    visible = figures.memory.visible
    shown = f"{visible / 2**30:,.1f} GiB"
    # Sizes on boxes mix GB and GiB; where the figure in force is the published one there is nothing to compare.
    if accelerator.memory_bytes == visible:
        return f"({shown})"
    gibibytes, rest = divmod(accelerator.memory_bytes, 2**30)
    sold = quantity(float(accelerator.memory_bytes), "B") if rest else f"{gibibytes:,} GiB"
    return f"({shown}; sold as {sold})"


def _roofline_text(figures: Figures, style: Style) -> list[str]:
    stream, crossover = figures.single_stream, figures.crossover_batch
    balance = ", ".join(f"{printable(name)} {value:,.0f}" for name, value in figures.machine_balance.items())
    below = stream.balance / stream.intensity if stream.intensity else 0.0
    return [
        style.paint("Roofline", "1") + ", weights only",
        f"  machine balance in FLOP/B: {balance}",
        f"  one sequence: {stream.intensity:.3g} FLOP/B, {below:,.0f}x below balance; ceiling "
        f"{stream.ceiling_tokens_per_s:,.1f} tok/s ({quantity(stream.read_bytes, 'B')} read a token), "
        f"{stream.resident_ceiling_tokens_per_s:,.1f} tok/s if every resident weight were read",
        "  crossover batch: "
        + ("none: reading the weights always takes longer" if crossover is None else f"{crossover:,.1f}"),
        "",
    ]


def _service_text(figures: Figures, style: Style) -> list[str]:
    review = figures.review
    if figures.service is None:
        return ["No workload lengths: no operating point, frontier or knee.", ""]
    columns = _latencies(review)
    rows: Rows = [("batch", "tok/s", "req/s", "step", *(f"{m.upper()} {p}" for m, p in columns))]
    remarks = [""]
    marked = {"operating point": review.operating_point, "knee": review.knee}
    points = {p.batch: p for p in figures.frontier} | {p.batch: p for p in marked.values() if p is not None}
    for batch in sorted(points):
        point = points[batch]
        notes = [name for name, p in marked.items() if p is not None and p.batch == batch]
        if review.objectives and (misses := point.misses(review.objectives)):
            notes.append("misses " + ", ".join(f"{m.objective.metric} {m.objective.percentile}" for m in misses))
        times = [point.step_s, *(point.latency(m, p) for m, p in columns)]
        rows.append(
            (
                f"{batch:,.4g}",
                f"{point.throughput:,.0f}",
                f"{point.rate:,.3g}",
                *(quantity(t, "s") if math.isfinite(t) else UNLIMITED for t in times),
            )
        )
        remarks.append("; ".join(notes))
    limits = sorted(figures.service.limits.items(), key=lambda item: item[1])
    others = "; ".join(f"{printable(name)}: {_sequences(n)}" for name, n in limits[1:])
    head = style.paint("Frontier", "1") + ": a replica with so many sequences decoding at once, estimates"
    lines = [head, *table(rows, remarks)]
    lines.append(
        f"  at most {_sequences(limits[0][1])} at once, by {printable(limits[0][0])}{f' ({others})' if others else ''}"
    )
    if review.operating_point is None:
        lines.append("  operating point: none within the limits")
    if not review.objectives:
        lines.append("  knee: no objective is declared")
    elif review.knee is None:
        lines.append("  knee: no batch meets the SLO")
    else:
        lines.append(f"  knee: {_sequences(review.knee.batch)}, {review.knee.throughput:,.0f} tok/s")
    return [*lines, ""]


def _latencies(review: Review) -> list[tuple[str, str]]:
    """The latencies of the frontier: two percentiles of two metrics, and whatever the SLO limits besides."""
    shown = {(metric, percentile) for metric in ("itl", "ttft") for percentile in PERCENTILES}
    shown |= {(o.metric, o.percentile) for o in review.objectives}
    return sorted(shown, key=lambda column: (ORDER.index(column[0]), column[1]))


def _sequences(number: float) -> str:
    shown = f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"
    return f"{shown} sequence{'' if shown == '1' else 's'}"
