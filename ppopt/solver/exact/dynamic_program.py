"""Layered DP on all devices and on subsets of devices, resumed in every round."""

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
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import DynamicProgramParams
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes


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
        for devices in tuple(self._open):
            if budget.over or incumbent.value is None:
                break
            part = budget.share(self._params.share if len(self._open) > 1 else 1.0)
            if self._goes_on(devices, incumbent, part):
                self._note(devices, incumbent)
            budget.pay(part.spent)
        return Outcome(budget.spent, exhausted=not self._open)

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
            program.advance()
            budget.pay(layer_seconds(program, params))
        return program.ended

    def _remaining_share(self, program: LayeredDP, budget: Budget) -> float:
        """Time of the remaining layers at the present width, as a share of the whole search."""
        if program.entries > self._params.max_entries:
            return inf
        return program.remaining_layers * layer_seconds(program, self._params) / budget.seconds

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


def _sets(problem: Problem, params: DynamicProgramParams) -> Iterator[tuple[Devices, Classes]]:
    """All devices and one evenly spaced subset per size, if their states are small."""
    pipeline, times = problem.pipeline, RouteTimes(problem.instance)
    spaced = (
        sets[0] for size in params.subset_sizes if (sets := evenly_spaced_subsets(pipeline, size))
    )
    for devices in (tuple(range(pipeline.num_devices)), *spaced):
        classes = small_classes(DeviceSubset(times, frozenset(devices)), params)
        if classes is not None:
            yield devices, classes


def _none_below(problem: Problem, value: int) -> Bound:
    proof = (
        f"dynamic programming over all orders of the {problem.num_operations} operations, without "
        "dominated partial schedules, found none faster"
    )
    return Bound(value, proof, Certificate(Argument.SEARCH))
