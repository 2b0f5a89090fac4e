"""A rule's documentation, read from its docstring and attributes: as text, Markdown and JSON.

The same words serve ``servelint rule``, the pages in docs/rules and the rule texts in SARIF, so that none of
them can drift from the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from servelint.blame import Provider
from servelint.manager import Plugins
from servelint.report.safe import guarded, paragraphs, printable
from servelint.report.show import COLORS, Style
from servelint.rule import HEADINGS, Case, Option, Rule

# Indented code, quoted code within a paragraph, and what is left of HTML.
_MARKED = re.compile(r"^ {4}.*$|(`+)(?:[^`\n]|\n(?! *\n))+\1(?!`)|`+|<", re.MULTILINE)


def family(code: str) -> str:
    """Return the letters of a code."""
    return code.rstrip("0123456789")


def sections(rule: type[Rule]) -> dict[str, str]:
    """Return the documentation by heading, printable; the summary stands under an empty heading.

    All of it is empty where the class has no docstring, as under ``python -OO``; `missing` says so.
    """
    lines = _dedented(rule.__doc__ or "")
    found: dict[str, list[str]] = {"": []}
    current = found[""]
    i = 0
    while i < len(lines):
        if lines[i] in HEADINGS and i + 1 < len(lines) and lines[i + 1] and not lines[i + 1].strip("-"):
            current = found.setdefault(lines[i], [])
            i += 2
            continue
        current.append(lines[i])
        i += 1
    return {heading: "\n".join(body).strip() for heading, body in found.items()}


def _dedented(doc: str) -> list[str]:
    first, *rest = paragraphs(doc.strip()).split("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest if line.strip()]
    cut = min(indents, default=0)
    return [first.strip(), *(line[cut:].rstrip() for line in rest)]


def missing(rule: type[Rule]) -> str:
    """Say why a rule has no documentation to show, or return an empty string when it has some."""
    if (rule.__doc__ or "").strip():
        return ""
    if sys.flags.optimize >= 2:
        return "Python runs without docstrings (-OO or PYTHONOPTIMIZE=2), so the text of this page is not there."
    return "The rule has no documentation."


def plain_words(text: str) -> str:
    """Return documentation as plain text: code between single backticks."""
    return text.replace("``", "`")


def marked(text: str) -> str:
    """Return documentation as Markdown: code between single backticks, and no HTML outside of code."""
    return _MARKED.sub(lambda found: "\\<" if found[0] == "<" else found[0], plain_words(text))


def example(case: Case) -> str:
    """Return the spec of a case with its files, as one text."""
    shown = paragraphs(case.spec) + "\n"
    return shown + "".join(f"\n# {printable(name)}:\n{_commented(content)}" for name, content in case.files)


def _commented(content: str, limit: int = 20) -> str:
    lines = content.splitlines()
    more = [f"# ... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join([*(f"# {printable(line)}"[:120].rstrip() for line in lines[:limit]), *more]) + "\n"


def option_text(option: Option) -> str:
    """Return an option's default, range and meaning in one line."""
    high = "" if option.maximum == float("inf") else f" to {option.maximum:g}"
    bounds = f"{option.minimum:g}{high}" if high else f"at least {option.minimum:g}"
    return f"{printable(option.name)} = {option.default:g} ({bounds}): {printable(' '.join(option.doc.split()))}"


def plain(rule: type[Rule], style: Style) -> str:
    """Return a rule's page for a terminal."""
    parts = sections(rule)
    head = style.paint(printable(f"{rule.code} {rule.name}"), "1")
    level = style.paint(str(rule.severity), COLORS[rule.severity])
    lines = [f"{head}: {level}, confidence {printable(rule.confidence)}{', preview' if rule.preview else ''}", ""]
    lines += [plain_words(parts.pop("")) or missing(rule), ""]
    for heading, body in parts.items():
        lines += [style.paint(heading, "1"), *_indented(plain_words(body)), ""]
    if rule.options:
        lines.append(style.paint("Options", "1") + f" ([rule.{rule.code}] in the configuration)")
        lines += [f"  {option_text(option)}" for option in rule.options]
        lines.append("")
    for title, cases in (("Reported", rule.failing), ("Not reported", rule.passing)):
        for case in cases[:1]:
            lines += [style.paint(title, "1") + f": {printable(case.name)}", *_indented(example(case)), ""]
    lines.append(f"Ignored where a line ends in  # servelint: ignore[{rule.code}] reason")
    return guarded("\n".join(lines) + "\n", color=style.color)


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.rstrip().splitlines()]


def as_object(rule: type[Rule], provider: Provider | None) -> dict[str, Any]:
    """Return a rule's page as a JSON object."""
    parts = sections(rule)
    return {
        "code": printable(rule.code),
        "name": printable(rule.name),
        "family": family(rule.code),
        "severity": str(rule.severity),
        "confidence": printable(rule.confidence),
        "preview": rule.preview,
        "summary": parts.pop("") or missing(rule),
        "questions": [printable(question) for question in rule.questions],
        "documentation": {heading.lower().replace(" ", "_"): body for heading, body in parts.items()},
        "options": [
            {
                "name": printable(o.name),
                "default": o.default,
                "minimum": o.minimum,
                "maximum": o.maximum,
                "doc": paragraphs(o.doc),
            }
            for o in rule.options
        ],
        "failing": [_case(case) for case in rule.failing],
        "passing": [_case(case) for case in rule.passing],
        "provider": provider_object(provider),
    }


def _case(case: Case) -> dict[str, Any]:
    return {"name": printable(case.name), "spec": case.spec, "files": dict(case.files)}


def provider_object(provider: Provider | None) -> dict[str, str] | None:
    """Who provides a thing, None for what servelint itself has."""
    if provider is None:
        return None
    return {
        "plugin": printable(provider.plugin),
        "distribution": printable(provider.distribution),
        "version": printable(provider.version),
    }


def provider_of(plugins: Plugins, rule: type[Rule]) -> Provider | None:
    """Return who provides a rule, None for the linter's own."""
    return plugins.rule_provider(rule.code) if rule in plugins.rules else None


def markdown(rule: type[Rule]) -> str:
    """Return a rule's page as Markdown."""
    parts = sections(rule)
    lines = [f"# {_title(rule)}", "", marked(parts.pop("")) or missing(rule), ""]
    preview = ", preview" if rule.preview else ""
    lines += [f"Severity **{rule.severity}**, confidence {cell(rule.confidence)}{preview}.", ""]
    for heading, body in parts.items():
        lines += [f"## {heading}", "", marked(body), ""]
    if rule.options:
        lines += ["## Options", "", f"Set under `[rule.{rule.code}]` in the configuration.", ""]
        lines += ["| option | default | range | meaning |", "|---|---|---|---|"]
        for o in rule.options:
            high = "" if o.maximum == float("inf") else f" to {o.maximum:g}"
            bounds = f"{o.minimum:g}{high}" if high else f"at least {o.minimum:g}"
            lines.append(f"| `{cell(o.name)}` | {o.default:g} | {bounds} | {cell(o.doc)} |")
        lines.append("")
    lines += _cases("Reported", rule.failing)
    lines += _cases("Not reported", rule.passing)
    lines += ["## Ignoring it", "", "```toml", f"# servelint: ignore[{rule.code}] the reason", "```", ""]
    return "\n".join(lines)


def _title(rule: type[Rule]) -> str:
    return marked(printable(f"{rule.code} {rule.name}"))


def cell(text: str) -> str:
    """Return text for a cell of a Markdown table: one line, no bar that ends the cell, no HTML."""
    return marked(printable(" ".join(text.split()))).replace("|", "\\|")


def _cases(title: str, cases: Iterable[Case]) -> list[str]:
    lines = [f"## {title}", ""]
    for case in cases:
        name, shown = marked(printable(case.name)), example(case).rstrip()
        fence = _fence(shown)
        lines += [f"{name[:1].upper()}{name[1:]}:", "", f"{fence}toml", shown, fence, ""]
    return lines


def _fence(text: str) -> str:
    """A fence that the text cannot end: longer than any run of backticks in it."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
