"""MEM005 stranded-memory."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from servelint.errors import PluginError
from servelint.lineage import KeyPath
from servelint.plugin import (
    Accelerator,
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
from servelint.service import Mix, Point, Service
from servelint_rules.layouts import composed, fits, heads_divide, on_accelerator, parallelism, relaid, tensor_path
from servelint_rules.show import counted, sequences, size, tokens

LEAST = 2
"""Tensor-parallel degree down to which devices are taken away: whether one would do is PAR004's question."""


class StrandedMemory(Rule):
    """Most of the memory stays empty at the declared load, and fewer or smaller devices would keep the objectives.

    What it checks
    --------------
    At the declared rate or concurrency: the memory of a device that neither weights, reserves nor ``margin`` times the
    sequences of the load, each as long as the workload's p95, ever fill. Where that is more than ``unused`` of the
    device: whether half of the tensor-parallel devices, or the same number of the next smaller device of the same
    architecture, form and link, hold the model, the longest request and the load, and keep every objective with
    ``reserve`` of it to spare.

    Silent without objectives and a load (whether it is unused is then open), with separate pools, where a scenario of
    growth is declared, and where the objectives already break. That one device would do is PAR004's.

    Why it is bad
    -------------
    Memory is what the larger device or group costs. What is not filled was bought for nothing, unless it is meant for
    prefix caches or for growth, which the spec can say.

    The arithmetic
    --------------
    ``visible - weights - reserves - margin x sequences x bytes of a p95 sequence``, a device; then the operating point
    of the smaller deployment.

    How to fix
    ----------
    The smaller layout in the help line, which was composed and priced; or declare the growth that the room is for.

    Source
    ------
    docs/cost-model.md, memory ledger and operating point.
    """

    code = "MEM005"
    name = "stranded-memory"
    severity = Severity.INFO
    confidence = "medium"
    preview = True
    questions = ("is this too large", "what does it cost")
    options = (
        Option("unused", 0.5, "share of a device's memory that must stay empty", 0.05, 1.0),
        Option("margin", 2.0, "times the sequences of the load that are kept room for", 1.0, 100.0),
        Option("reserve", 0.3, "share of every objective that the smaller deployment must leave free", 0.0, 0.95),
    )
    failing = (
        Case(
            "eight H200 for a 70B model and a request a second",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8 # expect: MEM005
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[workload]
prompt_tokens = { p50 = 900, p99 = 6000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "1 req/s"
[slo]
ttft = { p99 = "3 s" }
tpot = { p99 = "100 ms" }
""",
            flip=("workload.rate", '"9 req/s"'),
        ),
        Case(
            "a larger device than an 8B model needs",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb" # expect: MEM005
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 16384
[workload]
prompt_tokens = { p50 = 900, p99 = 6000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "1 req/s"
[slo]
ttft = { p99 = "3 s" }
tpot = { p99 = "100 ms" }
""",
            flip=("hardware.accelerator", '"nvidia/h100-sxm5-80gb"'),
        ),
    )
    passing = (
        Case(
            "the objective needs all of them",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[workload]
prompt_tokens = { p50 = 900, p99 = 6000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "1 req/s"
[slo]
ttft = { p99 = "3 s" }
tpot = { p99 = "14 ms" }
""",
        ),
        Case(
            "the room is for growth that is declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[workload]
prompt_tokens = { p50 = 900, p99 = 6000 }
output_tokens = { p50 = 250, p99 = 1200 }
rate = "1 req/s"
[[workload.growth]]
rate = "8 req/s"
[slo]
ttft = { p99 = "3 s" }
tpot = { p99 = "100 ms" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Ask for a smaller deployment where most of the memory is never filled."""
        workload, mix, composition = review.deployment.workload, review.mix, review.composition
        if workload is None or mix is None or composition is None or not review.objectives:
            return
        if workload.growth or (workload.rate is None and workload.concurrency is None):
            return
        if composition.scheduler.disaggregation is not None or composition.memory.cache_bytes is not None:
            return
        point, memory = review.operating_point, composition.memory
        if point is None or point.misses(review.objectives):
            return
        kept = self.option("margin") * max(point.batch, 1.0)
        empty = _empty(composition, mix, kept)
        if empty < self.option("unused") * memory.visible:
            return
        smaller = self._smaller(review, composition, mix, kept)
        if smaller is not None:
            yield self._finding(review, composition, mix, point, kept, empty, smaller)

    def _smaller(
        self, review: Review, composition: Composition, mix: Mix, kept: float
    ) -> tuple[Composition, str, KeyPath] | None:
        """Half of the devices, else the next smaller device; None where neither carries the workload."""
        config = parallelism(composition)
        if config.t >= 2 * LEAST:
            half = _halved(composition)
            if half is not None and self._works(review, half, mix, kept):
                devices = half.setup.topology.devices
                path = tensor_path(review)
                edits = [f"policy.parallelism.tensor = {config.t // 2}"] if path[0] == "policy" else []
                edits += [f"hardware.devices = {devices}"] if review.declared("hardware", "devices") else []
                return (
                    half,
                    f"set {' and '.join(edits)}" if edits else f"take {devices} devices",
                    (("hardware", "devices") if review.declared("hardware", "devices") else path),
                )
        path = ("hardware", "accelerator")
        if not review.declared(*path):
            return None
        next_ = _next_smaller(review, composition)
        other = on_accelerator(composition, next_) if next_ is not None else None
        if next_ is not None and other is not None and self._works(review, other, mix, kept):
            return other, f'set hardware.accelerator = "{next_.id}"', path
        return None

    def _works(self, review: Review, other: Composition, mix: Mix, kept: float) -> bool:
        """Whether a deployment holds and carries the workload with the reserve to spare."""
        if not fits(other) or other.memory.resident_sequences(mix.context(0.95)) < kept:
            return False
        service = Service(other, mix, open_loop=review.rate() is not None)
        rate, asked = review.rate(), review.concurrency()
        point: Point | None
        if rate is not None:
            point = service.at_rate(rate)
        else:
            fullest = service.fullest
            point = (
                service.point(asked) if fullest is not None and asked is not None and fullest.batch >= asked else None
            )
        if point is None:
            return False
        keep = 1 - self.option("reserve")
        strict = tuple(o._replace(limit_s=min(o.limit_s, o.declared_s * keep)) for o in review.objectives)
        return not point.misses(strict)

    def _finding(
        self,
        review: Review,
        composition: Composition,
        mix: Mix,
        point: Point,
        kept: float,
        empty: float,
        smaller: tuple[Composition, str, KeyPath],
    ) -> Finding:
        memory, (other, edit, path) = composition.memory, smaller
        fit = memory.fit(memory.tightest)
        devices, accelerator = other.setup.topology.devices, other.setup.topology.accelerator
        context = mix.context(0.95)
        load = ("workload", "rate") if review.rate() is not None else ("workload", "concurrency")
        return Finding(
            path,
            f"{size(empty)} of the {size(memory.visible)} of a device stay empty at the declared load of "
            f"{counted(point.batch, 'sequence')}, and {devices} {accelerator.name} would keep every objective with "
            f"{self.option('reserve'):.0%} to spare",
            equation=(
                f"{size(memory.visible)} - {size(fit.weights)} of weights - {size(fit.reserves)} of reserves - "
                f"{sequences(kept)} sequences of {tokens(context)} tokens (p95) = {size(empty)}"
            ),
            inputs=(
                Input("sequences", round(point.batch, 1), "", review.source(*load)),
                Input("weights per device", fit.weights, "B", review.source("model", "id")),
                *memory.budget_lineage.inputs[:1],
            ),
            help=f"{edit}; or declare the growth that the room is for ([[workload.growth]])",
            related=(Related(load, "the load that does not fill it"),),
        )


def _empty(composition: Composition, mix: Mix, kept: float) -> float:
    """Bytes of the fullest device that weights, reserves and so many sequences leave."""
    memory = composition.memory
    context = mix.context(0.95)
    least = memory.visible
    for stage in range(memory.stages):
        fit = memory.fit(stage)
        held = kept / memory.ranks * memory.sequence_bytes(context, stage)
        least = min(least, memory.visible - fit.weights - sum(r.bytes for r in memory.reserves) - held)
    return least


def _halved(composition: Composition) -> Composition | None:
    """The same replica on half of the devices of its tensor-parallel group, None when that does not compose."""
    config, devices = parallelism(composition), composition.setup.topology.devices
    if config.t % 2 or (config.expert or 1) > 1 or config.attention_ranks > 1:
        return None
    if not heads_divide(composition, config.t // 2):
        return None
    return composed(relaid(composition, evolve(config, tensor=config.t // 2), devices // 2))


def _next_smaller(review: Review, composition: Composition) -> Accelerator | None:
    """The device of the same maker, architecture and domain with the next smaller memory."""
    topology, found = composition.setup.topology, list[Accelerator]()
    current = topology.accelerator
    if current.replaced:
        return None
    maker = current.id.partition("/")[0] + "/"
    for name in review.plugins.accelerators.ids():
        if not name.startswith(maker):
            continue
        try:
            other = review.plugins.accelerators.get(name)
        except PluginError:
            continue
        if other.architecture != current.architecture or other.memory_bytes >= current.memory_bytes:
            continue
        if evolve(topology, accelerator=other).scale_up_domain == topology.scale_up_domain:
            found.append(other)
    return max(found, key=lambda a: (a.memory_bytes, a.dense_flops.get("bf16", 0.0)), default=None)
