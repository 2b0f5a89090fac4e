"""Recipes of schedulers and clouds, compose files, scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from read_values import values

from servelint.launch.manifest import ManifestError
from servelint.launch.reading import Launched

Settings = Callable[..., dict[str, Any]]
Read = Callable[..., list[Launched]]


def test_roles_of_a_slurm_recipe(launched: Read) -> None:
    text = """\
    name: r
    model: {path: dsr1, container: "lmsysorg/sglang:v0.5.8", precision: fp8}
    resources: {gpu_type: gb200, gpus_per_node: 4, prefill_nodes: 2, prefill_workers: 4, decode_workers: 1,
      gpus_per_decode: 16}
    backend:
      sglang_config:
        prefill: {served-model-name: deepseek-ai/DeepSeek-R1, tp-size: 2, context-length: 9000}
        decode: {served-model-name: deepseek-ai/DeepSeek-R1, tp-size: 16}
    """
    made = {one.invocation.role: values(one) for one in launched(text)}
    assert (made["prefill"]["hardware.devices"], made["prefill"]["hardware.replicas"]) == (2, 4)
    assert (made["decode"]["hardware.devices"], made["decode"]["hardware.devices_per_node"]) == (16, 4)
    assert made["decode"]["model.id"] == "deepseek-ai/DeepSeek-R1"
    assert made["decode"]["hardware.accelerator"] == "nvidia/gb200-nvl72-186gb"


def test_a_recipe_with_variants_is_read_at_its_base(launched: Read) -> None:
    text = """\
    base:
      identity: {model: {repo: a/b}, frameworks: {vllm: 0.20.0}}
      resources: {gpu_type: b200, gpus_per_node: 8}
      backend: {vllm_config: {aggregated: {tensor-parallel-size: 8}}}
    override_x: {resources: {agg_workers: 1}}
    """
    (one,) = launched(text)
    assert (values(one)["model.id"], one.version, one.invocation.role) == ("a/b", "0.20.0", None)


def test_a_truss_starts_a_server(settings: Settings) -> None:
    text = """\
    model_name: m
    base_image: {image: "vllm/vllm-openai:v0.10.1"}
    docker_server:
      start_command: sh -c "prepare & X=1 vllm serve a/b --max-model-len 512 --tensor-parallel-size 2"
    resources: {accelerator: "B200:2"}
    """
    made = settings(text)
    assert (made["model.id"], made["model.max_model_len"], made["hardware.devices"]) == ("a/b", 512, 2)
    assert made["engine.version"] == "0.10.1"


def test_a_truss_builds_an_engine(launched: Read) -> None:
    text = """\
    resources: {accelerator: L4}
    trt_llm:
      build: {checkpoint_repository: {repo: meta-llama/Llama-3.1-8B-Instruct, source: HF}, max_seq_len: 4096,
        tensor_parallel_count: 1, quantization_type: fp8_kv}
      runtime: {enable_chunked_context: true, kv_cache_free_gpu_mem_fraction: 0.7}
    """
    (one,) = launched(text)
    made = values(one)
    assert (made["model.max_model_len"], made["hardware.devices"]) == (4096, 1)
    assert (made["quantization.weights"], made["quantization.kv_cache"]) == ("fp8", "fp8")
    assert (made["batching.chunked_prefill"], made["kv_cache.memory_utilization"]) == (True, 0.7)
    assert one.settings["policy", "quantization", "weights"].place.line == 4
    # Truss sets sizes of its own where the file sets none.
    assert (made["batching.max_sequences"], made["batching.max_batched_tokens"]) == (256, 8192)


def test_a_blueprint_of_oci(launched: Read) -> None:
    text = """\
    {"recipe_image_uri": "docker.io/vllm/vllm-openai:v0.9.1", "recipe_node_shape": "BM.GPU.H100.8",
     "deployment_name": "d", "recipe_nvidia_gpu_count": 2, "recipe_replica_count": 3, %s
     "recipe_container_env": [{"key": "tp", "value": "2"}],
     "recipe_container_command_args": ["--model", "a/b", "--tensor-parallel-size", "$(tp)"]}
    """
    (one,) = launched(text % "", "m.json")
    made = values(one)
    assert (made["hardware.instance"], made["hardware.devices"]) == ("oci/BM.GPU.H100.8", 2)
    assert (made["parallelism.tensor"], made["hardware.replicas"]) == (2, 3)
    (one,) = launched(text % '"mig_resource_request": "1g.20gb",', "m.json")
    assert "hardware.instance" not in values(one)
    assert [t.kind for t in one.troubles] == ["unresolved"]


def test_a_task_of_skypilot_takes_its_size_from_the_scheduler(settings: Settings) -> None:
    text = """\
    resources: {accelerators: "L4:8"}
    num_nodes: 2
    envs: {MODEL: a/b}
    setup: pip install "vllm==0.8.5"
    service: {replicas: 2}
    run: |
      TP=$(($SKYPILOT_NUM_GPUS_PER_NODE * SKYPILOT_NUM_NODES))
      python -m vllm.entrypoints.openai.api_server --model $MODEL --tensor-parallel-size $TP
    """
    made = settings(text)
    assert (made["parallelism.tensor"], made["hardware.devices"], made["hardware.replicas"]) == (16, 16, 2)
    assert (made["engine.version"], made["hardware.accelerator"]) == ("0.8.5", "nvidia/l4")


@pytest.mark.parametrize("several", ["{L4:8, A100:4}", "[L4:8, A100:4]", "{L4: 8, A100: 4}"])
def test_several_accelerators_say_neither_part_nor_number(launched: Read, several: str) -> None:
    run = "vllm serve a/b --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE"
    text = f"resources: {{accelerators: {several}}}\nrun: {run}\n"
    (one,) = launched(text)
    assert not {p for p in one.settings if p[0] == "hardware"}
    assert [t.kind for t in one.troubles] == ["unresolved", "unresolved"]
    assert "A100:4" in one.troubles[0].message


def test_a_task_that_runs_a_container(settings: Settings) -> None:
    text = """\
    resources: {accelerators: "L4:1"}
    run: docker run --gpus all --ipc=host -e HF_TOKEN=x vllm/vllm-openai:v0.10.0 --model a/b --max-model-len 64
    """
    made = settings(text)
    assert (made["engine.version"], made["model.id"], made["model.max_model_len"]) == ("0.10.0", "a/b", 64)


def test_a_service_of_dstack(settings: Settings) -> None:
    text = """\
    type: service
    name: s
    env: [HF_TOKEN, MODEL=a/b]
    commands:
    - vllm serve $MODEL --tensor-parallel-size $DSTACK_GPUS_NUM
    resources: {gpu: "MI300X:8"}
    """
    made = settings(text)
    assert (made["parallelism.tensor"], made["hardware.accelerator"]) == (8, "amd/mi300x-oam-192gb")
    memory = text.replace('"MI300X:8"', "L4:24GB:2")
    assert settings(memory)["hardware.devices"] == 2


def test_a_list_of_tests(launched: Read) -> None:
    text = """\
    fleet:
    - {name: one, model: a/b, extra_args: "--max-model-len 4096 --tensor-parallel-size 2"}
    - {name: two, model: c/d, extra_args: "--max-model-len 'open"}
    """
    with pytest.raises(ManifestError, match="cannot be split") as caught:
        launched(text)
    assert caught.value.place.line == 3
    first = launched(text.replace("'open", "64"))
    assert [values(one)["model.max_model_len"] for one in first] == [4096, 64]


def test_services_of_compose(settings: Settings, launched: Read) -> None:
    text = """\
    services:
      web: {image: "nginx:1", command: nginx -g 'daemon off;'}
      llm:
        image: vllm/vllm-openai:v0.10.0
        command: >
          --model ${MODEL:-a/b}
          --max-model-len 2048
        deploy:
          replicas: 2
          resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}
    """
    made = settings(text)
    assert (made["model.id"], made["hardware.devices"], made["hardware.replicas"]) == ("a/b", 2, 2)
    scripted = """\
    services:
      llm:
        image: lmsysorg/sglang:v0.5.3
        entrypoint: [bash, -c]
        command:
        - |
          python3 -m sglang.launch_server --model-path a/b --tp-size 4
    """
    assert settings(scripted)["parallelism.tensor"] == 4


def test_commands_of_a_script(launched: Read) -> None:
    text = """\
    #!/bin/bash
    pip install vllm==0.10.0
    export MODEL=a/b
    vllm serve $MODEL --max-model-len ${LEN:-512} &
    docker run -d --gpus '"device=0,1"' lmsysorg/sglang:v0.5.3 python3 -m sglang.launch_server --model-path c/d --tp 2
    curl http://localhost:8000/v1/models
    vllm bench serve --model a/b
    """
    one, other = launched(text, "run.sh")
    assert (values(one)["model.id"], values(one)["model.max_model_len"]) == ("a/b", 512)
    assert (values(other)["parallelism.tensor"], values(other)["hardware.devices"]) == (2, 2)
    assert other.engine == "sglang"


def test_prose_is_no_script(launched: Read) -> None:
    assert launched("# Notes\n\nDon't forget: it's fast.\n", "README.md") == []
    with pytest.raises(ManifestError, match="not closed"):
        launched("vllm serve 'a/b\n", "run.sh")
