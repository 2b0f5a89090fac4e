"""``vllm bench serve --save-result``: one JSON object a run (or a list, with ``--append-result``).

Latencies are in milliseconds. ``tpot`` leaves the first token out; ``itl`` are gaps between streamed chunks, so
with speculation one gap may stand for several tokens. Server arguments and hardware are not recorded, unless
somebody passed them as ``--metadata``: the names of such keys are free, and the usual ones are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servelint.evidence import PERCENTILES, Measurement
from servelint_plugins.evidence.fields import MOST_RUNS, Collected, Fields, documents, rate, settings

NAME = "vllm-bench"
SOURCES = ("vllm-project/vllm@009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1:vllm/benchmarks/serve.py",)
_METRICS = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "e2e_s": "e2el"}


def read(text: str) -> Iterator[Measurement]:
    """Yield the runs of a file that has the keys of this tool."""
    found = [d for value in documents(text) for d in (value if isinstance(value, list) else [value])]
    for data in found[:MOST_RUNS]:
        if isinstance(data, dict) and {"completed", "duration"} <= data.keys() and "num_prompts" in data:
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    run.put("model", fields.text("model_id"), "model_id")
    run.put("date", fields.text("date"), "date")
    backend = fields.text("backend") or fields.text("endpoint_type") or ""
    engine = backend.partition("-")[0]
    run.put("engine", engine if engine in ("vllm", "sglang", "tgi", "lmdeploy") else None, "backend")
    for field, keys in (
        ("engine_version", ("version", "vllm_version", "engine_version")),
        ("accelerator", ("gpu", "accelerator", "hardware", "gpu_type")),
    ):
        key = next((k for k in keys if isinstance(fields.data.get(k), str)), None)
        run.put(field, fields.text(key) if key else None, key or "")
    key = next((k for k in ("gpus", "num_gpus", "gpu_count") if k in fields), None)
    run.put("devices", fields.count(key) if key else None, key or "")
    load(run, fields)
    totals(run, fields, "total_token_throughput")
    run.put("failed", _failed(fields), "failed")
    run.put("goodput", fields.number("request_goodput"), "request_goodput")
    for field, name in _METRICS.items():
        run.put(field, milliseconds(fields, name), f"mean_{name}_ms")
    run.put("acceptance_length", fields.number("spec_decode_acceptance_length"), "spec_decode_acceptance_length")
    run.put("settings", settings(fields.data))
    lengths(run, fields)
    return run.measurement()


def load(run: Collected, fields: Fields) -> None:
    """How requests were sent: a rate (``inf``: all at once), and the most in flight."""
    requested, unlimited = rate(fields, "request_rate")
    limit = fields.number("max_concurrency")
    run.put("requested_rate", requested, "request_rate")
    run.put("unlimited", unlimited)
    run.put("concurrency", limit, "max_concurrency")
    run.put("closed_loop", limit is not None and unlimited if unlimited or requested is not None else None)
    run.put("burstiness", fields.number("burstiness"), "burstiness")


def totals(run: Collected, fields: Fields, total: str) -> None:
    """Counts, totals of tokens and rates over the duration, in seconds."""
    run.put("duration_s", fields.number("duration"), "duration")
    run.put("completed", fields.count("completed"), "completed")
    run.put("total_prompt_tokens", fields.number("total_input_tokens"), "total_input_tokens")
    run.put("total_output_tokens", fields.number("total_output_tokens"), "total_output_tokens")
    run.put("request_throughput", fields.number("request_throughput"), "request_throughput")
    run.put("output_throughput", fields.number("output_throughput"), "output_throughput")
    run.put("total_throughput", fields.number(total), total)


def milliseconds(fields: Fields, name: str) -> dict[str, float]:
    """``mean_X_ms``, ``median_X_ms``, ``pNN_X_ms`` and ``max_X_ms`` in seconds."""
    found: dict[str, float] = {}
    for statistic, prefix in (
        ("mean", "mean"), ("p50", "median"), ("max", "max"), *((p, p) for p in PERCENTILES), ("p999", "p99.9"),
    ):  # fmt: skip
        value = fields.number(f"{prefix}_{name}_ms")
        if value is not None:
            found.setdefault(statistic, value / 1e3)
    return found


def _failed(fields: Fields) -> int | None:
    failed = fields.count("failed")
    if failed is not None:
        return failed
    # Before the key was written, what was sent and did not complete.
    sent, completed = fields.count("num_prompts"), fields.count("completed")
    return max(sent - completed, 0) if sent is not None and completed is not None else None


def lengths(run: Collected, fields: Fields) -> None:
    """Means of the lengths from the totals; from every request with ``--save-detailed``."""
    completed = run.get("completed")
    for field, total, key in (
        ("prompt_tokens", "total_prompt_tokens", "input_lens"),
        ("output_tokens", "total_output_tokens", "output_lens"),
    ):
        each = fields.data.get(key)
        values: list[Any] = (
            [v for v in each if isinstance(v, int | float) and abs(v) < 1e15] if isinstance(each, list) else []
        )
        found: dict[str, float] = {}
        if run.get(total) is not None and completed:
            found["mean"] = run.get(total) / completed
        if values and len(values) == completed:
            found |= {"min": float(min(values)), "max": float(max(values))}
        run.put(field, found, total)
    spread = [run.get(f) or {} for f in ("prompt_tokens", "output_tokens")]
    if all("min" in s for s in spread):
        run.put("fixed_lengths", all(s["min"] == s["max"] for s in spread))
