"""Values of charts, files of engines, files of keys and values, Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from read_values import values

from servelint.launch.manifest import ManifestError
from servelint.launch.reading import Launched

Settings = Callable[..., dict[str, Any]]
Read = Callable[..., list[Launched]]


def test_values_of_the_production_stack(settings: Settings) -> None:
    text = """\
    servingEngineSpec:
      modelSpec:
      - name: m
        repository: vllm/vllm-openai
        tag: v0.10.0
        modelURL: a/b
        replicaCount: 2
        requestGPU: 4
        vllmConfig: {tensorParallelSize: 4, maxModelLen: 4096, enablePrefixCaching: false, v1: 1,
          extraArgs: ["--gpu-memory-utilization=0.8"]}
        nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L40S]}]}]
    """
    made = settings(text)
    assert (made["parallelism.tensor"], made["model.max_model_len"], made["hardware.replicas"]) == (4, 4096, 2)
    assert (made["kv_cache.prefix_reuse"], made["kv_cache.memory_utilization"]) == (False, 0.8)
    assert (made["hardware.accelerator"], made["engine.version"]) == ("nvidia/l40s", "0.10.0")


def test_values_of_llm_d(launched: Read) -> None:
    text = """\
    modelArtifacts: {uri: "hf://Qwen/Qwen3-32B", name: q}
    decode:
      replicas: 2
      parallelism: {tensor: 4, data: 1}
      containers: [{name: vllm, modelCommand: vllmServe, args: [--max-model-len, "4096"]}]
    prefill: {replicas: 3, parallelism: {tensor: 2}, containers: [{name: vllm, args: []}]}
    """
    made = {one.invocation.role: values(one) for one in launched(text, "values.yaml")}
    assert (made["decode"]["parallelism.tensor"], made["decode"]["model.max_model_len"]) == (4, 4096)
    assert (made["prefill"]["parallelism.tensor"], made["prefill"]["hardware.replicas"]) == (2, 3)
    assert made["prefill"]["model.id"] == "Qwen/Qwen3-32B"


def test_a_scenario_fills_its_commands_in(settings: Settings) -> None:
    text = """\
    scenario:
    - name: s
      common: {model: {huggingfaceId: a/b, maxModelLen: 16384, gpuMemoryUtilization: 0.9}}
      decode:
        parallelism: {tensor: 8, dataLocal: 1, workers: 2}
        extraEnvVars: [{name: PP, value: "2"}]
        vllm:
          customCommand: |
            ${accelerator.preamble}
            vllm serve /model-cache/$MODEL_PATH --max-model-len $VLLM_MAX_MODEL_LEN \\
              --tensor-parallel-size $TP_SIZE --pipeline-parallel-size $PP \\
              --kv-transfer-config '{"kv_connector":"NixlConnector"${accelerator.json}}'
    """
    made = settings(text)
    assert (made["model.id"], made["model.max_model_len"]) == ("a/b", 16384)
    assert (made["parallelism.tensor"], made["parallelism.pipeline"], made["hardware.devices"]) == (8, 2, 16)


def test_values_of_any_chart(settings: Settings) -> None:
    text = """\
    llm:
      image: {repository: ghcr.io/x/vllm-tensorizer, tag: v0.10.0}
      model: a/b
      extraArgs: ["--tensor-parallel-size 8", --max-model-len=64]
      resources: {limits: {nvidia.com/gpu: "8"}}
    ingress: {args: [--verbose]}
    """
    made = settings(text)
    # The chart joins the items with blanks, so flag and value in one are no mistake here.
    assert (made["parallelism.tensor"], made["model.max_model_len"], made["hardware.devices"]) == (8, 64, 8)
    tgi = "image: {repository: ghcr.io/huggingface/text-generation-inference}\nMAX_TOTAL_TOKENS: '4096'\n"
    assert settings(tgi + "extraCmdArgs: [--num-shard, '2']\n")["parallelism.tensor"] == 2


def test_large_files_are_read(settings: Settings, launched: Read) -> None:
    other = "".join(f"a{i}:\n  b: {{c: {i}, d: [1, 2, 3]}}\n  args: [--x]\n" for i in range(2500))
    engine = "llm: {image: vllm/vllm-openai, extraArgs: [--max-model-len=64]}\n"
    assert settings(other + engine)["model.max_model_len"] == 64
    assert launched(other) == []


def test_in_kubernetes_flag_and_value_in_one_word_are_lost(launched: Read) -> None:
    text = 'kind: Pod\nspec: {containers: [{image: vllm/vllm-openai, args: ["--max-model-len 64"]}]}\n'
    (one,) = launched(text)
    assert [t.kind for t in one.troubles] == ["lost"]


def test_unrelated_files_are_nothing(launched: Read) -> None:
    assert launched("a: 1\nb: [x, y]\n") == []
    assert launched("- 1\n- 2\n") == []
    assert launched("args: [--verbose]\nimage: nginx\n") == []
    assert launched('{"tp": 4}', "x.json") == []
    assert launched("context-length: 4096\ntitle: a report\n") == []


@pytest.mark.parametrize(
    ("text", "engine", "key", "value"),
    [
        ("model: a/b\nmax-model-len: 4096\nenable-prefix-caching: false\n", "vllm", "model.max_model_len", 4096),
        ("tensor-parallel-size: 4\ntrust-remote-code: true\n", "vllm", "parallelism.tensor", 4),
        ("mem-fraction-static: 0.8\ntp-size: 8\n", "sglang", "kv_cache.memory_utilization", 0.8),
        ("max_num_tokens: 3200\nkv_cache_config: {dtype: fp8}\n", "tensorrt-llm", "batching.max_batched_tokens", 3200),
        (
            "tp_size: 8\nllm_api_args: {kv_cache_config: {free_gpu_memory_fraction: 0.7}}\n",
            "tensorrt-llm",
            "parallelism.tensor",
            8,
        ),
    ],
)
def test_files_of_engines(settings: Settings, text: str, engine: str, key: str, value: object) -> None:
    made = settings(text)
    assert (made["engine.name"], made[key]) == (engine, value)


def test_large_model_inference(launched: Read) -> None:
    text = (
        "engine=Python\noption.rolling_batch=vllm\noption.model_id=a/b\n"
        "option.tensor_parallel_degree=max\noption.max_model_len=512\n"
    )
    (one,) = launched(text, "serving.properties")
    assert (values(one)["model.id"], values(one)["model.max_model_len"]) == ("a/b", 512)
    assert [(t.kind, t.place.line) for t in one.troubles] == [("unresolved", 4)]
    (one,) = launched(text.replace("max\n", "4\n"), "serving.properties")
    assert values(one)["parallelism.tensor"] == 4
    assert launched("a=b\n", "app.properties") == []


def test_parameters_of_triton(settings: Settings, launched: Read) -> None:
    text = (
        'backend: "python"\nparameters: {\n  key: "model_name"\n  value: { string_value: "a/b" }\n}\n'
        'parameters: { key: "max_model_len" value: { string_value: "512" } }\n'
    )
    made = settings(text, "config.pbtxt")
    assert (made["model.id"], made["model.max_model_len"]) == ("a/b", 512)
    with pytest.raises(ManifestError, match=r"model\.json"):
        launched('name: "x"\nbackend: "vllm"\n', "config.pbtxt")
    assert settings('{"model": "a/b", "max_model_len": 64}', "model.json")["model.max_model_len"] == 64


def test_build_arguments_of_bentoml(settings: Settings, launched: Read) -> None:
    text = '[tool.bentoml.build.args]\nmodel_id = "a/b"\ntp = 2\ngpu_type = "nvidia-l4"\nmax_model_len = 64\n'
    made = settings(text, "pyproject.toml")
    assert (made["parallelism.tensor"], made["hardware.accelerator"]) == (2, "nvidia/l4")
    with pytest.raises(ManifestError, match="not valid TOML"):
        launched(text + "x = = 1\n", "pyproject.toml")
    assert launched('[project]\nname = "x"\n', "pyproject.toml") == []


RAY = """\
from ray.serve.llm import LLMConfig
import os

MODEL = os.environ.get("MODEL", "a/b")
SIZES = {"tensor_parallel_size": 2} | dict(pipeline_parallel_size=2)
config = LLMConfig(
    model_loading_config=dict(model_id="m", model_source=MODEL),
    accelerator_type="L4",
    engine_kwargs=dict(max_model_len=8 * 1024, **SIZES),
)
"""


def test_ray_serve_in_python(launched: Read) -> None:
    (one,) = launched(RAY, "serve.py")
    made = values(one)
    assert (made["model.id"], made["hardware.accelerator"]) == ("a/b", "nvidia/l4")
    assert (made["model.max_model_len"], made["parallelism.pipeline"]) == (8192, 2)
    assert one.settings["model", "max_model_len"].place[:2] == (9, 38)


MODAL = """\
import subprocess, modal

KIND, COUNT = "L4", 2
GPU = f"{KIND}:{COUNT}"
image = modal.Image.from_registry("lmsysorg/sglang:v0.5.9")
extra = {"speculative-num-steps": 3}
extra |= {"speculative-algorithm": "EAGLE"}


@app.cls(image=image, gpu=GPU)
class Server:
    def start(self):
        cmd = ["python", "-m", "sglang.launch_server", "--model-path", "a/b", "--tp", f"{COUNT}"]
        for key, value in extra.items():
            cmd += [f"--{key}", str(value)]
        cmd.extend(["--context-length", "512"])
        subprocess.Popen(cmd)
"""


def test_modal_in_python(settings: Settings) -> None:
    made = settings(MODAL, "serve.py")
    assert (made["engine.name"], made["engine.version"], made["hardware.devices"]) == ("sglang", "0.5.9", 2)
    assert (made["parallelism.tensor"], made["model.max_model_len"]) == (2, 512)
    assert made["speculation.tokens"] == 3


def test_engine_classes_in_python(settings: Settings) -> None:
    text = "from vllm import LLM\nllm = LLM(model='a/b', max_model_len=64, enable_prefix_caching=False)\n"
    made = settings(text, "run.py")
    assert (made["model.id"], made["model.max_model_len"], made["kv_cache.prefix_reuse"]) == ("a/b", 64, False)


def test_python_is_never_run(launched: Read, tmp_path: Any) -> None:
    mark = tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w').write('x')\nimport vllm_is_not_here\ncmd = ['vllm', 'serve', 'a/b']\n"
    (one,) = launched(text, "run.py")
    assert values(one)["model.id"] == "a/b"
    assert not mark.exists()


@pytest.mark.parametrize("text", ["import vllm\ndef f(:\n", "vllm = " + "(" * 3000, "# vllm\n\0\n"])
def test_what_is_no_python_is_said(launched: Read, text: str) -> None:
    with pytest.raises(ManifestError, match="Python"):
        launched(text, "serve.py")


def test_python_that_grows_without_end_is_cut(launched: Read) -> None:
    text = "x = 'vllm'\n" + "x = x + x\n" * 60 + "y = [x] * 10\n"
    assert launched(text, "serve.py") == []
