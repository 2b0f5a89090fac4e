"""``servelint rule``: what a rule checks, why, and how to fix what it finds."""

from __future__ import annotations

import sys

from servelint.commands.common import choice, parser, settled, use_color, workspace, write, write_json
from servelint.errors import ConfigError
from servelint.suggest import did_you_mean
from servelint.suppress import every_rule


def run(argv: list[str]) -> int:
    """Run the command."""
    made = parser("rule", "Show a rule: what it checks, why it matters, the arithmetic, how to fix, examples.")
    made.add_argument("rule", nargs="?", metavar="CODE|NAME")
    made.add_argument("--all", action="store_true", help="every rule")
    made.add_argument("--format", default="text", metavar="FORMAT", help="text or json")
    arguments = made.parse(argv)
    choice("--format", arguments.format, ("text", "json"))
    if arguments.all == (arguments.rule is not None):
        raise ConfigError("name one rule, by code or name, or give --all; servelint catalog rules lists them")
    plugins = workspace(arguments).plugins
    rules = every_rule(plugins)
    if arguments.rule is not None:
        wanted = arguments.rule.lower()
        rules = tuple(rule for rule in rules if wanted in (rule.code.lower(), rule.name))
        if not rules:
            names = [n for rule in every_rule(plugins) for n in (rule.code, rule.name)]
            raise ConfigError(f"no rule is called {arguments.rule!r}{did_you_mean(arguments.rule, names)}")
    from servelint.report.json import head
    from servelint.report.rule_docs import as_object, plain, provider_of
    from servelint.report.show import Style

    if arguments.format == "json":
        write_json({**head(), "rules": [as_object(rule, provider_of(plugins, rule)) for rule in rules]})
    else:
        style = Style(use_color(sys.stdout))
        write(f"\n{'-' * 78}\n\n".join(plain(rule, style) for rule in rules))
    return settled(plugins)
