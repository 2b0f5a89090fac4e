"""Formats of weights that nothing states: no error rests on them, and no finding says them as a fact."""

from __future__ import annotations

from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import FileResult, Linter
from servelint.manager import Plugins
from servelint.opening import open_manifest
from servelint.rule import Finding, Severity

HARDWARE = {("hardware", "accelerator"): "nvidia/rtx-4090"}
SPEC = 'servelint = 1\n[hardware]\naccelerator = "nvidia/rtx-4090"\n'


def manifest(command: str, plugins: Plugins) -> FileResult:
    (document,) = open_manifest("run.sh", f"{command}\n", plugins, HARDWARE)
    return Linter(plugins, Config(), Path()).judge(document)


def of(code: str, result: FileResult) -> list[Finding]:
    return [located.finding for located in result.findings if located.finding.code == code]


@pytest.mark.parametrize(
    ("method", "weights", "severity"),
    [
        ("aqlm", "q2_k", Severity.WARNING),
        ("gguf", "q4_k_m", Severity.WARNING),
        ("compressed-tensors", "int4-g128", Severity.WARNING),
        ("of-the-future", "int4-g128", Severity.WARNING),
        ("awq", "int4-g128", Severity.ERROR),
    ],
)
def test_no_error_rests_on_a_guess(method: str, weights: str, severity: Severity, plugins: Plugins) -> None:
    result = manifest(f"vllm serve meta-llama/Llama-3.1-70B --quantization {method}", plugins)
    assert result.review is not None
    assert result.document.settings["policy", "quantization", "weights"].value == weights
    (found,) = of("MEM001", result)
    assert (found.severity, found.confidence) == (severity, "high" if severity is Severity.ERROR else "medium")
    others = [located.finding.severity for located in result.findings]
    assert (Severity.ERROR in others) == (severity is Severity.ERROR)


@pytest.mark.parametrize(
    ("command", "assumed"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B --quantization compressed-tensors", True),
        ("vllm serve meta-llama/Llama-3.1-8B --quantization awq", False),
        ("vllm serve Qwen/Qwen3-8B-AWQ", True),
        ("llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", False),
    ],
)
def test_a_manifest_has_no_place_for_evaluations(command: str, assumed: bool, plugins: Plugins) -> None:
    (found,) = of("QNT001", manifest(command, plugins))
    assert found.severity is Severity.INFO
    assert ("assumed" in found.message) is assumed


@pytest.mark.parametrize(
    ("rest", "severity"),
    [
        ('[model]\nid = "Qwen/Qwen3-32B"\n[policy.quantization]\nweights = "int4-g128"\n', Severity.WARNING),
        ('[model]\nid = "Qwen/Qwen3-32B-AWQ"\n[policy.quantization]\nweights = "int4-g128"\n', Severity.WARNING),
        ('[model]\nid = "Qwen/Qwen3-32B-AWQ"\n', Severity.INFO),
        ('[engine]\nname = "llama.cpp"\nargs = "-hf acme/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"\n', Severity.WARNING),
        ('[engine]\nname = "vllm"\nargs = "--model Qwen/Qwen3-8B --quantization compressed-tensors"\n', Severity.INFO),
        ('[model]\nid = "Qwen/Qwen3-8B-FP8"\n', None),
    ],
)
def test_one_artifact_is_judged_alike_however_it_is_named(
    rest: str, severity: Severity | None, plugins: Plugins
) -> None:
    found = of("QNT001", Linter(plugins, Config(), Path()).check("spec.toml", SPEC + rest))
    assert [f.severity for f in found] == ([severity] if severity is not None else [])


def test_what_the_name_of_a_checkpoint_says_is_said_to_come_from_the_name(plugins: Plugins) -> None:
    result = Linter(plugins, Config(), Path()).check("spec.toml", SPEC + '[model]\nid = "Qwen/Qwen3-32B-AWQ"\n')
    assert result.review is not None
    found = result.review.assumption("policy", "quantization", "weights")
    assert found is not None
    assert (found.source.kind, found.source.path) == ("spec", ("model", "id"))
    assert "Qwen/Qwen3-32B-AWQ, says that it is Qwen/Qwen3-32B" in found.reason
