"""CLM003 claim-context-mismatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import Case, CatalogueError, Finding, Lacks, Option, Related, Review, Rule, Severity
from servelint.spec.model import Claim
from servelint_rules.clm.evidence import LATENCIES, Backed, backed, named
from servelint_rules.clm.samples import SPEC, changed
from servelint_rules.show import duration, plural, request_rate, token_rate, tokens

if TYPE_CHECKING:
    from servelint.evidence import Measurement

CLAIM = """\
[[claim]]
metric = "throughput"
value = "2000 tok/s"
at = { concurrency = 32 }
evidence = "bench.json"
"""
EXPECTED = CLAIM.replace('"bench.json"', '"bench.json" # expect: CLM003')
WORKLOAD = """\
[workload]
prompt_tokens = 1500
output_tokens = 200
concurrency = 32
"""


class Mismatch(NamedTuple):
    """What differs, as a clause of the message, and the key of the spec that says otherwise."""

    text: str
    path: KeyPath


class ClaimContextMismatch(Rule):
    """A claim was measured on something else than what is deployed.

    What it checks
    --------------
    The run behind a claim against the deployment, where both say something: model, accelerator, devices, engine,
    formats, degrees of parallelism and limits that the server recorded, lengths of prompts and outputs, share of
    the prompts found in the cache; and the claimed figure against the measured one. Without evidence, what
    ``claim.assumes`` says that it was measured on. Where no run of the file is at the load that the claim states,
    or it is not said which run is meant, nothing can be compared, and that is advice.

    Why it is bad
    -------------
    The figure is true of another system. Half the weights, twice the devices or prompts of a quarter of the length
    each change it by their own factor.

    The arithmetic
    --------------
    Lengths differ when one mean is more than ``length_factor`` times the other; figures when the claim is better
    than everything that the run says of its metric by more than ``tolerance``.

    How to fix
    ----------
    Measure what is deployed, or state what was measured in ``claim.at`` and ``claim.assumes`` and take the figure
    for what it is.

    Source
    ------
    docs/evidence.md, what each tool records of the server.
    """

    code = "CLM003"
    name = "claim-context-mismatch"
    severity = Severity.WARNING
    questions = ("is this claim possible", "is this benchmark of what is deployed")
    options = (
        Option("length_factor", 1.5, "factor between mean lengths that is let pass", 1.0, 100),
        Option("tolerance", 0.05, "how much better than its evidence a figure may be", 0.0, 1.0),
        Option("cache", 0.1, "share of cached prompts beyond the workload's that is let pass", 0.0, 1.0),
    )
    failing = (
        Case(
            "a claim beyond its own evidence",
            SPEC
            + """\
[[claim]]
metric = "throughput"
value = "2101 tok/s"
at = { concurrency = 32 }
evidence = "bench.json" # expect: CLM003
""",
            flip=("claim[0].value", '"2100 tok/s"'),
            files=(("bench.json", changed()),),
        ),
        Case(
            "measured on another device",
            SPEC + EXPECTED,
            flip=("hardware.accelerator", '"nvidia/h200-sxm5-141gb"'),
            files=(("bench.json", changed(gpu='"H200"')),),
        ),
        Case(
            "measured with a cache of another format",
            SPEC + '[policy.quantization]\nkv_cache = "bf16"\n' + EXPECTED,
            flip=("policy.quantization.kv_cache", '"fp8"'),
            files=(("bench.json", changed(kv_cache_dtype='"fp8"')),),
        ),
        Case(
            "prompts one step shorter than the factor allows",
            SPEC + WORKLOAD.replace("1500", "1501") + EXPECTED,
            flip=("workload.prompt_tokens", "1500"),
            files=(("bench.json", changed()),),
        ),
        Case(
            "no run at that load",
            SPEC + EXPECTED.replace("concurrency = 32", "concurrency = 64"),
            flip=("claim[0].at.concurrency", "32"),
            files=(("bench.json", changed()),),
        ),
        Case(
            "assumed on another device",
            SPEC
            + """\
[[claim]]
metric = "throughput"
value = "1000 tok/s"
at = { concurrency = 32 }
assumes = { accelerator = "nvidia/a100-sxm4-80gb" } # expect: CLM003
""",
            flip=("claim[0].assumes.accelerator", '"nvidia/h100-sxm5-80gb"'),
        ),
    )
    passing = (
        Case("measured as deployed", SPEC + CLAIM, files=(("bench.json", changed(gpu='"NVIDIA-H100-80GB-HBM3"')),)),
        Case(
            "a family that the device belongs to, lengths within the factor",
            SPEC + WORKLOAD + CLAIM,
            files=(("bench.json", changed(gpu='"H100"')),),
        ),
        Case(
            "a GPU that nobody here knows says nothing",
            SPEC + CLAIM.replace("2000", "1999"),
            files=(("bench.json", changed(gpu='"the big one"')),),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every claim's context with the deployment."""
        if not review.claims:
            yield Lacks("a claim")
            return
        items = {item.path: item for item in backed(review)}
        for path, claim in review.claims:
            item = items.get(path)
            if item is None:
                yield from _assumed(review, path, claim)
            elif item.evidence.run is None:
                yield Finding(
                    item.key,
                    f"the evidence is not compared with the claim: {item.evidence.why}",
                    help="state at.concurrency or at.rate of the run that is meant",
                    severity=Severity.INFO,
                )
            else:
                yield from self._measured(review, item, item.evidence.run)

    def _measured(self, review: Review, item: Backed, run: Measurement) -> Iterator[Finding]:
        from servelint.measured import differences

        found = [Mismatch(f"{d.what} {d.measured}, deployed {d.deployed}", d.path) for d in differences(review, run)]
        found += self._lengths(review, item, run)
        found += self._cache(review, run)
        if found:
            yield Finding(
                item.key,
                f"{named(run)} is of another context than the deployment: {'; '.join(m.text for m in found)}",
                help="measure what is deployed, or claim the figure with claim.assumes of what was measured",
                related=tuple(Related(m.path, "what is deployed") for m in found[:3] if review.declared(*m.path)),
            )
            return
        # Of another context another figure is no surprise.
        yield from self._figure(review, item, run)

    def _lengths(self, review: Review, item: Backed, run: Measurement) -> Iterator[Mismatch]:
        at, mix, factor = item.claim.at, review.mix, self.option("length_factor")
        for key, lengths, words in (
            ("prompt_tokens", run.prompt_tokens, "prompts of"),
            ("output_tokens", run.output_tokens, "outputs of"),
        ):
            mean = lengths.get("mean")
            own = getattr(at, key) if at is not None else None
            path: KeyPath = (*item.path, "at", key)
            if own is None and mix is not None:
                own = (mix.prompt if key == "prompt_tokens" else mix.output).mean
                path = ("workload", key)
            if mean is None or own is None or not mean > 0 or max(mean / own, own / mean) <= factor * (1 + 1e-9):
                continue
            where = "claimed" if path[0] == "claim" else "in the workload"
            yield Mismatch(f"{words} {plural(tokens(mean), 'token')} in the mean, {where} {tokens(own)}", path)

    def _cache(self, review: Review, run: Measurement) -> Iterator[Mismatch]:
        mix = review.mix
        if run.cache_hit is None or mix is None or run.prompts == "random":
            return
        if run.cache_hit > mix.prefix_hit + self.option("cache"):
            declared = ("workload", "prefix_hit") if review.declared("workload", "prefix_hit") else ("workload",)
            yield Mismatch(
                f"{run.cache_hit:.0%} of its prompt tokens came from the prefix cache, of the workload's "
                f"{mix.prefix_hit:.0%}",
                declared,
            )

    def _figure(self, review: Review, item: Backed, run: Measurement) -> Iterator[Finding]:
        from servelint.measured import figures

        claim, factor = item.claim, 1.0
        if claim.per == "device" and run.devices:
            factor = float(run.devices)
        elif claim.metric not in LATENCIES and (claim.per not in ("replica", "deployment") or review.replicas > 1):
            # Whose figure the run's is, then, nothing says.
            return
        found = figures(run, claim.metric)
        if not found:
            return
        value, tolerance = claim.value * factor, self.option("tolerance")
        # Of a latency the shortest statistic; of a rate a run says one figure.
        best = min(found)
        better = value < best * (1 - tolerance) if claim.metric in LATENCIES else value > best * (1 + tolerance)
        if not better or not best > 0:
            return
        shown = (
            duration if claim.metric in LATENCIES else request_rate if claim.metric == "request_rate" else token_rate
        )
        name = claim.metric.upper() if claim.metric in LATENCIES else claim.metric.replace("_", " ")
        least = "the shortest" if claim.metric in LATENCIES else "measured"
        yield Finding(
            item.key,
            f"the claimed {name} of {shown(claim.value)} is better than {named(run)} says: {least} is "
            f"{shown(best / factor)}",
            equation=f"{shown(value)} / {shown(best)} = {value / best:.3f}",
            inputs=(review.input(f"claimed {name}", claim.value, "", *item.path, "value"),),
            help=f"claim {shown(best / factor)}, or name the run that the figure is from",
            related=(Related((*item.path, "value"), "the figure that is claimed"),),
        )


def _assumed(review: Review, path: KeyPath, claim: Claim) -> Iterator[Finding]:
    """What a claim without evidence says that it was measured on."""
    assumes, accelerator = claim.assumes, review.accelerator
    if assumes is None:
        return
    if assumes.accelerator is not None and accelerator is not None:
        try:
            related = review.plugins.accelerators.related(assumes.accelerator)
        except CatalogueError:
            related = ()
        if related and accelerator.id not in related:
            yield _stated(review, path, "accelerator", assumes.accelerator, accelerator.id, ("hardware", "accelerator"))
    engine = review.deployment.engine.name
    if assumes.engine is not None and engine is not None:
        engines = review.plugins.engines
        own, other = engines.get(engine.lower()), engines.get(assumes.engine.lower())
        if own is not None and other is not None and own is not other:
            yield _stated(review, path, "engine", assumes.engine, engine, ("engine", "name"))


def _stated(review: Review, path: KeyPath, what: str, measured: str, deployed: str, key: KeyPath) -> Finding:
    return Finding(
        (*path, "assumes", what),
        f"the claim was measured on another {what} than is deployed: {measured}, deployed {deployed}",
        help=f"measure on {deployed}, or scale the figure and say how",
        related=(Related(key, "what is deployed"),) if review.declared(*key) else (),
    )
