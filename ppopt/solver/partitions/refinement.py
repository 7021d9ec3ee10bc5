"""Raises the minimum bound of all partitions by merged states, device by device, on demand.

The partition with the smallest bound is checked at a target: whether merged states of one of its
devices alone need that long. If so, the bounds of this device are raised, with those of all devices
whose numbers are at least as large (`ppopt.solver.partitions.merged_runs`). It is repeated until no
partition is below the target, or merged states do not exclude one. So few devices need merged
states (lazy evaluation of the arcs of a shortest path: Dellin, Srinivasa, ICAPS 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.device_runs import hosted_by
from ppopt.solver.partitions.layer_run_bounds import (
    Hosted,
    device_numbers,
    first_stage_tail,
    pace_of,
)
from ppopt.solver.partitions.merged_runs import merged_bound
from ppopt.solver.partitions.option_bounds import bounds_by_option
from ppopt.solver.partitions.partition_program import (
    ANY,
    Counts,
    PartitionProgram,
    StageZeroContext,
)
from ppopt.solver.partitions.space import FOREVER, PartitionSpace

FIRST_STEP = 0.0025
"""Share of the bound by which the first target exceeds it. The step doubles if the target is
proved; else it becomes a quarter."""
MIN_STEP = 0.0005
"""Share of the bound below which no step is tried."""


class ProvedNumbers(NamedTuple):
    """A bound of every device whose numbers are at least these."""

    numbers: Ints
    bound: int


class Refinement:
    """Refinement of a program that can be resumed; its bounds are those of the makespan."""

    def __init__(self, program: PartitionProgram) -> None:
        self._program, self._space = program, program.space
        self.proved = 0
        """Lower bound of all partitions."""
        self._proofs: list[ProvedNumbers] = []
        self._tried: dict[tuple[int, ...], int] = {}
        """The last target of every device that was tried, by its numbers; FOREVER: too large."""
        self._step = FIRST_STEP
        self._below: dict[tuple[StageZeroContext, int], tuple[Ints, _OptionBounds]] = {}
        """Indices of the choices below the target, by context and level, with their options."""

    @property
    def ended(self) -> bool:
        """Whether another run does nothing."""
        space = self._space
        applies = space.limits is not None and space.has_all_backwards and not space.span
        return not applies or self._step < MIN_STEP

    def run(self) -> None:
        """Raise the bound of the program until no step succeeds.

        Raises TimeoutError if the time is up; another run resumes.
        """
        while not self.ended:
            known, ceiling = self._known(), self._program.ceiling
            target = min(int(known * (1 + self._step)), ceiling)
            if target <= known:
                self._step = 0
            elif self._prove(target):
                self._step *= 2
            else:
                self._step /= 4

    def _known(self) -> int:
        """Minimum bound of the program, at most the tick after its ceiling."""
        program = self._program
        self.proved = max(self.proved, min(program.min_bound, program.ceiling + 1))
        return self.proved

    def _prove(self, target: int) -> bool:
        """Raise bounds until all partitions reach a target; False: one may be below it."""
        self._below.clear()
        while self._known() < target:
            checkpoint()
            _, counts = next(self._program.in_order())
            if not self._excludes(counts, target):
                return False
            self._raise_bounds(target)
        return True

    def _raise_bounds(self, target: int) -> None:
        """Raise the bounds below a target of all choices that were computed so far."""
        program = self._program
        for stage, level, choices in program.computed():
            alone = choices.bound.alone
            if (stage, level) not in self._below:
                rows = np.flatnonzero(choices.bound.with_tail(stage.tail) < target)
                hosted = program.hosted(level, choices.positions.at(rows))
                options = _OptionBounds(self._space, self._space.hosts[level], hosted, stage)
                self._below[stage, level] = rows, options
            rows, options = self._below[stage, level]
            alone[rows] = np.maximum(alone[rows], options.raised(self._proofs))
        program.forget_paths()

    def _excludes(self, counts: Counts, target: int) -> bool:
        """Whether merged states of a device of a partition reach a target."""
        length = counts[0]
        tail = int(first_stage_tail(self._space, np.array(length)))
        pace = pace_of(self._space, length)
        stage = StageZeroContext(tail, pace) if pace else ANY
        devices = [
            _OptionBounds(self._space, device, hosted, stage)
            for device, hosted in enumerate(hosted_by(self._space, [counts]))
        ]
        devices.sort(key=lambda device: -device.raised(self._proofs)[0])
        return any(self._reaches(device, target) for device in devices)

    def _reaches(self, device: _OptionBounds, target: int) -> bool:
        """Whether a device of one choice reaches a target with every option."""
        return all(
            self._proves(numbers[:, 0], target)
            for numbers, bound in zip(device.numbers, device.bounds, strict=True)
            if bound[0] < target
        )

    def _proves(self, numbers: Ints, target: int) -> bool:
        """Whether merged states of a device reach a target; its bound is recorded."""
        key = tuple(numbers.tolist())
        if self._tried.get(key, 0) >= target:
            return False
        bound = merged_bound(key, self._space.batches, target)
        self._tried[key] = FOREVER if bound is None else target
        if bound is not None:
            self._proofs.append(ProvedNumbers(numbers, bound))
        return bound == target


class _OptionBounds:
    """Bounds of the choices of a device with every option of its stages."""

    def __init__(
        self,
        space: PartitionSpace,
        device: int,
        hosted: Sequence[Hosted],
        stage: StageZeroContext,
    ) -> None:
        options = bounds_by_option(space, device, hosted, stage.pace, stage.tail)
        self.bounds = np.stack([bound for _, bound in options])
        """[option][choice]."""
        self.numbers = np.stack(
            [device_numbers(space, device, stages, stage.tail) for stages, _ in options]
        )
        """[option][number][choice]."""
        self._num_applied = 0

    def raised(self, proofs: Sequence[ProvedNumbers]) -> Ints:
        """Raise bounds by proofs, which only grow; return the minimum over the options."""
        for numbers, bound in proofs[self._num_applied :]:
            reached = (self.numbers >= numbers[:, None]).all(axis=1)
            np.maximum(self.bounds, bound, out=self.bounds, where=reached)
        self._num_applied = len(proofs)
        return np.asarray(self.bounds.min(axis=0))
