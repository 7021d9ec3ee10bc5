"""Times of an F and a backward that run as one, and the least time of an operation.

F(i) with BW(k), without recompute, takes what a matrix says. If a time is stated per stage, it
is o(i) for F(i) with BW(i). Put BW(k) in the place of BW(i), or F(i) in the place of F(k): by that
much the pair is longer or shorter than o(i), or than o(k), and it takes the longer of these two
times. It takes no less than the shortest of o(i), o(k) and the longer part.

If times of F with B are stated, the same holds with B in the place of BW. Else F(i) with B(k)
differs from F(i) with BW(k) by as much as B(k) from BW(k), but it takes no less than either part,
unless F(i) with BW(k) does.

Recompute makes every pair of a backward longer by its whole time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline

Row = tuple[int, ...]


def pair_time(pipeline: Pipeline, forward: int, kind: OpKind, backward: int) -> int:
    """Time of F of a stage and B or BW (`kind`) of another run as one, in ticks."""
    ticks = pipeline.ticks
    again = ticks.costs.recompute_time[backward]
    if kind is OpKind.B and ticks.overlap_input:
        return again + _without_recompute(pipeline, ticks.overlap_input, forward, kind, backward)
    whole = again + _without_recompute(pipeline, ticks.overlap, forward, OpKind.BW, backward)
    own, full = ticks.durations[kind][backward], ticks.durations[OpKind.BW][backward]
    shortest = min(whole, max(ticks.durations[OpKind.F][forward], own))
    return max(shortest, whole - (full - own))


def _without_recompute(
    pipeline: Pipeline, times: Any, forward: int, kind: OpKind, backward: int
) -> int:
    """Time of F and a backward of two stages as one, where `times` are stated for such pairs."""
    ticks = pipeline.ticks
    again, f = ticks.costs.recompute_time, ticks.durations[OpKind.F]
    if isinstance(times[0], tuple):
        return int(times[forward][backward]) - again[backward]
    own, stated = {}, {}
    for stage in (forward, backward):
        own[stage] = ticks.durations[kind][stage] - again[stage]
        stated[stage] = int(times[stage]) - again[stage]
    return max(
        stated[forward] + own[backward] - own[forward],
        stated[backward] + f[forward] - f[backward],
        min(*stated.values(), max(f[forward], own[backward])),
    )


def meet(pipeline: Pipeline, one: int, other: int) -> bool:
    """Whether two stages share a device on any route, and F and a backward may run as one."""
    if pipeline.overlap is None:
        return False
    return any(mine[one] == theirs[other] for mine in pipeline.hosts for theirs in pipeline.hosts)


def pairs_save(pipeline: Pipeline) -> bool:
    """Whether any pair takes less than its two parts."""
    stages, times = range(pipeline.num_stages), pipeline.ticks.durations
    return pipeline.overlap is not None and any(
        pair_time(pipeline, stage, kind, other) < times[OpKind.F][stage] + times[kind][other]
        for stage in stages
        for other in stages
        if meet(pipeline, stage, other)
        for kind in (OpKind.B, OpKind.BW)
    )


@lru_cache(maxsize=8)
def least_times(pipeline: Pipeline) -> tuple[Row, ...]:
    """Least time of every kind and stage, [kind][stage], in ticks: alone, or in a pair."""
    stages, found = range(pipeline.num_stages), [list(row) for row in pipeline.ticks.durations]
    for stage in stages:
        for other in stages:
            if meet(pipeline, stage, other):
                with_b, with_bw = (
                    pair_time(pipeline, stage, kind, other) for kind in (OpKind.B, OpKind.BW)
                )
                found[OpKind.F][stage] = min(found[OpKind.F][stage], with_b, with_bw)
                found[OpKind.B][other] = min(found[OpKind.B][other], with_b)
                found[OpKind.BW][other] = min(found[OpKind.BW][other], with_bw)
    return tuple(map(tuple, found))
