"""Quantities: how they are read, what is refused and with which words, how they are printed."""

from typing import Any

import pytest

from servelint.units import Dimension, QuantityError, ambiguities, format_quantity, parse_quantity

B = Dimension.BYTES
RATE = Dimension.BYTES_PER_SECOND
FLOPS = Dimension.FLOPS_PER_SECOND
S = Dimension.SECONDS
TOK = Dimension.TOKENS
TPS = Dimension.TOKENS_PER_SECOND
RPS = Dimension.REQUESTS_PER_SECOND
W = Dimension.WATTS
FRACTION = Dimension.FRACTION
COUNT = Dimension.COUNT


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", B, 80_000_000_000),
        ("80GB", B, 80_000_000_000),
        ("0.1 GB", B, 100_000_000),
        ("80_000 MB", B, 80_000_000_000),
        ("80,000 MB", B, 80_000_000_000),
        ("80 GiB", B, 85_899_345_920),
        ("1.5 KiB", B, 1536),
        ("2 TiB", B, 2 * 2**40),
        ("1 PB", B, 10**15),
        ("64 kB", B, 64_000),
        ("64 KB", B, 64_000),
        ("80e9 B", B, 80_000_000_000),
        ("+8e1 GB", B, 80_000_000_000),
        ("640 bytes", B, 640),
        ("2 GByte", B, 2_000_000_000),
        ("512Gi", B, 512 * 2**30),
        ("80G", B, 80_000_000_000),
        ("0.5 B", B, 0.5),
        (".5 kB", B, 500),
        ("5. kB", B, 5000),
        ("3.35 TB/s", RATE, 3_350_000_000_000),
        ("3.35 TB / sec", RATE, 3_350_000_000_000),
        ("900 GB per second", RATE, 900_000_000_000),
        ("50 GBps", RATE, 50_000_000_000),
        ("1 MiB/s", RATE, 2**20),
        ("60 MB/min", RATE, 1_000_000),
        ("400 Gbit/s", RATE, 50_000_000_000),
        ("400 Gb/s", RATE, 50_000_000_000),
        ("400Gbps", RATE, 50_000_000_000),
        ("1 bit/s", RATE, 0.125),
        ("989 TFLOPS", FLOPS, 989 * 10**12),
        ("989.4 TFLOP/s", FLOPS, 989_400_000_000_000),
        ("1.979 PFLOPS", FLOPS, 1_979_000_000_000_000),
        ("989 TFLOPs", FLOPS, 989 * 10**12),
        ("1979 TOPS", FLOPS, 1979 * 10**12),
        ("50 ms", S, 0.05),
        ("1.5 s", S, 1.5),
        ("20 us", S, 20e-6),
        ("20 \N{MICRO SIGN}s", S, 20e-6),
        ("20 \N{GREEK SMALL LETTER MU}s", S, 20e-6),
        ("5 ns", S, 5e-9),
        ("2000 ms", S, 2),
        ("2 min", S, 120),
        ("1 h", S, 3600),
        ("1 d", S, 86_400),
        ("8192", TOK, 8192),
        ("8192 tokens", TOK, 8192),
        ("1 token", TOK, 1),
        ("8k", TOK, 8000),
        ("32k tokens", TOK, 32_000),
        ("32 ktok", TOK, 32_000),
        ("32Ki", TOK, 32_768),
        ("8Ki tokens", TOK, 8192),
        ("8K tokens", TOK, 8000),
        ("1M", TOK, 1_000_000),
        ("2400 tok/s", TPS, 2400),
        ("2.4k tok/s", TPS, 2400),
        ("2400 tokens/s", TPS, 2400),
        ("2400 tps", TPS, 2400),
        ("60k tok/min", TPS, 1000),
        ("60k tpm", TPS, 1000),
        ("6 req/s", RPS, 6),
        ("6 requests per second", RPS, 6),
        ("6 rps", RPS, 6),
        ("2k rps", RPS, 2000),
        ("6 qps", RPS, 6),
        ("360 req/min", RPS, 6),
        ("360 rpm", RPS, 6),
        ("1 req/h", RPS, 1 / 3600),
        ("700 W", W, 700),
        ("1.2 kW", W, 1200),
        ("700 watts", W, 700),
        ("0.3", FRACTION, 0.3),
        ("30 %", FRACTION, 0.3),
        ("30%", FRACTION, 0.3),
        ("100 percent", FRACTION, 1),
        ("128", COUNT, 128),
        ("1.5k", COUNT, 1500),
        ("-0", COUNT, 0),
        ("  7\t", COUNT, 7),
    ],
)
def test_text(text: str, dimension: Dimension, value: float) -> None:
    result = parse_quantity(text, dimension)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("number", "dimension", "value"),
    [
        (80_000_000_001, B, 80_000_000_001),
        (10**30, B, 10**30),
        (8e10, B, 8e10),
        (0.3, FRACTION, 0.3),
        (1, FRACTION, 1),
        (-0.0, S, 0.0),
        (4.0, COUNT, 4),
    ],
)
def test_plain_numbers_are_in_si_units(number: float, dimension: Dimension, value: float) -> None:
    result = parse_quantity(number, dimension)
    assert repr(result) == repr(value)


@pytest.mark.parametrize(
    ("value", "dimension", "reason"),
    [
        ("", B, '"" is empty'),
        ("fast", B, '"fast" does not start with a number'),
        ("GB", B, '"GB" does not start with a number'),
        (".", B, "does not start with a number"),
        ("nan", B, "is not finite"),
        ("-inf s", S, "is not finite"),
        (float("inf"), S, "inf is not finite"),
        (float("nan"), S, "nan is not finite"),
        (True, COUNT, "true is not a number or text"),
        ([80], B, "a value of type list is not a number or text"),
        (None, B, "a value of type NoneType is not a number or text"),
        ("-5 GB", B, '"-5 GB" is negative'),
        (-5, B, "-5 is negative"),
        (-0.1, FRACTION, "-0.1 is negative"),
        ("1e99 GB", B, "has an exponent beyond all sizes"),
        ("1e-99 GB", B, "has an exponent beyond all sizes"),
        ("1e22 GB", B, "is beyond 1e30"),
        ("1e-31 s", S, "is below 1e-30"),
        (1e31, B, "1e+31 is beyond 1e30"),
        (10**31, B, "an integer of 103 bits is beyond 1e30"),
        pytest.param(10**9999, B, "an integer of 33216 bits is beyond 1e30", id="more digits than str gives"),
        (1e-31, S, "is below 1e-30"),
        ("9" * 81, B, "is too long"),
        ("80__0 MB", B, "groups its digits"),
        ("80_ MB", B, "groups its digits"),
        ("8,00 MB", B, "groups its digits"),
        ("1,000_000 MB", B, "groups its digits"),
        ("1.0__0 MB", B, "groups its digits"),
        ("1.000,5 MB", B, 'has the unknown unit ",5 MB"'),
        ("80 foo", B, 'has the unknown unit "foo"'),
        ("80 G B", B, 'has the unknown unit "G B"'),
        ("2 tok/s/GPU", TPS, 'has the unknown unit "tok/s/GPU"'),
        ("2 tok/ms", TPS, 'has the unknown unit "tok/ms"'),
        ("2 W/s", W, 'has the unknown unit "W/s"'),
        ("2 KiFLOPS", FLOPS, 'has the unknown unit "KiFLOPS"'),
        ("2 kms", S, 'has the unknown unit "kms"'),
        ("80 \x1b[31mGB", B, r'"80 \x1b[31mGB" has the unknown unit "\x1b[31mGB"'),
        ("\N{ARABIC-INDIC DIGIT THREE} GB", B, "does not start with a number"),
        ("150 %", FRACTION, '"150 %" is more than 1'),
        (30, FRACTION, "30 is more than 1"),
        (2.5, COUNT, "2.5 is not whole"),
        ("2.5", COUNT, '"2.5" is not whole'),
        ("80 GB/s", B, '"80 GB/s" is a rate in bytes per second'),
        ("80 GB", RATE, '"80 GB" is an amount of bytes'),
        ("80 Gb", B, '"80 Gb" is a number of bits'),
        ("400G", RATE, '"400G" is a number with a prefix but without a unit'),
        ("989 TFLOP", FLOPS, '"989 TFLOP" is a number of operations'),
        ("6 req", RPS, '"6 req" is a number of requests'),
        ("50 ms", TOK, '"50 ms" is a time'),
        ("30 %", B, '"30 %" is a percentage'),
        ("8192 tok", COUNT, '"8192 tok" is a count of tokens'),
        ("50", S, '"50" has no unit: give one, or write the number without quotes (seconds); expected'),
        ("80e9", B, "has no unit: give one, or write the number without quotes (B)"),
        ("3.35e12", RATE, "has no unit"),
        ("989e12", FLOPS, "has no unit"),
        ("2400", TPS, "has no unit"),
        ("6", RPS, "has no unit"),
        (" 700 ", W, "has no unit"),
        ("0", S, "has no unit"),
        ("2.4k", TPS, '"2.4k" is a number with a prefix but without a unit'),
        ("6k", RPS, '"6k" is a number with a prefix but without a unit'),
        ("8k", FRACTION, '"8k" is a number with a prefix but without a unit'),
    ],
)
def test_refused(value: Any, dimension: Dimension, reason: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(value, dimension)
    error = caught.value
    assert reason in str(error)
    assert str(error) == error.message
    assert error.message.startswith(error.found)
    assert error.message.endswith(error.expected)
    assert dimension.description in error.expected
    assert dimension.example in error.expected


def test_a_wrong_dimension_says_what_it_is_and_what_is_due() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity("80 GB/s", B)
    assert caught.value.message == (
        '"80 GB/s" is a rate in bytes per second; expected an amount of bytes, such as "80 GB"'
    )
    assert caught.value.found == '"80 GB/s"'
    assert caught.value.expected == 'an amount of bytes, such as "80 GB"'


def test_long_text_is_cut_in_messages() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity("x" * 10_000, B)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("value", "dimension", "suggestion"),
    [
        ("80 GB/s", B, "80 GB"),
        ("80 GB", RATE, "80 GB/s"),
        ("6 req", RPS, "6 req/s"),
        ("989 TFLOP", FLOPS, "989 TFLOP/s"),
        ("80 gb", B, "80 GB"),
        ("80 Gb", B, "80 GB"),
        ("64 kb", B, "64 kB"),
        ("3.35 tb/s", RATE, "3.35 TB/s"),
        ("3.35 tb", RATE, "3.35 TB/s"),
        ("989 tflops", FLOPS, "989 TFLOPS"),
        ("50 MS", S, "50 ms"),
        ("1,5 GB", B, "1.5 GB"),
        (30, FRACTION, "30 %"),
        ("30", FRACTION, "30 %"),
        ("150 %", FRACTION, None),
        (150, FRACTION, None),
        ("80 foo", B, None),
        ("1,2,3 GB", B, None),
        ("400G", RATE, None),
    ],
)
def test_suggestion(value: Any, dimension: Dimension, suggestion: str | None) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(value, dimension)
    assert caught.value.suggestion == suggestion
    if suggestion is not None:
        parse_quantity(suggestion, dimension)


@pytest.mark.parametrize(
    ("text", "dimension", "note"),
    [
        ("64 KB", B, 'K in "64 KB" is read as 1,000; write Ki for 1,024'),
        ("64 KB/s", RATE, 'K in "64 KB/s" is read as 1,000; write Ki for 1,024'),
        ("32K", TOK, 'K in "32K" is read as 1,000; write Ki for 1,024'),
        ("32K tokens", TOK, 'K in "32K tokens" is read as 1,000; write Ki for 1,024'),
        ("1M", TOK, 'M in "1M" is read as 1,000,000; write Mi for 1,048,576'),
        ("2K", COUNT, 'K in "2K" is read as 1,000; write Ki for 1,024'),
        ("80G", B, 'G in "80G" is read as 1,000,000,000; write Gi for 1,073,741,824'),
        ("80k", B, 'k in "80k" is read as 1,000; write Ki for 1,024'),
        ("1,500 GB", B, 'the comma in "1,500 GB" is read as a thousands separator, not as a decimal point'),
        (
            "989 TFLOPs",
            FLOPS,
            'FLOPs in "989 TFLOPs" is read as a rate, FLOP/s, not as a number of operations',
        ),
    ],
)
def test_ambiguous(text: str, dimension: Dimension, note: str) -> None:
    assert ambiguities(text, dimension) == note


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 GB", B),
        ("64 kB", B),
        ("64 KiB", B),
        ("512Gi", B),
        ("400 Gb/s", RATE),
        ("32k tokens", TOK),
        ("32Ki", TOK),
        ("8192", TOK),
        ("2.4M tok/s", TPS),
        ("1.2 KW", W),
        ("989 TFLOPS", FLOPS),
        ("30 %", FRACTION),
        ("80 GB/s", B),
        ("32K", S),
        ("", TOK),
    ],
)
def test_not_ambiguous(text: str, dimension: Dimension) -> None:
    assert ambiguities(text, dimension) is None


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (85.5e9, B, "85.5 GB"),
        (80 * 10**9, B, "80 GB"),
        (327_680, B, "328 kB"),
        (999.4e9, B, "999 GB"),
        (999.6e9, B, "1 TB"),
        (640, B, "640 B"),
        (0.5, B, "0.5 B"),
        (0, B, "0 B"),
        (-5.5e9, B, "-5.5 GB"),
        (5e21, B, "5,000 EB"),
        (3.35e12, RATE, "3.35 TB/s"),
        (989e12, FLOPS, "989 TFLOP/s"),
        (1.979e15, FLOPS, "1.98 PFLOP/s"),
        (0.0147, S, "14.7 ms"),
        (0.9996, S, "1 s"),
        (1.5, S, "1.5 s"),
        (3600, S, "3,600 s"),
        (2e-6, S, "2 us"),
        (0.0009996, S, "1 ms"),
        (5e-9, S, "0.005 us"),
        (0, S, "0 s"),
        (131_072, TOK, "131,072 tok"),
        (131_072.4, TOK, "131,072 tok"),
        (12.34, TOK, "12.3 tok"),
        (10**20 + 1, TOK, "100,000,000,000,000,000,001 tok"),
        (2437.8, TPS, "2,438 tok/s"),
        (6.0, RPS, "6 req/s"),
        (0.25, RPS, "0.25 req/s"),
        (700, W, "700 W"),
        (10_200, W, "10.2 kW"),
        (0.3, FRACTION, "30 %"),
        (0.8234, FRACTION, "82.3 %"),
        (1, FRACTION, "100 %"),
        (1024, COUNT, "1,024"),
        (float("inf"), S, "inf s"),
        (float("-inf"), COUNT, "-inf"),
        (float("nan"), B, "nan B"),
    ],
)
def test_format(value: float, dimension: Dimension, text: str) -> None:
    assert format_quantity(value, dimension) == text


@pytest.mark.parametrize(("digits", "text"), [(1, "86 GB"), (2, "86 GB"), (4, "85.53 GB"), (9, "85.531234 GB")])
def test_format_with_other_digits(digits: int, text: str) -> None:
    assert format_quantity(85.531234e9, B, digits) == text


def test_format_needs_a_digit() -> None:
    with pytest.raises(ValueError, match="digits"):
        format_quantity(1, B, 0)


def test_every_example_is_a_quantity_of_its_dimension() -> None:
    for dimension in Dimension:
        value = parse_quantity(dimension.example, dimension)
        assert parse_quantity(format_quantity(value, dimension), dimension) == value
        if dimension.unit:
            assert parse_quantity(f"1 {dimension.unit}", dimension) == 1
