"""``cost``: figures against independent arithmetic, the JSON contract, defaults, exports."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from servelint.__main__ import main
from servelint.manager import Plugins
from servelint.report import graph as graphs
from servelint.report.cost import as_object
from servelint.report.cost_text import as_text
from servelint.report.figures import Figures
from servelint.report.show import Style, quantity
from servelint.review import Review
from servelint.spec.document import parse

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
LLAMA_8B = H100 + '[model]\nid = "meta-llama/Llama-3.1-8B"\n'
LLAMA_70B = H100 + 'devices = 4\n[model]\nid = "meta-llama/Llama-3.1-70B"\n'
WORKLOAD = """\
[workload]
prompt_tokens = { p50 = 900, p99 = 7000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "3 req/s"
[slo]
ttft = { p99 = "2 s" }
itl = { p99 = "60 ms" }
"""
DISAGGREGATED = """\
[policy.disaggregation]
prefill = { devices = 2, tensor = 2 }
decode = { devices = 2, tensor = 2 }
"""
STEP_KEYS = {
    "basis", "shape", "bound_s", "sustained_bound_s", "estimate_s", "floor_s", "binding_resource",
    "bound_by_resource_s", "flops", "hbm_bytes", "hbm_bytes_by_kind", "link_bytes", "ops",
}  # fmt: skip


@pytest.fixture
def cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def price(spec: str, *options: str) -> dict[str, Any]:
        path = tmp_path / "spec.toml"
        path.write_text(spec, encoding="utf-8")
        assert main(["cost", str(path), "--format", "json", *options]) == 0
        data: dict[str, Any] = json.loads(capsys.readouterr().out)
        return data

    return price


def figures(plugins: Plugins, spec: str, **shape: float) -> Figures:
    return Figures(Review(parse("a.toml", spec, plugins.policies), plugins, Path()), **shape)


# Worked examples


def test_machine_balance(cost: Any) -> None:
    balance = cost(LLAMA_8B)["machine_balance_flops_per_byte"]
    assert balance["bf16"] == pytest.approx(989.4e12 / 3.35e12)
    assert balance["fp8"] == pytest.approx(1978.9e12 / 3.35e12)


def test_ceiling_of_70_gb_on_one_h100(cost: Any) -> None:
    stream = cost(LLAMA_70B.replace("devices = 4\n", "") + 'weights_bytes = "70 GB"\n')["single_stream"]
    assert stream["resident_weights_ceiling_tokens_per_s"] == pytest.approx(3.35e12 / 70e9)


def test_intensity_and_distance_below_balance(cost: Any) -> None:
    fp8 = '[policy.quantization]\nweights = "fp8"\ncovers = ["attention", "mlp", "lm_head"]\n'
    for extra, intensity in (("", 1.0), (fp8, 2.0)):
        stream = cost(LLAMA_70B + extra)["single_stream"]
        assert stream["intensity_flops_per_byte"] == pytest.approx(intensity, rel=1e-3)
        assert stream["times_below_balance"] == pytest.approx(295.3, rel=1e-3)


@pytest.mark.parametrize("extra", ["", '[policy.quantization]\nweights = "fp8"\n'])
def test_crossover_batch(extra: str, cost: Any) -> None:
    assert cost(LLAMA_70B + extra)["crossover_batch"] == pytest.approx(989.4 / 3.35, rel=1e-3)


def test_kv_cache_of_llama_70b(cost: Any) -> None:
    data = cost(LLAMA_70B, "--context", "131072", "--batch", "1")
    assert data["kv_bytes_per_token"] == 327_680
    assert data["kv_bytes_per_token_per_device"] == 327_680 / 4
    assert data["kv_bytes_per_sequence"] == 327_680 * 131_072
    assert cost(LLAMA_70B, "--context", "16384", "--batch", "32")["kv_bytes_of_decode_batch"] == pytest.approx(
        171.8e9, rel=1e-3
    )


def test_naive_scores_of_one_head_and_layer(cost: Any) -> None:
    # With 64 devices each of them holds one of the 64 heads.
    spec = LLAMA_70B.replace("devices = 4", "devices = 64") + '[policy.attention]\nkernel = "naive"\n'
    ops = cost(spec, "--prompt", "8192")["steps"]["prefill"]["ops"]
    core = next(op for op in ops if op["name"] == "full_attention.core")
    assert any(d.get("bytes") == 8192 * 8192 * 2 for d in core["demands"])


def test_context_from_4k_to_64k_reads_16_times_the_cache(cost: Any) -> None:
    short, long = (cost(LLAMA_8B, "--batch", "1", "--context", c)["steps"]["decode"] for c in ("4Ki", "64Ki"))
    assert long["hbm_bytes_by_kind"]["kv_read"] == 16 * short["hbm_bytes_by_kind"]["kv_read"]


def test_h200_over_h100(cost: Any) -> None:
    # Weights alone, so that the L2 that each bound takes off does not matter.
    h200 = LLAMA_8B.replace("h100-sxm5-80gb", "h200-sxm5-141gb")
    first, second = (cost(spec)["single_stream"]["ceiling_tokens_per_s"] for spec in (LLAMA_8B, h200))
    assert second / first == pytest.approx(4.8 / 3.35)


# The contract


def test_the_keys_of_the_contract(cost: Any) -> None:
    data = cost(LLAMA_70B + WORKLOAD)
    assert set(data["steps"]) == {"decode", "prefill", "mixed"}
    for step in data["steps"].values():
        assert set(step) == STEP_KEYS
        assert 0 < step["bound_s"] <= step["sustained_bound_s"] <= step["estimate_s"]
        assert step["floor_s"] <= step["bound_s"]
        assert max(step["bound_by_resource_s"].values()) == pytest.approx(step["bound_s"])
        assert sum(step["hbm_bytes_by_kind"].values()) == pytest.approx(step["hbm_bytes"])
        assert sum(op["hbm_bytes"] for op in step["ops"]) == pytest.approx(step["hbm_bytes"])
        assert sum(op["flops"] for op in step["ops"]) == pytest.approx(step["flops"])
        for op in step["ops"]:
            of_instance = sum(d.get("flops", 0.0) for d in op["demands"])
            assert of_instance * op["instances"] == pytest.approx(op["flops"])
            assert all(d["lineage"]["formula"] for d in op["demands"])
    knee, point = data["knee"], data["operating_point"]
    assert knee["itl_s"]["p99"] <= 0.06
    assert point["requests_per_s"] == pytest.approx(3.0, rel=0.02)
    assert [p["batch"] for p in data["frontier"]] == sorted(p["batch"] for p in data["frontier"])
    assert data["max_resident_sequences"] >= 1
    assert data["kv_capacity_tokens"] > 0
    memory = data["memory"]
    stage = memory["stages"][0]
    held = sum(w["bytes_by_stage"][0] for w in memory["weights"])
    assert held == pytest.approx(data["weights_bytes_per_device"]) == pytest.approx(stage["weights_bytes"])
    assert sum(r["bytes"] for r in memory["reserves"]) == pytest.approx(stage["reserves_bytes"])


def test_default_shapes_are_stated(cost: Any, plugins: Plugins) -> None:
    data = cost(LLAMA_8B)
    step = data["steps"]["decode"]
    assert (step["shape"]["batch"], step["shape"]["context_tokens"]) == (64, 4096)
    assert "default shape" in step["basis"]
    # The published anchor is without the L2 credit.
    l2 = plugins.accelerators.get("nvidia/h100-sxm5-80gb").l2_bytes
    assert step["bound_s"] + l2 / 3.35e12 == pytest.approx(14.74e-3, rel=1e-3)
    assert data["knee"] is data["operating_point"] is None
    assert data["frontier"] == []


def test_options_replace_the_workload(cost: Any) -> None:
    step = cost(LLAMA_70B + WORKLOAD, "--batch", "7", "--context", "2k", "--prompt", "3k")["steps"]
    assert step["decode"]["shape"]["batch"] == 7
    assert step["decode"]["shape"]["context_tokens"] == 2000
    assert step["prefill"]["shape"]["prefill_tokens"] == 3000
    assert step["decode"]["basis"].startswith("--batch, --context, --prompt; else")


def test_overload_is_priced_at_the_fullest_point(cost: Any) -> None:
    data = cost(LLAMA_70B + WORKLOAD.replace("3 req/s", "3000 req/s"))
    assert data["operating_point"] is None
    assert "the offered load has no operating point" in data["steps"]["decode"]["basis"]


def test_weights_that_do_not_fit_are_still_priced(
    cost: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = LLAMA_70B.replace("devices = 4\n", "")
    data = cost(spec)
    assert data["max_resident_sequences"] == data["kv_capacity_tokens"] == 0
    assert data["steps"]["decode"]["shape"]["batch"] == 1
    assert main(["cost", str(tmp_path / "spec.toml")]) == 0
    assert "weights and reserves exceed the budget by" in capsys.readouterr().out


def test_separate_pools_have_no_mixed_step(cost: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = cost(LLAMA_8B.replace("[model]", "devices = 4\n[model]") + DISAGGREGATED + WORKLOAD)
    assert data["steps"]["mixed"] is None
    assert data["steps"]["prefill"]["bound_s"] > 0
    assert main(["cost", str(tmp_path / "spec.toml")]) == 0
    assert "no mixed step" in capsys.readouterr().out


def test_pipeline_stages_and_ranks(cost: Any) -> None:
    staged = cost(LLAMA_70B + "[policy.parallelism]\ntensor = 2\npipeline = 2\n")
    assert len(staged["memory"]["stages"]) == 2
    step = staged["steps"]["decode"]
    assert sum(step["hbm_bytes_by_kind"].values()) == pytest.approx(step["hbm_bytes"])
    ranked = cost(LLAMA_8B.replace("[model]", "devices = 4\n[model]") + "[policy.parallelism]\ndata = 4\n")
    assert ranked["kv_capacity_tokens_per_replica"] == 4 * ranked["kv_capacity_tokens"]


def test_a_draft_is_left_out_of_the_ceiling(plugins: Plugins) -> None:
    plain = figures(plugins, LLAMA_70B)
    draft = '[policy.speculation]\nmethod = "draft"\ntokens = 3\ndraft_model = "meta-llama/Llama-3.2-1B"\n'
    drafted = figures(plugins, LLAMA_70B + draft)
    assert drafted.single_stream.read_bytes == plain.single_stream.read_bytes
    assert drafted.memory.bytes_per_token() > plain.memory.bytes_per_token()
    assert drafted.kv_bytes_per_token == plain.kv_bytes_per_token


def test_a_mixture_of_experts_crosses_over_late(plugins: Plugins) -> None:
    moe = figures(plugins, H100 + '[model]\nid = "mistralai/Mixtral-8x7B-v0.1"\n')
    crossover = moe.crossover_batch
    assert crossover is not None
    assert crossover > 295 * 2
    assert moe.single_stream.read_bytes < moe.memory.weights_bytes / 2


# What cannot be priced


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("servelint = 1\nx = 1\n", 'spec.toml:2:1: unknown key "x"'),
        ("servelint = \n", "spec.toml:1:13: this is not valid TOML"),
        (H100.replace("h100", "h1000"), "spec.toml:3:15: no plugin provides the accelerator"),
        (H100, "the spec names no model"),
        ('servelint = 1\n[model]\nid = "meta-llama/Llama-3.1-8B"\n', "the spec names no hardware"),
        (
            LLAMA_8B + "[policy.parallelism]\npipeline = 400\n",
            "spec.toml:7:12: pipeline 400 is more than the 32 layers",
        ),
    ],
)
def test_what_cannot_be_priced_says_why(
    spec: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(spec)
    for command in (["cost", "spec.toml"], ["explain", "spec.toml", "knee"]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert said in err
        assert err.endswith("the spec cannot be priced\n")


# Text and graphs


def test_text_names_every_figure(plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(LLAMA_70B + WORKLOAD)
    assert main(["cost", str(path)]) == 0
    text = capsys.readouterr().out
    for word in (
        "bound",
        "sustained bound",
        "estimate",
        "binding",
        "knee: ",
        "crossover batch: 295",
        "Assumed",
        "frontier",
    ):
        assert word.lower() in text.lower(), word
    assert "\x1b" not in text


def test_a_config_name_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(LLAMA_8B + '[deployment]\nname = "\\u001b[2J##[error]"\n')
    for format_ in ("text", "json"):
        assert main(["cost", str(path), "--format", format_]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "##[" not in out


@pytest.mark.parametrize("spec", [LLAMA_8B, LLAMA_70B + "[policy.parallelism]\npipeline = 4\n", LLAMA_70B + WORKLOAD])
def test_the_exported_graph_is_the_graph(spec: str, plugins: Plugins) -> None:
    priced = figures(plugins, spec)
    data = graphs.as_object(priced)
    exported = nx.DiGraph((e["from"], e["to"]) for e in data["edges"])
    graph = priced.decode_side.graph
    assert nx.is_directed_acyclic_graph(exported)
    assert [n["name"] for n in data["nodes"]] == [op.name for op in graph.ops]
    assert set(exported.edges) == {
        (graph.ops[j].name, op.name) for op, before in zip(graph.ops, graph.predecessors, strict=True) for j in before
    }
    path = [n["name"] for n in data["nodes"] if n["on_longest_path"]]
    seconds = sum(n["estimate_s"] for n in data["nodes"] if n["on_longest_path"])
    assert all(exported.has_edge(a, b) for a, b in pairwise(path))
    # The ops of a node are summed over the stages, which work at the same time.
    assert graph.stages > 1 or seconds <= float(priced.steps["decode"].cost.estimate_s) * (1 + 1e-9)


def test_dot_and_mermaid_escape_names(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    priced = figures(plugins, LLAMA_8B)
    names = {op.name for op in priced.decode_side.graph.ops}
    hostile = 'a"];\n<script>\\\x1b#'
    monkeypatch.setattr(graphs, "printable", lambda text: hostile if text in names else text)
    dot, mermaid = graphs.dot(priced), graphs.mermaid(priced)
    assert '[label="a\\"];' in dot
    assert "<script>" not in mermaid
    assert '"a#34;#93;#59;' in mermaid
    for text, edge in ((dot, " -> "), (mermaid, " --> ")):
        assert text.count(edge) == sum(map(len, priced.decode_side.graph.predecessors))


def test_text_of_graphs_is_well_formed(plugins: Plugins) -> None:
    priced = figures(plugins, LLAMA_70B + WORKLOAD)
    lines = graphs.dot(priced).splitlines()
    assert lines[0] == "digraph step {"
    assert lines[-1] == "}"
    assert all(line.endswith(";") for line in lines[1:-1])
    assert graphs.mermaid(priced).startswith("flowchart TD\n")


def test_frontier_figures_are_finite_or_said_to_have_no_end(plugins: Plugins) -> None:
    from servelint.report.cost_text import as_text
    from servelint.report.show import Style

    text = as_text(figures(plugins, LLAMA_8B + WORKLOAD.replace("3 req/s", "60 req/s")), Style(False))
    assert "nan" not in text
    assert " inf" not in text
    assert math.isfinite(len(text))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 5000.0}, ["--batch 5,000 is more than fits at once", "--batch 5,000 is more than is admitted"]),
        ({"context": 1e6}, ["--context 1,000,000 is longer than any request: max_model_len is 131,072"]),
        ({"prompt": 1e6}, ["--prompt 1,000,000 is longer than any request: max_model_len is 131,072"]),
        ({"batch": 8.0, "context": 4096.0, "prompt": 4096.0}, []),
    ],
)
def test_what_is_never_run_is_priced_with_a_note(options: dict[str, float], said: list[str], plugins: Plugins) -> None:
    made = Figures(figures(plugins, LLAMA_8B + WORKLOAD).review, **options)
    assert [note.startswith(start) for note, start in zip(made.notes, said, strict=True)] == [True] * len(said)
    assert as_object(made)["notes"] == made.notes
    text = as_text(made, Style(False))
    assert text.count("note: ") == len(said)


def test_the_remark_on_prefill_is_what_was_measured() -> None:
    page = (Path(__file__).parents[3] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    found = re.search(r"^\| held out: prefill \| \d+ \| (-\d+)% \|", page, re.M)
    assert found is not None
    longer = 1 / (1 + int(found[1]) / 100) - 1
    assert 0.35 <= longer <= 0.7, "report/cost_text.py says that prefill takes about half as long again"


def test_visible_memory_stands_beside_the_size_that_is_sold(plugins: Plugins) -> None:
    assert "(79.2 GiB; sold as 80 GB)" in as_text(figures(plugins, LLAMA_8B), Style(False))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (89_704.9, "89,705 B"),
        (1000.5, "1,000 B"),
        (-2048.25, "-2,048 B"),
        (131_072, "131,072 B"),
        (999.25, "999.25 B"),
        (0.53125, "0.53125 B"),
        (640.0, "640 B"),
    ],
)
def test_bytes_from_a_thousand_on_are_whole(value: float, shown: str) -> None:
    assert quantity(value, "B") == shown
