"""The parts of an instance: classes of operations with modes, precedence and allocations.

The terms are those of the multi-mode resource-constrained project scheduling problem (Talbot,
Management Science 28, 1982), as in PyJobShop's `Task`, `Mode` and `Resource`. All operations of a
class are equal, and a class has one operation per microbatch, or a single one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import RECORDS, Kind, Per


class Criterion(Enum):
    """Criterion by which a free link chooses among waiting transfers; the smallest value first."""

    ARRIVAL = "arrival"
    """When its data exists."""
    NEED = "need"
    """When its receiver starts if links are delays."""
    MICROBATCH = "microbatch"


DispatchRule = tuple[Criterion, ...]
"""Criteria of a dispatching rule, each of which breaks the ties of those before it; the last tie is
broken by the number of the operation."""


class Mode(NamedTuple):
    """One way to run an operation."""

    kind: Kind
    duration: int
    """In ticks."""
    allocates: int = 0
    """Memory allocated at the start, in ticks of memory."""
    frees: int = 0
    """Memory freed at the end, in ticks of memory."""
    pair_workspace: int = 0
    """Memory that an operation of zero duration also allocates and frees if it is in a pair, which
    has a duration; in ticks of memory."""

    @property
    def change(self) -> int:
        """Net change of memory."""
        return self.allocates - self.frees


class OperationClass(NamedTuple):
    """Operations of one stage, route and slice, and of one kind, or of two to choose from."""

    stage: int
    route: int
    slice: int
    resource: int
    """Number of the resource that runs them; of compute, that of the device."""
    modes: tuple[Mode | None, ...]
    """Ways to run one of them; None: it is absent, as is the W of a whole backward. Classes of one
    stage, route and slice that have several modes choose together, for every microbatch: modes
    at the same index belong together."""
    size: int
    """Number of operations: one per microbatch of the route, or 1; 0 if the stage has none of this
    kind, as a frozen stage has no W. All modes are then None."""
    by_microbatch: tuple[tuple[Mode, ...], ...] = ()
    """If microbatches differ, the modes of every one, in the order of `modes`; these then have the
    minimum duration and memory of all microbatches. A mode that is None has no entries."""

    @property
    def modes_by_option(self) -> tuple[Mode | None, Mode | None]:
        """The modes if backwards are split, and if they are whole."""
        return self.modes[0], self.modes[-1]

    @property
    def kind(self) -> Kind | None:
        """Kind in the first mode; None if the class has no operations."""
        return self.modes[0].kind if self.modes[0] else None

    @property
    def per_microbatch(self) -> bool:
        """Whether every microbatch has one of its operations; else a step has one."""
        return self.kind is None or RECORDS[self.kind].per is Per.MICROBATCH

    @property
    def duration(self) -> int:
        """Time in the first mode, in ticks."""
        return self.modes[0].duration if self.modes[0] else 0

    @property
    def allocates(self) -> int:
        """Memory allocated at the start in the first mode, in ticks of memory."""
        return self.modes[0].allocates if self.modes[0] else 0

    @property
    def frees(self) -> int:
        """Memory freed at the end in the first mode, in ticks of memory."""
        return self.modes[0].frees if self.modes[0] else 0

    @property
    def change(self) -> int:
        """Net change of memory in the first mode."""
        return self.modes[0].change if self.modes[0] else 0


class Precedence(NamedTuple):
    """Start of `after` >= end of `before` + `lag`, for every microbatch.

    Between a class of one operation and one of many it holds for all pairs.
    """

    before: int
    """Number of a class."""
    after: int
    lag: int
    """In ticks."""


class Allocation(NamedTuple):
    """Memory that is live from the start of one operation to the end of another."""

    allocated_by: int
    """Operation, or class of operations, that allocates it."""
    freed_by: int
    """Operation, or class of operations, that frees it."""
    amount: int
    """In ticks of memory."""


class ClassAllocation(NamedTuple):
    """Memory that is live from the start of a class's operations to the end of another's."""

    allocated_by: int
    """Class that allocates it."""
    freed_by: int
    """Class that frees it."""
    amounts: tuple[int, ...]
    """By microbatch of the route, in ticks of memory."""


class Constraints(NamedTuple):
    """start[after[i]] >= end[before[i]] + lag[i], lag in ticks."""

    before: Ints
    after: Ints
    lag: Ints
