"""What the rules about evidence share: claims with the run that each rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Input, Review
from servelint.spec.model import Claim

if TYPE_CHECKING:
    from servelint.evidence import Measurement
    from servelint.measured import Evidence

LATENCIES = ("ttft", "itl", "tpot", "e2e")


class Backed(NamedTuple):
    """A claim, where it stands, and the evidence that it names."""

    path: KeyPath
    claim: Claim
    evidence: Evidence

    @property
    def key(self) -> KeyPath:
        """The key that names the file."""
        return (*self.path, "evidence")


def backed(review: Review) -> Iterator[Backed]:
    """Claims whose evidence could be read."""
    for path, claim in review.claims:
        found = review.evidence(path, claim)
        if found is not None:
            yield Backed(path, claim, found)


def measured(review: Review) -> Iterator[tuple[Backed, Measurement]]:
    """Claims whose run is known, with it."""
    for item in backed(review):
        if item.evidence.run is not None:
            yield item, item.evidence.run


def named(run: Measurement) -> str:
    """How a message calls a run."""
    return f"the {run.tool} run" + (f" ({run.run})" if run.run else "")


def recorded(review: Review, item: Backed, name: str, value: float | int | str, unit: str) -> Input:
    """A figure of the file as an input of a finding: its source is the key that names the file."""
    return review.input(name, value, unit, *item.key)
