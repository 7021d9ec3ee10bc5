"""The memory limits at which an optimum can change: sums of what a device can hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.device_bounds import minimum_memory

LARGEST_SET = 2**22
"""Largest range of sums, in steps of their common divisor, that is enumerated."""


def with_limit(pipeline: Pipeline, limit: Fraction) -> Pipeline:
    """Pipeline with one limit for every device; its own limits are kept if they are lower."""
    own = pipeline.limits
    limits = limit if own is None else [min(limit, mine) for mine in own]
    return replace(pipeline, mem_limit=limits)


class _Held(NamedTuple):
    """Amounts that a device may hold, in ticks of memory."""

    between: list[tuple[int, ...]]
    """Per hosted stage, route and slice, and per microbatch if they differ: amounts that each of
    `alike` microbatches may hold between operations."""
    during: list[int]
    """Amounts that a microbatch may hold only while one of its operations runs."""
    gathered: list[int]
    """Gathered weights of every hosted stage and route."""
    alike: int
    """Microbatches of a route that hold the same; 1 if they differ."""

    @property
    def upper_bound(self) -> int:
        """Upper bound on the memory, beside static memory."""
        each = sum(map(max, self.between))
        return self.alike * each + max(self.during, default=0) + sum(self.gathered)


def candidates(problem: Problem) -> Sequence[int]:
    """Limits, in ticks of memory, ascending, between which no optimum changes.

    A schedule meets one limit for every device exactly when its largest peak does. A peak is static
    memory plus what some numbers of microbatches hold between two of their operations, what one
    more may hold only while an operation of it runs (workspace, and what recompute restores), and
    gathered weights of some stages. In another order of the microbatches the sums are the same. The
    limits run from the least one under which every device can
    run at all to what no schedule exceeds, or to the largest limit of the pipeline itself. Some
    sums may not be reachable; if there are too many, every whole tick is a candidate.
    """
    pipeline = problem.pipeline
    instances = [restriction.instance for restriction in problem.restrictions]
    devices, static = range(pipeline.num_devices), pipeline.ticks.static
    held = [_held(instances, device) for device in devices]
    tops = [static[device] + held[device].upper_bound for device in devices]
    own_limits = pipeline.ticks.limits
    if own_limits is not None:
        tops = [min(pair) for pair in zip(tops, own_limits, strict=True)]
    least = max(minimum_memory(problem.instance))
    top = max(*tops, least)
    sums = [np.array([top])]
    for device in devices:
        device_sums = _sums(held[device], top - static[device])
        if device_sums is None:
            return range(least, top + 1)
        sums.append(static[device] + device_sums)
    all_sums = np.unique(np.concatenate(sums))
    limits: list[int] = all_sums[all_sums >= least].tolist()
    return limits


def _held(instances: Sequence[Instance], device: int) -> _Held:
    """Amounts that a device may hold with any of these kinds of backwards.

    Compute alone has what moves to the host no longer once F ends. Until it has moved, and once it
    is back, the device holds it.
    """
    places: dict[tuple[int, ...], set[int]] = defaultdict(set)
    during = set()
    pipeline, batches = instances[0].pipeline, instances[0].batches
    for instance in instances:
        now: dict[tuple[int, ...], int] = defaultdict(int)
        for number in instance.hosted[device]:
            stage, route, part, *_ = instance.classes[number]
            for place, mode in enumerate(instance.operation_modes(number)):
                key = stage, route, part, route * batches + place
                during.add(now[key] + mode.allocates)
                now[key] += mode.change
                places[key].add(now[key])
    for (stage, *_, microbatch), amounts in places.items():
        moved = int(pipeline.factors[microbatch][1] * pipeline.ticks.costs.offload_memory[stage])
        amounts |= {amount + moved for amount in amounts}
    between = [tuple(sorted(amounts)) for amounts in places.values()]
    memory = pipeline.ticks.costs.unshard_memory
    gathered = [memory[stage] for hosted in pipeline.hosted for stage in hosted[device]]
    alike = batches if all(instance.has_uniform_classes for instance in instances) else 1
    return _Held(between, sorted(during.difference(*between)), gathered, alike)


def _sums(held: _Held, room: int) -> Ints | None:
    """Every sum up to `room` that microbatches may hold; None if there are too many."""
    amounts = [amount for place in held.between for amount in place if amount]
    unit = gcd(*amounts, *held.during, *held.gathered) or 1
    steps = room // unit
    if steps > LARGEST_SET:
        return None
    reached, mask = 1, (1 << max(steps, 0) + 1) - 1
    for amount in amounts:
        for times in _doubling(held.alike):
            reached |= reached << (amount // unit * times) & mask
    for amount in held.during + held.gathered:
        reached |= reached << amount // unit & mask
    bits = np.frombuffer(reached.to_bytes(steps // 8 + 1, "little"), dtype=np.uint8)
    return unit * np.flatnonzero(np.unpackbits(bits, bitorder="little"))


def _doubling(count: int) -> Iterator[int]:
    """Numbers 1, 2, 4, ... and a rest, whose partial sums are 0 .. count."""
    step = 1
    while count:
        step = min(step, count)
        yield step
        count -= step
        step *= 2
