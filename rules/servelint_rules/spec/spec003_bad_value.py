"""SPEC003 bad-value."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.errors import UnpricedError
from servelint.plugin import Case, Finding, Review, Severity
from servelint_rules.spec.problems import ProblemRule


class BadValue(ProblemRule):
    """A value of the wrong type, dimension or range.

    What it checks
    --------------
    Each value against the kind of its key: type, unit and dimension, sign, range, order of quantiles, and
    keys that a table cannot do without; values of launch arguments against the engine's flags. Then whether the
    values compose at all; degrees of parallelism that do not are PAR002's.

    Why it is bad
    -------------
    The value cannot be used. "80 GB/s" where bytes are due is a different thing, not a spelling.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Give a value of the kind that the message names.

    Source
    ------
    The servelint spec, version 1.
    """

    code = "SPEC003"
    name = "bad-value"
    severity = Severity.ERROR
    questions = ("is the spec valid",)
    failing = (
        Case(
            "a rate where bytes are due",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
host_memory = "80 GB/s" # expect: SPEC003
""",
            flip=("hardware.host_memory", '"80 GB"'),
        ),
        Case(
            "quantiles that fall",
            """\
servelint = 1
[workload]
prompt_tokens = { p50 = 900, p99 = 800 } # expect: SPEC003
output_tokens = 100
""",
            flip=("workload.prompt_tokens.p99", "901"),
        ),
        Case(
            "a device count below one",
            """\
servelint = 1
[hardware]
devices = 0 # expect: SPEC003
""",
            flip=("hardware.devices", "1"),
        ),
    )
    passing = (
        Case(
            "the smallest device count",
            """\
servelint = 1
[hardware]
devices = 1
""",
        ),
        Case(
            "quantiles that do not rise",
            """\
servelint = 1
[workload]
prompt_tokens = { p50 = 900, p99 = 900 }
output_tokens = 100
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding]:
        """Yield the document's problems, else what kept it from being composed."""
        yield from super().check(review)
        launched = review.document.launched
        for about, trouble in launched.named_troubles().items() if launched is not None else ():
            if trouble.kind == "bad-value":
                yield Finding(("engine", "args", about), trouble.message, help=trouble.help)
        if review.document.deployment is None or review.composition is not None:
            return
        problem = review.infeasible
        if problem is None or isinstance(problem, UnpricedError) or problem.path[:2] in LAYOUTS:
            return
        yield Finding(problem.path, str(problem))


LAYOUTS = (("policy", "parallelism"), ("policy", "disaggregation"))
"""Tables whose values PAR002 judges."""
