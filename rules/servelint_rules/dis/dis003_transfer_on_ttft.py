"""DIS003 transfer-on-ttft."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from servelint.distribution import percentile_share
from servelint.lineage import KeyPath
from servelint.plugin import Case, Disaggregation, Edit, Finding, Fix, Input, Lacks, Related, Review, Rule, Severity
from servelint.service import kv_bytes
from servelint_rules.delays import TRANSFER, Delayed, late_by_transfers, with_transfer
from servelint_rules.derivation import latency_equation, named
from servelint_rules.show import duration, floored, raised, size, tokens

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 4
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 16384
[policy.batching]
max_sequences = 32
max_batched_tokens = 8192
[policy.disaggregation]
prefill = { devices = 4, tensor = 4 }
decode = { devices = 4, tensor = 4 }
[policy.disaggregation.transfer]
bandwidth = "1.5 GB/s"
layerwise = false # expect: DIS003
[workload]
prompt_tokens = { p50 = 2000, p99 = 6000 }
output_tokens = { p50 = 150, p99 = 500 }
rate = "0.5 req/s"
[slo]
ttft = { p99 = "1.5 s" }
itl = { p999 = "40 ms" }
"""
SETUP = SPEC.replace('"1.5 GB/s"\nlayerwise = false # expect: DIS003', '"50 GB/s"\nsetup = "1.2 s" # expect: DIS003')


class TransferOnTtft(Rule):
    """The KV transfer between the pools, as far as prefill does not hide it, breaks the time to first token.

    What it checks
    --------------
    Every TTFT objective at the operating point of a deployment with separate pools, with the transfer and without
    it: it is reported when the transfer alone makes the difference. Silent where the spec says nothing of the
    transfer, and where the objective is broken without it too, which SLO001, SLO005 or SLO007 report.

    Why it is bad
    -------------
    The first token is decoded where the cache arrives. A cache that is sent when the whole prefill is done puts all
    of its bytes on the way to that token, and they grow with the prompt, as the tail of the TTFT does anyway.

    The arithmetic
    --------------
    ``exposed = setup + bytes / bandwidth`` in one piece; layer by layer ``setup + max(bytes / bandwidth - prefill x
    (layers - 1) / layers, bytes / bandwidth / layers)``. TTFT is queue + prefill + exposed.

    How to fix
    ----------
    Send layers while later ones are prefilled, or use a faster path. The help line gives what suffices.

    Source
    ------
    Zhong et al., DistServe (arXiv 2401.09670); Patel et al., Splitwise (arXiv 2311.18677), layer-wise transfer.
    """

    code = "DIS003"
    name = "transfer-on-ttft"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is TTFT bad", "what does the KV transfer cost")
    failing = (
        Case(
            "the whole cache after the whole prefill",
            SPEC,
            flip=("policy.disaggregation.transfer.layerwise", "true"),
        ),
        Case(
            "a setup that leaves no time",
            SETUP,
            flip=("policy.disaggregation.transfer.setup", '"5 ms"'),
        ),
    )
    passing = (
        Case("the same path, layer by layer", SPEC.replace("layerwise = false # expect: DIS003", "layerwise = true")),
        Case("one piece over a faster path", SPEC.replace(" # expect: DIS003", "").replace('"1.5 GB/s"', '"50 GB/s"')),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare each TTFT objective with and without the transfer."""
        scheduler = review.scheduler
        if scheduler is None or scheduler.disaggregation is None:
            return
        if not review.declared(*TRANSFER):
            yield Lacks("policy.disaggregation.transfer")
            return
        if review.operating_point is None or not any(o.metric == "ttft" for o in review.objectives):
            yield Lacks("slo.ttft and an operating point (workload)")
            return
        late = late_by_transfers(review)
        if late:
            worst = max(late, key=lambda x: x.seconds / x.objective.declared_s)
            yield _finding(review, scheduler.disaggregation, worst)


def _finding(review: Review, pools: Disaggregation, late: Delayed) -> Finding:
    objective, point = late.objective, late.point
    service, mix = point.service, point.service.mix
    share = objective.percentile
    prompt = mix.prompt.mean if share == "mean" else mix.prompt.quantile(percentile_share(share))
    added = service.transfer_s(prompt, service.pool_prefill_s(prompt), pools)
    held = kv_bytes(service.composition, prompt)
    path = _path(review, pools, held / pools.bytes_per_s)
    how = "layer by layer" if pools.layerwise else "after the whole prefill"
    limit = review.objective_path(objective)
    hides = not pools.layerwise and _keeps(late, layerwise=True)
    declared = review.declared(*TRANSFER, "layerwise")
    return Finding(
        path,
        f"sending {size(held)} of KV cache {how} adds {duration(added)} to the first token of a prompt of "
        f"{tokens(prompt)} tokens: {named(objective)} is {duration(late.seconds)} (estimate), above the objective of "
        f"{duration(objective.declared_s)}, and {duration(late.without_s)} without the transfer",
        equation=(
            f"{f'{duration(pools.setup_s)} setup + ' if pools.setup_s else ''}"
            f"{size(held)} / {size(pools.bytes_per_s)}/s"
            f"{', less what prefill hides,' if pools.layerwise else ''} = {duration(added)}; "
            f"{latency_equation(point, objective)}"
        ),
        inputs=(
            Input("transfer bandwidth", pools.bytes_per_s, "B/s", review.source(*TRANSFER, "bandwidth")),
            Input("transfer setup", pools.setup_s, "s", review.source(*TRANSFER, "setup")),
            Input("prompt", prompt, "tok", review.source("workload")),
            review.input(f"objective of {named(objective)}", objective.declared_s, "s", *limit),
        ),
        help=_help(late, pools, hides),
        related=(Related(limit, f"the objective: {duration(objective.declared_s)}"),),
        fix=Fix("send layers while later ones are prefilled", (Edit((*TRANSFER, "layerwise"), "true"),))
        if hides and declared
        else None,
    )


def _path(review: Review, pools: Disaggregation, moved_s: float) -> KeyPath:
    """The key that decides: sending in one piece, else the larger of setup and bytes."""
    keys = ["bandwidth", "setup"] if moved_s >= pools.setup_s else ["setup", "bandwidth"]
    if not pools.layerwise and moved_s >= pools.setup_s:
        keys.insert(0, "layerwise")
    return next(((*TRANSFER, key) for key in keys if review.declared(*TRANSFER, key)), TRANSFER)


def _keeps(late: Delayed, **changes: Any) -> bool:
    """Whether the objective holds with another transfer under the same load."""
    return with_transfer(late.point, **changes).meets(late.objective, declared=True)


def _help(late: Delayed, pools: Disaggregation, hides: bool) -> str:
    parts = ["set policy.disaggregation.transfer.layerwise = true"] if hides else []
    if _keeps(late, bytes_per_s=inf):
        low, high = pools.bytes_per_s, pools.bytes_per_s
        while high < 1e18 and not _keeps(late, bytes_per_s=high):
            low, high = high, high * 2
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if _keeps(late, bytes_per_s=middle) else (middle, high)
        parts.append(f'set policy.disaggregation.transfer.bandwidth = "{size(raised(high))}/s"')
    if pools.setup_s > 0 and _keeps(late, setup_s=0.0):
        low, high = 0.0, pools.setup_s
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (middle, high) if _keeps(late, setup_s=middle) else (low, middle)
        parts.append(f'set policy.disaggregation.transfer.setup = "{duration(floored(low))}"')
    return "; or ".join(parts or ["neither bandwidth nor setup suffices by itself: both have to be less"])
