"""docs/spec.md is what the schema gives, names every key, and tells exactly which of them nothing reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import Linter
from servelint.manager import Plugins
from servelint.report.spec_page import DATASHEET, SMALLEST, SPELLINGS, WORDS, own_policies, page
from servelint.spec.document import parse
from servelint.spec.model import Deployment
from servelint.spec.schema import Either, Quantity, Table, Tables, documented
from servelint.units import Dimension, ambiguities, parse_quantity

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")

KEYS = {
    "deployment": "name goal sized_for",
    "hardware": "accelerator instance devices devices_per_node nodes replicas peer_to_peer pcie network host_memory "
    "efficiency override datasheet power price",
    "hardware.pcie": "generation lanes",
    "hardware.network": "bandwidth per rdma",
    "hardware.efficiency": "memory compute link source",
    "hardware.override": "dense_flops memory_bandwidth memory source",
    "hardware.power": "per_device per_node per_rack nodes_per_rack",
    "hardware.price": "per_device_hour currency date",
    "model": "id config max_model_len weights_bytes override",
    "engine": "name version image args args_from env attention_backend enforce_eager cuda_graph_max_batch",
    "engine.args_from": "file container service path",
    "workload": "prompt_tokens output_tokens trace rate arrival_cv concurrency prefix_hit images_per_prompt "
    "encoder_tokens growth name",
    "workload.trace": "file format",
    "workload.prefix_hit": "value basis source",
    "slo": "ttft itl tpot e2e headroom",
    "claim": "metric value per at assumes evidence quoted_from",
    "claim.at": "concurrency batch context itl_p99",
    "claim.assumes": "accelerator dense_flops precision",
    "evidence": "kind artifact file tasks engine_version date",
    "policy.parallelism": "tensor pipeline expert data attention_data context pipeline_layers",
    "policy.quantization": "weights kv_cache activations covers group_size",
    "policy.batching": "max_sequences max_batched_tokens chunked_prefill prefill_chunk admission parallel_samples",
    "policy.kv_cache": "memory_utilization memory_bytes max_tokens page_size prefix_reuse offload",
    "policy.speculation": "method tokens acceptance acceptance_length draft_model draft_tensor",
    "policy.constrained_decoding": "backend share schemas cache_hit compile mask overlap jump_forward cache_key",
    "policy.disaggregation": "prefill decode transfer",
    "policy.disaggregation.prefill": "accelerator devices tensor pipeline replicas",
    "policy.disaggregation.transfer": "bandwidth setup layerwise",
    "policy.attention": "kernel",
    "policy.moe": "skew redundant_experts load_metrics",
}
"""The keys that specs of version 1 rely on."""

COMMON = {"source", "basis", "date", "file", "path", "service", "engine", "backend", "engine_version"} | {
    "host_memory",
    "rdma",
}
"""Keys whose names are those of other things in the code, too; reading them is looked for by hand. An instance type
has the last two, and stands for them where they are left out."""


def classes(cls: type, seen: dict[type, None]) -> Iterator[type]:
    """A table's class and those of the tables within it, each once."""
    if cls not in seen:
        seen[cls] = None
        yield cls
        for field in documented(cls):
            kind = field.kind.table if isinstance(field.kind, Either) else field.kind
            if isinstance(kind, Table | Tables):
                yield from classes(kind.cls, seen)


def every_class(plugins: Plugins) -> list[type]:
    seen: dict[type, None] = {}
    return [c for top in (Deployment, *(p.config for p in own_policies(plugins))) for c in classes(top, seen)]


def section(path: str) -> str:
    found = re.search(rf"^### `\[+{re.escape(path)}\]+`\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert found, path
    return found[1]


def test_the_page_is_current(plugins: Plugins) -> None:
    assert page(own_policies(plugins)) == PAGE, "run: python -m servelint.report.spec_page docs/spec.md"


@pytest.mark.parametrize("path", KEYS)
def test_every_key_is_there(path: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \|", section(path), re.M)
    assert set(KEYS[path].split()) <= set(listed)
    assert len(set(listed)) == len(listed)


def test_every_key_says_what_it_means(plugins: Plugins) -> None:
    for cls in every_class(plugins):
        for field in documented(cls):
            assert field.doc.endswith("."), (cls, field.name)
            assert "|" not in field.doc


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize(("dimension", "text"), [(d, t) for d, texts in SPELLINGS.items() for t in texts])
def test_every_spelling_is_read_and_in_one_way(dimension: Dimension, text: str) -> None:
    value = text.strip('"') if text.startswith('"') else float(text)
    assert parse_quantity(value, dimension) > 0
    assert not (isinstance(value, str) and ambiguities(value, dimension))


def test_every_dimension_of_a_key_is_explained(plugins: Plugins) -> None:
    kinds = [field.kind for cls in every_class(plugins) for field in documented(cls)]
    assert {kind.dimension for kind in kinds if isinstance(kind, Quantity)} <= set(SPELLINGS) == set(WORDS)


def test_the_smallest_spec_is_clean(plugins: Plugins, tmp_path: Path) -> None:
    result = Linter(plugins, Config(), tmp_path).check("spec.toml", SMALLEST)
    assert [f.finding.code for f in result.findings] == []
    assert result.review is not None
    assert result.review.composition is not None
    assert result.review.objectives


def test_the_inline_datasheet_composes(plugins: Plugins, tmp_path: Path) -> None:
    text = f'servelint = 1\n[model]\nid = "meta-llama/Llama-3.1-8B"\n{DATASHEET}'
    result = Linter(plugins, Config(), tmp_path).check("spec.toml", text)
    assert [f.finding.code for f in result.findings if f.finding.code.startswith("SPEC")] == []
    assert result.review is not None
    assert result.review.composition is not None


def read_names() -> set[str]:
    """Names that code reads: attributes, and texts that are a name by themselves (looked up by key path)."""
    found: set[str] = set()
    declaring = (ROOT / "core/servelint/spec/model.py", ROOT / "core/servelint/spec/hints.py")
    files = [p for top in ("core/servelint", "plugins", "rules") for p in (ROOT / top).rglob("*.py")]
    for path in files:
        if path in declaring or "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_what_is_said_not_to_be_judged_is_not_read_and_the_rest_is(plugins: Plugins) -> None:
    read = read_names()
    # A latency of a claim is looked up as metric_percentile.
    read |= {f"{metric}_{p}" for metric in ("ttft", "itl", "tpot") for p in ("mean", "p50", "p90", "p95", "p99")}
    for cls in every_class(plugins):
        for field in documented(cls):
            if field.attribute not in COMMON:
                assert (field.attribute in read) is field.judged, f"{cls.__name__}.{field.name}"


def test_keys_that_are_not_judged_are_listed(plugins: Plugins) -> None:
    listed = PAGE.partition("## Accepted, not judged yet")[2].partition("Read in part")[0]
    names = sorted(re.findall(r"^- `[\w.]+\.(\w+)`$", listed, re.M))
    assert names == sorted(f.name for cls in every_class(plugins) for f in documented(cls) if not f.judged)


def test_a_key_that_is_not_judged_is_still_checked_for_its_kind(plugins: Plugins) -> None:
    text = 'servelint = 1\n[hardware.price]\ndate = 12\n[policy.batching]\nadmission = ""\n[engine]\nargs = [1]\n'
    problems = parse("spec.toml", text, plugins.policies).problems
    assert [p.path for p in problems] == [
        ("policy", "batching", "admission"),
        ("hardware", "price", "date"),
        ("engine", "args"),
    ]
