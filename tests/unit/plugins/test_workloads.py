"""Length models and trace formats."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelint.distribution import Lengths
from servelint_plugins.workloads.lengths import lognormal_knots, mean_knots, quantile_knots
from servelint_plugins.workloads.traces import read_azure, read_mooncake

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def test_azure_rows() -> None:
    rows = list(read_azure(AZURE.splitlines()))
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == [(374, 44), (396, 109)]
    assert rows[0].arrival_s == 0
    assert rows[1].arrival_s == pytest.approx(4.314579)


def test_mooncake_rows() -> None:
    lines = ['{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}', ""]
    (row,) = read_mooncake(lines)
    assert (row.arrival_s, row.prompt_tokens, row.output_tokens) == (27.482, 6955, 52)


@pytest.mark.parametrize(
    ("reader", "text", "words"),
    [
        (read_azure, "A,B\n1,2\n", "line 1: the column TIMESTAMP is missing"),
        (read_azure, AZURE + "x,1,2\n", "line 4: the timestamp is 'x'"),
        (read_azure, AZURE + "2023-11-16 18:15:46,1.5,2\n", "line 4: ContextTokens is '1.5'"),
        (read_azure, AZURE + "2023-11-16 18:15:46,1\n", "line 4: 2 columns, expected 3"),
        (read_azure, AZURE + "2023-11-16 18:15:46,-1,2\n", "line 4: ContextTokens is -1"),
        (read_mooncake, "[1]", "line 1: it is not a JSON object"),
        (read_mooncake, "{", "line 1: it is not a JSON object"),
        (read_mooncake, '{"timestamp": 1, "input_length": 2}', "line 1: the field output_length is missing"),
        (read_mooncake, '{"timestamp": NaN, "input_length": 2, "output_length": 1}', "line 1: the timestamp is nan"),
        (read_mooncake, "[" * 100_000, "line 1: it is not a JSON object"),
        (read_mooncake, '{"timestamp": 1, "input_length": true, "output_length": 1}', "line 1: input_length is True"),
        (read_mooncake, '{"timestamp": 1, "input_length": [[]], "output_length": 1}', "line 1: input_length is a list"),
        (read_mooncake, '{"timestamp": {}, "input_length": 2, "output_length": 1}', "line 1: the timestamp is a dict"),
        (read_azure, AZURE + "2023-11-16 18:15:46,1,\u0663\n", "line 4: GeneratedTokens is '\u0663'"),
        (read_azure, AZURE + "2023-11-16 18:15:46,1_0,2\n", "line 4: ContextTokens is '1_0'"),
        (read_azure, AZURE + "2023-11-16 18:15:46,1," + "9" * 5000, "line 4: GeneratedTokens is '9999"),
        (
            read_azure,
            AZURE + "2023-11-16 18:15:46,1,2000000000\n",
            "line 4: GeneratedTokens is 2000000000, expected 0 to",
        ),
        (read_azure, AZURE + "0001-01-01 00:00:00,1,2\n", "line 4: the timestamp is '0001-01-01 00:00:00', expected a"),
        (
            read_azure,
            AZURE + "2023-11-16 18:15:46.\u00b2,1,2\n",
            "line 4: the timestamp is '2023-11-16 18:15:46.\u00b2'",
        ),
        (read_azure, AZURE + "\u0662023-11-16 18:15:46,1,2\n", "line 4: the timestamp is '\u0662023"),
        (read_azure, AZURE + "2023-02-30 18:15:46,1,2\n", "line 4: the timestamp is '2023-02-30"),
        (read_azure, AZURE + "x" * 140_000, "line 4: it is not CSV: field larger"),
        (read_azure, "x" * 140_000, "line 1: it is not CSV: field larger"),
        (read_azure, AZURE + "\n\n,,\n", "line 6: the timestamp is ''"),
        (
            read_azure,
            AZURE + '"2023-11-16 \n18:15:46",1,2\n2023-11-16 18:15:46,1,x\n',
            "line 6: GeneratedTokens is 'x'",
        ),
    ],
)
def test_bad_rows_are_named(reader, text: str, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        list(reader(text.splitlines()))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1970-01-01 00:00:00", 0.0),
        ("1970-01-01 01:00:00+01:00", 0.0),
        ("1970-01-01T00:00:01.25Z", 1.25),
        ("1970-01-02 00:00:00", 86400.0),
        ("1970-01-01 00:00:00-0130", 5400.0),
        ("9999-12-31 23:59:59.9999999-12:00", 253402343999.9999999),
    ],
)
def test_timestamps(written: str, seconds: float) -> None:
    start = "1970-01-01 00:00:00.0000000"
    rows = list(read_azure(["TIMESTAMP,ContextTokens,GeneratedTokens", f"{start},1,1", f"{written},1,1"]))
    assert rows[1].arrival_s == pytest.approx(seconds)


def test_the_zone_of_the_machine_is_no_part_of_a_timestamp() -> None:
    # The clocks of most zones skip or repeat an hour in between.
    days = [f"2023-{month:02d}-01 02:30:00,1,1" for month in range(1, 13)]
    rows = list(read_azure(["TIMESTAMP,ContextTokens,GeneratedTokens", *days]))
    assert all(row.arrival_s % 86400 == 0 for row in rows)


@given(st.text(max_size=300))
def test_any_text_gives_rows_or_a_value_error(text: str) -> None:
    for reader in (read_azure, read_mooncake):
        with contextlib.suppress(ValueError):
            list(reader(text.splitlines()))


def test_a_lognormal_has_its_mean() -> None:
    lengths = Lengths(lognormal_knots({"mean": 1000, "std": 800}))
    # The knots cut the tail beyond three deviations.
    assert lengths.mean == pytest.approx(1000, rel=0.03)
    sigma = math.sqrt(math.log(1 + 0.8**2))
    assert lengths.quantile(0.5) == pytest.approx(1000 / math.exp(sigma**2 / 2), rel=0.01)


def test_a_quantile_table_goes_on_downwards_and_not_upwards() -> None:
    lengths = Lengths(quantile_knots({"p50": 900, "p99": 7000}))
    assert lengths.quantile(0.5) == pytest.approx(900)
    assert lengths.quantile(1.0) == 7000
    assert lengths.quantile(0.0) == pytest.approx(900 / (7000 / 900) ** (0.5 / 0.49))
    assert Lengths(quantile_knots({"p50": 10})).is_fixed


def test_a_mean_with_a_maximum_is_not_the_maximum() -> None:
    lengths = Lengths(mean_knots({"mean": 500, "max": 8000}))
    assert lengths.quantile(0.99) == 500
    assert lengths.quantile(1.0) == 8000
    assert lengths.mean == pytest.approx(500, rel=0.01)


def test_one_quantile_beside_a_mean_fixes_a_lognormal() -> None:
    lengths = Lengths(quantile_knots({"mean": 200, "p99": 1000}))
    assert lengths.quantile(0.99) == pytest.approx(1000, rel=0.02)
    assert lengths.mean == pytest.approx(200, rel=0.03)
    median = Lengths(quantile_knots({"mean": 200, "p50": 150}))
    assert median.quantile(0.5) == pytest.approx(150, rel=0.01)
    assert median.mean == pytest.approx(200, rel=0.03)
    # No lognormal has a mean of 1500 and a p99 of 1000; nothing breaks.
    assert Lengths(quantile_knots({"mean": 1500, "p99": 1000})).mean > 0
