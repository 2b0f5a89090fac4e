"""PAR002 tp-indivisible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from servelint.errors import UnpricedError
from servelint.lineage import KeyPath
from servelint.plugin import (
    Architecture,
    Attention,
    Case,
    Composition,
    Finding,
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

PADDED = 64
"""vLLM and SGLang pad the vocabulary to a multiple of 64 rows and split what results
(vllm/model_executor/layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""
REFUSE_VOCABULARY = ("vllm", "sglang")
PADS_VOCABULARY = ("tensorrt_llm", "tensorrt-llm")
LAYOUTS = (("policy", "parallelism"), ("policy", "disaggregation"))
ORDER = ("query heads", "KV heads", "MLP width", "expert width", "vocabulary rows")


class Problem(NamedTuple):
    """One dimension that a degree does not divide."""

    text: str
    severity: Severity
    source: Source
    size: int
    degree: int


class TpIndivisible(Rule):
    """The tensor-parallel degree does not divide what it has to split.

    What it checks
    --------------
    Query heads, KV heads, MLP and expert widths and the vocabulary against the tensor-parallel degree (attention
    against tensor / attention_data), routed experts against the expert-parallel degree, for the replica or each
    pool. Also whatever else of ``[policy.parallelism]`` cannot be laid out: more stages than layers, degrees that
    do not divide each other. A pool's part without a published rate is SPEC005.

    Why it is bad
    -------------
    Engines split these evenly or refuse to start, after the weights have been fetched and the pods scheduled.

    The arithmetic
    --------------
    ``query heads mod t = 0``; ``KV heads mod t = 0`` or ``t mod KV heads = 0`` (heads are replicated); ``width
    mod t = 0``; ``vocabulary, padded to a multiple of 64, mod t = 0``; ``experts mod expert = 0``. Errors, but for
    experts, whose remainder some engines spread unevenly, and for the vocabulary with engines that are not known
    to refuse: warnings. A degree that is only assumed, from the devices of a replica, is advice.

    How to fix
    ----------
    A degree from the help line, usually the next lower power of two; pipeline stages take any number of devices.

    Source
    ------
    vLLM vllm/config/model.py (verify_with_parallel_config) and vllm/distributed/utils.py (divide); SGLang
    python/sglang/srt/layers/linear.py.
    """

    code = "PAR002"
    name = "tp-indivisible"
    severity = Severity.ERROR
    questions = ("does it start",)
    failing = (
        Case(
            "64 heads over six devices",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.quantization]
weights = "fp8"
[policy.parallelism]
tensor = 6 # expect: PAR002
""",
            flip=("policy.parallelism.tensor", "4"),
        ),
        Case(
            "heads divide, KV heads neither divide nor are divided, and the degree is assumed",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 7 # expect: PAR002
[model]
id = "Qwen/Qwen2.5-7B"
max_model_len = 8192
""",
            flip=("hardware.devices", "4"),
        ),
        Case(
            "only the vocabulary does not divide",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "microsoft/phi-4"
max_model_len = 8192
[engine]
name = "vllm"
version = "0.11"
[policy.parallelism]
tensor = 5 # expect: PAR002
""",
            flip=("policy.parallelism.tensor", "2"),
        ),
        Case(
            "more pipeline stages than layers",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.parallelism]
pipeline = 33 # expect: PAR002
""",
            flip=("policy.parallelism.pipeline", "32"),
        ),
        Case(
            "a pool of disaggregated serving",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
[model]
id = "meta-llama/Llama-3.1-8B"
max_model_len = 8192
[policy.disaggregation]
prefill = { devices = 3, tensor = 3 } # expect: PAR002
decode = { devices = 2, tensor = 2 }
transfer = { bandwidth = "25 GB/s" }
""",
            flip=("policy.disaggregation.prefill", "{ devices = 4, tensor = 4 }"),
        ),
    )
    passing = (
        Case(
            "KV heads are replicated",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 16
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 16
""",
        ),
        Case(
            "attention of each data-parallel group splits over fewer devices",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 8
[model]
id = "Qwen/Qwen3-30B-A3B"
max_model_len = 8192
[policy.parallelism]
tensor = 8
attention_data = 8
expert = 8
""",
        ),
        Case(
            "pipeline stages take a number of devices that heads do not divide over",
            """\
servelint = 1
[hardware]
accelerator = "nvidia/h100-sxm5-80gb"
devices = 6
[model]
id = "meta-llama/Llama-3.1-70B"
max_model_len = 8192
[policy.parallelism]
tensor = 2
pipeline = 3
""",
        ),
    )

    def check(self, review: Review) -> Iterator[Finding | Lacks]:
        """Divide every dimension by its degree."""
        composition = review.composition
        if composition is None:
            problem = review.infeasible
            if problem is not None and problem.path[:2] in LAYOUTS and not isinstance(problem, UnpricedError):
                yield Finding(
                    problem.path,
                    str(problem),
                    help="choose degrees that can be laid out on this model",
                    related=(Related(_model_path(review), "the model"),),
                )
            else:
                yield Lacks("a composed deployment")
            return
        engine = review.engine.name if review.engine is not None else ""
        pools = composition.scheduler.disaggregation
        if pools is None:
            yield from _checked(review, composition, engine, "")
        else:
            for name, pool in (("prefill", pools.prefill), ("decode", pools.decode)):
                yield from _checked(review, pool.composition, engine, name)


def _checked(review: Review, composition: Composition, engine: str, pool: str) -> Iterator[Finding]:
    config = parallelism(composition)
    problems = list(_problems(composition.setup.architecture, config, engine))
    if problems:
        yield _finding(review, composition, engine, problems, tensor_path(review, pool), pool)
    yield from _experts(review, composition, config.expert or 1)


def _problems(architecture: Architecture, config: object, engine: str) -> Iterator[Problem]:
    """Every dimension that tensor parallelism of these degrees cannot split evenly."""
    t: int = config.t  # type: ignore[attr-defined]
    ta: int = config.attention_tensor  # type: ignore[attr-defined]
    expert: int = config.expert or 1  # type: ignore[attr-defined]
    within: int = t if expert == 1 else t * config.d // expert  # type: ignore[attr-defined]

    def where(field: str) -> Source:
        return Source("model", architecture.id, field)

    seen = set()
    for block in architecture.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention | LatentAttention) and mixer.q_heads % ta:
            seen.add(Problem("query heads", Severity.ERROR, where("num_attention_heads"), mixer.q_heads, ta))
        grouped = isinstance(mixer, Attention) and mixer.kv_heads != mixer.q_heads
        if isinstance(mixer, Attention) and grouped and mixer.kv_heads % ta and ta % mixer.kv_heads:
            seen.add(Problem("KV heads", Severity.ERROR, where("num_key_value_heads"), mixer.kv_heads, ta))
        for tensor in block.tensors:
            if not (tensor.reduced and tensor.matmul):
                continue
            if tensor.role in ("mlp", "shared_experts") and tensor.params % architecture.hidden_size == 0:
                width, degree, what = tensor.params // architecture.hidden_size, t, "MLP width"
            elif tensor.role == "routed_experts" and block.experts is not None:
                width = tensor.params // block.experts.count // architecture.hidden_size
                degree, what = within, "expert width"
            else:
                continue
            if width % degree:
                seen.add(Problem(what, Severity.ERROR, where("intermediate_size"), width, degree))
    rows = -(-architecture.vocab_size // PADDED) * PADDED
    if rows % t and engine not in PADS_VOCABULARY:
        severity = Severity.ERROR if engine in REFUSE_VOCABULARY else Severity.WARNING
        seen.add(Problem("vocabulary rows", severity, where("vocab_size"), rows, t))
    yield from sorted(seen, key=lambda p: (ORDER.index(p.text), p.size))


def _finding(
    review: Review, composition: Composition, engine: str, problems: list[Problem], path: KeyPath, pool: str
) -> Finding:
    config = parallelism(composition)
    named = [f"{p.size:,} {p.text}" for p in problems]
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    assumed = not pool and path[-1] != "tensor"
    degree = f"tensor = {config.t}" + (f" of the {pool} pool" if pool else "")
    if assumed:
        degree += ", assumed from the devices of the replica,"
    if config.attention_ranks > 1:
        degree += f" (attention over {config.attention_tensor})"
    worst = Severity.INFO if assumed else max(p.severity for p in problems)
    refuses = "engines refuse to start" if problems[0].severity is Severity.ERROR else "some engines refuse to start"
    return Finding(
        path,
        f"{degree} does not divide {listed} of {composition.setup.architecture.id}: {refuses}",
        equation="; ".join(f"{p.size:,} mod {p.degree} = {p.size % p.degree}" for p in problems),
        inputs=tuple(Input(p.text, p.size, "", p.source) for p in problems),
        help=_help(composition, engine),
        related=(Related(_model_path(review), f"has {listed}"),),
        severity=worst,
    )


def _help(composition: Composition, engine: str) -> str:
    """The degrees that divide everything, up to twice the present one, and what to do with other devices."""
    config = parallelism(composition)

    class Other:
        t = d = attention_tensor = 1
        expert = None

    fits = []
    # No model has thousands of heads to divide: a wild degree must not cost a wild search.
    most = 2 * min(config.t, 256)
    for degree in range(1, most + 1):
        other = Other()
        other.t = other.attention_tensor = degree
        if not list(_problems(composition.setup.architecture, other, engine)):
            fits.append(degree)
    listed = _listed(fits)
    devices = composition.setup.topology.devices
    stages = max((degree for degree in fits if devices % degree == 0), default=1)
    across = f"; {devices} devices: tensor = {stages}, pipeline = {devices // stages}" if devices > stages else ""
    return f"degrees up to {most} that divide everything: {listed}{across}"


def _experts(review: Review, composition: Composition, expert: int) -> Iterator[Finding]:
    """Routed experts that expert parallelism cannot spread evenly."""
    counts = {b.experts.count for b in composition.setup.architecture.blocks if b.experts is not None}
    moe = composition.context.configs.get("moe")
    extra = getattr(moe, "redundant_experts", None) or 0
    for count in sorted(counts):
        total = count + extra
        if total % expert:
            path = ("policy", "parallelism", "expert")
            copies = f" and {extra} redundant copies" if extra else ""
            yield Finding(
                path,
                f"expert = {expert} does not divide the {count} routed experts{copies} of "
                f"{composition.setup.architecture.id}: some devices hold one more, others idle, and some engines "
                "refuse to start",
                equation=f"{total} mod {expert} = {total % expert}",
                inputs=(
                    Input(
                        "routed experts", total, "", Source("model", composition.setup.architecture.id, "num_experts")
                    ),
                ),
                help=f"degrees that divide {total}: {_listed(n for n in range(1, 2 * expert + 1) if total % n == 0)}",
                related=(Related(_model_path(review), f"has {count} routed experts"),),
                severity=Severity.WARNING,
            )


def _listed(degrees: Iterable[int]) -> str:
    return ", ".join(map(str, degrees))


def _model_path(review: Review) -> KeyPath:
    return ("model", "id") if review.declared("model", "id") else ("model", "config")
