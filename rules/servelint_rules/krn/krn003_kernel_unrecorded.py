"""KRN003 kernel-unrecorded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint_rules.layouts import decode_side
from servelint_rules.qnt.weights import weights_path

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B-FP8"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[[evidence]]
kind = "benchmark" # expect: KRN003
"""
CACHE = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
attention_backend = "FLASHINFER"
[policy.quantization]
kv_cache = "fp8"
[[evidence]]
kind = "benchmark"
artifact = "meta-llama/Llama-3.1-8B"
"""
TRACE = '[[evidence]]\nkind = "kernel-trace"\nengine_version = "0.11.0"\n'


class KernelUnrecorded(Rule):
    """A figure was measured on narrow formats, and nothing records which kernels ran.

    What it checks
    --------------
    Deployments with a measurement (``[[evidence]]`` of kind ``benchmark``, a claim with a result file) whose weights
    or KV cache have fewer than 16 bits: whether ``[[evidence]]`` of kind ``kernel-trace`` of the deployed release
    records the kernels. For the KV cache alone a declared attention backend, or kernel, does. Off unless preview rules
    are selected: that a missing record is worth a line is a judgement.

    Why it is bad
    -------------
    For narrow formats engines choose between several kernels by device, shape and release, and fall back silently.
    The same flags on the next release, or one more device, may run another kernel at half of the speed: without a
    record the figure cannot be told from one of a fallback, and qualifies nothing else.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Keep the engine's start-up log or a profile of one step, and declare it as evidence with the engine's release.

    Source
    ------
    vllm-project/vllm vllm/model_executor/kernels and vllm/model_executor/layers/quantization: several kernels a
    format, chosen at start.
    """

    code = "KRN003"
    name = "kernel-unrecorded"
    severity = Severity.INFO
    preview = True
    questions = ("is this benchmark of what is deployed",)
    failing = (
        Case("a benchmark of an FP8 checkpoint", SPEC, flip=("model.id", '"Qwen/Qwen3-8B"')),
        Case(
            "a record of another release",
            SPEC + TRACE.replace("0.11.0", "0.10.2"),
            flip=("evidence[1].engine_version", '"0.11.1"'),
        ),
        Case(
            "an FP8 cache through a backend that the engine chooses",
            CACHE.replace('attention_backend = "FLASHINFER"\n', "").replace(
                '"benchmark"', '"benchmark" # expect: KRN003'
            ),
            flip=("policy.quantization.kv_cache", '"auto"'),
        ),
    )
    passing = (
        Case("the kernels are recorded", SPEC.replace(" # expect: KRN003", "") + TRACE),
        Case("an FP8 cache through a declared backend", CACHE),
        Case("nothing was measured", SPEC.partition("[[evidence]]")[0]),
        Case("16 bit", SPEC.replace("Qwen3-8B-FP8", "Qwen3-8B").replace(" # expect: KRN003", "")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for a measurement, for narrow formats, and for a record of kernels."""
        measured = _measured(review)
        if review.composition is None or measured is None:
            yield Lacks("a measurement of a composed deployment")
            return
        narrow = list(_narrow(review, decode_side(review.composition)))
        if not narrow:
            return
        older = []
        for i, evidence in enumerate(review.deployment.evidence):
            if evidence.kind == "kernel-trace":
                if _same_release(evidence.engine_version, review.engine_version):
                    return
                older.append(Related(("evidence", i, "engine_version"), "a record, of another release"))
        path, what = narrow[0]
        yield Finding(
            measured,
            f"a figure was measured, {' and '.join(text for _, text in narrow)}, and nothing records which kernels "
            "ran: engines choose between several for narrow formats, and fall back silently",
            inputs=(Input("engine", f"{review.deployment.engine.name} {review.engine_version or ''}".strip(), "",
                          review.source("engine", "name")),) if review.deployment.engine.name else (),
            help=(
                'declare [[evidence]] with kind = "kernel-trace" and the engine\'s release: its start-up log, or a '
                "profile of a step"
            ),
            related=(*older, Related(path, what)),
        )  # fmt: skip


def _measured(review: Review) -> KeyPath | None:
    """Where a measurement is declared."""
    for path, claim in review.claims:
        if claim.evidence is not None:
            return (*path, "evidence")
    return next(
        (("evidence", i, "kind") for i, e in enumerate(review.deployment.evidence) if e.kind == "benchmark"), None
    )


def _narrow(review: Review, side: Composition) -> Iterator[tuple[KeyPath, str]]:
    """What has fewer than 16 bits and a kernel that nothing names."""
    weights = [w for w in side.memory.weights if w.tensor.matmul and w.format.bits < 16]
    if weights:
        widest = max(weights, key=lambda w: w.params)
        yield weights_path(review), f"the weights are in {widest.format.name}"
    named = review.deployment.engine.attention_backend is not None or review.declared("policy", "attention", "kernel")
    cache = next((c.format for c in side.memory.caches if c.format.bits < 16), None)
    if cache is not None and not named:
        path: KeyPath = ("policy", "quantization", "kv_cache")
        yield (
            path if review.policy("quantization").kv_cache else weights_path(review),
            f"the KV cache is in {cache.name}",
        )


def _same_release(recorded: str | None, deployed: str | None) -> bool:
    """Whether two releases have the same first two numbers; one that nobody states is taken for the same."""
    if recorded is None or deployed is None:
        return True
    return re.findall(r"[0-9]+", recorded)[:2] == re.findall(r"[0-9]+", deployed)[:2]
