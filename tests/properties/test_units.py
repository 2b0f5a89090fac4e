"""What holds for every quantity: exactness, round trips, dimensions that never mix, and typed errors only."""

from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from servelint.units import Dimension, QuantityError, ambiguities, format_quantity, parse_quantity

DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# Units of each dimension with the SI value of one, written down apart from the module's own tables.
UNITS: dict[Dimension, dict[str, Fraction]] = {
    Dimension.BYTES: {f"{p}B": Fraction(f) for p, f in {**DECIMAL, **BINARY}.items()},
    Dimension.BYTES_PER_SECOND: {
        **{f"{p}B/s": Fraction(f) for p, f in {**DECIMAL, **BINARY}.items()},
        **{f"{p}{bit}": Fraction(f, 8) for p, f in DECIMAL.items() for bit in ("bit/s", "b/s", "bps")},
    },
    Dimension.FLOPS_PER_SECOND: {f"{p}{n}": Fraction(f) for p, f in DECIMAL.items() for n in ("FLOPS", "FLOP/s")},
    Dimension.SECONDS: {
        "s": Fraction(1),
        "ms": Fraction(1, 1000),
        "us": Fraction(1, 10**6),
        "min": Fraction(60),
        "h": Fraction(3600),
    },
    Dimension.TOKENS: {
        "tok": Fraction(1),
        "tokens": Fraction(1),
        "k tokens": Fraction(1000),
        "Ki tok": Fraction(1024),
    },
    Dimension.TOKENS_PER_SECOND: {
        "tok/s": Fraction(1),
        "k tok/s": Fraction(1000),
        "tok/min": Fraction(1, 60),
    },
    Dimension.REQUESTS_PER_SECOND: {"req/s": Fraction(1), "rps": Fraction(1), "req/min": Fraction(1, 60)},
    Dimension.WATTS: {"W": Fraction(1), "kW": Fraction(1000)},
    Dimension.FRACTION: {"%": Fraction(1, 100)},
}
WHOLE = st.integers(0, 10**9)
DIMENSIONS = st.sampled_from(Dimension)


@st.composite
def quantities(draw: st.DrawFn) -> tuple[str, Dimension, Fraction]:
    """Text, its dimension and its exact value."""
    dimension = draw(st.sampled_from(list(UNITS)))
    unit = draw(st.sampled_from(sorted(UNITS[dimension])))
    digits = draw(st.integers(0, 100 if dimension is Dimension.FRACTION else 10**9))
    places = draw(st.integers(0, 6))
    number = f"{digits // 10**places}.{digits % 10**places:0{places}d}" if places else str(digits)
    exponent = draw(st.sampled_from([None, *range(-3, 1)]))
    exact = Fraction(digits, 10**places) * (Fraction(10) ** (exponent or 0)) * UNITS[dimension][unit]
    blank = draw(st.sampled_from(["", " "]))
    return f"{number}{'' if exponent is None else f'e{exponent}'}{blank}{unit}", dimension, exact


def read_or_refuse(value: object, dimension: Dimension) -> float | QuantityError:
    try:
        return parse_quantity(value, dimension)
    except QuantityError as error:
        return error


@given(quantities())
def test_text_is_read_exactly_and_rounded_once(quantity: tuple[str, Dimension, Fraction]) -> None:
    text, dimension, exact = quantity
    value = parse_quantity(text, dimension)
    if exact.denominator == 1:
        assert type(value) is int
        assert value == exact
    else:
        assert value == float(exact)


@given(quantities(), DIMENSIONS)
def test_a_unit_of_another_dimension_is_always_refused(
    quantity: tuple[str, Dimension, Fraction], due: Dimension
) -> None:
    text, dimension, _ = quantity
    assume(due is not dimension)
    with pytest.raises(QuantityError, match=r"is an? ") as caught:
        parse_quantity(text, due)
    assert due.example in caught.value.message


@given(WHOLE, st.sampled_from(sorted(BINARY)))
def test_decimal_and_binary_prefixes_never_agree(number: int, prefix: str) -> None:
    binary = parse_quantity(f"{number} {prefix}B", Dimension.BYTES)
    decimal = parse_quantity(f"{number} {prefix[0]}B", Dimension.BYTES)
    assert binary == number * BINARY[prefix]
    assert decimal == number * DECIMAL[prefix[0].replace("K", "k")]
    assert (binary == decimal) == (number == 0)


@given(WHOLE, st.sampled_from(sorted(DECIMAL)))
def test_eight_bits_are_a_byte(number: int, prefix: str) -> None:
    bits = parse_quantity(f"{8 * number} {prefix}bit/s", Dimension.BYTES_PER_SECOND)
    assert bits == parse_quantity(f"{number} {prefix}B/s", Dimension.BYTES_PER_SECOND)


@given(st.integers(0, 10**30), DIMENSIONS)
def test_whole_numbers_stay_exact(number: int, dimension: Dimension) -> None:
    assume(dimension is not Dimension.FRACTION)
    assert parse_quantity(number, dimension) == number
    for text in (str(number), f"{number:_}", f"{number:,}", f"{number}.0", f"{number}e0"):
        result = parse_quantity(f"{text} {dimension.unit}", dimension)
        assert type(result) is int
        assert result == number


@given(st.integers(0, 10**30) | st.floats(0, 1e29), DIMENSIONS)
def test_text_without_a_unit_is_refused_where_units_differ(number: float, dimension: Dimension) -> None:
    assume(dimension not in (Dimension.TOKENS, Dimension.COUNT, Dimension.FRACTION))
    with pytest.raises(QuantityError, match="has no unit"):
        parse_quantity(f"{number:f}", dimension)


@given(st.floats(1e-29, 1e29) | st.integers(1, 10**29), DIMENSIONS, st.integers(1, 12))
def test_printed_text_reads_back_within_its_digits(value: float, dimension: Dimension, digits: int) -> None:
    if dimension is Dimension.FRACTION:
        value = value / 1e29
    if dimension is Dimension.COUNT:
        value = int(value)
    assume(value >= 1e-29)
    text = format_quantity(value, dimension, digits)
    assert abs(parse_quantity(text, dimension) - value) <= value * 0.500001 * 10 ** (1 - digits)


@given(st.floats(1e-6, 1e20), DIMENSIONS)
def test_printed_text_is_short_and_has_no_exponent(value: float, dimension: Dimension) -> None:
    text = format_quantity(value, dimension)
    number = text.removesuffix(dimension.unit).rstrip(" %kMGTPEmu")
    assert set(number) <= set("0123456789.,")
    assert sum(c.isdigit() for c in number.lstrip("0.").split(".")[-1]) <= 3 or "." not in number


@given(st.floats(0, 1e29), DIMENSIONS)
def test_a_minus_sign_is_all_that_negative_values_add(value: float, dimension: Dimension) -> None:
    assume(value > 0)
    assert format_quantity(-value, dimension) == "-" + format_quantity(value, dimension)


@given(
    st.text() | st.from_regex(r"[+-]?[0-9_,.]{1,6}(e[+-]?[0-9]{1,4})? ?[A-Za-zµ%/ ]{0,8}", fullmatch=True),
    DIMENSIONS,
)
@example("9" * 5000, Dimension.COUNT)
@example("1e" + "9" * 70, Dimension.BYTES)
@example("\ud800 GB", Dimension.BYTES)
def test_text_is_a_quantity_or_a_typed_error(text: str, dimension: Dimension) -> None:
    note = ambiguities(text, dimension)
    assert note is None or (note and note.isprintable())
    outcome = read_or_refuse(text, dimension)
    if isinstance(outcome, QuantityError):
        assert note is None
        assert outcome.message.isprintable()
        assert len(outcome.message) < 600
    else:
        assert 0 <= outcome <= 1e30


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(JSON, DIMENSIONS)
def test_any_value_is_a_quantity_or_a_typed_error(value: object, dimension: Dimension) -> None:
    outcome = read_or_refuse(value, dimension)
    if isinstance(outcome, QuantityError):
        assert outcome.message.isprintable()
    else:
        assert isinstance(value, int | float | str)
        assert not isinstance(value, bool)
        assert 0 <= outcome <= 1e30
