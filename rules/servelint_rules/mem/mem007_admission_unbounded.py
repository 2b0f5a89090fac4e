"""MEM007 admission-unbounded."""

from __future__ import annotations

from collections.abc import Iterator

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint_rules.averages import averaged
from servelint_rules.layouts import decode_side
from servelint_rules.mem.mem003_kv_pressure_cascade import KvPressureCascade
from servelint_rules.show import counted, sequences, tokens

LIMIT: KeyPath = ("policy", "batching", "max_sequences")


class AdmissionUnbounded(Rule):
    """No limit of admission is declared, and the engine's own lets in more than the KV cache holds.

    What it checks
    --------------
    With objectives and an open loop (``workload.rate``): where ``policy.batching.max_sequences`` is left out, the
    engine's default against the sequences of mean context that the KV cache holds. Silent where the declared load
    itself presses on the cache (MEM003), where the load keeps less than a share of it, and for engines that admit only
    what they can finish (TensorRT-LLM) or have no such key.

    Why it is bad
    -------------
    The day the load grows, or a replica fails, what limits the batch is neither a decision nor the objective: it is
    the memory, by evicting what it has admitted. A declared limit lets requests wait instead, which a queue metric
    shows and a router can act on.

    The arithmetic
    --------------
    ``default limit > factor x KV capacity / bytes of a sequence of mean context``.

    How to fix
    ----------
    Declare the limit that the help line gives: what the KV cache holds, or the knee of the objectives where that is
    lower.

    Source
    ------
    Kwon et al. (arXiv 2309.06180), section 4.5: preemption and recompute once the blocks are used up.
    """

    code = "MEM007"
    name = "admission-unbounded"
    severity = Severity.INFO
    confidence = "medium"
    questions = ("how many requests run at once", "what happens in a burst")
    options = (
        Option("factor", 2.0, "times the sequences that the KV cache holds that a default may admit", 1.0, 1e6),
        Option("load", 0.5, "share of those sequences that the load must keep for this to matter", 0.0, 1.0),
    )
    failing = (
        Case(
            "a default of 256 sequences where 35 fit",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4" # expect: MEM007
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
rate = "0.6 req/s"
[slo]
ttft = { p99 = "60 s" }
""",
            flip=("workload.rate", '"0.2 req/s"'),
        ),
        Case(
            "the engine named without a version",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4" # expect: MEM007
[model]
id = "Qwen/Qwen3-8B"
max_model_len = 16384
[engine]
name = "vllm"
[policy.quantization]
weights = "fp8"
[workload]
prompt_tokens = { p50 = 3000, p99 = 9000 }
output_tokens = { p50 = 300, p99 = 900 }
rate = "0.42 req/s"
[slo]
ttft = { p99 = "60 s" }
""",
            flip=("workload.rate", '"0.05 req/s"'),
        ),
    )
    passing = (
        Case(
            "a limit is declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/l4"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.quantization]
weights = "fp8"
[policy.batching]
max_sequences = 24
[workload]
prompt_tokens = { p50 = 1500, p99 = 5000 }
output_tokens = { p50 = 400, p99 = 1500 }
rate = "0.6 req/s"
[slo]
ttft = { p99 = "60 s" }
""",
        ),
        Case(
            "memory for as many as the default admits",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.2-1B"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[workload]
prompt_tokens = 500
output_tokens = 200
rate = "30 req/s"
[slo]
ttft = { p99 = "60 s" }
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare an undeclared limit of admission with what the KV cache holds."""
        if review.declared(*LIMIT) or review.rate() is None or not review.objectives:
            return
        mix, composition = review.mix, review.composition
        if mix is None or composition is None:
            yield Lacks("a composed deployment and workload lengths")
            return
        assumed, point = review.assumption(*LIMIT), review.operating_point
        if point is None or assumed is None or composition.setup.engine.when_full == "waits":
            return
        side, service = decode_side(composition), review.service(mix)
        admitted, fits = side.scheduler.max_sequences, service.limits["KV capacity"]
        if admitted is None or admitted <= self.option("factor") * fits:
            return
        if point.batch < self.option("load") * fits:
            return
        if any(isinstance(item, Finding) for item in KvPressureCascade().check(review)):
            return
        knee = review.knee
        most = min(fits, int(knee.batch)) if knee is not None and knee.batch >= 1 else fits
        ranks = side.scheduler.ranks
        safe = max(most // ranks, 1)
        path = next((p for p in (("hardware", "accelerator"), ("engine", "name")) if review.declared(*p)), ("engine",))
        yield Finding(
            path,
            f"no limit of admission is declared: the default admits {sequences(admitted)} sequences where the KV cache "
            f"holds {sequences(fits)} of mean context, and the load already keeps {counted(point.batch, 'sequence')}",
            equation=f"{sequences(admitted)} > {self.option('factor'):g} x {sequences(fits)}",
            inputs=(
                Input("max_sequences", admitted, "", assumed.source),
                averaged(review, "mean context", round(mix.mean_context, 1)),
                *side.memory.budget_lineage.inputs,
            ),
            help=f"set policy.batching.max_sequences = {safe}, and let the rest wait",
            related=(Related(("workload", "rate"), f"contexts of {tokens(mix.mean_context)} tokens on average"),),
        )
