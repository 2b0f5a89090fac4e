"""vLLM: its flags by release, what its arguments set, its defaults, and what it refuses at start."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from servelint.launch.flags import gone
from servelint.launch.invocation import Invocation, Reading, Word
from servelint.launch.reading import read as launched
from servelint.launch.reading import starts
from servelint.manager import Plugins
from servelint.place import Place
from servelint.releases import image_release, release
from servelint.review import Review
from servelint.spec.document import parse
from servelint_plugins.engines import vllm, vllm_limits
from servelint_plugins.engines.vllm_flags import CHECKED, CHECKED_RELEASES, table

FACTS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "facts" / "vllm_flags.jsonl").read_text("utf-8").splitlines()
]
HERE = Place(1, 1, 1, 2)


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(part, HERE) for part in shlex.split(text))


def read(
    text: str, version: str | None = None, env: Mapping[str, str] | None = None, form: str = "spec", **more: Any
) -> Reading:
    line = words(text)
    variables = {name: Word(value, HERE) for name, value in (env or {}).items()}
    return vllm.read(Invocation("chat", form, HERE, commands=(line,), env=variables, **more), line, version)


def settings(reading: Reading) -> dict[str, Any]:
    return {".".join(map(str, s.path)): s.value for s in reading.settings}


def kinds(reading: Reading) -> list[str]:
    return [t.kind for t in reading.troubles]


def value_of(kind: str) -> str:
    return {"switch": "", "json": "{}", "int": "1", "count": "1", "float": "0.5"}.get(kind, "x")


@pytest.mark.parametrize("fact", FACTS, ids=[f["flag"] for f in FACTS])
def test_every_recorded_flag_is_taken_where_it_was_seen(fact: Mapping[str, str | None]) -> None:
    name = str(fact["flag"]).removeprefix("--")
    flag = table().flags[name]
    line = f"serve m --{name} {value_of(flag.kind)}"
    for version in (fact["first_seen"], fact["last_seen"]):
        assert not gone(flag, version)
        assert not {"removed", "not-yet", "unknown"} & set(kinds(read(line, version)))
    if fact["absent_from"]:
        assert gone(flag, fact["absent_from"])
        assert "removed" in kinds(read(line, fact["absent_from"]))


@pytest.mark.parametrize("flag", [f for f in table().flags.values() if f.until and f.since], ids=lambda f: f.name)
def test_nothing_is_said_of_a_flag_between_releases_that_were_looked_at(flag: Any) -> None:
    known = [release(v) for v in CHECKED_RELEASES]
    last = max(v for v in known if v < release(flag.until))
    between = ".".join(map(str, (*last, 1)))
    if release(between) < release(flag.until):
        assert not gone(flag, between)
    if flag.before:
        assert flag.not_yet(release(flag.before))
        assert not flag.not_yet((*release(flag.before), 1))


@pytest.mark.parametrize(
    ("flag", "version", "kind", "says"),
    [
        ("--num-scheduler-steps 8", "0.10.1.1", "removed", "take it out"),
        ("--num-scheduler-steps 8", "0.10.0", None, ""),
        ("--disable-log-requests", "0.18.0", "removed", "take it out"),
        ("--disable-log-requests", "0.17.0", None, ""),
        ("--swap-space 16", "0.18.1", "removed", "take it out"),
        ("--max-seq-len-to-capture 8192", "0.11.0", "removed", "--max-cudagraph-capture-size"),
        ("--guided-decoding-backend xgrammar", "0.13.0", "removed", "--structured-outputs-config"),
        ("--guided-decoding-backend xgrammar", "0.12.0", None, ""),
        ("--speculative-model x", "0.8.5", "removed", "--speculative-config"),
        ("--enable-reasoning", "0.10.0", "removed", "--reasoning-parser"),
        ("--enable-reasoning", "0.7.3", None, ""),
        ("--device cuda", "0.10.0", "removed", "take it out"),
        ("--cuda-graph-sizes 8", "0.13.0", "removed", "--cudagraph-capture-sizes"),
        ("--num-redundant-experts 32", "0.13.0", "removed", "--eplb-config"),
        ("--rope-scaling {}", "0.11.2", "removed", "--hf-overrides"),
        ("--task embed", "0.13.0", "removed", "--runner"),
        ("--override-pooler-config {}", "0.13.0", "removed", "--pooler-config"),
        ("--disable-frontend-multiprocessing", "0.19.1", "removed", "take it out"),
        ("--kv-offloading-size 8", "0.11.0", "not-yet", "0.11.2"),
        ("--kv-offloading-size 8", "0.11.1", None, ""),
        ("--headless", "0.8.5", "not-yet", "0.9.1"),
        ("--watermark 0.05", "0.21.0", "not-yet", "0.24.0"),
        ("--watermark 0.05", "0.22.0", None, ""),
        ("--uvicorn-log-level info", "0.6.6", None, ""),
        ("--tool-call-parser hermes --enable-auto-tool-choice --chat-template x", "0.11.0", None, ""),
        ("--max-modle-len 8192", "0.11.0", "unknown", "--max-model-len"),
        ("--tp 4", "0.11.0", "unknown", "-tp"),
        ("--tp 4", None, "unknown", "-tp"),
        ("--max-modle-len 8192", None, "unknown", "--max-model-len"),
        ("--max-modle-len 8192", "0.25.1", "unknown", "--max-model-len"),
        ("--flag-of-tomorrow", None, "unlisted", ""),
        ("--num-scheduler-steps 8", None, "dated", "take it out"),
        ("--swap-space 4", None, None, ""),
        ("--flag-of-tomorrow", "0.25.1", None, ""),
        ("--max-num-seq 8", "0.11.0", "abbreviated", "--max-num-seqs"),
        ("--max-num 8", "0.11.0", "ambiguous", "in full"),
        ("--enable-chunked-prefill=false", "0.7.3", None, ""),
        ("--enable-chunked-prefill=false", "0.8.5", "bad-value", "--no-enable-chunked-prefill"),
        ("--enable-chunked-prefill=false", None, None, ""),
        ("--enforce-eager true", "0.11.0", "bad-value", "--enforce-eager"),
        ("--no-enable-chunked-prefill", "0.9.1", "lost", "take it out"),
        ("--no-enable-chunked-prefill", "0.11.2", None, ""),
        ("--kv-cache-dtype nvfp4", "0.11.2", "bad-value", "newer"),
        ("--kv-cache-dtype nvfp4", "0.21.0", None, ""),
        ("--block-size 256", "0.10.0", "bad-value", "newer"),
        ("--block-size 256", "0.18.0", None, ""),
        ("--max-model-len 8k", "0.7.3", "bad-value", "write 8000"),
        ("-tp 4 -dcp 3", "0.11.0", "unsupported", "divisor of 4"),
        ("-tp 4 -dcp 2", "0.11.0", None, ""),
        ("-tp 4 --enable-eplb", "0.13.0", "unsupported", "--enable-expert-parallel"),
        ("-tp 4 --enable-eplb -ep", "0.14.1", None, ""),
        ("--config serve.yaml", "0.11.0", "unresolved", "keys of the spec"),
    ],
)
def test_what_is_wrong_with_an_argument(flag: str, version: str | None, kind: str | None, says: str) -> None:
    reading = read(f"serve org/m {flag}", version)
    assert kinds(reading) == ([kind] if kind else [])
    assert all(says in t.help for t in reading.troubles)


def test_an_unknown_flag_is_not_the_fault_of_a_fork() -> None:
    assert kinds(read("serve m --omni --usp 2", "0.24.0")) == []
    assert kinds(read("serve m --max-tokens-of-ours 8", "0.11.0", image=Word("acme/vllm:v0.11.0", HERE))) == []
    official = read("serve m --max-tokens-of-ours 8", "0.11.0", image=Word("vllm/vllm-openai:v0.11.0", HERE))
    assert kinds(official) == ["unknown"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "serve org/m --tensor-parallel-size 8 -pp 2 --data_parallel_size=2",
            {
                "model.id": "org/m",
                "policy.parallelism.tensor": 8,
                "policy.parallelism.pipeline": 2,
                "policy.parallelism.data": 2,
            },
        ),
        ("--model org/m", {"model.id": "org/m"}),
        ("serve org/m --model other/m", {"model.id": "org/m"}),
        ("serve /models/m --served-model-name org/m", {"model.id": "org/m"}),
        ("serve /models/m --served-model-name m", {"model.id": "/models/m"}),
        ("serve --port 8000 --api-key a -- org/m", {"model.id": "org/m"}),
        (
            "-tp 4 -dp 8 --enable-expert-parallel",
            {"policy.parallelism.tensor": 4, "policy.parallelism.data": 8, "policy.parallelism.expert": 32},
        ),
        ("-ep", {}),
        ("-tp 8 -dcp 8", {"policy.parallelism.tensor": 8, "policy.parallelism.context": 8}),
        ("--max-model-len 32k", {"model.max_model_len": 32_000}),
        ("--max-model-len 32K", {"model.max_model_len": 32_768}),
        ("--max-model-len auto", {}),
        ("--max-model-len -1", {}),
        ("--kv-cache-memory-bytes 20G", {"policy.kv_cache.memory_bytes": 20 * 2**30}),
        ("--gpu-memory-util .85", {"policy.kv_cache.memory_utilization": 0.85}),
        ("--no-enable-prefix-caching", {"policy.kv_cache.prefix_reuse": False}),
        ("--enable-chunked-prefill=False", {"policy.batching.chunked_prefill": False}),
        ("--block-size 64", {"policy.kv_cache.page_size": 64}),
        ("--kv-cache-dtype auto", {}),
        ("--kv-cache-dtype fp8_e5m2", {"policy.quantization.kv_cache": "fp8"}),
        ("--kv-cache-dtype nvfp4", {"policy.quantization.kv_cache": "nvfp4"}),
        ("-q fp8", {"policy.quantization.weights": "fp8"}),
        ("-q awq_marlin --dtype half", {"policy.quantization.weights": "int4-g128"}),
        ("--dtype half", {"policy.quantization.activations": "fp16"}),
        ("--dtype auto", {}),
        (
            """--speculative-config '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}'""",
            {"policy.speculation.method": "eagle", "policy.speculation.tokens": 3},
        ),
        (
            """-sc '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""",
            {"policy.speculation.method": "mtp", "policy.speculation.tokens": 1},
        ),
        (
            "--speculative-config.model a/draft --speculative-config.num_speculative_tokens 5 "
            "--speculative-config.draft_tensor_parallel_size 1",
            {
                "policy.speculation.method": "draft",
                "policy.speculation.draft_model": "a/draft",
                "policy.speculation.tokens": 5,
                "policy.speculation.draft_tensor": 1,
            },
        ),
        (
            """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'""",
            {"policy.speculation.method": "ngram", "policy.speculation.tokens": 4},
        ),
        (
            "--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4",
            {"policy.speculation.method": "ngram", "policy.speculation.tokens": 5},
        ),
        (
            "--spec-method mtp --spec-tokens 2",
            {"policy.speculation.method": "mtp", "policy.speculation.tokens": 2},
        ),
        ("--speculative-config '[]'", {}),
        (
            """-tp 8 -ep --enable-eplb --eplb-config '{"num_redundant_experts": 32}'""",
            {
                "policy.parallelism.tensor": 8,
                "policy.parallelism.expert": 8,
                "policy.moe.redundant_experts": 32,
            },
        ),
        (
            """--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'""",
            {"policy.kv_cache.offload": "host memory"},
        ),
        ("""--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""", {}),
        (
            """--kv-transfer-config '{"kv_connector": "MultiConnector", "kv_connector_extra_config":
            {"connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "LMCacheConnectorV1"}]}}'""",
            {"policy.kv_cache.offload": "LMCache"},
        ),
        (
            """--kv-transfer-config '{"kv_connector": "SimpleCPUOffloadConnector",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 80g, "name": "80g"}}'""",
            {"policy.kv_cache.offload": "host memory"},
        ),
        ("--kv-offloading-size 64", {"policy.kv_cache.offload": "host memory"}),
        ("--attention-config.backend FLASH_ATTN", {"engine.attention_backend": "FLASH_ATTN"}),
        ("--enforce-eager", {"engine.enforce_eager": True}),
        ("--no-enforce-eager", {"engine.enforce_eager": False}),
        ("-O.cudagraph_mode=NONE", {"engine.enforce_eager": True}),
        ("--max-cudagraph-capture-size 64", {"engine.cuda_graph_max_batch": 64}),
        (
            "--cudagraph-capture-sizes 1 2 32 8 --enforce-eager false",
            {"engine.cuda_graph_max_batch": 32, "engine.enforce_eager": False},
        ),
        ("--compilation-config '{\"cudagraph_capture_sizes\": [1, 16]}'", {"engine.cuda_graph_max_batch": 16}),
        ("-O3 -tp 2", {"policy.parallelism.tensor": 2}),
        ("-O 3 -tp 2", {"policy.parallelism.tensor": 2}),
        ("-O.mode=3 -tp 2", {"policy.parallelism.tensor": 2}),
        ("-O '{\"mode\": 3}' -tp 2", {"policy.parallelism.tensor": 2}),
        ("--max-num-seqs 8 --max-num-seqs 16", {"policy.batching.max_sequences": 16}),
    ],
)
def test_what_arguments_set(text: str, expected: Mapping[str, Any]) -> None:
    assert settings(read(text)) == expected


def test_flags_that_change_no_figure_are_listed() -> None:
    assert read("serve m --async-scheduling --port 8000 -tp 2 -q awq").unused == ("--async-scheduling", "--port")


def test_a_file_without_a_tensor_degree_runs_on_one_device() -> None:
    assert settings(read("serve org/m --port 1", form="kubernetes"))["policy.parallelism.tensor"] == 1
    assert "policy.parallelism.tensor" not in settings(read("serve org/m --port 1 $EXTRA", form="kubernetes"))


@pytest.mark.parametrize("text", ["bench serve --model m", "vllm bench latency --model m", "python3 app.py --model m"])
def test_what_serves_nothing_sets_nothing(text: str) -> None:
    assert read(text) == Reading()


def test_environment() -> None:
    assert settings(read("serve m", env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"})) == {
        "model.id": "m",
        "engine.attention_backend": "FLASHINFER",
    }
    added = read("serve m", env={"VLLM_ADDITIONAL_ARGS": "--max-num-seqs 8 --enforce-eager"})
    assert settings(added)["policy.batching.max_sequences"] == 8
    worker = {"MODEL_NAME": "a/b", "MAX_MODEL_LEN": "8192", "TENSOR_PARALLEL_SIZE": "2", "ENABLE_PREFIX_CACHING": "0"}
    assert settings(read("", env={**worker, "QUANTIZATION": "", "PATH": "/bin"})) == {
        "model.id": "a/b",
        "model.max_model_len": 8192,
        "policy.parallelism.tensor": 2,
        "policy.kv_cache.prefix_reuse": False,
    }
    assert {s.spelling for s in read("", env=worker).settings} >= {"MAX_MODEL_LEN", "ENABLE_PREFIX_CACHING"}
    # Beside a command the same names are somebody's own.
    assert "model.max_model_len" not in settings(read("serve m", env=worker))


@pytest.mark.parametrize(
    ("text", "env", "version", "off"),
    [
        ("serve m", {"VLLM_USE_V1": "0"}, "0.9.1", True),
        ("serve m", {"VLLM_USE_V1": "1"}, "0.9.1", False),
        ("serve m --num-scheduler-steps 8", {}, "0.9.1", True),
        ("serve m --num-scheduler-steps 1", {}, "0.9.1", False),
        # A release that no longer parses the flag exits, and has no defaults of the older core.
        ("serve m --num-scheduler-steps 8", {}, "0.10.0", True),
        ("serve m --num-scheduler-steps 8", {}, "0.10.1.1", False),
        ("serve m --num-scheduler-steps 8", {}, "0.10.2", False),
        ("serve m", {"VLLM_USE_V1": "0"}, "0.11.0", False),
        ("serve m", {"VLLM_USE_V1": "0"}, None, False),
    ],
)
def test_the_older_engine_core_leaves_prefixes_alone(
    text: str, env: Mapping[str, str], version: str | None, off: bool
) -> None:
    found = settings(read(text, version, env))
    assert found.get("policy.kv_cache.prefix_reuse") is (False if off else None)
    assert found.get("policy.batching.max_sequences") == (256 if off else None)


def test_a_configuration_file_beside_the_command() -> None:
    beside = Word("model: org/m\nmax-num-seqs: 8\ntensor_parallel_size: 4\nenforce-eager: true\n", Place(7, 1, 10, 20))
    reading = read("serve --config /etc/vllm/serve.yaml -tp 2", files={"serve.yaml": beside})
    assert settings(reading) == {
        "model.id": "org/m",
        "engine.enforce_eager": True,
        "policy.batching.max_sequences": 8,
        "policy.parallelism.tensor": 2,
    }
    assert {s.place.line for s in reading.settings if s.path[-1] == "max_sequences"} == {8}
    broken = read("serve --config serve.yaml", files={"serve.yaml": Word("a: [", HERE)})
    assert kinds(broken) == ["bad-value"]


@pytest.mark.parametrize(
    ("command", "image", "arguments"),
    [
        ("vllm serve m --port 1", None, "m --port 1"),
        ("/opt/venv/bin/vllm serve m", None, "m"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", None, "--model m"),
        ("--model m", "vllm/vllm-openai:v0.11.0", "--model m"),
        ("--model m", "docker.io/rocm/vllm:latest", "--model m"),
    ],
)
def test_how_it_is_started(plugins: Plugins, command: str, image: str | None, arguments: str) -> None:
    invocation = Invocation(
        "chat", "kubernetes", HERE, commands=(words(command),), image=Word(image, HERE) if image else None
    )
    engine, found = starts(invocation, dict.fromkeys(plugins.engines.values()))
    assert engine is vllm.ENGINE
    assert " ".join(w.text for w in found) == arguments


def test_only_its_own_images_name_a_release() -> None:
    assert image_release("vllm/vllm-openai:v0.10.1.1", vllm.ENGINE.release_images) == "0.10.1.1"
    assert image_release("rocm/vllm:rocm6.4_mi300", vllm.ENGINE.release_images) is None
    assert image_release("lmcache/vllm-openai:2025-05-01", vllm.ENGINE.release_images) is None


@pytest.mark.parametrize(
    ("model", "flag", "key"),
    [
        ("meta-llama/Llama-3.1-8B", "--quantization fp8", "policy.quantization.weights"),
        ("meta-llama/Llama-3.1-8B", "--dtype half", "policy.quantization.activations"),
        ("deepseek-ai/DeepSeek-V3", "--quantization fp8", None),
        ("deepseek-ai/DeepSeek-V3", "--dtype bfloat16", None),
        ("acme/unheard-of", "--dtype bfloat16", None),
    ],
)
def test_a_flag_that_repeats_the_checkpoint_sets_nothing(
    plugins: Plugins, model: str, flag: str, key: str | None
) -> None:
    found = launched(
        Invocation("chat", "kubernetes", HERE, commands=(words(f"vllm serve {model} {flag}"),)), plugins
    ).settings
    assert [".".join(map(str, path)) for path in found if path[:2] == ("policy", "quantization")] == (
        [key] if key else []
    )


def review(plugins: Plugins, version: str | None, **spec: str) -> Review:
    """A spec of Llama-3.1-8B on an H100 with other keys."""
    tables = {
        "hardware": 'accelerator = "nvidia/h100-sxm5-80gb"',
        "model": 'id = "meta-llama/Llama-3.1-8B"\nmax_model_len = 16384',
        "engine": 'name = "vllm"',
    } | {name.replace("_", ".", 1) if name.startswith("policy") else name: text for name, text in spec.items()}
    if version is not None:
        tables["engine"] += f'\nversion = "{version}"'
    text = "servelint = 1\n" + "".join(f"[{name}]\n{body}\n" for name, body in tables.items())
    document = parse("a.toml", text, plugins.policies)
    assert not document.problems, document.problems
    return Review(document, plugins, Path())


A100 = 'accelerator = "nvidia/a100-sxm4-80gb"'
T4 = 'accelerator = "nvidia/t4"'
MI300X = 'accelerator = "amd/mi300x-oam-192gb"'
TPU = 'accelerator = "google/tpu-v6e"'
LONG = 'id = "meta-llama/Llama-3.1-8B"\nmax_model_len = 65536'
LATENT = 'id = "deepseek-ai/DeepSeek-V2-Lite"\nmax_model_len = 65536'
HYBRID = 'id = "ai21labs/Jamba-v0.1"\nmax_model_len = 65536'
SEES = 'id = "Qwen/Qwen2.5-VL-7B-Instruct"\nmax_model_len = {}'


@pytest.mark.parametrize(
    ("version", "spec", "field", "expected"),
    [
        ("0.19.1", {}, "kv_cache.memory_utilization", 0.9),
        ("0.20.0", {}, "kv_cache.memory_utilization", 0.92),
        (None, {}, "kv_cache.memory_utilization", 0.9),
        ("0.7.3", {}, "kv_cache.prefix_reuse", False),
        ("0.8.5", {}, "kv_cache.prefix_reuse", True),
        ("0.10.1.1", {"hardware": T4}, "kv_cache.prefix_reuse", False),
        ("0.10.2", {"hardware": T4}, "kv_cache.prefix_reuse", True),
        ("0.11.0", {"model": 'id = "ai21labs/Jamba-v0.1"\nmax_model_len = 8192'}, "kv_cache.prefix_reuse", False),
        ("0.7.3", {}, "batching.chunked_prefill", False),
        ("0.7.3", {}, "batching.mixed_steps", False),
        ("0.7.3", {"policy_batching": "chunked_prefill = true"}, "batching.mixed_steps", True),
        ("0.7.3", {"model": LONG}, "batching.mixed_steps", True),
        ("0.8.0", {"policy_batching": "chunked_prefill = false"}, "batching.mixed_steps", None),
        ("0.7.3", {"model": LONG}, "batching.chunked_prefill", True),
        ("0.5.0", {"model": LONG}, "batching.chunked_prefill", False),
        ("0.5.0", {"model": LONG}, "batching.max_batched_tokens", 65536),
        ("0.5.3", {"model": LONG}, "batching.chunked_prefill", True),
        ("0.5.3", {"model": LONG}, "batching.max_batched_tokens", 512),
        ("0.6.0", {"model": LONG, "policy_kv_cache": "prefix_reuse = true"}, "batching.chunked_prefill", False),
        ("0.6.1", {"model": LONG, "policy_kv_cache": "prefix_reuse = true"}, "batching.chunked_prefill", True),
        ("0.6.4", {"model": LONG, "hardware": MI300X}, "batching.chunked_prefill", True),
        ("0.6.5", {"model": LONG, "hardware": MI300X}, "batching.chunked_prefill", False),
        ("0.6.4", {"model": LONG, "hardware": TPU}, "batching.chunked_prefill", False),
        ("0.7.0", {"model": LATENT}, "batching.chunked_prefill", True),
        ("0.7.1", {"model": LATENT}, "batching.chunked_prefill", False),
        ("0.6.2", {"model": HYBRID}, "batching.chunked_prefill", False),
        ("0.6.3", {"model": HYBRID}, "batching.chunked_prefill", True),
        ("0.6.1", {"model": SEES.format(65536)}, "batching.chunked_prefill", True),
        ("0.5.5", {"model": SEES.format(65536)}, "batching.max_batched_tokens", 512),
        ("0.6.0", {"model": SEES.format(65536)}, "batching.max_batched_tokens", 4096),
        ("0.6.2", {"model": SEES.format(65536)}, "batching.chunked_prefill", False),
        ("0.6.2", {"model": SEES.format(65536)}, "batching.max_batched_tokens", 65536),
        ("0.6.2", {"model": SEES.format(2048)}, "batching.max_batched_tokens", 4096),
        ("0.6.3", {"model": SEES.format(2048)}, "batching.max_batched_tokens", 5120),
        ("0.9.2", {"model": SEES.format(2048), "hardware": T4}, "batching.max_batched_tokens", 5120),
        ("0.7.3", {"model": SEES.format(16384)}, "batching.max_batched_tokens", 16384),
        ("0.8.5", {}, "batching.chunked_prefill", True),
        ("0.7.3", {}, "batching.max_batched_tokens", 16384),
        ("0.7.3", {"model": LONG}, "batching.max_batched_tokens", 2048),
        ("0.7.3", {}, "batching.max_sequences", 256),
        ("0.8.5", {}, "batching.max_sequences", 1024),
        ("0.8.3", {"hardware": A100}, "batching.max_sequences", 1024),
        ("0.8.4", {"hardware": A100}, "batching.max_sequences", 256),
        ("0.8.4", {}, "batching.max_sequences", 1024),
        ("0.8.4", {"hardware": 'accelerator = "nvidia/gh200-96gb"'}, "batching.max_sequences", 1024),
        ("0.8.4", {"hardware": A100}, "batching.max_batched_tokens", 2048),
        ("0.8.4", {"hardware": 'accelerator = "nvidia/b200-sxm6-180gb"'}, "batching.max_batched_tokens", 2048),
        ("0.8.5", {"hardware": A100}, "batching.max_batched_tokens", 8192),
        ("0.8.3", {"hardware": 'accelerator = "nvidia/l4"'}, "batching.max_sequences", 1024),
        ("0.8.4", {"hardware": 'accelerator = "nvidia/l4"'}, "batching.max_sequences", 256),
        ("0.8.5", {"hardware": A100}, "batching.max_sequences", 1024),
        ("0.9.0", {"hardware": A100}, "batching.max_sequences", 256),
        ("0.11.2", {"policy_batching": "max_batched_tokens = 512"}, "batching.max_sequences", 512),
        ("0.11.2", {"policy_batching": "chunked_prefill = false"}, "batching.max_batched_tokens", 16384),
        ("0.11.2", {"hardware": TPU}, "batching.max_batched_tokens", 1024),
    ],
)
def test_defaults_by_release_and_device(
    plugins: Plugins, version: str | None, spec: Mapping[str, str], field: str, expected: object
) -> None:
    composition = review(plugins, version, **spec).composition
    assert composition is not None
    policy, name = field.split(".")
    assert getattr(composition.context.configs[policy], name) == expected


def test_the_assumed_release_is_named(plugins: Plugins) -> None:
    composition = review(plugins, None).composition
    assert composition is not None
    assert all("0.11 assumed" in a.reason for a in composition.context.assumptions if a.path[1:2] == ("kv_cache",))


DEEPSEEK = 'id = "deepseek-ai/DeepSeek-V3"\nmax_model_len = 8192'
MTP = 'method = "mtp"\ntokens = 1'
BF16 = {"hardware": T4, "policy_quantization": 'activations = "bf16"'}
EXPERTS = {"policy_parallelism": "tensor = 4\nexpert = 4"}
DRAFT = {
    "policy_parallelism": "tensor = 4",
    "policy_speculation": 'method = "eagle"\ntokens = 3\ndraft_tensor = 2',
}
BATCH = {"policy_batching": "max_batched_tokens = 128\nmax_sequences = 256"}


@pytest.mark.parametrize(
    ("version", "spec", "path"),
    [
        ("0.11.0", {"policy_batching": "max_batched_tokens = 128\nmax_sequences = 256"}, "batching.max_batched_tokens"),
        ("0.11.0", {"policy_batching": "max_batched_tokens = 256\nmax_sequences = 256"}, None),
        ("0.27.0", {"policy_batching": "max_batched_tokens = 128\nmax_sequences = 256"}, None),
        (None, {"policy_batching": "max_batched_tokens = 128\nmax_sequences = 256"}, None),
        ("0.7.3", {"policy_batching": "max_batched_tokens = 8192"}, "batching.max_batched_tokens"),
        ("0.7.3", {"policy_batching": "max_batched_tokens = 16384"}, None),
        ("0.9.1", {"policy_batching": "max_batched_tokens = 8192\nchunked_prefill = false"}, None),
        (
            "0.11.2",
            {"policy_batching": "max_batched_tokens = 8192\nchunked_prefill = false"},
            "batching.max_batched_tokens",
        ),
        ("0.7.3", {"policy_speculation": MTP, "policy_parallelism": "pipeline = 2"}, "parallelism.pipeline"),
        ("0.11.2", {"policy_speculation": MTP, "policy_parallelism": "pipeline = 2", "model": DEEPSEEK}, None),
        (
            "0.14.1",
            {"policy_speculation": MTP, "policy_parallelism": "pipeline = 2", "model": DEEPSEEK},
            "parallelism.pipeline",
        ),
        (
            "0.11.0",
            {"policy_speculation": 'method = "draft"\ntokens = 3\ndraft_model = "meta-llama/Llama-3.2-1B"'},
            "speculation.method",
        ),
        (
            "0.16.0",
            {"policy_speculation": 'method = "draft"\ntokens = 3\ndraft_model = "meta-llama/Llama-3.2-1B"'},
            None,
        ),
        (
            "0.16.0",
            {
                "policy_parallelism": "tensor = 4",
                "policy_speculation": 'method = "eagle"\ntokens = 3\ndraft_tensor = 2',
            },
            "speculation.draft_tensor",
        ),
        (
            "0.16.0",
            {
                "policy_parallelism": "tensor = 4",
                "policy_speculation": 'method = "eagle"\ntokens = 3\ndraft_tensor = 4',
            },
            None,
        ),
        ("0.11.0", {"policy_parallelism": "tensor = 4\nexpert = 4"}, "parallelism.expert"),
        ("0.13.0", {"hardware": T4, "policy_quantization": 'weights = "fp8"'}, "quantization.weights"),
        ("0.14.1", {"hardware": T4, "policy_quantization": 'weights = "fp8"'}, None),
        ("0.13.0", {"hardware": A100, "policy_quantization": 'weights = "fp8"'}, None),
        ("0.4.1", {"hardware": A100, "policy_quantization": 'weights = "fp8"'}, "quantization.weights"),
        ("0.5.0", {"hardware": A100, "policy_quantization": 'weights = "fp8"'}, "quantization.weights"),
        ("0.5.4", {"hardware": A100, "policy_quantization": 'weights = "fp8"'}, None),
        ("0.14.0", {"hardware": T4, "policy_quantization": 'weights = "nvfp4"'}, "quantization.weights"),
        ("0.16.0", {"hardware": T4, "policy_quantization": 'weights = "nvfp4"'}, None),
        ("0.6.2", {"policy_parallelism": "pipeline = 2"}, None),
        ("0.6.2", {"policy_parallelism": "pipeline = 2", "model": DEEPSEEK}, "parallelism.pipeline"),
        ("0.6.6", {"policy_parallelism": "pipeline = 2", "model": DEEPSEEK}, None),
        ("0.8.5", {"hardware": T4}, "id"),
        ("0.9.0", {"hardware": T4}, None),
        ("0.8.5", {"hardware": A100}, None),
        ("0.8.5", {"hardware": T4, "policy_quantization": 'activations = "fp16"'}, None),
        ("0.8.5", {"hardware": T4, "policy_quantization": 'weights = "int4-g128"'}, None),
        ("0.26.0", {"hardware": T4, "policy_quantization": 'activations = "bf16"'}, "quantization.activations"),
        ("0.27.0", {"hardware": T4, "policy_quantization": 'activations = "bf16"'}, None),
        (
            "0.26.1",
            {"policy_speculation": MTP, "policy_parallelism": "pipeline = 2", "model": 'id = "Qwen/Qwen3.5-27B"'},
            "parallelism.pipeline",
        ),
        (
            "0.13.0",
            {"hardware": A100, "model": DEEPSEEK, "policy_quantization": 'kv_cache = "fp8"'},
            "quantization.kv_cache",
        ),
        ("0.13.0", {"model": DEEPSEEK, "policy_quantization": 'kv_cache = "fp8"'}, None),
        ("0.18.0", {"hardware": A100, "model": DEEPSEEK, "policy_quantization": 'kv_cache = "fp8"'}, None),
        # What vllm-project/vllm#24577 reports to work: FlashInfer reads an FP8 cache on an A100.
        (
            "0.11.2",
            {
                "hardware": A100,
                "engine": 'name = "vllm"\nattention_backend = "FLASHINFER"',
                "policy_quantization": 'kv_cache = "fp8"',
            },
            None,
        ),
        (
            "0.11.2",
            {
                "hardware": A100,
                "engine": 'name = "vllm"\nattention_backend = "FLASH_ATTN"',
                "policy_quantization": 'kv_cache = "fp8"',
            },
            "attention_backend",
        ),
        ("0.11.2", {"policy_parallelism": "tensor = 8\ncontext = 2"}, "parallelism.context"),
        ("0.11.2", {"policy_parallelism": "tensor = 16\ncontext = 2"}, None),
        ("0.11.2", {"policy_parallelism": "tensor = 8\ncontext = 8", "model": DEEPSEEK}, None),
    ],
)
def test_what_is_refused_at_start(
    plugins: Plugins, version: str | None, spec: Mapping[str, str], path: str | None
) -> None:
    composition = review(plugins, version, **spec).composition
    assert composition is not None
    assert vllm.ENGINE.unsupported is not None
    found = list(vllm.ENGINE.unsupported(version, composition.context))
    assert [".".join(map(str, p[1:])) for p, _, _ in found] == ([path] if path else [])
    assert all(source.where.startswith("vllm-project/vllm vllm/") for _, _, source in found)


@pytest.mark.parametrize(
    ("version", "spec", "file"),
    [
        ("0.7.3", BF16, "vllm/worker/worker.py"),
        ("0.8.5", BF16, "vllm/worker/worker.py"),
        ("0.10.1.1", BF16, "vllm/worker/worker.py"),
        ("0.10.2", BF16, "vllm/platforms/cuda.py"),
        ("0.10.0", EXPERTS, "vllm/config.py"),
        ("0.10.2", EXPERTS, "vllm/config/__init__.py"),
        ("0.11.0", EXPERTS, "vllm/config/model.py"),
        ("0.10.0", DRAFT, "vllm/config.py"),
        ("0.10.2", DRAFT, "vllm/config/__init__.py"),
        ("0.11.0", DRAFT, "vllm/config/speculative.py"),
        ("0.10.0", BATCH, "vllm/config.py"),
        ("0.10.2", BATCH, "vllm/config/scheduler.py"),
    ],
)
def test_the_file_that_a_release_checks_in(plugins: Plugins, version: str, spec: Mapping[str, str], file: str) -> None:
    composition = review(plugins, version, **spec).composition
    assert composition is not None
    assert vllm.ENGINE.unsupported is not None
    sources = [source.where for _, _, source in vllm.ENGINE.unsupported(version, composition.context)]
    assert [where.split()[1] for where in sources] == [file]


@pytest.mark.parametrize(
    ("version", "files"),
    [
        ("0.10.0", {"vllm/config.py", "vllm/engine/arg_utils.py"}),
        ("0.10.1", {"vllm/config/cache.py", "vllm/config/scheduler.py", "vllm/engine/arg_utils.py"}),
    ],
)
@pytest.mark.parametrize("hardware", [A100, T4])
def test_the_files_that_defaults_come_from(plugins: Plugins, version: str, files: set[str], hardware: str) -> None:
    composition = review(plugins, version, hardware=hardware).composition
    assert composition is not None
    found = vllm.ENGINE.defaults(version, composition.context).values()
    # Whether prompts are steps of their own is in the scheduler of the older core.
    older = {"vllm/core/scheduler.py"} if hardware == T4 else set()
    assert {default.source.where.split()[1] for default in found} == files | older


def test_the_newest_release_that_was_read() -> None:
    assert release(CHECKED)[:2] <= vllm.CHECKED_VERSION
    assert release(CHECKED_RELEASES[-1]) == release(CHECKED)


@pytest.mark.parametrize(
    ("stated", "device", "weights", "expected"),
    [
        ("0.11.0", "nvidia/a100-sxm4-80gb", "fp8", True),
        ("0.11.0", "nvidia/a100-sxm4-80gb", "fp8-block128", True),
        ("0.5.3", "nvidia/a100-sxm4-80gb", "fp8", False),
        ("0.27.0", "nvidia/a100-sxm4-80gb", "fp8", False),
        ("0.9.0", "nvidia/a100-sxm4-80gb", "nvfp4", False),
        ("0.9.1", "nvidia/a100-sxm4-80gb", "nvfp4", True),
        ("0.14.0", "nvidia/t4", "fp8", True),
        # The release that stands where none is stated asks for 8.0.
        (None, "nvidia/t4", "fp8", False),
        (None, "nvidia/a100-sxm4-80gb", "fp8", True),
        ("0.11.0", "amd/mi250x-oam-128gb", "fp8", False),
    ],
)
def test_what_is_dequantized_where_the_arithmetic_is_missing(
    stated: str | None, device: str, weights: str, expected: bool, plugins: Plugins
) -> None:
    engine, format_ = plugins.engines["vllm"], plugins.format(weights)
    assert plugins.engine_dequantizes(engine, stated, format_, plugins.accelerators.get(device)) is expected


@pytest.mark.parametrize(
    ("model_type", "first"), [("qwen3", "0.8.4"), ("qwen3_next", "0.10.0"), ("llama", ""), ("", "")]
)
def test_the_first_release_of_a_model(model_type: str, first: str, plugins: Plugins) -> None:
    assert plugins.engine_first_release(plugins.engines["vllm"], model_type) == first


def test_a_flag_of_old_releases_names_the_assumed_one() -> None:
    (trouble,) = read("--num-scheduler-steps 8", None).troubles
    assert f": {vllm.ENGINE.assumed}, which is assumed, refuses to start" in trouble.message


def test_no_model_has_two_first_releases() -> None:
    assert not vllm_limits.LOADS_FROM.keys() & vllm_limits.RECIPE_FROM.keys()
