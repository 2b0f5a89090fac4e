"""Lays the one-device step graph of an architecture, in the checkpoint's stored formats.

Policies rewrite what is laid here. Ops form the residual chain: embedding, then one op group per kind of
block, then the LM head. An architecture with a token mixer of a kind not known here brings its own
``layout``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import field, frozen

from servelint.architecture import (
    Architecture,
    Attention,
    Block,
    Indexer,
    LatentAttention,
    LinearState,
    Tensor,
)
from servelint.errors import InfeasibleError
from servelint.formats import Format
from servelint.graph import Op, StepGraph
from servelint.lineage import Input, Lineage, Source
from servelint.resources import ActivationIO, CacheIO, Demand, Launch, Matmul, StateIO, WeightRead
from servelint.shapes import (
    ONCE,
    OUTPUTS,
    SEQUENCES,
    TOKENS,
    Feature,
    attended_pairs,
    cached_tokens,
    distinct_expert_share,
    latent_attention,
)
from servelint.values import Value

ACTIVATION_BYTES = 2
"""Activations travel in 16 bit unless a policy says otherwise."""

KERNELS = {
    "in_proj": 2,
    "core": 2,
    "out_proj": 1,
    "up_proj": 2,
    "down_proj": 2,
    "router": 3,
    "experts": 5,
    "lm_head": 3,
}
LATENT_KERNELS = {"in_proj": 6, "out_proj": 2}
"""Kernels of an op as engines fuse them, in the order of the op's work: norm and GEMM; rotary embedding with
cache write and attention; GEMM; norm and GEMM; activation and GEMM; norm, GEMM and top-k; permutation, two
grouped GEMMs, activation and combination; norm, GEMM and sampling. Latent attention also projects down and
up, normalizes its latents and absorbs."""

STATE_FLOPS_PER_ELEMENT = 6
"""Decay, outer-product update and read-out of one recurrent state element: about six operations."""


@frozen(eq=False, repr=False)
class Formats(Value):
    """The formats a graph is laid in: resolved by name from the architecture and the plugins' formats."""

    stored: Format
    cache: Format
    quantized: Format | None = None
    covers: tuple[str, ...] = ()
    tensors: Mapping[str, Format] = field(factory=dict)

    def of(self, tensor: Tensor) -> Format:
        """Return the stored format of a tensor; what does not multiply stays in the base format, but for tables.

        ``tensors`` holds the tensors, by name, that are in another format than their role says.
        """
        if tensor.matmul and tensor.name in self.tensors:
            return self.tensors[tensor.name]
        if self.quantized is not None and quantizes(self.covers, tensor):
            return self.quantized
        return self.stored


def quantizes(covers: tuple[str, ...], tensor: Tensor) -> bool:
    """Whether a format that covers these roles is a tensor's: of vectors only tables of embeddings are quantized."""
    return tensor.role in covers and (tensor.matmul or tensor.role == "embedding")


def compute_precision(format: Format, base: str) -> str:  # noqa: A002
    """Return the precision that a GEMM of these weights runs at before any hardware is known.

    The checkpoint's own quantized format is laid as weight-only; the quantization policy turns it native
    where the hardware has the path.
    """
    return format.compute if format.compute in ("bf16", "fp16", "fp32") else base


class _Layer:
    """Collects the ops of the residual chain, naming the values between them."""

    def __init__(self, architecture: Architecture, formats: Formats) -> None:
        self.architecture = architecture
        self.formats = formats
        self.ops: list[Op] = []
        self.value = "hidden.0"
        self._links = 0
        self._where = architecture.id
        self.base = "fp16" if formats.stored.name == "fp16" else "bf16"

    def source(self, name: str) -> Source:
        return Source("model", self._where, name)

    def add(self, name: str, demands: list[Demand], block: Block | None = None, side: str | None = None) -> None:
        """Append an op to the chain; ``side`` names its own input when it branches off the chain."""
        self._links += 1
        output = f"hidden.{self._links}"
        count, layers = (1, ()) if block is None else (block.count, block.layers)
        launches = launch(_kernels(name, block))
        self.ops.append(Op(name, (side or self.value,), (output,), (*demands, launches), (count,), layers))
        self.value = output

    def gemm(self, tensors: list[Tensor], feature: Feature = TOKENS, *, read: Feature = ONCE) -> list[Demand]:
        """Weight reads and FLOPs of a group of matrices applied to the same tokens."""
        demands: list[Demand] = []
        for tensor in tensors:
            fmt = self.formats.of(tensor)
            params = Input("params", tensor.params, "", self.source(tensor.name))
            width = Input("bytes per parameter", fmt.bytes_per_element, "B", fmt.source)
            demands.append(
                WeightRead(
                    tensor.params,
                    read,
                    tensor.axis,
                    Lineage(f"weight bytes of {tensor.name} = params x bytes per parameter", (params, width)),
                    tensor,
                    fmt,
                )
            )
            if tensor.matmul:
                demands.append(
                    Matmul(
                        2.0 * tensor.params,
                        feature,
                        tensor.axis,
                        Lineage(f"FLOPs of {tensor.name} = 2 x params x tokens", (params,)),
                        compute_precision(fmt, self.base),
                        tensor,
                    )
                )
        return demands

    def activations(self, elements: float, what: str, axis: str = "replicated", feature: Feature = TOKENS) -> Demand:
        return ActivationIO(
            elements * ACTIVATION_BYTES,
            feature,
            axis,  # type: ignore[arg-type]
            Lineage(
                f"activation bytes of {what} = elements x 2 B x tokens",
                (Input("elements", elements, "", self.source(what)),),
            ),
        )


def launch(count: float = 1.0) -> Launch:
    """Return the launches of one op: its kernels, fused as engines do."""
    return Launch(count, ONCE, "replicated", Lineage("kernel launches", ()))


def _kernels(name: str, block: Block | None) -> float:
    part = name.rpartition(".")[2]
    if block is not None and isinstance(block.mixer, LatentAttention) and part in LATENT_KERNELS:
        return float(LATENT_KERNELS[part])
    return float(KERNELS.get(part, 1))


def _mixer_ops(layer: _Layer, block: Block) -> None:
    architecture, mixer = layer.architecture, block.mixer
    hidden = architecture.hidden_size
    before = [t for t in block.tensors if not t.reduced]
    after = [t for t in block.tensors if t.reduced]
    residual = layer.activations(2.0 * hidden, "residual in and out")
    layer.add(f"{block.name}.in_proj", [*layer.gemm(before), residual], block)
    if isinstance(mixer, Attention):
        width = mixer.q_heads * (mixer.head_dim + mixer.v_head_dim)
        layer.add(
            f"{block.name}.core",
            [*_attention(layer, mixer), layer.activations(width, "query and output", "heads")],
            block,
        )
    elif isinstance(mixer, LatentAttention):
        width = mixer.q_heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim)
        layer.add(
            f"{block.name}.core",
            [*_latent(layer, block, mixer), layer.activations(width, "query and output", "heads")],
            block,
        )
    elif isinstance(mixer, LinearState):
        layer.add(f"{block.name}.core", _state(layer, mixer), block)
    else:
        raise InfeasibleError(
            f"{architecture.id}: block {block.name!r} has a token mixer of kind {type(mixer).__name__}, "
            "and the architecture brings no layout of its own"
        )
    layer.add(f"{block.name}.out_proj", [*layer.gemm(after), layer.activations(hidden, "mixer output")], block)


def _attention(layer: _Layer, mixer: Attention) -> list[Demand]:
    heads = Input("query heads", mixer.q_heads, "", layer.source("num_attention_heads"))
    cached = Input("KV elements per token", mixer.cache_elements, "", layer.source("num_key_value_heads x head_dim"))
    width = Input("head dims (key + value)", mixer.head_dim + mixer.v_head_dim, "", layer.source("head_dim"))
    cache = layer.formats.cache
    kind = "indexed" if mixer.indexer else "sliding" if mixer.window else "chunked" if mixer.chunk else "full"
    attended = mixer.window if mixer.indexer is None else mixer.indexer.reach
    return [
        Matmul(
            2.0 * mixer.q_heads * (mixer.head_dim + mixer.v_head_dim),
            attended_pairs(attended, mixer.chunk),
            "heads",
            Lineage("attention FLOPs = 2 x query heads x (key + value dim) x attended pairs", (heads, width)),
            layer.base,
        ),
        CacheIO(
            mixer.cache_elements,
            cached_tokens(mixer.window, mixer.chunk) if mixer.indexer is None else cached_tokens(top=attended),
            "kv_heads",
            Lineage("KV bytes read = cached tokens x elements per token x bytes per element", (cached,)),
            cache,
            False,
            kind,
        ),
        CacheIO(
            mixer.cache_elements,
            TOKENS,
            "kv_heads",
            Lineage("KV bytes written = new tokens x elements per token x bytes per element", (cached,)),
            cache,
            True,
            kind,
        ),
        *_index(layer, mixer.indexer),
    ]


def _latent(layer: _Layer, block: Block, mixer: LatentAttention) -> list[Demand]:
    if mixer.window:
        return _compressed(layer, mixer)
    rank, rope = mixer.kv_lora_rank, mixer.rope_dim
    latent = Input(
        "latent elements per token", mixer.cache_elements, "", layer.source("kv_lora_rank + qk_rope_head_dim")
    )
    heads = Input("query heads", mixer.q_heads, "", layer.source("num_attention_heads"))
    indexer = mixer.indexer
    top_k = indexer.top_k if indexer is not None else 0
    up = next((t for t in block.tensors if t.name == "kv_b_proj"), None)
    stored = layer.formats.stored if up is None else layer.formats.of(up)
    expand = 2.0 * mixer.q_heads * rank * (mixer.nope_dim + mixer.v_head_dim)
    flops, expanded = latent_attention(
        2.0 * mixer.q_heads * (rank + rope + rank),
        2.0 * mixer.q_heads * (mixer.nope_dim + rope + mixer.v_head_dim),
        # 8-bit weights multiply at twice the rate of attention.
        expand / (2 if stored.compute in ("fp8", "int8") else 1),
        top_k,
    )
    demands: list[Demand] = [
        Matmul(
            1.0,
            flops,
            "heads",
            Lineage("MLA score and value FLOPs: absorbed in decode, the cheaper form in prefill", (heads, latent)),
            layer.base,
        ),
        Matmul(
            expand,
            expanded,
            "heads",
            Lineage(
                "FLOPs of keys and values expanded again = 2 x heads x rank x (nope + value dim) x tokens", (heads,)
            ),
            compute_precision(stored, layer.base),
            up,
        ),
        CacheIO(
            mixer.cache_elements,
            cached_tokens(top=top_k),
            "replicated",
            Lineage("latent bytes read = cached tokens x latent elements x bytes per element", (latent,)),
            layer.formats.cache,
            False,
            "latent",
        ),
        CacheIO(
            mixer.cache_elements,
            TOKENS,
            "replicated",
            Lineage("latent bytes written = new tokens x latent elements x bytes per element", (latent,)),
            layer.formats.cache,
            True,
            "latent",
        ),
    ]
    return [*demands, *_index(layer, indexer)]


def _compressed(layer: _Layer, mixer: LatentAttention) -> list[Demand]:
    """The last tokens one by one, and one entry for each ``stride`` tokens, all or those that an index picks."""
    heads = Input("query heads", mixer.q_heads, "", layer.source("num_attention_heads"))
    entry = Input("elements per cache entry", mixer.entry_elements, "", layer.source("head_dim"))
    window = Input("window", mixer.window, "tok", layer.source("sliding_window"))
    stride = Input("tokens per compressed entry", mixer.stride, "tok", layer.source("compress_ratios"))
    pair = 2.0 * mixer.q_heads * (mixer.entry_elements + mixer.v_head_dim)
    reach = mixer.indexer.reach if mixer.indexer is not None else 0
    cache = layer.formats.cache

    def moved(elements: int, feature: Feature, what: str, own: Input, *, write: bool) -> CacheIO:
        lineage = Lineage(f"bytes of {what} = tokens x elements x bytes per element", (entry, own))
        return CacheIO(elements, feature, "replicated", lineage, cache, write, "latent")

    def scored(flops: float, feature: Feature, what: str, own: Input) -> Matmul:
        lineage = Lineage(f"score and value FLOPs over {what}", (heads, entry, own))
        return Matmul(flops, feature, "heads", lineage, layer.base)

    demands: list[Demand] = [
        scored(pair, attended_pairs(mixer.window), "the last tokens", window),
        moved(mixer.entry_elements, cached_tokens(mixer.window), "the last tokens read", window, write=False),
        moved(mixer.entry_elements, TOKENS, "new tokens written", window, write=True),
    ]
    if mixer.stride:
        demands += [
            scored(pair / mixer.stride, attended_pairs(reach), "compressed entries", stride),
            moved(mixer.cache_elements, cached_tokens(top=reach), "compressed entries read", stride, write=False),
            moved(mixer.cache_elements, TOKENS, "compressed entries written", stride, write=True),
        ]
    return [*demands, *_index(layer, mixer.indexer)]


def _index(layer: _Layer, indexer: Indexer | None) -> list[Demand]:
    """Scan and write the keys of a sparse-attention index."""
    if indexer is None:
        return []
    width = Input("index bytes per token", indexer.bytes_per_token, "B", layer.source("index_head_dim"))
    return [
        StateIO(
            indexer.bytes_per_token,
            cached_tokens(),
            "replicated",
            Lineage("index keys scanned = cached tokens x index bytes per token", (width,)),
        ),
        StateIO(
            indexer.bytes_per_token,
            TOKENS,
            "replicated",
            Lineage("index keys written = new tokens x index bytes per token", (width,)),
        ),
        Matmul(
            2.0 * indexer.heads * indexer.elements_per_token,
            attended_pairs(),
            "replicated",
            Lineage("indexer FLOPs = 2 x index heads x index elements per token x pairs", (width,)),
            # Keys of one byte an element are multiplied as they are stored.
            "fp8" if indexer.bytes_per_token < 2 * indexer.elements_per_token else layer.base,
        ),
    ]


def _state(layer: _Layer, mixer: LinearState) -> list[Demand]:
    held = Input("state bytes per sequence and layer", mixer.bytes_per_sequence, "B", layer.source("state dims"))
    return [
        StateIO(
            2.0 * mixer.bytes_per_sequence,
            SEQUENCES,
            "heads",
            Lineage("state bytes = 2 (read, write) x sequences x bytes per sequence", (held,)),
        ),
        Matmul(
            float(STATE_FLOPS_PER_ELEMENT * mixer.recurrent_elements),
            TOKENS,
            "heads",
            Lineage("state FLOPs = 6 x recurrent elements x tokens", (held,)),
            layer.base,
        ),
    ]


def _feed_forward_ops(layer: _Layer, block: Block) -> None:
    hidden = layer.architecture.hidden_size
    before = [t for t in block.tensors if not t.reduced and t.role != "routed_experts"]
    after = [t for t in block.tensors if t.reduced and t.role != "routed_experts"]
    residual = layer.activations(2.0 * hidden, "residual in and out")
    if block.experts is None:
        layer.add(f"{block.name}.up_proj", [*layer.gemm(before), residual], block)
        layer.add(f"{block.name}.down_proj", [*layer.gemm(after), layer.activations(hidden, "MLP output")], block)
        return
    experts = block.experts
    routed = [t for t in block.tensors if t.role == "routed_experts"]
    reached = distinct_expert_share(experts.count, experts.top_k)
    demands: list[Demand] = []
    for demand in layer.gemm(routed, read=reached):
        if isinstance(demand, Matmul):
            demand = demand.scaled(
                experts.top_k / experts.count,
                "model",
                "each token runs top_k of the experts",
                Input("top_k", experts.top_k, "", layer.source("num_experts_per_tok")),
                Input("experts", experts.count, "", layer.source("num_experts")),
            )
        demands.append(demand)
    demands.append(layer.activations(2.0 * hidden * experts.top_k, "expert in and out"))
    layer.add(f"{block.name}.router", [*layer.gemm(before), residual], block)
    layer.add(f"{block.name}.experts", [*demands, *layer.gemm(after)], block)


def lay(architecture: Architecture, formats: Formats) -> StepGraph:
    """Return the one-device graph of an architecture in its stored formats."""
    if architecture.layout is not None:
        custom: Callable[[Architecture, Formats], StepGraph] = architecture.layout
        return custom(architecture, formats)
    layer = _Layer(architecture, formats)
    layer.value = "tokens"
    hidden = architecture.hidden_size
    table = architecture.embedding
    tables = [table] if architecture.positions is None else [table, architecture.positions]
    row = sum(formats.of(t).bytes_per_element for t in tables) * hidden
    layer.add(
        "embedding",
        [
            StateIO(
                row,
                TOKENS,
                "replicated",
                Lineage(
                    "embedding rows touched = tokens x hidden x bytes per parameter",
                    (Input("hidden", hidden, "", layer.source("hidden_size")),),
                ),
            ),
            layer.activations(hidden, "embedding output"),
        ],
    )
    for block in architecture.blocks:
        if block.mixer is not None:
            _mixer_ops(layer, block)
        else:
            _feed_forward_ops(layer, block)
    head = architecture.lm_head or table
    weights = layer.gemm([architecture.final_norm, _as_head(head)], OUTPUTS)
    logits = layer.activations(2.0 * architecture.vocab_size, "logits written and read", "vocabulary", OUTPUTS)
    layer.add("lm_head", [*weights, logits])
    return StepGraph(tuple(layer.ops))


def _as_head(tensor: Tensor) -> Tensor:
    """The LM head multiplies, also when it is the embedding table."""
    return Tensor(tensor.name, tensor.role, tensor.params, "vocabulary")
