"""Rules on memory: what lets them speak and what keeps them quiet, and the figures that follow from a spec's bytes."""

from __future__ import annotations

import re

import pytest

from servelint.config import Config
from servelint.lint import FileResult
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing import compose, review_of
from servelint.testing.rules import edited, key_path, run_case
from servelint_rules.mem.mem003_kv_pressure_cascade import Held, KvPressureCascade, _held
from servelint_rules.mem.mem004_page_waste import PageWaste
from servelint_rules.mem.mem005_stranded_memory import StrandedMemory, _halved
from servelint_rules.mem.mem006_utilization_headroom import UtilizationHeadroom
from servelint_rules.mem.mem007_admission_unbounded import AdmissionUnbounded
from servelint_rules.mem.mem008_step_outweighs_cache import StepOutweighsCache
from servelint_rules.show import size

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
L4 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/l4"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
WEIGHTS = 8_030_261_248 * 2
"""Bytes of that model in 16 bit."""
KV = 2 * 8 * 128 * 32 * 2
"""Bytes of a token in its cache: keys and values of 8 heads of 128, in 32 layers, in 16 bit."""


def result(code: str, text: str, plugins: Plugins) -> FileResult:
    found = run_case(Case("", text), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return found


def findings(code: str, text: str, plugins: Plugins) -> list[Finding]:
    return [f.finding for f in result(code, text, plugins).findings if f.finding.code == code]


def only(code: str, text: str, plugins: Plugins) -> Finding:
    (found,) = findings(code, text, plugins)
    return found


def memory_of(size: int) -> str:
    return f'[hardware.override]\nmemory = "{size} B"\nsource = "a quote"\n'


GUESSED = {
    "MEM001": (L4, "--model meta-llama/Llama-3.1-70B"),
    "MEM002": (H100, "--model meta-llama/Llama-3.1-70B --max-model-len 131072 --gpu-memory-utilization 0.55"),
    "MEM006": (H100, "--model meta-llama/Llama-3.1-70B --max-model-len 8192 --gpu-memory-utilization 0.999"),
}


@pytest.mark.parametrize("code", ["MEM001", "MEM002", "MEM006"])
def test_no_error_rests_on_weights_whose_bits_are_a_guess(code: str, plugins: Plugins) -> None:
    """AWQ is four bits; what lies in a file of compressed tensors is read from its config, which is not there."""
    hardware, args = GUESSED[code]
    for method, severity in (("awq", Severity.ERROR), ("compressed-tensors", Severity.WARNING)):
        engine = f'[engine]\nname = "vllm"\nversion = "0.11.0"\nargs = "{args} --quantization {method}"\n'
        assert only(code, hardware + engine, plugins).severity is severity


def test_a_cache_that_fails_when_it_is_full_is_a_warning_where_the_bits_are_a_guess(plugins: Plugins) -> None:
    """MEM003."""
    load = "[workload]\nprompt_tokens = 4000\noutput_tokens = 400\nconcurrency = 12\n"
    for name, severity in (("Q4_K_M", Severity.ERROR), ("none", Severity.WARNING)):
        file = "Qwen/Qwen3-8B-GGUF" + (f":{name}" if name != "none" else "")
        engine = f'[engine]\nname = "llama.cpp"\nargs = "-hf {file} -c 33000 -np 8 -kvu -ngl 99"\n'
        assert only("MEM003", f"{H100}{engine}{load}", plugins).severity is severity


@pytest.mark.parametrize("code", ["MEM001", "MEM002", "MEM006"])
def test_what_an_engine_keeps_elsewhere_leaves_open_what_fits(code: str, plugins: Plugins) -> None:
    """The cases of which each would speak without the flag."""
    model = "70B" if code == "MEM001" else "8B"
    args = f"--model meta-llama/Llama-3.1-{model} --gpu-memory-utilization 0.99"
    for more, lacks in (("", False), (" --cpu-offload-gb 4", True)):
        engine = f'[engine]\nname = "vllm"\nversion = "0.11.0"\nargs = "{args}{more}"\n'
        found = result(code, L4 + engine, plugins)
        assert bool(found.findings) is not lacks
        lacking = [why for rule, why in found.lacking if rule == code]
        assert bool(lacking) is lacks
        assert all("keeps a part elsewhere" in why for why in lacking)


# MEM001


@pytest.mark.parametrize(("visible", "severity"), [(WEIGHTS - 1, Severity.ERROR), (WEIGHTS, Severity.WARNING)])
def test_weights_that_exceed_the_budget_alone_are_an_error(visible: int, severity: Severity, plugins: Plugins) -> None:
    """MEM001: what reserves take besides is an estimate, and an engine that is not known may serve shorter requests."""
    model = '[model]\nid = "meta-llama/Llama-3.1-8B"\n[policy.kv_cache]\nmemory_utilization = 1.0\n'
    found = only("MEM001", f"{H100}{memory_of(visible)}{model}", plugins)
    assert found.severity is severity
    assert found.confidence == ("high" if severity is Severity.ERROR else "medium")
    assert "even without the latter" not in found.message


def test_the_sequence_that_would_not_fit_is_that_of_the_stage_with_most_layers(plugins: Plugins) -> None:
    """MEM001: 42 of 80 layers, with keys and values of 64 heads of 128 in 16 bit, of 32,768 tokens."""
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/a100-sxm4-80gb"\ndevices = 2\n[model]\n'
        'id = "Qwen/Qwen1.5-72B"\n[engine]\nname = "vllm"\nversion = "0.3.2"\n'
        "[policy.parallelism]\ntensor = 1\npipeline = 2\npipeline_layers = [38, 42]\n"
    )
    found = only("MEM001", text, plugins)
    assert found.message.startswith("a device on the fullest of 2 stages has to hold")
    assert pytest.approx(45.1e9, rel=1e-3) == 32_768 * 2 * 64 * 128 * 42 * 2
    assert found.message.endswith("no sequence of 32,768 tokens would fit, which needs 45.1 GB of cache")


@pytest.mark.parametrize(
    ("devices", "start"),
    [
        # 128 heads over four times 32 devices, each with 6.3 of 5.4 GB, and no further.
        (4, "add pipeline stages or a device with more memory; or store"),
        # 12.7 GB on each of 64 devices, the most that are tried.
        (1, "add pipeline stages or a device with more memory; or store"),
    ],
)
def test_where_no_split_of_the_heads_holds_the_weights_stages_may(devices: int, start: str, plugins: Plugins) -> None:
    """MEM001."""
    model = '[model]\nid = "meta-llama/Llama-3.1-405B"\nmax_model_len = 8192\n'
    found = only("MEM001", f"{L4}devices = {devices}\n{memory_of(6 * 10**9)}{model}", plugins)
    assert found.help.startswith(start)


def test_where_nothing_is_left_for_weights_no_split_of_them_helps(plugins: Plugins) -> None:
    """MEM001: runtime and activations take more than 0.9 of 2 GB."""
    found = only("MEM001", f"{L4}{memory_of(2 * 10**9)}{MODEL}", plugins)
    assert found.help == ("the reserves alone exceed the budget: raise memory_utilization or lower max_batched_tokens")


# MEM002


def test_a_pool_that_does_not_hold_the_weights_says_nothing_of_the_other(plugins: Plugins) -> None:
    """MEM002: 141 GB on one device are MEM001's, and 131,072 tokens do not fit beside 71 GB."""
    model = '[model]\nid = "meta-llama/Llama-3.1-70B"\nmax_model_len = 131072\n'
    pools = "[policy.disaggregation]\nprefill = { tensor = 1 }\ndecode = { tensor = 2 }\n"
    assert "of the decode pool" in only("MEM002", f"{H100}{model}{pools}", plugins).message


def test_a_narrower_cache_is_told_for_the_pool_that_holds_less(plugins: Plugins) -> None:
    """MEM002: keys and values of 8 heads of 128 in 80 layers, on each of two devices, in 8 bit."""
    model = '[model]\nid = "meta-llama/Llama-3.1-70B"\nmax_model_len = 131072\n'
    pools = "[policy.disaggregation]\nprefill = { tensor = 4 }\ndecode = { tensor = 2 }\n"
    text = f"{H100}{model}{pools}"
    memory = review_of(text, plugins).memory
    assert memory is not None
    most = int(memory.fit(0).left / (2 * 8 * 128 * 80 / 2)) // 16 * 16
    found = only("MEM002", text, plugins)
    assert f'set model.max_model_len = {most} and policy.quantization.kv_cache = "fp8"' in found.help


def test_a_length_that_fits_whole_is_no_multiple_of_pages(plugins: Plugins) -> None:
    """MEM002: 20,001 tokens in 8 bit take 1.3 of 2 GB."""
    text = f"{L4}{MODEL.replace('8192', '20001')}[policy.kv_cache]\nmemory_utilization = 0.85\npage_size = 16\n"
    assert (
        '; or set policy.quantization.kv_cache = "fp8", which fits 20,001 tokens;' in only("MEM002", text, plugins).help
    )


@pytest.mark.parametrize(
    ("cache", "page_bytes", "words"),
    [
        ("fp8", 16 * KV // 2, "more devices"),
        (
            "bf16",
            16 * KV,
            'set model.max_model_len = 16 and policy.quantization.kv_cache = "fp8", which fits 16 tokens; '
            "or more devices",
        ),
    ],
)
def test_no_length_is_proposed_where_no_page_fits(cache: str, page_bytes: int, words: str, plugins: Plugins) -> None:
    """MEM002: three quarters of a page are left."""
    policies = (
        f'[policy.quantization]\nkv_cache = "{cache}"\n[policy.kv_cache]\nmemory_utilization = 1.0\npage_size = 16\n'
    )
    memory = review_of(f"{L4}{MODEL}{policies}", plugins).memory
    assert memory is not None
    fit = memory.fit(0)
    visible = round(fit.weights + fit.reserves + 0.75 * page_bytes)
    found = only("MEM002", f"{L4}{memory_of(visible)}{MODEL}{policies}", plugins)
    assert (found.help, found.fix) == (words, None)


def test_the_stage_that_lacks_most_is_told(plugins: Plugins) -> None:
    """MEM002: 27 layers and an embedding leave less of a device, and 28 layers lack more.

    A layer holds 1.71 GB of weights and 0.54 GB of 131,072 tokens, the embedding 2.1 GB.
    """
    text = (
        f'{H100}devices = 3\n[model]\nid = "meta-llama/Llama-3.1-70B"\nmax_model_len = 131072\n'
        "[policy.parallelism]\ntensor = 1\npipeline = 3\npipeline_layers = [27, 28, 25]\n"
        "[policy.kv_cache]\nmemory_utilization = 0.7\n"
    )
    memory = review_of(text, plugins).memory
    assert memory is not None
    assert memory.tightest == 0
    found = only("MEM002", text, plugins)
    assert found.equation.startswith(
        f"131,072 tokens x {2 * 8 * 128 * 2 * 28:,} B a token and device = 15 GB > 8.72 GB"
    )


SERVER = 'servelint = 1\n[hardware]\naccelerator = "nvidia/rtx-4090"\n'
QWEN = (
    '[model]\nid = "Qwen/Qwen2.5-32B-Instruct"\n[engine]\nname = "llama.cpp"\n'
    'args = "-m Qwen2.5-32B-Instruct-Q4_K_M.gguf {} -ngl 99"\n'
)
QWEN_KV = 2 * 8 * 128 * 64 * 2
"""Bytes of a token of that model."""


@pytest.mark.parametrize(
    ("flags", "over", "product"),
    [
        ("-c 65536 -np 1", "", "1 x 17.2 GB"),
        ("-c 65536 -np 2", " of 2 slots", "2 x 8.59 GB"),
        ("-c 65536 -np 4", " of 4 slots", "4 x 4.29 GB"),
        # One cache that they share.
        ("-c 65536 -np 4 -kvu", " of 4 slots", "1 x 17.2 GB"),
    ],
)
def test_a_cache_that_is_allocated_at_start_is_that_of_all_slots(
    flags: str, over: str, product: str, plugins: Plugins
) -> None:
    """MEM002."""
    assert pytest.approx(17.2e9, rel=2e-3) == 65_536 * QWEN_KV
    found = only("MEM002", SERVER + QWEN.format(flags), plugins)
    assert f"17.2 GB for the 65,536 tokens{over}, and a device" in found.message
    assert found.equation.startswith(f"{product} = 17.2 GB > ")


@pytest.mark.parametrize(
    ("room", "words"), [(255, "more devices"), (300, "set -c 256, the most that fits; or more devices")]
)
def test_a_cache_that_is_allocated_at_start_is_proposed_in_steps(room: int, words: str, plugins: Plugins) -> None:
    """MEM002: of 256 tokens."""
    flags = "-c 65536 -np 1 -b 512"
    full = only("MEM002", SERVER + QWEN.format(flags), plugins)
    (visible,) = (i.value for i in full.inputs if i.name == "visible memory")
    review = run_case(Case("", SERVER + QWEN.format(flags)), plugins).review
    assert review is not None
    assert review.memory is not None
    taken = float(visible) - review.memory.fit(0).left
    found = only("MEM002", SERVER + memory_of(round(taken + room * QWEN_KV)) + QWEN.format(flags), plugins)
    assert found.help == words


def test_a_cache_that_is_allocated_at_start_is_that_of_the_fullest_stage(plugins: Plugins) -> None:
    """MEM002: of 64 layers on three devices the first has 22, and the last an output head beside its 21."""
    text = SERVER.replace('4090"\n', '4090"\ndevices = 3\n') + QWEN.format("-c 262144 -np 1 -ts 1,1,1")
    need = 262_144 * QWEN_KV * 22 / 64
    assert need == pytest.approx(23.6e9, rel=1e-3)
    assert only("MEM002", text, plugins).equation.startswith("1 x 23.6 GB = 23.6 GB > ")


def test_a_declared_cache_is_the_room_of_a_sequence(plugins: Plugins) -> None:
    """MEM002: 131,072 tokens of 0.13 MB."""
    text = f'{H100}{MODEL.replace("8192", "131072")}[policy.kv_cache]\nmemory_bytes = "10 GB"\n'
    assert only("MEM002", text, plugins).equation.endswith(" = 17.2 GB > 10 GB = the declared size of the cache")


# MEM003


POOL = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = {longest}
[engine]
name = "{engine}"
[policy.batching]
max_sequences = {admitted}
[policy.kv_cache]
max_tokens = {room}
page_size = {page}
[workload]
prompt_tokens = {prompt}
output_tokens = {output}
{load}
"""


def pressure(plugins: Plugins, options: dict[str, float] | None = None, **given: object) -> list[Finding]:
    """What MEM003 says of a cache of so many tokens."""
    values = {"longest": 10000, "engine": "sglang", "admitted": 8, "page": 1, "load": "concurrency = 8"} | given
    review = review_of(POOL.format(**values), plugins)
    return [f for f in KvPressureCascade(options or {}).check(review) if isinstance(f, Finding)]


def test_shares_do_not_depend_on_the_unit_of_memory() -> None:
    held = Held(mean=100.0, deviation=30.0, prompt=50.0, room=1000.0)
    small = Held(*(value * 1e-3 for value in held))
    for spread in (0.0, 4.0):
        assert small.evicted(12.0, spread) == pytest.approx(held.evicted(12.0, spread))
    assert 0.0 < held.evicted(9.0, 4.0) < held.evicted(12.0, 4.0)


@pytest.mark.parametrize("deviation", [0.0, 0.3, 1.0, 7.7])
@pytest.mark.parametrize("k", [0.0, 1.0, 2.0])
def test_the_safe_number_is_the_last_whose_demand_fits(deviation: float, k: float) -> None:
    """MEM003: whole ones too, whatever the last bit of a root is."""
    for number in range(1, 60):
        held = Held(mean=3.3, deviation=deviation, prompt=1.0, room=0.0)
        exact = held._replace(room=held.demand(number, 0.0, k))
        assert exact.safe(k) == number
        between = held._replace(room=0.01 * exact.room + 0.99 * held.demand(number + 1, 0.0, k))
        assert between.safe(k) == number


@pytest.mark.parametrize(("room", "speaks"), [(8 * 1004, False), (8 * 1004 - 1, True)])
def test_a_cache_of_just_what_is_held_is_no_pressure(room: int, speaks: bool, plugins: Plugins) -> None:
    """MEM003: eight sequences of 1,000 tokens and half of eight, without deviations."""
    assert bool(pressure(plugins, {"sigmas": 0.0}, room=room, prompt=1000, output=8)) is speaks


def test_one_sequence_outgrows_no_cache_that_it_fits(plugins: Plugins) -> None:
    """MEM003: of two that are spread as widely the cache does not hold two deviations more."""
    wide: dict[str, object] = {"prompt": "{ p25 = 100, p50 = 9800, p99 = 9890 }", "output": 100}
    assert not pressure(plugins, room=10_000, load="concurrency = 1", **wide)
    (two,) = pressure(plugins, room=10_000, load="concurrency = 2", **wide)
    assert two.message.startswith("the declared concurrency asks for 2 sequences, ")
    # At a rate that keeps 1.5 of them there is nearly always one.
    assert not pressure(plugins, room=10_000, load='rate = "0.000001 req/s"', **wide)


@pytest.mark.parametrize(("admitted", "speaks"), [(2, False), (3, True)])
def test_what_fits_at_full_length_never_presses(admitted: int, speaks: bool, plugins: Plugins) -> None:
    """MEM003: two requests of 10,000 tokens in 20,000, whatever two deviations are."""
    found = pressure(
        plugins, admitted=admitted, room=20_000, prompt="{ p25 = 100, p50 = 9800, p99 = 9890 }", output=100
    )
    assert bool(found) is speaks


@pytest.mark.parametrize(("evicted", "severity"), [(0.0, Severity.WARNING), (1e-9, Severity.INFO)])
def test_the_share_that_is_evicted_decides(evicted: float, severity: Severity, plugins: Plugins) -> None:
    """MEM003: seven of eight are let in, whose outputs end in the page of their prompt: none is evicted."""
    (found,) = pressure(plugins, {"evicted": evicted}, room=7 * 1008, page=16, prompt=1000, output=8)
    assert "about 0.0% of those admitted are evicted" in found.message
    assert found.severity is severity


@pytest.mark.parametrize(
    ("room", "severity"),
    [
        # Eight that hold 4,200 tokens on average.
        (8 * 4200 - 8, Severity.ERROR),
        (8 * 4200 + 8, Severity.WARNING),
    ],
)
def test_requests_fail_for_certain_where_a_concurrency_does_not_fit_on_average(
    room: int, severity: Severity, plugins: Plugins
) -> None:
    """MEM003."""
    given: dict[str, object] = {"engine": "llama.cpp", "longest": 30_000, "prompt": 4000, "output": 400, "room": room}
    (found,) = pressure(plugins, **given)
    assert found.severity is severity
    text = POOL.format(**{"admitted": 8, "page": 1, "load": "concurrency = 8", **given})
    review = review_of(text, plugins)
    assert review.mix is not None
    most = review.service(review.mix).point(6.0).rate
    # A rate keeps that many on average.
    (rated,) = pressure(plugins, **{**given, "admitted": 200, "load": f'rate = "{most:.4f} req/s"'})
    assert rated.severity is Severity.WARNING


def test_a_context_is_an_input_to_a_tenth_of_a_token(plugins: Plugins) -> None:
    """MEM003: 1,000 tokens and half of seven."""
    (found,) = pressure(plugins, room=7 * 1004, prompt=1000, output=7)
    assert ("mean context", 1003.5) in [(i.name, i.value) for i in found.inputs]


@pytest.mark.parametrize(
    ("given", "fits", "running"),
    [
        ({"prompt": "{ p50 = 2000, p99 = 6900 }", "room": 7000, "longest": 7000}, 2, 2.0),
        # One at a time where two are asked for.
        ({"prompt": "{ p50 = 2000, p99 = 3900 }", "room": 4000, "longest": 4000}, 1, 1.0),
        # Half of each prompt is shared, so that one runs where its whole would not fit.
        ({"prompt": "10000", "room": 8000, "longest": 12000, "load": "prefix_hit = 0.5"}, 0, 1.0),
    ],
)
def test_what_is_prefilled_again_is_that_of_the_sequences_that_run(
    given: dict[str, object], fits: int, running: float, plugins: Plugins
) -> None:
    """MEM003: two are asked for; the share of the prompts is that of their computed tokens."""
    values = {"engine": "sglang", "admitted": 8, "page": 1, "output": 100, "load": ""} | given
    (found,) = pressure(plugins, **values | {"load": f"concurrency = 2\n{values['load']}"})
    review = review_of(POOL.format(**values), plugins)
    assert review.mix is not None
    assert review.memory is not None
    service = review.service(review.mix)
    assert service.limits["KV capacity"] == fits
    held = _held(review.memory, review.mix)
    assert held is not None
    tokens = held.evicted(2.0, 0.0) * review.mix.mean_context
    again, share = service.point(running).rate * tokens, tokens / review.mix.new_prompt
    assert f"evicted and prefilled again, {again:,.0f} tok/s or {share:.1%} on top of the prompts" in found.message


def test_prompts_that_are_all_cached_still_compute_a_token(plugins: Plugins) -> None:
    """MEM003: evictions add to one token a request."""
    (found,) = pressure(
        plugins, longest=8000, room=16_000, prompt=1000, output=6000, load="concurrency = 8\nprefix_hit = 1.0"
    )
    match = re.search(r"about ([\d.]+)% of those .* or ([\d.]+)% on top of the prompts", found.message)
    assert match is not None
    assert float(match[2]) == pytest.approx(float(match[1]) * (1000 + 6000 / 2), rel=0.01)


def test_ranks_share_what_is_admitted_and_what_the_load_keeps(plugins: Plugins) -> None:
    """MEM003: the cache of a rank holds 29 with their deviations, so two of them carry 56 at a rate."""
    text = plugins.rule("MEM003").failing[2].spec
    ranks = "[policy.parallelism]\ntensor = 1\ndata = 2\n"
    both = edited(text, key_path("hardware.devices"), "2", plugins) + ranks
    review = review_of(both, plugins)
    assert review.mix is not None
    assert review.memory is not None
    held = _held(review.memory, review.mix)
    assert held is not None
    assert held.safe(2.0) == 29
    twice = edited(both, key_path("workload.rate"), '"1.4 req/s"', plugins)
    point = review_of(twice, plugins).operating_point
    assert point is not None
    assert point.batch == pytest.approx(56, abs=1)
    found = only("MEM003", twice, plugins)
    assert found.message.startswith("the offered rate keeps 28 sequences on each of the ranks, ")
    high = held.demand(point.batch / 2, point.batch / 2, 2.0)
    assert f"and {size(high)} at 2 deviations" in found.message
    assert "latency aside" not in found.help
    # Admission is counted by rank too: 29 let in on each hold what 58 of both do.
    for admitted, speaks in ((29, False), (30, True)):
        limited = edited(twice, key_path("policy.batching.max_sequences"), str(admitted), plugins)
        closed = limited.replace('rate = "1.4 req/s"', "concurrency = 128")
        assert bool(findings("MEM003", closed, plugins)) is speaks


@pytest.mark.parametrize(("admitted", "words"), [(31, None), (33, "the offered rate keeps 27 sequences, "), (32, "")])
def test_of_the_load_and_what_is_let_in_the_lesser_presses(admitted: int, words: str | None, plugins: Plugins) -> None:
    """MEM003: bursts of 27 ask for more than 32 that are always there."""
    text = plugins.rule("MEM003").failing[2].spec
    limited = edited(text, key_path("policy.batching.max_sequences"), str(admitted), plugins)
    found = findings("MEM003", limited, plugins)
    assert bool(found) is (words is not None)
    assert all(f.message.startswith(words or "the offered rate keeps 32 sequences, ") for f in found)
    # With 31 the rate is still carried.
    assert all(f.fix is not None and f.fix.edits[0].text == "31" for f in found)


def test_a_stage_that_caches_nothing_runs_out_of_nothing(plugins: Plugins) -> None:
    """MEM003: the last layer of this hybrid is a plain MLP."""
    text = (
        f'{H100}devices = 2\n[model]\nid = "nvidia/Nemotron-H-8B-Base-8K"\nmax_model_len = 8192\n'
        "[policy.parallelism]\ntensor = 1\npipeline = 2\npipeline_layers = [51, 1]\n"
        "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"
    )
    review = review_of(text, plugins)
    assert review.mix is not None
    assert review.memory is not None
    assert review.memory.sequence_bytes(1000, 1) == 0
    held = _held(review.memory, review.mix)
    assert held is not None
    assert held.room == review.memory.cache_left(0)


SLOTS = """\
servelint = 1
[deployment]
sized_for = {sized}
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 32768
[engine]
name = "llama.cpp"
[policy.batching]
max_sequences = {slots}
[policy.kv_cache]
{cap}
{load}
"""


def slots(plugins: Plugins, **given: object) -> list[Finding]:
    """What MEM003 says of slots that are sized for a context."""
    values: dict[str, object] = {"cap": "max_tokens = 32768", "load": "", "slots": 4, **given}
    return findings("MEM003", SLOTS.format(**values), plugins)


@pytest.mark.parametrize(
    ("load", "speaks"),
    [
        ("", True),
        ("concurrency = 1\n", False),
        ('rate = "0.01 req/s"\n', False),
        ('concurrency = 1\nrate = "0.01 req/s"\n', False),
    ],
)
def test_a_declared_load_says_how_many_slots_run(load: str, speaks: bool, plugins: Plugins) -> None:
    """MEM003: four slots of 8,193 tokens are one too many only where nothing says that one runs."""
    workload = f"[workload]\nprompt_tokens = 7000\noutput_tokens = 400\n{load}"
    assert bool(slots(plugins, sized=8193, load=workload)) is speaks


def test_slots_without_a_load_need_a_size_to_be_judged_by(plugins: Plugins) -> None:
    """MEM003: it says what it lacks."""
    text = re.sub(r"\[deployment\]\nsized_for.*\n", "", SLOTS.format(sized=1, slots=4, cap="", load=""))
    found = result("MEM003", text, plugins)
    assert not found.findings
    assert ("MEM003", "workload lengths") in found.lacking


@pytest.mark.parametrize(
    ("sized", "number", "product"),
    [
        (32768, 2, "2 x 32,768 = 65,536 > 1 x 32,768"),
        (32768, 1, None),
        # More than a request may have.
        (32769, 2, None),
        (8192.5, 4, "4 x 8,193 = 32,772 > 3 x 8,193"),
        (8192, 4, None),
    ],
)
def test_slots_hold_what_they_are_sized_for(sized: float, number: int, product: str | None, plugins: Plugins) -> None:
    """MEM003: in a cache of 32,768 tokens, of which a slot takes whole ones."""
    found = slots(plugins, sized=sized, slots=number)
    assert [f.equation for f in found] == ([product] if product else [])


def test_slots_are_those_of_a_rank(plugins: Plugins) -> None:
    """MEM003: each of two has four."""
    text = SLOTS.format(
        sized=8193, slots=4, cap="max_tokens = 32768", load="[policy.parallelism]\ntensor = 1\ndata = 2"
    )
    found = only("MEM003", text.replace("[model]", "devices = 2\n[model]"), plugins)
    assert found.equation == "4 x 8,193 = 32,772 > 3 x 8,193"


def test_slots_of_which_none_holds_its_size_are_no_question_of_their_number(plugins: Plugins) -> None:
    """MEM003: 20,000 tokens in 16,384."""
    assert not slots(plugins, sized=20_000, cap="max_tokens = 16384")
    assert slots(plugins, sized=16_384, cap="max_tokens = 16384")


def test_a_cache_is_told_to_grow_as_far_as_memory_holds_it(plugins: Plugins) -> None:
    """MEM003: to a multiple of 256 tokens where not all fit, and to no size where none is declared."""
    memory = review_of(SLOTS.format(sized=20_000, slots=60, cap="", load=""), plugins).memory
    assert memory is not None
    most = int(memory.fit(0).left / KV)
    held = f"; memory holds {most:,} of the 1,200,000 tokens"
    (capped,) = slots(plugins, sized=20_000, slots=60)
    assert capped.help.endswith(f"{held}: policy.kv_cache.max_tokens = {most // 256 * 256} is the most")
    for cap in ("", f"max_tokens = {most // 256 * 256}"):
        (full,) = slots(plugins, sized=20_000, slots=60, cap=cap)
        assert full.help.endswith(held)
    # Two slots of half of it fit to the token.
    (just,) = slots(plugins, sized=16_384, slots=most // 16_384)
    assert just.help.endswith(f"; or let the cache hold more (policy.kv_cache.max_tokens = {most // 16_384 * 16_384})")


@pytest.mark.parametrize("extra", [0, 1])
def test_a_cache_may_be_all_that_memory_holds(extra: int, plugins: Plugins) -> None:
    """MEM003: 60 slots of 8,192 tokens, in memory for as many or for a token less."""
    text = SLOTS.format(sized=8192, slots=60, cap="max_tokens = 32768", load="")
    memory = review_of(text, plugins).memory
    assert memory is not None
    fit = memory.fit(0)
    visible = round(fit.weights + fit.reserves + (60 * 8192 - extra) * KV)
    (found,) = findings("MEM003", text.replace("[model]", f"{memory_of(visible)}[model]"), plugins)
    assert ("or let the cache hold more" in found.help) is (extra == 0)


# MEM004


def waste(plugins: Plugins, options: dict[str, float] | None = None, **given: object) -> list[Finding]:
    """What MEM004 says of pages in a cache of so many tokens."""
    values = {"longest": 8192, "engine": "sglang", "admitted": 256, "load": ""} | given
    review = review_of(POOL.format(**values), plugins)
    return [f for f in PageWaste(options or {}).check(review) if isinstance(f, Finding)]


@pytest.mark.parametrize(
    ("room", "speaks"),
    [
        # One sequence in three pages; two of 151 tokens where a page is a token, and not where it is two.
        (302, True),
        (301, False),
        # Not one in two pages: MEM002's.
        (160, False),
    ],
)
def test_pages_are_missed_where_one_sequence_more_would_fit(room: int, speaks: bool, plugins: Plugins) -> None:
    """MEM004: 150 tokens and one of two, in pages of 64."""
    assert bool(waste(plugins, longest=160, room=room, page=64, prompt=150, output=2)) is speaks


@pytest.mark.parametrize(("output", "speaks"), [(304, False), (302, True)])
def test_a_tenth_that_holds_nothing_is_not_too_much(output: int, speaks: bool, plugins: Plugins) -> None:
    """MEM004: 128 / (1,152 + 128), and of a token less."""
    assert bool(waste(plugins, room=20_000, page=256, prompt=1000, output=output)) is speaks


def test_the_context_that_pages_are_compared_with(plugins: Plugins) -> None:
    """MEM004: to a tenth of a token."""
    given: dict[str, object] = {"room": 20_000, "page": 512, "prompt": 500, "output": "{ p50 = 200, p99 = 300 }"}
    (found,) = waste(plugins, **given)
    text = POOL.format(**{"longest": 8192, "engine": "sglang", "admitted": 256, "load": ""} | given)
    mix = review_of(text, plugins).mix
    assert mix is not None
    assert len({round(mix.mean_context, digits) for digits in (0, 1, 2)}) == 3
    (said,) = (i.value for i in found.inputs if i.name.startswith("mean context"))
    assert said == round(mix.mean_context, 1)


@pytest.mark.parametrize(("limit", "page"), [(0.1, 128), (0.2, 256), (0.01, 8), (0.001, 1), (0.0, 1)])
def test_the_page_that_is_told_is_the_largest_power_of_two_within_the_limit(
    limit: float, page: int, plugins: Plugins
) -> None:
    """MEM004: page / 2 / (600 + page / 2), and nothing where a page is a token."""
    (found,) = waste(plugins, {"waste": limit}, room=20_000, page=512, prompt=500, output=200)
    assert found.fix is not None
    assert found.fix.edits[0].text == str(page)
    assert found.help.startswith(f"set policy.kv_cache.page_size = {page}, which leaves ")
    empty = page / 2 if page > 1 else 0
    assert empty / (600 + empty) <= limit < page / (600 + page)


def test_windows_keep_no_more_pages_than_they_have(plugins: Plugins) -> None:
    """MEM004: every other layer of this model has one, and the cache holds some 250 of 4,096 that are admitted."""
    text = (
        f'{H100}[model]\nid = "google/gemma-2-9b"\nmax_model_len = 4096\n'
        "[policy.batching]\nmax_sequences = 4096\nmax_batched_tokens = 4096\n[policy.kv_cache]\npage_size = 512\n"
        "[workload]\nprompt_tokens = 500\noutput_tokens = 200\n"
    )
    review = review_of(text, plugins)
    assert review.mix is not None
    assert review.memory is not None
    assert {cache.held for cache in review.memory.caches} == {4096, 0}
    service = review.service(review.mix)
    assert service.batch_limit == service.limits["KV capacity"] < 600
    assert not findings("MEM004", text, plugins)
    assert findings("MEM004", text.replace("google/gemma-2-9b", "Qwen/Qwen3-8B"), plugins)


@pytest.mark.parametrize(("engine", "speaks"), [("vllm", False), ("sglang", True)])
def test_blocks_that_layers_of_different_kinds_share_are_sized_by_the_engine(
    engine: str, speaks: bool, plugins: Plugins
) -> None:
    """MEM004: attention and state of a hybrid, which vLLM lays out in one pool."""
    text = (
        f'{L4}[model]\nid = "nvidia/Nemotron-H-8B-Base-8K"\nmax_model_len = 1024\n[engine]\nname = "{engine}"\n'
        "[policy.batching]\nmax_sequences = 4096\nmax_batched_tokens = 4096\n[policy.kv_cache]\npage_size = 512\n"
        "memory_utilization = 0.9\n[workload]\nprompt_tokens = 500\noutput_tokens = 200\n"
    )
    review = review_of(text, plugins)
    assert review.memory is not None
    assert (review.memory.pool is not None) is not speaks
    assert bool(findings("MEM004", text, plugins)) is speaks


# MEM005


LARGE = """\
servelint = 1
[hardware]
accelerator = "{part}"
devices = {devices}
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = {longest}
[policy.batching]
max_sequences = {slots}
max_batched_tokens = 2048
[workload]
prompt_tokens = {prompt}
output_tokens = 200
{load}
[slo]
tpot = {{ p99 = "{tpot} ms" }}
{more}
"""


def large(**given: object) -> str:
    values: dict[str, object] = {
        "part": "nvidia/h200-sxm5-141gb",
        "devices": 1,
        "longest": 8192,
        "slots": 8,
        "prompt": 4000,
        "load": "concurrency = 8",
        "tpot": 100,
        "more": "",
    }
    return LARGE.format(**values | given)


@pytest.mark.parametrize(
    ("devices", "edits"),
    [
        (8, "set hardware.devices = 4; or"),
        (4, "set hardware.devices = 2; or"),
        # One device would do as well, which is PAR004's; there is no smaller one of the kind.
        (2, None),
        (1, None),
    ],
)
def test_devices_are_taken_away_down_to_two(devices: int, edits: str | None, plugins: Plugins) -> None:
    """MEM005: 16 GB of weights on devices of 24 GB."""
    found = findings("MEM005", large(part="nvidia/rtx-4090", devices=devices, load="concurrency = 1"), plugins)
    assert [f.help[: len(edits or "")] for f in found] == ([edits] if edits else [])


def test_a_declared_degree_is_halved_with_its_devices(plugins: Plugins) -> None:
    """MEM005: and the finding is at what is paid for."""
    more = "[policy.parallelism]\ntensor = 4\n"
    found = only("MEM005", large(part="nvidia/rtx-4090", devices=4, load="concurrency = 1", more=more), plugins)
    assert found.help.startswith("set policy.parallelism.tensor = 2 and hardware.devices = 2; or")
    assert found.path == ("hardware", "devices")


@pytest.mark.parametrize(
    ("model", "table", "half"),
    [
        ("Qwen/Qwen2.5-0.5B", "tensor = 4\n", 2),
        ("google/gemma-2-2b", "tensor = 8\n", 4),
        ("mistralai/Mixtral-8x7B-v0.1", "tensor = 4\n", 2),
        ("mistralai/Mixtral-8x7B-v0.1", "tensor = 4\nexpert = 2\n", None),
        ("mistralai/Mixtral-8x7B-v0.1", "tensor = 4\nexpert = 4\n", None),
    ],
)
def test_a_group_is_halved_where_heads_divide_by_the_half(
    model: str, table: str, half: int | None, plugins: Plugins
) -> None:
    """MEM005: 14 heads over two, 8 over four; experts are spread over what is left as well."""
    devices = int(table.split()[2])
    text = f'{H100}devices = {devices}\n[model]\nid = "{model}"\n[policy.parallelism]\n{table}'
    found = _halved(compose(text, plugins))
    assert (None if found is None else found.setup.topology.devices) == half


@pytest.mark.parametrize(
    "more",
    [
        '[policy.kv_cache]\nmemory_bytes = "40 GB"\n',
        "[policy.disaggregation]\nprefill = { tensor = 1 }\ndecode = { tensor = 1 }\n"
        'transfer = { bandwidth = "50 GB/s" }\n',
    ],
)
def test_a_declared_cache_and_pools_are_left_alone(more: str, plugins: Plugins) -> None:
    """MEM005."""
    assert findings("MEM005", large(), plugins)
    assert not findings("MEM005", large(more=more), plugins)


def test_room_is_kept_for_one_sequence_at_least(plugins: Plugins) -> None:
    """MEM005: twice that, however seldom one runs."""
    found = only("MEM005", large(load='rate = "0.001 req/s"'), plugins)
    assert " - 2 sequences of 4,200 tokens (p95) = " in found.equation


@pytest.mark.parametrize(("unused", "speaks"), [(0.7, True), (0.9, False)])
def test_a_device_is_too_large_where_most_of_it_stays_empty(unused: float, speaks: bool, plugins: Plugins) -> None:
    """MEM005: 16.1 GB of weights and 16 sequences of 0.55 GB of 150 GB."""
    review = review_of(large(), plugins)
    assert [isinstance(f, Finding) for f in StrandedMemory({"unused": unused}).check(review)] == [True] * speaks


@pytest.mark.parametrize(("part", "next_"), [("h200-sxm5-141gb", "h20-96gb"), ("h20-96gb", "h100-sxm5-80gb")])
def test_the_next_smaller_device_is_told(part: str, next_: str, plugins: Plugins) -> None:
    """MEM005: of two with the same memory and rate the first by name."""
    found = only("MEM005", large(part=f"nvidia/{part}"), plugins)
    assert found.help.startswith(f'set hardware.accelerator = "nvidia/{next_}"; or')


def test_a_smaller_device_holds_the_longest_request(plugins: Plugins) -> None:
    """MEM005: 32 GB with 16 GB of weights, which leave less than 120,000 tokens of 0.13 MB take."""
    for longest, speaks in ((8192, True), (120_000, False)):
        text = large(part="nvidia/rtx-pro-6000-blackwell-ws", longest=longest, load="concurrency = 1")
        small = review_of(text.replace("rtx-pro-6000-blackwell-ws", "rtx-5090"), plugins).memory
        assert small is not None
        assert small.admits(longest) is speaks
        assert bool(findings("MEM005", text, plugins)) is speaks


@pytest.mark.parametrize(("spare", "speaks"), [(0, True), (-1, False)])
def test_a_smaller_device_holds_twice_the_load(spare: int, speaks: bool, plugins: Plugins) -> None:
    """MEM005: as long as all but a twentieth of the requests, neither their mean nor the longest."""
    prompt = "{ p50 = 1000, p95 = 6000, max = 7900 }"
    small = review_of(large(part="nvidia/rtx-5090", prompt=prompt), plugins)
    assert small.memory is not None
    assert small.mix is not None
    held = [small.memory.resident_sequences(small.mix.context(p)) for p in (0.0, 0.95, 1.0)]
    assert held[0] > held[1] > held[2]
    margin = (held[1] - spare) / 8
    text = large(part="nvidia/rtx-pro-6000-blackwell-ws", prompt=prompt, tpot=1000)
    review = review_of(text, plugins)
    assert [isinstance(f, Finding) for f in StrandedMemory({"margin": margin}).check(review)] == [True] * speaks


@pytest.mark.parametrize(("factor", "speaks"), [(0.99, False), (1.01, True)])
def test_a_smaller_device_keeps_objectives_with_a_reserve(factor: float, speaks: bool, plugins: Plugins) -> None:
    """MEM005: of 30%."""
    small = review_of(large(part="nvidia/h20-96gb"), plugins).operating_point
    assert small is not None
    limit = small.latency("tpot", "p99") / 0.7 * 1e3
    assert bool(findings("MEM005", large(tpot=limit * factor), plugins)) is speaks


@pytest.mark.parametrize(("slots", "speaks"), [(8, True), (7, False)])
def test_a_smaller_device_lets_the_load_in(slots: int, speaks: bool, plugins: Plugins) -> None:
    """MEM005: eight at once, in eight slots."""
    assert bool(findings("MEM005", large(slots=slots), plugins)) is speaks


# MEM006


VLLM = '[engine]\nname = "vllm"\nversion = "0.11.0"\n'


def share(value: object) -> str:
    return f"[policy.kv_cache]\nmemory_utilization = {value}\n"


def test_all_of_a_device_leaves_nothing(plugins: Plugins) -> None:
    """MEM006."""
    found = only("MEM006", f"{L4}{MODEL}{VLLM}{share(1.0)}", plugins)
    assert found.message.startswith("nothing is left outside the budget, where the graphs of 32 layers take about")


def test_the_graphs_of_a_device_are_those_of_its_stage(plugins: Plugins) -> None:
    """MEM006: (0.127 + 0.0052 x 16) GiB, and 0.06 GiB of slack."""
    stages = "[policy.parallelism]\ntensor = 1\npipeline = 2\n"
    found = only("MEM006", f"{L4}devices = 2\n{MODEL}{VLLM}{stages}{share(0.999)}", plugins)
    assert f"where the graphs of 16 layers take about {size((0.127 + 0.0052 * 16 + 0.06) * 2**30)}" in found.message


def test_a_declared_cache_takes_the_place_of_a_static_share(plugins: Plugins) -> None:
    """MEM006: what SGLang is told of both."""
    engine = '[engine]\nname = "sglang"\nversion = "0.5.9"\n'
    assert findings("MEM006", f"{L4}{MODEL}{engine}{share(0.93)}", plugins)
    assert not findings("MEM006", f'{L4}{MODEL}{engine}{share(0.93)}memory_bytes = "3 GB"\n', plugins)


@pytest.mark.parametrize(("engine", "speaks"), [('name = "vllm"', False), ('name = "tgi"\nversion = "2.4.0"', True)])
def test_a_thin_cache_is_one_of_tgi(engine: str, speaks: bool, plugins: Plugins) -> None:
    """MEM006: less than a tenth, where vLLM has run its largest step before it sizes the cache."""
    model = MODEL.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B")
    batching = "[policy.batching]\nmax_batched_tokens = 16384\n"
    text = f"{H100}{model}[engine]\n{engine}\n{batching}"
    memory = review_of(text, plugins).memory
    assert memory is not None
    assert 0 < memory.fit(0).left < 0.1 * memory.visible
    assert bool(findings("MEM006", text, plugins)) is speaks


def test_a_cache_that_does_not_fit_beside_the_weights_is_not_told_twice(plugins: Plugins) -> None:
    """MEM006: 70 and 16.1 of 85 GB are MEM001's, 68 GB leave less than graphs take."""
    for declared, codes in (("70 GB", ["MEM001"]), ("68 GB", ["MEM006"])):
        text = f'{H100}{MODEL}{VLLM}[policy.kv_cache]\nmemory_bytes = "{declared}"\n'
        assert [code for code in ("MEM001", "MEM006") if findings(code, text, plugins)] == codes


def test_a_pool_that_does_not_hold_the_weights_hides_no_share(plugins: Plugins) -> None:
    """MEM006: the other leaves a thousandth of a device."""
    model = MODEL.replace("8B", "70B")
    pools = "[policy.disaggregation]\nprefill = { tensor = 1 }\ndecode = { tensor = 4 }\n"
    assert "(of the decode pool)" in only("MEM006", f"{H100}{model}{VLLM}{share(0.999)}{pools}", plugins).message


@pytest.mark.parametrize(
    ("hardware", "tensor", "path", "related"),
    [
        ('accelerator = "nvidia/l4"\ndevices = 8\n', "", ("hardware", "devices"), []),
        (
            'accelerator = "nvidia/l4"\ndevices = 8\n',
            "[policy.parallelism]\ntensor = 8\n",
            ("policy", "parallelism", "tensor"),
            [("hardware", "accelerator")],
        ),
        ('instance = "aws/g6.48xlarge"\n', "", ("hardware", "instance"), []),
        (
            'instance = "aws/g6.48xlarge"\n',
            "[policy.parallelism]\ntensor = 8\n",
            ("policy", "parallelism", "tensor"),
            [],
        ),
    ],
)
def test_the_device_is_pointed_at_where_it_is_named_and_not_the_place_itself(
    hardware: str, tensor: str, path: tuple[str, ...], related: list[tuple[str, ...]], plugins: Plugins
) -> None:
    """MEM006."""
    text = (
        f'servelint = 1\n[hardware]\n{hardware}[model]\nid = "google/gemma-2-9b"\n[engine]\nname = "vllm"\n'
        f'version = "0.5.4"\n{tensor}'
    )
    found = only("MEM006", text, plugins)
    assert found.path == path
    assert [r.path for r in found.related] == related


def test_a_share_that_leaves_just_enough_is_told(plugins: Plugins) -> None:
    """MEM006: graphs and slack of a twentieth of the device leave 95 of a hundred."""
    review = review_of(f"{L4}{MODEL}{VLLM}{share(0.99)}", plugins)
    assert review.memory is not None
    for twentieths in (1, 2):
        slack = review.memory.visible / 2**30 * twentieths / 20 - (0.127 + 0.0052 * 32)
        (found,) = UtilizationHeadroom({"slack_gib": slack}).check(review)
        assert isinstance(found, Finding)
        assert found.fix is not None
        assert found.fix.edits[0].text == f"{1 - twentieths / 20:.2f}"


def test_a_share_is_not_lowered_below_the_longest_request(plugins: Plugins) -> None:
    """MEM006: to what 0.98 of a device leaves for the cache, and with a page more than that."""
    text = f"{L4}{MODEL}{VLLM}[policy.batching]\nmax_batched_tokens = 2048\n{share('{}')}"
    memory = review_of(text.format(0.98), plugins).memory
    assert memory is not None
    most = int(memory.fit(0).left / KV) // 16 * 16
    for longest, start in (
        (most, "set policy.kv_cache.memory_utilization = 0.98; or"),
        (most + 16, f"less would not hold one request of {most + 16} tokens: "),
    ):
        found = only("MEM006", text.format(1.0).replace("8192", str(longest)), plugins)
        assert found.help.startswith(start)


@pytest.mark.parametrize(
    ("room", "longest", "start"),
    [
        (2.1, 8192, 'set policy.kv_cache.memory_bytes = "2 GB"; or'),
        # 1.3 and 1.07 GB.
        (2.1, 10_000, 'set policy.kv_cache.memory_bytes = "2 GB"; or'),
        (1.1, 10_000, "less would not hold one request of 10000 tokens: "),
        (1.1, 4096, 'set policy.kv_cache.memory_bytes = "1 GB"; or'),
        (0.9, 4096, "more memory, or fewer layers a device; "),
    ],
)
def test_a_declared_cache_is_lowered_by_whole_gigabytes(
    room: float, longest: int, start: str, plugins: Plugins
) -> None:
    """MEM006: to what weights, activations, runtime and graphs leave, and never below the longest request."""
    text = f'{L4}{{}}{MODEL.replace("8192", str(longest))}{VLLM}{share(1.0)}memory_bytes = "{{}} B"\n'
    review = review_of(text.format("", 10**9), plugins)
    assert review.memory is not None
    fit = review.memory.fit(0)
    need = (0.127 + 0.0052 * 32 + 0.06) * 2**30
    visible = round(fit.weights + fit.reserves + need + room * 1e9)
    declared = round(room * 1e9 + need)
    assert only("MEM006", text.format(memory_of(visible), declared), plugins).help.startswith(start)


# MEM007


BOUNDED = POOL.replace("[policy.batching]\nmax_sequences = {admitted}\n", "").replace(
    'name = "{engine}"', 'name = "vllm"\nversion = "0.11.0"'
)


def unbounded(text: str, plugins: Plugins, **options: float) -> list[Finding]:
    """What MEM007 says, whatever the load keeps."""
    rule = AdmissionUnbounded({"load": 0.0} | options)
    return [f for f in rule.check(review_of(text, plugins)) if isinstance(f, Finding)]


def bounded(room: int, longest: int = 8192, objective: str = 'ttft = { p99 = "60 s" }') -> str:
    """A cache for so many tokens, and contexts of 1,100."""
    load = f'rate = "0.01 req/s"\n[slo]\n{objective}'
    return BOUNDED.format(longest=longest, room=room, page=16, prompt=1000, output=200, load=load)


@pytest.mark.parametrize(("factor", "speaks"), [(128.0, False), (127.9, True), (8.0, True)])
def test_a_default_that_admits_too_many_is_counted_in_what_the_cache_holds(
    factor: float, speaks: bool, plugins: Plugins
) -> None:
    """MEM007: 1,024 where 8 sequences fit."""
    assert bool(unbounded(bounded(8 * 1104), plugins, factor=factor)) is speaks


def test_a_cache_of_one_sequence_is_limited_to_one(plugins: Plugins) -> None:
    """MEM007."""
    (found,) = unbounded(bounded(1200, 1200), plugins)
    assert "where the KV cache holds 1 of mean context" in found.message
    assert "policy.batching.max_sequences = 1, and" in found.help


@pytest.mark.parametrize("ranks", [1, 2])
def test_objectives_that_one_sequence_alone_meets_admit_one(ranks: int, plugins: Plugins) -> None:
    """MEM007: on each rank one, though the knee is one of both together."""
    text = bounded(8 * 1104)
    if ranks > 1:
        text = text.replace("[model]", "devices = 2\n[model]") + "\n[policy.parallelism]\ntensor = 1\ndata = 2\n"
    review = review_of(text, plugins)
    assert review.mix is not None
    service = review.service(review.mix)
    one, two = (service.point(batch).latency("tpot", "p99") for batch in (1.0, 2.0))
    limit = f'tpot = {{ p99 = "{(one + two) / 2 * 1e3} ms" }}'
    tight = text.replace('ttft = { p99 = "60 s" }', limit)
    knee = review_of(tight, plugins).knee
    assert knee is not None
    assert knee.batch == 1
    (found,) = unbounded(tight, plugins)
    assert "policy.batching.max_sequences = 1, and" in found.help


def test_objectives_that_not_one_sequence_meets_limit_nothing(plugins: Plugins) -> None:
    """MEM007: what the cache holds does."""
    text = bounded(8 * 1104, objective='tpot = { p99 = "1 ms" }')
    assert review_of(text, plugins).knee is None
    (found,) = unbounded(text, plugins)
    assert "policy.batching.max_sequences = 8, and" in found.help


def test_ranks_share_the_limit(plugins: Plugins) -> None:
    """MEM007: the knee of both is theirs together."""
    text = plugins.rule("MEM007").failing[0].spec
    text = edited(text, key_path("hardware.devices"), "2", plugins)
    text = edited(text, key_path("workload.rate"), '"1.2 req/s"', plugins)
    text += "[policy.parallelism]\ntensor = 1\ndata = 2\n"
    review = review_of(text, plugins)
    assert review.knee is not None
    assert 35 < review.knee.batch < 74
    assert f"policy.batching.max_sequences = {int(review.knee.batch) // 2}, and" in only("MEM007", text, plugins).help


# MEM008


STEP = """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
{hardware}[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[engine]
name = "{engine}"
version = "{version}"
[policy.batching]
max_batched_tokens = 29000
{more}
"""


def step(plugins: Plugins, ratio: float = 1.0, **given: str) -> list[Finding]:
    """What MEM008 says of steps of 29,000 tokens."""
    values = {"hardware": "", "engine": "vllm", "version": "0.11.0", "more": ""} | given
    review = review_of(STEP.format(**values), plugins)
    return [f for f in StepOutweighsCache({"ratio": ratio}).check(review) if isinstance(f, Finding)]


FEW = "[workload]\nprompt_tokens = 4000\noutput_tokens = 400\n"
POOLS = (
    "[policy.disaggregation]\nprefill = {{ tensor = {}, replicas = 1 }}\ndecode = {{ tensor = 1, replicas = 2 }}\n"
    'transfer = {{ bandwidth = "50 GB/s" }}\n'
)


@pytest.mark.parametrize(
    ("hardware", "pools", "replicas"), [("", "", 1), ("replicas = 2\n", "", 2), ("replicas = 2\n", POOLS.format(1), 4)]
)
def test_a_concurrency_is_short_of_cache_by_replica(hardware: str, pools: str, replicas: int, plugins: Plugins) -> None:
    """MEM008: 2.99 GB hold five of 4,200 tokens."""
    for more, speaks in ((0, False), (1, True)):
        load = f"{FEW}concurrency = {5 * replicas + more}\n{pools}"
        assert bool(step(plugins, hardware=hardware, more=load)) is speaks


@pytest.mark.parametrize(("rate", "speaks"), [("0.05", False), ("2", True)])
def test_a_rate_is_short_of_cache_by_what_it_keeps(rate: str, speaks: bool, plugins: Plugins) -> None:
    """MEM008: some two sequences, or more than can be carried."""
    assert bool(step(plugins, more=f'{FEW}rate = "{rate} req/s"\n')) is speaks


@pytest.mark.parametrize(("slots", "speaks"), [(1, False), (2, True)])
def test_slots_are_short_of_cache_at_full_length(slots: int, speaks: bool, plugins: Plugins) -> None:
    """MEM008: 2.99 GB hold one of 16,384 tokens."""
    assert bool(step(plugins, more=f"max_sequences = {slots}\n")) is speaks


@pytest.mark.parametrize("slots", [1, 2])
def test_one_slot_has_no_half(slots: int, plugins: Plugins) -> None:
    """MEM008: only the budget is."""
    load = f"max_sequences = {slots}\n{FEW}concurrency = 12\n"
    (found,) = step(plugins, more=load)
    assert found.help.startswith("set policy.batching.max_batched_tokens = 16384, with prompts in chunks: ")


def test_a_pool_whose_step_is_small_says_nothing_of_the_other(plugins: Plugins) -> None:
    """MEM008: four devices hold the weights that one of the other pool holds."""
    (found,) = step(plugins, more=POOLS.format(4))
    assert "of a device of the decode pool, and" in found.message


def test_the_least_step_that_is_proposed_is_one_that_is_run(plugins: Plugins) -> None:
    """MEM008: 128 tokens take 14 MB of the 18 that the ratio asks for."""
    (found,) = step(plugins, 0.003, more="max_sequences = 2\n")
    assert found.help.startswith("set policy.batching.max_batched_tokens = 128, with prompts in chunks: ")


@pytest.mark.parametrize(
    ("engine", "version", "number", "edits"),
    [
        ("vllm", "0.11.0", 1024, "max_batched_tokens = 512 and policy.batching.max_sequences = 512"),
        ("vllm", "0.11.0", 512, "max_batched_tokens = 512"),
        ("sglang", "0.5.9", 1024, "max_batched_tokens = 512"),
    ],
)
def test_slots_follow_where_the_engine_refuses_more_than_tokens(
    engine: str, version: str, number: int, edits: str, plugins: Plugins
) -> None:
    """MEM008: and only where they are more."""
    text = STEP.format(hardware="", engine=engine, version=version, more=f"max_sequences = {number}\n")
    text = text.replace("Llama-3.1-8B", "Llama-2-7b-hf").replace("16384", "4096")
    (found,) = (
        f for f in StepOutweighsCache({"ratio": 0.01}).check(review_of(text, plugins)) if isinstance(f, Finding)
    )
    assert found.help.startswith(f"set policy.batching.{edits}, with prompts in chunks: ")


@pytest.mark.parametrize(
    ("batching", "words"),
    [
        ("max_sequences = 25\nmax_batched_tokens = 51200\n", "set policy.batching.max_batched_tokens = 16384, with"),
        ("max_batched_tokens = 51200\n", "set policy.batching.max_batched_tokens = 16384, with"),
        ("max_sequences = 25\n", "set policy.batching.max_sequences = 8: "),
    ],
)
def test_of_two_keys_that_do_alike_the_declared_one_is_told(batching: str, words: str, plugins: Plugins) -> None:
    """MEM008: this engine takes 2,048 tokens a slot."""
    text = plugins.rule("MEM008").failing[1].spec
    (found,) = findings("MEM008", re.sub(r"max_sequences = 25.*\n", batching, text), plugins)
    assert found.help.startswith(words)


def test_slots_are_halved_to_one(plugins: Plugins) -> None:
    """MEM008: 186 MB of buffers a slot are more than 2% of the cache and less than 3%."""
    text = plugins.rule("MEM008").failing[1].spec
    review = review_of(text, plugins)
    for ratio, number in ((0.022, 0), (0.03, 1), (0.06, 2)):
        found = [f for f in StepOutweighsCache({"ratio": ratio}).check(review) if isinstance(f, Finding)]
        said = [f.help.split(":")[0] for f in found]
        assert said == ([f"set policy.batching.max_sequences = {number}"] if number else [])
