"""What the readers share: words for flags, names of engines and models, YAML inside YAML, templates.

Nothing here knows a flag's meaning; engines read them. The few flags named here tell which engine a command
line without a program is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from servelint.launch.invocation import Hint, Word, count_of
from servelint.launch.manifest import ManifestError, ManifestFile, Node
from servelint.place import Place

HELM = re.compile(
    r"\{\{-?\s*(?:\.(?:Values|Release|Chart|Capabilities|Files)\b|(?:include|toYaml|tpl)\b)[^{}]{0,2000}\}\}|\{%"
)
"""Expressions that only a chart's renderer fills in; ``{{ .Spec.Model.Name }}`` a cluster's controller does."""

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENGINES: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        "max-model-len",
        "gpu-memory-utilization",
        "max-num-seqs",
        "max-num-seq",
        "max-num-batched-tokens",
        "enable-chunked-prefill",
        "enable-prefix-caching",
        "no-enable-prefix-caching",
        "kv-transfer-config",
        "speculative-config",
        "enable-expert-parallel",
        "enforce-eager",
        "async-scheduling",
    ),
    "sglang": (
        "mem-fraction-static",
        "context-length",
        "chunked-prefill-size",
        "max-running-requests",
        "disable-radix-cache",
        "disaggregation-mode",
        "speculative-algorithm",
        "cuda-graph-max-bs",
        "tp-size",
    ),
    "tensorrt-llm": (
        "kv-cache-config",
        "moe-config",
        "cuda-graph-config",
        "max-num-tokens",
        "enable-attention-dp",
        "kv-cache-free-gpu-memory-fraction",
        "kv-cache-free-gpu-mem-fraction",
        "extra-llm-api-options",
        "disable-overlap-scheduler",
        "moe-expert-parallel-size",
        "llm-api-args",
    ),
    "tgi": ("num-shard", "max-total-tokens", "max-input-tokens", "max-input-length", "max-batch-prefill-tokens"),
}
"""Flags that one engine alone has; most decide. Sources: the parsers of the engines (see their readers)."""

_NAMES = (
    ("text-generation", "tgi"),
    ("tgi", "tgi"),
    ("sglang", "sglang"),
    ("srt", "sglang"),
    ("tensorrt", "tensorrt-llm"),
    ("trtllm", "tensorrt-llm"),
    ("trt-llm", "tensorrt-llm"),
    ("llama.cpp", "llama.cpp"),
    ("llamacpp", "llama.cpp"),
    ("vllm", "vllm"),
)
FOLDERS = ("/", "./", "../", "~", "$", "s3://", "gs://", "gcs://", "pvc://", "oci://", "file://", "hostpath://")
"""How names of folders begin; a published model's name begins otherwise."""


def kebab(name: str) -> str:
    """A key as a flag is spelled: ``tensorParallelSize`` and ``tensor_parallel_size`` are tensor-parallel-size."""
    return _CAPITAL.sub("-", name).replace("_", "-").lower()


def flag(name: str, value: Word) -> Word:
    """The word ``--name=value`` at the place of the value."""
    return value._replace(text=f"--{name}={value.text}")


def switch(name: str, value: Word) -> Word:
    """The word ``--name`` or ``--no-name`` for a key that is true or false."""
    return value._replace(text=f"--{name}" if truth(value.text) else f"--no-{name}")


def truth(text: str) -> bool:
    """Whether the text of a value means yes."""
    return text.strip().lower() in ("true", "1", "yes", "on")


def has_flag(words: Iterable[Word], *names: str) -> bool:
    """Whether one of the flags is among the words, in any spelling of its dashes."""
    given = {w.text.partition("=")[0].lstrip("-").replace("_", "-") for w in words if w.text.startswith("-")}
    return any(name in given for name in names)


def flags(node: Node | None, names: Mapping[str, str]) -> Iterator[Word]:
    """The keys of a mapping as flags, by a table from key to flag; what ends in ``?`` there is a switch."""
    for key, value in node.items() if node is not None else ():
        name = names.get(key)
        if name is None or value.kind != "scalar" or value.value is None or value.text == "":
            continue
        yield switch(name[:-1], value.word) if name.endswith("?") else flag(name, value.word)


def engine_of(words: Iterable[str]) -> str | None:
    """The engine that most of the flags belong to, None where no flag tells."""
    given = {w.partition("=")[0].lstrip("-").replace("_", "-") for w in words}
    counts = {name: len(given.intersection(own)) for name, own in _ENGINES.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] and list(counts.values()).count(counts[best]) == 1 else None


def engine_named(text: str) -> str | None:
    """The engine whose name is part of a text: an image, a field, a module; None where none is."""
    lowered = text.lower()
    return next((engine for part, engine in _NAMES if part in lowered), None)


def named(text: str, at: Word | None, place: Place) -> Word | None:
    """An engine's name as a word where its text names one."""
    engine = engine_named(text)
    return None if engine is None else Word(engine, at.place if at is not None else place)


def hub(word: Word | None) -> Word | None:
    """A model's address as its name: the scheme of a hub, the volume it lies in and options are left out."""
    if word is None or not word.text:
        return None
    text = word.text.partition("?")[0]
    for scheme in ("hf://", "huggingface://", "hf:"):
        if text.startswith(scheme):
            return word._replace(text=text[len(scheme) :].partition("@")[0].partition(":")[0])
    if text.startswith("pvc://"):
        inside = text[len("pvc://") :].partition("/")[2]
        return word._replace(text=inside) if inside else None
    return word._replace(text=text)


def published(word: Word | None) -> Word | None:
    """The word where it can be a published model's name, not a folder or an address."""
    return None if word is None or word.text.startswith(FOLDERS) or "://" in word.text or not word.text else word


def split(text: str, at: Word) -> tuple[Word, ...]:
    """Arguments that one value holds, as a shell splits them; ManifestError for an open quotation."""
    import shlex

    try:
        # Without quotations there is nothing for the slow reader to do.
        parts = shlex.split(text) if any(c in text for c in "\"'\\") else re.findall(r"[^ \t\r\n]+", text)
    except ValueError as error:
        raise ManifestError(f"the arguments {text[:60]!r} cannot be split: {error}", at.place) from None
    return tuple(at._replace(text=part) for part in parts)


def listed(node: Node | None) -> tuple[Word, ...]:
    """The words of a list, or the one of a scalar."""
    if node is None:
        return ()
    return (node.word,) if node.kind == "scalar" and node.text else tuple(item.word for item in node)


def shell_words(file: ManifestFile, node: Node | None) -> tuple[Word, ...]:
    """The arguments under a key: items of a list as they stand, a text split as the tool that reads it does."""
    if node is None:
        return ()
    if node.kind != "scalar":
        return tuple(item.word for item in node)
    lines, _ = file.script(node.text, node)
    return tuple(word for line in lines for word in line)


def times(*words: Word | None) -> Word | None:
    """The product of counts at the place of the first; those that are missing count as one."""
    numbers = [(w, n) for w in words if w is not None and (n := count_of(w)) is not None]
    if not numbers:
        return None
    product = 1
    for _, number in numbers:
        product *= number
    return numbers[0][0]._replace(text=str(product))


def counted(word: Word | None) -> Word | None:
    """The number after the colon of ``H100:8``, None where none is."""
    if word is None:
        return None
    _, colon, number = word.text.rpartition(":")
    return word._replace(text=number) if colon and number.isdecimal() else None


def hint(label: str, word: Word | None) -> tuple[Hint, ...]:
    """A hint at the hardware, none without a value."""
    return () if word is None or not word.text else (Hint(label, word),)


def environment(node: Node | None) -> dict[str, Word]:
    """Variables of a mapping, of a list of ``NAME=value``, or of a list of mappings with name and value."""
    found: dict[str, Word] = {}
    if node is None:
        return found
    for key, value in node.items():
        if value.kind == "scalar" and value.value is not None:
            found[key] = value.word
    for item in node:
        if item.kind == "scalar":
            name, separator, text = item.text.partition("=")
            if separator:
                found[name] = item.word._replace(text=text)
        else:
            name, text_word = item.string("name") or item.string("key"), item.scalar("value")
            if name and text_word is not None:
                found[name] = text_word
    return found


def refuse_template(file: ManifestFile) -> None:
    """ManifestError for a chart's template, also where it happens to be YAML."""
    found = HELM.search(file.text)
    if found is not None:
        raise ManifestError(
            "it is a template: render it first (helm template, kustomize build) and name the result",
            file.place(found.start(), found.end()),
        )


class _Inside(ManifestFile):
    """A document that stands as a text inside another one; its places are those of the outer file."""

    def __init__(self, outer: ManifestFile, at: Node) -> None:
        super().__init__(outer.name, at.text, outer.file, outer.siblings)
        self._at = at.place
        self._outer = outer
        # Only a literal block has its lines as they stand in the file, and there only those that end as the file's do:
        # YAML has more kinds of line ends.
        lines = at.text.rstrip("\n").count("\n") + 1
        literal = outer.line(self._at.line)[self._at.column - 1 :].startswith("|")
        self._literal = literal and lines <= self._at.end_line - self._at.line
        first = next((i for i, line in enumerate(at.text.split("\n")) if line.strip()), 0)
        outer_line = outer.line(self._at.line + first + 1)
        inner_line = at.text.split("\n")[first]
        self._indent = len(outer_line) - len(inner_line) if outer_line.endswith(inner_line) else 0

    def visit(self, count: int = 1) -> None:
        self._outer.visit(count)

    def place(self, start: int, end: int | None = None) -> Place:
        inner = super().place(start, end)
        if not self._literal:
            return self._at
        return Place(
            inner.line + self._at.line,
            inner.column + self._indent,
            inner.end_line + self._at.line,
            inner.end_column + self._indent,
            self.file,
        )


class _Meant(ManifestFile):
    """What a field of an object stands for; its places are that field's."""

    def __init__(self, outer: ManifestFile, text: str, at: Place) -> None:
        super().__init__(outer.name, text, outer.file)
        self._at = at

    def place(self, start: int, end: int | None = None) -> Place:
        return self._at


def meant(file: ManifestFile, value: object, at: Place) -> Node:
    """A value that a field stands for, as a node at the field's place."""
    import json

    return _Meant(file, json.dumps(value), at).documents[0]


def inside(file: ManifestFile, at: Node) -> tuple[Node, ...]:
    """The documents of a YAML text that a scalar holds, none where it is no YAML."""
    key = (at.place, at.text)
    if key not in file.inner:
        # Each takes a parser of its own.
        file.visit(20)
        try:
            file.inner[key] = _Inside(file, at).documents
        except ManifestError:
            file.inner[key] = ()
    return file.inner[key]
