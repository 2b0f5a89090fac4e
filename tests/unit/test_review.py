"""What a review makes of a spec: defaults, overrides, topology, what does not resolve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servelint.composition import DEFAULT_EFFICIENCY
from servelint.files import read_project_file
from servelint.manager import Plugins
from servelint.opening import open_spec
from servelint.resources import Matmul
from servelint.review import Review
from servelint.spec.document import parse

BASE = 'servelint = 1\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
H100 = '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'


def review(text: str, plugins: Plugins, root: Path = Path()) -> Review:
    document = parse(str(root / "spec.toml"), text, plugins.policies)
    assert document.problems == []
    return Review(document, plugins, root)


def test_what_is_left_out_is_assumed_and_said(plugins: Plugins) -> None:
    found = review(BASE + H100, plugins)
    assert found.composition is not None
    assumed = {".".join(map(str, a.path)): a.value for a in found.assumptions}
    assert assumed["engine.name"] == "generic"
    assert assumed["policy.kv_cache.memory_utilization"] == 0.9
    assert all(a.reason and a.source.kind for a in found.assumptions)
    assert found.devices == 1


def test_an_engine_fills_its_own_defaults(plugins: Plugins) -> None:
    for version, utilization in (("0.11", 0.9), ("0.20.0", 0.92), ("v0.19.1", 0.9)):
        found = review(BASE + H100 + f'[engine]\nname = "vllm"\nversion = "{version}"\n', plugins)
        assert found.policy("kv_cache").memory_utilization == utilization
        assert found.policy("batching").max_sequences == 1024
    small = review(BASE + '[hardware]\naccelerator = "nvidia/l4"\n[engine]\nname = "vllm"\n', plugins)
    assert (small.policy("batching").max_sequences, small.policy("batching").max_batched_tokens) == (256, 2048)


def test_devices_follow_from_the_parallelism_and_the_other_way_round(plugins: Plugins) -> None:
    declared = review(BASE + H100 + "[policy.parallelism]\ntensor = 4\npipeline = 2\n", plugins)
    assert declared.devices == 8
    spread = review(BASE + H100 + "devices = 4\n", plugins)
    assert spread.policy("parallelism").tensor == 4
    half = review(BASE + H100 + "devices = 4\n[policy.parallelism]\npipeline = 2\n", plugins)
    assert half.policy("parallelism").tensor == 2


def test_overrides_replace_the_datasheet(plugins: Plugins) -> None:
    text = BASE + H100 + '[hardware.override]\nmemory_bandwidth = "3 TB/s"\nmemory = "70 GB"\nsource = "lab"\n'
    found = review(text, plugins)
    assert found.setup is not None
    accelerator = found.setup.topology.accelerator
    assert accelerator.memory_bandwidth_bytes_per_s == 3e12
    assert accelerator.usable_memory == (70_000_000_000, "runtime-visible total")
    assert found.accelerator is not None
    assert found.accelerator.memory_bandwidth_bytes_per_s == 3.35e12


def test_declared_efficiency_wins(plugins: Plugins) -> None:
    found = review(BASE + H100 + '[hardware.efficiency]\nmemory = 0.5\nsource = "lab"\n', plugins)
    assert found.setup is not None
    assert found.setup.topology.efficiency.memory == 0.5
    assert found.assumption("hardware", "efficiency", "memory") is None
    assert found.assumption("hardware", "efficiency", "compute") is not None
    assert set(DEFAULT_EFFICIENCY) == {"memory", "compute", "link"}


def test_topology_tiers(plugins: Plugins) -> None:
    text = BASE + '[hardware]\naccelerator = "nvidia/l40s"\ndevices = 4\npeer_to_peer = false\n'
    found = review(text, plugins)
    assert found.setup is not None
    (hop,) = found.setup.topology.hops(4)
    # PCIe 4.0 x16, staged through the host: half of 31.5 GB/s.
    assert hop.tier == "pcie"
    assert hop.bytes_per_s == pytest.approx(16e9 * 16 * 128 / 130 / 8 / 2)
    two = review(
        BASE + H100 + 'devices = 16\ndevices_per_node = 8\nnetwork = { bandwidth = "3.2 Tbit/s", per = "node" }\n',
        plugins,
    )
    assert two.setup is not None
    near, far = two.setup.topology.hops(16)
    assert (near.tier, near.fanout, near.bytes_per_s) == ("scale_up", 8, 450e9)
    assert (far.tier, far.fanout, far.inner, far.bytes_per_s) == ("network", 2, 8, 50e9)


def test_every_unknown_name_is_collected(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm-80gbb"
[model]
id = "meta-llama/Llama-3.1-9B"
[engine]
name = "vlllm"
[policy.quantization]
weights = "fp9"
[policy.speculation]
method = "draft"
tokens = 3
draft_model = "nobody/nothing"
[policy.disaggregation]
prefill = { accelerator = "nvidia/x1", devices = 1 }
decode = { devices = 1 }
"""
    found = review(text, plugins)
    assert found.setup is None
    assert found.composition is None
    assert {".".join(map(str, u.path)) for u in found.unresolved} == {
        "hardware.accelerator",
        "model.id",
        "engine.name",
        "policy.quantization.weights",
        "policy.speculation.draft_model",
        "policy.disaggregation.prefill.accelerator",
    }


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def test_a_published_config_is_read_from_the_project(plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = review('servelint = 1\n[model]\nconfig = "config.json"\n' + H100, plugins, tmp_path)
    assert found.architecture is not None
    # Llama-3.2-1B, as published.
    assert found.architecture.params_total == 1_235_814_400


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be used"),
        ("[]", "it is not a JSON object"),
        ("{}", 'it has no "model_type"'),
        ('{"model_type": "lama"}', "did you mean 'llama'"),
        (json.dumps({**CONFIG, "hidden_size": "wide"}), "hidden_size"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**9}), "num_hidden_layers"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_config_is_an_unresolved_name(content: str, words: str, plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    found = review('servelint = 1\n[model]\nconfig = "config.json"\n' + H100, plugins, tmp_path)
    assert found.architecture is None
    (unresolved,) = found.unresolved
    assert unresolved.path == ("model", "config")
    assert words in unresolved.message


def test_a_config_outside_the_project_is_not_read(plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    inside = tmp_path / "project"
    inside.mkdir()
    found = review('servelint = 1\n[model]\nconfig = "../config.json"\n' + H100, plugins, inside)
    assert found.architecture is None
    assert "outside the project root" in found.unresolved[0].message


def test_headroom_is_applied_once(plugins: Plugins) -> None:
    text = BASE + H100 + '[slo]\nitl = { p99 = "50 ms" }\nheadroom = 0.2\n'
    (objective,) = review(text, plugins).objectives
    assert (objective.declared_s, objective.limit_s) == (0.05, pytest.approx(0.04))


def test_a_variant_leaves_the_review_as_it_was(plugins: Plugins) -> None:
    text = BASE + H100 + '[policy.speculation]\nmethod = "ngram"\ntokens = 3\nacceptance = 0.5\n'
    found = review(text, plugins)
    assert found.scheduler is not None
    assert found.scheduler.verify_tokens == 4
    without = found.variant(speculation=None)
    assert without is not None
    assert without.scheduler.verify_tokens == 1
    assert found.scheduler.verify_tokens == 4


def test_a_model_override_corrects_the_config(plugins: Plugins) -> None:
    text = BASE + 'override = { max_position = 4096, stored = "fp16" }\n' + H100
    found = review(text, plugins)
    assert found.composition is not None
    assert found.composition.max_model_len == 4096
    assert found.composition.setup.formats.stored.name == "fp16"
    wrong = review(BASE + 'override = { stored = "fp17" }\n' + H100, plugins)
    assert wrong.setup is None
    assert wrong.unresolved[0].path == ("model", "override", "stored")


def test_prefix_hits_need_prefix_reuse(plugins: Plugins) -> None:
    workload = "[workload]\nprompt_tokens = 1000\noutput_tokens = 100\nprefix_hit = 0.4\n"
    on = review(BASE + H100 + workload, plugins)
    off = review(BASE + H100 + workload + "[policy.kv_cache]\nprefix_reuse = false\n", plugins)
    assert on.mix is not None
    assert off.mix is not None
    assert (on.mix.prefix_hit, off.mix.prefix_hit) == (0.4, 0.0)


def test_parallel_samples_multiply_the_decoding_sequences(plugins: Plugins) -> None:
    workload = '[workload]\nprompt_tokens = 1000\noutput_tokens = 100\nrate = "4 req/s"\n'
    one = review(BASE + H100 + workload, plugins).operating_point
    four = review(BASE + H100 + workload + "[policy.batching]\nparallel_samples = 4\n", plugins).operating_point
    assert one is not None
    assert four is not None
    assert four.rate == pytest.approx(one.rate, rel=0.02)
    assert four.batch > 3.5 * one.batch


def test_growth_inherits_what_it_leaves_out(plugins: Plugins) -> None:
    workload = """\
[workload]
prompt_tokens = 1000
output_tokens = 100
images_per_prompt = 2
encoder_tokens = 500
prefix_hit = 0.25
arrival_cv = 3
concurrency = 40
[[workload.growth]]
output_tokens = 300
[[workload.growth]]
images_per_prompt = 4
concurrency = 400
"""
    found = review(BASE + H100 + workload, plugins)
    assert found.mix is not None
    assert found.mix.prompt.mean == 2000
    (_, longer), (_, images) = found.growth
    assert (longer.prompt.mean, longer.output.mean, longer.prefix_hit, longer.arrival_cv) == (2000, 300, 0.25, 3)
    assert (images.prompt.mean, images.output.mean) == (3000, 100)
    workload_table = found.deployment.workload
    assert workload_table is not None
    assert found.concurrency(workload_table.growth[0]) == 40
    assert found.concurrency(workload_table.growth[1]) == 400


def test_growth_may_replace_half_of_a_trace(plugins: Plugins, tmp_path: Path) -> None:
    lines = "\n".join(f'{{"timestamp": {i}, "input_length": {100 + i}, "output_length": 50}}' for i in range(50))
    (tmp_path / "t.jsonl").write_text(lines)
    text = BASE + H100 + '[workload]\ntrace = "t.jsonl"\nprefix_hit = 1.0\n[[workload.growth]]\nprompt_tokens = 9000\n'
    found = review(text, plugins, tmp_path)
    assert found.mix is not None
    assert found.mix.prefix_hit == 0.999
    assert found.mix.total is not None
    ((_, scenario),) = found.growth
    assert (scenario.prompt.mean, scenario.output.mean) == (9000, pytest.approx(50))
    assert scenario.total is None


def test_a_trace_of_many_scenarios_is_read_once(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 100, "output_length": 50}\n' * 9)
    (tmp_path / "bad.jsonl").write_text("[]\n")
    read: list[str] = []

    def counted(root: Path, base: Path, name: str, limit: int) -> str:
        read.append(name)
        return read_project_file(root, base, name, limit)

    monkeypatch.setattr("servelint.review.read_project_file", counted)
    names = ["t.jsonl", "bad.jsonl"] * 20
    scenarios = "".join(f'[[workload.growth]]\ntrace = "{name}"\n' for name in names)
    found = review(BASE + H100 + '[workload]\ntrace = "t.jsonl"\n' + scenarios, plugins, tmp_path)
    assert found.mix is not None
    assert [i for i, _ in found.growth] == list(range(0, 40, 2))
    assert sorted(read) == ["bad.jsonl", "t.jsonl"]
    # Every place that names the bad one is told.
    assert [u.path for u in found.unresolved] == [("workload", "growth", i, "trace") for i in range(1, 40, 2)]
    assert {u.message for u in found.unresolved} == {
        "the trace 'bad.jsonl' cannot be used: line 1: it is not a JSON object"
    }


def test_the_traces_of_a_spec_have_a_limit_together(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servelint.review.ALL_TRACES_BYTES", 1000)
    for i in range(4):
        (tmp_path / f"{i}.jsonl").write_text('{"timestamp": 0, "input_length": 100, "output_length": 50}\n' * 7)
    scenarios = "".join(f'[[workload.growth]]\ntrace = "{i}.jsonl"\n' for i in range(4))
    found = review(BASE + H100 + "[workload]\nprompt_tokens = 9\noutput_tokens = 9\n" + scenarios, plugins, tmp_path)
    assert len(found.growth) == 4
    message = "with it the traces of this spec have over 1,000 bytes, the limit"
    assert [(u.path[2], message in u.message) for u in found.unresolved] == [(2, True), (3, True)]


def test_lines_of_a_trace_are_those_of_the_file(plugins: Plugins, tmp_path: Path) -> None:
    good = '{"timestamp": 0, "input_length": 100, "output_length": 50, "note": "\u2028\x85"}\n'
    (tmp_path / "t.jsonl").write_text(good * 3 + "x\n", encoding="utf-8")
    found = review(BASE + H100 + '[workload]\ntrace = "t.jsonl"\n', plugins, tmp_path)
    assert found.mix is None
    assert "line 4: it is not a JSON object" in found.unresolved[0].message


def test_a_number_of_an_inline_datasheet_is_named_at_its_key(plugins: Plugins) -> None:
    sheet = """\
[hardware.datasheet]
memory = { published_bytes = 100000000000, bandwidth_bytes_per_s = 1e12 }
compute = { dense_flops = { bf16 = 1e15 } }
link = { per_direction_bytes_per_s = 1e11, domain = 8, pattern = "mesh", peer_bytes_per_s = 0 }
"""
    found = review(BASE + sheet, plugins)
    assert found.accelerator is None
    (unresolved,) = found.unresolved
    assert unresolved.path == ("hardware", "datasheet", "link", "peer_bytes_per_s")
    assert "peer_bytes_per_s is 0, expected a number from 1 to 1e+18" in unresolved.message


def test_a_bad_trace_does_not_hide_what_does_not_compose(plugins: Plugins) -> None:
    text = BASE + H100 + 'devices = 1\n[policy.parallelism]\npipeline = 999\n[workload]\ntrace = "none.csv"\n'
    for first in ("mix", "composition"):
        found = review(text, plugins)
        getattr(found, first)
        assert found.composition is None
        assert found.mix is None
        assert found.infeasible is not None
        assert found.infeasible.path == ("policy", "parallelism", "pipeline")
        assert [u.path for u in found.unresolved] == [("workload", "trace")]


def test_a_closed_loop_is_shared_by_the_decode_replicas(plugins: Plugins) -> None:
    text = BASE + H100 + "replicas = 2\n[workload]\nprompt_tokens = 500\noutput_tokens = 100\nconcurrency = 64\n"
    pools = "[policy.disaggregation]\nprefill = { devices = 1 }\ndecode = { devices = 1, replicas = 4 }\n"
    assert review(text, plugins).concurrency() == 32
    assert review(text + pools, plugins).concurrency() == 8


def test_a_pool_of_the_same_part_keeps_its_overrides(plugins: Plugins) -> None:
    text = """\
[hardware.override]
memory_bandwidth = "2 TB/s"
[policy.disaggregation]
prefill = { devices = 1 }
decode = { accelerator = "nvidia/h100-sxm5-80gb", devices = 2, tensor = 2 }
"""
    found = review(BASE + H100 + text, plugins)
    assert found.scheduler is not None
    assert found.scheduler.disaggregation is not None
    part = found.scheduler.disaggregation.decode.composition.setup.topology.accelerator
    assert part.memory_bandwidth_bytes_per_s == 2e12


def test_the_formats_own_names_and_aliases_mean_the_same(plugins: Plugins) -> None:
    def precisions(quantization: str) -> set[str]:
        found = review(BASE + H100 + f"[policy.quantization]\n{quantization}\n", plugins)
        assert found.composition is not None
        op = found.composition.graph.op("mlp.up_proj")
        return {d.precision for d in op.demands if isinstance(d, Matmul)}

    assert precisions('weights = "fp8"') == {"fp8"}
    assert precisions('weights = "fp8"\nactivations = "fp16"') == precisions('weights = "fp8"\nactivations = "half"')
    assert precisions('weights = "fp8"\nactivations = "int8"') == {"bf16"}
    assert precisions('weights = "auto"') == {"bf16"}


def test_a_draft_needs_a_model(plugins: Plugins) -> None:
    found = review(BASE + H100 + '[policy.speculation]\nmethod = "draft"\ntokens = 4\nacceptance = 0.9\n', plugins)
    assert found.composition is None
    assert found.infeasible is not None
    assert found.infeasible.path == ("policy", "speculation", "method")


def test_a_replaced_figure_is_the_specs_and_not_the_datasheets(plugins: Plugins) -> None:
    override = 'override = { memory = "70 GB", memory_bandwidth = "3 TB/s", dense_flops = { bf16 = 8e14 } }\n'
    found = review(BASE + H100 + override, plugins)
    assert found.setup is not None
    part = found.setup.topology.accelerator
    assert part.usable_source.path == ("hardware", "override", "memory")
    assert part.source("memory", "bandwidth_bytes_per_s").path == ("hardware", "override", "memory_bandwidth")
    assert part.source("compute", "dense_flops.bf16").path == ("hardware", "override", "dense_flops", "bf16")
    assert part.source("compute", "dense_flops.fp8").kind == "datasheet"
    assert found.memory is not None
    assert found.memory.budget_lineage.inputs[0].source.path == ("hardware", "override", "memory")
    plain = review(BASE + H100, plugins)
    assert plain.setup is not None
    assert plain.setup.topology.accelerator.usable_source.field == "memory.runtime_visible_bytes"


@pytest.mark.parametrize(
    ("engine", "image", "expected"),
    [
        ("vllm", "vllm/vllm-openai:v0.10.1.1", "0.10.1.1"),
        ("sglang", "lmsysorg/sglang:v0.5.9-cu129-amd64", "0.5.9"),
        ("vllm", "vllm/vllm-openai:2", None),
        ("vllm", "lmcache/vllm-openai:0.3.1", None),
        ("llama.cpp", "ghcr.io/ggml-org/llama.cpp:1.2", None),
    ],
)
def test_an_image_names_the_same_release_with_and_without_arguments(
    engine: str, image: str, expected: str | None, plugins: Plugins
) -> None:
    spec = BASE + f'[engine]\nname = "{engine}"\nimage = "{image}"\n'
    launched = Review(open_spec("spec.toml", spec + 'args = "--port 8000"\n', plugins, Path()), plugins, Path())
    assert review(spec, plugins).engine_version == launched.engine_version == expected
