"""CLM002 bound-as-prediction."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.clm.limits import best, described, read, sides
from servelint_rules.clm.samples import SPEC, changed

CLAIM = """\
[[claim]]
metric = "itl"
value = "9.5 ms" # expect: CLM002
at = { batch = 32, context = 4000 }
"""


class BoundAsPrediction(Rule):
    """A claimed figure is the roofline itself, which no engine reaches.

    What it checks
    --------------
    Claims that state their point (sequences and context, or the prompt of a TTFT) and lie within 2 % of the bound
    of their step, while what is expected of the same step is further away. Figures beyond the bound are CLM001's;
    figures whose assumed rates or efficiency are stated are HW001's and HW003's; a figure that its evidence
    confirms was measured.

    Why it is bad
    -------------
    The bound leaves out launches, the sampler, the parts of bandwidth and compute that no kernel sustains. A plan
    made from it is short by a fifth to a half.

    The arithmetic
    --------------
    ``bound = max(bytes / bandwidth, FLOPs / dense rate, link bytes / link rate)``; the estimate divides each by its
    sustained efficiency and adds what the host and the link's latency take.

    How to fix
    ----------
    Claim what the help line says, or measure.

    Source
    ------
    docs/cost-model.md, bound and estimate.
    """

    code = "CLM002"
    name = "bound-as-prediction"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("is this claim possible",)
    options = (Option("near", 0.02, "relative distance from the bound at which a figure is the bound", 0.0, 0.2),)
    failing = (
        Case("the bound of a decode step", SPEC + CLAIM, flip=("claim[0].value", '"12.5 ms"')),
        Case(
            "one step within the distance",
            SPEC + CLAIM.replace("9.5 ms", "9.663 ms"),
            flip=("claim[0].value", '"9.664 ms"'),
        ),
    )
    passing = (
        Case("one step beyond the distance", SPEC + CLAIM.replace('9.5 ms" # expect: CLM002', '9.664 ms"')),
        Case("what is to be expected", SPEC + CLAIM.replace('9.5 ms" # expect: CLM002', '12.5 ms"')),
        Case(
            "a figure that was measured",
            SPEC
            + """\
[[claim]]
metric = "tpot"
value = "6.2 ms"
at = { concurrency = 32, prompt_tokens = 1000, output_tokens = 200 }
evidence = "bench.json"
""",
            files=(
                ("bench.json", changed(mean_tpot_ms=6.2, median_tpot_ms=6.1, mean_e2el_ms=1333.8, max_concurrency=32)),
            ),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every claim that states its point with bound and estimate."""
        if not review.claims:
            yield Lacks("a claim")
            return
        if review.composition is None:
            yield Lacks("hardware.accelerator and model")
            return
        near = self.option("near")
        for path, claim in review.claims:
            terms, on = read(review, claim), sides(review, claim)
            if terms is None or on is None or _stated(claim.assumes):
                continue
            pointed = "context" in terms.stated and (terms.kind == "ttft" or terms.batch is not None)
            limit = best(on, terms, "bound") if pointed else None
            expected = best(on, terms, "estimate") if limit is not None else None
            if limit is None or expected is None or not abs(terms.value / limit.value - 1) <= near:
                continue
            if abs(terms.value / expected.value - 1) <= near:
                continue
            evidence = review.evidence(path, claim)
            if evidence is not None and _confirmed(evidence.run, claim.metric, claim.value):
                continue
            name = claim.metric.replace("_", " ") if terms.is_rate else claim.metric.upper()
            yield Finding(
                (*path, "value"),
                f"the claimed {name} of {terms.shown(terms.value)} is the bound of the hardware, "
                f"{terms.shown(limit.value)} {described(terms, limit)}: about {terms.shown(expected.value)} is to be "
                "expected",
                equation=f"{terms.value:.4g} / {limit.value:.4g} = {terms.value / limit.value:.3f} of the bound, "
                f"{terms.value / expected.value:.3f} of the estimate",
                inputs=(review.input(f"claimed {name}", claim.value, "", *path, "value"),),
                help=f"claim {terms.shown(expected.value)}, or name the measurement as claim.evidence",
                related=(Related((*path, "at"), "the point that the claim states"),),
            )


def _stated(assumes: object) -> bool:
    """Whether a claim says from which rates it was computed."""
    return any(getattr(assumes, k, None) is not None for k in ("dense_flops", "memory_bandwidth", "efficiency"))


def _confirmed(run: object, metric: str, value: float) -> bool:
    from servelint.evidence import Measurement
    from servelint.measured import figures

    return isinstance(run, Measurement) and any(abs(v - value) <= 0.05 * value for v in figures(run, metric))
