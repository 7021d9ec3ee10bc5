"""Phases of the search that better the incumbent: the portfolio, then local search."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from math import ceil
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING

from ppopt.problem.problem import Objective
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import Built, Decoder, Policy
from ppopt.schedule.orders import Orders
from ppopt.solver import interrupts
from ppopt.solver.heuristics.annealing import climb
from ppopt.solver.heuristics.double_justification import Shop
from ppopt.solver.heuristics.initial_orders import candidates
from ppopt.solver.heuristics.iterated_local_search import Shaker
from ppopt.solver.heuristics.priority_rules import policies
from ppopt.solver.heuristics.repair import follow
from ppopt.solver.incumbent import LARGEST_MODEL, Search

if TYPE_CHECKING:
    from ppopt.solver.budget import Budget
    from ppopt.solver.heuristics.window_lns import Recutter

STARTS = 3
"""Policies of the portfolio from which local search starts, in turn."""
STEPS = (50, 500)
"""Fewest and most evaluations of a first climb; each round of climbs has twice as many."""
WORK = 1_000_000
"""Operations to place in a first climb, if that is between the fewest and the most steps."""
POOL = 5
"""Most schedules from which local search starts, in turn."""
LEAST_ZEAL = 0.25
"""Least part of their time that windows take after rounds without a better schedule, where a whole
model needs it more."""
CYCLES = 2
"""Cyclic schedules from which windows are searched, in turn."""
HURRIES = ((1, 1.0), (1, 0.25), (None, 1.0))
"""Backwards that hurry: of how many microbatches (None: all), by what part of the possible gain."""
ALIKE = 1.002
"""Value of a schedule with another beginning from which windows are searched, as a multiple of the
best, at most."""
JUSTIFYING = 1.5e-5
"""Seconds that justifying a schedule takes per operation, and as long to make ready for it."""
SETTLED = 100_000
"""Operations of the schedules that are justified to start with; at least two schedules are."""
FIRST = 3
"""Schedules that are justified before anything else is tried, where that takes next to no time."""
FIRST_MOST = 1000
"""Most operations for which it does."""


class Improver:
    """Construction and local search on one problem; remembers the best policies met."""

    def __init__(self, search: Search, seed: int) -> None:
        problem = search.problem
        self._search = search
        self._decoder = Decoder(problem.pipeline, problem.fused)
        self._rng = Random(seed)
        self._ranked: list[tuple[int, Policy]] = []
        self._settling = max(2, SETTLED // problem.operations)
        self._made: list[tuple[int, bool, Orders]] = []  # value, whether by a policy, orders
        self._pool: list[tuple[int, list[int]]] = []
        self._vain = 0
        self._others: list[tuple[int, list[int]]] = []
        self._steps = min(max(WORK // problem.operations, STEPS[0]), STEPS[1])
        makespan = problem.objective is Objective.MAKESPAN
        self._margin = 0 if makespan else max(map(max, problem.pipeline.ticks.durations))

    def construct(self) -> None:
        """Try policies of list scheduling and hand strategies by turns: either may be at the bound.

        A policy takes less time than most strategies, and on some pipelines none is as good.
        """
        search = self._search
        search.enter("construction")
        turns = deque([self._policies_tried(), self._strategies_tried()])
        while turns and not search.over:
            if next(turns[0], None) is None:
                turns.popleft()
            else:
                turns.rotate()
        self._ranked.sort()
        del self._ranked[STARTS:]
        self._made.sort(key=itemgetter(0, 1))
        del self._made[self._settling :]

    def _policies_tried(self) -> Iterator[int]:
        """Try one policy after the other, and count them."""
        problem = self._search.problem
        if problem.pipeline.num_slices > 1:
            return  # list scheduling knows no slices
        for count, policy in enumerate(policies(problem.pipeline, fused=problem.fused)):
            built = self._decoder.build(policy)
            if built is not None:
                value = built.value(problem.objective)
                self._ranked.append((value, policy))
                self._made.append((value, True, built.arrays()))
                self._take(built)
            yield count

    def _strategies_tried(self) -> Iterator[int]:
        """Try one strategy by hand after the other, and count them."""
        problem, deadline = self._search.problem, self._search.deadline
        made = candidates(problem.pipeline, fused=problem.fused, deadline=deadline)
        for count, orders in enumerate(made):
            self._note(orders)
            yield count

    def _note(self, orders: Orders | None) -> None:
        """Offer a hand-made order and keep it as a place to start from."""
        search = self._search
        if orders is None:
            return
        pipeline, objective = search.problem.pipeline, search.problem.objective
        made = timing.schedule(pipeline, orders, objective)
        if not made.fits_limits:
            followed = follow(made, pipeline, search.deadline)
            if followed is None:
                return
            orders, made = followed, timing.schedule(pipeline, followed, objective)
        search.take(made)
        self._made.append((made.metrics.value(objective), False, orders))

    def settle_first(self) -> None:
        """Justify a few of the best schedules constructed, if they are small."""
        if self._search.problem.operations <= FIRST_MOST:
            self._settle(min(FIRST, len(self._made) - 1))

    def settle(self, part: float) -> None:
        """Justify a part of the best schedules constructed: local search starts from them."""
        if self._made:
            self._settle(ceil(part * self._settling))
            if self.ready and not self._made:
                self._hurry()

    def _settle(self, most: int) -> None:
        search = self._search
        if self._late() or search.problem.pipeline.num_slices > 1:
            return
        search.enter("local search")
        for _ in range(min(most, len(self._made))):
            if self._late():
                return
            _, _, orders = self._made.pop(0)
            timed = timing.schedule(search.problem.pipeline, orders, search.problem.objective)
            self._keep(*self._settled(self._shop.starts(timed)))

    def _hurry(self) -> None:
        """Let backwards hurry at the start of the best schedule, and keep what is about as good.

        What that gains is often lost again at once, by small waits that windows find. Where memory
        is more than a count of microbatches, cyclic schedules are the better other place to look.
        """
        self._keep_best()
        pipeline, known, made = self._search.problem.pipeline, self._pool[0], []
        for count, part in HURRIES if pipeline.routes == 1 and not self._shop.tight else ():
            if self._late():
                break
            start = self._shop.hurried(known[1], count or pipeline.batches, part)
            if start != known[1]:
                made.append(self._settled(start))
        if made:
            worse = max(min(made), known, key=itemgetter(0))
            self._others = [worse] if worse[0] <= ALIKE * known[0] else []

    def _keep(self, value: int, start: list[int]) -> None:
        """Keep a schedule to search from, unless there is one of its value, or enough of better."""
        if all(value != other for other, _ in self._pool):
            self._pool = sorted([*self._pool, (value, start)])[:POOL]

    @property
    def ready(self) -> bool:
        """Whether there is something to start local search from."""
        return bool(self._pool)

    @cached_property
    def _shop(self) -> Shop:
        return Shop(self._search.problem)

    @cached_property
    def _shaker(self) -> Shaker:
        return Shaker(self._shop, self._rng, self._late)

    def _late(self) -> bool:
        """Whether the search is over, or will be before a schedule is justified."""
        search = self._search
        return search.over or search.left < JUSTIFYING * search.problem.operations

    def climb(self, seconds: float) -> None:
        """Local search: over schedules, then over policies for a third of the time."""
        search = self._search
        if not self.ready or search.over:
            return
        search.enter("local search")
        began = time.monotonic()
        self._shake(lambda: self._late() or time.monotonic() >= began + 2 * seconds / 3)
        self._climb_policies(lambda: search.over or time.monotonic() >= began + seconds)
        self._steps *= 2

    def repeat(self, budget: Budget) -> None:
        """Search for cyclic schedules, and keep those that lead to the best runs to recut."""
        search = self._search
        if not self.ready or search.over or not self._cyclic:
            return
        search.enter("cyclic schedules")
        with interrupts.held():
            from ppopt.solver.heuristics.cyclic import cycles  # noqa: PLC0415  ortools takes long to load
        problem = search.problem
        assert search.value is not None
        most = search.value // problem.pipeline.batches
        found = []
        for cycle in cycles(problem, most, budget, lambda: self._rng.getrandbits(31)):
            found.append(self._settled(self._shop.justified(cycle.unrolled(self._shop))))
        self._others += sorted(found)[:CYCLES]

    @property
    def _cyclic(self) -> bool:
        """Whether there is something to repeat, and memory that makes it hard."""
        pipeline = self._search.problem.pipeline
        limited = pipeline.ticks.limits is not None
        return limited and pipeline.routes == 1 and pipeline.batches > 1 and self._recuts

    def recut(self, budget: Callable[[float], Budget]) -> None:
        """Local search by windows, half from the best schedule and half from one of another kind.

        After calls in vain the next best schedules take the place of the best by turns. `budget`
        gives a part of the time; it may be used in part where the last call found nothing.
        """
        search = self._search
        if not self.ready or search.over or not self._recuts:
            return
        search.enter("local search")
        self._keep_best()
        least = LEAST_ZEAL if search.problem.operations <= LARGEST_MODEL else 1.0
        part = max(least, 0.5**self._vain) * (0.5 if self._others else 1.0)
        before = search.value
        _, start = self._pool.pop(self._vain % len(self._pool))
        start = self._recutter.search(start, budget(part), self._found)
        self._keep(self._shop.value(start), start)
        if self._others and not search.over:
            _, start = self._others.pop(0)
            start = self._recutter.search(start, budget(part), self._found)
            self._others.append((self._shop.value(start), start))
        self._vain = self._vain + 1 if search.value == before else 0

    @property
    def _recuts(self) -> bool:
        """Whether windows apply: one time for all devices, and no operation takes none."""
        return self._search.problem.objective is Objective.MAKESPAN and all(self._shop.time)

    @cached_property
    def _recutter(self) -> Recutter:
        with interrupts.held():
            from ppopt.solver.heuristics.window_lns import Recutter  # noqa: PLC0415  ortools takes long to load
        return Recutter(self._shop, self._rng)

    def _keep_best(self) -> None:
        search = self._search
        assert search.best is not None and search.value is not None
        if search.value < self._pool[0][0]:
            self._keep(search.value, self._shop.starts(search.best))

    def _shake(self, stop: Callable[[], bool]) -> None:
        """Disturb and justify, from the best schedule found and from another of the pool by turns.

        The neighbourhood of the best one may hold nothing better, and that of a worse one may.
        """
        self._keep_best()
        for turn in range(2 * len(self._pool)):
            if stop():
                return
            place = (turn + 1) // 2 if turn % 2 else 0
            _, start = self._pool.pop(min(place, len(self._pool) - 1))
            start = self._shaker.shake(start, self._steps, self._found, stop)
            self._keep(self._shop.value(start), start)

    def _climb_policies(self, stop: Callable[[], bool]) -> None:
        """Search around the best policies, and justify what each leads to."""
        objective = self._search.problem.objective
        for place, (value, policy) in enumerate(self._ranked):
            if stop():
                return
            self._ranked[place] = climb(
                self._decoder,
                policy,
                value,
                objective,
                steps=self._steps,
                rng=self._rng,
                found=self._take,
                stop=stop,
            )
            self._justify(self._decoder.build(self._ranked[place][1]))
        self._ranked.sort()

    def _justify(self, built: Built | None) -> None:
        if built is None:
            return
        made = timing.schedule(
            self._search.problem.pipeline, built.arrays(), self._search.problem.objective
        )
        self._keep(*self._settled(self._shop.starts(made)))

    def _settled(self, start: list[int]) -> tuple[int, list[int]]:
        """Justify while it helps, and offer what that leads to."""
        value, start = self._shaker.settle(start)
        self._found(value, start)
        return value, start

    def _found(self, value: int, start: list[int]) -> None:
        if self._search.value is None or value < self._search.value:
            self._search.take(self._shop.schedule(start))

    def _take(self, built: Built) -> None:
        """Offer a schedule that is better than the best, or may be once its starts are chosen.

        For makespan the simulated starts are the earliest; for device span later first starts
        can be better.
        """
        search = self._search
        value = built.value(search.problem.objective)
        if search.value is None or value < search.value + self._margin:
            search.offer(built.arrays())
