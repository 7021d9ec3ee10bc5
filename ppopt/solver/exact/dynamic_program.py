"""Sweeps of all devices and of few, resumed from round to round of a search."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Objective, Problem
from ppopt.rechecker.certificate import Argument, Certificate
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.bounds.relaxation_bound import Devices, needed, spread
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import pairs
from ppopt.solver.cp_sat.delays import Chain
from ppopt.solver.cp_sat.device_subset import View
from ppopt.solver.dynamic_programming.beam import Beam
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import Sweep
from ppopt.solver.incumbent import Search

SPREADS = (3, 2, 4)
"""Sizes of the sets of devices spread along the pipeline: three often need as long as all, and two
are not much easier."""
SHARE = 0.5
"""Largest share of a round's time for one of several sweeps."""
EACH = 7e-6
"""Seconds that a beginning takes on the machine on which this was measured."""
STEP = 1.5e-3
"""Seconds beside that for all beginnings of one length."""
FIRST_REACH = 0.12
"""A sweep of all devices goes on to its end in the first round while what is left takes less than
this part of the time of the search: about what the round has for the whole model."""
REACH = 0.5
"""The same in later rounds."""
LEAST_BEAM = 200
"""Fewest beginnings of one length with which schedules are searched without a proof."""
CHOSEN = 2 * EACH
"""Seconds that each of these takes: it is found among more of them."""
MOST_CLASSES = 30
"""Most classes with which they are: 8 devices of one stage each or 4 of two; with more, what is
among so few beginnings is worse than what local search finds."""
MOST_ROWS = 600
"""Most numbers by which a beginning is described."""
MOST_FLAGS = 30
"""Most classes that share memory: each has a bit of a number of 32 bits."""
MOST_ENTRIES = 40_000_000
"""Most of these numbers for all beginnings of one length."""


class Sweeps:
    """The sweeps of a search that are worth going on with."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._begun: dict[Devices, Sweep] = {}
        self.open = dict(_sets(search.problem)) if applies(search.problem) else {}
        every = self.open.get(tuple(range(search.problem.pipeline.num_devices)))
        self._all = every if every and len(every) <= MOST_CLASSES else None
        self._round = 0

    def follow(self, budget: Budget) -> None:
        """Go on with every sweep, all devices first, each for a share of the time."""
        search = self._search
        search.enter("partial schedules")
        self._round += 1
        for devices in tuple(self.open):
            if budget.over or search.value is None:
                return
            part = budget.part(SHARE if len(self.open) > 1 else 1.0)
            if self._goes_on(devices, part):
                self._note(devices)
            budget.spent += part.spent

    def guess(self, budget: Budget) -> None:
        """Follow as many beginnings of all devices as the share allows, the most promising ones."""
        search = self._search
        if self._all is None or search.over or search.value is None:
            return
        sweep = Sweep(self._all, search.value)
        if _affordable(sweep, budget) < LEAST_BEAM:
            return
        search.enter("promising schedules")
        while not sweep.ended and not search.over:
            most = max(LEAST_BEAM, _affordable(sweep, budget))
            sweep.advance(Beam(most, bounds_first=self._round % 2 == 1))
            budget.spent += STEP + CHOSEN * sweep.width
        if sweep.ended and sweep.best is not None:
            search.offer(self._all.orders(sweep.path()))

    def _goes_on(self, devices: Devices, budget: Budget) -> bool:
        """Go on with one sweep; return whether it has ended. Hopeless ones are given up."""
        search = self._search
        assert search.value is not None
        if devices not in self._begun:
            self._begun[devices] = Sweep(self.open[devices], search.value)
        sweep = self._begun[devices]
        sweep.below = search.value
        whole = self._whole(devices)
        while not sweep.ended and not search.over:
            part = self._part(sweep)
            if part > 1:
                self._close(devices)
                return False
            if 2 * EACH * sweep.width > search.left:
                return False
            reach = REACH if self._round > 1 else FIRST_REACH
            if budget.over and not (whole and part < reach):
                return False
            sweep.advance()
            budget.spent += step(sweep)
        return sweep.ended

    def _part(self, sweep: Sweep) -> float:
        """What a sweep has left to do, as a part of what the whole search may do.

        As if there came to be no more beginnings than there are now.
        """
        if sweep.entries > MOST_ENTRIES:
            return inf
        seconds = self._search.deadline - self._search.began
        return sweep.left * step(sweep) / seconds

    def _note(self, devices: Devices) -> None:
        """Take what a sweep that has ended found out."""
        search, sweep = self._search, self._begun[devices]
        if self._whole(devices):
            if sweep.best is not None:
                search.offer(sweep.classes.orders(sweep.path()))
            search.raise_bound(_none_below(search.problem, sweep.least))
        else:
            search.raise_bound(needed_by(devices, sweep.least))
        self._close(devices)

    def _whole(self, devices: Devices) -> bool:
        return len(devices) == self._search.problem.pipeline.num_devices

    def _close(self, devices: Devices) -> None:
        del self.open[devices], self._begun[devices]


def step(sweep: Sweep) -> float:
    """Seconds that the next step of a sweep takes, about."""
    return STEP + EACH * sweep.width


def needed_by(devices: Devices, value: int) -> Bound:
    """What sweeps found that `devices` alone need, as a bound."""
    return needed(devices, value, "found by following partial schedules")


def _affordable(sweep: Sweep, budget: Budget) -> int:
    """Beginnings of each length that can be followed to their ends within a share."""
    return int((budget.left / sweep.left - STEP) / CHOSEN)


def applies(problem: Problem) -> bool:
    """Whether beginnings are what this package takes them for.

    One route, whole microbatches, one operation at a time, and nothing that takes memory for no
    time (it may share its instant with what gives memory back).
    """
    pipeline, fused = problem.pipeline, problem.fused
    if problem.objective is not Objective.MAKESPAN or pipeline.routes > 1:
        return False
    if pipeline.num_slices > 1 or pairs.useful(pipeline, fused=fused):
        return False
    ticks = pipeline.ticks
    kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
    return all(
        ticks.durations[kind][stage] > 0 or ticks.memory_change(kind, stage) <= 0
        for kind in kinds
        for stage in range(pipeline.num_stages)
    )


def _sets(problem: Problem) -> Iterator[tuple[Devices, Classes]]:
    """All devices, and few of them; those alone whose beginnings have few enough rows."""
    pipeline, chain = problem.pipeline, Chain(problem.pipeline, problem.fused)
    spreads = (sets[0] for size in SPREADS if (sets := spread(pipeline, size)))
    for devices in (tuple(range(pipeline.num_devices)), *spreads):
        classes = Classes(View(chain, frozenset(devices)))
        if small(classes):
            yield devices, classes


def small(classes: Classes) -> bool:
    """Whether beginnings have few enough rows."""
    return classes.rows <= MOST_ROWS and len(classes.sharing) <= MOST_FLAGS


def _none_below(problem: Problem, value: int) -> Bound:
    words = (
        f"all orders of the {problem.operations} operations were followed, partial schedules that "
        "another one outdoes left out, and none ends below"
    )
    return Bound(value, words, Certificate(Argument.SEARCH))
