"""Large neighbourhood search by windows of time: one after another, at random.

Most lie around an operation that a busy device waits for: nothing else makes it end sooner. Some
are slanted, and follow the forwards or the backwards through the devices.

The size of the windows follows what CP-SAT can do: it grows while windows are solved to the end,
and shrinks where they are not and nothing better was found. CP-SAT runs them with one worker each:
a second one betters hardly any, while a second window, elsewhere, does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.budget import Budget, Limits
from ppopt.solver.heuristics.double_justification import Shop
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.window import NOTHING, Found, Layout, Run, Window, holdings, timed
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import WindowParams


def layouts(run: Run, skew: float) -> list[Layout]:
    """Orders to cut windows from: upright and skewed."""
    return [Layout(run), *(Layout(run, skew * slant) for slant in run.shop.slants)]


class WindowLNS:
    """Large neighbourhood search by windows, half from the best schedule and half from another.

    After turns in vain the next best schedules take the place of the best by turns, and a turn
    uses part of its budget where the full model needs the time more.
    """

    name = "window LNS"

    def __init__(self, pool: Pool, rng: Random, params: WindowParams) -> None:
        self._pool = pool
        self._neighbourhood: WindowSearch | None = None
        self._rng = rng
        self._params = params
        self._in_vain = 0

    def supports(self, problem: Problem) -> bool:
        """One time for all devices, and no operation of no length."""
        return applies(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search from the best schedule, then from an alternative."""
        pool = self._pool
        if not pool.schedules:
            return Outcome()
        if self._neighbourhood is None:
            self._neighbourhood = WindowSearch(pool.network, self._rng, self._params)
        pool.add_best(incumbent)
        share = self._share(incumbent.problem) * (0.5 if pool.alternatives else 1.0)
        before, spent = incumbent.value, 0.0
        _, start = pool.schedules.pop(self._in_vain % len(pool.schedules))
        pool.add(*self._searched(start, incumbent, part := budget.part(share)))
        spent += part.spent
        if pool.alternatives and not budget.search_over:
            _, start = pool.alternatives.pop(0)
            pool.alternatives.append(self._searched(start, incumbent, part := budget.part(share)))
            spent += part.spent
        fruitful = incumbent.value != before
        self._in_vain = 0 if fruitful else self._in_vain + 1
        return Outcome(spent, fruitful=fruitful)

    def _share(self, problem: Problem) -> float:
        small = problem.operations <= self._params.full_model_operations
        return max(self._params.least_share if small else 1.0, 0.5**self._in_vain)

    def _searched(
        self, start: list[int], incumbent: Incumbent, budget: Budget
    ) -> tuple[int, list[int]]:
        assert self._neighbourhood is not None
        pool = self._pool
        found = self._neighbourhood.search(
            start, budget, lambda value, better: pool.submit(value, better, incumbent)
        )
        return pool.network.value(found), found


def applies(problem: Problem) -> bool:
    """Whether windows apply: one time for all devices, and every operation takes some."""
    one_time = is_plain(problem) and problem.objective is Objective.MAKESPAN
    return one_time and all(one.duration for one in problem.instance.classes)


class WindowSearch:
    """Window after window on one problem; remembers the size that works."""

    def __init__(self, shop: Shop, rng: Random, params: WindowParams = WindowParams()) -> None:
        self._shop = shop
        self._rng = rng
        self._params = params
        self._holdings = holdings(shop)
        self._drawn: Counter[int | None] = Counter()
        self._size = float(min(shop.size, params.first_size * shop.problem.pipeline.num_devices))

    def search(
        self, start: list[int], budget: Budget, found: Callable[[int, list[int]], None]
    ) -> list[int]:
        """Search from these starts while the budget lasts; `found` is told of every better.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        order = sorted(range(self._shop.size), key=start.__getitem__)
        run = Run(self._shop, timed(self._shop, order))
        cuttings = layouts(run, self._params.skew)
        with _side_by_side(min(budget.workers, self._params.most_at_once)) as do_all:
            while not budget.over:
                layout = self._rng.choice(cuttings)
                windows = self._windows(layout, min(budget.workers, self._params.most_at_once))
                jobs = [
                    (
                        window,
                        budget.alone(
                            self._params.longest, self._params.effort, self._rng.getrandbits(31)
                        ),
                    )
                    for window in windows
                ]
                outcomes = do_all(lambda job: job[0].better(job[1]), jobs)
                budget.spent += self._params.overhead + sum(
                    outcome.work + self._params.overhead for outcome in outcomes
                )
                for window, outcome in zip(windows, outcomes, strict=True):
                    self._adapt(len(window.inside), outcome)
                made = self._joined(windows, outcomes)
                if made and self._shop.value(made) < run.value:
                    run = Run(self._shop, made)
                    cuttings = layouts(run, self._params.skew)
                    found(run.value, made)
        return run.start

    def _windows(self, layout: Layout, count: int) -> list[Window]:
        """Windows that may shorten the run; those that overlap one before are left out."""
        made: list[Window] = []
        for _ in range(count * self._params.draws):
            window = self._window(layout)
            if window.hopeless:
                self._adapt(len(window.inside), NOTHING)
            elif all(one.after <= window.first or window.after <= one.first for one in made):
                made.append(window)
            if len(made) == count:
                break
        return made

    def _window(self, layout: Layout) -> Window:
        """One window around an operation that a busy device waits for, or anywhere."""
        rng, total, late = self._rng, self._shop.size, layout.run.late
        size = min(total, max(1, int(self._size * rng.uniform(self._params.smallest, 1))))
        first = rng.randrange(-size // 2, total - size // 2)
        if late and rng.random() < self._params.guided:
            op = self._rarest(rng.choice(late))
            first = (total if op is None else layout.place[op]) - rng.randrange(size)
        first = min(max(0, first), total - size)
        return Window(layout, self._holdings, first, first + size)

    def _rarest(self, ops: list[int | None]) -> int | None:
        """One of the operations around which the fewest windows were drawn, now one more."""
        least = min(self._drawn[op] for op in ops)
        op = self._rng.choice([op for op in ops if self._drawn[op] == least])
        self._drawn[op] += 1
        return op

    def _adapt(self, size: int, outcome: Found) -> None:
        if outcome.complete:
            self._size = max(self._size, min(size * self._params.growth, self._shop.size))
        elif outcome.order is None:
            self._size = max(self._params.least_size, self._size / self._params.shrinkage)

    def _joined(self, windows: list[Window], outcomes: list[Found]) -> list[int]:
        """Starts with all that is better, or with the best part of it; empty where nothing is.

        Each part was better while the others stood: together they may be worse.
        """
        shop, made = self._shop, list[list[int]]()
        better = [pair for pair in zip(windows, outcomes, strict=True) if pair[1].order is not None]
        for part in (*([pair] for pair in better), better if len(better) > 1 else []):
            if part:
                order = list(part[0][0].layout.order)
                for window, outcome in part:
                    assert outcome.order is not None
                    order[window.first : window.after] = outcome.order
                made.append(timed(shop, order))
        return min(made, key=shop.value, default=[])


Job = tuple[Window, Limits]


@contextmanager
def _side_by_side(
    count: int,
) -> Iterator[Callable[[Callable[[Job], Found], list[Job]], list[Found]]]:
    """A way to do jobs, so many at a time; one at a time they are done here, and Ctrl-C stops them.

    Elsewhere Ctrl-C takes effect when the jobs under way have ended.
    """
    if count == 1:
        yield lambda do, jobs: [do(job) for job in jobs]
        return
    with ThreadPoolExecutor(count) as pool:
        yield lambda do, jobs: list(pool.map(do, jobs))
