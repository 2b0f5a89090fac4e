"""Which run a claim is about, how it differs from the deployment, and what is said of files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import FileResult, Linter
from servelint.manager import Plugins
from servelint.measured import Evidence
from servelint.review import Review
from servelint.spec.document import parse

RUN = {
    "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 1000, "request_rate": "inf",
    "max_concurrency": 32, "duration": 100.0, "completed": 1000, "failed": 0, "total_input_tokens": 1000000,
    "total_output_tokens": 200000, "request_throughput": 10.0, "output_throughput": 2000.0, "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 15.58, "mean_e2el_ms": 3200.0,
}  # fmt: skip
SWEEP = [
    {**RUN, "max_concurrency": n, "output_throughput": 60.0 * n, "request_throughput": 0.3 * n} for n in (1, 8, 32)
]
RATES = [{**RUN, "max_concurrency": None, "request_rate": r, "request_throughput": min(r, 9.0)} for r in (4, 8, 16)]
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
"""


def bound(tmp_path: Path, plugins: Plugins, data: object, claim: str) -> Evidence | None:
    (tmp_path / "bench.json").write_text(json.dumps(data))
    document = parse(str(tmp_path / "spec.toml"), SPEC + claim, plugins.policies)
    assert not document.problems, document.problems
    review = Review(document, plugins, tmp_path)
    ((path, found),) = review.claims
    return review.evidence(path, found)


def checked(tmp_path: Path, plugins: Plugins, claim: str, head: str = SPEC) -> FileResult:
    return Linter(plugins, Config(), tmp_path).check(str(tmp_path / "spec.toml"), head + claim)


@pytest.mark.parametrize(
    ("data", "at", "chosen"),
    [
        (RUN, "", 32),
        (RUN, "at = { concurrency = 32 }", 32),
        (SWEEP, "at = { concurrency = 8 }", 8),
        (SWEEP, "at = { batch = 1 }", 1),
    ],
)
def test_a_claim_chooses_its_run(tmp_path: Path, plugins: Plugins, data: object, at: str, chosen: int) -> None:
    found = bound(tmp_path, plugins, data, f'value = "500 tok/s"\nevidence = "bench.json"\n{at}\n')
    assert found is not None
    assert found.run is not None
    assert found.run.concurrency == chosen


def test_the_figure_itself_tells(tmp_path: Path, plugins: Plugins) -> None:
    found = bound(tmp_path, plugins, SWEEP, 'value = "481 tok/s"\nevidence = "bench.json"\n')
    assert found is not None
    assert found.run is not None
    assert found.run.concurrency == 8


@pytest.mark.parametrize(("rate", "chosen"), [("8 req/s", 8.0), ("9 req/s", 16.0)])
def test_a_rate_is_what_was_asked_for_else_what_was_served(
    tmp_path: Path, plugins: Plugins, rate: str, chosen: float
) -> None:
    claim = f'value = "500 tok/s"\nevidence = "bench.json"\nat = {{ rate = "{rate}" }}\n'
    found = bound(tmp_path, plugins, RATES, claim)
    assert found is not None
    assert found.run is not None
    assert found.run.requested_rate == chosen


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("", "which of its 3 runs it is, is not said"),
        ("at = { concurrency = 64 }", "none of its runs is at concurrency 64: they are at 1, 8, 32"),
    ],
)
def test_no_run_is_guessed(tmp_path: Path, plugins: Plugins, at: str, why: str) -> None:
    found = bound(tmp_path, plugins, SWEEP, f'value = "700 tok/s"\nevidence = "bench.json"\n{at}\n')
    assert found is not None
    assert found.run is None
    assert found.why == why


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("missing.json", "SPEC004", "'missing.json' cannot be used: it does not exist"),
        ("../outside.json", "SPEC004", "it lies outside the project root"),
        ("broken.json", "SPEC004", "completed: expected a number, found 'x'"),
        ("notes.md", "SPEC005", "compared with nothing: it is no result file that is read"),
        ("https://example.com/a.json", "", ""),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, plugins: Plugins, name: str, code: str, message: str) -> None:
    (tmp_path / "broken.json").write_text(json.dumps({**RUN, "completed": "x"}))
    (tmp_path / "notes.md").write_text("# Notes\n")
    claim = f'value = "1000 tok/s"\nat = {{ concurrency = 32 }}\nevidence = "{name}"\n'
    found = [(f.finding.code, f.finding.message) for f in checked(tmp_path, plugins, claim).findings]
    assert [c for c, _ in found] == ([code] if code else [])
    assert all(message in m for _, m in found)
    assert not plugins.faults


def test_too_large_a_file(tmp_path: Path, plugins: Plugins) -> None:
    with (tmp_path / "bench.json").open("wb") as stream:
        stream.truncate(20_000_001)
    found = checked(tmp_path, plugins, 'value = "1000 tok/s"\nevidence = "bench.json"\n').findings
    assert [f.finding.code for f in found] == ["SPEC004"]
    assert "the limit is 20,000,000" in found[0].finding.message


def test_one_file_of_many_claims_is_read_once(
    tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    from servelint import measured

    (tmp_path / "bench.json").write_text(json.dumps(RUN))
    read: list[str] = []
    original = measured.read_project_file

    def counted(root: Path, base: Path, name: str, limit: int) -> str:
        read.append(name)
        return original(root, base, name, limit)

    monkeypatch.setattr(measured, "read_project_file", counted)
    claim = 'value = "1000 tok/s"\nat = { concurrency = 32 }\nevidence = "bench.json"\n'
    checked(tmp_path, plugins, claim + '[[claim]]\nmetric = "throughput"\n' + claim)
    assert read == ["bench.json"]


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"gpu": "NVIDIA-A100-SXM4-80GB"}, "accelerator NVIDIA-A100-SXM4-80GB, deployed nvidia/h100-sxm5-80gb"),
        ({"gpus": 4}, "devices 4, deployed 1"),
        ({"model_id": "meta-llama/Llama-3.1-70B"}, "model meta-llama/Llama-3.1-70B, deployed meta-llama/Llama-3.1-8B"),
        ({"tensor_parallel_size": "2"}, "parallelism.tensor 2, deployed 1"),
        ({"gpu": "H100"}, ""),
        ({"model_id": "/models/our-copy"}, ""),
    ],
)
def test_differences_from_the_deployment(
    tmp_path: Path, plugins: Plugins, change: dict[str, object], clause: str
) -> None:
    (tmp_path / "bench.json").write_text(json.dumps({**RUN, **change}))
    found = checked(tmp_path, plugins, 'value = "2000 tok/s"\nevidence = "bench.json"\n').findings
    assert [f.finding.code for f in found] == (["CLM003"] if clause else [])
    assert all(clause in f.finding.message for f in found)


HOSTILE = (
    "0", "-1", "1e308", "1e-308", "NaN", "Infinity", "null", '"x"', '"inf"', "true", "[]", "{}", "[null]", '""',
    "1" * 5000, "9" * 300,
)  # fmt: skip
WHOLE = """\
[engine]
name = "vllm"
version = "0.11.0"
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 180, p99 = 600 }
rate = "5 req/s"
[slo]
tpot = { p99 = "100 ms" }
"""


def test_no_figure_of_a_file_breaks_a_rule(tmp_path: Path, plugins: Plugins) -> None:
    sample = json.loads((Path(__file__).parents[2] / "data" / "evidence" / "vllm.json").read_text())
    claims = "".join(
        f'[[claim]]\nmetric = "{metric}"\nvalue = "{value}"\nevidence = "bench.json"\n'
        for metric, value in (("goodput", "900 tok/s"), ("tpot", "16 ms"), ("e2e", "3 s"))
    )
    text = SPEC.partition("[[claim]]")[0] + WHOLE + claims
    linter = Linter(plugins, Config(), tmp_path)
    for key in sample:
        for value in HOSTILE:
            rest = json.dumps({k: v for k, v in sample.items() if k != key})
            (tmp_path / "bench.json").write_text(rest[:-1] + f', "{key}": {value}}}')
            linter.check(str(tmp_path / "spec.toml"), text)
            assert not plugins.faults, (key, value)


def test_an_evidence_table_names_a_file_that_is_read(tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "bench.json").write_text(json.dumps({**RUN, "mean_ttft_ms": -1}))
    table = '[[evidence]]\nkind = "benchmark"\nfile = "{}"\n'
    head = SPEC.partition("[[claim]]")[0]
    codes = [
        [f.finding.code for f in checked(tmp_path, plugins, table.format(name), head).findings]
        for name in ("bench.json", "missing.json")
    ]
    assert codes == [["CLM009"], ["SPEC004"]]


def test_a_reader_that_fails_is_its_plugins_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from servelint_plugins.evidence import vllm

    def broken(text: str) -> object:
        raise KeyError("oops")

    monkeypatch.setattr(vllm, "read", broken)
    own = Plugins()
    (tmp_path / "bench.json").write_text(json.dumps(RUN))
    checked(tmp_path, own, 'value = "2000 tok/s"\nat = { concurrency = 32 }\nevidence = "bench.json"\n')
    assert any("vllm-bench" in str(fault) for fault in own.faults)
