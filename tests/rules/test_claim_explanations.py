"""CLM001 names the assumption that a figure rests on: each case is computed from one, and that one is named."""

from __future__ import annotations

import pytest

from servelint.manager import Plugins
from servelint.rule import Case
from servelint.testing.rules import run_case
from servelint_rules.clm.clm001_faster_than_roofline import MOST_EXPLAINED, UNEXPLAINED

HARDWARE = '[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n'
SMALL = '[model]\nid = "meta-llama/Llama-3.1-8B"\nmax_model_len = 16384\n'


def explained(spec: str, plugins: Plugins) -> str:
    """The message of the only CLM001 finding, without what it says of the claim itself."""
    result = run_case(Case("claim", "servelint = 1\n" + spec), plugins)
    messages = [f.finding.message for f in result.findings if f.finding.code == "CLM001"]
    assert len(messages) == 1, messages
    return messages[0].split("; ", 1)[1]


CLAIMS = {
    # 8,000 tokens x 16 GFLOP at 1,979 instead of 989 TFLOP/s.
    "sparse rates": (
        HARDWARE + SMALL,
        'metric = "ttft"\nvalue = "66 ms"\nat = { prompt_tokens = 8000 }',
        "2:4 structured sparsity",
    ),
    # 16 GB of weights at 4.8 instead of 3.35 TB/s.
    "another device": (
        HARDWARE + SMALL,
        'metric = "itl"\nvalue = "3.3 ms"\nat = { batch = 1, context = 500 }',
        "H200",
    ),
    "fewer bits": (
        HARDWARE + SMALL,
        'metric = "tpot"\nvalue = "2.7 ms"\nat = { batch = 1, context = 500 }',
        "weights in FP8",
    ),
    "a figure of all replicas": (
        HARDWARE + "replicas = 8\n" + SMALL,
        'metric = "throughput"\nvalue = "30000 tok/s"\nat = { batch = 32, context = 2000 }',
        "a figure of all 8 replicas",
    ),
    "a figure of all users": (
        HARDWARE + SMALL,
        'metric = "throughput"\nvalue = "4000 tok/s"\nper = "user"\nat = { concurrency = 32, context = 2000 }',
        "a figure of all 32 sequences",
    ),
    "nothing usual": (
        HARDWARE + SMALL,
        'metric = "itl"\nvalue = "0.01 ms"\nat = { batch = 1, context = 500 }',
        "none of the usual assumptions alone",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_assumption_is_named(name: str, plugins: Plugins) -> None:
    deployment, claim, expected = CLAIMS[name]
    assert expected in explained(f"{deployment}[[claim]]\n{claim}\n", plugins)


def test_speculation_that_is_deployed_explains_nothing_more(plugins: Plugins) -> None:
    drafted = HARDWARE + SMALL + '[policy.speculation]\nmethod = "ngram"\ntokens = 4\nacceptance = 0.8\n'
    claim = '[[claim]]\nmetric = "tpot"\nvalue = "{} ms"\nat = {{ batch = 1, context = 500 }}\n'
    # 3.36 tokens of a step of 4.5 ms.
    assert "speculative decoding" in explained(HARDWARE + SMALL + claim.format(1.4), plugins)
    assert "speculative decoding" not in explained(drafted + claim.format(0.9), plugins)


def test_only_the_first_claims_are_explained(plugins: Plugins) -> None:
    claim = '[[claim]]\nmetric = "throughput"\nvalue = "{} tok/s"\nat = {{ concurrency = 1, context = 500 }}\n'
    claims = "".join(claim.format(10**6 + i) for i in range(MOST_EXPLAINED + 2))
    result = run_case(Case("claims", "servelint = 1\n" + HARDWARE + SMALL + claims), plugins)
    messages = [f.finding.message for f in result.findings if f.finding.code == "CLM001"]
    assert len(messages) == MOST_EXPLAINED + 2
    assert [UNEXPLAINED in message for message in messages] == [False] * MOST_EXPLAINED + [True] * 2
