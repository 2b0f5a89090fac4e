"""SPD004 k-too-long."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Option, Review, Rule, Severity
from servelint.service import Service
from servelint.shapes import decode
from servelint_rules.averages import averaged
from servelint_rules.show import counted, duration
from servelint_rules.spd.gain import drafted, related, seconds

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
tokens = 6 # expect: SPD004
acceptance = 0.6
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 8
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-70b-fp8"
tasks = { code = -0.1 }
"""


class KTooLong(Rule):
    """The last drafted tokens cost more time than they are worth.

    What it checks
    --------------
    Whether a shorter draft yields at least the option ``gain`` more tokens a second at the batch that the deployment
    runs at, with a declared acceptance. Where drafting does not pay at all, SPD001 says so; a measured
    ``acceptance_length`` is of one draft length only and says nothing of others.

    Why it is bad
    -------------
    The chance that the k-th draft is kept falls with the power of k, while each costs a pass of the draft and a place
    in the verify step. Beyond the best length every token comes later, and throughput is lost.

    The arithmetic
    --------------
    ``tokens a second and sequence = (1 + a + ... + a^k) / (k x T_draft + T_verify(k + 1))``, largest at the length in
    the help line.

    How to fix
    ----------
    Draft as many tokens as the help line says, or let the engine adapt the length to the load.

    Source
    ------
    Leviathan et al., Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192), section 3.3.
    """

    code = "SPD004"
    name = "k-too-long"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("does speculation help", "why is throughput lower with a draft model")
    options = (Option("gain", 0.1, "share of tokens a second that a shorter draft has to add", 0.0, 10.0),)
    failing = (
        Case("six tokens of which the sixth is seldom kept", SPEC, flip=("policy.speculation.tokens", "5")),
        Case(
            "a look-up that is seldom right, under load",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.speculation]
method = "ngram"
tokens = 5 # expect: SPD004
acceptance = 0.5
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 64
""",
            flip=("workload.concurrency", "8"),
        ),
    )
    passing = (
        Case("one token fewer", SPEC.replace("tokens = 6 # expect: SPD004", "tokens = 5")),
        Case("six tokens that are mostly kept", SPEC.replace(" # expect: SPD004", "").replace("0.6", "0.9")),
        Case(
            "a measured length",
            SPEC.replace(" # expect: SPD004", "").replace("acceptance = 0.6", "acceptance_length = 2.5"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Look for a shorter draft that yields more."""
        scheduler, config = review.scheduler, review.policy("speculation")
        if scheduler is None or scheduler.verify_tokens <= 2 or config is None:
            return
        if review.assumption("policy", "speculation", "acceptance") or config.acceptance_length is not None:
            return
        point, alone = review.operating_point, review.variant(speculation=None)
        if point is None or alone is None:
            yield Lacks("an operating point (workload)")
            return
        k, least = scheduler.verify_tokens - 1, 1 + self.option("gain")
        yields = drafted(point, alone, config)
        best = max(range(1, k), key=yields)
        batch, context = max(point.batch, 1.0), point.service.mix.mean_context
        now = scheduler.tokens_per_step / point.service.seconds(decode(batch, context, k + 1.0))
        if now * seconds(point, alone)(decode(batch, context)) < 1 or yields(best) < yields(k) * least:
            return
        tried = review.variant(speculation=evolve(config, tokens=best))
        if tried is None:
            return
        service = Service(tried, point.service.mix, point.service.figure, open_loop=point.service.open_loop)
        kept = service.scheduler.tokens_per_step
        then = kept / service.seconds(decode(batch, context, best + 1.0))
        if then < now * least:
            return
        path = ("policy", "speculation", "tokens")
        chance = config.acceptance**k
        gives = "yields" if best == 1 else "yield"
        yield Finding(
            path,
            f"at {counted(batch, 'sequence')} the {_th(k)} drafted token is kept with a chance of {chance:.2g}: "
            f"{counted(best, 'drafted token')} {gives} {then:,.1f} tok/s a sequence instead of "
            f"{now:,.1f} (+{then / now - 1:.0%})",
            equation=(
                f"{scheduler.tokens_per_step:.3f} tokens / {duration(scheduler.tokens_per_step / now)} = {now:,.1f} "
                f"tok/s with {k}; {kept:.3f} / {duration(kept / then)} = {then:,.1f} tok/s with {best}"
            ),
            inputs=(
                review.policy_input("speculation", "tokens"),
                review.policy_input("speculation", "acceptance"),
                Input("sequences", batch, "", review.source("workload")),
                averaged(review, "mean context", context),
            ),
            help=f"set policy.speculation.tokens = {best}",
            related=related(review),
            fix=Fix(f"draft {counted(best, 'token')}", (Edit(path, str(best)),))
            if review.declared(*path) and not review.declared("engine", "args")
            else None,
        )


def _th(number: int) -> str:
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"
