"""The step graph of a spec, for drawing tools (DOT, Mermaid) and for programs (JSON).

Nodes carry what the op asks for in the decode step; the longest path is that of the ops' own estimates.
"""

from __future__ import annotations

from typing import Any

from servelint.cost import OpCost
from servelint.graph import Op
from servelint.report.cost import demand_object
from servelint.report.figures import Figures
from servelint.report.json import head
from servelint.report.safe import guarded, printable
from servelint.report.show import quantity


class _Node:
    """One op with its price in the decode step."""

    def __init__(self, op: Op, priced: OpCost, *, on_longest_path: bool) -> None:
        self.op = op
        self.priced = priced
        self.on_longest_path = on_longest_path

    def lines(self) -> list[str]:
        """The label: name and repeats, then what counts."""
        repeats = f" x {self.op.count}" if self.op.count != 1 else ""
        sizes = [
            quantity(float(amount), unit)
            for amount, unit in (
                (self.priced.flops, "FLOP"),
                (self.priced.hbm_bytes, "B"),
                (self.priced.link_bytes, "B"),
            )
            if amount
        ]
        return [f"{printable(self.op.name)}{repeats}", ", ".join(sizes), quantity(float(self.priced.seconds), "s")]


def _nodes(figures: Figures) -> list[_Node]:
    step = figures.steps["decode"]
    graph = step.composition.graph
    priced = {row.name: row for row in step.composition.pricer.breakdown(step.shape)}
    import networkx as nx

    weighted = graph.to_networkx(lambda op: float(priced[op.name].seconds))
    longest = set(nx.dag_longest_path(weighted, weight="weight"))
    return [_Node(op, priced[op.name], on_longest_path=op.name in longest) for op in graph.ops]


def _edges(figures: Figures) -> list[tuple[int, int]]:
    before = figures.steps["decode"].composition.graph.predecessors
    return [(j, i) for i, earlier in enumerate(before) for j in earlier]


def dot(figures: Figures) -> str:
    """Return the graph in the DOT language; the longest path is bold."""
    nodes = _nodes(figures)
    lines = ["digraph step {", "  node [shape=box, fontname=monospace];"]
    for i, node in enumerate(nodes):
        label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in node.lines() if line)
        lines.append(f'  n{i} [label="{label}"{", penwidth=2" if node.on_longest_path else ""}];')
    for a, b in _edges(figures):
        bold = nodes[a].on_longest_path and nodes[b].on_longest_path
        lines.append(f"  n{a} -> n{b}{' [penwidth=2]' if bold else ''};")
    return guarded("\n".join([*lines, "}"]) + "\n")


def mermaid(figures: Figures) -> str:
    """Return the graph as a Mermaid flowchart; ops on the longest path are of class ``longest``."""
    nodes = _nodes(figures)
    lines = ["flowchart TD"]
    for i, node in enumerate(nodes):
        label = "<br/>".join(_entities(line) for line in node.lines() if line)
        lines.append(f'  n{i}["{label}"]{":::longest" if node.on_longest_path else ""}')
    lines += [f"  n{a} --> n{b}" for a, b in _edges(figures)]
    return guarded("\n".join([*lines, "  classDef longest stroke-width:3px"]) + "\n")


def _entities(text: str) -> str:
    """Write every character that Mermaid or HTML would act on as an entity."""
    return "".join(c if c.isalnum() or c in " .,_-+/()" else f"#{ord(c)};" for c in text)


def as_object(figures: Figures) -> dict[str, Any]:
    """Return nodes with their demands and edges as JSON values."""
    step = figures.steps["decode"]
    graph = step.composition.graph
    nodes = _nodes(figures)
    rows = figures.rows(step)
    return {
        **head(),
        "file": figures.review.document.name,
        "step": {"name": step.name, "basis": step.basis, "words": step.words},
        "stages": graph.stages,
        "micro_batches": graph.micro_batches,
        "nodes": [
            {
                "name": node.op.name,
                "origin": node.op.origin,
                "instances": node.op.count,
                "repeats_by_stage": list(node.op.repeats),
                "inputs": list(node.op.inputs),
                "outputs": list(node.op.outputs),
                "flops": node.priced.flops,
                "hbm_bytes": node.priced.hbm_bytes,
                "activation_bytes": node.priced.activation_bytes,
                "link_bytes": node.priced.link_bytes,
                "estimate_s": node.priced.seconds,
                "on_longest_path": node.on_longest_path,
                "demands": [demand_object(d, amount, figures.review.document) for d, amount in demands],
            }
            for node, (_, demands) in zip(nodes, rows, strict=True)
        ],
        "edges": [{"from": nodes[a].op.name, "to": nodes[b].op.name} for a, b in _edges(figures)],
    }
