"""Arguments that reach an engine from several places: the command line, a file that it names, the environment.

What SGLang's, TensorRT-LLM's, TGI's and llama.cpp's readers share: which place goes before which, files that lie
beside a command, and what of all that was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from servelint.errors import ManifestError
from servelint.launch.flags import Arguments, FlagTable, Given, read, telling
from servelint.launch.invocation import Invocation, Reading, Setting, Trouble, Word
from servelint.launch.manifest import ManifestFile, Node
from servelint.launch.reading import words_after
from servelint.lineage import KeyPath
from servelint.plugin import Engine
from servelint.releases import published
from servelint_plugins.engines.methods import method

Kind = Literal["lost", "bad-value", "unresolved", "unsupported", "unknown"]


WORKERS = "dynamo."
"""How the modules begin in which another program's workers start an engine with flags of their own beside its."""


def own_server(invocation: Invocation, engine: Engine) -> bool:
    """Whether what an invocation starts is known to be an engine's own server, of its own image where one is named.

    Another project's image, or a worker of another program's, may have flags of its own.
    """
    if any(word.text.startswith(WORKERS) for command in invocation.commands for word in command):
        return False
    if invocation.image is not None:
        return published(invocation.image.text, engine.release_images)
    # Arguments alone are read by a program that the file does not name, such as KServe's runtime.
    named = any(words_after(command, engine.starts) is not None for command in invocation.commands)
    return named or invocation.format in ("spec", "path")


def owners(name: str) -> tuple[str, ...]:
    """The engines here whose parser has, or had, a flag of exactly that name."""
    from servelint_plugins.engines import (
        llama_cpp_arguments,
        sglang_flags,
        tensorrt_llm_arguments,
        tgi_arguments,
        vllm_flags,
    )

    modules = (vllm_flags, sglang_flags, tensorrt_llm_arguments, tgi_arguments, llama_cpp_arguments)
    return tuple(table.engine for table in (module.table() for module in modules) if table.has(name))


class Layers:
    """Flags by name, where a later layer goes before an earlier one, and the settings made of them."""

    def __init__(self, *layers: Arguments) -> None:
        self.given: dict[str, Given] = {}
        self.troubles: list[Trouble] = []
        self.settings: dict[KeyPath, Setting] = {}
        self.used: set[str] = set()
        for layer in layers:
            self.given |= layer.given
            self.troubles += layer.troubles

    def get(self, name: str) -> Given | None:
        """A flag, which counts as read from now on; None when it was not given."""
        self.used.add(name)
        return self.given.get(name)

    def value(self, name: str) -> Any:
        """The value of a flag, None when it was not given."""
        found = self.get(name)
        return None if found is None else found.value

    def set(self, name: str, path: KeyPath, value: object = None, note: str = "") -> None:
        """Let a flag that was given set a key, to its own value where none is named."""
        given = self.get(name)
        if given is None:
            return
        made = given.setting(path, value)
        self.settings[path] = made._replace(note=", ".join(part for part in (made.note, note) if part))

    def stored(self, name: str, path: KeyPath, own: dict[str, str]) -> None:
        """Let a flag that names a method of quantization set the weights' format; ``own`` are the engine's methods."""
        found = method(self.value(name), own)
        if found is not None:
            self.set(name, path, found.format, found.note)
            self.settings[path] = self.settings[path]._replace(assumed=bool(found.note))

    def as_they_stand(self) -> None:
        """Let every flag whose value a key takes as it is set that key; a count below 1 is no value."""
        for name, given in self.given.items():
            counts = given.flag.kind == "int" and given.value < 1
            if given.flag.path and not counts:
                self.set(name, given.flag.path)

    def largest(self, names: Iterable[str]) -> None:
        """Let flags that give or list the sizes of captured steps set the largest one."""
        for name in names:
            given = self.get(name)
            if given is not None and given.largest:
                self.set(name, ("engine", "cuda_graph_max_batch"), given.largest)

    def trouble(self, kind: Kind, name: str, message: str, help_: str = "") -> None:
        """Say what is wrong with a flag that was given, at its value."""
        given = self.get(name)
        if given is not None:
            self.troubles.append(Trouble(kind, given.word.place, message, help_))

    def one_device(self, invocation: Invocation, spelling: str) -> None:
        """Without a tensor-parallel degree an engine takes one device, whatever the file's pod has.

        Nothing is said where a spec holds the arguments, or points into a file at them, which may declare the
        degree by itself, and where some argument is not known.
        """
        path = ("policy", "parallelism", "tensor")
        unknown = any(trouble.kind == "unresolved" for trouble in self.troubles)
        if path not in self.settings and self.given and invocation.format not in ("spec", "path") and not unknown:
            self.settings[path] = Setting(path, 1, invocation.place, spelling, "not given: one device")

    def reading(self, table: FlagTable) -> Reading:
        """All settings and troubles that tell; flags that nothing was made of are unused."""
        unused = tuple(f"--{name}" for name in self.given if name not in self.used)
        return Reading(tuple(self.settings.values()), telling(self.troubles, table, self.used), unused)


def from_environment(
    env: Mapping[str, Word], names: Mapping[str, str], table: FlagTable, version: str | None
) -> Arguments:
    """Read variables that stand for flags; ``names`` maps a variable to its flag."""
    given: dict[str, Given] = {}
    troubles: list[Trouble] = []
    for variable, flag in names.items():
        word = env.get(variable)
        if word is None or (not word.text and not word.unresolved):
            continue
        # A value with a dash in front stays one, as it does in the environment.
        found = read((Word(f"--{flag}={word.text}", word.place, word.note, word.unresolved),), table, version)
        spelled = Word(variable, word.place)
        given |= {name: one._replace(spelled=spelled, word=word) for name, one in found.given.items()}
        troubles += (t._replace(place=word.place) for t in found.troubles)
    return Arguments(given, (), tuple(troubles))


def file_beside(invocation: Invocation, path: str) -> Mapping[str, Node] | None:
    """The keys of a YAML file that a command names, where it lies beside it; None where it does not.

    Raises ManifestError for a text that is no YAML, or whose first document has no keys.
    """
    found = invocation.files.get(path) or invocation.files.get(path.rpartition("/")[2])
    if found is None:
        return None
    node = found if isinstance(found, Node) and found.kind == "mapping" else next(_documents(found), None)
    if node is None or node.kind != "mapping":
        raise ManifestError("it holds no keys", found.place)
    return dict(node.items())


def _documents(text: Node | Word) -> Iterator[Node]:
    place = text.place
    lines = text.text.rstrip("\n").count("\n") + 1
    # The text of a block scalar begins on the line after its sign, that of a here-document where it stands.
    skipped = place.line - 1 + max(place.end_line - place.line + 1 - lines, 0)
    indent = " " * (text.indent if isinstance(text, Node) else 0)
    shifted = "\n".join(indent + line if line.strip() else line for line in text.text.split("\n"))
    yield from ManifestFile(place.file, "\n" * skipped + shifted, place.file).documents


def number(node: Node | None) -> int | float | None:
    """The number that a scalar holds, None for anything else."""
    value = None if node is None else node.value
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
