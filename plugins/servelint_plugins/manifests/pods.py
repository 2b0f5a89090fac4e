"""Pods: containers with commands, environment, devices, and what their nodes are chosen by.

Every kind of Kubernetes object that starts engines holds pod templates somewhere; the readers of those kinds
share this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from servelint.launch.invocation import Hint, Invocation, Trouble, Word
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common

DEVICES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "gpu",
)
"""Extended resources that count whole devices of a pod; ``gpu`` is what operators turn into one of them."""

SHELLS = ("sh", "bash", "ash", "dash", "zsh")
OTHERS = (
    "sglang_router",
    "dynamo.frontend",
    "dynamo.planner",
    "dynamo.router",
    "planner_sla",
    "vllm_router",
    "ray",
    "nginx",
    "envoy",
    "sleep",
    "lmcache_server",
    "lmcache.v1.server",
    "mooncake_master",
    "etcd",
    "curl",
    "benchmark",
)
"""Programs and modules that an engine's image may run beside it: routers, planners, caches, clients."""


class Container(NamedTuple):
    """What a container runs: its command lines, what its scripts assign, and files that they write."""

    lines: tuple[tuple[Word, ...], ...]
    assigned: Mapping[str, Word]
    documents: Mapping[str, Word]


def environment(container: Node, maps: Mapping[str, Node]) -> dict[str, Word]:
    """Variables of a container: literal values, and keys of config maps that stand in the same file."""
    found: dict[str, Word] = {}
    for source in container.get("envFrom") or ():
        held = maps.get(source.string("configMapRef", "name"))
        if held is not None:
            found |= {key: value.word for key, value in held.items()}
    variables = container.get("env") or container.get("envs")
    found |= common.environment(variables)
    for variable in variables or ():
        reference = variable.get("valueFrom", "configMapKeyRef")
        values = maps.get(reference.string("name")) if reference is not None else None
        if values is not None and reference is not None:
            inside = values.get(reference.string("key"))
            if inside is not None:
                found[variable.string("name")] = inside.word
    return found


def commands(file: ManifestFile, container: Node, files: Mapping[str, Node | Word]) -> Container:
    """Command lines of a container; scripts among its arguments and in mounted config maps are split."""
    return run(file, [item for key in ("command", "args") for item in _list(container.get(key))], files)


def run(file: ManifestFile, words: Sequence[Node], files: Mapping[str, Node | Word]) -> Container:
    """Command lines of a program with its arguments; what a shell is told to run is split as a script."""
    if not words:
        return Container((), {}, {})
    texts = [w.text for w in words]
    if not shell(texts[0].strip()):
        line = tuple(w.word for w in words)
        nested = _nested(file, line)
        return Container(nested if nested is not None else (line,), {}, {})
    told = next((i for i, t in enumerate(texts) if i and t.startswith("-") and not t.startswith("--") and "c" in t), 0)
    lines: list[tuple[Word, ...]] = []
    assigned: dict[str, Word] = {}
    documents: dict[str, Word] = {}
    for node in words[told + 1 :]:
        if node.text == "--":
            continue
        held = files.get(node.text.strip().rpartition("/")[2])
        text = held if isinstance(held, Node) else node
        found, sets = file.script(text.text, text)
        for line in found:
            nested = _nested(file, line)
            lines += nested if nested is not None else (line,)
        assigned |= sets
        documents |= file.here_documents(text.text, text)
    return Container(tuple(lines), assigned, documents)


def shell(program: str) -> bool:
    """Whether a program is a shell."""
    return program.rpartition("/")[2] in SHELLS


def _nested(file: ManifestFile, line: Sequence[Word]) -> tuple[tuple[Word, ...], ...] | None:
    """The commands of ``sh -c "..."`` within a line, None where it is none."""
    texts = [w.text for w in line[:12]]
    at = next((i for i, t in enumerate(texts) if shell(t)), None)
    if at is None or at + 2 >= len(line) or not line[at + 1].text.startswith("-") or "c" not in line[at + 1].text:
        return None
    word = line[at + 2]
    found, _ = file.script(word.text)
    return tuple(tuple(w._replace(place=word.place) for w in command) for command in found)


def opened(file: ManifestFile, line: tuple[Word, ...]) -> tuple[tuple[Word, ...], ...]:
    """A command line, or the ones within it where it runs a shell with a script."""
    return _nested(file, line) or (line,)


def _list(node: Node | None) -> Iterable[Node]:
    if node is None:
        return ()
    return (node,) if node.kind == "scalar" else node


def other(lines: Iterable[Sequence[Word]]) -> bool:
    """Whether command lines run something beside an engine, and no engine."""
    beside = False
    for line in lines:
        texts = [w.text.rpartition("/")[2] for w in line[:8]]
        module = texts[texts.index("-m") + 1] if "-m" in texts[:-1] else texts[0] if texts else ""
        if any(module == o or module.startswith((o + ".", o + "_")) for o in OTHERS):
            beside = True
        elif any(common.engine_named(t) for t in texts[:4]) or common.engine_of(w.text for w in line):
            return False
    return beside


def devices(container: Node) -> Word | None:
    """The number of whole devices that a container asks for."""
    for kind in ("limits", "requests"):
        for name in DEVICES:
            count = container.scalar("resources", kind, name)
            if count is not None:
                return count
    return None


def hints(pod: Node, container: Node | None = None) -> Iterator[Hint]:
    """Labels that choose the nodes of a pod: selector, affinity, and MIG resources of the container."""
    selector = pod.get("nodeSelector")
    for key, value in selector.items() if selector is not None else ():
        yield Hint(key, value.word)
    yield from terms(
        pod.get("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    )
    limits = container.get("resources", "limits") if container is not None else None
    for key, value in limits.items() if limits is not None else ():
        if key.startswith("nvidia.com/mig-"):
            yield Hint("resource", Word(key, value.place))


def terms(node: Node | None) -> Iterator[Hint]:
    """Labels of node selector terms; a term that leaves several values open says nothing."""
    for term in node or ():
        for expression in term.get("matchExpressions") or ():
            values = list(expression.get("values") or ())
            if expression.string("operator") == "In" and len(values) == 1:
                yield Hint(expression.string("key"), values[0].word)


def invocations(
    file: ManifestFile,
    pod: Node,
    *,
    name: str,
    format_: str,
    part: tuple[str, ...],
    maps: Mapping[str, Node],
    pods: Word | None = None,
    replicas: Word | None = None,
    role: str | None = None,
    extra: tuple[Hint, ...] = (),
    model: Word | None = None,
    engine: Word | None = None,
    before: tuple[Word, ...] = (),
    containers: Sequence[Node] | None = None,
    env: Mapping[str, Word] | None = None,
    count: Word | None = None,
    base: Mapping[str, Node] | None = None,
    keep: bool = False,
) -> Iterator[Invocation]:
    """Yield an invocation for each container of a pod that may start an engine.

    ``before`` are arguments that the object's own fields stand for; they count where the container's arguments
    do not give the same flag. ``count`` is the number of devices where the object, not the container, has it.
    ``base`` are containers by name that those of the pod are laid over, and ``keep`` yields a container that
    states neither image nor command: the operator supplies them.
    """
    files: dict[str, Node | Word] = {}
    for held in maps.values():
        files |= dict(held.items())
    for container in containers if containers is not None else pod.get("containers") or ():
        below = (base or {}).get(container.string("name"))
        found = {**(environment(below, maps) if below is not None else {}), **environment(container, maps)}
        result = commands(file, container, files)
        if below is not None and not result.lines:
            result = commands(file, below, files)
        lines = result.lines
        image = container.scalar("image") or (below.scalar("image") if below is not None else None)
        if not (lines or image or before or keep) or other(result.lines):
            continue
        variables = {**(env or {}), **found, **result.assigned}
        lines = _merged(lines, before)
        called = container.string("name") or "container"
        shown = image.text if image is not None else ""
        yield Invocation(
            f"{name}, container {called}",
            format_,
            container.place,
            part=(*part, called),
            engine=engine or _told(lines, shown, variables, container),
            image=image,
            commands=lines,
            env=variables,
            files={**files, **result.documents},
            devices=devices(container) or (devices(below) if below is not None else None) or count,
            pods=pods,
            replicas=replicas,
            role=role or role_in(lines) or role_of(called) or role_of(name),
            hints=() if _shared(container) else (*hints(pod, container), *extra),
            model=model,
            troubles=_shared(container),
        )


def _merged(lines: tuple[tuple[Word, ...], ...], words: tuple[Word, ...]) -> tuple[tuple[Word, ...], ...]:
    """Command lines with further arguments, but for flags that one of them has."""
    if not words:
        return lines
    given = [w for line in lines for w in line]
    kept = tuple(
        w
        for w in words
        if not (w.text.startswith("-") and common.has_flag(given, w.text.partition("=")[0].lstrip("-")))
    )
    if not lines:
        return (kept,)
    starts = next((i for i, line in enumerate(lines) if common.engine_of(w.text for w in line)), None)
    if starts is None:
        starts = next((i for i, line in enumerate(lines) if any(common.engine_named(w.text) for w in line[:6])), 0)
    return tuple((*line, *kept) if i == starts else line for i, line in enumerate(lines))


_BESIDE = (
    "router",
    "frontend",
    "gateway",
    "exporter",
    "endpoint-picker",
    "epp",
    "downloader",
    "benchmark",
    "cache-manager",
)


def _told(lines: Iterable[Sequence[Word]], image: str, env: Mapping[str, Word], container: Node) -> Word | None:
    """The engine that flags, the image or variables are for, where no program names one."""
    rows = [line for line in lines if line]
    if any(part in image.rpartition("/")[2] for part in _BESIDE):
        return None
    if any(common.engine_named(w.text) for line in rows for w in line[:6]):
        return None
    for line in rows:
        engine = common.engine_of(w.text for w in line)
        if engine is not None:
            return line[0]._replace(text=engine)
    engine = common.engine_named(image)
    if engine is not None:
        return Word(engine, container.place)
    told = next((name for name in env if name.startswith(("VLLM_", "SGLANG_", "TRTLLM_", "TLLM_"))), None)
    if told is None or not any(w.text.startswith("--") for line in rows for w in line):
        return None
    return env[told]._replace(
        text="tensorrt-llm" if "LLM_" in told and told[0] == "T" else told[:-1].partition("_")[0].lower()
    )


def _shared(container: Node) -> tuple[Trouble, ...]:
    """What a container takes is a slice of a device, for which no figure is known."""
    limits = container.get("resources", "limits")
    for key, value in limits.items() if limits is not None else ():
        if key.startswith("nvidia.com/mig-"):
            return (
                Trouble(
                    "unresolved",
                    value.place,
                    f"{key} is a slice of a device: its memory is not that of the whole",
                    "name the accelerator with --hardware where the whole of it is meant",
                ),
            )
    return ()


def role_in(lines: Iterable[Sequence[Word]]) -> str | None:
    """The role that arguments give a process: what SGLang, TensorRT-LLM and Dynamo call it."""
    for line in lines:
        for i, word in enumerate(line):
            name, equals, value = word.text.partition("=")
            if name.replace("_", "-") in ("--disaggregation-mode", "--server-role"):
                told = (value if equals else line[i + 1].text if i + 1 < len(line) else "").lower()
                return {"context": "prefill", "generation": "decode"}.get(told, told) or None
            if name == "--is-prefill-worker":
                return "prefill"
            if name == "--is-decode-worker":
                return "decode"
    return None


def role_of(name: str) -> str | None:
    """The role that a name tells: prefill or decode, None for any other."""
    lowered = name.lower()
    found = [role for role in ("prefill", "decode") if role in lowered]
    return found[0] if len(found) == 1 else None
