"""Means of a workload's lengths as findings quote them: of what was declared, or of what was made of quantiles."""

from __future__ import annotations

from collections.abc import Mapping

from servelint.lineage import KeyPath
from servelint.plugin import Input, Review
from servelint.spec.model import Workload

STATED = frozenset({"mean"})
"""Keys with which a table of lengths has a mean of its own."""


def averaged(review: Review, name: str, tokens: float, path: KeyPath = ("workload",)) -> Input:
    """A mean length in tokens as an input, which says where it is of quantiles that were interpolated.

    A table of a few quantiles has no mean of its own: another curve through them would have another.
    """
    shown = f"{name} (of the interpolated quantiles)" if _interpolated(review.deployment.workload, path) else name
    return Input(shown, tokens, "tok", review.source(*path))


def _interpolated(base: Workload | None, path: KeyPath) -> bool:
    """Whether the lengths of the table at a path are a few quantiles, those of the base where it has none."""
    if base is None:
        return False
    table = next((base.growth[part] for part in path if isinstance(part, int)), base)
    if table.trace is not None or base.trace is not None:
        return False
    lengths = (table.prompt_tokens or base.prompt_tokens, table.output_tokens or base.output_tokens)
    return any(isinstance(n, Mapping) and len(n) > 1 and not n.keys() & STATED for n in lengths)
