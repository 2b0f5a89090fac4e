"""Compares the memory ledger with what engines logged at start: cache sizes, needs, weights.

Each recorded deployment becomes a spec in the one way of `recorded`. Two kinds of comparison: *given* a logged
figure (the memory left for the cache), the figures that follow from it, which tests the layout of the cache; and
*from the flags alone*, which tests everything.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import recorded
from published import UnmappedError
from recorded import Record

from servelint.memory import MemoryLedger
from servelint.review import Review

GIB = 2**30


class Comparison(NamedTuple):
    """One logged figure beside the tool's. ``given`` says what logged figure the spec was told, if any."""

    record: Record
    what: str
    given: str
    predicted: float
    logged: float

    @property
    def error(self) -> float:
        """Relative error of the tool's figure."""
        return self.predicted / self.logged - 1

    @property
    def key(self) -> tuple[str, str]:
        """What names the comparison."""
        return self.record.id, self.what


class Missing(NamedTuple):
    """A record with logged figures that cannot be compared, and why."""

    record: Record
    reason: str


SOMEONE_ELSES = {
    # The figures are another planner's: a port to other hardware, or a fork.
    "vllm-metal",
    "vllm-tt",
}


def logged(record: Record, *names: str) -> float | None:
    """The first logged figure of several names, None without one that is a positive number."""
    for name in names:
        value = record.observed.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None


def tokens(record: Record) -> float | None:
    """Logged KV tokens, or GPU blocks times the tokens of one."""
    found = logged(record, "kv_tokens")
    if found is None and (blocks := logged(record, "gpu_blocks")) is not None:
        found = blocks * float(record.flags.get("block_size", 16))
    return found


def left(record: Record) -> float | None:
    """Logged GiB for the cache on a device."""
    found = logged(record, "kv_cache_gib", "kv_avail_gib", "kv_avail_gib_per_gpu")
    return recorded.number(record.observed.get("kv_gib")) if found is None else found


def weights(record: Record) -> float | None:
    """Logged GiB of weights on a device; engines write GB for GiB."""
    return logged(record, "weights_gib", "weights_per_gpu_gb", "weights_gb")


def peak(record: Record) -> float | None:
    """Logged GiB of activations: by themselves, or the peak of PyTorch's memory less the weights."""
    found, torch, held = logged(record, "activation_peak_gib"), logged(record, "peak_torch_gib"), weights(record)
    return torch - held if found is None and torch is not None and held is not None else found


def longest(memory: MemoryLedger, limit: int) -> int:
    """The longest sequence that the engine would say fits, as it searches for it: to the token."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        fits = all(memory.request_bytes(middle, s) <= memory.cache_left(s) for s in range(memory.stages))
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _most(review: Review, of: Callable[[MemoryLedger, int], float]) -> float:
    assert review.composition is not None
    memory = review.composition.memory
    return max(of(memory, stage) for stage in range(memory.stages))


def _given(record: Record) -> Iterator[Comparison]:
    """What follows from the logged memory, or from the model and the flags that decide its cache."""
    needed, available, count = logged(record, "kv_needed_gib"), left(record), tokens(record)
    if needed is not None and recorded.number(record.flags.get("max_model_len")):
        review = recorded.reviewed(record, stand_ins=True)
        assert review.composition is not None
        length = review.composition.max_model_len
        asked = _most(review, lambda memory, stage: memory.request_bytes(length, stage))
        yield Comparison(record, "cache of the longest sequence, GiB", "", asked / GIB, needed)
    if available is None:
        return
    review = recorded.reviewed(record, extra=f'memory_bytes = "{available} GiB"', stand_ins=True)
    assert review.composition is not None
    memory, length = review.composition.memory, review.composition.max_model_len
    told = f"{available:g} GiB for the cache"
    capacity = memory.capacity_tokens(length)
    if count is not None:
        yield Comparison(record, "KV tokens", told, capacity, count)
    concurrency = logged(record, "max_concurrency")
    if concurrency is not None:
        yield Comparison(record, "longest sequences at once", told, capacity / length, concurrency)
    most = logged(record, "estimated_max_len", "engine_estimated_max_len")
    if most is not None:
        yield Comparison(record, "longest sequence that fits, tokens", told, longest(memory, length), most)


def _alone(record: Record) -> Iterator[Comparison]:
    """What follows from the flags."""
    held, available, count, activations = weights(record), left(record), tokens(record), peak(record)
    if held is None and available is None and count is None:
        return
    review = recorded.reviewed(record)
    assert review.composition is not None
    memory, length = review.composition.memory, review.composition.max_model_len
    if held is not None:
        yield Comparison(record, "weights of a device, GiB", "", memory.weights_bytes / GIB, held)
    if activations is not None:
        reserved = sum(r.bytes for r in memory.reserves if r.name == "peak activations")
        yield Comparison(record, "peak activations, GiB", "", reserved / GIB, activations)
    if available is not None:
        room = min(memory.cache_left(s) for s in range(memory.stages))
        yield Comparison(record, "memory for the cache, GiB", "", room / GIB, available)
    if count is not None:
        yield Comparison(record, "KV tokens", "", memory.capacity_tokens(length), count)


@cache
def compared() -> tuple[tuple[Comparison, ...], tuple[Comparison, ...], tuple[Missing, ...]]:
    """Comparisons given a logged figure, those from the flags alone, and records that allow neither."""
    given: list[Comparison] = []
    alone: list[Comparison] = []
    missing: list[Missing] = []
    for record in (*recorded.facts(), *recorded.cases("memory")):
        figures = (weights(record), left(record), tokens(record), logged(record, "kv_needed_gib"))
        if not any(figures):
            continue
        if record.engine in SOMEONE_ELSES:
            missing.append(Missing(record, f"the figures are those of {record.engine}, which plans in its own way"))
            continue
        reasons = []
        found = len(given) + len(alone)
        for into, compare in ((given, _given), (alone, _alone)):
            try:
                into += compare(record)
            except UnmappedError as error:
                reasons.append(str(error))
        if len(given) + len(alone) == found:
            missing.append(Missing(record, reasons[0] if reasons else "it logs nothing that a spec gives"))
    return tuple(given), tuple(alone), tuple(missing)


def spread(found: tuple[Comparison, ...]) -> tuple[int, float, float, float]:
    """Number of comparisons, median error, median and worst absolute error."""
    errors = [c.error for c in found]
    sizes = [abs(e) for e in errors]
    return len(errors), statistics.median(errors), statistics.median(sizes), max(sizes)


GIVEN_BOUND, ALONE_BOUND = 0.02, 0.05
"""Errors above which a comparison needs an explanation: with a logged figure given, and from the flags alone."""

GIVEN_WHY = {
    "m09": "near that of a cache in 8 bits, which the record does not name",
    "m27.2": "the longest context is not recorded; with 131,072 tokens it is 530,400",
    "gemma4-26b-awq-3090-256k": "tokens of a step are not recorded; with 4,096, as later files of its source have, "
    "it is 5.98",
    "qwen38-27b-3090-64k": "the formats of cache and state are not recorded",
}
"""Why the figures of a record that follow from a logged one are off."""

_PARTS = "which tensors the checkpoint keeps in wider formats is not recorded"
_SHARE = "the share of memory is not recorded"
ALONE_WHY = {
    "m04": "an install without FlashInfer sorts the logits of 1,024 sequences in this release: with that it is 1.5",
    "m06": _SHARE,
    "m09": "the formats of cache and activations, and the workspace of the experts, are not recorded",
    "m10": "30 GiB more than a share of the checkpoint on a part without FP4; the format of the cache is not recorded",
    "m20": "the degrees are not recorded; whole layers beside an eighth of the experts, as the source's recipes run "
    "it, are 121.5 GiB, and the draft layer comes on top",
    "m27.2": f"{_PARTS}; the longest context is not, either",
    "m31": "workspaces and widened residual streams of compressed attention are not modeled",
    "dsv4-flash-2h20-tp2": "workspaces and widened residual streams of compressed attention are not modeled",
    "gemma2-9b-8l4-tp8-graphs": "0.2 GiB more than a share of the checkpoint; why was not found",
    "gemma3-27b-int4-a10-4k": "the profile of the vision tower is not modeled, and 0.4 GiB of weights",
    "gemma4-26b-awq-3090-256k": f"{_PARTS}; nor are the draft's weights",
    "gemma4-26b-awq-3090-42k": f"{_PARTS}; nor are the draft's weights",
    "llama2-7b-trtllm-a10-max-batch": "static buffers for prompts of 2,048 tokens in 25 sequences are taken; "
    "whether the engine was built for as long ones is not recorded",
    "llama31-8b-3090-35k": "how many sequences the profile takes is not recorded: by default 256, whose logits take "
    "1.2 GiB to sort; the activations alone are 0.05",
    "mixtral-awq-2a100-util05": "of the 21 GiB that weights, cache and runtime leave to the profile of 32,768 tokens "
    "10 are live at once; release 0.2.7 counts what PyTorch holds of freed memory, too",
    "qwen15-72b-2a100": f"{_SHARE}: weights and the logged cache exceed the default's",
    "qwen25-vl-72b-bf16-4a100-40g": "the profile of the vision tower is not modeled",
    "qwen3-coder-480b-fp8-8h20-dp8": "the H20 of 141 GB: two logged shares give 139.8 GiB in all",
    "qwen3-coder-480b-fp8-8h20-dp8-095": "the H20 of 141 GB: two logged shares give 139.8 GiB in all",
    "qwen36-27b-2x3090-dflash-noviz": "the format of the weights is not recorded: 16 bit is taken",
    "qwen15-7b-gptq4-3090": "the profile of 32,768 tokens in a release of 2024",
    "qwen38-27b-2x5090-nvfp4-262k": _PARTS,
    "qwen38-27b-3090-64k": "the format of the weights is not recorded: 16 bit is taken",
    "qwen38-27b-nvfp4-5090l-098": _PARTS,
    "dscoderv2-236b-8h100-16k": "10 GiB more besides weights and cache, on eight devices with a profile of "
    "16,000 tokens; whose they are is not recorded",
    "kimi-linear-48b-awq-2x3090": "3 GiB more besides weights and cache in a profile of 64,000 tokens, which skips the "
    "kernels of linear attention; what the checkpoint keeps in wider formats is not recorded",
}
"""Why the figures of a record that follow from its flags are off."""

FITTED = (
    "dsv4pro-fp8-8h200-sglang-088",
    "dsv4pro-fp8-8h200-sglang-088-mtp",
    "gemma4-26b-bf16-a100",
    "llama31-8b-3090-20k",
    "qwen38-27b-2x5090-fp8-262k",
)
"""Records that something was set on: the vision profile, activations and runtime of one device, buffers of several, and
what SGLang holds of DeepSeek-V4 beside its share of the checkpoint."""


def _lines(found: tuple[Comparison, ...], why: dict[str, str], bound: float) -> Iterator[tuple[str, ...]]:
    for c in found:
        off = abs(c.error) > bound
        # No sign for what rounds to nothing.
        size = f"x {c.predicted / c.logged:,.3g}" if c.error > 1 else f"{round(c.error, 3) or 0.0:+.1%}"
        note = why[c.record.id] if off else "fitted" if c.record.id in FITTED and why is ALONE_WHY else ""
        yield c.record.id, c.what, _figure(c.predicted), _figure(c.logged), size, note


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def given_rows() -> list[tuple[str, ...]]:
    """Lines of the comparisons given a logged figure."""
    return list(_lines(compared()[0], GIVEN_WHY, GIVEN_BOUND))


def alone_rows() -> list[tuple[str, ...]]:
    """Lines of the comparisons from the flags alone."""
    return list(_lines(compared()[1], ALONE_WHY, ALONE_BOUND))


def missing_rows() -> list[tuple[str, str]]:
    """Records that cannot be compared, with the reasons."""
    return [(missing.record.id, missing.reason) for missing in compared()[2]]


def summary_rows() -> list[tuple[object, ...]]:
    """How many comparisons of each kind, and their errors."""
    given, alone, _ = compared()
    sized = [c for c in alone if c.what == "weights of a device, GiB" and c.record.id not in FITTED]
    rest = [c for c in alone if c.what != "weights of a device, GiB" and c.record.id not in FITTED]
    groups = [
        ("given a logged figure", given),
        (
            "the same, without records that are off by more than 2 %",
            tuple(c for c in given if c.record.id not in GIVEN_WHY),
        ),
        ("from the flags alone: weights, no record that something was set on", tuple(sized)),
        ("from the flags alone: memory, activations and tokens, no record that a reserve was set on", tuple(rest)),
        (
            "the same, without records that are off by more than 5 %",
            tuple(c for c in rest if c.record.id not in ALONE_WHY),
        ),
    ]
    rows: list[tuple[object, ...]] = []
    for name, found in groups:
        count, middle, size, worst = spread(found)
        most = f"x {worst + 1:,.3g}" if worst > 1 else f"{worst:.1%}"
        rows.append((name, count, f"{middle:+.1%}", f"{size:.1%}", most))
    return rows


if __name__ == "__main__":
    for part in compared()[:2]:
        for c in part:
            print(f"{c.record.id:40} {c.what:38} {c.given:28} {c.predicted:14.6g} {c.logged:12.6g} {c.error:+7.1%}")
        print(spread(part))
    for m in compared()[2]:
        print(m.record.id, m.reason)
