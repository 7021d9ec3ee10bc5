"""Operations: their kinds, and how an operation is written."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from ppopt.errors import InputError


class OpKind(IntEnum):
    """Kind of an operation; the integer is its code in arrays, the name its code in files."""

    F = 0
    """Forward."""
    B = 1
    """Backward with respect to the input (activation gradient)."""
    W = 2
    """Backward with respect to the weights."""
    BW = 3
    """Full backward: B and W in one operation."""


NUM_KINDS = len(OpKind)


class TransferKind(IntEnum):
    """Kind of a transfer between two devices; the integers go on after those of `OpKind`."""

    SEND_F = NUM_KINDS
    """The activation that an F sends to the next stage."""
    SEND_B = NUM_KINDS + 1
    """The gradient that a B or BW sends to the previous stage."""


class AuxiliaryKind(IntEnum):
    """Kind of an operation other than compute and transfers; the integers continue those."""

    UNSHARD = NUM_KINDS + len(TransferKind)
    """The all-gather of a stage's weights."""
    GRADIENT_SYNC = UNSHARD + 1
    """The reduction of a stage's gradients."""
    OPTIMIZER = UNSHARD + 2
    """The optimizer step of a device."""
    OFFLOAD = UNSHARD + 3
    """The move of a microbatch's activation to the host, after its F."""
    RELOAD = UNSHARD + 4
    """The move back, before its B or BW."""


ONCE = -1
"""Microbatch of an operation that a step has once."""
KINDS = NUM_KINDS + len(TransferKind) + len(AuxiliaryKind)
"""Number of kinds."""
_PATTERN = re.compile(
    r"(?P<stage>0|[1-9]\d*)(?P<kind>BW|F|B|W)(?P<microbatch>0|[1-9]\d*)(s(?P<slice>[1-9]\d*))?",
    re.ASCII,
)


class Op(NamedTuple):
    """One operation: `str(op)` is `<stage><kind><microbatch>`, such as `0F3` or `12BW0`.

    Slices of a microbatch beyond the first carry their number: `0F3s1`.
    """

    kind: OpKind
    stage: int
    microbatch: int
    slice: int = 0

    def __str__(self) -> str:
        part = f"s{self.slice}" if self.slice else ""
        return f"{self.stage}{self.kind.name}{self.microbatch}{part}"


def parse(text: str) -> Op:
    """Read an operation written by `str(op)`; raises InputError on anything else."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise InputError(f"not an operation: {text!r}; write <stage><kind><microbatch>, like 0F3")
    numbers = (int(match[name] or 0) for name in ("stage", "microbatch", "slice"))
    return Op(OpKind[match["kind"]], *numbers)
