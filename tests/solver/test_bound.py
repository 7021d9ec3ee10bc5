"""Values that an optimum can have."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, Status, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.bound import WHOLE_TICKS, common_divisor, min_possible_value
from ppopt.solver.bounds.destructive_bounds import TargetSequence
from tests.fuzz import pipelines
from tests.oracles import exhaustive


def problem(scale: int, objective: Objective, stages: int = 3) -> Problem:
    pipeline = Pipeline(stages=stages, batches=2, forward=2 * scale, weight=3 * scale, p2p=scale)
    return Problem(pipeline, objective, BackwardKind.SPLIT)


@pytest.mark.parametrize(
    ("objective", "scale", "bound", "minimum"),
    [
        (Objective.MAKESPAN, 1, 7, 7),
        (Objective.MAKESPAN, 100, 0, 0),
        (Objective.MAKESPAN, 100, 1, 100),
        (Objective.MAKESPAN, 100, 100, 100),
        (Objective.MAKESPAN, 100, 101, 200),
        (Objective.DEVICE_SPAN, 5, 7, 7),  # fewer ticks than parts: every value
        (Objective.DEVICE_SPAN, 60, 101, 110),  # three devices: sixths of 60
        (Objective.DEVICE_SPAN, 100, 101, 117),  # 7/6 of 100 is 116.67, rounded up
        (Objective.DEVICE_SPAN, 100, 117, 117),
        (Objective.DEVICE_SPAN, 100, 118, 134),
    ],
)
def test_next_value(objective: Objective, scale: int, bound: int, minimum: int) -> None:
    assert common_divisor(problem(scale, objective).instance) == scale
    assert min_possible_value(problem(scale, objective), bound) == minimum


def test_every_optimum_is_a_possible_value() -> None:
    """By exhaustive search over starts at all ticks, where a time has 12 of them."""
    rng = Random(5)
    for _ in range(25):
        fields = pipelines.draw(rng, ops=9, fused=True, instants=False)
        same, _ = pipelines.reduced(Pipeline(**fields), 12)
        for objective in Objective:
            best = exhaustive.best(same, fused=True, objective=objective.value)
            if best is not None:
                assert (
                    min_possible_value(Problem(same, objective, BackwardKind.WHOLE), best) == best
                )


def test_a_device_span_may_lie_between_sums_of_times() -> None:
    """Two devices wait for each other in turn: the cycle enters both, and takes 41 units."""
    fields = {"stages": 2, "batches": 2, "routes": 2, "p2p": [[0, 1], [2, 0]]}
    times = {"forward": [4, 3], "backward_input": [4, 3], "weight": [2, 3], "backward": [5, 6]}
    options = {"objective": "device-span", "backward_kind": "split", "workers": 1}
    coarse = solve(Pipeline(**fields, **times), **options)
    finer = {name: [2 * time for time in row] for name, row in times.items()}
    link = [[0, 2], [4, 0]]
    fine = solve(Pipeline(**fields | {"p2p": link}, **finer), **options)
    assert (coarse.status, fine.status) == (Status.OPTIMAL, Status.OPTIMAL)
    assert fine.value == 41
    assert coarse.value == ceil(Fraction(41, 2))
    assert coarse.proof.endswith(WHOLE_TICKS)


def test_a_proof_speaks_of_all_starts_unless_it_says_otherwise() -> None:
    """Starts at sixths of a tick, all that matter to up to three devices, gain nothing then."""
    rng = Random(11)
    silent = 0
    for _ in range(15):
        fields = pipelines.draw(rng, ops=9, fused=True, instants=False, devices=(2, 2, 3))
        pipeline = pipelines.reduced(Pipeline(**fields))[0]
        finer, _ = pipelines.reduced(pipeline, 6)
        for objective in Objective:
            result = solve(pipeline, objective=objective, backward_kind="whole", workers=1)
            if result.status is not Status.OPTIMAL or WHOLE_TICKS in result.proof:
                continue
            silent += objective is Objective.DEVICE_SPAN
            best = exhaustive.best(finer, fused=True, objective=objective.value)
            assert best == 6 * result.value
    assert silent > 3


def test_chosen_placements_say_it_too() -> None:
    pipeline = Pipeline(stages=3, batches=2, forward=[1, 2, 3], weight=1, placement=[0, 1, 1])
    for objective, says_whole_ticks in ((Objective.MAKESPAN, False), (Objective.DEVICE_SPAN, True)):
        result = solve(pipeline, objective=objective, placement="search", workers=1)
        assert result.status is Status.OPTIMAL
        assert result.proof.endswith(WHOLE_TICKS) is says_whole_ticks


# Questions between a bound and a value: every one leads nearer, and they come to an end.


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_the_least_value_is_found_if_all_is_answered(a: int, b: int, c: int, hard: int) -> None:
    """Of any least value between bound and value; a question left open stops nothing below it."""
    low, answer, high = sorted((a, b, c))
    sequence = TargetSequence(low, high)
    asked = []
    for target in sequence.targets(lambda: low):
        assert sequence.low <= target < sequence.high
        asked.append(target)
        if target == hard:
            sequence.skip(target)
        elif target < answer:
            sequence.low = target + 1
        else:
            sequence.high = target
    assert len(set(asked)) == len(asked)
    assert sequence.low <= answer <= sequence.high
    if hard not in asked:
        assert sequence.low == sequence.high == answer
    elif hard >= answer:
        assert sequence.low == answer or hard == low


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
