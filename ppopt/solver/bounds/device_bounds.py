"""One-device bounds (head + work + forced idle time + tail) and memory feasibility checks.

These take no search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.gradient_work import gathered_throughout, is_gathered_exact
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Mode
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.arguments import MINIMUM_MEMORY, WORK
from ppopt.solver.bound import TRIVIAL, Bound
from ppopt.solver.bounds import idle_bounds
from ppopt.solver.bounds.heads_and_tails import NO_HEAD_TAIL, HeadsAndTails, HeadTail
from ppopt.solver.bounds.microbatch_bounds import microbatch_bound
from ppopt.solver.bounds.proof_scope import of_relaxation
from ppopt.solver.relaxation import pairs
from ppopt.solver.relaxation.delays import Delays


def minimum_memory(instance: Instance) -> list[int]:
    """Memory without which no schedule can run, per device, in ticks of memory.

    Consider one microbatch on a device. When F of its k-th hosted stage starts, the device holds
    what the F of the first k hosted stages keep, because their backwards come later. All slices of
    a microbatch count, because all its F precede its first B. A B (or BW) of stage k that takes
    time also holds what it takes itself (its workspace, and with recompute what F did not keep),
    and a W that takes time also holds what its own stage keeps until then. What F and W hold only
    while they run counts too. If backwards are mixed, the kind counts that holds less.

    A schedule of one microbatch at a time, with every W right after its B, needs no more. There are
    two exceptions, in which the search decides whether a limit suffices. Operations of no length
    that take memory may share an instant with releases of other stages. A W with a workspace, of a
    device with several stages, may come before or after the backwards of the others.

    Where microbatches differ, it is the memory of the largest of a route.
    """
    routes, devices = range(instance.pipeline.routes), range(instance.pipeline.num_devices)
    if Trait.MICROBATCHES not in instance.traits:
        delays = [Delays(instance, route) for route in routes]
        return [_minimum_device_memory(delays, device) for device in devices]
    per_route = [_of_largest(instance, route) for route in routes]
    return [max(needs) for needs in zip(*per_route, strict=True)]


def _of_largest(instance: Instance, route: int) -> list[int]:
    """Memory that every device needs for the largest microbatch of a route alone."""
    pipeline = instance.pipeline
    largest = pipeline.with_largest_microbatches(route)
    finer = pipeline.ticks.memory_per_unit // largest.ticks.memory_per_unit
    delays = [Delays(replace(instance, pipeline=largest), route)]
    devices = range(pipeline.num_devices)
    return [finer * _minimum_device_memory(delays, device) for device in devices]


def _minimum_device_memory(routes: list[Delays], device: int) -> int:
    """Minimum memory of one device; see `minimum_memory`. Static memory if that does not apply."""
    pipeline = routes[0].instance.pipeline
    if not MINIMUM_MEMORY.applies(routes[0].instance.traits):
        return pipeline.ticks.static[device]
    throughout = int(gathered_throughout(pipeline)[device] * pipeline.ticks.memory_per_unit)
    need = 0
    for delays in routes:
        held = 0
        for stage in delays.hosted[device]:
            forward, *backwards = delays.operations[stage]
            held += forward.change * pipeline.num_slices
            need = max(need, held, held + (forward.frees if forward.duration else 0))
            ways = zip(*(op_class.modes_by_option for op_class in backwards), strict=True)
            need = max(need, min(_held_by_backward(held, forward.change, way) for way in ways))
    return pipeline.ticks.static[device] + throughout + need


def _held_by_backward(held: int, own: int, modes: Iterable[Mode | None]) -> int:
    """Memory held while BW runs, or B and then W: `held` before it, of which `own` is its own."""
    present = [mode for mode in modes if mode is not None]
    if not present:
        return held
    backward, *weight = present
    own += backward.change
    during = [held + backward.allocates if backward.duration else 0]
    return max(during + [own + mode.allocates for mode in weight if mode.duration])


def infeasibility(instance: Instance) -> str | None:
    """Why no schedule meets the memory limits, with the least limit; None if one may exist."""
    ticks = instance.pipeline.ticks
    limits = ticks.limits
    if limits is None:
        return None
    least = minimum_memory(instance)
    short = [device for device, need in enumerate(least) if need > limits[device]]
    if not short:
        return None
    device = max(short, key=lambda device: least[device] - limits[device])
    shown = [instance.pipeline.memory_text(amount) for amount in (least[device], limits[device])]
    everywhere = instance.pipeline.memory_text(max(least))
    return (
        f"device {device} needs {shown[0]} even for one microbatch at a time, its limit is "
        f"{shown[1]}; {_minimum_words(instance)} {everywhere}"
        f"{_whole_backwards_need_less(instance, max(least))}"
    )


def _minimum_words(instance: Instance) -> str:
    """Text on the largest minimum memory of all devices, exact but for two cases."""
    hosted = instance.pipeline.hosted
    at_once = (
        mode.allocates and (mode.kind is OpKind.W or not mode.duration)
        for operation_class in instance.classes
        for mode in operation_class.modes
        if mode is not None
        and mode.kind is not OpKind.F
        and len(hosted[operation_class.route][operation_class.device]) > 1
    )
    if any(at_once) or not is_gathered_exact(instance.pipeline):
        return "one that works on every device is at least"
    return "the least limit that works on every device is"


def _whole_backwards_need_less(instance: Instance, least: int) -> str:
    if instance.backward_kind is not BackwardKind.SPLIT:
        return ""
    need = max(minimum_memory(Instance.of(instance.pipeline, BackwardKind.WHOLE)))
    if need >= least:
        return ""
    amount = instance.pipeline.memory_text(need)
    return f" with every backward split, {amount} with every backward whole (--backward whole)"


def known_bound(problem: Problem, *, any_order: bool = False) -> Bound:
    """Bound known before the search: that of a device, perhaps of the relaxation.

    With `any_order` it holds for every order of microbatches that differ.
    """
    around, objective = HeadsAndTails.around_compute(problem), problem.objective
    heads_tails = () if around is None else around.devices
    bound = of_relaxation(problem, device_bound(problem.relaxed.instance, objective, heads_tails))
    if Trait.MICROBATCHES not in problem.traits:
        return bound
    unlimited = problem.relaxed_memory
    differing = [
        device_bound(unlimited.instance, objective, heads_tails),
        microbatch_bound(unlimited, any_order=any_order),
    ]
    kept = frozenset({Trait.MICROBATCHES})
    bounds = [bound, *(of_relaxation(problem, other, kept) for other in differing)]
    return max(bounds, key=lambda bound: bound.value)


def device_infeasible(routes: list[Delays], device: int) -> bool:
    """Whether a device has no memory for one microbatch at a time."""
    limits = routes[0].instance.pipeline.ticks.limits
    return limits is not None and _minimum_device_memory(routes, device) > limits[device]


def device_bound(
    instance: Instance, objective: Objective, heads_tails: Sequence[HeadTail] = ()
) -> Bound:
    """Largest one-device bound: head + work + forced idle time + tail.

    `heads_tails` are heads and tails by other operations (`ppopt.solver.bounds.heads_and_tails`),
    per device.

    Makespan >= head (least delay until the first input arrives) + work of the device + its forced
    idle time (`ppopt.solver.bounds.idle_bounds`) + tail. Device span >= the same without head and
    tail. The most that overlapped pairs can save is subtracted.

    The tail is 0 unless backwards are whole. Then every operation of the device is followed there
    by the BW of the lowest stage of its route, of the same microbatch. So one of these BW ends
    last, head + work + idle time after 0 or later, and its gradient still has to pass the stages
    below: their BW and the links. With two routes the tail is the shorter one.
    """
    routes = [Delays(instance, route) for route in range(instance.pipeline.routes)]
    bounds = [
        TRIVIAL,
        *(
            one_device_bound(routes, device, objective, *heads_tails[device : device + 1])
            for device in range(instance.pipeline.num_devices)
        ),
    ]
    return max(bounds, key=lambda bound: (bound.value, bound.certificate.argument is Argument.WORK))


def one_device_bound(
    routes: list[Delays], device: int, objective: Objective, head_tail: HeadTail = NO_HEAD_TAIL
) -> Bound:
    """Head + work + forced idle time + tail of one device; head and tail at least `head_tail`.

    Where microbatches differ, idle time and savings of pairs hold if all are as short as the
    shortest: the work counts without them, or is that of the shortest as well.
    """
    instance, pipeline = routes[0].instance, routes[0].instance.pipeline
    if not WORK.applies(instance.traits):
        return TRIVIAL
    times = [row for row in map(instance.times, instance.hosted[device]) if row]
    work, shortest = sum(map(sum, times)), sum(len(row) * min(row) for row in times)
    saved = pairs.most_saved(instance, device)
    idle = idle_bounds.forced_idle(routes[0], device)
    if saved or shortest + sum(idle) >= work:
        work = shortest
    else:
        idle = idle_bounds.ForcedIdle(0, 0)
    head = tail = 0
    if objective is Objective.MAKESPAN:
        lowest = [(delays, delays.hosted[device][0]) for delays in routes]
        head = min(delays.head(stage) for delays, stage in lowest)
        if instance.fused:
            tail = min(delays.tail(stage) for delays, stage in lowest)
    gradient_comes_up = tail >= head_tail.tail
    head, tail = max(head, head_tail.head), max(tail, head_tail.tail)
    proof = f"device {device} alone has {pipeline.time_text(work - saved)} of work"
    if saved:
        proof += ", all overlapped that can be,"
    if head:
        proof += f" after waiting {pipeline.time_text(head)} for its first input"
    argument = Argument.ENDS if any(idle) else Argument.WORK
    proof += _ends(pipeline, idle)
    if tail and not gradient_comes_up:
        proof += f", and {pipeline.time_text(tail)} for what follows its last operation"
    elif tail:
        proof += f", and {pipeline.time_text(tail)} for its last gradient to come up to stage 0"
    value = head + work - saved + sum(idle) + tail
    return Bound(value, proof, Certificate(argument, (device,)))


def _ends(pipeline: Pipeline, idle: idle_bounds.ForcedIdle) -> str:
    """Text on where a device must idle."""
    parts = []
    if idle.first:
        parts.append(
            f"{pipeline.time_text(idle.first)} before its first backward can come, when memory "
            "holds no further forward"
        )
    if idle.last:
        parts.append(
            f"{pipeline.time_text(idle.last)} from its last forward to the backward of that "
            "microbatch, when memory held too few others"
        )
    return f", and must idle {' and '.join(parts)}" if parts else ""
