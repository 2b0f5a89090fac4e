"""A third party's plugin: one accelerator as a datasheet, one policy, one rule, one format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

from servelint.plugin import (
    API_VERSION,
    Dimension,
    Finding,
    Format,
    Policy,
    Quantity,
    Review,
    Rule,
    Severity,
    datasheets,
    hookimpl,
    key,
)

servelint_api = API_VERSION


@hookimpl
def servelint_accelerators():
    return datasheets(Path(__file__).parent / "acme_data")


@hookimpl
def servelint_formats():
    yield Format("acme6", bits=6, kv_cache=True, sources=("Acme number formats, rev 2",))


@frozen
class Throttle:
    """``share`` of the memory that the operator keeps back."""

    share: float | None = key(Quantity(Dimension.FRACTION, 0, 0.9, positive=False))


def keep_back(config, ledger, context):
    if not config.share:
        return ledger
    return evolve(ledger, budget=ledger.budget * (1 - config.share))


@hookimpl
def servelint_policies():
    yield Policy("acme_throttle", Throttle, memory=keep_back, after=("kv_cache",))


class OneReplica(Rule):
    """A deployment has a single replica."""

    code = "ACME001"
    name = "single-replica"
    severity = Severity.INFO

    def check(self, review: Review) -> Iterator[Finding]:
        if review.deployment.hardware.replicas == 1:
            yield Finding(("hardware", "replicas"), "one replica: nothing takes over when it fails")


@hookimpl
def servelint_rules():
    yield OneReplica
