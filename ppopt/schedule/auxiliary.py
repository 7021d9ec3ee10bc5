"""Operations besides the compute of microbatches: collectives of a device, and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import AuxiliaryKind


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


class AuxiliaryOp(NamedTuple):
    """An operation of a stage, or of a device, once in a step."""

    kind: AuxiliaryKind
    stage: int
    """Of an optimizer: the lowest stage of its device."""
    route: int = 0

    def __str__(self) -> str:
        route = f"r{self.route}" if self.route else ""
        return f"{self.stage}{self.kind.name}{route}"


class ScheduledAuxiliary(NamedTuple):
    """An auxiliary operation of a schedule, in ticks."""

    op: AuxiliaryOp
    device: int
    start: int
    end: int

    @property
    def on_compute(self) -> bool:
        """Whether the device computes it; else its collective queue runs it."""
        return self.op.kind is AuxiliaryKind.OPTIMIZER


@dataclass(frozen=True, eq=False)
class AuxiliaryOperations:
    """Auxiliary operations, sorted by device, then start and end.

    The columns are arrays of one length; `start` and `end` are in ticks. Their contents are not
    checked: `ppopt.verify` does.
    """

    kind: Ints = field(default_factory=_none)
    """Codes of `AuxiliaryKind`."""
    stage: Ints = field(default_factory=_none)
    """The stage; of an optimizer, the lowest stage of its device."""
    device: Ints = field(default_factory=_none)
    start: Ints = field(default_factory=_none)
    end: Ints = field(default_factory=_none)
    route: Ints = field(default_factory=_none)
    """Route of the stage; left out: 0 throughout."""

    def __post_init__(self) -> None:
        if len(self.kind) and not len(self.route):
            object.__setattr__(self, "route", np.zeros(len(self.kind), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """All columns, in the order of the fields."""
        return self.kind, self.stage, self.device, self.start, self.end, self.route

    def rows(self) -> Iterator[ScheduledAuxiliary]:
        """The operations, in their order."""
        lists = (column.tolist() for column in self.columns)
        for kind, stage, device, start, end, route in zip(*lists, strict=True):
            op = AuxiliaryOp(AuxiliaryKind(kind), stage, route)
            yield ScheduledAuxiliary(op, device, start, end)

    def ordered(self) -> AuxiliaryOperations:
        """The same, sorted by device, start, end; those of equal times stay in their order."""
        place = np.lexsort((self.end, self.start, self.device))
        return AuxiliaryOperations(*(column[place] for column in self.columns))


NO_AUXILIARY = AuxiliaryOperations()
"""Of a pipeline that has none."""
