"""Specs in, problems out: all of a file at once, each at its place, with what was found and expected."""

from __future__ import annotations

import time

import pytest

from servelint.manager import Plugins
from servelint.spec.document import MAX_BYTES, Document, parse


def read(text: str, plugins: Plugins) -> Document:
    return parse("spec.toml", text, plugins.policies)


def problems(text: str, plugins: Plugins) -> list[tuple[str, int, str]]:
    document = read(text, plugins)
    return [(p.code, document.place(p.path, on_key=p.on_key).line, p.message) for p in document.problems]


def test_the_smallest_spec(plugins: Plugins) -> None:
    document = read("servelint = 1\n", plugins)
    assert document.problems == []
    assert document.deployment is not None
    assert document.deployment.workload is None


def test_all_problems_of_a_file_at_once(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
acelerator = "nvidia/h100-sxm5-80gb"
devices = -3
host_memory = "80 GB/s"
[policy.batching]
max_sequence = 12
[policy.paging]
x = 1
[workload]
prompt_tokens = { p50 = 10, p99 = 5 }
[slo]
itl = { p98 = "5 ms" }
[[claim]]
metric = "throughput"
value = "24 GB"
[[claim]]
metric = "througput"
"""
    found = problems(text, plugins)
    assert {(code, line) for code, line, _ in found} == {
        ("SPEC002", 3),
        ("SPEC003", 4),
        ("SPEC003", 5),
        ("SPEC002", 7),
        ("SPEC004", 8),
        ("SPEC003", 11),
        ("SPEC002", 13),
        ("SPEC003", 16),
        ("SPEC003", 17),
        ("SPEC003", 18),
    }
    by_line = {line: message for _, line, message in found}
    assert "did you mean 'accelerator'" in by_line[3]
    assert "found the integer -3, expected a whole number from 1" in by_line[4]
    assert "80 GB/s" in by_line[5]
    assert "did you mean 'max_sequences'" in by_line[7]
    assert "no plugin provides the policy" in by_line[8]
    assert "p99 is 5, below p50 at 10" in by_line[11]
    assert "tok" in by_line[16]
    assert "did you mean 'throughput'" in by_line[18]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("servelint = 1\n[hardware]\naccelerator =\n", 3, 14, "not valid TOML"),
        ("servelint = 1\nx = 'a\n", 3, 1, "not valid TOML"),
        ("a = 1\na = 2\n", 2, 6, "not valid TOML"),
        ("servelint = 1\n[a]\n[a]\n", 3, 4, "not valid TOML"),
        ("\u00e9 = 1\n", 1, 1, "not valid TOML"),
    ],
)
def test_syntax_errors_have_a_place(text: str, line: int, column: int, words: str, plugins: Plugins) -> None:
    document = read(text, plugins)
    (problem,) = document.problems
    assert problem.code == "SPEC001"
    assert words in problem.message
    place = document.place(problem.path)
    assert (place.line, abs(place.column - column) <= 1) == (line, True)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("", 'the key "servelint" is missing'),
        ("servelint = 2", "reads spec version 1, found 2"),
        ("servelint = true", "reads spec version 1, found True"),
        ('servelint = "1"', "reads spec version 1, found '1': write it without quotes"),
    ],
)
def test_versions(head: str, words: str, plugins: Plugins) -> None:
    assert any(words in message for _, _, message in problems(head + "\n", plugins))


@pytest.mark.parametrize(
    "text",
    [
        "servelint = 1\nx = " + "[" * 5000 + "]" * 5000,
        "servelint = 1\nx = " + "{a=" * 3000 + "1" + "}" * 3000,
        "servelint = 1\nx = " + "9" * 5000,
        "servelint = 1\n" + "#" * MAX_BYTES,
        "\x00",
        "servelint = 1\n[" + ".".join("a" * 900) + "]",
    ],
    ids=["deep arrays", "deep tables", "long integer", "long file", "control character", "deep header"],
)
def test_absurd_text_is_a_problem_and_no_exception(text: str, plugins: Plugins) -> None:
    document = read(text, plugins)
    assert document.problems
    assert document.deployment is None
    for problem in document.problems:
        document.place(problem.path, on_key=problem.on_key)


def test_a_byte_order_mark_and_crlf_do_not_shift_places(plugins: Plugins) -> None:
    text = "\ufeffservelint = 1\r\n[hardware]\r\ndevices = 0\r\n"
    document = read(text, plugins)
    (problem,) = document.problems
    place = document.place(problem.path)
    assert (place.line, place.column, place.end_column) == (3, 11, 12)


def test_quantities_with_units(plugins: Plugins) -> None:
    text = """\
servelint = 1
[hardware]
host_memory = "1 TiB"
network = { bandwidth = "400 Gbit/s", per = "device" }
[workload]
prompt_tokens = 8192
output_tokens = { p50 = 100 }
rate = "360 req/min"
[slo]
ttft = { p99 = "1500 ms" }
headroom = "20 %"
[[claim]]
metric = "throughput"
value = "2.4k tok/s"
[[claim]]
metric = "itl"
value = 0.02
"""
    deployment = read(text, plugins).deployment
    assert deployment is not None
    assert deployment.hardware.host_memory == 2**40
    assert deployment.hardware.network is not None
    assert deployment.hardware.network.bandwidth == 50e9
    assert deployment.workload is not None
    assert deployment.workload.rate == 6
    assert deployment.slo is not None
    assert deployment.slo.ttft == {"p99": 1.5}
    assert deployment.slo.headroom == pytest.approx(0.2)
    assert [c.value for c in deployment.claims] == [2400, 0.02]


def test_dotted_inline_and_header_forms_are_the_same_spec(plugins: Plugins) -> None:
    forms = (
        'servelint = 1\n[hardware]\naccelerator = "a"\n[policy.parallelism]\ntensor = 2\n',
        'servelint = 1\nhardware.accelerator = "a"\npolicy.parallelism.tensor = 2\n',
        'servelint = 1\nhardware = { accelerator = "a" }\npolicy = { parallelism = { tensor = 2 } }\n',
    )
    read_forms = [read(f, plugins).deployment for f in forms]
    assert read_forms[0] is not None
    assert read_forms[0] == read_forms[1] == read_forms[2]


def one_problem(text: str, plugins: Plugins) -> str:
    ((_, _, message),) = problems("servelint = 1\n" + text, plugins)
    return message


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("[workload]\nrate = 3 req/s\n", 'write a value with its unit in quotes: "3 req/s"'),
        ("[workload]\nrate = 3 req/s # a comment\n", 'in quotes: "3 req/s"'),
        ("[hardware]\nhost_memory = 80GB\n", 'in quotes: "80GB"'),
        ("[slo]\nitl = { p99 = 50 ms }\n", 'in quotes: "50 ms"'),
        ("[slo]\nheadroom = 20 %\n", 'in quotes: "20 %"'),
        ("[workload]\nprompt_tokens = 8,192\n", "digits are not grouped by commas: 8_192"),
        ("[engine]\nname = vllm\n", 'write text in quotes: "vllm"'),
        ("[model]\nid = meta-llama/Llama-3.1-8B\n", 'write text in quotes: "meta-llama/Llama-3.1-8B"'),
        ("[engine]\nname = \u201cvllm\u201d\n", 'quotes are straight: "vllm"'),
        ("[hardware]\npeer_to_peer = True\n", "write true, in lower case"),
        ("[hardware]\npeer_to_peer = FALSE\n", "write false, in lower case"),
        ("[hardware]\ndevices = None\n", "TOML has no null; leave the key out"),
        ("[hardware]\ndevices =\n", "a value is missing"),
        ("[slo]\nheadroom = .2\n", "a number begins with a digit: 0.2"),
        ('[engine]\nname = "vllm\n', "end the string with the quote that it began with"),
        ("[engine]\nname = 'vllm\nversion = 1\n", "end the string that begins on line 3"),
        ('[deployment]\nname = """\nlong\n', "end the string that begins on line 3"),
        ('[model]\nconfig = "C:\\data"\n', "or the string in single quotes"),
        ("[hardware]\ndevices: 4\n", "a pair is written key = value"),
        (
            "devices = 1\n[hardware]\ndevices = 4\nnodes = 1\ndevices = 8\n",
            'the key "hardware.devices" has a value since line 4',
        ),
        ('[hardware]\n"devices" = 4\ndevices = [\n8,\n]\n', 'the key "hardware.devices" has a value since line 3'),
        ("[[claim]]\nper = 1\n[[claim]]\nper = 1\nper = 2\n", 'the key "claim.per" has a value since line 5'),
        ("[hardware]\n[model]\n[hardware]\n", "the table [hardware] began on line 2; a table is written once"),
        ("[[claim]]\n[claim]\n", "line 2 begins an array of tables; write [[claim]], with two brackets, here too"),
        ("[claim]\n[[claim]]\n", "line 2 begins one table; write [[claim]], with two brackets, there too"),
        ("hardware = 1\n[hardware]\n", '"hardware" has a value since line 2, so it is no table'),
    ],
)
def test_syntax_errors_come_with_a_cure(text: str, cure: str, plugins: Plugins) -> None:
    message = one_problem(text, plugins)
    assert message.startswith("this is not valid TOML: ")
    assert cure in message


def test_json_is_named(plugins: Plugins) -> None:
    ((code, _, message),) = problems('{"servelint": 1}', plugins)
    assert (code, message.endswith("a spec is TOML, not JSON")) == ("SPEC001", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[claim]\nmetric = "ttft"\nvalue = "1 s"\n', "write [[claim]], with two brackets"),
        ('[evidence]\nkind = "benchmark"\n', "write [[evidence]], with two brackets"),
        ('[workload.growth]\nname = "a"\n', "write [[workload.growth]], with two brackets"),
        ('[slo]\nitl = { p99.9 = "50 ms" }\n', "the key is written p999, without a dot"),
        ('[slo]\nitl = { "p99.9" = "50 ms" }\n', "did you mean 'p999'?"),
        ('[slo]\ntbt = { p99 = "50 ms" }\n', "did you mean 'itl'?"),
        ('[model]\nname = "x"\n', "did you mean 'id'?"),
        ('[hardware]\ngpu = "x"\n', "did you mean 'accelerator'?"),
        ("[hardware]\ngpus = 4\n", "did you mean 'devices'?"),
        ("[hardware]\ntp = 4\n", "did you mean 'policy.parallelism.tensor'?"),
        ("[hardware]\ntensor = 4\n", "did you mean 'policy.parallelism.tensor'?"),
        ("[engine]\ngpu_memory_utilization = 0.9\n", "did you mean 'policy.kv_cache.memory_utilization'?"),
        ("[policy.kv_cache]\ngpu-memory-utilization = 0.9\n", "did you mean 'memory_utilization'?"),
        ("[policy.batching]\nmax_num_seqs = 9\n", "did you mean 'max_sequences'?"),
        ("[policy.batching]\nmax_num_batched_tokens = 9\n", "did you mean 'max_batched_tokens'?"),
        ("[policy.parallelism]\ntensor_parallel_size = 9\n", "did you mean 'tensor'?"),
        ('[policy.quantization]\nkv_cache_dtype = "fp8"\n', "did you mean 'kv_cache'?"),
        ('[engine]\nkv_cache_dtype = "fp8"\n', "did you mean 'policy.quantization.kv_cache'?"),
        ("[workload]\nqps = 1\n", "did you mean 'rate'?"),
        ("[workload]\nRPS = 1\n", "did you mean 'rate'?"),
        ("[workload]\ninput_tokens = 1\n", "did you mean 'prompt_tokens'?"),
        ("[batching]\nmax_sequences = 1\n", "did you mean 'policy.batching'?"),
        ('accelerator = "x"\n', "did you mean 'hardware.accelerator'?"),
        ("[hardware.zzz]\n", "; there are accelerator, "),
        ("[policy.zzz]\n", "; there are attention, batching, "),
    ],
)
def test_the_key_that_was_meant(text: str, said: str, plugins: Plugins) -> None:
    assert said in one_problem(text, plugins)


def test_every_synonym_is_of_a_key_that_exists(plugins: Plugins) -> None:
    from servelint.spec.hints import SYNONYMS, _places
    from servelint.spec.model import PERCENTILES, QUANTILES

    known = {*_places(plugins.policies), *PERCENTILES, *QUANTILES, "mean", "std", "max"}
    assert {key for keys in SYNONYMS.values() for key in keys} <= known
    assert not [name for name in SYNONYMS if name != name.lower() or "-" in name]


def test_a_claim_is_not_sent_to_other_tables(plugins: Plugins) -> None:
    text = '[[claim]]\nmetric = "ttft"\nvalue = "1 s"\nat = { tensor = 2 }\n'
    assert "policy." not in one_problem(text, plugins)


@pytest.mark.parametrize(
    "line", ["key_{i} = 1\n", "[policy.name_{i}]\n", "[hardware.key_{i}]\n"], ids=["keys", "policies", "tables"]
)
def test_tens_of_thousands_of_unknown_keys_are_cut_short(line: str, plugins: Plugins) -> None:
    text = "servelint = 1\n" + "".join(line.replace("{i}", str(i)) for i in range(30_000))
    began = time.process_time()
    document = read(text, plugins)
    places = [document.place(p.path, on_key=p.on_key) for p in document.problems]
    assert time.process_time() - began < 4.0
    assert len(places) == 1001
    assert document.problems[-1].message == "29,000 more problems of this file, from here on, are not listed"
    assert places[-1].line == 1002


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[[claim]]\nmetric = 'throughput'\nvalue = 1\n" * 33, "33 items, and at most 32 are read"),
        ("[workload]\n" + "[[workload.growth]]\nrate = 1\n" * 65, "65 items, and at most 64 are read"),
        ("[[evidence]]\nkind = 'benchmark'\n" * 1001, "1,001 items, and at most 1,000 are read"),
        (f"[deployment]\nname = '{'x' * 10_001}'\n", "10,001 characters, and at most 10,000 are read"),
        ("[engine.env]\n" + "".join(f"k{i} = 1\n" for i in range(1001)), "1,001 keys, and at most 1,000 are read"),
        ("[workload]\nrate = 1e-19\n", "at least 1e-9 req/s and at most 1,000,000,000 req/s"),
        ("[workload]\nprefix_hit = 1e-12\n", "it must be 0 or at least 1e-9 and at most 100 %"),
        ("[hardware.override]\nmemory = '1e-29 B'\n", "it must be at least 1 B and at most 1 EB"),
        ("[hardware.efficiency]\nmemory = 0.0001\n", "it must be at least 0.1 % and at most 100 %"),
        ("[slo]\nttft = { p99 = 1e-12 }\n", "it must be at least 1e-9 s and at most 10,000,000 s"),
        ("[deployment]\nsized_for = 0\n", "it must be at least 1 tok and at most 100,000,000 tok"),
        ("[workload]\nprompt_tokens = { mean = 9, max = 3 }\n", "mean is 9, above max at 3"),
        ("[workload]\nprompt_tokens = { mean = 1, min = 3, std = 1 }\n", "mean is 1, below min at 3"),
    ],
)
def test_limits_say_what_was_found_and_what_is_read(text: str, found: str, plugins: Plugins) -> None:
    ((code, _, message),) = problems("servelint = 1\n" + text, plugins)
    assert code == "SPEC003"
    assert found in message


@pytest.mark.parametrize(
    "text",
    [
        "[[claim]]\nmetric = 'throughput'\nvalue = 1\n" * 32,
        "[workload]\n" + "[[workload.growth]]\nrate = 1\n" * 64,
        "[workload]\nrate = 1e-9\nprefix_hit = 0\n",
        "[hardware.override]\nmemory = '1 B'\n",
        "[hardware.efficiency]\nmemory = 0.001\n",
        "[workload]\nprompt_tokens = { min = 3, mean = 3, max = 3 }\n",
    ],
)
def test_limits_themselves_are_allowed(text: str, plugins: Plugins) -> None:
    assert problems("servelint = 1\n" + text, plugins) == []
