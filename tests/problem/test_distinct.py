"""Values of equal objects are computed once, and sums are those of all."""

from __future__ import annotations

from fractions import Fraction

from ppopt import Model
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.exact import total
from ppopt.problem.layer import Layer


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
