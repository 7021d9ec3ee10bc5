"""Bounds without search: what one device must wait for, do and hold."""

from __future__ import annotations

from collections.abc import Iterator

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import BESIDE_COMPUTE, Trait
from ppopt.rechecker import once
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.idle_bound import least_idle
from ppopt.rechecker.microbatches import of_smallest
from ppopt.rechecker.route_times import RouteTimes

HANDLES = BESIDE_COMPUTE | {
    *(Trait.PAIRS, Trait.SHORT_PAIRS, Trait.SLICES),
    *(Trait.ROUTES, Trait.FROZEN, Trait.SPAN, Trait.MICROBATCHES, Trait.UNEQUAL_SLICES),
}
"""Traits that the arguments on the work and the memory of a device handle."""


def least_time(claim: Claim, device: int) -> int:
    """Lower bound on the time by which a device is done, in ticks.

    It runs one operation, or one pair, at a time. Before its first one, a forward of its lowest
    stage here, some microbatch must come down all stages before that one. Its last operation, where
    backwards are whole, is one of its lowest stage on some route, and that microbatch must go up
    the stages that are left. Device span counts neither. What a step has once comes before and
    after.
    """
    pipeline = claim.pipeline
    durations, times = claim.least, dict.fromkeys(claim.kinds, 0)
    for route, hosted in enumerate(pipeline.hosted):
        for kind in claim.kinds:
            each = sum(durations[kind][stage] for stage in hosted[device])
            times[kind] += int(claim.pieces(route) * each)
    work = claim.work(times)
    smallest = of_smallest(claim)
    left = once.tail(smallest, device) if pipeline.has_auxiliary_operations else 0
    if not claim.span and claim.fused:
        left = max(left, _least_way(smallest, device, OpKind.BW))
    return head(smallest, device) + work + left


def head(claim: Claim, device: int) -> int:
    """Time before which a device cannot compute, in ticks: from 0, or its own first operation."""
    if claim.pipeline.has_auxiliary_operations:
        return once.head(claim, device)
    return 0 if claim.span else _least_way(claim, device, OpKind.F)


def _least_way(claim: Claim, device: int, kind: OpKind) -> int:
    return min(
        RouteTimes(claim, hosts).way(kind, hosts.index(device))
        for hosts in claim.pipeline.hosts
        if device in hosts
    )


def least_memory(claim: Claim, device: int, route: int | None = None) -> int:
    """Lower bound on the peak memory of a device, in any order, in ticks; perhaps of one route.

    Take one microbatch and a stage s of its route here. When its F(s) starts, of the last slice, it
    holds what the F of its stages here up to s keep. None of their backwards starts before B(s) or
    BW(s) of that slice ends. So all of it is held while that F and that backward run, with what
    these take themselves; if W(s) takes time, what F(s) and B(s) left is held while it runs.
    """
    ticks, need = claim.pipeline.ticks, 0
    forward, backward, *rest = claim.kinds
    for hosts in claim.pipeline.hosts if route is None else (claim.pipeline.hosts[route],):
        held = 0
        for stage in (stage for stage, host in enumerate(hosts) if host == device):
            held += claim.kept(stage) * claim.pipeline.num_slices
            need = max(need, held)
            beside = [(forward, held + claim.gives(forward, stage))]
            beside += [(backward, held + claim.takes(backward, stage))]
            beside += [(kind, claim.gives(kind, stage)) for kind in rest]
            need = max([need, *(amount for kind, amount in beside if ticks.durations[kind][stage])])
    return ticks.static[device] + once.held(claim, device) + need


def over_limit(claim: Claim, route: int | None = None) -> Iterator[int]:
    """Devices that cannot keep their memory limit; none if the argument does not apply.

    Perhaps for the microbatches of one route.
    """
    equal = claim.has_only(HANDLES - {Trait.MICROBATCHES})
    limits = claim.pipeline.ticks.limits if equal else None
    for device, limit in enumerate(limits or ()):
        if least_memory(claim, device, route) > limit:
            yield device


def by_arithmetic(stated: Claim, route: int | None = None) -> tuple[int, str] | None:
    """A device that proves the claim alone, and how; None if that takes a search.

    That there is no schedule may be proved for one route.
    """
    if not stated.has_only(HANDLES):
        return None
    devices = range(stated.pipeline.num_devices)
    if stated.bound is None:
        device = next(over_limit(stated, route), None)
        if device is None:
            return None
        need = stated.pipeline.memory_text(least_memory(stated, device, route))
        return device, f"device {device} comes to hold {need}, above its limit, in every order"
    idle = [least_idle(stated, device) for device in devices]
    times = [least_time(stated, device) + idle[device] for device in devices]
    device = max(devices, key=lambda device: (times[device], -idle[device]))
    least = times[device]
    if least < stated.bound:
        return None
    back = ", the way up from its last one" if stated.fused else ""
    way = "" if stated.span else f"the way to its first operation{back} and "
    wait = " and the idle time that its memory forces at its ends" if idle[device] else ""
    took = stated.pipeline.time_text(least)
    return device, f"{way}the work of device {device}{wait} take {took}"
