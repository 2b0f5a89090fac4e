"""Kubernetes objects: workloads, patches, config maps, serving operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from read_values import values

from servelint.launch.manifest import ManifestError
from servelint.launch.reading import Launched

Settings = Callable[..., dict[str, Any]]
Read = Callable[..., list[Launched]]

DEPLOYMENT = """\
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 3
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
      initContainers:
      - {name: fetch, image: vllm/vllm-openai:v0.9.0, args: [--model, other/model]}
      containers:
      - name: proxy
        image: envoyproxy/envoy:v1
        args: [-c, /etc/envoy.yaml]
      - name: engine
        image: vllm/vllm-openai:v0.10.0
        args: [--model, $(MODEL), --tensor-parallel-size=2, --max-model-len, "8192"]
        env:
        - {name: MODEL, value: Qwen/Qwen3-8B}
        resources: {limits: {nvidia.com/gpu: "2"}}
"""


def test_a_deployment_gives_its_engine_alone(settings: Settings) -> None:
    assert settings(DEPLOYMENT) == {
        "engine.name": "vllm",
        "engine.image": "vllm/vllm-openai:v0.10.0",
        "engine.version": "0.10.0",
        "model.id": "Qwen/Qwen3-8B",
        "model.max_model_len": 8192,
        "hardware.accelerator": "nvidia/l4",
        "hardware.devices": 2,
        "hardware.replicas": 3,
        "parallelism.tensor": 2,
    }


def test_places_are_those_of_the_file(launched: Read) -> None:
    (one,) = launched(DEPLOYMENT)
    lines = DEPLOYMENT.splitlines()
    length = one.settings["model", "max_model_len"].place
    assert lines[length.line - 1][length.column - 1 : length.end_column - 1] == '"8192"'
    assert "nvidia-l4" in lines[one.settings["hardware", "accelerator"].place.line - 1]


def test_lists_are_opened(settings: Settings) -> None:
    inner = "\n".join("  " + line for line in DEPLOYMENT.splitlines())
    assert settings(f"kind: List\nitems:\n- {inner.lstrip()}\n")["parallelism.tensor"] == 2


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "Job", "ReplicaSet"])
def test_other_workloads_hold_the_same_template(settings: Settings, kind: str) -> None:
    assert settings(DEPLOYMENT.replace("Deployment", kind))["model.id"] == "Qwen/Qwen3-8B"


def test_a_pod_and_a_cron_job(settings: Settings) -> None:
    pod = "{containers: [{name: e, image: 'vllm/vllm-openai:v0.9.0', args: [--model, a/b]}]}"
    assert settings(f"kind: Pod\nspec: {pod}\n")["model.id"] == "a/b"
    job = f"kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {{spec: {pod}}}}}}}}}\n"
    assert settings(job)["model.id"] == "a/b"


def test_a_pod_without_an_engine_is_nothing(launched: Read) -> None:
    assert launched("kind: Pod\nspec: {containers: [{name: web, image: 'nginx:1', args: [-g, daemon off]}]}\n") == []


def test_a_patch_has_no_image_and_values_from_beside_it(settings: Settings) -> None:
    text = """\
    kind: Deployment
    metadata: {name: served-decode}
    spec: {template: {spec: {containers: [{name: server, args: [
      "--model=$(MODEL_ID)", "--max-model-len=$(LEN)", "--max-num-seqs=${SEQS:-64}"]}]}}}
    """
    made = settings(text, MODEL_ID="a/b", LEN="4096")
    assert (made["model.id"], made["model.max_model_len"], made["batching.max_sequences"]) == ("a/b", 4096, 64)


def test_a_value_that_nothing_sets_is_said(launched: Read) -> None:
    text = "kind: Pod\nspec: {containers: [{image: vllm/vllm-openai, args: ['--max-model-len=$(LEN)']}]}\n"
    (one,) = launched(text)
    assert [t.kind for t in one.troubles] == ["unresolved"]
    assert "LEN" in one.troubles[0].message


def test_json_patches_are_arguments(settings: Settings) -> None:
    text = """\
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --max-num-seqs=128}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --max-model-len=4096}
    """
    assert settings(text)["batching.max_sequences"] == 128


def test_scripts_in_the_command_and_in_a_mounted_map(settings: Settings) -> None:
    script = """\
    kind: Pod
    spec:
      containers:
      - name: e
        command: [sh, -c]
        args:
        - |
          set -e
          export LEN=2048
          vllm serve a/b \\
            --max-model-len $LEN
    """
    assert settings(script)["model.max_model_len"] == 2048
    mounted = """\
    kind: Pod
    spec: {containers: [{name: e, command: [bash, /scripts/run.sh]}]}
    ---
    kind: ConfigMap
    metadata: {name: scripts}
    data:
      run.sh: |
        exec vllm serve a/b --max-model-len 1024
    """
    assert settings(mounted)["model.max_model_len"] == 1024


def test_variables_of_config_maps(settings: Settings) -> None:
    text = """\
    kind: Pod
    spec:
      containers:
      - image: vllm/vllm-openai
        args: [--model=$(MODEL), --max-model-len=$(LEN)]
        envFrom: [{configMapRef: {name: run}}]
        env: [{name: LEN, valueFrom: {configMapKeyRef: {name: run, key: length}}}]
    ---
    kind: ConfigMap
    metadata: {name: run}
    data: {MODEL: a/b, length: "512"}
    """
    made = settings(text)
    assert (made["model.id"], made["model.max_model_len"]) == ("a/b", 512)


def test_leader_and_workers_make_one_replica(settings: Settings) -> None:
    text = """\
    kind: LeaderWorkerSet
    spec:
      replicas: 2
      leaderWorkerTemplate:
        size: 4
        leaderTemplate: {spec: {containers: [{name: l, command: [sh, -c, "
          ray_start.sh --size=$(LWS_GROUP_SIZE); vllm serve a/b --tensor-parallel-size 8
          --pipeline-parallel-size $LWS_GROUP_SIZE"],
          resources: {limits: {nvidia.com/gpu: 8}}}]}}
        workerTemplate: {spec: {containers: [{name: w, image: vllm/vllm-openai, command: [ray_start.sh]}]}}
    """
    made = settings(text)
    assert (made["hardware.devices"], made["hardware.devices_per_node"], made["hardware.replicas"]) == (32, 8, 2)
    assert (made["parallelism.tensor"], made["parallelism.pipeline"]) == (8, 4)


def test_templates_are_refused(launched: Read) -> None:
    broken = "kind: Deployment\nmetadata:\n  name: {{ .Values.name }}\n{{- if .Values.x }}\nspec: {}\n{{- end }}\n"
    parses = "kind: Pod\nspec: {containers: [{image: '{{ .Values.image }}', args: [--model, a/b]}]}\n"
    for text, line in ((broken, 3), (parses, 2)):
        with pytest.raises(ManifestError, match="render it first") as caught:
            launched(text)
        assert caught.value.place.line == line


def test_what_a_cluster_fills_in_is_no_template(settings: Settings) -> None:
    text = (
        "kind: LLMInferenceServiceConfig\nspec: {template: {containers: [{name: main, command: [sh, -c], args: ["
        "'vllm serve /mnt/models --served-model-name \"{{ .Spec.Model.Name }}\" --max-model-len 64']}]}}\n"
    )
    assert settings(text)["model.max_model_len"] == 64


def test_marks_of_a_merge_conflict(launched: Read) -> None:
    with pytest.raises(ManifestError, match="merge conflict") as caught:
        launched("kind: Pod\n<<<<<<< ours\nspec: 1\n=======\nspec: 2\n>>>>>>> theirs\n")
    assert caught.value.place.line == 2


def test_arguments_in_one_variable(settings: Settings) -> None:
    text = """\
    kind: LLMInferenceService
    spec:
      model: {uri: "hf://deepseek-ai/DeepSeek-R1", name: r1}
      replicas: 2
      parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}
      template:
        containers:
        - name: main
          env: [{name: VLLM_ADDITIONAL_ARGS, value: --max-model-len 8192 --gpu-memory-utilization 0.95}]
          resources: {limits: {nvidia.com/gpu: "8"}}
    """
    made = settings(text)
    assert (made["model.id"], made["model.max_model_len"]) == ("deepseek-ai/DeepSeek-R1", 8192)
    assert (made["parallelism.data"], made["parallelism.expert"], made["hardware.devices"]) == (16, 16, 16)


def test_roles_of_an_inference_service(launched: Read) -> None:
    text = """\
    kind: LLMInferenceService
    spec:
      model: {uri: "hf://a/b"}
      parallelism: {tensor: 4}
      prefill: {replicas: 3, parallelism: {tensor: 2}}
    """
    made = {one.invocation.role: values(one) for one in launched(text)}
    assert (made["decode"]["parallelism.tensor"], made["prefill"]["parallelism.tensor"]) == (4, 2)
    assert made["prefill"]["hardware.replicas"] == 3


def test_an_inference_service_names_model_and_runtime(settings: Settings) -> None:
    text = """\
    kind: InferenceService
    spec:
      predictor:
        minReplicas: 2
        model:
          modelFormat: {name: huggingface}
          storageUri: hf://Qwen/Qwen3-8B:main
          args: [--max-model-len=4096]
          resources: {limits: {nvidia.com/gpu: 1}}
    """
    made = settings(text)
    assert (made["engine.name"], made["model.id"], made["hardware.replicas"]) == ("vllm", "Qwen/Qwen3-8B", 2)
    assert made["model.max_model_len"] == 4096


def test_runtimes_of_ome_have_an_engine_and_a_decoder(launched: Read) -> None:
    text = """\
    kind: ClusterServingRuntime
    spec:
      routerConfig: {runner: {name: router, command: [python3, -m, sglang_router.launch_router]}}
      engineConfig:
        leader: {runner: {name: l, command: [python3, -m, sglang.launch_server, --model-path, a/b, --tp-size, "16"],
          resources: {limits: {nvidia.com/gpu: 8}}}}
        worker: {size: 1}
      decoderConfig:
        runner: {name: d, command: [python3, -m, sglang.launch_server, --model-path, a/b, --tp-size, "8"]}
    """
    made = {one.invocation.role: values(one) for one in launched(text)}
    assert (made["prefill"]["parallelism.tensor"], made["prefill"]["hardware.devices"]) == (16, 16)
    assert made["decode"]["parallelism.tensor"] == 8


def test_a_model_of_kubeai(settings: Settings) -> None:
    text = """\
    kind: Model
    spec: {url: "hf://a/b?x=1", engine: VLLM, args: [--max-model-len=2048], resourceProfile: "nvidia-gpu-l4:2"}
    """
    made = settings(text)
    assert (made["model.id"], made["hardware.accelerator"], made["hardware.devices"]) == ("a/b", "nvidia/l4", 2)


def test_a_workspace_of_kaito_reads_its_configuration(settings: Settings, launched: Read) -> None:
    text = """\
    kind: ConfigMap
    metadata: {name: params}
    data:
      inference_config.yaml: |
        max_probe_steps: 6

        vllm:
          max-model-len: 16384
    ---
    kind: Workspace
    resource: {instanceType: Standard_NC24ads_A100_v4, count: 2}
    inference: {preset: {name: phi-4}, config: params}
    """
    made = settings(text)
    assert (made["model.id"], made["model.max_model_len"]) == ("phi-4", 16384)
    assert made["hardware.instance"] == "azure/Standard_NC24ads_A100_v4"
    (one,) = launched(text)
    # A value inside a block of YAML stands where the outer file has it.
    assert one.settings["model", "max_model_len"].place[:2] == (8, 22)


def test_a_graph_of_dynamo(launched: Read) -> None:
    text = """\
    kind: DynamoGraphDeployment
    spec:
      services:
        Frontend: {componentType: frontend, extraPodSpec: {mainContainer: {image: nvcr.io/nvidia/vllm-runtime:1}}}
        Fill:
          subComponentType: prefill
          replicas: 4
          resources: {limits: {gpu: "2"}}
          extraPodSpec: {mainContainer: {command: [/bin/sh, -c], args: [
            python3 -m dynamo.vllm --model $PATH_OF --tensor-parallel-size 2 --is-prefill-worker],
            env: [{name: PATH_OF, value: a/b}]}}
        Worker:
          multinode: {nodeCount: 2}
          resources: {limits: {gpu: "8"}}
          extraPodSpec: {mainContainer: {command: [python3], args: [-m, dynamo.vllm, --model, a/b,
            --tensor-parallel-size, "16"]}}
    """
    made = {one.invocation.role: values(one) for one in launched(text)}
    assert set(made) == {"prefill", "decode"}
    assert (made["prefill"]["hardware.replicas"], made["prefill"]["parallelism.tensor"]) == (4, 2)
    assert (made["decode"]["hardware.devices"], made["decode"]["hardware.devices_per_node"]) == (16, 8)


def test_role_templates_are_patched(launched: Read) -> None:
    text = """\
    kind: RoleBasedGroup
    spec:
      roleTemplates:
      - name: base
        template: {spec: {containers: [{name: e, image: "vllm/vllm-openai:v0.10.0",
          env: [{name: LEN, value: "4096"}], resources: {limits: {nvidia.com/gpu: 1}}}]}}
      roles:
      - name: router
        standalonePattern: {template: {spec: {containers: [{name: r, command: [python3, -m, sglang_router.launch]}]}}}
      - name: decode
        replicas: 2
        standalonePattern: {templateRef: {name: base, patch: {spec: {containers: [{name: e,
          command: [vllm, serve], args: [a/b, --max-model-len, $(LEN)]}]}}}}
    """
    (one,) = launched(text)
    made = values(one)
    assert (one.invocation.role, made["hardware.devices"], made["hardware.replicas"]) == ("decode", 1, 2)
    assert (made["engine.version"], made["model.max_model_len"]) == ("0.10.0", 4096)


def test_kthena_and_storm_services(launched: Read) -> None:
    container = "{name: l, command: [vllm, serve, a/b], resources: {limits: {nvidia.com/gpu: 1}}}"
    serving = f"""\
    kind: ModelServing
    spec: {{template: {{roles: [
      {{name: prefill, replicas: 2, workerReplicas: 3, entryTemplate: {{spec: {{containers: [{container}]}}}}}}]}}}}
    """
    (one,) = launched(serving)
    assert (values(one)["hardware.devices"], one.invocation.role) == (4, "prefill")
    storm = f"""\
    kind: StormService
    spec: {{template: {{spec: {{roles: [{{name: decode, template: {{spec: {{containers: [{container}]}}}}}}]}}}}}}
    """
    (one,) = launched(storm)
    assert one.invocation.role == "decode"
    booster = """\
    kind: ModelBooster
    spec: {backend: {type: vLLM, modelURI: "hf://a/b", workers: [{type: server, pods: 2,
      config: {max-model-len: 64, enforce-eager: ""}, resources: {limits: {nvidia.com/gpu: 2}}}]}}
    """
    (one,) = launched(booster)
    assert (values(one)["model.max_model_len"], values(one)["hardware.devices"]) == (64, 4)


def test_ray_services_and_clusters(settings: Settings) -> None:
    service = """\
    kind: RayService
    spec:
      serveConfigV2: |
        applications:
        - args:
            llm_configs:
            - model_loading_config: {model_id: m, model_source: a/b}
              accelerator_type: L4
              engine_kwargs: {tensor_parallel_size: 2, max_model_len: 512}
              deployment_config: {autoscaling_config: {min_replicas: 2}}
    """
    made = settings(service)
    assert (made["model.id"], made["parallelism.tensor"], made["hardware.replicas"]) == ("a/b", 2, 2)
    assert made["hardware.accelerator"] == "nvidia/l4"
    variables = """\
    kind: RayService
    spec:
      serveConfigV2: |
        applications:
        - {import_path: "serve:model", runtime_env: {env_vars: {MODEL_ID: a/b, TENSOR_PARALLELISM: "2"}}}
    """
    assert settings(variables)["parallelism.tensor"] == 2
    fleet = """\
    kind: RayClusterFleet
    spec:
      template:
        spec:
          headGroupSpec: {template: {spec: {containers: [{name: h, command: [bash, -lc, --],
            args: ["$RAY & sleep 5; vllm serve a/b --tensor-parallel-size 16"],
            resources: {limits: {nvidia.com/gpu: 8}}}]}}}
          workerGroupSpecs: [{replicas: 1}]
    """
    assert settings(fleet)["hardware.devices"] == 16


def test_a_slice_is_not_the_whole_device(launched: Read) -> None:
    text = """\
    kind: Pod
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers: [{image: vllm/vllm-openai, args: [--model, a/b],
        resources: {limits: {nvidia.com/mig-1g.10gb: 1}}}]
    """
    (one,) = launched(text)
    assert any("slice" in t.message for t in one.troubles)
    slices = text.replace("HBM3}", "HBM3-MIG-1g.10gb}").replace("mig-1g.10gb: 1", "gpu: 1")
    assert "hardware.accelerator" not in values(launched(slices)[0])


def test_labels_that_name_a_family_are_narrowed_together(settings: Settings) -> None:
    text = """\
    kind: Pod
    spec:
      nodeSelector: {%s}
      containers: [{image: vllm/vllm-openai, args: [--model, a/b]}]
    """
    family = "inference.optimization/acceleratorName: H100"
    assert "hardware.accelerator" not in settings(text % family)
    both = f"{family}, nvidia.com/gpu.product: NVIDIA-H100-PCIe"
    assert settings(text % both)["hardware.accelerator"] == "nvidia/h100-pcie-80gb"
    several = """\
    kind: Pod
    spec:
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
        {matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L4, NVIDIA-L40S]}]}]}}}
      containers: [{image: vllm/vllm-openai, args: [--model, a/b]}]
    """
    assert "hardware.accelerator" not in settings(several)
    assert settings(several.replace("NVIDIA-L4, ", ""))["hardware.accelerator"] == "nvidia/l40s"


def test_an_instance_type_stands_for_its_accelerator(settings: Settings) -> None:
    text = """\
    kind: Pod
    spec:
      nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge, nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers: [{image: vllm/vllm-openai, args: [--model, a/b]}]
    """
    made = settings(text)
    assert made["hardware.instance"] == "aws/p5.48xlarge"
    assert "hardware.accelerator" not in made
