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

from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.heuristics.double_justification import Shop
from ppopt.solver.heuristics.window import NOTHING, Found, Layout, Run, Window, holdings, timed

FIRST_SIZE = 16
"""Operations of the first window, per device."""
SLANTED = 0.9
"""Slant of windows, as a part of the steepest that keeps the data flow."""
LEAST_SIZE = 20
SMALLEST = 0.3
"""Smallest window, as a share of the size that the search has come to."""
GROWTH = 1.1
SHRINKAGE = 1.15
DRAWS = 10
"""Draws per window, to find one that is not hopeless."""
GUIDED = 0.75
"""Part of the windows that lie around a wait of a busy device."""
EFFORT = 0.1
"""Deterministic units of one window at most: about a second where many share a processor."""
LONGEST = 1.0
"""Seconds of one window at most, where the clock rules."""
OVERHEAD = 0.05
"""What a window costs beside CP-SAT, and to look for one, in its deterministic units."""
MOST_AT_ONCE = 8
"""Most windows that are solved side by side."""


def layouts(run: Run) -> list[Layout]:
    """Orders to cut windows from: upright and slanted."""
    return [Layout(run), *(Layout(run, SLANTED * slant) for slant in run.shop.slants)]


class Recutter:
    """Local search by windows on one problem; remembers the size that works."""

    def __init__(self, shop: Shop, rng: Random) -> None:
        self._shop = shop
        self._rng = rng
        self._holdings = holdings(shop)
        self._drawn: Counter[int | None] = Counter()
        self._size = float(min(shop.size, FIRST_SIZE * shop.problem.pipeline.num_devices))

    def search(
        self, start: list[int], budget: Budget, found: Callable[[int, list[int]], None]
    ) -> list[int]:
        """Search from these starts while the budget lasts; `found` is told of every better.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        order = sorted(range(self._shop.size), key=start.__getitem__)
        run = Run(self._shop, timed(self._shop, order))
        cuttings = layouts(run)
        with _side_by_side(min(budget.workers, MOST_AT_ONCE)) as do_all:
            while not budget.over:
                layout = self._rng.choice(cuttings)
                windows = self._windows(layout, min(budget.workers, MOST_AT_ONCE))
                jobs = [
                    (window, budget.alone(LONGEST, EFFORT, self._rng.getrandbits(31)))
                    for window in windows
                ]
                outcomes = do_all(lambda job: job[0].better(job[1]), jobs)
                budget.spent += OVERHEAD + sum(outcome.work + OVERHEAD for outcome in outcomes)
                for window, outcome in zip(windows, outcomes, strict=True):
                    self._adapt(len(window.inside), outcome)
                made = self._joined(windows, outcomes)
                if made and self._shop.value(made) < run.value:
                    run = Run(self._shop, made)
                    cuttings = layouts(run)
                    found(run.value, made)
        return run.start

    def _windows(self, layout: Layout, count: int) -> list[Window]:
        """Windows that may shorten the run; those that overlap one before are left out."""
        made: list[Window] = []
        for _ in range(count * DRAWS):
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
        size = min(total, max(1, int(self._size * rng.uniform(SMALLEST, 1))))
        first = rng.randrange(-size // 2, total - size // 2)
        if late and rng.random() < GUIDED:
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
            self._size = max(self._size, min(size * GROWTH, self._shop.size))
        elif outcome.order is None:
            self._size = max(LEAST_SIZE, self._size / SHRINKAGE)

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


Job = tuple[Window, cpsat.Limits]


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
