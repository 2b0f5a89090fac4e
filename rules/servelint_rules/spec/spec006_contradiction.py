"""SPEC006 contradiction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from servelint.lineage import dotted
from servelint.plugin import Case, Finding, Related, Review, Rule, Severity

if TYPE_CHECKING:
    from servelint.launch.spec import Contradiction

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
"""


class ContradictionRule(Rule):
    """The spec and the launch arguments that it points to set a key differently.

    What it checks
    --------------
    Every key that both the spec declares and its launch arguments (``engine.args``, ``engine.args_from``,
    ``engine.env``) set. Names of the same thing, such as two spellings of a format or a release and its patch, do
    not differ. A context that the engine divides over its slots to less than is declared is ENG005's.

    Why it is bad
    -------------
    Only one of the two is true. What runs is what the engine is started with: for the policies, the launch
    arguments' value is the one that this check computes with, and the reader of the spec believes the other.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Take the key out of the spec, or set both alike.

    Source
    ------
    The servelint spec, version 1: launch arguments.
    """

    code = "SPEC006"
    name = "contradiction"
    severity = Severity.WARNING
    questions = ("is the spec valid", "what runs")
    failing = (
        Case(
            "a flag against a policy",
            SPEC
            + """\
[engine]
name = "vllm"
args = ["--max-num-seqs", "64"]
[policy.batching]
max_sequences = 65 # expect: SPEC006
""",
            flip=("policy.batching.max_sequences", "64"),
        ),
        Case(
            "a manifest against a policy",
            SPEC
            + """\
[engine]
name = "vllm"
args_from = { file = "deploy/vllm.sh" }
[policy.batching]
max_sequences = 32 # expect: SPEC006
""",
            flip=("policy.batching.max_sequences", "64"),
            files=(("deploy/vllm.sh", "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --max-num-seqs 64\n"),),
        ),
    )
    passing = (
        Case(
            "both alike",
            SPEC
            + """\
[engine]
name = "vllm"
args = ["--max-num-seqs", "64", "--kv-cache-dtype", "fp8"]
[policy.batching]
max_sequences = 64
[policy.quantization]
kv_cache = "fp8"
""",
        ),
        Case(
            "only the flag",
            SPEC
            + """\
[engine]
name = "vllm"
args = ["--max-num-seqs", "64"]
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding]:
        """Report every key that both set."""
        for found in review.document.contradictions:
            if divided_below(found):
                continue
            place = found.setting.place
            where = f"line {place.line}" if not place.file else f"{place.file}:{place.line}"
            name = dotted(found.path)
            runs = (
                f"{found.setting.value!s} runs, and is what is checked"
                if found.runs
                else f"{found.declared!s} is what is checked"
            )
            spelled = f" ({found.setting.spelling})" if found.setting.spelling else ""
            yield Finding(
                found.path,
                f"{name} is {found.declared!s} here and {found.setting.value!s} at {where}{spelled}: {runs}",
                help=f"set it to {found.setting.value!s}, or take it out of the spec",
                related=_related(review, place.file),
            )


def divided_below(found: Contradiction) -> bool:
    """Whether launch arguments set less than is declared because the engine divides what is written there."""
    declared, value = found.declared, found.setting.value
    if not found.setting.divided or not isinstance(declared, int | float) or not isinstance(value, int | float):
        return False
    return value < declared


def _related(review: Review, file: str) -> tuple[Related, ...]:
    """The key that names the launch arguments."""
    for path in (("engine", "args_from", "file"), ("engine", "args"), ("engine", "env")):
        if review.declared(*path) and bool(file) == (path[1] == "args_from"):
            return (Related(path, "the launch arguments"),)
    return ()
