"""CP-SAT on the whole pipeline: from the best schedule known, or from nothing."""

from __future__ import annotations

from dataclasses import replace

from ppopt.errors import VerificationError
from ppopt.problem.problem import Objective, Problem
from ppopt.rechecker import SEED, Verdict, check
from ppopt.rechecker.certificate import Argument, Certificate
from ppopt.rechecker.claim import Claim
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.cp_sat.delays import Chain
from ppopt.solver.incumbent import Search

FOCUSES = (("ordering",), ("ordering_quick_restart",), ("ordering",))
"""CP-SAT's subsolvers per round, beside large neighbourhoods: the first proves most, the other one
what the first is long at."""
RECHECK = 10.0
"""Most seconds for a second opinion on that there is no schedule: nobody else could see it."""
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
        _close_infeasible(state, limits)
        return True
    if outcome.schedule is not None:
        state.offer(outcome.schedule.orders)
        state.take(outcome.schedule)
    ended = outcome.complete or (state.value is not None and outcome.bound >= state.value)
    cut = "CP-SAT proved on the whole model that none is below this bound"
    words = f"{searched(problem)} below" if ended else cut
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
    """The best value; without one, more than some schedule needs if there is any.

    Where nothing runs and nothing is under way, all that follows may come sooner: so a schedule
    need not take longer than all operations and all transfers, one after the other. More, because a
    bound that reaches the horizon ends a search.
    """
    if state.value is not None:
        return state.value
    pipeline = state.problem.pipeline
    chains = [Chain(pipeline, state.problem.fused, route) for route in range(pipeline.routes)]
    each = max(c.forward[0] + c.turn(0) + c.backward[0] + sum(c.weight) for c in chains)
    return pipeline.batches * pipeline.num_slices * each + 1


def _close_infeasible(state: Search, limits: cpsat.Limits) -> None:
    """Take it that there is no schedule, unless one is known or the re-checker finds one."""
    problem = state.problem
    span = problem.objective is Objective.DEVICE_SPAN
    claim = Claim(problem.pipeline, span, problem.fused, bound=None)
    seconds = min(RECHECK, max(1.0, state.left))
    if state.value is not None:
        raise VerificationError(
            f"the whole model lost a schedule of {state.value} ticks: please report it"
        )
    if _is_wrong(claim, seconds, limits.workers):
        raise VerificationError("the whole model lost a schedule that there is: please report it")
    state.infeasible = (
        f"{searched(state.problem)} that keeps the memory limits; raise them: a limit that holds "
        "B of no length beside all activations of a device always works"
    )


def _is_wrong(claim: Claim, seconds: float, workers: int) -> bool:
    found = check(claim, seconds, workers, SEED, lambda _: None)
    return found.verdict is Verdict.WRONG
