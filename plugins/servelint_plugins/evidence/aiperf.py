"""AIPerf's ``profile_export_aiperf.json`` (and GenAI-Perf's, of the same shape).

Every metric carries its unit, which alone decides; its inter-token latency is the mean gap of a request after the
first token, so the time per output token here.
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents, rate

NAME = "aiperf"
SOURCES = (
    "ai-dynamo/aiperf@1554b478d4eec073cb23365b2c1e1b6dbece2e62:docs/reference/json-export-schema.md",
    "ai-dynamo/aiperf@047d59dd4bca43ff272f46c6b4af0ebb62cb8ad0:src/aiperf/exporters/metrics_json_exporter.py",
)
_SECONDS = {
    "ns": 1e-9, "nanoseconds": 1e-9, "us": 1e-6, "µs": 1e-6, "microseconds": 1e-6, "ms": 1e-3,
    "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0,
}  # fmt: skip


def read(text: str) -> Iterator[Measurement]:
    """Yield the run that a file holds."""
    for data in documents(text):
        if isinstance(data, dict) and isinstance(data.get("request_throughput"), dict) and "input_config" in data:
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    config = fields.table("input_config")
    run.put("tool_version", fields.text("aiperf_version"), "aiperf_version")
    run.put("date", fields.text("start_time"), "start_time")
    if fields.data.get("was_cancelled") is True:
        run.put("invalid", "it was cancelled", "was_cancelled")
    names = config.table("endpoint").data.get("model_names") if isinstance(config.data.get("endpoint"), dict) else None
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
        run.put("model", names[0], config.at("endpoint", "model_names"))
    load = config.table("loadgen") if isinstance(config.data.get("loadgen"), dict) else Fields({})
    requested, unlimited = rate(load, "request_rate")
    run.put("requested_rate", requested, load.at("request_rate"))
    concurrency = load.number("concurrency")
    run.put("concurrency", concurrency, load.at("concurrency"))
    if concurrency is not None or requested is not None:
        run.put("closed_loop", requested is None)
    run.put("unlimited", unlimited or None)
    for field, tag in (("completed", "request_count"), ("failed", "error_request_count")):
        found = fields.table(tag)
        run.put(field, found.count("avg"), found.at("avg"))
    for field, tag in (
        ("request_throughput", "request_throughput"),
        ("output_throughput", "output_token_throughput"),
        ("total_throughput", "total_token_throughput"),
        ("goodput", "goodput"),
    ):
        found = fields.table(tag)
        run.put(field, found.number("avg"), found.at("avg"))
    duration = fields.table("benchmark_duration")
    seconds = duration.number("avg")
    run.put("duration_s", None if seconds is None else seconds * _scale(duration), duration.at("avg"))
    for field, tag in (
        ("ttft_s", "time_to_first_token"),
        ("tpot_s", "inter_token_latency"),
        ("itl_s", "inter_chunk_latency"),
        ("e2e_s", "request_latency"),
    ):
        found = fields.table(tag)
        if found.data:
            run.put(field, found.statistics(_scale(found)), tag)
    for field, tag in (("prompt_tokens", "input_sequence_length"), ("output_tokens", "output_sequence_length")):
        run.put(field, fields.table(tag).statistics(), tag)
    spread = [run.get(f) or {} for f in ("prompt_tokens", "output_tokens")]
    if all("min" in s and "max" in s for s in spread):
        run.put("fixed_lengths", all(s["min"] == s["max"] for s in spread))
    return run.measurement()


def _scale(fields: Fields) -> float:
    unit = fields.text("unit")
    scale = _SECONDS.get((unit or "").strip().lower())
    if scale is None:
        raise ValueError(f"{fields.at('unit')}: expected a unit of time, found {unit!r:.40}")
    return scale
