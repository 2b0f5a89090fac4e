"""Built-in engines: what applies when the spec leaves a policy's value out."""

from __future__ import annotations

from collections.abc import Iterable

from servelint.plugin import API_VERSION, Engine, hookimpl
from servelint_plugins.engines import generic, sglang, tensorrt_llm, vllm

servelint_api = API_VERSION


@hookimpl
def servelint_engines() -> Iterable[Engine]:
    """Yield the built-in engines."""
    return (generic.ENGINE, sglang.ENGINE, tensorrt_llm.ENGINE, vllm.ENGINE)
