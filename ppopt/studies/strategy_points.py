"""Search space of a hand strategy: partitions with recompute options per stage.

A point is a partition and, for every stage, the number of one of its options
(`ppopt.solver.recompute.stage_options`); options are ordered by time. If the partition or the
recompute is given, all points have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice, pairwise, product
from math import comb, inf, prod
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Floats, Ints
from ppopt.problem.offload import SEARCH_OFFLOAD
from ppopt.problem.partition import SEARCH, Counts, all_by_rule
from ppopt.problem.partition_costs import CostTable, PartitionCosts, Recomputed
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.solver.recompute.stage_options import StageOptions

FEW_LAYERS = 24
"""Most layers for which all recompute options of all partitions are counted."""
MANY = 2**31
"""More recompute options than any stage has."""
FAR = 24
"""Largest distance between the two stages of a move."""
TILT, NOISE = 0.6, 0.25
"""A random partition gives the stages shares of the work that grow or fall along the pipeline by up
to `TILT`, times the exponential of normal noise of this standard deviation."""


class Point(NamedTuple):
    """A partition with one recompute option per stage; hashable."""

    counts: Counts
    """Layers of every stage."""
    recompute: tuple[int, ...]
    """Number of the recompute option of every stage."""


class Points(NamedTuple):
    """Several points, one per row: `[point, stage]`."""

    counts: Ints
    recompute: Ints

    @classmethod
    def of(cls, point: Point) -> Points:
        """Points with one row."""
        return cls(np.array([point.counts]), np.array([point.recompute]))

    @classmethod
    def joined(cls, parts: list[Points]) -> Points:
        """Concatenate points."""
        return cls(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))

    def at(self, number: int) -> Point:
        """Point of a row."""
        return Point(tuple(self.counts[number].tolist()), tuple(self.recompute[number].tolist()))

    def some(self, which: slice | Ints) -> Points:
        """Select rows."""
        return Points(self.counts[which], self.recompute[which])

    def part(self, number: int, parts: int) -> Points:
        """Every `parts`-th row, from row `number` on."""
        return self.some(slice(number, None, parts))

    def shuffled(self, random: np.random.Generator) -> Points:
        """Points in random order."""
        return self.some(random.permutation(len(self.counts)))


class Fronts(NamedTuple):
    """Pareto fronts of the recompute options of stages, in ticks."""

    number: Ints
    """Row of every stage of every partition: `[point, stage]`."""
    sizes: Ints
    """Number of options of every stage: `[point, stage]`."""
    time: Ints
    """Added time, `[row, option]`; the last one is repeated."""
    kept: Ints
    """Kept memory, `[row, option]`; the last one is repeated."""
    peak: Ints
    """Live memory of a microbatch in BW, `[row, option]`; the last one is repeated."""


class StrategyPoints:
    """All points of a pipeline that a strategy has placed."""

    def __init__(self, placed: Pipeline) -> None:
        """Make the points of what a pipeline leaves open: partition, recompute and offload.

        Raises NotApplicableError if times or memory are too finely divided to stay exact.
        """
        self.cut = placed.partition == SEARCH
        """Whether the partition is chosen."""
        again, moved = placed.recompute == SEARCH_RECOMPUTE, placed.offload == SEARCH_OFFLOAD
        limited = placed.limits is not None
        self.recomputed = (again or moved) and limited
        """Whether recompute or offload is chosen; without a limit no layer that may does either."""
        self.offloaded = moved and limited
        """Whether offload is chosen."""
        model = placed.model
        self._choices = StageOptions(
            model, limited=self.recomputed, full=True, recompute=again, offload=moved
        )
        self.base = replace(
            placed, model=self._choices.bare, recompute=None, offload=None,
            partition=placed.counts, mem_limit=placed.limits,
        )  # fmt: skip
        """Pipeline on one partition, where no layer recomputes unless that is given."""
        self.costs = PartitionCosts(self.base)
        self.limits: Ints | None = None
        """Memory limit, `[device, 1]`, in ticks of `costs`; None: unlimited."""
        if self.base.limits is not None:
            per_unit = self.costs.memory_per_unit
            limits = [int(limit * per_unit) for limit in self.base.limits]
            self.limits = np.array(limits)[:, None]
        self.hosts = np.array(self.base.hosts[0])
        """Device of every stage."""
        self._layers, self._stages = len(model), self.base.num_stages
        self._in_ticks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._moves = _moves_of(self._stages) if self.cut else np.zeros((0, self._stages), np.int64)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return comb(self._layers - 1, self._stages - 1) if self.cut else 1

    @property
    def has_dominated(self) -> bool:
        """Whether there are dominated recompute options: each takes more time, and saves no more.

        An order that depends on times may be shorter with one of them, or hold less.
        """
        return self.recomputed and self._choices.leaves_out

    @property
    def size(self) -> float:
        """Number of points; infinite if there are too many to be counted."""
        if not self.recomputed:
            return self.partitions
        if not self.cut:
            return prod(map(len, self._choices.of_partition(self.base.counts)))
        if self._layers > FEW_LAYERS:
            return inf
        ways = [1, *[0] * self._layers]
        for _ in range(self._stages):
            ways = [
                sum(ways[low] * len(self._choices.of(low, high)) for low in range(high))
                for high in range(self._layers + 1)
            ]
        return ways[-1]

    def batches(self, size: int) -> Iterator[Points]:
        """All points in batches."""
        partitions = self._every_partition()
        if not self.recomputed:
            while part := list(islice(partitions, size)):
                counts = np.array(part)
                yield Points(counts, np.zeros_like(counts))
            return
        points = (
            (counts, numbers)
            for counts in partitions
            for numbers in product(
                *(range(len(options)) for options in self._choices.of_partition(counts))
            )
        )
        while chosen := list(islice(points, size)):
            yield Points(*(np.array(rows) for rows in zip(*chosen, strict=True)))

    def _every_partition(self) -> Iterator[Counts]:
        if not self.cut:
            yield self.base.counts
            return
        for cuts in combinations(range(1, self._layers), self._stages - 1):
            yield tuple(high - low for low, high in pairwise((0, *cuts, self._layers)))

    # What a point is.

    def table(self, points: Points, fronts: Fronts | None = None) -> CostTable:
        """Costs of the pipelines of points; `fronts` are those of their partitions."""
        if not self.recomputed:
            return self.costs.table(points.counts)
        fronts = fronts or self.fronts(points.counts)
        chosen = fronts.number, np.minimum(points.recompute, fronts.sizes - 1)
        recomputed = Recomputed(*(row[chosen] for row in (fronts.time, fronts.kept, fronts.peak)))
        return self.costs.table(points.counts, recomputed)

    def fronts(self, counts: Ints) -> Fronts:
        """Recompute options of the stages of partitions."""
        high = np.cumsum(counts, axis=1)
        keys = (high - counts) * (self._layers + 1) + high
        distinct, number = np.unique(keys, return_inverse=True)
        number = number.reshape(keys.shape)
        rows = [self._ticks(*divmod(key, self._layers + 1)) for key in distinct.tolist()]
        sizes = np.array([len(row) for row in rows])
        padded = np.array([[*row, *row[-1:] * (sizes.max() - len(row))] for row in rows])
        return Fronts(number, sizes[number], *np.moveaxis(padded, 2, 0))

    def _ticks(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Time, kept memory and peak in BW of the options of a stage, in ticks.

        As if moves to the host took no time.
        """
        key = low, high
        if key not in self._in_ticks:
            slices = self.base.num_slices
            time, memory = self.costs.per_unit_at_speed_1, self.costs.memory_per_unit
            self._in_ticks[key] = [
                (
                    int(option.time * time / slices),
                    int(option.left * memory / slices),
                    int(option.peak * memory / slices),
                )
                for option in self._choices.of(low, high)
            ]
        return self._in_ticks[key]

    def pipeline(self, point: Point) -> Pipeline:
        """Pipeline of a point."""
        pipeline = replace(self.base, partition=point.counts)
        if not self.recomputed:
            return pipeline
        return replace(pipeline, model=self._choices.model(point.counts, point.recompute))

    def point(self, pipeline: Pipeline) -> Point | None:
        """Point of a pipeline of as many stages, or one that is no worse; None: there is none.

        The recompute of the pipeline does not matter if the recompute of all points is given.
        """
        counts = pipeline.counts
        if len(counts) != self._stages or not (self.cut or counts == self.base.counts):
            return None
        if not self.recomputed:
            return Point(counts, (0,) * self._stages)
        numbers = self._choices.numbers(pipeline)
        return None if numbers is None else Point(counts, numbers)

    # Which points to try.

    def starts(self, random: np.random.Generator) -> Iterator[Counts]:
        """Partitions to start from: those by rule, then random ones without end."""
        if not self.cut:
            yield self.base.counts
            return
        speeds = tuple(self.base.device_speed[host] for host in self.base.hosts[0])
        yield from reversed(all_by_rule(self.base.model, self._stages, speeds))
        work = np.cumsum([float(layer.work) for layer in self.base.model.costed])
        while True:
            yield self._random_partition(random, work)

    def _random_partition(self, random: np.random.Generator, work: Floats) -> Counts:
        """A partition whose stages have random shares of the work, growing or falling."""
        tilt = 1 + random.uniform(-TILT, TILT) * np.linspace(-1, 1, self._stages)
        shares = np.cumsum(tilt * np.exp(random.normal(0, NOISE, self._stages)))
        cuts = np.searchsorted(work, work[-1] * shares[:-1] / shares[-1]) + 1
        stage = np.arange(1, self._stages)
        cuts = np.maximum.accumulate(np.maximum(cuts, stage) - stage) + stage
        cuts = np.minimum(cuts, self._layers - self._stages + stage)
        return tuple(np.diff(cuts, prepend=0, append=self._layers).tolist())

    def moved(self, point: Point) -> Points:
        """Partitions in which one layer moves from one stage to another; not too far if many.

        Every stage keeps the number of its option, or takes the last one.
        """
        return self._with(point, self._moves)

    def moved_twice(self, point: Point, random: np.random.Generator, number: int) -> Points:
        """Partitions after `number` random pairs of moves of one layer."""
        if not len(self._moves):
            return self._with(point, self._moves)
        pairs = random.integers(0, len(self._moves), (2, number))
        return self._with(point, self._moves[pairs].sum(axis=0))

    def _with(self, point: Point, moves: Ints) -> Points:
        counts = np.array(point.counts) + moves
        counts = counts[(counts >= 1).all(axis=1)]
        recompute = np.tile(point.recompute, (len(counts), 1))
        if self.recomputed and len(counts):
            recompute = np.minimum(recompute, self.fronts(counts).sizes - 1)
        return Points(counts, recompute)

    def rechosen(self, point: Point) -> Points:
        """Points of the same partition with other recompute options.

        In one stage, one option or two more or less, the first or the last; or one option more in
        one stage and one less in another stage of its device.
        """
        sizes = self.fronts(np.array([point.counts])).sizes[0] - 1
        here, stages = np.array(point.recompute), np.arange(self._stages)
        unit = np.eye(self._stages, dtype=np.int64)
        same = self.hosts[:, None] == self.hosts
        less, more = np.nonzero(same & (stages[:, None] != stages))
        found = [here + step * unit for step in (1, -1, 2, -2)]
        found += [here + unit * (end - here) for end in (np.zeros_like(sizes), sizes)]
        found.append(here + unit[more] - unit[less])
        chosen = np.unique(np.concatenate(found), axis=0)
        chosen = chosen[((chosen >= 0) & (chosen <= sizes)).all(axis=1)]
        return Points(np.tile(point.counts, (len(chosen), 1)), chosen)

    def full(self, point: Point) -> Point:
        """Point of the same partition with full recompute of layers that save memory by it."""
        all_devices = np.ones(self.base.num_devices, dtype=bool)
        return self.with_more_recompute(point, all_devices, steps=MANY)

    def with_more_recompute(self, point: Point, devices: Bools, steps: int = 1) -> Point:
        """Point of the same partition with the next recompute options on some devices."""
        if not self.recomputed:
            return point
        last = self.fronts(np.array([point.counts])).sizes[0] - 1
        more = np.array(point.recompute) + steps * devices[self.hosts]
        return point._replace(recompute=tuple(np.minimum(more, last).tolist()))

    def perturbed(self, point: Point, random: np.random.Generator) -> Point:
        """Point a few random moves away."""
        for _ in range(random.integers(2, 6)):
            near = self.moved(point) if self.cut else self.rechosen(point)
            if len(near.counts):
                point = near.at(int(random.integers(len(near.counts))))
        return point


def _moves_of(stages: int) -> Ints:
    """Changes of layer counts by moves of one layer, near ones first: `[move, stage]`."""
    pairs = [
        (here, there)
        for distance in range(1, min(stages - 1, FAR) + 1)
        for low in range(stages - distance)
        for here, there in ((low, low + distance), (low + distance, low))
    ]
    moves = np.zeros((len(pairs), stages), dtype=np.int64)
    for number, (here, there) in enumerate(pairs):
        moves[number, here], moves[number, there] = -1, 1
    return moves
