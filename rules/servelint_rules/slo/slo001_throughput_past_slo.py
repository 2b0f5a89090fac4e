"""SLO001 throughput-past-slo."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Case, Edit, Finding, Fix, Input, Lacks, Related, Review, Rule, Severity
from servelint.service import Miss, Mix, Objective, Point, Service
from servelint.spec.model import Claim
from servelint_rules.averages import averaged
from servelint_rules.delays import delayed
from servelint_rules.derivation import latency_equation, named
from servelint_rules.show import counted, duration, floored, request_rate, token_rate
from servelint_rules.slo.chunks import stalled
from servelint_rules.slo.feasible import unreachable
from servelint_rules.variants import budget_edits, budget_key, larger_budgets, pieces, replicas_for, told, with_budget

THROUGHPUTS = ("throughput", "output_throughput", "total_throughput", "goodput")

PACES = ("itl", "tpot")
SMALLEST_CHUNK = 128
"""Prompt chunks below this many tokens re-read the weights so often that nobody runs them."""


class Run(NamedTuple):
    """A load on a replica, and the key that decides it: a rate, a number of sequences, or every slot taken.

    ``subject`` begins the sentence about it. ``bound`` and ``estimate`` are the replica in those two figures.
    """

    path: KeyPath
    subject: str
    estimate: Service
    bound: Service
    rate: float | None = None
    batch: float | None = None
    claim: Claim | None = None

    def point(self, service: Service) -> Point | None:
        """Where a replica stands under this load, None when it has no steady state there."""
        if self.rate is not None:
            return service.at_rate(self.rate)
        # Beyond the fullest point prompts arrive faster than steps take them: more never decode at once.
        most = service.fullest
        if most is None or self.batch is None:
            return most
        return service.point(min(self.batch, most.batch))

    def stated(self, objective: Objective) -> float | None:
        """The latency in seconds that the claim itself gives for the objective's percentile."""
        found = getattr(self.claim.at if self.claim is not None else None, _key(objective), None)
        # Whole seconds are read as a whole number.
        return None if found is None else float(found)


def _key(objective: Objective) -> str:
    return f"{objective.metric}_{objective.percentile}"


HOLDS = {
    "KV capacity": "the KV cache holds",
    "max_sequences": "max_sequences admits",
    "max_batched_tokens": "max_batched_tokens has room for",
}
"""How limits say how many sequences run."""


class Remedy(NamedTuple):
    """One alternative of the help line, and the edits that do it; none where it is not the spec's to write."""

    text: str
    edits: tuple[tuple[KeyPath, str], ...] = ()


class ThroughputPastSlo(Rule):
    """The configured or claimed operating point breaks a latency objective.

    What it checks
    --------------
    The point where the deployment runs, given by the offered rate, the declared concurrency, or full admission
    when neither is declared; and the point of every throughput claim. At each, every percentile of the SLO, by the
    latency that the claim itself states where it does.
    A claim at a batch or concurrency is judged in a closed loop, whose knee is not quite that of the declared rate.
    Objectives that one request alone does not meet are SLO005's and SLO006's; TTFT objectives that only cold grammar
    compiles or KV transfers break at the configured point are CND002's and DIS003's.

    Why it is bad
    -------------
    Throughput grows with the batch long after the latency objective is broken. A figure from beyond the knee
    is real and useless: no request inside the SLO is served at it.

    The arithmetic
    --------------
    The step time at the batch, plain and with a chunk of prompt, gives the percentile of the inter-token
    latency; queue and prefill give the time to first token. The knee is the largest batch at which every
    objective holds with its headroom. Error when even the bound breaks the objective, else warning.

    How to fix
    ----------
    Admit no more sequences than the knee, and add replicas for the load beyond it; or shorten the step: a
    smaller prefill chunk, fewer bits, more tensor parallelism. Quote the throughput of the knee.

    Source
    ------
    docs/cost-model.md, operating point and knee.
    """

    code = "SLO001"
    name = "throughput-past-slo"
    weighs = True
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is p99 bad", "is this claim possible")
    failing = (
        Case(
            "full admission far beyond the knee",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
kv_cache = "fp8"
[policy.batching]
max_sequences = 512 # expect: SLO001
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
[slo]
tpot = { p99 = "20 ms" }
""",
            flip=("policy.batching.max_sequences", "8"),
        ),
        Case(
            "a claim at a batch that breaks the objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[slo]
tpot = { p99 = "15 ms" }
[[claim]]
metric = "throughput"
value = "2500 tok/s"
at = { concurrency = 128 } # expect: SLO001
""",
            flip=("claim[0].at.concurrency", "16"),
        ),
        Case(
            "a claim that states a latency beyond the objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[slo]
itl = { p99 = "60 ms" }
[[claim]]
metric = "throughput"
value = "3000 tok/s"
at = { concurrency = 128, itl_p99 = "61 ms" } # expect: SLO001
""",
            flip=("claim[0].at.itl_p99", '"60 ms"'),
        ),
        Case(
            "a rate that one replica carries, but not within the objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
replicas = 1
[hardware.efficiency]
memory = 0.8
compute = 0.6
source = "bench/h100.json"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 512
[workload]
prompt_tokens = { p50 = 900, p99 = 1500 }
output_tokens = { p50 = 1200, p99 = 3000 }
rate = "3.2 req/s" # expect: SLO001
[slo]
tpot = { p99 = "12 ms" }
""",
            flip=("hardware.replicas", "4"),
        ),
    )
    passing = (
        Case(
            "the offered rate keeps the batch small, whatever admission allows",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 512
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[slo]
itl = { p99 = "50 ms" }
""",
        ),
        Case(
            "no objective, no knee",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 512
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
""",
        ),
        Case(
            "a claim that states a latency just within the objective",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[slo]
itl = { p99 = "25 ms" }
[[claim]]
metric = "throughput"
value = "3000 tok/s"
at = { concurrency = 128, itl_p99 = "25 ms" }
""",
        ),
        Case(
            "a claim of the whole deployment is shared by its replicas",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
replicas = 32
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 256
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "32 req/s"
[slo]
tpot = { p99 = "15 ms" }
[[claim]]
metric = "throughput"
value = "16000 tok/s"
per = "deployment"
at = { concurrency = 128 }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the operating point, and each claim's, with the SLO."""
        mix = review.mix
        if review.composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        if not review.objectives:
            yield Lacks("slo")
            return
        beyond = unreachable(review)
        for run in (_configured(review, mix), *_claimed(review, mix)):
            point = run.point(run.estimate)
            if point is None:
                continue
            misses = [m for m in _misses(review, run, point) if m.objective not in beyond]
            if misses and run.claim is None:
                late = delayed(review)
                misses = [m for m in misses if m.objective not in late]
            if misses:
                yield self._finding(review, run, point, misses)

    def _finding(self, review: Review, run: Run, point: Point, misses: list[Miss]) -> Finding:
        worst = max(misses, key=lambda m: m.seconds / m.objective.declared_s)
        objective, seconds = worst.objective, worst.seconds
        ideal = run.point(run.bound)
        least = [] if ideal is None else ideal.misses((objective,), declared=True)
        certain, stated = bool(least), run.stated(objective) is not None
        basis = "stated in the claim" if stated else "estimate"
        if least:
            basis += f"; {_is(least[0].seconds).removeprefix('is ')} by the bound, which nothing beats"
        metric = named(objective)
        knee = run.estimate.knee(review.objectives)
        remedies = list(_remedies(review, run, point, knee, objective))
        at_once = f"{_subject(run, point)} {counted(point.batch, 'sequence')} at once"
        return Finding(
            run.path,
            f"{at_once}, where {metric} {_is(seconds)} ({basis}), above the "
            f"objective of {duration(objective.declared_s)}; {_at_knee(review, run, point, knee, objective)}",
            equation=f"{'by the estimate, ' if stated else ''}{latency_equation(point, objective)}",
            inputs=(
                Input("sequences at once", _tenths(point.batch), "", review.source(*run.path)),
                averaged(review, "mean context", point.service.mix.mean_context),
                *_budget(review, point),
                *_stated(review, run, objective),
                review.input(f"objective of {metric}", objective.declared_s, "s", *review.objective_path(objective)),
                *_efficiency(review),
            ),
            help="; or ".join(remedy.text for remedy in remedies),
            related=(Related(review.objective_path(objective), f"the objective: {duration(objective.declared_s)}"),),
            fix=_fix(remedies[0].edits),
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence="high" if certain or stated else "medium",
        )


def _subject(run: Run, point: Point) -> str:
    """What runs so many sequences; where that is fewer than a declared concurrency, what keeps the others waiting."""
    if run.claim is not None or run.batch is None or point.batch >= run.batch * (1 - 1e-6):
        return run.subject
    limits = run.estimate.limits
    name = min(limits, key=lambda n: limits[n])
    holds = HOLDS[name] if point.batch >= run.estimate.batch_limit * (1 - 1e-6) else "prefill leaves time for"
    return f"of the {counted(run.batch, 'request')} that the declared concurrency keeps, {holds}"


def _misses(review: Review, run: Run, point: Point) -> list[Miss]:
    """Objectives that the point breaks; what a claim states of its own latency was measured and stands."""
    found = []
    for objective in review.objectives:
        stated = run.stated(objective)
        if stated is None:
            found += point.misses((objective,), declared=True)
        elif stated > objective.declared_s * (1 + 1e-9):
            found.append(Miss(objective, stated))
    return found


def _configured(review: Review, mix: Mix) -> Run:
    """Where the deployment itself runs: at its rate, at its concurrency, or with every slot taken."""
    services = review.service(mix), review.service(mix, "bound")
    rate, each = review.rate(), review.concurrency()
    if rate is not None:
        return Run(("workload", "rate"), f"{request_rate(rate)} a replica keep", *services, rate=rate)
    if each is not None:
        return Run(("workload", "concurrency"), "the declared concurrency keeps", *services, batch=each)
    if review.declared("policy", "batching", "max_sequences"):
        return Run(("policy", "batching", "max_sequences"), "full admission runs", *services)
    return Run(("slo",), "with neither rate nor concurrency declared, the assumed admission limit runs", *services)


def _claimed(review: Review, mix: Mix) -> Iterator[Run]:
    """Where each throughput claim was taken; a claim at a concurrency has no arrivals that queue."""
    composition = review.composition
    if composition is None:
        return
    for path, claim in review.claims:
        at = claim.at
        if claim.metric not in THROUGHPUTS or at is None:
            continue
        shared = _shared(review, claim)
        batch = at.batch or at.concurrency
        if batch is None and at.rate is None:
            continue
        closed = batch is not None
        key = "batch" if at.batch else "concurrency" if closed else "rate"
        estimate = Service(composition, mix, open_loop=not closed)
        yield Run(
            (*path, "at", key),
            f"{token_rate(claim.value)} are claimed at",
            estimate,
            Service(composition, mix, "bound", open_loop=not closed),
            None if closed or at.rate is None else at.rate / shared,
            max(1.0, float(-(-batch // (shared * estimate.decode_replicas)))) if batch is not None else None,
            claim,
        )


def _shared(review: Review, claim: Claim) -> int:
    """Replicas that a claim is about."""
    return review.replicas if claim.per == "deployment" else 1


def _tenths(batch: float) -> float:
    # A slow arrival of short outputs keeps far less than one sequence; 0 would say that nothing runs.
    return round(batch, 1) if batch >= 0.05 else float(f"{batch:.1g}")


def _is(seconds: float) -> str:
    return "grows without limit" if math.isinf(seconds) else f"is {duration(seconds)}"


def _at_knee(review: Review, run: Run, point: Point, knee: Point | None, objective: Objective) -> str:
    """What is left within every objective, and what the rest costs in latency."""
    slo = review.deployment.slo
    headroom = f" with {slo.headroom:.0%} headroom" if slo is not None and slo.headroom else ""
    if knee is None:
        return f"not even one sequence meets every objective{headroom}"
    # The knee of a deployment with a declared rate, as the cost report shows it, is another one.
    loop = " of a closed loop" if run.claim is not None and not run.estimate.open_loop and review.rate() else ""
    if knee.batch >= point.batch:
        return f"the estimate puts the knee{loop}{headroom} at {counted(knee.batch, 'sequence')}"
    gain = point.throughput / knee.throughput - 1
    return (
        f"the knee{loop}{headroom} is {counted(knee.batch, 'sequence')} with {named(objective)} at "
        f"{duration(knee.latency(objective.metric, objective.percentile))}: going past it adds {gain:.0%} throughput"
    )


def _stated(review: Review, run: Run, objective: Objective) -> tuple[Input, ...]:
    """The latency that the claim states, beside the estimate's."""
    stated = run.stated(objective)
    if stated is None:
        return ()
    path = (*run.path[:-1], _key(objective))
    return (review.input(f"{named(objective)} of the claim", stated, "s", *path),)


def _budget(review: Review, point: Point) -> tuple[Input, ...]:
    """The most prompt tokens that a step takes beside decoding."""
    return (review.policy_input("batching", budget_key(review), "tok"),) if point.chunk and point.mixed_share else ()


def _efficiency(review: Review) -> tuple[Input, ...]:
    """The sustained fractions that an estimate rests on."""
    composition = review.composition
    if composition is None:
        return ()
    efficiency = composition.setup.topology.efficiency
    inputs = []
    for name in ("memory", "compute"):
        assumed = review.assumption("hardware", "efficiency", name)
        source = assumed.source if assumed else review.source("hardware", "efficiency", name)
        inputs.append(Input(f"sustained {name} fraction", getattr(efficiency, name), "", source))
    return tuple(inputs)


def _remedies(review: Review, run: Run, point: Point, knee: Point | None, objective: Objective) -> Iterator[Remedy]:
    """What ends the finding, each with its number, the least change first."""
    other, said = None, ""
    if run.claim is None:
        other = _smaller_chunk(review, run, point, objective) or _larger_chunk(review, run, point, objective)
    if other is not None:
        chunk, seconds = other
        edits = (*(pieces(review).edits if objective.metric in PACES else ()), *budget_edits(review, chunk))
        said = f"set {told(edits)}"
        yield Remedy(f"{said}: {named(objective)} is then {duration(seconds)}", edits)
    within = _within_knee(review, run, point, knee, objective) if knee is not None else None
    # What shorter prompts a step do alone is said already.
    if within is not None and not (other is not None and within.text.startswith(f"{said},")):
        yield within
    if other is None and within is None:
        yield Remedy("shorten the step itself: fewer weight or KV bits, more tensor parallelism, a faster device")


def _within_knee(review: Review, run: Run, point: Point, knee: Point, objective: Objective) -> Remedy | None:
    """How to stay within the knee, None where no whole number of anything does."""
    replicas, most = review.replicas, math.floor(knee.batch)
    if run.claim is not None:
        return Remedy(_quote(review, run, run.claim, point, knee, objective))
    if run.rate is not None:
        needed = replicas_for(run.estimate, run.rate * replicas, review.objectives)
        carried = request_rate(floored(knee.rate * run.estimate.decode_replicas))
        if needed is None:
            return None
        text = f"set hardware.replicas = {needed} instead of {replicas}: each carries {carried} at the knee"
        then = run.estimate.at_rate(run.rate * replicas / needed)
        if then is not None and stalled(review, then) is not None:
            # SLO008 would speak of that number next.
            from servelint_rules.slo.sizes import Load, sizes

            _, other = sizes(review, Load(run.estimate.mix, run.rate * replicas, review.objectives))
            if other is not None:
                alone = f"{needed} replicas alone keep the objective only while long prompts are rare"
                return Remedy(f"set {told(other.edits)}, on {counted(other.devices, 'device')}: {alone}")
            return Remedy(f"{text}, which holds only while long prompts are rare (SLO008)")
        # Devices are bought, not edited into being: where the spec says nothing of replicas, nothing is written.
        declared = review.declared("hardware", "replicas")
        return Remedy(text, ((("hardware", "replicas"), str(needed)),) if declared else ())
    workload = review.deployment.workload
    wanted = workload.concurrency if workload is not None else None
    if run.batch is not None and wanted is not None and most:
        each = most * run.estimate.decode_replicas
        kept = (
            f"keep at most {counted(each * replicas, 'request')} in flight (workload.concurrency) for every objective"
        )
        return Remedy(f"{kept}, or set hardware.replicas = {math.ceil(wanted / each)} instead of {replicas}")
    admitted = _admitted(run, knee)
    if not admitted:
        return None
    path: KeyPath = ("policy", "batching", "max_sequences")
    edits = ((path, str(admitted)),) if review.declared(*path) else ()
    return Remedy(f"set policy.batching.max_sequences = {admitted}", edits)


def _quote(review: Review, run: Run, claim: Claim, point: Point, knee: Point, objective: Objective) -> str:
    share = knee.throughput / point.throughput
    if share >= 1:
        return f"quote what was measured with {named(objective)} within {duration(objective.declared_s)}"
    replicas = _shared(review, claim)
    decoding = run.estimate.decode_replicas * replicas
    at = f"at {counted(knee.batch * decoding, 'sequence')}"
    if run.rate is not None:
        at = f"at {request_rate(floored(knee.rate * decoding))}"
    return (
        f"quote at most {token_rate(math.floor(claim.value * share))} ({share:.0%} of the claim), {at}; the load that "
        f"is claimed then takes {math.ceil(review.replicas / share - 1e-9)} replicas instead of {review.replicas}"
    )


def _admitted(run: Run, knee: Point) -> int:
    """The admission limit that keeps to the knee, 0 where none does; engines count it for each rank."""
    return math.floor(knee.batch) // run.estimate.scheduler.ranks


def _smaller_chunk(review: Review, run: Run, point: Point, objective: Objective) -> tuple[int, float] | None:
    """The largest halving of the prompt chunk at which the same load meets every objective, and the latency then.

    Where prompts go first, of the chunk after each of which others decode: the one that there is, to begin with.
    """
    made = pieces(review)
    if objective.metric not in PACES or not point.mixed_share or not (point.chunk or made.edits):
        return None
    chunk = (getattr(review.policy("batching"), budget_key(review)) or 0) // (1 if made.edits else 2)
    while chunk >= SMALLEST_CHUNK:
        composition = with_budget(review, chunk, made.changes)
        if composition is None:
            return None
        then = run.point(Service(composition, run.estimate.mix, open_loop=run.estimate.open_loop))
        # A budget that no longer feeds the batch would meet the objective by doing less.
        carried = then is not None and (run.rate is not None or then.batch >= point.batch)
        if then is not None and carried and not then.misses(review.objectives, declared=True):
            return chunk, then.latency(objective.metric, objective.percentile)
        chunk //= 2
    return None


def _larger_chunk(review: Review, run: Run, point: Point, objective: Objective) -> tuple[int, float] | None:
    """The smallest doubling of the prompt chunk at which the same load meets every objective, and the latency then."""
    if objective.metric not in ("ttft", "e2e") or not point.chunk:
        return None
    for chunk, composition in larger_budgets(review):
        then = run.point(Service(composition, run.estimate.mix, open_loop=run.estimate.open_loop))
        carried = then is not None and (run.rate is not None or then.batch >= point.batch)
        if then is not None and carried and not then.misses(review.objectives, declared=True):
            return chunk, then.latency(objective.metric, objective.percentile)
    return None


def _fix(edits: tuple[tuple[KeyPath, str], ...]) -> Fix | None:
    """What the help line says first."""
    return Fix(f"set {told(edits)}", tuple(Edit(*edit) for edit in edits)) if edits else None
