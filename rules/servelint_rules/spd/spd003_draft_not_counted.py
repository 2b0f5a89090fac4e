"""SPD003 draft-not-counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, MemoryLedger, Related, Review, Rule, Severity
from servelint.spec.model import Claim
from servelint_rules.layouts import decode_side
from servelint_rules.show import counted, size, tokens

CLAIM = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.speculation]
method = "draft"
draft_model = "meta-llama/Llama-3.2-1B"
tokens = 3
acceptance = 0.7
[[claim]]
metric = "concurrency"
value = 42 # expect: SPD003
at = { context = 8192 }
"""
HEAD = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 4096
[policy.quantization]
weights = "fp8"
[policy.speculation]
method = "eagle" # expect: SPD003
acceptance = 0.7
[[evidence]]
kind = "task-eval"
artifact = "llama-3.1-70b-fp8"
tasks = { code = -0.1 }
"""


class DraftNotCounted(Rule):
    """A draft is part of the deployment, and not of its capacity.

    What it checks
    --------------
    A draft model, EAGLE head or MTP layer that is named without the number of tokens that it drafts, so that neither
    its memory nor its time is in any figure; and claims of a number of sequences at once that hold only without the
    draft's weights and cache. Where the weights, a request or the admitted sequences do not fit with the draft
    counted, MEM001, MEM002 and MEM003 say so.

    Why it is bad
    -------------
    The draft's weights stand on the same devices, and every sequence has a cache of the draft's layers, too. A plan
    without them admits sequences that are evicted, or does not start.

    The arithmetic
    --------------
    ``sequences = (memory - weights - draft weights) / (KV bytes + draft KV bytes of a sequence)``, against the same
    without the draft.

    How to fix
    ----------
    Declare ``policy.speculation.tokens`` as the engine is told; claim what fits beside the draft.

    Source
    ------
    docs/cost-model.md, speculation and memory.
    """

    code = "SPD003"
    name = "draft-not-counted"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why did it run out of memory", "is this claim possible")
    failing = (
        Case("sequences that fit only without the draft", CLAIM, flip=("claim[0].value", "41")),
        Case("a head that drafts nobody says how much", HEAD, flip=("policy.speculation.method", '"ngram"')),
    )
    passing = (
        Case("sequences that fit beside the draft", CLAIM.replace("42 # expect: SPD003", "41")),
        Case("more than fit even without the draft", CLAIM.replace("42 # expect: SPD003", "55")),
        Case("a number of drafted tokens", HEAD.replace('"eagle" # expect: SPD003', '"eagle"\ntokens = 3')),
        Case("drafting switched off", HEAD.replace('"eagle" # expect: SPD003', '"eagle"\ntokens = 0')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the memory ledgers with and without the draft."""
        composition, config = review.composition, review.policy("speculation")
        if composition is None or config is None:
            yield Lacks("a composed deployment")
            return
        drafts = config.draft_model is not None or config.method in ("draft", "eagle", "mtp")
        if drafts and config.tokens is None:
            yield from self._unnumbered(review, composition, config)
        elif config.active and config.method != "ngram":
            yield from self._claims(review, composition)

    def _unnumbered(self, review: Review, composition: Composition, config: Any) -> Iterator[Finding]:
        counted_in = review.variant(speculation=evolve(config, tokens=1))
        if counted_in is None:
            return
        without, beside = decode_side(composition).memory, decode_side(counted_in).memory
        weights = beside.weights_bytes - without.weights_bytes
        cache = beside.bytes_per_token() - without.bytes_per_token()
        if weights <= 0:
            return
        context = float(composition.max_model_len)
        before, after = without.resident_sequences(context), beside.resident_sequences(context)
        key = "method" if review.declared("policy", "speculation", "method") else "draft_model"
        name = config.draft_model or f"the {config.method} draft"
        yield Finding(
            ("policy", "speculation", key),
            f"{name} is declared without the tokens that it drafts, so no figure counts it: {size(weights)} of weights "
            f"and {size(cache)} of KV cache a token on a device, {counted(after, 'sequence')} of {tokens(context)} "
            f"tokens instead of {before:,}",
            equation=_ledger(without, beside, context),
            inputs=(Input("draft weights", weights, "B", review.source("policy", "speculation", key)),),
            help="declare policy.speculation.tokens, the number of tokens that the engine is told to draft",
            severity=Severity.WARNING if after < 1 <= before else Severity.INFO,
        )

    def _claims(self, review: Review, composition: Composition) -> Iterator[Finding]:
        claims = [(path, claim) for path, claim in review.claims if claim.metric == "concurrency"]
        alone = review.variant(speculation=None) if claims else None
        if alone is None:
            return
        beside, without = decode_side(composition).memory, decode_side(alone).memory
        for path, claim in claims:
            context = _context(review, claim)
            if context is None:
                continue
            copies = _replicas(review, composition, claim)
            fit, more = (m.resident_sequences(context) * copies for m in (beside, without))
            if fit < claim.value <= more:
                yield self._claim(review, path, claim, context, (without, beside), (more, fit))

    def _claim(
        self,
        review: Review,
        path: KeyPath,
        claim: Claim,
        context: float,
        ledgers: tuple[MemoryLedger, MemoryLedger],
        held: tuple[int, int],
    ) -> Finding:
        more, fit = held
        draft = ("policy", "speculation", "draft_model")
        if not review.declared(*draft):
            draft = ("policy", "speculation", "method")
        return Finding(
            (*path, "value"),
            f"{counted(claim.value, 'sequence')} of {tokens(context)} tokens are claimed, and {fit:,} fit beside the "
            f"draft; {more:,} would without it",
            equation=_ledger(*ledgers, context),
            inputs=(
                Input("claimed sequences", claim.value, "", review.source(*path, "value")),
                Input("context", context, "tok", review.source(*path)),
            ),
            help=f"claim at most {counted(fit, 'sequence')}",
            related=(Related(draft, "its weights and cache are on the same devices"),),
        )


def _context(review: Review, claim: Claim) -> float | None:
    """Tokens of a sequence that a claim is about: stated, else those of the workload in the mean."""
    at = claim.at
    if at is not None and at.context is not None:
        return at.context
    if at is not None and at.prompt_tokens is not None:
        return at.prompt_tokens + (at.output_tokens or 0.0) / 2
    return review.mix.mean_context if review.mix is not None else None


def _replicas(review: Review, composition: Composition, claim: Claim) -> int:
    """Replicas that decode, of those that a claim is about."""
    pools = composition.scheduler.disaggregation
    copies = 1 if pools is None else pools.decode.replicas
    return copies * (review.replicas if claim.per == "deployment" else 1)


def _ledger(without: MemoryLedger, beside: MemoryLedger, context: float) -> str:
    """How many sequences fit in each ledger, on the device that holds fewest."""

    def side(memory: MemoryLedger) -> str:
        stage = min(
            range(memory.stages), key=lambda s: memory.cache_left(s) / max(memory.sequence_bytes(context, s), 1e-9)
        )
        each = memory.sequence_bytes(context, stage)
        return f"{size(memory.cache_left(stage))} of KV memory a device / {size(each)} a sequence"

    return f"with the draft {side(beside)}; without {side(without)}"
