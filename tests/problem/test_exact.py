from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Model
from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.exact import total
from ppopt.problem.layer import Layer
from ppopt.problem.operation import Op, OpKind, parse


@pytest.mark.parametrize(
    ("text", "value"),
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
def test_decimals_are_read_exactly(text: Any, value: Fraction) -> None:
    assert exact.read(text, "x") == (value, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1234567", Fraction(123457, 10**6)), (1 / 3, Fraction(333333, 10**6)), ("1e-9", 0)],
)
def test_finer_than_a_millionth_is_rounded_and_said(text: Any, value: Fraction) -> None:
    assert exact.read(text, "x") == (value, True)


@pytest.mark.parametrize(
    "text",
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
def test_anything_else_is_refused_by_name(text: Any) -> None:
    with pytest.raises(InputError, match=r"^forward: ") as raised:
        exact.read(text, "forward")
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


@given(st.sampled_from(OpKind), st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_written_is_read(kind: OpKind, stage: int, microbatch: int) -> None:
    op = Op(kind, stage, microbatch)
    assert parse(str(op)) == op


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F0",
        "0F",
        "0X0",
        "0F0xyz",
        "0F1.5",
        "0F1s0",
        "0F1s",
        " 0F0",
        "0F0\n",
        "00F0",
        "0F-1",
        "\N{ARABIC-INDIC DIGIT ZERO}F0",
        "0f0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not an operation"):
        parse(text)


@given(st.sampled_from(OpKind), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_slices_are_written_behind(
    kind: OpKind, stage: int, microbatch: int, slice_index: int
) -> None:
    op = Op(kind, stage, microbatch, slice_index)
    assert parse(str(op)) == op
    assert str(op) == f"{stage}{kind.name}{microbatch}" + (f"s{slice_index}" if slice_index else "")


# Values of equal objects are computed once, and sums are those of all.


def test_a_function_is_called_once_per_object() -> None:
    first, second = [1], [1]
    calls: list[list[int]] = []

    def length(item: list[int]) -> int:
        calls.append(item)
        return len(item)

    assert map_distinct(length, iter([first, second, first])) == (1, 1, 1)
    assert len(calls) == 2
    assert [id(item) for item in distinct([first, second, first])] == [id(first), id(second)]


def test_a_total_counts_repeated_objects() -> None:
    half, same = Fraction(1, 2), Fraction(1, 2)
    assert total(iter([half, half, same, Fraction(-3)])) == Fraction(-3, 2)
    assert total([]) == 0


def test_models_of_equal_layers_have_one_hash() -> None:
    listed = Model([Layer(forward=2), Layer(forward=2), Layer(forward=3)])
    counted = Model([{"forward": 2, "count": 2}, {"forward": 3}])
    assert listed == counted and hash(listed) == hash(counted)
    assert counted != Model([{"forward": 3}, {"forward": 2, "count": 2}])
