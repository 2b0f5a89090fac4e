"""A prompt chunk of the wrong size is named as the remedy, whichever way it is wrong."""

from __future__ import annotations

import re

import pytest

from servelint.manager import Plugins
from servelint.rule import Case
from servelint.service import Objective
from servelint.testing.rules import run_case
from servelint_rules.slo.chunks import nearer
from servelint_rules.slo.slo004_no_headroom import NoHeadroom
from servelint_rules.slo.slo008_prefill_stall import FIRST, RARE
from servelint_rules.slo.slo008_prefill_stall import SPEC as STALLED
from servelint_rules.slo.slo010_chunk_too_small import SPEC as SMALL


def helps(plugins: Plugins, spec: str, code: str) -> list[str]:
    return [f.finding.help for f in run_case(Case("", spec), plugins).findings if f.finding.code == code]


def test_a_first_token_that_small_chunks_delay_is_mended_by_larger_ones(plugins: Plugins) -> None:
    spec = SMALL.replace('ttft = { p99 = "8 s" }', 'ttft = { p99 = "400 ms" }')
    assert helps(plugins, spec, "SLO010") == []
    (text,) = helps(plugins, spec, "SLO001")
    found = re.match(r"set policy.batching.max_batched_tokens = (\d+): TTFT p99 is then", text)
    assert found, text
    assert int(found[1]) > 128
    mended = spec.replace("max_batched_tokens = 128", f"max_batched_tokens = {found[1]}")
    assert helps(plugins, mended, "SLO001") == []
    half = spec.replace("max_batched_tokens = 128", f"max_batched_tokens = {int(found[1]) // 2}")
    assert helps(plugins, half, "SLO001")


def test_a_stall_is_said_once(plugins: Plugins) -> None:
    # Near the knee as well: the cause is told, the lack of headroom is not told beside it.
    spec = STALLED.replace("0.85 req/s", "0.9 req/s")
    assert len(helps(plugins, spec, "SLO008")) == 1
    assert helps(plugins, spec, "SLO004") == []


@pytest.mark.parametrize(
    ("percentile", "growth", "expected"),
    [("p99", 2.0, "p995"), ("p95", 2.0, "p975"), ("p90", 2.0, "p95"), ("p50", 5.0, "p90"), ("p999", 2.0, "p9995")],
)
def test_more_load_is_a_higher_percentile(percentile: str, growth: float, expected: str) -> None:
    assert nearer(Objective("itl", percentile, 1.0, 1.0), growth) == expected


def test_a_stall_is_mended_by_the_largest_chunk_however_small(plugins: Plugins) -> None:
    (text,) = helps(plugins, RARE, "SLO008")
    assert text.startswith("set policy.batching.max_batched_tokens = 128: ")
    # vLLM refuses a budget below its admission limit, so that one goes with it.
    admitted = RARE.replace("[workload]", "max_sequences = 256\n[workload]")
    (text,) = helps(plugins, admitted, "SLO008")
    assert text.startswith(
        "set policy.batching.max_batched_tokens = 128 and policy.batching.max_sequences = 128: the same load"
    )


def test_where_no_chunk_helps_only_the_limits_there_are_are_named(plugins: Plugins) -> None:
    tight = RARE.replace("40 ms", "23.3 ms")
    (text,) = helps(plugins, tight, "SLO008")
    assert text == "prefill on a pool of its own: no chunk that carries this load keeps the inter-token limit"
    both = tight + 'ttft = { p99 = "20 s" }\n'
    (text,) = helps(plugins, both, "SLO008")
    assert text.endswith("keeps both the inter-token limit and TTFT p99")


OVER = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.3-70B-Instruct"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.parallelism]
tensor = 2
[workload]
prompt_tokens = { p50 = 1800, p99 = 4000 }
output_tokens = { p50 = 380, p99 = 900 }
rate = "12 req/s"
[slo]
ttft = { p99 = "2 s" }
itl = { p99 = "50 ms" }
"""


def test_an_overload_is_mended_by_what_takes_the_fewest_devices(plugins: Plugins) -> None:
    (text,) = helps(plugins, OVER, "SLO007")
    found = re.search(
        r"hardware.devices = (\d+) and policy.parallelism.tensor = (\d+)(?: and policy.batching.max_batched_tokens = "
        r"(\d+))? and hardware.replicas = (\d+) carry it within the SLO, on (\d+) devices",
        text,
    )
    assert found, text
    devices, tensor, budget, replicas, price = (int(n) if n else None for n in found.groups())
    assert devices == tensor
    assert devices * replicas == price  # type: ignore[operator]
    assert price < 2 * 18  # type: ignore[operator]
    mended = OVER.replace("devices = 2", f"devices = {devices}\nreplicas = {replicas}")
    mended = mended.replace("tensor = 2", f"tensor = {tensor}")
    if budget:
        mended = mended.replace("[workload]", f"[policy.batching]\nmax_batched_tokens = {budget}\n[workload]")
    result = run_case(Case("", mended), plugins)
    assert {f.finding.code for f in result.findings}.isdisjoint({"SLO001", "SLO004", "SLO007", "SLO008"})


def test_a_number_of_replicas_is_said_once(plugins: Plugins) -> None:
    for slo in ("", '[slo]\nttft = { p99 = "60 s" }\n'):
        (text,) = helps(plugins, OVER[: OVER.index("[slo]")] + slo, "SLO007")
        assert text.count("hardware.replicas = ") == 1, text


def test_headroom_that_is_used_up_is_said_as_what_is_left_and_what_was_asked_for(plugins: Plugins) -> None:
    spec = NoHeadroom.failing[0].spec
    (text,) = (f.finding.message for f in run_case(Case("", spec), plugins).findings if f.finding.code == "SLO004")
    assert re.search(r"within the objective of 12 ms, but only \d+% below it, and slo.headroom asks for 20%", text)


UNSAID = FIRST.replace("mixed_steps = false # expect: SLO008", "")
DRAFTS = '[policy.speculation]\nmethod = "mtp"\ntokens = 3\nacceptance = 0.7\n[workload]'


def set_keys(text: str) -> dict[str, str]:
    return dict(re.findall(r"policy\.batching\.(\w+) = (\w+)", text))


def test_where_prompts_go_first_others_have_to_decode_in_between(plugins: Plugins) -> None:
    """SLO008: a chunk alone ends no stall where the chunks of a prompt follow each other at once."""
    spec = UNSAID
    (text,) = helps(plugins, spec, "SLO008")
    keys = set_keys(text)
    assert keys.keys() == {"mixed_steps", "prefill_chunk"}
    # The chunk alone is no remedy, both are.
    chunked = spec.replace("prefill_chunk = 1024", f"prefill_chunk = {keys['prefill_chunk']}")
    assert helps(plugins, chunked, "SLO008")
    mended = chunked.replace("[workload]", f"mixed_steps = {keys['mixed_steps']}\n[workload]")
    assert helps(plugins, mended, "SLO008") == helps(plugins, mended, "SLO001") == []


@pytest.mark.parametrize(
    ("version", "method", "key"),
    [
        ("0.5.16", "mtp", None),
        ("0.5.20", "mtp", "mixed_steps"),
        ("0.5.16", "ngram", None),
        ("0.5.20", "ngram", "prefill_decode_interval"),
    ],
)
def test_what_drafts_leave_of_the_remedies(plugins: Plugins, version: str, method: str, key: str | None) -> None:
    """Up to 0.5.16 any draft keeps SGLang from mixing steps, and no flag lets others decode between two of prompts."""
    drafts = DRAFTS.replace('"mtp"', f'"{method}"')
    spec = UNSAID.replace('"sglang"', f'"sglang"\nversion = "{version}"').replace("[workload]", drafts)
    (text,) = helps(plugins, spec, "SLO008")
    keys = set_keys(text)
    assert keys.keys() == ({key, "prefill_chunk"} if key else set()), text
    if key:
        lines = "\n".join(f"{name} = {value}" for name, value in keys.items())
        mended = spec.replace("prefill_chunk = 1024", lines)
        assert helps(plugins, mended, "SLO008") == helps(plugins, mended, "SLO001") == []
    else:
        assert text.startswith("prefill on a pool of its own")


def test_an_engine_that_mixes_nothing_by_itself_is_told_to(plugins: Plugins) -> None:
    """SLO008: prompts that SGLang cuts go first all the same."""
    spec = UNSAID.replace("prefill_chunk = 1024", "chunked_prefill = false")
    (text,) = helps(plugins, spec, "SLO008")
    keys = set_keys(text)
    assert keys.keys() == {"chunked_prefill", "mixed_steps", "prefill_chunk"}, text
    mended = spec.replace("chunked_prefill = false", "\n".join(f"{name} = {value}" for name, value in keys.items()))
    assert helps(plugins, mended, "SLO008") == helps(plugins, mended, "SLO001") == []


@pytest.mark.parametrize(
    ("engine", "version", "more"),
    [("tgi", "2.4.0", ""), ("vllm", "0.11.0", f"mixed_steps = false\n{DRAFTS.removesuffix('[workload]')}")],
)
def test_a_key_that_the_engine_does_not_have_is_no_remedy(
    plugins: Plugins, engine: str, version: str, more: str
) -> None:
    spec = UNSAID.replace('"sglang"', f'"{engine}"\nversion = "{version}"').replace("prefill_chunk = 1024", more)
    (text,) = helps(plugins, spec, "SLO008")
    assert text.startswith("prefill on a pool of its own"), text
    assert set_keys(text) == {}


def test_decoding_between_prompts_is_named_where_it_holds_them_back(plugins: Plugins) -> None:
    """SLO007: not the chunk or a resource is used up, and no more replicas are needed."""
    spec = UNSAID.replace("prefill_chunk = 1024", "prefill_chunk = 1024\nprefill_decode_interval = 300")
    (found,) = (f.finding for f in run_case(Case("", spec), plugins).findings if f.finding.code == "SLO007")
    assert "prompts get a step only after 300 decoding steps" in found.message
    fewer = re.match(r"policy\.batching\.prefill_decode_interval = (\d+) carries it", found.help)
    assert fewer is not None, found.help
    mended = spec.replace("interval = 300", f"interval = {fewer[1]}")
    codes = {f.finding.code for f in run_case(Case("", mended), plugins).findings}
    assert not codes & {"SLO001", "SLO007", "SLO008"}


def test_the_steps_of_a_first_token_are_told(plugins: Plugins) -> None:
    late = UNSAID.replace('ttft = { p99 = "4 s" }', 'ttft = { p99 = "300 ms" }')
    (found,) = (f.finding for f in run_case(Case("", late), plugins).findings if f.finding.code == "SLO001")
    # 16,000 tokens in chunks of 1,024.
    assert "a prompt of 16,000 tokens (p99), in 16 steps of up to 1,024 tokens" in found.equation
    between = late.replace("prefill_chunk = 1024", "prefill_chunk = 1024\nprefill_decode_interval = 1")
    (found,) = (f.finding for f in run_case(Case("", between), plugins).findings if f.finding.code == "SLO001")
    assert "in 16 steps of up to 1,024 tokens and between them those of" in found.equation


def test_an_objective_that_prompts_before_decoding_break_is_kept_beside_them(plugins: Plugins) -> None:
    """SLO001: where prompts go first, letting others decode is the first remedy."""
    spec = UNSAID.replace("0.85 req/s", "1.3 req/s").replace('"60 ms"', '"120 ms"')
    (text,) = helps(plugins, spec, "SLO001")
    keys = set_keys(text.split(":")[0])
    assert keys.keys() == {"mixed_steps", "prefill_chunk"}, text
    mended = spec.replace("prefill_chunk = 1024", "\n".join(f"{key} = {value}" for key, value in keys.items()))
    assert helps(plugins, mended, "SLO001") == []


def test_small_chunks_read_the_weights_often_beside_nobody_too(plugins: Plugins) -> None:
    spec = SMALL.replace("[workload]", '[engine]\nname = "sglang"\n[workload]')
    spec = spec.replace("max_batched_tokens = 128", "prefill_chunk = 128")
    (text,) = helps(plugins, spec, "SLO010")
    larger = re.fullmatch(r"set policy\.batching\.prefill_chunk = (\d+)", text)
    assert larger is not None, text
    mended = spec.replace("prefill_chunk = 128", f"prefill_chunk = {larger[1]}")
    assert helps(plugins, mended, "SLO010") == []
