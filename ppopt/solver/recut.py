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
from ppopt.solver.window import Found, Window, holdings, timed

FIRST_SIZE = 60
"""Operations of the first window."""
LEAST_SIZE = 20
SMALLEST = 0.3
"""Smallest window, as a share of the size that the search has come to."""
GROWTH = 1.1
SHRINKAGE = 1.15
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
        shop = self._shop
        value = shop.value(start)
        with _side_by_side(min(budget.workers, MOST_AT_ONCE)) as run:
            while not budget.over:
                order = sorted(range(shop.size), key=start.__getitem__)
                cuts = list(self._cuts(min(budget.workers, MOST_AT_ONCE)))
                outcomes = run(
                    lambda job: job[0].better(value - 1, job[1]),  # noqa: B023  run at once
                    [
                        (
                            self._window(start, order, cut),
                            budget.alone(LONGEST, EFFORT, self._rng.getrandbits(31)),
                        )
                        for cut in cuts
                    ],
                )
                budget.spent += sum(outcome.work + OVERHEAD for outcome in outcomes)
                for cut, outcome in zip(cuts, outcomes, strict=True):
                    self._adapt(cut.size, outcome)
                made = self._joined(order, cuts, outcomes)
                if made and shop.value(made) < value:
                    start, value = made, shop.value(made)
                    found(value, start)
        return start

    def _cuts(self, count: int) -> Iterator[Cut]:
        """Places of windows, those that overlap one before left out."""
        total, taken = self._shop.size, set[int]()
        for _ in range(count):
            size = min(total, max(1, int(self._size * self._rng.uniform(SMALLEST, 1))))
            first = min(max(0, self._rng.randrange(-size // 2, total - size // 2)), total - size)
            places = range(first, first + size)
            if taken.isdisjoint(places):
                taken.update(places)
                yield Cut(first, size)

    def _window(self, start: list[int], order: list[int], cut: Cut) -> Window:
        after = cut.first + cut.size
        parts = order[: cut.first], order[cut.first : after], order[after:]
        return Window(self._shop, self._holdings, *parts, start)

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
