"""Reading a checkpoint's ``quantization_config``: which formats, and which matrices each of them covers.

Coverage is decided matrix by matrix, over all layers that have it: a matrix counts as what most of its layers
are, and a note says so when they differ. What holds for all of a role is stated for the role.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from servelint.architecture import Block, Quantization, Role, Tensor
from servelint_plugins.models.fields import Fields, describe
from servelint_plugins.models.modules import MAX_NUMBERED, MAX_WILDCARDS, ModuleList, excess

FORMATS = ("fp8", "fp8-block128", "int8", "int4-g128", "int4-g64", "int4-g32", "mxfp4", "nvfp4")
"""Names of the formats that a checkpoint may come in."""

METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "gptq", "awq", "mxfp4", "modelopt")
"""Values of ``quant_method`` that are read."""

COVERED_ROLES: tuple[Role, ...] = (
    "attention", "ssm", "mlp", "shared_experts", "routed_experts", "mtp",
)  # fmt: skip
"""Roles that quantization can cover. Tables, head, router and norms stay in the checkpoint's own format."""

# Module names below a layer by which the published checkpoints of all families call a matrix. A matrix is
# probed by whichever of its spellings a list uses; those that one module holds share its name.
_QKV = ("self_attn.qkv_proj",)
_SPELLINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "q_proj": (("self_attn.q_proj",), _QKV, ("mixer.q_proj",)),
    "kv_proj": (("self_attn.k_proj", "self_attn.v_proj"), _QKV, ("mixer.k_proj", "mixer.v_proj")),
    "o_proj": (("self_attn.o_proj",), ("mixer.o_proj",)),
    "q_a_proj": (("self_attn.q_a_proj",), ("attn.wq_a",)),
    "q_b_proj": (("self_attn.q_b_proj",), ("attn.wq_b",)),
    "kv_a_proj": (("self_attn.kv_a_proj_with_mqa",), ("attn.wkv",)),
    "kv_b_proj": (("self_attn.kv_b_proj",),),
    "o_a_proj": (("self_attn.o_a_proj",), ("attn.wo_a",)),
    "o_b_proj": (("self_attn.o_b_proj",), ("attn.wo_b",)),
    "compressor": (("self_attn.compressor",), ("attn.compressor",)),
    "indexer_compressor": (("self_attn.indexer",), ("attn.indexer.compressor",)),
    "indexer_q_proj": (("self_attn.indexer.wq_b",), ("self_attn.index_q_proj",), ("attn.indexer.wq_b",)),
    "indexer_k_proj": (("self_attn.indexer.wk",), ("self_attn.index_k_proj",)),
    "indexer_weights_proj": (
        ("self_attn.indexer.weights_proj",), ("self_attn.indexers_proj",), ("attn.indexer.weights_proj",),
    ),
    "in_proj": (
        ("linear_attn.in_proj_qkvz",),
        ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
        ("mixer.in_proj",),
        ("mamba.in_proj",),
        _QKV,
    ),
    "x_proj": (("mamba.x_proj",),),
    "dt_proj": (("mamba.dt_proj",),),
    "out_proj": (("linear_attn.out_proj",), ("mixer.out_proj",), ("mamba.out_proj",), ("self_attn.out_proj",)),
    "gate_up_proj": (
        ("mlp.gate_proj", "mlp.up_proj"),
        ("feed_forward.gate_proj", "feed_forward.up_proj"),
    ),
    "up_proj": (("mlp.up_proj",), ("mixer.up_proj",)),
    "down_proj": (("mlp.down_proj",), ("feed_forward.down_proj",), ("mixer.down_proj",)),
    "shared_gate_up": (
        ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
        ("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"),
        ("block_sparse_moe.shared_experts.gate_proj", "block_sparse_moe.shared_experts.up_proj"),
        ("ffn.shared_experts.w1", "ffn.shared_experts.w3"),
    ),
    "shared_up": (("mixer.shared_experts.up_proj",),),
    "shared_down": (
        ("mlp.shared_experts.down_proj",),
        ("mlp.shared_expert.down_proj",),
        ("feed_forward.shared_expert.down_proj",),
        ("block_sparse_moe.shared_experts.down_proj",),
        ("mixer.shared_experts.down_proj",),
        ("ffn.shared_experts.w2",),
    ),
    "shared_expert_gate": (("mlp.shared_expert_gate",),),
    "latent_down": (("mixer.fc1_latent_proj",),),
    "latent_up": (("mixer.fc2_latent_proj",),),
    "experts_gate_up": (
        ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj"),
        ("block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.0.w3"),
        ("feed_forward.experts.0.gate_proj", "feed_forward.experts.0.up_proj"),
        ("ffn.experts.0.w1", "ffn.experts.0.w3"),
    ),
    "experts_up": (("mixer.experts.0.up_proj",),),
    "experts_down": (
        ("mlp.experts.0.down_proj",),
        ("block_sparse_moe.experts.0.w2",),
        ("feed_forward.experts.0.down_proj",),
        ("mixer.experts.0.down_proj",),
        ("ffn.experts.0.w2",),
    ),
    "eh_proj": (("eh_proj",),),
}  # fmt: skip

_SPELLINGS_BY_TYPE: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    ("gemma4", "experts_gate_up"): (("experts.0.gate_proj", "experts.0.up_proj"),),
    ("gemma4", "experts_down"): (("experts.0.down_proj",),),
}

_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "FP8_PB_WO": "fp8-block128"}


class _Plan(NamedTuple):
    """What a config says: the format of all that no list names, formats of listed modules, modules left alone."""

    base: str | None
    listed: tuple[tuple[str, ModuleList], ...]
    untouched: ModuleList


class _Matrix(NamedTuple):
    """A matrix that may be quantized: its tensor, the layers that have it (as text), and its names there."""

    tensor: Tensor
    layers: Collection[str]
    spellings: tuple[tuple[str, ...], ...]
    instances: int


def read_quantization(
    holder: Fields,
    model_type: str,
    blocks: Sequence[Block],
    extras: Sequence[Tensor] = (),
    experts: str | None = None,
) -> tuple[Quantization | None, tuple[str, ...]]:
    """Read ``quantization_config`` of ``holder``; None where the checkpoint is not quantized.

    ``experts`` is the format of routed experts where the config around it states one of its own. Returns the
    quantization and notes on partial coverage. Raises ValueError naming the method or field that is not
    supported.
    """
    q = holder.section("quantization_config")
    if q is None:
        return None, ()
    plan = _plan(q)
    matrices = tuple(_matrices(model_type, blocks, extras))
    numbered = sum(part.numbered for part in (plan.untouched, *(part for _, part in plan.listed)))
    deepest = max((len(matrix.layers) for matrix in matrices), default=0)
    if numbered * deepest > MAX_NUMBERED:
        expected = f"at most {MAX_NUMBERED // deepest} for {deepest} layers"
        raise q.error(_untouched_name(q), f"an array of {numbered} wildcards with numbers", expected)
    formats, partial = _decide(plan, matrices, experts)
    stated = plan.base or next((fmt for fmt, _ in plan.listed), None)
    return _summary(matrices, formats, stated, _kv_cache(q)), (*_unread(plan), *partial)


def _method(q: Fields) -> str:
    if not q.has("quant_method") and (q.has("quant_algo") or q.has("config_groups")):
        return "modelopt"
    method = q.text("quant_method", allowed=(*METHODS, "modelopt_fp4", "modelopt_fp8"))
    return "modelopt" if method.startswith("modelopt") else method


def _group(name: str) -> int:
    """Elements that share a scale along the reduction axis; 0 for a whole tensor or channel."""
    known = {"fp8-block128": 128, "mxfp4": 32, "nvfp4": 16}
    if name.startswith("int4-g"):
        return int(name.removeprefix("int4-g"))
    return known.get(name, 0)


def _plan(q: Fields) -> _Plan:
    untouched = _modules(q, *_untouched_list(q))
    method = _method(q)
    if q.has("quantized_layers"):
        base = _plain(q, method) if method == "fp8" else None
        return _Plan(base, _mixed(q), untouched if base is None else ModuleList(()))
    if method == "compressed-tensors" or (method == "modelopt" and not q.has("quant_algo")):
        return _grouped(q, untouched)
    return _Plan(_plain(q, method), (), untouched)


def _plain(q: Fields, method: str) -> str:
    """The format that the method and one or two fields beside it decide."""
    if method == "fp8":
        if q.has("quant_algo") and not q.has("quantized_layers"):
            raise q.error("quantized_layers", None, "an object of modules, or a quant_method of modelopt")
        block = q.integers("weight_block_size", low=1, high=1 << 16) if q.has("weight_block_size") else ()
        if block not in ((), (128, 128)):
            raise q.error("weight_block_size", list(block), "[128, 128], or none for one scale a tensor")
        return "fp8-block128" if block else "fp8"
    if method == "fbgemm_fp8":
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("gptq", "awq"):
        bits = q.integer("bits", "w_bit", low=1, high=64)
        return _integer(q, "bits", bits, q.integer("group_size", "q_group_size", low=-1, high=1 << 16))
    return _algorithm(q)


def _algorithm(q: Fields) -> str:
    algorithm = q.text("quant_algo", allowed=(*_ALGORITHMS, "W4A16_AWQ"))
    if algorithm == "W4A16_AWQ":
        return _integer(q, "group_size", 4, q.integer("group_size", low=1, high=1 << 16, default=128))
    return _ALGORITHMS[algorithm]


def _mixed(q: Fields) -> tuple[tuple[str, ModuleList], ...]:
    """Formats of a config that lists each quantized module with its own."""
    entries = q.required("quantized_layers")
    names = entries.names()
    by_format: dict[str, list[str]] = {}
    if (beyond := excess(names)) is not None:
        raise q.error("quantized_layers", *beyond)
    for name in names:
        by_format.setdefault(_algorithm(entries.required(name)), []).append(name)
    return tuple((fmt, _modules(q, "quantized_layers", listed)) for fmt, listed in by_format.items())


def _integer(q: Fields, field: str, bits: int, group: int) -> str:
    name = f"int{bits}-g{group}"
    if name not in FORMATS:
        raise q.error(field, f"{bits} bits with group size {group}", "4 bits with group size 128, 64 or 32")
    return name


def _grouped(q: Fields, untouched: ModuleList) -> _Plan:
    """Formats of ``config_groups``, each of the modules that it targets; a class name targets all of them."""
    groups = q.required("config_groups")
    names = groups.names()
    if not 1 <= len(names) <= 64:
        raise q.error("config_groups", None if not names else f"{len(names)} groups", "1 to 64 groups")
    everything: dict[str, None] = {}
    by_format: dict[str, list[str]] = {}
    for name in names:
        group = groups.required(name)
        fmt = _weights_format(group)
        targets = group.texts("targets") if group.has("targets") else ("Linear",)
        paths = [target for target in targets if not target[:1].isupper()]
        by_format.setdefault(fmt, []).extend(paths)
        if len(paths) < len(targets):
            everything[fmt] = None
    if len(everything) > 1:
        raise q.error("config_groups", ", ".join(sorted(everything)), "one format for all groups")
    listed = ((fmt, _modules(groups, "targets", paths)) for fmt, paths in by_format.items() if paths)
    return _Plan(next(iter(everything), None), tuple(listed), untouched)


def _weights_format(group: Fields) -> str:
    weights = group.required("weights")
    bits = weights.integer("num_bits", low=1, high=64)
    kind = weights.text("type", allowed=("float", "int"), default="int")
    size = weights.integer("group_size", low=-1, high=1 << 16, default=0)
    if kind == "int" and bits == 8 and group.section("input_activations") is not None and size <= 0:
        return "int8"
    if kind == "int":
        return _integer(weights, "num_bits", bits, size)
    if bits == 4 and size in (16, 32):
        return {16: "nvfp4", 32: "mxfp4"}[size]
    if bits != 8 or size > 0:
        found = f"{bits} float bits with group size {size}"
        raise weights.error("num_bits", found, "8 float bits, or 4 with group size 16 (nvfp4) or 32 (mxfp4)")
    if weights.text("strategy", default="tensor") != "block":
        return "fp8"
    if weights.integers("block_structure", low=1, high=1 << 16) != (128, 128):
        raise weights.error("block_structure", weights.raw("block_structure")[1], "[128, 128]")
    return "fp8-block128"


def _kv_cache(q: Fields) -> str | None:
    """Format of the KV cache that the checkpoint brings scales for, if any."""
    name, value = q.raw("kv_cache_scheme", "kv_cache_quant_algo")
    if value is None:
        return None
    if isinstance(value, str):
        return {"FP8": "fp8", "NVFP4": "nvfp4"}[q.text(name, allowed=("FP8", "NVFP4"))]
    scheme = q.required(name)
    bits, kind = scheme.integer("num_bits", low=1, high=64), scheme.text("type", allowed=("float", "int"))
    if (bits, kind) != (8, "float"):
        raise scheme.error("num_bits", f"{bits} {kind} bits", "8 float bits")
    return "fp8"


def _untouched_name(q: Fields) -> str:
    """The field in which the producer lists modules that stay unquantized."""
    return q.raw("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")[0]


def _untouched_list(q: Fields) -> tuple[str, tuple[str, ...]]:
    name = _untouched_name(q)
    return name, q.texts(name) if q.has(name) else ()


def _modules(q: Fields, name: str, patterns: Sequence[str]) -> ModuleList:
    """A list of modules from field ``name``; ValueError where it is beyond what is read."""
    if (beyond := excess(patterns)) is not None:
        raise q.error(name, *beyond)
    modules = ModuleList(patterns)
    if modules.wildcards > MAX_WILDCARDS:
        raise q.error(name, f"an array of {modules.wildcards} wildcards", f"at most {MAX_WILDCARDS} wildcard modules")
    return modules


def _unread(plan: _Plan) -> Iterator[str]:
    unread = [pattern for part in (plan.untouched, *(part for _, part in plan.listed)) for pattern in part.unread]
    if unread:
        yield f"The quantization pattern {describe(unread[0])} is not read ({len(unread)} such)."


def _matrices(model_type: str, blocks: Sequence[Block], extras: Sequence[Tensor]) -> Iterator[_Matrix]:
    """Matrices of the roles that quantization can cover, those of MTP modules included."""
    for block in blocks:
        layers = frozenset(map(str, block.layers))
        for tensor in block.tensors:
            if tensor.matmul and tensor.role in COVERED_ROLES:
                yield _Matrix(tensor, layers, _spellings(model_type, tensor.name), block.count)
    for tensor in extras:
        if tensor.matmul and tensor.role == "mtp":
            # Checkpoints number MTP modules as layers after the last.
            layers = frozenset({str(1 + max(block.layers[-1] for block in blocks))})
            name = tensor.name.removeprefix("mtp_").lstrip("0123456789_")
            yield _Matrix(tensor, layers, _spellings(model_type, name), 1)


def _spellings(model_type: str, name: str) -> tuple[tuple[str, ...], ...]:
    return _SPELLINGS_BY_TYPE.get((model_type, name)) or _SPELLINGS.get(name, ((name,),))


def _decide(
    plan: _Plan, matrices: Sequence[_Matrix], experts: str | None
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """The format of each matrix by its tensor's name (None: left alone), and notes where layers differ."""
    shares: dict[str, dict[str | None, float]] = {}
    partial: dict[Role, list[tuple[float, int]]] = {}
    for matrix in matrices:
        role, params = matrix.tensor.role, matrix.instances * matrix.tensor.params
        kept = _share(plan.untouched, matrix)
        if role == "mtp" and plan.untouched.mtp:
            kept = 1.0
        found: dict[str | None, float] = {}
        for fmt, part in plan.listed:
            found[fmt] = found.get(fmt, 0.0) + _share(part, matrix) * (1.0 - kept)
        rest = max(1.0 - kept - sum(found.values()), 0.0)
        routed = role == "routed_experts" or matrix.tensor.name.startswith("mtp_experts_")
        base = experts if experts is not None and routed else plan.base
        found[base] = found.get(base, 0.0) + rest
        found[None] = found.get(None, 0.0) + kept
        if 0.0 < found[None] < 1.0:
            partial.setdefault(role, []).append((found[None], params))
        total = shares.setdefault(matrix.tensor.name, {})
        for name, share in found.items():
            total[name] = total.get(name, 0.0) + share * params
    notes = (
        f"Quantization leaves {sum(s * p for s, p in parts) / sum(p for _, p in parts):.0%} of the {role} modules "
        "alone; a matrix counts as most of its layers do."
        for role, parts in partial.items()
    )
    # Of two that are equal the quantized one stands.
    chosen = {name: max(total, key=lambda f: (total[f], f is not None)) for name, total in shares.items()}
    return chosen, tuple(notes)


def _share(modules: ModuleList, matrix: _Matrix) -> float:
    return max(modules.share(matrix.layers, spelling) for spelling in matrix.spellings)


def _summary(
    matrices: Sequence[_Matrix], formats: dict[str, str | None], stated: str | None, kv_cache: str | None
) -> Quantization | None:
    """State what holds for whole roles by role, and by name what deviates; None where no format is stated."""
    params: dict[str, int] = {}
    by_role: dict[Role, dict[str | None, int]] = {}
    for matrix in matrices:
        fmt, count = formats[matrix.tensor.name], matrix.instances * matrix.tensor.params
        of_role = by_role.setdefault(matrix.tensor.role, {})
        of_role[fmt] = of_role.get(fmt, 0) + count
        if fmt is not None:
            params[fmt] = params.get(fmt, 0) + count
    main = max(params, key=lambda fmt: params[fmt]) if params else stated
    if main is None:
        return None
    covers = tuple(role for role in COVERED_ROLES if role in by_role and _most(by_role[role]) == main)
    tensors = {
        matrix.tensor.name: formats[matrix.tensor.name]
        for matrix in matrices
        if formats[matrix.tensor.name] != (main if matrix.tensor.role in covers else None)
    }
    return Quantization(main, covers, _group(main), kv_cache, tuple(tensors.items()))


def _most(of_role: dict[str | None, int]) -> str | None:
    return max(of_role, key=lambda fmt: (of_role[fmt], fmt is not None))
