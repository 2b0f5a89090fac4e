"""MLPerf LoadGen's ``mlperf_log_summary.txt``: lines of ``name : value``, latencies in nanoseconds.

What system ran stands in a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import Collected

NAME = "mlperf-loadgen"
SOURCES = ("mlcommons/inference@7ad9af18734e33e2599dee5c155a780329e3b3ac:loadgen/results.cc",)
MOST_CHARACTERS = 100_000
"""Of a summary; LoadGen writes some thousands."""

_LINE = re.compile(r"^([^:\n]{1,80}?)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE)
_LATENCY = re.compile(
    r"(?:(Min|Max|Mean)|([\d.]+) percentile) (latency|first token latency|time (?:per|to) output token) \(ns\)\Z", re.I
)
_FIELDS = {"latency": "e2e_s", "first token latency": "ttft_s"}
_PERCENTILES = {"50.00": "p50", "90.00": "p90", "95.00": "p95", "99.00": "p99", "99.90": "p999"}
_RATES = {
    "Completed samples per second": "request_throughput", "Samples per second": "request_throughput",
    "Completed tokens per second": "output_throughput", "Tokens per second": "output_throughput",
    "Scheduled samples per second": "achieved_rate", "target_qps": "requested_rate",
}  # fmt: skip


def read(text: str) -> Iterator[Measurement]:
    """Yield the run of a summary."""
    if "MLPerf Results Summary" not in text[:4000]:
        return
    run = Collected(NAME)
    latencies: dict[str, dict[str, float]] = {}
    for name, written in _LINE.findall(text[:MOST_CHARACTERS]):
        value = written.rstrip()
        found = _LATENCY.match(name)
        if found is not None:
            statistic = (found[1] or "").lower() or _PERCENTILES.get(found[2] or "")
            if statistic:
                field = _FIELDS.get(found[3].lower(), "tpot_s")
                latencies.setdefault(field, {})[statistic] = _number(name, value) / 1e9
        elif name == "target_qps" and run.get("run") != "Server":
            # Elsewhere it only decides how much work is sent.
            continue
        elif name in _RATES and run.get(_RATES[name]) is None:
            run.put(_RATES[name], _number(name, value), name)
        elif name == "Scenario":
            run.put("run", value, name)
            run.put("closed_loop", value in ("SingleStream", "MultiStream"))
            run.put("unlimited", value == "Offline" or None)
        elif name == "Result is" and value != "VALID":
            run.put("invalid", f"LoadGen says that the result is {value:.20}", name)
    for field, statistics in latencies.items():
        run.put(field, statistics, f"{field} (ns)")
    yield run.measurement()


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name}: expected a number, found {value!r:.40}") from None
