"""GuideLLM's report (JSON or YAML): one entry of ``benchmarks`` a rate of a sweep.

``request_latency`` is in seconds, names that end in ``_ms`` are in milliseconds. Its inter-token latency is the
mean gap of a request after the first token, so the time per output token here; its own time per output token
counts the first token in and is left out. Only successful requests are read.
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import MOST_RUNS, Collected, Fields, documents

NAME = "guidellm"
SOURCES = (
    "vllm-project/guidellm@03820eba155d34eb602244535cc2412c32af6f54:"
    "src/guidellm/benchmark/schemas/generative/report.py",
    "vllm-project/guidellm@06cef2910dc1517f863ce09ff118af07d463d055:"
    "src/guidellm/benchmark/schemas/generative/metrics.py",
)
_CLOSED = {"synchronous": True, "concurrent": True, "throughput": False, "constant": False, "poisson": False}


def read(text: str) -> Iterator[Measurement]:
    """Yield the benchmarks of a report."""
    for data in documents(text):
        if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
            continue
        report = Fields(data)
        for benchmark in list(report.tables("benchmarks"))[:MOST_RUNS]:
            if "metrics" in benchmark and "request_totals" in benchmark.table("metrics"):
                yield _run(report, benchmark)


def _run(report: Fields, benchmark: Fields) -> Measurement:
    run = Collected(NAME)
    metadata, metrics, config = report.table("metadata"), benchmark.table("metrics"), benchmark.table("config")
    run.put("tool_version", metadata.text("guidellm_version"), metadata.at("guidellm_version"))
    model = next(
        (
            (t.text("model"), t.at("model"))
            for t in (_maybe(config, "backend"), _maybe(report, "args"), _maybe(report, "config"))
            if isinstance(t.data.get("model"), str)
        ),
        (None, ""),
    )
    run.put("model", *model)
    _load(run, config)
    requests = metrics.table("request_totals")
    run.put("completed", requests.count("successful"), requests.at("successful"))
    run.put("failed", requests.count("errored"), requests.at("errored"))
    run.put("incomplete", requests.count("incomplete"), requests.at("incomplete"))
    run.put("duration_s", benchmark.number("duration"), benchmark.at("duration"))
    run.put("request_throughput", *_mean(metrics, "requests_per_second"))
    run.put("mean_concurrency", *_mean(metrics, "request_concurrency"))
    run.put("output_throughput", *_mean(metrics, "output_tokens_per_second"))
    run.put("total_throughput", *_mean(metrics, "tokens_per_second"))
    for field, name, scale in (
        ("ttft_s", "time_to_first_token_ms", 1e-3),
        ("tpot_s", "inter_token_latency_ms", 1e-3),
        ("e2e_s", "request_latency", 1.0),
        ("prompt_tokens", "prompt_token_count", 1.0),
        ("output_tokens", "output_token_count", 1.0),
    ):
        table = metrics.table(name, "successful")
        found = {**table.table("percentiles").statistics(scale), **table.statistics(scale)}
        run.put(field, found, table.path)
    spread = [run.get(f) or {} for f in ("prompt_tokens", "output_tokens")]
    if all("min" in s and "max" in s for s in spread):
        run.put("fixed_lengths", all(s["min"] == s["max"] for s in spread))
    return run.measurement()


def _maybe(fields: Fields, key: str) -> Fields:
    """A table that some releases have as a text."""
    return fields.table(key) if isinstance(fields.data.get(key), dict) else Fields({}, fields.at(key))


def _load(run: Collected, config: Fields) -> None:
    strategy = _maybe(config, "strategy")
    kind = strategy.text("type_") or strategy.text("kind") or ""
    run.put("run", kind)
    run.put("closed_loop", _CLOSED.get(kind), strategy.at("type_"))
    run.put("unlimited", kind == "throughput" or None)
    if kind in ("concurrent", "synchronous"):
        streams = strategy.number("streams") if "streams" in strategy else strategy.number("max_concurrency")
        run.put("concurrency", 1.0 if kind == "synchronous" else streams, strategy.at("streams"))
    elif kind in ("constant", "poisson"):
        run.put("requested_rate", strategy.number("rate"), strategy.at("rate"))
        # Of the gaps between arrivals: a Poisson process has 1.
        run.put("burstiness", 1.0 if kind == "poisson" else None)


def _mean(metrics: Fields, name: str) -> tuple[float | None, str]:
    table = metrics.table(name, "successful")
    return table.number("mean"), table.at("mean")
