"""Launch arguments as part of a spec: what ``[engine] args``, ``args_from`` and ``env`` set, key by key.

The arguments are what runs, so a policy's value that they set goes before the spec's own; where the two
differ, the document keeps a `Contradiction` for SPEC006. What a manifest merely suggests (its model's folder,
the label of a node) never replaces what the spec says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attrs import evolve

from servelint.errors import ManifestError, PluginError
from servelint.files import read_project_file
from servelint.launch.invocation import Invocation, Setting, Word
from servelint.launch.manifest import ManifestFile
from servelint.launch.reading import Launched, choose, invocations, read, with_arguments
from servelint.launch.shell import script
from servelint.lineage import KeyPath
from servelint.manager import Plugins
from servelint.releases import image_release, release
from servelint.spec.document import VERSION, Document, structure
from servelint.spec.model import EngineTable
from servelint.spec.schema import Problem

MAX_MANIFEST_BYTES = 1_000_000
HERE = ("engine", "args_from")
TABLES = ("servelint", "deployment", "hardware", "model", "engine", "policy", "workload", "slo", "claim", "evidence")


RUNS: tuple[KeyPath, ...] = (
    ("model", "max_model_len"),
    ("model", "max_prompt_tokens"),
    ("engine", "enforce_eager"),
    ("engine", "cuda_graph_max_batch"),
    ("engine", "truncates"),
    ("engine", "offload"),
    ("engine", "device_layers"),
)
"""Keys outside the policies in which the arguments' value counts, too."""


NAMES_HARDWARE: tuple[KeyPath, ...] = (("hardware", "accelerator"), ("hardware", "instance"))


class Contradiction(NamedTuple):
    """A key that spec and launch arguments set differently; ``runs`` tells whether the arguments' value counts."""

    path: KeyPath
    declared: object
    setting: Setting
    runs: bool


class UnusableError(Exception):
    """Launch arguments that cannot be read: why, and at which key path of the spec or place of the file."""

    def __init__(self, message: str, path: KeyPath) -> None:
        super().__init__(message)
        self.path = path


def apply(document: Document, plugins: Plugins, root: Path) -> None:
    """Read the launch arguments that a spec names and let them set its keys; problems go to the document."""
    if document.deployment is None:
        return
    engine = document.deployment.engine
    try:
        invocation = _invocation(document, engine, plugins, root)
        version = engine.version or _declared_version(engine, plugins)
        launched = read(invocation, plugins, engine.name, version, document.deployment.model.id)
    except UnusableError as error:
        document.problems.append(Problem("SPEC004", error.path, str(error)))
        document.deployment = None
        return
    except PluginError:
        return
    document.launched = launched
    _merge(document, launched, plugins)


def manifest(launched: Launched, file: ManifestFile, plugins: Plugins, given: Mapping[KeyPath, object]) -> Document:
    """Return what an invocation sets as a document of its own: every key stands where the manifest sets it.

    ``given`` fills keys that the manifest leaves open.
    """
    invocation = launched.invocation
    document = Document(file.name, file.text)
    document.manifest = True
    document.launched = launched
    document.data = {"servelint": VERSION, "deployment": {"name": invocation.name}}
    named = any(path in launched.settings for path in NAMES_HARDWARE)
    for path, value in given.items():
        if not (named and path in NAMES_HARDWARE):
            _set(document.data, path, value)
    for path, setting in launched.settings.items():
        _set(document.data, path, setting.value)
    # Rules of launch arguments are for specs that have some.
    _set(document.data, ("engine", "args"), [])
    # What is not set by itself stands at the invocation.
    open_: list[KeyPath] = [(), *((table,) for table in TABLES)]
    here = {path: Setting(path, None, invocation.place, "") for path in open_}
    document.settings = {**here, **launched.settings}
    structure(document, plugins.policies)
    return document


def _declared_version(engine: EngineTable, plugins: Plugins) -> str | None:
    found = plugins.engines.get((engine.name or "").lower())
    return image_release(engine.image, found.release_images) if found is not None and engine.image else None


def _invocation(document: Document, engine: EngineTable, plugins: Plugins, root: Path) -> Invocation:
    if engine.args_from is not None:
        invocation = _from_file(document, engine, plugins, root)
    else:
        invocation = Invocation("engine.args", "spec", document.place(("engine",)))
    variables = dict(_own_env(document, engine))
    if variables:
        invocation = evolve(invocation, env={**invocation.env, **variables})
    if engine.args:
        own = tuple(_own_arguments(document, engine.args))
        engines = dict.fromkeys(plugins.engines.values())
        invocation = evolve(invocation, commands=with_arguments(invocation.commands, own, engines))
    if engine.image is not None and invocation.image is None:
        invocation = evolve(invocation, image=Word(engine.image, document.place(("engine", "image"))))
    return invocation


def _from_file(document: Document, engine: EngineTable, plugins: Plugins, root: Path) -> Invocation:
    source = engine.args_from
    if source is None:
        raise ValueError("no file is named")
    path = (*HERE, "file")
    folder = Path(document.name).parent
    try:
        text = read_project_file(root, folder, source.file, MAX_MANIFEST_BYTES)
    except ValueError as error:
        raise UnusableError(f"the launch file {source.file!r} cannot be used: {error}", path) from None
    shown = os.path.normpath(folder / source.file).replace(os.sep, "/")
    file = ManifestFile(shown, text, shown)
    document.texts[shown] = text
    try:
        found = invocations(file, plugins)
        if not found and source.path is None:
            raise UnusableError(f"nothing in {source.file!r} starts an engine that any plugin reads", path)
        if source.path is not None:
            return _at_path(file, source.path)
    except ManifestError as error:
        at = f" (line {error.place.line})" if error.place.line > 1 else ""
        raise UnusableError(f"the launch file {source.file!r} cannot be used: {error}{at}", path) from None
    wanted = [name for name in (source.container, source.service) if name is not None]
    chosen = choose(found, wanted)
    if len(chosen) == 1:
        return chosen[0]
    names = "; ".join(i.name for i in (chosen or found)[:6])
    if not chosen:
        key = "container" if source.container is not None else "service"
        raise UnusableError(
            f"{source.file!r} has no part called {' and '.join(map(repr, wanted))}; it starts: {names}", (*HERE, key)
        )
    raise UnusableError(
        f"{source.file!r} starts {len(chosen)} engines: choose one by container or service: {names}", path
    )


def _at_path(file: ManifestFile, path: str) -> Invocation:
    """The command line (or list of words) at a key path of a YAML file."""
    parts: list[str | int] = [
        int(p) if p.isdecimal() and len(p) <= 9 else p for p in path.replace("[", ".").replace("]", "").split(".") if p
    ]
    at = (*HERE, "path")
    for number, document in enumerate(file.documents):
        node = document.get(*parts)
        if node is None:
            continue
        if node.kind == "sequence":
            commands: tuple[tuple[Word, ...], ...] = (tuple(item.word for item in node),)
        elif node.kind == "scalar":
            commands, _ = file.script(node.text, node)
        else:
            return Invocation(f"{path} of document {number + 1}", "path", node.place, options=dict(node.items()))
        return Invocation(f"{path} of document {number + 1}", "path", node.place, commands=commands)
    raise UnusableError(f"{file.name!r} has nothing at {path!r}", at)


def _own_env(document: Document, engine: EngineTable) -> Iterator[tuple[str, Word]]:
    for name, value in (engine.env or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield name, Word(text, document.place(("engine", "env", name)))


def _own_arguments(document: Document, arguments: object) -> Iterator[tuple[Word, ...]]:
    if isinstance(arguments, list):
        yield tuple(Word(str(w), document.place(("engine", "args", i))) for i, w in enumerate(arguments))
        return
    text = str(arguments)
    place = document.place(("engine", "args"))
    try:
        found = script(text)
    except ValueError as error:
        raise UnusableError(f"the arguments cannot be split: {error}", ("engine", "args")) from None
    # A plain string holds the words as they are, after its quotation mark.
    literal = document.line_text(place)[place.column : place.end_column - 2] == text and place.line == place.end_line
    for command in found.commands:
        yield tuple(
            Word(
                piece.text,
                place._replace(column=place.column + 1 + piece.start, end_column=place.column + 1 + piece.end)
                if literal
                else place,
            )
            for piece in command
        )


def _merge(document: Document, launched: Launched, plugins: Plugins) -> None:
    data = _copied(document.data)
    settings: dict[KeyPath, Setting] = {}
    contradictions = []
    for path, setting in launched.settings.items():
        declared = document.value(path)
        runs = path[0] == "policy" or path in RUNS
        if declared is None:
            if not _blocked(document, path):
                settings[path] = setting
                _set(data, path, setting.value)
            continue
        if setting.assumed or _agree(path, declared, setting.value, plugins):
            continue
        contradictions.append(Contradiction(path, declared, setting, runs))
        if runs:
            _set(data, path, setting.value)
    document.data = data
    document.settings = settings
    document.contradictions = tuple(contradictions)
    document.deployment = None
    structure(document, plugins.policies)


def _blocked(document: Document, path: KeyPath) -> bool:
    """Whether the spec says by another key what a launch file would set by this one."""
    instead: dict[KeyPath, tuple[KeyPath, ...]] = {
        ("model", "id"): (("model", "config"),),
        ("hardware", "accelerator"): (("hardware", "instance"), ("hardware", "datasheet")),
        ("engine", "version"): (("engine", "image"),),
        ("hardware", "devices_per_node"): (("hardware", "nodes"),),
    }
    return any(document.has(other) for other in instead.get(path, ()))


def _agree(path: KeyPath, declared: object, value: object, plugins: Plugins) -> bool:
    """Whether two spellings of a value mean the same."""
    if declared == value:
        return True
    if isinstance(declared, bool) or isinstance(value, bool):
        return False
    if isinstance(declared, int | float) and isinstance(value, int | float):
        return abs(declared - value) <= 1e-9 * max(abs(declared), abs(value))
    if not isinstance(declared, str) or not isinstance(value, str):
        return not isinstance(declared, int | float | str)
    if path == ("model", "id"):
        known = plugins.models.resolve(value)
        # A folder or a name that a cluster gives its copy says nothing of which model it is.
        return known is None or known == plugins.models.resolve(declared)
    if path == ("hardware", "accelerator"):
        return plugins.accelerators.resolve(declared) == plugins.accelerators.resolve(value)
    if path == ("engine", "name"):
        engines = plugins.engines
        return engines.get(declared.lower()) is engines.get(value.lower())
    if path == ("engine", "version"):
        one, other = release(declared), release(value)
        shorter = min(len(one), len(other))
        return one[:shorter] == other[:shorter]
    if path[:2] == ("policy", "quantization"):
        return _same_format(declared, value, plugins)
    return declared.lower() == value.lower()


def _same_format(one: str, other: str, plugins: Plugins) -> bool:
    formats = plugins.formats
    return formats.get(one.lower()) is not None and formats.get(one.lower()) is formats.get(other.lower())


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def _set(data: dict[str, Any], path: KeyPath, value: object) -> None:
    inner: Any = data
    for part in path[:-1]:
        below = inner.get(part)
        if not isinstance(below, dict):
            below = inner[part] = {}
        inner = below
    inner[path[-1]] = value
