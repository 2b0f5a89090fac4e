"""ENG003 lost-value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from servelint.plugin import Case, Severity
from servelint_rules.eng.arguments import ArgumentRule


class LostValue(ArgumentRule):
    """A launch argument that silently does not take effect.

    What it checks
    --------------
    A flag and its value in one item of a list, which the engine's parser takes for a positional argument; a flag
    that is given twice with different values, of which the last counts; a key at a level of a configuration file
    where the engine does not look for it.

    Why it is bad
    -------------
    The server starts, with the default instead of what was written. Nothing says so: the deployment that runs is
    not the one that was reviewed.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Give flag and value as two items, or join them with ``=``; take out what does not count.

    Source
    ------
    The Python standard library's argparse, which takes a word with a blank for no option; the engine's own
    parser.
    """

    code = "ENG003"
    name = "lost-value"
    severity = Severity.WARNING
    questions = ("are the flags right", "why is a setting ignored")
    kinds: ClassVar[Mapping[str, Severity]] = {"lost": Severity.WARNING}
    failing = (
        Case(
            "flag and value in one item",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--model", "meta-llama/Llama-3.1-8B", "--quantization fp8"] # expect: ENG003
""",
            flip=("engine.args[2]", '"--quantization=fp8"'),
        ),
        Case(
            "a flag twice, with two values",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = "--max-num-seqs 64 --max-num-seqs 128" # expect: ENG003
""",
            flip=("engine.args", '"--max-num-seqs 128 --max-num-seqs 128"'),
        ),
    )
    passing = (
        Case(
            "flag and value in two items, and joined",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--quantization", "fp8", "--max-num-seqs=64"]
""",
        ),
        Case(
            "a value with a blank after its sign",
            """\
servelint = 1
[engine]
name = "vllm"
version = "0.11.0"
args = ["--served-model-name=the model"]
""",
        ),
    )
