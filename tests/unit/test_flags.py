"""Slips in the names of flags, and what is said of them where a table of flags is not the whole of them."""

from __future__ import annotations

import pytest

from servelint.launch.flags import slipped
from servelint.manager import Plugins
from servelint.opening import open_manifest

KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: m}}
spec:
  predictor:
    model:
      modelFormat: {{name: huggingface}}
      storageUri: hf://m/m
      args: ["{flag}", "--tensor-parallel-size=2"]
"""


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("tensor-paralel-size", "tensor-parallel-size"),
        ("tensor-parallell-size", "tensor-parallel-size"),
        ("max-modle-len", "max-model-len"),
        ("max-num-seqz", "max-num-seqs"),
        ("max-modellen", "max-model-len"),
        ("maxmodel-len", "max-model-len"),
        ("tp-sise", "tp-size"),
        ("gpu-memory-utilisatoin", "gpu-memory-utilization"),
    ],
)
def test_a_slip(name: str, known: str) -> None:
    assert slipped(name, known)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("tp-size", "tp-size"),
        ("tp-size", "dp-size"),
        ("cache-type-k", "cache-type-v"),
        ("draft-max", "draft-min"),
        ("load-mode", "load-node"),
        ("max-lora-rank", "max-loras"),
        ("num-input-tokens", "num-output-tokens"),
        ("max-model-len-new", "max-model-len"),
        ("kv-cache-dtype-k", "kv-cache-dtype"),
        ("encoder-cache", "decoder-cache"),
        ("", "x"),
        ("-" * 300, "max-model-len"),
    ],
)
def test_names_that_may_both_be_flags(name: str, known: str) -> None:
    assert not slipped(name, known)


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("docker run vllm/vllm-openai:latest --model m/m --tensor-paralel-size 2", ["unknown"]),
        ("docker run vllm/vllm-openai:latest --model m/m --num-scheduler-steps 8", ["dated"]),
        ("docker run vllm/vllm-openai:latest --model m/m --flag-of-tomorrow 8", ["unlisted"]),
        # Programs with flags of their own: nothing is said of a name, but of a slip.
        ("python -m dynamo.vllm --model m/m --max-num-seqz 2 --connector none", ["unknown"]),
        ("python -m dynamo.sglang --model-path m/m --context-lenght 2 --endpoint x", ["unknown"]),
        ("docker run nvcr.io/nvidia/tensorrt-llm/release:1.1.0 trtllm-serve m/m --tp_sise 2 --mine 3", ["unknown"]),
        ("docker run acme/sglang:v1 python -m sglang.launch_server --model-path m/m --mine 3", []),
        # KServe's runtime reads arguments of its own beside the engine's.
        (KSERVE.format(flag="--model_name=m"), []),
        (KSERVE.format(flag="--max-modle-len=4096"), ["unknown"]),
        ("llama-server -m m.gguf --ctx-sise 4096 --slots", ["unknown"]),
    ],
)
def test_flags_without_a_whole_table(command: str, kinds: list[str], plugins: Plugins) -> None:
    name = "service.yaml" if command.startswith("apiVersion") else "run.sh"
    (document,) = open_manifest(name, command, plugins)
    assert document.launched is not None
    assert [t.kind for t in document.launched.troubles if t.kind != "unresolved"] == kinds
