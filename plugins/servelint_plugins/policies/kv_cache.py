"""``[policy.kv_cache]``: how much memory the cache gets, in which pages, and whether prefixes are reused."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from servelint.plugin import (
    Boolean,
    Context,
    Default,
    Dimension,
    Input,
    Integer,
    Lineage,
    Many,
    MemoryLedger,
    Policy,
    Quantity,
    Scheduler,
    Source,
    Text,
    key,
)
from servelint.values import Value

NAME = "kv_cache"


@frozen(slots=False, eq=False, repr=False)
class KvCache(Value):
    """``memory_utilization`` is the share of visible memory that the engine may use; ``memory_bytes`` the
    size of the cache itself, which replaces what that leaves."""

    memory_utilization: float | None = key(
        Quantity(Dimension.FRACTION, 0, 1),
        doc="Share of the visible memory that the engine may use for everything. Left out: the engine's default.",
    )
    memory_bytes: float | None = key(
        Quantity(Dimension.BYTES, 0, 1e18), doc="Size of the KV cache of a device, instead of what the share leaves."
    )
    max_tokens: int | None = key(
        Integer(1, 10**12),
        doc="Most tokens that the cache of a data-parallel rank holds, whatever memory is left. Left out: no cap.",
    )
    page_size: int | None = key(
        Integer(1, 1_000_000), doc="Tokens of a page; a sequence takes whole pages. Left out: the engine's default."
    )
    prefix_reuse: bool | None = key(
        Boolean(),
        doc="Whether prompts find cached prefixes; false makes `workload.prefix_hit` 0. Left out: the engine's "
        "default.",
    )
    offload: str | None = key(
        Text(), doc="Where blocks go that are evicted. Not priced: MEM003 then leaves open how fast they come back."
    )
    tenants: int | None = key(
        Integer(1, 1_000_000), doc="Tenants whose requests reach the same cache, its lower tiers included."
    )
    identity: tuple[str, ...] | None = key(
        Many(Text("tokens", "model", "adapter", "tenant")),
        doc="What cached blocks are found by; `tenant` where a salt or key of the tenant is part of it.",
    )


def defaults(config: KvCache, context: Context) -> Mapping[str, Default]:
    """Nine tenths of the visible memory, pages of 16 tokens."""
    source = Source("default", "docs/conventions.md", "kv cache")
    return {
        "memory_utilization": Default(0.9, "a common engine default", source),
        "page_size": Default(16, "a common engine default", source),
        "prefix_reuse": Default(True, "a common engine default", source),
    }


def memory(config: KvCache, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Set budget, page size, a declared cache size and a cap on its tokens."""
    share = config.memory_utilization or 1.0
    lineage = Lineage(
        "budget = visible memory x utilization",
        (
            Input("visible memory", ledger.visible, "B", context.accelerator.usable_source),
            Input("utilization", share, "", context.source(NAME, "memory_utilization")),
        ),
        ledger.budget_lineage.rewrites,
    )
    return evolve(
        ledger,
        budget=ledger.visible * share,
        budget_lineage=lineage,
        budget_kind=context.setup.engine.budget_kind,
        page_size=config.page_size or 1,
        cache_bytes=config.memory_bytes,
        token_cap=config.max_tokens,
    )


def scheduler(config: KvCache, scheduler: Scheduler, context: Context) -> Scheduler:
    """Prompts find nothing in the cache when prefixes are not reused."""
    return evolve(scheduler, prefix_reuse=config.prefix_reuse is not False)


POLICY = Policy(NAME, KvCache, None, memory, scheduler, defaults, after=("parallelism",))
