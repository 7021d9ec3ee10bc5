"""The memory limits at which an optimum can change: sums of amounts that can be live at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import floor, gcd
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.costs import WORKSPACES
from ppopt.problem.instance import Instance
from ppopt.problem.layer_table import PASSING
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.device_bounds import minimum_memory

LARGEST_SET = 2**22
"""Maximum range of sums that is enumerated, in steps of their common divisor."""


def with_limit(pipeline: Pipeline, ticks: int, own: Pipeline | None = None) -> Pipeline:
    """Pipeline with one limit for every device; those of `own`, or else its own, hold if lower."""
    limit, limits = pipeline.ticks.memory(ticks), (own or pipeline).limits
    return pipeline.having(
        mem_limit=limit if limits is None else tuple(min(limit, each) for each in limits)
    )


class _LiveAmounts(NamedTuple):
    """Amounts that may be live on a device, in ticks of memory."""

    amounts: list[tuple[int, int]]
    """Amounts, each with the number of microbatches, or of other owners, that may hold it."""
    upper_bound: int
    """Upper bound on the live memory without static memory."""


def candidates(problem: Problem) -> Sequence[int]:
    """Limits, in ticks of memory, ascending, between which no optimum changes.

    A schedule is within one limit for every device if and only if its largest peak is. A peak is
    the sum of: static memory; the live memory of some microbatches between two of their operations;
    memory of one more microbatch while its operation runs (workspace, and what recompute restores);
    and gathered weights of some stages. The order of the microbatches does not change these sums.
    The limits range from the smallest at which every device can run to the maximum of all sums, or
    to the largest limit of the pipeline itself. Some sums may not be reachable; if there are too
    many, every whole tick is a candidate.
    """
    pipeline = problem.pipeline
    instances = [restriction.instance for restriction in problem.restrictions]
    devices, static = range(pipeline.num_devices), pipeline.ticks.static
    live = [_live_amounts(instances, device) for device in devices]
    tops = [static[device] + live[device].upper_bound for device in devices]
    own_limits = pipeline.ticks.limits
    if own_limits is not None:
        tops = [min(pair) for pair in zip(tops, own_limits, strict=True)]
    minimum = max(minimum_memory(problem.instance))
    top = max(*tops, minimum)
    sums = [np.array([top])]
    for device in devices:
        device_sums = _sums(live[device], top - static[device])
        if device_sums is None:
            return range(minimum, top + 1)
        sums.append(static[device] + device_sums)
    all_sums = np.unique(np.concatenate(sums))
    limits: list[int] = all_sums[all_sums >= minimum].tolist()
    return limits


def limits_of_any(own: Sequence[Sequence[int]]) -> Sequence[int]:
    """Limits of several problems, ascending; if those of any are all ticks, so are these."""
    if any(isinstance(limits, range) for limits in own):
        return range(min(limits[0] for limits in own), max(limits[-1] for limits in own) + 1)
    return sorted(set().union(*own))


def all_ticks(pipeline: Pipeline) -> range:
    """All ticks from static memory alone to the sum of all memory; not empty."""
    model, slices = pipeline.model, pipeline.num_slices * sum(own for _, own in pipeline.factors)
    rows = pipeline.stage_row.costs if model is None else pipeline.partitions.layers.amounts
    static = int(rows["static"].sum())
    minimum = max(rows["static"].max(), static // pipeline.num_devices)
    activations = rows["activation"] + np.maximum(rows["memory_b"], 0)
    once = sum(int(rows[field].sum()) for field in WORKSPACES.values())
    once += int(rows["recompute_memory" if model is None else PASSING].sum())
    gathered = pipeline.routes * int(rows["unshard_memory"].sum())
    maximum = static + floor(slices * int(activations.sum())) + once + gathered
    if pipeline.ticks.limits is not None:
        maximum = min(maximum, max(pipeline.ticks.limits))
    return range(min(minimum, maximum), maximum + 1)


def _live_amounts(instances: Sequence[Instance], device: int) -> _LiveAmounts:
    """Amounts that may be live on a device with any of these kinds of backwards.

    In compute alone, F frees the offloaded memory at its end. In fact it is live until OFFLOAD has
    ended, and again from the start of RELOAD.
    """
    slots: dict[tuple[int, ...], set[int]] = defaultdict(set)
    during = set()
    pipeline, batches = instances[0].pipeline, instances[0].batches
    for instance in instances:
        now: dict[tuple[int, ...], int] = defaultdict(int)
        for class_id in instance.hosted[device]:
            stage, route, slice_index, *_ = instance.classes[class_id]
            for microbatch_index, mode in enumerate(instance.operation_modes(class_id)):
                key = stage, route, slice_index, route * batches + microbatch_index
                during.add(now[key] + mode.allocates)
                now[key] += mode.change
                slots[key].add(now[key])
    for (stage, *_, microbatch), amounts in slots.items():
        offloaded = int(
            pipeline.factors[microbatch][1] * pipeline.ticks.costs.offload_memory[stage]
        )
        amounts |= {amount + offloaded for amount in amounts}
    memory = pipeline.ticks.costs.unshard_memory
    uniform = all(instance.has_uniform_classes for instance in instances)
    equal_microbatches, between = batches if uniform else 1, slots.values()
    running = sorted(during.difference(*between))
    gathered = [memory[stage] for hosted in pipeline.hosted for stage in hosted[device]]
    live = [(amount, equal_microbatches) for slot in between for amount in slot]
    live += [(amount, 1) for amount in (*running, *gathered)]
    each = sum(map(max, between))
    upper_bound = equal_microbatches * each + max(running, default=0) + sum(gathered)
    return _LiveAmounts(live, upper_bound)


def _sums(live: _LiveAmounts, headroom: int) -> Ints | None:
    """Every sum of live memory up to `headroom`; None if there are too many."""
    unit = gcd(*(amount for amount, _ in live.amounts)) or 1
    steps = headroom // unit
    if steps > LARGEST_SET:
        return None
    reached, mask = 1, (1 << max(steps, 0) + 1) - 1
    for amount, number in live.amounts:
        for times in _doubling(number):
            reached |= reached << (amount // unit * times) & mask
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
