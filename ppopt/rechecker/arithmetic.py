"""Bounds without search: from the waiting time, work and memory of one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ppopt.problem.traits import FORMS, ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.idle_bound import min_idle
from ppopt.rechecker.pair_times import pairs_save
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.quantities import (
    live_after_forward,
    live_weights,
    memory_of,
    min_work,
    pieces,
    shortest_durations,
)

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


def min_times(claim: Claim, device: int, each: Precedence) -> DeviceTimes:
    """Lower bounds on the time before, during and after the operations of a device.

    A device runs one operation, or one pair, at a time. Its first operation is a forward of its
    lowest stage: some microbatch must first pass all stages before that one. If backwards are
    whole, its last operation is a backward of its lowest stage on some route, and that microbatch
    must then pass the stages before it. Device span counts neither. The operations that run once
    per step come before and after. `each` is of the smallest microbatch.
    """
    pipeline = claim.pipeline
    durations, times = shortest_durations(claim), Counter[int]()
    for route, hosted in enumerate(pipeline.hosted):
        for kind in claim.kinds:
            of_each = sum(durations[kind][stage] for stage in hosted[device])
            times[kind] += int(pieces(claim, route) * of_each)
    work = min_work(times, pairs=pairs_save(pipeline))
    return DeviceTimes(each.head.on[device], work, each.tail.on[device])


def min_memory(claim: Claim, device: int, route: int | None = None) -> int:
    """Lower bound on the peak memory of a device in any order, in ticks; of one route if given.

    Consider one microbatch and a stage s of its route on this device. When F(s) of its last slice
    starts, the activations that F keeps of all its stages here up to s are live. None of their
    backwards starts before B(s) or BW(s) of that slice ends. So all of them are live while that F
    and that backward run, plus what these two allocate. If W(s) takes time, what F(s) and B(s)
    left is live while it runs.
    """
    ticks, need = claim.pipeline.ticks, 0
    forward, backward, *rest = claim.kinds
    for hosts in claim.pipeline.hosts if route is None else (claim.pipeline.hosts[route],):
        stashed = 0
        for stage in (stage for stage, host in enumerate(hosts) if host == device):
            stashed += live_after_forward(claim, stage) * claim.pipeline.num_slices
            need = max(need, stashed)
            live = [(forward, stashed + memory_of(claim, forward, stage)[1])]
            live += [(backward, stashed + memory_of(claim, backward, stage)[0])]
            live += [(kind, memory_of(claim, kind, stage)[1]) for kind in rest]
            need = max([need, *(amount for kind, amount in live if ticks.durations[kind][stage])])
    return ticks.static[device] + live_weights(claim, device) + need


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
    parts = [min_times(stated, device, each) for device in devices]
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
