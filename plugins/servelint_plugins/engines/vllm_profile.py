"""What vLLM's profile run takes at start beside a step's activations: logits that are sorted, partial sums of AWQ.

Sources: vllm-project/vllm vllm/model_executor/layers/sampler.py and vllm/worker/model_runner.py `profile_run` (older
core), vllm/v1/sample/ops/topk_topp_sampler.py and vllm/v1/worker/gpu_model_runner.py `_dummy_sampler_run`; what a sort
allocates: pytorch/pytorch aten/src/ATen/native/cuda/SortStable.cu `segmented_sort_pairs`. Products of AWQ at 2e0b6e775
(0.2.7): csrc/quantization/awq/gemm_kernels.cu `awq_gemm`, vllm/model_executor/layers/quantization/awq.py
`apply_weights`, vllm/model_executor/models/llama.py and mixtral.py.
"""

from __future__ import annotations

from typing import NamedTuple

from attrs import evolve

from servelint.memory import MemoryLedger, Reserve
from servelint.plugin import Block, Context, Input, Lineage, Source
from servelint_plugins.policies.batching import RESIDUALS

PEAK = "peak activations"
WIDE = (0, 6)
"""From here logits are sorted in fp32, beside the model's own."""
INDEX = 8
FP32, HALF = 4, 2
DENSE = (0, 3)
"""From here (beb89f68b) AWQ's weights are widened for steps of 256 tokens and more, and multiplied as others are."""
PARTS = 8
"""Parts that a product of AWQ is split into before: the weights of a packed word, given for the parts."""
SUMMED = 2
"""Tensors of the residual width beside Mixtral's experts, which run in turn before `DENSE`: their sum so far, and what
the last one put out."""


def _sorted_bytes(width: int, kept: int) -> int:
    """Bytes of one logit: the model's, input and sorted values, places before and after, and copies of both to sort.

    For 128 sequences and more; for fewer they are sorted together, which takes a third more.
    """
    return kept + 2 * width + 2 * INDEX + width + INDEX


def sampled(numbers: tuple[int, ...], ledger: MemoryLedger, context: Context, *, older: bool) -> MemoryLedger:
    """Reserve the sorted logits where they take more than the step's activations."""
    batching = context.config("batching")
    tokens, most = getattr(batching, "max_batched_tokens", None), getattr(batching, "max_sequences", None)
    # The older core takes fewer sequences where there are images; how many depends on their size.
    images = any(tensor.role == "vision" for tensor in context.architecture.extras)
    if not tokens or not most or (older and images):
        return ledger
    each = _sorted_bytes(HALF, 0) if older and numbers < WIDE else _sorted_bytes(FP32, HALF)
    hidden, vocabulary, rows = context.architecture.hidden_size, context.architecture.vocab_size, min(most, tokens)
    size = float(tokens * hidden * HALF + rows * vocabulary * each)

    def where(name: str) -> Source:
        return Source("model", context.architecture.id, name)

    file = "vllm/model_executor/layers/sampler.py" if older else "vllm/v1/sample/ops/topk_topp_sampler.py"
    lineage = Lineage(
        f"tokens x hidden x {HALF} B + sequences x vocabulary x bytes of a logit that is sorted",
        (
            Input("tokens", tokens, "tok", context.source("batching", "max_batched_tokens")),
            Input("hidden", hidden, "", where("hidden_size")),
            Input("sequences", rows, "", context.source("batching", "max_sequences")),
            Input("vocabulary", vocabulary, "", where("vocab_size")),
            Input("bytes of a logit that is sorted", each, "B", Source("engine", f"vllm-project/vllm {file}", "sort")),
        ),
    )

    return _at_least(size, lineage, ledger)


def _at_least(size: float, lineage: Lineage, ledger: MemoryLedger) -> MemoryLedger:
    def larger(reserve: Reserve) -> Reserve:
        more = reserve.name == PEAK and reserve.bytes < size
        return evolve(reserve, bytes=size, lineage=lineage) if more else reserve

    return evolve(ledger, reserves=tuple(map(larger, ledger.reserves)))


class _Product(NamedTuple):
    """Elements of a token at a product: its output, inner tensors that live beside it, residual-width ones."""

    output: float
    beside: float
    residuals: int

    def elements(self, hidden: int) -> float:
        """With the parts of the output, which are summed when all are there."""
        return self.residuals * hidden + self.beside + (PARTS + 1) * self.output


def multiplied(numbers: tuple[int, ...], ledger: MemoryLedger, context: Context) -> MemoryLedger:
    """Reserve the parts of AWQ's widest product, where releases sum them for any number of tokens.

    GPTQ's weights, which have the same format, are widened in all releases that load them.
    """
    tokens = getattr(context.config("batching"), "max_batched_tokens", None)
    if numbers >= DENSE or not tokens or not _by_awq(context):
        return ledger
    hidden = context.architecture.hidden_size
    products = [p for block in context.architecture.blocks for p in _products(block, ledger, context)]
    if not products:
        return ledger
    widest = max(products, key=lambda p: p.elements(hidden))

    def where(name: str) -> Source:
        return Source("model", context.architecture.id, name)

    kernel = Source("engine", "vllm-project/vllm csrc/quantization/awq/gemm_kernels.cu", "awq_gemm")
    lineage = Lineage(
        f"tokens x (residual tensors x hidden + inner width beside + (parts + 1) x output width) x {HALF} B",
        (
            Input("tokens", tokens, "tok", context.source("batching", "max_batched_tokens")),
            Input("residual tensors", widest.residuals, "", kernel),
            Input("hidden", hidden, "", where("hidden_size")),
            Input("inner width beside", widest.beside, "", where("inner width")),
            Input("parts", PARTS, "", kernel),
            Input("output width", widest.output, "", where("output width")),
        ),
    )
    return _at_least(tokens * widest.elements(hidden) * HALF, lineage, ledger)


def _by_awq(context: Context) -> bool:
    """Whether the checkpoint, or the format that is declared, is called AWQ: the stored format alone may be GPTQ's."""
    declared = getattr(context.config("quantization"), "weights", None)
    return any("awq" in (name or "").lower() for name in (declared, context.deployment.model.id))


def _products(block: Block, ledger: MemoryLedger, context: Context) -> tuple[_Product, ...]:
    """The last product of a block's up side, and that of its down side, where both are in four bits."""
    parallelism = context.config("parallelism")
    t = parallelism.t if parallelism is not None else 1
    hidden = context.architecture.hidden_size
    role = "mlp" if block.experts is None else "routed_experts"
    held = [w for w in ledger.weights if w.block == block.name and w.tensor.role == role and w.tensor.matmul]
    if len(held) != 2 or any(w.format.bits != 4 or not w.format.group for w in held):
        return ()
    up, down = (sum(w.tensor.params for w in held if w.tensor.reduced is side) / hidden for side in (False, True))
    if block.experts is None:
        # One product makes both halves of the up side.
        return _Product(up / t, 0.0, RESIDUALS), _Product(hidden, (up + down) / t, RESIDUALS)
    # A rank has some of the experts whole, and makes the halves in turn.
    up, down = up / block.experts.count, down / block.experts.count
    residuals = RESIDUALS + SUMMED
    return _Product(down, up - down, residuals), _Product(hidden, up + down, residuals)
