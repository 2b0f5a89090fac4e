"""What a benchmark measured, normalized: one record for every tool, in SI, None for what a file does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import field, frozen

from servelint.values import Value

PERCENTILES = ("p50", "p75", "p90", "p95", "p99", "p999")
"""Percentiles that figures are kept at, in order; beside them ``mean``, ``min`` and ``max``."""

LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
"""Fields that map percentiles to seconds."""


@frozen(slots=False, eq=False, repr=False)
class Measurement(Value):
    """One run (or stage) of a benchmark.

    Times in seconds, rates per second, lengths in tokens. Latencies and lengths map a percentile (``mean``,
    ``min`` and ``max`` too) to a figure, as the tool reports it. ``tpot_s`` is the pace of a request after its
    first token, ``itl_s`` the gaps between what was streamed, whatever the tool calls them.

    ``requested_rate`` is what the load generator aimed at (infinite: None with ``closed_loop`` False and
    ``unlimited`` True), ``achieved_rate`` what it sent, ``request_throughput`` what was completed. ``completed``
    and ``failed`` count requests, ``incomplete`` those that the end of the run cut off. ``concurrency`` is the
    limit of a closed loop, ``mean_concurrency`` what was in flight. ``prompts`` says what was sent (``random``,
    ``sharegpt``), ``fixed_lengths`` whether every request was of one length, ``invalid`` why the tool itself
    rejects the run. ``settings`` are server arguments where the file records them, by key of a spec
    (``policy.parallelism.tensor``). ``sources`` maps a field to where in the file it stands.
    """

    tool: str
    tool_version: str | None = None
    run: str = ""
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    accelerator: str | None = None
    devices: int | None = None
    date: str | None = None
    settings: Mapping[str, Any] = {}
    requested_rate: float | None = None
    unlimited: bool = False
    achieved_rate: float | None = None
    closed_loop: bool | None = None
    concurrency: float | None = None
    mean_concurrency: float | None = None
    burstiness: float | None = None
    prompts: str | None = None
    fixed_lengths: bool | None = None
    invalid: str | None = None
    duration_s: float | None = None
    completed: int | None = None
    failed: int | None = None
    incomplete: int | None = None
    schedule_delay_s: Mapping[str, float] = {}
    prompt_tokens: Mapping[str, float] = {}
    output_tokens: Mapping[str, float] = {}
    total_prompt_tokens: float | None = None
    total_output_tokens: float | None = None
    request_throughput: float | None = None
    output_throughput: float | None = None
    total_throughput: float | None = None
    goodput: float | None = None
    ttft_s: Mapping[str, float] = {}
    itl_s: Mapping[str, float] = {}
    tpot_s: Mapping[str, float] = {}
    e2e_s: Mapping[str, float] = {}
    cache_hit: float | None = None
    kv_usage: float | None = None
    acceptance_length: float | None = None
    sources: Mapping[str, str] = {}


@frozen(slots=False, eq=False, repr=False)
class EvidenceFormat(Value):
    """A kind of result file of a benchmark.

    ``read`` takes the file's text and yields its runs; nothing for a file of another kind; ValueError (with the
    key that is wrong) when the file is of this kind and cannot be read. ``priority`` orders formats.
    """

    name: str
    read: Callable[[str], Iterable[Measurement]] = field(repr=False)
    priority: int = 50
    sources: tuple[str, ...] = ()
