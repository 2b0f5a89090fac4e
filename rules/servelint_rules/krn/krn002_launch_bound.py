"""KRN002 launch-bound."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.graph import demands_of
from servelint.plugin import (
    Case,
    Composition,
    Finding,
    Input,
    Lacks,
    Launch,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint.service import Point
from servelint_rules.krn.graphs import Graphs, declared
from servelint_rules.layouts import decode_side
from servelint_rules.show import counted, duration

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen3-0.6B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
args = "--enforce-eager" # expect: KRN002
[workload]
prompt_tokens = 500
output_tokens = 200
rate = "5 req/s"
"""
DEFEATED = """\
servelint = 1
[hardware]
accelerator = "nvidia/rtx-5090"
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 4096
[engine]
name = "sglang"
version = "0.5.9"
args = "--cuda-graph-max-bs 24" # expect: KRN002
[policy.batching]
max_sequences = 48
[workload]
prompt_tokens = 500
output_tokens = 500
concurrency = 32
"""


class LaunchBound(Rule):
    """Decode steps are launched kernel by kernel, and that takes longer than they compute.

    What it checks
    --------------
    Keys or launch arguments that turn device graphs off (``engine.enforce_eager``), or capture them for fewer
    sequences (in vLLM: tokens) than decode at the operating point (``engine.cuda_graph_max_batch``). The host's time
    for the kernels of one decode step is set beside the captured step. Silent where nothing is said of graphs: engines
    capture them by default.

    Why it is bad
    -------------
    A small or widely split model computes a step in a few milliseconds; launching its hundreds of kernels from the
    host takes as long or longer, and the device waits. A batch one above the largest captured size falls off that
    cliff: a public case lost 71 % of its throughput at 32 sequences with graphs up to 24.

    The arithmetic
    --------------
    ``host time = kernels a step x option launch``, against the estimate of the captured step. With graphs off it is
    reported from the option ``slowdown`` on; with graphs that the batch outgrew from ``share`` on.

    How to fix
    ----------
    Leave graphs on, or capture them up to the number of sequences in the help line; where memory is short, lower
    the largest size rather than turning them off.

    Source
    ------
    ai-dynamo/aiconfigurator systems/data at 095f58a: an eager operation on H100 takes 15.8 us longer than a captured
    one; sgl-project/sglang#37898 (graphs up to 24, 32 sequences).
    """

    code = "KRN002"
    name = "launch-bound"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is it slower than planned", "are the flags right")
    options = (
        Option("launch", 15.8, "microseconds of the host for one kernel that is not captured", 1.0, 1000.0),
        Option(
            "slowdown", 1.1, "host time over the captured step from which on missing graphs are reported", 0.1, 100.0
        ),
        Option("share", 0.25, "the same where the batch is above the largest captured size", 0.01, 100.0),
    )
    failing = (
        Case("no graphs for a small model", SPEC, flip=("engine.args", '"--no-enforce-eager"')),
        Case(
            "one word of a list",
            SPEC.replace(
                '"--enforce-eager" # expect: KRN002', '["--max-num-seqs", "64",\n"--enforce-eager"] # expect: KRN002'
            ),
            flip=("engine.args[2]", '"--no-enforce-eager"'),
        ),
        Case(
            "a key of the spec",
            SPEC.replace('args = "--enforce-eager"', "enforce_eager = true"),
            flip=("engine.enforce_eager", "false"),
        ),
        Case("graphs up to 24 sequences, and 32 decode", DEFEATED, flip=("engine.args", '"--cuda-graph-max-bs 32"')),
        Case(
            "one sequence fewer than decode",
            DEFEATED.replace("24", "31"),
            flip=("workload.concurrency", "31"),
        ),
    )
    passing = (
        Case("graphs by default", SPEC.replace('args = "--enforce-eager" # expect: KRN002\n', "")),
        Case(
            "a step that is long enough to launch in",
            SPEC.replace("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B").replace("nvidia/h100-sxm5-80gb", "nvidia/l4")
            .replace("5 req/s", "0.2 req/s").replace(" # expect: KRN002", ""),
        ),
        Case("graphs for as many as decode", DEFEATED.replace("24\" # expect: KRN002", "32\"")),
    )  # fmt: skip

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Set the host's time beside the captured step."""
        if review.composition is None:
            yield Lacks("a composed deployment")
            return
        graphs = declared(review)
        if graphs is None:
            return
        point = review.operating_point
        if point is None:
            yield Lacks("an operating point: workload lengths and a load that is carried")
            return
        side = decode_side(review.composition)
        launches = _kernels(side)
        host = launches * self.option("launch") * 1e-6
        captured = point.plain_s
        size = _size(point, graphs)
        if graphs.largest and size <= graphs.largest * (1 + 1e-9):
            return
        if host >= captured * self.option("share" if graphs.largest else "slowdown"):
            yield self._finding(review, graphs, point, launches, host, captured)

    def _finding(
        self, review: Review, graphs: Graphs, point: Point, launches: float, host: float, captured: float
    ) -> Finding:
        size, unit = _size(point, graphs), "token" if graphs.tokens else "sequence"
        what = (
            f"graphs are captured for up to {counted(graphs.largest, unit)}, and a decode step has "
            f"{counted(size, unit)}"
            if graphs.largest
            else f"{graphs.spelling} leaves no graphs"
        )
        beside = (
            f"such steps run without one, their {launches:,.0f} kernels launched one by one, at least {duration(host)} "
            f"of the host's time beside the {duration(captured)} that the captured step takes"
            if graphs.largest
            else f"the host launches {launches:,.0f} kernels a decode step one by one, which takes {duration(host)} or "
            f"more, and the step captured takes {duration(captured)}"
        )
        load = next((k for k in ("rate", "concurrency") if review.declared("workload", k)), None)
        return Finding(
            graphs.path,
            f"{what}: {beside}",
            equation=(
                f"{launches:,.0f} kernels x {self.option('launch'):g} us = {duration(host)}, {host / captured:.2f}x "
                f"the captured step of {duration(captured)} at {counted(max(point.batch, 1.0), 'sequence')}"
            ),
            inputs=(
                Input("kernels a step", launches, "", Source("computed", "step graph", "launches")),
                Input(
                    "time of a launch",
                    self.option("launch") * 1e-6,
                    "s",
                    Source("measurement", "ai-dynamo/aiconfigurator@095f58a", "eager less captured, H100"),
                ),
            ),
            help=(
                f"capture graphs for at least {-(-size // 1):,.0f} {unit}s"
                if graphs.largest
                else f"take out {graphs.spelling}, or capture graphs for {counted(-(-size // 1), 'decoding sequence')}"
            ),
            related=(Related(("workload", load), "the load that decides the batch"),) if load else (),
        )


def _kernels(side: Composition) -> float:
    """Kernels of a decode step on the stage that has most of them."""
    stages = [0.0] * side.graph.stages
    for op, demand in demands_of(side.graph, Launch):
        for stage, repeats in enumerate(op.repeats):
            stages[stage] += demand.coefficient * repeats
    return max(stages)


def _size(point: Point, graphs: Graphs) -> float:
    """Sequences, or tokens, of a rank's decode step at the point."""
    scheduler = point.service.scheduler
    return max(point.batch / scheduler.ranks, 1.0) * (scheduler.verify_tokens if graphs.tokens else 1)
