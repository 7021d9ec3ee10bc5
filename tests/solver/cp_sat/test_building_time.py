"""Building a CP-SAT model checks its deadline: the clock is read after little work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ortools.sat.python import cp_model

from ppopt import Pipeline
from ppopt.cancellation import LOOK, within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.timing import schedule
from ppopt.solver.bounds.destructive_bounds import feasibility_model
from ppopt.solver.cp_sat.model import build_model, hint
from ppopt.solver.exact.full_model import FullModel
from ppopt.solver.method import Outcome
from ppopt.solver.options import SolveOptions
from ppopt.solver.search import Search
from ppopt.solver.turns import Turn
from tests.clock import WorkBetweenReadings, stepping_clock

ADDED = (
    *("new_int_var", "new_bool_var", "new_fixed_size_interval_var", "new_interval_var"),
    *("new_optional_fixed_size_interval_var", "new_optional_interval_var", "add", "add_hint"),
    *("add_at_most_one", "add_exactly_one", "add_bool_or", "add_implication"),
)
"""Methods of a model that add a variable, a constraint or a hint."""
ADDED_PER_ITEM = 10
"""Maximum number of these calls for one item of a loop: two optional operations in order."""
SEVERAL = 4
"""Short loops, which need no reading of their own, between two readings."""
CASES: dict[str, tuple[dict[str, Any], BackwardKind]] = {
    "split": ({"stages": 8, "batches": 64, "forward": 3, "mem_limit": 5}, BackwardKind.SPLIT),
    "mixed": ({"stages": 4, "batches": 40, "forward": 3, "mem_limit": 5}, BackwardKind.MIXED),
    "pairs": ({"stages": 4, "batches": 24, "overlap": 2}, BackwardKind.WHOLE),
    "two chunks": ({"stages": 4, "batches": 40, "chunks": 2, "mem_limit": 4}, BackwardKind.SPLIT),
    "order literals": (
        {"stages": 1, "batches": 18, "forward": 1, "backward": 40_000, "mem_limit": 2},
        BackwardKind.MIXED,
    ),
}


@contextmanager
def counted(clock: WorkBetweenReadings, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count what is added to models as work of the clock."""

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def add(*arguments: Any) -> Any:
            clock.work += 1
            return method(*arguments)

        return add

    with patch.context() as patched:
        for name in ADDED:
            patched.setattr(cp_model.CpModel, name, counting(getattr(cp_model.CpModel, name)))
        yield


def problem_of(case: str) -> Problem:
    fields, kind = CASES[case]
    return Problem(Pipeline(**fields), Objective.MAKESPAN, kind)


@pytest.mark.parametrize("case", CASES)
def test_the_clock_is_read_while_a_model_is_built(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(case)
    orders = one_at_a_time(problem.restrictions[0].instance)
    assert orders is not None
    start = schedule(problem.pipeline, orders, problem.objective)
    horizon = start.metrics.makespan_ticks
    clock = WorkBetweenReadings(monkeypatch, 10_000)
    with counted(clock, monkeypatch), within(100):
        built = build_model(problem, horizon=horizon, bound=0)
        hint(built, start)
    proto = built.cp.proto
    assert len(proto.variables) + len(proto.constraints) > 2 * SEVERAL * LOOK
    assert clock.max_work <= (ADDED_PER_ITEM + SEVERAL) * LOOK


@pytest.mark.parametrize("case", ["split", "mixed", "pairs", "two chunks"])
@pytest.mark.parametrize("readings", [1, 2, 4])
def test_no_model_is_built_after_the_deadline(
    case: str, readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading of the clock takes a part of the limit."""
    problem = problem_of(case)
    stepping_clock(monkeypatch, 1.0, readings)
    with within(1.0) as scope:
        feasibility_model(problem, 10_000)
    assert scope.ended


def test_a_search_keeps_what_it_knows_when_time_is_up_in_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its method raises TimeoutError: the schedule and the bound of other methods remain."""

    def late(*_: object) -> Outcome:
        raise TimeoutError

    problem = Problem(Pipeline(stages=2, batches=4), Objective.MAKESPAN, BackwardKind.SPLIT)
    search = Search(problem, SolveOptions())
    method = FullModel(problem, search.params.full_model)
    monkeypatch.setattr(method, "run", late)
    search.incumbent.submit_orders(one_at_a_time(problem.instance))
    assert search._turn(Turn(method, 1.0)) == Outcome()
    assert search.incumbent.value is not None
