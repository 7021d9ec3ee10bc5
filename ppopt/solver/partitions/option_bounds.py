"""Device bounds minimised over the options of the stages, to recompute or to offload layers.

An option of a stage costs time and saves memory. A schedule remains valid if a stage
needs less time and less memory. So the bound of a point (time, memory saved) holds for every option
that takes at least this time and saves at most this memory. The points of a stage are its
non-dominated options; moves to the host take no time here. If there are too many, neighbours are
merged into one point with the minimum time and the maximum memory saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.layer_run_bounds import (
    DeviceBound,
    Hosted,
    device_bound,
    first_stage_tail,
    head_and_work,
    min_memory,
)
from ppopt.solver.partitions.space import FOREVER, LayerOptions, PartitionSpace

MAX_POINTS = {1: 16, 2: 4}
"""Maximum number of points of a stage, by the number of stages of its device (2: also more)."""
MAX_CARRIED = 64
"""Maximum number of points while layers are added to a stage one by one."""


class Tradeoff(NamedTuple):
    """An option of a stage: at least `time` for at most `saved` memory."""

    time: int
    saved: int


class Points(NamedTuple):
    """Points of many stages, padded by repetition: [stage][point]."""

    time: Ints
    saved: Ints


def chosen_bound(
    space: PartitionSpace,
    device: int,
    hosted: Sequence[Hosted],
    ceiling: int = FOREVER,
) -> DeviceBound:
    """Bound of a device: the minimum over the options of its stages.

    A bound above the ceiling need not be exact.
    """
    floor = device_bound(space.unlimited, device, hosted)
    indices = np.flatnonzero(floor.alone <= ceiling)
    if space.limits is None or not indices.size:
        return floor
    stages = [stage.at(indices) for stage in hosted]
    if space.options is None:
        best = device_bound(space, device, stages)
    else:
        selected_floor = DeviceBound(*(row[indices] for row in floor))
        best = _min_over_points(space, device, stages, selected_floor, ceiling)
    for row, own in zip(floor, best, strict=True):
        row[indices] = own
    return floor


def _min_over_points(
    space: PartitionSpace,
    device: int,
    hosted: Sequence[Hosted],
    floor: DeviceBound,
    ceiling: int,
) -> DeviceBound:
    """Minimum bound over all combinations of points of a device's stages.

    `floor` is the bound without options and without a memory limit: it holds for all. A
    combination is skipped if its head and work are at least the bound of the first one, or above
    the ceiling.
    """
    first, *combinations = _optional(space, hosted)
    alone, through = device_bound(space, device, first)
    tail = int(first_stage_tail(space, np.arange(1, space.num_layers + 1)).max())
    useful = (floor.alone < alone) | (floor.through < through)
    highest = np.minimum(np.maximum(alone, through + tail), ceiling + 1)
    selected = [
        np.flatnonzero(useful & (head_and_work(space, device, stages) < highest))
        for stages in combinations
    ]
    indices = np.concatenate([np.zeros(0, int), *selected])
    if indices.size:
        chosen = [
            [stage.at(own) for stage in stages]
            for stages, own in zip(combinations, selected, strict=True)
        ]
        joined = [Hosted.joined(stages) for stages in zip(*chosen, strict=True)]
        bound = device_bound(space, device, joined)
        np.minimum.at(alone, indices, bound.alone)
        np.minimum.at(through, indices, bound.through)
    return DeviceBound(np.maximum(alone, floor.alone), np.maximum(through, floor.through))


def chosen_memory(space: PartitionSpace, device: int, hosted: Sequence[Hosted]) -> Ints:
    """Minimum memory limit below which no schedule exists, with any option."""
    if space.options is None:
        return min_memory(space, device, hosted)
    needs = [min_memory(space, device, stages) for stages in _optional(space, hosted)]
    return np.asarray(np.min(needs, axis=0))


def _optional(space: PartitionSpace, hosted: Sequence[Hosted]) -> list[tuple[Hosted, ...]]:
    """Stages of a device with every combination of their points."""
    assert space.options is not None
    max_points = MAX_POINTS[min(len(hosted), max(MAX_POINTS))]
    longest = space.num_layers - space.num_stages + 1
    table, widths = _table(space.options, longest, max_points)
    each = []
    for stage in hosted:
        time, saved = (rows[stage.low, stage.high] for rows in table)
        width = int(widths[stage.low, stage.high].max())
        each.append(
            [
                stage._replace(recompute_time=time[..., index], saved=saved[..., index])
                for index in range(width)
            ]
        )
    return list(product(*each))


@lru_cache(maxsize=8)
def _table(layers: LayerOptions, longest: int, max_points: int) -> tuple[Points, Ints]:
    """Points of all stages of up to `longest` layers, and the number of different ones.

    The indices are [first layer][end][point]; the last point is repeated.
    """
    count = len(layers)
    shape = (count + 1, count + 1, max_points)
    time, saved = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for low in range(count):
        for high, points in enumerate(_growing(layers, low, longest), low + 1):
            reduced = merged(points, max_points)
            reduced += reduced[-1:] * (max_points - len(reduced))
            time[low, high], saved[low, high] = zip(*reduced, strict=True)
    return Points(time, saved), 1 + np.count_nonzero(np.diff(time, axis=2), axis=2)


def _growing(layers: LayerOptions, low: int, longest: int) -> list[tuple[Tradeoff, ...]]:
    """Points of the stages that begin at a layer, by their ends."""
    rows: list[tuple[Tradeoff, ...]] = []
    points: tuple[Tradeoff, ...] = (Tradeoff(0, 0),)
    for options in layers[low : low + longest]:
        points = _with_layer(points, options)
        rows.append(points)
    return rows


@lru_cache(maxsize=2048)
def _with_layer(
    points: tuple[Tradeoff, ...], options: tuple[tuple[int, int], ...]
) -> tuple[Tradeoff, ...]:
    """Points of a stage with one more layer; stages of equal layers share them."""
    checkpoint()
    added = [Tradeoff(p.time + time, p.saved + saved) for time, saved in options for p in points]
    if not added:
        return points
    return tuple(merged(undominated([*points, *added]), MAX_CARRIED))


def undominated(points: list[Tradeoff]) -> list[Tradeoff]:
    """Points that save more than all other points of at most the same time, the shortest first."""
    front: list[Tradeoff] = []
    for candidate in sorted(points, key=lambda point: (point.time, -point.saved)):
        if not front or candidate.saved > front[-1].saved:
            front.append(candidate)
    return front


def merged(points: Sequence[Tradeoff], max_points: int) -> list[Tradeoff]:
    """Merge points to at most `max_points`, each with the minimum time and the maximum savings.

    The first point is never merged: it is the stage without an option.
    """
    if len(points) <= max_points:
        return list(points)
    size, larger = divmod(len(points) - 1, max_points - 1)
    begin = (1 + group * size + min(group, larger) for group in range(max_points))
    return [points[0]] + [
        Tradeoff(points[low].time, points[high - 1].saved) for low, high in pairwise(begin)
    ]
