"""Built-in number formats: bits with metadata, the precision of their native path, what they cover."""

from __future__ import annotations

from servelint.plugin import Format

_LINEAR = ("attention", "mlp", "shared_experts", "routed_experts", "ssm", "mtp")
_OCP = "OCP Microscaling Formats (MX) Specification v1.0"
_NVFP4 = "NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference (2025)"
_GPTQ = "Frantar et al., GPTQ (arXiv 2210.17323): group scale fp16, zero point of the weight's own bits"
_AWQ = "Lin et al., AWQ (arXiv 2306.00978): group scale fp16, zero point of the weight's own bits"


def _grouped(bits: int, group: int) -> Format:
    name = f"int{bits}-g{group}"
    # One fp16 scale and one zero point of the weight's own width per group.
    metadata = (16 + bits) / group
    aliases: tuple[str, ...] = (f"gptq-{name}", f"awq-{name}")
    if (bits, group) == (4, 128):
        aliases = (*aliases, "int4", "gptq", "awq", "w4a16")
    return Format(name, bits, metadata, None, group, _LINEAR, aliases=aliases, sources=(_GPTQ, _AWQ))


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
    ),
    Format("mxfp8", 8, 8 / 32, "fp8", 32, _LINEAR, sources=(_OCP,)),
    Format(
        "int8",
        8,
        compute="int8",
        covers=_LINEAR,
        kv_cache=True,
        aliases=("w8a8", "int8-w8a8"),
        sources=("Xiao et al., SmoothQuant (arXiv 2211.10438)",),
    ),
    Format(
        "int8-weight-only",
        8,
        covers=_LINEAR,
        aliases=("w8a16", "eetq"),
        sources=("Dettmers et al., LLM.int8() (arXiv 2208.07339)",),
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
        sources=(_OCP, "openai/gpt-oss-120b model card"),
    ),
    Format("nvfp4", 4, 8 / 16, "fp4", 16, _LINEAR, kv_cache=True, aliases=("fp4",), sources=(_NVFP4,)),
)
