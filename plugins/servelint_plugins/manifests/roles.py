"""Kinds whose groups have roles, a pod template each: RoleBasedGroup, AIBrix StormService, kthena."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Invocation, Word, count_of
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, pods

SOURCES = (
    "sgl-project/rbg config/crd/bases/workloads.x-k8s.io_rolebasedgroups.yaml",
    "vllm-project/aibrix config/crd/orchestration/orchestration.aibrix.ai_stormservices.yaml",
    "volcano-sh/kthena charts/kthena/charts/workload/crds",
)


def _names(thing: Node) -> tuple[str, tuple[str, ...]]:
    name = thing.string("metadata", "name")
    return f"{thing.string('kind')} {name}".strip(), (name,) if name else ()


def _role_based(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    templates = {
        t.string("name"): t.get("template", "spec")
        for t in thing.get("spec", "roleTemplates") or ()
        if t.string("name")
    }
    for role in thing.get("spec", "roles") or ():
        called = role.string("name")
        pattern = role.get("standalonePattern") or role.get("leaderWorkerPattern") or role
        size = pattern.scalar("size") or role.scalar("leaderWorkerSet", "size")
        reference = pattern.get("templateRef") or role.get("templateRef")
        under = templates.get(reference.string("name")) if reference is not None else None
        over = reference.get("patch", "spec") if reference is not None else None
        pod = pattern.get("template", "spec") or role.get("template", "spec")
        leader = (
            pattern.get("leaderTemplatePatch", "spec")
            or role.get("leaderWorkerSet", "patchLeaderTemplate", "spec")
            or role.get("templatePatch", "spec")
        )
        base, top = (under, over or under) if under is not None else (pod, leader or pod)
        if top is None:
            continue
        if leader is not None and not any(c.get("args") or c.get("command") for c in leader.get("containers") or ()):
            top = over or pod or leader
        yield from pods.invocations(
            file,
            top,
            name=f"{name}, role {called}",
            format_="role-based-group",
            part=(*part, called),
            maps=maps,
            pods=size,
            replicas=role.scalar("replicas"),
            role=pods.role_of(called),
            base=_containers(base),
            env=dict.fromkeys(("LWS_GROUP_SIZE", "GROUP_SIZE", "RBG_LWP_GROUP_SIZE"), size)
            if size is not None
            else None,
        )


def _containers(pod: Node | None) -> dict[str, Node]:
    return {c.string("name"): c for c in pod.get("containers") or ()} if pod is not None else {}


def _storm(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    for role in thing.get("spec", "template", "spec", "roles") or ():
        called = role.string("name")
        pod = role.get("template", "spec")
        if pod is not None:
            yield from pods.invocations(
                file,
                pod,
                name=f"{name}, role {called}",
                format_="storm-service",
                part=(*part, called),
                maps=maps,
                pods=role.scalar("podGroupSize"),
                replicas=role.scalar("replicas"),
                role=pods.role_of(called),
            )


def _serving(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    for role in thing.get("spec", "template", "roles") or ():
        called = role.string("name")
        pod = role.get("entryTemplate", "spec")
        workers = count_of(role.scalar("workerReplicas"))
        stated = role.scalar("workerReplicas")
        size = stated._replace(text=str(workers + 1)) if stated is not None and workers is not None else None
        if pod is not None:
            yield from pods.invocations(
                file,
                pod,
                name=f"{name}, role {called}",
                format_="kthena",
                part=(*part, called),
                maps=maps,
                pods=size,
                replicas=role.scalar("replicas"),
                role=pods.role_of(called),
                env={"GROUP_SIZE": size} if size is not None else None,
            )


def _booster(file: ManifestFile, thing: Node, maps: Mapping[str, Node]) -> Iterator[Invocation]:
    name, part = _names(thing)
    single = thing.get("spec", "backend")
    for backend in (single,) if single is not None else thing.get("spec", "backends") or ():
        type_ = backend.scalar("type")
        for worker in backend.get("workers") or ():
            kind = worker.string("type")
            words = tuple(_configured(worker.get("config")))
            yield Invocation(
                f"{name}, worker {kind}".rstrip(),
                "kthena",
                worker.place,
                part=(*part, kind) if kind else part,
                engine=common.named(type_.text if type_ is not None else "vllm", type_, backend.place),
                image=worker.scalar("image"),
                commands=(words,) if words else (),
                env=common.environment(backend.get("env")),
                model=common.hub(backend.scalar("modelURI")),
                devices=pods.devices(worker),
                pods=worker.scalar("pods"),
                replicas=worker.scalar("replicas"),
                role=pods.role_of(kind),
            )


def _configured(config: Node | None) -> Iterator[Word]:
    """Keys that become flags; an empty value is a switch."""
    for key, value in config.items() if config is not None else ():
        if value.kind == "scalar":
            yield value.word._replace(text=f"--{key}") if value.text == "" else common.flag(key, value.word)
        else:
            import json

            yield Word(f"--{key}={json.dumps(value.plain())}", value.place)


KINDS = {
    "RoleBasedGroup": _role_based,
    "StormService": _storm,
    "ModelServing": _serving,
    "ModelBooster": _booster,
}
