"""The memory limits that can change an optimum: the sums that a device can come to hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd

import numpy as np

from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.bounds.head_body_tail import least_limit

LARGEST_SET = 2**22
"""Largest range of sums, in steps of their common divisor, that is enumerated."""


def within(pipeline: Pipeline, limit: Fraction) -> Pipeline:
    """The pipeline with one limit for every device, below the limits that it has itself."""
    own = pipeline.limits
    limits = limit if own is None else [min(limit, mine) for mine in own]
    return replace(pipeline, mem_limit=limits)


def candidates(pipeline: Pipeline, *, fused: bool) -> Sequence[int]:
    """Limits, in ticks of memory, ascending, between which no optimum changes.

    A schedule keeps one limit for every device just when the largest peak does, and a peak is
    static memory plus what some numbers of microbatches hold between F and B and between B and W.
    From the least limit under which every device can run at all to what no schedule exceeds, or
    to the largest limit that the pipeline has itself. Some of the sums may not be reached; where
    there are too many, they are all whole ticks.
    """
    devices = range(pipeline.num_devices)
    instance = Instance.uniform(pipeline, fused=fused)
    least = max(least_limit(instance, device) for device in devices)
    tops = [_top(pipeline, device, fused=fused) for device in devices]
    own = pipeline.ticks.limits
    if own is not None:
        tops = [min(pair) for pair in zip(tops, own, strict=True)]
    top = max(*tops, least)
    sums = [_sums(pipeline, device, top, fused=fused) for device in devices]
    if any(found is None for found in sums):
        return range(least, top + 1)
    every = np.unique(np.concatenate([*(found for found in sums if found is not None), [top]]))
    found: list[int] = every[every >= least].tolist()
    return found


def _holdings(pipeline: Pipeline, device: int, *, fused: bool) -> Iterator[tuple[int, int]]:
    """What one slice of a microbatch of a hosted stage holds until B and until W, in ticks."""
    ticks = pipeline.ticks
    for hosted in pipeline.hosted:
        for stage in hosted[device]:
            taken = ticks.activation[stage]
            yield taken, taken if fused else taken + ticks.memory_b[stage]


def _share(pipeline: Pipeline) -> int:
    return pipeline.batches // pipeline.routes * pipeline.num_slices


def _top(pipeline: Pipeline, device: int, *, fused: bool) -> int:
    """Memory that no schedule exceeds on a device, in ticks."""
    most = sum(max(pair) for pair in _holdings(pipeline, device, fused=fused))
    return pipeline.ticks.static[device] + _share(pipeline) * most


def _sums(pipeline: Pipeline, device: int, top: int, *, fused: bool) -> np.ndarray | None:
    """Every sum up to `top` that a device may hold, in ticks; None where they are too many."""
    holdings = _holdings(pipeline, device, fused=fused)
    amounts = [held for pair in holdings for held in dict.fromkeys(pair) if held]
    unit = gcd(*amounts) or 1
    room = (top - pipeline.ticks.static[device]) // unit
    if room > LARGEST_SET:
        return None
    reached, mask = 1, (1 << max(room, 0) + 1) - 1
    for amount in amounts:
        for times in _doubling(_share(pipeline)):
            reached |= reached << (amount // unit * times) & mask
    bits = np.frombuffer(reached.to_bytes(room // 8 + 1, "little"), dtype=np.uint8)
    sums = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    return pipeline.ticks.static[device] + unit * sums


def _doubling(count: int) -> Iterator[int]:
    """Numbers 1, 2, 4, ... and a rest, whose partial sums are 0 .. count."""
    step = 1
    while count:
        step = min(step, count)
        yield step
        count -= step
        step *= 2
