"""``servelint cost``: the ledger, step times, capacity, frontier and knee of one spec."""

from __future__ import annotations

import sys

from servelint.commands.common import (
    Composed,
    choice,
    compose,
    parser,
    positive,
    sequences,
    settled,
    use_color,
    write,
    write_json,
)


def run(argv: list[str]) -> int:
    """Run the command."""
    made = parser("cost", "Show what the steps of a deployment cost, per op and resource, and what fits.")
    made.add_argument("spec", metavar="SPEC", help="a deployment spec, - for standard input")
    made.add_argument("--batch", type=sequences, metavar="N", help="decoding sequences, instead of the operating point")
    made.add_argument("--context", type=positive, metavar="N", help="cached tokens of each, instead of the mean")
    made.add_argument("--prompt", type=positive, metavar="N", help="prompt tokens of the prefill step")
    made.add_argument("--graph", metavar="FORMAT", help="only the step graph: dot, mermaid or json")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text or json")
    arguments = made.parse(argv)
    choice("--format", arguments.format, ("text", "json"))
    if arguments.graph is not None:
        choice("--graph", arguments.graph, ("dot", "mermaid", "json"))
    composed = compose(arguments, arguments.spec)
    if not isinstance(composed, Composed):
        return composed
    from servelint.report.figures import Figures

    figures = Figures(composed.review, arguments.batch, arguments.context, arguments.prompt)
    if arguments.graph is not None:
        from servelint.report.graph import as_object, dot, mermaid

        if arguments.graph == "json":
            write_json(as_object(figures))
        else:
            write((dot if arguments.graph == "dot" else mermaid)(figures))
    elif arguments.format == "json":
        from servelint.report.cost import as_object as cost_object

        write_json(cost_object(figures))
    else:
        from servelint.report.cost_text import as_text
        from servelint.report.show import Style

        write(as_text(figures, Style(use_color(sys.stdout))))
    return settled(composed.plugins)
