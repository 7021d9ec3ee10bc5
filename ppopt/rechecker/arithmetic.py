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
from ppopt.rechecker.quantities import min_work
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


def min_memory(each: Precedence, device: int, route: int | None = None) -> int:
    """Lower bound on the peak memory of a device in any order, in ticks; of one route if given.

    While an operation runs that takes time, all memory is live that it allocates or frees itself,
    and all that an operation before it allocates and an operation after it frees. `each` is of one
    microbatch of every route.
    """
    rows, claim = each.required.rows, each.required.claim
    running = rows.computes & (rows.device == device) & (rows.end > 0)
    if route is not None:
        running &= rows.route == route
    live = [part for part in each.required.live() if rows.device[part[0]] == device]
    peaks = (
        sum(
            amount
            for first, last, amount in live
            if row in (first, last) or (each.precedes(first, row) and each.precedes(row, last))
        )
        for row in np.flatnonzero(running).tolist()
    )
    return claim.pipeline.ticks.static[device] + max(peaks, default=0)


def over_limit(claim: Claim, route: int | None = None) -> Iterator[tuple[int, int]]:
    """Devices that exceed their memory limit in every order, with what they need.

    None if the argument does not apply. If a route is given, only its microbatches count.
    """
    limits = claim.pipeline.ticks.limits
    if limits is not None and claim.has_only(OF_MEMORY):
        each = Precedence.of_microbatch(claim)
        for device, limit in enumerate(limits):
            need = min_memory(each, device, route)
            if need > limit:
                yield device, need


def by_arithmetic(stated: Claim, route: int | None = None) -> tuple[int, str] | None:
    """A device that alone proves the claim, and the argument; None if a search is needed.

    Infeasibility may be proved for one route.
    """
    if not stated.has_only(OF_WORK):
        return None
    devices = range(stated.pipeline.num_devices)
    if stated.bound is None:
        for device, need in over_limit(stated, route):
            text = f"device {device} needs {stated.pipeline.memory_text(need)} in every order"
            return device, f"{text}, above its limit"
        return None
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
