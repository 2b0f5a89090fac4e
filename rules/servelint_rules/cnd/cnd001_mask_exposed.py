"""CND001 mask-exposed."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.plugin import Case, Finding, Input, Lacks, Option, Related, Review, Rule, Severity
from servelint.service import Point, Service
from servelint.shapes import StepShape, decode
from servelint_rules.show import counted, duration, floored

KNOWN = ("outlines",)
"""Backends whose mask time has a published median that stands where the spec declares none."""


class MaskExposed(Rule):
    """Building the token masks takes longer than the forward pass hides.

    What it checks
    --------------
    At the operating batch: host seconds of the masks of one step, less the forward pass when the engine builds
    them during it. What stays exposed, as a share of the step, against the option ``share``. A mask time that
    the spec does not declare is not judged, but for the backend ``outlines``, whose published median counts.

    Why it is bad
    -------------
    Masks are built on the host, one for each constrained row of the batch, while the device time of a step
    grows far more slowly. Beyond some batch the device waits for the host, and every sequence waits with it,
    constrained or not.

    The arithmetic
    --------------
    ``mask = rows of a rank x share x seconds a mask``, rows being sequences x tokens verified;
    ``exposed = max(0, mask - forward)`` when overlapped, else ``mask``.

    How to fix
    ----------
    Overlap masks with the forward pass, use a faster backend, or admit fewer sequences a rank. The help line
    gives the mask time and the batch that stay hidden.

    Source
    ------
    Dong et al., XGrammar (arXiv 2411.15100); docs/cost-model.md, constrained decoding. Outlines:
    guidance-ai/jsonschemabench maskbench/README.md; vllm-project/vllm#3567 (100 guided requests).
    """

    code = "CND001"
    name = "mask-exposed"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("why is structured output slow", "why is p99 bad")
    options = (Option("share", 0.1, "share of a step that exposed masks may take", 0.0, 1.0),)
    failing = (
        Case(
            "slow masks for a large batch",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.batching]
max_sequences = 128
[policy.constrained_decoding]
backend = "outlines"
mask = "1 ms" # expect: CND001
overlap = true
[workload]
prompt_tokens = 800
output_tokens = 200
concurrency = 128
""",
            flip=("policy.constrained_decoding.mask", '"20 us"'),
        ),
        Case(
            "fast masks that are not overlapped",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.constrained_decoding]
mask = "60 us" # expect: CND001
overlap = false
[workload]
prompt_tokens = 800
output_tokens = 200
concurrency = 64
""",
            flip=("policy.constrained_decoding.overlap", "true"),
        ),
        Case(
            "Outlines, on the logits of one sequence after the other",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "Qwen/Qwen1.5-14B"
max_model_len = 4096
[policy.constrained_decoding]
backend = "outlines" # expect: CND001
overlap = false
[workload]
prompt_tokens = 512
output_tokens = 128
concurrency = 50
""",
            flip=("policy.constrained_decoding.backend", '"xgrammar"'),
        ),
    )
    passing = (
        Case(
            "the same masks, overlapped",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.constrained_decoding]
mask = "60 us"
overlap = true
[workload]
prompt_tokens = 800
output_tokens = 200
concurrency = 64
""",
        ),
        Case(
            "slow masks for one request in a hundred",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.constrained_decoding]
share = 0.01
mask = "1 ms"
overlap = true
[workload]
prompt_tokens = 800
output_tokens = 200
concurrency = 128
""",
        ),
        Case(
            "a mask time that nobody declared",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 4096
[policy.constrained_decoding]
backend = "xgrammar"
overlap = false
[workload]
prompt_tokens = 800
output_tokens = 200
concurrency = 128
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare the masks of a step with its forward pass."""
        config = review.policy("constrained_decoding")
        if config is None or not review.declared("policy", "constrained_decoding") or config.share == 0:
            return
        known = (config.backend or "").lower() in KNOWN
        declared = review.declared("policy", "constrained_decoding", "mask")
        if not declared and not known:
            yield Lacks("policy.constrained_decoding.mask")
            return
        point, quiet = review.operating_point, review.variant(constrained_decoding=evolve(config, mask=0.0))
        if point is None or quiet is None:
            yield Lacks("an operating point (workload)")
            return
        unmasked = Service(quiet, point.service.mix, point.service.figure, open_loop=point.service.open_loop)
        mask, forward, exposed, step = _exposed(point, unmasked, config.mask * config.share, config.overlap)
        if exposed <= self.option("share") * step:
            return
        batch, seconds = self._hidden(point, unmasked, config.mask * config.share, config.overlap)
        hidden = (
            f"of which {duration(forward)} of forward pass hide as much" if config.overlap else "and nothing hides it"
        )
        yield Finding(
            ("policy", "constrained_decoding", "mask" if declared else "backend"),
            f"the masks of {counted(point.batch, 'sequence')} take {duration(mask)} of host time a step, {hidden}: "
            f"{duration(exposed)} are exposed, {exposed / step:.0%} of the {duration(step)} step",
            equation=(
                f"{counted(_rows(point), 'row')} x {config.share:g} x {duration(config.mask)} = {duration(mask)}"
                + (f"; less {duration(forward)} forward = {duration(exposed)}" if config.overlap else ", all exposed")
            ),
            inputs=(
                review.policy_input("constrained_decoding", "mask", "s"),
                review.policy_input("constrained_decoding", "share"),
                review.policy_input("constrained_decoding", "overlap"),
                Input("sequences", point.batch, "", review.source("workload")),
            ),
            help=_help(batch, seconds / config.share, config.overlap),
            related=_related(review),
        )

    def _hidden(self, point: Point, unmasked: Service, each: float, overlap: bool) -> tuple[int, float]:
        """The most sequences, and the most seconds a mask, that stay within the limit."""
        share = self.option("share")

        def within(batch: float, seconds: float) -> bool:
            _, _, exposed, step = _exposed(unmasked.point(batch), unmasked, seconds, overlap)
            return exposed <= share * step

        low, high = 0, int(point.batch)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if within(float(middle), each) else (low, middle)
        # exposed / (forward + exposed) = share at the limit.
        forward = unmasked.seconds(_shape(point))
        spare = forward * share / (1 - share) if share < 1 else forward
        return low, (spare + (forward if overlap else 0.0)) / _rows(point)


def _shape(point: Point) -> StepShape:
    return decode(max(point.batch, 1.0), point.service.mix.mean_context, float(point.service.scheduler.verify_tokens))


def _rows(point: Point) -> float:
    """Rows of logits that the host of the fullest rank builds masks for."""
    scheduler = point.service.scheduler
    return ceil(max(point.batch, 1.0) / scheduler.ranks - 1e-9) * scheduler.verify_tokens


def _exposed(point: Point, unmasked: Service, each: float, overlap: bool) -> tuple[float, float, float, float]:
    """Seconds of masks, forward pass, what is exposed of the masks, and the step."""
    forward = unmasked.seconds(_shape(point))
    mask = _rows(point) * each
    exposed = max(0.0, mask - forward) if overlap else mask
    return mask, forward, exposed, forward + exposed


def _help(batch: int, seconds: float, overlap: bool) -> str:
    parts = [f"a mask may take at most {duration(floored(seconds))} at this batch"]
    if batch:
        parts.append(f"at most {counted(batch, 'sequence')} at once")
    if not overlap:
        parts.append("overlap = true hides what the forward pass covers")
    return "; ".join(parts)


def _related(review: Review) -> tuple[Related, ...]:
    path: KeyPath = ("policy", "constrained_decoding", "overlap")
    return (Related(path, "whether the forward pass hides masks"),) if review.declared(*path) else ()
