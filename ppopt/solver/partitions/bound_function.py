"""Functions of devices whose maximum over the devices of a partition is minimised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.layer_run_bounds import DeviceBound, Hosted, backward_times
from ppopt.solver.partitions.option_bounds import chosen_bound
from ppopt.solver.partitions.space import PartitionSpace


class BoundFunction(NamedTuple):
    """A function of devices; its value for a partition is the maximum over the devices."""

    of_device: Callable[[PartitionSpace, int, Sequence[Hosted], int, int], DeviceBound]
    """Value of a device with its hosted stages, one entry per choice; values above a ceiling need
    not be exact. The last argument is the pace of stage 0; 0: unknown."""
    part: Callable[[PartitionSpace, Ints, Ints], Ints]
    """Value of a range of layers; the sum over the stages of a device is at most its value."""
    paced: bool = False
    """Whether the pace of stage 0 affects the value."""


def work(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    """Work of layers on the fastest device: F and the minimum backward of all microbatches."""
    return space.batches * space.min_slowness * stage_time(space, low, high)


def stage_time(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    """F and the minimum backward of layers, on a device of slowness 1."""
    forward = space.sums.forward
    return np.asarray(forward[high] - forward[low] + backward_times(space, low, high).minimum)


VALUE = BoundFunction(chosen_bound, work, paced=True)
"""Lower bound of the objective, in ticks."""
