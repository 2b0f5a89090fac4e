"""PAR004 tp-unneeded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from servelint.plugin import (
    Case,
    Composition,
    Finding,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Point, Service
from servelint_rules.layouts import fits, parallelism, tensor_path, within_fast_links
from servelint_rules.par.groups import (
    copies_of,
    heaviest,
    joined,
    loaded,
    narrower,
    offered,
    share_of,
)
from servelint_rules.show import duration, request_rates, size

LOADED = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
replicas = 1
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 8 # expect: PAR004
[policy.batching]
max_sequences = 2048
max_batched_tokens = 4096
[workload]
prompt_tokens = { p50 = 1000, p99 = 4000 }
output_tokens = { p50 = 250, p99 = 1000 }
[slo]
ttft = { p99 = "2 s" }
tpot = { p99 = "32 ms" }
"""
LONG = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
devices = 8
replicas = 1
[model]
id = "mistralai/Mistral-7B-v0.3"
max_model_len = 16384
[policy.parallelism]
tensor = 8 # expect: PAR004
[policy.batching]
max_sequences = 256
max_batched_tokens = 2048
[workload]
prompt_tokens = 10240
output_tokens = 1024
concurrency = 100
"""


class Split(NamedTuple):
    """The same devices as more replicas of a smaller group: degree, replicas of each present one, where they run."""

    tensor: int
    copies: int
    composition: Composition
    point: Point


class TpUnneeded(Rule):
    """Smaller tensor-parallel groups hold the model, and serve it better on the same devices.

    What it checks
    --------------
    Replicas of fewer devices each, as many as the same devices make. A warning where each request of the declared
    load is done sooner by at least the option ``sooner``, every objective that holds now still holding. Advice where
    no load is declared and they carry at least the option ``more`` within every objective, or where the load breaks
    an objective that they keep. Silent where memory allows no smaller group; with speculation, or data, attention-data,
    context or expert parallelism; over slow links, which are PAR001's; and where cached tokens are held
    twice, which is PAR003's.

    Why it is bad
    -------------
    Every layer of a tensor-parallel group waits for two collectives, and a small model gives each device too little to
    compute. Replicas wait for nobody, and a failure takes a smaller part of the service.

    The arithmetic
    --------------
    ``replicas x requests a second of one`` with weights read by every replica, against one group that reads them once
    and pays for its collectives: at the declared load, or at the knees.

    How to fix
    ----------
    The degree and the number of replicas in the help line.

    Source
    ------
    docs/cost-model.md, parallelism and collectives; vllm-project/vllm#8089 (two TP 4 replicas against TP 8)
    and #1888 (TP 8 against one device).
    """

    code = "PAR004"
    name = "tp-unneeded"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("which parallelism", "is it too expensive", "why is it slower with more GPUs")
    options = (
        Option("sooner", 0.05, "share by which requests of the declared load have to be done sooner", 0.0, 1.0),
        Option("more", 0.25, "share of requests a second within the objectives that has to be gained", 0.0, 10.0),
        Option(
            "slow", 0.25, "share of the decode step in collectives from which PAR001 speaks of slow links", 0.0, 1.0
        ),
    )
    failing = (
        Case("a small model over eight devices, for throughput", LOADED, flip=("slo.tpot.p99", '"31 ms"')),
        Case("a small model over eight devices, for long prompts", LONG, flip=("workload.concurrency", "8")),
        Case(
            "the first number of sequences that is done soon enough",
            LONG.replace("concurrency = 100", "concurrency = 74"),
            flip=("workload.concurrency", "73"),
        ),
    )
    passing = (
        Case(
            "latency that only the whole group reaches",
            LOADED.replace("32 ms", "31 ms").replace(" # expect: PAR004", ""),
        ),
        Case(
            "requests that are done just not soon enough",
            LONG.replace("concurrency = 100", "concurrency = 73").replace(" # expect: PAR004", ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the group with replicas of smaller ones."""
        composition, mix = review.composition, review.mix
        if composition is None or mix is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        config = parallelism(composition)
        plain = config.ranks == config.c == (config.expert or 1) == composition.scheduler.verify_tokens == 1
        if config.t == 1 or not plain or composition.scheduler.disaggregation is not None or not fits(composition):
            return
        if not within_fast_links(composition, config.t) or copies_of(composition) > 1:
            return
        if not offered(review):
            yield from self._at_the_knee(review, composition)
            return
        now = loaded(review, review.service(mix), 1)
        misses = now is None or bool(now.misses(review.objectives, declared=True))
        if misses:
            yield from self._kept(review, composition, now)
        elif now is not None:
            yield from self._sooner(review, composition, now)

    def _sooner(self, review: Review, composition: Composition, now: Point) -> Iterator[Finding]:
        """Requests of the declared load that are done sooner without the collectives."""
        names, least = joined(composition), self.option("sooner")
        shares = [share_of(composition, names, shape) for shape in heaviest(now)]
        # No more is saved than the collectives take.
        if max(shares) < least:
            return
        before = now.e2e("mean")
        splits = [s for s in _splits(review, composition) if not s.point.misses(review.objectives, declared=True)]
        best = min(splits, key=lambda s: s.point.e2e("mean"), default=None)
        if best is None or best.point.e2e("mean") > before * (1 - least):
            return
        after = best.point.e2e("mean")
        yield self._finding(
            review,
            composition,
            best,
            f"a request of the declared load takes {duration(after)} instead of {duration(before)} on average",
            f"collectives take up to {max(shares):.0%} of a step; the average one takes {duration(best.point.step_s)} "
            f"in {best.copies} replicas instead of {duration(now.step_s)}: {duration(after)} / {duration(before)} = "
            f"{after / before:.2f}",
            Severity.WARNING,
        )

    def _kept(self, review: Review, composition: Composition, now: Point | None) -> Iterator[Finding]:
        """A load that breaks an objective, or is not carried, and that smaller groups serve."""
        splits = [s for s in _splits(review, composition) if not s.point.misses(review.objectives, declared=True)]
        best = min(splits, key=lambda s: s.point.e2e("mean"), default=None)
        if best is None:
            return
        missed = now.misses(review.objectives, declared=True)[0].objective if now is not None else None
        subject = (
            f"carry the declared load within every objective ({missed.metric.upper()} {missed.percentile} breaks now)"
            if missed is not None
            else "carry the declared load, which the present group does not"
        )
        yield self._finding(
            review,
            composition,
            best,
            f"they {subject}",
            f"a request takes {duration(best.point.e2e('mean'))} on average with {best.point.batch:.3g} sequences at "
            "once in each",
            Severity.INFO,
        )

    def _at_the_knee(self, review: Review, composition: Composition) -> Iterator[Finding | Lacks]:
        """More requests a second within every objective, where no load says how many are needed."""
        if not review.objectives:
            yield Lacks("a load (workload.rate or workload.concurrency) or objectives (slo)")
            return
        knee, mix = review.knee, review.mix
        if knee is None or mix is None:
            return
        limits = knee.service.limits
        if knee.batch >= knee.service.batch_limit and min(limits, key=lambda n: limits[n]) != "KV capacity":
            # The admission limit decides, which could be raised.
            return
        config = parallelism(composition)
        best: Split | None = None
        for t, other in narrower(composition):
            point = Service(other, mix, open_loop=knee.service.open_loop).knee(review.objectives)
            copies = config.t // t
            if point is not None and (best is None or point.rate * copies > best.point.rate * best.copies):
                best = Split(t, copies, other, point)
        if best is None or best.point.rate * best.copies < knee.rate * (1 + self.option("more")):
            return
        after, before = request_rates(best.point.rate * best.copies, knee.rate)
        yield self._finding(
            review,
            composition,
            best,
            f"they carry {after} within every objective instead of {before} (+"
            f"{best.point.rate * best.copies / knee.rate - 1:.0%})",
            f"{best.copies} x {best.point.batch:.3g} sequences in steps of {duration(best.point.step_s)}, against "
            f"{knee.batch:.3g} in {duration(knee.step_s)}",
            Severity.INFO,
        )

    def _finding(
        self, review: Review, composition: Composition, best: Split, gain: str, equation: str, severity: Severity
    ) -> Finding:
        config = parallelism(composition)
        memory = best.composition.memory
        fit = memory.fit(memory.tightest)
        one = "one device" if best.composition.setup.topology.devices == 1 else f"tensor = {best.tensor}"
        edits = [f"policy.parallelism.tensor = {best.tensor}", f"hardware.replicas = {review.replicas * best.copies}"]
        if review.declared("hardware", "devices"):
            edits.insert(1, f"hardware.devices = {best.composition.setup.topology.devices}")
        if not offered(review) and best.point.batch < best.point.service.batch_limit:
            # Full admission of a smaller replica may lie beyond its knee.
            edits.append(f"policy.batching.max_sequences = {max(math.floor(best.point.batch), 1)}")
        return Finding(
            tensor_path(review),
            f"the model fits {one} ({size(fit.weights)} of weights, {size(fit.left)} left), and the devices of tensor "
            f"= {config.t} make {best.copies} such replicas: {gain}",
            equation=equation,
            inputs=(
                Input("tensor", config.t, "", composition.context.source("parallelism", "tensor")),
                Input("weights of a device", fit.weights, "B", review.source("model")),
            ),
            help=f"set {', '.join(edits[:-1])} and {edits[-1]}",
            related=(Related(("workload",), "the load"),) if review.declared("workload") else (),
            severity=severity,
        )


def _splits(review: Review, composition: Composition) -> Iterator[Split]:
    """Smaller groups that carry the declared load."""
    mix, t = review.mix, parallelism(composition).t
    if mix is None:
        return
    for tensor, other in narrower(composition):
        service = Service(other, mix, open_loop=review.rate() is not None)
        point = loaded(review, service, t // tensor)
        if point is not None:
            yield Split(tensor, t // tensor, other, point)
