"""KServe and the runtimes made like its own: InferenceService, LLMInferenceService, serving runtimes, also OME's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Invocation, Word, count_of
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, pods

SOURCES = (
    "kserve/kserve config/crd/full/serving.kserve.io_inferenceservices.yaml",
    "kserve/kserve config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml",
    "kserve/kserve config/crd/full/serving.kserve.io_servingruntimes.yaml",
    "sgl-project/ome config/crd/full/ome.io_servingruntimes.yaml",
)
PARALLELISM: Mapping[str, str] = {
    "tensor": "tensor-parallel-size",
    "pipeline": "pipeline-parallel-size",
    "data": "data-parallel-size",
    "dataLocal": "data-parallel-size-local",
    "expert": "enable-expert-parallel?",
}


def _names(thing: Node) -> tuple[str, tuple[str, ...]]:
    name = thing.string("metadata", "name")
    return f"{thing.string('kind')} {name}".strip(), (name,) if name else ()


def _inference_service(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    # OME's service of the same name has an engine and a model instead of a predictor.
    predictor = thing.get("spec", "predictor") or thing.get("spec", "engine")
    if predictor is None:
        return
    served = predictor.get("model")
    replicas = predictor.scalar("minReplicas")
    if served is not None and served.kind == "mapping":
        format_ = served.scalar("modelFormat", "name") or served.scalar("runtime")
        # The Hugging Face runtime serves language models with vLLM.
        text = "vllm" if format_ is not None and "huggingface" in format_.text.lower() else ""
        address = served.scalar("storageUri") or served.scalar("storage", "path")
        own = [w for key in ("command", "args") for w in common.listed(served.get(key))]
        given = next(
            (
                w._replace(text=w.text.partition("=")[2])
                for w in own
                if w.text.startswith(("--model_id=", "--model-id="))
            ),
            None,
        )
        yield from pods.invocations(
            file,
            predictor,
            name=name,
            format_="kserve",
            part=part,
            maps=maps,
            replicas=replicas,
            engine=common.named(text or (format_.text if format_ else ""), format_, served.place),
            model=common.hub(given or address),
            containers=[served],
            keep=not own,
        )
    yield from pods.invocations(file, predictor, name=name, format_="kserve", part=part, maps=maps, replicas=replicas)
    runner = predictor.get("runner")
    if runner is not None:
        yield from pods.invocations(
            file, predictor, name=name, format_="kserve", part=part, maps=maps, replicas=replicas, containers=[runner]
        )


def _llm_inference_service(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    spec = thing.get("spec")
    if spec is None:
        return
    address = common.hub(spec.scalar("model", "uri"))
    served = spec.scalar("model", "name")
    model = common.published(address) or common.published(served) or address
    for block, role in (
        (spec, "decode" if spec.get("prefill") is not None else None),
        (spec.get("prefill"), "prefill"),
    ):
        if block is None:
            continue
        parallelism = block.get("parallelism")
        before = tuple(common.flags(parallelism, PARALLELISM))
        # A switch that is off is what the engine does without it.
        before = tuple(w for w in before if not w.text.startswith("--no-"))
        pod = block.get("template") or spec.get("template")
        worker = block.get("worker")
        if pod is None and worker is None and not before:
            continue
        data, local = (parallelism.scalar(k) if parallelism is not None else None for k in ("data", "dataLocal"))
        groups = count_of(data), count_of(local)
        size = data._replace(text=str(groups[0] // groups[1])) if data and groups[0] and groups[1] else None
        shown = f"{name} {role}" if role else name
        held = pod if pod is not None else worker
        listed = list(held.get("containers") or ()) if held is not None else []
        main = [c for c in listed if c.string("name") in ("main", "")] or listed[:1]
        anchor = before[0] if before else Word("", block.place)
        yield from pods.invocations(
            file,
            held if held is not None else block,
            name=shown,
            format_="kserve-llm",
            part=(*part, role) if role else part,
            maps=maps,
            replicas=block.scalar("replicas"),
            role=role,
            pods=size,
            engine=anchor._replace(text="vllm"),
            model=model,
            before=before,
            keep=True,
            containers=main or [block],
        )


def _runtime(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    """A serving runtime: containers (KServe), or engine and decoder with a runner or leader and worker (OME)."""
    name, part = _names(thing)
    spec = thing.get("spec")
    if spec is None:
        return
    yield from pods.invocations(file, spec, name=name, format_="serving-runtime", part=part, maps=maps)
    disaggregated = spec.get("decoderConfig") is not None
    for key, role in (("engineConfig", "prefill"), ("decoderConfig", "decode")):
        config = spec.get(key)
        if config is None:
            continue
        leader = config.get("leader")
        holder = leader if leader is not None else config
        runner = holder.get("runner")
        size = config.scalar("worker", "size")
        workers = count_of(size)
        yield from pods.invocations(
            file,
            holder,
            name=f"{name} {key}",
            format_="serving-runtime",
            part=(*part, key),
            maps=maps,
            role=role if disaggregated else None,
            # The leader is a pod beside its workers.
            pods=size._replace(text=str(workers + 1)) if size is not None and workers is not None else None,
            containers=[runner] if runner is not None else None,
        )


KINDS = {
    "InferenceService": _inference_service,
    "LLMInferenceService": _llm_inference_service,
    "LLMInferenceServiceConfig": _llm_inference_service,
    "ServingRuntime": _runtime,
    "ClusterServingRuntime": _runtime,
}
