"""Local search by windows (`ppopt.solver.window`): one stretch of time after another, at random.

The size of the windows follows what CP-SAT can do: it grows while windows are solved to the end,
and shrinks where they are not and nothing better was found. CP-SAT runs them with one worker each:
a second one betters hardly any, while a second window, elsewhere, does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from ppopt.solver import cpsat
from ppopt.solver.budget import Budget
from ppopt.solver.justify import Shop
from ppopt.solver.window import Found, Layout, Window, holdings, timed

FIRST_SIZE = 60
"""Operations of the first window."""
LEAST_SIZE = 20
SMALLEST = 0.3
"""Smallest window, as a share of the size that the search has come to."""
GROWTH = 1.1
SHRINKAGE = 1.15
GUIDED = 0.5
"""Part of the windows that lie around a wait of a busy device."""
EFFORT = 0.1
"""Deterministic units of one window at most: about a second where many share a processor."""
LONGEST = 1.0
"""Seconds of one window at most, where the clock rules."""
OVERHEAD = 0.05
"""What a window costs beside CP-SAT, in its deterministic units."""
MOST_AT_ONCE = 8
"""Most windows that are solved side by side."""


class Cut(NamedTuple):
    """A place for a window in the order of all operations."""

    first: int
    size: int


class Recutter:
    """Local search by windows on one problem; remembers the size that works."""

    def __init__(self, shop: Shop, rng: Random) -> None:
        self._shop = shop
        self._rng = rng
        self._holdings = holdings(shop)
        self._size = float(FIRST_SIZE)

    def search(
        self, start: list[int], budget: Budget, found: Callable[[int, list[int]], None]
    ) -> list[int]:
        """Search from these starts while the budget lasts; `found` is told of every better.

        Starts must be the earliest of their order. Raises KeyboardInterrupt on Ctrl-C.
        """
        layout = Layout(self._shop, start)
        with _side_by_side(min(budget.workers, MOST_AT_ONCE)) as run:
            while not budget.over:
                cuts = list(self._cuts(layout, min(budget.workers, MOST_AT_ONCE)))
                outcomes = run(
                    lambda job: job[0].better(job[1]),
                    [
                        (
                            Window(layout, self._holdings, cut.first, cut.first + cut.size),
                            budget.alone(LONGEST, EFFORT, self._rng.getrandbits(31)),
                        )
                        for cut in cuts
                    ],
                )
                budget.spent += sum(outcome.work + OVERHEAD for outcome in outcomes)
                for cut, outcome in zip(cuts, outcomes, strict=True):
                    self._adapt(cut.size, outcome)
                made = self._joined(layout.order, cuts, outcomes)
                if made and self._shop.value(made) < layout.value:
                    layout = Layout(self._shop, made)
                    found(layout.value, made)
        return layout.start

    def _cuts(self, layout: Layout, count: int) -> Iterator[Cut]:
        """Places of windows, those that overlap one before left out."""
        total, taken = self._shop.size, set[int]()
        for _ in range(count):
            size = min(total, max(1, int(self._size * self._rng.uniform(SMALLEST, 1))))
            first = min(max(0, self._place(layout, size)), total - size)
            places = range(first, first + size)
            if taken.isdisjoint(places):
                taken.update(places)
                yield Cut(first, size)

    def _place(self, layout: Layout, size: int) -> int:
        """Where a window of this size begins: around a wait of a busy device, or anywhere."""
        rng = self._rng
        if layout.waits and rng.random() < GUIDED:
            return rng.choice(rng.choice(layout.waits)) - rng.randrange(size)
        return rng.randrange(-size // 2, self._shop.size - size // 2)

    def _adapt(self, size: int, outcome: Found) -> None:
        if outcome.complete:
            self._size = max(self._size, min(size * GROWTH, self._shop.size))
        elif outcome.order is None:
            self._size = max(LEAST_SIZE, self._size / SHRINKAGE)

    def _joined(self, order: list[int], cuts: list[Cut], outcomes: list[Found]) -> list[int]:
        """Starts with all that is better, or with the best part of it; empty where nothing is.

        Each part was better while the others stood: together they may be worse.
        """
        shop = self._shop
        joined, made = list(order), list[list[int]]()
        for (first, size), outcome in zip(cuts, outcomes, strict=True):
            if outcome.order is not None:
                joined[first : first + size] = outcome.order
                alone = [*order[:first], *outcome.order, *order[first + size :]]
                made.append(timed(shop, alone))
        if len(made) > 1:
            made.append(timed(shop, joined))
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
