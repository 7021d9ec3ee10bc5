"""The arrays of a schedule: when every operation runs, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.auxiliary import NO_AUXILIARY, AuxiliaryOperations
from ppopt.schedule.origin import Origin
from ppopt.schedule.transfers import NO_TRANSFERS, Transfers

ALONE = -1
"""Pair number of an operation that runs alone."""


class ScheduledOperation(NamedTuple):
    """One operation of a schedule, in ticks."""

    kind: OpKind
    stage: int
    microbatch: int
    device: int
    start: int
    end: int
    slice: int = 0
    pair: int = ALONE

    @property
    def op(self) -> Op:
        """The operation without its place and time."""
        return Op(self.kind, self.stage, self.microbatch, self.slice)


def _not_given() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Timetable:
    """Operations with start and end, sorted by device, then start, then end.

    The columns are arrays of one length n (operations): `kind` codes of OpKind, `stage`,
    `microbatch`, `slice`, `device` numbers from 0, `start` and `end` in ticks. The two operations
    of an overlapped pair have one start, one end and one number `pair`, those that run alone have
    ALONE. The contents are not checked: `ppopt.verify` checks whether they are a schedule of the
    pipeline.
    """

    pipeline: Pipeline
    kind: Ints
    stage: Ints
    microbatch: Ints
    device: Ints
    start: Ints
    end: Ints
    slice: Ints = field(default_factory=_not_given)
    """Part of the microbatch; left out: 0 throughout."""
    pair: Ints = field(default_factory=_not_given)
    """Number of the overlapped pair; left out: ALONE throughout."""
    origin: Origin = field(default_factory=Origin)
    """What made it and what is claimed of it."""
    transfers: Transfers = NO_TRANSFERS
    """What links carry, and when, if they are resources."""
    auxiliary: AuxiliaryOperations = NO_AUXILIARY
    """What devices run besides the compute of microbatches, and when."""

    def __post_init__(self) -> None:
        for name, value in (("slice", 0), ("pair", ALONE)):
            if len(self.kind) and not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.kind), value, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def objective(self) -> Objective:
        """The objective it was made for; the makespan where its origin states none."""
        return self.origin.objective or Objective.MAKESPAN

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """The first six columns in the order of `ScheduledOperation`."""
        return self.kind, self.stage, self.microbatch, self.device, self.start, self.end

    @property
    def orders(self) -> list[Ints]:
        """For every device, the numbers of its operations in order; see `schedule.orders`."""
        codes = self.pipeline.code(self.kind, self.stage, self.microbatch, self.slice)
        codes = np.where(self.seconds, ~codes, codes)
        return np.split(
            codes, np.searchsorted(self.device, np.arange(1, self.pipeline.num_devices))
        )

    @property
    def seconds(self) -> Bools:
        """Whether an operation is the second of its pair, the first being the row before it."""
        same = (self.pair[1:] == self.pair[:-1]) & (self.pair[1:] != ALONE)
        return np.append(False, same)[: len(self)]

    def rows(self) -> Iterator[ScheduledOperation]:
        """The operations, sorted by device, then start."""
        lists = (column.tolist() for column in (*self.columns, self.slice, self.pair))
        for kind, *rest in zip(*lists, strict=True):
            yield ScheduledOperation(OpKind(kind), *rest)
