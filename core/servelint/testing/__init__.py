"""The testing kit: run a rule's own cases, generate deployments, hold the invariants of cost.

Usable from a third party's plain pytest; `servelint.testing.strategies` needs ``servelint[testing]``.
"""

from __future__ import annotations

from servelint.testing.compositions import compose, review_of
from servelint.testing.conformance import check_accelerator, check_instance, check_model, check_plugin, check_policy
from servelint.testing.rules import CaseError, check_case, expected_findings, flipped

__all__ = [
    "CaseError",
    "check_accelerator",
    "check_case",
    "check_instance",
    "check_model",
    "check_plugin",
    "check_policy",
    "compose",
    "expected_findings",
    "flipped",
    "review_of",
]
