"""llm-d's benchmark report, version 0.2 (YAML or JSON): stack, load and results of one run in one file.

Every statistic carries its units, which decide, but for the KV cache in use: reports have vLLM's gauge, from 0 to 1,
as "percent", and only what was written by hand has hundredths. The stack names accelerator, count, parallelism and
the engine's own arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents, settings

NAME = "llm-d-report"
SOURCES = (
    "llm-d/llm-d-benchmark@dc48906f55142d1b04654afe2e017954aa74cb9f:"
    "llmdbenchmark/analysis/benchmark_report/br_v0_2_1_example.yaml",
    "llm-d/llm-d-benchmark@32445ce29634beaedb7c487e10127526f766d128:"
    "llmdbenchmark/analysis/benchmark_report/schema_v0_2.py",
    "llm-d/llm-d-benchmark@8bc9f1ddd873a24f1657d6cca2e0d0fb6947dd36:"
    "llmdbenchmark/analysis/benchmark_report/metrics_processor.py",
    "llm-d/llm-d-benchmark@8bc9f1ddd873a24f1657d6cca2e0d0fb6947dd36:"
    "llmdbenchmark/analysis/benchmark_report/native_to_br0_2.py",
)
_SECONDS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "s/token": 1.0, "ms/token": 1e-3, "min": 60.0}
_DEGREES = {"tp": "tensor", "pp": "pipeline", "ep": "expert"}
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?\Z")


def read(text: str) -> Iterator[Measurement]:
    """Yield the run that a report holds."""
    for data in documents(text):
        if isinstance(data, dict) and {"scenario", "results"} <= data.keys() and "version" in data:
            version = str(data["version"])
            if not version.startswith("0.2"):
                raise ValueError(f"version: expected 0.2, found {version:.20}")
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    _stack(run, fields)
    load = fields.table("scenario", "load", "standardized")
    run.put("tool_version", load.text("tool_version"), load.at("tool_version"))
    stage = load.number("stage")
    run.put("run", None if stage is None else f"stage {stage:g}")
    for field, key in (("requested_rate", "rate_qps"), ("concurrency", "concurrency")):
        value = load.number(key)
        run.put(field, value if value is not None and value != float("inf") else None, load.at(key))
    if run.get("concurrency") is not None or run.get("requested_rate") is not None:
        run.put("closed_loop", run.get("requested_rate") is None)
    drawn = [load.table(key).text("distribution") for key in ("input_seq_len", "output_seq_len")]
    run.put("fixed_lengths", all(d == "fixed" for d in drawn) if all(drawn) else None)
    run.put("prompts", load.text("source"), load.at("source"))
    time = fields.table("run", "time")
    run.put("date", time.text("start"), time.at("start"))
    run.put("duration_s", _duration(time), time.at("duration"))
    _results(run, fields.table("results", "request_performance", "aggregate"), load.text("tool"))
    _observed(run, fields.table("results", "observability"))
    return run.measurement()


def _stack(run: Collected, fields: Fields) -> None:
    engines = [
        c
        for c in fields.table("scenario").tables("stack")
        if c.table("standardized").text("kind") == "inference_engine"
    ]
    if not engines:
        return
    first = engines[0].table("standardized")
    run.put("model", first.table("model").text("name"), first.at("model", "name"))
    accelerator = first.table("accelerator")
    run.put("accelerator", accelerator.text("model"), accelerator.at("model"))
    # Several components are pools: their arguments are not those of one replica.
    if len(engines) > 1:
        return
    count = accelerator.count("count")
    run.put("devices", count, accelerator.at("count"))
    tool = first.text("tool") or ""
    image = first.text("tool_version") or ""
    run.put("engine", tool if tool in ("vllm", "sglang") else "vllm" if "llm-d" in tool else None, first.at("tool"))
    if run.get("engine") == tool:
        found = re.search(r"v?(\d+\.\d+(?:\.\d+)?)", image.rpartition(":")[2] or image)
        run.put("engine_version", found[1] if found else None, first.at("tool_version"))
    degrees = accelerator.table("parallelism")
    found_degrees = {
        f"policy.parallelism.{name}": degrees.count(key) for key, name in _DEGREES.items() if degrees.count(key)
    }
    arguments = engines[0].table("native").data.get("args")
    own = settings(arguments) if isinstance(arguments, dict) else {}
    run.put("settings", {**{k: v for k, v in found_degrees.items() if v != 1}, **own}, engines[0].path)


def _duration(time: Fields) -> float | None:
    text = time.text("duration")
    if text is None:
        return None
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"{time.at('duration')}: expected an ISO 8601 duration, found {text!r:.40}")
    hours, minutes, seconds = (float(part) if part else 0.0 for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def _results(run: Collected, results: Fields, tool: str | None) -> None:
    latency, throughput, requests = results.table("latency"), results.table("throughput"), results.table("requests")
    for field, name in (
        ("ttft_s", "time_to_first_token"),
        ("tpot_s", "time_per_output_token"),
        ("itl_s", "inter_token_latency"),
        ("e2e_s", "request_latency"),
    ):
        table = latency.table(name)
        if table.data:
            run.put(field, table.statistics(_scale(table)), table.path)
    for field, name in (("prompt_tokens", "input_length"), ("output_tokens", "output_length")):
        run.put(field, requests.table(name).statistics(), requests.at(name))
    total, failures, incomplete = (requests.count(key) for key in ("total", "failures", "incomplete"))
    if tool == "aiperf":
        # There the total is of valid requests alone, and the failures are kinds of errors.
        failures = None
    run.put("failed", failures, requests.at("failures"))
    run.put("incomplete", incomplete, requests.at("incomplete"))
    run.put("completed", None if total is None else total - (failures or 0) - (incomplete or 0), requests.at("total"))
    for field, name in (
        ("request_throughput", "request_rate"),
        ("output_throughput", "output_token_rate"),
        ("total_throughput", "total_token_rate"),
    ):
        table = throughput.table(name)
        run.put(field, table.number("mean"), table.at("mean"))


def _observed(run: Collected, observed: Fields) -> None:
    for field, name in (("kv_usage", "vllm_kv_cache_usage_perc"), ("cache_hit", "vllm_prefix_cache_hit_rate")):
        table = observed.table(name)
        parts = (table.table("aggregated"), *(c.table("statistics") for c in table.tables("components")))
        found = next((t for t in parts if t.number("mean") is not None), None)
        if found is not None:
            mean = found.number("mean") or 0.0
            # A gauge that never exceeds 1 is a fraction, whatever its units say.
            gauge = field == "kv_usage" and max(found.statistics().values()) <= 1
            percent = found.text("units") == "percent" and not gauge
            run.put(field, mean / 100 if percent else mean, found.at("mean"))


def _scale(table: Fields) -> float:
    unit = table.text("units")
    scale = _SECONDS.get(unit or "")
    if scale is None:
        raise ValueError(f"{table.at('units')}: expected a unit of time, found {unit!r:.40}")
    return scale
