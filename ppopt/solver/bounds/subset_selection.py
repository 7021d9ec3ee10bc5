"""Selects the subsets of devices to bound, and states the bound of a subset."""

from __future__ import annotations

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound

Devices = tuple[int, ...]


def single_devices(pipeline: Pipeline) -> list[Devices]:
    """Every device alone: first the busiest, the first and the last one, then by work."""
    instance = Instance.of(pipeline, BackwardKind.WHOLE)
    work = [
        sum(sum(instance.times(class_id)) for class_id in class_ids)
        for class_ids in instance.hosted
    ]
    ranked = sorted(range(pipeline.num_devices), key=lambda device: (-work[device], device))
    first = dict.fromkeys((ranked[0], 0, pipeline.num_devices - 1, *ranked))
    return [(device,) for device in first]


def evenly_spaced_subsets(pipeline: Pipeline, count: int) -> list[Devices]:
    """Up to two subsets of `count` devices, evenly spaced along the pipeline, half a step apart.

    Empty unless 1 < count < devices. If memory is tight, devices delay each other: some devices
    that are far apart often need as long as all devices together.
    """
    devices = pipeline.num_devices
    if not 1 < count < devices:
        return []
    step = devices / count
    return list(
        dict.fromkeys(
            tuple(int(shift + step * index) % devices for index in range(count))
            for shift in (0, int(step) // 2)
        )
    )


def subset_bound(devices: Devices, value: int, how: str = "solved by CP-SAT") -> Bound:
    """Bound that `devices` alone need `value` ticks; `how` says how that was proved."""
    causes = "work, memory limits and pipeline latency (the delays through all other stages)"
    if len(devices) == 1:
        text = f"device {devices[0]} is the bottleneck: its {causes} already need this long"
    else:
        names = " and ".join(map(str, devices))
        text = f"devices {names} are the bottleneck: their {causes} together need this long"
    return Bound(value, f"{text} ({how})", Certificate(Argument.DEVICES, tuple(sorted(devices))))


def dp_subset_bound(devices: Devices, value: int) -> Bound:
    """Bound that `devices` alone need `value` ticks, proved by dynamic programming."""
    return subset_bound(devices, value, "dynamic programming over partial schedules")
