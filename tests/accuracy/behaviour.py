"""Sets recorded cases of behavior beside the estimate: which of two arms is faster, and by what factor.

``python tests/accuracy/behaviour.py`` prints the comparisons. A case of behavior records two ways to run the same
thing. Both become specs in the one way of `recorded`, with the flags that differ laid over the case's own; the ratio of
their estimates stands beside the ratio that was observed. What the record does not state has the defaults of
`recorded`, the same for all cases: the usual device, the usual lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import recorded
from published import UnmappedError
from recorded import Record

from servelint.composition import Composition
from servelint.review import Review
from servelint.shapes import decode, prefill

Flags = Mapping[str, Any]

SAME = 0.05
"""Ratios within this of 1 are no difference."""


class Arms(NamedTuple):
    """A comparison that a case records: two arms as flags over its own, a figure, and the observed ratio.

    ``observed`` is a ratio, a range of ratios, or None where only the direction is recorded, which ``faster`` says.
    """

    case: str
    figure: str
    first: Flags
    second: Flags
    observed: tuple[str, ...] = ()
    faster: bool | None = None


ALONE: Flags = {}
"""No second arm: the figure itself stands beside the observed one."""
OFF: Flags = {"speculative": None}
COMPARISONS = (
    Arms("awq-first-token-slow", "prefill", {}, {"quantization": "bf16"}, ("1/ttft_ratio_vs_fp16",)),
    Arms("awq-first-token-slow", "decode", {"batch": 1}, {"quantization": "bf16", "batch": 1},
         ("decode_speedup_small_batch",)),
    Arms("codellama34b-trtllm-long", "run", {"isl": 1024, "osl": 512}, {"isl": 16, "osl": 8}, ("tok_s.3", "tok_s.0")),
    Arms("codellama34b-trtllm-long", "run", {"isl": 256, "osl": 128}, {"isl": 64, "osl": 32}, ("tok_s.2", "tok_s.1")),
    # Three is what llama.cpp drafts by default: ggml-org/llama.cpp@00dc8057ab28:tools/server/README.md.
    Arms("dflash-mtp-strixhalo-np", "decode", {"batch": 1, "speculative": "mtp k=3"}, {"batch": 1},
         ("mtp.0", "none.0")),
    Arms("dflash-mtp-strixhalo-np", "decode", {"batch": 4, "speculative": "mtp k=3"}, {"batch": 4},
         ("mtp.2", "none.2")),
    Arms("dgx-spark-llama70b-3toks", "decode", {}, ALONE, ("tok_s",)),
    Arms("dsv4-flash-tp8-vs-dp8-b200", "prefill", {"dp": 8, "ep": True, "batch": 8},
         {"tp": 8, "ep": True, "batch": 8}, ("dp8.input_tok_s", "tp8.input_tok_s")),
    Arms("dsv4-flash-tp8-vs-dp8-b200", "room", {"dp": 8, "ep": True}, {"tp": 8, "ep": True},
         ("dp8.total_concurrency", "tp8.max_concurrency")),
    Arms("dynamo-gptoss-agg-vs-disagg", "capacity", {"mode": "disaggregated", "prefill_tp": 4, "decode_tp": 4},
         {"tp": 8}, (), False),
    Arms("eagle-qwq-tp4-no-gain", "decode", {"tp": 1, "batch": 1, "speculative": "eagle k=3"}, {"tp": 1, "batch": 1},
         ("tok_s.tp1_eagle", "tok_s.tp1_base")),
    Arms("eagle-qwq-tp4-no-gain", "decode", {"tp": 4, "batch": 1, "speculative": "eagle k=3"}, {"tp": 4, "batch": 1},
         ("tok_s.tp4_eagle", "tok_s.tp4_base")),
    Arms("eagle-qwq-tp4-no-gain", "decode", {"tp": 4, "batch": 1}, {"tp": 1, "batch": 1},
         ("tok_s.tp4_base", "tok_s.tp1_base")),
    Arms("gptoss120b-a100-tp1-vs-tp2", "decode", {"tp": 2}, {"tp": 1}, ("tok_s.tp2", "tok_s.tp1")),
    Arms("gptoss120b-a100-tp1-vs-tp2", "decode", {"tp": 4}, {"tp": 2}, ("tok_s.tp4", "tok_s.tp2")),
    Arms("int8wo-slower-15k-a100-trtllm", "prefill", {}, {"quantization": "bf16"}, (), False),
    Arms("llama3-70b-fp8-tp8-vs-2xtp4", "capacity", {"tp": 8}, {"tp": 4, "replicas": 2}, (), False),
    Arms("llama3-8b-h800-200k-tpot", "decode", {"prompt_tokens": 204800, "output_len": 1},
         {"prompt_tokens": 1024, "output_len": 1}, ("tpot_ms.0", "tpot_ms.1")),
    Arms("llama33-70b-exl2-2x3090-tp-prefill", "prefill", {"tp": 2, "isl": 16000}, {"tp": 1, "pp": 2, "isl": 16000},
         ("prefill_tok_s.tp", "prefill_tok_s.layer_split")),
    Arms("mistral7b-8a100-tp8-slower", "load", {"tp": 8}, {"tp": 1}, ("tp8.req_s", "tp1.req_s")),
    Arms("ngram-batch10-slower", "decode", {}, OFF, ("out_tok_s_on.0", "out_tok_s_off.0")),
    Arms("qwen3-32b-fp8-ngram", "decode", {}, OFF, (), False),
    Arms("qwen3-4b-l4-fp8kv-gain", "decode", {"kv_cache_dtype": "fp8", "context": 2048, "batch": 1},
         {"kv_cache_dtype": None, "context": 2048, "batch": 1}, ("+decode_gain_pct.0",)),
    Arms("qwen3-4b-l4-fp8kv-gain", "decode", {"kv_cache_dtype": "fp8", "context": 32000, "batch": 1},
         {"kv_cache_dtype": None, "context": 32000, "batch": 1}, ("+decode_gain_pct.1",)),
    Arms("qwen3-4b-l4-fp8kv-gain", "room", {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": None}, ("capacity_ratio",)),
    Arms("qwq32b-8a100-tp8-vs-tp4", "decode", {"tp": 4, "batch": 1}, {"tp": 2, "batch": 1},
         ("b1_tok_s.tp4", "b1_tok_s.tp2")),
    Arms("qwq32b-8a100-tp8-vs-tp4", "decode", {"tp": 8, "batch": 1}, {"tp": 4, "batch": 1},
         ("b1_tok_s.tp8", "b1_tok_s.tp4")),
    Arms("qwq32b-8a100-tp8-vs-tp4", "decode", {"tp": 8, "batch": 16}, {"tp": 4, "batch": 16},
         ("b16_tok_s.tp8", "b16_tok_s.tp4")),
    Arms("qwq32b-8a100-tp8-vs-tp4", "decode", {"tp": 8, "batch": 128}, {"tp": 4, "batch": 128}, (), False),
)  # fmt: skip

SUBJECTS: Mapping[str, Flags] = {
    "codellama34b-trtllm-long": {"isl": 1024, "osl": 512},
    "dflash-mtp-strixhalo-np": {"parallel": 4, "speculative": "mtp"},
    "dsv4-flash-tp8-vs-dp8-b200": {"tp": 8, "ep": True},
    "dynamo-gptoss-agg-vs-disagg": {"mode": "disaggregated", "prefill_tp": 4, "decode_tp": 4},
    "eagle-qwq-tp4-no-gain": {"tp": 4, "speculative": "eagle"},
    "gptoss120b-a100-tp1-vs-tp2": {"tp": 2},
    "guided-json-h100-qwen14b": {"concurrency": 100},
    "llama3-70b-fp8-tp8-vs-2xtp4": {"tp": 8},
    "llama3-8b-h800-200k-tpot": {"prompt_tokens": 204800},
    "llama33-70b-exl2-2x3090-tp-prefill": {"tp": 2},
    "mistral7b-8a100-tp8-slower": {"tp": 8},
    "qwq32b-8a100-tp8-vs-tp4": {"tp": 8, "batch": 128},
}
"""The arm that a case says a check should speak of, where the case records several."""

WRONG: Mapping[str, str] = {
    "awq-first-token-slow": "dequantization has no time of its own in the estimate, and those kernels were slow at it",
    "codellama34b-trtllm-long": "half of the fall is there: within the band that counts as no difference",
    "dflash-mtp-strixhalo-np": "a step of four sequences with their drafts took 3.4 times one of a single "
    "sequence with its own, if as much was accepted; the estimate reads the weights once for either",
    "eagle-qwq-tp4-no-gain": "acceptance and drafted tokens are not stated; host time of drafting is not priced",
    "gptoss120b-a100-tp1-vs-tp2": "11 to 13 ms a step whatever the devices, where kernels take 4 to 6: time that more "
    "devices do not divide, in the first release with the model; whose it is was not recorded",
    "int8wo-slower-15k-a100-trtllm": "dequantization has no time of its own in the estimate: no gain, but no loss",
    "llama33-70b-exl2-2x3090-tp-prefill": "messages at half of the bus would take 4 of the 42 seconds; no plugin "
    "knows the engine",
    "mistral7b-8a100-tp8-slower": "0.36 s a step on eight devices, nearly twenty times the estimate: not the "
    "devices' time; a release without captured graphs",
    "ngram-batch10-slower": "33 ms a step of 125M parameters without drafts, 100 and more with: not the device's time",
    "qwq32b-8a100-tp8-vs-tp4": "a remark without a number; a step of 16 sequences took 24 ms on four devices, 10 ms "
    "more than estimated and hardly less on eight: host time of that release",
}
"""Why an estimate points the wrong way."""

NOT_COMPARED = {
    "dsr1-zigzag-h20": "the placement of experts is no key of a spec; its load, which is, was not measured",
    "dsv41-h200-prefill-interval": "how many tokens were decoded between prompts is not stated",
    "dynamo-disagg-8000-200": "neither the model nor the device is stated",
    "first-itl-chunk-2k": "neither the model nor the device is stated",
    "glm53-flash-gb10-mixed": "the model is not in the catalogue",
    "guided-json-h100-qwen14b": "the host time of a mask is not stated",
    "hermes8b-1k1k-preempt": "one arm: what it shows is preemption",
    "lemonade-llamacpp-4slots-131k": "one arm: requests that are refused",
    "llamacpp-c1024-np-default": "one arm: requests that are refused",
    "qwen25-3b-tp8-kv2-tpu": "the slow arm is a defect of the engine's sharding",
    "sglang-5090-graph-max-bs24": "KRN002 compares the two, as a rule; the estimate is of captured graphs",
    "sglang-decode-starved-8192": "neither the model nor the device is stated",
}
"""Cases of what went wrong that record no two arms, or none that can be priced."""


def _side(ratio: float) -> int:
    return 0 if abs(ratio - 1) <= SAME else 1 if ratio > 1 else -1


class Compared(NamedTuple):
    """One comparison: the ratio of the first arm's figure to the second's, estimated and observed.

    ``low`` and ``high`` are None where only the direction was recorded. ``reason`` says why nothing was estimated.
    """

    arms: Arms
    case: Record
    ratio: float | None
    low: float | None
    high: float | None
    reason: str = ""

    @property
    def seen(self) -> int:
        """1 where the first arm was faster, -1 where the second was, 0 where they were alike."""
        if self.low is None or self.high is None:
            return 1 if self.arms.faster else -1
        middle = (self.low * self.high) ** 0.5
        return _side(middle)

    @property
    def right(self) -> bool | None:
        """Whether the estimate has the direction that was observed; None without an estimate."""
        if self.ratio is None:
            return None
        return _side(self.ratio) == self.seen

    @property
    def error(self) -> float | None:
        """Estimated over observed ratio - 1, from the nearer end of an observed range."""
        if self.ratio is None or self.low is None or self.high is None:
            return None
        return self.ratio / min(max(self.ratio, self.low), self.high) - 1


def arm(case: Record, flags: Flags) -> Record:
    """Return the case with flags over its own; degrees of an arm say how many devices it has."""
    own = {name: value for name, value in case.flags.items() if name != "compare"} | dict(flags)
    degrees = {"tp", "pp", "dp", "mode"} & flags.keys()
    return case._replace(flags={k: v for k, v in own.items() if v is not None}, count=None if degrees else case.count)


def subject(case: Record) -> Record:
    """Return the arm of a case that a check is asked about."""
    return arm(case, SUBJECTS.get(case.id, {}))


def reviewed(case: Record) -> Review:
    """Return the review of an arm, with the stand-ins of `recorded`."""
    return recorded.reviewed(case, stand_ins=True)


def _shape(review: Review) -> tuple[float, float, float, float]:
    mix = review.mix
    assert mix is not None, "every case of behavior has lengths"
    batch = review.concurrency() or 1.0
    return float(batch), mix.mean_context, mix.new_prompt, mix.output.mean


def _composed(review: Review) -> Composition:
    assert review.composition is not None
    return review.composition


def _decode(review: Review) -> float:
    """Output tokens a second of plain decode steps."""
    made, (batch, context, _, _) = _composed(review), _shape(review)
    scheduler = made.scheduler
    step = made.pricer.estimate(decode(batch, context, float(scheduler.verify_tokens)))
    return float(batch * scheduler.tokens_per_step / step)


def _prefill(review: Review) -> float:
    """Prompt tokens a second of as many prompts at once as are in flight."""
    made, (batch, _, prompt, _) = _composed(review), _shape(review)
    return float(batch * prompt / made.pricer.estimate(prefill(prompt, sequences=batch)))


def _run(review: Review) -> float:
    """Output tokens a second of one batch from its prompts to its last token."""
    made, (batch, context, prompt, output) = _composed(review), _shape(review)
    seconds = made.pricer.estimate(prefill(prompt, sequences=batch))
    return float(batch * output / (seconds + (output - 1) * made.pricer.estimate(decode(batch, context))))


def _load(review: Review) -> float:
    """Requests a second at the recorded load."""
    if review.operating_point is None:
        raise UnmappedError("the load has no operating point")
    return float(review.operating_point.rate * review.replicas)


def _capacity(review: Review) -> float:
    """Requests a second of all replicas when they are full."""
    assert review.mix is not None
    return float(review.service(review.mix).max_rate * review.replicas)


def _room(review: Review) -> float:
    """Longest sequences that the cache holds at once, over all ranks."""
    made = _composed(review)
    return float(made.memory.capacity_tokens(float(made.max_model_len)) * made.memory.ranks)


FIGURES: Mapping[str, Callable[[Review], float]] = {
    "capacity": _capacity,
    "decode": _decode,
    "load": _load,
    "prefill": _prefill,
    "room": _room,
    "run": _run,
}


def _at(observed: Mapping[str, Any], path: str) -> list[float]:
    """Numbers that a path leads to; ``1/`` takes their inverse, ``+`` percents on top of 1."""
    value: Any = observed
    for part in path.removeprefix("1/").removeprefix("+").split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    numbers = [float(v) for v in (value if isinstance(value, list) else [value])]
    if path.startswith("1/"):
        return sorted(1 / v for v in numbers)
    return sorted(1 + v / 100 for v in numbers) if path.startswith("+") else sorted(numbers)


def compare(arms: Arms, case: Record) -> Compared:
    """Estimate both arms and set their ratio beside the observed one."""
    low = high = None
    if arms.observed:
        top = _at(case.observed, arms.observed[0])
        below = _at(case.observed, arms.observed[1]) if len(arms.observed) > 1 else [1.0]
        low, high = top[0] / below[-1], top[-1] / below[0]
    figure = FIGURES[arms.figure]
    try:
        first = figure(reviewed(arm(case, arms.first)))
        second = 1.0 if arms.second is ALONE else figure(reviewed(arm(case, arms.second)))
    except UnmappedError as error:
        return Compared(arms, case, None, low, high, str(error))
    return Compared(arms, case, first / second, low, high)


@cache
def compared() -> tuple[Compared, ...]:
    """Every comparison whose case is not of low confidence."""
    cases = {case.id: case for case in recorded.cases("behaviour")}
    return tuple(compare(arms, cases[arms.case]) for arms in COMPARISONS)


def _words(flags: Flags) -> str:
    return ", ".join(f"{k} {'off' if v is None else v}" for k, v in flags.items()) or "as recorded"


def rows() -> list[tuple[str, ...]]:
    """Rows of the page: case, figure, the arms, estimated and observed ratio, whether the direction is right."""
    made = []
    for one in compared():
        seen = "below 1" if one.seen < 0 else "above 1" if one.seen else "1"
        if one.low is not None and one.high is not None:
            seen = f"{one.low:.2f}" if one.high / one.low < 1.02 else f"{one.low:.2f} to {one.high:.2f}"
        told = "" if one.ratio is None else f"{one.ratio:.2f}"
        arms = one.arms
        right = one.reason if one.right is None else "yes" if one.right else f"no: {WRONG[arms.case]}"
        names = _words(arms.first) if arms.second is ALONE else f"{_words(arms.first)} / {_words(arms.second)}"
        made.append((arms.case, arms.figure, names, told, seen, right))
    return made


def summary_rows() -> list[tuple[str, ...]]:
    """Rows of the page: comparisons, how many point the right way, and by how much their ratios are off."""
    told = [c for c in compared() if c.right is not None]
    sizes = sorted(abs(c.error) for c in told if c.error is not None)
    return [
        ("comparisons", str(len(compared()))),
        ("priced", str(len(told))),
        ("of these in the direction that was observed", str(sum(bool(c.right) for c in told))),
        ("median absolute error of the ratio, where one was observed", f"{sizes[len(sizes) // 2]:.0%}"),
    ]


def missing_rows() -> list[tuple[str, str]]:
    """Rows of the page: cases without two arms that could be priced, and why."""
    return sorted(NOT_COMPARED.items())


def main() -> None:
    """Print the comparisons."""
    for row in rows():
        print(" | ".join(row))
    right = [c.right for c in compared() if c.right is not None]
    print(f"direction right in {sum(right)} of {len(right)}")


if __name__ == "__main__":
    sys.exit(main())
