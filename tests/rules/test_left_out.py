"""What rules say where their own cases do not go: claims of other engines, reuse that is off, objectives alone."""

from __future__ import annotations

import re

import pytest
from attrs import evolve

from servelint.architecture import RopeScaling
from servelint.config import Config
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing import review_of, samples
from servelint.testing.rules import run_case
from servelint_rules.ctx.ctx003_context_beyond_model import _open

H100 = 'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
MODEL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 8192\n'


def findings(code: str, text: str, plugins: Plugins, files: tuple[tuple[str, str], ...] = ()) -> list[Finding]:
    found = run_case(Case("", text, files=files), plugins, Config(select=(code,), preview=True))
    assert not plugins.faults, plugins.faults
    return [f.finding for f in found.findings if f.finding.code == code]


# Claims


@pytest.mark.parametrize(
    ("assumed", "deployed", "speaks"),
    [("sglang", "vllm", True), ("vLLM", "vllm", False), ("homegrown", "vllm", False), ("sglang", "homegrown", False)],
)
def test_a_claim_of_another_engine(assumed: str, deployed: str, speaks: bool, plugins: Plugins) -> None:
    claim = f'[[claim]]\nmetric = "throughput"\nvalue = "1000 tok/s"\nassumes = {{ engine = "{assumed}" }}\n'
    found = findings("CLM003", f'{H100}{MODEL}[engine]\nname = "{deployed}"\n{claim}', plugins)
    assert [f.path for f in found] == ([("claim", 0, "assumes", "engine")] if speaks else [])
    if speaks:
        assert found[0].message == ("the claim was measured on another engine than is deployed: sglang, deployed vllm")
        assert found[0].related[0].path == ("engine", "name")


# The cache of long contexts


def test_reuse_that_is_off_is_a_lever_with_the_declared_share_or_a_half(plugins: Plugins) -> None:
    text = plugins.rule("DEC003").failing[0].spec
    hit = re.compile(r"prefix_hit = .*0\.8.*\n")
    assert hit.search(text)
    off = "\n[policy.kv_cache]\nprefix_reuse = false\n"
    for spec, share in ((text, 80), (hit.sub("", text), 50)):
        (found,) = findings("DEC003", spec + off, plugins)
        assert f"; prefix reuse with {share}% of the prompt cached: " in found.help
    # Where it is on, the declared share is part of the load already.
    (found,) = findings("DEC003", text, plugins)
    assert "prefix reuse" not in found.help


# Objectives alone


def test_an_objective_that_one_token_alone_breaks(plugins: Plugins) -> None:
    workload = "[workload]\nprompt_tokens = 4000\noutput_tokens = 100\nconcurrency = 1\n"
    (found,) = findings("SLO005", f'{H100}{MODEL}{workload}[slo]\nttft = {{ p99 = "1 ms" }}\n', plugins)
    assert "not even one token meets it: the objective must be above " in found.help
    (slow,) = findings("SLO005", f'{H100}{MODEL}{workload}[slo]\nttft = {{ p99 = "40 ms" }}\n', plugins)
    assert "not even one token" not in slow.help
    (pace,) = findings("SLO006", f'{H100}{MODEL}{workload}[slo]\nitl = {{ p99 = "0.05 ms" }}\n', plugins)
    assert pace.help.startswith("neither narrower weights nor more devices alone meet it; ")


# Positions


@pytest.mark.parametrize(
    ("engine", "kind", "model_type", "speaks"),
    [
        ("vllm", "linear", "llama", True),
        ("vllm", "dynamic", "llama", True),
        ("vllm", "yarn", "llama", False),
        ("vllm", "linear", "gemma3_text", False),
        ("", "linear", "llama", False),
    ],
)
def test_a_scaling_that_can_be_read_twice(
    engine: str, kind: str, model_type: str, speaks: bool, plugins: Plugins
) -> None:
    named = f'[engine]\nname = "{engine}"\nversion = "0.11.0"\n' if engine else ""
    review = review_of(f'{H100}[model]\nid = "meta-llama/Llama-3.1-8B"\n{named}', plugins)
    scaled = evolve(
        samples.dense_model(), max_position=4096, rope_scaling=RopeScaling(kind, 4.0, 0), model_type=model_type
    )
    found = list(_open(review, scaled))
    assert [(f.path, f.severity, f.equation) for f in found] == (
        [(("model", "id"), Severity.WARNING, "4,096 x 4 = 16,384")] if speaks else []
    )
    assert list(_open(review, evolve(scaled, rope_scaling=None))) == []


# Rates


def test_sparse_rates_by_precision_in_a_claim(plugins: Plugins) -> None:
    claim = (
        '[[claim]]\nmetric = "tpot"\nvalue = "20 ms"\nat = { batch = 1, context = 100 }\n'
        'assumes = { dense_flops = { bf16 = "%s", fp8 = "%s" } }\n'
    )
    both = findings("HW001", H100 + MODEL + claim % ("1979 TFLOP/s", "3958 TFLOP/s"), plugins)
    assert [f.path[-1] for f in both] == ["bf16", "fp8"]
    one = findings("HW001", H100 + MODEL + claim % ("989 TFLOP/s", "3958 TFLOP/s"), plugins)
    assert [f.path[-1] for f in one] == ["fp8"]
    assert findings("HW001", H100 + MODEL + claim % ("989 TFLOP/s", "1979 TFLOP/s"), plugins) == []


def test_experts_that_ranks_do_not_divide(plugins: Plugins) -> None:
    model = '[model]\nid = "mistralai/Mixtral-8x7B-v0.1"\nmax_model_len = 4096\n'
    for ranks, extra, speaks in ((6, 0, True), (6, 4, False), (4, 0, False)):
        text = (
            f"{H100}devices = {ranks}\n{model}[policy.parallelism]\ntensor = {ranks}\nexpert = {ranks}\n"
            f"attention_data = {ranks}\n" + (f"[policy.moe]\nredundant_experts = {extra}\n" if extra else "")
        )
        found = [f for f in findings("PAR002", text, plugins) if f.path[-1] == "expert"]
        assert bool(found) is speaks, (ranks, extra, [f.message for f in found])


# Points of a claim, and stages


@pytest.mark.parametrize(
    ("at", "per", "batch"),
    [
        ("{ batch = 1 }", "replica", "1 sequence"),
        ("{ concurrency = 9 }", "deployment", "3 sequences"),
        ("{ concurrency = 2 }", "deployment", "1 sequence"),
        ("{ concurrency = 9 }", "replica", "9 sequences"),
    ],
)
def test_the_batch_of_a_throughput_without_a_latency(at: str, per: str, batch: str, plugins: Plugins) -> None:
    workload = "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\n"
    claim = f'[[claim]]\nmetric = "throughput"\nvalue = "900 tok/s"\nper = "{per}"\nat = {at}\n'
    (found,) = findings("SLO002", f"{H100}replicas = 4\n{MODEL}{workload}{claim}", plugins)
    assert found.equation.startswith(f"{batch} on a replica: ")


def test_the_last_of_two_central_objectives_is_held_against_the_tail(plugins: Plugins) -> None:
    text = plugins.rule("SLO003").failing[0].spec
    (one,) = findings("SLO003", text, plugins)
    metric = str(one.path[1])
    match = re.search(rf'{metric} = {{ (\w+) = "([^"]+)" }}', text)
    assert match is not None
    other = "p50" if match[1] == "mean" else "mean"
    both = text.replace(match[0], f'{metric} = {{ {match[1]} = "{match[2]}", {other} = "{match[2]}" }}')
    review = review_of(both, plugins)
    last = [o.percentile for o in review.objectives if o.metric == metric][-1]
    found = findings("SLO003", both, plugins)
    assert [f.path[-1] for f in found] == [last]


@pytest.mark.parametrize(("pipeline", "speaks"), [(1, False), (2, True), (4, True)])
def test_two_stages_are_a_pipeline(pipeline: int, speaks: bool, plugins: Plugins) -> None:
    text = (
        f"{H100}devices = 4\n{MODEL}[policy.parallelism]\ntensor = {4 // pipeline}\npipeline = {pipeline}\n"
        "[workload]\nprompt_tokens = 1000\noutput_tokens = 200\nconcurrency = 1\n"
    )
    assert bool(findings("PAR005", text, plugins)) is speaks
