"""Renders published deployments as manifests of their formats, imports them, and scores what is read.

The rows (tests/data/facts/deployments.jsonl) are facts of 123 public files. Each is rendered from the facts and
the public schema of its format alone, then goes through ``servelint import``; a fact is right when the key that
expresses it has its value. ``python tests/accuracy/deployments.py`` prints the table.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from servelint.commands import common, import_
from servelint.manager import Plugins

DATA = Path(__file__).resolve().parents[1] / "data" / "facts" / "deployments.jsonl"

NO_KEY = (
    "dbo", "eplb", "lora", "all2all", "cpu_offload_gb", "disaggregation", "dp_local", "kv_offload", "workload", "slo",
    "nodes", "pods_per_replica",
)  # fmt: skip
"""Facts that no key of a spec holds as they stand, or that another fact holds already."""

Facts = Mapping[str, Any]


class Row(NamedTuple):
    """One deployment: what its file says, and the hardware."""

    id: str
    format: str
    engine: str
    image: str | None
    version: str | None
    hardware: Mapping[str, Any]
    facts: Facts

    @property
    def roles(self) -> Mapping[str, Facts]:
        """Facts by role, those of the whole merged in; one role without a name where there are none."""
        shared = {k: v for k, v in self.facts.items() if k != "roles"}
        roles = self.facts.get("roles") or {"": {}}
        return {role: {**shared, **own} for role, own in roles.items()}


def rows() -> list[Row]:
    """Read the rows."""
    found = []
    for line in DATA.read_text(encoding="utf-8").splitlines():
        r = json.loads(line)
        found.append(Row(r["id"], r["format"], r["engine"], r["image"], r["engine_version"], r["hardware"], r["facts"]))
    return found


# Facts as arguments

VLLM = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dcp": "decode-context-parallel-size",
    "max_model_len": "max-model-len",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "kv_cache_dtype": "kv-cache-dtype",
    "block_size": "block-size",
    "quantization": "quantization",
    "dtype": "dtype",
}
SGLANG = {
    "tp": "tp-size",
    "pp": "pp-size",
    "dp": "dp-size",
    "ep": "ep-size",
    "max_model_len": "context-length",
    "gpu_memory_utilization": "mem-fraction-static",
    "max_num_seqs": "max-running-requests",
    "max_num_batched_tokens": "chunked-prefill-size",
    "kv_cache_dtype": "kv-cache-dtype",
    "block_size": "page-size",
    "quantization": "quantization",
    "dtype": "dtype",
    "max_total_tokens": "max-total-tokens",
    "cuda_graph_max_bs": "cuda-graph-max-bs",
}
TGI = {"tp": "num-shard", "quantization": "quantize", "dtype": "dtype"}


def options(engine: str, facts: Facts) -> dict[str, Any]:
    """The facts as options of the engine: flags with values, True for a switch."""
    if engine == "trtllm":
        return tensorrt(facts)
    if engine == "tgi":
        return {TGI[k]: v for k, v in facts.items() if k in TGI}
    names = SGLANG if engine == "sglang" else VLLM
    made: dict[str, Any] = {names[k]: v for k, v in facts.items() if k in names and v != "auto"}
    if engine == "sglang" and made.get("kv-cache-dtype") == "fp8":
        # SGLang names the encoding.
        made["kv-cache-dtype"] = "fp8_e4m3"
    speculative = facts.get("speculative")
    if engine == "sglang":
        if facts.get("prefix_caching") is False:
            made["disable-radix-cache"] = True
        if facts.get("dp_attention"):
            made["enable-dp-attention"] = True
        if isinstance(speculative, dict):
            made["speculative-algorithm"] = speculative["method"].split()[0].upper()
            for key, name in (("steps", "speculative-num-steps"), ("draft_tokens", "speculative-num-draft-tokens")):
                if key in speculative:
                    made[name] = speculative[key]
        return made
    for fact, flag in (("prefix_caching", "enable-prefix-caching"), ("chunked_prefill", "enable-chunked-prefill")):
        if fact in facts:
            made[flag if facts[fact] else f"no-{flag}"] = True
    for fact, flag in (("expert_parallel", "enable-expert-parallel"), ("enforce_eager", "enforce-eager")):
        if facts.get(fact):
            made[flag] = True
    if isinstance(speculative, dict):
        config: dict[str, Any] = {"method": speculative["method"].split()[0], "num_speculative_tokens": 3}
        config["num_speculative_tokens"] = speculative.get("k", 3)
        if "draft_tp" in speculative:
            config["draft_tensor_parallel_size"] = speculative["draft_tp"]
        made["speculative-config"] = json.dumps(config)
    return made


def tensorrt(facts: Facts) -> dict[str, Any]:
    """The facts as arguments of TensorRT-LLM's language-model API."""
    names = {
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "ep": "moe_expert_parallel_size",
        "max_model_len": "max_seq_len",
        "max_seq_len": "max_seq_len",
        "max_num_seqs": "max_batch_size",
        "max_batch_size": "max_batch_size",
        "max_num_batched_tokens": "max_num_tokens",
        "max_num_tokens": "max_num_tokens",
        "chunked_prefill": "enable_chunked_prefill",
        "dp_attention": "enable_attention_dp",
        "guided_backend": "guided_decoding_backend",
    }
    made: dict[str, Any] = {}
    for key, value in facts.items():
        if key in names:
            made[names[key]] = value
    cache = {
        "gpu_memory_utilization": "free_gpu_memory_fraction",
        "kv_free_fraction": "free_gpu_memory_fraction",
        "prefix_caching": "enable_block_reuse",
        "kv_cache_dtype": "dtype",
        "kv_dtype": "dtype",
        "block_size": "tokens_per_block",
    }
    held = {cache[k]: v for k, v in facts.items() if k in cache}
    if held:
        made["kv_cache_config"] = held
    speculative = facts.get("speculative")
    if isinstance(speculative, dict):
        made["speculative_config"] = {
            "decoding_type": speculative["method"],
            "num_nextn_predict_layers": speculative["k"],
        }
    return made


def words(engine: str, facts: Facts) -> list[str]:
    """The options as words of a command line."""
    made = []
    for name, value in options(engine, facts).items():
        made += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return made


def command(row: Row, facts: Facts) -> tuple[list[str], str]:
    """The command line that starts the engine, and a configuration file that it names (empty for none)."""
    model = str(facts.get("model", "/models/served"))
    if row.engine == "sglang":
        return ["python3", "-m", "sglang.launch_server", "--model-path", model, *words("sglang", facts)], ""
    if row.engine == "trtllm":
        text = yaml.safe_dump(tensorrt(facts))
        return ["trtllm-serve", model, "--extra_llm_api_options", "/config/options.yaml"], text
    if row.engine == "tgi":
        return ["text-generation-launcher", "--model-id", model, *words("tgi", facts)], ""
    return ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", model, *words("vllm", facts)], ""


# Formats

SHORT = {
    "H100-80GB": "H100", "H200-141GB": "H200", "A100-80GB": "A100-80G", "A100-40GB": "A100-40G", "A10G": "A10G",
}  # fmt: skip


def dump(*documents: Any) -> str:
    """Documents as YAML."""
    return yaml.safe_dump_all(documents, sort_keys=False)


def selector(row: Row) -> dict[str, str]:
    """The node selector that the row's file has."""
    found = {}
    for text in row.hardware.get("gpu_selector") or ():
        key, _, value = text.partition("=")
        if "/" in key:
            found[key] = value
    return found


def container(row: Row, facts: Facts, name: str = "engine") -> tuple[dict[str, Any], list[Any]]:
    """A container that starts the engine, and the config maps that it needs."""
    line, text = command(row, facts)
    count = facts.get("gpus") or row.hardware.get("gpu_count") or facts.get("tp")
    made: dict[str, Any] = {"name": name, "command": line[:3] if line[1] == "-m" else line[:1]}
    made["args"] = line[len(made["command"]) :]
    if row.image:
        made["image"] = row.image
    if isinstance(count, int):
        made["resources"] = {"limits": {"nvidia.com/gpu": str(count)}}
    maps = []
    if text:
        key = f"{name}.yaml"
        maps = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-config"}, "data": {key: text}}]
        made["args"] = [f"/config/{key}" if a.endswith("options.yaml") else a for a in made["args"]]
    return made, maps


def workload(row: Row) -> str:
    """A Deployment."""
    (facts,) = row.roles.values()
    held, maps = container(row, facts)
    pod = {"containers": [held], "nodeSelector": selector(row)}
    kind = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"template": {"spec": pod}}}, *maps)


def patch(row: Row) -> str:
    """A kustomize patch: arguments without image or command."""
    (facts,) = row.roles.values()
    model = [f"--model={facts['model']}"]
    held = {"name": "modelserver", "args": [*model, *(f"--{k}={v}" for k, v in options("vllm", facts).items())]}
    kind = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"template": {"spec": {"containers": [held]}}}})


def leader_workers(row: Row) -> str:
    """A LeaderWorkerSet of pods with eight devices."""
    (facts,) = row.roles.values()
    held, maps = container(row, {**facts, "gpus": 8})
    held["args"] = [*held["args"]]
    size = facts.get("tp", 8) * facts.get("pp", 1) // 8 or 1
    template = {"size": size, "leaderTemplate": {"spec": {"nodeSelector": selector(row), "containers": [held]}}}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"replicas": 1, "leaderWorkerTemplate": template}}, *maps)


def kubeai(row: Row) -> str:
    """A Model of KubeAI."""
    (facts,) = row.roles.values()
    arguments = [f"--{k}" if v is True else f"--{k}={v}" for k, v in options("vllm", facts).items()]
    profile = row.hardware["gpu_selector"][0].partition("=")[2]
    spec = {"url": f"hf://{facts['model']}", "engine": "VLLM", "args": arguments, "resourceProfile": profile}
    return dump({"apiVersion": "kubeai.org/v1", "kind": "Model", "metadata": {"name": "served"}, "spec": spec})


def dynamo(row: Row) -> str:
    """A DynamoGraphDeployment with a frontend and a service a role."""
    modules = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "trtllm": "dynamo.trtllm"}
    services: dict[str, Any] = {
        "Frontend": {"componentType": "frontend", "extraPodSpec": {"mainContainer": {"image": "runtime:1"}}}
    }
    maps = []
    for role, facts in row.roles.items():
        name = role or "worker"
        line = ["python3", "-m", modules[row.engine], "--model", str(facts.get("model"))]
        if row.engine == "trtllm":
            line[3] = "--model-path"
            text = yaml.safe_dump(tensorrt(facts))
            data = {f"{name}.yaml": text}
            maps.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
            line += ["--extra-engine-args", f"/config/{name}.yaml"]
        else:
            line += words(row.engine, facts)
        service: dict[str, Any] = {"componentType": "worker", "replicas": facts.get("replicas", 1)}
        if role:
            service["subComponentType"] = role
        nodes = facts.get("nodes", 1)
        each = facts.get("gpus", facts.get("tp", 1) * facts.get("dp", 1)) // nodes or 1
        if nodes > 1:
            service["multinode"] = {"nodeCount": nodes}
        service["resources"] = {"limits": {"gpu": str(each)}}
        service["extraPodSpec"] = {"mainContainer": {"image": "runtime:1", "command": line[:3], "args": line[3:]}}
        services[name] = service
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"services": services}}, *maps)


def slurm(row: Row) -> str:
    """An srt-slurm recipe."""
    key = {"sglang": "sglang_config", "trtllm": "trtllm_config", "vllm": "vllm_config"}[row.engine]
    resources: dict[str, Any] = {"gpu_type": str(row.hardware["gpu_sku"]).split("-")[0].lower(), "gpus_per_node": 8}
    if resources["gpu_type"].startswith("gb"):
        resources["gpus_per_node"] = 4
    config = {}
    for role, facts in row.roles.items():
        short = {"aggregated": "agg"}.get(role, role)
        if "replicas" in facts:
            resources[f"{short}_workers"] = facts["replicas"]
        if "gpus" in facts:
            resources[f"gpus_per_{short}"] = facts["gpus"]
        own = {k: v for k, v in facts.items() if k != "quantization"}
        config[role] = {"served-model-name": str(facts["model"]), **options(row.engine, own)}
        if row.engine == "trtllm":
            del config[role]["served-model-name"]
    model = {"path": str(row.facts["model"]), "container": row.image or "image", "precision": row.facts["quantization"]}
    return dump({"name": "served", "model": model, "resources": resources, "backend": {"type": "x", key: config}})


def truss(row: Row) -> str:
    """A Truss, with TensorRT-LLM's own block or a server that a command starts."""
    (facts,) = row.roles.values()
    made: dict[str, Any] = {"model_name": "served"}
    made["resources"] = {"accelerator": row.hardware["gpu_selector"][0].partition("=")[2], "use_gpu": True}
    if row.engine == "trtllm":
        given = tensorrt(facts)
        top = ("tensor_parallel_size", "max_seq_len", "max_batch_size", "max_num_tokens", "enable_chunked_prefill")
        runtime: dict[str, Any] = {k: v for k, v in given.items() if k in top}
        runtime["patch_kwargs"] = {k: v for k, v in given.items() if k not in top}
        build = {"checkpoint_repository": {"source": "HF", "repo": facts["model"]}}
        if "quantization" in facts:
            build["quantization_type"] = facts["quantization"]
        made["trt_llm"] = {"build": build, "inference_stack": "v2", "runtime": runtime}
    else:
        line = " ".join(command(row, facts)[0])
        made["base_image"] = {"image": "vllm/vllm-openai:v0.10.0" if row.engine == "vllm" else "lmsysorg/sglang:v0.5.3"}
        made["docker_server"] = {"start_command": f"sh -c '{line}'", "server_port": 8000}
    return dump(made)


def production_stack(row: Row) -> str:
    """Values of the vLLM production stack."""
    (facts,) = row.roles.values()
    config = {"maxModelLen": "max_model_len", "tensorParallelSize": "tp", "pipelineParallelSize": "pp"}
    held = {k: facts[v] for k, v in config.items() if v in facts}
    extra = [f"--gpu-memory-utilization={facts['gpu_memory_utilization']}"] if "gpu_memory_utilization" in facts else []
    spec = {"name": "served", "repository": "vllm/vllm-openai", "tag": "v0.10.0", "modelURL": facts["model"]}
    count = facts.get("tp", 1)
    spec |= {"replicaCount": 1, "requestGPU": count, "vllmConfig": {**held, "extraArgs": extra}}
    return dump({"servingEngineSpec": {"modelSpec": [spec]}})


def runtime_kind(row: Row) -> str:
    """A VLLMRuntime of the production stack's operator."""
    (facts,) = row.roles.values()
    model = {"modelURL": facts["model"], "maxModelLen": facts["max_model_len"], "dtype": facts["dtype"]}
    model["maxNumSeqs"] = facts["max_num_seqs"]
    config = {
        "enableChunkedPrefill": facts["chunked_prefill"],
        "enablePrefixCaching": facts["prefix_caching"],
        "tensorParallelSize": facts["tp"],
        "gpuMemoryUtilization": str(facts["gpu_memory_utilization"]),
    }
    spec = {"model": model, "vllmConfig": config}
    return dump({"apiVersion": "production-stack.vllm.ai/v1alpha1", "kind": "VLLMRuntime", "spec": spec})


def values(row: Row) -> str:
    """Values of some chart: a model, an image, extra arguments, resources."""
    (facts,) = row.roles.values()
    image = {"vllm": "vllm/vllm-openai", "tgi": "ghcr.io/huggingface/text-generation-inference"}[row.engine]
    made: dict[str, Any] = {"image": {"repository": image, "tag": "v1"}, "extraArgs": words(row.engine, facts)}
    if "model" in facts:
        made["modelName"] = facts["model"]
    if row.hardware.get("gpu_expr") == "nvidia.com/gpu.product affinity":
        made["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-" + row.hardware["gpu_sku"]}
    made["resources"] = {"limits": {"nvidia.com/gpu": row.hardware.get("gpu_count") or facts.get("tp", 1)}}
    return dump(made)


def llm_d_values(row: Row) -> str:
    """Values of llm-d's first chart."""
    made: dict[str, Any] = {"model": {"modelArtifactURI": f"pvc://models/{row.facts['model']}"}}
    for role, facts in row.roles.items():
        made[role] = {"replicas": facts["replicas"], "extraArgs": words("vllm", facts)}
    return dump({"sampleApplication": made})


def scenario(row: Row) -> str:
    """A scenario of llm-d's benchmark."""
    model: dict[str, Any] = {"name": row.facts["model"], "huggingfaceId": row.facts["model"]}
    names = {
        "max_model_len": "maxModelLen",
        "block_size": "blockSize",
        "gpu_memory_utilization": "gpuMemoryUtilization",
    }
    model |= {names[k]: v for k, v in row.facts.items() if k in names}
    head = {"model": model}
    if selector(row):
        head["affinity"] = {"enabled": True, "nodeSelector": selector(row)}
    made: dict[str, Any] = {"name": "served", "common": head}
    variables = {
        "max-model-len": "$VLLM_MAX_MODEL_LEN",
        "block-size": "$VLLM_BLOCK_SIZE",
        "gpu-memory-utilization": "$VLLM_ACCELERATOR_MEM_UTIL",
        "tensor-parallel-size": "$TP_SIZE",
    }
    for role, facts in row.roles.items():
        given = options("vllm", facts)
        line = " ".join(f"--{k}" if v is True else f"--{k} {variables.get(k, v)}" for k, v in given.items())
        text = f"${{accelerator.preamble}}\nvllm serve /model-cache/$MODEL_PATH \\\n  {line}\n"
        block = {"enabled": True, "replicas": facts.get("replicas", 1), "vllm": {"customCommand": text}}
        block["parallelism"] = {"tensor": facts.get("tp", 1), "data": 1, "dataLocal": 1, "workers": 1}
        made[role or "decode"] = block
    return dump({"scenario": [made]})


def llm_inference_service(row: Row) -> str:
    """An LLMInferenceService of KServe."""
    spec: dict[str, Any] = {}
    if "model" in row.facts:
        spec["model"] = {"uri": f"hf://{row.facts['model']}", "name": row.facts["model"]}
    for role, facts in row.roles.items():
        names = {"tp": "tensor", "dp": "data", "dp_local": "dataLocal", "expert_parallel": "expert"}
        block: dict[str, Any] = {"parallelism": {names[k]: v for k, v in facts.items() if k in names}}
        rest = {k: v for k, v in facts.items() if k not in names}
        line = " ".join(words("vllm", rest))
        held: dict[str, Any] = {"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": line}]}
        if not row.facts.get("model"):
            held |= {"image": row.image, "command": ["/bin/sh", "-c"], "args": ["vllm serve /mnt/models"]}
        held["resources"] = {"limits": {"nvidia.com/gpu": str(facts.get("dp_local", 1))}}
        block["template"] = {"containers": [held]}
        if role == "prefill":
            spec["prefill"] = block
        else:
            spec |= block
    kind = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService", "metadata": {"name": "served"}}
    return dump({**kind, "spec": spec})


def serving_runtime(row: Row) -> str:
    """A ServingRuntime of KServe."""
    (facts,) = row.roles.values()
    held = {"name": "kserve-container", "image": row.image, "args": ["--model", "/mnt/models/", *words("vllm", facts)]}
    kind = {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "ServingRuntime", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"containers": [held]}})


def ome(row: Row) -> str:
    """A ClusterServingRuntime of OME."""
    (facts,) = row.roles.values()
    runner, maps = container(row, facts, "ome-container")
    spec: dict[str, Any] = {"engineConfig": {"runner": runner}}
    if "disaggregation" in facts:
        spec["decoderConfig"] = {"runner": runner}
    kind = {"apiVersion": "ome.io/v1beta1", "kind": "ClusterServingRuntime", "metadata": {"name": "served"}}
    return dump({**kind, "spec": spec}, *maps)


def kaito(row: Row) -> str:
    """A Workspace of KAITO with its configuration."""
    (facts,) = row.roles.values()
    own = {
        k.replace("no-", ""): (not k.startswith("no-") if v is True else v) for k, v in options("vllm", facts).items()
    }
    data = {"inference_config.yaml": yaml.safe_dump({"max_probe_steps": 6, "vllm": own})}
    maps = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "parameters"}, "data": data}
    preset = {"name": facts["model"]} if "model" in facts else {"name": "phi-4-mini-instruct"}
    instance = row.hardware["gpu_selector"][0].partition("=")[2]
    return dump(
        maps,
        {
            "apiVersion": "kaito.sh/v1beta1",
            "kind": "Workspace",
            "metadata": {"name": "served"},
            "resource": {"instanceType": instance},
            "inference": {"preset": preset, "config": "parameters"},
        },
    )


def ray_service(row: Row) -> str:
    """A RayService whose application serves language models."""
    (facts,) = row.roles.values()
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": "served", "model_source": facts["model"]},
        "engine_kwargs": {k.replace("-", "_"): v for k, v in options("vllm", facts).items()},
    }
    hints = dict(t.split("=") for t in row.hardware.get("gpu_selector") or ())
    if "accelerator_type" in hints:
        config["accelerator_type"] = hints["accelerator_type"]
    text = yaml.safe_dump({"applications": [{"name": "llms", "args": {"llm_configs": [config]}}]})
    kind = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"serveConfigV2": text}})


def ray_llm(row: Row) -> str:
    """A config map with a model file of RayLLM."""
    (facts,) = row.roles.values()
    engine = {"model_id": "served", "hf_model_id": facts["model"], "type": "VLLMEngine"}
    engine["engine_kwargs"] = {k.replace("-", "_"): v for k, v in options("vllm", facts).items()}
    scaling = {"num_workers": 1, "num_gpus_per_worker": 1, "resources_per_worker": {"accelerator_type_l4": 0.01}}
    text = yaml.safe_dump({"deployment_config": {}, "engine_config": engine, "scaling_config": scaling})
    return dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"m.yaml": text}})


def ray_python(row: Row) -> str:
    """A Python file that builds an application of Ray Serve."""
    (facts,) = row.roles.values()
    given = ", ".join(f"{k.replace('-', '_')}={v!r}" for k, v in options("vllm", facts).items())
    sku = row.hardware["gpu_sku"]
    return (
        "from ray.serve.llm import LLMConfig, build_openai_app\n\n"
        f"MODEL = {facts['model']!r}\n"
        "config = LLMConfig(\n"
        "    model_loading_config=dict(model_id='served', model_source=MODEL),\n"
        f"    accelerator_type={SHORT.get(sku, sku)!r},\n"
        f"    engine_kwargs=dict({given}),\n)\n"
        'app = build_openai_app({"llm_configs": [config]})\n'
    )


def modal(row: Row) -> str:
    """A Modal file that starts the engine as a process."""
    (facts,) = row.roles.values()
    line, _ = command(row, facts)
    if row.engine == "trtllm":
        line = ["trtllm-serve", str(facts["model"]).split()[0], "--max_batch_size", str(facts["max_num_seqs"])]
    sku = row.hardware["gpu_sku"]
    return (
        "import subprocess\n\nimport modal\n\napp = modal.App('served')\n"
        f"COUNT = {row.hardware['gpu_count']}\nGPU = f'{SHORT.get(sku, sku)}:{{COUNT}}'\n\n\n"
        "@app.function(gpu=GPU)\ndef serve():\n"
        f"    command = {line[:4]!r}\n    command += {line[4:]!r}\n    subprocess.Popen(command)\n"
    )


def fleet(row: Row) -> str:
    """A RayClusterFleet of AIBrix."""
    (facts,) = row.roles.values()
    held, maps = container(row, {**facts, "gpus": 8})
    line = " ".join([*held.pop("command"), *held.pop("args")])
    held |= {"command": ["/bin/bash", "-lc", "--"], "args": [f"ulimit -n 65536; $RAY_START & sleep 5; {line}"]}
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "worker", "image": row.image}]}}}
    cluster = {"headGroupSpec": {"template": {"spec": {"containers": [held]}}}, "workerGroupSpecs": [worker]}
    kind = {"apiVersion": "orchestration.aibrix.ai/v1alpha1", "kind": "RayClusterFleet", "metadata": {"name": "f"}}
    return dump({**kind, "spec": {"replicas": 1, "template": {"spec": cluster}}}, *maps)


def storm(row: Row) -> str:
    """A StormService of AIBrix with two roles."""
    (facts,) = row.roles.values()
    roles: list[Any] = []
    documents: list[Any] = []
    for role in ("prefill", "decode"):
        held, maps = container(row, facts, role)
        documents += maps
        roles.append({"name": role, "replicas": 1, "template": {"spec": {"containers": [held]}}})
    kind = {"apiVersion": "orchestration.aibrix.ai/v1alpha1", "kind": "StormService", "metadata": {"name": "s"}}
    return dump({**kind, "spec": {"template": {"spec": {"roles": roles}}}}, *documents)


def role_based(row: Row) -> str:
    """A RoleBasedGroup, groups of several pods as leader and workers."""
    roles = []
    parts = row.roles if "" not in row.roles else dict.fromkeys(("prefill", "decode"), row.roles[""])
    for role, facts in parts.items():
        own = {**facts, "gpus": facts.get("tp", 1) // facts.get("pods_per_replica", 1)}
        held, _ = container(row._replace(image=None), own, "engine")
        pod = {"template": {"spec": {"containers": [held]}}}
        size = facts.get("pods_per_replica", 1)
        pattern = {"leaderWorkerPattern": {"size": size, **pod}} if size > 1 else {"standalonePattern": pod}
        roles.append({"name": role, "replicas": facts.get("replicas", 1), **pattern})
    kind = {"apiVersion": "workloads.x-k8s.io/v1alpha2", "kind": "RoleBasedGroup", "metadata": {"name": "g"}}
    return dump({**kind, "spec": {"roles": roles}})


def kthena(row: Row) -> str:
    """A ModelServing of kthena where the row has roles or pipelines, else a ModelBooster."""
    (facts,) = row.roles.values()
    if "pp" in facts:
        roles = []
        for role in ("prefill", "decode"):
            held, _ = container(row, {**facts, "gpus": 1}, "leader")
            roles.append({"name": role, "replicas": 1, "entryTemplate": {"spec": {"containers": [held]}}})
            roles[-1]["workerReplicas"] = 1
        spec: dict[str, Any] = {"template": {"roles": roles}}
        return dump({"kind": "ModelServing", "metadata": {"name": "served"}, "spec": spec})
    config = {k: "" if v is True else v for k, v in options("vllm", facts).items()}
    worker = {"type": "server", "image": "vllm/vllm-openai:latest", "pods": 1, "config": config}
    backend = {"name": "b", "type": "vLLM", "modelURI": f"hf://{facts['model']}", "workers": [worker]}
    return dump({"kind": "ModelBooster", "metadata": {"name": "served"}, "spec": {"backend": backend}})


def llmaz(row: Row) -> str:
    """A Service of llmaz."""
    (facts,) = row.roles.values()
    held, _ = container(row, {**facts, "gpus": 1})
    workload_ = {"size": 2, "leaderTemplate": {"spec": {"containers": [held]}}}
    kind = {"apiVersion": "inference.llmaz.io/v1alpha1", "kind": "Service", "metadata": {"name": "served"}}
    return dump({**kind, "spec": {"replicas": 2, "workloadTemplate": workload_}})


def oci(row: Row) -> str:
    """A recipe of OCI's AI blueprints."""
    (facts,) = row.roles.values()
    shape = row.hardware["gpu_selector"][0].partition("=")[2]
    made: dict[str, Any] = {
        "recipe_id": "llm_inference",
        "recipe_image_uri": "docker.io/vllm/vllm-openai:v0.9.1",
        "recipe_node_shape": shape,
        "recipe_nvidia_gpu_count": row.hardware.get("gpu_count") or 1,
        "recipe_container_command_args": ["--model", facts["model"], *words("vllm", facts)],
    }
    if "MIG" in str(row.hardware.get("gpu_sku")):
        made["mig_resource_request"] = "1g.20gb"
    return json.dumps(made, indent=2)


def skypilot(row: Row) -> str:
    """A task of SkyPilot that takes its parallel size from the scheduler."""
    (facts,) = row.roles.values()
    line, _ = command(row, facts)
    nodes = 1
    selectors = row.hardware.get("gpu_selector")
    accelerators: Any = selectors[0].partition("=")[2] if selectors else None
    if accelerators is None and row.hardware.get("gpu_sku"):
        count = row.hardware["gpu_count"]
        nodes = 2 if count > 8 else 1
        accelerators = f"{row.hardware['gpu_sku'].removesuffix('-141GB')}:{count // nodes}"
    if accelerators is None:
        accelerators = ["L4:8", "A100:4"]
    text = " ".join(
        w if w != str(facts.get("tp")) else "$(($SKYPILOT_NUM_GPUS_PER_NODE * $SKYPILOT_NUM_NODES))" for w in line
    )
    made = {"resources": {"accelerators": accelerators}, "num_nodes": nodes, "run": text + "\n"}
    if row.engine == "vllm" and row.version and row.version[0].isdigit():
        made["setup"] = f"pip install vllm=={row.version}\n"
    return dump(made)


def dstack(row: Row) -> str:
    """A service of dstack that takes its parallel size from the scheduler."""
    (facts,) = row.roles.values()
    line = " ".join(
        f"--{k}" if v is True else f"--{k} {v}" for k, v in options("vllm", facts).items() if k != VLLM["tp"]
    )
    text = f"vllm serve $MODEL --tensor-parallel-size $DSTACK_GPUS_NUM {line}"
    gpu = f"{row.hardware['gpu_sku']}:{row.hardware['gpu_count']}"
    made = {"type": "service", "env": [f"MODEL={facts['model']}"], "image": "rocm/vllm-dev:x", "commands": [text]}
    return dump({**made, "resources": {"gpu": gpu}})


def engine_options(row: Row) -> str:
    """A configuration file of the engine."""
    (facts,) = row.roles.values()
    return dump(options(row.engine, facts))


def bench_options(row: Row) -> str:
    """A file for TensorRT-LLM's benchmark: sizes, and the arguments in a block."""
    (facts,) = row.roles.values()
    given = tensorrt(facts)
    sizes = {
        "tensor_parallel_size": "tp_size",
        "pipeline_parallel_size": "pp_size",
        "moe_expert_parallel_size": "ep_size",
    }
    top = {sizes[k]: v for k, v in given.items() if k in sizes}
    return dump({**top, "backend": "pytorch", "llm_api_args": {k: v for k, v in given.items() if k not in sizes}})


def bento(row: Row) -> str:
    """BentoML's build arguments."""
    (facts,) = row.roles.values()
    return (
        '[project]\nname = "served"\n\n[tool.bentoml.build.args]\n'
        f'gpu_type = "nvidia-h200-141gb"\ntp = {facts["tp"]}\nmodel_id = "{facts["model"]}"\n'
        f"max_model_len = {facts['max_model_len']}\n"
    )


def benchmark_list(row: Row) -> str:
    """A list of models that a pipeline tests."""
    (facts,) = row.roles.values()
    line = " ".join(words("vllm", facts))
    return dump({"benchmark": {"fleet": [{"name": "served", "model": facts["model"], "extra_args": line}]}})


def triton(row: Row) -> str:
    """A Triton model whose parameters are the engine's arguments."""
    (facts,) = row.roles.values()
    given = {"model_name": facts["model"], "tensor_parallel_size": facts["tp"], "max_model_len": facts["max_model_len"]}
    given |= {"gpu_memory_utilization": facts["gpu_memory_utilization"], "dtype": facts["dtype"]}
    lines = [f'parameters: {{ key: "{k}" value: {{ string_value: "{v}" }} }}' for k, v in given.items()]
    return 'name: "served"\nbackend: "python"\n' + "\n".join(lines) + "\n"


def compose(row: Row) -> str:
    """A compose file."""
    (facts,) = row.roles.values()
    device = {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    service = {"image": "lmsysorg/sglang:latest", "entrypoint": "python3 -m sglang.launch_server"}
    service |= {"command": f"--model-path {facts['model']} --port 30000"}
    return dump({"services": {"sglang": {**service, "deploy": {"resources": {"reservations": {"devices": [device]}}}}}})


def lmi(row: Row) -> str:
    """A serving.properties."""
    (facts,) = row.roles.values()
    return (
        f"engine=Python\noption.rolling_batch=vllm\noption.model_id={facts['model'].split()[0]}\n"
        "option.tensor_parallel_degree=max\n"
    )


FORMATS: Mapping[str, tuple[str, Callable[[Row], str]]] = {
    "k8s-deployment": ("m.yaml", workload),
    "kustomize-patch": ("m.yaml", patch),
    "lws": ("m.yaml", leader_workers),
    "lws-or-ray": ("m.yaml", leader_workers),
    "kubeai-model": ("m.yaml", kubeai),
    "dynamo-dgd": ("m.yaml", dynamo),
    "srt-slurm": ("m.yaml", slurm),
    "truss": ("config.yaml", truss),
    "helm-values:production-stack": ("values.yaml", production_stack),
    "vllmruntime-crd": ("m.yaml", runtime_kind),
    "helm-values": ("values.yaml", values),
    "helm-values:llm-d": ("values.yaml", llm_d_values),
    "llm-d-scenario": ("m.yaml", scenario),
    "kserve-llminferenceservice": ("m.yaml", llm_inference_service),
    "kserve-servingruntime": ("m.yaml", serving_runtime),
    "ome-clusterservingruntime": ("m.yaml", ome),
    "kaito-workspace": ("m.yaml", kaito),
    "kuberay-rayservice": ("m.yaml", ray_service),
    "rayllm-configmap": ("m.yaml", ray_llm),
    "ray-serve-python": ("serve.py", ray_python),
    "modal-python": ("serve.py", modal),
    "aibrix-rayclusterfleet": ("m.yaml", fleet),
    "aibrix-stormservice": ("m.yaml", storm),
    "rolebasedgroup": ("m.yaml", role_based),
    "kthena": ("m.yaml", kthena),
    "llmaz-playground": ("m.yaml", llmaz),
    "oci-blueprint-json": ("m.json", oci),
    "skypilot": ("task.yaml", skypilot),
    "dstack": ("service.dstack.yml", dstack),
    "engine-args-yaml": ("options.yaml", engine_options),
    "sglang-config-yaml": ("options.yaml", engine_options),
    "trtllm-extra-llm-api": ("options.yaml", engine_options),
    "trtllm-bench-args": ("options.yaml", bench_options),
    "bentoml-pyproject": ("pyproject.toml", bento),
    "ci-benchmark-config": ("tests.yml", benchmark_list),
    "triton-config-pbtxt": ("config.pbtxt", triton),
    "docker-compose": ("compose.yaml", compose),
    "lmi-serving.properties": ("serving.properties", lmi),
}

WITHOUT_MODEL = ("engine-args-yaml", "sglang-config-yaml", "trtllm-extra-llm-api", "trtllm-bench-args")
"""Formats that hold arguments alone; which model they serve is said elsewhere."""


# Scores


class Fact(NamedTuple):
    """One fact, what was read for it, and whether that is right."""

    row: str
    role: str
    name: str
    expected: object
    found: object
    right: bool


class Scores(NamedTuple):
    """What was read of all rows."""

    rows: int
    refused: Mapping[str, str]
    facts: tuple[Fact, ...]
    apart: Counter[str]
    stated: tuple[str, ...]
    located: tuple[str, ...]
    families: tuple[str, ...]

    @property
    def right(self) -> float:
        """Share of the facts that are right."""
        return sum(f.right for f in self.facts) / len(self.facts)

    @property
    def parsed(self) -> float:
        """Share of the rows that are read."""
        return 1 - len(self.refused) / self.rows


def imported(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Import a file: the invocations as JSON has them, or what the refusal says."""
    common.restore()
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                import_.run([str(path), "--format", "json"])
            finally:
                common.restore()
    except Exception as error:
        return [], str(error)
    found: list[dict[str, Any]] = json.loads(out.getvalue())["invocations"] if out.getvalue() else []
    return found, err.getvalue()


def read_all() -> Scores:
    """Render and import every row."""
    refused: dict[str, str] = {}
    facts: list[Fact] = []
    apart: Counter[str] = Counter()
    stated, located, families = [], [], []
    plugins = Plugins()
    every = rows()
    with tempfile.TemporaryDirectory() as folder:
        for row in every:
            made = FORMATS.get(row.format)
            if made is None:
                refused[row.id] = "no renderer"
                continue
            path = Path(folder) / row.id / made[0]
            path.parent.mkdir()
            path.write_text(made[1](row), encoding="utf-8")
            found, said = imported(path)
            if not found:
                refused[row.id] = said.replace(str(path), path.name)
                facts += unread(row)
                continue
            facts += scored(row, found, apart, plugins)
            if states_hardware(row):
                stated.append(row.id)
                settings = settings_of(found[0])
                if "hardware.accelerator" in settings or "hardware.instance" in settings:
                    located.append(row.id)
                elif any(plugins.instances.by_label(h["label"], h["value"]) is not None for h in found[0]["hints"]):
                    families.append(row.id)
    return Scores(len(every), refused, tuple(facts), apart, tuple(stated), tuple(located), tuple(families))


def unread(row: Row) -> list[Fact]:
    """The facts of a row that is not read at all: none is right."""
    return [
        Fact(row.id, role, name, value, None, False)
        for role, facts in row.roles.items()
        for name, value in facts.items()
        if name not in NO_KEY and name != "model_is"
    ]


def states_hardware(row: Row) -> bool:
    """Whether the row's file names the accelerator by a field that is rendered, not by a folder's name."""
    how = row.hardware.get("gpu_expr")
    return bool(row.hardware.get("gpu_selector")) or how in (
        "resources.gpu_type",
        "accelerator_type",
        "accelerator_type_l4 custom resource",
        "gpu= string",
        "build.args.gpu_type",
        "resources.gpu",
        "resources.accelerators",
        "nvidia.com/gpu.product affinity",
    )


def settings_of(invocation: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key path."""
    return {s["key_path"]: s["value"] for s in invocation["settings"]}


def scored(row: Row, found: list[dict[str, Any]], apart: Counter[str], plugins: Plugins) -> list[Fact]:
    """Compare the facts of a row with what was read."""
    made = []
    for role, facts in row.roles.items():
        chosen = [i for i in found if role in (i["role"], "") or role in i["parts"]] or found[:1]
        settings = settings_of(chosen[0])
        for name, value in facts.items():
            if name in NO_KEY or name == "model_is" or (name == "model" and row.format in WITHOUT_MODEL):
                if name != "model_is":
                    apart[name] += 1
                continue
            # What is automatic is no setting.
            if value in ("auto", -1):
                apart[f"{name}: automatic"] += 1
                continue
            right, seen = compare(row, facts, name, value, settings, plugins)
            if right is None:
                apart[f"{name}: {seen}"] += 1
            else:
                made.append(Fact(row.id, role, name, value, seen, right))
    return made


PATHS = {
    "tp": "policy.parallelism.tensor",
    "pp": "policy.parallelism.pipeline",
    "ep": "policy.parallelism.expert",
    "dcp": "policy.parallelism.context",
    "max_model_len": "model.max_model_len",
    "max_seq_len": "model.max_model_len",
    "gpu_memory_utilization": "policy.kv_cache.memory_utilization",
    "kv_free_fraction": "policy.kv_cache.memory_utilization",
    "max_num_seqs": "policy.batching.max_sequences",
    "max_batch_size": "policy.batching.max_sequences",
    "max_num_batched_tokens": "policy.batching.max_batched_tokens",
    "max_num_tokens": "policy.batching.max_batched_tokens",
    "chunked_prefill": "policy.batching.chunked_prefill",
    "prefix_caching": "policy.kv_cache.prefix_reuse",
    "block_size": "policy.kv_cache.page_size",
    "max_total_tokens": "policy.kv_cache.max_tokens",
    "enforce_eager": "engine.enforce_eager",
    "cuda_graph_max_bs": "engine.cuda_graph_max_batch",
    "replicas": "hardware.replicas",
    "gpus": "hardware.devices",
    "guided_backend": "policy.constrained_decoding.backend",
}


def compare(
    row: Row, facts: Facts, name: str, value: Any, settings: Mapping[str, Any], plugins: Plugins
) -> tuple[bool | None, object]:
    """Whether a fact is read right, and what was read; None with the reason where the file says it elsewhere."""
    ranks = settings.get("policy.parallelism.attention_data") or 1
    if name == "model":
        seen = str(settings.get("model.id", ""))
        text = str(value).split(" ")[0].removeprefix("hf:")
        return seen.lower() in (text.lower(), str(value).lower()) or seen.rstrip("/").endswith(text), seen
    if name == "dp":
        seen = settings.get("policy.parallelism.data") or ranks
        return seen == value or (value == 1 and seen in (None, 1)), seen
    if name == "dp_attention":
        if row.engine == "sglang" and "dp" not in facts:
            return None, "the number of ranks is not said"
        size = facts.get("tp", 1) if row.engine == "trtllm" else facts["dp"]
        return ranks == (size if value else 1), ranks
    if name == "expert_parallel":
        ranks = (facts.get("tp") or 1) * (facts.get("dp") or 1)
        seen = settings.get("policy.parallelism.expert")
        return (seen == ranks if ranks > 1 else True), seen
    if name in ("kv_cache_dtype", "kv_dtype"):
        seen = settings.get("policy.quantization.kv_cache")
        return same_format(str(value), seen, plugins), seen
    if name == "dtype":
        seen = settings.get("policy.quantization.activations")
        model = str(settings.get("model.id", ""))
        if seen is None and quantized(model, plugins):
            return None, "the checkpoint is quantized, or not in the catalogue"
        names = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16"}
        return seen == names[value], seen
    if name == "quantization":
        if (
            row.format == "srt-slurm"
            or (row.format in WITHOUT_MODEL and row.engine == "trtllm")
            or row.format == "dynamo-dgd"
        ):
            return None, "the checkpoint's own, no argument"
        seen = settings.get("policy.quantization.weights")
        if seen is None and quantized(str(settings.get("model.id", "")), plugins):
            return None, "the checkpoint is quantized, or not in the catalogue"
        return seen is not None, seen
    if name == "speculative":
        seen = (settings.get("policy.speculation.method"), settings.get("policy.speculation.tokens"))
        wanted = {"eagle3": ("eagle",), "eagle": ("eagle", "mtp"), "mtp": ("mtp",)}[value["method"].split()[0].lower()]
        tokens = (
            value.get("k") or value.get("steps") or (value["draft_tokens"] - 1 if "draft_tokens" in value else None)
        )
        return seen[0] in wanted and tokens in (None, seen[1]), seen
    seen = settings.get(PATHS[name])
    if row.engine == "sglang" and name == "max_num_batched_tokens":
        seen = settings.get("policy.batching.prefill_chunk")
        return seen in (value, value // ranks), seen
    if row.engine == "sglang" and name == "max_num_seqs":
        # A limit of the server, shared by the ranks of data-parallel attention.
        return seen == value // ranks, seen
    if row.format == "lmi-serving.properties" and name == "tp":
        return None, "max, the machine's"
    if isinstance(value, float) and isinstance(seen, int | float):
        return abs(seen - value) < 1e-9, seen
    return seen == value, seen


def same_format(one: str, other: object, plugins: Plugins) -> bool:
    """Whether two names are one number format, fp8 standing for its usual encoding."""
    if not isinstance(other, str):
        return False
    names = plugins.formats
    return names.get(one) is names.get(other) or one.split("_")[0] == other.split("_")[0]


def quantized(model: str, plugins: Plugins) -> bool:
    """Whether the catalogue has the model as a checkpoint that is quantized already."""
    if plugins.models.resolve(model) is None:
        return True
    found = plugins.models.get(model)
    return found.quantization is not None or found.stored not in ("bf16", "fp16", "fp32")


def table(scores: Scores) -> str:
    """The section of docs/accuracy.md."""
    found, near, of = len(scores.located), len(scores.families), len(scores.stated)
    read = scores.rows - len(scores.refused)
    lines = ["| what | number | of |", "|---|---|---|"]
    lines.append(f"| deployments read | {read} | {scores.rows} |")
    lines.append(
        f"| facts right that a key of a spec holds | {sum(f.right for f in scores.facts)} | {len(scores.facts)} |"
    )
    lines.append(f"| accelerator or instance type found, where a field states it | {found} | {of} |")
    lines.append(f"| a family named: memory size or form factor is open | {near} | {of} |")
    by: dict[str, list[bool]] = {}
    for fact in scores.facts:
        by.setdefault(fact.name, []).append(fact.right)
    lines += ["", "| fact | right | of |", "|---|---|---|"]
    lines += [f"| `{name}` | {sum(v)} | {len(v)} |" for name, v in sorted(by.items(), key=lambda b: -len(b[1]))]
    shown = ", ".join(f"`{name}` {n}" for name, n in sorted(scores.apart.items()))
    lines += ["", f"Counted apart, no key holds them as they stand: {shown}."]
    for id_, said in scores.refused.items():
        lines.append(f"\nRefused: {id_}: {said}.")
    return "\n".join(lines)


def main() -> None:
    """Print the table, and every fact that is not right."""
    scores = read_all()
    print(table(scores))
    for fact in scores.facts:
        if not fact.right:
            print(*fact, file=sys.stderr)
    print("not located:", [r for r in scores.stated if r not in scores.located], file=sys.stderr)


if __name__ == "__main__":
    main()
