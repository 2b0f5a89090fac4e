"""What SPEC001 to SPEC003 share: they report problems found while the spec was parsed and structured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from servelint.plugin import Finding, Review, Rule


class ProblemRule(Rule):
    """Reports the problems of a document that carry this rule's code."""

    reads_problems: ClassVar[bool] = True

    def check(self, review: Review) -> Iterator[Finding]:
        """Yield a finding for every problem with this code."""
        for problem in review.document.problems:
            if problem.code == self.code:
                yield Finding(problem.path, problem.message, on_key=problem.on_key)
