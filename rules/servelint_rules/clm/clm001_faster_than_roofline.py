"""CLM001 faster-than-roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeGuard

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import (
    Accelerator,
    Case,
    CatalogueError,
    Composition,
    Finding,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.spec.model import TOKENS_MAX, Claim, ClaimAssumes, ClaimAt
from servelint.spec.schema import Problems
from servelint_rules.clm.limits import Best, Sides, Terms, best, described, fitting, kept_at_most, read, sides
from servelint_rules.clm.samples import SPEC, changed
from servelint_rules.layouts import altered, on_accelerator
from servelint_rules.show import counted, duration, plural, sequences
from servelint_rules.slo.feasible import arithmetic, peaks

NARROWER = (("fp8", "weights in FP8"), ("int4", "weights in 4 bits"))
DRAFTS, ACCEPTANCE = 4, 0.8
"""A good draft on chat: four tokens drafted, each kept with a chance of 0.8."""
CACHED = 0.9
MOST_EXPLAINED = 8
"""Claims of a spec whose explanation is looked for: every assumption that is tried composes the deployment again."""
UNEXPLAINED = f"what would explain it is looked for in the first {MOST_EXPLAINED} such claims only"


class Verdict(NamedTuple):
    """The limit that a claim beats; ``certain`` when nothing that the claim leaves open makes it possible."""

    terms: Terms
    limit: Best
    certain: bool
    why: str


class Explanation(NamedTuple):
    """An assumption under which the claim may be possible, and the limit that it gives."""

    text: str
    limit: float


Change = Callable[[Composition], Composition | None]


class FasterThanRoofline(Rule):
    """A claimed rate or latency is better than the bound of the step that it takes.

    What it checks
    --------------
    Claims of throughput (of a replica, a device, the deployment, one user), request rate, TTFT, ITL and TPOT
    against the bound of the step at the claim's batch and lengths; where the claim is possible, the throughput and
    the time per token that its evidence measured, at the lengths of the run. What the claim does not state is taken
    from the workload, and the batch is the one of most throughput that memory holds. Tokens that speculation keeps
    and prompt tokens from the prefix cache count as the deployment's policies say. Claims at the bound itself
    are not meant here: the tolerance covers rounding.

    Why it is bad
    -------------
    Something that the figure rests on is not what is deployed: another device, fewer bits, sparse rates,
    drafted or cached tokens, another unit. A plan made from it is short by the same factor.

    The arithmetic
    --------------
    ``sequences x tokens kept a step / bound of the step``; ``bound`` is the largest of bytes over bandwidth,
    FLOPs over the dense rate, message bytes over the link. Each usual assumption is tried alone: the finding
    names those that make the claim possible, of each kind the smallest. Error when the claim beats even the
    bound with the fewest experts that routing can touch, an empty context where it states none, and every draft
    kept where nobody declared an acceptance; else warning.

    How to fix
    ----------
    State what the figure was measured on (``claim.at``, ``claim.assumes``, the policies), or correct it to what
    the help line says.

    Source
    ------
    docs/cost-model.md, bound; Williams, Waterman, Patterson, Roofline (2009).
    """

    code = "CLM001"
    name = "faster-than-roofline"
    weighs = True
    severity = Severity.ERROR
    questions = ("is this claim possible",)
    options = (Option("tolerance", 0.02, "how far beyond a bound a figure may lie and count as rounding", 0.0, 0.5),)
    failing = (
        Case(
            "single-stream speed of an FP8 checkpoint claimed for the 16-bit one",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 2
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 2048
[policy.kv_cache]
memory_utilization = 0.95
[policy.batching]
max_sequences = 8
max_batched_tokens = 512
[[claim]]
metric = "tpot"
value = "12 ms" # expect: CLM001
at = { batch = 1, context = 1000 }
""",
            flip=("claim[0].value", '"25 ms"'),
        ),
        Case(
            "prompt tokens counted as output",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[[claim]]
metric = "output_throughput"
value = "20000 tok/s" # expect: CLM001
at = { concurrency = 64, prompt_tokens = 1000, output_tokens = 200 }
""",
            flip=("claim[0].metric", '"total_throughput"'),
        ),
        Case(
            "a rate per device that is the whole replica's",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[[claim]]
metric = "throughput"
value = "3000 tok/s" # expect: CLM001
per = "device"
at = { batch = 64, context = 2000 }
""",
            flip=("claim[0].per", '"replica"'),
        ),
        Case(
            "one step beyond the tolerance",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "itl"
value = "9.284 ms" # expect: CLM001
at = { batch = 32, context = 4000 }
""",
            flip=("claim[0].at.batch", "16"),
        ),
        Case(
            "only tokens that share their experts could be that fast",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-30B-A3B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "1500 tok/s" # expect: CLM001
at = { batch = 8, context = 2000 }
""",
            flip=("claim[0].value", '"900 tok/s"'),
        ),
        Case(
            "a first token of a warm prefix cache",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[[claim]]
metric = "ttft"
value = "90 ms" # expect: CLM001
at = { prompt_tokens = 8000 }
""",
            flip=("claim[0].at.prompt_tokens", "1000"),
        ),
        Case(
            "a measurement of something else",
            SPEC
            + """\
[[claim]]
metric = "throughput"
value = "1000 tok/s"
at = { concurrency = 32 }
evidence = "bench.json" # expect: CLM001
""",
            flip=("hardware.accelerator", '"nvidia/b200-sxm6-180gb"'),
            files=(("bench.json", changed(mean_tpot_ms=4.0, median_tpot_ms=3.9, mean_e2el_ms=896.0)),),
        ),
    )
    passing = (
        Case(
            "the same of two replicas, either of which may have had half of the load",
            SPEC.replace("[model]", "replicas = 2\n[model]")
            + """\
[[claim]]
metric = "throughput"
value = "1000 tok/s"
at = { concurrency = 32 }
evidence = "bench.json"
""",
            files=(("bench.json", changed(mean_tpot_ms=4.0, median_tpot_ms=3.9, mean_e2el_ms=896.0)),),
        ),
        Case(
            "at the tolerance",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "itl"
value = "9.285 ms"
at = { batch = 32, context = 4000 }
""",
        ),
        Case(
            "tokens that speculation keeps",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[policy.speculation]
method = "eagle"
tokens = 3
acceptance = 0.8
[[claim]]
metric = "throughput"
value = "350 tok/s"
per = "user"
at = { batch = 1, context = 1000 }
""",
        ),
        Case(
            "a rate without a batch, below the most that memory holds",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[[claim]]
metric = "throughput"
value = "15000 tok/s"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every claim with the best that its step allows."""
        if not review.claims:
            yield Lacks("a claim")
            return
        if review.composition is None:
            yield Lacks("hardware.accelerator and model")
            return
        found = 0
        for path, claim in review.claims:
            terms, on = read(review, claim), sides(review, claim)
            if terms is None or on is None:
                continue
            verdict = self._verdict(review, on, terms)
            if verdict is not None:
                found += 1
                yield self._finding(review, path, claim, on, verdict, explain=found <= MOST_EXPLAINED)
                continue
            for measured in _measured(review, path, claim):
                terms, on = read(review, measured), sides(review, measured)
                verdict = self._verdict(review, on, terms) if terms is not None and on is not None else None
                if verdict is not None and on is not None:
                    found += 1
                    explain = found <= MOST_EXPLAINED
                    yield self._finding(review, path, measured, on, verdict, explain=explain, key="evidence")
                    break

    def _verdict(self, review: Review, on: Sides, terms: Terms) -> Verdict | None:
        tolerance = self.option("tolerance")
        limit = best(on, terms, "bound")
        if limit is None or not terms.beats(limit.value, tolerance):
            return None
        ideal = terms.most_favorable()
        least = best(on, ideal, "floor", kept_at_most(review, on.decode)) if ideal is not None else None
        if ideal is not None and least is not None and terms.beats(least.value, tolerance):
            return Verdict(ideal, least, True, "")
        if ideal is None or ideal != terms:
            why = "the workload's lengths, where the claim states none"
        elif review.architecture is not None and review.architecture.is_moe:
            why = "with the experts that its tokens are expected to reach"
        else:
            why = "with the drafts that are assumed to be accepted"
        return Verdict(terms, limit, False, why)

    def _finding(
        self,
        review: Review,
        path: KeyPath,
        claim: Claim,
        on: Sides,
        verdict: Verdict,
        *,
        explain: bool,
        key: str = "value",
    ) -> Finding:
        terms, limit = verdict.terms, verdict.limit
        value = (*path, key)
        said = "claimed" if key == "value" else "measured"
        least = "most" if terms.is_rate else "least"
        named = _named(terms, _explained(review, on, terms, self.option("tolerance"))) if explain else UNEXPLAINED
        name = claim.metric.replace("_", " ") if terms.is_rate else claim.metric.upper()
        return Finding(
            value,
            f"the {said} {name} of {terms.shown(terms.value)} is {_ratio(verdict)}: at {least} "
            f"{terms.shown(limit.value)} {described(terms, limit)}{f' ({verdict.why})' if verdict.why else ''}; "
            f"{named}",
            equation=_equation(on, terms, limit),
            inputs=(
                review.input(f"{said} {name}", claim.value, _unit(terms), *value),
                *_point_inputs(review, path, terms),
                *peaks(on.prefill if terms.kind == "ttft" else on.decode),
            ),
            help=(
                f"correct the figure to at {least} {terms.shown(limit.value)}, or state what it rests on in claim.at, "
                "claim.assumes or the policies"
                if key == "value"
                else "state in the spec what was measured, or measure what is deployed"
            ),
            related=_related(review, path),
            severity=Severity.ERROR if verdict.certain else Severity.WARNING,
            confidence="high" if verdict.certain else "medium",
        )


def _measured(review: Review, path: KeyPath, claim: Claim) -> Iterator[Claim]:
    """What the evidence of a claim says of the deployment, as claims in the terms of a bound.

    Nothing where it says that it is of something else (CLM003's), where its lengths are unknown, or where several
    replicas may have shared the load. The time per token is what the end-to-end latency leaves of it, for one that
    contradicts it is CLM009's; it is set beside one sequence alone, which nothing that runs beside it can beat.
    """
    evidence = review.evidence(path, claim)
    run = evidence.run if evidence is not None else None
    if run is None or review.replicas > 1 or (claim.assumes is not None and claim.assumes.accelerator is not None):
        return
    from servelint.measured import derived_tpot, differences

    prompt, output = run.prompt_tokens.get("mean"), run.output_tokens.get("mean")
    if not (_within(prompt, TOKENS_MAX) and _within(output, TOKENS_MAX)) or any(differences(review, run)):
        return
    derived = derived_tpot(run)
    pace = derived if derived is not None else run.tpot_s.get("mean")
    at = ClaimAt(prompt_tokens=prompt, output_tokens=output)
    hit = ClaimAssumes(prefix_hit=run.cache_hit) if _within(run.cache_hit, 1) else None
    most = evolve(at, concurrency=int(run.concurrency)) if _within(run.concurrency, TOKENS_MAX) else at
    for metric, figure, point in (
        ("tpot", pace, evolve(at, batch=1)),
        ("output_throughput", run.output_throughput, most),
    ):
        try:
            measured = Claim(metric, figure, at=point, assumes=hit)
        except Problems:
            # What no spec could claim, the file leaves out or has wrong: CLM009's.
            continue
        yield measured


def _within(figure: float | None, most: float) -> TypeGuard[float]:
    """Whether a file says a figure, and one that can be."""
    return figure is not None and 0 < figure <= most


def _ratio(verdict: Verdict) -> str:
    terms, limit = verdict.terms, verdict.limit.value
    can = "any schedule on this hardware allows" if verdict.certain else "this hardware plausibly allows"
    if terms.is_rate:
        return f"{terms.value / limit:.2f}x what {can}"
    return f"{limit / terms.value:.2f}x faster than {can}"


def _named(terms: Terms, explained: list[Explanation]) -> str:
    """The smallest assumption that explains the claim, and what else would."""
    if not explained:
        return "none of the usual assumptions alone (sparse rates, fewer bits, another device, speculation) explains it"
    first, *others = explained
    text = f"{first.text} would explain it ({terms.shown(first.limit)})"
    return text + (f"; so would {' or '.join(e.text for e in others[:2])}" if others else "")


def _unit(terms: Terms) -> str:
    return "s" if not terms.is_rate else "req/s" if terms.kind == "requests" else "tok/s"


def _point_inputs(review: Review, path: KeyPath, terms: Terms) -> Iterator[Input]:
    for name, value, keys in (
        ("sequences", terms.batch, ("batch", "concurrency")),
        ("context", terms.context, ("context", "prompt_tokens")),
        ("prompt", terms.prompt, ("prompt_tokens",)),
        ("output", terms.output, ("output_tokens",)),
    ):
        key = next((k for k in keys if review.declared(*path, "at", k)), None)
        if value and key is not None:
            yield review.input(name, value, "" if name == "sequences" else "tok", *path, "at", key)


def _related(review: Review, path: KeyPath) -> tuple[Related, ...]:
    places = [
        Related((*path, "at", key), "the point that the claim states")
        for key in ("batch", "concurrency", "context", "prompt_tokens")
        if review.declared(*path, "at", key)
    ][:1]
    if review.declared("hardware", "accelerator"):
        places.append(Related(("hardware", "accelerator"), "the hardware that it is claimed of"))
    return tuple(places)


def _equation(on: Sides, terms: Terms, limit: Best) -> str:
    side = on.prefill if terms.kind == "ttft" else on.decode
    step = arithmetic(side, limit.shape, limit.seconds)
    if not terms.is_rate and terms.kind != "tpot":
        return f"bound: {step}"
    kept = limit.value * limit.seconds if terms.kind == "user" else limit.seconds / limit.value
    if terms.kind in ("tpot", "user"):
        return (
            f"bound of a step: {step}; {plural(f'{kept:.3g}', 'token')} a sequence and step: {terms.shown(limit.value)}"
        )
    return (
        f"{counted(limit.batch, 'sequence')} a step of {duration(limit.seconds)} = {terms.shown(limit.value)}; "
        f"bound of the step: {step}"
    )


# What could explain a claim


def _explained(review: Review, on: Sides, terms: Terms, tolerance: float) -> list[Explanation]:
    """The assumptions that alone make the claim possible: of each kind the smallest, in the order of the kinds.

    First how the figure reads, then what is deployed, then drafted and cached tokens, then the point. What changes
    nothing is no explanation, since the claim beats what is deployed.
    """
    closest = min if terms.is_rate else max
    kinds = (list(_readings(review, on, terms)), *_changed(review, on, terms), *_elsewhere(on, terms))
    enough = ([e for e in kind if not terms.beats(e.limit, tolerance)] for kind in kinds)
    return [closest(kind, key=lambda e: e.limit) for kind in enough if kind]


def _changed(review: Review, on: Sides, terms: Terms) -> Iterator[list[Explanation]]:
    """Changes of what is deployed, by their kind: fewer bits, sparse rates, other devices, drafted tokens."""
    kinds: list[list[tuple[str, Change]]] = [
        [
            *((text, _quantized(weights=name)) for name, text in NARROWER),
            ("a KV cache in FP8", _quantized(kv_cache="fp8")),
        ],
        [("a compute rate with 2:4 structured sparsity", _sparse)],
        [
            (f"the bandwidth and compute of {other.name}", _placed(other))
            for other in _relatives(review, on.decode.setup.topology.accelerator)
        ],
    ]
    if on.decode.scheduler.verify_tokens == 1:
        kinds.append([(f"speculative decoding ({DRAFTS} drafts, {ACCEPTANCE:.0%} of them kept)", _drafted)])
    for kind in kinds:
        found = ((text, best(other, terms, "bound")) for text, change in kind if (other := on.changed(change)))
        yield [Explanation(text, limit.value) for text, limit in found if limit is not None]


def _sparse(composition: Composition) -> Composition | None:
    accelerator = composition.setup.topology.accelerator
    rates = {name: accelerator.sparse_flops.get(name) or rate for name, rate in accelerator.dense_flops.items()}
    return on_accelerator(composition, evolve(accelerator, dense_flops=rates))


def _quantized(**formats: str) -> Change:
    def change(composition: Composition) -> Composition | None:
        try:
            for name in formats.values():
                composition.context.format(name)
        except CatalogueError:
            return None
        config: Any = composition.context.configs["quantization"]
        return altered(composition, quantization=evolve(config, **formats))

    return change


def _placed(accelerator: Accelerator) -> Change:
    return lambda composition: on_accelerator(composition, accelerator)


def _drafted(composition: Composition) -> Composition | None:
    config: Any = composition.context.configs["speculation"]
    return altered(
        composition,
        speculation=evolve(config, method="ngram", tokens=DRAFTS, acceptance=ACCEPTANCE, acceptance_length=None),
    )


def _relatives(review: Review, own: Accelerator) -> Iterator[Accelerator]:
    """Other devices of the same family, or of the same architecture."""
    catalogue = review.plugins.accelerators
    vendor = own.id.partition("/")[0]
    for other in map(catalogue.get, (name for name in catalogue.ids() if name.startswith(f"{vendor}/"))):
        if other.id != own.id and (own.family == other.family or own.architecture == other.architecture):
            yield other


def _readings(review: Review, on: Sides, terms: Terms) -> Iterator[Explanation]:
    """Other readings of the figure itself: of more than it says, or with prompt tokens counted."""
    own = best(on, terms, "bound")
    if own is None:
        return
    if terms.unit == " per device":
        yield Explanation(f"a figure of all {terms.factor:.0f} devices", own.value * terms.factor)
    if terms.is_rate and not terms.unit:
        yield Explanation(f"a figure of all {review.replicas} replicas", own.value * review.replicas)
    if terms.kind == "user" and terms.batch is not None:
        yield Explanation(f"a figure of all {sequences(terms.batch)} sequences", own.value * terms.batch)
    if terms.kind == "output" and terms.prompt and terms.output:
        counted = best(on, terms._replace(kind="total"), "bound")
        if counted is not None:
            yield Explanation("counting prompt tokens with the output tokens", counted.value)


def _most(on: Sides, terms: Terms) -> str:
    """How many sequences run at once, and by what."""
    held, admitted = fitting(on, terms.context), on.decode.scheduler.max_sequences
    if admitted is None or admitted > held:
        return f"memory holds {sequences(held * on.copies)}"
    admits = f"max_sequences admits {sequences(admitted * on.copies)}"
    return admits if admitted == held else f"memory holds {sequences(held * on.copies)}, {admits}"


def _elsewhere(on: Sides, terms: Terms) -> Iterator[list[Explanation]]:
    """Other points, each a kind of its own: a prefix cache, more sequences, no context."""
    others = [(f"a prefix cache that holds {CACHED:.0%} of the prompts", terms._replace(prefix_hit=CACHED))]
    if terms.batch is not None and terms.kind in ("output", "total", "requests"):
        most = _most(on, terms)
        more = terms._replace(batch=None)
        others.append((f"more sequences at once than it states ({most})", more))
    others.append(("an empty context", terms._replace(context=0.0)))
    for text, other in others:
        if (found := best(on, other, "bound")) is not None:
            yield [Explanation(text, found.value)]
