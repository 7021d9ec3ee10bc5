"""Imbalance: the idle time that uneven work of devices forces on every schedule.

The busiest device works w of the makespan T. A perfect schedule would take w, and every other
device would still wait w minus its own work. That idle time is imbalance. The rest, T - w on every
device, belongs to the schedule: ramps, delays, waits. Both add up to all idle time from 0 to T.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import ratio
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.orders import portable
from ppopt.schedule.schedule import Schedule


class Relief(NamedTuple):
    """The effect of the partition `balanced`."""

    layers: int
    """Number of layers that it puts on another device."""
    gain: float
    """By which share the same order has more throughput with it: old makespan / new - 1."""


class Imbalance(NamedTuple):
    """Uneven work of the devices of a schedule; shares are of devices x makespan."""

    device: int
    """The busiest device, the first of several."""
    stages: tuple[int, ...]
    """Its stages."""
    times_mean: float
    """Its work divided by the mean of all devices."""
    idle_share: float
    """Idle time that is imbalance: (devices x its work - all work) / (devices x makespan)."""
    of_idle_share: float
    """All idle time: 1 - all work / (devices x makespan)."""
    relief: Relief | None
    """None if the same order is not faster with it; if the order would then exceed the memory
    limits, and does not now; if a layout has made the chunks; or if stages have no known layers."""


def imbalance(schedule: Schedule) -> Imbalance:
    """Compare the work of the devices of a complete schedule; an overlapped pair counts once."""
    metrics = schedule.metrics
    devices, work, max_work = (
        len(metrics.busy_ticks),
        sum(metrics.busy_ticks),
        max(metrics.busy_ticks),
    )
    total, device = devices * metrics.makespan_ticks, metrics.busy_ticks.index(max_work)
    hosted = {stage for route in schedule.pipeline.hosted for stage in route[device]}
    return Imbalance(
        device=device,
        stages=tuple(sorted(hosted)),
        times_mean=ratio(devices * max_work, work),
        idle_share=ratio(devices * max_work - work, total),
        of_idle_share=ratio(total - work, total),
        relief=_relief(schedule),
    )


def _relief(schedule: Schedule) -> Relief | None:
    """Time the order with the partition `balanced`, which balances the work of F and BW."""
    pipeline = schedule.pipeline
    if pipeline.model is None or len(pipeline.model) < pipeline.num_stages:
        return None
    balanced = replace(pipeline, partition="balanced")
    if balanced.hosts != pipeline.hosts or _max_work(pipeline) <= _max_work(balanced):
        return None
    order = portable(schedule)
    now, then = (timing.schedule(placed, order) for placed in (pipeline, balanced))
    gain = now.metrics.makespan / then.metrics.makespan - 1
    if gain <= 0 or (schedule.fits_limits and not then.fits_limits):
        return None
    pairs = zip(_devices_of_layers(pipeline), _devices_of_layers(balanced), strict=True)
    num_moved = sum(device != balanced_device for device, balanced_device in pairs)
    return Relief(num_moved, gain)


def _max_work(pipeline: Pipeline) -> float:
    """Time of F and BW of all microbatches on the busiest device, in the user's unit."""
    instance = Instance.of(pipeline, BackwardKind.WHOLE)
    work = (
        sum(sum(instance.times(class_id)) for class_id in class_ids)
        for class_ids in instance.hosted
    )
    return ratio(max(work), pipeline.ticks.per_unit)


def _devices_of_layers(pipeline: Pipeline) -> list[int]:
    return [
        device
        for device, count in zip(pipeline.hosts[0], pipeline.counts, strict=True)
        for _ in range(count)
    ]
