"""CP-SAT on the whole pipeline: from the best schedule known, or from nothing."""

from __future__ import annotations

from dataclasses import replace

from ppopt.certificate import Argument, Certificate
from ppopt.errors import VerificationError
from ppopt.solver import cpsat, model
from ppopt.solver.bounds import Bound
from ppopt.solver.construct import one_at_a_time
from ppopt.solver.incumbent import Problem, Search
from ppopt.timing import schedule as timed

FOCUSES = (("ordering",), ("ordering_quick_restart",), ("ordering",))
"""CP-SAT's subsolvers per round, beside large neighbourhoods: the first proves most, the other one
what the first is long at."""
STEPS = 100
"""Into how many steps a search divides the gap that it starts with."""


def search(state: Search, limits: cpsat.Limits) -> bool:
    """Search below the best value until proof, time or Ctrl-C; the state takes what is found.

    Returns whether nothing much better is left, so that a search with finer steps may follow.
    """
    problem = state.problem
    state.enter("CP-SAT")
    built = model.build(
        problem.pipeline,
        problem.objective,
        fused=problem.fused,
        horizon=_horizon(state),
        bound=state.bound.value,
        step=_step(state),
    )
    if state.best is not None:
        model.hint(built, state.best)
    value = state.value

    def follow(found: int | None, bound: int) -> None:
        nonlocal value
        value = value if found is None else found
        state.tell(value, bound)

    def enough() -> bool:
        return limits.enough() or value == state.bound.value

    outcome = cpsat.search(built, replace(limits, enough=enough), follow)
    state.interrupted = outcome.interrupted
    if outcome.infeasible:
        _close_infeasible(state)
        return True
    if outcome.schedule is not None:
        state.offer(outcome.schedule.orders)
        state.take(outcome.schedule)
    cut = "CP-SAT on the whole model had proved this bound when its time was up"
    words = f"{searched(problem)} below" if outcome.complete else cut
    state.raise_bound(Bound(outcome.bound, words, Certificate(Argument.SEARCH)))
    return outcome.ended


def searched(problem: Problem) -> str:
    """Words of a proof by search, to be followed by what there is none of."""
    return f"CP-SAT searched all orders of the {problem.operations} operations and found none"


def _step(state: Search) -> int:
    """By how much a schedule must be better than the last: the finer, the smaller the gap."""
    if state.value is None:
        return 1
    return max(1, (state.value - state.bound.value) // STEPS)


def _horizon(state: Search) -> int:
    """The best value; without one, a time within which some schedule is done if there is any.

    Wherever limits allow a schedule at all, one microbatch after another is one. Only a B of no
    length that takes memory may have to wait there, for no longer than all other operations.
    """
    if state.value is not None:
        return state.value
    problem = state.problem
    alone = timed(problem.pipeline, one_at_a_time(problem.pipeline, fused=problem.fused))
    return 2 * alone.metrics.makespan


def _close_infeasible(state: Search) -> None:
    if state.value is not None:
        raise VerificationError(
            f"the whole model lost a schedule of {state.value} ticks: please report it"
        )
    state.infeasible = (
        f"{searched(state.problem)} that keeps the memory limits; raise them: a limit that holds "
        "B of no length beside all activations of a device always works"
    )
