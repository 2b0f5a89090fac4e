"""MEM003 where slots share a cache of a declared size: how sure it is, and what memory holds of what it proposes."""

from __future__ import annotations

import re

import pytest

from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing.rules import run_case

SPEC = """\
servelint = 1
[deployment]
sized_for = {sized}
[hardware]
accelerator = "{device}"
[model]
id = "meta-llama/Llama-3.1-8B"
[engine]
name = "llama.cpp"
args = "-m Llama-3.1-8B-Q8_0.gguf {flags} -ngl 99"
{load}
"""
LOAD = "[workload]\nprompt_tokens = {prompt}\noutput_tokens = 400\nconcurrency = {concurrency}\n"


def found(plugins: Plugins, sized: int, flags: str, load: str = "", device: str = "nvidia/rtx-4090") -> list[Finding]:
    result = run_case(Case("", SPEC.format(sized=sized, flags=flags, load=load, device=device)), plugins)
    assert not plugins.faults
    return [f.finding for f in result.findings if f.finding.code == "MEM003"]


def test_slots_that_overcommit_by_plan_are_a_warning(plugins: Plugins) -> None:
    (finding,) = found(plugins, 16000, "-c 32000 -np 4 -kvu")
    assert finding.severity is Severity.WARNING
    load = LOAD.format(prompt=15600, concurrency=4)
    (certain,) = found(plugins, 16000, "-c 32000 -np 4 -kvu", load)
    assert certain.severity is Severity.ERROR


@pytest.mark.parametrize("load", ["", LOAD.format(prompt=15600, concurrency=4)])
def test_a_cache_that_memory_holds_is_proposed_as_its_flag(plugins: Plugins, load: str) -> None:
    (finding,) = found(plugins, 16000, "--ctx-size 32000 -np 4 -kvu", load)
    assert finding.help.startswith("admit at most 2 sequences (-np 2)")
    proposed = re.search(r"let the cache hold more \(--ctx-size (\d+)\)", finding.help)
    assert proposed is not None
    assert not found(plugins, 16000, f"-c {proposed[1]} -np 4 -kvu", load)


@pytest.mark.parametrize("load", ["", LOAD.format(prompt=65000, concurrency=4)])
def test_a_cache_beyond_the_memory_is_not_proposed(plugins: Plugins, load: str) -> None:
    """Four contexts of 66,000 tokens take 34.6 GB, and 8.5 GB of weights lie on a device of 24 GB."""
    (finding,) = found(plugins, 66000, "-c 66000 -np 4 -kvu", load)
    assert "let the cache hold more" not in finding.help
    most = re.search(r"memory holds ([\d,]+) of the [\d,]+ tokens: -c (\d+) is the most", finding.help)
    assert most is not None
    held, proposed = int(most[1].replace(",", "")), int(most[2])
    assert 66000 < proposed <= held < 264000
    # More devices hold it.
    (large,) = found(plugins, 66000, "-c 66000 -np 4 -kvu", load, "nvidia/h200-sxm5-141gb")
    assert "let the cache hold more (-c " in large.help


def test_a_cache_that_is_as_large_as_memory_holds_is_left(plugins: Plugins) -> None:
    (finding,) = found(plugins, 66000, "-c 117504 -np 4 -kvu")
    assert finding.help.endswith("; memory holds 117,629 of the 264,000 tokens")
