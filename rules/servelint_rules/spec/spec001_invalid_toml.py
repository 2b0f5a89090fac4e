"""SPEC001 invalid-toml."""

from __future__ import annotations

from servelint.plugin import Case, Severity
from servelint_rules.spec.problems import ProblemRule


class InvalidToml(ProblemRule):
    """The spec does not parse as TOML.

    What it checks
    --------------
    The file is read by the reference TOML parser; where it stops, this rule points.

    Why it is bad
    -------------
    Nothing of the deployment can be checked.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Correct the syntax at the line and column given; the message says what the parser expected there.

    Source
    ------
    TOML v1.0.0.
    """

    code = "SPEC001"
    name = "invalid-toml"
    severity = Severity.ERROR
    questions = ("is the spec valid",)
    failing = (
        Case(
            "a value is missing",
            """\
# expect-file: SPEC001
servelint = 1
[hardware]
accelerator =
""",
        ),
        Case(
            "a string is not closed",
            """\
# expect-file: SPEC001
servelint = 1
[model]
id = "meta-llama/Llama-3.1-8B
""",
        ),
    )
    passing = (
        Case("a spec with nothing in it but its version", "servelint = 1\n"),
        Case(
            "every kind of string",
            """\
servelint = 1
[deployment]
name = '''
several lines'''
""",
        ),
    )
