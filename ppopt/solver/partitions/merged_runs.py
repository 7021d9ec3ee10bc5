"""Lower bounds of one device by merged states, for any runs of layers on it.

`device_numbers` of `layer_run_bounds` has the numbers of a device on which its schedules depend:
times, delays and memory. They define a relaxation with the operations of this device alone, as in
`ppopt.solver.dynamic_programming`, with merged states. If no number is smaller, no schedule is
shorter: times and memory of a schedule may shrink without a change of its starts. So the bound of
one device holds for every device whose numbers are at least as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.solver.dynamic_programming.classes import ClassNetwork, DeviceMemory
from ppopt.solver.dynamic_programming.layered import LayeredDP

MAX_WIDTH = 6000
"""Maximum number of states of a layer. Devices that need more states recompute much: memory binds
less, and their bounds are close to those of `layer_run_bounds`."""


class StageNumbers(NamedTuple):
    """Numbers of one stage of a device, in ticks."""

    forward: int
    gradient_time: int
    """Time of the backward until the gradient is computed."""
    weight: int
    """Time of the rest of the backward."""
    activation: int
    """Memory between F and the end of the gradient."""
    until_weight: int
    """Memory from then to the end of the backward."""

    @property
    def allocates_at_an_instant(self) -> bool:
        """Whether an operation of duration 0 allocates memory."""
        at_b = self.until_weight > self.activation
        return (self.activation > 0 and not self.forward) or (at_b and not self.gradient_time)


class RunClasses(ClassNetwork):
    """The classes of one device: F of its stages, then their B, then their W."""

    hosts = (0,)

    def __init__(self, numbers: Sequence[int], batches: int) -> None:
        """`numbers` is a column of `device_numbers`."""
        head, round_trip, rest, neg_headroom, *rows = numbers
        num_stages = (len(rows) + 2) // 7
        self.stages = [StageNumbers(*rows[5 * k : 5 * k + 5]) for k in range(num_stages)]
        delays = rows[5 * num_stages :]
        last = num_stages - 1
        after: list[list[tuple[int, int]]] = [[] for _ in range(3 * num_stages)]
        for k in range(num_stages):
            after[k].append((k + 1, delays[2 * k]) if k < last else (num_stages + k, round_trip))
            after[num_stages + k].append((2 * num_stages + k, 0))
            if k:
                after[num_stages + k].append((num_stages + k - 1, delays[2 * k - 1]))
        self._head, self._rest, self._headroom = head, rest, -neg_headroom
        forward, gradient_time, weight, *_ = zip(*self.stages, strict=True)
        durations = (*forward, *gradient_time, *weight)
        super().__init__((0,) * len(durations), durations, batches, after)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Earliest start on the device."""
        return (self._head,)

    @cached_property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """Memory of the device."""
        activation, until_weight = (
            np.array(row) for row in list(zip(*self.stages, strict=True))[3:]
        )
        at_b = until_weight - activation
        allocates = np.concatenate([activation, np.maximum(0, at_b), 0 * activation])
        change = np.concatenate([activation, at_b, -until_weight])
        unit = gcd(*allocates.tolist(), *change.tolist()) or 1
        return (DeviceMemory(allocates // unit, change // unit, self._headroom // unit),)

    @cached_property
    def tail(self) -> Ints:
        """The path from the last gradient of the first stage leads to other devices."""
        tail = np.zeros((len(self), self.batches), np.int64)
        tail[len(self.stages)] = self._rest
        return tail

    @cached_property
    def _freed_for(self) -> list[list[tuple[int, int]]]:
        """F of a stage waits for its own gradients, and for its own W."""
        amounts = [own.activation for own in self.stages], [min(own[3:]) for own in self.stages]
        return [[] for _ in self.stages] + [
            [(k, self._fitting(amount))] for row in amounts for k, amount in enumerate(row)
        ]

    def _fitting(self, amount: int) -> int:
        """Microbatches with this amount of live memory that fit, at least 1."""
        fitting = self._headroom // amount if amount > 0 else self.batches
        return max(1, min(self.batches, fitting))

    def _width(self, before: int, after: int) -> int:
        """Microbatches between F of stages and their B: the activations of the former are live."""
        num_stages = len(self.stages)
        live = before + 1 if before < num_stages else after - num_stages + 1
        return self._fitting(sum(own.activation for own in self.stages[:live]))


def merged_bound(numbers: Sequence[int], batches: int, below: int) -> int | None:
    """Lower bound of a device by merged states, at most `below`.

    `numbers` is a column of `device_numbers`. None: there are too many states, or the program does
    not apply.
    """
    classes = RunClasses(numbers, batches)
    if any(stage.allocates_at_an_instant for stage in classes.stages):
        return None
    program = LayeredDP(classes, below, width=1)
    while not program.ended:
        if program.width > MAX_WIDTH:
            return None
        program.advance()
    return program.lower_bound
