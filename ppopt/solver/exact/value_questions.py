"""CP-SAT is asked for schedules of given values, not for the best.

Of a long run one question is put, of a shorter one whose middle repeats: the operations of every
microbatch in the middle come one period after those of the microbatch before. A period is the work
of the busiest device on a microbatch: in the steady state of a run that meets the bound it never
idles. The model has few free operations then, whatever the microbatches, and what it finds is
stretched (`ppopt.solver.heuristics.steady_state`). Where nothing repeats like that, nothing is said
of the run.
"""

from __future__ import annotations

from dataclasses import replace

from ppopt.problem.problem import Problem
from ppopt.rechecker.certificate import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.bounds.destructive_bounds import Between, question
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.exact.full_model import searched
from ppopt.solver.heuristics.cyclic import least_period
from ppopt.solver.heuristics.steady_state import Stretch, Window
from ppopt.solver.incumbent import LARGEST_MODEL, Search

CLOSE = 100
"""The bound may well be met where the gap is at most this fraction of the value."""
PARTS = 3
"""The shorter run has this many microbatches per device: warm-up, middle and cool-down alike."""
SHARE = 0.5
"""Largest share of a budget for one question, but for one at a bound that is close."""


def search(state: Search, budget: Budget, turn: int) -> None:
    """Ask, while the budget lasts; the state takes schedules and bounds."""
    if budget.over or state.value is None:
        return
    problem = shorter(state.problem)
    if problem is not None:
        if _close(state) and problem.operations <= LARGEST_MODEL:
            _ask_shorter(state, problem, budget, turn)
    elif state.problem.operations <= LARGEST_MODEL:
        _bisect(state, budget, turn)


def _close(state: Search) -> bool:
    assert state.value is not None
    return CLOSE * (state.value - state.bound.value) <= state.value


def shorter(problem: Problem) -> Problem | None:
    """The run to be asked for in place of a long one; None where the run itself is not long."""
    pipeline = problem.pipeline
    few = PARTS * pipeline.num_devices
    if pipeline.batches <= few or pipeline.routes > 1 or pipeline.num_slices > 1:
        return None
    return replace(problem, pipeline=replace(pipeline, batches=few))


def _bisect(state: Search, budget: Budget, turn: int) -> None:
    """Ask between bound and value."""
    state.enter("CP-SAT between bound and value")
    assert state.value is not None
    between = Between(state.bound.value, state.value)
    for target in between.questions(lambda: state.bound.value):
        if budget.over:
            return
        part = 1 if target == state.bound.value and _close(state) else SHARE
        outcome = _answer(question(state.problem, target), budget, part, turn)
        state.interrupted = outcome.interrupted
        if outcome.schedule is not None:
            state.take(outcome.schedule)
            between.high = min(target, state.value)
        elif outcome.infeasible:
            state.raise_bound(_none_within(state.problem, target))
        else:
            between.skip(target)


def _none_within(problem: Problem, target: int) -> Bound:
    return Bound(target + 1, f"{searched(problem)} below", Certificate(Argument.SEARCH))


def _answer(built: model.Model, budget: Budget, part: float, turn: int) -> cpsat.Outcome:
    focus = cpsat.PLANS if turn % 2 else cpsat.PROOFS
    limits = replace(budget.limits(part, focus).turned(turn), presolve=False)
    outcome = cpsat.search(built, limits, lambda _value, _bound: None)
    budget.pay(outcome)
    return outcome


def _ask_shorter(state: Search, problem: Problem, budget: Budget, turn: int) -> None:
    """Ask for a schedule of the bound's value by a shorter run whose middle repeats."""
    state.enter("CP-SAT on a run that repeats")
    fewer = state.problem.pipeline.batches - problem.pipeline.batches
    value = state.bound.value - fewer * least_period(problem)
    least = head_body_tail.device_bound(problem.pipeline, problem.objective, fused=problem.fused)
    if value < least.value:
        return
    built = question(problem, value)
    _repeat(built, least_period(problem))
    outcome = _answer(built, budget, 1, 2 * turn + 1)
    state.interrupted = outcome.interrupted
    if outcome.schedule is not None:
        state.take(_stretched(state, problem, outcome.schedule))


@interrupts.held()
def _repeat(built: model.Model, apart: int) -> None:
    """Let the microbatches of the middle follow one another by so many ticks."""
    pipeline = built.pipeline
    first = pipeline.num_devices
    for code, start in built.start.items():
        op = pipeline.op(code)
        later = op.microbatch - first
        if 0 < later < pipeline.num_devices:
            leader = built.start[int(pipeline.code(op.kind, op.stage, first))]
            built.cp.add(start == leader + later * apart)


def _stretched(state: Search, problem: Problem, short: Schedule) -> Schedule:
    middle = Window(problem.pipeline.num_devices, 1, 1, float(least_period(problem)))
    return Stretch(short, problem).made(state.problem.pipeline, middle)
