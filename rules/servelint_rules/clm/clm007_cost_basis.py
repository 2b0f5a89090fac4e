"""CLM007 cost-basis."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Point
from servelint.spec.model import Claim
from servelint_rules.show import request_rate, token_rate

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
price = { per_device_hour = 3.0, currency = "USD", date = 2026-10-01 }
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.batching]
max_sequences = 64
max_batched_tokens = 1024
[workload]
prompt_tokens = { p50 = 800, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 600 }
rate = "1 req/s"
[[claim]]
metric = "cost_per_million_tokens"
value = 0.40 # expect: CLM007
"""


class CostBasis(Rule):
    """A cost per token that has no price, or that only a full machine reaches.

    What it checks
    --------------
    Claims of cost per million tokens: that ``hardware.price`` gives the price and its date; and that the claimed
    cost is not below that of the deployment at its own load (its rate, its concurrency, or else the knee of its
    SLO), prompt and output tokens counted together, which is the cheapest reading.

    Why it is bad
    -------------
    Devices are paid by the hour, not by the token: at a third of the load a token costs three times as much. Costs
    of a full machine are those of a benchmark.

    The arithmetic
    --------------
    ``price x devices / 3600 / (tokens a second of the load) x 1e6``.

    How to fix
    ----------
    Claim the cost at the load that is served, with the price and its date.

    Source
    ------
    docs/cost-model.md, operating point.
    """

    code = "CLM007"
    name = "cost-basis"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("what does a token cost",)
    options = (Option("tolerance", 0.1, "how far below the computed cost a claim may be", 0.0, 0.9),)
    failing = (
        Case("the cost of a full machine", SPEC, flip=("claim[0].value", "1.0")),
        Case(
            "no price",
            SPEC.replace('price = { per_device_hour = 3.0, currency = "USD", date = 2026-10-01 }', "price = {}"),
            flip=("hardware.price", '{ per_device_hour = 0.2, currency = "USD", date = 2026-10-01 }'),
        ),
        Case(
            "a price without a date",
            SPEC.replace(", date = 2026-10-01", "").replace("0.40", "1.0"),
            flip=("hardware.price", "{ per_device_hour = 3.0, date = 2026-10-01 }"),
        ),
    )
    passing = (
        Case("the cost at the load", SPEC.replace("0.40 # expect: CLM007", "1.0")),
        Case(
            "the same of twice the load",
            SPEC.replace("0.40 # expect: CLM007", "0.5").replace("1 req/s", "2 req/s"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare every claimed cost with that of the load."""
        for path, claim in review.claims:
            if claim.metric != "cost_per_million_tokens":
                continue
            price = review.deployment.hardware.price
            value = (*path, "value")
            if price is None or price.per_device_hour is None:
                yield Finding(
                    value,
                    "the cost has no price behind it: hardware.price states none",
                    help="add hardware.price with per_device_hour, currency and date",
                )
                continue
            if price.date is None:
                yield Finding(
                    value,
                    f"the price of {price.per_device_hour:g} a device and hour behind the cost has no date",
                    help="add hardware.price.date",
                    related=(Related(("hardware", "price", "per_device_hour"), "the price"),),
                    severity=Severity.INFO,
                )
            yield from self._cost(review, path, claim, price.per_device_hour)

    def _cost(self, review: Review, path: KeyPath, claim: Claim, price: float) -> Iterator[Finding | Lacks]:
        mix = review.mix
        if review.composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        found = _load(review)
        if found is None:
            yield Lacks("a load: workload.rate, workload.concurrency or an SLO")
            return
        point, keys, where = found
        pools = review.composition.scheduler.disaggregation
        if pools is not None:
            return
        counted = mix.prompt.mean / mix.output.mean + 1
        tokens = point.throughput * counted
        least = price * review.devices / 3600 / tokens * 1e6
        if not claim.value < least * (1 - self.option("tolerance")):
            return
        fullest = review.service(mix).fullest
        most = fullest.throughput * counted if fullest is not None else tokens
        cheapest = price * review.devices / 3600 / most * 1e6
        yield Finding(
            (*path, "value"),
            f"the claimed {claim.value:.3g} per million tokens is below the {least:.3g} of {where}, prompt and output "
            f"tokens counted; a full machine would cost {cheapest:.3g}",
            equation=f"{price:g} x {review.devices} / 3600 s / {token_rate(tokens)} x 1e6 = {least:.3g} "
            f"({request_rate(point.rate)} a replica)",
            inputs=(
                review.input("price of a device and hour", price, "", "hardware", "price", "per_device_hour"),
                Input("claimed cost", claim.value, "", review.source(*path, "value")),
            ),
            help=f"claim at least {least:.3g}",
            related=(Related(keys, "the load"),),
        )


def _load(review: Review) -> tuple[Point, KeyPath, str] | None:
    """The point that is paid for, and what decides it."""
    for key in ("rate", "concurrency"):
        if review.declared("workload", key):
            point = review.operating_point
            return None if point is None else (point, ("workload", key), f"the declared {key}")
    if review.knee is not None:
        return review.knee, review.objective_path(review.objectives[0]), "the most that meets the SLO"
    return None
