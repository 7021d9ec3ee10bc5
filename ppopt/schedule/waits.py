"""What every operation of a schedule waits for, as rows of its table of operations."""

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
"""Stands for no operation."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Start of `after` >= end of `before` + `lag`, by row of all operations of a schedule."""

    schedule: Schedule
    before: Ints
    after: Ints
    lag: Ints
    """In ticks."""

    @cached_property
    def place(self) -> Ints:
        """Row in the schedule of every row of the table; FREE for what is no compute of one."""
        table = self.schedule.operations
        place = np.full(len(table), FREE)
        place[table.computed] = np.arange(len(self.schedule))
        return place

    @cached_property
    def data(self) -> Bools:
        """Which of them are of data that compute of a microbatch gets, from a link or directly."""
        table = self.schedule.operations
        carried = table.on(ResourceKind.LINK)[self.before]
        computed = self.place[self.before] != FREE
        return np.asarray((self.place[self.after] != FREE) & (computed | carried))

    @cached_property
    def makers(self) -> Ints:
        """Row in the schedule of the compute that makes what each hands on."""
        table = self.schedule.operations
        maker, sent = np.arange(len(table)), table.on(ResourceKind.LINK)[self.after]
        maker[self.after[sent]] = self.before[sent]
        return np.asarray(self.place[maker[self.before]])


def waits(schedule: Schedule) -> Waits:
    """What the operations of a schedule wait for.

    Raises InputError if an operation of a microbatch is missing.
    """
    table, split = schedule.operations, split_backwards(schedule)
    whole = len(table) > len(schedule)
    instance = Instance.with_backwards(schedule.pipeline, split, all_resources=whole)
    flow = instance.chosen_flow(split)
    row = np.full(instance.num_codes, ABSENT)
    row[table.numbers] = np.arange(len(table))
    before, after = row[flow.before], row[flow.after]
    there = (before != ABSENT) & (after != ABSENT)
    return Waits(schedule, before[there], after[there], flow.lag[there])
