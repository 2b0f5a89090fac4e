"""The memory ledger: what stands in one device's memory, and how many tokens and sequences that leaves.

Weights, KV caches, fixed state and reserves are kept apart and per pipeline stage. Policies rewrite them the
way they rewrite the step graph; nothing here knows a parallelism degree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

from attrs import evolve, frozen

from servelint.architecture import Architecture, Attention, Axis, Block, LatentAttention, LinearState, Tensor
from servelint.formats import Format
from servelint.graph import kinds_of_stages
from servelint.layout import Formats
from servelint.lineage import Input, Lineage, Source
from servelint.values import Value


@frozen(eq=False, repr=False)
class Weights(Value):
    """Parameters of one tensor resident on a device: ``params`` an instance, ``repeats`` per stage."""

    name: str
    block: str
    tensor: Tensor
    params: float
    format: Format
    repeats: tuple[int, ...]
    lineage: Lineage

    def bytes_on(self, stage: int) -> float:
        """Bytes on one device of a stage."""
        return self.params * self.format.bytes_per_element * self.repeats[stage]


@frozen(eq=False, repr=False)
class Cache(Value):
    """The KV cache of one kind of block.

    ``elements`` per token and layer on one device, and ``extra_bytes`` (an index cache) likewise;
    ``held`` is the most tokens a layer keeps (0: all), ``shards`` the devices that share a sequence's
    tokens.
    """

    block: str
    elements: float
    format: Format
    repeats: tuple[int, ...]
    axis: Axis
    lineage: Lineage
    extra_bytes: float = 0.0
    held: int = 0
    shards: int = 1

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in one layer on one device."""
        return (self.elements * self.format.bytes_per_element + self.extra_bytes) / self.shards

    def bytes_on(self, stage: int, tokens: float) -> float:
        """Bytes of one sequence of that many (page-rounded) tokens on one device of a stage."""
        kept = min(tokens, self.held) if self.held else tokens
        return kept * self.bytes_per_token * self.repeats[stage]


@frozen(eq=False, repr=False)
class State(Value):
    """Fixed state per sequence of one kind of block: ``bytes`` a layer on one device."""

    block: str
    bytes: float
    repeats: tuple[int, ...]
    lineage: Lineage


@frozen(eq=False, repr=False)
class Reserve(Value):
    """Bytes a device needs besides weights and KV cache, by estimate: runtime context, graphs, activations."""

    name: str
    bytes: float
    lineage: Lineage


class PageGroup(NamedTuple):
    """Layers that share one table of blocks; ``copies`` of such groups.

    A block holds ``tokens`` of them. A sequence takes blocks for all of its tokens, with a ``window`` for no more
    than that many and those of a step, and ``extra`` blocks besides; only those where the group ``grows`` not.
    ``layer_bytes``: bytes of a block that the group's own layers fill, where the engine reports by those.
    """

    tokens: int
    window: int = 0
    extra: int = 0
    grows: bool = True
    copies: int = 1
    layer_bytes: float = 0.0

    def blocks(self, context: float, step: float) -> float:
        """Blocks that one sequence takes; ``step`` are new tokens that a window has to hold besides."""
        if not self.grows:
            return self.extra
        kept = min(context, self.window + step) if self.window else context
        return math.ceil(kept / self.tokens) + self.extra


@frozen(eq=False, repr=False)
class PagePool(Value):
    """Blocks of one size that layers of different kinds share, as an engine lays them out.

    ``block_bytes`` are those of one block on a device of each stage, whatever its group: every group has room for
    as many layers as the largest one. ``step_tokens``: new tokens of a step, which the engine adds to every window
    when it asks whether a sequence fits. ``groups_share_blocks``: it reports the tokens that all blocks would hold if
    every group grew alike, instead of sequences that fit times their length. ``asked_bytes``: what it takes a block
    for, on each stage, when it asks whether a sequence fits; left out, what the block is.
    """

    block_bytes: tuple[float, ...]
    groups: tuple[PageGroup, ...]
    step_tokens: int = 1
    groups_share_blocks: bool = False
    asked_bytes: tuple[float, ...] = ()

    def blocks(self, context: float, step: float = 1) -> float:
        """Blocks that one sequence takes in all groups."""
        return sum(group.copies * group.blocks(context, step) for group in self.groups)

    def reported_blocks(self, context: float) -> float:
        """Blocks that the engine counts for one sequence and a step when it reports how many fit."""
        first = self.groups[0].layer_bytes
        if not first:
            return self.blocks(context, self.step_tokens)
        filled = sum(g.copies * g.blocks(context, self.step_tokens) * g.layer_bytes for g in self.groups)
        return math.ceil(filled / first)


BudgetKind = Literal["total", "static", "free"]
"""What an engine's memory fraction is of: all that it may use; weights and cache, with everything else outside;
or, for the cache, what weights and buffers leave free."""

WhenFull = Literal["evicts", "waits", "fails"]
"""What happens to sequences that outgrow the cache: an engine evicts some and prefills them again, has let in no more
than it can finish, or ends their requests with an error."""


class Fit(NamedTuple):
    """What a stage's memory holds, in bytes: the budget, and what is taken from it."""

    budget: float
    weights: float
    reserves: float

    @property
    def left(self) -> float:
        """Bytes left for KV cache and state; negative when the weights do not fit."""
        return self.budget - self.weights - self.reserves


@frozen(slots=False, eq=False, repr=False)
class MemoryLedger(Value):
    """Memory of one device, per pipeline stage, in bytes.

    ``visible`` is what the runtime sees, ``budget`` the share of it that the engine is given, and
    ``budget_kind`` what that share is of. ``ranks`` replicas of
    the cache each serve their own sequences (data parallelism). ``cache_bytes`` is a declared size of the
    KV cache that replaces what is left, ``token_cap`` the most tokens that it is given. ``pool`` is how an engine
    pages caches of different kinds together; without one each kind takes what it needs. ``asks_for_all_stages``:
    the engine compares the longest sequence's cache of all stages with the memory of one.
    """

    weights: tuple[Weights, ...]
    caches: tuple[Cache, ...]
    states: tuple[State, ...]
    visible: float
    budget: float
    budget_lineage: Lineage
    budget_kind: BudgetKind = "total"
    reserves: tuple[Reserve, ...] = ()
    stages: int = 1
    ranks: int = 1
    page_size: int = 1
    cache_bytes: float | None = None
    token_cap: int | None = None
    pool: PagePool | None = None
    asks_for_all_stages: bool = False

    @cached_property
    def _distinct(self) -> tuple[int, ...]:
        """The first stage of each kind; the others hold the same."""
        held = [entry.repeats for entries in (self.weights, self.caches, self.states) for entry in entries]
        return tuple(stage for stage, _ in kinds_of_stages(self.stages, held))

    def fit(self, stage: int) -> Fit:
        """What weights and reserves leave on a device of a stage."""
        weights = sum(w.bytes_on(stage) for w in self.weights)
        reserves = sum(r.bytes for r in self.reserves)
        if self.budget_kind == "static":
            # Reserves live outside the budget; only what does not fit there is taken from it.
            return Fit(self.budget, weights, max(reserves - (self.visible - self.budget), 0.0))
        if self.budget_kind == "free":
            free = self.visible - weights - reserves
            share = self.budget / self.visible if self.visible else 1.0
            return Fit(weights + reserves + (free * share if free > 0 else free), weights, reserves)
        return Fit(self.budget, weights, reserves)

    @property
    def tightest(self) -> int:
        """The stage whose weights leave least."""
        return min(self._distinct, key=lambda s: self.fit(s).left)

    @property
    def weights_bytes(self) -> float:
        """Weight bytes on a device of the stage that holds most."""
        return max(self.fit(stage).weights for stage in self._distinct)

    @property
    def has_room(self) -> bool:
        """Whether weights and reserves leave anything for the cache on every device."""
        return self.fit(self.tightest).left > 0

    def cache_left(self, stage: int) -> float:
        """Bytes for KV cache and state on a device of a stage, at least 0."""
        room = max(self.fit(stage).left, 0.0) if self.cache_bytes is None else self.cache_bytes
        if self.token_cap is None or not self.caches:
            return room
        return min(room, self._capped(self.token_cap, stage))

    def _capped(self, tokens: int, stage: int) -> float:
        """Bytes of a cache for so many tokens, whatever a window would leave out; state is not counted in tokens."""
        if self.states:
            return math.inf
        each = sum(c.bytes_per_token * c.repeats[stage] for c in self.caches)
        return tokens * each

    def paged(self, tokens: float) -> float:
        """Tokens rounded up to whole pages."""
        return math.ceil(tokens / self.page_size) * self.page_size

    def sequence_bytes(self, context: float, stage: int) -> float:
        """Bytes that one sequence of ``context`` tokens takes on a device of a stage."""
        if self.pool is not None:
            return self.pool.blocks(context) * self.pool.block_bytes[stage]
        tokens = self.paged(context)
        held = sum(c.bytes_on(stage, tokens) for c in self.caches)
        return held + sum(s.bytes * s.repeats[stage] for s in self.states)

    def request_bytes(self, context: float, stage: int) -> float:
        """Bytes that the engine asks for at start to serve one sequence of ``context`` tokens, on a stage."""
        stages = range(self.stages) if self.asks_for_all_stages else (stage,)
        if self.pool is not None:
            blocks = self.pool.blocks(context, self.pool.step_tokens)
            asked = self.pool.asked_bytes or self.pool.block_bytes
            return blocks * sum(asked[s] for s in stages)
        return sum(self.sequence_bytes(context, s) for s in stages)

    def admits(self, context: float) -> bool:
        """Whether the engine would start for sequences of ``context`` tokens, as it asks itself."""
        # Guard against a last-bit shortfall of an exact fit.
        return all(self.request_bytes(context, s) <= self.cache_left(s) * (1 + 1e-12) for s in self._distinct)

    def longest_request(self, limit: int) -> int:
        """The longest sequence of at most ``limit`` tokens that `admits` allows, to the token."""
        if self.admits(limit):
            return limit
        low, high = 0, limit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.admits(middle) else (low, middle)
        return low

    @property
    def cache_source(self) -> Source:
        """Where the width of a token's cache is from: the same model for the layers of every kind."""
        return self.caches[0].lineage.inputs[0].source

    def bytes_per_token(self, stage: int | None = None) -> float:
        """KV bytes of one more token on a device of a stage (of the fullest), before any window is full."""
        stages = self._distinct if stage is None else (stage,)
        return max(sum(c.bytes_per_token * c.repeats[s] for c in self.caches) for s in stages)

    def resident_sequences(self, context: float) -> int:
        """Sequences of ``context`` tokens that fit at once, over all ranks of a replica."""
        fitting = self.resident_per_rank(context)
        return self.ranks * (10**9 if math.isinf(fitting) else int(fitting))

    def resident_per_rank(self, context: float) -> float:
        """Sequences of ``context`` tokens that one rank holds; infinite when a sequence takes no memory."""
        least = math.inf
        for stage in self._distinct:
            each = self.sequence_bytes(context, stage)
            if each > 0:
                # Guard against a last-bit shortfall of an exact fit.
                least = min(least, math.floor(self.cache_left(stage) / each * (1 + 1e-12)))
        return least

    def capacity_tokens(self, context: float) -> int:
        """KV capacity of one rank in tokens, as the engine reports it.

        For full attention the tokens that fit; with windows or fixed state, sequences of ``context`` tokens
        that fit (fractions counted) times ``context``, or what the engine's `PagePool` says.
        """
        if self.pool is not None:
            return self._pooled_tokens(self.pool, context)
        least = math.inf
        for stage in self._distinct:
            each = self.sequence_bytes(context, stage)
            if each > 0:
                least = min(least, self.cache_left(stage) / each * self.paged(context))
        return 10**12 if math.isinf(least) else int(least * (1 + 1e-12)) // self.page_size * self.page_size

    def _pooled_tokens(self, pool: PagePool, context: float) -> int:
        blocks = min(
            int(self.cache_left(s) / size * (1 + 1e-12)) for s in self._distinct if (size := pool.block_bytes[s])
        )
        if pool.groups_share_blocks:
            groups = sum(group.copies for group in pool.groups)
            return blocks // groups * min(group.tokens for group in pool.groups if group.grows)
        return int(blocks / pool.reported_blocks(context) * context)

    @property
    def bare(self) -> MemoryLedger:
        """The ledger without reserves, which are estimates: what has no room in it has none for certain."""
        return evolve(self, reserves=())

    def with_reserve(self, reserve: Reserve) -> MemoryLedger:
        """Return the ledger with one more reserve."""
        return evolve(self, reserves=(*self.reserves, reserve))

    def mapped(
        self,
        weights: Callable[[Weights], Weights] | None = None,
        caches: Callable[[Cache], Cache] | None = None,
        states: Callable[[State], State] | None = None,
    ) -> MemoryLedger:
        """Return the ledger with every entry passed through the function of its kind."""
        return evolve(
            self,
            weights=tuple(map(weights, self.weights)) if weights else self.weights,
            caches=tuple(map(caches, self.caches)) if caches else self.caches,
            states=tuple(map(states, self.states)) if states else self.states,
        )


def lay(architecture: Architecture, formats: Formats, visible: float, lineage: Lineage) -> MemoryLedger:
    """Return the ledger of an architecture on one device, in its stored formats, everything resident."""

    def where(name: str) -> Source:
        return Source("model", architecture.id, name)

    def held(tensor: Tensor, block: str, repeats: int) -> Weights:
        fmt = formats.of(tensor)
        return Weights(
            f"{block}.{tensor.name}" if block else tensor.name,
            block,
            tensor,
            tensor.params,
            fmt,
            (repeats,),
            Lineage(
                "weight bytes = params x bytes per parameter x layers",
                (
                    Input("params", tensor.params, "", where(tensor.name)),
                    Input("bytes per parameter", fmt.bytes_per_element, "B", fmt.source),
                    Input("layers", repeats, "", where("num_hidden_layers")),
                ),
            ),
        )

    weights = [held(architecture.embedding, "", 1)]
    if architecture.positions is not None:
        weights.append(held(architecture.positions, "", 1))
    caches: list[Cache] = []
    states: list[State] = []
    for block in architecture.blocks:
        weights += [held(t, block.name, block.count) for t in block.tensors]
        _lay_mixer(block, formats, where, caches, states)
    weights.append(held(architecture.final_norm, "", 1))
    if architecture.lm_head is not None:
        weights.append(held(architecture.lm_head, "", 1))
    # Vision towers are loaded with the model; MTP layers only when speculation uses them.
    weights += [held(t, "", 1) for t in architecture.extras if t.role != "mtp"]
    return MemoryLedger(tuple(weights), tuple(caches), tuple(states), visible, visible, lineage)


def _lay_mixer(
    block: Block, formats: Formats, where: Callable[[str], Source], caches: list[Cache], states: list[State]
) -> None:
    mixer = block.mixer
    if isinstance(mixer, Attention | LatentAttention):
        latent = isinstance(mixer, LatentAttention)
        lineage = Lineage(
            "KV bytes per token = elements x bytes per element x layers",
            (
                Input("elements per token and layer", mixer.cache_elements, "", where("kv heads x head dims")),
                Input("bytes per element", formats.cache.bytes_per_element, "B", formats.cache.source),
                Input("layers", block.count, "", where("num_hidden_layers")),
            ),
        )
        extra = mixer.indexer.bytes_per_token if mixer.indexer is not None else 0.0
        axis: Axis = "replicated" if latent else "kv_heads"
        window = 0 if isinstance(mixer, LatentAttention) else mixer.window or mixer.chunk
        grown = Cache(block.name, mixer.cache_elements, formats.cache, (block.count,), axis, lineage, extra, window)
        if mixer.cache_elements:
            caches.append(grown)
        if isinstance(mixer, LatentAttention) and mixer.window:
            caches.append(evolve(grown, elements=mixer.entry_elements, extra_bytes=0.0, held=mixer.window))
    elif isinstance(mixer, LinearState):
        held = Input("state bytes per sequence and layer", mixer.bytes_per_sequence, "B", where("state dims"))
        states.append(
            State(
                block.name,
                mixer.bytes_per_sequence,
                (block.count,),
                Lineage("fixed state = bytes per sequence and layer x layers", (held,)),
            )
        )
