"""The tree that explains a figure, and how it is written: indented text and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from servelint.lineage import Source, dotted
from servelint.report.json import text
from servelint.report.safe import guarded, printable
from servelint.report.show import Style, quantity, source_text
from servelint.spec.document import Document


class Node(NamedTuple):
    """One figure or input. ``source`` says where a leaf was read, ``documents`` what that rests on."""

    name: str
    value: float | int | str | None = None
    unit: str = ""
    formula: str = ""
    source: Source | None = None
    documents: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()


def as_object(node: Node, document: Document) -> dict[str, Any]:
    """Return a tree as JSON values; a value's unit stands beside it."""
    result: dict[str, Any] = {"name": text(node.name), "value": node.value, "unit": node.unit}
    if isinstance(node.value, str):
        result["value"] = text(node.value)
    if node.formula:
        result["formula"] = text(node.formula)
    if node.source is not None:
        result["source"] = {"kind": node.source.kind, "text": text(str(node.source))}
        if node.source.path and document.has(node.source.path):
            place = document.origin(node.source.path)
            result["source"] |= {
                "key_path": dotted(node.source.path),
                "file": place.file or document.name,
                "line": place.line,
            }
    if node.documents:
        result["documents"] = [text(d) for d in node.documents]
    result["children"] = [as_object(child, document) for child in node.children]
    return result


def as_text(node: Node, document: Document, style: Style) -> str:
    """Return a tree as indented lines; a document is named where its source comes first."""
    return guarded("\n".join(_lines(node, document, style, "", "", set())) + "\n", color=style.color)


def _lines(
    node: Node, document: Document, style: Style, first: str, rest: str, seen: set[tuple[str, ...]]
) -> Iterable[str]:
    shown = "" if node.value is None else " = " + style.paint(quantity(node.value, node.unit), "1")
    notes = []
    if node.formula:
        notes.append(printable(node.formula))
    if node.source is not None:
        notes.append(f"[{printable(source_text(node.source, document))}]")
    tail = f": {' '.join(notes)}" if notes else ""
    yield f"{first}{printable(node.name)}{shown}{tail}"
    if node.documents not in seen:
        below = rest + ("|  " if node.children else "   ")
        for found in node.documents:
            yield f"{below}{style.paint('document: ' + printable(found), '2')}"
    seen.add(node.documents)
    for i, child in enumerate(node.children):
        last = i == len(node.children) - 1
        yield from _lines(child, document, style, f"{rest}+- ", rest + ("   " if last else "|  "), seen)
