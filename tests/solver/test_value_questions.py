"""CP-SAT asked for schedules of given values: never a false bound, and optima in the end."""

from __future__ import annotations

import pytest

from ppopt import Objective, Pipeline, verify
from ppopt.problem.problem import Problem
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.budget import Budget
from ppopt.solver.exact import value_questions
from tests.factories.instances import tiny_cases
from tests.factories.searches import begun
from tests.oracles import exhaustive


@pytest.mark.parametrize("objective", list(Objective))
def test_questions_lead_to_the_optimum_of_exhaustive_search(objective: Objective) -> None:
    """Whatever the bound and the schedule it starts from: each is wrong by far at first."""
    rose = fell = 0
    for case in tiny_cases(72, 60):
        if head_body_tail.infeasibility(case.pipeline, fused=case.fused):
            continue
        search = begun(Problem(case.pipeline, objective, case.fused))
        if search.value is None:
            continue
        bound, value = search.bound.value, search.value
        value_questions.search(search, Budget.of(search, 1, 0, 60), 0)
        best = exhaustive.best(case.pipeline, fused=case.fused, objective=objective)
        assert (search.bound.value, search.value) == (best, best)
        rose += search.bound.value > bound
        fell += search.value < value
    assert rose
    assert fell


@pytest.mark.parametrize("batches", [40, 41])
@pytest.mark.parametrize("turn", [0, 1])
def test_a_run_that_repeats_meets_the_bound(batches: int, turn: int) -> None:
    """Four devices of 1F1B's memory, F = B = W = 1: device 3 waits 3 and then never idles."""
    pipeline = Pipeline(stages=4, batches=batches, mem_limit=4, weight=1, backward_input=1)
    search = begun(Problem(pipeline, Objective.MAKESPAN, False))
    search.value = search.bound.value + 1  # as if something close had been found
    value_questions.search(search, Budget.of(search, 2, 0, 60), turn)
    assert search.value == search.bound.value == 3 + 3 * batches
    assert search.best is not None
    assert verify(search.best) == []


def test_a_run_that_does_not_repeat_at_its_bound_says_nothing() -> None:
    """One activation at a time: device 0 idles in every period, which no bound here counts."""
    pipeline = Pipeline(stages=2, batches=200, mem_limit=1)
    search = begun(Problem(pipeline, Objective.MAKESPAN, False))
    bound, search.value = search.bound, search.bound.value + 1  # as if it were close
    value_questions.search(search, Budget.of(search, 1, 0, 60), 1)
    assert search.bound == bound
    assert not search.closed
