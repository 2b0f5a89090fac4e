"""SPEC002 unknown-key."""

from __future__ import annotations

from servelint.plugin import Case, Severity
from servelint_rules.spec.problems import ProblemRule


class UnknownKey(ProblemRule):
    """A table or key that the spec does not have.

    What it checks
    --------------
    Every table and key against the schema of spec version 1 and of the policies that plugins provide.

    Why it is bad
    -------------
    A key that is ignored looks like a choice and is none: the deployment runs with the default.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Use the nearest name that the message suggests, or install the plugin that provides the policy.

    Source
    ------
    The servelint spec, version 1.
    """

    code = "SPEC002"
    name = "unknown-key"
    severity = Severity.ERROR
    questions = ("is the spec valid",)
    failing = (
        Case(
            "a misspelt key",
            """\
servelint = 1
[hardware]
acelerator = "nvidia/h100-sxm5-80gb" # expect: SPEC002
""",
        ),
        Case(
            "a table that does not exist",
            """\
servelint = 1
[hardwares] # expect: SPEC002
accelerator = "nvidia/h100-sxm5-80gb"
""",
        ),
    )
    passing = (
        Case(
            "known keys",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
""",
        ),
        Case(
            "dotted and inline forms of known keys",
            """\
servelint = 1
hardware.accelerator = "nvidia/h100-sxm5-80gb"
policy = { parallelism = { tensor = 1 } }
""",
        ),
    )
