"""The waits of every operation of a schedule, and the chain of waits that explains its end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.instance import ABSENT, Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.schedule.orders import split_backwards
from ppopt.schedule.schedule import Schedule

FREE = -1
"""Marks the absence of an operation."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Start of `after` >= end of `before` + `lag`, by row of all operations of a schedule."""

    schedule: Schedule
    before: Ints
    after: Ints
    lag: Ints
    """In ticks."""

    @cached_property
    def compute_row(self) -> Ints:
        """Row in the schedule of every row of the table; FREE for all but its compute."""
        table = self.schedule.operations
        compute_row = np.full(len(table), FREE)
        compute_row[table.computed] = np.arange(len(self.schedule))
        return compute_row

    @cached_property
    def data(self) -> Bools:
        """Mask of the waits of compute for data, from a link or directly."""
        table = self.schedule.operations
        carried = table.on(ResourceKind.LINK)[self.before]
        computed = self.compute_row[self.before] != FREE
        return np.asarray((self.compute_row[self.after] != FREE) & (computed | carried))

    @cached_property
    def makers(self) -> Ints:
        """Row in the schedule of the compute that produces the data of each wait."""
        table = self.schedule.operations
        maker, sent = np.arange(len(table)), table.on(ResourceKind.LINK)[self.after]
        maker[self.after[sent]] = self.before[sent]
        return np.asarray(self.compute_row[maker[self.before]])


def waits(schedule: Schedule) -> Waits:
    """The waits of the operations of a schedule.

    Raises InputError if an operation of a microbatch is missing.
    """
    table, split = schedule.operations, split_backwards(schedule)
    whole = len(table) > len(schedule)
    instance = Instance.with_backwards(schedule.pipeline, split, all_resources=whole)
    flow = instance.chosen_flow(split)
    row = np.full(instance.num_codes, ABSENT)
    row[table.numbers] = np.arange(len(table))
    before, after = row[flow.before], row[flow.after]
    present = (before != ABSENT) & (after != ABSENT)
    return Waits(schedule, before[present], after[present], flow.lag[present])


def critical_path(schedule: Schedule, flow: Waits | None = None) -> Ints:
    """Rows of a complete schedule along a critical path, first to last.

    From the operation that ends last, back through what each waited for longest: the operation
    before it on its device, or the one whose data arrives last (the device if both end at the same
    time). If every operation starts as early as possible, the chain begins at 0 and has no gaps but
    those of links; otherwise the schedule itself waits between two of its operations.

    The chain leads through operations of all resources. Those that are no compute of a microbatch
    have no row and are left out. `flow` is `waits(schedule)`, if it is known.
    """
    flow = flow or waits(schedule)
    causes = _causes(flow)
    row = int(schedule.operations.end.argmax())
    path = [row]
    while (row := causes[row]) != FREE:
        path.append(row)
    place = flow.compute_row[path[::-1]]
    return np.asarray(place[place != FREE])


def _causes(flow: Waits) -> list[int]:
    """Row of what every operation waits for longest; FREE: nothing.

    Of those that end at one time, the one before it on its resource, then data, then the rest.
    """
    table = flow.schedule.operations
    second = np.flatnonzero(table.seconds)
    previous = _previous(flow)
    queued = np.flatnonzero(previous != FREE)
    before = np.concatenate([flow.before, previous[queued]])
    after = np.concatenate([flow.after, queued])
    lag = np.concatenate([flow.lag, np.zeros_like(queued)])
    rank = np.concatenate([flow.data.astype(np.int64), np.full_like(queued, 2)])
    # a pair waits for what either of its operations waits for
    stands_for = np.arange(len(table))
    stands_for[second] = second - 1
    after = stands_for[after]
    order = np.lexsort((rank, table.end[before] + lag, after))
    cause = np.full(len(table), FREE)
    cause[after[order]] = before[order]
    cause[second] = cause[second - 1]
    return list(cause.tolist())


def _previous(flow: Waits) -> Ints:
    """Row that its resource runs before each row or its pair; FREE before its first."""
    table = flow.schedule.operations
    first = np.append(True, table.resource[1:] != table.resource[:-1])
    before = np.where(first, FREE, np.arange(len(table)) - 1)
    second = np.flatnonzero(table.seconds)
    before[second] = before[second - 1]
    once = table.on(ResourceKind.COMPUTE) & (flow.compute_row == FREE)
    before[once] = FREE
    return before
