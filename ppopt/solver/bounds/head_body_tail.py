"""Lower bounds and limits that need no search, each with its certificate in words."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.problem import exact
from ppopt.problem.instance import WHOLE, Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bounds import idle_bounds
from ppopt.solver.cp_sat import pairs
from ppopt.solver.cp_sat.delays import Delays


class Bound(NamedTuple):
    """A proved lower bound, in ticks, and the argument for it, in words and to be checked again."""

    value: int
    proof: str
    certificate: Certificate


def least_limits(instance: Instance) -> list[int]:
    """Memory without which each device cannot run at all, in ticks.

    Of a microbatch cut into slices, all F come before the first B, so that all slices count. When
    F of the k-th hosted stage starts for a microbatch, what the F of the hosted stages up to k
    keep is all held, since their backwards come after. A B (or BW) of stage k that takes time holds
    what it takes in addition, and a W that takes time holds what its own stage has taken by then.
    One microbatch at a time, W at once, needs no more, unless an operation takes memory for no
    time: it may share its instant with what gives back memory of other stages, and limits that
    this leaves open are decided by search.

    What F and W hold only while they run counts too; today neither holds any.
    """
    routes = [Delays(instance, route) for route in range(instance.pipeline.routes)]
    return [_least_limit(routes, device) for device in range(instance.pipeline.num_devices)]


def _least_limit(routes: list[Delays], device: int) -> int:
    """Least memory of one device; see `least_limits`."""
    pipeline = routes[0].instance.pipeline
    need = 0
    for delays in routes:
        held = 0
        for stage in delays.hosted[device]:
            forward, backward, *weight = delays.operations[stage]
            held += forward.change * pipeline.num_slices
            own = forward.change + backward.change
            lasting = [
                amount
                for one, amount in (
                    (forward, held + forward.gives),
                    (backward, held + backward.takes),
                    *((one, own + one.takes) for one in weight),
                )
                if one.duration
            ]
            need = max(need, held, *lasting)
    return pipeline.ticks.static[device] + need


def infeasibility(instance: Instance) -> str | None:
    """Why no schedule keeps the memory limits, naming the least that would do; None if one can."""
    ticks = instance.pipeline.ticks
    limits = ticks.limits
    if limits is None:
        return None
    least = least_limits(instance)
    short = [device for device, need in enumerate(least) if need > limits[device]]
    if not short:
        return None
    device = max(short, key=lambda device: least[device] - limits[device])
    shown = [str(exact.plain(ticks.memory(amount))) for amount in (least[device], limits[device])]
    everywhere = exact.plain(ticks.memory(max(least)))
    return (
        f"device {device} needs {shown[0]} even for one microbatch at a time, its limit is "
        f"{shown[1]}; {_least_words(instance)} {everywhere}"
        f"{_whole_backwards_need_less(instance, max(least))}"
    )


def _least_words(instance: Instance) -> str:
    """What the largest `least_limit` of all devices is."""
    hosted = instance.pipeline.hosted
    at_once = (
        one.takes and not one.duration
        for one in instance.classes
        if one.kind is OpKind.B and len(hosted[one.route][one.device]) > 1
    )
    if any(at_once):
        return "one that works on every device is at least"
    return "the least limit that works on every device is"


def _whole_backwards_need_less(instance: Instance, least: int) -> str:
    if instance.fused:
        return ""
    need = max(least_limits(Instance(instance.pipeline, WHOLE)))
    if need >= least:
        return ""
    amount = exact.plain(instance.pipeline.ticks.memory(need))
    return f" with every backward split, {amount} with every backward whole (--fused)"


def space(instance: Instance) -> str:
    """Which schedules a proof speaks of, where that matters; empty where it does not.

    A whole backward can be replaced by B and, at once, W, without loss, unless it is shorter than
    both, alone or in a pair, or B takes memory.
    """
    if instance.fused:
        return "; of the schedules whose backwards are all whole (--fused)"
    durations = instance.pipeline.ticks.durations
    shorter = any(
        full < partial + weight
        for partial, weight, full in zip(*durations[OpKind.B :], strict=True)
    )
    takes = any(one.takes for one in instance.classes if one.kind is OpKind.B)
    if shorter or takes or pairs.whole_pairs_shorter(instance.pipeline):
        return "; of the schedules whose backwards are all split (--fused searches whole ones)"
    return ""


def device_bound(instance: Instance, objective: Objective) -> Bound:
    """Head + work + idle ends: a device waits for its first input, then does all its work.

    Makespan >= shortest way of a microbatch to the device + its work + the idle time at its ends
    (`ppopt.solver.bounds.idle_bounds`); device span >= the same without the way. What pairs can
    save at most is taken off.
    """
    routes = [Delays(instance, route) for route in range(instance.pipeline.routes)]
    bounds = [
        Bound(0, "nothing takes less than no time", Certificate(Argument.WORK)),
        *(_needed(routes, device, objective) for device in range(instance.pipeline.num_devices)),
    ]
    return max(bounds, key=lambda bound: (bound.value, bound.certificate.argument is Argument.WORK))


def _needed(routes: list[Delays], device: int, objective: Objective) -> Bound:
    """What one device needs."""
    instance, pipeline = routes[0].instance, routes[0].instance.pipeline
    hosted = instance.hosted[device]
    work = instance.batches * sum(instance.classes[number].duration for number in hosted)
    saved = pairs.most_saved(instance, device)
    idle = idle_bounds.idle(routes[0], device)
    head = 0
    if objective is Objective.MAKESPAN:
        head = min(delays.head(delays.hosted[device][0]) for delays in routes)
    proof = f"device {device} alone has {_time(pipeline, work - saved)} of work"
    if saved:
        proof += ", all overlapped that can be,"
    if head:
        proof += f" after waiting {_time(pipeline, head)} for its first input"
    argument = Argument.ENDS if any(idle) else Argument.WORK
    value = head + work - saved + sum(idle)
    return Bound(value, proof + _ends(pipeline, idle), Certificate(argument, (device,)))


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
