"""Writes the rules' pages: ``python -m servelint.report.rule_pages docs/rules``.

One Markdown page a rule, and an index by family, by failure mode and by the question that a reader has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from servelint.manager import Plugins
from servelint.report.rule_docs import cell, family, markdown, marked, missing
from servelint.report.safe import printable
from servelint.rule import Rule
from servelint.suppress import every_rule

FAMILIES = {
    "SPEC": "The spec itself",
    "HW": "Hardware figures",
    "MEM": "Memory and capacity",
    "CTX": "Long context",
    "SLO": "Latency and throughput",
    "CLM": "Claims and evidence",
    "QNT": "Quantization",
    "PAR": "Parallelism",
    "MOE": "Experts",
    "SPD": "Speculation",
    "CND": "Constrained decoding",
    "DIS": "Disaggregation",
    "KRN": "Kernels",
    "ENG": "Engines",
    "DEC": "Decisions",
    "LINT": "Suppression comments",
}

FAILURE_MODES = {
    "KV pressure cascade": ("MEM003", "MEM002", "MEM006", "MEM007", "MEM008"),
    "Tensor parallelism over a slow link": ("PAR001", "PAR004", "PAR007", "MOE004"),
    "Quantization without an evaluation": ("QNT001", "QNT002", "QNT003"),
    "Throughput past the SLO": ("SLO001", "SLO002", "SLO004", "SLO007"),
    "Long-context surprise": ("CTX001", "CTX002", "CTX003", "CTX004"),
    "Straggler experts": ("MOE001", "MOE002", "MOE003"),
}


def pages(rules: Iterable[type[Rule]]) -> dict[str, str]:
    """Return every page by its file name."""
    ordered = sorted(rules, key=lambda rule: rule.code)
    return {"index.md": index(ordered), **{f"{rule.code}.md": markdown(rule) for rule in ordered}}


def index(rules: list[type[Rule]]) -> str:
    """Return the index page."""
    by_code = {rule.code: rule for rule in rules}
    lines = ["# Rules", "", f"{len(rules)} rules. `servelint rule CODE` prints a page; `servelint catalog rules`"]
    lines += ["lists them.", "", "## By family", ""]
    families: dict[str, list[type[Rule]]] = {}
    for rule in rules:
        families.setdefault(family(rule.code), []).append(rule)
    known = list(FAMILIES)
    for name in sorted(families, key=lambda f: (known.index(f) if f in known else len(known), f)):
        lines += [f"### {name}: {FAMILIES[name]}" if name in FAMILIES else f"### {name}", ""]
        lines += ["| code | name | severity | what |", "|---|---|---|---|"]
        for rule in families[name]:
            summary = cell(rule.summary())
            lines.append(f"| [{rule.code}]({rule.code}.md) | {cell(rule.name)} | {rule.severity} | {summary} |")
        lines.append("")
    lines += ["## By failure mode", ""]
    for mode, codes in FAILURE_MODES.items():
        present = [by_code[code] for code in codes if code in by_code]
        if present:
            lines.append(f"* {mode}: {', '.join(map(_link, present))}")
    lines += ["", "## By question", ""]
    questions: dict[str, list[type[Rule]]] = {}
    for rule in rules:
        for question in rule.questions:
            questions.setdefault(marked(printable(question)), []).append(rule)
    for question in sorted(questions):
        lines.append(f"* {question[:1].upper()}{question[1:]}? {', '.join(map(_link, questions[question]))}")
    return "\n".join(lines) + "\n"


def _link(rule: type[Rule]) -> str:
    return f"[{rule.code}]({rule.code}.md) {marked(printable(rule.name))}"


def main(arguments: list[str]) -> int:
    """Write the pages of servelint's own rules into a folder and remove pages of rules that are gone."""
    if len(arguments) != 1:
        print("usage: python -m servelint.report.rule_pages FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    rules = own_rules(Plugins())
    if lacking := next(filter(None, map(missing, rules)), ""):
        print(f"no page is written: {lacking}", file=sys.stderr)
        return 2
    written = pages(rules)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in written:
            path.unlink()
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(written)} pages in {folder}")
    return 0


def own_rules(plugins: Plugins) -> list[type[Rule]]:
    """Return the rules of the servelint distribution; those of other installed plugins have pages elsewhere."""
    own = [rule for rule in plugins.rules if plugins.rule_provider(rule.code).distribution == "servelint"]
    return [rule for rule in every_rule(plugins) if rule in own or rule not in plugins.rules]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
