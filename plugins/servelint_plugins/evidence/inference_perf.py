"""inference-perf: ``summary_lifecycle_metrics.json`` and ``stage_N_lifecycle_metrics.json``.

Everything is in seconds. Its times of tokens are of streamed events; where the server sends more than one event
a token, its time per output token is short by that factor (the end-to-end latency is not).
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents

NAME = "inference-perf"
SOURCES = (
    "kubernetes-sigs/inference-perf@370914fa826a58779a1ab409b116aed2447cac5b:inference_perf/reportgen/base.py",
    "kubernetes-sigs/inference-perf@305ea4b434597e609c44a3c2e23cec758b3418a0:"
    "demos/kubecon-na-2025/vllm/results/stage_5_lifecycle_metrics.json",
)


def read(text: str) -> Iterator[Measurement]:
    """Yield the stage (or summary) that a file holds."""
    for data in documents(text):
        if isinstance(data, dict) and {"load_summary", "successes"} <= data.keys():
            yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    load, good, bad = fields.table("load_summary"), fields.table("successes"), fields.table("failures")
    latency, throughput = good.table("latency"), good.table("throughput")
    # A summary of several stages has neither rate.
    run.put("requested_rate", load.number("requested_rate"), load.at("requested_rate"))
    run.put("achieved_rate", load.number("achieved_rate"), load.at("achieved_rate"))
    concurrency = load.number("concurrency")
    run.put("concurrency", concurrency, load.at("concurrency"))
    if concurrency is not None or run.get("requested_rate") is not None:
        run.put("closed_loop", concurrency is not None)
    run.put("schedule_delay_s", load.table("schedule_delay").statistics(), load.at("schedule_delay"))
    run.put("completed", good.count("count"), good.at("count"))
    run.put("failed", bad.count("count"), bad.at("count"))
    run.put("request_throughput", throughput.number("requests_per_sec"), throughput.at("requests_per_sec"))
    run.put("output_throughput", throughput.number("output_tokens_per_sec"), throughput.at("output_tokens_per_sec"))
    run.put("total_throughput", throughput.number("total_tokens_per_sec"), throughput.at("total_tokens_per_sec"))
    for field, name in (
        ("ttft_s", "time_to_first_token"),
        ("tpot_s", "time_per_output_token"),
        ("itl_s", "inter_token_latency"),
        ("e2e_s", "request_latency"),
    ):
        run.put(field, latency.table(name).statistics(), latency.at(name))
    for field, name in (("prompt_tokens", "prompt_len"), ("output_tokens", "output_len")):
        run.put(field, good.table(name).statistics(), good.at(name))
    spread = [run.get(f) or {} for f in ("prompt_tokens", "output_tokens")]
    if all("min" in s and "max" in s for s in spread):
        run.put("fixed_lengths", all(s["min"] == s["max"] for s in spread))
    goodput = fields.table("goodput") if isinstance(fields.data.get("goodput"), dict) else Fields({})
    run.put("goodput", goodput.number("request_goodput"), goodput.at("request_goodput"))
    return run.measurement()
