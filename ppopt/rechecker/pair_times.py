"""Times of an F and a backward that run as one, and the minimum time of an operation.

A matrix states the time of F(i) with BW(k), without recompute. A time per stage, o(i), is that of
F(i) with BW(i). For two stages there are two estimates: o(i) + BW(k) - BW(i) and o(k) + F(i) -
F(k). The pair takes the longer of both, but no less than the shortest of o(i), o(k) and the longer
part.

If times of F with B are stated, the same holds for B instead of BW. Otherwise F(i) with B(k) is
shorter than F(i) with BW(k) by BW(k) - B(k), but no shorter than either part, unless F(i) with
BW(k) is.

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
    recompute_time = ticks.costs.recompute_time[backward]
    if kind is OpKind.B and ticks.overlap_input:
        return recompute_time + _without_recompute(
            pipeline, ticks.overlap_input, forward, kind, backward
        )
    whole = recompute_time + _without_recompute(
        pipeline, ticks.overlap, forward, OpKind.BW, backward
    )
    own, full = ticks.durations[kind][backward], ticks.durations[OpKind.BW][backward]
    shortest = min(whole, max(ticks.durations[OpKind.F][forward], own))
    return max(shortest, whole - (full - own))


def _without_recompute(
    pipeline: Pipeline, times: Any, forward: int, kind: OpKind, backward: int
) -> int:
    """Time of F and a backward of two stages as one, from the `times` stated for such pairs."""
    ticks = pipeline.ticks
    recompute_time, f = ticks.costs.recompute_time, ticks.durations[OpKind.F]
    if isinstance(times[0], tuple):
        return int(times[forward][backward]) - recompute_time[backward]
    own, stated = {}, {}
    for stage in (forward, backward):
        own[stage] = ticks.durations[kind][stage] - recompute_time[stage]
        stated[stage] = int(times[stage]) - recompute_time[stage]
    return max(
        stated[forward] + own[backward] - own[forward],
        stated[backward] + f[forward] - f[backward],
        min(*stated.values(), max(f[forward], own[backward])),
    )


def meet(pipeline: Pipeline, forward: int, backward: int) -> bool:
    """Whether two stages share a device on any route, and F and a backward may run as one."""
    if pipeline.overlap is None:
        return False
    return any(
        forward_hosts[forward] == backward_hosts[backward]
        for forward_hosts in pipeline.hosts
        for backward_hosts in pipeline.hosts
    )


def pairs_save(pipeline: Pipeline) -> bool:
    """Whether any pair takes less time than the sum of its two parts."""
    stages, times = range(pipeline.num_stages), pipeline.ticks.durations
    return pipeline.overlap is not None and any(
        pair_time(pipeline, stage, kind, backward_stage)
        < times[OpKind.F][stage] + times[kind][backward_stage]
        for stage in stages
        for backward_stage in stages
        if meet(pipeline, stage, backward_stage)
        for kind in (OpKind.B, OpKind.BW)
    )


def shortens(pipeline: Pipeline) -> bool:
    """Whether an operation may take less time in a pair than alone."""
    return pipeline.overlap is not None and min_times(pipeline) != pipeline.ticks.durations


@lru_cache(maxsize=8)
def min_times(pipeline: Pipeline) -> tuple[Row, ...]:
    """Minimum time of every kind and stage, [kind][stage], in ticks: alone or in a pair."""
    stages, times = range(pipeline.num_stages), [list(row) for row in pipeline.ticks.durations]
    for stage in stages:
        for backward_stage in stages:
            if meet(pipeline, stage, backward_stage):
                with_b, with_bw = (
                    pair_time(pipeline, stage, kind, backward_stage)
                    for kind in (OpKind.B, OpKind.BW)
                )
                times[OpKind.F][stage] = min(times[OpKind.F][stage], with_b, with_bw)
                times[OpKind.B][backward_stage] = min(times[OpKind.B][backward_stage], with_b)
                times[OpKind.BW][backward_stage] = min(times[OpKind.BW][backward_stage], with_bw)
    return tuple(map(tuple, times))
