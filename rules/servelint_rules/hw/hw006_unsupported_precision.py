"""HW006 unsupported-precision."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import (
    Accelerator,
    Architecture,
    Case,
    CatalogueError,
    Finding,
    Format,
    Input,
    Lacks,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint_rules.qnt.weights import weights_path, written
from servelint_rules.show import flops

SIXTEEN_BIT = ("bf16", "fp16")
MEANT_WEIGHT_ONLY = ("mxfp4",)
"""Formats of published checkpoints with 16-bit activations: the fallback is how they are meant to run."""


class UnsupportedPrecision(Rule):
    """A declared format has no native path on this accelerator's architecture.

    What it checks
    --------------
    ``policy.quantization.weights`` and ``activations`` against the formats that the accelerator multiplies
    natively, and the checkpoint's own format where no load is declared that QNT007 could price it at. Silent for
    weight-only formats, for narrow weights with 16-bit activations (which say the same), for MXFP4 checkpoints
    (published to run with 16-bit activations), and for the KV cache, which is storage: whether a kernel reads it is
    QNT006's question. On devices without bf16 also the 16-bit format: declared, or the checkpoint's own when nothing
    says ``fp16``; a release that is known to refuse it is ENG004's finding.

    Why it is bad
    -------------
    Engines then dequantize to 16 bit (FP8 on Ampere, NVFP4 on Hopper) or refuse to load: advice where the engine is
    known to do the former, and for a checkpoint that is published so, else a warning. Bytes shrink, so
    small-batch decode gains; arithmetic stays at the 16-bit rate, so prefill and large batches gain nothing and
    pay for the dequantization. Where bf16 is missing, engines refuse it or convert to fp16, whose range ends at
    65,504.

    The arithmetic
    --------------
    ``time = max(bytes x narrow / bandwidth, FLOPs / 16-bit rate)``: only the first term shrinks.

    How to fix
    ----------
    Declare what runs (a weight-only format, or ``activations = "bf16"`` beside the weights), or choose the
    format that the help line names: the widest gain that this accelerator multiplies natively. For bf16: fp16.

    Source
    ------
    Native formats of the accelerator's datasheet. Fallbacks: vllm-project/vllm
    vllm/model_executor/layers/quantization/utils/marlin_utils_fp8.py and marlin_utils_fp4.py;
    vllm-project/vllm#17265 (fp16 for bf16 checkpoints); sgl-project/sglang
    python/sglang/srt/model_executor/model_runner.py (the same below compute capability 8.0).
    """

    code = "HW006"
    name = "unsupported-precision"
    severity = Severity.WARNING
    questions = ("does it start", "why is it slower than planned")
    failing = (
        Case(
            "FP8 on Ampere",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8" # expect: HW006
""",
            flip=("policy.quantization.weights", '"int8"'),
        ),
        Case(
            "NVFP4 on Hopper",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "nvfp4" # expect: HW006
""",
            flip=("policy.quantization.weights", '"fp8"'),
        ),
        Case(
            "bf16 on Turing",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/t4"
[model]
id = "Qwen/Qwen2.5-1.5B"
max_model_len = 4096
[policy.quantization]
activations = "bf16" # expect: HW006
""",
            flip=("policy.quantization.activations", '"fp16"'),
        ),
        Case(
            "a release that converts a bf16 checkpoint to fp16",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/v100-sxm2-32gb"
[model]
id = "Qwen/Qwen2.5-1.5B" # expect: HW006
max_model_len = 4096
[engine]
name = "vllm"
version = "0.9.2"
args = "--dtype auto"
""",
            flip=("engine.args", '"--dtype half"'),
        ),
        Case(
            "a release that runs FP8 on Ampere for its bytes",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
args = "--quantization fp8" # expect: HW006
""",
            flip=("hardware.accelerator", '"nvidia/l40s"'),
        ),
        Case(
            "a checkpoint that comes in FP8, with no load to price it at",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "Qwen/Qwen3-8B-FP8" # expect: HW006
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
""",
            flip=("hardware.accelerator", '"nvidia/l40s"'),
        ),
    )
    passing = (
        Case(
            "FP8 on the first architecture that multiplies it",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
""",
        ),
        Case(
            "FP8 weights that are declared weight-only",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
activations = "bf16"
""",
        ),
        Case(
            "an FP8 cache on Ampere is storage",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
kv_cache = "fp8"
""",
        ),
        Case(
            "a checkpoint that comes in MXFP4",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "openai/gpt-oss-20b"
max_model_len = 8192
""",
        ),
        Case(
            "fp16 where bf16 is missing",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/t4"
[model]
id = "Qwen/Qwen2.5-1.5B"
max_model_len = 4096
[policy.quantization]
weights = "fp16"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the declared formats with what the accelerator multiplies."""
        accelerator = review.accelerator
        if accelerator is None or not accelerator.native_formats:
            yield Lacks("an accelerator whose native formats are known")
            return
        if any(path[-1] in ("weights", "activations", "id", "config", "accelerator") for path, _, _ in review.refusals):
            # The engine refuses the format or the device at start, which ENG004 reports.
            return
        native = {*accelerator.native_formats, *accelerator.dense_flops}
        weights, activations = _format(review, "weights"), _format(review, "activations")
        wide = activations is not None and activations.name in SIXTEEN_BIT
        for key, declared in (("weights", weights), ("activations", activations)):
            if declared is None or declared.compute is None or declared.compute in native:
                continue
            if declared.compute in SIXTEEN_BIT:
                if _lacks_bf16(accelerator) and declared.compute == "bf16":
                    yield _without_bf16(review, accelerator, _path(review, key), declared.name, Severity.WARNING)
                    return
            elif not (key == "weights" and (wide or _checkpoint(review) is declared)):
                yield _fallback(review, accelerator, key, declared)
                return
        own = _checkpoint(review)
        runs_so = own is None or own.name in MEANT_WEIGHT_ONLY or own.compute in (None, *native, *SIXTEEN_BIT)
        if own is not None and not runs_so and weights in (None, own) and not wide and review.operating_point is None:
            yield _fallback(review, accelerator, "weights", own, published=True)
            return
        yield from self._checkpoint_in_bf16(review, accelerator, weights, activations)

    def _checkpoint_in_bf16(
        self, review: Review, accelerator: Accelerator, weights: Format | None, activations: Format | None
    ) -> Iterator[Finding | Lacks]:
        architecture = review.architecture
        if architecture is None or not _lacks_bf16(accelerator) or "fp16" in (_name(weights), _name(activations)):
            return
        if _named(review, architecture.stored) != "bf16" or _says_fp16(review):
            return
        launched = review.document.launched
        if review.declared("engine", "args_from") and (launched is None or not launched.read):
            yield Lacks("the 16-bit format that the launch arguments ask for")
            return
        path = ("model", "id") if review.declared("model", "id") else ("model", "config")
        yield _without_bf16(review, accelerator, path, architecture.stored, Severity.INFO)


def _format(review: Review, key: str) -> Format | None:
    """The declared format, None when the spec and the engine's arguments name none that exists."""
    config = review.policy("quantization") or review.deployment.policies.get("quantization")
    name = getattr(config, key, None)
    try:
        return None if name in (None, "auto") else review.plugins.format(name)
    except CatalogueError:
        return None


def _name(declared: Format | None) -> str:
    return "" if declared is None else declared.name


def _named(review: Review, name: str) -> str:
    try:
        return review.plugins.format(name).name
    except CatalogueError:
        return name


def _checkpoint(review: Review) -> Format | None:
    """The format that the checkpoint is quantized in."""
    architecture = review.architecture
    if architecture is None or architecture.quantization is None:
        return None
    try:
        return review.plugins.format(architecture.quantization.format)
    except CatalogueError:
        return None


def _path(review: Review, key: str) -> KeyPath:
    path = ("policy", "quantization", key)
    return path if review.declared(*path) else ("engine", "args")


def _lacks_bf16(accelerator: Accelerator) -> bool:
    """Whether a CUDA part positively has fp16 and no bf16 (Volta, Turing)."""
    return (
        accelerator.compute_capability is not None
        and "fp16" in accelerator.native_formats
        and "bf16" not in (*accelerator.native_formats, *accelerator.dense_flops)
    )


def _says_fp16(review: Review) -> bool:
    return re.search(r"\bhalf\b|\bfloat16\b|\bfp16\b", str(review.deployment.engine.args)) is not None


def _sixteen_bit_rate(accelerator: Accelerator) -> tuple[str, float] | None:
    return next(((n, accelerator.dense_flops[n]) for n in SIXTEEN_BIT if n in accelerator.dense_flops), None)


def _fallback(
    review: Review, accelerator: Accelerator, key: str, declared: Format, *, published: bool = False
) -> Finding:
    """The finding for a format, declared or the checkpoint's own, whose arithmetic falls back to 16 bit."""
    engine, version = review.engine, review.engine_version
    runs = (
        key == "weights"
        and engine is not None
        and review.plugins.engine_dequantizes(engine, version, declared, accelerator)
    )
    path = weights_path(review) if published else _path(review, key)
    rate = _sixteen_bit_rate(accelerator)
    slow = f"the {rate[0]} rate of {flops(rate[1])}" if rate else "the 16-bit rate"
    stored = _stored_bytes(review, review.architecture)
    bits = f"bytes shrink ({stored:g} to {declared.bytes_per_element:.3g} a parameter)" if stored else "bytes shrink"
    inputs = [
        review.input(key, declared.name, "", *path),
        Input(
            "native formats",
            ", ".join(accelerator.native_formats),
            "",
            accelerator.source("native", "formats"),
        ),
    ]
    if rate:
        inputs.append(
            Input(f"{rate[0]} rate", rate[1], "FLOP/s", accelerator.source("compute", f"dense_flops.{rate[0]}"))
        )
    if key == "activations":
        bits = "nothing is quantized in the arithmetic"
    return Finding(
        path,
        f"{accelerator.name} ({accelerator.architecture}) has no {declared.compute} path: with {declared.name} {key} "
        f"{bits}, arithmetic stays at {slow}"
        + ("; the engine runs them with weight-only kernels" if runs else ", or the engine refuses to load"),
        equation=(
            f"GEMM rate = 16-bit rate ({declared.compute} is not among {', '.join(accelerator.native_formats)}); "
            "only bandwidth-bound steps gain"
        ),
        inputs=tuple(inputs),
        help=_help(accelerator, key, rate, spec=written(review, path) and not published),
        related=(Related(("hardware", "accelerator"), f"{accelerator.architecture}: no native {declared.compute}"),),
        severity=Severity.INFO if runs or published else None,
        confidence="high",
    )


def _stored_bytes(review: Review, architecture: Architecture | None) -> float | None:
    if architecture is None:
        return None
    try:
        return review.plugins.format(architecture.stored).bytes_per_element
    except CatalogueError:
        return None


def _help(accelerator: Accelerator, key: str, wide: tuple[str, float] | None, *, spec: bool) -> str:
    """Name the native narrow format that gains most, and how to say that the fallback is meant; no flag says that."""
    narrow = {n: accelerator.dense_flops[n] for n in ("fp8", "int8") if n in accelerator.native_formats
              and accelerator.dense_flops.get(n, 0.0) > (wide[1] if wide else 0.0)}  # fmt: skip
    best = max(narrow, key=lambda n: narrow[n], default=None)
    checkpoint = "" if spec else "a checkpoint in "
    native = (
        f'use {checkpoint}"{best}", which runs natively at {flops(narrow[best])}' if best else "use a 16-bit format"
    )
    if key == "activations":
        return native
    name = wide[0] if wide else SIXTEEN_BIT[0]
    if not spec:
        return f"{native}; or keep it for its bytes, and plan with the {name} rate"
    return f'{native}; or say that only storage shrinks: activations = "{name}" beside the weights'


def _without_bf16(review: Review, accelerator: Accelerator, path: KeyPath, stored: str, severity: Severity) -> Finding:
    """The finding for bf16 on a part that has fp16 only."""
    own = _checkpoint(review) if path[0] == "model" else None
    narrow = own is not None and own.bits < 16
    meant = (
        "the spec asks for" if path[0] != "model" else f"the checkpoint {'computes in' if narrow else 'is stored in'}"
    )
    # Weights in fp16 would be another checkpoint where these are quantized.
    said = "--dtype half" if narrow else 'policy.quantization.weights = "fp16", --dtype half'
    return Finding(
        path,
        f"{meant} {stored} and {accelerator.name} (compute capability {accelerator.compute_capability}) multiplies "
        "fp16 only: engines refuse to start or convert to fp16, whose largest number is 65,504",
        equation=f"bf16 is not among {', '.join(accelerator.native_formats)}: it needs compute capability 8.0",
        inputs=(
            review.input("format", stored, "", *path),
            Input(
                "native formats",
                ", ".join(accelerator.native_formats),
                "",
                accelerator.source("native", "formats"),
            ),
        ),
        help=f"say fp16 ({said}), and check outputs for overflow",
        related=(Related(("hardware", "accelerator"), f"{accelerator.architecture}: fp16, no bf16"),),
        severity=severity,
        confidence="high",
    )
