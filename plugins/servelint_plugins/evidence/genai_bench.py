"""genai-bench: a JSON file a scenario and concurrency, with ``aggregated_metrics``.

Latencies are in seconds unless the file says ``_time_unit``. Engine and GPU are typed in by hand and stand
in the experiment's own metadata file; they are read where a file carries both.
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents

NAME = "genai-bench"
SOURCES = (
    "sgl-project/genai-bench@025cf1c66cddab82f962e2ac0d6105fd4717df20:genai_bench/metrics/metrics.py",
    "sgl-project/genai-bench@29be4e91ca6e8dd447b411c8d9b1acde3be2a221:"
    "genai_bench/metrics/aggregated_metrics_collector.py",
    "sgl-project/genai-bench@0b5f929c4a84f173a83fb11102ee91135167f474:genai_bench/protocol.py",
)
_UNITS = {"s": 1.0, "ms": 1e-3}


def read(text: str) -> Iterator[Measurement]:
    """Yield the run that a file holds."""
    for data in documents(text):
        if isinstance(data, dict) and isinstance(data.get("aggregated_metrics"), dict):
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    metrics = fields.table("aggregated_metrics")
    metadata = fields.table("experiment_metadata")
    for field, key in (
        ("model", "model"),
        ("engine_version", "server_version"),
        ("accelerator", "server_gpu_type"),
        ("tool_version", "benchmark_version"),
    ):
        run.put(field, metadata.text(key), metadata.at(key))
    engine = metadata.text("server_engine")
    run.put("engine", engine.lower() if engine else None, metadata.at("server_engine"))
    run.put("devices", metadata.count("server_gpu_count"), metadata.at("server_gpu_count"))
    unit = fields.text("_time_unit") or metadata.text("metrics_time_unit") or "s"
    if unit not in _UNITS:
        raise ValueError(f"_time_unit: expected s or ms, found {unit!r:.20}")
    scenario = metrics.text("scenario") or ""
    run.put("run", scenario)
    # D(480,240) draws one length each, N and U a distribution.
    run.put("fixed_lengths", scenario.startswith("D(") if scenario else None, metrics.at("scenario"))
    rated = metrics.text("iteration_type") == "request_rate"
    # Releases before the key was there have the rate where the concurrency stands.
    key = "request_rate" if rated and "request_rate" in metrics else "num_concurrency"
    value = metrics.number(key)
    run.put("requested_rate" if rated else "concurrency", value, metrics.at(key))
    run.put("closed_loop", None if value is None else not rated)
    run.put("achieved_rate", metrics.number("arrival_requests_per_second"), metrics.at("arrival_requests_per_second"))
    for field, key in (
        ("duration_s", "run_duration"),
        ("request_throughput", "requests_per_second"),
        ("output_throughput", "mean_output_throughput_tokens_per_s"),
        ("total_throughput", "mean_total_tokens_throughput_tokens_per_s"),
    ):
        run.put(field, metrics.number(key), metrics.at(key))
    for field, key in (("completed", "num_completed_requests"), ("failed", "num_error_requests")):
        run.put(field, metrics.count(key), metrics.at(key))
    stats = metrics.table("stats")
    for field, key, scale in (
        ("ttft_s", "ttft", _UNITS[unit]),
        ("tpot_s", "tpot", _UNITS[unit]),
        ("e2e_s", "e2e_latency", _UNITS[unit]),
        ("prompt_tokens", "num_input_tokens", 1.0),
        ("output_tokens", "num_output_tokens", 1.0),
    ):
        run.put(field, stats.table(key).statistics(scale), stats.at(key))
    return run.measurement()
