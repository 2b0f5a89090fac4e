"""ENG002 removed-flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from servelint.plugin import Case, Severity
from servelint_rules.eng.arguments import ArgumentRule


class RemovedFlag(ArgumentRule):
    """A launch argument that the declared release no longer has, or does not have yet.

    What it checks
    --------------
    Every flag against the releases that have it. Between the last release that was seen with a flag and the
    first one without it the rule is silent. Where no release is declared, a flag that only releases before the
    assumed one had is a warning.

    Why it is bad
    -------------
    The server exits at start. A new image with the old arguments is the usual way there.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Use what took the flag's place, where the message names one; else take it out.

    Source
    ------
    The engine's own argument parser, at the releases that docs/engines.md names.
    """

    code = "ENG002"
    name = "removed-flag"
    severity = Severity.ERROR
    questions = ("does it start", "are the flags right", "what does a new image change")
    kinds: ClassVar[Mapping[str, Severity]] = {
        "removed": Severity.ERROR,
        "not-yet": Severity.ERROR,
        "dated": Severity.WARNING,
    }
    failing = (
        Case(
            "multi-step scheduling, first release without it",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.10.1.1"
args = ["--num-scheduler-steps", "8"] # expect: ENG002
""",
            flip=("engine.version", '"0.10.0"'),
        ),
        Case(
            "a flag that came later",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.10.1.1"
args = "--kv-cache-memory-bytes 20000000000" # expect: ENG002
""",
            flip=("engine.version", '"0.11.0"'),
        ),
        Case(
            "a flag of old releases, without a release",
            """\
servelint = 1
[engine]
name = "vllm"
args = ["--num-scheduler-steps", "8"] # expect: ENG002
""",
            flip=("engine.args[0]", '"--max-num-seqs"'),
        ),
    )
    passing = (
        Case(
            "multi-step scheduling, last release with it",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.10.0"
args = ["--num-scheduler-steps", "8"]
""",
        ),
        Case(
            "a flag that the assumed release still has",
            """\
servelint = 1
[engine]
name = "vllm"
args = ["--swap-space", "4"]
""",
        ),
    )
