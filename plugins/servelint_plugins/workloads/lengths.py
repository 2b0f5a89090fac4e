"""Length models: quantile tables, lognormal lengths by mean and standard deviation, means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from servelint.plugin import LengthModel

QUANTILES: Mapping[str, float] = {
    "min": 0.0, "p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9,
    "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0,
}  # fmt: skip

Z = (-3.09, -2.33, -1.645, -1.282, -0.674, 0.0, 0.674, 1.282, 1.645, 1.96, 2.326, 2.576, 3.09)
"""Standard normal deviates that a lognormal is sampled at."""


def quantile_knots(values: Mapping[str, float]) -> Sequence[tuple[float, float]]:
    """Knots of a quantile table; a lower end continues the slope of the first two quantiles.

    The upper end is not extrapolated beyond the largest quantile that is given: a tail that nobody declared
    is not invented. The lower end is, so that a median and a p99 do not make the median the shortest length.
    One quantile beside a mean fixes a lognormal; with more of them the mean adds nothing.
    """
    points = sorted((QUANTILES[name], max(float(x), 1.0)) for name, x in values.items() if name in QUANTILES)
    inner = [(p, x) for p, x in points if 0.0 < p < 1.0]
    if "mean" in values and len(inner) == 1:
        return _fitted(max(values["mean"], 1.0), *inner[0], values)
    first = points[0]
    if first[0] > 0.0 and len(points) > 1 and points[1][1] > first[1]:
        second = points[1]
        slope = (math.log(second[1]) - math.log(first[1])) / (second[0] - first[0])
        points.insert(0, (0.0, max(1.0, math.exp(math.log(first[1]) - slope * first[0]))))
    return points


def _fitted(mean: float, p: float, quantile: float, values: Mapping[str, float]) -> Sequence[tuple[float, float]]:
    """The lognormal with a mean and one quantile: ln(quantile / mean) = z sigma - sigma^2 / 2.

    Where no lognormal has both, sigma = z comes nearest: it stretches the quantile most from the mean.
    """
    z, ratio = _normal_quantile(p), math.log(quantile / mean)
    root = z * z - 2 * ratio
    sigma = abs(z) if root < 0 else min((s for s in (z - math.sqrt(root), z + math.sqrt(root)) if s >= 0), default=0.0)
    return _lognormal(math.log(mean) - sigma * sigma / 2, sigma, values)


def _normal_quantile(p: float) -> float:
    low, high = -8.0, 8.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * (1 + math.erf(middle / math.sqrt(2))) < p else (low, middle)
    return (low + high) / 2


def lognormal_knots(values: Mapping[str, float]) -> Sequence[tuple[float, float]]:
    """Knots of a lognormal with the given mean and standard deviation, cut at min and max."""
    mean, std = max(values["mean"], 1.0), values["std"]
    variance = math.log(1 + (std / mean) ** 2)
    return _lognormal(math.log(mean) - variance / 2, math.sqrt(variance), values)


def _lognormal(mu: float, sigma: float, values: Mapping[str, float]) -> Sequence[tuple[float, float]]:
    low, high = values.get("min", 1.0), values.get("max", math.inf)
    points = []
    for z in Z:
        p = 0.5 * (1 + math.erf(z / math.sqrt(2)))
        points.append((p, min(max(math.exp(min(mu + sigma * z, 60.0)), low, 1.0), high)))
    return points


def mean_knots(values: Mapping[str, float]) -> Sequence[tuple[float, float]]:
    """A mean alone says nothing of the spread: every length is the mean, but for the declared extremes."""
    mean = values["mean"]
    low, high = min(values.get("min", mean), mean), max(values.get("max", mean), mean)
    return ((0.0, low), (0.001, mean), (0.999, mean), (1.0, high))


MODELS = (
    LengthModel("lognormal", ("mean", "std", "min", "max"), ("mean", "std"), lognormal_knots),
    LengthModel("mean", ("mean", "min", "max"), ("mean",), mean_knots),
    LengthModel("quantiles", (*QUANTILES, "mean"), (), quantile_knots),
)
