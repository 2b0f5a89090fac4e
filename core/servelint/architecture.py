"""Model architectures: layers by kind, the exact parameter ledger, the KV cache and fixed state.

An `Architecture` is what a model plugin provides, from TOML or from a published ``config.json``. It says
nothing of deployment: formats other than the stored one, sharding and batching belong to policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from attrs import field, frozen

from servelint.values import Value

Axis = Literal["heads", "kv_heads", "width", "experts", "vocabulary", "replicated"]
"""The axis that tensor parallelism (or, for ``experts``, expert parallelism) splits a tensor along.

``heads``: query heads (q and o projections, MLA up-projections); ``kv_heads``: key and value heads, at
least one per rank; ``width``: the MLP's inner width; ``experts``: whole routed experts, or their width;
``vocabulary``: embedding and LM head; ``replicated``: held whole by every rank (norms, router, MLA
down-projections).
"""

Role = Literal[
    "embedding", "lm_head", "attention", "ssm", "mlp", "router", "routed_experts", "shared_experts",
    "norm", "mtp", "vision",
]  # fmt: skip


@frozen(slots=False, eq=False, repr=False)
class Tensor(Value):
    """Parameters of one role in one block: a matrix, or a group that is always treated alike.

    ``params`` counts one layer's instance (for routed experts: all experts together). ``matmul`` is False
    for parameters that do not multiply (norms, biases, embedding table). ``reduced`` marks the output
    side of a row-parallel pair, whose result tensor parallelism must all-reduce.
    """

    name: str
    role: Role
    params: int
    axis: Axis
    matmul: bool = True
    reduced: bool = False


@frozen(slots=False, eq=False, repr=False)
class Indexer(Value):
    """The key index of sparse attention: every index key is scanned, then ``top_k`` cache entries are attended.

    ``bytes_per_token`` is one layer's index cache in the indexer's own format (DeepSeek-V3.2: 128 fp8
    elements and one fp32 scale, 132 B). ``stride`` tokens share one key and one cache entry.
    """

    heads: int
    head_dim: int
    top_k: int
    bytes_per_token: float
    stride: int = 1

    @property
    def reach(self) -> int:
        """Tokens that the attended entries stand for."""
        return self.top_k * self.stride

    @property
    def elements_per_token(self) -> float:
        """Index-key elements that one more token adds in one layer."""
        return self.head_dim / self.stride


@frozen(slots=False, eq=False, repr=False)
class Attention(Value):
    """Softmax attention with a KV cache: MHA, MQA or GQA, full, sliding or chunked.

    ``window``: tokens a sliding layer keeps; ``chunk``: length of a local-attention chunk; both 0 for
    full attention. Cache elements per token and layer: ``kv_heads * (head_dim + v_head_dim)``. With an
    ``indexer`` the cache is kept whole, and each KV head attends to the tokens that the index picks.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    chunk: int = 0
    indexer: Indexer | None = None

    @property
    def cache_elements(self) -> int:
        """KV-cache elements per token in one layer."""
        return self.kv_heads * (self.head_dim + self.v_head_dim)

    def sequence_bytes(self, tokens: float, bytes_per_element: float) -> float:
        """Cache bytes of one sequence in one layer, cut by window or chunk, index keys included."""
        index = self.indexer.bytes_per_token if self.indexer is not None else 0.0
        kept = min(tokens, self.window or self.chunk or tokens)
        return kept * self.cache_elements * bytes_per_element + tokens * index


@frozen(slots=False, eq=False, repr=False)
class LatentAttention(Value):
    """Multi-head latent attention (MLA): one compressed latent per token, shared by all heads.

    Cache elements per token and layer: ``kv_lora_rank + rope_dim``, held whole by every
    tensor-parallel rank. With a ``window`` (compressed attention) the last tokens are attended one by one,
    and beside them one cache entry for each ``stride`` tokens (0: nothing but the window), of which an
    ``indexer`` picks some.
    """

    q_heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    window: int = 0
    stride: int = 1

    @property
    def entry_elements(self) -> int:
        """Elements of one cache entry in one layer."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def cache_elements(self) -> int:
        """KV-cache elements that one more token adds in one layer, the window apart."""
        return self.entry_elements // self.stride if self.stride else 0

    def kept_elements(self, tokens: float) -> float:
        """Cache elements of one sequence in one layer, window included, index keys not."""
        return tokens * self.cache_elements + min(tokens, self.window) * self.entry_elements

    def sequence_bytes(self, tokens: float, bytes_per_element: float) -> float:
        """Cache bytes of one sequence in one layer, index keys included."""
        index = self.indexer.bytes_per_token if self.indexer is not None else 0.0
        return self.kept_elements(tokens) * bytes_per_element + tokens * index


@frozen(slots=False, eq=False, repr=False)
class LinearState(Value):
    """Linear attention, SSM or gated convolution: constant state per sequence, whatever the context.

    Element counts are for one layer and one sequence. The recurrent state is usually kept in fp32, the
    convolution state in 16 bit.
    """

    recurrent_elements: int
    conv_elements: int
    recurrent_bytes: float = 4.0
    conv_bytes: float = 2.0

    @property
    def bytes_per_sequence(self) -> float:
        """State bytes of one sequence in one layer."""
        return self.recurrent_elements * self.recurrent_bytes + self.conv_elements * self.conv_bytes


Mixer = Attention | LatentAttention | LinearState


@frozen(slots=False, eq=False, repr=False)
class Experts(Value):
    """Routed experts of a mixture-of-experts block: ``top_k`` of ``count`` run for each token."""

    count: int
    top_k: int


@frozen(slots=False, eq=False, repr=False)
class Block(Value):
    """One kind of sub-layer and the layers that have it.

    A transformer layer is two blocks: a token mixer (attention or state) and a feed-forward part. Blocks
    of one kind share one graph node, whatever their number. ``layers`` are 0-based layer indices.
    """

    name: str
    layers: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    mixer: Mixer | None = None
    experts: Experts | None = None

    @property
    def count(self) -> int:
        """Number of layers that have this block."""
        return len(self.layers)

    @property
    def params(self) -> int:
        """Parameters of all instances."""
        return self.count * sum(t.params for t in self.tensors)


@frozen(slots=False, eq=False, repr=False)
class RopeScaling(Value):
    """Declared rotary-position scaling: kind, factor, and the length it was trained at before scaling."""

    kind: str
    factor: float
    original_max_position: int


@frozen(slots=False, eq=False, repr=False)
class Quantization(Value):
    """The checkpoint's own quantization: format name and the roles that it covers.

    ``tensors`` are the exceptions: names of tensors (`Tensor.name`) with another format, or with None, which is
    the architecture's ``stored`` format. ``kv_cache`` is the format that the checkpoint has cache scales for.
    """

    format: str
    covers: tuple[str, ...]
    group: int = 0
    kv_cache: str | None = None
    tensors: tuple[tuple[str, str | None], ...] = ()


@frozen(slots=False, eq=False, repr=False)
class Architecture(Value):
    """A model: shapes and exact parameter counts.

    ``stored`` names the format of the checkpoint (``bf16``, ``fp8``, ``mxfp4`` ...), ``quantization`` its
    coverage when only some roles are stored that way. ``embedding`` is the input table, ``positions`` the
    table of learned positions where the model has one; ``lm_head`` is None when it is tied to the
    embedding. ``extras`` are parameters outside the serving path of plain text generation: MTP layers,
    vision towers. ``sources`` names repository and path, or document, of the figures.
    """

    id: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position: int
    blocks: tuple[Block, ...]
    embedding: Tensor
    lm_head: Tensor | None
    final_norm: Tensor
    positions: Tensor | None = None
    extras: tuple[Tensor, ...] = ()
    stored: str = "bf16"
    quantization: Quantization | None = None
    rope_scaling: RopeScaling | None = None
    parallel_blocks: bool = False
    layout: Callable[[Architecture, Any], Any] | None = None
    model_type: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    def tensors(self) -> Iterator[tuple[Tensor, int]]:
        """Yield every tensor with its number of instances, extras included."""
        yield self.embedding, 1
        if self.positions is not None:
            yield self.positions, 1
        for block in self.blocks:
            for tensor in block.tensors:
                yield tensor, block.count
        yield self.final_norm, 1
        if self.lm_head is not None:
            yield self.lm_head, 1
        for tensor in self.extras:
            yield tensor, 1

    @property
    def params_by_role(self) -> dict[str, int]:
        """Parameters by role; the values add up to `params_total`."""
        totals: dict[str, int] = {}
        for tensor, count in self.tensors():
            totals[tensor.role] = totals.get(tensor.role, 0) + tensor.params * count
        return totals

    @property
    def params_total(self) -> int:
        """All parameters, extras included; a tied head counts once."""
        return sum(t.params * n for t, n in self.tensors())

    @property
    def params_serving(self) -> int:
        """Parameters that plain text generation needs resident: all but the extras."""
        return self.params_total - sum(t.params for t in self.extras)

    @property
    def params_active(self) -> int:
        """Parameters that one token touches: all serving parameters, of routed experts only ``top_k``.

        The input embedding counts whole, as model cards do; it is a look-up, not a multiplication.
        """
        idle = 0
        for block in self.blocks:
            if block.experts is not None:
                routed = sum(t.params for t in block.tensors if t.role == "routed_experts")
                idle += block.count * (routed - routed * block.experts.top_k // block.experts.count)
        return self.params_serving - idle

    @property
    def lm_head_tied(self) -> bool:
        """Whether the LM head shares the embedding table."""
        return self.lm_head is None

    @property
    def is_moe(self) -> bool:
        """Whether any block routes tokens to experts."""
        return any(b.experts is not None for b in self.blocks)

    def kv_elements_per_token(self) -> dict[str, int]:
        """KV elements that one more token of context adds, by kind: ``full``, ``sliding``, ``chunked``."""
        totals = {"full": 0, "sliding": 0, "chunked": 0}
        for block in self.blocks:
            mixer = block.mixer
            if isinstance(mixer, LatentAttention):
                totals["full"] += block.count * mixer.cache_elements
                totals["sliding"] += block.count * mixer.entry_elements if mixer.window else 0
            elif isinstance(mixer, Attention):
                kind = "sliding" if mixer.window else "chunked" if mixer.chunk else "full"
                totals[kind] += block.count * mixer.cache_elements
        return totals

    def indexer_bytes_per_token(self) -> float:
        """Index-key bytes that one more token of context adds, all layers."""
        return sum(
            b.count * b.mixer.indexer.bytes_per_token
            for b in self.blocks
            if isinstance(b.mixer, Attention | LatentAttention) and b.mixer.indexer is not None
        )

    def state_bytes_per_sequence(self) -> float:
        """Fixed state of one sequence over all linear or SSM layers, in bytes."""
        return sum(b.count * b.mixer.bytes_per_sequence for b in self.blocks if isinstance(b.mixer, LinearState))

    def kv_bytes_per_sequence(self, context: int, bytes_per_element: float = 2.0) -> float:
        """KV bytes of one sequence of ``context`` tokens, windows and chunks applied, indexer included."""
        return sum(
            b.count * b.mixer.sequence_bytes(context, bytes_per_element)
            for b in self.blocks
            if isinstance(b.mixer, Attention | LatentAttention)
        )


@frozen(slots=False, eq=False, repr=False)
class ModelFamily(Value):
    """Reads one family of published ``config.json`` files.

    ``model_types`` are the values of the config's ``model_type`` that it accepts; ``read`` turns the parsed
    config into an architecture and raises ValueError naming the field that is missing or unsupported.
    """

    name: str
    model_types: tuple[str, ...]
    read: Callable[[str, Mapping[str, object]], Architecture] = field(repr=False)
