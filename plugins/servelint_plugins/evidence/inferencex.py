"""InferenceX's ``agg_*.json``: vLLM's figures of one run with hardware and parallelism, latencies in seconds.

Throughputs are per device; ``intvty`` is one over the time per output token and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import PERCENTILES, Measurement
from servelint_plugins.evidence.fields import Collected, Fields, documents

NAME = "inferencex"
SOURCES = ("SemiAnalysisAI/InferenceX@00e51cc732ac86d693bcd4b89c8364306dbfbf3f:utils/process_result.py",)


def read(text: str) -> Iterator[Measurement]:
    """Yield the runs of a file."""
    for value in documents(text):
        for data in value[:1000] if isinstance(value, list) else [value]:
            if isinstance(data, dict) and {"hw", "conc", "tput_per_gpu"} <= data.keys():
                yield _run(Fields(data))


def _run(fields: Fields) -> Measurement:
    run = Collected(NAME)
    run.put("model", fields.text("model"), "model")
    run.put("accelerator", fields.text("hw"), "hw")
    framework = (fields.text("framework") or "").lower()
    run.put("engine", framework if framework in ("vllm", "sglang") else None, "framework")
    tensor, concurrency = fields.count("tp"), fields.number("conc")
    # Separate pools have degrees of their own.
    pools = str(fields.data.get("disagg", False)).lower() == "true"
    run.put("concurrency", concurrency, "conc")
    run.put("closed_loop", True, "conc")
    for field, key in (("prompt_tokens", "isl"), ("output_tokens", "osl")):
        value = fields.number(key)
        run.put(field, {} if value is None else {"mean": value}, key)
    if tensor and not pools:
        run.put("devices", tensor, "tp")
        for field, key in (("output_throughput", "output_tput_per_gpu"), ("total_throughput", "tput_per_gpu")):
            each = fields.number(key)
            run.put(field, None if each is None else each * tensor, key)
        run.put("settings", {"policy.parallelism.tensor": tensor}, "tp")
    for field, name in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("e2e_s", "e2el")):
        found = {"mean": fields.number(f"mean_{name}"), "p50": fields.number(f"median_{name}")}
        found |= {p: fields.number(f"{p}_{name}") for p in PERCENTILES if f"{p}_{name}" in fields}
        run.put(field, {k: v for k, v in found.items() if v is not None}, f"mean_{name}")
    return run.measurement()
