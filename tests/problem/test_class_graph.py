"""Graphs of classes: a removed class leaves the longest paths through it as lags."""

from __future__ import annotations

from random import Random

from ppopt.problem.class_graph import ClassGraph
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from tests.factories.instances import draw


def longest(instance: Instance, removed: set[int], before: int, after: int) -> int | None:
    """The longest path between two classes through removed ones, by trying all paths."""
    found = []
    for following, lag in instance.successors[before]:
        if following == after:
            found.append(lag)
        elif following in removed:
            rest = longest(instance, removed, following, after)
            if rest is not None:
                found.append(lag + instance.classes[following].duration + rest)
    return max(found, default=None)


def test_lags_are_the_longest_paths_through_removed_classes_in_any_order_of_removal() -> None:
    rng = Random(3)
    checked = 0
    for _ in range(60):
        case = draw(rng, devices=rng.randint(1, 3), batches=1, ops=12)
        instance = Instance.uniform(case.pipeline, fused=case.fused)
        numbers = range(len(instance.classes))
        removed = rng.sample(numbers, rng.randint(1, len(numbers) - 1))
        graph = ClassGraph(instance, numbers)
        for number in removed:
            graph.remove(number)
        left = [number for number in numbers if number not in removed]
        expected = {
            (before, after, lag)
            for before in left
            for after in left
            if (lag := longest(instance, set(removed), before, after)) is not None
        }
        assert set(graph) == expected
        checked += len(expected)
    assert checked > 100


def test_three_stages_without_the_middle_one() -> None:
    """Down: p2p 2, F 3, p2p 2. Up: p2p 2, B 4, p2p 2. F(0) to B(0) by the middle: 2+3+4+2."""
    pipeline = Pipeline(stages=3, batches=1, forward=3, backward=8, weight=4, p2p=2)
    instance = Instance.uniform(pipeline, fused=False)
    graph = ClassGraph(instance, range(9))
    for middle in (1, 4, 7):
        graph.remove(middle)
    assert [*graph] == [(0, 2, 7), (0, 3, 11), (2, 5, 0), (3, 6, 0), (5, 3, 8), (5, 8, 0)]


def test_classes_that_are_not_of_the_graph_are_left_out() -> None:
    instance = Instance.uniform(Pipeline(stages=2, batches=1), fused=True)
    graph = ClassGraph(instance, (0, 2))
    assert [*graph] == [(0, 2, 0)]
    assert graph.lag(2, 0) is None
