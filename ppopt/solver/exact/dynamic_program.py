"""Layered DP on all devices, resumed in every round, and beam search."""

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
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import Beam, LayeredDP
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import DynamicProgramParams
from ppopt.solver.relaxation.delays import Delays
from ppopt.solver.relaxation.device_relaxation import DeviceSubset


class DynamicProgram:
    """Dynamic programming over all devices.

    Each turn resumes the layered DP. It is abandoned if it would take longer than the search.
    `SubsetDP` solves subsets of the devices.
    """

    name = "dynamic program"
    handles = HANDLES

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._problem = problem
        self._params = params
        self._classes = _classes(problem, params)
        self._program: LayeredDP | None = None
        self._turn = 0

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the dynamic program supports a problem and its states are small."""
        return self._classes is not None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Resume the layered DP."""
        self._turn += 1
        assert self._classes is not None
        if incumbent.value is None:
            return Outcome()
        if self._program is None:
            if not budget.affords(preparing_seconds(self._problem, self._params)):
                return Outcome(exhausted=True)
            self._program = LayeredDP(self._classes, incumbent.value)
        program, before = self._program, incumbent.bound.value
        program.below = incumbent.value
        abandoned = self._is_abandoned(program, budget)
        if program.ended:
            if program.best is not None:
                incumbent.submit_orders(program.classes.orders(program.path()))
            incumbent.raise_bound(_none_below(self._problem, program.lower_bound))
        return Outcome(
            budget.spent,
            exhausted=abandoned or program.ended,
            fruitful=incumbent.bound.value > before,
        )

    def _is_abandoned(self, program: LayeredDP, budget: Budget) -> bool:
        """Advance the layered DP while the budget lasts; return whether it takes too long."""
        params = self._params
        reach = params.reach if self._turn > 1 else params.first_reach
        while not program.ended and not budget.search_over:
            share = self._remaining_share(program, budget)
            if share > 1:
                return True
            if 2 * params.state_seconds * program.width > budget.search_left:
                return False
            if budget.over and share >= reach:
                return False
            try:
                program.advance(deadline=budget.deadline)
            except TimeoutError:
                return False
            budget.pay(layer_seconds(program, params))
        return False

    def _remaining_share(self, program: LayeredDP, budget: Budget) -> float:
        """Time of the remaining layers at the present width, as a share of the whole search."""
        if program.entries > self._params.max_entries:
            return inf
        return (
            program.remaining_layers
            * layer_seconds(program, self._params)
            / budget.deadline.seconds
        )


class BeamSearch:
    """Dynamic programming on all devices, restricted to the most promising states: no proof."""

    name = "beam search"
    handles = HANDLES

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._params = params
        self._turn = 0
        classes = _classes(problem, params)
        self._classes = classes if classes and len(classes) <= params.max_classes else None

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the dynamic program supports a problem and its states are small."""
        return self._classes is not None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Keep as many states per layer as the budget allows, the most promising ones."""
        self._turn += 1
        assert self._classes is not None
        if not budget.affords(preparing_seconds(incumbent.problem, self._params)):
            return Outcome(exhausted=True)
        if incumbent.value is None:
            return Outcome()
        program, min_width = LayeredDP(self._classes, incumbent.value), self._params.min_beam
        if self._affordable(program, budget) < min_width:
            return Outcome()
        while not program.ended and not budget.search_over:
            width = max(min_width, self._affordable(program, budget))
            program.advance(Beam(width, bounds_first=self._turn % 2 == 1), budget.deadline)
            budget.pay(self._params.layer_overhead_seconds + self._chosen * program.width)
        solved = program.ended and program.best is not None
        if solved:
            incumbent.submit_orders(self._classes.orders(program.path()))
        return Outcome(budget.spent, fruitful=solved)

    @property
    def _chosen(self) -> float:
        """Seconds per kept state; about as many other states are generated and removed."""
        return 2 * self._params.state_seconds

    def _affordable(self, program: LayeredDP, budget: Budget) -> int:
        """Number of states per layer with which all remaining layers fit into a budget."""
        each = budget.left / program.remaining_layers - self._params.layer_overhead_seconds
        return int(min(each / self._chosen, self._params.max_entries))


def _classes(problem: Problem, params: DynamicProgramParams) -> Classes | None:
    """Classes of all devices; None if they are not supported or a state has too many rows."""
    if not is_supported(problem):
        return None
    every = frozenset(range(problem.pipeline.num_devices))
    return small_classes(DeviceSubset(Delays(problem.instance), every), params)


def _none_below(problem: Problem, value: int) -> Bound:
    proof = (
        f"dynamic programming over all orders of the {problem.operations} operations, without "
        "dominated partial schedules, found none faster"
    )
    return Bound(value, proof, Certificate(Argument.SEARCH))
