"""Hostile launch files: mutated manifests, scripts and Python end in findings or a refusal, never in a fault, and soon.

Every text is checked, reported, and written as a spec, which must be TOML that says the same again. The normal run
takes ``--hostile`` of them; mutation number i is made with the seed that a failure prints.
"""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tomli
import yaml

from servelint.config import Config
from servelint.errors import ManifestError
from servelint.files import Text
from servelint.launch import written
from servelint.launch.flags import FlagTable
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import invocations, read
from servelint.lint import lint
from servelint.manager import Plugins
from servelint.report.json import dumps
from servelint_plugins.engines import sglang_flags, vllm_flags

PLUGINS = Plugins()
assert PLUGINS.rules  # loaded before anything is timed
REPORTERS = [PLUGINS.reporters[name] for name in sorted(PLUGINS.reporters)]
GIVEN = {("hardware", "accelerator"): "nvidia/h100-sxm5-80gb"}
HERE = Path(__file__).parent
MOST_SECONDS = 2.0

POD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.9.0
        command: [sh, -c]
        args:
        - |
          export N=4
          cat > x.yaml <<EOF
          max-num-seqs: 64
          EOF
          vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size $N --config x.yaml \\
            --max-model-len ${LEN:-8192} --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'
        env:
        - {name: LEN, value: "16384"}
        resources: {limits: {nvidia.com/gpu: 4}}
"""
SEEDS: list[tuple[str, str]] = [
    ("pod.yaml", POD),
    ("lws.yaml", """\
kind: LeaderWorkerSet
metadata: {name: big}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
        - name: sglang
          image: lmsysorg/sglang:v0.4.6
          command: [python3, -m, sglang.launch_server, --model-path, deepseek-ai/DeepSeek-V3, --tp, "16",
            --mem-fraction-static, "0.9", --context-length=4096, --nnodes, $(LWS_GROUP_SIZE)]
          resources: {limits: {nvidia.com/gpu: "8"}}
"""),
    ("kserve.yaml", """\
kind: LLMInferenceService
metadata: {name: llama}
spec:
  model: {uri: "hf://meta-llama/Llama-3.1-8B-Instruct", name: meta-llama/Llama-3.1-8B-Instruct}
  replicas: 3
  parallelism: &p {tensor: 2, data: 4, dataLocal: 2, expert: true}
  template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 8192"}]}]}
  prefill: {replicas: 1, parallelism: {<<: *p, tensor: 1}, template: {containers: [{name: main}]}}
"""),
    ("kaito.yaml", """\
kind: ConfigMap
metadata: {name: c}
data:
  inference_config.yaml: |
    vllm:
      max-model-len: 8192
      gpu-memory-utilization: 0.9
---
kind: Workspace
metadata: {name: w}
resource: {instanceType: Standard_ND96isr_H100_v5, count: 2}
inference: {config: c, preset: {name: llama-3.3-70b-instruct}}
---
kind: RayService
metadata: {name: r}
spec:
  serveConfigV2: |
    applications:
    - name: a
      args:
        llm_configs:
        - model_loading_config: {model_id: q, model_source: Qwen/Qwen2.5-7B-Instruct}
          accelerator_type: H100
          engine_kwargs: {tensor_parallel_size: 2, max_model_len: 8192}
"""),
    ("compose.yaml", """\
services:
  llm:
    image: ghcr.io/huggingface/text-generation-inference:2.4.0
    command: --model-id meta-llama/Llama-3.1-8B-Instruct --num-shard 2 --max-total-tokens 4096
    environment: [MAX_BATCH_PREFILL_TOKENS=4096, "QUANTIZE=fp8"]
    deploy: {replicas: 2, resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
  other:
    image: vllm/vllm-openai:v0.8.5
    entrypoint: [bash, -c]
    command: ["vllm serve Qwen/Qwen2.5-7B-Instruct --max-num-seqs=256 --kv-cache-dtype fp8"]
"""),
    ("values.yaml", """\
servingEngineSpec:
  modelSpec:
  - name: l
    repository: vllm/vllm-openai
    tag: v0.9.1
    modelURL: meta-llama/Llama-3.1-8B-Instruct
    replicaCount: 2
    requestGPU: 1
    vllmConfig: {maxModelLen: 4096, tensorParallelSize: 1, extraArgs: ["--max-num-seqs", "64"]}
"""),
    ("options.yaml", """\
backend: pytorch
tensor_parallel_size: 8
moe_config: {backend: CUTLASS}
enable_attention_dp: true
kv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: fp8}
cuda_graph_config: {max_batch_size: 128}
max_num_tokens: 8192
"""),
    ("slurm.yaml", """\
name: r
model: {path: deepseek-ai/DeepSeek-R1, container: lmsysorg/sglang:v0.5.0}
resources: {gpu_type: gb200, gpus_per_node: 4, prefill_nodes: 2, prefill_workers: 1, decode_nodes: 4, decode_workers: 1}
backend:
  sglang_config:
    prefill: {tp-size: 8, mem-fraction-static: 0.85, chunked-prefill-size: 8192, disaggregation-mode: prefill}
    decode: {tp-size: 16, max-running-requests: 512, disaggregation-mode: decode}
"""),
    ("sky.yaml", """\
name: t
resources: {accelerators: "H100:8", image_id: "docker:vllm/vllm-openai:v0.9.0"}
num_nodes: 1
envs: {MODEL: meta-llama/Llama-3.3-70B-Instruct}
setup: pip install vllm==0.9.0
run: |
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-model-len 8192
"""),
    ("pod.json", json.dumps(yaml.safe_load(POD))),
    ("serve.sh", """\
#!/bin/bash
MODEL=meta-llama/Llama-3.3-70B-Instruct
TP=$((2 * 4))
docker run --gpus all -e HF_TOKEN=x -v a:b vllm/vllm-openai:v0.9.0 --model "$MODEL" --tensor-parallel-size $TP
cat > /tmp/c.yml <<'EOF'
kv_cache_config: {dtype: fp8}
EOF
trtllm-serve nvidia/Llama-3.1-8B-Instruct-FP8 --extra_llm_api_options /tmp/c.yml --max_batch_size 64 --tp_size 1
llama-server -m model.gguf -c 8192 -np 4 -ngl 99
"""),
    ("app.py", """\
import json, os, subprocess, modal
from ray.serve.llm import LLMConfig
MODEL = os.environ.get("MODEL", "Qwen/Qwen2.5-7B-Instruct")
extra = {"method": "ngram", "num_speculative_tokens": 3}
app = modal.App()
@app.function(gpu=f"H100:{2}", image=modal.Image.from_registry("vllm/vllm-openai:v0.9.0"))
def serve():
    cmd = ["vllm", "serve", MODEL, "--tensor-parallel-size", str(2)]
    cmd += ["--speculative-config", json.dumps(extra)]
    for flag in ("--max-model-len", "--max-num-seqs"):
        cmd.append(flag)
        cmd.extend(["64"])
    subprocess.Popen(" ".join(cmd), shell=True)
config = LLMConfig(model_loading_config=dict(model_id="q", model_source=MODEL), engine_kwargs={"max_model_len": 4096})
"""),
    ("serving.properties", """\
engine=Python
option.model_id=meta-llama/Llama-3.1-8B-Instruct
option.tensor_parallel_degree=2
option.max_rolling_batch_size=64
option.rolling_batch=vllm
"""),
    ("config.pbtxt", """\
backend: "python"
parameters: { key: "tensor_parallel_size" value: { string_value: "2" } }
parameters: { key: "max_model_len", value: { string_value: "4096" } }
"""),
    ("bento.toml", """\
[tool.bentoml.build.args]
model_id = "meta-llama/Llama-3.1-8B-Instruct"
tp = 2
max_model_len = 4096
gpu_type = "nvidia-h100-80gb"
vllm_args = ["--max-num-seqs=64"]
"""),
]  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 8, 4096, 10**15, 10**40, 1.5, 1e308, -1e308, float("inf"), float("nan"), "", " ",
    "0", "-1", "8", "1e999", "nan", "inf", "9" * 5000, "x" * 5000, "\ud800", "\x00", "\x1b[31m", "\u202e",
    "\n::error::x",
    "##[error]x", "a\rb", "$X", "${X:-$X}", "$((1+1))", "$(X)", "{{ .Values.x }}", "../../../etc/passwd",
    "a b", "'", '"',
    "--max-model-len=5 --nope", "{}", "[]", '{"a": NaN}', '{"method": [1]}', "[" * 2000,
    '{"a":' * 900 + "1" + "}" * 900,
    "[" * 950 + "]" * 950, [], {}, [[]], [None], {"a": None}, {"": ""}, [1, "a"], {"name": "x", "value": 1},
    "٣", "²", "1_0",
    "vllm", "sglang", "fp8", "auto", "H100:8", "nvidia.com/gpu", "sh", "-c", "vllm serve m", "<<", "*a", "1k",
    "8K", "0x10",
]  # fmt: skip
SIGNS = [
    "\x00", "\x1b", "\x85", "\ufeff", "\u2028", "\u202e", "\U0001f600", "\r", "\t",
    '"', "'", "\\", "[", "]", "{", "}", "=",
    "$", "${", "$(", "$((", "<<EOF\n", "&a ", "*a", "<<: *a\n", "!!python/name:os.system ", "|", ">", "---\n",
    "#", ":", "- ",
    "? ", "{{ .Values.a }}", "`", ";", "&&", "--", "-", "%", "@", "\n\n", " " * 300, "(" * 150, "[" * 300,
    "é" * 40, "0" * 60,
]  # fmt: skip


def names_of(table: FlagTable) -> list[str]:
    return sorted(table.flags)


FLAGS = names_of(vllm_flags.table()) + names_of(sglang_flags.table())


def characters(random: Random, text: str) -> str:
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(text) + 1)
        kind = random.randrange(4)
        if kind == 0:
            text = text[:at] + random.choice(SIGNS) * random.choice((1, 1, 1, 20)) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + random.choice((1, 1, 4, 40)) :]
        elif kind == 2:
            low = random.randrange(len(text) + 1)
            text = text[:at] + text[low : low + random.choice((1, 10, 80))] + text[at:]
        else:
            text = text.replace(
                random.choice(("\n", " ", '"', ":", "=")), random.choice(SIGNS), random.choice((1, 1, 3))
            )
    return text


def words(random: Random, text: str) -> str:
    """Replace words by flags, values and hostile texts; most of these stay manifests."""
    found = [m.span() for m in re.finditer(r"[^\s\[\]{},\"']+", text)]
    for start, end in sorted(random.sample(found, min(len(found), random.choice((1, 2, 6)))), reverse=True):
        kind = random.randrange(4)
        if kind == 0:
            new = "--" + random.choice(FLAGS)
        elif kind == 1:
            low, high = random.choice(found)
            new = text[low:high]
        elif kind == 2:
            new = f"--{random.choice(FLAGS)}={random.choice(VALUES)}"
        else:
            new = str(random.choice(VALUES))
        text = text[:start] + new + text[end:]
    return text


def lines(random: Random, text: str) -> str:
    held = text.splitlines(keepends=True) or [""]
    for _ in range(random.choice((1, 2))):
        at, other = random.randrange(len(held)), random.randrange(len(held))
        kind = random.randrange(5)
        if kind == 0 and len(held) > 1:
            del held[at]
        elif kind == 1:
            held.insert(other, held[at])
        elif kind == 2:
            held[at] = random.choice((" ", "  ", "\t")) + held[at]
        elif kind == 3:
            held.insert(at, random.choice(random.choice(SEEDS)[1].splitlines(keepends=True)))
        else:
            return "".join(held).replace("\n", random.choice(("\r\n", "\r", "\n\n", "\x85")))
    return "".join(held)


def nodes(random: Random, text: str) -> str:
    """Replace values of a YAML file by hostile ones, or by others of it: most of these stay manifests."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return characters(random, text)
    for _ in range(random.choice((1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        stack: list[Any] = [documents]
        while stack and len(places) < 2000:
            held = stack.pop()
            for key in list(held) if isinstance(held, dict) else range(len(held)):
                places.append((held, key))
                if isinstance(held[key], dict | list):
                    stack.append(held[key])
        if not places:
            break
        held, key = random.choice(places)
        kind = random.randrange(4)
        if kind == 0 and isinstance(held, dict):
            held[str(random.choice(VALUES))[:80]] = held.pop(key)
        elif kind == 1:
            other, its = random.choice(places)
            if its in other if isinstance(other, dict) else its < len(other):
                held[key] = json.loads(json.dumps(other[its], default=str))
        else:
            held[key] = random.choice(VALUES)
    try:
        if random.random() < 0.5:
            return "\n---\n".join(json.dumps(d, ensure_ascii=random.random() < 0.5, default=str) for d in documents)
        return str(yaml.safe_dump_all(documents))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return text


MUTATIONS: list[Callable[[Random, str], str]] = [characters, words, words, lines, nodes, nodes]


def mutant(seed: str) -> tuple[str, str, str]:
    """What a seed stands for: where it came from, the file's name, and its text."""
    random = Random(seed)
    name, text = random.choice(SEEDS)
    kinds = []
    while not kinds or random.random() < 0.4:
        kinds.append(random.choice(MUTATIONS))
        text = kinds[-1](random, text)
    if random.random() < 0.05:
        name = random.choice(SEEDS)[0]
    return f"{name}, {' then '.join(k.__name__ for k in kinds)}, seed {seed!r}", name, text[:200_000]


def check(name: str, text: str) -> int:
    """Check, report and import one text; return how many engines it starts."""
    report = lint([Text(name, text, "manifest")], PLUGINS, Config(), HERE, GIVEN if len(text) % 2 else {})
    for reporter in REPORTERS:
        reporter.render(report)
    try:
        file = ManifestFile(name, text, name)
        found = invocations(file, PLUGINS)
    except ManifestError:
        return 0
    for invocation in found[:5]:
        launched = read(invocation, PLUGINS)
        made = written.spec(launched, name=name, notes=[t.message for t in launched.troubles])
        again = tomli.loads(made)
        for path, setting in launched.settings.items():
            held: Any = again
            for part in path:
                held = held[part]
            if isinstance(setting.value, int | bool):
                assert held == setting.value, (path, setting)
        shown = dumps(written.as_object(launched, made, []))
        json.loads(shown, parse_constant=pytest.fail)
        assert shown.isascii()
    return len(found)


def checked(what: str, name: str, text: str) -> int:
    gc.disable()
    began = time.process_time()
    try:
        found = check(name, text)
    except Exception as error:  # whatever escapes is the failure that is looked for
        raise AssertionError(f"{what}: {type(error).__name__}: {error}\n{text[:3000]}") from error
    finally:
        gc.enable()
    seconds = time.process_time() - began
    if PLUGINS.faults:
        faults = "; ".join(map(str, PLUGINS.faults))
        PLUGINS.faults.clear()
        raise AssertionError(f"{what}: {faults}\n{text[:3000]}")
    assert seconds < MOST_SECONDS, f"{what}: {seconds:.1f} s of CPU\n{text[:3000]}"
    return found


@pytest.mark.parametrize(("name", "text"), SEEDS, ids=[name for name, _ in SEEDS])
def test_every_seed_starts_an_engine(name: str, text: str) -> None:
    assert checked(name, name, text) >= 1


def test_mutated_launch_files(request: pytest.FixtureRequest) -> None:
    number = int(request.config.getoption("--hostile"))
    started = sum(checked(*mutant(f"launch {i}")) > 0 for i in range(number))
    # Mutations that leave nothing to read would test nothing.
    assert started >= number * 0.3
