"""Layered DP on all devices, resumed in every round."""

from __future__ import annotations

from math import inf

from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.budget import Budget
from ppopt.solver.dynamic_programming.applicability import (
    HANDLES,
    is_supported,
    layer_seconds,
    preparing_seconds,
    small_classes,
)
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import DynamicProgramParams
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes


class DynamicProgram:
    """Dynamic programming over all devices.

    Each turn resumes the layered DP. One that would take longer than the search is abandoned.
    """

    name = "dynamic program"
    handles = HANDLES

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._problem = problem
        self._params = params
        self._program: LayeredDP | None = None
        """Layered DP in progress; None: not begun."""
        every = frozenset(range(problem.pipeline.num_devices))
        self._classes = (
            small_classes(DeviceSubset(RouteTimes(problem.instance), every), params)
            if is_supported(problem)
            else None
        )
        """Classes of all devices; None if the search is not supported, or has ended."""
        self._turn = 0

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the dynamic program supports a problem and its states are small."""
        return self._classes is not None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Resume the layered DP."""
        self._turn += 1
        if self._classes is not None and incumbent.value is not None and not budget.over:
            program = self._program
            if program is None:
                if not budget.affords(preparing_seconds(self._problem, self._params)):
                    self._classes = None
                    return Outcome(budget.spent, exhausted=True)
                program = self._program = LayeredDP(self._classes, incumbent.value)
            program.below = incumbent.value
            if self._goes_on(program, budget):
                if program.best is not None:
                    incumbent.submit_orders(program.classes.orders(program.path()))
                incumbent.raise_bound(_none_below(self._problem, program.lower_bound))
                self._classes = None
        return Outcome(budget.spent, exhausted=self._classes is None)

    def _goes_on(self, program: LayeredDP, budget: Budget) -> bool:
        """Resume the layered DP or abandon it; return whether it has ended."""
        params = self._params
        reach = params.reach if self._turn > 1 else params.first_reach
        while not program.ended and not budget.search_over:
            share = self._remaining_share(program, budget)
            if share > 1:
                self._classes = None
                return False
            if 2 * params.state_seconds * program.width > budget.search_left:
                return False
            if budget.over and share >= reach:
                return False
            program.advance()
            budget.pay(layer_seconds(program, params))
        return program.ended

    def _remaining_share(self, program: LayeredDP, budget: Budget) -> float:
        """Time of the remaining layers at the present width, as a share of the whole search."""
        if program.entries > self._params.max_entries:
            return inf
        return program.remaining_layers * layer_seconds(program, self._params) / budget.seconds


def _none_below(problem: Problem, value: int) -> Bound:
    proof = (
        f"dynamic programming over all orders of the {problem.num_operations} operations, without "
        "dominated partial schedules, found none faster"
    )
    return Bound(value, proof, Certificate(Argument.SEARCH))
