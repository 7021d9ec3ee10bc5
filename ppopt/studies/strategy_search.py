"""Iterated local search for the best partition and recompute of one hand strategy.

The order of most strategies does not depend on times, so one order is timed on hundreds of points
at once (`ppopt.schedule.fixed_order`). From every start the search descends to a local optimum. It
then restarts some random moves away (iterated local search: Lourenco, Martin and Stuetzle,
"Iterated Local Search", 2003), and from random partitions if that does not help. If there are few
points, all are tried.

If the order depends on times, the order of the best known point approximates the orders of its
neighbours. The resulting points are then evaluated with their own orders.

Points are ranked by memory excess, then objective, then peak memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait, unhandled
from ppopt.schedule import fixed_order, timing
from ppopt.schedule.fixed_order import FixedOrder
from ppopt.schedule.orders import Orders, portable
from ppopt.schedule.schedule import Schedule
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate, timed
from ppopt.studies.strategy_points import Point, Points, StrategyPoints

FEW = 20_000
"""Most points that are all tried, if the order does not depend on times."""
FEW_ORDERS = 30
"""Most points that are all tried, if every point has its own order."""
PATIENCE = 40
"""Rounds without a better point after which a search stalls."""
PATIENCE_ONE_BY_ONE = 10
"""Rounds without a better point after which a search stalls, if every point has its own order."""
BARREN = 15
"""Descents without improvement after which the search starts from a random partition."""
NEAR = 64
"""Most neighbours that are ranked at once: the best of them is next, if it is better."""
TWICE = 256
"""Most points in which two layers move."""
CLIMBS = 4
"""Local searches with the order of the best point, before their ends are evaluated."""
EVALUATED = 2
"""Most ends of these that are evaluated with their own orders."""
REPAIRS = 6
"""Most evaluations of a point that is over its limits, each with more recompute."""
REFUSED = 2**60
"""Excess of a partition that the runtime does not support."""


AcceptsPartition = Callable[[Counts], bool]
"""Whether a runtime supports a partition."""


class Rank(NamedTuple):
    """Sort key of a point (smaller is better), in ticks of the space's costs."""

    excess: int
    """Largest memory by which a device exceeds its limit."""
    total_excess: int
    """Memory by which devices exceed their limits, summed over the devices."""
    value: int
    """Makespan or device span."""
    peak: int
    """Largest memory of a device."""


class _Ranking:
    """Ranks points by timing one fixed operation order."""

    def __init__(
        self,
        space: StrategyPoints,
        orders: Orders,
        objective: Objective,
        accepts_partition: AcceptsPartition | None,
    ) -> None:
        self._space, self._objective, self._accepts_partition = space, objective, accepts_partition
        self._order = FixedOrder(space.base, orders)
        self.together = self._order.together

    def ranks(self, points: Points) -> Ints:
        """Rank of every point: `[point, field of Rank]`."""
        low = range(0, len(points.counts), self.together)
        return np.concatenate([self._ranks(points.some(slice(n, n + self.together))) for n in low])

    def rank(self, point: Point) -> Rank:
        """Rank of one point."""
        return Rank(*self.ranks(Points.of(point))[0].tolist())

    def _ranks(self, points: Points) -> Ints:
        table = self._space.table(points)
        peaks = self._order.peaks(table)
        excess = np.zeros_like(peaks, dtype=np.int64)
        if self._space.limits is not None:
            excess = np.maximum(peaks - self._space.limits, 0).astype(np.int64)
        largest = excess.max(axis=0)
        if self._accepts_partition is not None:
            taken = [self._accepts_partition(tuple(counts)) for counts in points.counts.tolist()]
            largest = np.where(taken, largest, REFUSED)
        value = self._order.values(table, self._objective)
        return np.stack([largest, excess.sum(axis=0), value, peaks.max(axis=0)], axis=1)

    def least_recompute(self, counts: Ints) -> Points:
        """Partitions with the least recompute within the limits, or else with full recompute.

        All stages of a device have the option of the same number, or their last one: the least
        number with which the device is within its limit, by bisection.
        """
        space = self._space
        points = Points(counts, np.zeros_like(counts))
        if not space.recomputed or not len(counts):
            return points
        assert space.limits is not None, "recompute is chosen under limits alone"
        fronts = space.fronts(counts)
        last = fronts.sizes - 1
        low = np.zeros((len(counts), space.base.num_devices), dtype=np.int64)
        high = np.full_like(low, last.max())
        while (low < high).any():
            middle = (low + high) // 2
            at = points._replace(recompute=np.minimum(middle[:, space.hosts], last))
            fits = (self._order.peaks(space.table(at, fronts)) <= space.limits).T
            low = np.where(fits, low, np.minimum(middle + 1, high))
            high = np.where(fits, middle, high)
        return points._replace(recompute=np.minimum(low[:, space.hosts], last))


class StrategySearch:
    """Search for the best point; `run` can be called again to continue."""

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: str,
        objective: Objective,
        options: Options | None = None,
        *,
        accepts_partition: AcceptsPartition | None = None,
        seed: int = 0,
    ) -> None:
        """Search what the pipeline leaves open of partition, recompute and offload.

        `accepts_partition` says whether the runtime supports a partition; None: it supports all.
        Raises NotApplicableError if the strategy does not apply, or if times or memory are too
        finely divided to stay exact, and InputError if the strategy is unknown.
        """
        rule, options = resolve(strategy), options or Options()
        self.strategy, self.options, self.objective = rule.name, options, objective
        self.placed = rule.apply(replace(pipeline, mem_limit=pipeline.limits), options)
        """Pipeline of the strategy, as requested."""
        self.space = StrategyPoints(self.placed)
        self.rank: Rank | None = None
        """Rank of the best point; None: nothing is tried yet."""
        self.barren = 0
        """Rounds since the best point was found."""
        self.evaluations = 0
        """Number of points that were ranked; one that was ranked twice counts twice."""
        self._accepts_partition, self._random = accepts_partition, np.random.default_rng(seed)
        self._best: Point | None = None
        self._current: tuple[Rank, Point] | None = None
        """Last local optimum that was no worse than the one before it."""
        self._cut: Point | None = None
        """Point at which the deadline ended a descent: the next one continues there."""
        self._failed = 0
        """Descents since one was better than the one before it."""
        self._hints: list[Point] = []
        self._hinted: set[Point] = set()
        self._starts = self.space.starts(self._random)
        self._tried: dict[Point, Rank] = {}
        """Points that were evaluated with their own orders."""
        base = self.space.base
        span = objective is Objective.DEVICE_SPAN
        self._own_orders = rule.adaptive or Trait.LINKS in base.traits or span
        """Whether orders depend on times."""
        apart = unhandled(base.traits, fixed_order.HANDLES)
        by_rule = self._own_orders or bool({*apart} - {Trait.STEP_WORK})
        self.complete = not (self.space.offloaded or (by_rule and self.space.has_dominated))
        """Whether no recompute option beyond those of the points may be better. Moves to the host
        are timed by rule: an option that takes less may be slower."""
        uncertain = self.space.limits is not None and self.space.costs.lengthless
        orders = rule.built(base, options)
        if not base.has_all_operations:
            orders = portable(timing.schedule(base, orders))
        pairs = base.overlap is not None and any((order < 0).any() for order in orders)
        frozen = base.model is not None and base.model.layers[0].frozen
        untimed = apart or self.space.offloaded or pairs or frozen
        self._one_by_one = bool(self._own_orders or uncertain or untimed)
        """Whether the true rank of a point takes a separate evaluation."""
        self._ranking = self._ranking_by(orders)
        self._few = self.space.size <= (FEW_ORDERS if self._one_by_one else FEW)
        """Whether all points are tried."""
        self._every: list[Points] | None = None
        """All points in batches, once they are listed."""
        self._done = 0
        """Number of batches that were tried."""

    def _ranking_by(self, orders: Orders) -> _Ranking:
        return _Ranking(self.space, orders, self.objective, self._accepts_partition)

    @property
    def exhausted(self) -> bool:
        """Whether every point is tried."""
        return self._every is not None and self._done == len(self._every)

    @property
    def conclusive(self) -> bool:
        """Whether every choice that may be best was tried."""
        return self.exhausted and self.complete

    @property
    def best(self) -> Point:
        """Best known point."""
        assert self._best is not None, "begin or run tries a point"
        return self._best

    @property
    def fits(self) -> bool:
        """Whether the best point is within the limits, and the runtime supports its partition."""
        return self.rank is not None and not self.rank.excess

    @property
    def refused(self) -> bool:
        """Whether the runtime supports none of the partitions tried."""
        return self.rank is not None and self.rank.excess >= REFUSED

    @property
    def value(self) -> Fraction:
        """Value of the best point, in the user's unit."""
        assert self.rank is not None
        return Fraction(self.rank.value, self.space.costs.per_unit)

    def schedule(self) -> Schedule:
        """Verified schedule of the best point."""
        pipeline = self.space.pipeline(self.best)
        return evaluate(pipeline, self.strategy, self.objective, self.options)

    def hint(self, pipeline: Pipeline) -> None:
        """Start from the partition and the recompute of a pipeline, if they are a point."""
        point = self.space.point(pipeline)
        if point is not None and point not in self._hinted:
            self._hinted.add(point)
            self._hints.append(point)

    def begin(self) -> None:
        """Try a first point, so that there is a best one."""
        self.run(0, Deadline(seconds=0))

    def run(self, rounds: float, deadline: Deadline = NO_DEADLINE) -> None:
        """Search for `rounds` rounds until the deadline; at least one start."""
        if self._one_by_one:
            self._begin()
        if self._few:
            self._try_all(deadline)
        number = 0
        while (number < rounds or self.rank is None) and not self._over(deadline):
            self._round(deadline)
            number += 1

    def run_until_stalled(
        self, deadline: Deadline, tell: Callable[[], None] = lambda: None
    ) -> None:
        """Search until several rounds bring no improvement, or until the deadline."""
        patience = PATIENCE_ONE_BY_ONE if self._one_by_one else PATIENCE
        self.run(1, deadline)
        while self.barren < patience and not self._over(deadline):
            tell()
            self.run(1, deadline)

    def _over(self, deadline: Deadline) -> bool:
        late = self.rank is not None and deadline.over
        return late or self.exhausted

    def _try_all(self, deadline: Deadline) -> None:
        """Try all remaining points until the deadline. A batch that Ctrl-C cuts is tried again."""
        if self._every is None:
            self._every = list(self.space.batches(self.together))
        while not self._over(deadline):
            self.try_points(self._every[self._done])
            self._done += 1

    @property
    def together(self) -> int:
        """Number of points that are best tried at once."""
        return 1 if self._one_by_one else self._ranking.together

    def try_points(self, points: Points) -> None:
        """Rank points; the best of them counts if it is the best known."""
        if self._one_by_one:
            for number in range(len(points.counts)):
                self._timed(points.at(number))
            return
        ranks = self._ranked(points)
        number = _least(ranks)
        self._take(Rank(*ranks[number].tolist()), points.at(number))

    def _ranked(self, points: Points) -> Ints:
        self.evaluations += len(points.counts)
        return self._ranking.ranks(points)

    def _take(self, rank: Rank, point: Point) -> None:
        """Keep a point that is better than the best."""
        if self.rank is None or rank < self.rank:
            self.rank, self._best, self.barren = rank, point, -1

    # Rounds.

    def _round(self, deadline: Deadline) -> None:
        """Make one descent; if orders depend on times, a few, and evaluate the best ends."""
        if self._one_by_one:
            self._round_of_own_orders(deadline)
        else:
            rank, point = self._descend(self._start(), deadline)
            self._take(rank, point)
            if deadline.over:
                self._cut = point
            else:
                self._follow(rank, point)
        self.barren += 1

    def _start(self) -> Point:
        """Start of the next descent."""
        if self._cut is not None:
            cut, self._cut = self._cut, None
            return cut
        if self._hints:
            return self._hints.pop()
        if self._current is None or self._failed >= BARREN:
            counts = next(self._starts, None)
            if counts is not None:
                self._current, self._failed = None, 0
                return self._with_recompute(counts)
        assert self._current is not None, "there is a start by rule"
        return self._perturbed(self._current[1])

    def _with_recompute(self, counts: Counts) -> Point:
        """Point of a partition with the least recompute within the limits."""
        return self._ranking.least_recompute(np.array([counts])).at(0)

    def _perturbed(self, point: Point) -> Point:
        """Point some random moves away, with its recompute kept or the least that fits."""
        near = self.space.perturbed(point, self._random)
        if not (self.space.cut and self.space.recomputed):
            return near
        return min(near, self._with_recompute(near.counts), key=self._ranking.rank)

    def _follow(self, rank: Rank, point: Point) -> None:
        """Continue from the end of a descent, unless it is worse than the last one."""
        before = self._current
        if before is None or rank < before[0]:
            self._failed = 0
        else:
            self._failed += 1
        if before is None or rank <= before[0]:
            self._current = rank, point

    def _descend(self, point: Point, deadline: Deadline, steps: float = inf) -> tuple[Rank, Point]:
        """Descend to a local optimum, or so many steps."""
        rank, better = self._ranking.rank(point), True
        self.evaluations += 1
        while better and steps > 0 and not deadline.over:
            better, steps = False, steps - 1
            for near in self._near(point):
                if deadline.over:
                    break
                ranks = self._ranked(near)
                number = _least(ranks)
                best = Rank(*ranks[number].tolist())
                if best < rank:
                    rank, point, better = best, near.at(number), True
                    break
        return rank, point

    def _near(self, point: Point) -> Iterator[Points]:
        """Neighbours of a point in batches, in random order.

        First points in which one layer moves, each with its recompute kept and with the least that
        fits, and points that differ in recompute alone; at last some in which layers move twice.
        """
        space, ranking, random = self.space, self._ranking, self._random
        moved = space.moved(point).shuffled(random)
        others = space.rechosen(point).shuffled(random) if space.recomputed else None
        batches = max(1, -(-len(moved.counts) // min(NEAR, ranking.together)))
        for number in range(batches):
            some = moved.part(number, batches)
            found = [ranking.least_recompute(some.counts)]
            if others is not None:
                found += [some, others.part(number, batches)]
            yield from _any(Points.joined(found))
        twice = space.moved_twice(
            point, random, min(ranking.together, len(moved.counts) ** 2, TWICE)
        )
        yield from _any(ranking.least_recompute(twice.counts))

    def _begin(self) -> None:
        """Evaluate hints, or the first start; if it is over the limits, full recompute, too."""
        while self._hints or self.rank is None:
            self._evaluate(self._start())
        if not self.fits:
            self._evaluate(self.space.full(self.best))

    def _round_of_own_orders(self, deadline: Deadline) -> None:
        """Descend by the order of the best point from there and from near it; evaluate the ends.

        While nothing fits, also after one step: far away, the point's own order has other peaks.
        """
        starts = [self.best, *(self._perturbed(self.best) for _ in range(CLIMBS - 1))]
        near = [] if self.fits else [self._descend(start, deadline, 1) for start in starts]
        ends = sorted(near)[:1] + sorted(self._descend(start, deadline) for start in starts)
        fresh = dict.fromkeys(point for _, point in ends if point not in self._tried)
        for number, point in enumerate(islice(fresh, EVALUATED)):
            if number == 0 or not self._over(deadline):
                self._evaluate(point)

    def _evaluate(self, point: Point) -> None:
        """Evaluate a point with its own order; if it is over its limits, again with more recompute.

        An order by other times may hold more than the one by which the point was chosen.
        """
        for _ in range(REPAIRS):
            if point in self._tried:
                return
            schedule = self._timed(point)
            over = _over_limits(schedule)
            if not over.any():
                return
            point = self.space.with_more_recompute(point, over)

    def _timed(self, point: Point) -> Schedule:
        """Schedule of a point with its own order; that of the best point ranks others."""
        pipeline = self.space.pipeline(point)
        schedule = timed(pipeline, self.strategy, self.objective, self.options)
        self.evaluations += 1
        rank = self._rank_of(schedule)
        if self._own_orders and (self.rank is None or rank < self.rank):
            self._ranking = self._ranking_by(portable(schedule))
        self._take(rank, point)
        self._tried[point] = rank
        return schedule

    def _rank_of(self, schedule: Schedule) -> Rank:
        """Rank of a schedule, in the ticks of the space."""
        ticks, costs, figures = schedule.pipeline.ticks, self.space.costs, schedule.metrics
        value = int(ticks.time(figures.value_ticks(self.objective)) * costs.per_unit)
        memory = map(ticks.memory, figures.peak_memory_ticks)
        peaks = [int(peak * costs.memory_per_unit) for peak in memory]
        taken = self._accepts_partition is None or self._accepts_partition(schedule.pipeline.counts)
        excess = [0] * len(peaks)
        if self.space.limits is not None:
            limits = self.space.limits[:, 0].tolist()
            excess = [max(0, peak - limit) for peak, limit in zip(peaks, limits, strict=True)]
        return Rank(max(excess) if taken else REFUSED, sum(excess), value, max(peaks))


def _over_limits(schedule: Schedule) -> Bools:
    """Whether the peak of every device is over its limit."""
    peaks, limits = np.array(schedule.metrics.peak_memory_ticks), schedule.pipeline.ticks.limits
    return peaks > (peaks if limits is None else np.array(limits))


def _any(points: Points) -> Iterator[Points]:
    """Yield the points, if there are any."""
    if len(points.counts):
        yield points


def _least(ranks: Ints) -> int:
    """Index of the least rank, the first of equal ones."""
    return int(np.lexsort(ranks.T[::-1])[0])
