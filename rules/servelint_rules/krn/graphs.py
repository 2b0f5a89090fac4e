"""Which device graphs a deployment has: none, or up to a number of sequences or tokens.

Flags and their spelling: vllm-project/vllm vllm/engine/arg_utils.py and vllm/config/compilation.py; sgl-project/sglang
python/sglang/srt/server_args.py; huggingface/text-generation-inference launcher/src/main.rs; ggml-org/llama.cpp
ggml/src/ggml-cuda/ggml-cuda.cu; NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py.
"""

from __future__ import annotations

from typing import NamedTuple

from servelint.lineage import KeyPath, dotted
from servelint.plugin import Review

EAGER: KeyPath = ("engine", "enforce_eager")
LARGEST: KeyPath = ("engine", "cuda_graph_max_batch")


class Graphs(NamedTuple):
    """What is said of graphs: the largest captured size (0: none are), how that is spelled, and where."""

    largest: int
    spelling: str
    path: KeyPath
    tokens: bool = False


def declared(review: Review) -> Graphs | None:
    """Return what spec or launch arguments say of graphs, None where they say nothing."""
    engine = review.deployment.engine
    if engine.enforce_eager:
        return Graphs(0, _spelling(review, EAGER), EAGER)
    if engine.cuda_graph_max_batch is None:
        return None
    tokens = review.engine is not None and review.engine.name == "vllm"
    return Graphs(engine.cuda_graph_max_batch, _spelling(review, LARGEST), LARGEST, tokens)


def _spelling(review: Review, path: KeyPath) -> str:
    setting = review.document.settings.get(path)
    return setting.spelling if setting is not None and setting.spelling else dotted(path)
