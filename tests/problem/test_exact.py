from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.problem import exact


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (1, Fraction(1)),
        (0.1, Fraction(1, 10)),
        ("18.522", Fraction(18522, 1000)),
        ("1e-3", Fraction(1, 1000)),
        (Decimal("-2.50"), Fraction(-5, 2)),
        (Fraction(1, 3), Fraction(1, 3)),
        (Fraction(10**13), Fraction(10**13)),
    ],
)
def test_decimals_are_read_exactly(number: Any, value: Fraction) -> None:
    assert exact.read(number, "x") == (value, False)


@pytest.mark.parametrize(
    ("number", "value"),
    [("0.1234567", Fraction(123457, 10**6)), (1 / 3, Fraction(333333, 10**6)), ("1e-9", 0)],
)
def test_finer_than_a_millionth_is_rounded_and_said(number: Any, value: Fraction) -> None:
    assert exact.read(number, "x") == (value, True)


@pytest.mark.parametrize(
    "number",
    [
        True,
        None,
        [],
        {},
        "x",
        "",
        "nan",
        float("nan"),
        float("inf"),
        "-inf",
        "1e999999",
        "1e999999999",
        "-1e-999999999",
        Decimal("1e999999999"),
        "1e99999999999999999999999",
        pytest.param(10**5000, id="5001 digits"),
        10**13,
        "1 0",
    ],
)
def test_anything_else_is_refused_by_name(number: Any) -> None:
    with pytest.raises(InputError, match=r"^forward: ") as raised:
        exact.read(number, "forward")
    assert len(str(raised.value)) < 100


def test_a_fraction_has_a_float_near_it() -> None:
    """The bounds of exponents are those within which a number is printed as a float."""
    for text in ("1e300", f"1{'0' * 300}.5", "-9.99e300", "1e-300", "0", "0e999999999"):
        value = exact.fraction(text, "x")
        assert float(exact.plain(value)) == float(text)
        assert bool(exact.plain(value)) is bool(value)
    for text in ("1e301", "1e-301"):
        with pytest.raises(InputError, match="out of range"):
            exact.fraction(text, "x")


def test_common_denominator_makes_whole_ticks() -> None:
    assert exact.common_denominator([Fraction(1, 4), Fraction(1, 6), Fraction(2)]) == 12
    assert exact.common_denominator([]) == 1


def test_plain_numbers() -> None:
    assert exact.plain(Fraction(6, 3)) == 2
    assert isinstance(exact.plain(Fraction(2)), int)
    assert exact.plain(Fraction(1, 4)) == 0.25
