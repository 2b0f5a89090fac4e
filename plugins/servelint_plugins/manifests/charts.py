"""Values of charts: the vLLM production stack, llm-d and its benchmark, and any chart that passes arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Hint, Invocation, Word, count_of
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, kserve, operators, pods

SOURCES = (
    "vllm-project/production-stack helm/values.yaml",
    "llm-d-incubation/llm-d-modelservice charts/llm-d-modelservice/values.yaml",
    "llm-d/llm-d-deployer charts/llm-d/values.yaml",
    "llm-d/llm-d-benchmark config/templates/values/defaults.yaml",
)
ARGUMENTS = ("extraArgs", "args", "extraCmdArgs", "vllmArgs", "engineArgs", "command")
"""Keys under which charts take arguments of the engine."""

MAPPINGS = ("serverArgs", "vllmConfig", "engineConfig", "vllmArgs", "engineArgs")
"""Keys under which charts take flags as a mapping."""

TGI: Mapping[str, str] = {
    "MAX_INPUT_LENGTH": "max-input-length",
    "MAX_INPUT_TOKENS": "max-input-tokens",
    "MAX_TOTAL_TOKENS": "max-total-tokens",
    "MAX_BATCH_SIZE": "max-batch-size",
}
SHARED = ("tensor-parallel-size", "model", "served-model-name", "dtype", "quantization")
"""Flags that tell of no engine by themselves; with an image that does they are an engine's."""

SIZES: Mapping[str, str] = {
    "tp_size": "tensor-parallel-size",
    "pp_size": "pipeline-parallel-size",
    "tensorParallelSize": "tensor-parallel-size",
    "pipelineParallelSize": "pipeline-parallel-size",
}
"""Keys beside a model's name by which charts split it."""

_PLACEHOLDER = re.compile(r"\$\{[A-Za-z]\w*(?:\.\w+)+\}")


def read(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engines that a values file configures."""
    for document in file.documents:
        if document.kind != "mapping" or document.get("apiVersion") is not None or document.get("kind") is not None:
            continue
        found = list(_known(file, document)) or list(_generic(file, document))
        if found:
            common.refuse_template(file)
        yield from found


def _known(file: ManifestFile, document: Node) -> Iterator[Invocation]:
    for spec in document.get("servingEngineSpec", "modelSpec") or ():
        yield _production_stack(file, spec)
    sample = document.get("sampleApplication")
    if sample is not None:
        yield from _deployer(file, sample)
    if document.get("modelArtifacts") is not None:
        yield from _model_service(file, document)
    scenario = document.get("scenario")
    for row in scenario if scenario is not None and scenario.kind == "sequence" else ():
        yield from _scenario(file, row)


def _production_stack(file: ManifestFile, spec: Node) -> Invocation:
    config = spec.get("vllmConfig")
    words = [*common.flags(config, operators.RUNTIME)]
    for holder in (config, spec):
        words += common.listed(holder.get("extraArgs")) if holder is not None else ()
    repository, tag = spec.scalar("repository"), spec.scalar("tag")
    image = repository
    if repository is not None and tag is not None:
        image = repository._replace(text=f"{repository.text}:{tag.text}")
    heads = spec.get("raySpec")
    workers = spec.scalar("replicaCount")
    pods_: Word | None = None
    if heads is not None and common.truth(heads.string("enabled") or "true") and workers is not None:
        # Ray's head is a pod beside the workers; it has devices where it asks for some.
        count = count_of(workers) or 1
        head = count_of(heads.scalar("headNode", "requestGPU")) or 0
        pods_ = workers._replace(text=str(count + (1 if head else 0)))
    gpu = spec.scalar("requestGPU")
    name = spec.string("name")
    return Invocation(
        f"model {name}".rstrip(),
        "production-stack",
        spec.place,
        part=(name,) if name else (),
        engine=Word("vllm", spec.place),
        image=image,
        commands=(tuple(words),) if words else (),
        env={**common.environment(spec.get("env")), **operators.offload(spec.get("lmcacheConfig"))},
        model=common.hub(spec.scalar("modelURL")),
        devices=gpu,
        pods=pods_,
        replicas=None if pods_ is not None else workers,
        hints=(*_selectors(spec), *pods.terms(spec.get("nodeSelectorTerms"))),
    )


def _selectors(node: Node) -> Iterator[Hint]:
    yield from pods.hints(node)


def _deployer(file: ManifestFile, sample: Node) -> Iterator[Invocation]:
    """The sample application of llm-d's first chart: one model, prefill and decode."""
    model = common.hub(sample.scalar("model", "modelArtifactURI"))
    count = pods.devices(sample)
    both = sample.get("prefill") is not None and sample.get("decode") is not None
    for role in ("prefill", "decode"):
        block = sample.get(role)
        if block is None or block.string("replicas") == "0":
            continue
        words = common.listed(block.get("extraArgs"))
        yield Invocation(
            f"sampleApplication {role}",
            "llm-d",
            block.place,
            part=("sampleApplication", role),
            engine=Word("vllm", block.place),
            commands=(words,) if words else (),
            model=model,
            devices=pods.devices(block) or count,
            replicas=block.scalar("replicas"),
            role=role if both else None,
        )


def _model_service(file: ManifestFile, document: Node) -> Iterator[Invocation]:
    """Values of llm-d's model service: decode and prefill, each with parallelism and containers."""
    address = common.hub(document.scalar("modelArtifacts", "uri"))
    named = document.scalar("modelArtifacts", "name")
    model = common.published(address) or common.published(named) or address
    active = [r for r in ("decode", "prefill") if _enabled(document.get(r))]
    for role in active:
        block = document.get(role)
        if block is None:
            continue
        parallelism = block.get("parallelism")
        before = tuple(
            w for w in common.flags(parallelism, kserve.PARALLELISM) if not w.text.endswith(("=0", "-local=1"))
        )
        tensor = parallelism.scalar("tensor") if parallelism is not None else None
        local = parallelism.scalar("dataLocal") if parallelism is not None else None
        yield from pods.invocations(
            file,
            block,
            name=role,
            format_="llm-d",
            part=(role,),
            maps={},
            replicas=block.scalar("replicas"),
            role=role if len(active) > 1 else None,
            pods=parallelism.scalar("workers") if parallelism is not None else None,
            engine=Word("vllm", block.place),
            model=model,
            before=before,
            keep=True,
            count=common.times(tensor, local),
            extra=common.hint("names/accelerator", document.scalar("accelerator", "type")),
        )


def _enabled(block: Node | None) -> bool:
    return (
        block is not None
        and common.truth(block.string("enabled") or block.string("create") or "true")
        and block.string("replicas") != "0"
    )


MODEL_VARIABLES: Mapping[str, str] = {
    "maxModelLen": "VLLM_MAX_MODEL_LEN",
    "blockSize": "VLLM_BLOCK_SIZE",
    "maxNumSeq": "VLLM_MAX_NUM_SEQ",
    "maxNumBatchedTokens": "VLLM_MAX_NUM_BATCHED_TOKENS",
    "gpuMemoryUtilization": "VLLM_ACCELERATOR_MEM_UTIL",
}
"""Fields of a scenario's model and the variables that its commands use.

Source: llm-d/llm-d-benchmark config/templates/jinja/13_ms-values.yaml.j2.
"""

MODEL_FLAGS: Mapping[str, str] = {
    "maxModelLen": "max-model-len",
    "blockSize": "block-size",
    "maxNumSeq": "max-num-seqs",
    "maxNumBatchedTokens": "max-num-batched-tokens",
    "gpuMemoryUtilization": "gpu-memory-utilization",
}


def _scenario(file: ManifestFile, row: Node) -> Iterator[Invocation]:
    """A scenario of llm-d's benchmark: a model, and decode, prefill or one standalone server."""
    common_block = row.get("common") or row
    model = common_block.get("model")
    if model is None:
        return
    address = model.scalar("huggingfaceId") or model.scalar("name")
    env = {variable: word for key, variable in MODEL_VARIABLES.items() if (word := model.scalar(key)) is not None}
    if "VLLM_MAX_NUM_SEQ" in env:
        env["VLLM_MAX_NUM_SEQS"] = env["VLLM_MAX_NUM_SEQ"]
    if address is not None:
        env |= {"MODEL_NAME": address, "MODEL_PATH": address}
    blocks = {}
    served = row.get("modelservice") or common_block.get("modelservice")
    for role in ("decode", "prefill", "standalone"):
        block = row.get(role) or common_block.get(role) or (served.get(role) if served is not None else None)
        if block is not None and _enabled(block) and (role != "standalone" or block.get("enabled") is not None):
            blocks[role] = block
    selectors = tuple(pods.hints(row.get("common", "affinity") or common_block))
    image = common_block.scalar("images", "vllm", "repository")
    tag = common_block.scalar("images", "vllm", "tag")
    if image is not None and tag is not None:
        image = image._replace(text=f"{image.text}:{tag.text}")
    name = row.string("name")
    called = f"scenario {name}".rstrip()
    if not blocks:
        words = tuple(common.flags(model, MODEL_FLAGS))
        yield Invocation(
            called,
            "llm-d-scenario",
            model.place,
            part=(name,),
            engine=Word("vllm", model.place),
            image=image,
            commands=(words,) if words else (),
            model=address,
            hints=selectors,
        )
    for role, block in blocks.items():
        parallelism = block.get("parallelism")
        own = dict(env)
        for key, variable in (("tensor", "TP_SIZE"), ("data", "DP_SIZE"), ("dataLocal", "DP_SIZE_LOCAL")):
            word = parallelism.scalar(key) if parallelism is not None else None
            if word is not None:
                own[variable] = word
        workers = parallelism.scalar("workers") if parallelism is not None else None
        if workers is not None:
            own["LWS_GROUP_SIZE"] = workers
        own |= common.environment(block.get("extraEnvVars"))
        text = block.get("vllm", "customCommand") or block.get("customCommand")
        lines: tuple[tuple[Word, ...], ...] = ()
        if text is not None:
            # What the benchmark itself fills in is no argument; blanks keep the offsets.
            found, _ = file.script(_PLACEHOLDER.sub(lambda m: " " * len(m[0]), text.text), text)
            lines = tuple(tuple(_published_path(w) for w in line) for line in found)
            own |= {k: v for k, v in file.script(text.text, text)[1].items() if k not in own}
        else:
            before = tuple(
                w for w in common.flags(parallelism, kserve.PARALLELISM) if not w.text.endswith(("=0", "-local=1"))
            )
            lines = ((*common.flags(model, MODEL_FLAGS), *before, *common.listed(block.get("vllm", "args"))),)
        accelerator = block.scalar("accelerator", "count") or common_block.scalar("accelerator", "count")
        yield Invocation(
            f"{called}, {role}",
            "llm-d-scenario",
            block.place,
            part=(name, role),
            engine=Word("vllm", block.place),
            image=image,
            commands=lines,
            env=own,
            model=address,
            devices=accelerator or common.times(own.get("TP_SIZE"), own.get("DP_SIZE_LOCAL")),
            pods=workers,
            replicas=block.scalar("replicas"),
            role=role if len(blocks) > 1 and role != "standalone" else None,
            hints=selectors,
        )


def _published_path(word: Word) -> Word:
    """The model's name without the folder that the benchmark puts in front of it."""
    return word._replace(text=word.text.replace("/model-cache/$MODEL_PATH", "$MODEL_PATH"))


def _generic(file: ManifestFile, document: Node) -> Iterator[Invocation]:
    """Any chart: mappings that hold arguments of an engine, with the image, model and resources beside them."""
    blocks: list[tuple[tuple[str | int, ...], Node, tuple[Word, ...]]] = []
    for path, node in document.walk():
        if node.kind != "mapping" or len(path) > 5:
            continue
        words = _arguments(file, node)
        if not words:
            continue
        image = _image(node)
        told = common.engine_of(w.text for w in words) or any(common.engine_named(w.text) for w in words[:4])
        if told or (image is not None and common.engine_named(image.text) and common.has_flag(words, *SHARED)):
            blocks.append((path, node, words))
    outer = {path for path, _, _ in blocks}
    for path, node, words in blocks:
        if any(path[:i] in outer for i in range(len(path))):
            continue
        above = [document.get(*path[:i]) for i in range(len(path), -1, -1)]
        chain = [n for n in above if n is not None]
        image = next((i for n in chain if (i := _image(n)) is not None), None)
        words = (*words, *(w for n in chain for w in common.flags(n.get("model"), SIZES) if not _given(words, w)))
        model = next((m for n in chain if (m := _model(n)) is not None), None)
        engine = common.engine_named(image.text) if image is not None else None
        engine = engine or common.engine_of(w.text for w in words)
        key = next((str(p) for p in reversed(path) if isinstance(p, str)), "")
        yield Invocation(
            f"values {'.'.join(map(str, path))}".rstrip(),
            "helm-values",
            node.place,
            part=(key,) if key else (),
            engine=words[0]._replace(text=engine) if engine is not None else None,
            image=image,
            commands=(words,),
            env=next((e for n in chain if (e := common.environment(n.get("env"))) or n.get("env") is not None), {}),
            model=common.hub(model),
            devices=next((d for n in chain if (d := _devices(n)) is not None), None),
            replicas=next((r for n in chain if (r := _replicas(n)) is not None), None),
            role=pods.role_of(key),
            hints=tuple(h for n in chain for h in pods.hints(n)),
        )


def _arguments(file: ManifestFile, node: Node) -> tuple[Word, ...]:
    """The arguments that a mapping of values holds, in lists, texts or mappings."""
    words: list[Word] = []
    inner = dict(node.items())
    for key in dict.fromkeys((*ARGUMENTS, *MAPPINGS)):
        held = inner.get(key)
        if held is None:
            continue
        if held.kind == "mapping":
            if key in MAPPINGS:
                words += (
                    common.flag(common.kebab(name), value.word)
                    for name, value in held.items()
                    if value.kind == "scalar" and value.text
                )
        elif held.kind == "scalar":
            words += common.shell_words(file, held)
        else:
            # Charts join such lists with blanks as often as not, so an item may hold a flag and its value.
            for item in held:
                text = item.text.strip()
                apart = text.startswith("--") and " " in text and "{" not in text
                words += common.split(text, item.word) if apart else (item.word,)
    words += (common.flag(flag, inner[key].word) for key, flag in TGI.items() if key in inner and inner[key].text)
    return tuple(words)


def _given(words: tuple[Word, ...], word: Word) -> bool:
    return common.has_flag(words, word.text.partition("=")[0].lstrip("-"))


def _image(node: Node) -> Word | None:
    held = node.get("image")
    if held is None:
        return None
    if held.kind == "scalar":
        return held.word if held.text else None
    repository, tag = held.scalar("repository") or held.scalar("name"), held.scalar("tag")
    if repository is None or tag is None:
        return repository
    return repository._replace(text=f"{repository.text}:{tag.text}")


def _model(node: Node) -> Word | None:
    for key in ("modelName", "modelURL", "modelId", "modelID", "LLM_MODEL_ID", "MODEL_ID", "model"):
        held = node.get(key)
        if held is None:
            continue
        if held.kind == "scalar" and held.text:
            return held.word
        inner = held.scalar("name") or held.scalar("id") or held.scalar("repo") or held.scalar("uri")
        if held.kind == "mapping" and inner is not None:
            return inner
    return None


def _devices(node: Node) -> Word | None:
    return pods.devices(node) or node.scalar("gpus") or node.scalar("job", "gpus")


def _replicas(node: Node) -> Word | None:
    return node.scalar("replicaCount") or node.scalar("replicas")
