"""SPEC004 unknown-reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from servelint.plugin import Case, Finding, Review, Severity
from servelint_rules.spec.problems import ProblemRule


class UnknownReference(ProblemRule):
    """A name that no plugin provides, or a file that cannot be used.

    What it checks
    --------------
    Accelerators, models, engines, number formats, policies, trace formats and files that the spec names.

    Why it is bad
    -------------
    Everything that depends on the name stays unchecked.

    The arithmetic
    --------------
    None.

    How to fix
    ----------
    Use one of the names that the message suggests (``servelint catalog`` lists them), or install the plugin
    that provides it. A model needs no entry: its ``config.json`` is read where ``model.config`` names it.

    Source
    ------
    The catalogue of the installed plugins.
    """

    code = "SPEC004"
    name = "unknown-reference"
    severity = Severity.ERROR
    questions = ("is the spec valid",)
    reads_problems: ClassVar[bool] = True
    failing = (
        Case(
            "an accelerator with a typing error",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gbb" # expect: SPEC004
[model]
id = "meta-llama/Llama-3.1-8B"
""",
            flip=("hardware.accelerator", '"nvidia/h100-sxm5-80gb"'),
        ),
        Case(
            "a format that nobody provides",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.quantization]
kv_cache = "fp9" # expect: SPEC004
""",
            flip=("policy.quantization.kv_cache", '"fp8"'),
        ),
        Case(
            "a model of one's own",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "acme/private-7b" # expect: SPEC004
""",
            flip=("model.id", '"mistralai/Mistral-7B-v0.1"'),
        ),
    )
    passing = (
        Case(
            "names in another case",
            """\
servelint = 1
[hardware]
accelerator = "NVIDIA/H100-SXM5-80GB"
[model]
id = "meta-llama/llama-3.1-8b"
""",
        ),
        Case(
            "no names at all",
            """\
servelint = 1
[slo]
itl = { p99 = "50 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding]:
        """Yield a finding for every name that does not resolve."""
        yield from super().check(review)
        if review.document.deployment is None:
            return
        _ = (review.setup, review.mix, review.growth)
        for unresolved in dict.fromkeys(review.unresolved):
            # A manifest names things in its cluster's own words; that is no mistake, and nothing then is judged.
            severity = Severity.INFO if review.document.manifest else None
            help_ = _without_entry(review) if unresolved.path == ("model", "id") else ""
            yield Finding(unresolved.path, unresolved.message, help=help_, severity=severity)


def _without_entry(review: Review) -> str:
    """What can be done with a model that the catalogue does not have."""
    if review.document.manifest:
        return (
            "write a spec with `servelint import FILE --model ID`, ID being the published name of the model or of the "
            "one that it was made from; or name its config.json in that spec, in model.config"
        )
    return (
        "put the model's config.json beside the spec and name it in model.config (`servelint model config.json` shows "
        "what is read from it); or name the model that it was made from, and in policy.quantization.weights the format "
        "where it is stored in another"
    )
