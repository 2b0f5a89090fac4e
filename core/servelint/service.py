"""From a step to a service: operating point, percentiles, frontier and knee, by closed forms.

A *point* is a decode batch in steady state with its share of prefill. Everything follows from the batch B: a
step yields B x tokens, so m = B x yield / E[output] requests enter and leave a step, and m x E[prompt] prompt
tokens are prefilled in it on average. Steps are of three kinds: plain, with a full chunk of a prompt, with the
last pieces of prompts. The conventions are written out in docs/cost-model.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from servelint.architecture import Attention, LatentAttention
from servelint.composition import Composition
from servelint.cost import Pricer
from servelint.distribution import STRATA, Lengths, percentile_share
from servelint.scheduler import Disaggregation, Scheduler
from servelint.shapes import StepShape, prefill

Figure = Literal["bound", "sustained_bound", "estimate"]

LEAST_BATCH = 1 / 1024
"""Share of the time that a sequence decodes below which a replica counts as idle."""


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

    def computed(self, prompt: float) -> float:
        """Tokens that have to be computed of a prompt of that many; at least one, which yields the first token."""
        return max(prompt * (1 - self.prefix_hit), 1.0)

    @property
    def mean_context(self) -> float:
        """Mean tokens in the cache of a decoding sequence, over the tokens it decodes.

        A request spends as many steps at each length as it has output tokens: E[prompt] + E[output^2] / (2
        E[output]), for independent prompt and output.
        """
        return self.prompt.mean + self.output.second_moment / (2 * self.output.mean)

    @property
    def whole(self) -> Lengths:
        """Lengths of prompt and output together, which are independent but in a trace."""
        return self.total or self.prompt.plus(self.output)

    def context(self, p: float) -> float:
        """The final context (prompt and output) that a share ``p`` of requests does not exceed."""
        return self.whole.quantile(p)

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


class _Piece(NamedTuple):
    """A range of pieces that prompts fall into, as many a request: full chunks, or the pieces that end a prompt.

    The range runs evenly from the cheap end to the dear one, in new tokens and in the tokens cached before them;
    ``tokens`` is the mean.
    """

    per_request: float
    ends: bool
    tokens: float
    sizes: tuple[float, float]
    pasts: tuple[float, float]

    @property
    def past(self) -> float:
        """Mean tokens that are cached before the piece."""
        return (self.pasts[0] + self.pasts[1]) / 2


class MixedStep(NamedTuple):
    """What a decoded token waits for: a step that also prefills ``tokens`` of prompts over ``past`` cached ones.

    ``prompts`` pieces of prompts meet in it; with ``full`` they are a chunk that is followed by another.
    """

    seconds: float
    tokens: float
    past: float
    prompts: float
    full: bool


class _Kind(NamedTuple):
    """Steps with prefill that differ in size only: the share of decoded tokens that wait for them."""

    share: float
    cheap: MixedStep
    dear: MixedStep

    def beyond(self, seconds: float) -> float:
        """Share of decoded tokens that wait longer, the seconds spread evenly between the two ends."""
        low, high = self.cheap.seconds, self.dear.seconds
        if seconds >= high:
            return 0.0
        return self.share if seconds < low else self.share * (high - seconds) / (high - low)

    def at(self, seconds: float) -> MixedStep:
        """The step of that length within the range."""
        low, high = self.cheap, self.dear
        width = high.seconds - low.seconds
        t = min(max((seconds - low.seconds) / width, 0.0), 1.0) if width > 0 else 1.0
        return MixedStep(
            seconds, low.tokens + t * (high.tokens - low.tokens), low.past + t * (high.past - low.past), *high[3:]
        )


class _Prompts(NamedTuple):
    """How the prompt of one request falls into steps, in the mean.

    ``full`` chunks fill a step's share of prompt tokens, ``rest`` last pieces (whole prompts, where prompts
    are not cut) end a prompt; the contexts are what is cached before such a piece.
    """

    full: float
    full_context: float
    rest: float
    rest_tokens: float
    rest_context: float

    @property
    def context(self) -> float:
        """The same before any piece."""
        pieces = self.full + self.rest
        return (self.full * self.full_context + self.rest * self.rest_context) / pieces if pieces else 0.0


class Point:
    """A steady state at a decode batch: step times, rates and latency percentiles of one replica.

    ``batch`` is the mean number of decoding sequences. Below one, a sequence decodes only that share of the
    time, in steps of one sequence.
    """

    def __init__(self, service: Service, batch: float) -> None:
        self.service = service
        self.batch = batch
        self._yield = service.scheduler.yield_per_step
        # Requests that finish, and so start, in the time of a step.
        self.requests_per_step = batch * self._yield / service.decoded_per_request
        self._prompts_per_rank = self.requests_per_step / service.scheduler.ranks
        # Tokens of a prompt after which the others decode again: none where prompts go first.
        self.chunk = 0.0 if service.prompts_first else service.chunk(batch)
        # Tokens of a prompt that one step takes, beside the others or before them; 0 where prompts are not cut.
        self.piece = service.prompt_step if service.prompts_first else self.chunk

    def shape(
        self,
        prefill_tokens: float = 0.0,
        prefill_context: float = 0.0,
        outputs: float = 1.0,
        prompts: float = 1.0,
        decoding: float | None = None,
    ) -> StepShape:
        """The shape of a step at this point, with or without ``prompts`` pieces of that many tokens on every rank.

        ``decoding`` sequences decode in it: this point's, but at least the one whose token is waited for.
        """
        return StepShape(
            batch=max(self.batch, 1.0) if decoding is None else decoding,
            context=self.service.mix.mean_context,
            new_tokens=float(self.service.scheduler.verify_tokens),
            prefill_sequences=self._together * prompts if prefill_tokens > 0 else 0.0,
            prefill_context=prefill_context,
            prefill_tokens=prefill_tokens,
            prefill_outputs=outputs,
        )

    def prompts_shape(self, past: float = 0.0, most: float = math.inf) -> StepShape:
        """The step with most prompt tokens, up to ``most``, over ``past`` cached ones: beside decoding, or alone."""
        tokens = min(self.piece or self.service.mix.new_prompt, most)
        return self.shape(tokens, past, decoding=None if self.service.mixed else 0.0)

    @cached_property
    def plain_s(self) -> float:
        """Seconds of a step without prefill."""
        return self.service.seconds(self.shape())

    def mixed_s(
        self,
        tokens: float,
        context: float,
        outputs: float = 1.0,
        prompts: float = 1.0,
        decoding: float | None = None,
    ) -> float:
        """Seconds of a step that also prefills ``tokens`` tokens on every rank, of ``prompts`` equal prompts.

        Where steps are not mixed, of those that prefill them and of the step that decodes after them.
        """
        if self.service.separate:
            return self.plain_s
        if not self.service.mixed:
            return self.prompts_s(tokens, context, prompts) + (self.plain_s if decoding is None else 0.0)
        ranks, pieces = self.service.scheduler.ranks, max(1.0, prompts)
        if ranks == 1 or pieces == 1:
            return self.service.seconds(self.shape(tokens / pieces, context, outputs, pieces, decoding))
        alone = self.service.seconds(self.shape(tokens, context, outputs, 1.0, decoding))
        every = self._every_rank_s(tokens, context, outputs, pieces, decoding)
        return alone + (self._together - 1) / (ranks - 1) * (every - alone)

    def prompts_s(self, tokens: float, context: float, prompts: float = 1.0) -> float:
        """Seconds of steps of prompts alone: ``tokens`` new ones on every rank that prefills, of equal prompts."""
        each, most, room = tokens / prompts, self.service.prompt_step or math.inf, self.service.prompt_room
        if each > most:
            whole, last = _cut(each, most)
            middle = context + (whole - 1) / 2 * most
            seconds = whole * self.alone_s(most, middle, 0.0)
            return prompts * (seconds + self.alone_s(last, context + whole * most, 1.0))
        if tokens <= room or each <= 0:
            return self.alone_s(tokens, context, 1.0, prompts)
        packed = max(room / each if self.service.prompt_step else math.floor(room / each), 1.0)
        return prompts / packed * self.alone_s(packed * each, context, 1.0, packed)

    def alone_s(self, tokens: float, context: float, outputs: float = 1.0, prompts: float = 1.0) -> float:
        """Seconds of one step of prompts alone, whatever a step may take."""
        return self.service.seconds(self.shape(tokens / prompts, context, outputs, prompts, 0.0))

    def _every_rank_s(
        self, tokens: float, context: float, outputs: float, pieces: float, decoding: float | None = None
    ) -> float:
        """The same when every rank prefills, however seldom that is."""
        scale = self.service.scheduler.ranks / self._together

        def priced(whole: float) -> float:
            return self.service.seconds(self.shape(tokens / whole, context, outputs, whole * scale, decoding))

        if self.service.scheduler.ranks == 1:
            return priced(pieces)
        # The fullest rank is priced with whole prompts.
        whole = float(math.floor(pieces))
        seconds = priced(whole)
        return seconds + (pieces - whole) * (priced(whole + 1.0) - seconds) if pieces > whole else seconds

    # Steps

    @cached_property
    def _pieces(self) -> list[_Piece]:
        """The pieces of prompts, by strata of their lengths.

        A fixed length is cut exactly. Lengths that spread over more than half a chunk beyond the first have half a
        full chunk less than they are long, and a last piece of any size: the expectation of an exact cut.
        """
        mix, chunk = self.service.mix, self.chunk
        hit, prompt = mix.prefix_hit, mix.prompt
        if prompt.is_fixed:
            return list(self._exact_pieces(prompt.mean))
        pieces, spread, spread_past = [], 0.0, 0.0
        computed = chunk / (1 - hit)
        for weight, low, high, tokens in prompt.strata(computed, 1.5 * computed) if chunk else prompt.strata():
            new, past = mix.computed(tokens), tokens * hit
            sizes = mix.computed(low), mix.computed(high)
            if not chunk or new <= chunk:
                pieces.append(_Piece(weight, True, new, sizes, (low * hit, high * hit)))
            elif new <= 1.5 * chunk:
                pieces.append(_Piece(weight, False, chunk, (chunk, chunk), (past, past)))
                rests = max(sizes[0] - chunk, 0.0), max(sizes[1] - chunk, 0.0)
                pieces.append(_Piece(weight, True, new - chunk, rests, (low * hit + chunk, high * hit + chunk)))
            else:
                last = past + new - 1.5 * chunk
                pieces.append(_Piece(weight * (new / chunk - 0.5), False, chunk, (chunk, chunk), (past, last)))
                spread += weight
                spread_past += weight * (last + chunk)
        if spread > 0:
            past = spread_past / spread
            pieces.append(_Piece(spread, True, chunk / 2, (0.0, chunk), (past, past)))
        return pieces

    def _exact_pieces(self, tokens: float) -> Iterator[_Piece]:
        whole, last = _cut(self.service.mix.computed(tokens), self.chunk)
        past = tokens - whole * self.chunk - last
        if whole:
            pasts = past, past + (whole - 1) * self.chunk
            yield _Piece(float(whole), False, self.chunk, (self.chunk, self.chunk), pasts)
        yield _Piece(1.0, True, last, (last, last), (tokens - last, tokens - last))

    @cached_property
    def _prompts(self) -> _Prompts:
        full = full_past = rest = rest_tokens = rest_past = 0.0
        for piece in self._pieces:
            if piece.ends:
                rest += piece.per_request
                rest_tokens += piece.per_request * piece.tokens
                rest_past += piece.per_request * piece.past
            else:
                full += piece.per_request
                full_past += piece.per_request * piece.past
        return _Prompts(
            full,
            full_past / full if full else 0.0,
            rest,
            rest_tokens / rest if rest else 0.0,
            rest_past / rest if rest else 0.0,
        )

    @cached_property
    def _shares(self) -> tuple[float, float, float]:
        """Share of steps with a full chunk, share with last pieces, and how many of these meet in a step."""
        full, rest, crowd = self._rank_shares
        own = full + rest
        if own <= 0 or not self.service.scheduler.lockstep:
            return full, rest, crowd
        # Ranks that step together all wait when any of them prefills.
        union = self._union(own)
        return full / own * union, rest / own * union, crowd

    def _union(self, own: float) -> float:
        """Share of steps in which any rank prefills, where each does in a share of its own."""
        return min(_any_of(own, self.service.scheduler.ranks), self.service.most_mixed)

    @cached_property
    def _rank_shares(self) -> tuple[float, float, float]:
        """The same for the steps of one rank."""
        if self.service.separate:
            return 0.0, 0.0, 1.0
        most = self.service.most_mixed
        full = min(most, self._prompts_per_rank * self._prompts.full)
        pieces = self._prompts_per_rank * self._prompts.rest
        rest = min(most - full, pieces * self._decoding_share)
        return full, rest, pieces / rest if rest > 0 else 1.0

    @cached_property
    def _decoding_share(self) -> float:
        """Share of requests that arrive while others decode.

        Where prompts go first, what arrives during prompts is let in before the next decoding step, which so waits for
        several; in a closed loop requests follow one that has finished, and none does meanwhile. Of ranks that step
        together, which wait for each other's prompts, the means of a closed loop are taken.
        """
        if not self.service.prompts_first or not self.service.open_loop or self.service.scheduler.lockstep:
            return 1.0
        mix = self.service.mix
        prompts = self._prompts_per_rank * self.prompts_s(mix.new_prompt, mix.prompt.mean - mix.new_prompt)
        return self.plain_s / (self.plain_s + prompts) if prompts > 0 else 1.0

    @cached_property
    def _together(self) -> float:
        """Ranks that prefill in a step with prefill: all of them, or as many as meet by chance in lockstep."""
        ranks = self.service.scheduler.ranks
        if not self.service.scheduler.lockstep:
            return float(ranks)
        own = sum(self._rank_shares[:2])
        if own <= 0:
            return float(ranks)
        return max(1.0, ranks * own / self._union(own))

    @property
    def mixed_share(self) -> float:
        """Share of steps that carry prefill."""
        full, rest, _ = self._shares
        return full + rest

    @cached_property
    def saturated(self) -> bool:
        """Whether prompts arrive faster than they can be prefilled, whatever the latency.

        Co-located: faster than the token budget of every step can take. On a pool of its own: faster than
        the pool computes.
        """
        if self.service.separate:
            return self.prefill_utilization >= 1.0
        if self.service.prompts_first:
            # Prompts take the time that they need from decoding, and more sequences decode.
            return False
        room = (self.chunk or self.service.room(self.batch)) * self.service.most_mixed
        return self._prompts_per_rank * self.service.mix.new_prompt > room * (1 + 1e-9)

    @cached_property
    def average_mixed_s(self) -> float:
        """Seconds of the average step that carries prefill."""
        full, rest, crowd = self._shares
        if full + rest <= 0:
            return self.plain_s
        prompts, seconds = self._prompts, 0.0
        if full > 0:
            seconds += full * self.mixed_s(self.chunk, prompts.full_context, 0.0)
        if rest > 0:
            seconds += rest * self.mixed_s(prompts.rest_tokens * crowd, prompts.rest_context, 1.0, crowd)
        return seconds / (full + rest)

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

    # Percentiles of the pace

    @cached_property
    def delayed_share(self) -> float:
        """Share of decoded tokens that wait for a step with prefill of another request.

        Arrivals at a rate do not depend on who decodes, so it is the share of steps. In a closed loop one of
        ``batch`` sequences is the one that prefills, and waits for no token of its own.
        """
        share = self.mixed_share
        if self.service.open_loop or share <= 0:
            return share
        others = share * max(self.batch - 1.0, 0.0) / max(self.batch, 1.0)
        return others / (1 - share + others) if others > 0 else 0.0

    @cached_property
    def _mixed_kinds(self) -> list[_Kind]:
        """Every kind of step with prefill."""
        full, rest, crowd = self._shares
        scale = self.delayed_share / (full + rest)
        known: dict[tuple[float, float, bool], MixedStep] = {}

        def step(tokens: float, past: float, ends: bool) -> MixedStep:
            key = tokens, past, ends
            if key not in known:
                packed = min(tokens * crowd, self.chunk or math.inf) if ends else tokens
                met = packed / tokens if tokens else 1.0
                seconds = self.mixed_s(packed, past, float(ends), met)
                known[key] = MixedStep(seconds, packed, past, met, not ends)
            return known[key]

        kinds = []
        for piece in self._pieces:
            steps, all_pieces = (rest, self._prompts.rest) if piece.ends else (full, self._prompts.full)
            cheap, dear = (step(n, past, piece.ends) for n, past in zip(piece.sizes, piece.pasts, strict=True))
            if cheap.seconds > dear.seconds:
                cheap, dear = dear, cheap
            kinds.append(_Kind(steps * scale * piece.per_request / all_pieces, cheap, dear))
        return kinds

    def itl(self, percentile: str) -> float:
        """Inter-token latency: the step time that a share of decoded tokens waits at most, in seconds.

        Between plain and mixed steps there is nothing, and the percentile jumps.
        """
        if percentile == "mean":
            return (1 - self.delayed_share) * self.plain_s + self.delayed_share * self.average_mixed_s
        tail = 1 - percentile_share(percentile) + 1e-12
        if self.delayed_share <= tail:
            return self.plain_s
        kinds = self._mixed_kinds
        edges = sorted({step.seconds for kind in kinds for step in (kind.cheap, kind.dear)})
        i = bisect_left(edges, True, key=lambda t: sum(kind.beyond(t) for kind in kinds) <= tail)
        if i == 0:
            return edges[0]
        low, high = edges[i - 1 : i + 1]
        slower = sum(kind.beyond(low) for kind in kinds)
        # What is left just before the edge: kinds of one length end there at once.
        left = sum(kind.share if kind.cheap.seconds >= high else kind.beyond(high) for kind in kinds)
        return low + (high - low) * (slower - tail) / (slower - left) if left < tail else high

    def mixed_step(self, percentile: str) -> MixedStep | None:
        """The kind of step that sets a percentile of the inter-token latency; None when it is a plain step."""
        seconds = self.itl(percentile)
        if self.delayed_share <= 1 - percentile_share(percentile) + 1e-12:
            return None
        around = [k for k in self._mixed_kinds if k.cheap.seconds <= seconds <= k.dear.seconds]
        # Of several the one that such a step most likely is.
        return max(around, key=lambda k: k.share / (k.dear.seconds - k.cheap.seconds + 1e-9)).at(seconds)

    def tpot(self, percentile: str) -> float:
        """Time per output token of a request: mean step over the tokens it yields, spread over requests.

        A request of n steps meets a binomial number of prefill steps; the percentile is over requests.
        """
        share = self.delayed_share_of_request(percentile)
        return ((1 - share) * self.plain_s + share * self.average_mixed_s) / self._yield

    def delayed_share_of_request(self, percentile: str) -> float:
        """Share of a request's steps that carry prefill of others, which that share of requests does not exceed."""
        share = self.delayed_share
        if percentile == "mean" or share in (0.0, 1.0):
            return share
        steps = max(self.service.mix.output.mean / self._yield, 1.0)
        spread = _normal_quantile(percentile_share(percentile)) * math.sqrt(max(share * (1 - share), 0.0) / steps)
        return min(max(share + spread, 0.0), 1.0)

    # The way to the first token

    def prefill_s(self, tokens: float) -> float:
        """Seconds from the start of the prefill of a prompt to its first token, KV transfer included.

        Steps that carry the prompt also carry what else arrives meanwhile, up to the step's budget.
        """
        pools = self.service.pools
        if pools is not None:
            seconds = self.service.pool_prefill_s(tokens)
            return seconds + self.service.transfer_s(tokens, seconds, pools)
        piece = self.piece
        whole, last = _cut(self.service.mix.computed(tokens), piece)
        new = whole * piece + last
        seconds = 0.0
        if whole:
            # Steps grow with the context that each chunk attends to, so the middle one is the mean.
            middle = tokens - new + (whole - 1) / 2 * piece
            seconds += whole * (self.mixed_s(piece, middle, 0.0, 1.0, self.batch) + self._between_s)
        return seconds + self._last_s(tokens, last)

    @property
    def _between_s(self) -> float:
        """Seconds that others decode between two steps with prompts."""
        return self.service.scheduler.decodes_between * self.plain_s

    def _last_s(self, tokens: float, last: float) -> float:
        """Seconds of the step that ends a prompt of that many tokens, in the company of what else arrives."""
        prompts, new = self._prompts, self.service.mix.new_prompt
        company = max(min(self._prompts_per_rank * new, self._left(last)), 0.0)
        if company == 0:
            return self.mixed_s(last, tokens - last, 1.0, 1.0, self.batch)
        # Where prompts go first, what comes along is such pieces, too, though no token waits for one alone.
        first = self.service.prompts_first and self.piece
        pieces = math.ceil(new / self.piece) if first else prompts.full + prompts.rest
        together, piece = last + company, new / max(pieces, 1)
        # As many equal pieces as have the same query-key pairs among new tokens.
        met = together**2 / (last**2 + company * piece)
        past = (last * (tokens - last) + company * prompts.context) / together
        if self.service.mixed:
            seconds = self.mixed_s(together, past, 1.0, met, self.batch)
        else:
            seconds = self.alone_s(together, past, 1.0, max(met, 1.0))
        # Equal pieces follow each other through pipeline stages; the prompt itself does not.
        return max(seconds, self.mixed_s(last, tokens - last, 1.0, 1.0, self.batch)) if self.service.staged else seconds

    def _left(self, last: float) -> float:
        """Prompt tokens that still go into the step that ends a prompt with ``last`` ones of it."""
        return (self.service.prompt_room if self.service.prompts_first else self.chunk or math.inf) - last

    @cached_property
    def _first_tokens(self) -> list[tuple[float, float, float]]:
        """(weight, seconds from, seconds to) of `prefill_s` over the strata of prompt lengths."""
        prompt = self.service.mix.prompt
        if prompt.is_fixed:
            seconds = self.prefill_s(prompt.mean)
            return [(1.0, seconds, seconds)]
        edges = [self.prefill_s(prompt.quantile(p)) for p in STRATA]
        weights = [high - low for low, high in pairwise(STRATA)]
        return [(w, low, max(low, high)) for w, (low, high) in zip(weights, pairwise(edges), strict=True)]

    @cached_property
    def _occupancy(self) -> tuple[float, float]:
        """Mean seconds that a prompt occupies the prefill side, and the mean of their squares.

        A step's budget takes several short prompts at once, so a prompt occupies only its share of a full step.
        """
        mix = self.service.mix
        if self.service.pools is not None:
            times = [(n.weight, self.service.pool_share_s(n.tokens)) for n in mix.prompt.nodes]
        else:
            room = self.chunk or self.service.room(self.batch)
            if math.isinf(room):
                room = max(self._prompts_per_rank, 1.0) * mix.new_prompt
            context = mix.prompt.mean - mix.new_prompt + max(mix.new_prompt - room, 0.0) / 2
            prompts, decoding = max(room / mix.new_prompt, 1.0), None if self.service.mixed else 0.0
            full = self._every_rank_s(room, context, 1.0, prompts, decoding) + self._between_s
            times = [(n.weight, mix.computed(n.tokens) / room * full) for n in mix.prompt.nodes]
        return sum(w * s for w, s in times), sum(w * s * s for w, s in times)

    @cached_property
    def prefill_utilization(self) -> float:
        """Share of the prefill capacity that is used; at 1 the queue grows without end."""
        pools = self.service.pools
        if pools is not None:
            share = self.service.decode_replicas / pools.prefill.replicas
        else:
            share = 1 / self.service.scheduler.ranks
        return self.rate * share * self._occupancy[0]

    @cached_property
    def queue_s(self) -> float:
        """Mean wait before prefill, Kingman's G/G/1 form; infinite when prefill is saturated.

        0 when no arrivals are declared: a closed loop sends the next request when one has finished.
        """
        mean, square = self._occupancy
        if mean <= 0 or not self.service.open_loop:
            return 0.0
        service_cv2 = max(square / mean**2 - 1, 0.0)
        rho = self.prefill_utilization
        if rho >= 1:
            return math.inf
        return (self.service.mix.arrival_cv**2 + service_cv2) / 2 * rho / (1 - rho) * mean

    @cached_property
    def _held_s(self) -> float:
        """Mean seconds that a sequence has its slot: from the start of its prefill, on a decode pool after it."""
        decoding = self.service.mix.output.mean / self._yield * self.step_s
        if self.service.pools is not None:
            return decoding
        return decoding + sum(w * (low + high) / 2 for w, low, high in self._first_tokens)

    @cached_property
    def slots_busy(self) -> float:
        """Share of the sequence slots that is taken when requests arrive at a rate; 0 in a closed loop."""
        slots = self.service.batch_limit
        if not self.service.open_loop or slots < 1 or self.batch <= 0:
            return 0.0
        return self.rate * self.service.scheduler.samples * self._held_s / slots

    @cached_property
    def slot_wait(self) -> tuple[float, float]:
        """Chance that a request waits for a free sequence slot, and the mean wait in seconds of all requests.

        Slots are the servers of a G/G/c queue: Sakasegawa's form for the chance, the Allen-Cunneen factor for
        the variability of arrivals and outputs. (0, 0) in a closed loop, (1, infinite) when all are taken.
        """
        busy, slots, mix = self.slots_busy, self.service.batch_limit, self.service.mix
        if busy <= 0:
            return 0.0, 0.0
        if busy >= 1.0:
            return 1.0, math.inf
        chance = busy ** (math.sqrt(2.0 * (slots + 1)) - 1.0)
        spread = mix.arrival_cv**2 + mix.output.second_moment / mix.output.mean**2 - 1.0
        return chance, chance * self._held_s * max(spread, 0.0) / (2.0 * slots * (1.0 - busy))

    @cached_property
    def wait(self) -> tuple[float, float]:
        """Chance that a request waits before its prefill, and the mean wait in seconds: for prefill, for a slot."""
        chance, slot = self.slot_wait
        queue = self.queue_s
        busy = self.prefill_utilization if queue > 0 else 0.0
        return 1.0 - (1.0 - min(busy, 1.0)) * (1.0 - chance), queue + slot

    def ttft(self, percentile: str) -> float:
        """Time to first token in seconds: queue, prefill, cold grammar compile, KV transfer.

        The wait has an atom at zero and an exponential tail; prompts, waits and compiles are independent.
        """
        rho, wait = self.wait
        if math.isinf(wait):
            return math.inf
        scheduler = self.service.scheduler
        extra, share = scheduler.first_token_s, scheduler.first_token_share
        if percentile == "mean":
            return wait + sum(w * (low + high) / 2 for w, low, high in self._first_tokens) + extra * share
        tail = 1 - percentile_share(percentile)
        scale = wait / rho if rho > 0 else 0.0
        parts = [(w * (1 - share), low, high) for w, low, high in self._first_tokens]
        if share > 0:
            parts += [(w * share, low + extra, high + extra) for w, low, high in self._first_tokens]
        below, above = 0.0, max(high for _, _, high in parts) + scale * 40
        while above - below > 1e-5 * above:
            middle = (below + above) / 2
            if sum(w * _beyond(middle, low, high, rho, scale) for w, low, high in parts) > tail + 1e-12:
                below = middle
            else:
                above = middle
        return above

    def e2e(self, percentile: str) -> float:
        """End-to-end latency of a request in seconds: first token, then the output at the mean pace."""
        pace = self.tpot("mean")
        output = self.service.mix.output
        tokens = output.mean if percentile == "mean" else output.quantile(percentile_share(percentile))
        return self.ttft("mean") + max(tokens - 1, 0.0) * pace

    def latency(self, metric: str, percentile: str) -> float:
        """Return ``ttft``, ``itl``, ``tpot`` or ``e2e`` at a percentile, in seconds."""
        function: Callable[[str], float] = getattr(self, metric)
        return function(percentile)

    def meets(self, objective: Objective, *, declared: bool = False) -> bool:
        """Whether this point keeps an objective: the declared limit, or the one with headroom."""
        limit = objective.declared_s if declared else objective.limit_s
        return self.latency(objective.metric, objective.percentile) <= limit * (1 + 1e-9)

    def misses(self, objectives: tuple[Objective, ...], *, declared: bool = False) -> list[Miss]:
        """Objectives that this point does not meet; against the declared limits, or those with headroom."""
        return [
            Miss(o, self.latency(o.metric, o.percentile)) for o in objectives if not self.meets(o, declared=declared)
        ]


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
        self.pools: Disaggregation | None = composition.scheduler.disaggregation
        self._decode = composition if self.pools is None else self.pools.decode.composition
        self.scheduler: Scheduler = composition.scheduler
        pricer: Pricer = self._decode.pricer
        self.seconds: Callable[[StepShape], float] = getattr(pricer, figure)
        self.bound: Callable[[StepShape], Any] = pricer.bound
        self.staged = pricer.graph.stages > 1
        self._points: dict[float, Point] = {}
        self._pool_times: dict[float, float] = {}
        self._pool_token: float | None = None

    @property
    def separate(self) -> bool:
        """Whether prompts are prefilled on a pool of their own."""
        return self.pools is not None

    @property
    def mixed(self) -> bool:
        """Whether prompts are prefilled beside decoding sequences, or on devices of their own."""
        return self.separate or self.scheduler.mixed

    @property
    def prompts_first(self) -> bool:
        """Whether every sequence waits until all prompts that have arrived are through."""
        return self.scheduler.prompts_first and not self.separate

    @property
    def most_mixed(self) -> float:
        """Largest share of decoding steps that are mixed, or follow on prompts alone."""
        between = 0 if self.separate else self.scheduler.decodes_between
        return 1.0 / (between + 1 if self.scheduler.mixed else max(between, 1))

    @property
    def prompt_step(self) -> float:
        """Tokens of a prompt that a step of prompts alone takes; 0 when prompts are not cut."""
        return float(self.scheduler.chunk_tokens or 0)

    @cached_property
    def prompt_room(self) -> float:
        """Tokens of several prompts that such a step takes; infinite without a budget. Whole prompts stay whole."""
        budget = float(self.scheduler.max_batched_tokens or math.inf)
        if self.prompt_step or math.isinf(budget):
            return self.prompt_step or budget
        return max(math.floor(budget / self.mix.new_prompt), 1) * self.mix.new_prompt

    @property
    def decode_replicas(self) -> int:
        """Replicas of the decode side that share the load."""
        return 1 if self.pools is None else self.pools.decode.replicas

    def room(self, batch: float) -> float:
        """Prompt tokens that the token budget of a step leaves on a rank; infinite without a budget."""
        if not self.mixed:
            return self.prompt_room
        budget = self.scheduler.max_batched_tokens
        if budget is None:
            return math.inf
        return max(budget - batch / self.scheduler.ranks * self.scheduler.verify_tokens, 1.0)

    @property
    def decoded_per_request(self) -> float:
        """Mean output tokens of a request, over all of its samples."""
        return self.mix.output.mean * self.scheduler.samples

    def chunk(self, batch: float) -> float:
        """Prompt tokens that a step takes beside the decoding sequences; 0 when prompts are not cut."""
        size = self.scheduler.chunk_tokens
        return min(float(size), self.room(batch)) if size else 0.0

    def pool_prefill_s(self, tokens: float) -> float:
        """Seconds that the prefill pool computes on one prompt."""
        if self.pools is None:
            raise ValueError("prompts are prefilled where they are decoded")
        found = self._pool_times.get(tokens)
        if found is None:
            new = self.mix.computed(tokens)
            pricer: Pricer = self.pools.prefill.composition.pricer
            function: Callable[[StepShape], float] = getattr(pricer, self.figure)
            found = self._pool_times[tokens] = function(prefill(new, max(tokens - new, 0.0)))
        return found

    def pool_share_s(self, tokens: float) -> float:
        """Seconds that one prompt takes of the prefill pool when others wait: its share of a step of whole prompts."""
        alone, new = self.pool_prefill_s(tokens), self.mix.computed(tokens)
        room = self.pools.prefill.composition.scheduler.max_batched_tokens if self.pools is not None else None
        return alone if room is None or new >= room else min(alone, new * self._pool_token_s(float(room)))

    def _pool_token_s(self, room: float) -> float:
        """Seconds of a prompt token in a step of the prefill pool that mean prompts fill."""
        if self._pool_token is None:
            if self.pools is None:
                raise ValueError("prompts are prefilled where they are decoded")
            new = self.mix.new_prompt
            pricer: Pricer = self.pools.prefill.composition.pricer
            function: Callable[[StepShape], float] = getattr(pricer, self.figure)
            together = max(math.floor(room / new), 1)
            self._pool_token = function(prefill(new, max(self.mix.prompt.mean - new, 0.0), together)) / (new * together)
        return self._pool_token

    def transfer_s(self, tokens: float, prefill_s: float, pools: Disaggregation) -> float:
        """Seconds that moving a sequence's KV adds after its prefill."""
        moved = kv_bytes(self.composition, tokens) / pools.bytes_per_s
        if not pools.layerwise:
            return pools.setup_s + moved
        layers = self.composition.setup.architecture.num_layers
        return pools.setup_s + max(moved - prefill_s * (layers - 1) / layers, moved / layers)

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """Sequences that can decode at once on a replica (of the decode pool), by what limits them.

        ``KV capacity`` at the mean context, ``max_sequences``, and ``max_batched_tokens`` of a step.
        """
        found = {"KV capacity": self._decode.memory.resident_sequences(self.mix.mean_context)}
        admission = self._decode.scheduler
        if admission.max_sequences is not None:
            found["max_sequences"] = admission.max_sequences
        if admission.max_batched_tokens is not None and admission.mixed and not self.separate:
            found["max_batched_tokens"] = admission.max_batched_tokens // admission.verify_tokens * admission.ranks
        return found

    @cached_property
    def batch_limit(self) -> int:
        """The least of `limits`; 0 when not even one sequence can decode."""
        return max(min(self.limits.values()), 0)

    def point(self, batch: float) -> Point:
        """Return the steady state at a mean number of decoding sequences."""
        found = self._points.get(batch)
        if found is None:
            found = self._points[batch] = Point(self, batch)
        return found

    @cached_property
    def fullest(self) -> Point | None:
        """The point of most requests per second within the limits, whatever the latency; None if nothing fits."""
        batch = self._largest(lambda p: not p.saturated)
        return self.point(batch) if batch else None

    @cached_property
    def max_rate(self) -> float:
        """Most requests per second within the limits, whatever the latency; 0 when nothing fits."""
        return self.fullest.rate * self.decode_replicas if self.fullest is not None else 0.0

    def at_rate(self, rate: float, limit: float | None = None) -> Point | None:
        """Return the point that carries an offered rate (requests/s of this replica), None if none does.

        Little's law: the batch is the rate times the time that a request decodes, found to 0.2 %. ``limit``
        stands for `batch_limit`, for what-ifs.
        """
        rate /= self.decode_replicas
        limit = float(self.batch_limit if limit is None else limit)
        if limit < 1:
            return None
        # No step is shorter than a plain one of one sequence, so the batch is at least this.
        low = rate * self.decoded_per_request / self.scheduler.yield_per_step * self.point(1.0).plain_s
        if low > limit:
            return None
        high = low
        while not self._reaches(high, rate):
            if high >= limit:
                return None
            low, high = high, min(high * 2, limit)
        while high - low > 0.002 * high:
            middle = (low + high) / 2
            if self._reaches(middle, rate):
                high = middle
            else:
                low = middle
        point = self.point(high)
        if not point.saturated:
            return point
        # Prefill is the limit there; just below it the rate may still be carried.
        point = self.point(low)
        return point if not point.saturated and point.rate >= 0.998 * rate else None

    def _reaches(self, batch: float, rate: float) -> bool:
        """Whether a batch carries a rate, or more than there is time to prefill for."""
        point = self.point(batch)
        return point.saturated or point.rate >= rate

    def _largest(self, holds: Callable[[Point], bool]) -> float:
        """Largest batch within the limit for which a condition holds, given that it holds up to some batch.

        Whole sequences, else a share of one: the part of the time that a sequence decodes where prompts take the
        rest of it. 0 when it holds nowhere.
        """
        limit = self.batch_limit
        if limit < 1:
            return 0.0
        if not holds(self.point(1.0)):
            return self._largest_share(holds)
        if holds(self.point(float(limit))):
            return float(limit)
        low, high = 1, limit
        while high - low > 1:
            middle = (low + high) // 2
            if holds(self.point(float(middle))):
                low = middle
            else:
                high = middle
        return float(low)

    def _largest_share(self, holds: Callable[[Point], bool]) -> float:
        low, high = LEAST_BATCH, 1.0
        if not holds(self.point(low)):
            return 0.0
        while high - low > 0.01 * high:
            middle = math.sqrt(low * high)
            if holds(self.point(middle)):
                low = middle
            else:
                high = middle
        return low

    def knee(self, objectives: tuple[Objective, ...]) -> Point | None:
        """Return the point of most throughput that meets every objective, None when even one sequence misses."""
        # Dearest last: one miss is enough.
        ordered = sorted(objectives, key=lambda o: ("tpot", "itl", "e2e", "ttft").index(o.metric))
        batch = self._largest(lambda p: not p.saturated and all(p.meets(o) for o in ordered))
        return self.point(batch) if batch else None

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


def _beyond(t: float, low: float, high: float, busy: float, scale: float) -> float:
    """Chance that a prefill of ``low`` to ``high`` seconds, evenly, and a wait end after ``t``.

    The wait is 0 with chance 1 - ``busy``, else exponential of mean ``scale``.
    """
    if t <= low:
        return 1.0 if t < low or high > low else busy
    end = min(t, high)
    later = (high - end) / (high - low) if high > low else 0.0
    if scale <= 0:
        return later
    wait = math.exp((end - t) / scale)
    if end > low:
        wait = scale / (end - low) * (wait - math.exp((low - t) / scale))
    return later + (1 - later) * busy * wait


def _cut(new: float, chunk: float) -> tuple[int, float]:
    """Full chunks of so many tokens that are followed by another piece, and the tokens of the last piece."""
    whole = max(math.ceil(new / chunk * (1 - 1e-12)) - 1, 0) if chunk else 0
    return whole, new - whole * chunk


def _any_of(chance: float, count: int) -> float:
    """Chance that any of so many independent events happens; of tiny chances their sum, where 1 - (1 - p)^n is 0."""
    return 1.0 if chance >= 1.0 else -math.expm1(count * math.log1p(-chance))


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
