"""Operators with a kind of their own: KubeAI, the vLLM production stack, KAITO, NVIDIA Dynamo, llmaz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Invocation, Word
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, pods

SOURCES = (
    "kubeai-project/kubeai manifests/crds/kubeai.org_models.yaml",
    "vllm-project/production-stack operator/config/crd/bases/production-stack.vllm.ai_vllmruntimes.yaml",
    "kaito-project/kaito config/crd/bases/kaito.sh_workspaces.yaml",
    "ai-dynamo/dynamo deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml",
    "InftyAI/llmaz config/crd/bases/inference.llmaz.io_services.yaml",
)
RUNTIME: Mapping[str, str] = {
    "tensorParallelSize": "tensor-parallel-size",
    "pipelineParallelSize": "pipeline-parallel-size",
    "dataParallelSize": "data-parallel-size",
    "gpuMemoryUtilization": "gpu-memory-utilization",
    "maxModelLen": "max-model-len",
    "maxNumSeqs": "max-num-seqs",
    "maxNumBatchedTokens": "max-num-batched-tokens",
    "enableChunkedPrefill": "enable-chunked-prefill?",
    "enablePrefixCaching": "enable-prefix-caching?",
    "dtype": "dtype",
    "kvCacheDtype": "kv-cache-dtype",
    "blockSize": "block-size",
    "quantization": "quantization",
}
"""Fields of the production stack's chart and operator, and the flags that they become.

Source: vllm-project/production-stack helm/templates/deployment-vllm-multi.yaml.
"""


def _names(thing: Node) -> tuple[str, tuple[str, ...]]:
    name = thing.string("metadata", "name")
    return f"{thing.string('kind')} {name}".strip(), (name,) if name else ()


def _kubeai(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    spec = thing.get("spec")
    if spec is None or spec.get("url") is None:
        return
    name, part = _names(thing)
    profile = spec.scalar("resourceProfile")
    engine = spec.scalar("engine")
    words = common.listed(spec.get("args"))
    yield Invocation(
        name,
        "kubeai",
        spec.place,
        part=part,
        engine=engine._replace(text=common.engine_named(engine.text) or engine.text) if engine else None,
        image=spec.scalar("image"),
        commands=(words,) if words else (),
        env=common.environment(spec.get("env")),
        model=common.hub(spec.scalar("url")),
        devices=common.counted(profile),
        replicas=spec.scalar("minReplicas"),
        hints=common.hint("kubeai/resourceProfile", profile),
    )


def _vllm_runtime(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    spec = thing.get("spec")
    if spec is None:
        return
    name, part = _names(thing)
    config, model, deployment = spec.get("vllmConfig"), spec.get("model"), spec.get("deploymentConfig")
    words = (*common.flags(model, RUNTIME), *common.flags(config, RUNTIME))
    extra = common.listed(config.get("extraArgs")) if config is not None else ()
    cache = spec.get("lmCacheConfig")
    yield Invocation(
        name,
        "production-stack",
        spec.place,
        part=part,
        engine=Word("vllm", spec.place),
        image=deployment.scalar("image", "name") if deployment is not None else None,
        commands=((*words, *extra),),
        env={
            **common.environment(config.get("env") if config is not None else None),
            **offload(cache),
        },
        model=common.hub(model.scalar("modelURL")) if model is not None else None,
        devices=deployment.scalar("resources", "gpu") if deployment is not None else None,
        replicas=deployment.scalar("replicas") if deployment is not None else None,
    )


def offload(cache: Node | None) -> dict[str, Word]:
    """The variable by which the production stack hands its host memory for offloaded caches, in GB, to LMCache."""
    size = cache.scalar("cpuOffloadingBufferSize") if cache is not None else None
    if size is None or cache is None or not common.truth(cache.string("enabled") or "true"):
        return {}
    return {"LMCACHE_MAX_LOCAL_CPU_SIZE": size}


def _kaito(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    holder = thing if thing.get("inference") is not None else thing.get("spec", "template") or thing.get("spec")
    if holder is None or holder.get("inference") is None:
        return
    name, part = _names(thing)
    resource = holder.get("resource")
    instance = resource.scalar("instanceType") if resource is not None else None
    nodes = resource.scalar("count") if resource is not None else None
    hints = common.hint("kaito/instanceType", instance)
    pod = holder.get("inference", "template", "spec")
    if pod is not None:
        yield from pods.invocations(
            file, pod, name=name, format_="kaito", part=part, maps=maps, pods=nodes, extra=hints
        )
        return
    config = maps.get(holder.string("inference", "config"))
    options: dict[str, Node] = {}
    for _, held in config.items() if config is not None else ():
        for document in common.inside(file, held):
            own = document.get("vllm")
            options |= dict(own.items()) if own is not None else {}
    preset = holder.scalar("inference", "preset", "name")
    yield Invocation(
        name,
        "kaito",
        holder.place if preset is None else preset.place,
        part=part,
        engine=Word("vllm", preset.place if preset is not None else holder.place),
        options=options,
        model=preset,
        pods=nodes,
        hints=hints,
    )


BESIDE = ("frontend", "planner", "epp", "router", "default")
"""Components of a Dynamo graph that hold no model."""


def _dynamo(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    spec = thing.get("spec")
    if spec is None:
        return
    services = spec.get("services")
    rows = (
        list(services.items())
        if services is not None and services.kind == "mapping"
        else [(row.string("name"), row) for row in spec.get("components") or ()]
    )
    kept = [(called, row) for called, row in rows if row.string("componentType").lower() not in BESIDE[:4]]
    roles = {called: _dynamo_role(called, row) for called, row in kept}
    for called, row in kept:
        container = row.get("extraPodSpec", "mainContainer")
        pod = row.get("extraPodSpec")
        if container is None:
            pod = row.get("podTemplate", "spec")
            container = next(iter(pod.get("containers") or ()), None) if pod is not None else None
        if container is None or pod is None:
            continue
        role = roles[called]
        if role is None and "prefill" in roles.values():
            role = "decode"
        framework = spec.scalar("backendFramework")
        for found in pods.invocations(
            file,
            pod,
            name=f"{name}, service {called}",
            format_="dynamo",
            part=(*part, called),
            maps=maps,
            pods=row.scalar("multinode", "nodeCount"),
            replicas=row.scalar("replicas"),
            role=role,
            engine=common.named(framework.text, framework, framework.place) if framework is not None else None,
            containers=[container],
            env=pods.environment(row, maps),
            count=pods.devices(row),
        ):
            if found.commands:
                yield found


def _dynamo_role(called: str, row: Node) -> str | None:
    stated = row.string("subComponentType").lower()
    return stated if stated in ("prefill", "decode") else pods.role_of(called)


def _llmaz(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    workload = thing.get("spec", "workloadTemplate")
    runtime = thing.get("spec", "backendRuntimeConfig")
    if workload is not None:
        pod = workload.get("leaderTemplate", "spec") or workload.get("workerTemplate", "spec")
        if pod is not None:
            size = workload.scalar("size")
            yield from pods.invocations(
                file,
                pod,
                name=name,
                format_="llmaz",
                part=part,
                maps=maps,
                pods=size,
                replicas=thing.scalar("spec", "replicas"),
                env={"LWS_GROUP_SIZE": size} if size is not None else None,
            )
    elif thing.get("spec", "modelClaim") is not None or runtime is not None:
        backend = runtime.scalar("backendName") if runtime is not None else None
        words = common.listed(runtime.get("args")) if runtime is not None else ()
        model = _claimed(file, thing.string("spec", "modelClaim", "modelName"))
        yield Invocation(
            name,
            "llmaz",
            thing.place,
            part=part,
            # vLLM is what a playground runs unless it says otherwise.
            engine=common.named(backend.text if backend else "vllm", backend, thing.place),
            commands=(words,) if words else (),
            model=model,
            devices=pods.devices(runtime) if runtime is not None else None,
            replicas=thing.scalar("spec", "replicas"),
        )


def _claimed(file: ManifestFile, claim: str) -> Word | None:
    for document in file.documents:
        if document.string("kind") == "OpenModel" and document.string("metadata", "name") == claim:
            source = document.get("spec", "source")
            if source is not None:
                return source.scalar("modelHub", "modelID") or common.hub(source.scalar("uri"))
    return None


KINDS = {
    "Model": _kubeai,
    "VLLMRuntime": _vllm_runtime,
    "Workspace": _kaito,
    "InferenceSet": _kaito,
    "DynamoGraphDeployment": _dynamo,
    "Service": _llmaz,
    "Playground": _llmaz,
}
