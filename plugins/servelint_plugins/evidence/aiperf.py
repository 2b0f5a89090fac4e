"""AIPerf's ``profile_export_aiperf.json`` (and GenAI-Perf's, of the same shape).

Every metric carries its unit, which alone decides; its inter-token latency is the mean gap of a request after the
first token, so the time per output token here. What was asked for stands in ``input_config``: up to 0.8 under
``endpoint`` and ``loadgen``, from 0.9 under ``models`` and ``phases``, of which the warm-up is not measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents, rate

NAME = "aiperf"
SOURCES = (
    "ai-dynamo/aiperf@1554b478d4eec073cb23365b2c1e1b6dbece2e62:docs/reference/json-export-schema.md",
    "ai-dynamo/aiperf@047d59dd4bca43ff272f46c6b4af0ebb62cb8ad0:src/aiperf/exporters/metrics_json_exporter.py",
    "aiperf 0.6.0 and 0.8.0 (PyPI): aiperf/common/config/loadgen_config.py",
    "aiperf 0.9.0 and 0.13.0 (PyPI): aiperf/config/models.py, aiperf/config/phases.py",
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
    _model(run, config)
    _load(run, config)
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


def _model(run: Collected, config: Fields) -> None:
    """Put the model; nothing for a file of several."""
    items = list(_maybe(config, "models").tables("items"))
    if len(items) == 1:
        run.put("model", items[0].text("name"), items[0].at("name"))
    names = _maybe(config, "endpoint").data.get("model_names")
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
        run.put("model", names[0], config.at("endpoint", "model_names"))


def _load(run: Collected, config: Fields) -> None:
    """Put the load of the one phase that is measured, or of the load generator."""
    measured = [phase for phase in config.tables("phases") if (phase.text("kind") or phase.text("name")) != "warmup"]
    load, key = _maybe(config, "loadgen"), "request_rate"
    if measured:
        load, key = measured[0], "rate"
        # What a run of several phases was asked for is no single figure, nor what one looks for by itself.
        if len(measured) > 1 or load.data.get("adaptive_scale") is True:
            return
    requested, unlimited = rate(load, key)
    run.put("requested_rate", requested, load.at(key))
    concurrency = load.number("concurrency")
    if concurrency is None and measured and load.text("type") == "concurrency":
        # Values that nobody set are left out of the file.
        concurrency = 1.0
    run.put("concurrency", concurrency, load.at("concurrency"))
    # A schedule or a series of rates may have a cap, and is no closed loop.
    closed = load.text("type") == "concurrency" if measured else concurrency is not None
    if requested is not None or closed:
        run.put("closed_loop", requested is None)
    run.put("unlimited", unlimited or None)


def _maybe(fields: Fields, key: str) -> Fields:
    """A table that other releases, or GenAI-Perf, have as something else or not at all."""
    return fields.table(key) if isinstance(fields.data.get(key), dict) else Fields({}, fields.at(key))


def _scale(fields: Fields) -> float:
    unit = fields.text("unit")
    scale = _SECONDS.get((unit or "").strip().lower())
    if scale is None:
        raise ValueError(f"{fields.at('unit')}: expected a unit of time, found {unit!r:.40}")
    return scale
