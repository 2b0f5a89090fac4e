"""What rules propose is possible: with a knee below one sequence, a format in a name, a key that a flag sets."""

from __future__ import annotations

import re

import pytest

from servelint.manager import Plugins
from servelint.rule import Case, Finding
from servelint.testing.rules import run_case

SHORT_ANSWERS = """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B-Instruct"
[workload]
prompt_tokens = 1600
output_tokens = 2
concurrency = 6
[slo]
ttft = { p90 = 0.5 }
"""
LONG_STEPS = """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
devices = 4
[model]
id = "openai/gpt-oss-20b"
[policy.batching]
max_batched_tokens = 256
[workload]
prompt_tokens = 6000
output_tokens = 2
[slo]
itl = { p99 = 0.1 }
"""
NAMED_FORMAT = """\
servelint = 1
[hardware]
devices = 4
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen2.5-32B-Instruct-AWQ"
[policy.quantization]
kv_cache = "fp8"
[workload]
prompt_tokens = 12000
output_tokens = 20
"""
LAUNCHED = """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-3090"
[model]
id = "Qwen3-8B"
[engine]
name = "llama.cpp"
args = "-c 400000 -np 4 -ngl 99"
[workload]
prompt_tokens = 1000
output_tokens = 200
concurrency = 4
"""


def findings(text: str, plugins: Plugins) -> dict[str, Finding]:
    found = run_case(Case("", text), plugins).findings
    assert not plugins.faults, plugins.faults
    return {f.finding.code: f.finding for f in found}


def test_a_knee_below_one_sequence_proposes_none_of_it(plugins: Plugins) -> None:
    found = findings(SHORT_ANSWERS, plugins)["SLO001"]
    assert "the knee is 0.5 sequences" in found.message
    assert not re.search(r"\b0 (?:requests|sequences|replicas)|= 0\b", found.help)


def test_fewer_devices_admit_at_least_one_sequence(plugins: Plugins) -> None:
    assert "policy.batching.max_sequences = 1" in findings(LONG_STEPS, plugins)["PAR004"].help


def test_a_format_in_the_name_of_a_checkpoint_is_not_edited(plugins: Plugins) -> None:
    found = findings(NAMED_FORMAT, plugins)["QNT003"]
    assert found.path == ("model", "id")
    assert found.fix is None
    written = findings(NAMED_FORMAT.replace("-AWQ", "").replace('kv_cache = "fp8"', 'weights = "int4-g128"'), plugins)
    assert written["QNT003"].fix is not None


def test_what_a_flag_sets_is_no_edit(plugins: Plugins) -> None:
    found = findings(LAUNCHED, plugins)
    assert "CTX003" in found
    assert all(f.fix is None for f in found.values())
    edited = LAUNCHED.replace('args = "-c 400000 -np 4 -ngl 99"\n', "").replace(
        'B"\n[', 'B"\nmax_model_len = 100000\n['
    )
    assert findings(edited, plugins)["CTX003"].fix is not None


TIGHT = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 32000
[policy.kv_cache]
max_tokens = 10000
[workload]
prompt_tokens = { p50 = 5000, p99 = 30000 }
output_tokens = 1900
concurrency = 7
"""


def test_no_admission_of_none_is_proposed(plugins: Plugins) -> None:
    advice = findings(TIGHT, plugins)["MEM003"].help
    assert "at most 0" not in advice
    assert "= 0)" not in advice


@pytest.mark.parametrize(("name", "said"), [("-AWQ", "(--dtype half)"), ("", 'weights = "fp16", --dtype half)')])
def test_a_quantized_checkpoint_is_not_told_to_be_stored_in_16_bit(name: str, said: str, plugins: Plugins) -> None:
    model = "Qwen/Qwen3-8B-AWQ" if name else "Qwen/Qwen3-0.6B"
    spec = 'servelint = 1\nhardware = { accelerator = "nvidia/t4" }\n'
    spec += f'model = {{ id = "{model}", max_model_len = 4096 }}\n'
    found = findings(spec, plugins)["HW006"]
    assert said in found.help
    assert ("computes in bf16" in found.message) is bool(name)


@pytest.mark.parametrize(("prompt", "fixed"), [(39500, False), (30000, True)])
def test_a_length_that_refuses_the_prompts_is_no_fix(prompt: int, fixed: bool, plugins: Plugins) -> None:
    spec = (
        'servelint = 1\n[hardware]\naccelerator = "nvidia/rtx-3090"\n[model]\nid = "Qwen/Qwen3-8B"\n'
        f"max_model_len = 40960\n[workload]\nprompt_tokens = {prompt}\noutput_tokens = 500\nrate = 0.01\n"
    )
    found = findings(spec, plugins)["MEM002"]
    assert (found.fix is not None) is fixed
    assert ("and refuses 100% of the prompts" in found.help) is not fixed


FEW = """\
servelint = 1
[hardware]
accelerator = "nvidia/t4"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 16384
[engine]
name = "sglang"
version = "0.4.6"
[policy.batching]
max_sequences = 4
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = 103
output_tokens = {{ mean = 1180, std = 3540 }}
{load}
"""


@pytest.mark.parametrize(("load", "fixed"), [('rate = "0.0626 req/s"', False), ("concurrency = 4", True)])
def test_an_admission_that_no_longer_carries_the_load_is_no_fix(load: str, fixed: bool, plugins: Plugins) -> None:
    found = findings(FEW.format(load=load), plugins)["MEM003"]
    assert (found.fix is not None) is fixed


def test_parts_of_fewer_devices_than_the_degrees_take(plugins: Plugins) -> None:
    spec = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 2
devices_per_node = 8
network = { bandwidth = "100 Gbit/s", per = "node" }
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
data = 2
expert = 16
[policy.batching]
max_sequences = 64
[workload]
prompt_tokens = 1500
output_tokens = 500
concurrency = 256
"""
    assert "PAR006" in findings(spec, plugins)
