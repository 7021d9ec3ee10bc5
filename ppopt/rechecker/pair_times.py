"""What an F and a backward save as one, and the minimum time of an operation, from the verifier."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.times import ComputeTimes

Row = tuple[int, ...]
BACKWARDS = (OpKind.B, OpKind.BW)


@lru_cache(maxsize=8)
def savings(pipeline: Pipeline) -> Ints:
    """Time of an F and a backward alone minus their time as one, in ticks.

    Shape [B or BW, stage of F, stage of the backward]; 0 if no device runs both.
    """
    stages = np.arange(pipeline.num_stages)
    kind, forward, backward = np.meshgrid(BACKWARDS, stages, stages, indexing="ij")
    if pipeline.overlap is None:
        return np.zeros_like(kind)
    times = ComputeTimes(pipeline)
    both = times.alone[OpKind.F, forward] + times.alone[kind, backward]
    hosts = np.array(pipeline.hosts)
    meet = (hosts[:, None, :, None] == hosts[:, None]).any(axis=(0, 1))
    return np.where(meet, both - times.together(kind, forward, backward), 0)


def pairs_save(pipeline: Pipeline) -> bool:
    """Whether any pair takes less time than the sum of its two parts."""
    return pipeline.overlap is not None and bool((savings(pipeline) > 0).any())


def shortens(pipeline: Pipeline) -> bool:
    """Whether an operation may take less time in a pair than alone."""
    return pipeline.overlap is not None and min_times(pipeline) != pipeline.ticks.durations


def min_times(pipeline: Pipeline) -> tuple[Row, ...]:
    """Minimum time of every kind and stage, [kind][stage], in ticks: alone or in a pair."""
    times = np.array(pipeline.ticks.durations)
    of_forward, of_backward, saved = times[OpKind.F], times[[*BACKWARDS]], savings(pipeline)
    times[OpKind.F] += np.minimum(0, of_backward[:, None] - saved).min(axis=(0, 2))
    times[[*BACKWARDS]] += np.minimum(0, of_forward[:, None] - saved).min(axis=1)
    return tuple(map(tuple, times.tolist()))
