"""Layered DP on all devices and on subsets of devices, resumed in every round; beam search."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.subset_selection import Devices, dp_subset_bound, evenly_spaced_subsets
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
    """Dynamic programming over all devices, and over evenly spaced subsets.

    Each turn resumes the layered DP of every subset for a share of the time, all devices first. A
    DP that would take longer than the search is abandoned.
    """

    name = "dynamic program"
    handles = HANDLES

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._problem = problem
        self._params = params
        self._begun: dict[Devices, LayeredDP] = {}
        self._open = dict(_sets(problem, params)) if is_supported(problem) else {}
        self._turn = 0

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the dynamic program supports a problem and its states are small."""
        return bool(self._open)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Resume the layered DP of every subset."""
        self._turn += 1
        before = incumbent.bound.value
        for devices in tuple(self._open):
            if budget.over or incumbent.value is None:
                break
            part = budget.portion(self._params.share if len(self._open) > 1 else 1.0)
            if self._goes_on(devices, incumbent, part):
                self._note(devices, incumbent)
            budget.pay(part.spent)
        fruitful = incumbent.bound.value > before
        return Outcome(budget.spent, exhausted=not self._open, fruitful=fruitful)

    def _goes_on(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Resume one layered DP or abandon it; return whether it has ended."""
        assert incumbent.value is not None
        if devices not in self._begun:
            if not budget.affords(preparing_seconds(self._problem, self._params)):
                del self._open[devices]
                return False
            self._begun[devices] = LayeredDP(self._open[devices], incumbent.value)
        program, params = self._begun[devices], self._params
        program.below = incumbent.value
        reach = params.reach if self._turn > 1 else params.first_reach
        while not program.ended and not budget.search_over:
            share = self._remaining_share(program, budget)
            if share > 1:
                self._close(devices)
                return False
            if 2 * params.state_seconds * program.width > budget.search_left:
                return False
            if budget.over and not (self._whole(devices) and share < reach):
                return False
            try:
                program.advance(deadline=budget.deadline)
            except TimeoutError:
                return False
            budget.pay(layer_seconds(program, params))
        return program.ended

    def _remaining_share(self, program: LayeredDP, budget: Budget) -> float:
        """Time of the remaining layers at the present width, as a share of the whole search."""
        if program.entries > self._params.max_entries:
            return inf
        return (
            program.remaining_layers
            * layer_seconds(program, self._params)
            / budget.deadline.seconds
        )

    def _note(self, devices: Devices, incumbent: Incumbent) -> None:
        """Submit the schedule and the bound of a layered DP that has ended."""
        program = self._begun[devices]
        if self._whole(devices):
            if program.best is not None:
                incumbent.submit_orders(program.classes.orders(program.path()))
            incumbent.raise_bound(_none_below(self._problem, program.lower_bound))
        else:
            incumbent.raise_bound(dp_subset_bound(devices, program.lower_bound))
        self._close(devices)

    def _whole(self, devices: Devices) -> bool:
        return len(devices) == self._problem.pipeline.num_devices

    def _close(self, devices: Devices) -> None:
        del self._open[devices], self._begun[devices]


class BeamSearch:
    """Dynamic programming on all devices, restricted to the most promising states: no proof."""

    name = "beam search"
    handles = HANDLES

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._params = params
        self._turn = 0
        self._classes = None
        if is_supported(problem):
            delays = Delays(problem.instance)
            every = frozenset(range(problem.pipeline.num_devices))
            classes = small_classes(DeviceSubset(delays, every), params)
            if classes is not None and len(classes) <= params.max_classes:
                self._classes = classes

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


def _sets(problem: Problem, params: DynamicProgramParams) -> Iterator[tuple[Devices, Classes]]:
    """All devices and one evenly spaced subset per size, if their states are small."""
    pipeline, delays = problem.pipeline, Delays(problem.instance)
    spaced = (
        sets[0] for size in params.subset_sizes if (sets := evenly_spaced_subsets(pipeline, size))
    )
    for devices in (tuple(range(pipeline.num_devices)), *spaced):
        classes = small_classes(DeviceSubset(delays, frozenset(devices)), params)
        if classes is not None:
            yield devices, classes


def _none_below(problem: Problem, value: int) -> Bound:
    proof = (
        f"dynamic programming over all orders of the {problem.operations} operations, without "
        "dominated partial schedules, found none faster"
    )
    return Bound(value, proof, Certificate(Argument.SEARCH))
