"""CTX006 window-ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attrs import evolve

from servelint.lineage import KeyPath
from servelint.memory import Cache
from servelint.plugin import (
    Case,
    Composition,
    Finding,
    Input,
    Lacks,
    LatentAttention,
    MemoryLedger,
    Option,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint_rules.averages import averaged
from servelint_rules.layouts import decode_side
from servelint_rules.show import counted, size, tokens


class Kept(NamedTuple):
    """Bytes of one sequence on a device: what the engine keeps, and what the attention of the model needs."""

    engine: float
    model: float
    what: str
    source: Source
    since: str


class WindowIgnored(Rule):
    """The engine keeps more KV cache than the model's windows or latents need, and the cache is what runs short.

    What it checks
    --------------
    The cache of one sequence as this release pages it against what the model's attention needs: the last tokens of
    sliding-window and chunked layers, fixed state of recurrent ones, the latent of MLA. vLLM kept every token of every
    layer before 0.9.1 (and does where blocks are sent to another pool), and every head of MLA before 0.7.1. Speaks
    where the difference costs something: the KV cache limits the sequences of the declared workload.

    Why it is bad
    -------------
    A plan by the model's card, which counts the windows, holds several times fewer requests in this release. And a
    plan that charges all layers as full attention buys devices for a cache that a newer release does not keep.

    The arithmetic
    --------------
    ``bytes as paged / bytes by kind of layer`` of a sequence of the workload's mean context. MLA: heads of the device
    x 2 x their width in elements a token and layer against the rank of the latent and the rotary part.

    How to fix
    ----------
    The release that the help line names; or the context that this one holds.

    Source
    ------
    vllm-project/vllm#43308 (55 K tokens in 0.20, 525 K in 0.21 of the same bytes), #4650 (2,368 tokens of a model with
    MLA on eight H100), vllm-project/vllm-metal#563 (3.9 and 4.0 times).
    """

    code = "CTX006"
    name = "window-ignored"
    severity = Severity.WARNING
    confidence = "medium"
    questions = ("how many requests run at once", "where does the memory go")
    options = (Option("ratio", 1.5, "times the model's own cache that the engine may keep", 1.0, 1e6),)
    failing = (
        Case(
            "windows that an old release does not use",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "google/gemma-3-27b-it"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.8.5" # expect: CTX006
[policy.batching]
max_sequences = 64
max_batched_tokens = 2048
[workload]
prompt_tokens = 8000
output_tokens = 500
""",
            flip=("engine.version", '"0.11.0"'),
        ),
        Case(
            "the last release that expands MLA",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.7.0" # expect: CTX006
[policy.parallelism]
tensor = 8
[workload]
prompt_tokens = 2000
output_tokens = 500
""",
            flip=("engine.version", '"0.7.1"'),
        ),
    )
    passing = (
        Case(
            "the release that caches the latent",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "deepseek-ai/DeepSeek-V3"
max_model_len = 16384
[engine]
name = "vllm"
version = "0.7.1"
[policy.parallelism]
tensor = 8
[workload]
prompt_tokens = 2000
output_tokens = 500
""",
        ),
        Case(
            "contexts within the window: nothing is kept in vain",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "google/gemma-3-27b-it"
max_model_len = 1024
[engine]
name = "vllm"
version = "0.8.5"
[policy.batching]
max_sequences = 256
max_batched_tokens = 2048
[workload]
prompt_tokens = 700
output_tokens = 200
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Compare what the engine keeps of a sequence with what the model needs."""
        composition = review.composition
        if composition is None:
            yield Lacks("a composed deployment")
            return
        side = decode_side(composition)
        memory, latent = side.memory, _expands(side)
        if not latent and (memory.pool is None or not any(c.held for c in memory.caches)):
            return
        mix = review.mix
        if mix is None:
            yield Lacks("workload lengths")
            return
        stage, context = memory.tightest, mix.mean_context
        kept = _expanded(side, stage, context) if latent else _paged(memory, stage, context)
        if kept.engine <= self.option("ratio") * kept.model:
            return
        left, ranks = memory.cache_left(stage), memory.ranks
        fits, would = int(left / kept.engine) * ranks, int(left / kept.model) * ranks
        service = review.service(mix)
        wanted = min((n for name, n in service.limits.items() if name != "KV capacity"), default=would)
        asked = review.concurrency()
        point = review.operating_point
        if review.rate() is not None:
            wanted = min(wanted, int(point.batch + 1) if point is not None else wanted)
        elif asked is not None:
            wanted = min(wanted, int(asked))
        if left <= 0 or fits >= wanted:
            return
        paths: tuple[KeyPath, ...] = (("engine", "version"), ("engine", "image"), ("engine", "name"))
        path = next((p for p in paths if review.declared(*p)), ("model", "id"))
        factor = kept.engine / kept.model
        yield Finding(
            path,
            f"this release keeps {kept.what}: a sequence of {tokens(context)} tokens takes {size(kept.engine)} of a "
            f"device, {factor:.1f} times what the model needs: {counted(fits, 'sequence')} fit instead of {would:,}",
            equation=f"{size(kept.engine)} / {size(kept.model)} = {factor:.1f}",
            inputs=(
                Input("bytes that the engine keeps", kept.engine, "B", kept.source),
                averaged(review, "mean context", round(context, 1)),
                *memory.budget_lineage.inputs,
            ),
            help=kept.since,
            related=(Related(("model", "id"), "the attention that it is kept for"),)
            if path != ("model", "id") and review.declared("model", "id")
            else (),
        )


def _paged(memory: MemoryLedger, stage: int, context: float) -> Kept:
    """Layers with windows as they are paged."""
    pool = memory.pool
    own = evolve(memory, pool=None).sequence_bytes(context, stage)
    whole = pool is not None and all(not group.window for group in pool.groups)
    return Kept(
        memory.sequence_bytes(context, stage),
        own,
        "every token of every layer, also of those with a window" if whole else "more blocks than the windows need",
        memory.cache_source,
        "use a release that pages windows by themselves (vLLM from 0.9.1, blocks not sent elsewhere)"
        if whole
        else "larger windows of memory per layer kind cannot be set: plan with this number, or a newer release",
    )


def _expands(side: Composition) -> bool:
    """Whether the release caches every head of MLA."""
    return any(cache.axis == "heads" for cache in side.memory.caches)


def _expanded(side: Composition, stage: int, context: float) -> Kept:
    """MLA with the keys and values of every head."""
    memory = side.memory
    blocks = {block.name: block.mixer for block in side.setup.architecture.blocks}

    def latent(cache: Cache) -> Cache:
        mixer = blocks.get(cache.block)
        return evolve(cache, elements=mixer.cache_elements) if isinstance(mixer, LatentAttention) else cache

    heads = next(cache for cache in memory.caches if cache.axis == "heads")
    return Kept(
        memory.sequence_bytes(context, stage),
        memory.mapped(caches=latent).sequence_bytes(context, stage),
        "keys and values of every head instead of the latent",
        heads.lineage.rewrites[-1].inputs[0].source,
        "use vLLM 0.7.1 or newer, which caches the latent",
    )
