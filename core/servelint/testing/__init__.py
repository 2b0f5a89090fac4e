"""The testing kit: run a rule's own cases, generate deployments, hold the invariants of cost.

Usable from a third party's plain pytest; needs ``servelint[testing]`` for the parts that generate values.
"""

from __future__ import annotations

from servelint.testing.rules import CaseError, check_case, expected_findings, flipped

__all__ = ["CaseError", "check_case", "expected_findings", "flipped"]
