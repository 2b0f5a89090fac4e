"""Branches of rules that their own cases leave out, each with the figure or the words that follow from its spec."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing import review_of
from servelint.testing.rules import edited, key_path, run_case
from servelint_rules.dec.dec002_throughput_levers import _asked, _needed
from servelint_rules.eng.eng006_moved_default import _spans

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
WORKLOAD = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"


def findings(code: str, text: str, plugins: Plugins) -> list[Finding]:
    found = run_case(Case("", text), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


def only(code: str, text: str, plugins: Plugins) -> Finding:
    (found,) = findings(code, text, plugins)
    return found


# SLO001


@pytest.mark.parametrize(("headroom", "words"), [("", ""), ("headroom = 0.2\n", " with 20% headroom")])
def test_a_knee_that_there_is_not_is_said(headroom: str, words: str, plugins: Plugins) -> None:
    text = (
        f"{H100}{MODEL.replace('8192', '65536')}[policy.batching]\nmax_sequences = 64\nmax_batched_tokens = 2048\n"
        "[workload]\nprompt_tokens = 50000\noutput_tokens = 10\nconcurrency = 2\n[slo]\n"
        f'e2e = {{ p99 = "1.5 s" }}\n{headroom}'
    )
    found = only("SLO001", text, plugins)
    assert found.message.endswith(f"; not even one sequence meets every objective{words}")
    assert found.help.startswith("shorten the step itself: ")


# MEM001: 810 GB of weights


@pytest.mark.parametrize(
    ("part", "devices", "tensor"),
    [
        # 72 GB of each are for the weights.
        ("nvidia/h100-sxm5-80gb", 1, 16),
        ("nvidia/h100-sxm5-80gb", 4, 16),
        ("nvidia/h100-sxm5-80gb", 8, 16),
        # 127 GB of each.
        ("nvidia/h200-sxm5-141gb", 2, 8),
        ("nvidia/h200-sxm5-141gb", 1, 8),
        # 43 GB of each.
        ("nvidia/l40s", 1, 32),
        # 21 GB of each.
        ("nvidia/l4", 1, 64),
    ],
)
def test_the_least_doubling_that_holds_the_weights(part: str, devices: int, tensor: int, plugins: Plugins) -> None:
    text = (
        f'servelint = 1\n[hardware]\naccelerator = "{part}"\ndevices = {devices}\n[model]\n'
        f'id = "meta-llama/Llama-3.1-405B"\nmax_model_len = 4096\n[policy.parallelism]\ntensor = {devices}\n'
    )
    found = only("MEM001", text, plugins)
    assert f"policy.parallelism.tensor = {tensor}" in found.help


# DEC002


def test_replicas_that_the_load_takes_at_the_knee(plugins: Plugins) -> None:
    review = review_of(f'{H100}replicas = 4\n{MODEL}{WORKLOAD}rate = "8 req/s"\n', plugins)
    for rate, decoding, needed in ((3.0, 1, 3), (2.0, 1, 4), (2.0, 2, 2), (8.0, 1, 1)):
        knee: Any = SimpleNamespace(rate=rate, service=SimpleNamespace(decode_replicas=decoding))
        assert _needed(review, knee) == needed


def test_requests_that_a_device_is_asked_for(plugins: Plugins) -> None:
    review = review_of(f'{H100}devices = 2\nreplicas = 4\n{MODEL}{WORKLOAD}rate = "8 req/s"\n', plugins)
    assert review.operating_point is not None
    assert _asked(review.operating_point) == pytest.approx(8 / 4 / 2, rel=0.01)
    pools = (
        "[policy.disaggregation]\nprefill = { tensor = 1, replicas = 1 }\ndecode = { tensor = 1, replicas = 3 }\n"
        'transfer = { bandwidth = "50 GB/s" }\n'
    )
    apart = review_of(f'{H100}{MODEL}{pools}{WORKLOAD}rate = "8 req/s"\n', plugins)
    assert apart.operating_point is not None
    # One device prefills and three decode.
    assert _asked(apart.operating_point) == pytest.approx(8 / 4, rel=0.01)


# ENG006


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_releases_with_the_same_defaults_are_one_span(engine: str, plugins: Plugins) -> None:
    review = review_of(f'{H100}{MODEL}[engine]\nname = "{engine}"\n{WORKLOAD}concurrency = 4\n', plugins)
    assert review.composition is not None
    spans = list(_spans(review, review.composition))
    assert len(spans) > 2
    starts = [span.release for span in spans]
    assert spans[0].words == f"before {starts[1]}"
    assert [s.words for s in spans[1:-1]] == [f"from {start} to before {end}" for start, end in pairwise(starts[1:])]
    assert spans[-1].words == f"from {starts[-1]} on"
    assert all(a.values != b.values for a, b in pairwise(spans))


# SPEC005


@pytest.mark.parametrize(
    ("text", "path", "message", "severity"),
    [
        (
            f'{H100}{MODEL}[slo]\nttft = {{ p99 = "1 s" }}\n',
            ("slo", "ttft", "p99"),
            "the objectives are compared with nothing: the spec declares no workload.prompt_tokens and "
            "workload.output_tokens",
            Severity.WARNING,
        ),
        (
            f'{H100}{WORKLOAD}[slo]\nttft = {{ p99 = "1 s" }}\nitl = {{ p99 = "1 s" }}\n',
            ("slo", "ttft", "p99"),
            "the objectives are compared with nothing: the spec declares no model.id",
            Severity.INFO,
        ),
        (
            f"servelint = 1\n{WORKLOAD}[[workload.growth]]\nprompt_tokens = 4000\n",
            ("workload", "growth", 0, "prompt_tokens"),
            "the growth scenario is not checked: the spec declares no hardware.accelerator and model.id",
            Severity.INFO,
        ),
        (
            f"{H100}{MODEL}[workload]\nprompt_tokens = 900\n[[workload.growth]]\nname = \"more\"\nrate = \"3 req/s\"\n",
            ("workload", "growth", 0, "rate"),
            "the growth scenario is not checked: the spec declares no workload.output_tokens",
            Severity.WARNING,
        ),
        (
            f"{H100}{MODEL}[workload]\nprompt_tokens = {{ std = 30 }}\noutput_tokens = 20\n"
            '[slo]\nttft = { p99 = "1 s" }\n',
            ("slo", "ttft", "p99"),
            "the objectives are compared with nothing: the spec declares no usable prompt_tokens (quantiles, or a mean "
            "with std)",
            Severity.WARNING,
        ),
        (
            f'{H100}{MODEL}{WORKLOAD}concurrency = 5\n[[claim]]\nmetric = "throughput"\nvalue = "900 tok/s"\n',
            ("claim", 0, "value"),
            "the throughput is claimed at no operating point; it can only be compared at the deployment's own "
            "workload.concurrency",
            Severity.INFO,
        ),
        (
            f"{H100}{MODEL}[engine]\nname = \"homegrown\"\nargs = [\"--x\"]\n",
            ("engine", "args"),
            "engine.args is not read, since no plugin reads arguments of the engine 'homegrown': what is checked are "
            "the policies of this spec, with defaults for what they leave out",
            Severity.INFO,
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    text: str, path: tuple[str | int, ...], message: str, severity: Severity, plugins: Plugins
) -> None:
    found = only("SPEC005", text, plugins)
    assert (found.path, found.message, found.severity) == (path, message, severity)


@pytest.mark.parametrize(
    "at", ["{ batch = 3 }", "{ concurrency = 3 }", '{ rate = "2 req/s" }', '{ batch = 3, itl_p99 = "9 ms" }']
)
def test_a_claim_with_a_load_lacks_nothing(at: str, plugins: Plugins) -> None:
    claim = f'[[claim]]\nmetric = "throughput"\nvalue = "900 tok/s"\nat = {at}\n'
    assert findings("SPEC005", f"{H100}{MODEL}{claim}", plugins) == []
    assert findings("SPEC005", f"{H100}{MODEL}{claim.replace(at, '{ context = 9 }')}", plugins)


# DIS002


@pytest.mark.parametrize(("prefill", "decode", "speaks"), [(4, 2, True), (2, 1, True), (1, 1, False), (6, 2, True)])
def test_pools_of_any_size_but_one_each_are_judged(prefill: int, decode: int, speaks: bool, plugins: Plugins) -> None:
    text = plugins.rule("DIS002").failing[0].spec
    for name, number in (("prefill", prefill), ("decode", decode)):
        text = edited(text, key_path(f"policy.disaggregation.{name}.replicas"), str(number), plugins)
    text = re.sub(r'rate = "[\d.]+ req/s"', 'rate = "2 req/s"', text)
    assert bool(findings("DIS002", text, plugins)) is speaks
