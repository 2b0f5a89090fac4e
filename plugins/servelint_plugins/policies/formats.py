"""Built-in number formats: bits with metadata, the precision of their native path, what they cover."""

from __future__ import annotations

from servelint.plugin import Format

_LINEAR = ("attention", "mlp", "shared_experts", "routed_experts", "ssm", "mtp")
_OCP = "OCP Microscaling Formats (MX) Specification v1.0"
_NVFP4 = "NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference (2025)"
_GPTQ = "Frantar et al., GPTQ (arXiv 2210.17323): group scale fp16, zero point of the weight's own bits"
_AWQ = "Lin et al., AWQ (arXiv 2306.00978): group scale fp16, zero point of the weight's own bits"
_GGML = "ggml-org/llama.cpp ggml/src/ggml-common.h: bytes of a block over its 32 (K: 256) weights"
_FILE_TYPES = (
    "ggml-org/llama.cpp@311c2c9f:tools/quantize/README.md: bits of a weight of Llama-3.1-8B in a file of the type"
)
_MATRICES = (*_LINEAR, "embedding", "lm_head")
_NF4 = "Dettmers et al., QLoRA (arXiv 2305.14314), section 3: scales of 64 weights in 32 bits, or in 8 and 32 for 256"
_UNDONE = (
    "vllm-project/vllm@0406fb9f:vllm/model_executor/model_loader/bitsandbytes_loader.py: doubled scales are undone"
)


def _ggml(name: str, block: int, *, cache: bool = True) -> Format:
    """A type of ggml's tensors: bytes of a block of 32 weights, scales included."""
    bits = int(name.partition("_")[0].lstrip("iq"))
    return Format(
        name, bits, block / 4 - bits, None, 32, _MATRICES, kv_cache=cache, sources=(_GGML,), endings=_file_endings(name)
    )


def _file_type(name: str, bits: float) -> Format:
    """A mixture of ggml's types, as GGUF files are named: mean bits of a weight of the whole file."""
    whole = int(name.partition("_")[0].lstrip("iq"))
    return Format(
        name,
        whole,
        round(bits - whole, 4),
        None,
        32,
        _MATRICES,
        sources=(_FILE_TYPES, _GGML),
        endings=_file_endings(name),
    )


def _file_endings(name: str) -> tuple[str, ...]:
    return (name.replace("_", ""),)


_GROUPED_ENDINGS = {
    (4, 128): (
        "awq", "awqint4", "awq4bit", "awqw4a16", "gptq", "gptqint4", "gptq4bit", "gptqw4a16", "int4", "int4awq",
        "int4gptq", "w4a16", "w4a16g128", "quantizedw4a16", "autoround", "autoroundint4", "int4autoround",
    ),
    (8, 128): ("gptqint8", "gptq8bit", "int8gptq"),
}  # fmt: skip
"""What publishers call checkpoints with integers in groups; AWQ and GPTQ alone are 4 bits, in groups of 128 mostly."""


def _grouped(bits: int, group: int) -> Format:
    name = f"int{bits}-g{group}"
    # One fp16 scale and one zero point of the weight's own width per group.
    metadata = (16 + bits) / group
    aliases: tuple[str, ...] = (f"gptq-{name}", f"awq-{name}")
    if (bits, group) == (4, 128):
        aliases = (*aliases, "int4", "gptq", "awq", "w4a16")
    endings = _GROUPED_ENDINGS.get((bits, group), ())
    return Format(name, bits, metadata, None, group, _LINEAR, aliases=aliases, sources=(_GPTQ, _AWQ), endings=endings)


FORMATS = (
    Format("fp32", 32, compute="fp32", kv_cache=True, aliases=("float32",), sources=("IEEE 754-2019",)),
    Format(
        "bf16",
        16,
        compute="bf16",
        kv_cache=True,
        aliases=("bfloat16",),
        sources=("Intel BFLOAT16 Hardware Numerics Definition rev 1.0",),
    ),
    Format("fp16", 16, compute="fp16", kv_cache=True, aliases=("float16", "half"), sources=("IEEE 754-2019",)),
    Format(
        "fp8",
        8,
        compute="fp8",
        covers=_LINEAR,
        kv_cache=True,
        aliases=("fp8_e4m3", "fp8_e5m2", "float8"),
        sources=("OCP 8-bit Floating Point Specification (OFP8) v1.0",),
        endings=("fp8", "fp8dynamic", "fp8static", "fp8kv", "dynamicfp8", "float8", "quantizedw8a8fp8"),
    ),
    Format(
        "fp8-block128",
        8,
        32 / (128 * 128),
        "fp8",
        128,
        _LINEAR,
        aliases=("fp8-block",),
        sources=("DeepSeek-V3 Technical Report (arXiv 2412.19437), section 3.3",),
        endings=("fp8block",),
    ),
    Format("mxfp8", 8, 8 / 32, "fp8", 32, _LINEAR, sources=(_OCP,), endings=("mxfp8",)),
    Format(
        "int8",
        8,
        compute="int8",
        covers=_LINEAR,
        kv_cache=True,
        aliases=("w8a8", "int8-w8a8"),
        sources=("Xiao et al., SmoothQuant (arXiv 2211.10438)",),
        endings=("int8", "w8a8", "w8a8int8", "quantizedw8a8"),
    ),
    Format(
        "int8-weight-only",
        8,
        covers=_LINEAR,
        aliases=("w8a16", "eetq"),
        sources=("Dettmers et al., LLM.int8() (arXiv 2208.07339)",),
        endings=("w8a16", "quantizedw8a16", "bnb8bit"),
    ),
    Format("nf4-double", 4, 8 / 64 + 32 / (64 * 256), None, 64, _LINEAR, sources=(_NF4,)),
    Format(
        "nf4",
        4,
        32 / 64,
        None,
        64,
        _LINEAR,
        aliases=("bnb-4bit", "bnb-nf4"),
        sources=(_NF4, _UNDONE),
        endings=("bnb4bit", "unslothbnb4bit", "nf4", "bnbnf4"),
    ),
    Format(
        "fp8-weight-only",
        8,
        covers=_LINEAR,
        aliases=("fp8-w8a16",),
        sources=("OCP 8-bit Floating Point Specification (OFP8) v1.0",),
    ),
    _grouped(4, 128),
    _grouped(4, 64),
    _grouped(4, 32),
    _grouped(8, 128),
    Format(
        "mxfp4",
        4,
        8 / 32,
        "fp4",
        32,
        ("routed_experts",),
        aliases=("mxfp4-experts",),
        endings=("mxfp4",),
        sources=(_OCP, "openai/gpt-oss-120b model card"),
    ),
    _ggml("q4_0", 18),
    _ggml("q4_1", 20),
    _ggml("q5_0", 22),
    _ggml("q5_1", 24),
    _ggml("q8_0", 34),
    _ggml("iq4_nl", 18),
    _file_type("q2_k", 3.1593),
    _file_type("q3_k_s", 3.6429),
    _file_type("q3_k_l", 4.2979),
    _file_type("q4_k_s", 4.6672),
    _file_type("q4_k_m", 4.8944),
    _file_type("q5_k_s", 5.5704),
    _file_type("q5_k_m", 5.7036),
    _file_type("q6_k", 6.5633),
    _file_type("iq4_xs", 4.4597),
    Format(
        "nvfp4",
        4,
        8 / 16,
        "fp4",
        16,
        _LINEAR,
        kv_cache=True,
        aliases=("fp4",),
        sources=(_NVFP4,),
        endings=("nvfp4", "fp4", "nvfp4a16"),
    ),
)
