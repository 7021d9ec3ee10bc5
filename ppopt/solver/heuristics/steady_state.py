"""Very long runs: the middle of a good schedule of fewer microbatches, repeated.

Warm-up and cool-down are those of the short schedule; between them its microbatches first ..
first + count - 1 come again and again, each time a period later. Every microbatch thus runs like
one of the short schedule, shifted as a whole in time, and precedence constraints join operations
of one microbatch alone: the order of all operations by these times never waits in a circle,
whatever is repeated. Only memory has to be looked at, and how long the order takes once it is
timed. Steady states of pipelines that repeat are those of cyclic scheduling (Hanen and Munier, "A
study of the cyclic scheduling problem on parallel processors", 1995) and of the repeating building
blocks of arXiv 2405.15362, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import devices
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.repair import follow
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.result import Result, Status

PER_DEVICE = (4, 8)
"""Fewest and most microbatches of the short run, per device."""
OPERATIONS = 24_000
"""Operations of the short run, if that is between the fewest and the most microbatches."""
LONGER = 3
"""A run is long if it has at least this many times the microbatches of the short one."""
SHARE = 0.25
"""Share of the time left for the search of the short run, and again for its windows. One worker
is to repeat itself, and what a search has found when its time is up does not: there, only a short
run that is proved optimal is repeated."""
MOST_REPEATED = 24
"""Most microbatches of a period."""
REGULAR = 8
"""Single windows that are timed."""
TRIAL = 100
"""Further microbatches, about, by which a window is judged; three periods at least."""
TAKEN = 3
"""Windows of the best rate that are stretched to the whole run."""
LOOSER = (1.0, 1.02)
"""Periods tried, as multiples of what the window itself says: longer ones hold less memory."""


class Window(NamedTuple):
    """Microbatches of the short run that are to repeat, perhaps the mean of several such."""

    first: int
    size: int
    """Microbatches of one period."""
    repeats: int
    """Periods of the short run that are averaged: precedence constraints survive that."""
    period: float
    """Ticks from one period to the next."""

    @property
    def after(self) -> int:
        """The first microbatch of the short run behind the window."""
        return self.first + self.size * self.repeats


class Trial(NamedTuple):
    """A window and what it leads to; sorted, the best comes first."""

    over: bool
    """Whether it breaks the memory limits, and can only be followed within them."""
    rate: float
    """Ticks per microbatch more."""
    window: Window


def short_problem(problem: Problem) -> Problem | None:
    """The same pipeline with fewer microbatches; None where the run itself is not long."""
    pipeline = problem.pipeline
    if pipeline.routes > 1 or pipeline.num_slices > 1:
        return None
    least, most = (times * pipeline.num_devices for times in PER_DEVICE)
    each = problem.operations // pipeline.batches
    short = min(max(OPERATIONS // each, least), most)
    if LONGER * short > pipeline.batches:
        return None
    return replace(problem, pipeline=replace(pipeline, batches=short))


class SteadyStates:
    """The repeated middle of a solved shorter run, for a long one; others are left alone."""

    name = "a shorter run, to repeat its middle"

    def __init__(self, solve: Callable[[Problem, float], Result]) -> None:
        """`solve` searches the short problem for so many seconds."""
        self._solve = solve

    def supports(self, problem: Problem) -> bool:
        """Long runs of one route and whole microbatches, without pairs."""
        return is_plain(problem) and short_problem(problem) is not None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Solve the short run and repeat its middle, once.

        One microbatch at a time is there to be returned by then. Raises KeyboardInterrupt where
        the short search was interrupted.
        """
        problem = short_problem(incumbent.problem)
        assert problem is not None
        pipeline = incumbent.problem.pipeline
        incumbent.submit_orders(one_at_a_time(pipeline, fused=problem.fused))
        found = self._solve(problem, SHARE * budget.clock.left)
        if found.interrupted:
            raise KeyboardInterrupt
        closed = found.status is Status.OPTIMAL
        if found.schedule is not None and (closed or found.provenance.workers > 1):
            part = Budget(incumbent, budget.clock, 2, 0, SHARE * budget.clock.left)
            _stretch(incumbent, Stretch(found.schedule, problem), part)
        return Outcome(exhausted=True)


def _stretch(incumbent: Incumbent, stretch: Stretch, budget: Budget) -> None:
    """Submit the windows of the best rates, as far as the time allows."""
    pipeline = incumbent.problem.pipeline
    trials = stretch.best(lambda: budget.over)
    for trial in trials[:TAKEN]:
        if budget.search_over:
            return
        made = stretch.made(pipeline, trial.window)
        if made.fits_limits:
            incumbent.submit(made)
        else:
            incumbent.submit_orders(follow(made, pipeline, budget.clock.deadline))


@dataclass(frozen=True)
class Stretch:
    """A schedule of few microbatches, as a pattern for more of them."""

    short: Schedule
    problem: Problem
    """That of the short schedule."""

    @cached_property
    def kinds(self) -> list[OpKind]:
        """Kinds of operations."""
        return [OpKind(kind) for kind in np.unique(self.short.kind).tolist()]

    @cached_property
    def starts(self) -> Ints:
        """Starts in ticks, [kind, stage, microbatch], microbatches in order within each.

        The k-th operation of a kind and stage is given to microbatch k; that no constraint is lost
        by it is shown in the docstring of `ppopt.solver.cp_sat.model`.
        """
        schedule = self.short
        place = np.lexsort((schedule.start, schedule.stage, schedule.kind))
        shape = (len(self.kinds), schedule.pipeline.num_stages, schedule.pipeline.batches)
        return schedule.start[place].reshape(shape)

    def best(self, stop: Callable[[], bool]) -> list[Trial]:
        """Windows by the rate they lead to, those within the memory limits first."""
        batches = self.short.pipeline.batches
        value = self.short.metrics.value(self.problem.objective)
        trials = []
        for window in self._windows():
            if stop():
                break
            more = max(3, TRIAL // window.size) * window.size
            made = self.made(replace(self.short.pipeline, batches=batches + more), window)
            rate = (made.metrics.value(self.problem.objective) - value) / more
            trials.append(Trial(not made.fits_limits, rate, window))
        return sorted(trials)

    def _windows(self) -> Iterator[Window]:
        """The mean of the whole middle by every period, then the windows that are most regular."""
        quarter = self.short.pipeline.batches // 4
        sizes = range(1, min(MOST_REPEATED, quarter) + 1)
        means = [self._window(quarter, size, 2 * quarter // size) for size in sizes]
        for window in (*self._regular(quarter, sizes), *means):
            for looser in LOOSER:
                yield window._replace(period=window.period * looser)

    def _window(self, first: int, size: int, repeats: int) -> Window:
        apart = self.starts[:, :, first + size * repeats] - self.starts[:, :, first]
        return Window(first, size, repeats, float(apart.mean()) / repeats)

    def _regular(self, quarter: int, sizes: Sequence[int]) -> list[Window]:
        """Single periods whose operations come again after the most equal times."""
        found = []
        for size in sizes:
            first = np.arange(quarter, 3 * quarter - size)
            apart = self.starts[:, :, first + size] - self.starts[:, :, first]
            spread = np.ptp(apart.reshape(-1, len(first)), axis=0)
            found += [(far / size, size, at) for far, at in zip(spread, first, strict=True)]
        return [self._window(int(at), size, 1) for _, size, at in sorted(found)[:REGULAR]]

    def made(self, longer: Pipeline, window: Window) -> Schedule:
        """The stretched order on a pipeline of more microbatches, timed; it may exceed limits."""
        return timing.schedule(longer, self.orders(longer, window), self.problem.objective)

    def orders(self, longer: Pipeline, window: Window) -> Orders:
        """The order by the times of the stretched run, ties in the order of the data flow."""
        start = self._repeated(longer.batches, window)
        kind, stage, microbatch = np.indices(start.shape)
        kind = np.array(self.kinds)[kind]
        times = np.array(longer.ticks.durations, dtype=np.int64)[kind, stage]
        device = devices(longer)[stage, microbatch]
        columns = (kind, stage, microbatch, device, start, start + times)
        return Schedule.from_columns(longer, *(column.ravel() for column in columns)).orders

    def _repeated(self, batches: int, window: Window) -> Ints:
        """Starts of a run of so many microbatches: warm-up, repeated window, cool-down."""
        starts, (first, size, repeats, period) = self.starts, window
        kinds, stages, few = starts.shape
        parts = starts[:, :, first : window.after].reshape(kinds, stages, repeats, size)
        mean = (parts - period * np.arange(repeats)[:, None]).mean(axis=2)
        middle = np.arange(batches - few + size * repeats)
        body = mean[:, :, middle % size] + middle // size * period
        later = (batches - few) / size * period
        whole = [starts[:, :, :first], body, starts[:, :, window.after :] + later]
        run: Ints = np.floor(np.concatenate(whole, axis=2)).astype(np.int64)
        return run
