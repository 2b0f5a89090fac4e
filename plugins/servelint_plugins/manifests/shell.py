"""Shell scripts: command lines that start an engine, by themselves or in a container that they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servelint.launch.invocation import Invocation, Word
from servelint.launch.manifest import ManifestError, ManifestFile
from servelint_plugins.manifests import common, pods, recipes

SOURCES = ("IEEE Std 1003.1-2017, Shell Command Language", "docker/cli docs/reference/commandline/container_run.md")


def read(file: ManifestFile) -> Iterator[Invocation]:
    """Yield an invocation for every command line that names an engine, by program, image or flags."""
    try:
        lines, assigned = file.script(file.text)
    except ManifestError:
        # Prose in a text or Markdown file has quotations that no shell would close.
        if not file.name.lower().endswith((".txt", ".md")):
            raise
        return
    files = dict(file.here_documents(file.text))
    count = 0
    for line in (inner for outer in lines for inner in pods.opened(file, outer)):
        container = recipes.docker_run(line)
        image: Word | None = None
        devices: Word | None = None
        own: Mapping[str, Word] = {}
        words = line
        if container is not None:
            image, words, own, devices = container
            inner = pods.opened(file, words)
            words = next((w for w in inner if starts(w)), words)
            if not (common.engine_named(image.text) or starts(words)):
                continue
        elif not starts(line):
            continue
        if pods.other((words,)):
            continue
        count += 1
        yield Invocation(
            f"command on line {line[0].place.line}",
            "shell",
            line[0].place,
            # Not by its line, which any edit above moves.
            part=(f"command {count}",),
            image=image,
            commands=(words,) if words else (),
            env={**assigned, **own},
            files=dict(files),
            devices=devices,
            role=pods.role_in((words,)),
        )


PROGRAMS = (
    "vllm",
    "trtllm-serve",
    "text-generation-launcher",
    "llama-server",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.api_server",
    "sglang.launch_server",
    "sglang",
    "dynamo.vllm",
    "dynamo.sglang",
    "dynamo.trtllm",
)


def starts(line: tuple[Word, ...]) -> bool:
    """Whether a command line starts an engine: a program or module that serves, not one that installs or calls."""
    texts = [w.text.rpartition("/")[2] for w in line[:40]]
    for i, text in enumerate(texts):
        if text in PROGRAMS:
            after = texts[i + 1] if i + 1 < len(texts) else ""
            before = texts[i - 1] if i else ""
            if text in ("vllm", "sglang"):
                if after == "serve":
                    return True
                continue
            return i == 0 or before == "-m" or text in ("trtllm-serve", "text-generation-launcher", "llama-server")
    return False
