"""Rules about loads, lengths and objectives: the other side of their conditions, each against its own arithmetic."""

from __future__ import annotations

import re

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.service import Service
from servelint.testing import review_of
from servelint.testing.rules import edited, key_path, run_case

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\n'
CACHE = "[policy.kv_cache]\npage_size = 1\nmax_tokens = {}\n"


def findings(code: str, text: str, plugins: Plugins) -> list[Finding]:
    found = run_case(Case("", text), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


def only(code: str, text: str, plugins: Plugins) -> Finding:
    (found,) = findings(code, text, plugins)
    return found


def names(found: Finding) -> list[str]:
    return [i.name for i in found.inputs]


# CTX001: 1,000 and 200 tokens today


def grown(scenario: str, load: str, *, hardware: str = "", more: str = "", model: str = MODEL) -> str:
    today = f"[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n{load}"
    return f"{H100}{hardware}{model}{more}{today}[[workload.growth]]\n{scenario}"


SPREAD = "prompt_tokens = { p50 = 2000, p99 = 8000, max = 20000 }\n"
SELDOM = 'rate = "0.01 req/s"\n'


@pytest.mark.parametrize(("room", "speaks"), [(15000, False), (7000, True)])
def test_a_cache_that_holds_the_mean_has_to_hold_the_longest_percent_and_not_the_maximum(
    room: int, speaks: bool, plugins: Plugins
) -> None:
    found = findings("CTX001", grown(SPREAD, SELDOM, more=CACHE.format(room)), plugins)
    assert bool(found) is speaks
    for finding in found:
        said = re.search(r"not one sequence of ([\d,]+) tokens fits in the KV cache$", finding.message)
        assert said is not None
        assert int(said[1].replace(",", "")) >= 8200
        assert finding.severity is Severity.ERROR
        assert "KV bytes per token and device" in names(finding)
        # Each replica holds as little.
        assert "replicas" not in finding.help


def test_replicas_carry_a_rate_though_the_maximum_does_not_fit(plugins: Plugins) -> None:
    found = only("CTX001", grown(f'{SPREAD}rate = "8 req/s"\n', SELDOM, more=CACHE.format(15000)), plugins)
    assert "set hardware.replicas = 3 instead of 1" in found.help


@pytest.mark.parametrize(("concurrency", "speaks"), [(4, False), (5, True)])
def test_as_many_sequences_at_once_as_the_cache_holds(concurrency: int, speaks: bool, plugins: Plugins) -> None:
    """Four of 8,100 tokens in the mean."""
    scenario = f"prompt_tokens = 8000\nconcurrency = {concurrency}\n"
    found = findings("CTX001", grown(scenario, "concurrency = 1\n", more=CACHE.format(4 * 8100)), plugins)
    assert bool(found) is speaks
    assert all("5 sequences at once are declared for a replica and its KV cache holds 4" in f.message for f in found)


POOLS = (
    "[policy.disaggregation]\nprefill = { tensor = 1, replicas = 20 }\ndecode = { tensor = 1, replicas = 2 }\n"
    'transfer = { bandwidth = "50 GB/s" }\n'
)


def test_requests_at_once_are_shared_by_all_that_decode(plugins: Plugins) -> None:
    found = only("CTX001", grown("prompt_tokens = 8000\nconcurrency = 300\n", "concurrency = 8\n", more=POOLS), plugins)
    (held,) = re.findall(
        r"150 sequences at once are declared for a replica and its KV cache holds (\d+)", found.message
    )
    # Two decode in every replica.
    assert f"set hardware.replicas = {-(-300 // (2 * int(held)))} instead of 1" in found.help


def slow(limit: str, more: str = "") -> str:
    return grown("prompt_tokens = 8000\n", 'rate = "0.5 req/s"\n') + f'[slo]\nttft = {{ p99 = "{limit}" }}\n{more}'


def test_a_latency_that_growth_breaks_is_certain_where_the_bound_breaks_it(plugins: Plugins) -> None:
    review = review_of(slow("100 ms"), plugins)
    assert review.composition is not None
    mix = review.growth[0][1]
    point, best = (Service(review.composition, mix, figure).at_rate(0.5) for figure in ("estimate", "bound"))
    assert point is not None
    assert best is not None
    # Prompts come at random times, and wait for each other.
    bound_s, seconds = best.ttft("p99"), point.ttft("p99")
    assert 0.2 < bound_s < 0.3 < 0.5 < seconds < 0.6
    for limit, severity, words in (
        (
            "100 ms",
            Severity.ERROR,
            f"TTFT p99 becomes {seconds * 1000:.0f} ms ({bound_s * 1000:.0f} ms by the bound) at",
        ),
        ("300 ms", Severity.WARNING, f"TTFT p99 becomes {seconds * 1000:.0f} ms at"),
    ):
        found = only("CTX001", slow(limit), plugins)
        assert (found.severity, words in found.message) == (severity, True), found.message
        # No cache has to do with it.
        assert names(found) == ["mean prompt", "mean context", "batching.max_batched_tokens"]
    # The headroom is SLO004's.
    assert seconds > 0.6 * (1 - 0.2)
    assert findings("CTX001", slow("600 ms", "headroom = 0.2\n"), plugins) == []


WIDE = "prompt_tokens = 60000\nconcurrency = {}\n"
"""Of 60,100 tokens in the mean a cache of 58 GB holds seven, and that of two devices sixteen."""
TWO_DEVICES = "set hardware.devices = 2 and policy.parallelism.tensor = 2"


@pytest.mark.parametrize(
    ("hardware", "concurrency", "replicas", "wider"),
    [
        # Two replicas take as many devices.
        ("", 14, 2, False),
        ("", 15, 3, True),
        ("replicas = 2\n", 28, 4, False),
        ("replicas = 2\n", 29, 5, True),
    ],
)
def test_more_devices_a_group_are_named_where_they_are_fewer_than_those_of_replicas(
    hardware: str, concurrency: int, replicas: int, wider: bool, plugins: Plugins
) -> None:
    text = grown(WIDE.format(concurrency), "concurrency = 1\n", hardware=hardware)
    found = only("CTX001", text, plugins)
    assert f"set hardware.replicas = {replicas} instead of" in found.help
    assert (TWO_DEVICES in found.help) is wider
    for path, value in (("hardware.devices", "2"), ("policy.parallelism.tensor", "2")):
        text = edited(text, key_path(path), value, plugins)
    assert findings("CTX001", text, plugins) == []


LONG = "prompt_tokens = {{ {} = 1000, p99 = 10000 }}\n"


@pytest.mark.parametrize(
    ("knot", "images", "named"),
    [
        ("p50", "", True),
        # The prompt is more than the text that is cut.
        ("p50", "images_per_prompt = 1\n", False),
        # Prompts that are cut have another mean.
        ("mean", "", False),
    ],
)
def test_prompts_are_cut_where_their_quantiles_say_what_is_left(
    knot: str, images: str, named: bool, plugins: Plugins
) -> None:
    model = '[model]\nid = "Qwen/Qwen2.5-VL-7B-Instruct"\nmax_model_len = 8192\n'
    text = grown(LONG.format(knot), f"{SELDOM}{images}", more=CACHE.format(9000), model=model)
    found = only("CTX001", text, plugins)
    # 200 tokens of the 8,192 are for the output, whatever more the cache holds.
    assert ("refuse prompts of more than 7,992 tokens" in found.help) is named
    assert ("refuse prompts" in found.help) is named
