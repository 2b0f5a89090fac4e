"""Every word and number that a rule says on its own cases, compared with the committed ones.

The cases hold where a rule speaks; the numbers of its message, its arithmetic, its inputs and its remedy are held
here. ``SERVELINT_UPDATE_SNAPSHOTS=1 pytest tests/rules/test_findings.py`` writes them anew; the diff is then read, not
trusted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from servelint.config import Config
from servelint.lint import FileResult, Located
from servelint.manager import Plugins
from servelint.rule import Case, Rule
from servelint.testing.rules import run_case

EXPECTED = Path(__file__).parent / "findings"
TABLE = re.compile(r"^\[\[?[\w.]+\]\]?", re.M)
RULES = Plugins().rules


def shown(value: float | int | str) -> str:
    """Nine digits: sums differ in their last ones between Python releases."""
    return value if isinstance(value, str) else f"{value:.9g}"


def said(found: Located) -> Iterator[str]:
    finding, place = found.finding, found.place
    yield f"line {place.line}: {finding.severity} ({finding.confidence}): {finding.message}"
    if finding.equation:
        yield f"  arithmetic: {finding.equation}"
    for given in finding.inputs:
        yield f"  input: {given.name} = {shown(given.value)} {given.unit}".rstrip() + f" from {given.source}"
    if finding.help:
        yield f"  help: {finding.help}"
    for place, message in found.related:
        yield f"  line {place.line}: {message}"
    if finding.fix is not None:
        yield f"  {'safe' if finding.fix.safe else 'unsafe'} fix: {finding.fix.description}"
        for edit in finding.fix.edits:
            yield f"    {'.'.join(map(str, edit.path))} -> {edit.text}"


def own_words(rule: type[Rule], result: FileResult) -> Iterator[str]:
    for found in result.findings:
        if found.finding.code == rule.code:
            yield from said(found)
    for code, what in result.lacking:
        if code == rule.code:
            yield f"lacks {what}"


def without_a_table(case: Case) -> Iterator[tuple[str, Case]]:
    """The case without each of its tables in turn, and without what stands in it."""
    for header in dict.fromkeys(TABLE.findall(case.spec)):
        kept = re.sub(rf"^{re.escape(header)}[^\n]*\n(?:(?!\[)[^\n]*\n?)*", "", case.spec, flags=re.M)
        yield f"{case.name}, without {header}", case._replace(spec=kept)


def transcript(rule: type[Rule], plugins: Plugins) -> str:
    cases = [(case.name, case) for case in (*rule.failing, *rule.passing)]
    # What a rule needs and does not have it says, or has nothing to say; it never stumbles over it.
    cases += without_a_table(rule.failing[0])
    blocks = [
        f"{o.name} = {shown(o.default)} ({shown(o.minimum)} to {shown(o.maximum)}): {o.doc}" for o in rule.options
    ]
    for name, case in cases:
        words = list(own_words(rule, run_case(case, plugins, Config(preview=rule.preview))))
        blocks.append("\n".join([f"== {name}", *(words or ["nothing"])]))
    text = "\n\n".join(blocks) + "\n"
    # A case's folder is a new one each time.
    return re.sub(r"/[\w./-]*/tmp\w+/|/tmp/tmp\w+/", "", text)


@pytest.mark.parametrize("rule", RULES, ids=[r.code for r in RULES])
def test_findings_say_what_they_said(rule: type[Rule], plugins: Plugins) -> None:
    path = EXPECTED / f"{rule.code}.txt"
    text = transcript(rule, plugins)
    assert not plugins.faults, plugins.faults
    if os.environ.get("SERVELINT_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name}: SERVELINT_UPDATE_SNAPSHOTS=1 writes it anew"


@pytest.mark.parametrize("rule", RULES, ids=[r.code for r in RULES])
def test_no_rule_stumbles_over_what_is_missing(rule: type[Rule], plugins: Plugins) -> None:
    config = Config(select=(rule.code,), preview=rule.preview)
    for case in (*rule.failing, *rule.passing):
        for name, less in without_a_table(case):
            run_case(less, plugins, config)
            assert not plugins.faults, (name, plugins.faults)


def test_every_transcript_belongs_to_a_rule() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == {rule.code for rule in RULES}
