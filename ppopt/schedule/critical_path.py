"""The critical path: a chain of operations that explains the makespan."""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.schedule.idle import FREE, Arrivals, arrivals
from ppopt.schedule.schedule import Schedule


def critical_path(schedule: Schedule, arrived: Arrivals | None = None) -> Ints:
    """Rows of a complete schedule along a critical path, first to last.

    From the operation that ends last, back through what each waited for longest: the operation
    before it on its device, or the one whose data arrive last (the device where both end at one
    time). Where every operation starts as early as it can, the chain begins at 0 and leaves out no
    time but transfers; elsewhere the schedule itself waits between two of its operations.
    """
    arrived = arrived or arrivals(schedule)
    before = _before(schedule)
    free = np.where(before == FREE, FREE, schedule.end[before])
    needed = np.where(arrived.needed == FREE, FREE, arrived.ready)
    cause = np.where(free >= needed, before, arrived.needed).tolist()
    row = int(schedule.end.argmax())
    path = [row]
    while (row := cause[row]) != FREE:
        path.append(row)
    return np.array(path[::-1])


def _before(schedule: Schedule) -> Ints:
    """Row that the device runs before each row or its pair; FREE before its first."""
    first = np.append(True, schedule.device[1:] != schedule.device[:-1])
    before = np.where(first, FREE, np.arange(len(schedule)) - 1)
    second = np.flatnonzero(schedule.seconds)
    before[second] = before[second - 1]
    return before
