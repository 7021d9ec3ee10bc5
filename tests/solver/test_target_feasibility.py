"""CP-SAT asked for schedules of given values: never a false bound, and optima in the end."""

from __future__ import annotations

import pytest

from ppopt import Objective, Pipeline, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.problem import Problem
from ppopt.solver.bounds import device_bounds
from ppopt.solver.budget import Budget
from ppopt.solver.exact.target_feasibility import TargetFeasibility
from ppopt.solver.parameters import FeasibilityParams
from tests.factories.instances import tiny_cases
from tests.factories.searches import Begun, begun
from tests.oracles import exhaustive


def asked(search: Begun, budget: Budget, turn: int) -> None:
    """Questions as in the first or the second turn."""
    method = TargetFeasibility(search.incumbent.problem, FeasibilityParams())
    for _ in range(turn):
        method.run(search.incumbent, search.budget(0.0))
    method.run(search.incumbent, budget)


@pytest.mark.parametrize("objective", list(Objective))
def test_questions_lead_to_the_optimum_of_exhaustive_search(objective: Objective) -> None:
    """Whatever the bound and the schedule it starts from: each is wrong by far at first."""
    rose = fell = 0
    for case in tiny_cases(72, 16):
        if device_bounds.infeasibility(Instance.uniform(case.pipeline, fused=case.fused)):
            continue
        search = begun(Problem(case.pipeline, objective, case.backward_kind))
        if search.incumbent.value is None:
            continue
        bound, value = search.incumbent.bound.value, search.incumbent.value
        asked(search, search.budget(60, 1), 0)
        best = exhaustive.best(case.pipeline, fused=case.fused, objective=objective)
        assert (search.incumbent.bound.value, search.incumbent.value) == (best, best)
        rose += search.incumbent.bound.value > bound
        fell += search.incumbent.value < value
    assert rose
    assert fell


@pytest.mark.parametrize("batches", [40, 41])
@pytest.mark.parametrize("turn", [0, 1])
def test_a_run_that_repeats_meets_the_bound(batches: int, turn: int) -> None:
    """Four devices of 1F1B's memory, F = B = W = 1: device 3 waits 3 and then never idles."""
    pipeline = Pipeline(stages=4, batches=batches, mem_limit=4, weight=1, backward_input=1)
    search = begun(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    search.incumbent.value = (
        search.incumbent.bound.value + 1
    )  # as if something close had been found
    asked(search, search.budget(60, 2), turn)
    assert search.incumbent.value == search.incumbent.bound.value == 3 + 3 * batches
    assert search.incumbent.best is not None
    assert verify(search.incumbent.best) == []


def test_a_run_that_does_not_repeat_at_its_bound_says_nothing() -> None:
    """One activation at a time: device 0 idles in every period, which no bound here counts."""
    pipeline = Pipeline(stages=2, batches=200, mem_limit=1)
    search = begun(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    bound, search.incumbent.value = (
        search.incumbent.bound,
        search.incumbent.bound.value + 1,
    )  # as if it were close
    asked(search, search.budget(60, 1), 1)
    assert search.incumbent.bound == bound
    assert not search.incumbent.closed
