"""States of the dynamic program, as columns of one matrix, and their extension by one operation.

A state is a partial schedule. Its rows are: the count of every class; one row of flags; per device,
the earliest start of its next operation; per precedence, the earliest starts of the operations that
it enables; and a lower bound on the makespan.

Active schedules suffice (Giffler and Thompson, "Algorithms for solving production-scheduling
problems", Operations Research 8, 1960): consider the eligible operation that ends first. The next
operation of its device is one that can start before that end.

Memory needs an additional branch. If several classes of a device allocate memory, an operation that
runs early may use the memory that another one needs. If the operation that ends first retains
memory, branch: run it next, or set a flag that it must not be next. If it retains none, running it
next loses nothing, even with a workspace: the other operations have the same headroom as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.solver.dynamic_programming.classes import Classes

Matrix = npt.NDArray[np.signedinteger]
Item = TypeVar("Item")
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
WIDE = 4096
"""Number of states from which there is a checkpoint for every class."""


class Extensions(NamedTuple):
    """States extended by one operation."""

    states: Matrix
    parent: Indices
    """Column of the state that each extends."""
    added: npt.NDArray[np.int16]
    """Class of the added operation."""


class States:
    """Layout of the matrices of a dynamic program, and operations on them."""

    def __init__(self, classes: Classes, below: int) -> None:
        """Lay out the rows for schedules of less than `below` ticks."""
        self.classes = classes
        reach = below + int(classes.remaining.max(initial=0)) + max(classes.first)
        narrow = 4 * reach < 2**31
        self.dtype: np.dtype[np.signedinteger] = np.dtype(np.int32 if narrow else np.int64)
        self.never = 2**30 if narrow else 2**62
        size = len(classes)
        self.counts = slice(0, size)
        self.flags = size
        self.free = size + 1
        self.base: list[int] = []
        row = self.free + len(classes.hosts)
        for precedence in classes.precedences:
            self.base.append(row)
            row += precedence.width
        self.bound_row = row
        self.rows = row + 1
        self.times = slice(self.free, self.rows)
        self.duration = np.array(classes.duration, dtype=self.dtype)
        self.host = np.array(classes.device)
        self.remaining = np.minimum(classes.remaining, self.never // 2).astype(self.dtype)
        self.tail = classes.tail.astype(self.dtype)
        self.changes = [change * (headroom is not None) for _, change, headroom in classes.memory]
        self.on = [np.flatnonzero(self.host == host) for host in range(len(classes.hosts))]
        self.on_device = [
            (self.host == host).astype(np.int64) for host in range(len(classes.hosts))
        ]
        self.work = [
            self.duration[device_classes].sum() * classes.batches for device_classes in self.on
        ]
        self.bit = {index: bit for bit, index in enumerate(classes.sharing)}
        """Index of the flag of every class that has one."""

    def root(self) -> Matrix:
        """State in which no operation is scheduled."""
        state = np.zeros((self.rows, 1), dtype=self.dtype)
        for device, first in enumerate(self.classes.first):
            state[self.free + device] = first
        return state

    @staticmethod
    def _each(items: Iterable[Item], states: Matrix) -> Iterator[Item]:
        """Yield the items of a loop over columns, with checkpoints."""
        for item in items:
            if states.shape[1] >= WIDE:
                checkpoint()
            yield item

    def _sum(self, states: Matrix, weights: Ints) -> Matrix:
        """Sum over the classes of count times weight, per state."""
        total = np.zeros(states.shape[1], dtype=np.int64)
        for index in np.flatnonzero(weights).tolist():
            total += weights[index] * states[index]
        return total

    def starts(self, states: Matrix) -> Matrix:
        """Earliest start of the next operation of every class; `never` if it is not eligible."""
        classes = self.classes
        starts = np.empty((len(classes), states.shape[1]), dtype=self.dtype)
        used = [self._sum(states, change) for change in self.changes]
        for index, device in self._each(enumerate(classes.device), states):
            done = states[index]
            may = done < classes.batches
            for needed in classes.needs[index]:
                may &= states[needed] > done
            start = states[self.free + device]
            for precedence_id in classes.into[index]:
                may &= states[classes.precedences[precedence_id].before] > done
                start = np.maximum(start, states[self.base[precedence_id]])
            allocates, _, headroom = classes.memory[device]
            if headroom is not None and allocates[index] > 0:
                may &= used[device] + allocates[index] <= headroom
            if index in self.bit:
                may &= states[self.flags] >> self.bit[index] & 1 == 0
            starts[index] = np.where(may, start, self.never)
        return starts

    def normalise(self, states: Matrix, starts: Matrix) -> None:
        """Raise times to implied bounds, so that equivalent states become equal.

        An ineligible operation cannot start before some eligible operation ends.
        """
        ends = (starts + self.duration[:, None]).min(axis=0)
        for device, device_classes in enumerate(self.on):
            row = states[self.free + device]
            unfinished = (
                self._sum(states, self.on_device[device])
                < len(device_classes) * self.classes.batches
            )
            next_start = np.minimum(starts[device_classes].min(axis=0), ends)
            np.maximum(states[self.bound_row], row, out=states[self.bound_row])
            states[self.free + device] = np.where(unfinished, np.maximum(row, next_start), 0)
        for precedence, base in zip(self.classes.precedences, self.base, strict=True):
            under_way = states[precedence.before] - states[precedence.after]
            earliest = states[self.free + self.classes.device[precedence.after]]
            for slot in range(min(precedence.width, int(under_way.max(initial=0)))):
                row = states[base + slot]
                earliest = np.maximum(row, earliest)
                states[base + slot] = np.where(under_way > slot, earliest, 0)
                earliest = earliest + self.duration[precedence.after]

    def bound(self, states: Matrix, starts: Matrix) -> Matrix:
        """Lower bound on the end of every schedule that extends a state."""
        bounds: Matrix = states[self.bound_row].astype(np.int64)
        for device, (device_classes, load) in enumerate(
            zip(self.on, self.loads(states), strict=True)
        ):
            np.maximum(bounds, load, out=bounds)
            free = states[self.free + device]
            for index in self._each(device_classes, states):
                start = np.where(starts[index] < self.never, starts[index], free)
                start += self.remaining[index][states[index]]
                np.maximum(bounds, start, out=bounds)
        return bounds

    def loads(self, states: Matrix) -> Iterator[Matrix]:
        """Per device: its end if it has no further idle time."""
        for device, total in enumerate(self.work):
            done = self._sum(states, self.on_device[device] * self.duration)
            yield states[self.free + device] + (total - done)

    def extend(self, states: Matrix, starts: Matrix) -> Extensions:
        """All extensions by one operation that are needed to reach a best schedule."""
        parts: list[Extensions] = []
        parent = np.arange(states.shape[1])
        shares = np.zeros(len(self.classes), dtype=bool)
        shares[self.classes.sharing] = True
        while states.shape[1]:
            ends = starts + self.duration[:, None]
            chosen = ends.argmin(axis=0)
            every = np.arange(states.shape[1])
            first = ends[chosen, every]
            device = self.host[chosen]
            alone = shares[chosen]
            for index in self._each(range(len(self.classes)), states):
                eligible = (device == self.host[index]) & (starts[index] < self.never)
                selected = eligible & ((chosen == index) | (~alone & (starts[index] < first)))
                columns = np.flatnonzero(selected)
                if columns.size:
                    extended = self._added(
                        states.take(columns, axis=1), index, starts[index, columns]
                    )
                    added = np.full(columns.size, index, dtype=np.int16)
                    parts.append(Extensions(extended, parent[columns], added))
            flagged = np.flatnonzero(alone & (first < self.never))
            if not flagged.size:
                break
            states, parent = (
                self._flagged(states.take(flagged, axis=1), chosen[flagged]),
                parent[flagged],
            )
            starts = self.starts(states)
        if not parts:
            empty = np.empty(0, dtype=np.intp)
            return Extensions(states[:, :0], empty, empty.astype(np.int16))
        return Extensions(
            np.concatenate([extension.states for extension in parts], axis=1),
            np.concatenate([extension.parent for extension in parts]),
            np.concatenate([extension.added for extension in parts]),
        )

    def _flagged(self, states: Matrix, chosen: Indices) -> Matrix:
        """Flag states: the chosen operation must not be next on its device."""
        bits = np.zeros(len(self.classes), dtype=self.dtype)
        for index, bit in self.bit.items():
            bits[index] = 1 << bit
        states[self.flags] |= bits[chosen]
        return states

    def _added(self, states: Matrix, index: int, start: Matrix) -> Matrix:
        """Add the next operation of a class to states; `states` is overwritten."""
        classes = self.classes
        device, microbatch = classes.device[index], states[index].copy()
        end = start + self.duration[index]
        for precedence_id in classes.into[index]:
            base, width = self.base[precedence_id], classes.precedences[precedence_id].width
            states[base : base + width - 1] = states[base + 1 : base + width]
            states[base + width - 1] = 0
        for precedence_id in classes.out[index]:
            precedence = classes.precedences[precedence_id]
            slot = self.base[precedence_id] + microbatch - states[precedence.after]
            states[slot, np.arange(states.shape[1])] = end + precedence.lag
        states[index] += 1
        states[self.free + device] = end
        end_bound = end + self.tail[index][microbatch]
        np.maximum(states[self.bound_row], end_bound, out=states[self.bound_row])
        for sharing, bit in self.bit.items():
            if classes.device[sharing] == device:
                states[self.flags] &= ~(1 << bit)
        return states
