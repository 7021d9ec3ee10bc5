"""What a measured run consists of."""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.operation import Op, OpKind


class Record(NamedTuple):
    """One operation as it ran; times in nanoseconds of one clock for all devices."""

    kind: OpKind
    stage: int
    microbatch: int
    device: int
    start: int
    end: int
    step: int = 0
    """Training step, counted from 0."""

    @property
    def op(self) -> Op:
        """The operation without its place and time."""
        return Op(self.kind, self.stage, self.microbatch)
