"""QNT004 shard-misaligned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from servelint.lineage import KeyPath
from servelint.plugin import (
    Attention,
    Block,
    Case,
    Composition,
    Finding,
    Format,
    Input,
    Lacks,
    LatentAttention,
    Related,
    Review,
    Rule,
    Severity,
    Source,
)
from servelint_rules.layouts import parallelism, tensor_path
from servelint_rules.qnt.weights import weights_path
from servelint_rules.variants import sides

REFUSE = ("vllm", "sglang")
"""Engines whose loaders raise on a shard that is no whole number of groups or blocks."""

PADDED = ("mxfp4",)
"""Formats whose shards these engines pad to whole groups."""

BLOCKED = "fp8-block"
SPEC = """\
servelint = 1
[hardware]
accelerator = "nvidia/h200-sxm5-141gb"
devices = 8
[model]
id = "Qwen/Qwen3-235B-A22B-FP8"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11.0"
[policy.parallelism]
tensor = 8 # expect: QNT004
"""
GROUPS = """\
servelint = 1
[hardware]
accelerator = "nvidia/a100-sxm4-80gb"
[model]
id = "Qwen/Qwen2.5-72B"
max_model_len = 8192
[policy.quantization]
weights = "int4-g128"
[policy.parallelism]
tensor = 2 # expect: QNT004
[[evidence]]
kind = "task-eval"
artifact = "qwen2.5-72b-int4"
tasks = { code = -0.4 }
"""


class Shard(NamedTuple):
    """One dimension that a degree cuts inside a group: how long it is, over how many devices, in what format."""

    what: str
    field: str
    size: int
    degree: int
    format: Format

    @property
    def each(self) -> int:
        """Elements that a device holds."""
        return self.size // self.degree


class ShardMisaligned(Rule):
    """A device's share of a matrix is no whole number of quantization groups.

    What it checks
    --------------
    The dimensions that tensor parallelism cuts against the group of the format that they are stored in: the inputs
    of output and down projections (groups lie along the reduction), and for FP8 in blocks of 128 x 128 the outputs
    of the projections before them, too; keys by whole heads where these are fewer than the devices, which then hold
    copies. Routed experts count by the devices that share one. Silent for dimensions that the degree does not even
    divide (PAR002), for MXFP4, which engines pad, for experts in weight-only groups, which they make smaller, and
    for llama.cpp, which cuts by rows.

    Why it is bad
    -------------
    A scale belongs to a whole group. vLLM and SGLang raise an error while the model is built; elsewhere the scales
    are cut wrongly or copied.

    The arithmetic
    --------------
    ``(dimension / degree) mod group = 0``.

    How to fix
    ----------
    A degree from the help line, pipeline stages for the other devices, or experts whole on a device
    (``policy.parallelism.expert``).

    Source
    ------
    vllm-project/vllm vllm/model_executor/layers/quantization/fp8.py (create_weights) and awq.py (create_weights), the
    same in sgl-project/sglang; vllm-project/vllm@007d50058a06
    vllm/model_executor/layers/quantization/utils/fp8_utils.py (validate_fp8_block_shape: every output of a merged
    projection, as QKVParallelLinear cuts it); vllm-project/vllm#42384, #44763, #21695.
    """

    code = "QNT004"
    name = "shard-misaligned"
    weighs = True
    severity = Severity.ERROR
    questions = ("does it start",)
    failing = (
        Case("experts of 1,536 over eight devices in blocks of 128", SPEC, flip=("model.id", '"Qwen/Qwen3-235B-A22B"')),
        Case("an MLP of 231 groups over two devices", GROUPS, flip=("policy.quantization.weights", '"int4-g64"')),
        Case(
            "a narrower group divides",
            GROUPS.replace("tensor = 2", "tensor = 4").replace('"int4-g128"', '"int4-g64"'),
            flip=("policy.quantization.weights", '"int4-g32"'),
        ),
        Case(
            "shared experts of 3,072 over sixteen devices",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/gb200-nvl72-186gb"
[model]
id = "deepseek-ai/DeepSeek-V4-Pro"
max_model_len = 8192
[engine]
name = "vllm"
[policy.parallelism]
tensor = 16 # expect: QNT004
expert = 8
""",
            flip=("policy.parallelism.tensor", "8"),
        ),
    )
    passing = (
        Case(
            "the same experts over four devices",
            SPEC.replace("= 8 # expect: QNT004", "= 4").replace("devices = 8\n", ""),
        ),
        Case("whole experts on every device", SPEC.replace("= 8 # expect: QNT004", "= 8\nexpert = 8")),
        Case(
            "224 groups over two devices",
            GROUPS.replace("Qwen/Qwen2.5-72B", "meta-llama/Llama-3.1-70B").replace(" # expect: QNT004", ""),
        ),
        Case(
            "MXFP4 experts of 2,880 over eight devices, which engines pad",
            SPEC.replace("Qwen/Qwen3-235B-A22B-FP8", "openai/gpt-oss-120b").replace(" # expect: QNT004", ""),
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Divide the share of each device by the group of its format."""
        if review.composition is None:
            yield Lacks("a composed deployment")
            return
        engine = review.engine.name if review.engine is not None else ""
        if engine == "llama.cpp":
            return
        for pool, side in sides(review.composition):
            config = parallelism(side)
            cut = list(_cut(side, config.t, config.attention_tensor, _within(config)))
            if cut:
                yield _finding(review, side, engine, cut, tensor_path(review, pool), pool)


def _within(config: Any) -> int:
    """Devices that share one routed expert."""
    expert: int = config.expert or 1
    return int(config.t * config.d) // expert if expert > 1 else int(config.t)


def _cut(side: Composition, t: int, attention: int, within: int) -> Iterator[Shard]:
    """Every dimension that is cut inside a group, each once."""
    architecture = side.setup.architecture
    formats = {(w.block, w.tensor.name): w.format for w in side.memory.weights}
    seen: set[tuple[str, int]] = set()
    for block in architecture.blocks:
        for shard in _shards(block, architecture.hidden_size, formats, t, attention, within):
            group, name = shard.format.group, shard.format.name
            if not group or name in PADDED or shard.degree == 1 or shard.size % shard.degree:
                continue
            if shard.each % group and (shard.what, shard.size) not in seen:
                seen.add((shard.what, shard.size))
                yield shard


def _shards(
    block: Block, hidden: int, formats: dict[tuple[str, str], Format], t: int, attention: int, within: int
) -> Iterator[Shard]:
    for tensor in block.tensors:
        format_ = formats.get((block.name, tensor.name))
        if format_ is None or not tensor.matmul or format_.bits >= 16:
            continue
        mixer = block.mixer
        if tensor.reduced and tensor.role == "attention" and tensor.axis == "heads":
            if (
                isinstance(mixer, Attention | LatentAttention)
                and tensor.params == mixer.q_heads * mixer.v_head_dim * hidden
            ):
                yield Shard("attention output width", "head_dim", mixer.q_heads * mixer.v_head_dim, attention, format_)
        elif tensor.reduced and tensor.role in ("mlp", "shared_experts") and tensor.params % hidden == 0:
            what = "MLP width" if tensor.role == "mlp" else "shared-expert width"
            yield Shard(what, "intermediate_size", tensor.params // hidden, t, format_)
        elif tensor.reduced and tensor.role == "routed_experts" and block.experts is not None:
            if format_.compute is None:
                continue
            width = tensor.params // block.experts.count // hidden
            yield Shard("expert width", "moe_intermediate_size", width, within, format_)
        elif format_.name.startswith(BLOCKED) and isinstance(mixer, Attention):
            if tensor.name == "q_proj":
                yield Shard("query width", "num_attention_heads", mixer.q_heads * mixer.head_dim, attention, format_)
            elif tensor.name == "kv_proj":
                # Devices beyond the number of heads hold copies of whole ones.
                width, degree = mixer.kv_heads * mixer.head_dim, min(attention, mixer.kv_heads)
                yield Shard("key width", "num_key_value_heads", width, degree, format_)


def _finding(review: Review, side: Composition, engine: str, cut: list[Shard], path: KeyPath, pool: str) -> Finding:
    config, architecture = parallelism(side), side.setup.architecture
    worst = cut[0]
    assumed = not pool and path[-1] != "tensor"
    degree = f"tensor = {config.t}" + (f" of the {pool} pool" if pool else "")
    if assumed:
        degree += ", assumed from the devices of the replica,"
    listed = " and ".join(f"the {s.what} of {s.size:,} into {s.each:,}" for s in cut[:3])
    refuses = f"{engine} refuses to load it" if engine in REFUSE else "engines refuse to load it"
    severity = Severity.INFO if assumed else Severity.ERROR if engine in REFUSE else Severity.WARNING
    fits = [n for n in range(1, 2 * min(config.t, 64) + 1) if _aligned(side, n)]
    whole = "; or keep experts whole on a device with policy.parallelism.expert" if worst.what == "expert width" else ""
    return Finding(
        path,
        f"{degree} cuts {listed}, which is no whole number of {worst.format.name} groups of {worst.format.group}: "
        f"{refuses}",
        equation="; ".join(
            f"{s.size:,} / {s.degree} = {s.each:,}, mod {s.format.group} = {s.each % s.format.group}" for s in cut
        ),
        inputs=(
            *(Input(s.what, s.size, "", Source("model", architecture.id, s.field)) for s in cut),
            Input("group", worst.format.group, "", worst.format.source),
        ),
        help=f"tensor-parallel degrees that keep groups whole: {', '.join(map(str, fits))}{whole}",
        related=(Related(weights_path(review), f"stored in groups of {worst.format.group}"),),
        severity=severity,
    )


def _aligned(side: Composition, degree: int) -> bool:
    """Whether a plain tensor-parallel degree divides heads and widths and keeps their groups whole."""
    architecture = side.setup.architecture
    for block in architecture.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention | LatentAttention) and mixer.q_heads % degree:
            return False
        if isinstance(mixer, Attention) and mixer.kv_heads % degree and degree % mixer.kv_heads:
            return False
        for tensor in block.tensors:
            if not (tensor.reduced and tensor.matmul) or tensor.role not in ("mlp", "shared_experts", "routed_experts"):
                continue
            count = block.experts.count if tensor.role == "routed_experts" and block.experts is not None else 1
            if tensor.params // count // architecture.hidden_size % degree:
                return False
    return not list(_cut(side, degree, degree, degree))
