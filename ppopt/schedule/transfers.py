"""Transfers: what devices hand each other, and when, where links are streams."""

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

    def __str__(self) -> str:
        return f"{self.stage}SEND_{self.kind.name}{self.microbatch}"


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers between devices, sorted by link (the pair of devices), then in its order.

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

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
        """All columns, in the order of the fields."""
        return (
            *(self.kind, self.stage, self.microbatch, self.source, self.target),
            *(self.start, self.end),
        )

    def ordered(self) -> Transfers:
        """The same, sorted by link, start and end; those of equal times stay in their order."""
        low, high = np.minimum(self.source, self.target), np.maximum(self.source, self.target)
        place = np.lexsort((self.end, self.start, high, low))
        return Transfers(*(column[place] for column in self.columns))


NO_TRANSFERS = Transfers()
"""Of a schedule whose links are delays."""
