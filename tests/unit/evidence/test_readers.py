"""Readers of result files: every figure in SI units, from a sample in each tool's schema; what is wrong has its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servelint.evidence import Measurement
from servelint.manager import Plugins
from servelint.measured import UnknownKindError, runs_of

SAMPLES = Path(__file__).parents[2] / "data" / "evidence"
MODEL = "meta-llama/Llama-3.1-8B"


def read(name: str, plugins: Plugins) -> tuple[Measurement, ...]:
    return runs_of(name, plugins, SAMPLES, SAMPLES)


def written(tmp_path: Path, text: str, plugins: Plugins) -> tuple[Measurement, ...]:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    return runs_of("file", plugins, tmp_path, tmp_path)


def expect(found_run: Measurement, /, **figures: Any) -> None:
    for field, value in figures.items():
        found = getattr(found_run, field)
        assert found == (pytest.approx(value) if isinstance(value, float | dict) else value), field


def test_vllm(plugins: Plugins) -> None:
    (run,) = read("vllm.json", plugins)
    expect(
        run, tool="vllm-bench", model=MODEL, engine="vllm", engine_version="0.11.0", accelerator="H100",
        closed_loop=True, unlimited=True, requested_rate=None, concurrency=32.0, completed=998, failed=2,
        duration_s=100.0, request_throughput=9.98, goodput=9.5, output_throughput=1996.0, total_throughput=11976.0,
    )  # fmt: skip
    expect(run, ttft_s={"mean": 0.1, "p50": 0.09, "p99": 0.3}, tpot_s={"mean": 0.01558, "p50": 0.0155, "p99": 0.018})
    expect(
        run, prompt_tokens={"mean": 1000.0}, output_tokens={"mean": 200.0}, settings={"policy.parallelism.tensor": 1}
    )
    assert run.e2e_s["p99"] == pytest.approx(4.0)
    assert run.sources["completed"] == "completed"


def test_a_list_of_appended_runs(tmp_path: Path, plugins: Plugins) -> None:
    one = json.loads((SAMPLES / "vllm.json").read_text())
    runs = written(tmp_path, json.dumps([one, {**one, "max_concurrency": 64}]), plugins)
    assert [r.concurrency for r in runs] == [32.0, 64.0]


def test_sglang(plugins: Plugins) -> None:
    first, second = read("sglang.jsonl", plugins)
    expect(
        first, tool="sglang-bench", model=MODEL, engine="sglang", engine_version="0.5.3", devices=2,
        requested_rate=8.0, closed_loop=False, mean_concurrency=10.71, prompts="random", fixed_lengths=True,
        cache_hit=0.625, acceptance_length=None, total_throughput=9142.9,
    )  # fmt: skip
    expect(
        first,
        settings={
            "policy.parallelism.tensor": 2,
            "policy.parallelism.pipeline": 1,
            "policy.quantization.kv_cache": "fp8_e4m3",
            "policy.batching.max_sequences": 128,
        },
    )
    assert first.e2e_s["mean"] == pytest.approx(1.35)
    assert first.itl_s["max"] == pytest.approx(0.09)
    expect(second, run="second", closed_loop=True, unlimited=True, concurrency=16.0, acceptance_length=2.4, settings={})
    assert second.fixed_lengths is None


def test_guidellm(plugins: Plugins) -> None:
    first, second = read("guidellm.json", plugins)
    expect(
        first, tool="guidellm", tool_version="0.7.0", model=MODEL, run="concurrent", closed_loop=True,
        concurrency=16.0, completed=300, incomplete=16, failed=0, request_throughput=5.0, mean_concurrency=15.8,
        output_throughput=1000.0, total_throughput=3560.0, fixed_lengths=True,
    )  # fmt: skip
    # Seconds stay, milliseconds are divided; its own time per output token, first one included, is no TPOT.
    expect(first, tpot_s={"mean": 0.01558, "p50": 0.0155, "p99": 0.018}, itl_s={})
    expect(first, e2e_s={"mean": 3.16, "min": 2.9, "p50": 3.1, "p90": 3.5, "p99": 3.8, "p999": 3.9, "max": 3.9})
    expect(second, run="poisson", closed_loop=False, requested_rate=2.0, burstiness=1.0, failed=3, fixed_lengths=None)


def test_guidellm_in_yaml(plugins: Plugins) -> None:
    (run,) = read("guidellm.yaml", plugins)
    expect(run, tool_version="0.5.3", model=MODEL, requested_rate=4.0, closed_loop=False, burstiness=None)
    expect(run, ttft_s={"mean": 0.0455, "p99": 0.12}, e2e_s={"mean": 2.5, "p50": 2.4, "p99": 3.1})


def test_inference_perf(plugins: Plugins) -> None:
    (run,) = read("inference_perf.json", plugins)
    expect(
        run, tool="inference-perf", requested_rate=26.0, achieved_rate=22.49, closed_loop=False, completed=1558,
        failed=2, request_throughput=16.19, output_throughput=3274.0, fixed_lengths=False,
    )  # fmt: skip
    # Everything of this tool is in seconds.
    expect(run, e2e_s={"mean": 17.1, "min": 0.25, "p50": 14.38, "p90": 35.66, "p999": 60.0, "max": 62.19})
    assert run.tpot_s["mean"] == pytest.approx(0.0291)
    assert run.schedule_delay_s["max"] == pytest.approx(9.38)
    assert run.sources["ttft_s"] == "successes.latency.time_to_first_token"


def test_aiperf_reads_each_unit(plugins: Plugins) -> None:
    (run,) = read("aiperf.json", plugins)
    expect(
        run, tool="aiperf", tool_version="0.4.0", model=MODEL, concurrency=16.0, closed_loop=True, completed=300,
        failed=1, goodput=4.5, duration_s=60.0, fixed_lengths=False, date="2026-11-01T10:00:00", invalid=None,
    )  # fmt: skip
    expect(run, ttft_s={"mean": 0.06, "p50": 0.055, "p99": 0.14}, tpot_s={"mean": 0.01558, "p50": 0.0155, "p99": 0.018})


def test_aiperf_of_phases(plugins: Plugins) -> None:
    (run,) = read("aiperf_phases.json", plugins)
    expect(
        run, tool="aiperf", tool_version="0.13.0", model=MODEL, concurrency=16.0, requested_rate=None,
        closed_loop=True, completed=300, failed=1, goodput=4.5,
    )  # fmt: skip
    assert run.sources["model"] == "input_config.models.items[0].name"
    assert run.sources["concurrency"] == "input_config.phases[1].concurrency"


@pytest.mark.parametrize(
    ("phases", "requested", "concurrency", "closed"),
    [
        ([{"name": "profiling", "type": "poisson", "rate": 5.0, "concurrency": 64}], 5.0, 64.0, False),
        ([{"name": "profiling", "type": "constant", "rate": 2}], 2.0, None, False),
        ([{"name": "profiling", "type": "concurrency"}], None, 1.0, True),
        ([{"name": "heat", "kind": "warmup", "type": "constant", "rate": 1},
          {"name": "steady", "kind": "profiling", "type": "constant", "rate": 3}], 3.0, None, False),
        ([{"name": "profiling", "type": "poisson", "rate_series": {"points": []}, "concurrency": 8}], None, 8.0, None),
        ([{"name": "profiling", "type": "fixed_schedule"}], None, None, None),
        ([{"name": "profiling", "type": "concurrency", "concurrency": 64, "adaptive_scale": True}], None, None, None),
        ([{"name": "low", "type": "constant", "rate": 1}, {"name": "high", "type": "constant", "rate": 9}],
         None, None, None),
    ],
)  # fmt: skip
def test_the_load_of_aiperf_is_that_of_the_measured_phase(
    tmp_path: Path,
    plugins: Plugins,
    phases: list[dict[str, Any]],
    requested: float | None,
    concurrency: float | None,
    closed: bool | None,
) -> None:
    data = json.loads((SAMPLES / "aiperf_phases.json").read_text())
    data["input_config"]["phases"] = phases
    (run,) = written(tmp_path, json.dumps(data), plugins)
    expect(run, requested_rate=requested, concurrency=concurrency, closed_loop=closed)


def test_aiperf_of_several_models_names_none(tmp_path: Path, plugins: Plugins) -> None:
    two = (SAMPLES / "aiperf_phases.json").read_text().replace('"}]}', '"}, {"name": "other/model"}]}', 1)
    (run,) = written(tmp_path, two, plugins)
    assert run.model is None


def test_aiperf_that_was_cancelled(tmp_path: Path, plugins: Plugins) -> None:
    (run,) = written(tmp_path, (SAMPLES / "aiperf.json").read_text().replace('false, "error', 'true, "error'), plugins)
    assert run.invalid == "it was cancelled"


def test_llm_d(plugins: Plugins) -> None:
    (run,) = read("llm_d.yaml", plugins)
    expect(
        run, tool="llm-d-report", tool_version="0.3.0", run="stage 3", model=MODEL, engine="vllm",
        engine_version="0.11.0", accelerator="NVIDIA-H100-80GB-HBM3", devices=2, requested_rate=5.0, concurrency=None,
        closed_loop=False, fixed_lengths=False, duration_s=60.5, completed=297, failed=3, kv_usage=0.125,
        cache_hit=0.653, request_throughput=4.95,
    )  # fmt: skip
    expect(
        run,
        settings={
            "policy.parallelism.tensor": 2,
            "policy.batching.max_sequences": 64,
            "policy.quantization.kv_cache": "fp8",
        },
    )
    expect(run, ttft_s={"mean": 0.06, "p50": 0.055, "p99": 0.14, "p999": 0.16}, tpot_s={"mean": 0.01558, "p99": 0.018})


@pytest.mark.parametrize(
    ("statistics", "kv_usage"),
    [
        ("units: percent, mean: 0.125, p99: 0.9", 0.125),
        ("units: percent, mean: 1.0, p99: 1.0", 1.0),
        ("units: percent, mean: 0.5, p99: 3.0", 0.005),
        ("units: percent, mean: 0.0", 0.0),
        ("units: fraction, mean: 0.125", 0.125),
    ],
)
def test_llm_d_writes_vllms_share_of_the_cache_as_percent(
    tmp_path: Path, plugins: Plugins, statistics: str, kv_usage: float
) -> None:
    text = (SAMPLES / "llm_d.yaml").read_text()
    (run,) = written(tmp_path, text.replace("units: percent, mean: 12.5", statistics), plugins)
    # A hit rate is computed by the report's own tool, in hundredths.
    expect(run, kv_usage=kv_usage, cache_hit=0.653)


def test_llm_d_counts_what_the_end_cut_off_apart(tmp_path: Path, plugins: Plugins) -> None:
    text = (SAMPLES / "llm_d.yaml").read_text().replace("failures: 3", "failures: 3\n        incomplete: 7")
    (run,) = written(tmp_path, text, plugins)
    expect(run, completed=290, failed=3, incomplete=7)
    (run,) = written(
        tmp_path, text.replace("tool: inference-perf", "tool: aiperf").replace("incomplete: 7", ""), plugins
    )
    expect(run, completed=300, failed=None, incomplete=None)


def test_genai_bench(plugins: Plugins) -> None:
    (run,) = read("genai_bench.json", plugins)
    expect(
        run, tool="genai-bench", run="D(512,200)", fixed_lengths=True, concurrency=16.0, closed_loop=True,
        completed=300, failed=0, duration_s=60.0, request_throughput=5.0, output_throughput=1000.0,
    )  # fmt: skip
    assert run.ttft_s["p99"] == pytest.approx(0.14)
    assert run.output_tokens == {"mean": 200.0, "min": 200.0, "max": 200.0}


def test_genai_bench_in_milliseconds(tmp_path: Path, plugins: Plugins) -> None:
    data = json.loads((SAMPLES / "genai_bench.json").read_text())
    data["_time_unit"] = "ms"
    data["aggregated_metrics"] |= {"iteration_type": "request_rate", "request_rate": 8, "scenario": "N(512,9)"}
    (run,) = written(tmp_path, json.dumps(data), plugins)
    assert run.ttft_s["mean"] == pytest.approx(6e-5)
    expect(run, requested_rate=8.0, closed_loop=False, concurrency=None, fixed_lengths=False)


def test_llmperf(plugins: Plugins) -> None:
    (run,) = read("llmperf.json", plugins)
    expect(
        run, tool="llmperf", model=MODEL, concurrency=4.0, closed_loop=True, completed=83, failed=1,
        request_throughput=0.55, output_throughput=88.0, fixed_lengths=False, date="2026-11-01",
        # Its time between tokens counts the first one in.
        tpot_s={}, itl_s={},
    )  # fmt: skip
    expect(run, ttft_s={"mean": 0.593, "min": 0.58, "p50": 0.589, "p99": 0.642, "max": 0.6421})
    assert run.prompt_tokens["min"] == 550.0


def test_mlperf_is_in_nanoseconds(plugins: Plugins) -> None:
    (run,) = read("mlperf_log_summary.txt", plugins)
    expect(
        run, tool="mlperf-loadgen", run="Server", closed_loop=False, requested_rate=264.0, achieved_rate=263.64,
        request_throughput=260.10, output_throughput=73608.25, invalid=None,
        ttft_s={"mean": 0.24197528, "p99": 0.447556635}, tpot_s={"mean": 0.034999429, "p99": 0.038889954},
    )  # fmt: skip
    assert run.e2e_s["p999"] == pytest.approx(38.478075878)


def test_mlperf_that_is_invalid(tmp_path: Path, plugins: Plugins) -> None:
    text = (SAMPLES / "mlperf_log_summary.txt").read_text().replace(": VALID", ": INVALID").replace("Server", "Offline")
    (run,) = written(tmp_path, text, plugins)
    expect(run, invalid="LoadGen says that the result is INVALID", requested_rate=None, unlimited=True)


def test_inferencex(plugins: Plugins) -> None:
    (run,) = read("inferencex.json", plugins)
    expect(
        run, tool="inferencex", accelerator="h200", engine="sglang", devices=8, concurrency=64.0,
        output_throughput=2400.0, total_throughput=4800.0, prompt_tokens={"mean": 1024.0},
    )  # fmt: skip
    expect(run, tpot_s={"mean": 0.025, "p50": 0.0249, "p99": 0.03})


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("vllm.json", '"completed": 998', '"completed": "many"', "completed: expected a number, found 'many'"),
        ("vllm.json", '"completed": 998', '"completed": 9.5', "completed: expected a whole number, found 9.5"),
        ("sglang.jsonl", '"server_info": {', '"server_info": [{', "it is not valid JSON"),
        ("sglang.jsonl", '"server_info": null', '"server_info": [1]', "server_info: expected a table, found"),
        ("guidellm.json", '"mean": 15.8}', '"mean": {}}', "request_concurrency.successful.mean: expected a number"),
        (
            "inference_perf.json",
            '"mean": 5.06',
            '"mean": true',
            "time_to_first_token.mean: expected a number, found True",
        ),
        ("aiperf.json", '"unit": "us"', '"unit": "furlongs"', "inter_token_latency.unit: expected a unit of time"),
        (
            "aiperf_phases.json",
            '"phases": [{',
            '"phases": {"name": "profiling"}, "of": [{',
            "input_config.phases: expected a list, found",
        ),
        (
            "aiperf_phases.json",
            '"concurrency": 16',
            '"concurrency": "some"',
            "input_config.phases[1].concurrency: expected a number, found 'some'",
        ),
        ("aiperf_phases.json", '[{"name": "meta-llama/Llama-3.1-8B"}]', '["m"]', "models.items[0]: expected a table"),
        ("llm_d.yaml", "version: 0.2.1", "version: 0.9", "version: expected 0.2, found 0.9"),
        (
            "llm_d.yaml",
            "failures: 3",
            "failures: 3\n        incomplete: some",
            "incomplete: expected a number, found 'some'",
        ),
        ("llm_d.yaml", "PT1M0.5S", "a minute", "duration: expected an ISO 8601 duration, found 'a minute'"),
        ("llm_d.yaml", "units: ms", "units: parsecs", "time_to_first_token.units: expected a unit of time"),
        ("llm_d.yaml", "  stack:", "  stack: [", "it is not valid YAML"),
        ("genai_bench.json", '"num_concurrency": 16', '"num_concurrency": []', "num_concurrency: expected a number"),
        ("mlperf_log_summary.txt", "260.10", "lots", "Completed samples per second: expected a number, found 'lots'"),
    ],
)
def test_what_is_broken_names_its_key(
    tmp_path: Path, plugins: Plugins, name: str, old: str, new: str, message: str
) -> None:
    text = (SAMPLES / name).read_text()
    assert old in text
    with pytest.raises(ValueError, match=r".") as caught:
        written(tmp_path, text.replace(old, new, 1), plugins)
    assert message in str(caught.value)
    assert not plugins.faults


@pytest.mark.parametrize(
    "text", ["", "# Notes\n\nIt was fast.\n", "[]", "{}", '{"a": 1}', "a,b\n1,2\n", "key: value\n"]
)
def test_other_files_are_of_no_kind(tmp_path: Path, plugins: Plugins, text: str) -> None:
    with pytest.raises(UnknownKindError):
        written(tmp_path, text, plugins)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a": ' * 5_000 + "1" + "}" * 5_000,
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
        "a: &a\n  b: *a\n",
        "a: b\n" + "# padding\n" * 500_000,
        "a: !!python/object/apply:os.system ['true']\n",
        "a:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 200)),
    ],
    ids=["open", "nested", "deep", "bomb", "cycle", "long", "tag", "indented"],
)
def test_hostile_files_end(tmp_path: Path, plugins: Plugins, text: str) -> None:
    with pytest.raises(ValueError):
        written(tmp_path, text, plugins)
    assert not plugins.faults


def test_every_format_has_sources(plugins: Plugins) -> None:
    assert {f.name for f in plugins.evidence_formats} >= {read(p.name, plugins)[0].tool for p in SAMPLES.iterdir()}
    for format_ in plugins.evidence_formats:
        assert format_.sources, format_.name
        assert all("/" in source for source in format_.sources)
