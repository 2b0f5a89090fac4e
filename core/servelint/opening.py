"""From a file's text to documents: a spec with its launch arguments, or a manifest, one document an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servelint.lineage import KeyPath
from servelint.manager import Plugins
from servelint.spec.document import Document, parse


def open_spec(name: str, text: str, plugins: Plugins, root: Path) -> Document:
    """Parse a spec and read the launch arguments that it names; what is wrong is in its ``problems``."""
    document = parse(name, text, plugins.policies)
    if document.names_arguments:
        # A spec that names none must not pay for reading them.
        from servelint.launch.spec import apply

        apply(document, plugins, root)
    plugins.blame_tables(document.failed)
    return document


def open_manifest(
    name: str, text: str, plugins: Plugins, given: Mapping[KeyPath, object] | None = None
) -> tuple[Document, ...]:
    """Return a document for every engine that a manifest starts, none for a file of another kind.

    ``given`` are keys that the manifest does not have to say. Raises ManifestError for a manifest that cannot be
    read.
    """
    from servelint.launch.manifest import ManifestFile
    from servelint.launch.reading import invocations, read
    from servelint.launch.spec import manifest

    file = ManifestFile(name, text)
    documents = []
    for invocation in invocations(file, plugins):
        launched = read(invocation, plugins)
        if launched.engine is None:
            # A side-car, a router, a load generator: nothing that serves a model.
            continue
        document = manifest(launched, file, plugins, given or {})
        plugins.blame_tables(document.failed)
        documents.append(document)
    return tuple(documents)
