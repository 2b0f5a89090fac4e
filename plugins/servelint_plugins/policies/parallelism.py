"""``[policy.parallelism]``: tensor, pipeline, expert, data, attention-data and context parallelism.

Each axis divides the demands and ledger entries that lie along it and adds the collectives that join the
parts again. The conventions are those of docs/cost-model.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, expm1, log1p
from typing import TypeVar

from attrs import evolve, frozen

from servelint.memory import Weights
from servelint.plugin import (
    ONCE,
    OUTPUTS,
    TOKENS,
    Attention,
    Block,
    CacheIO,
    Collective,
    Context,
    Default,
    Demand,
    Experts,
    Feature,
    InfeasibleError,
    Input,
    Integer,
    LatentAttention,
    Launch,
    Lineage,
    Many,
    Matmul,
    MemoryLedger,
    Op,
    Policy,
    Scheduler,
    Source,
    StateIO,
    StepGraph,
    key,
)
from servelint.values import Value

NAME = "parallelism"
ACTIVATION_BYTES = 2
DISPATCH_BYTES = {"fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Bytes an element that is sent to experts which multiply in that precision; 16 bit otherwise."""

PARTIAL_BYTES = 4
"""Partial softmax results are joined in fp32."""

LOG_OF_NOTHING = -40.0
"""Logarithm of a chance that is less than the last bit of 1."""

MOST = 4096
_degree = Integer(1, MOST)


@frozen(slots=False, eq=False, repr=False)
class Parallelism(Value):
    """Degrees of parallelism of one replica; ``pipeline_layers`` is the layers of each stage."""

    tensor: int | None = key(
        _degree, doc="Devices that split every layer. Left out: all devices that the other degrees leave."
    )
    pipeline: int | None = key(_degree, doc="Stages that split the layers. Left out: 1.")
    expert: int | None = key(
        _degree,
        doc="Ranks that split the experts; divides `tensor x data`. Left out: 1, every rank has its part of every "
        "expert.",
    )
    data: int | None = key(_degree, doc="Copies in the replica that serve sequences of their own. Left out: 1.")
    attention_data: int | None = key(
        _degree, doc="Attention groups inside a tensor-parallel group, each with sequences of its own. Left out: 1."
    )
    context: int | None = key(_degree, doc="Devices that share the cached tokens of a sequence. Left out: 1.")
    pipeline_layers: tuple[int, ...] | None = key(
        Many(Integer(0, 2000), 4096), doc="Layers of each stage. Left out: as even as they divide."
    )

    @property
    def t(self) -> int:
        """Tensor-parallel degree."""
        return self.tensor or 1

    @property
    def p(self) -> int:
        """Pipeline stages."""
        return self.pipeline or 1

    @property
    def d(self) -> int:
        """Data-parallel ranks with whole copies of everything but routed experts under EP."""
        return self.data or 1

    @property
    def e(self) -> int:
        """Ranks that split the experts; they divide the tensor- and data-parallel devices."""
        return self.expert or 1

    @property
    def attention_ranks(self) -> int:
        """Attention groups that share a tensor-parallel group, each with its own sequences."""
        return self.attention_data or 1

    @property
    def c(self) -> int:
        """Devices that share the tokens of a sequence."""
        return self.context or 1

    @property
    def ranks(self) -> int:
        """Groups that serve sequences of their own."""
        return self.d * self.attention_ranks

    @property
    def attention_tensor(self) -> int:
        """Tensor-parallel degree of attention."""
        return self.t // self.attention_ranks

    @property
    def context_shares_tensor(self) -> bool:
        """Whether the devices that share a sequence's tokens are those of its tensor-parallel group.

        A group of t devices then splits heads t / context ways and tokens context ways; otherwise context
        multiplies the devices.
        """
        return self.attention_tensor % self.c == 0

    @property
    def prompt_shares(self) -> int:
        """Devices that share the new tokens of a prompt in everything that they do."""
        return 1 if self.context_shares_tensor else self.c

    def tokens(self, ranks: int) -> Feature:
        """Return the tokens of a step on a device, where so many ranks share its sequences."""
        return TOKENS.on_fullest_rank(ranks).on_prompt_share(self.prompt_shares)


def devices(config: Parallelism) -> int | None:
    """Devices that the declared degrees need; None when none is declared."""
    if config.tensor is config.pipeline is config.data is config.context is None:
        return None
    return config.t * config.p * config.d * (1 if config.context_shares_tensor else config.c)


def defaults(config: Parallelism, context: Context) -> Mapping[str, Default]:
    """Spread a replica with more devices than the spec splits over tensor parallelism."""
    devices, source = context.topology.devices, Source("default", "docs/conventions.md", "parallelism")
    filled = {name: Default(1, "", source) for name in ("pipeline", "data", "attention_data", "context")}
    shared = config.p * config.d
    tensor = devices // shared if devices % shared == 0 and devices // shared <= MOST else 1
    reason = "every device of the replica, in one tensor-parallel group" if tensor > 1 else ""
    return filled | {"tensor": Default(tensor, reason, source)}


def check(config: Parallelism, context: Context) -> None:
    """Raise InfeasibleError for degrees that cannot be laid out at all."""
    architecture = context.architecture
    path: Callable[[str], tuple[str, ...]] = lambda name: ("policy", NAME, name)  # noqa: E731
    if config.t % config.attention_ranks:
        raise InfeasibleError(
            f"attention_data {config.attention_ranks} does not divide tensor {config.t}",
            path("attention_data"),
        )
    if config.p > architecture.num_layers:
        raise InfeasibleError(
            f"pipeline {config.p} is more than the {architecture.num_layers} layers of {architecture.id}",
            path("pipeline"),
        )
    declared = config.pipeline_layers
    if declared is not None and (len(declared) != config.p or sum(declared) != architecture.num_layers):
        raise InfeasibleError(
            f"pipeline_layers lists {len(declared)} stages with {sum(declared)} layers; "
            f"{config.p} stages with {architecture.num_layers} layers in all are due",
            path("pipeline_layers"),
        )
    if config.expert is not None and (config.t * config.d) % config.expert:
        raise InfeasibleError(
            f"expert {config.expert} does not divide the {config.t * config.d} devices of tensor x data",
            path("expert"),
        )


class _Split:
    """The share of each axis that one device holds."""

    def __init__(self, config: Parallelism, context: Context) -> None:
        self.config, self.context = config, context
        self.expert_group = config.t * config.d if config.e > 1 else config.t

    def share(self, axis: str, block: Block | None, *, attends: bool = False) -> float:
        """Return the share of what lies along an axis, heads and experts rounded up.

        ``attends``: of queries, keys and values themselves, not of the matrices that make them.
        """
        config = self.config
        attention = block is not None and block.mixer is not None
        t = config.attention_tensor if attention else config.t
        if attends and config.context_shares_tensor:
            t //= config.c
        if axis == "replicated":
            return 1.0
        if axis == "experts" and block is not None and block.experts is not None:
            local = ceil(block.experts.count / config.e) / block.experts.count
            return local / (self.expert_group // config.e)
        mixer = block.mixer if block is not None else None
        if axis == "heads" and isinstance(mixer, Attention | LatentAttention):
            return ceil(mixer.q_heads / t) / mixer.q_heads
        if axis == "kv_heads" and isinstance(mixer, Attention):
            return ceil(mixer.kv_heads / t) / mixer.kv_heads
        return 1.0 / t

    def ranks(self, block: Block | None, axis: str) -> int:
        """Return how many groups share the sequences that an op of this block and axis works on."""
        config = self.config
        if axis == "experts" and config.e > 1:
            return 1
        if block is not None and block.mixer is not None:
            return config.ranks
        return config.d

    def inputs(self, axis: str, block: Block | None) -> tuple[Input, ...]:
        """Return what the share came from."""
        context = self.context
        inputs = [context.input(NAME, "tensor")]
        mixer = block.mixer if block is not None else None
        if axis == "kv_heads" and isinstance(mixer, Attention):
            source = Source("model", context.architecture.id, "num_key_value_heads")
            inputs.append(Input("KV heads", mixer.kv_heads, "", source))
        if axis == "experts" and self.config.e > 1:
            inputs.append(context.input(NAME, "expert"))
        return tuple(inputs)

    def formula(self, axis: str) -> str:
        """Name the rule of the share."""
        return {
            "kv_heads": "share of a rank = ceil(KV heads / tensor) / KV heads",
            "heads": "share of a rank = ceil(heads / tensor) / heads",
            "experts": "share of a device = experts / (expert groups x tensor within the group)",
        }.get(axis, "share of a rank = 1 / tensor")


def graph(config: Parallelism, graph: StepGraph, context: Context) -> StepGraph:
    """Divide the graph over the devices of a replica and add the collectives."""
    check(config, context)
    split = _Split(config, context)
    if config.t * config.d * config.c > 1:
        graph = graph.mapped(lambda op, demand: _divided(op, demand, split))
        graph = evolve(_with_collectives(graph, split), ranks=config.ranks)
    if config.p > 1:
        graph = _staged(graph, config, context)
    return graph


def _divided(op: Op, demand: Demand, split: _Split) -> Demand:
    if isinstance(demand, Launch):
        return demand
    context, config = split.context, split.config
    block = context.block(op.name)
    # State is of whole sequences only in linear attention; elsewhere it is an index or scores, by token.
    attends = (
        block is not None
        and isinstance(block.mixer, Attention | LatentAttention)
        and (isinstance(demand, CacheIO | StateIO) or (isinstance(demand, Matmul) and demand.tensor is None))
    )
    share = split.share(demand.axis, block, attends=attends)
    if share != 1.0:
        demand = demand.scaled(share, NAME, split.formula(demand.axis), *split.inputs(demand.axis, block))
    ranks = split.ranks(block, demand.axis)
    if ranks > 1 and demand.feature != ONCE:
        reason = f"sequences of the fullest of {ranks} ranks"
        lineage = demand.lineage.rewritten(NAME, reason)
        demand = evolve(demand, feature=demand.feature.on_fullest_rank(ranks), lineage=lineage)
    if config.prompt_shares > 1 and not attends and demand.feature != ONCE:
        lineage = demand.lineage.rewritten(NAME, "new tokens shared by context", context.input(NAME, "context"))
        demand = evolve(demand, feature=demand.feature.on_prompt_share(config.prompt_shares), lineage=lineage)
    if config.c > 1 and attends:
        demand = demand.scaled(1 / config.c, NAME, "tokens shared by context", context.input(NAME, "context"))
    return demand


def _collective(
    kind: str, name: str, elements: float, feature: Feature, group: int, stride: int, context: Context,
    width: float = ACTIVATION_BYTES,
) -> Collective:  # fmt: skip
    source = Source("model", context.architecture.id, "hidden_size")
    return Collective(
        elements * width,
        feature,
        "replicated",
        Lineage(
            f"{name} bytes = tokens x elements x bytes per element",
            (
                Input("elements per token", elements, "", source),
                Input(
                    "bytes per element",
                    width,
                    "B",
                    Source("convention", "docs/conventions.md", "activations"),
                ),
                context.input(NAME, "tensor"),
            ),
        ),
        kind,  # type: ignore[arg-type]
        group,
        stride,
    )


def _with_collectives(graph: StepGraph, split: _Split) -> StepGraph:
    config, context = split.config, split.context
    architecture = context.architecture
    hidden = architecture.hidden_size
    t, ta, ranks = config.t, config.attention_tensor, config.ranks
    rank_tokens, group_tokens = config.tokens(ranks), config.tokens(config.d)
    for op in graph.ops:
        block = context.block(op.name)
        ends_mixer = block is not None and block.mixer is not None and op.name.endswith(".out_proj")
        ends_mlp = block is not None and block.mixer is None and op.name.endswith((".down_proj", ".experts"))
        added: list[Demand] = []
        if ends_mixer and block is not None:
            if ta > 1 and not architecture.parallel_blocks:
                added.append(_collective("all_reduce", "all-reduce", hidden, rank_tokens, ta, 1, context))
            if config.attention_ranks > 1:
                # MLPs work on the tokens of all attention groups.
                gathered = _collective("all_gather", "all-gather", hidden, group_tokens, t, 1, context)
                if not (_has_dispatch(split)):
                    added.append(gathered)
        elif ends_mlp and block is not None:
            if block.experts is not None and _has_dispatch(split):
                added += _dispatch(op, block.experts, split)
            elif t > 1:
                kind = "all_gather" if config.attention_ranks > 1 else "all_reduce"
                added.append(_collective(kind, "all-reduce", hidden, group_tokens, t, 1, context))
        elif op.name == "embedding" and t > 1:
            added.append(_collective("all_reduce", "embedding all-reduce", hidden, group_tokens, t, 1, context))
        elif op.name == "lm_head" and t > 1:
            outputs = OUTPUTS.on_fullest_rank(config.d)
            part = architecture.vocab_size / t
            added.append(_collective("send", "logits gather", part, outputs, t, 1, context))
        if added:
            name = f"{op.name}.{'all_to_all' if added[0].kind == 'all_to_all' else 'collective'}"  # type: ignore[attr-defined]
            # A collective's latency is measured with its launch.
            graph = graph.inserted_after(op.name, Op(name, (), (), tuple(added), op.repeats, op.layers, NAME))
        if ends_mixer and config.c > 1 and block is not None and isinstance(block.mixer, Attention | LatentAttention):
            heads = block.mixer.q_heads * split.share("heads", block, attends=True)
            partial = heads * block.mixer.v_head_dim
            join = _collective(
                "all_reduce", "partial softmax", partial, rank_tokens, config.c, 1, context, PARTIAL_BYTES
            )
            core = f"{block.name}.core"
            joined = Op(f"{core}.join", (), (), (join,), op.repeats, op.layers, NAME)
            graph = graph.inserted_after(core, joined)
    return graph


def _has_dispatch(split: _Split) -> bool:
    """Tokens travel to experts only when ranks hold different tokens."""
    return split.config.e > 1 and split.config.ranks > 1


def _dispatch(op: Op, experts: Experts, split: _Split) -> list[Demand]:
    """Tokens to the ranks of their experts and back.

    Within a node one copy a rank. Between nodes one copy a node, which the node's own links pass on, as
    DeepEP does. Tokens travel out in the precision that the experts multiply in, and back in 16 bit.
    """
    config, context = split.config, split.context
    ranks = config.e
    precisions = [d.precision for d in op.demands if isinstance(d, Matmul) and d.axis == "experts"]
    widths = {"dispatch": min((DISPATCH_BYTES.get(p, ACTIVATION_BYTES) for p in precisions), default=ACTIVATION_BYTES)}
    own = config.tokens(config.ranks)
    each = context.architecture.hidden_size / config.attention_tensor
    outer = context.topology.hops(ranks)[-1]
    inner = outer.inner if outer.tier == "network" else 1
    nodes = -(-ranks // inner)
    # Copies of a token, members, and devices between two of them, on each tier.
    routes = [(_distinct_remote(experts, nodes), nodes, inner)]
    if inner > 1:
        routes.append((_distinct_remote(experts, ranks) * (inner - 1) / inner, inner, 1))
    return [
        _collective(
            "all_to_all",
            f"expert {what}",
            each * copies,
            own,
            group,
            stride,
            context,
            widths.get(what, ACTIVATION_BYTES),
        )
        for what in ("dispatch", "combine")
        for copies, group, stride in routes
    ]


def _distinct_remote(experts: Experts, groups: int) -> float:
    """Expected groups other than its own that a token's top-k experts lie in, routing being uniform.

    Of more groups than experts some hold none; uneven groups count as the fullest, but no token reaches more groups
    than it has experts.
    """
    reached = min(min(groups, experts.count) * reached_share(experts, groups), float(experts.top_k))
    return reached * (groups - 1) / groups


def reached_share(experts: Experts, groups: int) -> float:
    """Chance that a token's top-k experts include one of those of a group, routing being uniform.

    ``1 - C(E - n, k) / C(E, k)`` for n of E experts in the group, the quotient as a product of its
    min(n, k) factors.
    """
    few, many = sorted((ceil(experts.count / groups), experts.top_k))
    if few + many > experts.count:
        return 1.0
    missed = 0.0
    for i in range(few):
        missed += log1p(-many / (experts.count - i))
        if missed < LOG_OF_NOTHING:
            return 1.0
    return -expm1(missed)


def stage_layers(config: Parallelism, layers: int) -> tuple[int, ...]:
    """Layers of each stage: as declared, else evenly, the first stages taking one more."""
    if config.pipeline_layers is not None:
        return config.pipeline_layers
    each, rest = divmod(layers, config.p)
    return tuple(each + (stage < rest) for stage in range(config.p))


def _stage_counts(config: Parallelism, context: Context) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    # Stage of every layer, looked up rather than searched: layers and stages can both be thousands.
    stage_of = [s for s, n in enumerate(stage_layers(config, context.architecture.num_layers)) for _ in range(n)]
    known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def counts(layers: tuple[int, ...]) -> tuple[int, ...]:
        found = known.get(layers)
        if found is None:
            held = [0] * config.p
            for layer in layers:
                if layer < len(stage_of):
                    held[stage_of[layer]] += 1
            found = known[layers] = tuple(held)
        return found

    return counts


def _staged(graph: StepGraph, config: Parallelism, context: Context) -> StepGraph:
    counts = _stage_counts(config, context)
    last = (0,) * (config.p - 1) + (1,)
    first = (1,) + (0,) * (config.p - 1)
    ops = []
    for op in graph.ops:
        if op.layers:
            scale = op.count // len(op.layers)
            repeats = tuple(n * scale for n in counts(op.layers))
        else:
            repeats = first if op.name.startswith("embedding") else last
        ops.append(evolve(op, repeats=repeats))
    staged = evolve(graph, ops=tuple(ops), stages=config.p, micro_batches=config.p)
    tokens = config.tokens(config.ranks)
    part = context.architecture.hidden_size / config.t
    send = _collective("send", "stage to stage", part, tokens, 2, config.t * config.d, context)
    between = (1,) * (config.p - 1) + (0,)
    before_head = next(op.name for op in reversed(graph.ops) if op.layers)
    return staged.inserted_after(before_head, Op("pipeline.send", (), (), (send,), between, (), NAME))


T = TypeVar("T")


def memory(config: Parallelism, ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Divide weights, caches and state over the devices of a replica."""
    check(config, context)
    split = _Split(config, context)
    if config.t * config.d * config.c > 1:
        ledger = ledger.mapped(
            weights=lambda w: evolve(
                w,
                params=w.params * (share := split.share(w.tensor.axis, context.block(w.block))),
                lineage=_shared(w.lineage, share, w.tensor.axis, split, context.block(w.block)),
            ),
            caches=lambda c: evolve(
                c,
                elements=c.elements * (share := split.share(c.axis, context.block(c.block), attends=True)),
                lineage=_shared(c.lineage, share, c.axis, split, context.block(c.block)),
                shards=c.shards * config.c,
            ),
            states=lambda s: evolve(s, bytes=s.bytes * split.share("heads", context.block(s.block))),
        )
        ledger = evolve(ledger, ranks=config.ranks)
    if config.p == 1:
        return ledger
    counts = _stage_counts(config, context)
    layers = {block.name: counts(block.layers) for block in context.architecture.blocks}
    first, last = (1,) + (0,) * (config.p - 1), (0,) * (config.p - 1) + (1,)
    architecture = context.architecture

    def placed(weights: Weights) -> tuple[int, ...]:
        if weights.block:
            return layers[weights.block]
        if weights.tensor is architecture.embedding and architecture.lm_head_tied:
            # A tied table is held by the first and the last stage.
            return tuple(map(max, first, last))
        return first if weights.tensor.role in ("embedding", "vision") else last

    staged = ledger.mapped(
        weights=lambda w: evolve(w, repeats=placed(w)),
        caches=lambda c: evolve(c, repeats=layers[c.block]),
        states=lambda s: evolve(s, repeats=layers[s.block]),
    )
    return evolve(staged, stages=config.p)


def _shared(lineage: Lineage, share: float, axis: str, split: _Split, block: Block | None) -> Lineage:
    if share == 1.0:
        return lineage
    return lineage.rewritten(NAME, split.formula(axis), *split.inputs(axis, block))


def scheduler(config: Parallelism, scheduler: Scheduler, context: Context) -> Scheduler:
    """Say how many ranks serve sequences of their own."""
    lockstep = config.attention_ranks > 1 or (config.e > 1 and config.d > 1)
    return evolve(scheduler, ranks=config.ranks, lockstep=lockstep)


POLICY = Policy(
    NAME,
    Parallelism,
    graph,
    memory,
    scheduler,
    defaults,
    devices,
    after=("quantization", "attention"),
)
