"""CTX001 long-context-risk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from servelint.distribution import Lengths
from servelint.lineage import KeyPath, dotted
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Related, Review, Rule, Severity
from servelint.service import Mix, Point, Service
from servelint.spec.model import Workload
from servelint_rules.averages import averaged
from servelint_rules.binding import Binding, binding, cache_equation, certainly_over, rate_equation
from servelint_rules.derivation import latency_equation, named
from servelint_rules.layouts import NODE, decode_side, parallelism, widened, within_fast_links
from servelint_rules.show import counted, duration, floored, request_rate, request_rates, tokens
from servelint_rules.variants import budget_key, larger_budgets, narrower_cache, replicas_for, sound

MENDED = 6
"""Scenarios that remedies are worked out for, at up to a tenth of a second each on a deep pipeline."""
QUANTILES = ("min", "max", "p")
"""Keys of prompt lengths that a limit caps start like this; a mean or a deviation it changes otherwise."""


class Scenario(NamedTuple):
    """A mix of requests and the load of the whole deployment: requests/s, or else requests at once.

    ``of`` is the mix whose longest percent stands for all requests in ``mix``.
    """

    mix: Mix
    rate: float | None
    concurrency: float | None
    of: Mix | None = None

    def capped(self, prompt: Lengths) -> Scenario:
        """The same load with other prompts."""
        if self.of is None:
            return self._replace(mix=self.mix._replace(prompt=prompt, total=None))
        capped = self.of._replace(prompt=prompt, total=None)
        return self._replace(mix=_longest(capped), of=capped)


class Verdict(NamedTuple):
    """Why a scenario does not work: in words and derived, whether a bound already says so, and the limit's key."""

    reason: str
    equation: str
    certain: bool
    path: KeyPath | None = None
    limit: str = ""
    cache: bool = False


class LongContextRisk(Rule):
    """Longer contexts that the spec announces break what holds at the context the fleet was sized for.

    What it checks
    --------------
    Every ``[[workload.growth]]`` scenario, and the base workload's p99 when ``deployment.sized_for`` lies
    below it: does the same deployment still carry the load, keep the SLO and hold one sequence, given that it
    does at the sized-for context?

    Why it is bad
    -------------
    A feature that takes contexts from 4K to 64K multiplies the prompt tokens to prefill, the KV cache that a
    sequence holds and the bytes that each decode step reads by 16: rate, concurrency and latency fall together, on
    the day the feature ships. Which of them breaks first decides what helps, so the message names it.

    The arithmetic
    --------------
    That of the limit that binds: ``prompt tokens a step / prompt tokens a request / step`` where prompts fill the
    steps, ``sequences x tokens a step / output tokens / step`` where no more sequences are admitted, ``KV memory /
    bytes of a sequence`` where the cache is full, the parts of the percentile where an objective breaks.

    How to fix
    ----------
    One of the edits in the help line; each has been composed and priced, and ends this finding alone. Where none
    does, long requests want a deployment of their own.

    Source
    ------
    docs/cost-model.md, KV cache and operating point.
    """

    code = "CTX001"
    name = "long-context-risk"
    weighs = True
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why did it run out of memory", "why is p99 bad", "what happens at long context")
    failing = (
        Case(
            "document upload takes prompts from 1K to 32K",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "4 req/s"
[[workload.growth]]
name = "document upload"
prompt_tokens = { p50 = 32000, p99 = 100000 } # expect: CTX001
[slo]
itl = { p99 = "200 ms" }
""",
            flip=("workload.growth[0].prompt_tokens", "{ p50 = 1200, p99 = 5000 }"),
        ),
        Case(
            "sized for 4K, p99 at 60K",
            """\
servelint = 1
[deployment]
sized_for = 4096
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 65536
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = { p50 = 1000, p90 = 3000, p99 = 60000 } # expect: CTX001
output_tokens = 200
rate = "0.05 req/s"
""",
            flip=("workload.prompt_tokens.p99", "3500"),
        ),
    )
    passing = (
        Case(
            "growth that the deployment carries",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
rate = "1 req/s"
[[workload.growth]]
name = "longer chats"
prompt_tokens = { p50 = 2000, p99 = 8000 }
[slo]
itl = { p99 = "200 ms" }
""",
        ),
        Case(
            "no growth, and the size covers the p99",
            """\
servelint = 1
[deployment]
sized_for = 8192
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = 200
rate = "1 req/s"
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what holds at the sized-for context with what is announced."""
        mix, sized = review.mix, review.sized_for
        if review.composition is None or mix is None or sized is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        if not review.growth and not review.declared("deployment", "sized_for"):
            yield Lacks("workload.growth or deployment.sized_for")
            return
        workload = review.deployment.workload
        today = Scenario(mix, None, None) if workload is None else Scenario(mix, workload.rate, workload.concurrency)
        base = today._replace(mix=mix.at_context(sized)) if review.declared("deployment", "sized_for") else today
        if _broken(review, review.composition, base) is not None:
            # Already broken at what it was sized for: other rules say so.
            return
        edits = Edits(review, review.composition)
        for i, grown in review.growth:
            case = _scenario(grown, today, workload.growth[i] if workload is not None else None)
            verdict = _verdict(review, review.composition, case)
            if verdict is not None:
                path: KeyPath = ("workload", "growth", i)
                keys = ("prompt_tokens", "output_tokens", "trace", "rate", "concurrency")
                key = next((k for k in keys if review.declared(*path, k)), None)
                yield self._finding(edits, (*path, key) if key else path, base, case, sized, verdict)
        if review.declared("deployment", "sized_for") and mix.context(0.99) > sized:
            case = today._replace(mix=_longest(mix), of=mix)
            verdict = _verdict(review, review.composition, case)
            if verdict is not None:
                key = "trace" if review.declared("workload", "trace") else "prompt_tokens"
                yield self._finding(edits, ("workload", key), base, case, sized, verdict)

    def _finding(
        self,
        edits: Edits,
        path: KeyPath,
        base: Scenario,
        case: Scenario,
        sized: float,
        verdict: Verdict,
    ) -> Finding:
        review = edits.review
        then, now = case.mix.mean_context, base.mix.mean_context
        longer = f" takes the mean context from {tokens(now)} to {tokens(then)} tokens ({then / now:.1f}x)"
        if case.of is not None:
            longer = f" is {then / now:.1f}x what is sized for"
        return Finding(
            path,
            f"{case.mix.name}{longer if then > now else ''}: {verdict.reason}",
            equation=verdict.equation,
            inputs=(
                averaged(review, "mean prompt", case.mix.prompt.mean, path),
                averaged(review, "mean context", then, path),
                *_inputs(review, verdict),
            ),
            help="; or ".join(edits.mending(path, case))
            or "a deployment of its own for these requests: no single change of this one carries them",
            related=(
                Related(_sized_path(review), f"sized for a context of {tokens(sized)} tokens"),
                *((Related(verdict.path, verdict.limit),) if verdict.path else ()),
            ),
            severity=Severity.ERROR if verdict.certain else Severity.WARNING,
            confidence="high" if verdict.certain else "medium",
        )


def _inputs(review: Review, verdict: Verdict) -> tuple[Input, ...]:
    """What the verdict rests on beside the lengths: the cache, or the token budget of a step."""
    memory = review.memory
    if verdict.cache and memory is not None and memory.caches:
        each = Input("KV bytes per token and device", memory.bytes_per_token(), "B", memory.cache_source)
        return (each, *memory.budget_lineage.inputs)
    return (review.policy_input("batching", budget_key(review), "tok"),)


def _sized_path(review: Review) -> KeyPath:
    if review.declared("deployment", "sized_for"):
        return ("deployment", "sized_for")
    return ("workload", "prompt_tokens") if review.declared("workload", "prompt_tokens") else ("workload",)


def _longest(mix: Mix) -> Mix:
    """Every request as long as the longest percent of a mix."""
    context = mix.context(0.99)
    return mix.at_context(context)._replace(name=f"the workload's own p99 of {tokens(context)} tokens")


def _scenario(mix: Mix, today: Scenario, declared: Workload | None) -> Scenario:
    if declared is None:
        return today._replace(mix=mix)
    rate = today.rate if declared.rate is None else declared.rate
    return Scenario(mix, rate, today.concurrency if declared.concurrency is None else declared.concurrency)


# What breaks


def _verdict(review: Review, composition: Composition, case: Scenario) -> Verdict | None:
    """Say why a deployment does not work under a scenario, None when it does."""
    why = _broken(review, composition, case)
    return None if why is None else why()


def _broken(
    review: Review, composition: Composition, case: Scenario, replicas: int | None = None
) -> Callable[[], Verdict] | None:
    """Return what says why a deployment of so many replicas does not work under a scenario, None when it does.

    Whether takes a few prices, why takes many more, and of most edits only the former matters.
    """
    mix, memory, final = case.mix, decode_side(composition).memory, case.mix.context(0.99)
    shared = composition is review.composition and mix is review.mix
    replicas, closed = replicas or review.replicas, case.rate is None
    service = review.service(mix) if shared else Service(composition, mix, open_loop=not closed)
    if memory.resident_sequences(final) < 1 or service.batch_limit < 1:
        longest = final if memory.resident_sequences(final) < 1 else mix.mean_context
        reason = f"not one sequence of {tokens(longest)} tokens fits in the KV cache"
        return lambda: Verdict(reason, cache_equation(service, longest), True, cache=True)
    ideal = Service(composition, mix, "bound", open_loop=not closed)
    if case.rate is not None:
        rate = case.rate / replicas
        point = service.at_rate(rate)
        if point is None:
            return lambda: _overload(review, service, ideal, rate)
        return _misses(review, point, lambda: ideal.at_rate(rate))
    point = service.fullest
    if case.concurrency is not None:
        each = math.ceil(case.concurrency / (replicas * service.decode_replicas))
        fitting = service.limits["KV capacity"]
        if fitting < each:
            wanted = counted(each, "sequence")
            reason = f"{wanted} at once are declared for a replica and its KV cache holds {fitting:,}"
            return lambda: Verdict(reason, cache_equation(service, mix.mean_context), True, cache=True)
        point = service.point(min(float(each), point.batch)) if point is not None else None
    return None if point is None else _misses(review, point, lambda: ideal.point(point.batch))


def _overload(review: Review, service: Service, ideal: Service, rate: float) -> Verdict:
    bound_by, certain = binding(review, service), certainly_over(review, ideal, rate)
    offered, most = request_rates(rate, service.max_rate)
    least = f" ({request_rate(ideal.max_rate)} by the bound)" if certain else ""
    return Verdict(
        f"{offered} a replica are offered and at most {most}{least} can be carried, whatever the latency: "
        f"{bound_by.text}",
        "; ".join(_rate_equations(service, bound_by)),
        certain,
        bound_by.path,
        bound_by.text,
        bound_by.kind == "KV capacity",
    )


def _rate_equations(service: Service, bound_by: Binding) -> Iterator[str]:
    if bound_by.kind == "KV capacity":
        yield cache_equation(service, service.mix.mean_context)
    yield rate_equation(service, bound_by)


def _misses(review: Review, point: Point, at_best: Callable[[], Point | None]) -> Callable[[], Verdict] | None:
    if all(point.meets(objective, declared=True) for objective in review.objectives):
        return None
    return lambda: _slow(review, point, at_best)


def _slow(review: Review, point: Point, at_best: Callable[[], Point | None]) -> Verdict:
    misses = point.misses(review.objectives, declared=True)
    worst = max(misses, key=lambda m: m.seconds / m.objective.declared_s)
    objective = worst.objective
    becomes = "grows without limit" if math.isinf(worst.seconds) else f"becomes {duration(worst.seconds)}"
    best = at_best()
    least = [] if best is None else best.misses((objective,), declared=True)
    if least and math.isfinite(least[0].seconds):
        becomes += f" ({duration(least[0].seconds)} by the bound)"
    return Verdict(
        f"{named(objective)} {becomes} at {counted(point.batch, 'sequence')} a replica, above the objective of "
        f"{duration(objective.declared_s)}",
        latency_equation(point, objective),
        best is None or bool(least),
        review.objective_path(objective),
        f"the objective: {duration(objective.declared_s)}",
    )


# What helps


class Edits:
    """Edits of a deployment, each composed once for all scenarios and asked once about the workload of today."""

    def __init__(self, review: Review, composition: Composition) -> None:
        self.review = review
        self.composition = composition
        self._more = larger_budgets(review)
        self._budgets: list[tuple[int, Composition]] = []
        self._wider: dict[int, Composition | None] = {}
        self._today: dict[Composition, bool] = {}
        self._left = MENDED

    def mending(self, path: KeyPath, case: Scenario) -> Iterator[str]:
        """Edits that end the finding; for scenarios after the first ones that break, to mend those first."""
        self._left -= 1
        if self._left < 0:
            return iter((f"mend the first {MENDED} scenarios that break: remedies are worked out for those",))
        return _remedies(self, path, case)

    @cached_property
    def narrow(self) -> Composition | None:
        """An FP8 KV cache, where that is an edit."""
        return narrower_cache(self.review)

    def budgets(self) -> Iterator[tuple[int, Composition]]:
        """Larger token budgets of a step."""
        yield from self._budgets
        for more in self._more:
            self._budgets.append(more)
            yield more

    def wider(self, factor: int) -> Composition | None:
        """``factor`` times the tensor parallelism."""
        if factor not in self._wider:
            self._wider[factor] = sound(self.review, widened(self.composition, factor))
        return self._wider[factor]

    def work(self, other: Composition, case: Scenario) -> bool:
        """Whether the edited deployment carries the scenario, and still the workload of today."""
        review = self.review
        mix, workload = review.mix, review.deployment.workload
        if mix is None or workload is None or _broken(review, other, case) is not None:
            return False
        if other not in self._today:
            today = Scenario(mix, workload.rate, workload.concurrency)
            self._today[other] = _broken(review, other, today) is None
        return self._today[other]


def _remedies(edits: Edits, path: KeyPath, case: Scenario) -> Iterator[str]:
    """Edits of the spec that end the finding, each composed and priced; those without new hardware first."""
    review, composition = edits.review, edits.composition
    narrow, cache = edits.narrow, 'policy.quantization.kv_cache = "fp8"'
    cached = narrow is not None and edits.work(narrow, case)
    if cached:
        yield f"set {cache}"
    for budget, other in edits.budgets():
        if edits.work(other, case):
            yield f"set policy.batching.{budget_key(review)} = {budget}"
            break
    replicas = _replicas(review, composition, case)
    if replicas is not None:
        yield f"set hardware.replicas = {replicas} instead of {review.replicas}"
    fewer = _replicas(review, narrow, case) if narrow is not None and not cached else None
    if fewer is not None and (replicas is None or fewer < replicas):
        yield f"set {cache} and hardware.replicas = {fewer}"
    yield from _wider(edits, case, replicas)
    yield from _shorter(review, composition, path, case)


def _replicas(review: Review, composition: Composition, case: Scenario) -> int | None:
    """More replicas that carry the scenario within the SLO, None when no number of them does."""
    service = Service(composition, case.mix, open_loop=case.rate is not None)
    number = None
    if case.rate is not None:
        number = replicas_for(service, case.rate, review.objectives)
    elif case.concurrency is not None:
        knee = service.knee(review.objectives)
        most = math.floor(knee.batch) * service.decode_replicas if knee is not None else 0
        number = math.ceil(case.concurrency / most) if most else None
    if number is None or number <= review.replicas or _broken(review, composition, case, number) is not None:
        return None
    return number


def _wider(edits: Edits, case: Scenario, replicas: int | None) -> Iterator[str]:
    """More devices in the tensor-parallel group of a node, where that takes fewer of them than replicas do."""
    composition = edits.composition
    if composition.scheduler.disaggregation is not None:
        return
    devices, tensor = composition.setup.topology.devices, parallelism(composition).t
    for factor in (2, 4, 8):
        other = edits.wider(factor) if devices * factor <= NODE else None
        if other is None or (replicas or math.inf) <= factor * edits.review.replicas:
            return
        if within_fast_links(other, tensor * factor) and edits.work(other, case):
            yield f"set hardware.devices = {devices * factor} and policy.parallelism.tensor = {tensor * factor}"
            return


def _shorter(review: Review, composition: Composition, path: KeyPath, case: Scenario) -> Iterator[str]:
    """The longest prompts that the deployment carries as it is, where that leaves more than half of them alone."""
    workload = review.deployment.workload
    if (
        workload is None
        or path[-1] != "prompt_tokens"
        or any(w.images_per_prompt for w in (workload, *workload.growth))
    ):
        return
    table = next((workload.growth[part] for part in path if isinstance(part, int)), workload)
    declared = table.prompt_tokens
    if not isinstance(declared, Mapping) or not all(key.startswith(QUANTILES) for key in declared):
        return

    def cut(most: int) -> dict[str, int]:
        return {key: min(int(length), most) for key, length in declared.items()}

    def works(most: int) -> bool:
        knots = review.plugins.length_knots(cut(most))
        return knots is not None and _broken(review, composition, case.capped(Lengths(knots))) is None

    prompt, output = (case.of or case.mix).prompt, case.mix.output
    longest = composition.max_model_len - output.mean
    low, high = math.ceil(prompt.quantile(0.5)), math.floor(min(prompt.quantile(1.0), longest))
    if high < low or not works(low):
        return
    if works(high):
        low = high
    while high - low > 0.005 * high:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    round_number = int(floored(low)) if low < high else low
    most = round_number if round_number >= prompt.quantile(0.5) and works(round_number) else low
    value = ", ".join(f"{key} = {length}" for key, length in cut(most).items())
    refused = 1 - prompt.share_within(most)
    yield (
        f"refuse prompts of more than {tokens(most)} tokens ({refused:.0%} of them) and set {dotted(path)} = "
        f"{{ {value} }}"
    )
