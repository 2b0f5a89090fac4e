"""QNT007 fallback-kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import evolve

from servelint.plugin import Case, Composition, Finding, Input, Lacks, Option, Related, Review, Rule, Severity, Source
from servelint.service import Service
from servelint_rules.layouts import on_accelerator
from servelint_rules.qnt.weights import busy_s, dequantized, weights_path, wide_name
from servelint_rules.show import duration, flops

FASTER: Mapping[str, float] = {"fp8": 2.0, "int8": 2.0, "fp4": 4.0}
"""How many times the 16-bit rate a native path of a format usually has."""

EIGHT_BIT = ("fp8", "int8")
MEANT_WEIGHT_ONLY = ("mxfp4",)
"""Formats that published checkpoints come in with 16-bit activations: the fallback is how they are meant to run."""

FLASH = ("FLASH_ATTN", "FLASH_ATTN_VLLM_V1", "FLASH-ATTN", "FLASH_ATTENTION")
WITH_SINKS = (9, 10)
"""Major compute capabilities on which vLLM's FlashAttention is of a version with attention sinks (3 and 4)."""

FLASH_FILE = "vllm-project/vllm vllm/v1/attention/backends/flash_attn.py"
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "Qwen/Qwen3-8B-FP8" # expect: QNT007
max_model_len = 8192
[policy.batching]
max_sequences = 32
max_batched_tokens = 2048
[workload]
prompt_tokens = 4000
output_tokens = 20
rate = "2 req/s"
[slo]
ttft = { p99 = "2 s" }
"""
SINKS = """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-4090"
[model]
id = "openai/gpt-oss-20b"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
attention_backend = "FLASH_ATTN" # expect: QNT007
"""


class FallbackKernel(Rule):
    """This combination of checkpoint, attention and device has no kernel of its own.

    What it checks
    --------------
    The format that a checkpoint is published in against the accelerator's native formats: without one the weights
    are dequantized to 16 bit before they multiply. And attention with sinks (gpt-oss) on vLLM's FlashAttention
    backend, whose versions 3 and 4 alone have them. Silent for a format that the spec itself declares (HW006), for
    weight-only formats (QNT003), for MXFP4, which is published to run with 16-bit activations, and where the engine
    is known to refuse the weights (ENG004).

    Why it is bad
    -------------
    A fallback is legal and slow: the bytes are those of the narrow format, the arithmetic that of 16 bit. Figures of
    the checkpoint's card were measured on hardware with the native path. A backend without sinks exits.

    The arithmetic
    --------------
    The price is the device time of a request as it runs, over the same with a native path at the usual 2 (8 bit) or
    4 (4 bit) times the 16-bit rate. From the option ``price`` on it is reported, as advice: objectives that break
    for it are other rules' findings. A backend without sinks is an error.

    How to fix
    ----------
    A device with the native path, or a checkpoint in a format that this one multiplies. For sinks the Triton
    backend.

    Source
    ------
    vllm-project/vllm vllm/model_executor/layers/quantization/utils/marlin_utils_fp8.py (FP8 below compute capability
    8.9) and vllm/v1/attention/backends/flash_attn.py (sinks); vllm-project/vllm#22331.
    """

    code = "QNT007"
    name = "fallback-kernel"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("why is it slower than planned", "does it start")
    options = (Option("price", 1.2, "times the device time with a native path from which on it is reported", 1.0, 8.0),)
    failing = (
        Case("an FP8 checkpoint on Ampere", SPEC, flip=("hardware.accelerator", '"nvidia/h100-sxm5-80gb"')),
        Case(
            "sinks on FlashAttention 2",
            SINKS,
            flip=("engine.attention_backend", '"TRITON_ATTN"'),
        ),
    )
    passing = (
        Case(
            "decoding hardly notices",
            SPEC.replace(" # expect: QNT007", "")
            .replace("4000", "100")
            .replace("= 20\n", "= 400\n")
            .replace("2 req/s", "0.1 req/s"),
        ),
        Case(
            "MXFP4 experts on Ampere are meant to run so",
            SPEC.replace("Qwen/Qwen3-8B-FP8", "openai/gpt-oss-20b").replace(" # expect: QNT007", ""),
        ),
        Case(
            "sinks on FlashAttention 3",
            SINKS.replace("nvidia/rtx-4090", "nvidia/h100-sxm5-80gb").replace(" # expect: QNT007", ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look at the attention backend, then at the checkpoint's format."""
        composition = review.composition
        if composition is None:
            yield Lacks("a composed deployment")
            return
        yield from _sinks(review, composition)
        found = dequantized(composition)
        architecture = composition.setup.architecture
        config = review.policy("quantization")
        if found is None or found.format.compute is None or found.format.name in MEANT_WEIGHT_ONLY:
            return
        declared = config.weights not in (None, "auto") or config.activations not in (None, "auto")
        if declared or architecture.quantization is None or review.refusals:
            return
        accelerator = composition.setup.topology.accelerator
        compute = found.format.compute
        if compute not in FASTER or compute in (*accelerator.native_formats, *accelerator.dense_flops):
            return
        point = review.operating_point
        if point is None or composition.scheduler.disaggregation is not None:
            yield Lacks("an operating point of a replica without pools")
            return
        rate = accelerator.rate(wide_name(review))
        native = on_accelerator(
            composition,
            evolve(accelerator, dense_flops={**accelerator.dense_flops, compute: rate[1] * FASTER[compute]}),
        )
        if native is None:
            return
        service = point.service
        then = Service(native, service.mix, open_loop=service.open_loop).point(point.batch)
        price = busy_s(point) / busy_s(then)
        if price < self.option("price"):
            return
        yield Finding(
            weights_path(review),
            f"the checkpoint is in {found.format.name} and {accelerator.name} ({accelerator.architecture}) has no "
            f"{compute} path: its weights multiply at the {rate[0]} rate of {flops(rate[1])}, and a request takes "
            f"{duration(busy_s(point))} of the devices instead of {duration(busy_s(then))} with a native path",
            equation=(
                f"{duration(busy_s(point))} / {duration(busy_s(then))} = {price:.2f}x, the dequantization not counted"
            ),
            inputs=(
                Input(
                    "native formats", ", ".join(accelerator.native_formats), "", accelerator.source("native", "formats")
                ),
                Input(f"{rate[0]} rate", rate[1], "FLOP/s", accelerator.source("compute", f"dense_flops.{rate[0]}")),
            ),
            help=_help(review, composition),
            related=(Related(_hardware(review), f"{accelerator.architecture}: no native {compute}"),),
        )


def _help(review: Review, composition: Composition) -> str:
    accelerator = composition.setup.topology.accelerator
    narrow = [name for name in EIGHT_BIT if name in accelerator.native_formats and name in accelerator.dense_flops]
    other = f"a checkpoint in {narrow[0]}, which it multiplies natively, or " if narrow else ""
    return f"plan with the 16-bit rate, or use {other}a device with the native path"


def _hardware(review: Review) -> tuple[str, ...]:
    for key in ("accelerator", "instance"):
        if review.declared("hardware", key):
            return ("hardware", key)
    return ("hardware",)


def _sinks(review: Review, composition: Composition) -> Iterator[Finding]:
    accelerator, engine = composition.setup.topology.accelerator, review.engine
    backend = (review.deployment.engine.attention_backend or "").upper()
    if backend not in FLASH or engine is None or engine.name != "vllm" or not accelerator.capability:
        return
    sinks = any(t.name == "sinks" for block in composition.setup.architecture.blocks for t in block.tensors)
    path = ("engine", "attention_backend")
    if not sinks or accelerator.capability[0] in WITH_SINKS or any(p == path for p, _, _ in review.refusals):
        return
    yield Finding(
        path,
        f"{composition.setup.architecture.id} attends to sinks, which FlashAttention has from version 3 on, and on "
        f"{accelerator.name} (compute capability {accelerator.compute_capability}) vLLM runs version 2: it exits at "
        "start",
        equation=f"compute capability {accelerator.compute_capability} is neither 9.x (version 3) nor 10.x (version 4)",
        inputs=(Input("attention backend", backend, "", Source("engine", FLASH_FILE, "sinks")),),
        help='set engine.attention_backend = "TRITON_ATTN", which has sinks on every device',
        related=(Related(_hardware(review), f"compute capability {accelerator.compute_capability}"),),
        severity=Severity.ERROR,
        confidence="high",
    )
