"""DEC007 chunk-or-disaggregate."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Composition, Finding, Input, Lacks, Option, Review, Rule, Severity, Table
from servelint.service import Mix, Point
from servelint.spec.schema import kinds
from servelint_rules.dec.levers import Lever, advice, by_rate, carried, chunks, goal, pressed, ranked
from servelint_rules.dec.splits import plain
from servelint_rules.layouts import parallelism
from servelint_rules.show import counted, duration, request_rate
from servelint_rules.slo.chunks import stalled
from servelint_rules.variants import allowed, budget_key

POOLS = ((1, 1), (2, 1), (1, 2), (3, 1), (1, 3))
"""Replicas that prefill and that decode, tried in turn."""

SPEC = """\
servelint = 1
deployment = { goal = "throughput" }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 32768
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 64
max_batched_tokens = 8192 # expect: DEC007
[workload]
prompt_tokens = { p50 = 7000, p99 = 20000 }
output_tokens = { p50 = 300, p99 = 1000 }
rate = "0.3 req/s"
[slo]
itl = { p99 = "45 ms" }
ttft = { p99 = "10 s" }
"""


class ChunkOrDisaggregate(Rule):
    """Prefill and decoding interfere: another chunk against pools of their own, in numbers.

    What it checks
    --------------
    A deployment with a goal and a limit on ITL or TPOT whose replicas prefill beside decoding, where steps with
    prefill take ``share`` of the time at the knee, and the load is at least ``used`` of the knee's: requests a second
    and device within the objectives with other chunks, and with prefill and decode pools of the same replicas in the
    ratios 1:1 to 3:1 and 1:3, the KV transfer and its queues included. It speaks when the best gains ``gain``.
    Pools that are deployed are DIS001's; a chunk that breaks the objective at the load is SLO001's, one that soon
    would SLO008's.

    Why it is bad
    -------------
    A step that carries a prompt chunk is late for every sequence that decodes in it. A smaller chunk makes it less
    late and prefill dearer; pools make decoding steady, and cost a transfer, queues of their own, and whatever one
    pool cannot lend the other.

    The arithmetic
    --------------
    The knee of each, with the load a device that it carries; pools are limited by the busier one. The transfer runs
    over the network ports of a replica.

    How to fix
    ----------
    The first lever of the help line. A split counts only if its gain exceeds that of the best chunk.

    Source
    ------
    Zhong et al., DistServe (arXiv 2401.09670); Agrawal et al., Sarathi-Serve (arXiv 2403.02310).
    """

    code = "DEC007"
    name = "chunk-or-disaggregate"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("does disaggregation pay", "why is p99 bad")
    options = (
        Option("gain", 1.5, "least gain of the best lever", 1.0),
        Option("used", 0.7, "share of the rate at the knee from which on carrying more is a gain", 0.0, 1.0),
        Option("share", 0.1, "share of the time in steps with prefill from which on they interfere", 0.0, 1.0),
    )
    failing = (
        Case("a chunk that takes nine times the limit", SPEC, flip=("policy.batching.max_batched_tokens", "512")),
        Case(
            "for latency",
            SPEC.replace('"throughput"', '"latency"'),
            flip=("deployment", '{ name = "review" }'),
        ),
    )
    passing = (
        Case(
            "a chunk within the limit",
            SPEC.replace("max_batched_tokens = 8192 # expect: DEC007", "max_batched_tokens = 512"),
        ),
        Case(
            "a load far below the knee",
            SPEC.replace("0.3 req/s", "0.2 req/s").replace(" # expect: DEC007", ""),
        ),
        Case("no goal", SPEC.replace('goal = "throughput"', 'name = "review"').replace(" # expect: DEC007", "")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price chunks and pools."""
        wanted = goal(review)
        if wanted is None or not any(o.metric in ("itl", "tpot") for o in review.objectives):
            return
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        point, knee = review.operating_point, review.knee
        if point is None or knee is None or not plain(composition) or point.misses(review.objectives, declared=True):
            return
        if not pressed(knee, self.option("used"), review.rate(), review.concurrency()):
            return
        if self._interference(knee) < self.option("share") or stalled(review, point) is not None:
            return
        now = carried(review, composition, mix)
        levers = ranked(
            [*by_rate(review, mix, now, chunks(review)), *_pools(review, composition, mix, now)] if now > 0 else []
        )
        if levers and levers[0].gain >= self.option("gain"):
            path: KeyPath = ("policy", "batching", budget_key(review))
            yield advice(
                review,
                path if review.declared(*path) else ("deployment", "goal"),
                f"prefill beside decoding leaves {request_rate(now)} a device within the objectives, at the knee of "
                f"{counted(knee.batch, 'sequence')} (goal: {wanted})",
                levers,
                f"at the knee {knee.mixed_share:.1%} of the steps prefill, {duration(knee.average_mixed_s)} against "
                f"{duration(knee.plain_s)}: {self._interference(knee):.0%} of the time",
                (Input("devices of a replica", composition.setup.topology.devices, "", review.source("hardware")),),
                (("slo", "itl"), ("slo", "tpot")),
            )

    @staticmethod
    def _interference(point: Point) -> float:
        return point.mixed_share * point.average_mixed_s / point.step_s


def _pools(review: Review, composition: Composition, mix: Mix, now: float) -> Iterator[Lever]:
    """The best ratio of prefill to decode replicas."""
    best: Lever | None = None
    for prefill, decode in POOLS:
        other = pooled(review, composition, prefill, decode)
        if other is None:
            continue
        rate = carried(review, other, mix)
        words = f"pools of {counted(prefill, 'replica')} that prefill and {counted(decode, 'replica')} that decode"
        if best is None or rate / now > best.gain:
            best = Lever(words, rate / now, f"{request_rate(rate)} a device")
    if best is not None:
        yield best


def pooled(review: Review, composition: Composition, prefill: int, decode: int) -> Composition | None:
    """The same replicas as pools, None where that does not compose or the engine refuses it."""
    policy = next((p for p in review.plugins.active if p.name == "disaggregation"), None)
    kind = kinds(policy.config)["prefill"][1] if policy is not None else None
    if policy is None or not isinstance(kind, Table):
        return None
    config = parallelism(composition)
    shape = {"devices": composition.setup.topology.devices, "tensor": config.t, "pipeline": config.p}
    sides = {
        name: kind.cls(**shape, replicas=replicas) for name, replicas in (("prefill", prefill), ("decode", decode))
    }
    other = review.variant(disaggregation=policy.config(**sides))
    return other if other is not None and allowed(review, other) else None
