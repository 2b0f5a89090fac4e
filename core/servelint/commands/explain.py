"""``servelint explain``: where a figure of a spec comes from, down to spec lines and documents."""

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
from servelint.errors import ConfigError
from servelint.report.safe import printable
from servelint.suggest import did_you_mean


def run(argv: list[str]) -> int:
    """Run the command; without a figure it lists what can be explained."""
    made = parser("explain", "Show the lineage of a figure: formulas, inputs, and where each input was read.")
    made.add_argument("spec", metavar="SPEC", help="a deployment spec, - for standard input")
    made.add_argument("figure", nargs="?", metavar="FIGURE", help="a figure, an op, or a key path; none lists them")
    made.add_argument("--batch", type=sequences, metavar="N", help="decoding sequences, instead of the operating point")
    made.add_argument("--context", type=positive, metavar="N", help="cached tokens of each, instead of the mean")
    made.add_argument("--prompt", type=positive, metavar="N", help="prompt tokens of the prefill step")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text or json")
    arguments = made.parse(argv)
    choice("--format", arguments.format, ("text", "json"))
    composed = compose(arguments, arguments.spec)
    if not isinstance(composed, Composed):
        return composed
    from servelint.report.explain import Explainer
    from servelint.report.figures import Figures
    from servelint.report.json import head
    from servelint.report.lineage_tree import as_object, as_text
    from servelint.report.show import Style

    figures = Figures(composed.review, arguments.batch, arguments.context, arguments.prompt)
    explainer = Explainer(figures)
    if arguments.figure is None:
        known = {
            "figures": explainer.figure_names(),
            "ops": explainer.op_names(),
            "keys": explainer.key_names(),
        }
        if arguments.format == "json":
            write_json({**head(), "file": composed.review.document.name, **known})
        else:
            write(
                "".join(f"{name}:\n" + "".join(f"  {printable(n)}\n" for n in names) for name, names in known.items())
            )
        return settled(composed.plugins)
    node = explainer.explain(arguments.figure)
    if node is None:
        lacking = explainer.lacking(arguments.figure)
        if lacking:
            tables = " and ".join(f"[{table}]" for table in lacking)
            raise ConfigError(f"{arguments.figure!r} needs {tables}, which this spec does not give")
        names = [*explainer.figure_names(), *explainer.op_names(), *explainer.key_names()]
        hint = did_you_mean(arguments.figure, names) or "; servelint explain SPEC lists what there is"
        raise ConfigError(f"{arguments.figure!r} is no figure, op or key of this spec{hint}")
    if arguments.format == "json":
        tree = as_object(node, composed.review.document)
        write_json({**head(), "file": composed.review.document.name, "figure": arguments.figure, "lineage": tree})
    else:
        write(as_text(node, composed.review.document, Style(use_color(sys.stdout))))
    return settled(composed.plugins)
