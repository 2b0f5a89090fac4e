"""ENG007 abbreviated-or-ambiguous-flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from servelint.plugin import Case, Severity
from servelint_rules.eng.arguments import ArgumentRule


class AbbreviatedFlag(ArgumentRule):
    """A launch argument that is only the beginning of a flag's name.

    What it checks
    --------------
    Names that the engine's parser completes by itself, because one flag alone begins so. A beginning that several
    flags of the release share is an error: the parser refuses it.

    Why it is bad
    -------------
    It works until a release adds a second flag that begins the same; then the server exits at start, and the
    change that broke it was an image tag.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Write the name in full.

    Source
    ------
    The Python standard library's argparse, ``allow_abbrev``.
    """

    code = "ENG007"
    name = "abbreviated-or-ambiguous-flag"
    severity = Severity.INFO
    questions = ("are the flags right", "what does a new image change")
    kinds: ClassVar[Mapping[str, Severity]] = {"abbreviated": Severity.INFO, "ambiguous": Severity.ERROR}
    failing = (
        Case(
            "the last letter is missing",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--max-num-batched-token", "8192"] # expect: ENG007
""",
            flip=("engine.args[0]", '"--max-num-batched-tokens"'),
        ),
        Case(
            "several flags begin so",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = "--max-num 8192" # expect: ENG007
""",
            flip=("engine.args", '"--max-num-batched-tokens 8192"'),
        ),
    )
    passing = (
        Case(
            "the name in full",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--max-num-batched-tokens", "8192"]
""",
        ),
        Case(
            "a short name that the engine has",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["-tp", "1"]
""",
        ),
    )
