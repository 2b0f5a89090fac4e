"""What the rules of quantization share: weights that multiply at the 16-bit rate, and the deployment in 16 bit."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from attrs import evolve

from servelint.graph import demands_of
from servelint.lineage import KeyPath
from servelint.plugin import Composition, Format, Matmul, Review, WeightRead
from servelint.service import Point
from servelint_rules.layouts import composed

SIXTEEN_BIT = ("bf16", "fp16")
SLOTS: KeyPath = ("policy", "quantization")


class Dequantized(NamedTuple):
    """Weights stored in fewer than 16 bits whose GEMMs run at the 16-bit rate.

    ``share`` is their part of the GEMM work of a token.
    """

    format: Format
    share: float


def dequantized(side: Composition) -> Dequantized | None:
    """The narrow format that most of the work multiplies at 16 bit in; None where the most is native or 16 bit."""
    stored: dict[tuple[str, str], Format] = {}
    for op, demand in demands_of(side.graph, WeightRead):
        if isinstance(demand, WeightRead) and demand.tensor is not None and demand.format is not None:
            stored[op.name, demand.tensor.name] = demand.format
    total = 0.0
    by_format: defaultdict[str, float] = defaultdict(float)
    formats: dict[str, Format] = {}
    for op, demand in demands_of(side.graph, Matmul):
        if not isinstance(demand, Matmul) or demand.tensor is None or op.name == "lm_head":
            continue
        work = demand.coefficient * op.count
        total += work
        format_ = stored.get((op.name, demand.tensor.name))
        if format_ is not None and format_.bits < 16 and demand.precision in SIXTEEN_BIT:
            by_format[format_.name] += work
            formats[format_.name] = format_
    if not by_format:
        return None
    name = max(by_format, key=by_format.__getitem__)
    share = by_format[name] / total
    return Dequantized(formats[name], share) if share > 0.5 else None


def weights_path(review: Review) -> KeyPath:
    """The key that decides the format of the weights: the policy's where something sets it, else the model's."""
    config = review.policy("quantization")
    if config is not None and config.weights not in (None, "auto"):
        return (*SLOTS, "weights")
    return ("model", "config") if review.declared("model", "config") else ("model", "id")


def written(review: Review, path: KeyPath) -> bool:
    """Whether the spec's own text sets a key, where an edit can replace it; launch arguments do not count."""
    return review.declared(*path) and path not in review.document.settings


def with_formats(review: Review, **formats: Any) -> Composition | None:
    """The deployment with formats that are laid anew, a measured size of the checkpoint left out.

    None where that does not compose, or where there are pools.
    """
    composition = review.composition
    if composition is None or composition.scheduler.disaggregation is not None:
        return None
    setup = composition.setup
    base = {"weights": None, "activations": None, "covers": None, "group_size": None}
    config = evolve(review.policy("quantization"), **(base | formats))
    changed = evolve(
        setup.deployment,
        model=evolve(setup.deployment.model, weights_bytes=None),
        policies={**setup.deployment.policies, "quantization": config},
    )
    return composed(Composition(evolve(setup, deployment=changed)))


def wide_name(review: Review) -> str:
    """The 16-bit format of the checkpoint, or of the model that it was made from."""
    architecture, accelerator = review.architecture, review.accelerator
    stored = architecture.stored if architecture is not None else "bf16"
    native = accelerator.dense_flops if accelerator is not None else {}
    if stored in SIXTEEN_BIT and stored in native:
        return stored
    return "bf16" if "bf16" in native or not native else "fp16"


def busy_s(point: Point) -> float:
    """Seconds of a replica that one request takes at a point: of the steps that work, the idle time left out."""
    share = point.mixed_share
    working = share * point.average_mixed_s + (1 - share) * point.plain_s * min(point.batch, 1.0)
    return working / point.requests_per_step
