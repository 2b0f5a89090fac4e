"""MOE003 underused-experts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from servelint.plugin import Case, Experts, Finding, Input, Lacks, Option, Related, Review, Rule, Severity, Source
from servelint_rules.layouts import decode_side, parallelism
from servelint_rules.show import counted, sequences

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 32
devices_per_node = 8
network = { bandwidth = "400 Gbit/s", per = "device" }
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
attention_data = 8
data = 4
expert = 32 # expect: MOE003
[policy.batching]
max_sequences = 64
[workload]
prompt_tokens = 1500
output_tokens = 500
concurrency = 5
"""
NODE = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[policy.parallelism]
tensor = 8
expert = 8 # expect: MOE003
[workload]
prompt_tokens = 1500
output_tokens = 500
concurrency = 1
"""


class UnderusedExperts(Rule):
    """So few tokens are in a step that ranks of experts have nothing to do.

    What it checks
    --------------
    Under expert parallelism, the share of expert ranks that no token of a decode step reaches at the declared load,
    against the option ``idle``. Routing is taken as uniform, which is the best case; uneven load is MOE001's.

    Why it is bad
    -------------
    The ranks that are reached read their experts alone, with a part of the replica's memory bandwidth, and the others
    wait for them. The devices are paid for their memory only, and a token costs as much as a batch would.

    The arithmetic
    --------------
    ``idle share = (C(E - n, k) / C(E, k))^T``: the chance that none of T tokens picks one of the n of E experts of a
    rank among its k.

    How to fix
    ----------
    Fewer replicas with more sequences in each, fewer ranks of experts (each expert is then sliced over several
    devices, which all read), or more load. The help line gives both numbers.

    Source
    ------
    docs/cost-model.md, parallelism and collectives; DeepSeek-V3 Technical Report (arXiv 2412.19437), section 3.4.
    """

    code = "MOE003"
    name = "underused-experts"
    severity = Severity.INFO
    confidence = "medium"
    preview = True
    questions = ("why are some devices idle", "which parallelism")
    options = (Option("idle", 0.25, "share of expert ranks without a token in a layer", 0.0, 1.0),)
    failing = (
        Case("five sequences for 32 ranks", SPEC, flip=("workload.concurrency", "6")),
        Case("one sequence for eight ranks", NODE, flip=("policy.parallelism.expert", "4")),
    )
    passing = (
        Case("six sequences for 32 ranks", SPEC.replace("= 5\n", "= 6\n").replace(" # expect: MOE003", "")),
        Case("two sequences for eight ranks", NODE.replace("y = 1", "y = 2").replace(" # expect: MOE003", "")),
        Case("experts sliced over all devices", NODE.replace("expert = 8 # expect: MOE003", "expert = 1")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Count the ranks that the tokens of a step reach."""
        composition = review.composition
        if composition is None:
            yield Lacks("a composed deployment")
            return
        side = decode_side(composition)
        ranks = parallelism(side).expert or 1
        kinds = {b.experts for b in side.setup.architecture.blocks if b.experts is not None}
        if ranks == 1 or not kinds:
            return
        point = review.operating_point
        if point is None or not (review.declared("workload", "rate") or review.declared("workload", "concurrency")):
            yield Lacks("a declared load that is carried (workload.rate or workload.concurrency)")
            return
        experts = max(kinds, key=lambda e: e.count)
        tokens = max(point.batch, 1.0) * side.scheduler.verify_tokens
        idle, most = _missed(experts, ranks) ** tokens, self.option("idle")
        if idle <= most:
            return
        key = "rate" if review.declared("workload", "rate") else "concurrency"
        per = -(-experts.count // ranks)
        yield Finding(
            ("policy", "parallelism", "expert"),
            f"{counted(tokens, 'token')} a step, with {experts.top_k} experts each, leave {idle:.0%} of {ranks} expert "
            f"ranks without work in a layer, at best; the others read their experts alone",
            equation=(
                f"(1 - {1 - _missed(experts, ranks):.3f})^{sequences(tokens)} = {idle:.1%}: a token reaches a rank of "
                f"{per} of {experts.count} experts with a chance of {1 - _missed(experts, ranks):.1%}"
            ),
            inputs=(
                Input("expert ranks", ranks, "", side.context.source("parallelism", "expert")),
                Input("experts", experts.count, "", Source("model", side.setup.architecture.id, "num_experts")),
                Input("tokens a step", tokens, "", review.source("workload", key)),
            ),
            help=_help(experts, ranks, tokens, most, side.scheduler.verify_tokens),
            related=(Related(("workload", key), "the sequences at once follow from this"),),
        )


def _missed(experts: Experts, ranks: int) -> float:
    """Chance that a token uses no expert of a rank, routing being uniform."""
    own = -(-experts.count // ranks)
    return math.comb(experts.count - own, experts.top_k) / math.comb(experts.count, experts.top_k)


def _help(experts: Experts, ranks: int, tokens: float, most: float, verified: int) -> str:
    missed = _missed(experts, ranks)
    needed = math.ceil(math.log(most) / math.log(missed) / verified - 1e-9) if most > 0 else 0
    fewer = next((n for n in range(ranks - 1, 0, -1) if ranks % n == 0 and _missed(experts, n) ** tokens <= most), 1)
    load = f"keep at least {counted(needed, 'sequence')} at once in a replica, or " if needed else ""
    return f"{load}set policy.parallelism.expert = {fewer}"
