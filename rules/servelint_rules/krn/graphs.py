"""Which device graphs an engine's launch arguments leave: none, or up to a number of sequences or tokens.

Flags and their spelling: vllm-project/vllm vllm/engine/arg_utils.py and vllm/config/compilation.py; sgl-project/sglang
python/sglang/srt/server_args.py; huggingface/text-generation-inference launcher/src/main.rs; ggml-org/llama.cpp
ggml/src/ggml-cuda/ggml-cuda.cu.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Review

OFF = {
    "vllm": ("enforce-eager",),
    "sglang": ("disable-cuda-graph", "disable-decode-cuda-graph"),
}
"""Switches after which every step is launched kernel by kernel."""

LARGEST = {
    "vllm": ("max-cudagraph-capture-size", "cudagraph-capture-sizes", "cuda-graph-sizes"),
    "sglang": ("cuda-graph-max-bs", "cuda-graph-max-bs-decode", "cuda-graph-bs", "cuda-graph-bs-decode"),
    "tgi": ("cuda-graphs",),
}
"""Flags that list the sizes of captured steps, or give the largest: tokens in vLLM, sequences elsewhere."""

VARIABLE = "GGML_CUDA_DISABLE_GRAPHS"
FALSE = ("false", "0", "no", "off")
NO_GRAPHS = re.compile(r"cudagraph_mode\W+NONE\b", re.IGNORECASE)


class Graphs(NamedTuple):
    """What the arguments say of graphs: the largest captured size (0: none are), how it is spelled, and where."""

    largest: int
    spelling: str
    path: KeyPath
    tokens: bool = False


def declared(review: Review) -> Graphs | None:
    """Return what the launch arguments say of graphs, None where they say nothing that is read."""
    launched, engine = review.document.launched, review.engine
    if launched is None or engine is None:
        return None
    name = engine.name
    words = [word.text for command in launched.invocation.commands for word in command]
    found: Graphs | None = None
    for flag, values in _flags(words):
        spelled = flag.replace("_", "-")
        path = _path(review, flag)
        if spelled in OFF.get(name, ()) and not (values and values[0].lower() in FALSE):
            return Graphs(0, f"--{flag}", path)
        if name == "vllm" and spelled in ("compilation-config", "O") and NO_GRAPHS.search(" ".join(values)):
            return Graphs(0, f"--{flag}", path)
        if spelled in LARGEST.get(name, ()):
            sizes = [int(n) for n in re.findall(r"[0-9]{1,7}", " ".join(values))]
            if sizes:
                found = Graphs(max(sizes), f"--{flag}", path, name == "vllm")
    variable = launched.invocation.env.get(VARIABLE)
    if name == "llama.cpp" and variable is not None and variable.text not in ("", "0"):
        return Graphs(0, VARIABLE, ("engine", "env", VARIABLE))
    return found


def _flags(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Every long flag with the words that follow it, up to the next one."""
    flag, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            if flag:
                yield flag, values
            flag, sign, value = word[2:].partition("=")
            values = [value] if sign else []
        else:
            values.append(word)
    if flag:
        yield flag, values


def _path(review: Review, flag: str) -> KeyPath:
    """The word of the arguments that holds the flag, the key of the arguments where they are one text or a file."""
    arguments = review.deployment.engine.args
    if isinstance(arguments, list | tuple):
        for i, word in enumerate(arguments):
            if isinstance(word, str) and word.startswith(f"--{flag}"):
                return ("engine", "args", i)
    return ("engine", "args") if review.declared("engine", "args") else ("engine", "args_from")
