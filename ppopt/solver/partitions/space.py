"""The space of partitions: layers to be cut into the stages of a placement, in ticks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints

FOREVER = 2**60
"""Above every value in ticks: what no partition reaches."""


class LayerTicks(NamedTuple):
    """Costs of every layer in forward order, as whole ticks of time or of memory."""

    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    """Time of B."""
    weight: tuple[int, ...]
    """Time of W."""
    backward: tuple[int, ...]
    """Time of BW."""
    activation: tuple[int, ...]
    memory_b: tuple[int, ...]
    static: tuple[int, ...]


class Delays(NamedTuple):
    """Delays between stages: `[s][l]` between stages s and s + 1 when l layers lie before the cut.

    0 where both stages share a device.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PartitionSpace:
    """All partitions of layers into the stages of a placement, and what their schedules obey."""

    layers: LayerTicks
    hosts: tuple[int, ...]
    """Device of every stage."""
    batches: int
    delays: Delays
    limits: tuple[int, ...] | None = None
    """Memory limit per device; None: unlimited."""
    split: bool = True
    """Whether a backward may be B and W."""
    whole: bool = False
    """Whether a backward may be BW."""
    span: bool = False
    """Whether the value is the device span; else it is the makespan."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers.forward)

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.hosts)

    @cached_property
    def num_devices(self) -> int:
        """Number of devices."""
        return max(self.hosts) + 1

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Stages of every device, ascending."""
        return tuple(
            tuple(stage for stage, host in enumerate(self.hosts) if host == device)
            for device in range(self.num_devices)
        )

    @property
    def size(self) -> int:
        """Number of partitions: every stage holds a layer at least."""
        return comb(self.num_layers - 1, self.num_stages - 1)

    @cached_property
    def sums(self) -> LayerSums:
        """Sums of costs over the first layers."""
        return LayerSums.of(self)


class LayerSums(NamedTuple):
    """Sums of costs over the first l layers, l = 0 .. number of layers; int64 arrays."""

    forward: Ints
    hand_on: Ints
    """Least time from the start of a backward to its gradient's leaving: B, BW, or the less."""
    backward_input: Ints
    weight: Ints
    backward: Ints
    activation: Ints
    memory_b: Ints
    static: Ints
    lead_in: Ints
    """`[s][l]`: least delays of forwards on the way to stage s where it begins after l layers."""
    way_out: Ints
    """`[s][l]`: the same of backwards on the way from stage s to stage 0."""
    round_trip: Ints
    """`[s][l]`: least delays, both ways, beyond stage s where it ends after l layers."""

    @classmethod
    def of(cls, space: PartitionSpace) -> LayerSums:
        """Add up the costs of a space's layers."""
        layers = space.layers
        hand_on: tuple[int, ...] = layers.backward
        if space.split:
            hand_on = layers.backward_input
            if space.whole:
                hand_on = tuple(map(min, layers.backward_input, layers.backward))
        there, back = (np.array(rows, np.int64) for rows in space.delays)
        if space.num_stages == 1:
            there = back = np.zeros((0, space.num_layers + 1), np.int64)
        sums = {
            name: np.concatenate([[0], np.cumsum(row, dtype=np.int64)])
            for name, row in {"hand_on": hand_on, **layers._asdict()}.items()
        }
        return cls(
            **sums,
            lead_in=_least_before(there),
            way_out=_least_before(back),
            round_trip=_least_before((there + back)[::-1, ::-1])[::-1, ::-1],
        )


def _least_before(delays: Ints) -> Ints:
    """`[s][l]`: least sum of the delays of cuts 0 .. s - 1, the last of them after l layers.

    `delays[s][l]` is the delay of cut s after l layers; cuts lie after 1, 2, ... layers, each
    after the one before. Row 0 is 0.
    """
    cuts, places = delays.shape
    least = np.zeros((cuts + 1, places), np.int64)
    for cut in range(cuts):
        before = np.minimum.accumulate(np.where(np.arange(places) >= cut, least[cut], FOREVER))
        if cut:
            before = np.concatenate([[FOREVER], before[:-1]])
        least[cut + 1] = np.minimum(before + delays[cut], FOREVER)
    return least
