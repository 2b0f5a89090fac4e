"""The figures of one spec that ``cost`` shows and ``explain`` takes apart, each computed once, on demand.

Shapes that neither the workload nor the command line gives are stated defaults, and `Step.basis` says so.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from servelint import served
from servelint.arrays import Number
from servelint.composition import Composition
from servelint.cost import StepCost
from servelint.graph import Op
from servelint.memory import MemoryLedger
from servelint.resources import CacheIO, Demand, Matmul, StateIO, WeightRead
from servelint.review import Review
from servelint.service import Point, Service, kv_bytes
from servelint.shapes import StepShape, decode, prefill

DEFAULT_BATCH = 64
DEFAULT_CONTEXT = 4096
UNBOUNDED_TOKENS = 10**12
"""What the memory ledger says where no cache limits anything."""

HBM_KINDS = ("weights", "kv_read", "kv_write", "other")


class Step(NamedTuple):
    """One priced step shape: where it comes from, and whose graph it is priced on."""

    name: str
    basis: str
    shape: StepShape
    composition: Composition
    cost: StepCost

    @property
    def words(self) -> str:
        """The shape in words."""
        s, parts = self.shape, []
        if s.batch:
            new = f", {s.new_tokens:g} new tokens each" if s.new_tokens != 1 else ""
            many = "" if s.batch == 1 else "s"
            parts.append(f"{_number(s.batch)} sequence{many} of {s.context:,.0f} cached tokens{new}")
        if s.prefill_sequences:
            prompts = "" if s.prefill_sequences == 1 else f"{_number(s.prefill_sequences)} x "
            over = f" over {s.prefill_context:,.0f} cached" if s.prefill_context else ""
            parts.append(f"{prompts}{s.prefill_tokens:,.0f} prompt tokens{over}")
        return " and ".join(parts)


class SingleStream(NamedTuple):
    """What one sequence alone can reach, from the weights only, without any cache.

    ``read_bytes`` are weight bytes that one token reads on its way, per device; ``flops`` what it multiplies.
    """

    read_bytes: float
    flops: float
    intensity: float
    balance: float
    ceiling_tokens_per_s: float
    resident_ceiling_tokens_per_s: float


class Figures:
    """Every figure of a composed review; ``batch``, ``context`` and ``prompt`` replace the workload's own."""

    def __init__(
        self, review: Review, batch: float | None = None, context: float | None = None, prompt: float | None = None
    ) -> None:
        if review.composition is None:
            raise ValueError("the review does not compose")
        self.review = review
        self.composition: Composition = review.composition
        self._batch, self._context, self._prompt = batch, context, prompt
        pools = self.composition.scheduler.disaggregation
        self.decode_side = self.composition if pools is None else pools.decode.composition
        self.prefill_side = self.composition if pools is None else pools.prefill.composition
        self.separate = pools is not None

    # Where it runs

    @cached_property
    def service(self) -> Service | None:
        """The replica under the workload, None without one."""
        return None if self.review.mix is None else self.review.service(self.review.mix)

    @cached_property
    def point(self) -> Point | None:
        """Where the deployment runs: the operating point, else the fullest one; None without a workload."""
        if self.service is None:
            return None
        return self.review.operating_point or self.service.fullest

    @cached_property
    def basis(self) -> str:
        """Where the shapes of the steps come from."""
        given = [
            n for n, v in (("--batch", self._batch), ("--context", self._context), ("--prompt", self._prompt)) if v
        ]
        if self.point is None:
            rest = f"default shape: batch {DEFAULT_BATCH} or as many as fit, context {DEFAULT_CONTEXT:,} tokens"
        elif self.review.operating_point is not None:
            rest = "operating point of the workload"
        else:
            rest = "the offered load has no operating point: the fullest one that is admitted"
        return f"{', '.join(given)}; else {rest}" if given else rest

    @cached_property
    def batch(self) -> float:
        """Sequences of the decode step."""
        if self._batch is not None:
            return self._batch
        if self.point is not None:
            return max(self.point.batch, 1.0)
        return float(max(1, min(DEFAULT_BATCH, self.memory.resident_sequences(self.context))))

    @cached_property
    def context(self) -> float:
        """Cached tokens of each sequence of the decode step."""
        if self._context is not None:
            return self._context
        return self.review.mix.mean_context if self.review.mix is not None else float(DEFAULT_CONTEXT)

    @cached_property
    def prompt(self) -> tuple[float, float]:
        """Prompt tokens of the prefill step that have to be computed, and that are cached."""
        mix = self.review.mix
        whole = self._prompt or (mix.prompt.mean if mix is not None else self.context)
        new = mix.computed(whole) if mix is not None and self._prompt is None else whole
        return new, max(whole - new, 0.0)

    @cached_property
    def notes(self) -> list[str]:
        """What command line or workload ask for and the deployment never runs; it is priced all the same."""
        found = []
        mix, longest = self.review.mix, served.limit(self.review)
        if mix is not None and longest is not None and (share := served.excess(mix, longest)).prompts > served.SEEN:
            found.append(served.too_long(self.review, longest, share))
        for name, given in (("--context", self._context), ("--prompt", self._prompt)):
            if given is not None and given > self.max_model_len:
                found.append(f"{name} {given:,.0f} is longer than any request: max_model_len is {self.max_model_len:,}")
        if self._batch is not None:
            scheduler, fits = self.decode_side.scheduler, self.max_resident_sequences
            asked = f"--batch {self._batch:,.6g} is more than"
            if self._batch > fits:
                found.append(f"{asked} fits at once: {fits:,} sequences of {self.context:,.0f} tokens")
            if scheduler.max_sequences is not None and self._batch > scheduler.max_sequences:
                found.append(f"{asked} is admitted: max_sequences lets {scheduler.max_sequences:,} run at once")
        return found

    # Steps

    @cached_property
    def steps(self) -> dict[str, Step]:
        """The priced steps by name: ``decode``, ``prefill``, and ``mixed`` unless prefill has its own pool or steps."""
        new, cached = self.prompt
        q = float(self.composition.scheduler.verify_tokens)
        shapes = {"decode": (decode(self.batch, self.context, q), self.decode_side)}
        shapes["prefill"] = (prefill(new, cached), self.prefill_side)
        if not self.separate and self.composition.scheduler.mixed:
            chunk = self._chunk(new)
            middle = cached + max(new - chunk, 0.0) / 2
            shape = shapes["decode"][0]._replace(
                prefill_sequences=float(self.composition.scheduler.ranks),
                prefill_tokens=chunk,
                prefill_context=middle,
                prefill_outputs=1.0 if chunk >= new else 0.0,
            )
            shapes["mixed"] = (shape, self.composition)
        return {
            name: Step(name, self.basis, shape, side, side.pricer.price(shape))
            for name, (shape, side) in shapes.items()
        }

    def _chunk(self, new: float) -> float:
        """Prompt tokens that the mixed step takes: a full chunk, or the whole prompt when prompts are not cut."""
        scheduler = self.composition.scheduler
        size = self.service.chunk(self.batch) if self.service is not None else float(scheduler.chunk_tokens or 0)
        return min(size, new) if size else new

    def rows(self, step: Step) -> list[tuple[Op, list[tuple[Demand, float]]]]:
        """Every op of a step with what one instance of it demands, in the units of the demands."""
        pricer = step.composition.pricer
        amounts = pricer.amounts(step.shape)
        return [
            (op, [(d, float(amount)) for d, amount in zip(op.demands, row, strict=True)])
            for op, row in zip(pricer.graph.ops, amounts, strict=True)
        ]

    def hbm_bytes_by_kind(self, step: Step) -> dict[str, float]:
        """HBM bytes of a step by what moves, on the stage that moves most; activations not counted."""
        stages = step.composition.graph.stages
        totals = [dict.fromkeys(HBM_KINDS, 0.0) for _ in range(stages)]
        for op, demands in self.rows(step):
            for demand, amount in demands:
                kind = hbm_kind(demand)
                if kind is not None:
                    for stage in range(stages):
                        totals[stage][kind] += amount * op.repeats[stage]
        return max(totals, key=lambda total: sum(total.values()))

    # Memory

    @property
    def memory(self) -> MemoryLedger:
        """The memory ledger of a device that decodes."""
        return self.decode_side.memory

    @property
    def max_model_len(self) -> int:
        """The longest context that a request may have."""
        return self.decode_side.max_model_len

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """KV bytes that one more token adds, over all layers, counted once whatever the parallelism."""
        return self.kv_bytes_per_sequence(1.0) - self.state_bytes_per_sequence

    @property
    def state_bytes_per_sequence(self) -> float:
        """Bytes of fixed state of one sequence, counted once."""
        return self.decode_side.setup.architecture.state_bytes_per_sequence()

    def kv_bytes_per_sequence(self, tokens: float) -> float:
        """Cache and state bytes of one sequence of that many tokens, windows applied, counted once."""
        return kv_bytes(self.decode_side, tokens)

    @cached_property
    def kv_capacity_tokens(self) -> int | None:
        """KV capacity of one rank at the longest context, in tokens; None where nothing limits it."""
        found = self.memory.capacity_tokens(self.max_model_len)
        return None if found >= UNBOUNDED_TOKENS else found

    @cached_property
    def max_resident_sequences(self) -> int:
        """Sequences of the decode step's context that fit at once, over all ranks of a replica."""
        return self.memory.resident_sequences(self.context)

    # Rooflines

    @cached_property
    def machine_balance(self) -> dict[str, float]:
        """FLOP per byte at which compute and memory bandwidth take equally long, by precision."""
        accelerator = self.decode_side.setup.topology.accelerator
        return {p: f / accelerator.memory_bandwidth_bytes_per_s for p, f in accelerator.dense_flops.items()}

    @cached_property
    def _weight_terms(self) -> tuple[list[tuple[Demand, int]], list[tuple[Matmul, int]]]:
        """Weight reads and GEMMs of the model's own ops with their instances; those of drafts are left out."""
        policies = {policy.name for policy in self.review.plugins.policies}
        ops = [op for op in self.decode_side.graph.ops if op.origin not in policies]
        return (
            [(d, op.count) for op in ops for d in op.demands if isinstance(d, WeightRead)],
            [(d, op.count) for op in ops for d in op.demands if isinstance(d, Matmul) and d.tensor is not None],
        )

    def _weight_bytes(self, batch: float) -> float:
        shape = decode(batch, 0.0)
        return sum(
            float(d.coefficient * d.format.bytes_per_element * d.feature.count(shape)) * count
            for d, count in self._weight_terms[0]
            if isinstance(d, WeightRead) and d.format is not None
        )

    def _weight_flops(self, batch: float) -> tuple[float, float]:
        """FLOPs of the GEMMs, and the bytes that stream from memory while they run at peak."""
        shape = decode(batch, 0.0)
        flops = balanced = 0.0
        for demand, count in self._weight_terms[1]:
            amount = float(demand.coefficient * demand.feature.count(shape)) * count
            precision, _ = self.decode_side.setup.topology.accelerator.rate(demand.precision)
            flops += amount
            balanced += amount / self.machine_balance[precision]
        return flops, balanced

    @cached_property
    def single_stream(self) -> SingleStream:
        """The weight-only roofline of one sequence: ceiling, intensity, and how far below balance it is."""
        bandwidth = self.decode_side.setup.topology.accelerator.memory_bandwidth_bytes_per_s
        read = self._weight_bytes(1.0)
        flops, balanced = self._weight_flops(1.0)
        return SingleStream(
            read,
            flops,
            flops / read if read else 0.0,
            flops / balanced if balanced else 0.0,
            bandwidth / read if read else 0.0,
            bandwidth / self.memory.weights_bytes if self.memory.weights_bytes else 0.0,
        )

    @cached_property
    def crossover_batch(self) -> float | None:
        """Batch from which the GEMMs take longer than reading their weights; None when it is beyond a million."""
        low, high = 1.0, 1e6
        if self._weight_flops(low)[1] >= self._weight_bytes(low):
            return low
        if self._weight_flops(high)[1] < self._weight_bytes(high):
            return None
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            if self._weight_flops(middle)[1] >= self._weight_bytes(middle):
                high = middle
            else:
                low = middle
        return high

    # Service

    @cached_property
    def frontier(self) -> list[Point]:
        """Points from one sequence to the batch limit; empty without a workload."""
        return self.service.frontier() if self.service is not None else []


def hbm_kind(demand: Demand) -> str | None:
    """Name what a demand moves through HBM; None for what moves nothing or only activations."""
    if isinstance(demand, WeightRead):
        return "weights"
    if isinstance(demand, CacheIO):
        return "kv_write" if demand.write else "kv_read"
    return "other" if isinstance(demand, StateIO) else None


def _number(value: Number) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
