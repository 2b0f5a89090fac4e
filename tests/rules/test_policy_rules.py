"""What the rules about policies say can be relied on: the number that a help line gives is the one that decides."""

from __future__ import annotations

import re

import pytest

from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.shapes import decode
from servelint.testing import compose
from servelint.testing.rules import run_case

H100_8B = (
    'servelint = 1\n[hardware]\naccelerator = "nvidia/h100-sxm5-80gb"\n[model]\nid = "meta-llama/Llama-3.1-8B"\n'
    "max_model_len = 8192\n"
)


def findings(code: str, text: str, plugins: Plugins) -> list[Finding]:
    found = [f.finding for f in run_case(Case("", text), plugins).findings]
    assert not plugins.faults, plugins.faults
    return [f for f in found if f.code == code]


def only(code: str, text: str, plugins: Plugins) -> Finding:
    (found,) = findings(code, text, plugins)
    return found


def number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    assert match is not None, text
    return float(match[1].replace(",", ""))


def failing(code: str, index: int, plugins: Plugins) -> str:
    return plugins.rule(code).failing[index].spec


def test_speculation_names_the_first_batch_that_loses(plugins: Plugins) -> None:
    text = failing("SPD001", 0, plugins)
    first = int(number(r"from ([\d,]+) sequences on", only("SPD001", text, plugins).message))
    drafted = compose(text, plugins)
    alone = compose(re.sub(r"\[policy.speculation\][^\[]*", "", text), plugins)
    # Prompts of 500 tokens and outputs of 300: half of the output is there on average.
    context, kept = 500 + 300 / 2, drafted.scheduler.tokens_per_step

    def speedup(batch: float) -> float:
        verify = drafted.pricer.estimate(decode(batch, context, 5.0))
        return float(kept * alone.pricer.estimate(decode(batch, context)) / verify)

    assert speedup(first) < 1 <= speedup(first - 1)


def test_a_shorter_draft_that_the_help_names_pays(plugins: Plugins) -> None:
    text = failing("SPD001", 0, plugins)
    fewer = int(number(r"speculation.tokens = (\d+)", only("SPD001", text, plugins).help))
    assert findings("SPD001", text.replace("tokens = 4 ", f"tokens = {fewer} "), plugins) == []
    assert findings("SPD001", text.replace("tokens = 4 ", f"tokens = {fewer + 1} "), plugins)


def test_an_assumed_acceptance_is_only_advice(plugins: Plugins) -> None:
    text = failing("SPD001", 0, plugins).replace("acceptance = 0.7\n", "")
    assert only("SPD001", text, plugins).severity is Severity.INFO


@pytest.mark.parametrize("index", [0, 1])
def test_the_mask_time_in_the_help_is_the_limit(index: int, plugins: Plugins) -> None:
    text = failing("CND001", index, plugins)
    help_line = only("CND001", text, plugins).help
    micros = number(r"at most ([\d.]+) us at this batch", help_line)

    def with_mask(factor: float) -> list[Finding]:
        return findings("CND001", re.sub(r'mask = "[^"]*"', f'mask = "{micros * factor} us"', text), plugins)

    assert with_mask(1.0) == []
    assert with_mask(1.01)
    batch = int(number(r"at most ([\d,]+) sequences", help_line))
    assert findings("CND001", re.sub(r"concurrency = \d+", f"concurrency = {batch}", text), plugins) == []
    assert findings("CND001", re.sub(r"concurrency = \d+", f"concurrency = {batch + 1}", text), plugins)


def test_the_bandwidth_in_the_help_pays(plugins: Plugins) -> None:
    text = failing("DIS001", 0, plugins)
    rate = number(r"from ([\d.]+) GB/s on", only("DIS001", text, plugins).help)
    for factor, expected in ((1.0, 0), (0.97, 1)):
        changed = text.replace('"1.25 GB/s"', f'"{rate * factor} GB/s"')
        assert len(findings("DIS001", changed, plugins)) == expected


def test_the_setup_in_the_help_is_short_enough(plugins: Plugins) -> None:
    text = failing("DIS001", 1, plugins)
    millis = number(r"bring it below ([\d.]+) ms", only("DIS001", text, plugins).help)
    for factor, expected in ((1.0, 0), (1.02, 1)):
        changed = re.sub(r'setup = "[^"]*"', f'setup = "{millis * factor} ms"', text)
        assert len(findings("DIS001", changed, plugins)) == expected


def test_the_co_located_replicas_in_the_help_carry_the_load(plugins: Plugins) -> None:
    text = failing("DIS001", 0, plugins)
    match = re.search(r"(\d+) x (\d+) co-located devices", only("DIS001", text, plugins).help)
    assert match is not None
    alone = re.sub(r"\[policy.disaggregation\][^\[]*", "", text)
    alone = re.sub(r"devices = \d+\n", f"devices = {match[2]}\nreplicas = {match[1]}\n", alone, count=1)
    found = [f.finding for f in run_case(Case("", alone), plugins).findings]
    assert not [f.message for f in found if f.severity > Severity.INFO]


@pytest.mark.parametrize(
    ("index", "load"),
    [(0, "concurrency = 256"), (1, "concurrency = 256"), (2, "concurrency = 32"), (0, 'rate = "9 req/s"')],
)
def test_the_skew_in_the_help_is_the_limit(index: int, load: str, plugins: Plugins) -> None:
    text = re.sub(r"concurrency = \d+", load, failing("MOE001", index, plugins))
    skew = number(r"a skew of at most ([\d.]+)", only("MOE001", text, plugins).help)
    for more, expected in ((0.0, 0), (0.01, 1)):
        changed = re.sub(r"skew = [\d.]+", f"skew = {skew + more:.2f}", text)
        assert len(findings("MOE001", changed, plugins)) == expected


def test_the_layout_in_the_help_is_faster(plugins: Plugins) -> None:
    text = failing("PAR001", 0, plugins)
    match = re.search(r"tensor = \d+, pipeline = \d+", only("PAR001", text, plugins).help)
    assert match is not None
    assert findings("PAR001", text.replace("tensor = 16", match[0]), plugins) == []


@pytest.mark.parametrize("index", range(6))
def test_a_corrected_claim_stands(index: int, plugins: Plugins) -> None:
    text = failing("CLM001", index, plugins)
    help_line = only("CLM001", text, plugins).help
    match = re.search(r"correct the figure to at (?:most|least) ([\d.,]+ \S+)", help_line)
    assert match is not None
    place = text.index("[[claim]]")
    corrected = re.sub(r'value = "[^"]*"', f'value = "{match[1]}"'.replace(",", ""), text[place:], count=1)
    assert findings("CLM001", text[:place] + corrected, plugins) == []


def test_replicas_hold_what_is_admitted(plugins: Plugins) -> None:
    text = failing("MEM003", 0, plugins)
    match = re.search(r"max_sequences = (\d+)\).* take (\d+) replicas", only("MEM003", text, plugins).help)
    assert match is not None
    changed = re.sub(r"max_sequences = \d+", f"max_sequences = {match[1]}", text)
    changed = changed.replace("[hardware]\n", f"[hardware]\nreplicas = {match[2]}\n")
    assert findings("MEM003", changed, plugins) == []


@pytest.mark.parametrize("per", ["", 'per = "deployment"\n'])
def test_the_claim_that_the_help_quotes_keeps_the_slo(per: str, plugins: Plugins) -> None:
    text = failing("SLO001", 1, plugins).replace("[[claim]]\n", f"[[claim]]\n{per}")
    if per:
        text = text.replace("[hardware]\n", "[hardware]\nreplicas = 2\n").replace("= 128 }", "= 256 }")
    match = re.search(r"quote at most ([\d,]+) tok/s .* at ([\d,]+) sequences", only("SLO001", text, plugins).help)
    assert match is not None
    quoted = re.sub(r'value = "[^"]*"', f'value = "{match[1].replace(",", "")} tok/s"', text)
    quoted = re.sub(r"concurrency = \d+", f"concurrency = {match[2]}", quoted)
    assert findings("SLO001", quoted, plugins) == []


def test_the_requests_in_flight_that_the_help_gives_keep_the_slo(plugins: Plugins) -> None:
    text = failing("SLO001", 0, plugins).replace("[slo]", "concurrency = 500\n[slo]")
    help_line = only("SLO001", text, plugins).help
    most = int(number(r"at most ([\d,]+) requests? in flight", help_line))
    replicas = int(number(r"hardware.replicas = (\d+)", help_line))
    for flight, expected in ((most, 0), (most + 1, 1)):
        changed = text.replace("concurrency = 500", f"concurrency = {flight}")
        assert len(findings("SLO001", changed, plugins)) == expected
    for number_of, expected in ((replicas, 0), (replicas - 1, 1)):
        changed = text.replace("[hardware]\n", f"[hardware]\nreplicas = {number_of}\n")
        assert len(findings("SLO001", changed, plugins)) == expected


def test_disaggregation_is_not_judged_without_an_slo(plugins: Plugins) -> None:
    text = failing("DIS001", 0, plugins)
    assert findings("DIS001", text[: text.index("[slo]")], plugins) == []


def test_pools_of_different_parts_are_not_compared(plugins: Plugins) -> None:
    text = failing("DIS001", 0, plugins).replace(
        "prefill = { devices = 4", 'prefill = { accelerator = "nvidia/h200-sxm5-141gb", devices = 4'
    )
    assert findings("DIS001", text, plugins) == []


def test_an_undeclared_skew_is_advice_where_the_slo_depends_on_it(plugins: Plugins) -> None:
    text = failing("MOE001", 2, plugins).replace("skew = 1.31 # expect: MOE001\n", "")
    found = [
        f for ms in range(15, 60) for f in findings("MOE001", f'{text}[slo]\nitl = {{ p50 = "{ms} ms" }}\n', plugins)
    ]
    assert found
    assert {(f.severity, f.path) for f in found} == {(Severity.INFO, ("policy", "parallelism", "expert"))}
    assert findings("MOE001", f'{text}[slo]\nitl = {{ p50 = "1 s" }}\n', plugins) == []
    assert findings("MOE001", text, plugins) == []


@pytest.mark.parametrize(
    ("weights", "more", "severity"),
    [
        ("int4-g128", '[slo]\nitl = { p99 = "1 s" }\n', Severity.WARNING),
        ("int4-g128", "", Severity.WARNING),
        ("fp8", '[slo]\nitl = { p99 = "1 s" }\n', Severity.INFO),
        ("fp8", '[slo]\nitl = { p99 = "1 s" }\n[[evidence]]\nkind = "task-eval"\n', Severity.WARNING),
        ("bf16", '[slo]\nitl = { p99 = "1 s" }\n', None),
    ],
)
def test_how_loud_missing_evidence_is(weights: str, more: str, severity: Severity | None, plugins: Plugins) -> None:
    text = f'{H100_8B}[policy.quantization]\nweights = "{weights}"\n{more}'
    assert [f.severity for f in findings("QNT001", text, plugins)] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("evidence", "path"),
    [
        ("tasks = { code = 0.0 }\n", ("evidence", 0, "kind")),
        ('artifact = "x-fp8"\n', ("evidence", 0, "artifact")),
        ('artifact = "x-fp8"\ntasks = { c4_ppl = 0.1, wikitext-2-perplexity = 0.1 }\n', ("evidence", 0, "tasks")),
        ('artifact = "llama-3.1-8b"\ntasks = { code = 0.0 }\n', ("evidence", 0, "artifact")),
    ],
)
def test_evidence_that_does_not_count_is_pointed_at(
    evidence: str, path: tuple[str | int, ...], plugins: Plugins
) -> None:
    text = f'{H100_8B}[policy.quantization]\nweights = "fp8"\n[slo]\nitl = {{ p99 = "1 s" }}\n'
    found = only("QNT001", f'{text}[[evidence]]\nkind = "task-eval"\n{evidence}', plugins)
    assert [r.path for r in found.related] == [path]


def test_one_evaluation_that_counts_is_enough(plugins: Plugins) -> None:
    text = f'{H100_8B}[policy.quantization]\nweights = "int4"\n[slo]\nitl = {{ p99 = "1 s" }}\n'
    poor = '[[evidence]]\nkind = "task-eval"\nartifact = "x"\ntasks = { ppl = 0.1 }\n'
    good = '[[evidence]]\nkind = "task-eval"\nartifact = "x-int4"\ntasks = { ppl = 0.1, code = -0.4 }\n'
    assert findings("QNT001", text + poor + good, plugins) == []
