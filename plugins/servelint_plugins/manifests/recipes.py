"""Recipes of schedulers and clouds: srt-slurm, Truss, OCI blueprints, SkyPilot, dstack, benchmark lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Hint, Invocation, Trouble, Word, count_of
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, pods

SLURM_SOURCES = ("NVIDIA/srt-slurm src/srtctl/core/schema.py",)
TRUSS_SOURCES = ("basetenlabs/truss truss/base/truss_config.py", "basetenlabs/truss truss/base/trt_llm_config.py")
OCI_SOURCES = ("oracle-quickstart/oci-ai-blueprints docs/api_documentation.md",)
SKYPILOT_SOURCES = ("skypilot-org/skypilot sky/utils/schemas.py",)
DSTACK_SOURCES = ("dstackai/dstack src/dstack/_internal/core/models/configurations.py",)
LIST_SOURCES = ("aws/deep-learning-containers .github/config/model-tests",)

BACKENDS: Mapping[str, str] = {
    "sglang_config": "sglang",
    "trtllm_config": "tensorrt-llm",
    "vllm_config": "vllm",
}


def slurm(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the roles of an srt-slurm recipe: prefill and decode, or aggregated workers."""
    # Variants of a recipe stand beside a base, which the file's own keys are laid over; the base is what is read.
    for document in (held.get("base") or held for held in file.documents):
        backend, resources = document.get("backend"), document.get("resources")
        if backend is None or resources is None or backend.kind != "mapping":
            continue
        path = document.scalar("identity", "model", "repo") or document.scalar("model", "path")
        image = document.scalar("model", "container")
        each = resources.scalar("gpus_per_node")
        gpu = common.hint("srt-slurm/gpu_type", resources.scalar("gpu_type"))
        for key, config in backend.items():
            if key not in BACKENDS or config.kind != "mapping":
                continue
            for role, options in config.items():
                if options.kind != "mapping":
                    continue
                short = {"aggregated": "agg"}.get(role, role)
                nodes = resources.scalar(f"{short}_nodes")
                workers = resources.scalar(f"{short}_workers") or resources.scalar(f"{role}_workers")
                devices = resources.scalar(f"gpus_per_{short}") or resources.scalar(f"gpus_per_{role}")
                if devices is None:
                    devices = _shared(each, nodes, workers)
                held = dict(options.items())
                served = options.scalar("served-model-name") or options.scalar("served_model_name")
                model = common.published(common.hub(path)) if path is not None and "/" in path.text else None
                per_node, total = count_of(each), count_of(devices)
                spans = bool(devices and per_node and total and total > per_node and total % per_node == 0)
                yield Invocation(
                    f"recipe {document.string('name')}, {role}".replace("  ", " "),
                    "srt-slurm",
                    options.place,
                    part=(document.string("name"), role),
                    engine=Word(BACKENDS[key], options.place),
                    version=document.scalar("identity", "frameworks", key.removesuffix("_config")),
                    image=image if image is not None and "/" in image.text else None,
                    options=held,
                    env=common.environment(backend.get(f"{role}_environment")),
                    model=model or common.published(served) or path,
                    devices=each if spans else devices,
                    pods=devices._replace(text=str((total or 1) // (per_node or 1))) if spans and devices else None,
                    replicas=workers,
                    role=role if role in ("prefill", "decode") else None,
                    hints=gpu,
                )


def _shared(each: Word | None, nodes: Word | None, workers: Word | None) -> Word | None:
    """Devices of one worker: those of the role's nodes, shared by its workers."""
    a, b, c = count_of(each), count_of(nodes), count_of(workers)
    if each is None or not a or not b or not c or a * b % c:
        return None
    return each._replace(text=str(a * b // c))


TRT_LLM: Mapping[str, str] = {
    "tensor_parallel_count": "tensor_parallel_size",
    "pipeline_parallel_count": "pipeline_parallel_size",
    "max_seq_len": "max_seq_len",
    "max_batch_size": "max_batch_size",
    "max_num_tokens": "max_num_tokens",
    "tensor_parallel_size": "tensor_parallel_size",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_chunked_context": "enable_chunked_prefill",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_free_gpu_memory_fraction",
    "moe_expert_parallel_size": "moe_expert_parallel_size",
    "speculative_config": "speculative_config",
    "kv_cache_config": "kv_cache_config",
    "guided_decoding_backend": "guided_decoding_backend",
    "cuda_graph_config": "cuda_graph_config",
    "enable_attention_dp": "enable_attention_dp",
}
"""Fields of Truss' ``trt_llm`` and the arguments of TensorRT-LLM's language-model API that they are."""


QUANTIZATION: Mapping[str, Mapping[str, str]] = {
    "weights_int8": {"quant_algo": "W8A16"},
    "weights_kv_int8": {"quant_algo": "W8A16", "kv_cache_quant_algo": "INT8"},
    "weights_int4": {"quant_algo": "W4A16"},
    "weights_int4_kv_int8": {"quant_algo": "W4A16", "kv_cache_quant_algo": "INT8"},
    "fp8": {"quant_algo": "FP8"},
    "fp8_kv": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    "fp4": {"quant_algo": "NVFP4"},
    "fp4_kv": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
}
"""What Truss calls a quantization, and the algorithms of TensorRT-LLM that it stands for."""

TRUSS_DEFAULTS: Mapping[str, object] = {
    "max_batch_size": 256,
    "max_num_tokens": 8192,
    "enable_chunked_prefill": True,
}
"""What Truss sets where a file does not; TensorRT-LLM's own defaults are others."""


def truss(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engine of a Truss: a TensorRT-LLM build, or a server that a command starts."""
    for document in file.documents:
        trt, server = document.get("trt_llm"), document.get("docker_server")
        if trt is None and server is None:
            continue
        accelerator = document.scalar("resources", "accelerator")
        hints = common.hint("truss/accelerator", accelerator)
        devices = common.counted(accelerator)
        if devices is None and accelerator is not None:
            devices = accelerator._replace(text="1")
        name = document.string("model_name")
        env = common.environment(document.get("environment_variables"))
        if trt is not None:
            build, runtime = trt.get("build"), trt.get("runtime")
            options: dict[str, Node] = {}
            for block in (build, runtime, runtime.get("patch_kwargs") if runtime is not None else None):
                for key, value in block.items() if block is not None else ():
                    if key in TRT_LLM:
                        options[TRT_LLM[key]] = value
            quantization = build.get("quantization_type") if build is not None else None
            algorithms = QUANTIZATION.get(quantization.text) if quantization is not None else None
            if quantization is not None and algorithms is not None:
                options["quant_config"] = common.meant(file, algorithms, quantization.place)
            for key, default in TRUSS_DEFAULTS.items():
                options.setdefault(key, common.meant(file, default, trt.place))
            yield Invocation(
                f"truss {name}".rstrip(),
                "truss",
                trt.place,
                part=(name,) if name else (),
                engine=Word("tensorrt-llm", trt.place),
                options=options,
                env=env,
                model=build.scalar("checkpoint_repository", "repo") if build is not None else None,
                devices=devices,
                hints=hints,
            )
        if server is not None:
            command = server.get("start_command")
            image = document.scalar("base_image", "image")
            result = pods.run(file, _shell_items(command), {}) if command is not None else None
            lines = _script(file, command) if command is not None else ()
            if result is not None and result.assigned:
                env = {**env, **result.assigned}
            repository = document.scalar("model_metadata", "repo_id")
            yield Invocation(
                f"truss {name}".rstrip(),
                "truss",
                server.place,
                part=(name,) if name else (),
                image=image,
                commands=lines,
                env=env,
                model=repository,
                devices=devices,
                hints=hints,
            )


def _shell_items(node: Node) -> list[Node]:
    return [node] if node.kind == "scalar" else list(node)


def _script(file: ManifestFile, node: Node) -> tuple[tuple[Word, ...], ...]:
    """Command lines of a text that a tool hands to a shell; ``sh -c`` within it is opened."""
    lines, _ = file.script(node.text, node)
    return tuple(inner for line in lines for inner in pods.opened(file, line))


def oci(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the recipe of an OCI AI blueprint, or the recipes of a deployment group."""
    for document in file.documents:
        groups = document.get("deployment_group", "deployments")
        rows = [document] if groups is None else [r for g in groups if (r := g.get("recipe")) is not None]
        for row in rows:
            arguments = row.get("recipe_container_command_args")
            if arguments is None and row.get("recipe_image_uri") is None:
                continue
            shape = row.scalar("recipe_node_shape")
            slice_ = row.get("mig_resource_request")
            name = row.string("deployment_name")
            words = common.listed(arguments)
            command = common.listed(row.get("recipe_container_command"))
            line = (*command, *words)
            troubles: tuple[Trouble, ...] = ()
            if slice_ is not None:
                troubles = (
                    Trouble(
                        "unresolved",
                        slice_.place,
                        f"{slice_.text} is a slice of a device: its memory is not that of the whole",
                        "name the accelerator with --hardware where the whole of it is meant",
                    ),
                )
            yield Invocation(
                f"recipe {name}".rstrip(),
                "oci-blueprint",
                row.place,
                part=(name,) if name else (),
                image=row.scalar("recipe_image_uri"),
                commands=(line,) if line else (),
                env=common.environment(row.get("recipe_container_env")),
                devices=row.scalar("recipe_nvidia_gpu_count") or row.scalar("recipe_amd_gpu_count"),
                pods=row.scalar("multinode_num_nodes_to_use_from_shared_pool"),
                replicas=row.scalar("recipe_replica_count"),
                hints=() if slice_ is not None else common.hint("oci/recipe_node_shape", shape),
                troubles=troubles,
            )


def skypilot(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engine that a SkyPilot task runs."""
    for document in file.documents:
        run, resources = document.get("run"), document.get("resources")
        if run is None or resources is None or run.kind != "scalar":
            continue
        accelerators, count, troubles = _accelerators(resources.get("accelerators"))
        nodes = document.scalar("num_nodes")
        env = common.environment(document.get("envs")) | common.environment(document.get("secrets"))
        if count is not None:
            env["SKYPILOT_NUM_GPUS_PER_NODE"] = count
        env["SKYPILOT_NUM_NODES"] = nodes if nodes is not None else Word("1", run.place)
        setup, service = document.get("setup"), document.get("service")
        lines, assigned = file.script(run.text, run)
        lines = tuple(inner for line in lines for inner in pods.opened(file, line))
        docker = resources.scalar("image_id")
        image = docker._replace(text=docker.text.removeprefix("docker:")) if docker is not None else None
        found = _docker(lines)
        files = file.here_documents(run.text, run)
        if setup is not None and setup.kind == "scalar":
            files = {**file.here_documents(setup.text, setup), **files}
        yield Invocation(
            f"task {document.string('name')}".rstrip(),
            "skypilot",
            run.place,
            part=(document.string("name"),) if document.string("name") else (),
            version=_installed(setup),
            image=found[0] if found is not None else image,
            commands=found[1] if found is not None else lines,
            env={**env, **assigned},
            files=dict(files),
            devices=count,
            pods=nodes,
            replicas=service.scalar("replicas") or service.scalar("replica_policy", "min_replicas")
            if service
            else None,
            hints=common.hint("skypilot/accelerators", accelerators),
            troubles=troubles,
        )


def _replicas(service: Node) -> Word | None:
    return service.scalar("replicas") or service.scalar("replica_policy", "min_replicas")


_INSTALLED = re.compile(r"(?:vllm|sglang)(?:\[[a-z,]+\])?==v?([0-9][0-9A-Za-z.]*)")


def _installed(setup: Node | None) -> Word | None:
    """The engine's release that a setup script installs."""
    found = _INSTALLED.search(setup.text) if setup is not None else None
    return None if found is None or setup is None else Word(found[1], setup.place)


def _accelerators(node: Node | None) -> tuple[Word | None, Word | None, tuple[Trouble, ...]]:
    """Accelerators of a task as ``NAME:COUNT``, and how many; several alternatives say neither."""
    if node is None:
        return None, None, ()
    if node.kind == "scalar":
        count = common.counted(node.word)
        return node.word, count or node.word._replace(text="1"), ()
    found: list[Word] = []
    for key, value in node.items():
        # In a flow mapping without blanks, {L4:8, A100:4}, the whole is a key.
        text = key if value.value is None else f"{key}:{value.text}"
        found.append(Word(text, value.place if value.text else node.place))
    found += [item.word for item in node]
    counts = {w.text for f in found if (w := common.counted(f)) is not None}
    if len(found) == 1:
        return found[0], common.counted(found[0]) or found[0]._replace(text="1"), ()
    listed = ", ".join(f.text for f in found[:6])
    trouble = Trouble(
        "unresolved",
        node.place,
        f"the task may run on any of {listed}: which accelerator it gets, and how many, is not stated",
        "name one with --hardware",
    )
    single = found[0]._replace(text=next(iter(counts))) if len(counts) == 1 and found else None
    return None, single, (trouble,)


def dstack(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engine of a dstack service or task."""
    for document in file.documents:
        commands = document.get("commands")
        if document.string("type") not in ("service", "task") or commands is None:
            continue
        gpu = document.get("resources", "gpu")
        word, count = None, None
        if gpu is not None and gpu.kind == "scalar":
            # NAME:MEMORY:COUNT in any number of parts.
            parts = gpu.text.split(":")
            whole = [p for p in parts[1:] if p.isdecimal()]
            count = gpu.word._replace(text=whole[-1] if whole else "1")
            word = gpu.word._replace(text=parts[0])
        elif gpu is not None:
            word, count = gpu.scalar("name"), gpu.scalar("count")
        env = common.environment(document.get("env"))
        nodes = document.scalar("nodes")
        if count is not None:
            env |= {"DSTACK_GPUS_NUM": common.times(count, nodes) or count, "DSTACK_GPUS_PER_NODE": count}
        if nodes is not None:
            env["DSTACK_NODES_NUM"] = nodes
        lines: list[tuple[Word, ...]] = []
        files: dict[str, Word] = {}
        for item in commands:
            found, assigned = file.script(item.text, item)
            lines += [inner for line in found for inner in pods.opened(file, line)]
            env |= assigned
            files |= file.here_documents(item.text, item)
        yield Invocation(
            f"{document.string('type')} {document.string('name')}".rstrip(),
            "dstack",
            commands.place,
            part=(document.string("name"),) if document.string("name") else (),
            image=document.scalar("image"),
            commands=tuple(lines),
            env=env,
            files=dict(files),
            devices=count,
            pods=nodes,
            replicas=document.scalar("replicas"),
            hints=common.hint("names/accelerator", word),
        )


_SWITCHES = ("-d", "-i", "-t", "-it", "-ti", "--rm", "--detach", "--privileged", "--init", "--interactive", "--tty")
_DEVICES = re.compile(r"device=([0-9,]+)")


def _docker(lines: tuple[tuple[Word, ...], ...]) -> tuple[Word, tuple[tuple[Word, ...], ...]] | None:
    """The image and the arguments of the first ``docker run``, None where there is none."""
    for line in lines:
        found = docker_run(line)
        if found is not None:
            return found[0], (found[1],) if found[1] else ()
    return None


def docker_run(
    line: tuple[Word, ...],
) -> tuple[Word, tuple[Word, ...], dict[str, Word], Word | None] | None:
    """Image, arguments, variables and number of devices of ``docker run`` (podman, nerdctl); None for other lines."""
    texts = [w.text.rpartition("/")[2] for w in line]
    at = next((i for i, t in enumerate(texts[:6]) if t in ("docker", "podman", "nerdctl")), None)
    if at is None or "run" not in texts[at + 1 : at + 4]:
        return None
    position = texts.index("run", at + 1) + 1
    env: dict[str, Word] = {}
    devices: Word | None = None
    entry: tuple[Word, ...] = ()
    while position < len(line):
        word = line[position]
        if not word.text.startswith("-"):
            return word, (*entry, *line[position + 1 :]), env, devices
        name, equals, value = word.text.partition("=")
        if name in _SWITCHES:
            position += 1
            continue
        held = word._replace(text=value) if equals else line[position + 1] if position + 1 < len(line) else word
        position += 1 if equals else 2
        if name in ("-e", "--env"):
            key, separator, text = held.text.partition("=")
            if separator:
                env[key] = held._replace(text=text)
        elif name == "--gpus":
            several = _DEVICES.search(held.text)
            if several is not None:
                devices = held._replace(text=str(several[1].strip(",").count(",") + 1))
            elif held.text.isdecimal():
                devices = held
        elif name == "--entrypoint":
            entry = (held,)
    return None


def listed_tests(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the models of a benchmark list: rows with ``extra_args``, a name, and where they run."""
    for document in file.documents:
        for path, row in document.walk():
            arguments = row.scalar("extra_args") if row.kind == "mapping" else None
            if arguments is None or not path or not isinstance(path[-1], int) or not row.string("name"):
                continue
            words = common.split(arguments.text, arguments)
            engine = common.engine_of(w.text for w in words)
            if engine is None:
                continue
            name = row.scalar("name")
            yield Invocation(
                f"test {row.string('name')}",
                "benchmark-list",
                row.place,
                part=(row.string("name"),),
                engine=arguments._replace(text=engine),
                commands=(words,),
                model=row.scalar("model") or row.scalar("model_id") or row.scalar("hf_model") or name,
                hints=_fleet(row),
            )


def _fleet(row: Node) -> tuple[Hint, ...]:
    """Instance types where a row states one; the name of a fleet is none."""
    return common.hint("node.kubernetes.io/instance-type", row.scalar("instance_type"))
