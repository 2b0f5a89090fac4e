"""Reading a checkpoint's ``quantization_config``: which format, and which roles of parameters it covers.

Coverage is by role: a role counts as covered when at most half of its modules are left alone, and a note
says so when it is neither all nor none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from servelint.architecture import Block, Quantization, Role, Tensor
from servelint_plugins.models.fields import Fields, describe
from servelint_plugins.models.modules import UntouchedModules

FORMATS = ("fp8", "fp8-block128", "int8", "int4-g128", "int4-g64", "int4-g32", "mxfp4", "nvfp4")
"""Names of the formats that a checkpoint may come in."""

METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "gptq", "awq", "mxfp4", "modelopt")
"""Values of ``quant_method`` that are read."""

COVERED_ROLES: tuple[Role, ...] = (
    "attention", "ssm", "mlp", "shared_experts", "routed_experts", "mtp",
)  # fmt: skip
"""Roles that quantization can cover. Tables, head, router and norms stay in the checkpoint's own format."""

MAX_PATTERNS = 20_000
MAX_WILDCARDS = 512

# Module names below a layer by which the published checkpoints of all families call a role's matrices. A
# role is probed by whichever of its spellings the list of untouched modules uses.
_SPELLINGS: dict[Role, tuple[tuple[str, ...], ...]] = {
    "attention": (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        ("self_attn.qkv_proj", "self_attn.o_proj"),
        ("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.o_proj"),
        ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"),
    ),
    "ssm": (
        ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
        ("linear_attn.in_proj_qkv", "linear_attn.out_proj"),
        ("mixer.in_proj", "mixer.out_proj"),
        ("mamba.in_proj", "mamba.out_proj"),
        ("self_attn.qkv_proj", "self_attn.out_proj"),
    ),
    "mlp": (
        ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        ("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
        ("mixer.up_proj", "mixer.down_proj"),
    ),
    "shared_experts": (
        ("mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"),
        ("mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"),
        ("feed_forward.shared_expert.up_proj", "feed_forward.shared_expert.down_proj"),
        ("mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"),
    ),
    "routed_experts": (
        ("mlp.experts.0.up_proj", "mlp.experts.0.down_proj"),
        ("block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.0.w2"),
        ("feed_forward.experts.0.up_proj", "feed_forward.experts.0.down_proj"),
        ("mixer.experts.0.up_proj", "mixer.experts.0.down_proj"),
    ),
}

_SPELLINGS_BY_TYPE: dict[tuple[str, Role], tuple[tuple[str, ...], ...]] = {
    ("gemma4", "routed_experts"): (("experts.0.up_proj", "experts.0.down_proj"),),
}


def read_quantization(
    holder: Fields, model_type: str, blocks: Sequence[Block], extras: Sequence[Tensor] = ()
) -> tuple[Quantization | None, tuple[str, ...]]:
    """Read ``quantization_config`` of ``holder``; None where the checkpoint is not quantized.

    Returns the quantization and notes on partial coverage. Raises ValueError naming the method or field
    that is not supported.
    """
    q = holder.section("quantization_config")
    if q is None:
        return None, ()
    method = _method(q)
    if method == "compressed-tensors" or (method == "modelopt" and not q.has("quant_algo")):
        name, kv_cache = _grouped(q)
    else:
        name, kv_cache = _plain(q, method)
    untouched = UntouchedModules(_untouched(q))
    if untouched.wildcards > MAX_WILDCARDS:
        raise q.error("ignore", f"{untouched.wildcards} wildcards", f"at most {MAX_WILDCARDS} wildcard modules")
    covers, notes = _coverage(untouched, model_type, blocks, extras)
    return Quantization(name, covers, _group(name), kv_cache), notes


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


def _plain(q: Fields, method: str) -> tuple[str, str | None]:
    """Formats that the method and one or two fields beside it decide."""
    if method == "fp8":
        if q.has("quant_algo", "quantized_layers"):
            raise q.error("quant_algo", q.raw("quant_algo")[1], "one format for all quantized modules")
        block = q.integers("weight_block_size", low=1, high=1 << 16) if q.has("weight_block_size") else ()
        if block not in ((), (128, 128)):
            raise q.error("weight_block_size", list(block), "[128, 128], or none for one scale a tensor")
        return ("fp8-block128" if block else "fp8"), None
    if method == "fbgemm_fp8":
        return "fp8", None
    if method == "mxfp4":
        return "mxfp4", None
    if method in ("gptq", "awq"):
        bits = q.integer("bits", "w_bit", low=1, high=64)
        group = q.integer("group_size", "q_group_size", low=-1, high=1 << 16)
        return _integer(q, "bits", bits, group), None
    algorithm = q.text("quant_algo", allowed=("FP8", "NVFP4", "W4A16_AWQ", "FP8_PB_WO"))
    kv_cache = _kv_cache(q)
    if algorithm == "W4A16_AWQ":
        return _integer(q, "group_size", 4, q.integer("group_size", low=1, high=1 << 16, default=128)), kv_cache
    return {"FP8": "fp8", "NVFP4": "nvfp4", "FP8_PB_WO": "fp8-block128"}[algorithm], kv_cache


def _integer(q: Fields, field: str, bits: int, group: int) -> str:
    name = f"int{bits}-g{group}"
    if name not in FORMATS:
        raise q.error(field, f"{bits} bits with group size {group}", "4 bits with group size 128, 64 or 32")
    return name


def _grouped(q: Fields) -> tuple[str, str | None]:
    """Formats of ``config_groups``: all groups must agree on one."""
    groups = q.required("config_groups")
    names = groups.names()
    if not 1 <= len(names) <= 64:
        raise q.error("config_groups", None if not names else f"{len(names)} groups", "1 to 64 groups")
    formats = {_weights_format(groups.required(name)) for name in names}
    if len(formats) > 1:
        raise q.error("config_groups", ", ".join(sorted(formats)), "one format for all groups")
    return formats.pop(), _kv_cache(q)


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


def _untouched(q: Fields) -> tuple[str, ...]:
    """The modules that stay unquantized, in whichever field the producer puts them."""
    name, value = q.raw("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
    if value is None:
        return ()
    patterns = q.texts(name)
    if len(patterns) > MAX_PATTERNS:
        raise q.error(name, value, f"at most {MAX_PATTERNS} modules")
    return patterns


def _coverage(
    untouched: UntouchedModules, model_type: str, blocks: Sequence[Block], extras: Sequence[Tensor]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    covers: list[str] = []
    notes: list[str] = []
    if untouched.unread:
        first, count = describe(untouched.unread[0]), len(untouched.unread)
        notes.append(f"The quantization pattern {first} is not read ({count} such).")
    for role in COVERED_ROLES:
        layers = [i for b in blocks for i in b.layers if any(t.role == role and t.matmul for t in b.tensors)]
        spellings = _SPELLINGS_BY_TYPE.get((model_type, role)) or _SPELLINGS.get(role, ())
        if any(t.role == role for t in extras):
            # Checkpoints number MTP modules as layers after the last.
            layers = [1 + max(b.layers[-1] for b in blocks)]
            spellings = (*_SPELLINGS["routed_experts"], *_SPELLINGS["mlp"])
        if not layers:
            continue
        kept = max(untouched.share(layers, spelling) for spelling in spellings)
        if role == "mtp" and untouched.mtp:
            kept = 1.0
        if kept <= 0.5:
            covers.append(role)
        if 0 < kept < 1:
            side = "counted as quantized" if kept <= 0.5 else "counted as left alone"
            notes.append(f"Quantization leaves {kept:.0%} of the {role} modules alone; the role is {side}.")
    return tuple(covers), tuple(notes)
