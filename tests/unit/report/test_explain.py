"""``explain``: every figure has a tree, its leaves are spec lines, datasheet fields and documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servelint.__main__ import main
from servelint.manager import Plugins
from servelint.report.explain import Explainer
from servelint.report.figures import Figures
from servelint.report.lineage_tree import Node, as_object, as_text
from servelint.report.show import Style
from servelint.review import Review
from servelint.spec.document import parse

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
[policy.parallelism]
tensor = 4
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
[policy.kv_cache]
page_size = 16
[workload]
prompt_tokens = { p50 = 900, p99 = 7000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "3 req/s"
prefix_hit = 0.3
[slo]
ttft = { p99 = "2 s" }
itl = { p99 = "60 ms" }
headroom = 0.1
"""
VARIANTS = {
    "plain": SPEC,
    "no workload": SPEC.partition("[workload]")[0],
    "latent attention": SPEC.replace("meta-llama/Llama-3.1-70B", "deepseek-ai/DeepSeek-V3.2"),
    "state": SPEC.replace("meta-llama/Llama-3.1-70B", "Qwen/Qwen3-Next-80B-A3B-Thinking"),
    "pipeline": SPEC.replace("tensor = 4", "tensor = 2\npipeline = 2"),
    "pools": SPEC
    + "[policy.disaggregation]\nprefill = { devices = 2, tensor = 2 }\ndecode = { devices = 2, tensor = 2 }\n",
    "draft": SPEC + '[policy.speculation]\nmethod = "eagle"\ntokens = 3\nacceptance = 0.7\n',
    "impossible": SPEC.replace('"60 ms"', '"1 us"'),
}


NEEDS = [
    ("no workload", "", "knee", "'knee' needs [workload] and [slo], which this spec does not give"),
    ("no workload", '[slo]\nitl = { p99 = "60 ms" }\n', "knee", "'knee' needs [workload], which"),
    ("no slo", "", "knee", "'knee' needs [slo], which"),
    ("no workload", "", "ttft.p99", "'ttft.p99' needs [workload], which"),
    ("no workload", "", "throughput", "'throughput' needs [workload], which"),
    ("no workload", "", "operating point", "'operating point' needs [workload], which"),
    ("no workload", "", "kne", "'kne' is no figure, op or key of this spec"),
]


@pytest.mark.parametrize(("variant", "more", "figure", "said"), NEEDS)
def test_a_figure_that_needs_more_says_what(
    variant: str, more: str, figure: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = VARIANTS["no workload"] if variant == "no workload" else SPEC.partition("[slo]")[0]
    (tmp_path / "a.toml").write_text(spec + more)
    assert main(["explain", str(tmp_path / "a.toml"), figure]) == 2
    assert said in capsys.readouterr().err


def explainer(plugins: Plugins, spec: str = SPEC) -> Explainer:
    return Explainer(Figures(Review(parse("a.toml", spec, plugins.policies), plugins, Path())))


def leaves(node: Node) -> Iterator[Node]:
    if not node.children:
        yield node
    for child in node.children:
        yield from leaves(child)


def found(node: Node, name: str) -> Node:
    if node.name == name:
        return node
    for child in node.children:
        try:
            return found(child, name)
        except LookupError:
            continue
    raise LookupError(name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_that_is_listed_can_be_explained(variant: str, plugins: Plugins) -> None:
    explain = explainer(plugins, VARIANTS[variant])
    document = explain.review.document
    steps = [f"{s}.{n}" for s in explain.figures.steps if s != "decode" for n in explain.op_names()]
    if variant == "pools":
        steps = []
    for name in [*explain.figure_names(), *explain.op_names(), *explain.key_names(), *steps]:
        tree = explain.explain(name)
        assert tree is not None, name
        assert "nan" not in as_text(tree, document, Style(False))
        json.dumps(as_object(tree, document))
        for leaf in leaves(tree):
            assert leaf.value is not None or leaf.formula, (name, leaf.name)


def test_values_are_those_of_cost(plugins: Plugins) -> None:
    explain = explainer(plugins)
    figures = explain.figures
    for name, value in {
        "kv_bytes_per_token": figures.kv_bytes_per_token,
        "weights_bytes_per_device": figures.memory.weights_bytes,
        "kv_capacity_tokens": figures.kv_capacity_tokens,
        "max_resident_sequences": figures.max_resident_sequences,
        "decode.bound_s": figures.steps["decode"].cost.bound_s,
        "prefill.estimate_s": figures.steps["prefill"].cost.estimate_s,
        "itl.p99": figures.point.itl("p99") if figures.point else None,
        "knee": figures.review.knee.batch if figures.review.knee else None,
    }.items():
        tree = explain.explain(name)
        assert tree is not None
        assert tree.value == pytest.approx(value), name


def test_children_add_up(plugins: Plugins) -> None:
    explain = explainer(plugins)
    for name in ("kv_bytes_per_token", "weights_bytes_per_device"):
        tree = explain.explain(name)
        assert tree is not None
        assert sum(float(c.value) for c in tree.children if isinstance(c.value, int | float)) == pytest.approx(
            tree.value
        )
    flops = explain.explain("decode.flops")
    assert flops is not None
    assert sum(float(c.value) for c in flops.children[1:]) == pytest.approx(flops.value)  # type: ignore[arg-type]


def test_a_tree_ends_at_lines_of_the_spec_and_at_documents(plugins: Plugins) -> None:
    explain = explainer(plugins)
    document = explain.review.document
    text = as_text(explain.explain("decode.full_attention.core"), document, Style(False))  # type: ignore[arg-type]
    assert "[policy.parallelism.tensor, line 8]" in text
    assert "bytes per element = 1 B: [policy.quantization.kv_cache, line 11]" in text
    bound = explain.explain("decode.bound_s")
    assert bound is not None
    bandwidth = found(bound, "memory bandwidth")
    assert bandwidth.value == 3.35e12
    assert any("datasheet" in d for d in bandwidth.documents)
    assert as_text(bound, document, Style(False)).count(f"document: {bandwidth.documents[0]}\n") >= 1


def test_documents_are_named_once_in_text_and_always_in_json(plugins: Plugins) -> None:
    explain = explainer(plugins)
    tree = explain.explain("kv_bytes_per_token")
    assert tree is not None
    source = explain.review.architecture.sources[0]  # type: ignore[union-attr]
    assert as_text(tree, explain.review.document, Style(False)).count(source) == 1
    assert json.dumps(as_object(tree, explain.review.document)).count(json.dumps(source)[1:-1]) > 1


def test_json_names_file_and_line(plugins: Plugins) -> None:
    explain = explainer(plugins)
    data = as_object(explain.explain("ttft.p99"), explain.review.document)  # type: ignore[arg-type]
    objective = next(c for c in data["children"] if c["name"] == "objective")
    assert objective["source"] == {
        "kind": "spec", "text": "spec slo.ttft.p99", "key_path": "slo.ttft.p99", "file": "a.toml", "line": 20,
    }  # fmt: skip
    assert objective["value"] == pytest.approx(1.8)


def test_keys_assumed_and_declared(plugins: Plugins) -> None:
    explain = explainer(plugins)
    assumed = explain.explain("policy.kv_cache.memory_utilization")
    assert assumed is not None
    assert assumed.formula.startswith("assumed: ")
    declared = explain.explain("policy.kv_cache.page_size")
    assert declared is not None
    assert (declared.value, declared.formula) == (16, "declared")
    assert explain.explain("policy.kv_cache.page_sizes") is None
    assert explain.explain("itl.p12x") is None
    assert explain.explain("") is None


def test_spellings(plugins: Plugins) -> None:
    explain = explainer(plugins)
    for name in ("memory budget", "memory_budget", "decode.bound", "itl.p999", "mixed.mlp.up_proj"):
        assert explain.explain(name) is not None, name


def test_an_override_is_named_instead_of_the_datasheet(plugins: Plugins) -> None:
    override = '[hardware.override]\nmemory_bandwidth = "3 TB/s"\ndense_flops = { bf16 = "900 TFLOP/s" }\n'
    explain = explainer(plugins, SPEC.replace("[model]", override + "[model]"))
    tree = explain.explain("machine_balance")
    assert tree is not None
    bandwidth, rate = found(tree, "memory bandwidth"), found(tree, "dense bf16 rate")
    assert bandwidth.source is not None
    assert bandwidth.source.path == ("hardware", "override", "memory_bandwidth")
    assert rate.source is not None
    assert rate.source.path == ("hardware", "override", "dense_flops", "bf16")
    assert found(tree, "dense fp8 rate").source.kind in ("datasheet", "spec")  # type: ignore[union-attr]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.toml"
    path.write_text(SPEC)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["explain", str(path), *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    status, out, _ = run()
    assert status == 0
    assert "\n  decode.bound_s\n" in out
    listed: dict[str, Any] = json.loads(run("--format", "json")[1])
    assert set(listed) >= {"figures", "ops", "keys"}
    assert run("kv_bytes_per_token")[1].startswith("kv_bytes_per_token = 163,840 B")
    assert json.loads(run("kv_bytes_per_token", "--format", "json")[1])["lineage"]["value"] == 163_840
    assert run("decode.flops", "--batch", "1", "--context", "1")[0] == 0
    status, out, err = run("decode.bond_s")
    assert (status, out) == (2, "")
    assert "did you mean 'decode.bound_s'" in err
