"""Methods that engines' quantization flags name, and the format that each stores weights in.

Sources: vllm-project/vllm vllm/model_executor/layers/quantization/__init__.py (names),
vllm/model_executor/model_loader/bitsandbytes_loader.py (a 16-bit checkpoint becomes 4-bit NF4 when it is loaded, its
scales in 32 bits) and vllm/v1/metrics/perf.py (4 bits are taken for methods that leave the bits open);
sgl-project/sglang python/sglang/srt/server_args.py; huggingface/text-generation-inference launcher/src/main.rs and
server/text_generation_server/layers/bnb.py; huggingface/transformers docs/source/en/quantization/aqlm.md (16 bits for
8 weights, the usual form of AQLM); ggml-org/llama.cpp common/arg.cpp (Q4_K_M is fetched where no file is named).
"""

from __future__ import annotations

from typing import NamedTuple

GUESS = "it leaves the bits of a weight open: 4 taken, which is a guess"
GUESSED = "int4-g128"

_STORED: dict[str, str] = {
    # Four bits, whatever the checkpoint.
    "awq": "int4-g128",
    "awq_marlin": "int4-g128",
    "cpu_awq": "int4-g128",
    "marlin": "int4-g128",
    "qoq": "int4-g128",
    "qqq": "int4-g128",
    "squeezellm": "int4-g128",
    "bitsandbytes-nf4": "nf4-double",
    "bitsandbytes-fp4": "nf4-double",
    "modelopt_fp4": "nvfp4",
    "petit_nvfp4": "nvfp4",
    "gpt_oss_mxfp4": "mxfp4",
    "mxfp4": "mxfp4",
    # Eight bits.
    "auto-round-int8": "int8",
    "deepgemm_fp8": "fp8-block128",
    "eetq": "int8-weight-only",
    "experts_int8": "int8-weight-only",
    "fbgemm_fp8": "fp8",
    "fp8": "fp8",
    "int8_per_channel_weight_only": "int8-weight-only",
    "modelopt_fp8": "fp8",
    "modelopt_mxfp8": "mxfp8",
    "ptpc_fp8": "fp8",
    "tpu_int8": "int8-weight-only",
    "w8a8_fp8": "fp8",
    "w8a8_int8": "int8",
}

_OPEN: dict[str, tuple[str, str]] = {
    "aqlm": ("q2_k", "it leaves the bits of a weight open, of which most have 2: the narrowest known format taken"),
    "gguf": ("q4_k_m", "each file has a format of its own, of 2 bits and more: the usual one taken, which is a guess"),
}
"""Methods that leave the bits open, what stands for them, and why."""


class Method(NamedTuple):
    """The format of a method, and why where the method does not say it."""

    format: str
    note: str = ""


def method(name: object, own: dict[str, str] | None = None) -> Method | None:
    """Return what a method stores weights in; ``own`` are those that an engine means otherwise.

    What stands for methods that leave the bits open, and for those that nothing here knows, is a guess that its note
    owns up to: no bound, on which a certain verdict could rest. None where no method is named.
    """
    text = str(name or "").lower().replace("_", "-")
    if text in ("", "none", "auto", "no-quant"):
        return None
    named = {key.lower().replace("_", "-"): value for key, value in (_STORED | (own or {})).items()}
    found = named.get(text)
    return Method(found) if found is not None else Method(*_OPEN.get(text, (GUESSED, GUESS)))
