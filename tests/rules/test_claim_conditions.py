"""What the rules about claims let through on either side of each condition: several claims, runs, files, pools."""

from __future__ import annotations

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing.rules import run_case
from servelint_rules.clm.samples import SPEC, changed

LENGTHS = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"
RATE = '[[claim]]\nmetric = "throughput"\nvalue = "1000 tok/s"\nat = { concurrency = 32 }\nevidence = "b.json"\n'
ABOUT_SPEED = '[[claim]]\nmetric = "speedup"\nvalue = 2.0\n'


def findings(code: str, text: str, plugins: Plugins, *files: str) -> list[Finding]:
    """The findings of one rule; the files are ``b.json`` and ``c.json``."""
    named = tuple(zip(("b.json", "c.json"), files, strict=False))
    found = run_case(Case("", text, files=named), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


def only(code: str, text: str, plugins: Plugins, *files: str) -> Finding:
    (found,) = findings(code, text, plugins, *files)
    return found


def claim(metric: str, value: str, at: str = "", more: str = "") -> str:
    written = value if value.replace(".", "").isdigit() else f'"{value}"'
    point = f"at = {{ {at} }}\n" if at else ""
    return f'[[claim]]\nmetric = "{metric}"\nvalue = {written}\n{point}{more}'


def sglang(**figures: object) -> str:
    """The same run as SGLang's benchmark writes it, which counts cached prompt tokens."""
    return changed(random_range_ratio=0.5, mean_e2e_latency_ms=3200.0, **figures)


def cached(share: int, prompts: str = "sharegpt") -> str:
    return sglang(cache_report=f'{{"cache_hit_rate_pct": {share}}}', dataset_name=f'"{prompts}"')


# CLM001


def test_a_claim_about_something_else_hides_none_after_it(plugins: Plugins) -> None:
    pace = claim("itl", "3.3 ms", "batch = 1, context = 500")
    assert only("CLM001", SPEC + ABOUT_SPEED + pace, plugins).path == ("claim", 1, "value")


@pytest.mark.parametrize(("method", "severity"), [("compressed-tensors", Severity.WARNING), ("awq", Severity.ERROR)])
def test_no_error_rests_on_bits_that_are_a_guess(method: str, severity: Severity, plugins: Plugins) -> None:
    """Eight billion weights of four bits take 1.7 ms; the name of the first method leaves the bits open."""
    engine = f'[engine]\nname = "vllm"\nargs = "--model meta-llama/Llama-3.1-8B --quantization {method}"\n'
    text = SPEC.partition("[model]")[0] + engine + claim("itl", "0.5 ms", "batch = 1, context = 500")
    assert only("CLM001", text, plugins).severity is severity


def test_the_first_eight_claims_are_explained_whatever_they_rest_on(plugins: Plugins) -> None:
    fast = changed(mean_e2el_ms=896.0)
    found = findings("CLM001", SPEC + RATE * 9, plugins, fast)
    assert ["first 8 such claims only" in f.message for f in found] == [False] * 8 + [True]


def test_what_a_claim_leaves_open_makes_it_a_warning(plugins: Plugins) -> None:
    """At 8,100 tokens 7 ms, with an empty context 4.5."""
    text = SPEC + LENGTHS.replace("1000", "8000") + claim("itl", "6 ms", "batch = 8")
    found = only("CLM001", text.replace("8192", "16384"), plugins)
    assert found.severity is Severity.WARNING
    assert "8,100 tokens of context (the workload's lengths, where the claim states none); " in found.message


def test_each_pool_has_its_own_arithmetic(plugins: Plugins) -> None:
    """8,000 tokens x 16 GFLOP over two H200 that prefill; 15 GB of weights of an H100 that decodes."""
    pools = (
        '[policy.disaggregation]\nprefill = { accelerator = "nvidia/h200-sxm5-141gb", tensor = 2, replicas = 1 }\n'
        'decode = { tensor = 1, replicas = 3 }\ntransfer = { bandwidth = "50 GB/s" }\n'
    )
    text = SPEC + pools
    first = only("CLM001", text + claim("ttft", "33 ms", "prompt_tokens = 8000"), plugins)
    assert first.equation == "bound: 64.2 TFLOP a device / 989 TFLOP/s dense = 64.9 ms"
    assert [i.value for i in first.inputs if i.name == "memory bandwidth"] == [4.8e12]
    pace = only("CLM001", text + claim("itl", "2.5 ms", "batch = 3, context = 500"), plugins)
    assert pace.equation.startswith("bound: (15.1 GB of weights and cache a device - ")
    assert [i.value for i in pace.inputs if i.name == "memory bandwidth"] == [3.35e12]


def test_the_rate_of_a_user_is_of_the_tokens_that_a_step_keeps(plugins: Plugins) -> None:
    drafts = '[policy.speculation]\nmethod = "ngram"\ntokens = 4\nacceptance = 0.5\n'
    one = claim("throughput", "800 tok/s", "batch = 1, context = 500", 'per = "user"\n')
    # 1 + 1/2 + 1/4 + 1/8 + 1/16
    equation = only("CLM001", SPEC + drafts + one, plugins).equation
    assert equation.endswith("; 1.94 tokens a sequence and step: 432 tok/s per sequence")


def test_only_relatives_of_the_part_are_named(plugins: Plugins) -> None:
    """3 ms of 15 GB take 5 TB/s: more than an H200 has, less than a B200."""
    message = only("CLM001", SPEC + claim("itl", "3 ms", "batch = 1, context = 500"), plugins).message
    assert "the bandwidth and compute of" not in message


def test_a_rate_per_device_is_not_taken_for_that_of_all_replicas(plugins: Plugins) -> None:
    each = claim("throughput", "9000 tok/s", "batch = 32, context = 2000", 'per = "device"\n')
    text = SPEC.replace("[model]", "replicas = 8\n[model]") + each
    assert "a figure of all" not in only("CLM001", text, plugins).message


def test_tokens_are_no_requests(plugins: Plugins) -> None:
    """32 sequences of 200 tokens make 27 req/s, with 1,000 prompt tokens 33,000 tok/s."""
    text = SPEC + claim("request_rate", "200 req/s", "batch = 32, prompt_tokens = 1000, output_tokens = 200")
    assert "none of the usual assumptions alone" in only("CLM001", text, plugins).message


def test_what_limits_the_sequences_is_named(plugins: Plugins) -> None:
    few = claim("throughput", "2000 tok/s", "batch = 4, context = 2000")
    admits = "[policy.batching]\nmax_sequences = 16\n"
    message = only("CLM001", SPEC + admits + few, plugins).message
    assert message.endswith("more sequences at once than it states (max_sequences admits 16)")


def test_weights_that_do_not_fit_leave_nothing_to_compare(plugins: Plugins) -> None:
    text = SPEC.replace("3.1-8B", "3.1-70B") + claim("throughput", "2000000 tok/s", "context = 2000")
    assert findings("CLM001", text, plugins) == []


def test_the_pace_of_a_run_follows_from_its_latency_where_that_is_known(plugins: Plugins) -> None:
    """(896 - 100) ms / 199 = 4 ms, beside 15.58 ms that the file says."""
    derived = only("CLM001", SPEC + RATE, plugins, changed(mean_e2el_ms=896.0))
    assert "the measured TPOT of 4 ms is" in derived.message
    stated = only("CLM001", SPEC + RATE, plugins, changed(mean_e2el_ms="null", mean_tpot_ms=3.5))
    assert "the measured TPOT of 3.5 ms is" in stated.message
    rate = {"mean_e2el_ms": "null", "mean_tpot_ms": "null", "output_throughput": 1e6}
    assert (
        "the measured output throughput of 1,000,000 tok/s is"
        in only("CLM001", SPEC + RATE, plugins, changed(**rate)).message
    )


@pytest.mark.parametrize(
    "figures",
    [
        {"mean_e2el_ms": "null", "mean_tpot_ms": 0},
        {"output_throughput": "Infinity"},
        {"output_throughput": 1e13},
        {"output_throughput": 1e6, "total_output_tokens": 1e300},
        {"output_throughput": 1e6, "total_input_tokens": "null"},
        {"output_throughput": 1e6, "total_output_tokens": "null"},
        {"output_throughput": 1e6, "total_input_tokens": 0},
        {"output_throughput": 1e6, "total_output_tokens": 0},
    ],
)
def test_figures_that_are_none_are_not_compared(figures: dict[str, object], plugins: Plugins) -> None:
    assert findings("CLM001", SPEC + RATE, plugins, changed(**figures)) == []


def test_a_run_of_one_token_has_lengths(plugins: Plugins) -> None:
    one = {"total_input_tokens": 1000, "total_output_tokens": 1000, "output_throughput": 1e6}
    message = only("CLM001", SPEC + RATE, plugins, changed(**one)).message
    assert "the measured output throughput of 1,000,000 tok/s is" in message


@pytest.mark.parametrize(("limit", "at"), [(1, "for one sequence with"), (2, "at 2 sequences with"), ("null", "fit")])
def test_a_run_is_compared_at_the_limit_that_it_had(limit: object, at: str, plugins: Plugins) -> None:
    text = SPEC + RATE.replace("concurrency = 32", 'rate = "10 req/s"')
    found = only("CLM001", text, plugins, changed(output_throughput=20000.0, max_concurrency=limit))
    assert f" {at}" in found.message


def test_cached_prompts_of_a_run_count_as_what_they_are(plugins: Plugins) -> None:
    """In a step 32 of 100 requests prefill 8,000 tokens, which takes 41 ms, and nine tenths less where cached.

    With prompt tokens counted that makes 63,000 tok/s, and where reading the cache takes longer 180,000.
    """
    long = {"total_input_tokens": 8_000_000, "total_output_tokens": 100_000, "output_throughput": 100_000.0}
    counted = "counting prompt tokens with the output tokens would explain it"
    for share, explains in ((100, True), (90, True), (0, False)):
        run = sglang(**long, cache_report=f'{{"cache_hit_rate_pct": {share}}}')
        assert (counted in only("CLM001", SPEC + RATE, plugins, run).message) is explains


# CLM002

BOUND = claim("itl", "9.5 ms", "batch = 32, context = 4000")


def test_each_claim_is_compared_with_its_bound(plugins: Plugins) -> None:
    """Beside figures that are something else, far from the bound, expected, or measured."""
    efficient = SPEC.replace("[model]", "efficiency = { memory = 1.0, compute = 1.0 }\n[model]")
    measured = claim("tpot", "5.85 ms", "concurrency = 32, prompt_tokens = 1000, output_tokens = 200")
    run = changed(mean_tpot_ms=5.85, median_tpot_ms=5.8, mean_e2el_ms=1264.2)
    others = [ABOUT_SPEED, BOUND.replace("9.5", "12.5"), f'{measured}evidence = "b.json"\n']
    found = only("CLM002", SPEC + "".join(others) + BOUND, plugins, run)
    assert found.path == ("claim", 3, "value")
    # 8,000 tokens x 16 GFLOP at all that the part has leave nothing between bound and estimate.
    first = claim("ttft", "130 ms", "prompt_tokens = 8000")
    assert only("CLM002", SPEC.replace("8192", "16384") + first, plugins).path == ("claim", 0, "value")
    assert findings("CLM002", efficient + first, plugins) == []
    assert only("CLM002", efficient + first + BOUND, plugins).path == ("claim", 1, "value")


def test_a_bound_at_lengths_that_nobody_claims_is_no_prediction(plugins: Plugins) -> None:
    text = SPEC + LENGTHS.replace("1000", "4000").replace("200", "1") + BOUND.replace(", context = 4000", "")
    assert findings("CLM002", text, plugins) == []


@pytest.mark.parametrize(
    "assumes", ['memory_bandwidth = "3.35 TB/s"', "efficiency = 1.0", 'dense_flops = "989 TFLOP/s"']
)
def test_a_bound_that_says_what_it_rests_on_is_one(assumes: str, plugins: Plugins) -> None:
    assert findings("CLM002", f"{SPEC}{BOUND}assumes = {{ {assumes} }}\n", plugins) == []


@pytest.mark.parametrize(("tpot", "confirms"), [(6.14, True), (6.15, False), (5.56, True), (5.55, False)])
def test_a_run_confirms_a_figure_within_a_twentieth(tpot: float, confirms: bool, plugins: Plugins) -> None:
    """A twentieth of 5.85 ms is 0.29."""
    at = "concurrency = 32, prompt_tokens = 1000, output_tokens = 200"
    run = changed(mean_tpot_ms=tpot, median_tpot_ms=20.0, p99_tpot_ms=30.0, mean_e2el_ms="null")
    text = SPEC + claim("tpot", "5.85 ms", at, 'evidence = "b.json"\n')
    assert (not findings("CLM002", text, plugins, run)) is confirms


# CLM003


def test_the_first_three_places_of_a_mismatch_are_pointed_at(plugins: Plugins) -> None:
    run = changed(model_id='"meta-llama/Llama-3.1-70B"', gpu='"H200"', tensor_parallel_size=2, kv_cache_dtype='"fp8"')
    settings = '[policy.parallelism]\ntensor = 1\n[policy.quantization]\nkv_cache = "bf16"\n'
    found = only("CLM003", SPEC + settings + RATE, plugins, run)
    assert found.message.count(", deployed ") == 4
    assert [r.path for r in found.related[:2]] == [("model", "id"), ("hardware", "accelerator")]
    assert len(found.related) == 3


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"total_output_tokens": 400_000}, "deployment: outputs of 400 tokens in the mean, in the workload 200"),
        ({"total_output_tokens": 1000}, "deployment: outputs of 1 token in the mean, in the workload 200"),
        ({"total_input_tokens": 1_500_000}, ""),
        ({"total_input_tokens": 1_502_000}, "deployment: prompts of 1,502 tokens in the mean, in the workload 1,000"),
        # What counts none has measured none.
        ({"total_input_tokens": 0}, ""),
        ({"output_throughput": 0}, ""),
    ],
)
def test_lengths_that_differ_are_named(figures: dict[str, object], words: str, plugins: Plugins) -> None:
    found = findings("CLM003", SPEC + LENGTHS + RATE, plugins, changed(**figures))
    assert [words in f.message for f in found] == ([True] if words else [])


@pytest.mark.parametrize(
    ("share", "prompts", "declared", "where"),
    [
        (61, "sharegpt", "prefix_hit = 0.5\n", ("workload", "prefix_hit")),
        (60, "sharegpt", "prefix_hit = 0.5\n", None),
        (40, "sharegpt", "prefix_hit = 0.5\n", None),
        (11, "sharegpt", "", ("workload",)),
        (10, "sharegpt", "", None),
        # Random prompts that hit a cache are CLM009's.
        (80, "random", "", None),
    ],
)
def test_a_tenth_more_of_the_prompts_may_have_been_cached(
    share: int, prompts: str, declared: str, where: tuple[str, ...] | None, plugins: Plugins
) -> None:
    text = SPEC.replace("8192", "8192\n[policy.kv_cache]\nprefix_reuse = true") + LENGTHS + declared + RATE
    found = findings("CLM003", text, plugins, cached(share, prompts))
    assert [f.related[0].path for f in found if where and len(where) > 1] == ([where] if where and where[1:] else [])
    assert [f"{share}% of its prompt tokens came from the prefix cache" in f.message for f in found] == (
        [True] if where else []
    )


@pytest.mark.parametrize(("value", "better"), [(1050, False), (1051, True)])
def test_a_figure_of_a_device_is_that_of_the_run_shared(value: int, better: bool, plugins: Plugins) -> None:
    """2,000 tok/s of two devices, and a twentieth more."""
    text = SPEC.replace("[model]", "devices = 2\n[model]") + RATE.replace("1000", str(value)) + 'per = "device"\n'
    found = findings("CLM003", text, plugins, changed(gpus=2))
    assert [f.message.endswith("measured is 1,000 tok/s") for f in found] == ([True] if better else [])
    # A figure of the replica is that of the run, and without devices nobody knows whose the run's is.
    assert findings("CLM003", text.replace('per = "device"', ""), plugins, changed(gpus=2)) == []
    assert findings("CLM003", text, plugins, changed()) == []


# CLM004


def test_one_length_of_prompts_is_none_of_a_distribution(plugins: Plugins) -> None:
    each = {"input_lens": "[1000, 1000]", "output_lens": "[200, 200]"}
    run = changed(completed=2, total_input_tokens=2000, total_output_tokens=400, **each)
    mixed = "[workload]\nprompt_tokens = { p50 = 800, p99 = 3000 }\noutput_tokens = 200\n"
    found = only("CLM004", SPEC + mixed + RATE, plugins, run)
    assert "every request has one length (1,000 prompt tokens and 200 output tokens)" in found.message
    assert findings("CLM004", SPEC + LENGTHS + RATE, plugins, run) == []


def test_requests_that_wait_for_each_other_are_counted_where_the_file_does(plugins: Plugins) -> None:
    text = SPEC + LENGTHS + 'rate = "1 req/s"\n'
    summary = f"{'=' * 48}\nMLPerf Results Summary\n{'=' * 48}\nScenario : SingleStream\nResult is : VALID\n"
    alone = only("CLM004", text + RATE.replace("at = { concurrency = 32 }\n", ""), plugins, summary)
    assert ": requests wait for each other, and the workload arrives at 1 req/s" in alone.message
    assert ": 32 requests wait for each other, and " in only("CLM004", text + RATE, plugins, changed()).message


# CLM005

REUSED = (
    f"{SPEC.replace('8192', '16384')}[policy.batching]\nmax_sequences = 64\nmax_batched_tokens = 2048\n"
    "[policy.kv_cache]\nprefix_reuse = true\n"
)
ASSUMED = (
    "[workload]\nprompt_tokens = { p50 = 6000, p99 = 12000 }\noutput_tokens = { p50 = 100, p99 = 300 }\n"
    'prefix_hit = { value = 0.8, basis = "assumed" }\n'
)


@pytest.mark.parametrize(
    ("concurrency", "limit", "headroom", "decides"),
    [
        # A step that holds 2,048 tokens of prompt takes 65 ms, warm and cold; cold there is one for every token.
        (8, 20, "", True),
        (8, 30, "", False),
        (40, 40, "", True),
        (40, 80, "", False),
        # What is declared is to be kept; what is planned with lies below it.
        (40, 40, "headroom = 0.25\n", True),
        (40, 30, "", False),
        (40, 80, "headroom = 0.25\n", False),
        # No more decode than are let in.
        (64, 60, "", True),
        (500, 60, "", True),
        (500, 40, "", False),
    ],
)
def test_a_cold_cache_at_so_many_requests_in_flight(
    concurrency: int, limit: int, headroom: str, decides: bool, plugins: Plugins
) -> None:
    slo = f'[slo]\ntpot = {{ p99 = "{limit} ms" }}\n{headroom}'
    found = findings("CLM005", f"{REUSED}{ASSUMED}concurrency = {concurrency}\n{slo}", plugins)
    assert [f"limit {limit} ms" in f.message for f in found] == ([True] if decides else [])
    # Without an objective there is nothing to miss, and without a share nothing to lose.
    assert findings("CLM005", f"{REUSED}{ASSUMED}concurrency = {concurrency}\n", plugins) == []
    none = ASSUMED.replace("0.8", "0.0")
    assert findings("CLM005", f"{REUSED}{none}concurrency = {concurrency}\n{slo}", plugins) == []


def test_what_replicas_carry_cold_they_carry_together(plugins: Plugins) -> None:
    one = only("CLM005", f'{REUSED}{ASSUMED}rate = "5 req/s"\n', plugins).help
    two = REUSED.replace("[model]", "replicas = 2\n[model]")
    both = only("CLM005", f'{two}{ASSUMED}rate = "10 req/s"\n', plugins).help
    assert "a cold cache carries at most 4.66 req/s" in one
    assert "a cold cache carries at most 9.32 req/s" in both


# CLM006

SLO = '[slo]\ntpot = { p99 = "100 ms" }\n'


@pytest.mark.parametrize(
    ("claimed", "missing"),
    [
        ("at = { batch = 8 }\n", ["the offered rate is unknown, only how many requests were in flight"]),
        ("at = { context = 8 }\n", []),
        ("", []),
        ('evidence = "b.json"\n', ["the offered rate is unknown, only how many requests were in flight"]),
        ('evidence = "c.json"\n', ["its evidence does not count failed requests"]),
    ],
)
def test_what_a_goodput_leaves_out(claimed: str, missing: list[str], plugins: Plugins) -> None:
    files = (changed(), changed(request_rate=10, max_concurrency="null", failed="null", num_prompts="null"))
    text = SPEC + LENGTHS + SLO + ABOUT_SPEED + claim("goodput", "500 tok/s", more=claimed)
    found = findings("CLM006", text, plugins, *files)
    assert [f.message for f in found] == [f"the goodput is no share of anything: {words}" for words in missing]


# CLM007

PRICED = SPEC.replace("[model]", 'price = { per_device_hour = 3.0, currency = "USD", date = 2026-10-01 }\n[model]')
SERVED = "[policy.batching]\nmax_sequences = 64\nmax_batched_tokens = 1024\n[workload]\nprompt_tokens = 800\n"


@pytest.mark.parametrize(("value", "below"), [("0.74", True), ("0.76", False), ("0.8", False)])
def test_a_cost_may_lie_a_tenth_below_that_of_the_load(value: str, below: bool, plugins: Plugins) -> None:
    """3 a device and hour, over 1,000 tokens of a request each second, are 0.833 a million."""
    load = f'{SERVED}output_tokens = 200\nrate = "1 req/s"\n'
    text = PRICED + load + claim("ttft", "1 s") + claim("cost_per_million_tokens", value)
    found = findings("CLM007", text, plugins)
    assert [f.path for f in found] == ([("claim", 1, "value")] if below else [])


def test_without_a_load_the_most_that_meets_the_slo_is_paid_for(plugins: Plugins) -> None:
    slo = '[slo]\nttft = { p99 = "2 s" }\ntpot = { p99 = "60 ms" }\n'
    text = f"{PRICED}{SERVED}output_tokens = 200\n{slo}" + claim("cost_per_million_tokens", "0.01")
    found = only("CLM007", text, plugins)
    assert " of the most that meets the SLO, prompt and output tokens counted" in found.message
    assert [r.path for r in found.related] == [("slo", "ttft", "p99")]


# CLM008

RELEASE = '[engine]\nname = "vllm"\nversion = "0.11.0"\n'
BENCHMARK = '[[evidence]]\nkind = "benchmark"\n'


def test_evidence_that_says_nothing_of_a_release_hides_none_after_it(plugins: Plugins) -> None:
    other = RATE.replace("b.json", "c.json")
    old = changed(version='"0.10.1"')
    assert [f.path for f in findings("CLM008", SPEC + RELEASE + RATE + other, plugins, changed(), old)] == [
        ("claim", 1, "evidence")
    ]
    entries = '[[evidence]]\nkind = "task-eval"\nengine_version = "0.9.2"\n' + BENCHMARK + 'engine_version = "0.9.2"\n'
    assert [f.path for f in findings("CLM008", SPEC + RELEASE + entries, plugins)] == [
        ("evidence", 1, "engine_version")
    ]


@pytest.mark.parametrize("version", ["nightly", "main"])
def test_what_is_no_release_is_not_compared(version: str, plugins: Plugins) -> None:
    text = SPEC + RELEASE + BENCHMARK + f'engine_version = "{version}"\n'
    assert findings("CLM008", text, plugins) == []


# CLM009: a file of 7.7 ms a token whose latency gives 15.58

HALF = changed(mean_tpot_ms=7.7, median_tpot_ms=7.6)
HALF_PACE = claim("tpot", "7.7 ms", "concurrency = 32", 'evidence = "b.json"\n')
FILE = f'{BENCHMARK}file = "b.json"\n'
CLAIMED = (("claim", 0, "evidence"), Severity.WARNING)


def told(text: str, plugins: Plugins, *files: str) -> list[tuple[tuple[str | int, ...], Severity | None]]:
    return [(f.path, f.severity) for f in findings("CLM009", text, plugins, *files)]


def test_a_contradiction_is_told_once_a_run(plugins: Plugins) -> None:
    assert told(SPEC + HALF_PACE * 2 + FILE, plugins, HALF) == [CLAIMED], "CLM009"
    other = FILE.replace("benchmark", "kernel-trace")
    assert told(SPEC + other + FILE * 2, plugins, HALF) == [(("evidence", 1, "file"), Severity.INFO)]
    heeded = HALF_PACE.replace("7.7", "15.58")
    assert told(SPEC + heeded + FILE, plugins, HALF) == []
    assert told(SPEC + heeded + HALF_PACE, plugins, HALF) == [(("claim", 1, "evidence"), Severity.WARNING)]


def test_a_claim_about_no_run_hides_none_after_it(plugins: Plugins) -> None:
    other = HALF_PACE.replace("concurrency = 32", "concurrency = 99")
    assert told(SPEC + other + HALF_PACE, plugins, HALF) == [(("claim", 1, "evidence"), Severity.WARNING)], "CLM009"


def test_of_a_sweep_what_no_system_can_have_measured_is_told(plugins: Plugins) -> None:
    """The first of two runs is slow by its own latency, which a saturated one may be, and its p99 is below its p50."""
    first = changed(mean_tpot_ms=7.7, median_tpot_ms=7.6, p99_e2el_ms=3000.0, kv_cache_usage=0)
    second = changed(max_concurrency=64, mean_tpot_ms=7.7, p99_ttft_ms=80)
    (found,) = findings("CLM009", SPEC + FILE, plugins, f"[{first}, {second}]")[:1]
    assert "the p50 of its end-to-end latency is above the p99" in found.message
    both = findings("CLM009", SPEC + FILE, plugins, f"[{first}, {second}]")
    assert [(f.path, f.severity) for f in both] == [(("evidence", 0, "file"), Severity.ERROR)] * 2
    # Alone, each contradiction of it counts.
    assert [f.severity for f in findings("CLM009", SPEC + FILE, plugins, first)] == [Severity.ERROR, Severity.INFO]


def test_what_a_benchmark_leaves_to_say_is_a_claim(plugins: Plugins) -> None:
    def lacking(text: str) -> bool:
        found = run_case(Case("", text, files=(("b.json", changed()),)), plugins, Config(select=("CLM009",)))
        return "CLM009" in dict(found.lacking)

    assert lacking(SPEC)
    assert lacking(SPEC + BENCHMARK)
    assert not lacking(SPEC + FILE)
    assert not lacking(SPEC + RATE)


@pytest.mark.parametrize(
    ("metric", "value", "at", "severity"),
    [
        # A throughput of what was served is what was measured.
        ("throughput", "2000 tok/s", "rate = 10", None),
        ("throughput", "2000 tok/s", "rate = 10.1", None),
        ("throughput", "2000 tok/s", "rate = 20", Severity.WARNING),
        # Without a rate it is that of a full server.
        ("throughput", "2000 tok/s", "", Severity.INFO),
        # Whatever is said of the rate, latencies and goodput are of a queue.
        ("ttft", "100 ms", "rate = 10", Severity.WARNING),
        ("ttft", "100 ms", "", Severity.WARNING),
        ("goodput", "2000 tok/s", "rate = 10", Severity.WARNING),
    ],
)
def test_a_rate_that_was_not_kept(
    metric: str, value: str, at: str, severity: Severity | None, plugins: Plugins
) -> None:
    """20 requests a second were asked for, 10 were served."""
    run = changed(request_rate=20, max_concurrency="null")
    text = SPEC + claim(metric, value, at.replace("= ", '= "') + ' req/s"' if at else "", 'evidence = "b.json"\n')
    assert [s for _, s in told(text, plugins, run)] == ([severity] if severity else []), "CLM009"


def test_a_rate_that_was_served_excuses_nothing_else(plugins: Plugins) -> None:
    run = changed(request_rate=10, max_concurrency="null", p99_ttft_ms=80)
    text = SPEC + RATE.replace("concurrency = 32", 'rate = "10 req/s"')
    assert told(text, plugins, run) == [(("claim", 0, "evidence"), Severity.ERROR)], "CLM009"


@pytest.mark.parametrize(
    ("metric", "at", "slo", "about"),
    [
        ("goodput", "concurrency = 32", "", True),
        ("ttft", "concurrency = 32", "", False),
        ("ttft", "", "", False),
        ("ttft", 'ttft_p99 = "300 ms"', "", True),
        ("ttft", 'itl_p99 = "18 ms"', "", True),
        ("ttft", 'tpot_p99 = "18 ms"', "", True),
        ("ttft", 'ttft_p90 = "300 ms"', "", False),
        ("ttft", "", 'ttft = { p99 = "1 s" }', True),
        ("ttft", "", 'ttft = { p999 = "1 s" }', True),
        ("ttft", "", 'ttft = { p50 = "1 s" }', False),
        ("ttft", "", 'tpot = { p99 = "1 s" }', False),
        ("ttft", "", 'ttft = { p99 = "1 s" }\ntpot = { p50 = "1 s" }', True),
    ],
)
def test_a_tail_of_few_requests_counts_where_one_is_quoted(
    metric: str, at: str, slo: str, about: bool, plugins: Plugins
) -> None:
    """One percent of 500 requests are 5, of the 10 that a tail is to rest on."""
    run = changed(completed=500, num_prompts=500, duration=50.0, total_input_tokens=500000, total_output_tokens=100000)
    value = "500 tok/s" if metric == "goodput" else "100 ms"
    text = SPEC + (f"[slo]\n{slo}\n" if slo else "") + claim(metric, value, at, 'evidence = "b.json"\n')
    found = findings("CLM009", text, plugins, run)
    assert ["its p99 rests on 5 of 500 requests" in f.message for f in found] == ([True] if about else [])
