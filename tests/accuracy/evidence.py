"""Published benchmark runs as evidence: each in its tool's schema, what is said of it, and the page that lists that.

``python tests/accuracy/evidence.py --write`` writes docs/evidence.md. The rows are figures of published result
files; the files themselves are made here from the rows, in the tool's schema.
"""

# The page's tables have no line breaks within a row.
# ruff: noqa: E501

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from servelint.config import Config
from servelint.consistency import LIMITS
from servelint.lint import FileResult, Linter
from servelint.manager import Plugins
from servelint.rule import Severity

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence.md"
FIXTURES = ROOT / "tests" / "data" / "facts" / "evidence_fixtures.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in FIXTURES.read_text(encoding="utf-8").splitlines()]

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B-Instruct"
max_model_len = 8192
{policy}[[claim]]
metric = "{metric}"
value = "{value}"
at = {{ rate = "{rate} req/s" }}
evidence = "bench.json"
"""
POLICIES = {
    "quantization": '[policy.quantization]\nweights = "fp8"\n',
    "eagle": '[policy.speculation]\nmethod = "eagle"\ntokens = 3\n',
}


def file_of(row: dict[str, Any]) -> str:
    """The stage's result file as inference-perf writes it, in seconds."""

    def seconds(table: dict[str, float]) -> dict[str, float]:
        return {name: value / 1e3 for name, value in table.items()}

    data = {
        "load_summary": {
            "count": row["n"],
            "schedule_delay": {"p99": row["schedule_delay_p99_s"]},
            "requested_rate": row["requested_rps"],
            "achieved_rate": row["achieved_rps"],
        },
        "successes": {
            "count": row["n"] - row["failures"],
            "latency": {
                "request_latency": seconds(row["e2e_ms"]),
                "time_per_output_token": seconds(row["tpot_ms_reported"]),
                "inter_token_latency": seconds(row["itl_ms_reported"]),
                "time_to_first_token": seconds(row["ttft_ms"]),
            },
            "throughput": {"output_tokens_per_sec": row["output_tok_s"], "requests_per_sec": row["completed_rps"]},
            "prompt_len": {"mean": row["in_len_mean"]},
            "output_len": {"mean": row["out_len_mean"]},
        },
        "failures": {"count": row["failures"]},
    }
    return json.dumps(data)


def checked(row: dict[str, Any], metric: str, value: str, rate: float, plugins: Plugins) -> FileResult:
    """Check a claim of the row's figure with its file behind it, on the hardware that the row names."""
    policy = next((text for name, text in POLICIES.items() if name in row["id"]), "")
    spec = SPEC.format(policy=policy, metric=metric, value=value, rate=rate)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench.json").write_text(file_of(row), encoding="utf-8")
        return Linter(plugins, Config(), Path(folder)).check(str(Path(folder) / "spec.toml"), spec)


def reported(row: dict[str, Any], plugins: Plugins) -> FileResult:
    """A claim of the TPOT that the tool reports, at the rate that was asked for."""
    return checked(row, "tpot", f"{row['tpot_ms_reported']['mean']} ms", row["requested_rps"], plugins)


def derived(row: dict[str, Any], plugins: Plugins) -> FileResult:
    """A claim of the TPOT that follows from the latency, at the rate that was asked for."""
    return checked(row, "tpot", f"{row['tpot_ms_derived_from_e2e']} ms", row["requested_rps"], plugins)


def said(result: FileResult) -> str:
    """Codes of errors and warnings, in order."""
    found = [f.finding for f in result.findings if (f.finding.severity or Severity.INFO) >= Severity.WARNING]
    texts = [f"{f.code} ({_about(f.message)})" if f.code == "CLM009" else f.code for f in found]
    return ", ".join(dict.fromkeys(texts)) or "nothing"


def _about(message: str) -> str:
    return "pace" if "too short" in message else "rate not kept" if "it asked for" in message else "other"


TOOLS = """\
| tool | file | unit of latencies | what its time per token is | what it records of the server |
|---|---|---|---|---|
| vLLM `bench serve` | `--save-result` JSON, one object (a list with `--append-result`) | ms | `mean_tpot_ms`, first token left out; `itl` are gaps of streamed chunks | nothing; keys that were given as `--metadata`: `version`, `gpu`, `gpus`, flags by their names |
| SGLang `bench_serving` | JSON Lines, an object a run | ms | `mean_tpot_ms`, first token left out | `server_info`: model, release, parallelism, formats, limits; `cache_report` |
| GuideLLM | `benchmarks.json` or `.yaml`, an entry a rate | `_ms` in ms, `request_latency` in s | its `inter_token_latency_ms` is the time per output token here; its own `time_per_output_token_ms` counts the first token in and is not read | model |
| inference-perf | `stage_N_lifecycle_metrics.json`, `summary_lifecycle_metrics.json` | s | of streamed events: short by as many as the server sends a token | nothing: configuration and Prometheus metrics are files of their own |
| AIPerf, GenAI-Perf | `profile_export_aiperf.json` | each metric's `unit` | its `inter_token_latency` is the time per output token here | model; load in `input_config`: `loadgen`, from 0.9 the measured one of `phases` |
| llm-d benchmark report 0.2 | YAML or JSON | each statistic's `units` | `time_per_output_token`, of the tool that ran | accelerator, count, parallelism, engine, image, arguments; KV cache and prefix cache |
| genai-bench | a JSON a scenario and load, `aggregated_metrics` | s, or `_time_unit` | `tpot`, first token left out | typed in by hand, in `experiment_metadata` where both are in one file |
| llmperf | `*_summary.json` | s | counts the first token in, and is not read: the pace follows from the latency | model |
| MLPerf LoadGen | `mlperf_log_summary.txt` | ns | `Time per Output Token`, first token left out | nothing: the system is a file of its own |
| InferenceX | `agg_*.json` | s | `mean_tpot`, vLLM's | hardware, framework, parallelism; throughputs are per device |
"""

HEAD = """\
# Evidence: what benchmarks write, and what servelint says of it

A claim names the file that it rests on, relative to the spec and inside the project, at most 20 MB:

```toml
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 32 }
evidence = "bench/chat-32.json"
```

The file is read as the first of the tools below whose keys it has. Every figure becomes SI: seconds, tokens, a second.
A file of none of them is advice of SPEC005, one that is broken an error of SPEC004 with the key that is wrong. The
address of a page (`https://...`) is not read.

## Which run it is

`claim.at.concurrency` (or `batch`) chooses the run with that many requests in flight, `claim.at.rate` the one that was
asked for that rate, else the one that served it. A file of one run needs neither. Of several that match, the one whose
own figure is the claimed one is meant, within 2 %. Otherwise nothing is guessed: CLM003 says that nothing is compared.

## Tools

"""

CHECKS = """
## What is checked

| rule | what |
|---|---|
| [CLM001](rules/CLM001.md) | the measured throughput, and time per token, against the bound of the deployed hardware |
| [CLM003](rules/CLM003.md) | model, accelerator, devices, engine, formats, parallelism, limits, lengths, cached share; the claimed figure against the measured one |
| [CLM004](rules/CLM004.md) | fixed lengths for a distribution, a closed loop (or everything at once) for a rate |
| [CLM006](rules/CLM006.md) | limits, offered rate and failures behind a goodput |
| [CLM008](rules/CLM008.md) | the engine's release; of `[[evidence]]` also the artifact and the date |
| [CLM009](rules/CLM009.md) | the run against itself, below |

What no file says is not compared: most record neither flags nor hardware. Not compared at all: the memory share (each
engine means another by it), the revision of a datasheet, and how old a file is.

### Identities of one run

| check | identity | let pass |
|---|---|---|
"""

IDENTITIES = (
    ("number", "no figure is negative, infinite or NaN; else error", "-"),
    ("order", "least, percentiles and largest in order, the mean between; TTFT below end-to-end; else error", "0.2 %"),
    (
        "pace",
        "TTFT + TPOT x (output - 1) = end-to-end, in means",
        "a factor of {pace}; {pace} squared where TPOT is long",
    ),
    (
        "load",
        "open loop: sent / asked for; where only completed requests are counted, the last answers are allowed for",
        "at least {reached:.0%}",
    ),
    ("flight", "in flight = completed a second x end-to-end, and no more than were let in", "{flight:.0%}"),
    ("totals", "throughput = total / duration = requests a second x output tokens", "{totals:.0%}"),
    ("idle", "a KV cache in use of 0 with a request or more in flight: the scraped metric has another name", "-"),
    ("warm", "random prompts found in the prefix cache", "{warm:.0%}"),
    ("failed", "failed / sent; requests that the end cut off", "{failed:.0%}; 20 %, or as many as are in flight"),
    ("tail", "requests beyond a percentile that the claim or the SLO is about", "at least {tail:g}"),
)

FOOT = """
## Published runs

Twenty stages of one published benchmark (inference-perf against vLLM, Llama-3.1-8B-Instruct on one H100; the rows with
their source are in `tests/data/facts/evidence_fixtures.jsonl`). Each stage's file is named by a claim of the TPOT that
it reports, at the rate that it asked for, on the deployment that it names.

Why that is right: `tests/accuracy/test_evidence.py` holds each row to it.

- **The reported TPOT is short by a factor of 1.8 to 2.1.** TTFT plus reported TPOT times tokens is half of the
  latency that the same file reports, and the time from the latency is the server's own within 15 % where more than a
  hundred requests ran (columns 5 and 6). The median gap of 0.04 ms shows it, too: the second event of a token follows at once.
- **Where the reported figure is faster than the hardware** CLM001 says so as well: 3.4 to 4.2 ms a token is less than
  reading the 16-bit weights once takes. The figure from the latency never is.
- **Stages whose client fell behind** (sent below 95 % of what was asked for) are those whose last requests were more
  than a second late. Their latencies are of the queue that the client kept.
- A KV cache in use of 0 is a metric that vLLM V1 renamed; the V0 runs have the old one. It is advice: no claim rests on it.

| stage | asked, sent, served (req/s) | requests | TPOT reported (ms) | from the latency | server's own | a claim of the reported TPOT | of the one from the latency |
|---|---|---|---|---|---|---|---|
"""


def page(plugins: Plugins) -> str:
    """The whole page."""
    identities = "".join(f"| {a} | {b} | {c.format(**LIMITS)} |\n" for a, b, c in IDENTITIES)
    rows = "".join(
        f"| {r['id'].removeprefix('e-')} | {r['requested_rps']:g}, {r['achieved_rps']:g}, {r['completed_rps']:g} | "
        f"{r['n']:,} | {r['tpot_ms_reported']['mean']:g} | {r['tpot_ms_derived_from_e2e']:g} | "
        f"{r['server_tpot_ms_mean']:g} | {said(reported(r, plugins))} | {said(derived(r, plugins))} |\n"
        for r in ROWS
    )
    sources = sorted({s for f in plugins.evidence_formats for s in f.sources})
    listed = "".join(f"- `{s}`\n" for s in sources)
    return f"{HEAD}{TOOLS}{CHECKS}{identities}{FOOT}{rows}\n## Sources of the schemas\n\n{listed}"


if __name__ == "__main__":
    text = page(Plugins())
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
