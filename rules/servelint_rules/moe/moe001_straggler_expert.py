"""MOE001 straggler-expert."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from attrs import evolve

from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Point, Service
from servelint_rules.show import counted, duration


class StragglerExpert(Rule):
    """Uneven expert load gates the step, and nothing is kept or watched against it.

    What it checks
    --------------
    Under expert parallelism, ``policy.moe.skew`` above the option ``skew``: does the average step at the
    operating point grow by more than the option ``growth`` against even load, while redundant experts or load
    metrics (``load_metrics``, or ``[[evidence]]`` of kind ``expert-load``) are missing? Without a declared
    skew: advice where the SLO holds under even load and breaks at the option's skew.

    Why it is bad
    -------------
    Every expert layer waits for its busiest rank. The other devices idle, and since the popular experts change
    with the traffic, the tail moves without any change of the deployment.

    The arithmetic
    --------------
    The busiest rank multiplies and receives ``skew`` times the mean and reads ``skew`` times as many of its
    experts, at most all of them; ``growth = step(skew) / step(1) - 1`` at the same batch.

    How to fix
    ----------
    Keep copies of the busiest experts (``redundant_experts``) and rebalance by recorded load. The help line
    gives the skew that stays within the limit.

    Source
    ------
    DeepSeek-V3 Technical Report (arXiv 2412.19437), section 3.4; docs/cost-model.md, expert parallelism.
    """

    code = "MOE001"
    name = "straggler-expert"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is p99 bad", "why are some devices idle", "do I need redundant experts")
    options = (
        Option(
            "skew", 1.3, "busiest rank over mean from which load is called uneven; tried when none is declared", 1.0
        ),
        Option("growth", 0.1, "share by which a step may grow against even load"),
    )
    failing = (
        Case(
            "one rank gets three times its share of the tokens",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
expert = 8
[policy.moe]
skew = 3.0 # expect: MOE001
load_metrics = true
[workload]
prompt_tokens = { p50 = 1500, p99 = 6000 }
output_tokens = { p50 = 300, p99 = 1200 }
concurrency = 256
""",
            flip=("policy.moe.skew", "1.2"),
        ),
        Case(
            "copies are kept, but nobody looks at the load",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
expert = 8
[policy.moe]
skew = 2.0 # expect: MOE001
redundant_experts = 16
load_metrics = false
[workload]
prompt_tokens = { p50 = 1500, p99 = 6000 }
output_tokens = { p50 = 300, p99 = 1200 }
concurrency = 256
""",
            flip=("policy.moe.load_metrics", "true"),
        ),
        Case(
            "just above the limit of what is called uneven",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
expert = 8
[policy.moe]
skew = 1.31 # expect: MOE001
[workload]
prompt_tokens = 200
output_tokens = 2000
concurrency = 32
""",
            flip=("policy.moe.skew", "1.3"),
        ),
    )
    passing = (
        Case(
            "at the limit of what is called uneven",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
expert = 8
[policy.moe]
skew = 1.3
[workload]
prompt_tokens = 200
output_tokens = 2000
concurrency = 32
""",
        ),
        Case(
            "uneven, with copies and with metrics",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
expert = 8
[policy.moe]
skew = 2.0
redundant_experts = 16
[workload]
prompt_tokens = { p50 = 1500, p99 = 6000 }
output_tokens = { p50 = 300, p99 = 1200 }
concurrency = 256
[[evidence]]
kind = "expert-load"
artifact = "assistant, week 36"
""",
        ),
        Case(
            "every device holds a slice of every expert",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
[policy.moe]
skew = 3.0
[workload]
prompt_tokens = { p50 = 1500, p99 = 6000 }
output_tokens = { p50 = 300, p99 = 1200 }
concurrency = 64
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the step with that under even load."""
        parallelism, config = review.policy("parallelism"), review.policy("moe")
        if parallelism is None or config is None:
            yield Lacks("a composed deployment")
            return
        if (parallelism.expert or 1) == 1 or review.architecture is None or not review.architecture.is_moe:
            return
        missing = _missing(review, config)
        if not missing:
            return
        point = review.operating_point
        if point is None:
            yield Lacks("an operating point (workload)")
            return
        if config.skew is None:
            yield from self._undeclared(review, config, point)
            return
        if config.skew <= self.option("skew"):
            return
        even = _at_skew(review, config, point, 1.0)
        if even is None or point.step_s <= even.step_s * (1 + self.option("growth")):
            return
        growth = point.step_s / even.step_s - 1
        yield Finding(
            ("policy", "moe", "skew"),
            f"the busiest of {parallelism.expert} expert ranks gets {config.skew:g} times the mean: the average step "
            f"of {counted(point.batch, 'sequence')} takes {duration(point.step_s)} instead of {duration(even.step_s)} "
            f"(+{growth:.0%}), ITL p99 {duration(point.itl('p99'))} instead of {duration(even.itl('p99'))}; "
            f"{' and '.join(missing)} missing",
            equation=(
                f"{duration(point.step_s)} / {duration(even.step_s)} - 1 = {growth:.1%} > {self.option('growth'):.0%}"
            ),
            inputs=(
                review.policy_input("moe", "skew"),
                review.policy_input("parallelism", "expert"),
                Input("sequences", point.batch, "", review.source("workload")),
            ),
            help=self._help(review, config, point),
            related=(Related(("policy", "parallelism", "expert"), "experts are spread over these ranks"),)
            if review.declared("policy", "parallelism", "expert")
            else (),
        )

    def _help(self, review: Review, config: Any, point: Point) -> str:
        least, rate, even = self.option("skew"), review.rate(), _service_at(review, config, point, 1.0)

        def within(skew: float) -> bool:
            """Whether the same load leads to a step within the limit."""
            service = _service_at(review, config, point, skew)
            if service is None or even is None:
                return False
            tried = service.point(point.batch) if rate is None else service.at_rate(rate)
            return tried is not None and tried.step_s <= even.point(tried.batch).step_s * (1 + self.option("growth"))

        # In hundredths, so that what is written is what was priced.
        low, high = math.floor(least * 100), math.ceil(config.skew * 100)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if within(middle / 100) else (low, middle)
        return (
            f"a skew of at most {max(low / 100, least):g} stays within the limit: record the load of every expert, and "
            "keep copies of the busiest (redundant_experts) placed by it"
        )

    def _undeclared(self, review: Review, config: Any, point: Point) -> Iterator[Finding]:
        """Advice where the verdict on the SLO depends on a skew that nobody states."""
        if not review.objectives or point.misses(review.objectives, declared=True):
            return
        skew = self.option("skew")
        tried = _at_skew(review, config, point, skew)
        misses = tried.misses(review.objectives, declared=True) if tried is not None else []
        if not misses:
            return
        worst = max(misses, key=lambda m: m.seconds / m.objective.declared_s)
        objective = worst.objective
        yield Finding(
            ("policy", "parallelism", "expert"),
            f"{objective.metric.upper()} {objective.percentile} holds under even expert load "
            f"({duration(point.latency(objective.metric, objective.percentile))}) and breaks when the busiest rank "
            f"gets {skew:g} times the mean ({duration(worst.seconds)} against {duration(objective.declared_s)}); no "
            "skew is declared",
            help="measure the expert load on this traffic and declare policy.moe.skew",
            related=(Related(review.objective_path(objective), "the objective that depends on it"),),
            severity=Severity.INFO,
        )


def _missing(review: Review, config: Any) -> list[str]:
    """What is not there against uneven load."""
    recorded = bool(config.load_metrics) or any(e.kind == "expert-load" for e in review.deployment.evidence)
    missing = [] if config.redundant_experts else ["redundant experts"]
    return missing if recorded else [*missing, "load metrics"]


def _at_skew(review: Review, config: Any, point: Point, skew: float) -> Point | None:
    """The same batch under another skew."""
    service = _service_at(review, config, point, skew)
    return None if service is None else service.point(point.batch)


def _service_at(review: Review, config: Any, point: Point, skew: float) -> Service | None:
    composition = review.variant(moe=evolve(config, skew=skew))
    if composition is None:
        return None
    service = point.service
    return Service(composition, service.mix, service.figure, open_loop=service.open_loop)
