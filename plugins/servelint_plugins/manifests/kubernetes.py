"""Kubernetes objects: workloads of its own, and the kinds of operators that serve models, one function a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from servelint.launch.invocation import Invocation, Word
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, kserve, operators, pods, ray, roles

Kind = Callable[[ManifestFile, Node, Mapping[str, Node]], Iterator[Invocation]]

SOURCES = (
    "kubernetes/kubernetes api/openapi-spec/swagger.json",
    "kubernetes-sigs/lws config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    *kserve.SOURCES,
    *operators.SOURCES,
    *ray.SOURCES,
    *roles.SOURCES,
)


def config_maps(file: ManifestFile) -> dict[str, Node]:
    """The data of every config map of a file, by name."""
    found = {}
    for thing in objects(file):
        data = thing.get("data")
        if thing.string("kind") == "ConfigMap" and data is not None:
            found[thing.string("metadata", "name")] = data
    return found


def objects(file: ManifestFile) -> Iterator[Node]:
    """Kubernetes objects of a file, those in a List included."""
    for document in file.documents:
        if document.string("kind").endswith("List") and document.get("items") is not None:
            yield from document.get("items") or ()
        elif document.string("kind"):
            yield document


def read(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the containers of every workload of a file."""
    kinds: dict[str, Kind] = {**KINDS, **kserve.KINDS, **operators.KINDS, **ray.KINDS, **roles.KINDS}
    found = [(thing, kinds.get(thing.string("kind"))) for thing in objects(file)]
    if any(kind is not None for _, kind in found):
        common.refuse_template(file)
    yield from _json_patches(file)
    maps = config_maps(file)
    for thing, kind in found:
        if kind is not None:
            yield from kind(file, thing, maps)


def _json_patches(file: ManifestFile) -> Iterator[Invocation]:
    """Kustomize's JSON patches: the arguments that each document's operations put into one container."""
    for document in file.documents:
        if document.kind != "sequence":
            continue
        words = [
            word
            for operation in document
            if operation.string("op") in ("add", "replace") and "/args" in operation.string("path")
            for word in common.listed(operation.get("value"))
        ]
        engine = common.engine_of(w.text for w in words)
        if engine is not None:
            yield Invocation(
                "JSON patch",
                "kustomize",
                document.place,
                engine=words[0]._replace(text=engine),
                commands=(tuple(words),),
            )


def _workload(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    """Deployment, StatefulSet, DaemonSet, ReplicaSet, Job and CronJob; a patch is one without an image."""
    spec = thing.get("spec")
    if spec is None:
        return
    pod = spec.get("template", "spec") or spec.get("jobTemplate", "spec", "template", "spec")
    if pod is not None:
        name, part = called(thing)
        yield from pods.invocations(
            file, pod, name=name, format_="kubernetes", part=part, maps=maps, replicas=spec.scalar("replicas")
        )


def _pod(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    spec = thing.get("spec")
    if spec is not None:
        name, part = called(thing)
        yield from pods.invocations(file, spec, name=name, format_="kubernetes", part=part, maps=maps)


def _leader_workers(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    template = thing.get("spec", "leaderWorkerTemplate")
    if template is None:
        return
    leader, worker = template.get("leaderTemplate", "spec"), template.get("workerTemplate", "spec")
    pod = leader if leader is not None else worker
    if pod is None:
        return
    name, part = called(thing)
    size: Word | None = template.scalar("size")
    replicas = thing.scalar("spec", "replicas")
    group = {"LWS_GROUP_SIZE": size} if size is not None else {}
    yield from pods.invocations(
        file, pod, name=name, format_="lws", part=part, maps=maps, pods=size, replicas=replicas, env=group
    )


def called(thing: Node) -> tuple[str, tuple[str, ...]]:
    """What an object is called: its kind with its name, and the names it can be chosen by."""
    name = thing.string("metadata", "name") or thing.string("metadata", "generateName")
    return f"{thing.string('kind')} {name}".strip(), (name,) if name else ()


KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "ReplicationController"), _workload
    ),
    "Pod": _pod,
    "LeaderWorkerSet": _leader_workers,
}
