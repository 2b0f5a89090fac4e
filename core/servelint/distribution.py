"""Length distributions: a quantile function given by knots, log-linear between them.

One form serves tables of quantiles, fixed lengths, lognormal lengths and traces; moments are exact for it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

STRATA = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Edges of the probability strata that stand for a distribution, finer towards the tail."""


class Node(NamedTuple):
    """One stratum: its weight and the length at its middle."""

    weight: float
    tokens: float


class Stratum(NamedTuple):
    """The lengths between two probabilities: their share, the least, the most and the exact mean."""

    weight: float
    low: float
    high: float
    tokens: float


class Lengths:
    """A distribution of token counts, at least ``floor`` each.

    ``knots`` are (probability, tokens), both ascending, from probability 0 to 1.
    """

    def __init__(self, knots: Sequence[tuple[float, float]], floor: float = 1.0) -> None:
        points = sorted((min(max(p, 0.0), 1.0), max(float(x), floor)) for p, x in knots)
        if not points:
            raise ValueError("a length distribution needs at least one point")
        if points[0][0] > 0.0:
            points.insert(0, (0.0, points[0][1]))
        if points[-1][0] < 1.0:
            points.append((1.0, points[-1][1]))
        self._p = [p for p, _ in points]
        self._x = [x for _, x in points]
        for i in range(1, len(self._x)):
            self._x[i] = max(self._x[i], self._x[i - 1])
        self._log = [math.log(x) for x in self._x]
        self._strata: dict[tuple[float, float], Stratum] = {}

    @classmethod
    def fixed(cls, tokens: float) -> Lengths:
        """All lengths equal."""
        return cls(((0.0, tokens), (1.0, tokens)))

    @classmethod
    def empirical(cls, values: Sequence[float], limit: int = 400) -> Lengths:
        """The distribution of observed lengths, thinned to at most about ``limit`` knots."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("a length distribution needs at least one observation")
        last = len(ordered) - 1
        if last == 0:
            return cls.fixed(ordered[0])
        step = max(1, last // limit)
        indices = sorted({*range(0, last, step), *range(max(0, last - 50), last), last})
        return cls([(i / last, ordered[i]) for i in indices])

    def quantile(self, p: float) -> float:
        """Return the length that a share ``p`` of requests does not exceed."""
        p = min(max(p, 0.0), 1.0)
        i = bisect_right(self._p, p) - 1
        if i >= len(self._p) - 1:
            return self._x[-1]
        width = self._p[i + 1] - self._p[i]
        if width <= 0 or self._x[i] == self._x[i + 1]:
            return self._x[i]
        t = (p - self._p[i]) / width
        if t == 0.0:
            return self._x[i]
        between = math.exp(self._log[i] + t * (self._log[i + 1] - self._log[i]))
        return min(max(between, self._x[i]), self._x[i + 1])

    def share_within(self, tokens: float) -> float:
        """Return the share of requests whose length does not exceed ``tokens``."""
        i = bisect_right(self._x, tokens) - 1
        if i < 0:
            return 0.0
        if i >= len(self._x) - 1:
            return 1.0
        t = (math.log(tokens) - self._log[i]) / (self._log[i + 1] - self._log[i])
        return self._p[i] + t * (self._p[i + 1] - self._p[i])

    def _moment(self, k: int) -> float:
        ends = zip(pairwise(self._p), pairwise(self._x), strict=True)
        return sum((p[1] - p[0]) * _mean(x[0] ** k, x[1] ** k) for p, x in ends)

    @cached_property
    def _sums(self) -> list[float]:
        """The quantile function summed up to each knot."""
        ends = zip(pairwise(self._p), pairwise(self._x), strict=True)
        return [0.0, *accumulate((p[1] - p[0]) * _mean(*x) for p, x in ends)]

    def _sum(self, p: float) -> float:
        i = bisect_right(self._p, p) - 1
        return self._sums[i] + (p - self._p[i]) * _mean(self._x[i], self.quantile(p))

    def _stratum(self, low: float, high: float) -> Stratum:
        found = self._strata.get((low, high))
        if found is None:
            least, most = self.quantile(low), self.quantile(high)
            mean = (self._sum(high) - self._sum(low)) / (high - low)
            found = Stratum(high - low, least, most, min(max(mean, least), most))
            self._strata[low, high] = found
        return found

    @cached_property
    def mean(self) -> float:
        """Expected length."""
        return self._moment(1)

    @cached_property
    def second_moment(self) -> float:
        """Expected squared length."""
        return self._moment(2)

    @property
    def is_fixed(self) -> bool:
        """Whether all lengths are equal."""
        return self._x[0] == self._x[-1]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The strata that stand for the distribution, shortest first."""
        if self.is_fixed:
            return (Node(1.0, self._x[0]),)
        return tuple(Node(high - low, self.quantile((low + high) / 2)) for low, high in pairwise(STRATA))

    def strata(self, *cuts: float) -> tuple[Stratum, ...]:
        """The distribution in strata, shortest first, each on one side of every cut; fixed lengths are one.

        ``cuts`` are lengths in tokens. The means of the strata add up to that of the distribution.
        """
        if self.is_fixed:
            tokens = self._x[0]
            return (Stratum(1.0, tokens, tokens, tokens),)
        edges: Iterable[float] = STRATA
        inside = [c for c in cuts if self._x[0] <= c < self._x[-1]]
        if inside:
            edges = sorted({*STRATA, *map(self.share_within, inside)})
        return tuple(self._stratum(low, high) for low, high in pairwise(edges))

    def plus(self, other: Lengths) -> Lengths:
        """Return the distribution of the sum of two independent lengths."""
        if self.is_fixed and other.is_fixed:
            return Lengths.fixed(self._x[0] + other._x[0])
        if self.is_fixed or other.is_fixed:
            # What is added to every length moves each quantile by as much.
            spread, more = (other, self._x[0]) if self.is_fixed else (self, other._x[0])
            return Lengths([(p, spread.quantile(p) + more) for p in sorted({*spread._p, *STRATA})])
        sums = sorted((a.tokens + b.tokens, a.weight * b.weight) for a in self.nodes for b in other.nodes)
        knots, below = [(0.0, self._x[0] + other._x[0])], 0.0
        for total, weight in sums:
            knots.append((below + weight / 2, total))
            below += weight
        knots.append((1.0, self._x[-1] + other._x[-1]))
        return Lengths(knots)

    def scaled(self, factor: float, floor: float = 0.0) -> Lengths:
        """Return the distribution of lengths times ``factor``."""
        return Lengths([(p, x * factor) for p, x in zip(self._p, self._x, strict=True)], max(floor, 1e-9))


def _mean(low: float, high: float) -> float:
    """Mean of what is log-linear between two values: the logarithmic mean."""
    slope = math.log1p((high - low) / low)
    # (e^s - 1) / s -> 1 for flat pieces.
    return low if abs(slope) < 1e-12 else (high - low) / slope


def percentile_share(name: str) -> float:
    """Turn ``p99`` into 0.99 and ``p999`` into 0.999; ``mean`` and unknown names raise ValueError."""
    digits = name.removeprefix("p")
    if digits == name or not digits.isdigit():
        raise ValueError(f"{name!r} is no percentile")
    return int(digits) / (100 if len(digits) <= 2 else 10 ** len(digits))
