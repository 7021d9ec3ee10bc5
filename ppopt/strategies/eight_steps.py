"""The eight steps that DualPipe and DualPipe-V share.

Names follow DeepSeek's own (github.com/deepseek-ai/DualPipe, dualpipe.py and dualpipev.py): 0 and 1
are the phases, that is the two streams of microbatches which meet on a device; "nF0B1F1B0" stands
for n times F of phase 0 with the backward of phase 1, run as one, and then F of phase 1 with the
backward of phase 0.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline


class Phase(NamedTuple):
    """One stream of microbatches through a device: their stage there, the microbatches in order."""

    stage: int
    microbatch: Ints


def order(pipeline: Pipeline, phases: tuple[Phase, Phase], rank: int, ranks: int) -> Ints:
    """Order of a device at place `rank` of `ranks`, the last being where the phases meet.

    Each phase has at least 2 `ranks` microbatches.
    """
    run = _Device(pipeline, phases)
    batches, ahead = len(phases[0].microbatch), ranks - rank - 1
    _fill(run, rank, ahead)
    _overlap(run, batches - 2 * ranks + rank + 1, ahead, meet=ahead == 0)
    _drain(run, rank, ahead)
    return np.array(run.order, dtype=np.int64)


def _fill(run: _Device, rank: int, ahead: int) -> None:
    """Steps 1 (nF0), 2 (nF0F1) and 3 (nB1W1F1)."""
    for _ in range(2 * ahead):
        run.forward(0)
    for _ in range(rank + 1):
        run.forward(0)
        run.forward(1)
    for _ in range(ahead):
        run.backward(1, split=True)
        run.weight()
        run.forward(1)


def _overlap(run: _Device, count: int, ahead: int, *, meet: bool) -> None:
    """Steps 4 (nF0B1F1B0) and 5 (nB1F1B0); where phases meet, the first F0 and B1 stay apart."""
    for number in range(count):
        if number == 0 and meet:
            run.forward(0)
            run.backward(1)
        else:
            run.both(0, 1)
        run.both(1, 0)
    for _ in range(ahead):
        run.backward(1)
        run.both(1, 0)


def _drain(run: _Device, rank: int, ahead: int) -> None:
    """Steps 6 (nB1B0, its second half split), 7 (nWB0) and 8 (nW)."""
    for number in range(2 * (rank + 1)):
        run.backward(1 - number % 2, split=number > rank)
    for _ in range(ahead):
        run.weight()
        run.backward(0, split=True)
    for _ in range(rank + 1):
        run.weight()


class _Device:
    """The order of one device as it is written."""

    def __init__(self, pipeline: Pipeline, phases: tuple[Phase, Phase]) -> None:
        self.order: list[int] = []
        self._pipeline, self._phases = pipeline, phases
        self._done = {kind: [0, 0] for kind in (OpKind.F, OpKind.BW)}
        self._owed: deque[tuple[int, int]] = deque()

    def forward(self, phase: int) -> None:
        """Run the next F of a phase."""
        self.order.append(self._code(OpKind.F, *self._next(OpKind.F, phase)))

    def backward(self, phase: int, *, split: bool = False) -> None:
        """Run the next BW of a phase, or its B, which leaves W for later."""
        place = self._next(OpKind.BW, phase)
        self.order.append(self._code(OpKind.B if split else OpKind.BW, *place))
        if split:
            self._owed.append(place)

    def weight(self) -> None:
        """Run the oldest W that is left."""
        self.order.append(self._code(OpKind.W, *self._owed.popleft()))

    def both(self, forward: int, backward: int) -> None:
        """Run the next F of one phase and the next BW of the other as one."""
        self.forward(forward)
        self.order.append(~self._code(OpKind.BW, *self._next(OpKind.BW, backward)))

    def _next(self, kind: OpKind, phase: int) -> tuple[int, int]:
        number = self._done[kind][phase]
        self._done[kind][phase] += 1
        return self._phases[phase].stage, int(self._phases[phase].microbatch[number])

    def _code(self, kind: OpKind, stage: int, microbatch: int) -> int:
        return int(self._pipeline.code(kind, stage, microbatch))
