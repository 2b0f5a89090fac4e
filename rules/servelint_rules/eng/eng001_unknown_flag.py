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
    engine's configuration file, against the engine's table of flags. Where that table is complete and the
    declared release is not newer than the table, a flag outside it is an error. Where no release is declared it is a
    warning. A known name with a slip of the keyboard is an error whatever starts the engine; else the rule is silent of
    newer releases and of programs that add flags of their own.

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
    kinds: ClassVar[Mapping[str, Severity]] = {"unknown": Severity.ERROR, "unlisted": Severity.WARNING}
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
        Case(
            "a slip of the keyboard, without a release",
            """\
servelint = 1
[engine]
name = "vllm"
args = "--tensor-paralel-size 2" # expect: ENG001
""",
            flip=("engine.args", '"--tensor-parallel-size 2"'),
        ),
        Case(
            "a flag that no release has had so far, without a release",
            """\
servelint = 1
[engine]
name = "vllm"
args = "--mem-fraction-static 0.85" # expect: ENG001
""",
            flip=("engine.args", '"--gpu-memory-utilization 0.85"'),
        ),
        Case(
            "a slip with an engine whose releases are not told apart",
            """\
servelint = 1
[engine]
name = "tensorrt-llm"
version = "1.1.0"
args = "--tp_sise 4" # expect: ENG001
""",
            flip=("engine.args", '"--tp_size 4"'),
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
