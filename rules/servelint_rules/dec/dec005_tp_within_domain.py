"""DEC005 tp-within-domain."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint_rules.dec.levers import advice, devices_of, goal, speaks
from servelint_rules.dec.splits import best_first, measured, one_device, plain, shown, splits, step
from servelint_rules.layouts import parallelism, tensor_path, within_fast_links
from servelint_rules.par.par005_pp_bubble import PpBubble

SPEC = """\
servelint = 1
deployment = { goal = "latency" }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy]
parallelism = { tensor = 2, pipeline = 4 } # expect: DEC005
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 800 }
rate = "0.5 req/s"
[slo]
tpot = { p99 = "200 ms" }
"""


class TpWithinDomain(Rule):
    """The model exceeds one device and fits the fast domain: pipeline stages against tensor parallelism, in numbers.

    What it checks
    --------------
    A deployment with a goal whose replica is pipeline stages on devices that are all joined by the scale-up link, of
    which one does not hold the model: the mean request at the load (goal latency) or requests a second and device
    within the objectives (other goals), against the same devices with other degrees. It speaks when the best gains
    ``gain``. Silent where PAR005 reports the stages.

    Why it is bad
    -------------
    A token walks through all stages in turn, each on a part of the bandwidth. Where the link is fast, all devices
    can read their part of every layer at once, for two short messages a layer.

    The arithmetic
    --------------
    Decode step and mixed step of every split of the devices, at the same load.

    How to fix
    ----------
    The degrees of the help line.

    Source
    ------
    docs/cost-model.md, parallelism and collectives.
    """

    code = "DEC005"
    name = "tp-within-domain"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("which parallelism", "how does it get faster")
    options = (Option("gain", 1.2, "least gain of the best split", 1.0),)
    failing = (
        Case("stages inside a node", SPEC, flip=("policy.parallelism", "{ tensor = 8, pipeline = 1 }")),
        Case(
            "for throughput",
            SPEC.replace('goal = "latency"', 'goal = "throughput"').replace("tensor = 2, pipeline = 4", "pipeline = 8"),
            flip=("policy.parallelism", "{ tensor = 8, pipeline = 1 }"),
        ),
    )
    passing = (
        Case(
            "tensor parallelism over the whole node",
            SPEC.replace("{ tensor = 2, pipeline = 4 } # expect: DEC005", "{ tensor = 8 }"),
        ),
        Case(
            "stages over PCIe",
            SPEC.replace(" # expect: DEC005", "").replace("nvidia/h100-sxm5-80gb", "nvidia/l40s"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price other splits of the same devices."""
        composition, mix = review.composition, review.mix
        if goal(review) is None:
            return
        if composition is None or not plain(composition) or parallelism(composition).p == 1:
            return
        devices, config = devices_of(composition), parallelism(composition)
        if config.t * config.p != devices or not within_fast_links(composition, devices):
            return
        if mix is None:
            yield Lacks("workload lengths")
            return
        if one_device(review, composition) is not None:
            return
        now = measured(review, composition, mix)
        levers = best_first(review, now, splits(composition, devices), mix)
        if levers and levers[0].gain >= self.option("gain") and not speaks(PpBubble, review):
            stages: KeyPath = ("policy", "parallelism", "pipeline")
            yield advice(
                review,
                stages if review.declared(*stages) else tensor_path(review),
                f"tensor parallelism {config.t} in {config.p} stages, on devices that a fast link joins: {shown(now)}",
                levers,
                f"{devices} devices in one domain of {composition.setup.topology.scale_up_domain}; "
                f"{step(review, composition)}",
                (Input("pipeline", config.p, "", composition.context.source("parallelism", "pipeline")),),
                (("policy", "parallelism", "tensor"),),
            )
