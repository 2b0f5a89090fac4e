"""What rules make of evidence, figures of parts and launch arguments, on either side of each condition."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding
from servelint.testing import review_of, samples
from servelint.testing.rules import run_case
from servelint_rules.clm.samples import SPEC, changed
from servelint_rules.cnd.cnd001_mask_exposed import _rows
from servelint_rules.hw.hw006_unsupported_precision import _help, _lacks_bf16, _sixteen_bit_rate
from servelint_rules.layouts import decode_side
from servelint_rules.mem.mem006_utilization_headroom import UTILIZATION, _mended
from servelint_rules.par.par001_tp_over_slow_link import BATCH, CONTEXT, _load

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
FAST = {"mean_tpot_ms": 4.0, "median_tpot_ms": 3.9, "mean_e2el_ms": 896.0}
CLAIM = '[[claim]]\nmetric = "throughput"\nvalue = "1000 tok/s"\nat = {{ concurrency = 32{at} }}\nevidence = "b.json"\n'


def findings(code: str, text: str, plugins: Plugins, **figures: object) -> list[Finding]:
    case = Case("", text, files=(("b.json", changed(**figures)),) if "b.json" in text else ())
    found = run_case(case, plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


# Evidence


def test_a_run_that_no_such_part_could_make_is_told_once(plugins: Plugins) -> None:
    text = SPEC + CLAIM.format(at="")
    (found,) = findings("CLM001", text, plugins, **FAST)
    assert found.path == ("claim", 0, "evidence")
    assert "the measured TPOT of 4 ms is" in found.message
    # A throughput of the same run is as impossible, and nothing new.
    assert len(findings("CLM001", text, plugins, **FAST, output_throughput=200000.0)) == 1
    (rate,) = findings("CLM001", text, plugins, output_throughput=200000.0)
    assert "the measured output throughput of 200,000 tok/s is" in rate.message
    assert findings("CLM001", text, plugins) == []


def test_a_run_of_something_else_says_nothing_of_this_part(plugins: Plugins) -> None:
    text = SPEC + CLAIM.format(at="")
    assert not findings("CLM001", text.replace("[model]", "replicas = 2\n[model]"), plugins, **FAST)
    elsewhere = text + 'assumes = { accelerator = "nvidia/b200-sxm6-180gb" }\n'
    assert not findings("CLM001", elsewhere, plugins, **FAST)


def test_a_claim_goes_before_its_evidence(plugins: Plugins) -> None:
    text = SPEC + CLAIM.format(at="").replace("1000 tok/s", "200000 tok/s")
    (found,) = findings("CLM001", text, plugins, **FAST)
    assert found.path == ("claim", 0, "value")


@pytest.mark.parametrize(("tokens", "where"), [(1501, True), (1500, False), (667, False), (666, True)])
def test_lengths_that_a_claim_states_are_its_own(tokens: int, where: bool, plugins: Plugins) -> None:
    """The run's prompts are of 1,000 tokens, and half as many more or less may be claimed."""
    text = SPEC + CLAIM.format(at=f", prompt_tokens = {tokens}")
    found = findings("CLM003", text, plugins)
    words = f"prompts of 1,000 tokens in the mean, claimed {tokens:,}"
    assert [words in f.message for f in found] == ([True] if where else [])
    assert [f.related[0].path for f in found] == ([("claim", 0, "at", "prompt_tokens")] if where else [])


@pytest.mark.parametrize(
    ("metric", "value", "per", "devices", "better"),
    [
        ("throughput", "2101 tok/s", "replica", 1, True),
        ("throughput", "2100 tok/s", "replica", 1, False),
        ("throughput", "2101 tok/s", "user", 1, False),
        ("tpot", "14.72 ms", "replica", 1, True),
        ("tpot", "14.75 ms", "replica", 1, False),
        ("request_rate", "10.51 req/s", "replica", 1, True),
        ("request_rate", "10.5 req/s", "replica", 1, False),
        ("total_throughput", "12601 tok/s", "replica", 1, True),
        ("total_throughput", "12600 tok/s", "replica", 1, False),
    ],
)
def test_a_claim_is_as_good_as_its_evidence(
    metric: str, value: str, per: str, devices: int, better: bool, plugins: Plugins
) -> None:
    """A twentieth better than 2,000 tok/s, 15.5 ms, 10 req/s and 12,000 tok/s is let pass."""
    claim = f'[[claim]]\nmetric = "{metric}"\nvalue = "{value}"\n' + (f'per = "{per}"\n' if "tok" in value else "")
    text = f'{SPEC}{claim}at = {{ concurrency = 32 }}\nevidence = "b.json"\n'
    assert bool(findings("CLM003", text, plugins)) is better


# Figures


def test_a_rate_of_another_precision_is_told_of_the_part_that_is_meant(plugins: Plugins) -> None:
    def claim(part: str) -> str:
        assumes = f'{{ accelerator = "{part}", dense_flops = {{ fp8 = "1979 TFLOP/s" }} }}'
        at = "{ batch = 1, context = 100 }"
        return f'{H100}{MODEL}[[claim]]\nmetric = "tpot"\nvalue = "20 ms"\nat = {at}\nassumes = {assumes}\n'

    (found,) = findings("HW005", claim("nvidia/h100-sxm5-80gb"), plugins)
    assert found.path == ("claim", 0, "assumes", "dense_flops", "fp8")
    assert "rests on the fp8 rate of 1.98 PFLOP/s, and the deployment multiplies in bf16" in found.message
    # Several parts are called that.
    assert findings("HW005", claim("h100"), plugins) == []


def test_the_narrow_format_that_gains_most_is_named() -> None:
    part = evolve(samples.accelerator(), dense_flops={"fp16": 100e12, "fp8": 150e12, "int8": 200e12})
    weights = _help(part, "weights", ("fp16", 100e12), spec=True)
    assert weights.startswith('use "int8", which runs natively at 200 TFLOP/s; ')
    assert weights.endswith('only storage shrinks: activations = "fp16" beside the weights')
    assert _help(part, "activations", ("fp16", 100e12), spec=True) == 'use "int8", which runs natively at 200 TFLOP/s'
    slow = evolve(part, dense_flops={"fp16": 100e12, "int8": 100e12})
    assert _help(slow, "activations", ("fp16", 100e12), spec=True) == "use a 16-bit format"
    unknown = evolve(part, dense_flops={})
    assert _help(unknown, "weights", None, spec=True).endswith('activations = "bf16" beside the weights')


def test_parts_without_bf16(plugins: Plugins) -> None:
    for part, lacks in (("nvidia/v100-sxm2-32gb", True), ("nvidia/h100-sxm5-80gb", False), ("google/tpu7x", False)):
        if part in plugins.accelerators.ids():
            assert _lacks_bf16(plugins.accelerators.get(part)) is lacks
    assert _sixteen_bit_rate(samples.accelerator()) == ("bf16", 1000e12)
    assert _sixteen_bit_rate(evolve(samples.accelerator(), dense_flops={"fp16": 7.0})) == ("fp16", 7.0)
    assert _sixteen_bit_rate(evolve(samples.accelerator(), dense_flops={"fp8": 7.0})) is None


# Masks, memory, loads


@pytest.mark.parametrize(
    ("batch", "ranks", "verify", "rows"),
    [(8.0, 1, 1, 8), (9.0, 2, 1, 5), (8.0, 2, 5, 20), (0.2, 1, 3, 3), (7.5, 1, 1, 8)],
)
def test_rows_of_the_fullest_rank(batch: float, ranks: int, verify: int, rows: int) -> None:
    scheduler = SimpleNamespace(ranks=ranks, verify_tokens=verify)
    point: Any = SimpleNamespace(batch=batch, service=SimpleNamespace(scheduler=scheduler))
    assert _rows(point) == rows


def test_the_share_of_memory_that_leaves_enough(plugins: Plugins) -> None:
    text = f'{H100}{MODEL}[engine]\nname = "vllm"\nversion = "0.11.0"\n[policy.kv_cache]\n'
    review = review_of(f"{text}memory_utilization = 0.98\n", plugins)
    assert review.composition is not None
    side = decode_side(review.composition)
    visible = side.memory.visible
    for need in (4e9, 10e9, 17.3e9):
        share = math.floor((visible - need) / visible * 100) / 100
        words, edit = _mended(review, side, need, UTILIZATION)
        assert edit == f"{share:.2f}"
        assert words.startswith(f"set policy.kv_cache.memory_utilization = {share:.2f}; or ")
    # Sixteen gigabytes of weights leave one request no room in a fifth of the device.
    words, edit = _mended(review, side, 0.8 * visible, UTILIZATION)
    assert (words.split(":")[0], edit) == ("less would not hold one request of 8192 tokens", "")
    words, edit = _mended(review, side, visible * 1.1, UTILIZATION)
    assert (words.split(";")[0], edit) == ("more memory, or fewer layers a device", "")
    cache = ("policy", "kv_cache", "memory_bytes")
    sized = review_of(f'{text}memory_bytes = "50 GB"\n', plugins)
    assert sized.composition is not None
    side = decode_side(sized.composition)
    fit = side.memory.fit(side.memory.tightest)
    left = math.floor((visible - fit.weights - fit.reserves - 30e9) / 1e9)
    assert _mended(sized, side, 30e9, cache)[1] == f'"{left} GB"'
    assert _mended(sized, side, visible, cache)[1] == ""


def test_the_load_at_which_collectives_are_priced(plugins: Plugins) -> None:
    def load(workload: str, model: str = MODEL) -> tuple[float, float, bool]:
        review = review_of(f"{H100}devices = 2\n{model}[policy.parallelism]\ntensor = 2\n{workload}", plugins)
        assert review.composition is not None
        found = _load(review, review.composition)
        return found.batch, float(found.shape.context), found.declared

    assert (BATCH, CONTEXT) == (32, 2048)
    assert load("") == (32, 2048, False)
    assert load("", MODEL.replace("8192", "1024")) == (32, 1024, False)
    lengths = "[workload]\nprompt_tokens = 1000\noutput_tokens = 201\n"
    assert load(lengths) == (32, pytest.approx(1100, abs=1), False)
    assert load(f"{lengths}concurrency = 12\n") == (12, pytest.approx(1100, abs=1), True)
    # A load that keeps less than one sequence busy is priced as one.
    assert load(f'{lengths}rate = "0.01 req/s"\n')[::2] == (1.0, True)


# Launch arguments of slots


def slots(args: str, output: int) -> str:
    return (
        f'{H100}[model]\nid = "meta-llama/Llama-3.1-8B"\n[engine]\nname = "llama.cpp"\nversion = "b5000"\n'
        f'args = "{args}"\n[workload]\nprompt_tokens = 4000\noutput_tokens = {output}\nrate = "0.2 req/s"\n'
    )


def test_slots_that_are_too_small_are_widened_or_fewer(plugins: Plugins) -> None:
    (found,) = findings("ENG005", slots("-c 32768 -np 8", 1000), plugins)
    assert found.message.startswith("-c 32,768 over 8 slots is 4,096 tokens a request, and ")
    assert found.help == "set -c 40000, 8 x 5000; or set --parallel 6 and keep -c 32768"
    assert "not even the median prompt fits" not in found.message
    (tight,) = findings("ENG005", slots("-c 32000 -np 8", 1000), plugins)
    # Each slot has the 4,000 tokens of the prompt, and none for the answer.
    assert tight.message.endswith(": not even the median prompt fits")
    assert findings("ENG005", slots("-c 40000 -np 8", 1000), plugins) == []
