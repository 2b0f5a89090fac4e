"""What the figures of one benchmark run say against each other: arithmetic that holds for every run.

Pure functions of a `Measurement`; CLM009 reports what they find. Means over requests stand for their products
only roughly (lengths and pace vary together), so identities of means get wide limits and identities of totals
narrow ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from servelint.evidence import LATENCIES, PERCENTILES, Measurement
from servelint.measured import derived_tpot, flight

Limits = Mapping[str, float]

LIMITS: Limits = {
    "pace": 1.25,
    "totals": 0.05,
    "flight": 0.15,
    "reached": 0.95,
    "failed": 0.01,
    "tail": 10,
    "warm": 0.05,
}
"""Defaults of what may differ, by the name of the check: `servelint_rules.clm` offers them as options."""

ROUNDING = 2e-3
_NAMES = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "end-to-end latency"}
_LENGTHS = {"prompt_tokens": "prompt length", "output_tokens": "output length"}
_NUMBERS = (
    "requested_rate", "achieved_rate", "concurrency", "mean_concurrency", "duration_s", "completed", "failed",
    "incomplete", "total_prompt_tokens", "total_output_tokens", "request_throughput", "output_throughput",
    "total_throughput", "goodput", "cache_hit", "kv_usage", "acceptance_length",
)  # fmt: skip


class Inconsistency(NamedTuple):
    """Figures that cannot all be right: what and why, the arithmetic, which to trust or what to do.

    ``kind`` names the check. ``impossible`` when no system could have measured it.
    """

    kind: str
    message: str
    equation: str = ""
    help: str = ""
    impossible: bool = False


def check(run: Measurement, limits: Limits = LIMITS) -> Iterator[Inconsistency]:
    """Yield every inconsistency of a run; after figures that are no numbers nothing else is looked at."""
    broken = list(_broken(run))
    yield from broken
    if broken:
        return
    if run.invalid is not None:
        yield Inconsistency("rejected", f"the run does not count: {run.invalid}", help="name a run that is valid")
    yield from _order(run)
    yield from _pace(run, limits["pace"])
    yield from _load(run, limits["reached"])
    yield from _flight(run, limits["flight"])
    yield from _totals(run, limits["totals"])
    yield from _idle(run)
    yield from _warm(run, limits["warm"])
    yield from _failures(run, limits["failed"])


def tail(run: Measurement, limits: Limits = LIMITS) -> Inconsistency | None:
    """Say that a reported tail percentile of a latency rests on too few requests; None when it does not.

    Only worth saying where something rests on the tail.
    """
    if not run.completed:
        return None
    for percentile, share in (("p999", 0.999), ("p99", 0.99)):
        beyond = run.completed * (1 - share)
        if beyond < limits["tail"] and any(percentile in getattr(run, f) for f in ("ttft_s", "tpot_s", "e2e_s")):
            needed = math.ceil(limits["tail"] / (1 - share) - 1e-6)
            shown = "p99.9" if percentile == "p999" else percentile
            return Inconsistency(
                "tail",
                f"its {shown} rests on {beyond:.3g} of {run.completed:,} requests: it is the slowest few",
                equation=f"{run.completed:,} x (1 - {share}) = {beyond:.3g}, expected at least {limits['tail']:g}",
                help=f"measure at least {needed:,} requests, or quote a lower percentile",
            )
    return None


def _broken(run: Measurement) -> Iterator[Inconsistency]:
    for field, value in _figures(run):
        if math.isnan(value) or math.isinf(value) or value < 0:
            where = run.sources.get(field.partition(" ")[0], "")
            yield Inconsistency(
                "number",
                f"its {field.replace('_', ' ')} is {value:g}" + (f" ({where})" if where else ""),
                help="measure again: the tool could not compute the figure",
                impossible=True,
            )
            return


def _figures(run: Measurement) -> Iterator[tuple[str, float]]:
    for field in _NUMBERS:
        value = getattr(run, field)
        if value is not None:
            yield field, float(value)
    for field in (*LATENCIES, *_LENGTHS):
        for statistic, value in getattr(run, field).items():
            yield f"{field} {statistic}", float(value)


def _order(run: Measurement) -> Iterator[Inconsistency]:
    for field, name in (*_NAMES.items(), *_LENGTHS.items()):
        found: Mapping[str, float] = getattr(run, field)
        ordered = [(s, found[s]) for s in ("min", *PERCENTILES, "max") if s in found]
        for (low, below), (high, above) in pairwise(ordered):
            if below > above * (1 + ROUNDING):
                yield _disordered(name, low, below, high, above)
                break
        mean = found.get("mean")
        if mean is not None and ordered:
            if ordered[0][0] == "min" and mean < ordered[0][1] * (1 - ROUNDING):
                yield _disordered(name, "min", ordered[0][1], "mean", mean)
            elif ordered[-1][0] == "max" and mean > ordered[-1][1] * (1 + ROUNDING):
                yield _disordered(name, "mean", mean, "max", ordered[-1][1])
    first, total = run.ttft_s.get("mean"), run.e2e_s.get("mean")
    if first is not None and total is not None and first > total * (1 + ROUNDING):
        yield Inconsistency(
            "order",
            f"its mean TTFT of {_s(first)} is longer than its mean end-to-end latency of {_s(total)}",
            equation=f"{_s(first)} > {_s(total)}",
            help="look at the units of the file: seconds and milliseconds",
            impossible=True,
        )


def _disordered(name: str, low: str, below: float, high: str, above: float) -> Inconsistency:
    shown = (_s(below), _s(above)) if name not in _LENGTHS.values() else (f"{below:g}", f"{above:g}")
    return Inconsistency(
        "order",
        f"the {low} of its {name} is above the {high}: {shown[0]} and {shown[1]}",
        equation=f"{low} {shown[0]} > {high} {shown[1]}",
        help="measure again, or look which of the two the file has wrong",
        impossible=True,
    )


def _pace(run: Measurement, factor: float) -> Iterator[Inconsistency]:
    """TTFT + TPOT x (output - 1) against the end-to-end latency."""
    derived, reported, output = derived_tpot(run), run.tpot_s.get("mean"), run.output_tokens.get("mean")
    first, total = run.ttft_s.get("mean"), run.e2e_s.get("mean")
    if derived is None or not reported or output is None or first is None or total is None or derived <= 0:
        return
    sums = (
        f"{_s(first)} + {_s(reported)} x ({output:.4g} - 1) = {_s(first + reported * (output - 1))}, "
        f"measured end to end {_s(total)}; ({_s(total)} - {_s(first)}) / ({output:.4g} - 1) = {_s(derived)}"
    )
    ratio = derived / reported
    if ratio > factor:
        yield Inconsistency(
            "pace",
            f"its TPOT of {_s(reported)} is {ratio:.2g}x too short for its own end-to-end latency, which gives "
            f"{_s(derived)} a token: the tool times streamed events, about {ratio:.2g} a token",
            equation=sums,
            help=f"trust the end-to-end latency: quote a TPOT of {_s(derived)}",
        )
    elif ratio < 1 / (factor * factor):
        # Short and slow answers weigh as much as long and fast ones in a mean over requests.
        yield Inconsistency(
            "pace",
            f"its TPOT of {_s(reported)} is {1 / ratio:.2g}x too long for its own end-to-end latency, which gives "
            f"{_s(derived)} a token: several tokens come in one streamed event, or lengths and pace vary together",
            equation=sums,
            help=f"quote what the end-to-end latency gives, {_s(derived)}, or the median over requests",
        )


def _load(run: Measurement, reached: float) -> Iterator[Inconsistency]:
    """Whether an open loop kept its rate, by what was sent or by what was completed."""
    wanted = run.requested_rate
    if not wanted or run.closed_loop:
        return
    got, what = run.achieved_rate, "sent"
    if got is None and run.request_throughput is not None and run.completed:
        # Even a server that keeps up still answers after the last request was sent.
        longest = max((v for v in run.e2e_s.values()), default=0.0)
        sending = run.completed / wanted
        got, what = run.request_throughput * (sending + longest) / sending, "completed"
    if got is None or got >= wanted * reached:
        return
    late = run.schedule_delay_s.get("p99", run.schedule_delay_s.get("max", run.schedule_delay_s.get("p90")))
    delay = f", the last ones {_s(late)} late" if late is not None and late > 0.1 else ""
    limited = f" (at most {run.concurrency:g} were let in flight)" if run.concurrency is not None else ""
    shown = run.achieved_rate if run.achieved_rate is not None else run.request_throughput or 0.0
    yield Inconsistency(
        "load",
        f"it asked for {wanted:.4g} requests/s and {what} {shown:.4g} ({shown / wanted:.0%}){delay}{limited}: the "
        "client or the server was full, so this is no measurement at that rate",
        equation=f"{shown:.4g} / {wanted:.4g} = {shown / wanted:.2f}, expected at least {reached:g}",
        help=f"state the rate that was served, at most {_served(run):.4g} req/s; take latencies from a run below it",
    )


def _served(run: Measurement) -> float:
    """Requests a second that came back."""
    return run.request_throughput if run.request_throughput is not None else run.achieved_rate or 0.0


def _flight(run: Measurement, tolerance: float) -> Iterator[Inconsistency]:
    """Little's law: requests in flight = requests a second x mean seconds of one."""
    found = flight(run)
    if found is None or run.request_throughput is None:
        return
    law = f"{run.request_throughput:.4g} req/s x {_s(run.e2e_s['mean'])} = {found:.4g} in flight"
    mean, limit = run.mean_concurrency, run.concurrency
    if mean and abs(found - mean) > max(tolerance * mean, 0.5):
        yield Inconsistency(
            "flight",
            f"its mean concurrency of {mean:.4g} is not what rate and latency give, {found:.4g}",
            equation=f"{law}, reported {mean:.4g}",
            help="look which requests each figure counts: cut-off and failed ones are often left out of one",
        )
    elif limit and found > limit * (1 + tolerance) + 0.5:
        yield Inconsistency(
            "flight",
            f"with at most {limit:g} requests in flight, rate and latency still give {found:.4g} at once",
            equation=f"{law} > {limit:g}",
            help="look whether the latency has its unit right, or counts the time in the client's queue",
        )


def _totals(run: Measurement, tolerance: float) -> Iterator[Inconsistency]:
    seconds, output = run.duration_s, run.output_tokens.get("mean")
    pairs = []
    if seconds:
        if run.total_output_tokens is not None:
            pairs.append(
                (
                    "output throughput",
                    run.output_throughput,
                    run.total_output_tokens / seconds,
                    f"{run.total_output_tokens:,.0f} tok / {_s(seconds)}",
                )
            )
        if run.completed is not None:
            pairs.append(
                (
                    "request throughput",
                    run.request_throughput,
                    run.completed / seconds,
                    f"{run.completed:,} requests / {_s(seconds)}",
                )
            )
    failed = (run.failed or 0) + (run.incomplete or 0)
    # Tokens of requests that did not complete may be counted with the tokens alone.
    if run.request_throughput is not None and output is not None and failed <= 0.01 * (run.completed or 0):
        pairs.append(
            (
                "output throughput",
                run.output_throughput,
                run.request_throughput * output,
                f"{run.request_throughput:.4g} req/s x {output:.4g} tok",
            )
        )
    told = set()
    for name, reported, computed, how in pairs:
        if reported is None or name in told or abs(reported - computed) <= tolerance * max(reported, computed):
            continue
        told.add(name)
        yield Inconsistency(
            "totals",
            f"its {name} of {reported:.4g}/s is not what its other figures give, {computed:.4g}/s",
            equation=f"{how} = {computed:.4g}/s, reported {reported:.4g}/s",
            help=f"quote {min(reported, computed):.4g}/s, the smaller of the two, until the file is explained",
        )


def _idle(run: Measurement) -> Iterator[Inconsistency]:
    found = flight(run)
    if run.kv_usage == 0 and found is not None and found >= 1:
        yield Inconsistency(
            "idle",
            f"its KV cache usage is 0 while {found:.3g} requests were in flight: the metric that was scraped does not "
            "exist in this release (vLLM V1 renamed gpu_cache_usage_perc to kv_cache_usage_perc)",
            equation=f"{run.request_throughput or 0:.4g} req/s x {_s(run.e2e_s['mean'])} = {found:.3g} in flight",
            help="scrape the metric's present name; the other server figures of the file are suspect, too",
        )


def _warm(run: Measurement, most: float) -> Iterator[Inconsistency]:
    if run.cache_hit is not None and run.prompts == "random" and run.cache_hit > most:
        yield Inconsistency(
            "warm",
            f"{run.cache_hit:.0%} of the prompt tokens came from the prefix cache though the prompts are random: the "
            "cache was warm from an earlier run of the same prompts",
            help="flush the cache between runs, or draw other prompts",
        )


def _failures(run: Measurement, most: float) -> Iterator[Inconsistency]:
    completed = run.completed
    if completed is None:
        return
    failed = run.failed or 0
    sent = completed + failed
    if sent and failed > most * sent:
        yield Inconsistency(
            "failed",
            f"{failed:,} of {sent:,} requests failed ({failed / sent:.1%}): latencies are those of the rest",
            equation=f"{failed:,} / {sent:,} = {failed / sent:.3f}, expected at most {most:g}",
            help="find out why they failed, and measure again",
        )
    cut = run.incomplete or 0
    expected = run.concurrency or run.mean_concurrency or 0
    if cut > max(expected * 1.5, 0.2 * (cut + completed)):
        yield Inconsistency(
            "incomplete",
            f"{cut:,} requests were cut off at the end and {completed:,} completed: the long ones are missing from the "
            "latencies",
            equation=f"{cut:,} / ({cut:,} + {completed:,}) = {cut / (cut + completed):.2f}",
            help="measure longer, or let the last requests finish",
        )


def _s(seconds: float) -> str:
    """Seconds in the unit that suits, to four digits: enough to redo the arithmetic."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds:.4g} s"
