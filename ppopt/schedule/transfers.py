"""Transfers: what devices hand each other, and when, where links are resources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


class Transfer(NamedTuple):
    """What a stage hands the next one (kind F, an activation) or the last one (B, a gradient)."""

    kind: OpKind
    stage: int
    """The stage that sends."""
    microbatch: int
    slice: int = 0

    def __str__(self) -> str:
        part = f"s{self.slice}" if self.slice else ""
        return f"{self.stage}SEND_{self.kind.name}{self.microbatch}{part}"


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers between devices, sorted by the two devices, start, end and place in the data flow.

    The columns are arrays of one length; `start` and `end` are in ticks. Their contents are not
    checked: `ppopt.verify` does.
    """

    kind: Ints = field(default_factory=_none)
    """OpKind.F: the activation that a forward hands on; OpKind.B: the gradient of a B or BW."""
    stage: Ints = field(default_factory=_none)
    """The stage that sends."""
    microbatch: Ints = field(default_factory=_none)
    source: Ints = field(default_factory=_none)
    """Device that sends."""
    target: Ints = field(default_factory=_none)
    """Device that receives."""
    start: Ints = field(default_factory=_none)
    end: Ints = field(default_factory=_none)
    slice: Ints = field(default_factory=_none)
    """Part of the microbatch; left out: 0 throughout."""

    def __post_init__(self) -> None:
        if len(self.kind) and not len(self.slice):
            object.__setattr__(self, "slice", np.zeros(len(self.kind), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
        """All columns, in the order of the fields."""
        return (
            *(self.kind, self.stage, self.microbatch, self.source, self.target),
            *(self.start, self.end, self.slice),
        )

    def ordered(self) -> Transfers:
        """The same, sorted by devices, start and end.

        Those of no length that share an instant are put in the order of the data flow, as
        `Schedule.from_columns` puts operations: otherwise both orders could wait in a circle.
        """
        low, high = np.minimum(self.source, self.target), np.maximum(self.source, self.target)
        forward = self.kind == OpKind.F
        stage, part = (np.where(forward, column, -column) for column in (self.stage, self.slice))
        keys = (part, self.microbatch, stage, self.kind, self.end, self.start, high, low)
        place = np.lexsort(keys)
        return Transfers(*(column[place] for column in self.columns))


NO_TRANSFERS = Transfers()
"""Of a schedule whose links are delays."""
