"""Length distributions against closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelint.distribution import Lengths, Stratum, percentile_share


def test_quantiles_are_hit_and_log_linear_between() -> None:
    lengths = Lengths([(0.5, 1000), (0.99, 8000)])
    assert lengths.quantile(0.5) == pytest.approx(1000)
    assert lengths.quantile(0.99) == pytest.approx(8000)
    assert lengths.quantile(0.745) == pytest.approx(math.sqrt(1000 * 8000))
    assert lengths.quantile(0.1) == 1000
    assert lengths.quantile(1.0) == 8000


def test_moments_of_a_log_uniform_length() -> None:
    # X = e^U with U uniform on [0, ln 100]: E[X] = 99 / ln 100, E[X^2] = 9999 / (2 ln 100).
    lengths = Lengths([(0, 1), (1, 100)])
    assert lengths.mean == pytest.approx(99 / math.log(100))
    assert lengths.second_moment == pytest.approx(9999 / (2 * math.log(100)))


def test_fixed_lengths() -> None:
    fixed = Lengths.fixed(700)
    assert (fixed.mean, fixed.second_moment, fixed.quantile(0.3)) == (700, 490_000, 700)
    assert [n.weight for n in fixed.nodes] == [1.0]
    assert fixed.plus(Lengths.fixed(50)).quantile(0.9) == 750


def test_empirical_quantiles() -> None:
    lengths = Lengths.empirical(list(range(1, 1001)))
    assert lengths.quantile(0.5) == pytest.approx(500.5, rel=0.01)
    assert lengths.quantile(1.0) == 1000
    assert lengths.mean == pytest.approx(500.5, rel=0.01)
    assert Lengths.empirical([7]).mean == 7
    with pytest.raises(ValueError, match="at least one"):
        Lengths.empirical([])


def test_the_longest_of_many_observations_are_kept() -> None:
    longest = [1000.0 * i for i in range(1, 51)]
    lengths = Lengths.empirical([10.0] * 9950 + longest)
    # The last of 10,000 is at probability 1, the one before it 1 / 9,999 below.
    assert [lengths.quantile(1 - i / 9999) for i in range(50)] == pytest.approx(longest[::-1])


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=30))
def test_quantiles_never_fall_and_the_mean_lies_within(values: list[float]) -> None:
    lengths = Lengths.empirical(values)
    quantiles = [lengths.quantile(p / 50) for p in range(51)]
    assert quantiles == sorted(quantiles)
    assert min(values) * (1 - 1e-9) <= lengths.mean <= max(values) * (1 + 1e-9)
    assert sum(n.weight for n in lengths.nodes) == pytest.approx(1)


@given(st.floats(1, 1e5), st.floats(1, 10), st.floats(1, 1e4), st.floats(1, 10))
def test_a_sum_lies_between_its_parts(a: float, spread: float, b: float, other: float) -> None:
    one, two = Lengths([(0.5, a), (0.99, a * spread)]), Lengths([(0.5, b), (0.99, b * other)])
    total = one.plus(two)
    for p in (0.1, 0.5, 0.9, 0.99):
        assert total.quantile(p) <= one.quantile(1) + two.quantile(1) + 1e-6
        assert total.quantile(p) >= one.quantile(0) + two.quantile(0) - 1e-6
    assert total.quantile(1.0) == pytest.approx(one.quantile(1) + two.quantile(1))


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=30), st.lists(st.floats(0.5, 2e6), max_size=3).map(sorted))
def test_strata_keep_the_mean_and_lie_on_one_side_of_a_cut(values: list[float], cuts: list[float]) -> None:
    lengths = Lengths.empirical(values)
    strata = lengths.strata(*cuts)
    assert sum(s.weight for s in strata) == pytest.approx(1)
    assert sum(s.weight * s.tokens for s in strata) == pytest.approx(lengths.mean)
    assert all(s.low <= s.tokens <= s.high for s in strata)
    if not lengths.is_fixed:
        assert not [s for s in strata for cut in cuts if s.low * (1 + 1e-9) < cut < s.high * (1 - 1e-9)]


@given(st.floats(0, 1))
def test_the_share_within_a_quantile_is_its_probability(p: float) -> None:
    lengths = Lengths([(0, 10), (0.5, 1000), (0.99, 8000), (1, 9000)])
    assert lengths.share_within(lengths.quantile(p)) == pytest.approx(p)
    assert lengths.share_within(9.9) == 0.0
    assert Lengths.fixed(5).share_within(5) == 1.0


def test_percentile_names() -> None:
    assert [percentile_share(n) for n in ("p1", "p50", "p99", "p999")] == [0.01, 0.5, 0.99, 0.999]
    for bad in ("mean", "p", "max", "99"):
        with pytest.raises(ValueError, match="no percentile"):
            percentile_share(bad)


def test_the_ends_of_a_distribution_are_its_first_and_last_points() -> None:
    # Below the first probability and above the last there is nothing shorter and nothing longer.
    lengths = Lengths([(0.25, 100), (0.5, 400), (0.75, 900)])
    assert [lengths.quantile(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx([100, 100, 400, 900, 900])
    assert [lengths.share_within(x) for x in (99, 400, 900)] == pytest.approx([0.0, 0.5, 1.0])
    # Each end is as long as the point next to it; between points the mean is logarithmic.
    between = 300 / math.log(400 / 100) + 500 / math.log(900 / 400)
    assert lengths.mean == pytest.approx((100 + between + 900) / 4)
    assert Lengths([(0.0, 7)]).quantile(0.5) == Lengths([(0.0, 7)]).mean == 7
    clamped = Lengths([(-1.0, 10), (2.0, 1000)])
    assert (clamped.quantile(0.0), clamped.quantile(1.0)) == pytest.approx((10, 1000))


def test_the_ends_of_a_sum_are_the_sums_of_the_ends() -> None:
    one, two = Lengths([(0, 10), (0.5, 200), (1, 1000)]), Lengths([(0, 1), (0.5, 30), (1, 500)])
    total = one.plus(two)
    assert (total.quantile(0.0), total.quantile(1.0)) == pytest.approx((11, 1500))
    # The sum is put together from a few nodes of each.
    assert total.mean == pytest.approx(one.mean + two.mean, rel=0.03)


def test_scaled_lengths_keep_their_floor() -> None:
    lengths = Lengths([(0, 10), (1, 1000)])
    half = lengths.scaled(0.5)
    assert (half.quantile(0.0), half.quantile(1.0)) == pytest.approx((5, 500))
    assert half.mean == pytest.approx(lengths.mean / 2)
    floored = lengths.scaled(0.5, 8.0)
    assert (floored.quantile(0.0), floored.quantile(1.0)) == pytest.approx((8, 500))
    assert lengths.scaled(0.001).quantile(0.0) == pytest.approx(0.01)


def test_a_point_below_the_one_before_it_counts_as_that() -> None:
    falling = Lengths(((0.0, 100), (0.5, 50), (0.8, 40), (1.0, 200)))
    assert [falling.quantile(p) for p in (0.0, 0.3, 0.5, 0.8)] == [100, 100, 100, 100]
    assert falling.quantile(1.0) == pytest.approx(200)


def test_fixed_lengths_are_one_stratum() -> None:
    assert Lengths.fixed(300).strata(100.0, 500.0) == (Stratum(1.0, 300.0, 300.0, 300.0),)


def test_a_fixed_length_moves_every_quantile_by_as_much() -> None:
    spread, fixed = Lengths(((0.5, 2000), (0.99, 8000), (1.0, 20000))), Lengths.fixed(200)
    for total in (spread.plus(fixed), fixed.plus(spread)):
        for p in (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0):
            assert total.quantile(p) == pytest.approx(spread.quantile(p) + 200)
        assert total.mean == pytest.approx(spread.mean + 200, rel=1e-3)
