"""SPD001 speculation-at-high-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve

from servelint.composition import Composition
from servelint.plugin import Case, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint.service import Point, Service
from servelint.shapes import decode
from servelint_rules.averages import averaged
from servelint_rules.show import counted, duration, plural
from servelint_rules.spd.gain import drafted, related, seconds
from servelint_rules.spd.gain import speedup as speedup_of

STEPS_PER_OCTAVE = 2
"""Batches at which the curve is looked at; crossings between them are refined."""


class SpeculationAtHighBatch(Rule):
    """At the operating batch, drafting and verifying takes longer than the tokens it yields would.

    What it checks
    --------------
    The speed-up of speculation at the batch that the deployment runs at: below the option ``speedup``, it is
    reported with the batches at which that is so. Without a declared acceptance this is advice.

    Why it is bad
    -------------
    Speculation spends idle compute to save memory traffic. A large batch leaves no compute idle: k+1 tokens a
    sequence cost nearly k+1 times as much, and everything that is drafted and rejected is lost throughput.

    The arithmetic
    --------------
    ``speed-up = expected tokens x T_decode / (T_draft + T_verify)``; expected tokens are (1 - a^(k+1)) / (1 -
    a). Times are estimates of plain decode steps at the mean context. On mixtures of experts a small batch can
    lose too, since verifying touches more experts.

    How to fix
    ----------
    Draft fewer tokens, or speculate only below the batch in the message, which engines can do by themselves.

    Source
    ------
    Leviathan et al., Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192).
    """

    code = "SPD001"
    name = "speculation-at-high-batch"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("does speculation help", "why is throughput lower with a draft model")
    options = (Option("speedup", 1.0, "speed-up below which speculation is reported", 0.1, 10.0),)
    failing = (
        Case(
            "a draft model under a full batch",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 512
[policy.speculation]
method = "draft"
draft_model = "meta-llama/Llama-3.2-1B"
tokens = 4 # expect: SPD001
acceptance = 0.7
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 384
""",
            flip=("workload.concurrency", "8"),
        ),
        Case(
            "n-gram drafts that are never kept",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.speculation]
method = "ngram"
tokens = 1 # expect: SPD001
acceptance = 0.0
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 1
""",
            flip=("policy.speculation.acceptance", "0.1"),
        ),
    )
    passing = (
        Case(
            "a draft model for a few sequences",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 512
[policy.speculation]
method = "draft"
draft_model = "meta-llama/Llama-3.2-1B"
tokens = 4
acceptance = 0.7
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 8
""",
        ),
        Case(
            "one n-gram draft in ten is kept",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.speculation]
method = "ngram"
tokens = 1
acceptance = 0.1
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 1
""",
        ),
        Case(
            "k of zero drafts nothing",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[policy.speculation]
method = "ngram"
tokens = 0
acceptance = 0.0
[workload]
prompt_tokens = 500
output_tokens = 300
concurrency = 1
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare a verify step with the decode steps that it replaces."""
        scheduler = review.scheduler
        if scheduler is None or scheduler.verify_tokens == 1:
            return
        point, alone = review.operating_point, review.variant(speculation=None)
        if point is None or alone is None:
            yield Lacks("an operating point (workload)")
            return
        speedup = speedup_of(point, alone)
        # Less than one sequence on average: steps are those of one.
        batch = max(point.batch, 1.0)
        gain = speedup(batch)
        if gain >= self.option("speedup"):
            return
        assumed = review.assumption("policy", "speculation", "acceptance") is not None
        kept, k, context = scheduler.tokens_per_step, scheduler.verify_tokens - 1, point.service.mix.mean_context
        plain = seconds(point, alone)(decode(batch, context))
        verify = point.service.seconds(decode(batch, context, k + 1.0))
        where = _where(self._below(speedup, max(point.service.batch_limit, batch)))
        known = next(
            (n for n in ("acceptance_length", "acceptance") if getattr(review.policy("speculation"), n) is not None),
            "acceptance",
        )
        yield Finding(
            ("policy", "speculation", "tokens" if review.declared("policy", "speculation", "tokens") else "method"),
            f"at {counted(batch, 'sequence')} drafting {counted(k, 'token')} gives a speed-up of {_ratio(gain)}: a "
            f"step takes {duration(verify)} instead of {duration(plain)} and keeps {kept:.2f} tokens; it is below "
            f"{self.option('speedup'):g} {where}",
            equation=f"{plural(f'{kept:.4g}', 'token')} x {duration(plain)} / {duration(verify)} = {_ratio(gain)}",
            inputs=(
                review.policy_input("speculation", "tokens"),
                review.policy_input("speculation", known),
                Input("sequences", batch, "", review.source("workload")),
                averaged(review, "mean context", context),
            ),
            help=self._help(review, point, alone, k, where),
            related=related(review),
            severity=Severity.INFO if assumed else Severity.WARNING,
            confidence="low" if assumed else "medium",
        )

    def _below(self, speedup: Callable[[float], float], limit: float) -> list[tuple[int, int | None]]:
        """Ranges of batches with too small a speed-up, ends included; None for the batch limit."""
        least, octaves = self.option("speedup"), 0.0
        batches = [1]
        while batches[-1] < limit:
            octaves += 1 / STEPS_PER_OCTAVE
            batches.append(min(max(round(2**octaves), batches[-1] + 1), int(limit)))
        below = [speedup(float(b)) < least for b in batches]
        ranges: list[tuple[int, int | None]] = []
        start = 1 if below[0] else None
        for i in range(1, len(batches)):
            if below[i] == below[i - 1]:
                continue
            low, high = batches[i - 1], batches[i]
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if (speedup(float(middle)) < least) == below[i - 1] else (low, middle)
            if below[i]:
                start = high
            elif start is not None:
                ranges.append((start, low))
                start = None
        return ranges if start is None else [*ranges, (start, None)]

    def _help(self, review: Review, point: Point, alone: Composition, k: int, where: str) -> str:
        config = review.policy("speculation")

        def pays(fewer: int) -> bool:
            tried = review.variant(speculation=evolve(config, tokens=fewer))
            if tried is None:
                return False
            service = Service(tried, point.service.mix, point.service.figure, open_loop=point.service.open_loop)
            return speedup_of(service.point(point.batch), alone)(max(point.batch, 1.0)) >= self.option("speedup")

        most = longest_paying(pays, k) if config.acceptance is not None else 0
        if most:
            best = max(range(1, most + 1), key=drafted(point, alone, config))
            if best < most and pays(best):
                # The longest that pays is worth nothing: what is named is the one that gives most.
                up_to = f" ({counted(most, 'token')} just pay)"
            else:
                best, up_to = most, ""
            return f"set policy.speculation.tokens = {best} at this batch{up_to}, or do not speculate {where}"
        return f"no shorter draft pays at this batch: do not speculate {where}".replace("every", "any")


def longest_paying(pays: Callable[[int], bool], tokens: int) -> int:
    """Longest draft of fewer tokens that pays, 0 when none does.

    Each length takes a composition, so they are tried a fifth apart; next to the first that pays the limit is
    bisected. The speed-up rises to one draft length and falls from there, so nothing is passed over but a range
    narrower than a fifth.
    """
    high = tokens
    while high > 1:
        low = min(high - 1, high * 4 // 5)
        if not pays(low):
            high = low
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if pays(middle) else (low, middle)
        return low
    return 0


def _ratio(gain: float) -> str:
    """A speed-up in two digits, or as many as tell it from 1."""
    return f"{gain:.2f}" if abs(gain - 1) > 0.005 else f"{gain:.5f}"


def _where(ranges: list[tuple[int, int | None]]) -> str:
    parts = [
        f"from {first:,} sequences on"
        if last is None
        else f"at {first:,}"
        if first == last
        else f"at {first:,} to {last:,}"
        for first, last in ranges
    ]
    return " and ".join(parts).replace("from 1 sequences on", "at every batch")
