"""SPD002 acceptance-undeclared."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.plugin import Case, Finding, Input, Lacks, Review, Rule, Severity
from servelint.shapes import decode
from servelint_rules.show import counted, duration
from servelint_rules.spd.gain import related, speedup

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[policy.speculation]
method = "draft"
draft_model = "meta-llama/Llama-3.2-1B"
tokens = 4 # expect: SPD002
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 8
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-70b-fp8"
tasks = { code = -0.1 }
"""


class AcceptanceUndeclared(Rule):
    """Drafts are made, and nobody says how many of them are kept.

    What it checks
    --------------
    Whether a deployment that speculates states an acceptance of its own traffic: ``acceptance``, or
    ``acceptance_length``. Advice, with the acceptance at which the speed-up ends at the batch that it runs at. Where
    even the assumed one gives no speed-up, SPD001 says so instead.

    Why it is bad
    -------------
    Acceptance differs between chat, code and other languages by more than everything else about a draft. Every
    latency and rate of the deployment then rests on a figure from somebody else's traffic.

    The arithmetic
    --------------
    ``speed-up = expected tokens x T_decode / (T_draft + T_verify)`` is 1 where the expected tokens, ``1 + a + ... +
    a^k``, are ``(T_draft + T_verify) / T_decode``; solved for a. Above 1 at every acceptance nothing rests on it.

    How to fix
    ----------
    Take the acceptance from the engine's counters under this workload (accepted over drafted tokens, or mean tokens a
    step) and declare it.

    Source
    ------
    Leviathan et al., Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192).
    """

    code = "SPD002"
    name = "acceptance-undeclared"
    severity = Severity.INFO
    confidence = "high"
    questions = ("does speculation help",)
    failing = (
        Case("a draft model", SPEC, flip=("policy.speculation.tokens", "0")),
        Case(
            "a look-up in the prompt",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.speculation]
method = "ngram"
tokens = 3 # expect: SPD002
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 4
""",
            flip=("policy.speculation.tokens", "0"),
        ),
    )
    passing = (
        Case("a measured acceptance", SPEC.replace("tokens = 4 # expect: SPD002", "tokens = 4\nacceptance = 0.7")),
        Case(
            "measured tokens a step",
            SPEC.replace("tokens = 4 # expect: SPD002", "tokens = 4\nacceptance_length = 2.8"),
        ),
        Case(
            "so many sequences that the assumed acceptance loses, which SPD001 says",
            SPEC.replace(" # expect: SPD002", "").replace("concurrency = 8", "concurrency = 500"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Find the acceptance at which drafting pays nothing."""
        scheduler = review.scheduler
        assumed = review.assumption("policy", "speculation", "acceptance")
        if scheduler is None or scheduler.verify_tokens == 1 or assumed is None:
            return
        point, alone = review.operating_point, review.variant(speculation=None)
        if point is None or alone is None:
            yield Lacks("an operating point (workload)")
            return
        batch, k, kept = max(point.batch, 1.0), scheduler.verify_tokens - 1, scheduler.tokens_per_step
        gain = speedup(point, alone)(batch)
        if gain < 1:
            return
        needed = kept / gain
        least = _acceptance(needed, k)
        if least <= 0:
            return
        own = point.service.seconds(decode(batch, point.service.mix.mean_context, k + 1.0))
        acceptance = review.policy("speculation").acceptance
        yield Finding(
            ("policy", "speculation", "tokens"),
            f"no acceptance is declared for {counted(k, 'drafted token')} a step: an assumed {acceptance:g} makes the "
            f"speed-up {gain:.2f} at {counted(batch, 'sequence')}, and below {least:.2f} there is none",
            equation=(
                f"a step takes {duration(own)} instead of {duration(own / needed)} without drafts, so it has to keep "
                f"{needed:.3f} tokens: 1 + a + ... + a^{k} = {needed:.3f} at a = {least:.2f}"
            ),
            inputs=(
                review.policy_input("speculation", "tokens"),
                Input("assumed acceptance", acceptance, "", assumed.source),
                Input("sequences", batch, "", review.source("workload")),
            ),
            help=f"measure it under this workload and declare policy.speculation.acceptance; it pays above {least:.2f}",
            related=related(review),
        )


def _acceptance(needed: float, k: int) -> float:
    """The acceptance at which a step of ``k`` drafts keeps so many tokens, in hundredths, rounded up."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(k + 1)) < needed else (low, middle)
    return math.ceil(high * 100 - 1e-3) / 100
