"""Sweeps of all devices and of few, resumed from round to round of a search."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.bounds.relaxation_bound import Devices, needed, spread
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import pairs
from ppopt.solver.cp_sat.delays import Delays
from ppopt.solver.cp_sat.device_subset import DeviceSubset
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import Beam, LayeredDP
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import DynamicProgramParams


class DynamicProgram:
    """Dynamic programming over all devices, and over few of them where that is enough.

    Each set of devices goes on for a share of the time, all devices first; what would take longer
    than the search is given up.
    """

    name = "dynamic program"

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._problem = problem
        self._params = params
        self._begun: dict[Devices, LayeredDP] = {}
        self._open = dict(_sets(problem, params)) if applies(problem) else {}
        self._turn = 0

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Partial schedules are what they are taken for, and few numbers describe them."""
        return bool(self._open)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Go on with every set of devices."""
        self._turn += 1
        before = incumbent.bound.value
        for devices in tuple(self._open):
            if budget.over or incumbent.value is None:
                break
            part = budget.part(self._params.share if len(self._open) > 1 else 1.0)
            if self._goes_on(devices, incumbent, part):
                self._note(devices, incumbent)
            budget.pay(part.spent)
        fruitful = incumbent.bound.value > before
        return Outcome(budget.spent, exhausted=not self._open, fruitful=fruitful)

    def _goes_on(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Go on with one set; return whether it has ended. Hopeless ones are given up."""
        assert incumbent.value is not None
        if devices not in self._begun:
            self._begun[devices] = LayeredDP(self._open[devices], incumbent.value)
        sweep, params = self._begun[devices], self._params
        sweep.below = incumbent.value
        reach = params.reach if self._turn > 1 else params.first_reach
        while not sweep.ended and not budget.search_over:
            part = self._part(sweep, budget)
            if part > 1:
                self._close(devices)
                return False
            if 2 * params.state_seconds * sweep.width > budget.clock.left:
                return False
            if budget.over and not (self._whole(devices) and part < reach):
                return False
            sweep.advance()
            budget.pay(step(sweep, params))
        return sweep.ended

    def _part(self, sweep: LayeredDP, budget: Budget) -> float:
        """What a set has left to do, as a part of what the whole search may do.

        As if there came to be no more states than there are now.
        """
        if sweep.entries > self._params.most_entries:
            return inf
        return sweep.left * step(sweep, self._params) / budget.clock.seconds

    def _note(self, devices: Devices, incumbent: Incumbent) -> None:
        """Submit what a set that has ended found out."""
        sweep = self._begun[devices]
        if self._whole(devices):
            if sweep.best is not None:
                incumbent.submit_orders(sweep.classes.orders(sweep.path()))
            incumbent.raise_bound(_none_below(self._problem, sweep.least))
        else:
            incumbent.raise_bound(needed_by(devices, sweep.least))
        self._close(devices)

    def _whole(self, devices: Devices) -> bool:
        return len(devices) == self._problem.pipeline.num_devices

    def _close(self, devices: Devices) -> None:
        del self._open[devices], self._begun[devices]


class BeamSearch:
    """Dynamic programming over all devices restricted to the most promising states: no proof."""

    name = "beam search"

    def __init__(self, problem: Problem, params: DynamicProgramParams) -> None:
        self._params = params
        self._turn = 0
        self._classes = None
        if applies(problem):
            delays = Delays(problem.instance)
            every = frozenset(range(problem.pipeline.num_devices))
            classes = Classes(DeviceSubset(delays, every))
            if small(classes, params) and len(classes) <= params.most_classes:
                self._classes = classes

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Partial schedules are what they are taken for, and few numbers describe them."""
        return self._classes is not None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Follow as many states of all devices as the budget allows, the most promising ones."""
        self._turn += 1
        assert self._classes is not None
        if incumbent.value is None:
            return Outcome()
        sweep, least = LayeredDP(self._classes, incumbent.value), self._params.least_beam
        if self._affordable(sweep, budget) < least:
            return Outcome()
        while not sweep.ended and not budget.search_over:
            most = max(least, self._affordable(sweep, budget))
            sweep.advance(Beam(most, bounds_first=self._turn % 2 == 1))
            budget.pay(self._params.step_seconds + self._chosen * sweep.width)
        found = sweep.ended and sweep.best is not None
        if found:
            incumbent.submit_orders(self._classes.orders(sweep.path()))
        return Outcome(budget.spent, fruitful=found)

    @property
    def _chosen(self) -> float:
        """Seconds that each chosen state takes: it is found among more of them."""
        return 2 * self._params.state_seconds

    def _affordable(self, sweep: LayeredDP, budget: Budget) -> int:
        """States of each length that can be followed to their ends within a budget."""
        each = budget.left / sweep.left - self._params.step_seconds
        return int(min(each / self._chosen, self._params.most_entries))


def step(sweep: LayeredDP, params: DynamicProgramParams = DynamicProgramParams()) -> float:
    """Seconds that the next step of a sweep takes, about."""
    return params.step_seconds + params.state_seconds * sweep.width


def needed_by(devices: Devices, value: int) -> Bound:
    """What sweeps found that `devices` alone need, as a bound."""
    return needed(devices, value, "found by following partial schedules")


def applies(problem: Problem) -> bool:
    """Whether beginnings are what this package takes them for.

    One route, whole microbatches, one operation at a time, and nothing that takes memory for no
    time (it may share its instant with what gives memory back).
    """
    pipeline, fused = problem.pipeline, problem.fused
    if problem.objective is not Objective.MAKESPAN or pipeline.routes > 1:
        return False
    if pipeline.num_slices > 1 or pairs.useful(problem.instance):
        return False
    ticks = pipeline.ticks
    kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
    return all(
        ticks.durations[kind][stage] > 0 or ticks.memory_change(kind, stage) <= 0
        for kind in kinds
        for stage in range(pipeline.num_stages)
    )


def _sets(problem: Problem, params: DynamicProgramParams) -> Iterator[tuple[Devices, Classes]]:
    """All devices, and few of them; those alone whose beginnings have few enough rows."""
    pipeline, delays = problem.pipeline, Delays(problem.instance)
    spreads = (sets[0] for size in params.spreads if (sets := spread(pipeline, size)))
    for devices in (tuple(range(pipeline.num_devices)), *spreads):
        classes = Classes(DeviceSubset(delays, frozenset(devices)))
        if small(classes, params):
            yield devices, classes


def small(classes: Classes, params: DynamicProgramParams = DynamicProgramParams()) -> bool:
    """Whether beginnings have few enough rows."""
    return classes.rows <= params.most_rows and len(classes.sharing) <= params.most_flags


def _none_below(problem: Problem, value: int) -> Bound:
    words = (
        f"all orders of the {problem.operations} operations were followed, partial schedules that "
        "another one outdoes left out, and none ends below"
    )
    return Bound(value, words, Certificate(Argument.SEARCH))
