"""The operations that a step of a pipeline must have, on which devices, and for how long.

They are numbered in one table of cells. A kind has a cell for every position, lane and slice. For
an operation per microbatch these are the stage, the microbatch and its slice. For an operation per
step they are the stage and the route, or the device alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import KINDS, AuxiliaryKind, OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.costs import MOVES, Costs
from ppopt.verifier.times import whole
from ppopt.verifier.violation import MAX_LISTED

COLLECTIVES = (AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC)
"""Kinds that run on the collective queue of a device."""
OF_STAGE = (AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC)
"""Kinds that run once per step, stage and route."""
OF_STEP = (*OF_STAGE, AuxiliaryKind.OPTIMIZER)
"""Kinds that run once per step; OPTIMIZER on every device."""
NO_MICROBATCH = -1
"""Microbatch of an operation that runs once per step."""
Table = tuple[Bools, Ints]
"""Which cells of a kind must have an operation, and its ticks."""


class Expected:
    """The table of cells of a pipeline, for the microbatches that have a lane in it."""

    def __init__(
        self,
        pipeline: Pipeline,
        microbatches: Ints,
        unlisted: int = MAX_LISTED,
        costs: Costs | None = None,
    ) -> None:
        """`unlisted`: maximum number of lanes that a route has for other microbatches.

        `costs`: those of the pipeline, or others in their place.
        """
        self.pipeline, self.costs = pipeline, costs or Costs.of(pipeline)
        self.share = pipeline.batches // pipeline.routes
        """Microbatches of a route: each route has an equal run of them."""
        self.hosts: Ints = np.array(pipeline.hosts, dtype=np.int64)
        """Device, shape [route, stage]."""
        self.lanes, self.count = _lanes(pipeline.batches, self.share, microbatches, unlisted)
        self.host: Ints = self.hosts[self.lanes // self.share].T
        """Device, shape [stage, lane]."""
        tables = dict(self._tables())
        self.kinds = frozenset(tables)
        """The kinds that the pipeline has."""
        self.shapes = [self._shape(kind) if kind in tables else (0, 0, 0) for kind in range(KINDS)]
        """Numbers of positions, lanes and slices of every kind."""
        self.offset: Ints = np.cumsum([0, *(np.prod(shape, dtype=int) for shape in self.shapes)])
        """The first cell of every kind."""
        flat = [
            [np.broadcast_to(column, self.shapes[kind]).ravel() for column in tables[kind]]
            for kind in sorted(tables)
        ]
        self.exists, self.ticks = map(np.concatenate, zip(*flat, strict=True))
        """Whether a cell must have an operation, and its duration alone, in ticks."""

    def view(self, flat: Any, kind: int) -> Any:
        """The entries of a column that belong to a kind, shape [position, lane, slice]."""
        return flat[self.offset[kind] : self.offset[kind + 1]].reshape(self.shapes[kind])

    def cell(self, kind: Ints, position: Ints, lane: Ints, slice_index: Ints) -> Ints:
        """Cell number of operations whose kinds the pipeline has."""
        _, lanes, slices = np.array(self.shapes).T
        index = (position * lanes[kind] + lane) * slices[kind] + slice_index
        return np.asarray(self.offset[kind] + index)

    def positions(self, cell: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Kind, position, lane and slice of cells."""
        kind = np.searchsorted(self.offset, cell, side="right") - 1
        _, lanes, slices = np.array(self.shapes).T
        index = cell - self.offset[kind]
        lane = index // slices[kind]
        return kind, lane // lanes[kind], lane % lanes[kind], index % slices[kind]

    def lane(self, microbatch: Ints) -> Ints:
        """Lane of microbatches that have one."""
        if len(self.lanes) == self.pipeline.batches:
            return microbatch
        return np.searchsorted(self.lanes, microbatch)

    @cached_property
    def lanes_of_routes(self) -> list[slice]:
        """The lanes of every route."""
        firsts = self.share * np.arange(self.pipeline.routes + 1)
        return [slice(*ends) for ends in pairwise(np.searchsorted(self.lanes, firsts).tolist())]

    @cached_property
    def delays(self) -> tuple[Ints, Ints]:
        """Ticks from stage s to s + 1, and from s + 1 to s, shape [stages - 1, lane] each."""
        boundary = np.arange(len(self.host) - 1)[:, None]
        last = np.cumsum(self.pipeline.counts or (1,) * len(self.host))[boundary] - 1
        return delays_over(self.pipeline, boundary, last, self.host[:-1], self.host[1:])

    def _shape(self, kind: int) -> tuple[int, int, int]:
        pipeline = self.pipeline
        if kind == AuxiliaryKind.OPTIMIZER:
            return pipeline.num_devices, 1, 1
        if kind in OF_STAGE:
            return pipeline.num_stages, pipeline.routes, 1
        return pipeline.num_stages, len(self.lanes), pipeline.num_slices

    def _tables(self) -> Iterator[tuple[int, Table]]:
        """The kinds that the pipeline has. Both arrays broadcast to the shape of the kind."""
        pipeline, costs = self.pipeline, self.costs
        for kind in OpKind:
            ticks = self._multiplied(kind, pipeline.microbatch_times, pipeline.slice_times)
            yield kind, (costs.exists[kind, :, None, None], ticks)
        if pipeline.has_links:
            yield from self._transfers(costs.exists[OpKind.B])
        for once in OF_STAGE:
            if costs.memory[0, AuxiliaryKind.UNSHARD].any() or costs.times[once].any():
                ticks = self._multiplied(once)
                yield once, (np.ones_like(ticks, np.bool_), ticks)
        if any(pipeline.costs.optimizer):
            yield AuxiliaryKind.OPTIMIZER, self._optimizers()
        offloads = costs.memory[0, AuxiliaryKind.RELOAD][:, None, None] > 0
        if offloads.any():
            for move in MOVES:
                yield move, (offloads, self._multiplied(move, pipeline.microbatch_memory))

    def _multiplied(
        self,
        kind: int,
        microbatches: Sequence[Fraction] | None = None,
        slices: Sequence[Fraction] | None = None,
    ) -> Ints:
        """Ticks of a kind times the factors of microbatch and slice.

        Shape [stage, lane or 1, slice or 1].
        """
        own = [microbatches[each] for each in self.lanes.tolist()] if microbatches else [1]
        different = sorted(set(own))
        table = [
            [[whole(tick * time * factor) for factor in slices or (1,)] for time in different]
            for tick in self.costs.times[kind].tolist()
        ]
        indices = {factor: index for index, factor in enumerate(different)}
        return np.array(table, dtype=np.int64)[:, [indices[factor] for factor in own]]

    def _transfers(self, has_backward: Bools) -> Iterator[tuple[int, Table]]:
        """Activations go to the next stage, gradients to the previous one if it has a backward.

        A transfer exists only between different devices.
        """
        crossing, zero = self.host[1:] != self.host[:-1], np.zeros_like(self.host[:1])
        absent, back = zero.astype(np.bool_), crossing & has_backward[:-1, None]
        down, up = self.delays
        for kind, exists, ticks in (
            (TransferKind.SEND_F, (crossing, absent), (down, zero)),
            (TransferKind.SEND_B, (absent, back), (zero, up)),
        ):
            yield kind, (np.vstack(exists)[..., None], np.vstack(ticks)[..., None])

    def _optimizers(self) -> Table:
        """An optimizer takes the sum of its stages; a device with only frozen stages has none."""
        pipeline, trained = self.pipeline, self.costs.exists[OpKind.W]
        exists, ticks = [], []
        for device, speed in enumerate(pipeline.device_speed):
            stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
            exists.append(trained[stages].any())
            time = sum(pipeline.costs.optimizer[stage] for stage in stages) / speed
            ticks.append(whole(time * pipeline.ticks.per_unit))
        shape = (-1, 1, 1)
        return np.array(exists).reshape(shape), np.array(ticks, dtype=np.int64).reshape(shape)


def _lanes(batches: int, share: int, microbatches: Ints, unlisted: int) -> tuple[Ints, Ints]:
    """The microbatches that have a lane, ascending, and how many each represents.

    Every microbatch that an operation names has one, so that the size follows from the operations
    and not from the pipeline's number of microbatches. Of the other microbatches each route has as
    many as are listed, and the last one represents the rest.
    """
    seen = np.zeros(batches, dtype=np.bool_)
    seen[microbatches[(microbatches >= 0) & (microbatches < batches)]] = True
    present = np.flatnonzero(seen)
    if len(present) == batches:
        return present, np.ones_like(present)
    lanes, counts = [], []
    for first in range(0, batches, share):
        own = present[(present >= first) & (present < first + share)]
        near = np.arange(first, first + min(share, len(own) + unlisted))
        absent = np.setdiff1d(near, own, assume_unique=True)
        lanes += [own, absent]
        counts += [np.ones(len(own) + len(absent), dtype=np.int64)]
        counts[-1][-1:] += share - len(own) - len(absent)
    order = np.argsort(np.concatenate(lanes))
    return np.concatenate(lanes)[order], np.concatenate(counts)[order]


def delays_over(
    pipeline: Pipeline, boundary: Ints, last: Ints, lower: Ints, upper: Ints
) -> tuple[Ints, Ints]:
    """Ticks over boundaries from lower to upper devices, and back; 0 on one device.

    Delays are stated as one number, one per boundary, or a matrix [from device][to device]. For
    links by size, a delay is latency + output / bandwidth of the layer `last` before the boundary;
    a slice has its share of the output. The sizes backward are the same.
    """
    link, back = pipeline.link, pipeline.backward_p2p
    links = link, link if back is None or link is None else link.backward
    stated = pipeline.p2p, pipeline.p2p if back is None else back
    ends = (lower, upper), (upper, lower)
    down, up = (
        np.where(lower == upper, 0, _delays(pipeline, *way, boundary, last))
        for way in zip(links, stated, ends, strict=True)
    )
    return down, up


def _delays(
    pipeline: Pipeline, link: Any, stated: Any, ends: tuple[Ints, Ints], boundary: Ints, last: Ints
) -> Ints:
    """Ticks of one way, also where both ends are one device."""
    if link is not None:
        sizes = [layer.output / pipeline.num_slices for layer in pipeline.model.layers]
        boundary, stated = last, [link.latency + size / link.bandwidth for size in sizes]
    times = np.array(stated, dtype=object)
    ticks = [whole(time * pipeline.ticks.per_unit) for time in times.ravel().tolist()]
    table = np.array(ticks, dtype=np.int64).reshape(times.shape)
    return table[ends] if table.ndim == 2 else table if table.ndim == 0 else table[boundary]
