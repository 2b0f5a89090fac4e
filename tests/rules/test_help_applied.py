"""What a help line proposes ends the finding when it is done as written, and brings no other.

Help lines write edits as ``key.path = value``, alternatives apart by "; or "; they are read from there, so that no
number here is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import servelint_specs
from servelint.lineage import KeyPath
from servelint.manager import Plugins
from servelint.rule import Case, Finding, Severity
from servelint.testing.rules import edited, key_path, run_case
from servelint_rules.slo.slo008_prefill_stall import RARE

TABLES = "hardware|model|policy|workload|slo|claim"
EDIT = re.compile(
    rf"\b((?:{TABLES})(?:\[\d+\])?(?:\.\w+(?:\[\d+\])?)+) = (\{{[^}}]*\}}|\"[^\"]*\"|[\d.]*\d(?:e\d+)?|true|false)"
)
LOUD = (Severity.WARNING, Severity.ERROR)


class Edits(NamedTuple):
    """One alternative of a help line: what to set, in the words of the line."""

    text: str
    values: tuple[tuple[KeyPath, str], ...]


def alternatives(finding: Finding) -> list[Edits]:
    found = []
    for text in re.split(r"; or |; |, or (?=set )", finding.help):
        values = tuple((key_path(path), value) for path, value in EDIT.findall(text))
        # What names a flag of the engine beside is no edit of the spec alone.
        if values and " --" not in text:
            found.append(Edits(text, values))
    return found


def applied(text: str, edits: Edits, plugins: Plugins) -> str:
    for path, value in edits.values:
        text = edited(text, path, value, plugins)
    return text


def findings(case: Case, plugins: Plugins) -> list[Finding]:
    found = [f.finding for f in run_case(case, plugins).findings if f.suppressed is None]
    assert not plugins.faults, plugins.faults
    return found


def cases(plugins: Plugins) -> list[tuple[str, Case]]:
    own = [(rule.code, case) for rule in plugins.rules for case in rule.failing]
    folder = Path(servelint_specs.__file__).parent / "failure-modes"
    shipped = [("", Case(path.name, path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.toml"))]
    return own + shipped


def edits_of(plugins: Plugins) -> list[tuple[Case, Finding, Edits]]:
    return [
        (case, finding, edits)
        for code, case in cases(plugins)
        for finding in findings(case, plugins)
        if finding.code == code or not code
        for edits in alternatives(finding)
    ]


PLUGINS = Plugins()
PROPOSED = edits_of(PLUGINS)


def test_the_rules_about_load_propose_edits() -> None:
    assert {f.code for _, f, _ in PROPOSED} >= {"CTX001", "SLO001", "SLO007", "MEM003"}


@pytest.mark.parametrize(
    ("case", "finding", "edits"), PROPOSED, ids=[f"{f.code}-{case.name}-{e.text}"[:110] for case, f, e in PROPOSED]
)
def test_an_edit_ends_its_finding(case: Case, finding: Finding, edits: Edits, plugins: Plugins) -> None:
    before = findings(case, plugins)
    after = findings(case._replace(spec=applied(case.spec, edits, plugins)), plugins)
    assert not [f.message for f in after if (f.code, f.path) == (finding.code, finding.path)]
    if "whatever the latency" not in edits.text:
        known = {f.code for f in before}
        assert not [f"{f.code}: {f.message}" for f in after if f.code not in known and f.severity in LOUD]


FIXED = [
    (case, finding)
    for code, case in cases(PLUGINS)
    for finding in findings(case, PLUGINS)
    if finding.fix is not None and (finding.code == code or not code)
]


@pytest.mark.parametrize(("case", "finding"), FIXED, ids=[f"{f.code}-{case.name}"[:110] for case, f in FIXED])
def test_a_fix_does_what_the_help_line_says_first(case: Case, finding: Finding) -> None:
    assert finding.fix is not None
    first = re.split(r"; or |; |, or ", finding.help)[0]
    said = tuple((key_path(path), value) for path, value in EDIT.findall(first))
    if said:
        assert said == tuple((edit.path, edit.text) for edit in finding.fix.edits)
    elif finding.code == "QNT006":
        asked = re.match(r'use ("[^"]+")', first)
        assert [e.text for e in finding.fix.edits] == [asked[1] if asked else '"auto"'] or "engine." in first


def test_fixes_of_alternatives_are_looked_at() -> None:
    assert {f.code for _, f in FIXED} >= {"QNT006", "SLO001", "SLO010", "MEM002", "DIS002"}
    fp8 = [f for _, f in FIXED if f.code == "QNT006" and f.help.startswith('use "fp8"')]
    assert fp8
    assert all(f.fix is not None and f.fix.edits[0].text == '"fp8"' for f in fp8)


def test_a_smaller_chunk_that_is_named_first_is_the_fix(plugins: Plugins) -> None:
    text = RARE.replace("2048 # expect: SLO008", "256")
    (late,) = (f for f in findings(Case("", text), plugins) if f.code == "SLO001")
    assert late.help.startswith("set policy.batching.max_batched_tokens = 128: ")
    assert late.fix is not None
    assert [(e.path, e.text) for e in late.fix.edits] == [(("policy", "batching", "max_batched_tokens"), "128")]


# Growth of the context: whatever binds, what is proposed carries it.

REMEDIES = {
    "FP8 KV": r'kv_cache = "fp8"$',
    "a larger budget": r"max_batched_tokens = ",
    "replicas": r"^set hardware.replicas = ",
    "both": r'kv_cache = "fp8" and hardware.replicas = ',
    "devices": r"hardware.devices = .* and policy.parallelism.tensor = ",
    "shorter prompts": r"^refuse prompts of more than ",
}
LOADS = ('rate = "0.2 req/s"', 'rate = "2.7 req/s"', 'rate = "4 req/s"', "concurrency = 16", "concurrency = 64")
SLOS = (
    "",
    '[slo]\nitl = { p99 = "300 ms" }\nttft = { p99 = "20 s" }\n',
    '[slo]\ntpot = { p99 = "60 ms" }\n',
    '[slo]\nttft = { p99 = "5 s" }\n',
)


def grown(prompt: int, load: str, slo: str, budget: int) -> Case:
    return Case(
        f"{prompt} tokens, {load}",
        f"""\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 1
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.batching]
max_batched_tokens = {budget}
[workload]
prompt_tokens = {{ p50 = 900, p95 = 2800, p99 = 3600 }}
output_tokens = {{ p50 = 250, p95 = 600, p99 = 900 }}
{load}
[[workload.growth]]
prompt_tokens = {{ p50 = {prompt}, p95 = {prompt * 18 // 10}, p99 = {prompt * 22 // 10} }}
{slo}""",
    )


def test_what_is_proposed_for_longer_contexts_carries_them(plugins: Plugins) -> None:
    seen = dict.fromkeys(REMEDIES, 0)
    for case in (grown(p, load, slo, b) for p in (8000, 32000) for b in (512, 2048) for load in LOADS for slo in SLOS):
        for finding in (f for f in findings(case, plugins) if f.code == "CTX001"):
            for edits in alternatives(finding):
                test_an_edit_ends_its_finding(case, finding, edits, plugins)
                for name, pattern in REMEDIES.items():
                    seen[name] += bool(re.search(pattern, edits.text))
    assert all(seen.values()), seen


def test_growth_is_blamed_on_what_overload_would_name(plugins: Plugins) -> None:
    """The scenario as the workload of today: SLO007 derives the same rate and names the same limit."""
    path = Path(servelint_specs.__file__).parent / "failure-modes" / "long-context-surprise.toml"
    text = path.read_text(encoding="utf-8")
    (announced,) = (f for f in findings(Case("", text), plugins) if f.code == "CTX001")
    head, _, tail = text.partition("[workload]\n")
    arrived = re.sub(r'.*\[\[workload.growth\]\]\nname = "[^"]*"\n', "", tail, flags=re.S)
    arrived = f"{head}[workload]\noutput_tokens = {{ p50 = 250, p95 = 600, p99 = 900 }}\n{arrived}"
    (today,) = (f for f in findings(Case("", arrived), plugins) if f.code == "SLO007")
    assert announced.equation == today.equation
    assert "prompts fill the token budget of every step" in announced.message
    assert today.message.split("whatever the latency: ")[1] in announced.message
    # A narrower cache makes no prompt shorter.
    assert "kv_cache" not in announced.help


def test_a_derivation_ends_in_the_number_of_the_message(plugins: Plugins) -> None:
    checked = set()
    for _, case in cases(plugins):
        for finding in findings(case, plugins):
            if finding.code not in ("SLO001", "SLO007", "CTX001") or "stated in the claim" in finding.message:
                continue
            shown = re.search(r"(?:at most|becomes|is) ([\d.,]+ (?:req/s|ms|s|us))", finding.message)
            if shown is not None:
                assert shown[1] in re.split(r" = |: ", finding.equation), (finding.message, finding.equation)
                checked.add(finding.code)
    assert checked == {"SLO001", "SLO007", "CTX001"}
