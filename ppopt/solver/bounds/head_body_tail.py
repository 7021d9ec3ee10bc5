"""Lower bounds and limits that need no search, each with its certificate in words."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.problem import exact
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bounds import idle_bounds
from ppopt.solver.cp_sat import pairs
from ppopt.solver.cp_sat.delays import Chain


class Bound(NamedTuple):
    """A proved lower bound, in ticks, and the argument for it, in words and to be checked again."""

    value: int
    proof: str
    certificate: Certificate


def least_limit(pipeline: Pipeline, device: int, *, fused: bool) -> int:
    """Memory without which a device cannot run at all, in ticks.

    Of a microbatch cut into slices, all F come before the first B, so that all slices count. When
    F of the k-th hosted stage starts for a microbatch, the activations of the hosted stages
    up to k are all held, since their backwards come after; a B of stage k that takes time adds
    max(0, memory_b[k]) while the activations up to k are still held, and a W that takes time holds
    what its own stage has taken by then. One microbatch at a time, W at once, needs no more,
    unless a B takes memory for no time: it may share its instant with what gives back memory of
    other stages, and limits that this leaves open are decided by search.
    """
    ticks = pipeline.ticks
    need = 0
    for hosted in pipeline.hosted:
        held = 0
        for stage in hosted[device]:
            held += ticks.activation[stage] * pipeline.num_slices
            need = max(need, held)
            if fused:
                continue
            more = max(0, ticks.memory_b[stage])
            if ticks.durations[OpKind.B][stage]:
                need = max(need, held + more)
            elif ticks.durations[OpKind.W][stage]:
                need = max(need, ticks.activation[stage] + more)
    return ticks.static[device] + need


def infeasibility(pipeline: Pipeline, *, fused: bool) -> str | None:
    """Why no schedule keeps the memory limits, naming the least that would do; None if one can."""
    limits, ticks = pipeline.ticks.limits, pipeline.ticks
    if limits is None:
        return None
    least = [least_limit(pipeline, device, fused=fused) for device in range(pipeline.num_devices)]
    short = [device for device, need in enumerate(least) if need > limits[device]]
    if not short:
        return None
    device = max(short, key=lambda device: least[device] - limits[device])
    shown = [str(exact.plain(ticks.memory(amount))) for amount in (least[device], limits[device])]
    everywhere = exact.plain(ticks.memory(max(least)))
    return (
        f"device {device} needs {shown[0]} even for one microbatch at a time, its limit is "
        f"{shown[1]}; {_least_words(pipeline, fused=fused)} {everywhere}"
        f"{_whole_backwards_need_less(pipeline, max(least), fused=fused)}"
    )


def _least_words(pipeline: Pipeline, *, fused: bool) -> str:
    """What the largest `least_limit` of all devices is."""
    ticks, hosts, hosted = pipeline.ticks, pipeline.hosts[0], pipeline.hosted[0]
    at_once = (
        ticks.memory_b[stage] > 0 and not ticks.durations[OpKind.B][stage]
        for stage, host in enumerate(hosts)
        if len(hosted[host]) > 1
    )
    if not fused and any(at_once):
        return "one that works on every device is at least"
    return "the least limit that works on every device is"


def _whole_backwards_need_less(pipeline: Pipeline, least: int, *, fused: bool) -> str:
    devices = range(pipeline.num_devices)
    whole = max(least_limit(pipeline, device, fused=True) for device in devices)
    if fused or whole >= least:
        return ""
    amount = exact.plain(pipeline.ticks.memory(whole))
    return f" with every backward split, {amount} with every backward whole (--fused)"


def space(pipeline: Pipeline, *, fused: bool) -> str:
    """Which schedules a proof speaks of, where that matters; empty where it does not.

    A whole backward can be replaced by B and, at once, W, without loss, unless it is shorter than
    both, alone or in a pair, or B takes memory.
    """
    ticks = pipeline.ticks
    shorter = any(
        full < partial + weight
        for partial, weight, full in zip(*ticks.durations[OpKind.B :], strict=True)
    )
    if fused:
        return "; of the schedules whose backwards are all whole (--fused)"
    shorter = shorter or pairs.whole_pairs_shorter(pipeline)
    if shorter or max(ticks.memory_b) > 0:
        return "; of the schedules whose backwards are all split (--fused searches whole ones)"
    return ""


def device_bound(pipeline: Pipeline, objective: Objective, *, fused: bool) -> Bound:
    """Head + work + idle ends: a device waits for its first input, then does all its work.

    Makespan >= shortest way of a microbatch to the device + its work + the idle time at its ends
    (`ppopt.solver.bounds.idle_bounds`); device span >= the same without the way. Pairs take off
    what they can save at most.
    """
    best = _Needs(Bound(0, "nothing takes less than no time", Certificate(Argument.WORK)), False)
    for device in range(pipeline.num_devices):
        needs = _needs(pipeline, device, objective, fused=fused)
        if (needs.bound.value, not needs.idles) > (best.bound.value, not best.idles):
            best = needs
    return best.bound


class _Needs(NamedTuple):
    """What a device needs, and whether that counts idle time at its ends."""

    bound: Bound
    idles: bool


def _needs(pipeline: Pipeline, device: int, objective: Objective, *, fused: bool) -> _Needs:
    ticks = pipeline.ticks
    kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
    share = pipeline.batches // pipeline.routes * pipeline.num_slices
    work = share * sum(
        ticks.durations[kind][stage]
        for hosted in pipeline.hosted
        for stage in hosted[device]
        for kind in kinds
    )
    saved = pairs.most_saved(pipeline, device, fused=fused)
    heads = [
        Chain(pipeline, fused, route).head(hosted[device][0])
        for route, hosted in enumerate(pipeline.hosted)
        if hosted[device]
    ]
    head = min(heads) if objective is Objective.MAKESPAN else 0
    idle = idle_bounds.idle(pipeline, device, fused=fused)
    proof = f"device {device} alone has {_time(pipeline, work - saved)} of work"
    if saved:
        proof += ", all overlapped that can be,"
    if head:
        proof += f" after waiting {_time(pipeline, head)} for its first input"
    argument = Argument.ENDS if any(idle) else Argument.WORK
    value = head + work - saved + sum(idle)
    bound = Bound(value, proof + _ends(pipeline, idle), Certificate(argument, (device,)))
    return _Needs(bound, any(idle))


def _ends(pipeline: Pipeline, idle: idle_bounds.Idle) -> str:
    """Say in words where a device must idle."""
    parts = []
    if idle.first:
        parts.append(
            f"{_time(pipeline, idle.first)} before its first backward can come, when memory holds "
            "no further forward"
        )
    if idle.last:
        parts.append(
            f"{_time(pipeline, idle.last)} from its last forward to the backward of that "
            "microbatch, when memory held too few others"
        )
    return f", and must idle {' and '.join(parts)}" if parts else ""


def _time(pipeline: Pipeline, ticks: int) -> int | float:
    return exact.plain(Fraction(ticks, pipeline.ticks.per_unit))
