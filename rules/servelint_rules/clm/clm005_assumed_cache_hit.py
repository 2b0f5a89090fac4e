"""CLM005 assumed-cache-hit."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Lacks, Related, Review, Rule, Severity
from servelint.service import Mix, Point
from servelint.spec.model import PrefixHit
from servelint_rules.show import duration, request_rate

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[policy.kv_cache]
prefix_reuse = true
"""
LOAD = """\
[workload]
prompt_tokens = { p50 = 6000, p99 = 12000 }
output_tokens = { p50 = 100, p99 = 300 }
rate = "5 req/s"
prefix_hit = { value = 0.8, basis = "assumed" } # expect: CLM005
[slo]
ttft = { p99 = "4 s" }
"""


class AssumedCacheHit(Rule):
    """The deployment only holds with a cache hit rate that was assumed.

    What it checks
    --------------
    A ``workload.prefix_hit`` of ``basis = "assumed"``: whether the deployment at its own load keeps its objectives
    (or, without objectives, its rate) with the assumed share, and no longer with a cold cache. Where it holds
    either way, or fails either way, the assumption decides nothing; a share that is measured or from a trace is
    none.

    Why it is bad
    -------------
    A cache is cold after every start, failover and roll-out, and prompts change. The queue that then forms keeps
    the cache cold: nothing of the fleet is left in reserve for what happens regularly.

    The arithmetic
    --------------
    Prompt tokens to compute are ``prompt x (1 - hit)``. Operating point, waits and step times are computed with the
    assumed share, and with 0.

    How to fix
    ----------
    Measure the share and state its source; or size for the cold path.

    Source
    ------
    docs/cost-model.md, operating point.
    """

    code = "CLM005"
    name = "assumed-cache-hit"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("what happens when the cache is cold",)
    failing = (
        Case("a rate that only a warm cache carries", SPEC + LOAD, flip=("workload.prefix_hit.basis", '"measured"')),
        Case(
            "the same without objectives",
            SPEC + LOAD.partition("[slo]")[0],
            flip=("workload.rate", '"1 req/s"'),
        ),
    )
    passing = (
        Case("a share that was measured", SPEC + LOAD.replace('assumed" } # expect: CLM005', 'measured" }')),
        Case("a load that holds cold", SPEC + LOAD.replace("5 req/s", "0.5 req/s").replace(" # expect: CLM005", "")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the operating point with the assumed share and without."""
        workload = review.deployment.workload
        hit = workload.prefix_hit if workload is not None else None
        if not isinstance(hit, PrefixHit) or hit.basis != "assumed":
            return
        mix = review.mix
        if review.composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        if review.rate() is None and not review.objectives:
            return
        warm, cold = _point(review, mix), _point(review, mix._replace(prefix_hit=0.0))
        if warm is None or warm.misses(review.objectives, declared=True):
            return
        why = _why(review, cold)
        if not why:
            return
        load = next((k for k in ("rate", "concurrency") if review.declared("workload", k)), None)
        highest = review.service(mix._replace(prefix_hit=0.0)).max_rate * review.replicas
        yield Finding(
            ("workload", "prefix_hit", "value"),
            f"the deployment holds with the assumed hit rate of {mix.prefix_hit:.0%}, and not with a cold cache: {why}",
            equation=f"{mix.prompt.mean:,.0f} prompt tokens x (1 - {mix.prefix_hit:g}) = {mix.new_prompt:,.0f} to "
            f"compute; cold {mix.prompt.mean:,.0f}",
            inputs=(review.input("assumed hit rate", hit.value, "", "workload", "prefix_hit", "value"),),
            help="measure the share and state basis and source; a cold cache carries at most "
            f"{request_rate(highest)}, whatever the latency",
            related=(Related(("workload", load), "the load"),) if load else (),
        )


def _point(review: Review, mix: Mix) -> Point | None:
    """Where a replica stands at the declared load: rate, concurrency, or all slots."""
    service, rate = review.service(mix), review.rate()
    if rate is not None:
        return service.at_rate(rate)
    fullest, wanted = service.fullest, review.concurrency()
    return fullest if fullest is None or wanted is None else service.point(min(fullest.batch, wanted))


def _why(review: Review, cold: Point | None) -> str:
    """What fails at a point; empty when nothing does."""
    if cold is None:
        return "prompts arrive faster than they are prefilled"
    misses = cold.misses(review.objectives, declared=True)
    if not misses:
        return ""
    objective, seconds = misses[0]
    name, limit = f"{objective.metric.upper()} {objective.percentile}", duration(objective.declared_s)
    return f"{name} is {duration(seconds)}, limit {limit}"
