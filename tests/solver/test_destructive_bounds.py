"""Questions between a bound and a value: every one leads nearer, and they come to an end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.destructive_bounds import TargetSequence, feasibility_model
from ppopt.solver.cp_sat import cpsat


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_the_least_value_is_found_if_all_is_answered(a: int, b: int, c: int, hard: int) -> None:
    """Of any least value between bound and value; a question left open stops nothing below it."""
    low, least, high = sorted((a, b, c))
    sequence = TargetSequence(low, high)
    asked = []
    for target in sequence.targets(lambda: low):
        assert sequence.low <= target < sequence.high
        asked.append(target)
        if target == hard:
            sequence.skip(target)
        elif target < least:
            sequence.low = target + 1
        else:
            sequence.high = target
    assert len(set(asked)) == len(asked)
    assert sequence.low <= least <= sequence.high
    if hard not in asked:
        assert sequence.low == sequence.high == least
    elif hard >= least:
        assert sequence.low == least or hard == low


def test_the_first_questions_are_near_the_bound() -> None:
    """Steps double from a 64th of the distance until a question is not refuted."""
    sequence = TargetSequence(0, 6400)
    asked = []
    for target in sequence.targets(lambda: 0):
        asked.append(target)
        if target < 1000:
            sequence.low = target + 1
        else:
            sequence.high = target
        if len(asked) == 6:
            break
    assert asked == [0, 101, 302, 703, 1504, (704 + 1504) // 2]


def test_a_bound_from_elsewhere_is_asked_from_on() -> None:
    """Also where it lies above a question without an answer: nothing stands in the way then."""
    sequence, known = TargetSequence(100, 200), [100]
    asked = []
    for target in sequence.targets(lambda: known[0]):
        asked.append(target)
        if target < 110:
            sequence.low = target + 1
        elif target < 130:
            sequence.skip(target)
            known[0] = 160
        else:
            sequence.high = target
    assert min(target for target in asked if target >= 130) == 160
    assert sequence.low == sequence.high == 160
    assert len(set(asked)) == len(asked)


def test_a_question_of_few_devices_is_no_harder() -> None:
    """Two devices of 1F1B's memory, F = B = W = 1, two microbatches: 7, device 1 alone too."""
    problem = Problem(
        Pipeline(stages=2, batches=2, mem_limit=2, backward_input=1, weight=1),
        Objective.MAKESPAN,
        BackwardKind.SPLIT,
    )
    for devices in (None, (1,)):
        for target, possible in ((6, False), (7, True)):
            built = feasibility_model(problem, target, devices)
            limits = cpsat.SolverLimits(20, 1, 0)
            outcome = cpsat.search(built, limits, lambda _value, _bound: None)
            assert (outcome.ended, outcome.infeasible) == (possible, not possible)
