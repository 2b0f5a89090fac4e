"""CTX003 context-beyond-model."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import (
    Architecture,
    Case,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.served import SCALED, positions, rescaled
from servelint_rules.show import tokens

LENGTH: KeyPath = ("model", "max_model_len")
REFUSING = ("vllm", "sglang")
"""Engines that do not start with a length above the model's own, unless a variable of theirs lets them."""
ALLOWING = {"vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}
"""The variables that let engines start with such a length."""


class ContextBeyondModel(Rule):
    """The longest context is above what the model's positions were trained or scaled for.

    What it checks
    --------------
    ``model.max_model_len`` against the positions of the model: those of its config, or what a declared rotary scaling
    makes of them. Silent where the launch arguments scale the positions (``--hf-overrides``, ``--rope-scaling``) or
    ``model.override.max_position`` says that the checkpoint reaches further. Without a length, a linear or dynamic
    scaling in the config of what vLLM or SGLang serve: engines and releases apply it or do not.

    Why it is bad
    -------------
    vLLM and SGLang refuse to start; the variables that let them are no scaling: beyond the trained positions the
    answers of a request decay into noise. A table of learned positions has no entries there at all.

    The arithmetic
    --------------
    ``max_model_len <= max_position_embeddings``, times the factor for linear and dynamic scaling;
    ``original x factor`` for YaRN where that is more.

    How to fix
    ----------
    The longest length that the model has; or a scaling that its card names, with ``model.override.max_position``.

    Source
    ------
    The config of the checkpoint. vllm-project/vllm#2565 (Yi-34B-Chat asked for 204,800 of 4,096 tokens; the 200K model
    is another checkpoint), #2518 (Med42 with a dynamic scaling: prompts over the unscaled length
    were refused), #44286 (the override without a scaling: an assert on the device, or noise).
    """

    code = "CTX003"
    name = "context-beyond-model"
    severity = Severity.ERROR
    questions = ("does it start", "how long may a request be")
    failing = (
        Case(
            "a 4K model asked for 200K",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "01-ai/Yi-34B"
max_model_len = 204800 # expect: CTX003
[engine]
name = "vllm"
version = "0.11.0"
""",
            flip=("model.max_model_len", "4096"),
        ),
        Case(
            "one token more than the config has",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 40961 # expect: CTX003
[engine]
name = "vllm"
version = "0.11.0"
""",
            flip=("model.max_model_len", "40960"),
        ),
        Case(
            "an engine that is not known to refuse",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 65536 # expect: CTX003
""",
            flip=("model.max_model_len", "32768"),
        ),
        Case(
            "a variable that lets the engine start",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 40961 # expect: CTX003
[engine]
name = "vllm"
version = "0.22.0"
env = { VLLM_ALLOW_LONG_MAX_MODEL_LEN = "1" }
""",
            flip=("model.max_model_len", "40960"),
        ),
    )
    passing = (
        Case(
            "the length of the config",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 40960
[engine]
name = "vllm"
version = "0.11.0"
""",
        ),
        Case(
            "scaled, and declared so",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 131072
override = { max_position = 131072 }
[engine]
name = "vllm"
version = "0.11.0"
""",
        ),
        Case(
            "scaled by a launch argument",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-8B"
[engine]
name = "vllm"
version = "0.9.0"
args = ["--max-model-len", "131072", "--rope-scaling", '{"rope_type": "yarn", "factor": 4.0}']
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the declared length with the model's positions."""
        length, architecture = review.deployment.model.max_model_len, review.architecture
        if length is None:
            yield from _open(review, architecture)
            return
        if architecture is None:
            yield Lacks("a model that resolves")
            return
        limit = positions(architecture)
        if not limit or length <= limit or rescaled(review):
            return
        engine = review.engine.name if review.engine is not None else ""
        certain = engine in REFUSING or architecture.positions is not None
        rope = architecture.rope_scaling
        has = "learned positions" if architecture.positions is not None else "positions"
        scaling = f", its {rope.kind} scaling included" if rope is not None else ", and no scaling is declared"
        refuses = f": {engine} refuses to start" if engine in REFUSING else ""
        if engine in ALLOWING and _allowed(review, ALLOWING[engine]):
            refuses = f": {ALLOWING[engine]} lets {engine} start, and what it says beyond them is noise"
        yield Finding(
            LENGTH,
            f"max_model_len is {tokens(length)} and {architecture.id} has {tokens(limit)} {has}{scaling}{refuses}",
            equation=f"{tokens(length)} > {tokens(limit)}",
            inputs=(
                review.input("max_model_len", length, "tok", *LENGTH),
                Input("positions", limit, "tok", Source("model", architecture.id, "max_position_embeddings")),
            ),
            help=(
                f"set model.max_model_len = {limit}; where the model card names a scaling, launch with it and state "
                "what it reaches in model.override.max_position"
            ),
            related=(Related(("model", "id"), f"{tokens(limit)} positions"),) if review.declared("model", "id") else (),
            fix=Fix(f"set max_model_len to {limit}", (Edit(LENGTH, str(limit)),)),
            severity=Severity.ERROR if certain else Severity.WARNING,
        )


def _open(review: Review, architecture: Architecture | None) -> Iterator[Finding]:
    """A length that nobody says, of a config whose scaling can be read twice."""
    engine = review.engine.name if review.engine is not None else ""
    if architecture is None or engine not in REFUSING or rescaled(review):
        return
    low, high, rope = architecture.max_position, positions(architecture), architecture.rope_scaling
    if rope is None or rope.kind not in SCALED or high <= low:
        return
    path: KeyPath = ("model", "id") if review.declared("model", "id") else ("model", "config")
    yield Finding(
        path,
        f"the config has {tokens(low)} positions and a {rope.kind} scaling by {rope.factor:g}, and no max_model_len is "
        f"declared: {engine} takes {tokens(high)} where it applies the scaling and refuses what is over {tokens(low)} "
        "where it does not",
        equation=f"{tokens(low)} x {rope.factor:g} = {tokens(high)}",
        inputs=(Input("positions", low, "tok", Source("model", architecture.id, "max_position_embeddings")),),
        help="set model.max_model_len to the length that the model card gives, and launch with it",
        severity=Severity.WARNING,
        confidence="medium",
    )


def _allowed(review: Review, variable: str) -> bool:
    """Whether the environment of the engine sets a variable."""
    launched = review.document.launched
    word = launched.invocation.env.get(variable) if launched is not None else None
    return word is not None and word.text.lower() in ("1", "true")
