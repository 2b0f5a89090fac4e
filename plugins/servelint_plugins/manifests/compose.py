"""Docker compose files: services with image, command, environment and device reservations."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.launch.invocation import Hint, Invocation, Word
from servelint.launch.manifest import ManifestFile, Node
from servelint_plugins.manifests import common, pods

SOURCES = ("compose-spec/compose-spec schema/compose-spec.json",)


def read(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the services of a compose file that may start an engine."""
    for document in file.documents:
        services = document.get("services")
        if services is None or document.get("apiVersion") is not None or services.kind != "mapping":
            continue
        for name, service in services.items():
            if service.kind != "mapping" or (service.get("image") is None and service.get("command") is None):
                continue
            common.refuse_template(file)
            lines, assigned, documents = _command(file, service)
            image = service.scalar("image")
            if pods.other(lines):
                continue
            yield Invocation(
                f"service {name}",
                "docker-compose",
                service.place,
                part=(name,),
                image=image,
                commands=lines,
                env={**assigned, **common.environment(service.get("environment"))},
                files=dict(documents),
                devices=_devices(service),
                replicas=service.scalar("deploy", "replicas") or service.scalar("scale"),
                role=pods.role_in(lines) or pods.role_of(name),
                hints=_hints(service),
            )


def _command(
    file: ManifestFile, service: Node
) -> tuple[tuple[tuple[Word, ...], ...], dict[str, Word], dict[str, Word]]:
    """Entry point and command as one command line; a text is split as a shell splits it."""
    held = [n for key in ("entrypoint", "command") if (n := service.get(key)) is not None]
    if all(node.kind == "sequence" for node in held):
        told = pods.run(file, [item for node in held for item in node], {})
        return told.lines, dict(told.assigned), dict(told.documents)
    line: list[Word] = []
    assigned: dict[str, Word] = {}
    documents: dict[str, Word] = {}
    for node in held:
        if node.kind == "sequence":
            line += (item.word for item in node)
            continue
        found, sets = file.script(node.text, node)
        assigned |= sets
        documents |= file.here_documents(node.text, node)
        line += (word for words in found for word in words)
    return pods.opened(file, tuple(line)) if line else (), assigned, documents


def _devices(service: Node) -> Word | None:
    for device in service.get("deploy", "resources", "reservations", "devices") or ():
        capabilities = [c.text for c in device.get("capabilities") or ()]
        if "gpu" in capabilities or device.string("driver") == "nvidia":
            ids = device.get("device_ids")
            if ids is not None:
                return Word(str(sum(1 for _ in ids)), ids.place)
            count = device.scalar("count")
            return count if count is not None and count.text.isdecimal() else None
    return None


def _hints(service: Node) -> tuple[Hint, ...]:
    labels = service.get("labels")
    return tuple(Hint(key, value.word) for key, value in labels.items()) if labels is not None else ()
