"""Operations besides compute: collectives of a device, its optimizer, and its moves to the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import ONCE, AuxiliaryKind
from ppopt.problem.pipeline import Pipeline


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


class AuxiliaryOp(NamedTuple):
    """An operation of a stage, or of a device, once in a step or for a microbatch."""

    kind: AuxiliaryKind
    stage: int
    """Of an optimizer: the lowest stage of its device."""
    route: int = 0
    microbatch: int = ONCE
    slice: int = 0

    def __str__(self) -> str:
        if self.kind.per_microbatch:
            part = f"s{self.slice}" if self.slice else ""
            return f"{self.stage}{self.kind.name}{self.microbatch}{part}"
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
        """Whether the device computes it; else its collective queue or its host link runs it."""
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
    microbatch: Ints = field(default_factory=_none)
    """Microbatch, or ONCE; left out: ONCE throughout."""
    slice: Ints = field(default_factory=_none)
    """Part of the microbatch; left out: 0 throughout."""

    def __post_init__(self) -> None:
        for name, value in (("route", 0), ("microbatch", ONCE), ("slice", 0)):
            if len(self.kind) and not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.kind), value, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All columns, in the order of the fields."""
        return (
            *(self.kind, self.stage, self.device, self.start, self.end),
            *(self.route, self.microbatch, self.slice),
        )

    @property
    def moves(self) -> Bools:
        """Whether they move memory to the host or back."""
        return np.isin(self.kind, (AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD))

    def where(self, here: Bools) -> AuxiliaryOperations:
        """Those of them of which this holds."""
        return AuxiliaryOperations(*(column[here] for column in self.columns))

    def rows(self) -> Iterator[ScheduledAuxiliary]:
        """The operations, in their order."""
        lists = (column.tolist() for column in self.columns)
        for kind, stage, device, start, end, *place in zip(*lists, strict=True):
            op = AuxiliaryOp(AuxiliaryKind(kind), stage, *place)
            yield ScheduledAuxiliary(op, device, start, end)

    def ordered(self) -> AuxiliaryOperations:
        """The same, sorted by device, start, end; those of equal times stay in their order."""
        place = np.lexsort((self.end, self.start, self.device))
        return AuxiliaryOperations(*(column[place] for column in self.columns))


NO_AUXILIARY = AuxiliaryOperations()
"""Of a pipeline that has none."""


def auxiliary_numbers(pipeline: Pipeline, given: AuxiliaryOperations) -> Ints:
    """Numbers of auxiliary operations; of a step those of the first microbatch of their route."""
    first = given.route * (pipeline.batches // pipeline.routes)
    microbatch = np.where(given.microbatch == ONCE, first, given.microbatch)
    return np.asarray(pipeline.code(given.kind, given.stage, microbatch, given.slice))
