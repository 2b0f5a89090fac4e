"""Readers of what benchmarks write: a module a tool, each with the keys and units of the tool's own source.

`servelint_plugins.manifests` and this folder are offered through the hook ``servelint_readers`` of
`servelint_plugins.engines`. Nothing here is imported unless a spec names a result file.
"""

from __future__ import annotations

from collections.abc import Iterator

from servelint.evidence import EvidenceFormat


def formats() -> Iterator[EvidenceFormat]:
    """Yield the formats; of those that are alike the more particular one first."""
    from servelint_plugins.evidence import (
        aiperf,
        genai_bench,
        guidellm,
        inference_perf,
        inferencex,
        llm_d,
        llmperf,
        mlperf,
        sglang,
        vllm,
    )

    for priority, module in enumerate(
        (mlperf, llm_d, guidellm, inference_perf, aiperf, genai_bench, llmperf, sglang, inferencex, vllm)
    ):
        yield EvidenceFormat(module.NAME, module.read, priority, module.SOURCES)
