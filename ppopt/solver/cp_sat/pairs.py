"""Overlapped pairs in a search: which operations may run as one, and how much that can save.

A search pairs only what saves time. A pair that saves none is never needed: its backward, then its
F, one after the other, start when the pair does or later, end when it does or before, and hold
memory no longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline

MOST_PAIRS = 40_000
"""Most pairs that a model chooses from."""


class Pair(NamedTuple):
    """Two operation numbers that may run as one."""

    forward: int
    backward: int
    time: int
    """Ticks that both take as one."""


@lru_cache(maxsize=64)
def useful(pipeline: Pipeline, *, fused: bool) -> bool:
    """Whether some pair of the search space saves time."""
    devices = range(pipeline.num_devices)
    return any(_gains(pipeline, device, fused=fused) for device in devices)


def count(pipeline: Pipeline) -> int:
    """Bound on the number of pairs that `options` yields for all devices."""
    if pipeline.overlap is None:
        return 0
    hosted = [
        sum(len(row[device]) for row in pipeline.hosted) for device in range(pipeline.num_devices)
    ]
    return sum(
        (stages * pipeline.batches // pipeline.routes * pipeline.num_slices) ** 2
        for stages in hosted
    )


def _gains(pipeline: Pipeline, device: int, *, fused: bool) -> dict[tuple[int, int], int]:
    """Ticks saved by F of one stage with the backward of another: (F, backward) -> above 0."""
    if pipeline.overlap is None:
        return {}
    kind, ticks = _kind(fused), pipeline.ticks
    stages = sorted({stage for hosted in pipeline.hosted for stage in hosted[device]})
    gains = {
        (one, other): ticks.durations[OpKind.F][one]
        + ticks.durations[kind][other]
        - ticks.pair_time(one, kind, other)
        for one in stages
        for other in stages
    }
    return {stages: gain for stages, gain in gains.items() if gain > 0}


def _kind(fused: bool) -> OpKind:
    return OpKind.BW if fused else OpKind.B


def whole_pairs_shorter(pipeline: Pipeline) -> bool:
    """Whether some F with BW takes less time than the F with B, and then W."""
    if not useful(pipeline, fused=True):
        return False
    ticks, stages = pipeline.ticks, range(pipeline.num_stages)
    return any(
        ticks.pair_time(one, OpKind.BW, other)
        < ticks.pair_time(one, OpKind.B, other) + ticks.durations[OpKind.W][other]
        for one in stages
        for other in stages
    )


def most_saved(pipeline: Pipeline, device: int, *, fused: bool) -> int:
    """Bound on the time that pairs save on a device, in ticks.

    An operation is in one pair at most, so the savings are at most those of every F with its best
    partner, and those of every backward with its own. The first F of the device is alone, since
    all backwards of the device come after it, and so is the last backward.
    """
    gains = _gains(pipeline, device, fused=fused)
    share = pipeline.batches // pipeline.routes * pipeline.num_slices
    stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
    bounds = []
    for side in (0, 1):
        best = [max((g for key, g in gains.items() if key[side] == s), default=0) for s in stages]
        bounds.append(share * sum(best) - min(best, default=0))
    return min(bounds)


def options(pipeline: Pipeline, devices: frozenset[int], *, fused: bool) -> Iterator[Pair]:
    """Pairs worth trying on some devices, where microbatches are in order (`cp_sat.model`).

    F of j runs with no backward of a later microbatch k of the same route: F of k would have to
    be over, and comes after F of j.
    """
    kind, ticks, slices = _kind(fused), pipeline.ticks, range(pipeline.num_slices)
    share = pipeline.batches // pipeline.routes
    for device in sorted(devices):
        gains = _gains(pipeline, device, fused=fused)
        places = [(route, s) for route, row in enumerate(pipeline.hosted) for s in row[device]]
        for route, one in places:
            for facing, other in places:
                if (one, other) not in gains:
                    continue
                time = ticks.pair_time(one, kind, other)
                for place in range(share):
                    for partner in range(share if facing != route else place):
                        first = [(one, route * share + place, part) for part in slices]
                        second = [(other, facing * share + partner, part) for part in slices]
                        for f in first:
                            for b in second:
                                yield Pair(
                                    pipeline.code(OpKind.F, *f), pipeline.code(kind, *b), time
                                )
