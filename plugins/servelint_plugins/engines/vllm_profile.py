"""What vLLM's profile run takes at start to sample from its step: logits of all sequences, sorted.

Sources: vllm-project/vllm vllm/model_executor/layers/sampler.py and vllm/worker/model_runner.py `profile_run` (older
core), vllm/v1/sample/ops/topk_topp_sampler.py and vllm/v1/worker/gpu_model_runner.py `_dummy_sampler_run`; what a sort
allocates: pytorch/pytorch aten/src/ATen/native/cuda/SortStable.cu `segmented_sort_pairs`.
"""

from __future__ import annotations

from attrs import evolve

from servelint.memory import MemoryLedger, Reserve
from servelint.plugin import Context, Input, Lineage, Source

PEAK = "peak activations"
WIDE = (0, 6)
"""From here logits are sorted in fp32, beside the model's own."""
INDEX = 8
FP32, HALF = 4, 2


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

    def larger(reserve: Reserve) -> Reserve:
        more = reserve.name == PEAK and reserve.bytes < size
        return evolve(reserve, bytes=size, lineage=lineage) if more else reserve

    return evolve(ledger, reserves=tuple(map(larger, ledger.reserves)))
