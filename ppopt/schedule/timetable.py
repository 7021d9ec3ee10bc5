"""The times of all operations of a schedule, and its origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import Operation, Operations
from ppopt.schedule.origin import Origin


@dataclass(frozen=True, eq=False)
class Timetable:
    """All operations of a schedule in one table, sorted by resource, start and end.

    The columns `kind`, `stage`, ... are those of the compute of microbatches alone, sorted by
    device, start and end. Nothing is checked: `ppopt.verify` checks whether the operations are a
    schedule of the pipeline.
    """

    pipeline: Pipeline
    operations: Operations
    """The operations of all resources."""
    origin: Origin = field(default_factory=Origin)
    """Its source and the claims about it."""

    def __post_init__(self) -> None:
        if self.operations.pipeline is not self.pipeline:
            operations = replace(self.operations, pipeline=self.pipeline)
            object.__setattr__(self, "operations", operations)

    @cached_property
    def compute(self) -> Operations:
        """The compute of microbatches, sorted by device, start and end."""
        computed = self.operations.computed
        return self.operations if computed.all() else self.operations.where(computed)

    def __len__(self) -> int:
        return len(self.compute)

    @property
    def kind(self) -> Ints:
        """Codes of `OpKind`."""
        return self.compute.kind

    @property
    def stage(self) -> Ints:
        """Stage of every operation."""
        return self.compute.stage

    @property
    def microbatch(self) -> Ints:
        """Microbatch of every operation."""
        return self.compute.microbatch

    @property
    def device(self) -> Ints:
        """Device of every operation."""
        return self.compute.device

    @property
    def start(self) -> Ints:
        """Start of every operation, in ticks."""
        return self.compute.start

    @property
    def end(self) -> Ints:
        """End of every operation, in ticks."""
        return self.compute.end

    @property
    def slice(self) -> Ints:
        """Part of the microbatch."""
        return self.compute.slice

    @property
    def pair(self) -> Ints:
        """Number of the overlapped pair, or ALONE."""
        return self.compute.pair

    @property
    def seconds(self) -> Bools:
        """Whether an operation is the second of its pair, the first being the row before it."""
        return self.compute.seconds

    @property
    def objective(self) -> Objective:
        """Its objective; the makespan if its origin states none."""
        return self.origin.objective or Objective.MAKESPAN

    @property
    def orders(self) -> list[Ints]:
        """For every device, the numbers of its operations in order; see `schedule.orders`."""
        codes = self.compute.numbers
        codes = np.where(self.seconds, ~codes, codes)
        return np.split(
            codes, np.searchsorted(self.device, np.arange(1, self.pipeline.num_devices))
        )

    def rows(self) -> Iterator[Operation]:
        """The compute of microbatches, sorted by device, then start."""
        return self.compute.rows()
