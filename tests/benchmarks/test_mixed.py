"""The benchmark of mixed backwards: its instances, and how they are counted."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks import mixed
from benchmarks.mixed import KINDS, Case, Row
from ppopt.problem.backward_choice import BackwardChoice

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_the_instances_are_of_their_kind(kind: str) -> None:
    """Those in which B takes longer than BW gain nothing by splitting; all others have a choice."""
    cases = [case for case in mixed.cases() if case.kind == kind]
    assert len(cases) == 9
    for case in cases:
        pipeline = case.pipeline()
        costs = pipeline.costs
        both = zip(costs.backward, costs.backward_input, costs.weight, strict=True)
        assert all(bw < b + w for bw, b, w in both) == (kind != "B takes memory")
        assert any(change > 0 for change in costs.memory_b) == ("takes memory" in kind)
        choice = BackwardChoice(pipeline).uniform
        assert str(choice) == ("whole" if kind == "B above BW" else "None")


def test_a_row_counts_as_worse_only_where_another_is_better() -> None:
    case = Case(KINDS[0], "linear", 2, 4, None)
    five, six = Fraction(5), Fraction(6)
    assert not Row(case, five, five, (six, five, None)).worse
    assert Row(case, six, five, (six, five, None)).worse
    assert Row(case, None, None, (None, five, None)).worse
    assert not Row(case, None, None, (None, None, None)).worse


def test_the_summary_counts_what_is_better() -> None:
    """10 beside 20, 10 and 25: better by 50 % than split, not than whole, by 60 % than by hand."""
    values = tuple(map(Fraction, (20, 10, 25)))
    row = Row(Case(KINDS[0], "linear", 2, 4, None), Fraction(10), Fraction(10), values)
    lines = mixed.summary([row]).splitlines()
    assert f"| {KINDS[0]} | 1 | 1 | split backwards | 1 of 1 | 50.0 | 50.0 |" in lines
    assert f"| {KINDS[0]} | 1 | 1 | whole backwards | 0 of 1 | 0.0 | 0.0 |" in lines
    assert f"| {KINDS[0]} | 1 | 1 | every hand strategy | 1 of 1 | 60.0 | 60.0 |" in lines
    assert f"| {KINDS[0]} | 1 | 1 | all of them | 0 of 1 | 0.0 | 0.0 |" in lines
