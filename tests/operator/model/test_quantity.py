"""Quantities by the examples of the documentation of apimachinery, and by values of autoscalers."""

from fractions import Fraction

import pytest

from slipway_operator.model import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4", 4),
        ("-4", -4),
        ("+4", 4),
        ("500m", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("0.1", Fraction(1, 10)),
        ("12300u", Fraction(123, 10_000)),
        ("7n", Fraction(7, 10**9)),
        ("2k", 2000),
        ("1e3", 1000),
        ("1E-2", Fraction(1, 100)),
        ("3E", 3 * 10**18),
        ("2Ki", 2048),
        ("1.5Gi", 3 << 29),
        ("1Ei", 1 << 60),
    ],
)
def test_parse_is_exact(text: str, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "m", "four", "1 Gi", "1GiB", "1mm", "0x10", "1e", "1e999999", "nan", "∞", "9" * 65]
)
def test_invalid_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 4, 500m or 2Gi"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (4, "4"),
        (1000, "1k"),
        (1500, "1500"),
        (2_000_000, "2M"),
        (Fraction(1, 2), "500m"),
        (Fraction(3, 2), "1500m"),
        (Fraction(123, 10_000), "12300u"),
        (Fraction(1, 10**9), "1n"),
        (Fraction(-1, 2), "-500m"),
        (10**18, "1E"),
        (Fraction(1, 3), "333333334n"),
        (Fraction(1, 10**12), "1n"),
    ],
    ids=str,
)
def test_render_is_canonical_and_rounds_up(value: Fraction, text: str) -> None:
    assert quantity.render(value) == text


def test_rendered_quantity_parses_to_the_same_value() -> None:
    for thousandths in (1, 9, 10, 999, 1000, 1001, 123_456_789, 10**12):
        value = Fraction(thousandths, 1000)
        assert quantity.parse(quantity.render(value)) == value
