"""Bounds without search: from the waiting time, work and memory of one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ppopt.problem.operation import NUM_KINDS
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.idle_bound import min_idle
from ppopt.rechecker.pair_times import pairs_save, shortest
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.quantities import live_weights, min_work
from ppopt.verifier.rows import required

_ONE_KIND = FORMS - {Trait.MIXED}
OF_WORK = rechecked(ArgumentClass.EVERY_OPERATION, _ONE_KIND)
"""Traits that the arguments on the work of a device handle."""
OF_MEMORY = rechecked(ArgumentClass.EQUAL_MICROBATCHES, _ONE_KIND)
"""Traits that the argument on the memory of a device handles."""


class DeviceTimes(NamedTuple):
    """Lower bounds on what follows one another on a device, in ticks."""

    head: int
    """Time before its first operation."""
    work: int
    tail: int
    """Time after its last operation."""


def min_times(claim: Claim, each: Precedence) -> list[DeviceTimes]:
    """Lower bounds on the time before, during and after the operations of every device.

    A device runs one operation, or one pair, at a time. Its first operation is a forward of its
    lowest stage: some microbatch must first pass all stages before that one. If backwards are
    whole, its last operation is a backward of its lowest stage on some route, and that microbatch
    must then pass the stages before it. Device span counts neither. The operations that run once
    per step come before and after. `each` is of the smallest microbatch.
    """
    costs = claim.costs._replace(times=shortest(claim.costs))
    rows = required(claim.pipeline, costs=costs)
    rows = rows.take(np.isin(rows.kind, claim.kinds))
    times = np.zeros((claim.pipeline.num_devices, NUM_KINDS), dtype=np.int64)
    np.add.at(times, (rows.device, rows.kind), rows.end)
    pairs = pairs_save(claim.costs)
    work = (min_work(dict(enumerate(own)), pairs=pairs) for own in times.tolist())
    return [
        DeviceTimes(each.head.on[device], own, each.tail.on[device])
        for device, own in enumerate(work)
    ]


def min_memory(claim: Claim, device: int, route: int | None = None) -> int:
    """Lower bound on the peak memory of a device in any order, in ticks; of one route if given.

    Consider one microbatch and a stage s of its route on this device. When F(s) of its last slice
    starts, the activations that F keeps of all its stages here up to s are live. None of their
    backwards starts before B(s) or BW(s) of that slice ends. So all of them are live while that F
    and that backward run, plus what these two allocate. If W(s) takes time, what F(s) and B(s)
    left is live while it runs.
    """
    need, times, (allocated, freed) = 0, claim.costs.times, claim.memory
    forward, backward, *rest = claim.kinds
    for hosts in claim.pipeline.hosts if route is None else (claim.pipeline.hosts[route],):
        stashed = 0
        for stage in (stage for stage, host in enumerate(hosts) if host == device):
            stashed += (
                allocated[forward][stage] - freed[forward][stage]
            ) * claim.pipeline.num_slices
            live = {kind: freed[kind][stage] for kind in rest}
            live |= {forward: stashed + freed[forward][stage]}
            live |= {backward: stashed + allocated[backward][stage]}
            running = (amount for kind, amount in live.items() if times[kind, stage])
            need = max(need, stashed, *running)
    return claim.pipeline.ticks.static[device] + live_weights(claim, device) + need


def over_limit(claim: Claim, route: int | None = None) -> Iterator[int]:
    """Devices that exceed their memory limit in every order; none if the argument does not apply.

    If a route is given, only its microbatches count.
    """
    equal = claim.has_only(OF_MEMORY)
    limits = claim.pipeline.ticks.limits if equal else None
    for device, limit in enumerate(limits or ()):
        if min_memory(claim, device, route) > limit:
            yield device


def by_arithmetic(stated: Claim, route: int | None = None) -> tuple[int, str] | None:
    """A device that alone proves the claim, and the argument; None if a search is needed.

    Infeasibility may be proved for one route.
    """
    if not stated.has_only(OF_WORK):
        return None
    devices = range(stated.pipeline.num_devices)
    if stated.bound is None:
        device = next(over_limit(stated, route), None)
        if device is None:
            return None
        need = stated.pipeline.memory_text(min_memory(stated, device, route))
        return device, f"device {device} needs {need} in every order, above its limit"
    each = Precedence.of_microbatch(of_smallest(stated))
    idle = [min_idle(stated, device, each) for device in devices]
    parts = min_times(stated, each)
    times = [sum(parts[device]) + idle[device] for device in devices]
    device = max(devices, key=lambda device: (times[device], -idle[device]))
    longest = times[device]
    if longest < stated.bound:
        return None
    amounts = {
        "of work": parts[device].work,
        "before its first operation": parts[device].head,
        "after its last one": parts[device].tail,
        "of idle time that its memory limit forces": idle[device],
    }
    write = stated.pipeline.time_text
    reason = " plus ".join(f"{write(time)} {what}" for what, time in amounts.items() if time)
    return device, f"device {device} alone needs {write(longest)}: {reason}"
