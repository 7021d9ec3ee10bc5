"""DualPipe: microbatches from both ends of the pipeline; and DualPipe-V, which is half of it.

They share eight steps. Names follow DeepSeek's own (github.com/deepseek-ai/DualPipe, dualpipe.py
and dualpipev.py): 0 and 1 are the phases, that is the two streams of microbatches which meet on a
device; "nF0B1F1B0" means n times F of phase 0 with the backward of phase 1, run as one, and then F
of phase 1 with the backward of phase 0.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register


@register(
    name="dualpipe",
    summary="both directions at once, F and BW run as one (--overlap-times); two copies",
    source="DeepSeek-V3, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe",
    routes=2,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """The eight steps of DualPipe; phase 0 enters at a device's own half of the pipeline.

    With O the time of an F and a BW as one, equal stages and no delay, the largest idle time of a
    device is (p/2 - 1)(O + BW - 3 W) (DeepSeek-V3, arXiv 2412.19437, table 2): exactly so where
    F = B, less where B is longer. No device holds more than p + 1 activations, and static memory
    is there twice. Raises NotApplicableError unless the number of devices p is even
    and there are at least 2p microbatches.
    """
    devices, share = pipeline.num_devices, pipeline.batches // 2
    if devices % 2:
        raise NotApplicableError(
            f"stages: {devices} devices are odd; strategy dualpipe needs an even number, whose "
            "halves mirror each other"
        )
    if pipeline.batches < 2 * devices:
        raise NotApplicableError(
            f"batches: {pipeline.batches} do not fill strategy dualpipe on {devices} devices; "
            f"give at least {2 * devices}"
        )
    orders = []
    for device in range(devices):
        phases = [
            MicrobatchStream(stage, route * share + np.arange(share))
            for route, stage in enumerate((device, devices - 1 - device))
        ]
        own, opposite = phases if device < devices // 2 else phases[::-1]
        rank = min(device, devices - 1 - device)
        orders.append(order(pipeline, (own, opposite), rank, devices // 2))
    return orders


@register(
    name="dualpipe-v",
    summary="DualPipe cut in half: one copy of the model in V placement (--overlap-times)",
    source="github.com/deepseek-ai/DualPipe (dualpipev.py), after arXiv 2412.19437",
    placement="v",
    chunks=2,
    pytorch_name="DualPipeV",
)
def build_v(pipeline: Pipeline, _: Options) -> Orders:
    """The eight steps of DualPipe; phase 0 is a device's stage on the way down, phase 1 the other.

    DualPipe on 2p devices does the same on both halves; one of them does for a V of p devices.
    With F = B, W and O the times of a chunk, equal stages and no delay, the largest idle time of a
    device is (p - 1)(O + BW - 3 W); no device holds more than 2p + 1 chunks. Raises
    NotApplicableError if there are fewer than 2p microbatches.
    """
    devices = pipeline.num_devices
    if pipeline.batches < 2 * devices:
        raise NotApplicableError(
            f"batches: {pipeline.batches} do not fill strategy dualpipe-v on {devices} devices; "
            f"give at least {2 * devices}"
        )
    microbatch = np.arange(pipeline.batches)
    return [
        order(
            pipeline,
            (
                MicrobatchStream(device, microbatch),
                MicrobatchStream(2 * devices - 1 - device, microbatch),
            ),
            device,
            devices,
        )
        for device in range(devices)
    ]


class MicrobatchStream(NamedTuple):
    """One stream of microbatches through a device: their stage there, the microbatches in order."""

    stage: int
    microbatch: Ints


def order(
    pipeline: Pipeline, phases: tuple[MicrobatchStream, MicrobatchStream], rank: int, ranks: int
) -> Ints:
    """Order of a device at position `rank` of `ranks`; the phases meet at the last one.

    Each phase has at least 2 `ranks` microbatches.
    """
    run = _OrderWriter(pipeline, phases)
    batches, ahead = len(phases[0].microbatch), ranks - rank - 1
    _fill(run, rank, ahead)
    _overlap(run, batches - 2 * ranks + rank + 1, ahead, meet=ahead == 0)
    _drain(run, rank, ahead)
    return np.array(run.order, dtype=np.int64)


def _fill(run: _OrderWriter, rank: int, ahead: int) -> None:
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


def _overlap(run: _OrderWriter, count: int, ahead: int, *, meet: bool) -> None:
    """Steps 4 (nF0B1F1B0) and 5 (nB1F1B0); where phases meet, the first F0 and B1 stay apart."""
    for step in range(count):
        if step == 0 and meet:
            run.forward(0)
            run.backward(1)
        else:
            run.both(0, 1)
        run.both(1, 0)
    for _ in range(ahead):
        run.backward(1)
        run.both(1, 0)


def _drain(run: _OrderWriter, rank: int, ahead: int) -> None:
    """Steps 6 (nB1B0, its second half split), 7 (nWB0) and 8 (nW)."""
    for step in range(2 * (rank + 1)):
        run.backward(1 - step % 2, split=step > rank)
    for _ in range(ahead):
        run.weight()
        run.backward(0, split=True)
    for _ in range(rank + 1):
        run.weight()


class _OrderWriter:
    """Writes the order of one device."""

    def __init__(
        self, pipeline: Pipeline, phases: tuple[MicrobatchStream, MicrobatchStream]
    ) -> None:
        self.order: list[int] = []
        self._pipeline, self._phases = pipeline, phases
        self._done = {kind: [0, 0] for kind in (OpKind.F, OpKind.BW)}
        self._pending_weights: deque[tuple[int, int]] = deque()

    def forward(self, phase: int) -> None:
        """Run the next F of a phase."""
        self.order.append(self._code(OpKind.F, *self._next(OpKind.F, phase)))

    def backward(self, phase: int, *, split: bool = False) -> None:
        """Run the next BW of a phase, or its B, which leaves W for later."""
        operation = self._next(OpKind.BW, phase)
        self.order.append(self._code(OpKind.B if split else OpKind.BW, *operation))
        if split:
            self._pending_weights.append(operation)

    def weight(self) -> None:
        """Run the oldest W that is left."""
        self.order.append(self._code(OpKind.W, *self._pending_weights.popleft()))

    def both(self, forward: int, backward: int) -> None:
        """Run the next F of one phase and the next BW of the other as one."""
        self.forward(forward)
        self.order.append(~self._code(OpKind.BW, *self._next(OpKind.BW, backward)))

    def _next(self, kind: OpKind, phase: int) -> tuple[int, int]:
        index = self._done[kind][phase]
        self._done[kind][phase] += 1
        return self._phases[phase].stage, int(self._phases[phase].microbatch[index])

    def _code(self, kind: OpKind, stage: int, microbatch: int) -> int:
        return int(self._pipeline.code(kind, stage, microbatch))
