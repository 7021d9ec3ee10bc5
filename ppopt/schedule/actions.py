"""Actions: the computations and communications of a device, in the order of PyTorch's runtime.

A communication order has a row of cells for every device. A cell is one action, or the two
operations of an overlapped pair. Actions other than operations:

    SEND_F, RECV_F          of an activation; SEND of stage s and RECV of stage s + 1 are its ends
    SEND_B, RECV_B          of a gradient; SEND of stage s and RECV of stage s - 1
    UNSHARD, RESHARD        of a stage's sharded weights (FSDP); they take no time here
    REDUCE_GRAD             of a stage's gradients, over its replicas; the same
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ActionKind(StrEnum):
    """Kind of an action: the name of its `OpKind`, or PyTorch's name."""

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"


OPERATIONS = frozenset((ActionKind.F, ActionKind.B, ActionKind.W, ActionKind.BW))
"""Actions that are operations."""
POSTS = frozenset(
    (ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B),
)
"""Actions that are one end of a transfer."""
OF_STAGE = frozenset((ActionKind.UNSHARD, ActionKind.RESHARD, ActionKind.REDUCE_GRAD))
"""Actions of a stage, not of a microbatch."""


class Action(NamedTuple):
    """One action."""

    kind: ActionKind
    stage: int
    microbatch: int | None = None
    """None for actions of a stage."""

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"


Cell = tuple[Action, ...]
"""One action, or the F and the B or BW of an overlapped pair."""
ActionRow = tuple[Cell, ...]
"""The cells of a device, in order."""
