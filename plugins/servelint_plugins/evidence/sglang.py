"""SGLang's serving benchmark: JSON Lines, one object a run, with the server's own arguments in ``server_info``.

Latencies are in milliseconds, ``tpot`` leaves the first token out. ``concurrency`` is the sum of the latencies
over the duration, so the mean in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import MOST_RUNS, Collected, Fields, documents, settings
from servelint_plugins.evidence.vllm import lengths, load, milliseconds, totals

NAME = "sglang-bench"
SOURCES = (
    "sgl-project/sglang@0033168f0f58b2bc05aa0273bd475d9c01bafb1c:python/sglang/bench_serving.py",
    "sgl-project/sglang@6e48df336a77303519023e2f95009509f0e94e83:python/sglang/benchmark/serving.py",
)
_METRICS = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "e2e_s": "e2e_latency"}
_OWN = {"server_info", "random_range_ratio", "mean_e2e_latency_ms", "total_output_tokens_retokenized"}


def read(text: str) -> Iterator[Measurement]:
    """Yield the runs of a file that has the keys of this tool."""
    found = [d for value in documents(text) for d in (value if isinstance(value, list) else [value])]
    for data in found[:MOST_RUNS]:
        if isinstance(data, dict) and {"completed", "duration"} <= data.keys() and _OWN & data.keys():
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    backend = (fields.text("backend") or "").partition("-")[0]
    run.put("engine", backend if backend in ("vllm", "sglang", "trt", "lmdeploy") else None, "backend")
    run.put("run", fields.text("tag"))
    run.put("prompts", fields.text("dataset_name"), "dataset_name")
    _server(run, fields)
    load(run, fields)
    totals(run, fields, "total_throughput")
    run.put("mean_concurrency", fields.number("concurrency"), "concurrency")
    for field, name in _METRICS.items():
        run.put(field, milliseconds(fields, name), f"mean_{name}_ms")
    accepted = fields.number("accept_length")
    run.put("acceptance_length", accepted if accepted else None, "accept_length")
    cache = fields.table("cache_report")
    hit = cache.number("cache_hit_rate_pct")
    run.put("cache_hit", None if hit is None else hit / 100, cache.at("cache_hit_rate_pct"))
    lengths(run, fields)
    if run.get("prompts") == "random" and run.get("fixed_lengths") is None:
        # The share of the length that is the least one drawn: 1 makes all alike.
        ratio = fields.number("random_range_ratio")
        run.put("fixed_lengths", None if ratio is None else ratio >= 1.0, "random_range_ratio")
    return run.measurement()


def _server(run: Collected, fields: Fields) -> None:
    server = fields.table("server_info")
    if not server.data:
        return
    # Older servers nest their arguments.
    arguments = {**server.table("server_args").data, **server.data} if "server_args" in server else server.data
    found: Any = Fields(arguments, server.path)
    run.put("model", found.text("model_path"), server.at("model_path"))
    run.put("engine", "sglang", server.path)
    run.put("engine_version", found.text("version"), server.at("version"))
    tensor, pipeline = found.count("tp_size"), found.count("pp_size")
    # Data parallelism without that of attention is as many servers behind one address.
    alone = (found.count("dp_size") or 1) == 1 or arguments.get("enable_dp_attention") is True
    run.put("devices", tensor * (pipeline or 1) if tensor is not None and alone else None, server.at("tp_size"))
    run.put("settings", settings(arguments), server.path)
