"""Built-in engines: what applies when the spec leaves a policy's value out, and what launch files set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from servelint.plugin import API_VERSION, Engine, hookimpl
from servelint_plugins.engines import generic, llama_cpp, sglang, tensorrt_llm, tgi, vllm

if TYPE_CHECKING:
    from servelint.evidence import EvidenceFormat
    from servelint.launch.manifest import ManifestFormat

servelint_api = API_VERSION


@hookimpl
def servelint_engines() -> Iterable[Engine]:
    """Yield the built-in engines."""
    return (generic.ENGINE, llama_cpp.ENGINE, sglang.ENGINE, tensorrt_llm.ENGINE, tgi.ENGINE, vllm.ENGINE)


@hookimpl
def servelint_readers() -> Iterable[ManifestFormat | EvidenceFormat]:
    """Yield the built-in readers of files that start engines, and of what benchmarks of them write."""
    from servelint_plugins.evidence import formats
    from servelint_plugins.manifests import manifests

    yield from manifests()
    yield from formats()
