"""Comparisons as throughput: one definition, and no gain reads better than it is."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ppopt.report.throughput_text import gain_cell, gain_text, max_gain_text, throughput_gain


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (109.29, 100, "9.2 % more throughput"),
        (100, 103.05, "3 % less throughput"),
        (Fraction(54590), Fraction(164800), "66.9 % less throughput"),
        (27, 27, "the same throughput"),
        (1_000_000, 999_999, "less than 0.01 % more throughput"),
    ],
)
def test_a_gain_is_of_throughput_and_below_0_a_loss(old: float, new: float, text: str) -> None:
    assert gain_text(throughput_gain(old, new)) == text
    assert gain_cell(throughput_gain(old, new)) == text.removesuffix(" throughput").replace(
        "the same", "same"
    )


def test_a_bound_of_a_gain_is_rounded_up() -> None:
    """No step is below 2,270 where the best takes 3,311: 45.86 % more at most."""
    assert max_gain_text(throughput_gain(3311, 2270)) == "up to 45.9 % more throughput"
