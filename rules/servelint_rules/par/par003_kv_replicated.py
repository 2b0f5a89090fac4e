"""PAR003 kv-replicated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from attrs import evolve

from servelint.graph import demands_of
from servelint.lineage import KeyPath, dotted
from servelint.plugin import (
    CacheIO,
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
    Source,
)
from servelint.service import Point, Service
from servelint_rules.layouts import altered, fits, heads_divide, parallelism, tensor_path, within_fast_links
from servelint_rules.par.groups import cached_heads, copies_of, heaviest, share_of
from servelint_rules.show import counted, duration, request_rate, size

UNSUPPORTED = {"vllm": ("attention_data",), "llama.cpp": ("attention_data", "context", "data")}
"""Ways to split the cache that an engine has no argument for."""

SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
[model]
id = "Qwen/Qwen3-30B-A3B"
max_model_len = 16384
[policy.parallelism]
tensor = 8 # expect: PAR003
context = 1
[workload]
prompt_tokens = 8000
output_tokens = 1000
concurrency = 256
"""
LATENT = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-R1"
max_model_len = 16384
[policy.parallelism]
tensor = 8 # expect: PAR003
context = 1
[workload]
prompt_tokens = 2000
output_tokens = 8000
"""
PROMPTS = """\
servelint = 1
[hardware]
accelerator = "nvidia/b200-sxm6-180gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V4-Flash"
[policy.parallelism]
tensor = 8 # expect: PAR003
context = 1
[workload]
prompt_tokens = 1000000
output_tokens = 64
concurrency = 8
[slo]
ttft = { p99 = "1000 s" }
"""


class Layout(NamedTuple):
    """The same devices with the cache held once: the keys to set, and where the load then runs."""

    edits: tuple[tuple[KeyPath, int], ...]
    point: Point
    sequences: int


class KvReplicated(Rule):
    """Tensor parallelism beyond the KV heads keeps copies of the same cache.

    What it checks
    --------------
    Whether devices of a tensor-parallel group hold copies of the same keys and values (more devices than KV heads, or
    a latent cache, which has one head), and whether the same devices with each token cached once carry at least the
    option ``gain`` more requests at the same load: the declared one, else full admission. Every objective that holds
    now has to hold then. Groups over slow links are PAR001's, heads that
    do not divide PAR002's; pools of disaggregated serving are not looked at.

    Why it is bad
    -------------
    A copy takes memory in which other sequences could run, and is read again in every step. Adding devices then makes
    neither the cache of a sequence smaller nor its reading faster.

    The arithmetic
    --------------
    ``copies = tensor x ceil(KV heads / tensor) / KV heads``; of a latent cache, ``tensor``. The alternatives share
    the tokens of a sequence (``context``), give groups sequences of their own (``attention_data``, ``data``), and are
    priced at the same number of sequences, or at as many more as they hold when the cache is what limits them.

    How to fix
    ----------
    The layout of the help line: decode context parallelism or attention data parallelism, by what the engine has.

    Source
    ------
    docs/cost-model.md, KV cache and parallelism; sgl-project/sglang docs/advanced_features/dp_dpa_smg_guide.md.
    Measured: vllm-project/vllm#51454 (DeepSeek-V4-Flash on 8 x B200, prompts of 1M tokens: data 8 takes in 3.2 times
    the tokens of tensor 8).
    """

    code = "PAR003"
    name = "kv-replicated"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("which parallelism", "why is it slower with more GPUs")
    options = (Option("gain", 0.15, "share of requests a second that another layout has to add", 0.0, 10.0),)
    failing = (
        Case("four KV heads on eight devices", SPEC, flip=("policy.parallelism.context", "2")),
        Case(
            "one sequence more than the gain asks for",
            SPEC.replace("concurrency = 256", "concurrency = 77"),
            flip=("workload.concurrency", "76"),
        ),
        Case("a latent cache that fills the memory eight times", LATENT, flip=("policy.parallelism.context", "8")),
        Case("prompts that take longer than their answers", PROMPTS, flip=("policy.parallelism.context", "8")),
    )
    passing = (
        Case("a gain just too small", SPEC.replace("= 256", "= 76").replace(" # expect: PAR003", "")),
        Case("as many devices as KV heads", SPEC.replace("= 8", "= 4").replace(" # expect: PAR003", "")),
        Case(
            "tokens of a sequence shared", SPEC.replace("context = 1", "context = 2").replace(" # expect: PAR003", "")
        ),
        Case("a few short sequences", SPEC.replace("256", "8").replace("8000", "800").replace(" # expect: PAR003", "")),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Price the layouts that hold each token once."""
        composition = review.composition
        if composition is None:
            yield Lacks("a composed deployment")
            return
        config = parallelism(composition)
        copies = copies_of(composition)
        if (
            composition.scheduler.disaggregation is not None
            or copies < 2
            or not within_fast_links(composition, config.t)
        ):
            return
        point, mix = review.operating_point, review.mix
        if point is None or mix is None:
            yield Lacks("an operating point (workload)")
            return
        least = self.option("gain")
        if not _short(review, point) and _attending(composition, point) < least / (1 + least):
            return
        layouts = list(_layouts(review, composition, point, copies))
        best = max(layouts, key=lambda layout: layout.point.rate, default=None)
        if best is not None and best.point.rate >= point.rate * (1 + least):
            yield self._finding(review, composition, point, best, copies)

    def _finding(self, review: Review, composition: Composition, point: Point, best: Layout, copies: int) -> Finding:
        config, memory, then = parallelism(composition), composition.memory, best.point
        context = point.service.mix.mean_context
        held = point.service.limits["KV capacity"]
        heads = cached_heads(composition)
        each = memory.sequence_bytes(context, memory.tightest)
        what = f"{counted(heads, 'KV head')}" if heads else "one latent a token"
        model = composition.setup.architecture.id
        return Finding(
            tensor_path(review),
            f"tensor = {config.t} over {what}: {copies} devices hold each cached token, and {held:,} sequences of "
            f"{context:,.0f} tokens fit; held by fewer, {best.sequences:,} fit, and {counted(then.batch, 'sequence')} "
            f"take {duration(then.step_s)} a step instead of {duration(point.step_s)} for "
            f"{counted(point.batch, 'sequence')} (+{then.rate / point.rate - 1:.0%} requests)",
            equation=(
                f"{size(each)} of cache a sequence and device, {copies} copies; {request_rate(then.rate)} / "
                f"{request_rate(point.rate)} = {then.rate / point.rate:.2f}"
            ),
            inputs=(
                Input("tensor", config.t, "", composition.context.source("parallelism", "tensor")),
                Input("KV heads", heads or 1, "", Source("model", model, "num_key_value_heads")),
                Input("sequences", point.batch, "", review.source("workload")),
            ),
            help="set " + " and ".join(f"{dotted(path)} = {value}" for path, value in best.edits),
            related=(Related(("model", "id" if review.declared("model", "id") else "config"), f"has {what}"),),
        )


def _layouts(review: Review, composition: Composition, point: Point, copies: int) -> Iterator[Layout]:
    """The same devices, each token held by fewer of them, where every objective that holds now still does."""
    config, mix = parallelism(composition), point.service.mix
    without = UNSUPPORTED.get((review.deployment.engine.name or "").lower(), ())
    moe = composition.setup.architecture.is_moe
    held = [o for o in review.objectives if point.meets(o, declared=True)]
    for changes in _changes(config, copies, moe=moe):
        if any(name in changes for name in without):
            continue
        wanted = evolve(config, **changes)
        if not heads_divide(composition, wanted.attention_tensor):
            continue
        other = altered(composition, parallelism=wanted)
        if other is None or not fits(other):
            continue
        service = Service(other, mix, open_loop=point.service.open_loop)
        then = _at(review, service, point)
        if then is not None and all(then.meets(o, declared=True) for o in held):
            edits = tuple((("policy", "parallelism", name), value) for name, value in changes.items())
            yield Layout(edits, then, service.limits["KV capacity"])


def _changes(config: Any, copies: int, *, moe: bool) -> Iterator[dict[str, int]]:
    experts = {"expert": config.t * config.d} if moe else {}
    for n in sorted({2, copies}):
        if copies % n:
            continue
        yield {"context": config.c * n}
        if config.c == 1:
            yield {"attention_data": config.attention_ranks * n, **experts}
        if config.attention_ranks == config.c == 1 and config.t % n == 0:
            yield {"tensor": config.t // n, "data": config.d * n, **experts}


def _at(review: Review, service: Service, now: Point) -> Point | None:
    """Where the same load runs: as many sequences, or those that had no room in the cache."""
    fullest = service.fullest
    if fullest is None:
        return None
    users = review.concurrency() if review.rate() is None else None
    wanted = users or (math.inf if _short(review, now) else now.batch)
    return service.point(min(wanted, fullest.batch))


def _short(review: Review, now: Point) -> bool:
    """Whether more sequences would run if the cache had room for them."""
    return review.rate() is None and now.batch >= now.service.limits["KV capacity"] * 0.999


def _attending(composition: Composition, point: Point) -> float:
    """Largest share of a step that attention takes: no layout of the cache saves more."""
    names = frozenset(op.name for op, _ in demands_of(composition.graph, CacheIO))
    return max(share_of(composition, names, shape) for shape in heaviest(point, point.service.mix.prompt.mean))
