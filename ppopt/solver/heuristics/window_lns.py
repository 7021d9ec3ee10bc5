"""Large neighbourhood search by windows of time, at random positions.

Most windows lie around an operation that a busy device waits for, because only these can make that
device end earlier.

The size of the windows adapts to CP-SAT: it grows after windows that are solved to optimality, and
shrinks after windows that are neither solved nor improved. Each window is solved by one worker: a
second worker rarely helps, but a second window elsewhere does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from random import Random

from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.pool import Pool, Starts, ValuedStarts
from ppopt.solver.heuristics.repair import converted
from ppopt.solver.heuristics.window import (
    NO_BETTER_ORDER,
    SemiActiveSchedule,
    TopologicalOrder,
    Window,
    WindowResult,
)
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import WindowParams

Job = tuple[Window, SolverLimits]
DoAll = Callable[[Callable[[Job], WindowResult], list[Job]], list[WindowResult]]
"""Runs a function on all jobs; the results are in their order."""


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
        time. Raises KeyboardInterrupt on Ctrl-C.
        """
        best = current
        try:
            with _side_by_side(min(budget.workers, self._params.max_at_once)) as do_all:
                while not budget.over:
                    improved = self._step(current, budget, do_all)
                    if improved is current and best is not current:
                        report(best := current)
                    current = improved
        finally:
            if best is not current:
                report(current)
        return current

    def _step(
        self, current: SemiActiveSchedule, budget: Budget, do_all: DoAll
    ) -> SemiActiveSchedule:
        """The schedule after some windows side by side; the same one if none improves it."""
        windows = self._windows(current.whole, min(budget.workers, self._params.max_at_once))
        jobs = [(window, self._limits(budget)) for window in windows]
        outcomes = do_all(lambda job: job[0].reoptimise(job[1]), jobs)
        overhead = self._params.overhead * self._network.size
        budget.spent += overhead + sum(outcome.work + overhead for outcome in outcomes)
        for window, outcome in zip(windows, outcomes, strict=True):
            self._adapt(window, outcome)
        return self._joined(current, windows, outcomes)

    def _limits(self, budget: Budget) -> SolverLimits:
        """Limits of the next window."""
        longest, effort = self._params.longest, self._params.effort
        limits = budget.single_worker_limits(longest, effort, self._rng.getrandbits(31))
        return replace(limits, focus=self._params.focus)

    def _windows(self, whole: TopologicalOrder, count: int) -> list[Window]:
        """Disjoint windows that may shorten the schedule."""
        windows: list[Window] = []
        for _ in range(count * self._params.draws):
            window = self._window(whole)
            if window.cannot_improve:
                self._adapt(window, NO_BETTER_ORDER)
            elif all(
                earlier.after <= window.first or window.after <= earlier.first
                for earlier in windows
            ):
                windows.append(window)
            if len(windows) == count:
                break
        return windows

    def _window(self, whole: TopologicalOrder) -> Window:
        """Draw one window, around an operation that a busy device waits for, or anywhere."""
        rng, total, late = self._rng, self._network.size, whole.schedule.bottleneck_gaps
        fixed_modes = self._fixed_modes > 0 and rng.random() < self._fixed_modes
        share = rng.uniform(self._params.smallest, 1)
        size = min(total, max(1, int(self._sizes[fixed_modes] * share)))
        first = rng.randrange(-size // 2, total - size // 2)
        if late and rng.random() < self._params.guided:
            op = self._rarest(rng.choice(late))
            first = (total if op is None else whole.position[op]) - rng.randrange(size)
        first = min(max(0, first), total - size)
        return Window(whole, first, first + size, fixed_modes)

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

    def _joined(
        self,
        current: SemiActiveSchedule,
        windows: list[Window],
        outcomes: list[WindowResult],
    ) -> SemiActiveSchedule:
        """Best schedule after all improvements together, or after one of them.

        Each window alone improves the schedule; together the changes may make it worse.
        """
        candidates = [current]
        better = [pair for pair in zip(windows, outcomes, strict=True) if pair[1].order is not None]
        for improvements in (*([pair] for pair in better), better if len(better) > 1 else []):
            if improvements:
                order = list(improvements[0][0].whole.order)
                for window, outcome in improvements:
                    assert outcome.order is not None
                    order[window.first : window.after] = outcome.order
                flips = [slot for _, outcome in improvements for slot in outcome.flips]
                candidates.append(current.changed(order, flips))
        return min(candidates, key=attrgetter("value"))


@contextmanager
def _side_by_side(
    count: int,
) -> Iterator[DoAll]:
    """Yield a function that runs jobs, `count` at a time.

    With a count of 1 they run in this thread, and Ctrl-C stops them. Else Ctrl-C takes effect when
    the running jobs have ended.
    """
    if count == 1:
        yield lambda do, jobs: [do(job) for job in jobs]
        return
    with ThreadPoolExecutor(count) as pool:
        yield lambda do, jobs: list(pool.map(do, jobs))
