"""llmperf's ``*_summary.json``: flat keys, in seconds.

Its inter-token latency is the end-to-end latency over the output tokens, the first one counted in: it is left
out, and the pace follows from the end-to-end latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from servelint.evidence import PERCENTILES, Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents

NAME = "llmperf"
SOURCES = ("ray-project/llmperf@f1d6bed47e4501b0e371082b41601b59ab55269f:token_benchmark_ray.py",)
_METRICS = {
    "ttft_s": "ttft_s", "e2e_s": "end_to_end_latency_s", "prompt_tokens": "number_input_tokens",
    "output_tokens": "number_output_tokens",
}  # fmt: skip


def read(text: str) -> Iterator[Measurement]:
    """Yield the run that a summary holds."""
    for data in documents(text):
        if isinstance(data, dict) and {"num_concurrent_requests", "results_num_completed_requests"} <= data.keys():
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    run.put("model", fields.text("model"), "model")
    stamp = fields.number("timestamp")
    if stamp is not None and 0 < stamp < 1e11:
        run.put("date", datetime.fromtimestamp(stamp, UTC).date().isoformat(), "timestamp")
    run.put("concurrency", fields.number("num_concurrent_requests"), "num_concurrent_requests")
    run.put("closed_loop", True, "num_concurrent_requests")
    run.put("completed", fields.count("results_num_completed_requests"), "results_num_completed_requests")
    run.put("failed", fields.count("results_number_errors"), "results_number_errors")
    minute = fields.number("results_num_completed_requests_per_min")
    run.put("request_throughput", None if minute is None else minute / 60, "results_num_completed_requests_per_min")
    key = "results_mean_output_throughput_token_per_s"
    run.put("output_throughput", fields.number(key), key)
    deviations = [fields.number(f"stddev_{side}_tokens") for side in ("input", "output")]
    run.put("fixed_lengths", all(d == 0 for d in deviations) if None not in deviations else None)
    for field, name in _METRICS.items():
        found = {s: fields.number(f"results_{name}_{s}") for s in ("mean", "min", "max")}
        found |= {p: fields.number(f"results_{name}_quantiles_{p}") for p in PERCENTILES}
        run.put(field, {k: v for k, v in found.items() if v is not None}, f"results_{name}_mean")
    return run.measurement()
