"""Conditions of the rules on layouts, pools and levers, on the side that their own cases leave out."""

from __future__ import annotations

import json
import re

import pytest
from attrs import evolve

from servelint.architecture import Experts
from servelint.config import Config
from servelint.lint import FileResult
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing import compose, review_of, samples
from servelint.testing.rules import run_case
from servelint_rules.dec.dec001_latency_levers import SPEC as LATENCY
from servelint_rules.dec.dec002_throughput_levers import SPEC as THROUGHPUT
from servelint_rules.dec.dec003_long_context_levers import SPEC as LONG_CONTEXT
from servelint_rules.dec.dec004_one_device_or_tp import SPEC as ONE_DEVICE
from servelint_rules.dec.dec005_tp_within_domain import SPEC as STAGES
from servelint_rules.dec.dec006_across_domains import EXPERTS
from servelint_rules.dec.dec007_chunk_or_disaggregate import SPEC as CHUNK
from servelint_rules.dec.dec008_compute_or_bandwidth import SPEC as HARDWARE
from servelint_rules.dec.levers import carried
from servelint_rules.dec.splits import spread
from servelint_rules.dis.dis001_transfer_exceeds_benefit import NO_OBJECTIVES
from servelint_rules.dis.dis002_pool_imbalance import SUMMARIES
from servelint_rules.dis.dis003_transfer_on_ttft import SETUP
from servelint_rules.dis.dis003_transfer_on_ttft import SPEC as TRANSFER
from servelint_rules.dis.dis004_cache_identity import SPEC as IDENTITY
from servelint_rules.par.par003_kv_replicated import PROMPTS
from servelint_rules.par.par003_kv_replicated import SPEC as REPLICATED
from servelint_rules.par.par004_tp_unneeded import LOADED, LONG
from servelint_rules.par.par005_pp_bubble import FEW
from servelint_rules.show import request_rate

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
WORKLOAD = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"


def checked(
    code: str, text: str, plugins: Plugins, files: tuple[tuple[str, str], ...] = (), **options: float
) -> tuple[list[Finding], FileResult]:
    config = Config(select=(code,), preview=True, options={code: options} if options else {})
    result = run_case(Case("", text, files=files), plugins, config)
    assert not plugins.faults, plugins.faults
    return [f.finding for f in result.findings if f.finding.code == code], result


def findings(code: str, text: str, plugins: Plugins, **options: float) -> list[Finding]:
    return checked(code, text, plugins, **options)[0]


def only(code: str, text: str, plugins: Plugins, **options: float) -> Finding:
    (found,) = findings(code, text, plugins, **options)
    return found


def lacks(code: str, text: str, plugins: Plugins) -> list[str]:
    found, result = checked(code, text, plugins)
    assert found == []
    return [what for rule, what in result.lacking if rule == code]


# PAR001

NODES = f"""\
{H100}devices_per_node = 8
network = {{ bandwidth = "100 Gbit/s", per = "node", rdma = true }}
[model]
id = "meta-llama/Llama-3.1-405B"
max_model_len = 8192
[policy.parallelism]
tensor = 16
[workload]
prompt_tokens = 4000
output_tokens = 20
"""


@pytest.mark.parametrize(("sequences", "better"), [(4, False), (8, True)])
def test_a_split_is_better_that_is_no_slower_in_decoding(sequences: int, better: bool, plugins: Plugins) -> None:
    """Stages across the nodes halve the average step either way, and decode by 9% later at four sequences."""
    found = only("PAR001", f"{NODES}concurrency = {sequences}\n", plugins)
    assert "tensor = 8, pipeline = 2: the average step" in found.help
    assert found.severity is (Severity.WARNING if better else Severity.INFO)
    assert ("no other split of these devices is faster" in found.message) is not better


def test_groups_over_two_nodes_are_no_remedy_for_one_over_four(plugins: Plugins) -> None:
    """They still wait for the network, though with a fast one they come closest."""
    text = NODES.replace('"100 Gbit/s", per = "node"', '"400 Gbit/s", per = "device"').replace(
        "tensor = 16", 'tensor = 32\n[policy.quantization]\nweights = "fp8"'
    )
    found = only("PAR001", f"{text}concurrency = 1\n", plugins)
    assert found.help.startswith("the nearest is tensor = 8, pipeline = 4: ")


# PAR002


def mixture(width: int, devices: int, degrees: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": width,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    text = f'{H100}devices = {devices}\n[model]\nconfig = "config.json"\nmax_model_len = 8192\n'
    return f"{text}[policy.parallelism]\n{degrees}", (("config.json", json.dumps(config)),)


@pytest.mark.parametrize(
    ("devices", "degrees", "over"),
    [
        # 14,340 is 4 x 3,585.
        (8, "tensor = 4\n", 0),
        (8, "tensor = 8\n", 8),
        # Each expert is on as many devices as the others leave: four, one, eight of two groups, and four of those.
        (8, "tensor = 8\nexpert = 2\n", 0),
        (8, "tensor = 8\nexpert = 8\n", 0),
        (16, "tensor = 8\ndata = 2\nexpert = 2\n", 8),
        (16, "tensor = 8\ndata = 2\nexpert = 4\n", 0),
        (8, "tensor = 4\ndata = 2\nexpert = 8\n", 0),
    ],
)
def test_an_expert_is_split_over_the_devices_that_hold_it(
    devices: int, degrees: str, over: int, plugins: Plugins
) -> None:
    text, files = mixture(14_340, devices, degrees)
    found, _ = checked("PAR002", text, plugins, files)
    assert [f.equation for f in found] == ([f"14,340 mod {over} = 4"] if over else [])
    assert all(" does not divide 14,340 expert width of " in f.message for f in found)


def test_degrees_are_looked_for_up_to_twice_the_present_one(plugins: Plugins) -> None:
    """Four KV heads: six devices neither divide them nor are divided, twelve are."""
    text = f'{H100}[model]\nid = "bigcode/starcoder2-15b"\nmax_model_len = 8192\n[policy.parallelism]\ntensor = 6\n'
    found = only("PAR002", text, plugins)
    assert found.help.startswith("degrees up to 12 that divide everything: 1, 2, 4, 8, 12; ")


@pytest.mark.parametrize(("copies", "total"), [(4, 132), (8, None)])
def test_copies_of_experts_are_spread_as_well(copies: int, total: int | None, plugins: Plugins) -> None:
    """128 experts over eight devices: with four copies 132, of which four are left over."""
    text = f'{H100}devices = 8\n[model]\nid = "Qwen/Qwen3-30B-A3B"\nmax_model_len = 8192\n'
    text += f"[policy.parallelism]\ntensor = 8\nexpert = 8\n[policy.moe]\nredundant_experts = {copies}\n"
    found = findings("PAR002", text, plugins)
    assert [f.equation for f in found] == ([f"{total} mod 8 = 4"] if total else [])
    assert all(f.help == f"degrees that divide {total}: 1, 2, 3, 4, 6, 11, 12" for f in found)


# PAR003


def test_a_cache_that_is_held_once_is_not_called_replicated(plugins: Plugins) -> None:
    """Not even where no gain is asked for."""
    once = REPLICATED.replace("= 8\n", "= 4\n").replace("tensor = 8", "tensor = 4")
    assert findings("PAR003", once, plugins, gain=0.0) == []
    assert len(findings("PAR003", REPLICATED, plugins, gain=0.0)) == 1


@pytest.mark.parametrize("text", [REPLICATED, PROMPTS], ids=["decoding", "prompts"])
def test_the_gain_that_is_told_is_the_one_that_is_judged(text: str, plugins: Plugins) -> None:
    match = re.search(r"\(\+(\d+)% requests\)", only("PAR003", text, plugins).message)
    assert match is not None
    told = int(match[1]) / 100
    assert len(findings("PAR003", text, plugins, gain=told - 0.01)) == 1
    assert findings("PAR003", text, plugins, gain=told + 0.01) == []


def test_more_sequences_run_only_where_the_cache_was_what_limited_them(plugins: Plugins) -> None:
    """322 fit: at an admission of 128 there is room for more already, and without any limit there is not."""
    full = REPLICATED.replace("concurrency = 256\n", "")
    for admitted, then in ((128, 128), (300, 300)):
        found = only("PAR003", f"{full}[policy.batching]\nmax_sequences = {admitted}\n", plugins)
        assert f"and {then} sequences take " in found.message
        assert f" for {admitted} sequences (" in found.message


# PAR004


@pytest.mark.parametrize(("admitted", "carried_now"), [(100, True), (99, False)])
def test_a_load_of_as_many_sequences_as_are_admitted_is_carried(
    admitted: int, carried_now: bool, plugins: Plugins
) -> None:
    found = only("PAR004", LONG.replace("max_sequences = 256", f"max_sequences = {admitted}"), plugins)
    assert ("which the present group does not" in found.message) is not carried_now


def test_two_devices_may_be_two_replicas(plugins: Plugins) -> None:
    two = LONG.replace("devices = 8", "devices = 2").replace("tensor = 8", "tensor = 2").replace("10240", "1024")
    found = only("PAR004", two.replace("max_sequences = 256", "max_sequences = 60"), plugins)
    assert "the model fits one device" in found.message
    assert "carry the declared load, which the present group does not" in found.message


@pytest.mark.parametrize(
    ("objectives", "named"),
    [
        ('tpot = { p99 = "24.5 ms" }\ne2e = { p99 = "25 s" }\n', "TPOT p99"),
        ('tpot = { p99 = "1 s" }\ne2e = { p99 = "25 s" }\n', "E2E p99"),
    ],
)
def test_the_first_objective_that_breaks_is_named(objectives: str, named: str, plugins: Plugins) -> None:
    found = only("PAR004", f"{LONG}[slo]\n{objectives}", plugins)
    assert f"within every objective ({named} breaks now)" in found.message


def test_the_split_that_carries_most_is_named(plugins: Plugins) -> None:
    """With 30 ms a token two devices carry more of a 14B model than twice what one does."""
    text = LOADED.replace("meta-llama/Llama-3.1-8B", "microsoft/phi-4").replace("32 ms", "30 ms")
    rates = {}
    for tensor in (1, 2, 4):
        other = text.replace("tensor = 8", f"tensor = {tensor}").replace("devices = 8", f"devices = {tensor}")
        knee = review_of(other.replace(" # expect: PAR004", ""), plugins).knee
        rates[tensor] = knee.rate * 8 / tensor if knee is not None else 0.0
    best = max(rates, key=lambda tensor: rates[tensor])
    assert best == 2
    found = only("PAR004", text, plugins)
    assert f"set policy.parallelism.tensor = {best}, hardware.devices = {best}, hardware.replicas = 4 " in found.help
    assert f"they carry {rates[best]:.3g} req/s" in found.message


@pytest.mark.parametrize(("pace", "limited"), [("50 ms", True), ("80 ms", False)])
def test_admission_is_limited_where_it_lies_beyond_the_knee(pace: str, limited: bool, plugins: Plugins) -> None:
    """At 80 ms a token the cache of a device is full before the objective breaks."""
    found = only("PAR004", LOADED.replace("32 ms", pace), plugins)
    assert ("policy.batching.max_sequences" in found.help) is limited


def test_one_device_lacks_no_load(plugins: Plugins) -> None:
    unloaded = LONG.replace("concurrency = 100\n", "")
    assert lacks("PAR004", unloaded, plugins) == ["a load (workload.rate or workload.concurrency) or objectives (slo)"]
    one = unloaded.replace("devices = 8", "devices = 1").replace("tensor = 8", "tensor = 1")
    assert lacks("PAR004", one, plugins) == []


@pytest.mark.parametrize(
    ("degrees", "more", "speaks"),
    [
        ("", "", True),
        ("expert = 1\n", "", True),
        ("attention_data = 2\n", "", False),
        ("", '[policy.speculation]\nmethod = "ngram"\ntokens = 1\nacceptance = 0.6\n', False),
    ],
)
def test_only_plain_groups_are_set_against_replicas(degrees: str, more: str, speaks: bool, plugins: Plugins) -> None:
    text = LONG.replace("tensor = 8 #", f"{degrees}tensor = 8 #") + more
    assert bool(findings("PAR004", text, plugins)) is speaks


@pytest.mark.parametrize("replicas", [1, 3])
def test_every_replica_is_split(replicas: int, plugins: Plugins) -> None:
    """The same load for each of them, and two of four devices in the place of each."""
    text = LONG.replace("replicas = 1", f"replicas = {replicas}").replace("= 100", f"= {100 * replicas}")
    found = only("PAR004", text, plugins)
    assert found.help == (
        f"set policy.parallelism.tensor = 4, hardware.devices = 4 and hardware.replicas = {2 * replicas}"
    )


# PAR005


@pytest.mark.parametrize(("stages", "lacking"), [(1, []), (2, ["an operating point (workload)"])])
def test_only_stages_lack_a_workload(stages: int, lacking: list[str], plugins: Plugins) -> None:
    text = f'{H100}devices = {stages}\n[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
    assert lacks("PAR005", f"{text}[policy.parallelism]\ntensor = 1\npipeline = {stages}\n", plugins) == lacking


@pytest.mark.parametrize(("degrees", "fixed"), [("tensor = 1, pipeline = 4", True), ("pipeline = 4", False)])
def test_a_layout_is_set_where_all_of_its_degrees_are_declared(degrees: str, fixed: bool, plugins: Plugins) -> None:
    found = only("PAR005", FEW.replace("tensor = 1, pipeline = 4", degrees), plugins)
    assert found.help == "set policy.parallelism.tensor = 4 and policy.parallelism.pipeline = 1"
    assert (found.fix is not None) is fixed


# PAR006


@pytest.mark.parametrize(
    ("devices", "degrees", "path", "needed"),
    [
        # A context degree that divides the tensor degree shares its devices, or has its own.
        (2, "tensor = 2\ncontext = 2\n", None, 2),
        (4, "tensor = 2\ncontext = 2\n", None, 2),
        (1, "tensor = 2\ncontext = 2\n", ("policy", "parallelism", "context"), 2),
        (3, "tensor = 2\ncontext = 2\n", ("hardware", "devices"), 2),
        (1, "tensor = 1\ncontext = 2\n", ("policy", "parallelism", "context"), 2),
        # A degree of one is not what takes the devices.
        (2, "tensor = 4\ndata = 1\n", ("policy", "parallelism", "tensor"), 4),
        (2, "tensor = 2\npipeline = 2\ndata = 1\n", ("policy", "parallelism", "pipeline"), 4),
    ],
)
def test_the_degree_that_takes_the_devices_is_marked(
    devices: int, degrees: str, path: tuple[str, ...] | None, needed: int, plugins: Plugins
) -> None:
    text = f'{H100}devices = {devices}\n[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'
    found = findings("PAR006", f"{text}[policy.parallelism]\n{degrees}", plugins)
    assert [f.path for f in found] == ([path] if path is not None else [])
    assert all(f.help.startswith(f"set hardware.devices = {needed},") for f in found)


# PAR007

SPEED_UP = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
devices = 2
[model]
id = "Qwen/Qwen3-32B"
max_model_len = 8192
[policy.parallelism]
tensor = 2
[[claim]]
metric = "speedup"
value = 2
at = { batch = 16, context = 300 }
"""


def test_a_group_may_carry_more_than_its_devices_where_one_has_little_room(plugins: Plugins) -> None:
    """64 GB of weights leave a device a ninth of its memory for the cache, and two of them half of theirs."""
    assert len(findings("PAR007", SPEED_UP, plugins)) == 1
    assert findings("PAR007", SPEED_UP + WORKLOAD, plugins) == []


@pytest.mark.parametrize(("tolerance", "speaks"), [(0.12, True), (0.14, False)])
def test_a_speed_up_may_exceed_the_estimate_by_the_tolerance(tolerance: float, speaks: bool, plugins: Plugins) -> None:
    """2 / 1.77 is 1.13."""
    found = findings("PAR007", SPEED_UP, plugins, tolerance=tolerance)
    assert bool(found) is speaks


def test_a_speed_up_at_no_stated_batch_is_judged_at_the_operating_point(plugins: Plugins) -> None:
    text = SPEED_UP.replace("at = { batch = 16, context = 300 }\n", "").replace("a100-sxm4", "h100-sxm5")
    text = text.replace("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B").replace("= 2\n", "= 4\n") + WORKLOAD
    found = only("PAR007", f"{text}concurrency = 3\n", plugins)
    inputs = {i.name: i.value for i in found.inputs}
    review = review_of(f"{text}concurrency = 3\n", plugins)
    assert review.mix is not None
    assert (inputs["sequences"], inputs["context"]) == (3.0, review.mix.mean_context)


@pytest.mark.parametrize(
    ("at", "context"), [("prompt_tokens = 900", 900), ("prompt_tokens = 900, output_tokens = 100", 950)]
)
def test_a_speed_up_is_judged_in_the_middle_of_its_outputs(at: str, context: float, plugins: Plugins) -> None:
    text = SPEED_UP.replace("batch = 16, context = 300", f"batch = 16, {at}")
    inputs = {i.name: i.value for i in only("PAR007", text, plugins).inputs}
    assert inputs["context"] == context


# DIS001


def test_the_mean_output_is_told_to_a_tenth_of_a_token(plugins: Plugins) -> None:
    text = NO_OBJECTIVES.replace("output_tokens = 250", "output_tokens = { p50 = 200, p99 = 640 }")
    found = only("DIS001", text, plugins)
    mix = review_of(text.replace(" # expect: DIS001", ""), plugins).mix
    assert mix is not None
    (told,) = [i.value for i in found.inputs if i.name.startswith("mean output")]
    assert told == pytest.approx(mix.output.mean, abs=0.05)
    assert abs(told - round(told)) > 0.05


@pytest.mark.parametrize("layerwise", ["true", "false"])
def test_a_setup_and_bytes_that_each_take_too_long_are_both_told(layerwise: str, plugins: Plugins) -> None:
    """One takes two seconds, the other what is left of the whole."""
    whole = 'transfer = { bandwidth = "1.25 GB/s", layerwise = false }'
    text = (
        plugins.rule("DIS001")
        .failing[0]
        .spec.replace(whole, f'transfer = {{ bandwidth = "1.25 GB/s", setup = "2 s", layerwise = {layerwise} }}')
    )
    found = only("DIS001", text, plugins)
    match = re.match(
        r"the setup alone takes 2 s and the bytes alone (\d+) ms: .* less than (\d+) ms together", found.help
    )
    assert match is not None, found.help
    exposed = re.search(r"costs a request ([\d.]+) s on average, .* delay it by (\d+) ms", found.message)
    assert exposed is not None
    assert 2 + int(match[1]) / 1e3 == pytest.approx(float(exposed[1]), abs=0.006)
    assert match[2] == exposed[2]


@pytest.mark.parametrize(("more", "speaks"), [(-1, False), (1, True)])
def test_a_split_without_objectives_has_to_carry_a_declared_rate(more: int, speaks: bool, plugins: Plugins) -> None:
    match = re.search(r"in two pools carry (\d+) req/s", only("DIS001", NO_OBJECTIVES, plugins).message)
    assert match is not None
    text = f'{NO_OBJECTIVES}rate = "{int(match[1]) + more} req/s"\n'
    assert bool(findings("DIS001", text, plugins)) is speaks


# DIS002


def test_idle_devices_are_counted_and_not_replicas(plugins: Plugins) -> None:
    """Prefill replicas of four devices, decode replicas of one: two of six are enough."""
    text = plugins.rule("DIS002").failing[0].spec.replace("tensor = 1\nreplicas = 6", "tensor = 4\nreplicas = 2")
    text = text.replace("tensor = 1\nreplicas = 2", "tensor = 1\nreplicas = 6")
    text = text.replace("p50 = 800, p99 = 3000", "p50 = 3000, p99 = 8000")
    found = only("DIS002", text.replace("p50 = 400, p99 = 1500", "p50 = 60, p99 = 200"), plugins)
    assert found.path == ("policy", "disaggregation", "decode", "replicas")
    assert "4 of 14 devices have no work" in found.message


def test_idle_replicas_join_the_other_pool_one_for_one(plugins: Plugins) -> None:
    """Three of four decode replicas are idle beside one that prefills, which four would do four times as fast."""
    found = only("DIS002", SUMMARIES.replace("replicas = 5 #", "replicas = 4 #"), plugins)
    one = re.search(r"carry ([\d.]+) req/s within the SLO", found.message)
    four = re.search(r"prefill\.replicas = 4 and .*decode\.replicas = 1, which carry ([\d.]+) req/s", found.help)
    assert one is not None
    assert four is not None, found.help
    assert float(four[1]) == pytest.approx(4 * float(one[1]), rel=0.02)


# DIS003


@pytest.mark.parametrize(("setup", "limit"), [("1.2 s", 1.5), ("900 ms", 1.3), ("800 ms", 1.1)])
def test_a_setup_may_take_what_the_objective_leaves(setup: str, limit: float, plugins: Plugins) -> None:
    text = SETUP.replace("1.2 s", setup).replace('"1.5 s"', f'"{limit} s"')
    found = only("DIS003", text, plugins)
    match = re.fullmatch(r'set policy\.disaggregation\.transfer\.setup = "(\d+) ms"', found.help)
    assert match is not None, found.help
    without = re.search(r"and (\d+) ms without the transfer", found.message)
    assert without is not None
    # What the bytes add beside the setup, prefill hides.
    assert int(match[1]) / 1e3 == pytest.approx(limit - int(without[1]) / 1e3, abs=0.002)


@pytest.mark.parametrize("setup", ["10 ms", "100 ms"])
def test_a_setup_is_no_remedy_where_the_bytes_take_too_long(setup: str, plugins: Plugins) -> None:
    text = TRANSFER.replace("layerwise = false", f'setup = "{setup}"\nlayerwise = false').replace("1.5 GB", "1.4 GB")
    found = only("DIS003", text, plugins)
    assert "transfer.setup" not in found.help
    assert "transfer.bandwidth" in found.help


@pytest.mark.parametrize(("setup", "key"), [("1.2 s", "layerwise"), ("1.4 s", "setup")])
def test_the_longer_of_setup_and_bytes_is_marked(setup: str, key: str, plugins: Plugins) -> None:
    """1.97 GB at 1.5 GB/s take 1.31 s; neither leaves time for the other."""
    found = only("DIS003", TRANSFER.replace("layerwise = false", f'setup = "{setup}"\nlayerwise = false'), plugins)
    assert found.path == ("policy", "disaggregation", "transfer", key)
    assert found.help == "neither bandwidth nor setup suffices by itself: both have to be less"


# DIS004


@pytest.mark.parametrize(
    ("without", "lacking"),
    [
        (("tenants", "identity"), ["policy.kv_cache.tenants and policy.kv_cache.identity"]),
        (("tenants",), ["policy.kv_cache.tenants"]),
        (("identity",), ["policy.kv_cache.identity"]),
        (("offload", "tenants"), ["policy.kv_cache.tenants"]),
        (("offload", "identity"), ["policy.kv_cache.identity"]),
        # A cache in memory of which nothing is said may well be one tenant's.
        (("offload", "tenants", "identity"), []),
    ],
)
def test_a_cache_behind_the_engine_or_half_a_word_on_tenants_asks_for_the_rest(
    without: tuple[str, ...], lacking: list[str], plugins: Plugins
) -> None:
    text = IDENTITY.replace(" # expect: DIS004", "") + "page_size = 16\n"
    for key in without:
        text = re.sub(rf"^{key} = .*\n", "", text, flags=re.M)
    assert lacks("DIS004", text, plugins) == lacking


# DEC001


def test_a_lever_that_does_not_carry_the_load_hides_no_other(plugins: Plugins) -> None:
    """Steps that multiply with four-bit weights in 16 bits are too long for 50 requests a second."""
    text = LATENCY.replace("70B", "8B").replace("max_sequences = 16", "max_sequences = 256")
    found = only("DEC001", text.replace("0.2 req/s", "50 req/s").replace("2 s", "20 s"), plugins)
    assert "int4" not in found.help
    assert "KV cache in fp8: " in found.help
    assert "tensor parallelism 8 on 8 devices: " in found.help


def test_no_other_drafts_are_proposed_to_a_deployment_that_drafts_one_token(plugins: Plugins) -> None:
    drafts = '[policy.speculation]\nmethod = "ngram"\ntokens = 1\nacceptance = 0.6\n'
    assert "speculation (" in only("DEC001", LATENCY, plugins).help
    assert "speculation (" not in only("DEC001", LATENCY + drafts, plugins).help


@pytest.mark.parametrize(
    ("weights", "proposed"),
    [
        ("bf16", {"fp8", "int4-g128"}),
        ("q8_0", {"int4-g128"}),
        ("q6_k", {"int4-g128"}),
        ("q5_k_m", {"int4-g128"}),
        ("int4", set()),
    ],
)
def test_weights_are_proposed_in_fewer_bits_than_they_have(weights: str, proposed: set[str], plugins: Plugins) -> None:
    found = only("DEC001", f'{LATENCY}[policy.quantization]\nweights = "{weights}"\n', plugins)
    assert set(re.findall(r"weights in ([\w-]+):", found.help)) == proposed


# DEC002


@pytest.mark.parametrize(("rate", "speaks"), [(12, True), (14, True), (15, False)])
def test_replicas_are_saved_from_the_gain_on(rate: int, speaks: bool, plugins: Plugins) -> None:
    """A replica carries 2.98 req/s: five of eight are 1.6 times as good, six are not."""
    text = THROUGHPUT.replace("[hardware]", "[hardware]\nreplicas = 8").replace("2.6 req/s", f"{rate} req/s")
    found = findings("DEC002", text, plugins)
    assert [f.help for f in found] == (
        ["in the order of gain: 5 replicas instead of 8: the load at the knee (1.6x)"] if speaks else []
    )


@pytest.mark.parametrize(("grown", "replicas"), [(None, 3), (7, 3), (11, 4), (80, None)])
def test_replicas_are_saved_as_far_as_growth_lets_them(
    grown: int | None, replicas: int | None, plugins: Plugins
) -> None:
    """At 2.98 req/s a replica eight take three and eleven four; for eighty no eight are too many."""
    text = THROUGHPUT.replace("[hardware]", "[hardware]\nreplicas = 8").replace("2.6 req/s", "8 req/s")
    if grown is not None:
        text = text.replace("[slo]", f'[[workload.growth]]\nrate = "{grown} req/s"\n[slo]')
    found = findings("DEC002", text, plugins)
    assert [re.findall(r"(\d+) replicas instead of 8", f.help) for f in found] == (
        [[str(replicas)]] if replicas is not None else []
    )


@pytest.mark.parametrize(
    ("text", "few", "many"),
    [(THROUGHPUT, 8, 14), (LONG_CONTEXT, 2, 9), (CHUNK, 1, 2)],
    ids=["DEC002", "DEC003", "DEC007"],
)
def test_users_that_leave_a_replica_nearly_idle_ask_for_no_more(
    text: str, few: int, many: int, plugins: Plugins
) -> None:
    """As with a rate: carrying more than is asked for gains nothing."""
    (code,) = {"DEC002", "DEC003", "DEC007"} & set(re.findall(r"expect: (DEC\d+)", text))
    for users, speaks in ((few, False), (many, True)):
        closed = re.sub(r"\nrate = .*", f"\nconcurrency = {users}", text)
        assert bool(findings(code, closed, plugins)) is speaks


def test_pools_carry_what_the_busier_one_does(plugins: Plugins) -> None:
    """Without objectives: what both carry at saturation, over all of their devices."""
    for workload in (
        "[workload]\nprompt_tokens = 4000\noutput_tokens = 20\n",
        "[workload]\nprompt_tokens = 100\noutput_tokens = 800\n",
    ):
        text = (
            f'{H100}[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n[policy.disaggregation]\n'
            "prefill = { tensor = 1, replicas = 1 }\ndecode = { tensor = 1, replicas = 3 }\n"
            f'transfer = {{ bandwidth = "50 GB/s" }}\n{workload}'
        )
        review = review_of(text, plugins)
        assert review.composition is not None
        assert review.mix is not None
        rate = carried(review, review.composition, review.mix)
        assert rate * 4 == pytest.approx(review.service(review.mix).max_rate, rel=0.01)


# DEC003


@pytest.mark.parametrize(("declared", "share"), [("", 0.5), ("prefix_hit = 0.8\n", 0.8)])
def test_prefix_reuse_is_priced_with_the_declared_share_else_a_half(
    declared: str, share: float, plugins: Plugins
) -> None:
    text = re.sub(r"prefix_hit = .*\n", declared, LONG_CONTEXT)
    found = only("DEC003", f"{text}[policy.kv_cache]\nprefix_reuse = false\n", plugins)
    reused = re.sub(r"prefix_hit = .*\n", f"prefix_hit = {share}\n", LONG_CONTEXT)
    review = review_of(reused.replace(" # expect: DEC003", ""), plugins)
    assert review.composition is not None
    assert review.mix is not None
    rate = request_rate(carried(review, review.composition, review.mix))
    assert f"prefix reuse with {share:.0%} of the prompt cached: {rate} a device (" in found.help


# DEC004


def test_two_devices_of_a_model_that_one_serves_better(plugins: Plugins) -> None:
    two = ONE_DEVICE.replace("tensor = 4", "tensor = 2").replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-0.6B")
    assert only("DEC004", two, plugins).help.startswith("in the order of gain: 2 replicas of 1 device: ")


# DEC005


def test_splits_that_nothing_is_carried_with_are_not_compared(plugins: Plugins) -> None:
    text = STAGES.replace("200 ms", "1 ms").replace('"latency"', '"throughput"')
    assert findings("DEC005", text, plugins) == []


def test_only_stages_lack_lengths(plugins: Plugins) -> None:
    unloaded = STAGES[: STAGES.index("[workload]")].replace(" # expect: DEC005", "")
    assert lacks("DEC005", unloaded, plugins) == ["workload lengths"]
    assert lacks("DEC005", unloaded.replace("tensor = 2, pipeline = 4", "tensor = 8"), plugins) == []
    ranks = unloaded.replace("pipeline = 4", "pipeline = 4, attention_data = 2")
    assert lacks("DEC005", ranks, plugins) == []


# DEC006


@pytest.mark.parametrize(("expert", "speaks"), [(1, True), (2, False), (16, False)])
def test_experts_are_spread_where_they_are_not_spread_yet(expert: int, speaks: bool, plugins: Plugins) -> None:
    text = EXPERTS.replace("pipeline = 2 }", f"pipeline = 2, expert = {expert} }}")
    assert bool(findings("DEC006", text, plugins)) is speaks


def test_experts_are_spread_where_those_of_every_block_divide(plugins: Plugins) -> None:
    """The rule's spread (DEC006): 32 and 24 experts over eight devices, not over sixteen."""
    whole = samples.hybrid_model()
    kept = [block for block in whole.blocks if block.experts is None]
    blocks = (
        *kept,
        samples.expert_block("moe", range(1, 6), 1024, 512, Experts(32, 4), 512),
        samples.expert_block("moe_later", range(6, 12), 1024, 512, Experts(24, 4), 512),
    )
    for devices, number in ((8, 1), (16, 0)):
        text = f'{H100}devices = {devices}\n[model]\nid = "any"\n[policy.parallelism]\ntensor = {devices}\n'
        composition = compose(text, plugins, architecture=evolve(whole, blocks=blocks))
        assert len(list(spread(composition, devices))) == number


# DEC007


@pytest.mark.parametrize(
    ("prompts", "outputs", "prefill", "decode"),
    [
        ("p50 = 7000, p99 = 20000", "p50 = 30, p99 = 100", "3 replicas", "1 replica"),
        ("p50 = 7000, p99 = 20000", "p50 = 300, p99 = 1000", "2 replicas", "1 replica"),
        ("p50 = 3000, p99 = 9000", "p50 = 600, p99 = 1500", "1 replica", "1 replica"),
        ("p50 = 3000, p99 = 9000", "p50 = 1000, p99 = 2500", "1 replica", "2 replicas"),
        ("p50 = 1500, p99 = 6000", "p50 = 1500, p99 = 3000", "1 replica", "3 replicas"),
    ],
)
def test_the_longer_the_answers_the_more_replicas_decode(
    prompts: str, outputs: str, prefill: str, decode: str, plugins: Plugins
) -> None:
    text = CHUNK.replace("p50 = 7000, p99 = 20000", prompts).replace("p50 = 300, p99 = 1000", outputs)
    found = only("DEC007", text, plugins, used=0.0, share=0.05)
    assert f"pools of {prefill} that prefill and {decode} that decode: " in found.help


@pytest.mark.parametrize(("least", "speaks"), [(1.0, True), (1.5, False)])
def test_chunks_and_pools_that_gain_little_are_left_alone(least: float, speaks: bool, plugins: Plugins) -> None:
    text = CHUNK.replace("p50 = 7000, p99 = 20000", "p50 = 1000, p99 = 4000").replace("45 ms", "100 ms")
    text = text.replace("p50 = 300, p99 = 1000", "p50 = 1000, p99 = 3000")
    found = findings("DEC007", text, plugins, used=0.0, gain=least)
    assert [re.findall(r"\(([\d.]+)x\)", f.help) for f in found] == ([["1.09"]] if speaks else [])


def test_the_best_lever_decides_however_little_the_last_one_gains(plugins: Plugins) -> None:
    found = only("DEC007", CHUNK.replace("45 ms", "100 ms"), plugins)
    gains = [float(gain) for gain in re.findall(r"\(([\d.]+)x\)", found.help)]
    assert gains[0] >= 1.5 > gains[-1]


def test_a_load_within_the_objectives_and_over_the_headroom_is_looked_at(plugins: Plugins) -> None:
    text = CHUNK.replace('itl = { p99 = "45 ms" }', 'itl = { mean = "13.3 ms" }\nheadroom = 0.05')
    review = review_of(text.replace(" # expect: DEC007", ""), plugins)
    point = review.operating_point
    assert point is not None
    assert point.misses(review.objectives)
    assert not point.misses(review.objectives, declared=True)
    assert len(findings("DEC007", text, plugins, share=0.02)) == 1


# DEC008


@pytest.mark.parametrize(("admitted", "speaks"), [(64, False), (512, True)])
def test_hardware_is_not_what_a_load_asks_for_that_more_admission_carries(
    admitted: int, speaks: bool, plugins: Plugins
) -> None:
    """At 28 requests a second more than 64 sequences run at once; 36 are more than the objective allows."""
    rate = "36 req/s" if speaks else "28 req/s"
    text = HARDWARE.replace("max_sequences = 512", f"max_sequences = {admitted}").replace("36 req/s", rate)
    review = review_of(re.sub(" # expect: .*", "", text), plugins)
    point = review.operating_point
    assert point is None or point.misses(review.objectives, declared=True)
    assert bool(findings("DEC008", text, plugins)) is speaks
