"""DEC006 across-domains."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint_rules.dec.levers import advice, devices_of, goal, speaks
from servelint_rules.dec.splits import best_first, degrees, measured, plain, shown, splits, spread, step
from servelint_rules.layouts import parallelism, tensor_path, within_fast_links
from servelint_rules.par.par005_pp_bubble import PpBubble

SPEC = """\
servelint = 1
deployment = { goal = "latency" }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 16
devices_per_node = 8
network = { bandwidth = "400 Gbit/s", per = "device", rdma = true }
[model]
id = "meta-llama/Llama-3.1-405B"
max_model_len = 8192
[policy]
parallelism = { tensor = 4, pipeline = 4 } # expect: DEC006
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 800 }
rate = "0.2 req/s"
[slo]
tpot = { p99 = "300 ms" }
"""
EXPERTS = """\
servelint = 1
deployment = { goal = "throughput" }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 16
devices_per_node = 8
network = { bandwidth = "400 Gbit/s", per = "device", rdma = true }
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy]
parallelism = { tensor = 8, pipeline = 2 } # expect: DEC006
[policy.batching]
max_sequences = 512
max_batched_tokens = 8192
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 500, p99 = 1500 }
rate = "2 req/s"
[slo]
tpot = { p99 = "150 ms" }
"""


class AcrossDomains(Rule):
    """The replica exceeds one fast domain: how to split it inside and across, in numbers.

    What it checks
    --------------
    A deployment with a goal whose replica spans several fast domains and whose tensor-parallel group stays in one
    (else PAR001 speaks): every degree inside a domain with pipeline stages across, and for a mixture of experts its
    experts over all devices. Measured are the mean request at the load (goal latency) or requests a second and device
    within the objectives (other goals). It speaks when the best gains ``gain``. Silent where PAR005 reports the stages.

    Why it is bad
    -------------
    The slow tier should carry what is sent least. Stages send one activation a micro-batch; a group smaller than
    the domain leaves bandwidth of the fast link unused and makes more stages to walk through; experts send each
    token to where its experts are, and hold the weights once.

    The arithmetic
    --------------
    Decode step and mixed step of every split of the devices, at the same load, collectives on the tiers they cross.

    How to fix
    ----------
    The split of the help line.

    Source
    ------
    docs/cost-model.md, parallelism and collectives.
    """

    code = "DEC006"
    name = "across-domains"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("which parallelism", "why is it slower with more GPUs")
    options = (Option("gain", 1.2, "least gain of the best split", 1.0),)
    failing = (
        Case("groups of half a node", SPEC, flip=("policy.parallelism", "{ tensor = 8, pipeline = 2 }")),
        Case("a mixture of experts in stages", EXPERTS, flip=("deployment", '{ goal = "latency" }')),
    )
    passing = (
        Case(
            "a group in each node",
            SPEC.replace("{ tensor = 4, pipeline = 4 } # expect: DEC006", "{ tensor = 8, pipeline = 2 }"),
        ),
        Case(
            "a group over both nodes is another finding",
            SPEC.replace("{ tensor = 4, pipeline = 4 } # expect: DEC006", "{ tensor = 16 }"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price other splits of the same devices."""
        composition, mix = review.composition, review.mix
        if goal(review) is None:
            return
        if composition is None or not plain(composition):
            return
        devices, config = devices_of(composition), parallelism(composition)
        if (
            config.t * config.p != devices
            or within_fast_links(composition, devices)
            or not within_fast_links(composition, config.t)
        ):
            return
        if composition.setup.topology.scale_up_domain <= 1 or config.expert not in (None, 1):
            return
        if mix is None:
            yield Lacks("workload lengths")
            return
        found = [*spread(composition, devices)]
        if not any(config.t < t for t in degrees(composition, devices)):
            # The group fills its domain; smaller ones leave bandwidth unused.
            if not found:
                return
        else:
            found += splits(composition, devices)
        now = measured(review, composition, mix)
        levers = best_first(review, now, found, mix)
        if levers and levers[0].gain >= self.option("gain") and not speaks(PpBubble, review):
            stages: KeyPath = ("policy", "parallelism", "pipeline")
            yield advice(
                review,
                stages if review.declared(*stages) else tensor_path(review),
                f"tensor parallelism {config.t} in {config.p} stages over several fast domains: {shown(now)}",
                levers,
                f"{devices} devices, of which {composition.setup.topology.scale_up_domain} share a fast link; "
                f"{step(review, composition)}",
                (Input("pipeline", config.p, "", composition.context.source("parallelism", "pipeline")),),
                (("policy", "parallelism", "tensor"),),
            )
