"""Conditions of rules about speculation, experts, grammars, kernels, engines and the spec, from either side."""

from __future__ import annotations

import re

import pytest

from servelint.config import Config
from servelint.manager import Plugins
from servelint.review import Review
from servelint.rule import Case, Finding, Severity, collect
from servelint.service import Objective
from servelint.testing import compose, review_of
from servelint.testing.rules import run_case
from servelint_rules.binding import binding, cache_equation, certainly_over, rate_equation
from servelint_rules.derivation import latency_equation
from servelint_rules.layouts import fits, tensor_path
from servelint_rules.spd.spd001_speculation_at_high_batch import SpeculationAtHighBatch, _where

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
LENGTHS = "[workload]\nprompt_tokens = 500\noutput_tokens = 300\n"


def pools(prefill: str, decode: str) -> str:
    return (
        f"[policy.disaggregation]\nprefill = {{ {prefill} }}\ndecode = {{ {decode} }}\n"
        'transfer = { bandwidth = "50 GB/s" }\n'
    )


def findings(code: str, text: str, plugins: Plugins, files: tuple[tuple[str, str], ...] = ()) -> list[Finding]:
    found = run_case(Case("", text, files=files), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


def only(code: str, text: str, plugins: Plugins) -> Finding:
    (found,) = findings(code, text, plugins)
    return found


def failing(code: str, plugins: Plugins, number: int = 0, **changes: str) -> str:
    """The spec of a failing case with the values of some keys, by their last names, replaced."""
    text = plugins.rule(code).failing[number].spec
    for key, value in changes.items():
        text, replaced = re.subn(rf"(?m)^{key} = .*$", lambda _, line=f"{key} = {value}": line, text)
        assert replaced == 1, key
    return text


def found_with(code: str, text: str, plugins: Plugins, **options: float) -> list[Finding]:
    rule = plugins.rule(code)
    return [f for f in collect(rule(options), review_of(text, plugins)) if isinstance(f, Finding)]


# What does not concern a rule: it neither finds nor lacks anything

NODE = (
    'servelint = 1\n[hardware]\naccelerator = "nvidia/h200-sxm5-141gb"\ndevices = 8\n[model]\n'
    'id = "deepseek-ai/DeepSeek-V3"\nmax_model_len = 16384\n[policy.parallelism]\ntensor = 8\nattention_data = 8\n'
)
NODES = NODE.replace("devices = 8", "devices = 16\ndevices_per_node = 8") + "data = 2\n"
DRAFTS = f"{H100}{MODEL}[policy.speculation]\nmethod = \"ngram\"\n"  # fmt: skip
GUARDED = "[policy.moe]\nredundant_experts = 8\nload_metrics = true\n"
GRAMMARS = f"{H100}{MODEL}[policy.constrained_decoding]\n"


@pytest.mark.parametrize(
    ("code", "concerned", "other"),
    [
        ("MOE001", f"{NODE}expert = 8\n", f"{NODE}expert = 1\n"),
        ("MOE001", f"{NODE}expert = 8\n", NODE),
        ("MOE001", f"{NODE}expert = 8\n", f"{NODE}expert = 8\n{GUARDED}"),
        ("MOE003", f"{NODE}expert = 8\n", NODE),
        ("MOE004", f"{NODES}expert = 16\n", f"{NODES}expert = 1\n"),
        ("MOE004", f"{NODES}expert = 16\n", NODES),
        ("MOE004", f"{NODES}expert = 16\n", f"{NODE}expert = 8\n"),
        ("MOE004", f"{NODES}expert = 16\n", f"{NODES}expert = 16\n" + pools("devices = 16", "devices = 16")),
        ("SPD001", f"{DRAFTS}tokens = 1\nacceptance = 0.5\n", f"{DRAFTS}tokens = 0\nacceptance = 0.5\n"),
        ("SPD002", f"{DRAFTS}tokens = 1\n", f"{DRAFTS}tokens = 0\n"),
        ("SPD002", f"{DRAFTS}tokens = 1\n", f"{DRAFTS}tokens = 1\nacceptance = 0.5\n"),
        ("SPD004", f"{DRAFTS}tokens = 2\nacceptance = 0.5\n", f"{DRAFTS}tokens = 1\nacceptance = 0.5\n"),
        ("SPD004", f"{DRAFTS}tokens = 2\nacceptance = 0.5\n", f"{DRAFTS}tokens = 2\nacceptance_length = 1.5\n"),
        ("SPD004", f"{DRAFTS}tokens = 2\nacceptance = 0.5\n", f"{DRAFTS}tokens = 2\n"),
        ("CND002", f"{GRAMMARS}cache_hit = 0.9\n", f"{GRAMMARS}cache_hit = 1.0\n"),
        ("CND002", f'{GRAMMARS}cache_hit = 0.9\ncompile = "1 s"\n', f'{GRAMMARS}cache_hit = 1.0\ncompile = "1 s"\n'),
        ("CND002", f'{GRAMMARS}cache_hit = 0.9\ncompile = "1 s"\n', f'{GRAMMARS}share = 0.0\ncompile = "1 s"\n'),
    ],
)  # fmt: skip
def test_what_does_not_concern_a_rule_lacks_nothing(code: str, concerned: str, other: str, plugins: Plugins) -> None:
    """Without a workload a rule that is concerned says that it needs one, and only that one."""
    rule = plugins.rule(code)
    assert [type(item).__name__ for item in collect(rule({}), review_of(concerned, plugins))] == ["Lacks"]
    assert list(collect(rule({}), review_of(other, plugins))) == []


# SPD001


@pytest.mark.parametrize(
    ("slow", "limit", "words"),
    [
        (range(1, 65), 64, "at every batch"),
        (range(40, 65), 64, "from 40 sequences on"),
        (range(1, 8), 64, "at 1 to 7"),
        (range(64, 65), 64, "from 64 sequences on"),
        # Up to six every batch is looked at, and from there two in each octave.
        (range(1, 2), 64, "at 1"),
        (range(3, 4), 64, "at 3"),
        (range(5, 6), 64, "at 5"),
        (range(9, 12), 64, "at 9 to 11"),
        (range(20, 31), 64, "at 20 to 30"),
        ((*range(5, 10), *range(30, 65)), 64, "at 5 to 9 and from 30 sequences on"),
        (range(1, 2), 1, "at every batch"),
        (range(2, 3), 2, "from 2 sequences on"),
    ],
)
def test_the_batches_with_too_small_a_speedup(slow: range, limit: int, words: str) -> None:
    assert _where(SpeculationAtHighBatch({})._below(lambda batch: 0.9 if batch in slow else 1.1, limit)) == words


def test_a_guessed_acceptance_makes_no_warning(plugins: Plugins) -> None:
    for given, severity, confidence in (
        ("acceptance = 0.2", Severity.WARNING, "medium"),
        ("acceptance_length = 1.2", Severity.WARNING, "medium"),
        ("", Severity.INFO, "low"),
    ):
        text = f"{DRAFTS}tokens = 5\n{given}\n[policy.batching]\nmax_sequences = 512\n{LENGTHS}concurrency = 384\n"
        found = only("SPD001", text, plugins)
        assert (found.severity, found.confidence) == (severity, confidence)
        assert found.inputs[1].name == f"speculation.{given.partition(' ')[0] or 'acceptance'}"
        # A mean length says nothing of shorter drafts, and where a fifth is kept none of them pays.
        if given:
            assert found.help.startswith("no shorter draft pays at this batch: do not speculate ")


def test_less_than_a_sequence_on_average_decodes_as_one(plugins: Plugins) -> None:
    found = only("SPD001", failing("SPD001", plugins, 1).replace("concurrency = 1", 'rate = "0.01 req/s"'), plugins)
    assert found.message.startswith("at 1 sequence drafting 1 token gives a speed-up of ")
    assert [r.path for r in found.related] == [("workload", "rate")]


# SPD003: 41 sequences fit beside the draft, and 54 without it


@pytest.mark.parametrize(("claimed", "speaks"), [(41, False), (42, True), (54, True), (55, False)])
def test_claims_between_what_fits_with_the_draft_and_without(claimed: int, speaks: bool, plugins: Plugins) -> None:
    found = findings("SPD003", failing("SPD003", plugins, value=str(claimed)), plugins)
    words = f"{claimed} sequences of 8,192 tokens are claimed, and 41 fit beside the draft; 54 would without it"
    assert [f.message for f in found] == ([words] if speaks else [])


@pytest.mark.parametrize(
    ("at", "context"),
    [
        ("{ context = 8000 }", 8000),
        ("{ prompt_tokens = 8000 }", 8000),
        ("{ prompt_tokens = 7900, output_tokens = 200 }", 8000),
        ("{ context = 8000, prompt_tokens = 100, output_tokens = 10 }", 8000),
        # The mean context of the workload: a prompt and half of an answer.
        ("{ batch = 42 }", 7000),
    ],
)
def test_the_context_that_a_claim_is_about(at: str, context: int, plugins: Plugins) -> None:
    workload = "[workload]\nprompt_tokens = 6900\noutput_tokens = 200\n"
    text = failing("SPD003", plugins, value="50", at=at).replace("[[claim]]", f"{workload}[[claim]]")
    (_, stated) = only("SPD003", text, plugins).inputs
    assert stated.value == context


@pytest.mark.parametrize(("layers", "stage"), [([8, 24], 1), ([32], 0)])
def test_the_ledgers_are_those_of_the_device_that_holds_fewest(layers: list[int], stage: int, plugins: Plugins) -> None:
    stages = f"[policy.parallelism]\ntensor = 1\npipeline = {len(layers)}\npipeline_layers = {layers}\n"
    text = failing("SPD003", plugins, value="60" if stage else "50")
    text = text.replace('80gb"\n', f'80gb"\ndevices = {len(layers)}\n') + stages
    found = only("SPD003", text, plugins)
    ledgers = re.findall(r"([\d.]+) GB of KV memory a device / ([\d.]+) ([MG])B a sequence", found.equation)
    fit = [float(room) / float(each) * (1000 if unit == "M" else 1) for room, each, unit in ledgers]
    shown = re.search(r"and (\d+) fit beside the draft; (\d+) would without it", found.message)
    assert shown is not None
    assert fit == [pytest.approx(int(number), abs=1) for number in shown.groups()]


def test_a_draft_counts_where_it_has_weights(plugins: Plugins) -> None:
    unnumbered = failing("SPD003", plugins, 1)
    named = 'draft_model = "meta-llama/Llama-3.2-1B"'
    found = only("SPD003", unnumbered.replace('method = "eagle"', named), plugins)
    assert found.path == ("policy", "speculation", "draft_model")
    # 1.24 thousand million parameters in two bytes over two devices.
    assert found.inputs[0].value == pytest.approx(1.2358e9, rel=1e-3)
    assert found.severity is Severity.INFO
    assert findings("SPD003", unnumbered.replace('method = "eagle"', f'{named}\nmethod = "ngram"'), plugins) == []


@pytest.mark.parametrize(
    ("cache", "held", "severity"),
    [
        # A sequence of 4,096 tokens takes 671 MB of a device, and 679 MB with the layer of the head.
        ("0.675 GB", "0 sequences of 4,096 tokens instead of 1", Severity.WARNING),
        ("0.685 GB", "1 sequence of 4,096 tokens instead of 1", Severity.INFO),
        ("1.350 GB", "1 sequence of 4,096 tokens instead of 2", Severity.INFO),
    ],
)
def test_a_draft_beside_which_not_one_sequence_fits(
    cache: str, held: str, severity: Severity, plugins: Plugins
) -> None:
    found = only("SPD003", f'{failing("SPD003", plugins, 1)}[policy.kv_cache]\nmemory_bytes = "{cache}"\n', plugins)
    assert found.message.endswith(f" of KV cache a token on a device, {held}")
    assert found.severity is severity


# SPD004


@pytest.mark.parametrize(
    ("tokens", "acceptance", "sequences", "words"),
    [
        (5, 0.5, 64, "the 5th drafted token is kept with a chance of 0.031: 2 drafted tokens yield "),
        (3, 0.3, 64, "the 3rd drafted token is kept with a chance of 0.027: 2 drafted tokens yield "),
        (2, 0.4, 96, "the 2nd drafted token is kept with a chance of 0.16: 1 drafted token yields "),
    ],
)
def test_a_shorter_draft_in_words(tokens: int, acceptance: float, sequences: int, words: str, plugins: Plugins) -> None:
    changes = {"tokens": str(tokens), "acceptance": str(acceptance), "concurrency": str(sequences)}
    text = failing("SPD004", plugins, 1, **changes)
    assert only("SPD004", text, plugins).message.startswith(f"at {sequences} sequences {words}")


# MOE


def test_the_active_bytes_are_those_of_the_active_parameters(plugins: Plugins) -> None:
    """In one format of two bytes, whatever of a block is routed, shared or dense."""
    for model in ("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"):
        review = review_of(f'{H100}devices = 2\n[model]\nid = "{model}"\nmax_model_len = 4096\n', plugins)
        assert review.architecture is not None
        active, whole = (2 * n for n in (review.architecture.params_active, review.architecture.params_serving))
        text = f'{H100}devices = 2\n[model]\nid = "{model}"\nmax_model_len = 4096\nweights_bytes = {active}\n'
        found = only("MOE002", text, plugins)
        assert found.equation.endswith(f" = {active / 1e9:.3g} GB; all of them {whole / 1e9:.3g} GB"), found.equation
        assert [i.value for i in found.inputs] == [active, active // 2, whole // 2]


@pytest.mark.parametrize(("factor", "speaks"), [(1.0, True), (3.6, True), (3.7, False), (5.0, False)])
def test_all_experts_take_at_least_so_many_times_the_active_ones(factor: float, speaks: bool, plugins: Plugins) -> None:
    """Of Mixtral 93.4 GB / 25.8 GB = 3.63."""
    assert bool(found_with("MOE002", failing("MOE002", plugins), plugins, factor=factor)) is speaks


@pytest.mark.parametrize(
    ("idle", "words"),
    [
        # One token of five misses a rank of eight of 256 experts with a chance of 77.3 %: 0.773^6 = 21.3 %.
        (0.25, "keep at least 6 sequences at once in a replica, or set policy.parallelism.expert = 16"),
        (0.05, "keep at least 12 sequences at once in a replica, or set policy.parallelism.expert = 8"),
        (0.0, "set policy.parallelism.expert = 1"),
    ],
)
def test_the_load_that_keeps_expert_ranks_busy(idle: float, words: str, plugins: Plugins) -> None:
    (found,) = found_with("MOE003", failing("MOE003", plugins), plugins, idle=idle)
    assert found.help == words


L40S = """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
devices = 4
pcie = { generation = 3, lanes = 8 }
[model]
id = "Qwen/Qwen3-30B-A3B-FP8"
max_model_len = 4096
[policy.parallelism]
tensor = 4
attention_data = 4
expert = 4
[policy.batching]
max_sequences = 1024
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 256
"""
OVER_NODES = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 16
devices_per_node = 8
[model]
id = "Qwen/Qwen3-235B-A22B"
max_model_len = 4096
[policy.parallelism]
tensor = 8
attention_data = 8
data = 2
expert = 16
[policy.batching]
max_sequences = 64
[workload]
prompt_tokens = 1000
output_tokens = 500
concurrency = 128
"""
PCIE = "pcie = { generation = 5, lanes = 16 }\n"
NETWORK = 'network = { bandwidth = "100 Gbit/s", per = "node" }\n'


@pytest.mark.parametrize(
    ("text", "link", "key"),
    [
        (L40S, "PCIe", "pcie"),
        (L40S.replace("[model]", f"{NETWORK}[model]"), "PCIe", "pcie"),
        (OVER_NODES, "the network between nodes", "accelerator"),
        (OVER_NODES.replace("[model]", f"{PCIE}[model]"), "the network between nodes", "accelerator"),
        (OVER_NODES.replace("[model]", f"{NETWORK}{PCIE}[model]"), "the network between nodes", "network"),
    ],
)
def test_the_slow_link_that_experts_are_reached_over(text: str, link: str, key: str, plugins: Plugins) -> None:
    found = only("MOE004", text, plugins)
    assert f" expert ranks over {link}; " in found.message
    assert [r.path for r in found.related] == [("hardware", key)]


def test_a_replica_on_each_device_is_within_fast_links(plugins: Plugins) -> None:
    found = only("MOE004", L40S, plugins)
    assert "; 4 replicas within fast links take " in found.message
    assert found.help == (
        "set policy.parallelism.tensor = 1 and policy.parallelism.attention_data = 1 and policy.parallelism.expert = 1 "
        "and hardware.devices = 1 and hardware.replicas = 4"
    )


@pytest.mark.parametrize(
    ("objectives", "worst"),
    [
        # Under even load ITL p99 is 428 ms and TTFT p99 470 ms; at the skew that is tried both are 8 % longer.
        ('itl = { p99 = "420 ms" }', ""),
        ('itl = { p99 = "430 ms" }', "ITL p99"),
        ('itl = { p99 = "475 ms" }', ""),
        ('itl = { p99 = "460 ms" }\nttft = { p99 = "475 ms" }', "TTFT p99"),
        ('itl = { p99 = "430 ms" }\nttft = { p99 = "505 ms" }', "ITL p99"),
        ('itl = { p99 = "430 ms" }\nttft = { p99 = "400 ms" }', ""),
        ("", ""),
    ],
)
def test_a_skew_that_nobody_states_matters_where_objectives_rest_on_it(
    objectives: str, worst: str, plugins: Plugins
) -> None:
    text = failing("MOE001", plugins).replace("skew = 3.0 # expect: MOE001\nload_metrics = true\n", "")
    found = findings("MOE001", f"{text}[slo]\n{objectives}\n", plugins)
    assert [f.message.partition(" holds under even expert load ")[0] for f in found] == [worst] * bool(worst)
    for finding in found:
        assert finding.severity is Severity.INFO
        metric, percentile = worst.lower().split()
        assert [r.path for r in finding.related] == [("slo", metric, percentile)]


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ("", "redundant experts and load metrics missing"),
        ("load_metrics = false\n", "redundant experts and load metrics missing"),
        ("load_metrics = true\n", "redundant experts missing"),
        ("redundant_experts = 16\n", "load metrics missing"),
        ('[[evidence]]\nkind = "expert-load"\n', "redundant experts missing"),
        ('redundant_experts = 16\n[[evidence]]\nkind = "benchmark"\n', "load metrics missing"),
    ],
)
def test_what_is_missing_against_uneven_load(more: str, missing: str, plugins: Plugins) -> None:
    text = failing("MOE001", plugins).replace("load_metrics = true\n", more)
    assert only("MOE001", text, plugins).message.endswith(f"; {missing}")


def test_experts_that_need_all_devices_are_spread_right(plugins: Plugins) -> None:
    """Of 1,024 sequences a device would have a cache of 256 beside all experts, which it does not hold."""
    assert findings("MOE004", L40S.replace("concurrency = 256", "concurrency = 1024"), plugins) == []


# CND


@pytest.mark.parametrize(
    ("overlap", "mask", "ranks", "share"),
    [("true", 1e-3, 1, 1.0), ("false", 60e-6, 1, 1.0), ("true", 1e-3, 2, 1.0), ("true", 1e-3, 2, 0.5)],
)
def test_masks_and_batches_that_are_named_are_the_last_that_stay_within_the_limit(
    overlap: str, mask: float, ranks: int, share: float, plugins: Plugins
) -> None:
    layout = f"[policy.parallelism]\ntensor = 1\ndata = {ranks}\n"

    def found(each: float, sequences: int) -> list[Finding]:
        text = failing(
            "CND001", plugins, mask=f'"{each * 1e6:.6g} us"', overlap=f"{overlap}\nshare = {share}",
            concurrency=str(sequences),
        )  # fmt: skip
        return findings("CND001", text.replace('80gb"\n', f'80gb"\ndevices = {ranks}\n') + layout, plugins)

    (finding,) = found(mask, 128)
    rows = 128 // ranks
    assert finding.equation.startswith(f"{rows} rows x {share:g} x ")
    named = re.match(
        r"a mask may take at most ([\d.]+) us at this batch; at most (\d+) sequences at once", finding.help
    )
    assert named is not None
    slowest, most = float(named[1]) * 1e-6, int(named[2])
    assert found(slowest, 128) == found(mask, most) == []
    assert found(slowest * 1.02, 128)
    assert found(mask, most + 1)


def test_a_single_sequence_whose_mask_is_exposed_is_as_few_as_there_are(plugins: Plugins) -> None:
    found = only("CND001", failing("CND001", plugins, mask='"20 ms"', concurrency="1"), plugins)
    assert found.message.startswith("the masks of 1 sequence take 20 ms ")
    assert found.equation.startswith("1 row x 1 x 20 ms = 20 ms; less ")
    assert re.fullmatch(r"a mask may take at most [\d.]+ ms at this batch", found.help)


def test_masks_of_a_backend_without_a_published_time_are_not_guessed(plugins: Plugins) -> None:
    text = failing("CND001", plugins, 2)
    rule = plugins.rule("CND001")
    for backend, kinds in (("outlines", ["Finding"]), ("Outlines", ["Finding"]), ("xgrammar", ["Lacks"])):
        review = review_of(text.replace('"outlines"', f'"{backend}"'), plugins)
        assert [type(item).__name__ for item in collect(rule({}), review)] == kinds


@pytest.mark.parametrize(
    ("share", "p", "hit"),
    [
        # A percentile leaves out 1 % or 5 % of the requests; so many may compile for longer than the objective.
        (1.0, "p99", 0.99),
        (0.5, "p99", 0.98),
        (1.0, "p95", 0.95),
        (0.1, "p95", 0.5),
    ],
)
def test_the_cache_hit_from_which_an_objective_holds(share: float, p: str, hit: float, plugins: Plugins) -> None:
    def spec(cache_hit: float) -> str:
        text = failing("CND002", plugins, share=str(share), cache_hit=str(cache_hit), compile='"3 s"')
        return text.replace('p99 = "1 s"', f'{p} = "1 s"')

    assert f"cache_hit = {hit:g}: " in only("CND002", spec(hit - 0.2), plugins).help
    assert f"cache_hit = {hit:g}: " in only("CND002", spec(hit - 1e-4), plugins).help
    assert findings("CND002", spec(hit), plugins) == []


def test_where_no_request_is_warm_there_is_no_warm_figure(plugins: Plugins) -> None:
    some = only("CND004", failing("CND004", plugins), plugins)
    assert some.message.endswith(" to the first token, the other 90.0% do not")
    assert some.help.startswith("state the warm figure for 90.0% of the requests and a cold one of at least ")
    for key, value in (("cache_hit", "0.0"), ("schemas", '"dynamic"')):
        none = only("CND004", failing("CND004", plugins).replace("cache_hit = 0.9", f"{key} = {value}"), plugins)
        assert ": 100.0% of requests compile their schema first and take at least " in none.message
        assert none.message.endswith(" to the first token")
        assert ": no request of this deployment is warm; " in none.help


def test_a_mean_time_to_first_token_in_its_parts(plugins: Plugins) -> None:
    text = failing("CND002", plugins, cache_hit="0.8", compile='"500 ms"', rate='"8 req/s"', prompt_tokens="3000")
    review = review_of(text, plugins)
    point = review.operating_point
    assert point is not None
    parts = re.fullmatch(
        r"TTFT mean = ([\d.]+) ms to prefill prompts of every length \+ ([\d.]+) ms of cold grammar compiles \+ "
        r"([\d.]+) ms of queue = ([\d.]+) ms; .*, the mean wait is ([\d.]+) ms",
        latency_equation(point, Objective("ttft", "mean", 1.0, 1.0)),
    )
    assert parts is not None
    prefill, compiled, queue, total, wait = map(float, parts.groups())
    # Prompts are of one length, and a fifth of the requests compile for half a second.
    assert prefill == pytest.approx(point.prefill_s(3000) * 1e3, rel=5e-3)
    assert compiled == 100
    assert queue == wait
    assert prefill + compiled + queue == pytest.approx(total, rel=5e-3)


# KRN001, ENG005


def test_the_prompt_whose_prefill_is_priced(plugins: Plugins) -> None:
    """The 99th percentile, not the longest, and what of it is computed in its last chunk."""
    text = failing("KRN001", plugins, prompt_tokens="{ p50 = 1000, p99 = 4000, max = 7000 }")
    assert only("KRN001", text, plugins).equation.startswith("32 heads x 4,000 x 4,000 x 2 B = 1.02 GB ")
    chunks = text.replace("chunked_prefill = false", "chunked_prefill = true")
    chunks = chunks.replace("max_batched_tokens = 8192", "max_batched_tokens = 1024")
    found = only("KRN001", chunks, plugins)
    assert found.equation.startswith("32 heads x 1,024 x 4,000 x 2 B = 262 MB ")
    assert " for 1,024 prompt tokens after 2,976 earlier ones, " in found.message
    cached = only("KRN001", chunks.replace("[workload]", "[workload]\nprefix_hit = 0.9"), plugins)
    assert " for 400 prompt tokens after 3,600 earlier ones, " in cached.message


@pytest.mark.parametrize(
    ("engine", "tokens", "ranks", "concurrency", "captured"),
    [
        # Captured sizes are sequences of a rank, and tokens of them in vLLM: each sequence verifies its drafts.
        ("sglang", 0, 1, 24, ""),
        ("sglang", 0, 1, 25, "25 sequences"),
        ("sglang", 3, 1, 25, "25 sequences"),
        ("sglang", 0, 2, 48, ""),
        ("sglang", 0, 2, 50, "25 sequences"),
        ("vllm", 0, 1, 25, "25 tokens"),
        ("vllm", 3, 1, 6, ""),
        ("vllm", 3, 1, 7, "28 tokens"),
        ("vllm", 3, 2, 14, "28 tokens"),
    ],
)
def test_decode_steps_of_more_than_is_captured(
    engine: str, tokens: int, ranks: int, concurrency: int, captured: str, plugins: Plugins
) -> None:
    version = {"vllm": "0.11.0", "sglang": "0.5.9"}[engine]
    text = failing("KRN002", plugins, 3, name=f'"{engine}"', version=f'"{version}"', concurrency=str(concurrency))
    text = text.replace('args = "--cuda-graph-max-bs 24"', "cuda_graph_max_batch = 24")
    text = text.replace('5090"\n', f'5090"\ndevices = {ranks}\n')
    policies = f"[policy.parallelism]\ntensor = 1\ndata = {ranks}\n"
    if tokens:
        policies += f'[policy.speculation]\nmethod = "ngram"\ntokens = {tokens}\nacceptance = 0.5\n'
    found = findings("KRN002", text + policies, plugins)
    assert [f.help for f in found] == ([f"capture graphs for at least {captured}"] if captured else [])


def test_graphs_for_a_fraction_of_a_sequence_are_for_one(plugins: Plugins) -> None:
    for rate, sequences in (("5", "3 decoding sequences"), ("0.1", "1 decoding sequence")):
        text = failing("KRN002", plugins, rate=f'"{rate} req/s"')
        assert only("KRN002", text, plugins).help == f"take out --enforce-eager, or capture graphs for {sequences}"


@pytest.mark.parametrize(
    ("recorded", "deployed", "speaks"),
    [
        ("0.11.0", "0.11.0", False),
        # A patch changes no kernel.
        ("0.11.2", "0.11.0", False),
        ("v0.11", "0.11.0", False),
        ("0.10.2", "0.11.0", True),
        ("1.11.0", "0.11.0", True),
        # A release that nobody states is taken for the same.
        (None, "0.11.0", False),
        ("0.11.0", None, False),
    ],
)
def test_kernels_are_recorded_of_a_release(
    recorded: str | None, deployed: str | None, speaks: bool, plugins: Plugins
) -> None:
    text = failing("KRN003", plugins)
    if deployed is None:
        text = text.replace('version = "0.11.0"\n', "")
    text += '[[evidence]]\nkind = "kernel-trace"\n' + ("" if recorded is None else f'engine_version = "{recorded}"\n')
    found = findings("KRN003", text, plugins)
    assert [[r.path for r in f.related] for f in found] == [
        [("evidence", 1, "engine_version"), ("model", "id")]
    ] * speaks


@pytest.mark.parametrize(
    ("more", "cache"),
    [
        ("", " and the KV cache is in fp8"),
        # A backend or kernel that is named is that of attention, and says nothing of weights.
        ('attention_backend = "FLASHINFER"\n', ""),
        ('[policy.attention]\nkernel = "flash"\n', ""),
    ],
)
def test_formats_whose_kernels_nothing_names(more: str, cache: str, plugins: Plugins) -> None:
    weights, quantization = "the weights are in fp8-block128", '[policy.quantization]\nkv_cache = "fp8"\n'
    text = failing("KRN003", plugins)
    both = text.replace("[[evidence]]", f"{more}{quantization}[[evidence]]")
    assert f"a figure was measured, {weights}{cache}, and nothing records " in only("KRN003", both, plugins).message
    alone = text.replace("[[evidence]]", f"{more}[[evidence]]")
    assert f"a figure was measured, {weights}, and nothing records " in only("KRN003", alone, plugins).message


@pytest.mark.parametrize(
    ("arguments", "prompt", "more", "words", "severity"),
    [
        ("-np 8", 4000, "", "over 8 slots is 4,096 tokens a request, and 0.99 of all requests have up to 4,097",
         Severity.WARNING),
        ("-np 8", 4095, "", "over 8 slots is 4,096 tokens a request, and 0.99 of all requests have up to 4,192",
         Severity.WARNING),
        # A prompt that fills its slot leaves no room for an answer.
        ("-np 8", 4096, "", "over 8 slots is 4,096 tokens a request, and 0.99 of all requests have up to 4,193: "
         "not even the median prompt fits", Severity.ERROR),
        ("-np 8 -kvu", 32700, "", "is all that 8 slots share, and 0.99 of all requests have up to 32,797",
         Severity.WARNING),
        # The longest of what is asked for is named.
        ("-np 8", 4000, "[deployment]\nsized_for = 6000\n",
         "over 8 slots is 4,096 tokens a request, and the fleet is sized for 6,000", Severity.WARNING),
        ("-np 8", 4000, "[deployment]\nsized_for = 4000\n",
         "over 8 slots is 4,096 tokens a request, and 0.99 of all requests have up to 4,097", Severity.WARNING),
    ],
)  # fmt: skip
def test_what_a_slot_has_and_a_request_needs(
    arguments: str, prompt: int, more: str, words: str, severity: Severity, plugins: Plugins
) -> None:
    text = failing("ENG005", plugins, args=f'"-c 32768 {arguments}"', prompt_tokens=str(prompt))
    found = only("ENG005", text + more, plugins)
    assert found.message == f"-c 32,768 {words}"
    assert found.severity is severity
    sized = ("deployment", "sized_for")
    assert [r.path for r in found.related] == [sized if "sized for" in words else ("workload", "prompt_tokens")]


@pytest.mark.parametrize(
    ("arguments", "prompt", "words"),
    [
        ("-c 32768 -np 8", 4000, "set -c 32776, 8 x 4097; or set --parallel 7 and keep -c 32768"),
        # 24 GB less 16 GB of weights hold the cache of two such contexts, and of the whole one of -c.
        ("-c 32768 -np 8", 20000,
         "set 2 slots and -c 40194: memory does not hold 8 such contexts; or set --parallel 1 and keep -c 32768"),
        # Not of four times as much.
        ("-c 131072 -np 8", 20000, "set 2 slots and -c 40194: memory does not hold 8 such contexts"),
        ("-c 32768 -np 8", 60000, "shorten the context: memory does not hold one of this length"),
        ("-c 131072 -np 8", 60000, "shorten the context: memory does not hold one of this length"),
    ],
)  # fmt: skip
def test_slots_are_of_no_more_than_memory_holds(arguments: str, prompt: int, words: str, plugins: Plugins) -> None:
    text = failing("ENG005", plugins, args=f'"{arguments}"', prompt_tokens=str(prompt))
    found = only("ENG005", text.replace("nvidia/h100-sxm5-80gb", "nvidia/l4"), plugins)
    assert found.help == words


def test_a_context_that_is_declared_as_less_than_a_slot_has_is_no_need(plugins: Plugins) -> None:
    """What runs is the slot, and requests are longer than it."""
    text = failing("ENG005", plugins).replace("[engine]", "max_model_len = 2048\n[engine]")
    assert only("ENG005", text, plugins).message.endswith(", and 0.99 of all requests have up to 4,097")


# SPEC


def test_a_divided_context_hides_no_other_contradiction(plugins: Plugins) -> None:
    divided = failing("ENG005", plugins, 1, args='"-np 8 -c 32768 -ctk q8_0 -ctv q8_0"')
    others = '[policy.batching]\nmax_sequences = 4\n[policy.quantization]\nkv_cache = "fp16"\n'
    assert findings("SPEC006", divided, plugins) == []
    found = findings("SPEC006", divided.replace("[engine]", f"{others}[engine]"), plugins)
    assert [f.message.partition(" at ")[0] for f in found] == [
        "policy.batching.max_sequences is 4 here and 8",
        "policy.quantization.kv_cache is fp16 here and q8_0",
    ]


@pytest.mark.parametrize(
    ("part", "memory", "weights", "speaks"),
    [
        # The box says 80 GB, half a percent more or less.
        ("nvidia/h100-sxm5-80gb", "79.59 GB", "71.2 GB", False),
        ("nvidia/h100-sxm5-80gb", "79.61 GB", "71.2 GB", True),
        ("nvidia/h100-sxm5-80gb", "80.39 GB", "71.2 GB", True),
        ("nvidia/h100-sxm5-80gb", "80.41 GB", "71.2 GB", False),
        # What the runtime sees is within a percent of the figure, though it decides: 102.8 GB of 102.
        ("google/tpu-v5p", "102 GB", "89 GB", False),
    ],
)
def test_the_memory_on_the_box(part: str, memory: str, weights: str, speaks: bool, plugins: Plugins) -> None:
    text = failing("SPEC007", plugins, 2, accelerator=f'"{part}"', memory=f'"{memory}"', weights_bytes=f'"{weights}"')
    assert [f.path for f in findings("SPEC007", text, plugins)] == [("hardware", "override", "memory")] * speaks
    seen = plugins.accelerators.get(part).runtime_visible_bytes
    assert findings("MEM001", text, plugins)
    assert findings("MEM001", text.replace(f'"{memory}"', str(seen)), plugins) == []


# Layouts


@pytest.mark.parametrize(
    ("hardware", "more", "path"),
    [
        ('accelerator = "nvidia/h100-sxm5-80gb"', "", ("hardware", "accelerator")),
        ('accelerator = "nvidia/h100-sxm5-80gb"\ndevices = 2', "", ("hardware", "devices")),
        ('instance = "aws/p5.48xlarge"', "", ("hardware", "instance")),
        ('instance = "aws/p5.48xlarge"\ndevices = 2', "", ("hardware", "devices")),
        ('instance = "aws/p5.48xlarge"\ndevices = 2', "tensor = 2\n", ("policy", "parallelism", "tensor")),
        ('accelerator = "nvidia/h100-sxm5-80gb"', "tensor = 1\n", ("policy", "parallelism", "tensor")),
    ],
)
def test_the_key_that_decides_the_degree(hardware: str, more: str, path: tuple[str, ...], plugins: Plugins) -> None:
    text = f"servelint = 1\n[hardware]\n{hardware}\n{MODEL}[policy.parallelism]\n{more}"
    assert tensor_path(review_of(text, plugins)) == path


@pytest.mark.parametrize(("prefill", "decode", "whole"), [(1, 1, False), (1, 2, False), (2, 1, False), (2, 2, True)])
def test_a_deployment_of_pools_fits_where_each_of_them_does(
    prefill: int, decode: int, whole: bool, plugins: Plugins
) -> None:
    """141 GB of weights are more than 150 GB leave, and less than twice of it."""
    text = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/h200-sxm5-141gb"\n[model]\n'
        'id = "meta-llama/Llama-3.1-70B"\nmax_model_len = 8192\n'
    )
    assert fits(compose(text + pools(f"tensor = {prefill}", f"tensor = {decode}"), plugins)) is whole


# What binds

LARGE = "[policy.batching]\nmax_sequences = 4096\nmax_batched_tokens = 8192\n"


def under(text: str, prompt: int, output: int, plugins: Plugins) -> Review:
    return review_of(
        f'{text}[workload]\nprompt_tokens = {prompt}\noutput_tokens = {output}\nrate = "1 req/s"\n', plugins
    )


@pytest.mark.parametrize(
    ("more", "lengths", "kind", "slack"),
    [
        # The hardware is used up to within what twice of a limit may add.
        (LARGE, (4000, 10), "hardware", 1.1),
        # Limits that are declared, or that follow from what is.
        ("[policy.batching]\nmax_sequences = 16\n", (500, 500), "max_sequences", 1.0),
        (LARGE.replace("8192", "256").replace("4096", "200"), (4000, 50), "max_batched_tokens", 1.0),
        (f"{LARGE}[policy.kv_cache]\nmemory_utilization = 0.9\n", (4000, 4000), "KV capacity", 1.0),
        (LARGE + pools("tensor = 1, replicas = 1", "tensor = 1, replicas = 3"), (4000, 10), "prefill pool", 1.0),
        (f"{LARGE}mixed_steps = false\nprefill_decode_interval = 50\n", (4000, 50), "prefill_decode_interval", 1.0),
        # A limit that was assumed may be set to anything.
        ("", (500, 500), "max_sequences", float("inf")),
    ],
)
def test_how_far_what_was_assumed_may_be_off(
    more: str, lengths: tuple[int, int], kind: str, slack: float, plugins: Plugins
) -> None:
    review = under(f"{H100}{MODEL}{more}", *lengths, plugins)
    assert review.mix is not None
    ideal = review.service(review.mix, "bound")
    assert binding(review, ideal).kind == kind
    assert not certainly_over(review, ideal, ideal.max_rate * min(slack, 1e6) * 0.999)
    assert certainly_over(review, ideal, ideal.max_rate * slack * 1.001) is (slack < float("inf"))


def test_an_assumed_share_of_memory_may_be_all_that_weights_leave(plugins: Plugins) -> None:
    review = under(f"{H100}{MODEL}{LARGE}", 4000, 4000, plugins)
    assert review.mix is not None
    assert review.memory is not None
    ideal, memory = review.service(review.mix, "bound"), review.memory
    assert binding(review, ideal).kind == "KV capacity"
    slack = (memory.visible - memory.weights_bytes) / memory.cache_left(0)
    assert slack > 1.1
    assert not certainly_over(review, ideal, ideal.max_rate * slack * 0.999)
    assert certainly_over(review, ideal, ideal.max_rate * slack * 1.001)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equations_count_ranks_where_there_are_several(ranks: int, plugins: Plugins) -> None:
    layout = f"[policy.parallelism]\ntensor = 1\ndata = {ranks}\n"
    review = under(f"{H100}devices = {ranks}\n{MODEL}{layout}{LARGE}", 4000, 10, plugins)
    assert review.mix is not None
    service = review.service(review.mix)
    rate = rate_equation(service, binding(review, service))
    step = re.match(r"([\d,]+) prompt tokens in an average step( on \d ranks)? / 4,000 prompt tokens to compute ", rate)
    assert step is not None, rate
    assert step[2] == (f" on {ranks} ranks" if ranks > 1 else None)
    # Every rank has a budget of its own.
    assert int(step[1].replace(",", "")) == pytest.approx(8000 * ranks, rel=0.03)
    held = cache_equation(service, 4000.0)
    assert held.endswith(f" sequences on each of {ranks} ranks" if ranks > 1 else " sequences")
