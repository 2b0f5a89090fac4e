"""Runs the failing and passing specs of a rule: which finding at which line, and what takes it away."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

from servelint.config import Config
from servelint.lineage import KeyPath
from servelint.lint import FileResult, Linter
from servelint.manager import Plugins
from servelint.rule import Case, Rule
from servelint.spec.document import parse

_EXPECT = re.compile(r"#\s*expect:\s*([A-Z]+[0-9]{3}(?:\s*,\s*[A-Z]+[0-9]{3})*)\s*$")
_EXPECT_FILE = re.compile(r"^\ufeff?#\s*expect-file:\s*([A-Z]+[0-9]{3}(?:\s*,\s*[A-Z]+[0-9]{3})*)\s*$")


class CaseError(AssertionError):
    """A case whose findings are not the expected ones; the message lists both."""


def expected_findings(text: str) -> Counter[tuple[int, str]]:
    """Return the (line, code) pairs that a spec's own comments expect; line 0 stands for the whole file."""
    expected: Counter[tuple[int, str]] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        whole = _EXPECT_FILE.match(line) if number == 1 else None
        match = whole or _EXPECT.search(line)
        if match:
            for code in match[1].split(","):
                expected[0 if whole else number, code.strip()] += 1
    return expected


def found_findings(result: FileResult, expected: Counter[tuple[int, str]]) -> Counter[tuple[int, str]]:
    """Return the (line, code) pairs that were found; those that the spec expects for the file get line 0."""
    whole = {code for line, code in expected if line == 0}
    return Counter(
        (0 if f.finding.code in whole else f.place.line, f.finding.code)
        for f in result.findings
        if f.suppressed is None
    )


def run_case(case: Case, plugins: Plugins, config: Config | None = None) -> FileResult:
    """Check a case's spec, its files beside it, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in case.files:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        return Linter(plugins, config or Config(), root).check(str(root / "spec.toml"), case.spec)


def check_case(rule: type[Rule], case: Case, plugins: Plugins) -> FileResult:
    """Hold a case to its comments: this rule's findings exactly; other rules' as far as comments name them.

    Raises CaseError. Faults of plugins are failures too.
    """
    result = run_case(case, plugins, Config(preview=rule.preview))
    if plugins.faults:
        raise CaseError(f"{rule.code} {case.name!r}: plugin fault: {plugins.faults[0]}")
    expected = expected_findings(case.spec)
    found = found_findings(result, expected)
    named = {code for _, code in expected} | {rule.code}
    relevant = Counter({k: n for k, n in found.items() if k[1] in named})
    if relevant != expected:
        messages = "\n".join(f"  line {f.place.line} {f.finding.code}: {f.finding.message}" for f in result.findings)
        raise CaseError(
            f"{rule.code} {case.name!r}: expected {_listed(expected)}, found {_listed(relevant)}\n{messages}"
        )
    return result


def check_flip(rule: type[Rule], case: Case, plugins: Plugins) -> None:
    """Hold a case to its flip: the one change takes away this rule's findings and adds no other rule's."""
    config = Config(preview=rule.preview)
    before = run_case(case, plugins, config)
    after = run_case(case._replace(spec=flipped(case, plugins)), plugins, config)
    left = [f for f in after.findings if f.finding.code == rule.code]
    if left:
        raise CaseError(f"{rule.code} {case.name!r}: after the flip it still reports: {left[0].finding.message}")
    known = {f.finding.code for f in before.findings} - {rule.code}
    new = [f for f in after.findings if f.finding.code not in known]
    if new:
        raise CaseError(f"{rule.code} {case.name!r}: the flip brings {new[0].finding.code}: {new[0].finding.message}")
    gone = known - {f.finding.code for f in after.findings}
    if gone:
        raise CaseError(f"{rule.code} {case.name!r}: the flip also takes away {', '.join(sorted(gone))}")


def flipped(case: Case, plugins: Plugins) -> str:
    """Return the case's spec with the value at its flip's key path replaced."""
    if case.flip is None:
        raise CaseError(f"{case.name!r} has no flip")
    document = parse("spec.toml", case.spec, plugins.policies)
    path = key_path(case.flip[0])
    span = document.spans.value(path)
    if span is None:
        raise CaseError(f"{case.name!r}: there is no value at {case.flip[0]}")
    return case.spec[: span.start] + case.flip[1] + case.spec[span.end :]


def edited(text: str, path: KeyPath, value: str, plugins: Plugins) -> str:
    """Return a spec with one value set: in its place, in its table, or in a table of its own."""
    document = parse("spec.toml", text, plugins.policies)
    span = document.spans.value(path)
    if span is not None:
        return text[: span.start] + value + text[span.end :]
    *table, key = path
    header = f"[{'.'.join(map(str, table))}]"
    inline = document.spans.value(tuple(table)) if document.has(tuple(table)) else None
    if re.search(rf"^{re.escape(header)}", text, re.M):
        return re.sub(rf"^({re.escape(header)}[^\n]*\n)", rf"\1{key} = {value}\n", text, count=1, flags=re.M)
    if inline is not None and text[inline.end - 1] == "}":
        return f"{text[: inline.end - 1]}, {key} = {value} }}{text[inline.end :]}"
    return f"{text}\n{header}\n{key} = {value}\n"


def key_path(text: str) -> KeyPath:
    """Read ``claim[0].at.concurrency`` as a key path."""
    path: list[str | int] = []
    for part in text.split("."):
        name, *indices = part.replace("]", "").split("[")
        path.append(name)
        path += [int(i) for i in indices]
    return tuple(path)


def _listed(counts: Counter[tuple[int, str]]) -> str:
    return ", ".join(f"{code} at line {line or 'any'}" for line, code in sorted(counts)) or "nothing"
