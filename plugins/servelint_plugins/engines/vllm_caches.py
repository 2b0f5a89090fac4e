"""How vLLM pages its KV cache and what it logs of it, by release: layers of one kind, and hybrids.

Sources: vllm-project/vllm vllm/v1/core/kv_cache_utils.py (groups, blocks, the logged size),
vllm/v1/kv_cache_interface.py (blocks of one sequence), vllm/platforms/interface.py and
vllm/model_executor/models/config.py (blocks of models with recurrent layers), read as
red-hat-data-services/vllm-cpu keeps them at the commits that the constants name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from attrs import evolve

from servelint.memory import Cache, MemoryLedger, PageGroup, PagePool
from servelint.plugin import Architecture, Attention, Context, Input, LatentAttention, Source

Release = tuple[int, ...]

GROUPS = (0, 9, 1)
"""From here layers with windows have blocks of their own (f8a1a2d10); before, they keep every token."""
RECURRENT = (0, 10)
"""From here state lies in blocks of the KV cache (2f35a022e)."""
PADDED = ((0, 18), 1.5), ((0, 12), 1.25)
"""From a release on (71df2a57e, 891c60dcd): kinds whose layers differ by less than a factor share groups of the larger
number of layers; otherwise groups have as many layers as the smallest kind."""
CHUNKED = (0, 14)
"""From here local-attention chunks are grouped without being asked for (9fec0e13d)."""
ALIGNED = (0, 16)
"""From here prefix reuse keeps two states, or one a block, of recurrent layers (5206e5e28)."""
LOGS_REQUESTS = (0, 21)
"""From here the logged size is sequences of the longest context that fit times that length (e68fa1b90)."""
IN_FLIGHT = (0, 26)
"""From here a window holds the tokens of every step that is under way, not of one (vllm/config/vllm.py
`max_in_flight_tokens`, vllm-project/vllm#47728, merged after 0.25.0)."""
WHOLE_MODEL = (0, 11, 1), (0, 16)
"""Between these the layers of all pipeline stages are compared with the memory of one (d100d78eb, c5a66d169)."""
KEEPS_EVERY_STATE = ("falcon_h1", "granitemoehybrid", "jamba", "nemotron_h")
"""Model types that keep a state for every block when prefixes are reused; the others keep the last two."""

SHARED_WITH_DRAFT = ("gemma4", "gemma4_text")
"""Model types whose own draft has queries alone and reads the target's cache (vllm/model_executor/models/
gemma4_mtp.py)."""


DEEPSEEK = "vllm/model_executor/models/deepseek_v2.py"
UNPADDED, HEAD = (0, 7), 256
"""Before `UNPADDED` (dd7c9ad87) the cached heads of MLA are as wide as the attention kernels wanted."""


class _Kind(NamedTuple):
    """Layers that are cached alike: bytes of a token in one, tokens that a layer keeps, layers by stage."""

    token_bytes: float
    window: int
    chunk: bool
    layers: tuple[int, ...]

    @property
    def total(self) -> int:
        """Layers of all stages."""
        return sum(self.layers)


def caches(numbers: Release, logs: Release, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Page the caches as a release does, with ``numbers`` below `GROUPS` as all older ones.

    ``logs`` is the release whose log counts.
    """
    if ledger.stages > 1 and WHOLE_MODEL[0] <= numbers < WHOLE_MODEL[1]:
        ledger = evolve(ledger, asks_for_all_stages=True)
    speculation = context.config("speculation")
    if context.architecture.model_type in SHARED_WITH_DRAFT and getattr(speculation, "method", None) == "mtp":
        ledger = evolve(ledger, caches=tuple(c for c in ledger.caches if context.block(c.block) is not None))
    if compressed(context.architecture):
        from servelint_plugins.engines import vllm_compressed

        pool = vllm_compressed.pool(ledger, context, _held_tokens(numbers, context), shared=logs < LOGS_REQUESTS)
        return evolve(ledger, pool=pool)
    kinds = _kinds(ledger.caches, context)
    states = [s for s in ledger.states if s.bytes > 0]
    if not any(k.window for k in kinds) and not states:
        return ledger
    grouped = numbers >= GROUPS and not _sent(context)
    if states and not (grouped and numbers >= RECURRENT and kinds):
        return ledger
    if not grouped:
        return evolve(ledger, pool=_alike(ledger, kinds))
    if numbers < CHUNKED:
        kinds = _merged(k._replace(window=0, chunk=False) if k.chunk else k for k in kinds)
    return evolve(ledger, pool=_grouped(numbers, logs, ledger, context, kinds))


def _sent(context: Context) -> bool:
    """Whether blocks go to another instance or place; connectors want all layers alike."""
    cache = context.config("kv_cache")
    pools = context.deployment.policies.get("disaggregation")
    return pools is not None or getattr(cache, "offload", None) is not None


def _kinds(held: Iterable[Cache], context: Context) -> list[_Kind]:
    def kind(cache: Cache) -> _Kind:
        block = context.block(cache.block)
        chunk = block is not None and isinstance(block.mixer, Attention) and bool(block.mixer.chunk)
        return _Kind(cache.bytes_per_token, cache.held, chunk, cache.repeats)

    return _merged(kind(c) for c in held if c.bytes_per_token > 0)


def _merged(kinds: Iterable[_Kind]) -> list[_Kind]:
    found: dict[tuple[float, int, bool], _Kind] = {}
    for kind in kinds:
        same = found.get(kind[:3])
        layers = kind.layers if same is None else tuple(map(sum, zip(same.layers, kind.layers, strict=True)))
        found[kind[:3]] = kind._replace(layers=layers)
    return list(found.values())


def _alike(ledger: MemoryLedger, kinds: Sequence[_Kind]) -> PagePool:
    """One group for all layers, each of which keeps every token unless all have the same window."""
    windows = {k.window for k in kinds}
    size = tuple(ledger.page_size * sum(k.token_bytes * k.layers[s] for k in kinds) for s in range(ledger.stages))
    window = windows.pop() if len(windows) == 1 else 0
    return PagePool(size, (PageGroup(ledger.page_size, window, 1 if window else 0),), groups_share_blocks=True)


def _grouped(
    numbers: Release, logs: Release, ledger: MemoryLedger, context: Context, kinds: Sequence[_Kind]
) -> PagePool:
    page = ledger.page_size
    state = max((s.bytes for s in ledger.states), default=0.0)
    whole = max((k.token_bytes for k in kinds if not k.window), default=max(k.token_bytes for k in kinds))
    if state:
        page = max(page, page * ceil(state / (page * whole)))
    size = max(k.token_bytes for k in kinds) * page
    layers = [(kind.total, kind.layers) for kind in kinds]
    if state:
        layers.append((sum(sum(s.repeats) for s in ledger.states), _by_stage(ledger)))
    group = _group_size(numbers, [count for count, _ in layers])
    counts = [ceil(count / group) for count, _ in layers]
    groups = [_attention_group(kind, count, page, size) for kind, count in zip(kinds, counts, strict=False)]
    if state:
        groups.append(_state_group(numbers, context, page, counts[-1]))
    by_stage = (
        max(ceil(held[s] / count) for (_, held), count in zip(layers, counts, strict=True))
        for s in range(ledger.stages)
    )
    step = _held_tokens(numbers, context)
    return PagePool(tuple(size * n for n in by_stage), tuple(groups), step, logs < LOGS_REQUESTS)


def compressed(architecture: Architecture) -> bool:
    """Whether attention is compressed: latent, with a window beside the entries that stand for several tokens."""
    return any(isinstance(b.mixer, LatentAttention) and b.mixer.window for b in architecture.blocks)


def _held_tokens(numbers: Release, context: Context) -> int:
    """New tokens that a window holds besides its own: of a step, or of all that are under way."""
    step: int = getattr(context.config("batching"), "max_batched_tokens", None) or 1
    return step * _steps_under_way(context) if numbers >= IN_FLIGHT else step


def _steps_under_way(context: Context) -> int:
    """One for each stage, at least two where the next is scheduled while one runs: the default, not with look-ups.

    Source: vllm/config/vllm.py `max_concurrent_batches`; the second model runner, which some models have, takes one
    more with stages.
    """
    speculation = context.config("speculation")
    ahead = not (speculation is not None and speculation.active and speculation.method in ("ngram", "draft"))
    return max(getattr(context.config("parallelism"), "pipeline", None) or 1, 2 if ahead else 1)


def _by_stage(ledger: MemoryLedger) -> tuple[int, ...]:
    return tuple(sum(s.repeats[stage] for s in ledger.states) for stage in range(ledger.stages))


def _group_size(numbers: Release, counts: Sequence[int]) -> int:
    least, most = min(counts), max(counts)
    factor = next((factor for release, factor in PADDED if numbers >= release), 1.0)
    return most if most < least * factor else least


def _attention_group(kind: _Kind, count: int, page: int, size: float) -> PageGroup:
    """Blocks have one size in bytes: layers with fewer bytes a token put more tokens into one, where that is whole."""
    ratio = size / (kind.token_bytes * page)
    tokens = page * int(ratio) if ratio == int(ratio) else page
    if not kind.window:
        return PageGroup(tokens, copies=count)
    # A window that begins inside a block takes one more; the newest of its tokens belongs to the step.
    return PageGroup(tokens, kind.window if kind.chunk else kind.window - 1, 0 if kind.chunk else 1, copies=count)


def _state_group(numbers: Release, context: Context, page: int, count: int) -> PageGroup:
    """State takes a block, one more for each drafted token, and with prefix reuse further ones."""
    drafted = getattr(context.config("speculation"), "tokens", None) or 0
    reuse = getattr(context.config("kv_cache"), "prefix_reuse", None)
    if not reuse or numbers < ALIGNED:
        return PageGroup(page, extra=1 + drafted, grows=False, copies=count)
    if context.architecture.model_type in KEEPS_EVERY_STATE:
        return PageGroup(page, extra=drafted, copies=count)
    return PageGroup(page, extra=2 + drafted, grows=False, copies=count)


def expanded(numbers: Release, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Cache keys and values of every head of latent attention, as releases do that do not cache the latent.

    Both have the width of a key, until `UNPADDED` brought to `HEAD`; tensor parallelism splits the heads.
    """
    parallelism = context.config("parallelism")
    tensor = parallelism.attention_tensor if parallelism is not None else 1

    def whole(cache: Cache) -> Cache:
        block = context.block(cache.block)
        if block is None or not isinstance(block.mixer, LatentAttention):
            return cache
        key = block.mixer.nope_dim + block.mixer.rope_dim
        elements = 2 * -(-block.mixer.q_heads // tensor) * (key if numbers >= UNPADDED else max(key, HEAD))
        heads = Input(
            "elements of the heads' keys and values",
            elements,
            "",
            Source("engine", f"vllm-project/vllm {DEEPSEEK}", "attn"),
        )
        lineage = cache.lineage.rewritten("vllm", "latents cached as the heads they expand to", heads)
        return evolve(cache, elements=elements, axis="heads", lineage=lineage)

    return ledger.mapped(caches=whole)
