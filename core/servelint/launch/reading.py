"""From files to keys of a spec: which invocations a file holds, which engine each starts, what that sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve

from servelint import contract
from servelint.checkpoints import BY_NAME, contained
from servelint.errors import CatalogueError, PluginError
from servelint.launch.invocation import Invocation, Reading, Setting, Trouble, Word, count_of
from servelint.launch.manifest import ManifestError, ManifestFile, resolved
from servelint.lineage import KeyPath
from servelint.releases import image_release, repository

if TYPE_CHECKING:
    from servelint.descriptors import Engine
    from servelint.manager import Plugins

STDIN = "<stdin>"
MOST_INVOCATIONS, MOST_CONTAINERS = 200, 5000
"""Engines that one file may start, and containers that it may have: what has more is refused, not cut."""


MOST_EXPANDED = 200_000
"""Characters that the variables of an engine's command lines may stand for."""

_FORMATS: tuple[KeyPath, KeyPath] = (("policy", "quantization", "weights"), ("policy", "quantization", "activations"))


class Launched(NamedTuple):
    """An invocation with its engine and everything it sets, by key path of the spec."""

    invocation: Invocation
    engine: str | None
    version: str | None
    settings: Mapping[KeyPath, Setting]
    troubles: tuple[Trouble, ...]
    unused: tuple[str, ...] = ()
    read: bool = True

    def named_troubles(self) -> dict[str, Trouble]:
        """The troubles by what they are about, numbered where there are several about one thing."""
        named: dict[str, Trouble] = {}
        numbers: dict[str, int] = {}
        for trouble in self.troubles:
            about = trouble.about or trouble.kind
            number = numbers[about] = numbers.get(about, 0) + 1
            named[about if number == 1 else f"{about} ({number})"] = trouble
        return named

    def value(self, *path: str | int) -> object:
        """The value set at a key path, None when nothing sets it."""
        found = self.settings.get(path)
        return None if found is None else found.value


def _started(every: Iterable[Invocation], plugins: Plugins) -> Iterator[Invocation]:
    """Yield the invocations that start an engine; ManifestError when they are too many to be judged.

    A pod may hold routers, caches and clients beside the engine; a name that the file states is kept.
    """
    engines = list(dict.fromkeys(plugins.engines.values()))
    number = 0
    for read, invocation in enumerate(every, 1):
        contract.invocation(invocation)
        if invocation.engine is not None or starts(invocation, engines)[0] is not None:
            number += 1
            yield invocation
        if number > MOST_INVOCATIONS or read > MOST_CONTAINERS:
            raise ManifestError(
                f"it starts more than {MOST_INVOCATIONS} engines, or has more than {MOST_CONTAINERS:,} containers: "
                "take it apart",
                invocation.place,
            )


def invocations(file: ManifestFile, plugins: Plugins) -> tuple[Invocation, ...]:
    """Return every engine start of a file, by the first format that finds one.

    Raises ManifestError when the file is of a known format and cannot be read.
    """
    refusals: list[ManifestError] = []
    for format_ in plugins.manifest_formats:
        if not file.name.lower().endswith(format_.endings) and file.name != STDIN:
            continue
        try:
            what = f"reading {file.name} as {format_.name}"
            # What is wrong with the file is no fault of the reader.
            with plugins.blamed(plugins.reader_provider(format_.name), what, (ManifestError,)):
                found = list(_started(format_.read(file), plugins))
        except PluginError:
            continue
        except ManifestError as error:
            if file.name != STDIN:
                raise
            # Nothing says of what kind piped text is: what one format refuses, another one may read.
            refusals.append(error)
            continue
        if found:
            beside = {name: Word(value, found[0].place, "environment file") for name, value in file.siblings.items()}
            return tuple(evolve(i, env={**beside, **i.env}) if beside else i for i in found)
    template = next((error for error in refusals if "template" in str(error)), None)
    if template is not None:
        raise template
    return ()


def starts(invocation: Invocation, engines: Iterable[Engine]) -> tuple[Engine | None, tuple[Word, ...]]:
    """Return the engine that an invocation starts, and the words that are its arguments.

    What the file says counts first, then a command that an engine is started by, then the image.
    """
    engines = list(engines)
    named = invocation.engine.text.lower() if invocation.engine is not None else None
    chosen = next((e for e in engines if named in (e.name, *e.aliases)), None) if named else None
    among = [chosen] if chosen is not None else engines
    for command in invocation.commands:
        for engine in among:
            after = words_after(command, engine.starts)
            if after is not None:
                return engine, after
    if chosen is None and invocation.image is not None:
        image = repository(invocation.image.text)
        chosen = next((e for e in engines if any(part in image for part in e.images)), None)
    if chosen is None and named is None and invocation.commands:
        # Without a name the flags themselves may tell.
        return None, ()
    return chosen, _arguments(invocation.commands)


def words_after(command: Sequence[Word], sequences: Iterable[tuple[str, ...]]) -> tuple[Word, ...] | None:
    """Return the words after one of the sequences of names that start an engine."""
    names = [word.text.rpartition("/")[2] for word in command[:40]]
    for sequence in sequences:
        for i in range(len(names) - len(sequence) + 1):
            if tuple(names[i : i + len(sequence)]) == sequence:
                return tuple(command[i + len(sequence) :])
    return None


def with_arguments(
    commands: tuple[tuple[Word, ...], ...], own: tuple[tuple[Word, ...], ...], engines: Iterable[Engine]
) -> tuple[tuple[Word, ...], ...]:
    """Return a file's commands with a spec's own arguments after those of the one that starts an engine.

    A command of the spec's own that starts an engine goes before the file's.
    """
    every = tuple(sequence for engine in engines for sequence in engine.starts)
    if not commands or any(words_after(command, every) is not None for command in own):
        return (*own, *commands)
    starting = next((i for i, command in enumerate(commands) if words_after(command, every) is not None), None)
    if starting is None:
        starting = commands.index(_arguments(commands))
    words = tuple(word for command in own for word in command)
    return tuple((*command, *words) if i == starting else command for i, command in enumerate(commands))


def _arguments(commands: Sequence[tuple[Word, ...]]) -> tuple[Word, ...]:
    """Return the command line that begins with a flag, as the arguments of an image's entry point do."""
    return next((c for c in commands if c and c[0].text.startswith("-")), commands[0] if commands else ())


def read(
    invocation: Invocation,
    plugins: Plugins,
    engine: str | None = None,
    version: str | None = None,
    model: str | None = None,
) -> Launched:
    """Read what an invocation sets. ``engine``, ``version`` and ``model`` are those that a spec declares."""
    if engine is not None:
        invocation = evolve(invocation, engine=Word(engine, invocation.place))
    invocation = evolve(
        invocation,
        commands=_expanded(invocation),
        model=resolved(invocation.model, invocation.env.get) if invocation.model is not None else None,
    )
    found, words = starts(invocation, dict.fromkeys(plugins.engines.values()))
    if version is None:
        stated = invocation.version.text if invocation.version is not None else None
        version = stated or _tagged(found, invocation)
    reading = Reading()
    if found is not None and found.read is not None:
        with plugins.blamed(plugins.engine_provider(found.name), f"arguments read by engine {found.name!r}"):
            reading = found.read(invocation, words, version)
            contract.reading(reading)
    settings = {s.path: s for s in _common(invocation, found, plugins)}
    published = settings.get(("model", "id"))
    settings |= {s.path: s for s in reading.settings}
    loaded = settings.get(("model", "id"))
    if published is not None and loaded is not None and _folder(loaded.value) and not _folder(published.value):
        # The arguments name the folder that the model is mounted at, the file beside them which model that is.
        settings["model", "id"] = published
    _keep_checkpoint(settings, plugins, model)
    troubles = (*invocation.troubles, *reading.troubles)
    known = found is not None and found.read is not None
    return Launched(invocation, found.name if found else None, version, settings, troubles, reading.unused, known)


def _folder(model: object) -> bool:
    """Whether a model is named by where it lies, not by its published name."""
    return str(model).startswith(("/", "./", "../", "~", "$")) or "://" in str(model)


def _keep_checkpoint(settings: dict[KeyPath, Setting], plugins: Plugins, model: str | None) -> None:
    """Drop formats that a flag names of a checkpoint that is quantized already; ``model`` is what a spec declares.

    The flag then repeats what the checkpoint is stored in, and a 16-bit type is that of what is left in 16 bit. A
    certain format of fewer bits is kept: what is loaded is not what was published under the model's name. Where a spec
    declares the model that the launched checkpoint was made of, the checkpoint's name says the format.
    """
    of = settings.get(("model", "id"))
    loaded = str(of.value) if of is not None else ""
    id_ = model or loaded
    named = plugins.checkpoint(loaded) if loaded else None
    if of is not None and named is not None and named.format is not None and id_ != loaded:
        if plugins.models.resolve(id_) == named.base:
            said = of._replace(path=_FORMATS[0], value=named.format, note=BY_NAME, assumed=True)
            settings[_FORMATS[0]] = said
            settings.pop(_FORMATS[1], None)
        return
    found = {path: settings[path] for path in _FORMATS if path in settings}
    if not found:
        return
    if named is not None and named.format is not None:
        stored = named.format
    else:
        if plugins.models.resolve(id_) is None and named is None:
            settings.pop(_FORMATS[1], None)
            return
        try:
            architecture = plugins.models.get(id_ if named is None else named.base)
        except (CatalogueError, PluginError):
            return
        own = architecture.quantization
        stored = own.format if own is not None else architecture.stored
        if own is None and stored in ("bf16", "fp16", "fp32"):
            return
    weights = found.get(_FORMATS[0])
    if weights is None or not _narrower(weights, stored, plugins, file=contained(loaded)):
        for path in found:
            del settings[path]


def _narrower(weights: Setting, stored: str, plugins: Plugins, *, file: bool) -> bool:
    """Whether a setting of the weights' format says more than the format that the model is published in."""
    if weights.assumed:
        return False
    formats = plugins.formats
    said, own = formats.get(str(weights.value).lower()), formats.get(stored.lower())
    return file or (said is not None and own is not None and said.bits < own.bits)


def _expanded(invocation: Invocation) -> tuple[tuple[Word, ...], ...]:
    left = [MOST_EXPANDED]
    return tuple(tuple(_split_off(c, invocation.env, left)) for c in invocation.commands)


def _split_off(command: Iterable[Word], env: Mapping[str, Word], left: list[int]) -> Iterator[Word]:
    """Look variables up; a variable that stands for several arguments becomes several words, as in a shell.

    ``left`` are the characters that variables may still stand for; beyond that a word stays as it is.
    """
    for word in command:
        if "$" not in word.text:
            yield word
            continue
        whole = word.text.startswith("$") and " " not in word.text
        found = resolved(word, env.get) if left[0] > 0 else word._replace(unresolved=word.text[:40])
        left[0] -= len(found.text)
        if whole and not found.unresolved and found.text.lstrip().startswith("-") and " " in found.text.strip():
            yield from (found._replace(text=part) for part in found.text.split())
        elif whole and not found.unresolved and not found.text:
            continue
        else:
            yield found


def _tagged(engine: Engine | None, invocation: Invocation) -> str | None:
    """The engine's release that the tag of an invocation's image names."""
    image = invocation.image
    return image_release(image.text, engine.release_images) if engine is not None and image is not None else None


def _common(invocation: Invocation, engine: Engine | None, plugins: Plugins) -> Iterator[Setting]:
    """What a file says apart from the engine's arguments: engine, image, model, hardware."""
    at = invocation.place
    named = invocation.engine or invocation.image or (invocation.commands[0][0] if invocation.commands else None)
    if engine is not None:
        yield Setting(("engine", "name"), engine.name, named.place if named else at, "engine")
    if invocation.image is not None and "$" not in invocation.image.text:
        yield Setting(("engine", "image"), invocation.image.text, invocation.image.place, "image")
    if invocation.version is not None:
        yield Setting(("engine", "version"), invocation.version.text, invocation.version.place, "version")
    elif invocation.image is not None and (tagged := _tagged(engine, invocation)) is not None:
        yield Setting(("engine", "version"), tagged, invocation.image.place, "image")
    if invocation.model is not None and not invocation.model.unresolved and invocation.model.text:
        yield Setting(("model", "id"), invocation.model.text, invocation.model.place, "model", invocation.model.note)
    yield from _hardware(invocation, plugins)


def _hardware(invocation: Invocation, plugins: Plugins) -> Iterator[Setting]:
    counted = None
    parts: tuple[str, ...] | None = None
    for hint in invocation.hints:
        match = plugins.instances.by_label(hint.label, hint.value.text)
        if match is None:
            continue
        if match.instance is not None:
            yield Setting(("hardware", "instance"), match.instance, hint.value.place, hint.label, match.note)
            parts = ()
            break
        if not match.accelerators:
            # A slice, a share, or a part without a datasheet: what else the file says is not the whole of it.
            parts = ()
            break
        counted = counted or (hint.value._replace(text=str(match.devices)) if match.devices else None)
        parts = tuple(a for a in parts if a in match.accelerators) if parts is not None else match.accelerators
        named = hint, match
        if not parts:
            break
    if parts is not None and len(parts) == 1:
        hint, match = named
        yield Setting(("hardware", "accelerator"), parts[0], hint.value.place, hint.label, match.note)
    invocation = evolve(invocation, devices=invocation.devices or counted)
    per_pod = count_of(invocation.devices)
    pods = count_of(invocation.pods)
    if per_pod and invocation.devices is not None:
        devices = per_pod * (pods or 1)
        yield Setting(("hardware", "devices"), devices, invocation.devices.place, "devices of a pod, times its pods")
        if pods and pods > 1:
            yield Setting(("hardware", "devices_per_node"), per_pod, invocation.devices.place, "devices of a pod")
    replicas = count_of(invocation.replicas)
    if replicas and invocation.replicas is not None:
        yield Setting(("hardware", "replicas"), replicas, invocation.replicas.place, "replicas")


def choose(found: Sequence[Invocation], wanted: Iterable[str]) -> tuple[Invocation, ...]:
    """Return the invocations that carry every one of the wanted names (container, service, object)."""
    names = [w.lower() for w in wanted]
    return tuple(i for i in found if all(n in map(str.lower, i.part) for n in names))
