"""Schedules from a repeated building block, squeezed and reordered, over two chunks in a V.

The framework of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362, sections 2 and
3): a block has the slots of one microbatch, all of one length; every microbatch repeats it some
slots later. The lifetime of an activation in the block determines peak memory. Before the blocks
overlap and after they no longer do, slots are free: operations move there as long as the peak stays
("reordering"). Timing then starts every operation as early as possible ("squeezing").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies import weight_filling
from ppopt.strategies.weight_filling import Source

INTERVAL = 6
"""Slots between microbatches: F, B and W of two chunks."""
PASSES = ("F down", "F up", "B down", "B up")
"""Operations of a device for a microbatch, in order: the forward goes down the devices on their
first chunks and up on their second ones, the backward down on the second and up on the first."""
FORWARD = (0, 1)
WEIGHT = len(PASSES)


@dataclass(frozen=True)
class Block:
    """Slots of one microbatch."""

    slots: tuple[tuple[int, ...], ...]
    """First slot of every pass on every device: `slots[device][pass]`."""
    back: int
    """Slots of a backward: 1 for B alone (W goes into free slots), 2 for BW."""


class Passes:
    """Slots of all microbatches, moved towards the front where free slots and memory allow it.

    With split backward, operations before the first backward that ends on device 0 move, and so do
    those after the last new microbatch: first in its own slots, with W; at the end either with W or
    (`yielding`) as if W had no slot. Whole backwards move throughout.
    """

    def __init__(self, block: Block, batches: int, *, yielding: bool = False) -> None:
        self.back, self.batches, self.devices = block.back, batches, len(block.slots)
        repeats = np.arange(batches) * INTERVAL
        self.at = np.array(block.slots, dtype=np.int64).T[:, :, None] + repeats
        """First slot of [pass, device, microbatch]."""
        horizon = int(self.at.max()) + 2 * batches + 2 * block.back
        self.taken = np.zeros((self.devices, horizon), dtype=bool)
        for pass_index in range(WEIGHT):
            for slot in range(self._length(pass_index)):
                self.taken[np.arange(self.devices)[:, None], self.at[pass_index] + slot] = True
        self.weight = self._weights()
        """Slot of the k-th weight pass of a device, [device, k]."""
        self._mark_weights(taken=True)
        self.in_flight = self._chunks_in_flight()
        """Chunks whose activation a device holds after a slot, [device, slot]."""
        self.peak = int(self.in_flight.max())
        if block.back == 2:
            self._move(0, horizon, weights=False)
        else:
            self._move(0, int(self.at[3, 0, 0]), weights=True)
            self._cool_down(yielding=yielding)

    def backbone(self) -> list[list[int]]:
        """Passes of every device but W, in order."""
        sequences = []
        for device in range(self.devices):
            order = np.argsort(self.at[:, device].ravel())
            sequences.append((order // self.batches).tolist())
        return sequences

    def complete(self) -> list[list[int]]:
        """The same with W, oldest backward first, in the free slots (passes 4 and 5)."""
        weight, sequences = self._weights(), []
        for device, row in enumerate(self.backbone()):
            after = [pass_index + 2 for pass_index in row if pass_index not in FORWARD]
            slots = np.concatenate([np.sort(self.at[:, device].ravel()), weight[device]])
            order = np.argsort(slots, kind="stable")
            sequences.append(np.array(row + after)[order].tolist())
        return sequences

    def _length(self, pass_index: int) -> int:
        return 1 if pass_index in (*FORWARD, WEIGHT) else self.back

    def _weights(self) -> Ints:
        """Oldest backward first, each W in the first free slot after its backward."""
        slots = np.empty((self.devices, 2 * self.batches), dtype=np.int64)
        if self.back == 1:
            count = np.arange(2 * self.batches)
            for device in range(self.devices):
                free = np.flatnonzero(~self.taken[device])
                after = np.searchsorted(free, self._backwards(device), side="right")
                slots[device] = free[count + np.maximum.accumulate(after - count)]
        else:
            for device in range(self.devices):
                slots[device] = self._backwards(device) + 1
        return slots

    def _backwards(self, device: int) -> Ints:
        """Slots of a device's backwards, ascending."""
        return np.sort(self.at[2:, device].ravel())

    def _chunks_in_flight(self) -> Ints:
        change = np.zeros(self.taken.shape, dtype=np.int64)
        rows = np.arange(self.devices)[:, None]
        for pass_index in FORWARD:
            change[rows, self.at[pass_index]] += 1
        change[rows, self.weight] -= 1
        return np.cumsum(change, axis=1)

    def _move(self, begin: int, end: int, *, weights: bool) -> None:
        """Move the operations in an interval, by slot."""
        for slot, device, pass_index, index in self._between(begin, end, weights=weights):
            self._advance(slot, device, pass_index, index)

    def _cool_down(self, *, yielding: bool) -> None:
        """Move the operations after the last new microbatch; W moves as well, or yields."""
        if yielding:
            self._mark_weights(taken=False)
        begin = max(int(self.at[3, 0, 0]), int(self.at[0, 0, -1])) + 1
        self._move(begin, self.taken.shape[1], weights=not yielding)
        if not yielding:
            self._mark_weights(taken=False)

    def _mark_weights(self, *, taken: bool) -> None:
        """Mark the slots of W as taken or free if W is separate from B."""
        if self.back == 1:
            self.taken[np.arange(self.devices)[:, None], self.weight] = taken

    def _between(
        self, begin: int, end: int, *, weights: bool
    ) -> Iterator[tuple[int, int, int, int]]:
        """Slot, device, pass and microbatch (or number of W) in an interval, by slot."""
        rows = []
        for pass_index in range(WEIGHT + weights):
            slots = self.weight if pass_index == WEIGHT else self.at[pass_index]
            device, index = np.nonzero((slots >= begin) & (slots < end))
            columns = (slots[device, index], device, np.full_like(device, pass_index), index)
            rows.append(np.stack(columns, axis=1))
        yield from sorted(map(tuple, np.concatenate(rows).tolist()))

    def _advance(self, slot: int, device: int, pass_index: int, index: int) -> None:
        """Move one operation to the first slot that its inputs, free slots and the peak allow."""
        first = self._earliest(device, pass_index, index)
        if pass_index in FORWARD:
            full = np.flatnonzero(self.in_flight[device, first:slot] >= self.peak)
            first += int(full[-1]) + 1 if len(full) else 0
        length = self._length(pass_index)
        self.taken[device, slot : slot + length] = False
        free = ~self.taken[device, first : slot + 1]
        if length == 2:
            free &= ~self.taken[device, first + 1 : slot + 2]
        target = first + int(np.argmax(free))
        self.taken[device, target : target + length] = True
        if pass_index == WEIGHT:
            self.weight[device, index] = target
            self.in_flight[device, target:slot] -= 1
            return
        self.at[pass_index, device, index] = target
        if pass_index in FORWARD:
            self.in_flight[device, target:slot] += 1
        elif self.back == 2:
            self.in_flight[device, target + 1 : slot + 1] -= 1

    def _earliest(self, device: int, pass_index: int, index: int) -> int:
        """First slot after the inputs and after the previous operation of the same pass."""
        if pass_index == WEIGHT:
            ends = [self._backwards(device)[index] + 1]
            ends += [self.weight[device, index - 1] + 1] if index else []
            return int(max(ends))
        at, last = self.at, self.devices - 1
        ends = [at[pass_index, device, index - 1] + self._length(pass_index)] if index else []
        if pass_index % 2 == 0 and device > 0:
            ends.append(at[pass_index, device - 1, index] + self._length(pass_index))
        elif pass_index % 2 == 1 and device < last:
            ends.append(at[pass_index, device + 1, index] + self._length(pass_index))
        elif pass_index > 0:
            ends.append(at[pass_index - 1, device, index] + self._length(pass_index - 1))
        return int(max(ends, default=0))


def split_orders(
    pipeline: Pipeline, block: Block, max_in_flight: int, alternatives: Sequence[Source] = ()
) -> Orders:
    """Orders of a block with split backward: W by the real times, or as in the block.

    The best by device span of the results of two ways to reorder the end of the run, with W filled
    in by every rule of `weight_filling` and with W in the block's own slots. At most
    `max_in_flight` chunks on a device. The complete orders of `alternatives` compete with these.
    """

    def backbone(yielding: bool, instance: Instance) -> list[list[int]]:
        return class_sequences(instance, passes(block, instance.batches, yielding).backbone())

    def complete(yielding: bool, instance: Instance) -> list[list[int]]:
        return class_sequences(instance, passes(block, instance.batches, yielding).complete())

    ways = (False, True)
    return weight_filling.best(
        pipeline,
        backbones=[partial(backbone, way) for way in ways],
        complete=[*(partial(complete, way) for way in ways), *alternatives],
        max_in_flight=max_in_flight,
    )


@lru_cache(maxsize=4)
def passes(block: Block, batches: int, yielding: bool) -> Passes:
    """Cache the last few: they are read several times."""
    return Passes(block, batches, yielding=yielding)


def class_sequences(instance: Instance, passes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Classes of the operations of passes, per device, without those that no stage has.

    Pass 4 is W of B down, pass 5 W of B up.
    """
    sequences = []
    for device, row in enumerate(passes):
        down, up = device, 2 * instance.pipeline.num_devices - 1 - device
        forward = [(OpKind.F, stage) for stage in (down, up)]
        backward = [(instance.backward, stage) for stage in (up, down)]
        weight = [(instance.closing, stage) for stage in (up, down)]
        numbers = [instance.class_id(*key) for key in (*forward, *backward, *weight)]
        sequences.append([numbers[key] for key in row if instance.classes[numbers[key]].size])
    return sequences
