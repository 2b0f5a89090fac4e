"""Slips in the names of flags, and what is said of them where a table of flags is not the whole of them."""

from __future__ import annotations

import pytest

from servelint.launch.flags import Flag, FlagTable, slipped
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
        # The launcher of a fork may have flags of its own, whichever engine it is a fork of.
        ("docker run acme/text-generation-inference:x --model-id m/m --mine 3", []),
        ("docker run acme/tgi text-generation-launcher --model-id m/m --max-total-tokns 3", ["unknown"]),
        ("docker run acme/vllm-openai:v1 --model m/m --mine 3", []),
        ("docker run huggingface/text-generation-inference:3.3.6 --model-id m/m --mine 3", ["unknown"]),
        ("docker run lmsysorg/sglang:latest python -m sglang.launch_server --model-path m/m --mine 3", ["unlisted"]),
        ("docker run acme/sglang:v0.5.9 python -m sglang.launch_server --model-path m/m --mine 3", []),
    ],
)
def test_flags_without_a_whole_table(command: str, kinds: list[str], plugins: Plugins) -> None:
    name = "service.yaml" if command.startswith("apiVersion") else "run.sh"
    (document,) = open_manifest(name, command, plugins)
    assert document.launched is not None
    assert [t.kind for t in document.launched.troubles if t.kind != "unresolved"] == kinds


@pytest.mark.parametrize(
    ("command", "kind", "whose"),
    [
        ("docker run vllm/vllm-openai:latest --model m/m --cuda-graphs 1,2", "unlisted", "TGI's"),
        ("docker run vllm/vllm-openai:v0.11.0 --model m/m --cuda-graphs 1,2", "unknown", "TGI's"),
        ("python -m sglang.launch_server --model-path m/m --cuda-graphs 1,2", "unlisted", "TGI's"),
        ("python -m sglang.launch_server --model-path m/m --max-num-seqs 8", "unlisted", "vLLM's"),
        ("docker run vllm/vllm-openai:v0.11.0 --model m/m --mem-fraction-static 0.9", "unknown", "SGLang's"),
    ],
)
def test_a_flag_of_another_engine_is_no_slip(command: str, kind: str, whose: str, plugins: Plugins) -> None:
    (document,) = open_manifest("run.sh", command, plugins)
    assert document.launched is not None
    (trouble,) = (t for t in document.launched.troubles if t.kind != "unresolved")
    assert (trouble.kind, trouble.help) == (kind, "")
    assert trouble.message.endswith(f": it is {whose}")


def test_a_name_cut_short_is_that_flag_before_it_is_a_slip_of_another() -> None:
    table = FlagTable("acme", [Flag("graph-bucked-size"), Flag("graph-bucket-sizes")])
    assert table.meant("graph-bucket-size") == "graph-bucket-sizes"
