"""Lower bounds of one partition, and of all partitions of a space at once.

`layer_run_bounds` has the formulas of one device, `partition_program` the minimum over partitions,
`partitions_in_order` the same with the arrivals of microbatches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, groupby, islice, pairwise, takewhile
from math import lcm

import numpy as np

from ppopt.cancellation import checkpoint, part
from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.layer_run_bounds import (
    DeviceBound,
    Hosted,
    first_stage_tail,
    with_longest_before,
)
from ppopt.solver.partitions.option_bounds import chosen_bound, chosen_memory
from ppopt.solver.partitions.partition_program import (
    VALUE,
    BoundFunction,
    Counts,
    PartitionProgram,
    PlacementPattern,
    ProgramTooLargeError,
    pattern_of,
)
from ppopt.solver.partitions.partitions_in_order import PartitionsInOrder
from ppopt.solver.partitions.space import FOREVER, TIMES, PartitionSpace

SHARES = (0.0, 0.01, 0.02, 0.05)
"""Shares by which the bound of a most even partition may exceed the minimum bound: no single share
is always best."""
MAX_ENUMERATED = 20_000
"""Maximum number of partitions that are bounded one by one, for placements without a program."""
TOGETHER = 128
"""Partitions that are bounded together between two checkpoints."""
PROGRAM_SHARE = 0.9
"""Share of the first turn for a program; the rest is for the bounds of stages alone."""
FIRST_CEILINGS = (0.1, 0.05)
"""Shares by which the ceiling of the first program exceeds the quick bound, for small and for large
spaces; the share doubles until the minimum bound is below the ceiling. A program with a lower
ceiling is faster, and one without partitions raises the bound to its ceiling. Interleaved
placement with chosen recompute: 1 s at 0.1 and 4 s at 0.7 for deepseek-v3, 7 s at 0.05 and 12 s at
0.1 for internvl2-26b."""
LARGE = 256
"""Layers of the model times mean layers of a stage, above which a space is large: the runs that a
device with two stages may host grow with the square of this product."""
PATIENCE = 0.5
"""Share from which a program first checks whether any partition is within the memory limits."""


def partition_bounds(space: PartitionSpace, partitions: Sequence[Counts]) -> list[int]:
    """Bounds of the schedules of partitions; FOREVER if they exceed the memory limits."""
    bounds = np.zeros(len(partitions), np.int64)
    lengths = np.array([counts[0] for counts in partitions])
    for length in np.unique(lengths):
        same_length = np.flatnonzero(lengths == length)
        bounds[same_length] = _bounds_of_equal_first(
            space, [partitions[index] for index in same_length.tolist()]
        )
    return [int(bound) for bound in bounds]


def _bounds_of_equal_first(space: PartitionSpace, partitions: Sequence[Counts]) -> Ints:
    """Bounds of partitions with the same layers in stage 0."""
    tail = int(first_stage_tail(space, np.array(partitions[0][0])))
    bounds = [
        np.broadcast_to(chosen_bound(space, device, stages).with_tail(tail), len(partitions))
        for device, stages in enumerate(_hosted(space, partitions))
    ]
    return np.asarray(np.max(bounds, axis=0))


def _hosted(space: PartitionSpace, partitions: Sequence[Counts]) -> list[list[Hosted]]:
    """Stages of every device, one entry per partition."""
    highs = np.cumsum(np.array(partitions), axis=1)
    lows = highs - np.array(partitions)
    return with_longest_before(
        space,
        (
            [Hosted(stage, lows[:, stage], highs[:, stage]) for stage in stages]
            for stages in space.hosted
        ),
    )


def every_partition(space: PartitionSpace) -> Iterator[Counts]:
    """All partitions: at least one layer per stage."""
    for cuts in combinations(range(1, space.num_layers), space.num_stages - 1):
        yield tuple(high - low for low, high in pairwise((0, *cuts, space.num_layers)))


def quick_bound(space: PartitionSpace) -> int:
    """Mean work and optimizer time of the devices, by speed, or the round trip of one microbatch.

    The busiest device of every partition has at least the mean work, and the device of stage 0 is
    at both ends of the round trip. The round trip does not bound the device span if layers have no
    backward.
    """
    sums = space.sums
    work = (space.batches_of_work or space.batches) * (
        int(sums.forward[-1]) + _min_backward(space)
    ) + int(sums.optimizer[-1])
    slowness = [space.slowness_of(device) for device in range(space.num_devices)]
    common = lcm(*slowness)
    speed = sum(common // own for own in slowness)
    mean = -(-work * common // speed)
    if space.span and not space.has_all_backwards:
        return mean
    way = int(sums.forward[-1] + sums.gradient_time[-1]) * space.min_slowness
    return max(mean, way + int(space.min_delays.sum()))


def _min_backward(space: PartitionSpace) -> int:
    """Minimum time of a backward of all layers, each with its faster kind."""
    _, partial, weight, times = (space.layers[kind] for kind in TIMES)
    if space.split:
        apart = np.add(partial, weight)
        times = np.minimum(apart, times) if space.whole else apart
    return int(np.sum(times))


class PartitionBounds(ABC):
    """Bounds over all partitions of a space, possibly of a relaxation."""

    @property
    @abstractmethod
    def min_bound(self) -> int:
        """Lower bound of all partitions; FOREVER: none is within the memory limits."""

    def find(self, ceiling: int | None) -> bool:
        """Compute the minimum bound; whether partitions with bounds up to the ceiling are known.

        Another call resumes one that time has ended.
        """
        del ceiling
        return self.min_bound >= 0

    @property
    def above(self) -> int:
        """Value that all bounds exceed, as far as computed."""
        return -1

    @property
    @abstractmethod
    def min_limit(self) -> int:
        """Memory limit per device below which no partition is feasible, in ticks."""

    @abstractmethod
    def most_even(self, share: float) -> Counts | None:
        """The most even partition whose bound exceeds the minimum by at most this share.

        Where a program has the bounds, this one counts no arrivals of microbatches.
        """


class CompleteBounds(PartitionBounds):
    """Bounds of every partition: `min_limit` is that of some partition.

    `min_bound` too, unless the search for it takes too many steps: then it is lower.
    """

    @abstractmethod
    def in_order(self, ceiling: int) -> Iterator[tuple[int, Counts]]:
        """Partitions with bounds up to a ceiling, and these bounds, the smallest first."""


def bounds_of(space: PartitionSpace) -> PartitionBounds:
    """Bounds of a space: by a program, by enumeration, or of every stage alone."""
    pattern = pattern_of(space)
    if pattern is not None:
        return _DpBounds(space, pattern)
    if space.size <= MAX_ENUMERATED:
        return _EnumeratedBounds(space)
    return _PerStageBounds(space)


class ResumableBounding:
    """Bounds of a space that are computed in turns; each turn resumes the last one."""

    def __init__(self, space: PartitionSpace) -> None:
        self._space, self._all = space, bounds_of(space)
        self._alone: _PerStageBounds | None = None
        """Bounds of every stage alone; None: not needed yet."""
        self._too_large = False
        """Whether a program has too many choices: no other program is created."""

    def run(self, ceiling: int | None = None) -> PartitionBounds:
        """Bounds over partitions if a turn suffices for their minimum; else those of stages alone.

        With a ceiling, partitions with bounds above it are useless: programs determine whether
        there are others.
        """
        ended = False
        if not self._too_large:
            with part(PROGRAM_SHARE if self._alone is None else 1):
                ended = self._ended(ceiling)
        if ended:
            return self._all
        self._alone = self._alone or _PerStageBounds(self._space)
        self._alone.raise_above(self._all.above)
        _ = self._alone.min_bound
        return self._alone

    def _ended(self, ceiling: int | None) -> bool:
        """Whether the minimum of all partitions is known and not above the ceiling."""
        try:
            return self._all.find(ceiling)
        except ProgramTooLargeError:
            self._too_large = True
            return False


class _DpBounds(CompleteBounds):
    """Bounds by dynamic programs with growing ceilings, until one has a partition."""

    def __init__(self, space: PartitionSpace, pattern: PlacementPattern) -> None:
        self._space, self._pattern = space, pattern
        self._order: PartitionsInOrder | None = None
        """All partitions with bounds up to a ceiling; None: not started."""
        self._excluded = -1
        """Value that all bounds exceed, by earlier programs."""
        self._share = FIRST_CEILINGS[space.num_layers**2 > LARGE * space.num_stages]
        """Share by which the ceiling of the last program exceeds the quick bound."""

    def find(self, ceiling: int | None) -> bool:
        """Whether some partition is within the ceiling, or none is within the memory limits."""
        highest = FOREVER - 1 if ceiling is None else ceiling
        while self._excluded < highest:
            if self._order is None:
                if ceiling is None and self._share >= PATIENCE and not self._fits:
                    self._excluded = FOREVER - 1
                    break
                self._order = PartitionsInOrder(self._stated(self._next_ceiling(highest)))
            if self._order.min_bound < FOREVER:
                return True
            self._excluded, self._order = self._order.program.ceiling, None
        return self._excluded == FOREVER - 1

    def _next_ceiling(self, highest: int) -> int:
        """Ceiling of the next program, above that of the last one and at most `highest`."""
        quick = max(1, quick_bound(self._space))
        while (ceiling := int(quick * (1 + self._share))) <= self._excluded:
            self._share *= 2
        return min(ceiling, highest)

    @property
    def above(self) -> int:
        order = self._order
        so_far = -1 if order is None else min(order.program.ceiling, order.bound_so_far - 1)
        return max(self._excluded, so_far)

    @property
    def min_bound(self) -> int:
        self.find(None)
        return FOREVER if self._order is None else self._order.min_bound

    @cached_property
    def _fits(self) -> bool:
        """Whether some partition is within the memory limits."""
        limits = self._space.limits
        if limits is None:
            return True
        highest = max(limits)
        figure = BoundFunction(_need_beside_limit, _memory)
        return self._stated(highest, figure).min_bound <= highest

    @cached_property
    def min_limit(self) -> int:
        figure, limit = BoundFunction(_need, _memory), FOREVER
        ceiling = -(-memory_of_all(self._space) // self._space.num_devices)
        while limit == FOREVER:
            ceiling += 1 + ceiling // 4
            limit = self._stated(ceiling, figure).min_bound
        return limit

    def in_order(self, ceiling: int) -> Iterator[tuple[int, Counts]]:
        if self.min_bound == FOREVER:
            return iter(())
        partitions = self._order_up_to(min(ceiling, FOREVER - 1))
        return takewhile(lambda pair: pair[0] <= ceiling, partitions)

    def most_even(self, share: float) -> Counts | None:
        if self.min_bound == FOREVER:
            return None
        ceiling = int(self.min_bound * (1 + share))
        return self._order_up_to(ceiling).program.most_even(ceiling)

    def _order_up_to(self, ceiling: int) -> PartitionsInOrder:
        """All partitions with bounds up to a ceiling."""
        assert self._order is not None
        if self._order.program.ceiling < ceiling:
            self._order = PartitionsInOrder(self._stated(ceiling))
        return self._order

    def _stated(self, ceiling: int, figure: BoundFunction = VALUE) -> PartitionProgram:
        return PartitionProgram(self._space, self._pattern, ceiling, figure)


class _EnumeratedBounds(CompleteBounds):
    """Bounds of partitions, computed one by one."""

    def __init__(self, space: PartitionSpace) -> None:
        self._space = space
        self._bounded: list[tuple[int, Counts]] = []
        """Bounded partitions, with their bounds."""
        self._done = 0
        """Number of batches that are bounded."""

    @cached_property
    def _bounds(self) -> list[tuple[int, Counts]]:
        """Partitions within the limits, the smallest bounds first."""
        for batch in self._batches_from(self._done):
            bounds = _bounds_of_equal_first(self._space, batch).tolist()
            self._bounded += zip(bounds, batch, strict=True)
            self._done += 1
        return sorted(entry for entry in self._bounded if entry[0] < FOREVER)

    def _batches_from(self, first: int) -> Iterator[list[Counts]]:
        """Yield the batches from index `first` on, with checkpoints."""
        for batch in islice(_batches(self._space), first, None):
            checkpoint()
            yield batch

    @property
    def min_bound(self) -> int:
        return self._bounds[0][0] if self._bounds else FOREVER

    @property
    def min_limit(self) -> int:
        return min(int(self._need(batch).min()) for batch in self._batches_from(0))

    def _need(self, partitions: Sequence[Counts]) -> Ints:
        """Maximum over the devices of their minimum memory, per partition."""
        hosted = enumerate(_hosted(self._space, partitions))
        return np.asarray(
            np.max([chosen_memory(self._space, device, stage) for device, stage in hosted], axis=0)
        )

    def in_order(self, ceiling: int) -> Iterator[tuple[int, Counts]]:
        return ((bound, counts) for bound, counts in self._bounds if bound <= ceiling)

    def most_even(self, share: float) -> Counts | None:
        if self.min_bound == FOREVER:
            return None
        close = (counts for _, counts in self.in_order(int(self.min_bound * (1 + share))))
        return min(close, key=lambda counts: sum(n * n for n in counts))


def _batches(space: PartitionSpace) -> Iterator[list[Counts]]:
    """All partitions in batches with the same layers in stage 0."""
    for _, partitions in groupby(every_partition(space), key=lambda counts: counts[0]):
        while batch := list(islice(partitions, TOGETHER)):
            yield batch


class _PerStageBounds(PartitionBounds):
    """The quick bound, and bounds of every stage alone on its own device: a relaxation."""

    def __init__(self, space: PartitionSpace, above: int = -1) -> None:
        """`above`: a value that all bounds are known to exceed."""
        hosts, limits = tuple(range(space.num_stages)), space.limits
        apart = None if limits is None else tuple(limits[device] for device in space.hosts)
        slowness = tuple(map(space.slowness_of, space.hosts))
        alone = replace(space, hosts=hosts, limits=apart, slowness=slowness)
        self._alone = _DpBounds(alone, PlacementPattern.SINGLE)
        self._quick = quick_bound(space)
        self.raise_above(above)

    def raise_above(self, above: int) -> None:
        """Record that all bounds exceed `above`."""
        self._quick = max(self._quick, above + 1)

    @property
    def min_bound(self) -> int:
        return max(self._quick, self._min_bound_alone)

    @cached_property
    def _min_bound_alone(self) -> int:
        """Minimum bound of stages alone; 0 if time was up before it was known."""
        try:
            return self._alone.min_bound
        except TimeoutError:
            return 0

    @property
    def min_limit(self) -> int:
        return self._alone.min_limit

    def most_even(self, share: float) -> Counts | None:
        return self._alone.most_even(share) if self._min_bound_alone else None


def _memory(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    """Static memory of layers, plus the minimum of their activations that F retains."""
    return space.sums.min_memory_of(low, high)


def memory_of_all(space: PartitionSpace) -> int:
    """Minimum memory of all devices together, over all partitions and options of layers."""
    return int(space.sums.min_memory_of(0, space.num_layers))


def _need(
    space: PartitionSpace, device: int, hosted: Sequence[Hosted], ceiling: int
) -> DeviceBound:
    """Minimum memory of a device."""
    del ceiling
    need = chosen_memory(space, device, hosted)
    return DeviceBound(need, need - FOREVER)


def _need_beside_limit(
    space: PartitionSpace, device: int, hosted: Sequence[Hosted], ceiling: int
) -> DeviceBound:
    """Minimum memory of a device plus the difference between the largest limit and its own."""
    del ceiling
    assert space.limits is not None
    need = chosen_memory(space, device, hosted) + max(space.limits) - space.limits[device]
    return DeviceBound(need, need - FOREVER)
