"""What the rules of launch arguments share: they report what the engine's plugin found wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from servelint.plugin import Finding, Review, Rule, Severity


class ArgumentRule(Rule):
    """Reports the troubles of some kinds, each with its severity."""

    kinds: ClassVar[Mapping[str, Severity]] = {}

    def check(self, review: Review) -> Iterator[Finding]:
        """Yield a finding for every trouble of this rule's kinds."""
        launched = review.document.launched
        if launched is None:
            return
        for about, trouble in launched.named_troubles().items():
            severity = self.kinds.get(trouble.kind)
            if severity is not None:
                yield Finding(("engine", "args", about), trouble.message, help=trouble.help, severity=severity)
