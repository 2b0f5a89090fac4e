"""How figures read in messages: units, digits, plurals, and limits that hold as they are written."""

from __future__ import annotations

import math

import pytest

from servelint_rules.show import (
    LONGEST_S,
    counted,
    duration,
    floored,
    raised,
    request_rate,
    request_rates,
    sequences,
    size,
    token_rate,
    tokens,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (5e-5, "under 0.0001"), (1e-4, "0.0001"), (0.004, "0.004"), (0.0499, "0.05"), (0.05, "0.1"),
        (0.3, "0.3"), (1, "1"), (1.5, "1.5"), (3.0, "3"), (9.96, "10.0"), (10, "10"), (10.6, "11"),
        (1234567, "1,234,567"), (math.inf, "without limit"),
    ],
)  # fmt: skip
def test_numbers_of_sequences(value: float, text: str) -> None:
    assert sequences(value) == text


@pytest.mark.parametrize(("value", "text"), [(1, "1 thing"), (0, "0 things"), (1.5, "1.5 things"), (2, "2 things")])
def test_plurals(value: float, text: str) -> None:
    assert counted(value, "thing") == text


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [
        (1234.0, 1230.0, 1240.0), (999.6, 999.0, 1000.0), (0.012345, 0.0123, 0.0124), (1.0, 1.0, 1.0),
        (0.0, 0.0, 0.0), (-1.5, -1.5, -1.5), (math.inf, math.inf, math.inf), (1.2300000000000002, 1.23, 1.23),
        (0.1 + 0.2, 0.3, 0.3), (4.561e9, 4.56e9, 4.57e9), (100.0, 100.0, 100.0), (7e-7, 7e-7, 7e-7),
    ],
)  # fmt: skip
def test_limits_are_cut_to_three_digits(value: float, below: float, above: float) -> None:
    assert floored(value) == pytest.approx(below, rel=1e-12)
    assert raised(value) == pytest.approx(above, rel=1e-12)


def test_quantities() -> None:
    assert size(1.5e9) == "1.5 GB"
    assert duration(0.0125) == "12.5 ms"
    assert duration(LONGEST_S) != "over 100 years" == duration(LONGEST_S * 1.001)
    assert pytest.approx(100 * 365.25 * 24 * 3600) == LONGEST_S
    assert duration(math.inf) == tokens(math.inf) == token_rate(math.inf) == request_rate(math.inf) == "without limit"
    assert (tokens(1234.4), token_rate(1234.6)) == ("1,234", "1,235 tok/s")


def test_rates_have_the_digits_that_tell_them_apart() -> None:
    assert request_rates(3.0, 4.0) == ("3 req/s", "4 req/s")
    assert request_rates(3.0001, 3.0002) == ("3.0001 req/s", "3.0002 req/s")
    assert len(set(request_rates(1.00001, 1.00002, 2.0))) == 3
    # What is the same stays so.
    assert len(set(request_rates(2.5, 2.5))) == 1
