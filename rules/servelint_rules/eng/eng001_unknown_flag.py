"""ENG001 unknown-flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from servelint.plugin import Case, Severity
from servelint_rules.eng.arguments import ArgumentRule


class UnknownFlag(ArgumentRule):
    """A launch argument that no release of the engine has.

    What it checks
    --------------
    Every flag of ``engine.args`` and of the launch file that ``engine.args_from`` names, and the keys of an
    engine's configuration file, against the engine's table of flags. The rule speaks only where that table is
    complete and the declared release is not newer than the table.

    Why it is bad
    -------------
    The server prints its usage and exits: after the node with the accelerators was waited for.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Use the name that the message suggests, or take the flag out.

    Source
    ------
    The engine's own argument parser, at the releases that docs/engines.md names.
    """

    code = "ENG001"
    name = "unknown-flag"
    severity = Severity.ERROR
    questions = ("does it start", "are the flags right")
    kinds: ClassVar[Mapping[str, Severity]] = {"unknown": Severity.ERROR}
    failing = (
        Case(
            "a misspelt flag",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--max-modle-len", "8192"] # expect: ENG001
""",
            flip=("engine.args[0]", '"--max-model-len"'),
        ),
        Case(
            "a flag of another engine",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = "--mem-fraction-static 0.85" # expect: ENG001
""",
            flip=("engine.args", '"--gpu-memory-utilization 0.85"'),
        ),
    )
    passing = (
        Case(
            "flags that the release has, in both spellings",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--max-model-len=8192", "--max_num_seqs", "64"]
""",
        ),
        Case(
            "a release newer than the table",
            """\
servelint = 1
[engine]
name = "vllm"
version = "9.0"
args = ["--a-flag-of-the-future"]
""",
        ),
    )
