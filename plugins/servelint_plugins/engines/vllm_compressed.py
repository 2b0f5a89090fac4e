"""How vLLM pages the caches of compressed attention (DeepSeek V4): layers of several page sizes in one pool of blocks.

Such a layer has up to five caches: a window of recent entries, compressed entries, index keys, and the running states
of the compressors of both. A block of the pool has room for one page of every layer of the fullest group.

Sources: vllm-project/vllm vllm/models/deepseek_v4/attention.py and compressor.py and
vllm/v1/attention/backends/mla/sparse_swa.py (what a layer caches, in which pages), vllm/v1/core/kv_cache_utils.py
(groups, blocks, what is asked at start and logged), read as red-hat-data-services/vllm-cpu keeps them at 2dbd5becb.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from servelint.memory import MemoryLedger, PageGroup, PagePool
from servelint.plugin import Context, LatentAttention

PAGE = 256
"""Tokens of a page unless declared: what the window's backend prefers (sparse_swa.py `get_preferred_block_size`)."""
WINDOW_TOKENS = 64
"""Tokens of a window's page, whatever the declared page (sparse_swa.py)."""
STATE_TOKENS = {4: 4, 128: 8}
"""Tokens of a page of a compressor's state by the tokens behind an entry (compressor.py); there are no others."""
STATE_BYTES = 2 * 4
"""A key and its gate in fp32 for each element (compressor.py)."""
PACKED_BYTES, ALIGNMENT = 584, 576
"""A packed 8-bit entry of 448 elements, 64 in 16 bit and scales, and what pages are rounded up to (attention.py)."""
PACKED_ELEMENTS = 512
"""Elements of the one entry that is packed so."""

Layers = tuple[int, ...]
"""Numbers of layers by pipeline stage."""


class _Table(NamedTuple):
    """Layers that share a table of blocks: tokens of a page, the window that they keep, layers by bytes of a page."""

    tokens: int
    window: int
    pages: Mapping[int, Layers]

    @property
    def most(self) -> int:
        """Layers of the commonest page size."""
        return max(sum(layers) for layers in self.pages.values())


def pool(ledger: MemoryLedger, context: Context, step: int, *, shared: bool) -> PagePool | None:
    """The pool of blocks; None for layers that the release would not page, such as other pages than 256 tokens.

    ``step`` are the new tokens that a window holds besides; ``shared`` is whether the logged size counts groups alike.
    """
    tables = _tables(ledger, context)
    if tables is None:
        return None
    whole, *windows = tables
    sizes = sorted(whole.pages)
    if any(page > sizes[-1] for table in windows for page in table.pages):
        return None
    width = _common([table.most for table in tables])
    # A page of a window's takes the place of the next larger one of a whole cache.
    split = [(whole, 1)]
    for table in windows:
        padded = _summed((min(size for size in sizes if size >= page), layers) for page, layers in table.pages.items())
        split.append((table._replace(pages=padded), ceil(table.most / width)))
    stages = range(ledger.stages)
    slots = [{size: _most(split, size, stage) for size in sizes} for stage in stages]
    groups = [PageGroup(whole.tokens, layer_bytes=_filled(whole.pages, 0, 1))]
    groups += [
        PageGroup(table.tokens, table.window - 1, 1, layer_bytes=_filled(table.pages, i, copies))
        for table, copies in split[1:]
        for i in range(copies)
    ]
    return PagePool(
        tuple(float(sum(size * count for size, count in held.items())) for held in slots),
        tuple(groups),
        step,
        shared,
        tuple(float(max(held.values()) * sum(sizes)) for held in slots),
    )


def _tables(ledger: MemoryLedger, context: Context) -> list[_Table] | None:
    """Whole caches first, then windows and the states of compressors, by tokens of a page and window."""
    whole: list[tuple[int, Layers]] = []
    windows: dict[tuple[int, int], list[tuple[int, Layers]]] = {}
    windowed = {cache.block for cache in ledger.caches if cache.held}
    for cache in ledger.caches:
        block = context.block(cache.block)
        mixer = block.mixer if block is not None else None
        width = cache.format.bytes_per_element
        if cache.held:
            page = _entries(WINDOW_TOKENS, cache.elements, width)
            windows.setdefault((WINDOW_TOKENS, cache.held), []).append((page, cache.repeats))
        elif isinstance(mixer, LatentAttention) and mixer.stride in STATE_TOKENS:
            if ledger.page_size % mixer.stride:
                return None
            kept, held = ledger.page_size // mixer.stride, STATE_TOKENS[mixer.stride]
            whole.append((_entries(kept, mixer.entry_elements, width), cache.repeats))
            # Entries that overlap, those with an index, are made of twice as many tokens by twice as wide states.
            times = 2 if mixer.indexer is not None else 1
            states = windows.setdefault((held, times * mixer.stride), [])
            states.append((_aligned(held * times * mixer.entry_elements * STATE_BYTES, width), cache.repeats))
            if mixer.indexer is not None:
                keys = ceil(kept * mixer.indexer.bytes_per_token * mixer.stride)
                whole.append((_aligned(keys), cache.repeats))
                states.append((_aligned(held * times * mixer.indexer.head_dim * STATE_BYTES, width), cache.repeats))
        elif block is not None or cache.block not in windowed:
            return None
        # The layer of the model's own that drafts keeps nothing but a window.
    if not whole or not windows:
        return None
    tables = [_Table(ledger.page_size, 0, _summed(whole))]
    return tables + [_Table(tokens, window, _summed(pages)) for (tokens, window), pages in windows.items()]


def _entries(count: int, elements: float, width: float) -> int:
    """Bytes of a page of so many entries."""
    packed = width <= 1 and elements == PACKED_ELEMENTS
    return _aligned(ceil(count * (PACKED_BYTES if packed else elements * width)), width)


def _aligned(size: int, width: float = 1.0) -> int:
    """Pages of an 8-bit cache, and those of index keys in any, are whole multiples of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT if width <= 1 else size


def _summed(pages: Iterable[tuple[int, Layers]]) -> dict[int, Layers]:
    found: dict[int, Layers] = {}
    for size, layers in pages:
        found[size] = tuple(map(sum, zip(found[size], layers, strict=True))) if size in found else layers
    return found


def _common(counts: Sequence[int]) -> int:
    """The number of layers a group that pads least, not below that of the whole caches; of equals the larger."""
    candidates = range(counts[0], max(counts) + 1)
    return min(candidates, key=lambda n: (sum(-count % n for count in counts), -n))


def _most(split: Sequence[tuple[_Table, int]], size: int, stage: int) -> int:
    """Pages of a size that a block of the stage has room for: those of the fullest group."""
    return max(ceil(t.pages[size][stage] / copies) if size in t.pages else 0 for t, copies in split)


def _filled(pages: Mapping[int, Layers], number: int, copies: int) -> float:
    """Bytes that the layers of one of several equal groups fill: every so many-th layer from its number on."""
    return float(sum(size * len(range(number, sum(layers), copies)) for size, layers in pages.items()))
