"""Ray: RayService with language models, RayCluster and AIBrix' fleets of it, and RayLLM's model files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Hint, Invocation, Word, count_of
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, pods

SOURCES = (
    "ray-project/ray python/ray/llm/_internal/serve/core/configs/llm_config.py",
    "ray-project/kuberay ray-operator/config/crd/bases/ray.io_rayservices.yaml",
    "vllm-project/aibrix config/crd/orchestration/orchestration.aibrix.ai_rayclusterfleets.yaml",
)
VARIABLES: Mapping[str, str] = {
    "MODEL_ID": "model",
    "TENSOR_PARALLEL_SIZE": "tensor-parallel-size",
    "TENSOR_PARALLELISM": "tensor-parallel-size",
    "PIPELINE_PARALLEL_SIZE": "pipeline-parallel-size",
    "PIPELINE_PARALLELISM": "pipeline-parallel-size",
    "MAX_MODEL_LEN": "max-model-len",
    "GPU_MEMORY_UTILIZATION": "gpu-memory-utilization",
    "MAX_NUM_SEQS": "max-num-seqs",
    "MAX_NUM_BATCHED_TOKENS": "max-num-batched-tokens",
    "BLOCK_SIZE": "block-size",
    "DTYPE": "dtype",
}
"""Variables that serving scripts of RayService samples take, and the arguments they hand them on as.

Sources: GoogleCloudPlatform/kubernetes-engine-samples ai-ml/gke-ray/rayserve/llm/gemma-7b-it/ray-service.yaml,
awslabs/ai-on-eks blueprints/inference/vllm-ray-gpu-deepseek/ray-vllm-deepseek.yml.
"""


def _names(thing: Node) -> tuple[str, tuple[str, ...]]:
    name = thing.string("metadata", "name")
    return f"{thing.string('kind')} {name}".strip(), (name,) if name else ()


def _service(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    served = thing.get("spec", "serveConfigV2")
    cluster = thing.get("spec", "rayClusterConfig") or thing.get("spec", "rayClusterSpec")
    hints = tuple(_node_hints(cluster))
    image = cluster.scalar("headGroupSpec", "template", "spec", "containers", 0, "image") if cluster else None
    for document in common.inside(file, served) if served is not None else ():
        for application in document.get("applications") or ():
            configs = application.get("args", "llm_configs")
            for config in configs or ():
                found = llm_config(config, f"{name}, model", part, hints, image)
                if found is not None:
                    yield found
            if configs is None:
                found = _by_variables(application, name, part, hints, image)
                if found is not None:
                    yield found


def llm_config(
    config: Node, name: str, part: tuple[str, ...], hints: tuple[Hint, ...] = (), image: Word | None = None
) -> Invocation | None:
    """One model of Ray Serve: what is loaded, the engine's keywords, the accelerator; None for anything else."""
    loading = config.get("model_loading_config")
    keywords = config.get("engine_kwargs")
    if loading is None and keywords is None:
        return None
    model = served = None
    if loading is not None:
        served = loading.scalar("model_id")
        model = loading.scalar("model_source") or loading.scalar("model_source", "bucket_uri") or served
    deployment = config.get("deployment_config")
    replicas = None
    if deployment is not None:
        replicas = deployment.scalar("num_replicas") or deployment.scalar("autoscaling_config", "min_replicas")
    engine = config.scalar("llm_engine")
    called = served.text if served is not None else ""
    return Invocation(
        f"{name} {called}".strip(),
        "ray-serve",
        config.place,
        part=(*part, called) if called else part,
        engine=common.named(engine.text if engine else "vllm", engine, config.place),
        image=image,
        options=dict(keywords.items()) if keywords is not None else {},
        model=common.hub(model),
        replicas=replicas,
        hints=(*common.hint("ray/accelerator_type", config.scalar("accelerator_type")), *hints),
    )


def _by_variables(
    application: Node, name: str, part: tuple[str, ...], hints: tuple[Hint, ...], image: Word | None
) -> Invocation | None:
    """An application whose script takes its settings from variables."""
    env = common.environment(application.get("runtime_env", "env_vars"))
    words = tuple(common.flag(flag, env[key]) for key, flag in VARIABLES.items() if key in env)
    if not words:
        return None
    return Invocation(
        f"{name}, application {application.string('name')}".rstrip(),
        "ray-serve",
        application.place,
        part=part,
        engine=Word("vllm", application.place),
        image=image,
        commands=(words,),
        env=env,
        hints=hints,
    )


def _node_hints(cluster: Node | None) -> Iterator[Hint]:
    for group in (cluster.get("workerGroupSpecs") or ()) if cluster is not None else ():
        pod = group.get("template", "spec")
        if pod is not None:
            yield from pods.hints(pod)


def _cluster(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    """A cluster whose head starts the engine; its pods are the head and every worker."""
    name, part = _names(thing)
    spec = thing.get("spec", "template", "spec") or thing.get("spec")
    head = spec.get("headGroupSpec", "template", "spec") if spec is not None else None
    if spec is None or head is None:
        return
    workers = [g.scalar("replicas") or g.scalar("minReplicas") for g in spec.get("workerGroupSpecs") or ()]
    counts = [n for w in workers if (n := count_of(w)) is not None]
    first = next((w for w in workers if w is not None), None)
    size = first._replace(text=str(1 + sum(counts))) if first is not None and counts else None
    for found in pods.invocations(
        file,
        head,
        name=name,
        format_="ray-cluster",
        part=part,
        maps=maps,
        pods=size,
        replicas=thing.scalar("spec", "replicas"),
        extra=tuple(_node_hints(spec)),
    ):
        if found.commands:
            yield found


def _config_map(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    """Model files of RayLLM that a config map holds."""
    name, part = _names(thing)
    for key, held in (thing.get("data") or thing).items():
        text = held.text
        if "engine_config" not in text and "llm_configs" not in text:
            continue
        for document in common.inside(file, held):
            for config in document.get("llm_configs") or document.get("applications", 0, "args", "llm_configs") or ():
                found = llm_config(config, name, part)
                if found is not None:
                    yield found
            engine = document.get("engine_config")
            if engine is not None:
                yield _ray_llm(document, engine, f"{name}, {key}", part)


def _ray_llm(document: Node, engine: Node, name: str, part: tuple[str, ...]) -> Invocation:
    keywords = engine.get("engine_kwargs")
    scaling = document.get("scaling_config")
    workers = scaling.scalar("num_workers") if scaling is not None else None
    each = scaling.scalar("num_gpus_per_worker") if scaling is not None else None
    options = dict(keywords.items()) if keywords is not None else {}
    devices = common.times(workers, each)
    length = engine.get("max_total_tokens")
    if length is not None and "max_model_len" not in options:
        options["max_model_len"] = length
    if scaling is not None and workers is not None and "tensor_parallel_size" not in options:
        # RayLLM splits a model over its workers.
        node = scaling.get("num_workers")
        if node is not None:
            options["tensor_parallel_size"] = node
    return Invocation(
        name,
        "rayllm",
        engine.place,
        part=part,
        engine=Word("vllm", engine.place),
        options=options,
        model=engine.scalar("hf_model_id") or engine.scalar("model_id"),
        devices=devices,
        hints=tuple(_custom_resources(document)),
    )


def _custom_resources(document: Node) -> Iterator[Hint]:
    """Custom resources of a cluster that are named by the accelerator: ``accelerator_type_l4``."""
    for path in (("scaling_config", "resources_per_worker"), ("deployment_config", "ray_actor_options", "resources")):
        for key, value in (document.get(*path) or document).items():
            if key.startswith("accelerator_type_"):
                yield Hint("ray/accelerator_type", Word(key.removeprefix("accelerator_type_"), value.place))


KINDS = {
    "RayService": _service,
    "RayCluster": _cluster,
    "RayClusterFleet": _cluster,
    "RayClusterReplicaSet": _cluster,
    "ConfigMap": _config_map,
}
