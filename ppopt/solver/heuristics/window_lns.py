"""Large neighbourhood search by windows of time, at random positions.

Most windows lie around an operation that a busy device waits for, because only these can make that
device end earlier.

The size of the windows adapts to CP-SAT: it grows after windows that are solved to optimality, and
shrinks after windows that are neither solved nor improved. Each window is solved by one worker: a
second worker rarely helps, but a second window elsewhere does. Its result is joined with what
others have changed around it meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from random import Random
from typing import Any

from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.pool import Pool, Starts, ValuedStarts
from ppopt.solver.heuristics.repair import converted
from ppopt.solver.heuristics.window import (
    NO_BETTER_ORDER,
    SemiActiveSchedule,
    Window,
    WindowResult,
)
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import WindowParams


class WindowLNS:
    """Large neighbourhood search by windows: from the best schedule until a turn is in vain.

    Then from the best schedule with all backwards whole, if they are mixed, then from the next best
    schedules. These turns use only part of their budget if the full model is more effective.
    """

    name = "window LNS"
    handles = handled(ArgumentClass.EVERY_OPERATION, (Trait.MIXED, Trait.ROUTES))

    def __init__(self, pool: Pool, rng: Random, params: WindowParams) -> None:
        self._pool = pool
        self._neighbourhood: WindowSearch | None = None
        self._rng = rng
        self._params = params
        self._in_vain = 0
        """Number of turns in vain since the last fruitful one."""
        self._improved: ValuedStarts | None = None
        """Schedule of the last turn, if that improved it."""
        self._may_join = True
        """Whether no turn has started from whole backwards."""

    def supports(self, problem: Problem) -> bool:
        """Whether windows apply to a problem."""
        return windows_apply(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search from the schedule of the last turn or the next one, then from the alternative."""
        pool = self._pool
        if pool.out_of_time(budget):
            return Outcome(exhausted=True)
        pool.add_best(incumbent)
        if not pool.schedules:
            return Outcome()
        share = self._share(incumbent.problem) / (1 + (pool.alternative is not None))
        value, start = self._improved or self._next(incumbent)
        improved = self._searched(start, incumbent, portion := budget.share(share))
        pool.add(*improved)
        fruitful, spent = improved[0] < value, portion.spent
        self._improved = improved if fruitful else None
        self._in_vain = 0 if fruitful else self._in_vain + 1
        if pool.alternative and not budget.search_over:
            self._improve(pool.alternative[1], incumbent, portion := budget.share(share))
            spent += portion.spent
        return Outcome(spent, fruitful=fruitful)

    def _next(self, incumbent: Incumbent) -> ValuedStarts:
        """The best schedule; after turns in vain, that of whole backwards or the next best."""
        pool = self._pool
        if self._in_vain and self._may_join and Trait.MIXED in incumbent.problem.traits:
            self._may_join = False
            whole = self._with_whole_backwards(incumbent)
            if whole is not None:
                return whole
        return pool.schedules.pop(self._in_vain % len(pool.schedules))

    def _with_whole_backwards(self, incumbent: Incumbent) -> ValuedStarts | None:
        """The best schedule with all backwards whole; None: it cannot be repaired."""
        if incumbent.best is None:
            return None
        whole = converted(incumbent.best, incumbent.problem.restrictions[-1])
        if whole is None:
            return None
        network = self._pool.network
        start = network.starts(whole)
        return network.value(start), start

    def _improve(self, alternative: Starts, incumbent: Incumbent, budget: Budget) -> None:
        """Search from the alternative; once it is the best schedule, it is none any more."""
        pool, improved = self._pool, self._searched(alternative, incumbent, budget)
        pool.alternative = improved
        if improved[0] < pool.schedules[0][0]:
            pool.add(*improved)
            pool.alternative = None

    def _share(self, problem: Problem) -> float:
        small = problem.num_operations <= self._params.full_model_operations
        return max(self._params.min_share if small else 1.0, 0.5**self._in_vain)

    def _searched(self, start: Starts, incumbent: Incumbent, budget: Budget) -> ValuedStarts:
        network = self._pool.network
        if self._neighbourhood is None:
            self._neighbourhood = WindowSearch(network, self._rng, self._params)

        def submit(report: SemiActiveSchedule) -> None:
            if incumbent.may_improve(report.value):
                incumbent.submit(report.network.schedule(report.start))

        report = self._neighbourhood.search(SemiActiveSchedule.of(network, start), budget, submit)
        return report.value, report.network.without_absent(report.start)


def windows_apply(problem: Problem) -> bool:
    """Whether windows apply to a problem of a makespan: there are no operations of no length."""
    return not problem.full_instance.has_instants


class WindowSearch:
    """Solves windows of one problem and adapts their size."""

    def __init__(
        self,
        network: OperationNetwork,
        rng: Random,
        params: WindowParams = WindowParams(),
    ) -> None:
        self._network = network
        self._rng = rng
        self._params = params
        self._drawn: Counter[int | None] = Counter()
        first_size = params.first_size * network.problem.pipeline.num_devices
        self._sizes = dict.fromkeys((False, True), float(min(network.size, first_size)))
        """Present size of the windows, with open and with fixed modes: their largest number of
        operations."""
        self._fixed_modes = params.fixed_modes if Trait.MIXED in network.problem.traits else 0.0
        """Share of the windows with fixed modes."""

    def search(
        self,
        current: SemiActiveSchedule,
        budget: Budget,
        report: Callable[[SemiActiveSchedule], None],
    ) -> SemiActiveSchedule:
        """Search from a schedule while the budget lasts.

        `report` gets the last of consecutive improvements: to verify each takes a tenth of the
        time.
        """
        reported, running = current, dict[Future[WindowResult], Window]()
        count = min(budget.workers, self._params.max_at_once)
        try:
            with _pool(count) as pool:
                while not budget.over or running:
                    while len(running) < count and not budget.over:
                        budget.spent += self._overhead
                        window = self._drawn_window(current, running.values())
                        if window is None:
                            break
                        running[pool.submit(window.reoptimise, self._limits(budget))] = window
                    before = current
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        current = self._after(current, running.pop(future), future.result(), budget)
                    if current is before and reported is not current:
                        report(reported := current)
        finally:
            if reported is not current:
                report(current)
        return current

    @property
    def _overhead(self) -> float:
        return self._params.overhead * self._network.size

    def _after(
        self,
        current: SemiActiveSchedule,
        window: Window,
        result: WindowResult,
        budget: Budget,
    ) -> SemiActiveSchedule:
        """The schedule after a window, if that shortens it within the limits.

        Since the window was cut, others may have changed the schedule around it. Where several
        resources use the memory of a device, its earliest starts may exceed the limit.
        """
        budget.spent += result.work + self._overhead
        self._adapt(window, result)
        if result.order is None:
            return current
        changed = current.joined(result.order, result.flips)
        if changed is None or changed.value >= current.value:
            return current
        return changed if changed.network.fits(changed.start) else current

    def _limits(self, budget: Budget) -> SolverLimits:
        """Limits of the next window."""
        longest, effort = self._params.longest, self._params.effort
        limits = budget.single_worker_limits(longest, effort, self._rng.getrandbits(31))
        return replace(limits, focus=self._params.focus)

    def _drawn_window(
        self, schedule: SemiActiveSchedule, running: Collection[Window]
    ) -> Window | None:
        """A window that may shorten the schedule, with no operation of the running ones.

        None: none was drawn.
        """
        taken = sorted(schedule.position[op] for window in running for op in window.inside)
        for _ in range(self._params.draws):
            window = self._window(schedule)
            if window.cannot_improve:
                self._adapt(window, NO_BETTER_ORDER)
            elif bisect_left(taken, window.first) == bisect_left(taken, window.after):
                return window
        return None

    def _window(self, schedule: SemiActiveSchedule) -> Window:
        """Draw one window, around an operation that a busy device waits for, or anywhere."""
        rng, total, late = self._rng, self._network.size, schedule.bottleneck_gaps
        fixed_modes = self._fixed_modes > 0 and rng.random() < self._fixed_modes
        share = rng.uniform(self._params.smallest, 1)
        size = min(total, max(1, int(self._sizes[fixed_modes] * share)))
        first = rng.randrange(-size // 2, total - size // 2)
        if late and rng.random() < self._params.guided:
            op = self._rarest(rng.choice(late))
            first = (total if op is None else schedule.position[op]) - rng.randrange(size)
        first = min(max(0, first), total - size)
        return Window(schedule, first, first + size, fixed_modes)

    def _rarest(self, ops: list[int | None]) -> int | None:
        """One of the operations with the fewest windows drawn around them; counts this window."""
        min_count = min(self._drawn[op] for op in ops)
        op = self._rng.choice([op for op in ops if self._drawn[op] == min_count])
        self._drawn[op] += 1
        return op

    def _adapt(self, window: Window, outcome: WindowResult) -> None:
        """Adapt the size of the windows to what became of one."""
        size, params = self._sizes[window.fixed_modes], self._params
        if outcome.complete:
            size = max(size, min(len(window.inside) * params.growth, self._network.size))
        elif outcome.order is None:
            size = max(params.min_size, size / params.shrinkage)
        self._sizes[window.fixed_modes] = size

    @property
    def size(self) -> float:
        """Present size of the windows with open modes: their largest number of operations."""
        return self._sizes[False]


class _Here(Executor):
    """Runs functions in this thread, so that Ctrl-C stops them."""

    def submit(  # type: ignore[override]  # a positional-only parameter
        self, function: Callable[..., WindowResult], *arguments: Any
    ) -> Future[WindowResult]:
        """Run a function now."""
        future: Future[WindowResult] = Future()
        future.set_result(function(*arguments))
        return future


def _pool(count: int) -> Executor:
    """Run so many windows at once. With several, Ctrl-C takes effect when these have ended."""
    return _Here() if count == 1 else ThreadPoolExecutor(count)
