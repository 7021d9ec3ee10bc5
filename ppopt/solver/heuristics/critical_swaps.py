"""Local search over orders and modes, by moves on a critical path.

Every step makes one of the moves of `ppopt.solver.heuristics.moves`. A worse schedule is sometimes
accepted. After a number of steps without improvement the search continues from the best schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ppopt.problem.problem import Problem
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, handled, unhandled
from ppopt.schedule import timing
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.iterated_local_search import IteratedLocalSearch
from ppopt.solver.heuristics.moves import Flip, Move, State, Swap
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import MoveParams

CHECKED_AFTER = 30_000
"""Operations whose starts are computed between two checks of the time of the search."""


class CriticalSwaps:
    """Local search from the best schedule over the orders of devices and links.

    It shortens the makespan. If the objective is the device span, the final orders are kept only if
    their device span is better.
    """

    name = "critical swaps"
    handles = handled(ArgumentClass.EVERY_OPERATION, FORMS)

    def __init__(self, rng: Random, params: MoveParams) -> None:
        self._rng, self._params = rng, params
        self._steps = params.first_steps

    def supports(self, problem: Problem) -> bool:
        """Whether `IteratedLocalSearch` does not handle the problem."""
        return bool(unhandled(problem.traits, IteratedLocalSearch.handles))

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Make a number of steps; the next turn makes twice as many."""
        if incumbent.best is None:
            return Outcome()
        problem, steps_left = incumbent.problem, self._steps
        start = State.of_schedule(problem, incumbent.best)

        stride = max(1, CHECKED_AFTER // start.network.size)

        def over(_: int) -> bool:
            nonlocal steps_left
            steps_left -= 1
            budget.pay(self._params.step_seconds * start.network.size)
            return steps_left < 0 or budget.left <= 0 or (steps_left % stride == 0 and budget.over)

        flips = self._params.flips if Trait.MIXED in problem.traits else 0.0
        best = improve(start, flips, self._rng, self._params, incumbent.bound.value, over)
        incumbent.submit(timing.retimed(best.schedule, problem.objective))
        self._steps *= 2
        return Outcome(budget.spent)


def improve(
    start: State,
    flips: float,
    random: Random,
    params: MoveParams,
    bound: int,
    over: Callable[[int], bool],
) -> State:
    """Search for a state with a smaller makespan.

    The search ends when the makespan is `bound` (ticks) or `over(value)` holds. `flips` is the
    share of the steps that flip a mode. `over` is called before every step, with the best makespan
    in ticks.
    """
    present = best = start
    value = best_value = start.value
    since = 0
    while best_value > bound and not over(best_value):
        since += 1
        move: Move = Flip() if flips and random.random() < flips else Swap()
        neighbour = move.propose(present, random)
        if neighbour is not None:
            length = neighbour.value
            if length <= value + params.temperature * best_value * random.random() ** 3:
                present, value = neighbour, length
        if value < best_value:
            best, best_value, since = present, value, 0
        elif since >= params.patience:
            present, value, since = best, best_value, 0
    return best
