"""PAR005 pp-bubble."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    Case,
    Composition,
    Edit,
    Finding,
    Fix,
    Input,
    Lacks,
    Option,
    Related,
    Review,
    Rule,
    Severity,
)
from servelint.service import Point, Service
from servelint_rules.layouts import altered, fits, parallelism, within_fast_links
from servelint_rules.par.groups import regrouped
from servelint_rules.show import counted, duration

FEW = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy]
parallelism = { tensor = 1, pipeline = 4 } # expect: PAR005
[workload]
prompt_tokens = 1000
output_tokens = 300
concurrency = 2
"""
UNEVEN = """\
servelint = 1
[hardware]
accelerator = "nvidia/l40s"
devices = 4
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
tensor = 1
pipeline = 4
pipeline_layers = [14, 6, 6, 6] # expect: PAR005
[workload]
prompt_tokens = 500
output_tokens = 500
concurrency = 64
"""


class Other(NamedTuple):
    """Another layout of the same devices: the keys to set, what it is called, and the same sequences in it."""

    edits: tuple[tuple[KeyPath, str], ...]
    point: Point


class PpBubble(Rule):
    """Pipeline stages wait for each other, and another layout of the same devices would not.

    What it checks
    --------------
    The share of a decode step in which the average stage has nothing to do: fewer sequences than stages, or stages of
    unequal work. Above the option ``idle``, and where the same devices do the average step of the operating point in
    at most 1 - ``gain`` of the time: layers spread evenly, or larger tensor-parallel groups as far as the scale-up
    link reaches. Where no such layout is better, stages are the right choice and nothing is said. A tensor-parallel
    group over a slow link is PAR001's; pools of disaggregated serving are not looked at.

    Why it is bad
    -------------
    A token passes all stages in turn. With fewer sequences than stages some of them idle in every step, though all
    of their memory is paid for; and every stage waits for the slowest.

    The arithmetic
    --------------
    ``idle share = 1 - sum over stages of their work / (stages x step)``. A step takes the longer of the slowest
    stage's micro-batches and the walk of one micro-batch through all stages.

    How to fix
    ----------
    The layout in the help line; more sequences at once, where the load has them.

    Source
    ------
    docs/cost-model.md, parallelism and collectives (pipeline stages).
    """

    code = "PAR005"
    name = "pp-bubble"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("which parallelism", "why are some devices idle")
    options = (
        Option("idle", 0.2, "share of a decode step that the average stage may idle", 0.0, 1.0),
        Option("gain", 0.1, "share by which another layout has to shorten the average step", 0.0, 1.0),
    )
    failing = (
        Case("two sequences in four stages", FEW, flip=("policy.parallelism", "{ tensor = 4, pipeline = 1 }")),
        Case(
            "one sequence fewer than stages",
            FEW.replace("concurrency = 2", "concurrency = 3"),
            flip=("policy.parallelism", "{ tensor = 4, pipeline = 1 }"),
        ),
        Case("a stage with twice the layers", UNEVEN, flip=("policy.parallelism.pipeline_layers", "[8, 8, 8, 8]")),
    )
    passing = (
        Case("sequences for every stage", FEW.replace("= 2\n", "= 4\n").replace(" # expect: PAR005", "")),
        Case("as many layers on every stage", UNEVEN.replace("[14, 6, 6, 6] # expect: PAR005", "[8, 8, 8, 8]")),
        Case(
            "few sequences in stages on two nodes, which nothing else joins fast",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 16
devices_per_node = 8
nodes = 2
[model]
id = "meta-llama/Llama-3.1-405B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
pipeline = 2
[workload]
prompt_tokens = 1000
output_tokens = 300
concurrency = 1
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the work of the stages with the step."""
        composition = review.composition
        if composition is None:
            yield Lacks("a composed deployment")
            return
        config = parallelism(composition)
        if config.p == 1 or composition.scheduler.disaggregation is not None:
            return
        if not within_fast_links(composition, config.t):
            return
        point = review.operating_point
        if point is None:
            yield Lacks("an operating point (workload)")
            return
        idle = _idle(composition, point)
        if idle <= self.option("idle"):
            return
        best = min(_others(composition, point), key=lambda o: o.point.step_s, default=None)
        if best is None or best.point.step_s > point.step_s * (1 - self.option("gain")):
            return
        yield self._finding(review, composition, point, idle, best)

    def _finding(self, review: Review, composition: Composition, point: Point, idle: float, best: Other) -> Finding:
        config, then = parallelism(composition), best.point
        key = "pipeline_layers" if best.edits[0][0][-1] == "pipeline_layers" else "pipeline"
        path: KeyPath = ("policy", "parallelism", key)
        why = f"{counted(point.batch, 'sequence')} in {config.p} stages"
        if key == "pipeline_layers":
            why = f"stages of {', '.join(map(str, config.pipeline_layers))} layers"
        load = next((("workload", k) for k in ("rate", "concurrency") if review.declared("workload", k)), ("workload",))
        return Finding(
            path,
            f"{why}: the average stage idles {idle:.0%} of a decode step of {duration(point.plain_s)}; the same "
            f"devices otherwise take {duration(then.plain_s)}, and {duration(then.step_s)} instead of "
            f"{duration(point.step_s)} for the average step with prefill",
            equation=(
                f"1 - {duration((1 - idle) * config.p * point.plain_s)} of work / ({config.p} stages x "
                f"{duration(point.plain_s)}) = {idle:.0%}; {duration(then.step_s)} / {duration(point.step_s)} = "
                f"{then.step_s / point.step_s:.2f}"
            ),
            inputs=(
                Input("stages", config.p, "", composition.context.source("parallelism", "pipeline")),
                Input("sequences", point.batch, "", review.source(*load)),
            ),
            help="set " + " and ".join(f"{dotted(path)} = {text}" for path, text in best.edits),
            related=(Related(load, "the sequences at once follow from this"),),
            fix=Fix("lay the devices out as the help line says", tuple(Edit(*edit) for edit in best.edits))
            if all(review.declared(*path) for path, _ in best.edits) and not review.declared("engine", "args")
            else None,
        )


def _idle(composition: Composition, point: Point) -> float:
    """Share of a plain step in which the average stage has nothing to do."""
    work = sum(float(row.seconds) for row in composition.pricer.breakdown(point.shape()))
    stages: int = parallelism(composition).p
    return 1.0 - work / (stages * point.plain_s)


def _others(composition: Composition, point: Point) -> Iterator[Other]:
    """The same devices with even stages, or in larger tensor-parallel groups on fast links."""
    config = parallelism(composition)

    def at(other: Composition) -> Point:
        return Service(other, point.service.mix, open_loop=point.service.open_loop).point(point.batch)

    place = ("policy", "parallelism")
    if config.pipeline_layers is not None:
        layers = composition.setup.architecture.num_layers
        each, rest = divmod(layers, config.p)
        even = tuple(each + (stage < rest) for stage in range(config.p))
        other = altered(composition, parallelism=evolve(config, pipeline_layers=even)) if each else None
        if other is not None and fits(other):
            yield Other((((*place, "pipeline_layers"), f"[{', '.join(map(str, even))}]"),), at(other))
        return
    for stages in range(config.p - 1, 0, -1):
        tensor = config.t * config.p // stages
        if config.p % stages or not within_fast_links(composition, tensor):
            continue
        other = regrouped(composition, tensor, stages)
        if other is not None:
            yield Other((((*place, "tensor"), str(tensor)), ((*place, "pipeline"), str(stages))), at(other))
