"""QNT003 weight-only-on-compute-bound."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import (
    Accelerator,
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Point, Service
from servelint_rules.qnt.weights import (
    SIXTEEN_BIT,
    Dequantized,
    busy_s,
    dequantized,
    weights_path,
    wide_name,
    with_formats,
    written,
)
from servelint_rules.show import counted, duration, tokens

NATIVE = ("fp8", "int8")
INTEGER_KERNELS = ("llama.cpp",)
"""Engines that multiply their weight-only formats in integers, without a 16-bit copy."""

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.quantization]
weights = "int4-g128" # expect: QNT003
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192
[workload]
prompt_tokens = 12000
output_tokens = 10
rate = "2 req/s"
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-8b-int4"
tasks = { code = -0.4 }
"""
PLAIN = SPEC.replace(" # expect: QNT003", "")


class WeightOnlyOnComputeBound(Rule):
    """Weights are narrow in memory only, and at the load that is served arithmetic decides.

    What it checks
    --------------
    Formats that are dequantized to 16 bit before they multiply (int4 groups, 8-bit weights with 16-bit activations)
    at the deployment's operating point: what a request takes of the devices' time, prefill included, against the same
    with 16-bit weights. Silent where 16-bit weights leave no room for twice the sequences that decode, at the p99
    context, since then room is what the format is for; with pools of their own; for llama.cpp, which multiplies in
    integers; and for formats that only lack a native path on this device (HW006, QNT007).

    Why it is bad
    -------------
    A compute-bound step reads its weights while it waits for the tensor cores, so fewer bytes are no gain, and the
    dequantization is work on top: prefill of 4-bit weights was measured slower than that of 16-bit ones. What is
    paid for with quality buys nothing.

    The arithmetic
    --------------
    ``gain = device time of a request with 16-bit weights / the same as deployed``, the dequantization itself not
    counted: below the option ``gain`` it is reported. The time is that of the steps that work, over the requests that
    they finish.

    How to fix
    ----------
    A format with a native path, of which the help line gives the gain; or 16 bit.

    Source
    ------
    docs/cost-model.md, quantization; vllm-project/vllm#1545 and NVIDIA/TensorRT-LLM#2553 (weight-only formats slower
    than 16 bit in prefill).
    """

    code = "QNT003"
    name = "weight-only-on-compute-bound"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("may I quantize this", "why is it slower than planned")
    options = (
        Option("gain", 1.1, "speed-up of a request's device time below which the format gains nothing", 1.0, 8.0),
    )
    failing = (
        Case("long prompts and short answers", SPEC, flip=("workload.prompt_tokens", "600")),
        Case(
            "the shortest prompts from which on nothing is gained",
            SPEC.replace("12000", "1077").replace("output_tokens = 10", "output_tokens = 1"),
            flip=("workload.prompt_tokens", "1076"),
        ),
        Case(
            "nothing but prefill, 8-bit weights on A100",
            SPEC.replace("nvidia/h100-sxm5-80gb", "nvidia/a100-sxm4-80gb")
            .replace("int4-g128", "int8-weight-only")
            .replace("output_tokens = 10", "output_tokens = 1")
            .replace("2 req/s", "0.4 req/s"),
            flip=("policy.quantization.weights", '"int8"'),
        ),
        Case(
            "FP8 weights that are told to multiply in 16 bit",
            SPEC.replace(
                'weights = "int4-g128" # expect: QNT003', 'weights = "fp8" # expect: QNT003\nactivations = "bf16"'
            ),
            flip=("policy.quantization.activations", '"auto"'),
        ),
    )
    passing = (
        Case("short prompts, which the weights decide", PLAIN.replace("= 12000", "= 600")),
        Case("the same prompts in a native format", PLAIN.replace("int4-g128", "fp8")),
        Case(
            "weights that do not fit in 16 bit",
            PLAIN.replace("Llama-3.1-8B", "Llama-3.1-70B").replace("2 req/s", "0.2 req/s"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Set the device time of a request beside that with 16-bit weights."""
        composition = review.composition
        if composition is None or composition.scheduler.disaggregation is not None:
            yield Lacks("a composed deployment without pools of its own")
            return
        found = dequantized(composition)
        if found is None or not _chosen(review, found) or composition.setup.engine.name in INTEGER_KERNELS:
            return
        point = review.operating_point
        if point is None:
            yield Lacks("an operating point: workload lengths and a load that is carried")
            return
        wide = with_formats(review, weights=wide_name(review))
        if wide is None or not _holds(wide, point):
            return
        then = _same_point(wide, point)
        gain = busy_s(then) / busy_s(point)
        if gain < self.option("gain"):
            yield self._finding(review, found, point, then, gain)

    def _finding(self, review: Review, found: Dequantized, point: Point, then: Point, gain: float) -> Finding:
        path, name = weights_path(review), wide_name(review)
        own, before = busy_s(point), busy_s(then)
        prefill = point.mixed_share * point.average_mixed_s / point.requests_per_step / own
        accelerator = _accelerator(point.service.composition)
        rated, rate = accelerator.rate(name)
        native = _native(review, then, self.option("gain"))
        advice, fix = f"keep the weights in {name}", None
        if native is not None:
            other, better = native
            wide = review.policy("quantization").activations not in (None, "auto")
            # Where the checkpoint's name says the format, no edit of it makes another.
            declared = path[-1] == "weights" and written(review, path) and not wide
            shown = f"{better:.2f}x the speed of {name}, with a native path"
            advice = f'policy.quantization.weights = "{other}" gives {shown}; or {advice}' if declared else (
                f"{'without 16-bit activations ' * wide}{other} weights give {shown}; or {advice}"
            )  # fmt: skip
            if declared:
                fix = Fix(f"use {other}", (Edit(path, f'"{other}"'),))
        return Finding(
            path,
            f"{found.format.name} weights are dequantized to 16 bit, and with {prefill:.0%} of the work in steps with "
            f"prefill arithmetic decides: a request takes {duration(own)} of the devices, with {name} weights "
            f"{duration(before)}, the dequantization not counted",
            equation=(
                f"{duration(before)} / {duration(own)} = {gain:.2f}x at "
                f"{counted(point.batch, 'decoding sequence')} and prompts of {tokens(point.service.mix.new_prompt)} "
                "tokens"
            ),
            inputs=(
                Input("bits an element", found.format.bits_per_element, "bit", found.format.source),
                Input(f"{rated} rate", rate, "FLOP/s", accelerator.source("compute", f"dense_flops.{rated}")),
            ),
            help=advice,
            related=(Related(("workload", "prompt_tokens"), "the prompts"),) if review.declared(
                "workload", "prompt_tokens") else (),
            fix=fix,
        )  # fmt: skip


def _chosen(review: Review, found: Dequantized) -> bool:
    """Whether the format is weight-only by itself, or made so by 16-bit activations."""
    if found.format.compute is None:
        return True
    config = review.policy("quantization")
    if config.activations in (None, "auto"):
        return False
    native = _accelerator(review.composition).dense_flops if review.composition is not None else {}
    return found.format.compute in native and review.plugins.format(config.activations).compute in SIXTEEN_BIT


def _holds(wide: Composition, point: Point) -> bool:
    """Whether 16-bit weights leave room for twice the sequences that decode, at long contexts."""
    return wide.memory.resident_sequences(point.service.mix.context(0.99)) >= max(2 * point.batch, 1.0)


def _same_point(other: Composition, point: Point) -> Point:
    service = point.service
    return Service(other, service.mix, open_loop=service.open_loop).point(point.batch)


def _native(review: Review, wide: Point, least: float) -> tuple[str, float] | None:
    """The format with a native path that gains most on the 16-bit step, and by how much."""
    accelerator = _accelerator(wide.service.composition)
    found: tuple[str, float] | None = None
    for name in NATIVE:
        if name not in accelerator.native_formats or name not in accelerator.dense_flops:
            continue
        other = with_formats(review, weights=name)
        if other is not None:
            gain = busy_s(wide) / busy_s(_same_point(other, wide))
            if gain >= least and (found is None or gain > found[1] * 1.01):
                found = name, gain
    return found


def _accelerator(composition: Composition) -> Accelerator:
    return composition.setup.topology.accelerator
