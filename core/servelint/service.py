"""From a step to a service: operating point, percentiles, frontier and knee, by closed forms.

A *point* is a decode batch in steady state with its share of prefill. Everything follows from the batch B: a
step yields B x tokens, so m = B x yield / E[output] requests enter and leave a step, and m x E[prompt] prompt
tokens are prefilled in it on average. The conventions are written out in docs/conventions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

from servelint.architecture import Attention, LatentAttention
from servelint.composition import Composition
from servelint.cost import Pricer
from servelint.distribution import Lengths, Node, percentile_share
from servelint.scheduler import Disaggregation, Scheduler
from servelint.shapes import StepShape, prefill

Figure = Literal["bound", "sustained_bound", "estimate"]


class Mix(NamedTuple):
    """What requests look like: lengths, share of the prompt found in the prefix cache, arrival variability."""

    name: str
    prompt: Lengths
    output: Lengths
    prefix_hit: float = 0.0
    arrival_cv: float = 1.0
    total: Lengths | None = None

    @property
    def new_prompt(self) -> float:
        """Mean prompt tokens that have to be computed."""
        return self.prompt.mean * (1 - self.prefix_hit)

    @property
    def mean_context(self) -> float:
        """Mean tokens in the cache of a decoding sequence, over the tokens it decodes.

        A request spends as many steps at each length as it has output tokens: E[prompt] + E[output^2] / (2
        E[output]), for independent prompt and output.
        """
        return self.prompt.mean + self.output.second_moment / (2 * self.output.mean)

    def context(self, p: float) -> float:
        """The final context (prompt and output) that a share ``p`` of requests does not exceed."""
        return (self.total or self.prompt.plus(self.output)).quantile(p)

    def at_context(self, context: float) -> Mix:
        """The same requests with every prompt as long as makes the context ``context`` at the end."""
        output = min(self.output.mean, context - 1) if context > 1 else 1.0
        return self._replace(
            name=f"context of {context:,.0f} tokens",
            prompt=Lengths.fixed(max(context - output, 1.0)),
            output=Lengths.fixed(max(output, 1.0)),
            total=None,
        )


class Objective(NamedTuple):
    """One line of the SLO: ``limit_s`` already carries the headroom."""

    metric: str
    percentile: str
    declared_s: float
    limit_s: float


class Miss(NamedTuple):
    """An objective that a point does not meet."""

    objective: Objective
    seconds: float


class Point:
    """A steady state at a decode batch: step times, rates and latency percentiles of one replica."""

    def __init__(self, service: Service, batch: float) -> None:
        self.service = service
        self.batch = batch
        mix, scheduler = service.mix, service.scheduler
        self._q = scheduler.verify_tokens
        self._yield = scheduler.yield_per_step
        # Requests that finish, and so start, in a step; per rank, since a rank fills its own steps.
        self.requests_per_step = batch * self._yield / mix.output.mean
        self.chunk = service.chunk(batch)

    def shape(self, prefill_tokens: float = 0.0, prefill_context: float = 0.0, outputs: float = 1.0) -> StepShape:
        """The shape of a step at this point, with or without a chunk of prompt on every rank."""
        ranks = float(self.service.scheduler.ranks)
        return StepShape(
            batch=self.batch,
            context=self.service.mix.mean_context,
            new_tokens=float(self._q),
            prefill_sequences=ranks if prefill_tokens > 0 else 0.0,
            prefill_context=prefill_context,
            prefill_tokens=prefill_tokens,
            prefill_outputs=outputs,
        )

    @cached_property
    def plain_s(self) -> float:
        """Seconds of a step without prefill."""
        return self.service.seconds(self.shape())

    def mixed_s(self, tokens: float, context: float, outputs: float = 1.0) -> float:
        """Seconds of a step that also prefills ``tokens`` tokens on every rank."""
        if self.service.separate:
            return self.plain_s
        return self.service.seconds(self.shape(tokens, context, outputs))

    @cached_property
    def _chunks(self) -> list[tuple[float, float, float, float]]:
        """Kinds of prefill steps of a request: (expected count, tokens, context, prompts finished)."""
        hit = self.service.mix.prefix_hit
        chunks: list[tuple[float, float, float, float]] = []
        full, full_context = 0.0, 0.0
        for node in self.service.mix.prompt.nodes:
            new = max(node.tokens * (1 - hit), 1.0)
            whole = math.floor(new / self.chunk) if self.chunk else 0
            rest = new - whole * self.chunk if self.chunk else new
            full += node.weight * whole
            full_context += node.weight * whole * (node.tokens * hit + (whole - 1) / 2 * self.chunk)
            if rest > 1e-9:
                chunks.append((node.weight, rest, node.tokens - rest, 1.0))
        if full > 0:
            chunks.append((full, self.chunk, full_context / full, 0.0))
        return chunks

    @cached_property
    def _prefill_share(self) -> tuple[float, float, float]:
        """Share of steps that carry prefill, tokens in such a step, and the crowding of prompts in it."""
        per_request = sum(count for count, *_ in self._chunks)
        tokens = sum(count * size for count, size, *_ in self._chunks)
        per_rank = self.requests_per_step / self.service.scheduler.ranks
        wanted = per_rank * per_request
        share = min(1.0, wanted)
        size = per_rank * tokens / share if share > 0 else 0.0
        return share, size, max(1.0, wanted)

    @property
    def mixed_share(self) -> float:
        """Share of steps that carry prefill."""
        return 0.0 if self.service.separate else self._prefill_share[0]

    @cached_property
    def saturated(self) -> bool:
        """Whether prompts arrive faster than the token budget of every step can take."""
        if self.service.separate:
            return False
        return bool(self.chunk) and self._prefill_share[1] > self.chunk * (1 + 1e-9)

    @cached_property
    def average_mixed_s(self) -> float:
        """Seconds of the average step that carries prefill."""
        share, size, _ = self._prefill_share
        if share <= 0 or self.service.separate:
            return self.plain_s
        mix = self.service.mix
        context = mix.prompt.mean * mix.prefix_hit + max(mix.new_prompt - size, 0.0) / 2
        return self.mixed_s(size, context)

    @cached_property
    def step_s(self) -> float:
        """Seconds of the average step."""
        share = self.mixed_share
        return (1 - share) * self.plain_s + share * self.average_mixed_s

    @property
    def rate(self) -> float:
        """Requests per second that this batch stands for."""
        return self.requests_per_step / self.step_s if self.step_s > 0 else math.inf

    @property
    def throughput(self) -> float:
        """Output tokens per second of the replica."""
        return self.batch * self._yield / self.step_s if self.step_s > 0 else math.inf

    @cached_property
    def _step_times(self) -> list[tuple[float, float]]:
        """(seconds, share of steps) of every kind of step, fastest first."""
        share, _, crowd = self._prefill_share
        if self.service.separate or share <= 0:
            return [(self.plain_s, 1.0)]
        times = [(self.plain_s, 1.0 - share)]
        total = sum(count for count, *_ in self._chunks)
        for count, tokens, context, outputs in self._chunks:
            packed = min(tokens * crowd, self.chunk) if self.chunk else tokens * crowd
            times.append((self.mixed_s(packed, context, outputs), share * count / total))
        return sorted(times)

    def itl(self, percentile: str) -> float:
        """Inter-token latency: the step time that a share of decoded tokens waits at most, in seconds."""
        if percentile == "mean":
            return self.step_s
        wanted, seen = percentile_share(percentile), 0.0
        for seconds, share in self._step_times:
            seen += share
            if seen >= wanted - 1e-12:
                return seconds
        return self._step_times[-1][0]

    def tpot(self, percentile: str) -> float:
        """Time per output token of a request: mean step over the tokens it yields, spread over requests.

        A request of n steps meets a binomial number of prefill steps; the percentile is over requests.
        """
        mean = self.step_s / self._yield
        if percentile == "mean" or self.mixed_share in (0.0, 1.0):
            return mean
        steps = max(self.service.mix.output.mean / self._yield, 1.0)
        share = self.mixed_share
        spread = _normal_quantile(percentile_share(percentile)) * math.sqrt(share * (1 - share) / steps)
        shifted = min(max(share + spread, 0.0), 1.0)
        return ((1 - shifted) * self.plain_s + shifted * self.average_mixed_s) / self._yield

    @cached_property
    def _prefill_times(self) -> list[tuple[float, float]]:
        """(weight, seconds) from the start of a prompt's prefill to its first token.

        Steps that carry the prompt also carry what else arrives meanwhile, up to the step's budget.
        """
        service = self.service
        pool = service.scheduler.disaggregation
        if pool is not None:
            return [(n.weight, service.separate_prefill_s(n, pool)) for n in service.mix.prompt.nodes]
        company = self.requests_per_step / service.scheduler.ranks * service.mix.new_prompt
        times = []
        for node in service.mix.prompt.nodes:
            new = max(node.tokens * (1 - service.mix.prefix_hit), 1.0)
            whole = math.floor(new / self.chunk) if self.chunk else 0
            rest = new - whole * self.chunk if self.chunk else new
            seconds = 0.0
            if whole:
                # Steps grow with the context that each chunk attends to, so the middle one is the mean.
                middle = node.tokens - new + (whole - 1) / 2 * self.chunk
                seconds += whole * self.mixed_s(self.chunk, middle, 0.0)
            if rest > 1e-9:
                shared = min(rest + company, self.chunk) if self.chunk else rest
                seconds += self.mixed_s(max(shared, rest), node.tokens - rest)
            times.append((node.weight, seconds))
        return times

    @cached_property
    def _queue_times(self) -> list[tuple[float, float]]:
        """(weight, seconds) that a prompt occupies the prefill side: its share of full steps.

        A step's budget takes several short prompts at once, so a prompt occupies only its share of it.
        """
        if self.service.separate or not self.chunk:
            return self._prefill_times
        full = self.mixed_s(self.chunk, self.service.mix.prompt.mean / 2)
        hit = self.service.mix.prefix_hit
        return [(n.weight, max(n.tokens * (1 - hit), 1.0) / self.chunk * full) for n in self.service.mix.prompt.nodes]

    @cached_property
    def prefill_utilization(self) -> float:
        """Share of the prefill capacity that is used; at 1 the queue grows without end."""
        scheduler = self.service.scheduler
        pool = scheduler.disaggregation
        if pool is not None:
            rate, servers = self.rate * self.service.decode_replicas, pool.prefill.replicas
        else:
            rate, servers = self.rate, scheduler.ranks
        return rate / servers * sum(w * s for w, s in self._queue_times)

    @cached_property
    def queue_s(self) -> float:
        """Mean wait before prefill, Kingman's G/G/1 form; infinite when prefill is saturated.

        0 when no arrivals are declared: a closed loop sends the next request when one has finished.
        """
        times = self._queue_times
        mean = sum(w * s for w, s in times)
        if mean <= 0 or not self.service.open_loop:
            return 0.0
        square = sum(w * s * s for w, s in times)
        service_cv2 = max(square / mean**2 - 1, 0.0)
        rho = self.prefill_utilization
        if rho >= 1:
            return math.inf
        return (self.service.mix.arrival_cv**2 + service_cv2) / 2 * rho / (1 - rho) * mean

    def ttft(self, percentile: str) -> float:
        """Time to first token in seconds: queue, prefill, cold grammar compile, KV transfer.

        The wait has an atom at zero and an exponential tail; prompts, waits and compiles are independent.
        """
        wait = self.queue_s
        if math.isinf(wait):
            return math.inf
        scheduler = self.service.scheduler
        extra, share = scheduler.first_token_s, scheduler.first_token_share
        if percentile == "mean":
            return wait + sum(w * s for w, s in self._prefill_times) + extra * share
        tail = 1 - percentile_share(percentile)
        rho = self.prefill_utilization
        scale = wait / rho if rho > 0 else 0.0
        parts = [(w * (1 - share), s) for w, s in self._prefill_times]
        if share > 0:
            parts += [(w * share, s + extra) for w, s in self._prefill_times]
        # Over strata the slowest one stands for its whole weight.
        low, high = 0.0, max(s for _, s in parts) + scale * 40

        def beyond(t: float) -> float:
            total = 0.0
            for weight, seconds in parts:
                if t < seconds:
                    total += weight
                elif scale > 0:
                    total += weight * rho * math.exp(-(t - seconds) / scale)
            return total

        for _ in range(50):
            middle = (low + high) / 2
            if beyond(middle) > tail:
                low = middle
            else:
                high = middle
            if high - low <= 1e-4 * high:
                break
        return high

    def e2e(self, percentile: str) -> float:
        """End-to-end latency of a request in seconds: first token, then the output at the mean pace."""
        pace = self.step_s / self._yield
        output = self.service.mix.output
        if percentile == "mean":
            return self.ttft("mean") + max(output.mean - 1, 0.0) * pace
        tokens = output.quantile(percentile_share(percentile))
        return self.ttft("mean") + max(tokens - 1, 0.0) * pace

    def latency(self, metric: str, percentile: str) -> float:
        """Return ``ttft``, ``itl``, ``tpot`` or ``e2e`` at a percentile, in seconds."""
        function: Callable[[str], float] = getattr(self, metric)
        return function(percentile)

    def misses(self, objectives: tuple[Objective, ...], *, declared: bool = False) -> list[Miss]:
        """Objectives that this point does not meet; against the declared limits, or those with headroom."""
        found = []
        for objective in objectives:
            seconds = self.latency(objective.metric, objective.percentile)
            limit = objective.declared_s if declared else objective.limit_s
            if seconds > limit * (1 + 1e-9):
                found.append(Miss(objective, seconds))
        return found


class Service:
    """A composed replica under a mix of requests.

    ``figure`` says which of the three times the points are made of; limits (`batch_limit`) are the same.
    ``open_loop`` says that requests arrive at a declared rate, and so can queue.
    """

    def __init__(
        self, composition: Composition, mix: Mix, figure: Figure = "estimate", *, open_loop: bool = True
    ) -> None:
        self.open_loop = open_loop
        self.composition = composition
        self.mix = mix
        self.figure = figure
        self.scheduler: Scheduler = composition.scheduler
        pool = self.scheduler.disaggregation
        self.separate = pool is not None
        self._decode = pool.decode.composition if pool is not None else composition
        self._pools = pool
        pricer: Pricer = self._decode.pricer
        self.seconds: Callable[[StepShape], float] = getattr(pricer, figure)
        self._points: dict[float, Point] = {}

    @property
    def decode_replicas(self) -> int:
        """Replicas of the decode side that share the load."""
        return self._pools.decode.replicas if self._pools is not None else 1

    def chunk(self, batch: float) -> float:
        """Prompt tokens that fit into a step beside the decoding sequences; 0 when prompts are not cut."""
        size = self.scheduler.chunk_tokens
        if not size:
            return 0.0
        budget = self.scheduler.max_batched_tokens or size
        room = budget - batch / self.scheduler.ranks * self.scheduler.verify_tokens
        return float(max(min(size, room), 16.0))

    def separate_prefill_s(self, node: Node, pools: Disaggregation) -> float:
        """Seconds of prefill on its own pool and of what the KV transfer adds, for one prompt."""
        new = max(node.tokens * (1 - self.mix.prefix_hit), 1.0)
        pricer: Pricer = pools.prefill.composition.pricer
        function: Callable[[StepShape], float] = getattr(pricer, self.figure)
        seconds = function(prefill(new, node.tokens - new))
        return seconds + self.transfer_s(node.tokens, seconds, pools)

    def transfer_s(self, tokens: float, prefill_s: float, pools: Disaggregation) -> float:
        """Seconds that moving a sequence's KV adds after its prefill."""
        moved = kv_bytes(self.composition, tokens) / pools.bytes_per_s
        if not pools.layerwise:
            return pools.setup_s + moved
        layers = self.composition.setup.architecture.num_layers
        return pools.setup_s + max(moved - prefill_s * (layers - 1) / layers, moved / layers)

    @cached_property
    def batch_limit(self) -> int:
        """Sequences that can decode at once: admission, token budget and KV capacity at the mean context."""
        resident = self._decode.memory.resident_sequences(self.mix.mean_context)
        limits = [resident]
        if self.scheduler.max_sequences is not None:
            limits.append(self.scheduler.max_sequences)
        if self.scheduler.max_batched_tokens is not None and not self.separate:
            per_rank = self.scheduler.max_batched_tokens // self.scheduler.verify_tokens
            limits.append(max(per_rank, 1) * self.scheduler.ranks)
        return max(min(limits), 0)

    def point(self, batch: float) -> Point:
        """Return the steady state at a decode batch (at least one sequence in flight)."""
        found = self._points.get(batch)
        if found is None:
            found = self._points[batch] = Point(self, batch)
        return found

    @cached_property
    def max_rate(self) -> float:
        """Most requests per second within the limits, whatever the latency; 0 when nothing fits."""
        if self.batch_limit < 1:
            return 0.0
        batch = self._largest(lambda p: not p.saturated)
        return self.point(batch).rate * self.decode_replicas if batch else 0.0

    def at_rate(self, rate: float) -> Point | None:
        """Return the point that carries an offered rate (requests/s of this replica), None if none does."""
        rate /= self.decode_replicas
        limit = self.batch_limit
        if limit < 1:
            return None
        lowest = self.point(1.0)
        if lowest.rate >= rate:
            # Less than one sequence on average: steps are those of one.
            return lowest
        low, high = 1.0, 1.0
        while high < limit:
            high = min(high * 2, float(limit))
            point = self.point(high)
            if not point.saturated and point.rate >= rate:
                break
            low = high if not point.saturated else low
        point = self.point(high)
        if point.saturated or point.rate < rate:
            # The budget may saturate before the batch limit; look just below.
            best = self._largest(lambda p: not p.saturated)
            if best < 1 or self.point(best).rate < rate:
                return None
            high = best
        for _ in range(12):
            if high - low <= 0.01 * high:
                break
            middle = (low + high) / 2
            if self.point(middle).rate >= rate:
                high = middle
            else:
                low = middle
        return self.point(high)

    def _largest(self, holds: Callable[[Point], bool]) -> int:
        """Largest batch within the limit for which a condition holds, given that it holds up to some batch."""
        limit = self.batch_limit
        if limit < 1 or not holds(self.point(1.0)):
            return 0
        if holds(self.point(float(limit))):
            return limit
        low, high = 1, limit
        while high - low > 1:
            middle = (low + high) // 2
            if holds(self.point(float(middle))):
                low = middle
            else:
                high = middle
        return low

    def knee(self, objectives: tuple[Objective, ...]) -> Point | None:
        """Return the point of most throughput that meets every objective, None when even one sequence misses."""
        batch = self._largest(lambda p: not p.saturated and not p.misses(objectives))
        return self.point(float(batch)) if batch else None

    def frontier(self, points: int = 12) -> list[Point]:
        """Return points from one sequence to the batch limit, geometrically spaced."""
        limit = self.batch_limit
        if limit < 1:
            return []
        batches = {round(limit ** (i / (points - 1))) for i in range(points)}
        return [self.point(float(b)) for b in sorted(batches) if not self.point(float(b)).saturated]


def kv_bytes(composition: Composition, tokens: float) -> float:
    """Cache and state bytes of one whole sequence, counted once whatever the parallelism."""
    architecture = composition.setup.architecture
    widths = {c.block: c.format.bytes_per_element for c in composition.memory.caches}
    total = architecture.state_bytes_per_sequence()
    for block in architecture.blocks:
        if isinstance(block.mixer, Attention | LatentAttention):
            total += block.count * block.mixer.sequence_bytes(tokens, widths[block.name])
    return total


def _normal_quantile(p: float) -> float:
    """Standard normal quantile, by bisection of the error function."""
    if p <= 0.0 or p >= 1.0:
        return math.copysign(8.0, p - 0.5)
    low, high = -8.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        if 0.5 * (1 + math.erf(middle / math.sqrt(2))) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2
