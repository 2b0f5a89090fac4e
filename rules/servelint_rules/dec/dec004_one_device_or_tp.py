"""DEC004 one-device-or-tp."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.plugin import Case, Finding, Input, Lacks, Option, Review, Rule, Severity
from servelint_rules.dec.levers import Change, advice, devices_of, goal, laid_out, speaks
from servelint_rules.dec.splits import best_first, measured, one_device, plain, shown
from servelint_rules.layouts import heads_divide, parallelism, tensor_path
from servelint_rules.par.par004_tp_unneeded import TpUnneeded

SPEC = """\
servelint = 1
deployment = { goal = "throughput" }
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 4 # expect: DEC004
[policy.batching]
max_sequences = 128
max_batched_tokens = 2048
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 800 }
rate = "4 req/s"
[slo]
tpot = { p99 = "60 ms" }
"""


class OneDeviceOrTp(Rule):
    """One device holds the model: tensor parallelism against as many replicas of one device, in numbers.

    What it checks
    --------------
    A deployment with ``goal = "throughput"`` or ``"long-context"`` that splits a model over devices of which one
    holds it with its longest context: requests a second and device within the objectives as deployed, with one
    device a replica, and with the degrees between. It speaks when fewer devices gain ``gain``. For latency more
    devices are what is bought (DEC001). Silent where PAR004 reports the group, whatever the goal.

    Why it is bad
    -------------
    Capacity asks for no split. Every layer then joins its halves twice, each device holds the same activations, and
    what is gained is latency, which the goal does not ask for.

    The arithmetic
    --------------
    ``requests a second at the knee / devices`` of each degree. Larger groups hold the weights once, so more KV cache
    and a larger batch is left: where that outweighs the collectives the rule is silent.

    How to fix
    ----------
    The degree of the help line, with as many replicas as the devices give.

    Source
    ------
    docs/cost-model.md, parallelism and collectives.
    """

    code = "DEC004"
    name = "one-device-or-tp"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("which parallelism", "why is it slower with more GPUs")
    options = (Option("gain", 1.2, "least gain of fewer devices a replica", 1.0),)
    failing = (
        Case("an 8B model over four devices", SPEC, flip=("policy.parallelism.tensor", "1")),
        Case(
            "over eight",
            SPEC.replace("tensor = 4", "tensor = 8"),
            flip=("deployment", '{ goal = "latency" }'),
        ),
    )
    passing = (
        Case("one device a replica", SPEC.replace("tensor = 4 # expect: DEC004", "tensor = 1")),
        Case(
            "two, whose collectives cost less than a fifth",
            SPEC.replace("tensor = 4 # expect: DEC004", "tensor = 2"),
        ),
        Case(
            "one device does not hold the model",
            SPEC.replace(" # expect: DEC004", "").replace("Llama-3.1-8B", "Llama-3.1-70B").replace("60 ms", "200 ms"),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price fewer devices a replica."""
        if goal(review) not in ("throughput", "long-context"):
            return
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        config, devices = parallelism(composition), devices_of(composition)
        if config.t == 1 or config.t != devices or not plain(composition) or one_device(review, composition) is None:
            return
        now = measured(review, composition, mix)
        levers = best_first(review, now, self._fewer(review), mix)
        if levers and levers[0].gain >= self.option("gain") and not speaks(TpUnneeded, review):
            yield advice(
                review,
                tensor_path(review),
                f"one device holds the model, and {devices} a replica carry less each (goal: {goal(review)})",
                levers,
                f"as deployed {shown(now)}",
                (Input("tensor", config.t, "", composition.context.source("parallelism", "tensor")),),
                (("deployment", "goal"), ("hardware", "replicas")),
            )

    @staticmethod
    def _fewer(review: Review) -> Iterator[Change]:
        composition = review.composition
        if composition is None:
            return
        whole = parallelism(composition).t
        for t in (n for n in range(1, whole) if whole % n == 0 and heads_divide(composition, n)):
            other = laid_out(composition, t, tensor=t, expert=1)
            if other is not None:
                yield Change(f"{whole // t} replicas of {t} device{'s' if t > 1 else ''}", other)
