"""Bounds by one microbatch, against the formula of their module in every order."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Pipeline
from ppopt.problem.instance import Instance
from ppopt.solver.bounds.microbatch_bounds import MicrobatchTimes, rows_of

TIMES = st.integers(0, 6)


def by_microbatch(times: MicrobatchTimes, order: tuple[int, ...], microbatch: int) -> int:
    """Head, F up to the microbatch, its round trip, backwards from it on, and tail."""
    at = order.index(microbatch)
    return int(
        times.head[order[0]]
        + sum(times.forward[before] for before in order[: at + 1])
        + times.way[microbatch]
        + sum(times.backward[behind] for behind in order[at:])
        + times.tail[order[-1]]
    )


def by_work(times: MicrobatchTimes, order: tuple[int, ...]) -> int:
    """Head, all work of the device, and tail."""
    return int(
        times.head[order[0]] + times.forward.sum() + times.backward.sum() + times.tail[order[-1]]
    )


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES), min_size=1, max_size=4))
def test_bounds_are_those_of_the_formula(rows: list[tuple[int, ...]]) -> None:
    """In any order: the minimum over all orders, by work and by the longest microbatch."""
    times = MicrobatchTimes(0, *(np.array(column) for column in zip(*rows, strict=True)))
    listed, *_ = orders = list(permutations(range(len(rows))))
    in_order = max(by_microbatch(times, listed, microbatch) for microbatch in listed)
    assert [value for value, _ in times.in_order()] == [by_work(times, listed), in_order]
    (work, _), (value, microbatch) = times.in_any_order()
    assert microbatch is not None
    assert work == min(by_work(times, order) for order in orders)
    assert value == min(by_microbatch(times, order, microbatch) for order in orders)


def test_an_operation_that_does_not_run_takes_no_time() -> None:
    """A frozen stage has no W."""
    pipeline = Pipeline(stages=2, batches=2, frozen=[False, True], microbatch_times=(1, 2))
    (stages,) = rows_of(Instance.uniform(pipeline, fused=False))
    assert [[row.tolist() for row in rows] for rows in stages] == [
        [[1, 2], [1, 2], [1, 2]],
        [[1, 2], [1, 2], [0, 0]],
    ]
