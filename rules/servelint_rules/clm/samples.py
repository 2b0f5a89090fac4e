"""A benchmark's result file for the cases of these rules: in the schema of ``vllm bench serve``, figures that agree.

32 requests in flight for 100 s: 1,000 requests of 1,000 prompt and 200 output tokens. 10 req/s x 3.2 s = 32, and
100 ms + 15.58 ms x 199 = 3.2 s.
"""

from __future__ import annotations

CHAT = """\
{"date": "20261101-101500", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 1000,
"request_rate": "inf", "burstiness": 1.0, "max_concurrency": 32, "duration": 100.0, "completed": 1000, "failed": 0,
"total_input_tokens": 1000000, "total_output_tokens": 200000, "request_throughput": 10.0,
"output_throughput": 2000.0, "total_token_throughput": 12000.0,
"mean_ttft_ms": 100.0, "median_ttft_ms": 90.0, "p99_ttft_ms": 300.0,
"mean_tpot_ms": 15.58, "median_tpot_ms": 15.5, "p99_tpot_ms": 18.0,
"mean_e2el_ms": 3200.0, "median_e2el_ms": 3100.0, "p99_e2el_ms": 5000.0}
"""

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
"""


def changed(**figures: object) -> str:
    """The result file with some keys replaced or added (a later key of a JSON object goes before an earlier one)."""
    added = ", ".join(f'"{key}": {value}' for key, value in figures.items())
    return CHAT.rstrip().removesuffix("}") + f", {added}}}\n" if added else CHAT
