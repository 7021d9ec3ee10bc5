"""One-device bounds (head + work + forced idle time + tail) and memory feasibility checks.

They need no search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.gradient_work import gathered_throughout, is_gathered_exact
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Mode
from ppopt.problem.problem import Problem
from ppopt.problem.relaxations import largest_microbatches, without_blocking
from ppopt.problem.traits import Trait
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.arguments import MINIMUM_MEMORY, WORK
from ppopt.solver.bound import TRIVIAL, Bound
from ppopt.solver.bounds import idle_bounds
from ppopt.solver.bounds.heads_and_tails import NO_HEAD_TAIL, HeadsAndTails, HeadTail
from ppopt.solver.bounds.host_link_bound import host_link_bound
from ppopt.solver.bounds.microbatch_bounds import microbatch_bound
from ppopt.solver.bounds.proof_scope import of_relaxation
from ppopt.solver.relaxation import pairs
from ppopt.solver.relaxation.route_times import RouteTimes


def minimum_memory(instance: Instance) -> list[int]:
    """Minimum memory limit of every device, below which no schedule exists, in ticks of memory.

    Consider one microbatch on a device. When F of its k-th hosted stage starts, the activations of
    the first k hosted stages are live, because their backwards come later. All slices of a
    microbatch count, because all its F precede its first B. While a B (or BW) of stage k with a
    duration above 0 runs, its own allocation is live as well: its workspace and, with recompute,
    what F did not keep. While such a W runs, what its own stage has allocated is live as well. The
    workspaces of F and W count too. If backwards are mixed, the kind with less live memory counts.

    A schedule of one microbatch at a time, with every W right after its B, needs no more. In two
    cases the search must decide whether a limit suffices. Operations of duration 0 that allocate
    memory may start when other stages free theirs. A W with a workspace, on a device with several
    stages, may run before or after the backwards of the other stages.

    If microbatches differ, the largest one of each route counts.
    """
    routes, devices = range(instance.pipeline.routes), range(instance.pipeline.num_devices)
    if Trait.MICROBATCHES not in instance.traits:
        times = [RouteTimes(instance, route) for route in routes]
        return [_minimum_device_memory(times, device) for device in devices]
    per_route = [_of_largest(instance, route) for route in routes]
    return [max(needs) for needs in zip(*per_route, strict=True)]


def _of_largest(instance: Instance, route: int) -> list[int]:
    """Memory that every device needs for the largest microbatch of a route alone."""
    times = [RouteTimes(largest_microbatches(instance, route), route)]
    devices = range(instance.pipeline.num_devices)
    return [_minimum_device_memory(times, device) for device in devices]


def _minimum_device_memory(routes: list[RouteTimes], device: int) -> int:
    """Minimum memory of one device (see `minimum_memory`); static memory if that does not apply."""
    instance, need = routes[0].instance, 0
    static = instance.costs.ticks.static[device]
    if not MINIMUM_MEMORY.applies(instance.traits):
        return static
    throughout = gathered_throughout(instance.costs)[device]
    for route in routes:
        live = 0
        for stage in route.hosted[device]:
            forward, *backwards = route.operations[stage]
            live += forward.change * instance.pipeline.num_slices
            need = max(need, live, live + (forward.frees if forward.duration else 0))
            ways = zip(*(op_class.modes_by_option for op_class in backwards), strict=True)
            need = max(need, min(_live_during_backward(live, forward.change, way) for way in ways))
    return static + throughout + need


def _live_during_backward(live: int, own: int, modes: Iterable[Mode | None]) -> int:
    """Live memory while BW runs, or B and then W; `live` before it, `own` of it by this stage."""
    present = [mode for mode in modes if mode is not None]
    if not present:
        return live
    backward, *weight = present
    own += backward.change
    during = [live + backward.allocates if backward.duration else 0]
    return max(during + [own + mode.allocates for mode in weight if mode.duration])


def infeasibility(instance: Instance) -> str | None:
    """Why no schedule meets the memory limits, with the minimum limit; None if one may exist."""
    limits = instance.costs.ticks.limits
    if limits is None:
        return None
    minima = minimum_memory(instance)
    short = [device for device, need in enumerate(minima) if need > limits[device]]
    if not short:
        return None
    device = max(short, key=lambda device: minima[device] - limits[device])
    amounts = [instance.pipeline.memory_text(amount) for amount in (minima[device], limits[device])]
    everywhere = instance.pipeline.memory_text(max(minima))
    return (
        f"device {device} needs {amounts[0]} even for one microbatch at a time, and its limit is "
        f"{amounts[1]}; {_minimum_limit_text(instance)} {everywhere}"
        f"{_whole_backwards_text(instance, max(minima))}"
    )


def _minimum_limit_text(instance: Instance) -> str:
    """Text for the largest minimum memory of all devices; exact except in two cases."""
    hosted = instance.pipeline.hosted
    at_once = (
        mode.allocates and (mode.kind is OpKind.W or not mode.duration)
        for operation_class in instance.classes
        for mode in operation_class.modes
        if mode is not None
        and mode.kind is not OpKind.F
        and len(hosted[operation_class.route][operation_class.resource]) > 1
    )
    if any(at_once) or not is_gathered_exact(instance.costs):
        return "a limit for all devices must be at least"
    return "the minimum feasible limit for all devices is"


def _whole_backwards_text(instance: Instance, split_minimum: int) -> str:
    if instance.backward_kind is not BackwardKind.SPLIT:
        return ""
    need = max(minimum_memory(Instance.of(instance.pipeline, BackwardKind.WHOLE)))
    if need >= split_minimum:
        return ""
    amount = instance.pipeline.memory_text(need)
    return f" with every backward split, {amount} with every backward whole (--backward whole)"


def known_bound(problem: Problem, *, any_order: bool = False) -> Bound:
    """Bound that is known before the search: of one device, possibly of the relaxed problem.

    With `any_order` it holds for every order of different microbatches.
    """
    if Trait.BLOCKING in problem.traits:
        problem = problem.relaxed_by(without_blocking)
    around, objective = HeadsAndTails.around_compute(problem), problem.objective
    heads_tails = () if around is None else around.devices
    own = device_bound(problem.relaxed.instance, objective, heads_tails), _by_moves(problem)
    bound = of_relaxation(problem, max(own, key=lambda bound: bound.value))
    if Trait.MICROBATCHES not in problem.traits:
        return bound
    unlimited = problem.relaxed_memory
    differing = [
        device_bound(unlimited.instance, objective, heads_tails),
        microbatch_bound(unlimited, any_order=any_order),
    ]
    retained = frozenset({Trait.MICROBATCHES})
    bounds = [
        bound,
        *(of_relaxation(problem, relaxed_bound, retained) for relaxed_bound in differing),
    ]
    return max(bounds, key=lambda bound: bound.value)


def _by_moves(problem: Problem) -> Bound:
    """Largest bound by the link of a device to its host; trivial with two routes."""
    pipeline = problem.pipeline
    if Trait.OFFLOAD not in problem.traits or pipeline.routes > 1:
        return TRIVIAL
    route, costs = RouteTimes(problem.relaxed.instance), problem.instance.costs
    value, device = max(
        (host_link_bound(costs, route, device, problem.objective), device)
        for device in range(pipeline.num_devices)
    )
    proof = f"device {device} and its host need {pipeline.time_text(value)} for all moves"
    return Bound(value, proof, Certificate(Argument.MOVES, (device,)))


def device_infeasible(routes: list[RouteTimes], device: int) -> bool:
    """Whether the memory limit of a device is too small even for one microbatch at a time."""
    limits = routes[0].instance.costs.ticks.limits
    return limits is not None and _minimum_device_memory(routes, device) > limits[device]


def device_bound(
    instance: Instance, objective: Objective, heads_tails: Sequence[HeadTail] = ()
) -> Bound:
    """Largest one-device bound: head + work + forced idle time + tail.

    `heads_tails` are the heads and tails of every device that other operations add
    (`ppopt.solver.bounds.heads_and_tails`).

    Makespan >= head (minimum delay until the first input arrives) + work of the device + its forced
    idle time (`ppopt.solver.bounds.idle_bounds`) + tail. Device span >= the same without head and
    tail. The maximum savings of overlapped pairs are subtracted.

    The tail is 0 unless backwards are whole. Then every operation of the device is followed there
    by the BW of the lowest stage of its route, of the same microbatch. So one of these BW ends
    last, head + work + idle time after 0 or later, and its gradient still has to pass the stages
    below: their BW and the links. With two routes the tail is the shorter one.
    """
    routes = [RouteTimes(instance, route) for route in range(instance.pipeline.routes)]
    bounds = [
        TRIVIAL,
        *(
            one_device_bound(routes, device, objective, *heads_tails[device : device + 1])
            for device in range(instance.pipeline.num_devices)
        ),
    ]
    return max(bounds, key=lambda bound: (bound.value, bound.certificate.argument is Argument.WORK))


def one_device_bound(
    routes: list[RouteTimes], device: int, objective: Objective, head_tail: HeadTail = NO_HEAD_TAIL
) -> Bound:
    """Head + work + forced idle time + tail of one device; head and tail at least `head_tail`.

    If microbatches differ, idle time and savings of pairs are those of the shortest microbatch. So
    either the full work counts alone, or the work of the shortest one counts together with them.
    """
    instance, pipeline = routes[0].instance, routes[0].instance.pipeline
    if not WORK.applies(instance.traits):
        return TRIVIAL
    times = [row for row in map(instance.times, instance.hosted[device]) if row]
    work, shortest = sum(map(sum, times)), sum(len(row) * min(row) for row in times)
    saved = pairs.max_saved(instance, device)
    idle = idle_bounds.forced_idle(routes[0], device)
    if saved or shortest + sum(idle) >= work:
        work = shortest
    else:
        idle = idle_bounds.ForcedIdle(0, 0)
    head = tail = 0
    if objective is Objective.MAKESPAN:
        lowest = [(route, route.hosted[device][0]) for route in routes]
        head = min(route.head(stage) for route, stage in lowest)
        if instance.fused:
            tail = min(route.tail(stage) for route, stage in lowest)
    gradient_comes_up = tail >= head_tail.tail
    head, tail = max(head, head_tail.head), max(tail, head_tail.tail)
    parts = [f"{pipeline.time_text(work - saved)} of work"]
    if saved:
        parts[0] += " (with all pairs overlapped that can be)"
    if head:
        parts.append(f"{pipeline.time_text(head)} until its first input arrives")
    if any(idle):
        parts.append(_describe_idle(instance, idle))
    if tail and not gradient_comes_up:
        parts.append(f"{pipeline.time_text(tail)} for what follows its last operation")
    elif tail:
        parts.append(f"{pipeline.time_text(tail)} until its last gradient reaches stage 0")
    proof = f"device {device} is the bottleneck: {' plus '.join(parts)}"
    argument = Argument.ENDS if any(idle) else Argument.WORK
    value = head + work - saved + sum(idle) + tail
    return Bound(value, proof, Certificate(argument, (device,)))


def _describe_idle(instance: Instance, idle: idle_bounds.ForcedIdle) -> str:
    """Text on where a device must idle, and why."""
    pipeline, limits = instance.pipeline, instance.costs.ticks.limits
    places = {"before its first backward": idle.first, "after its last forward": idle.last}
    times = [f"{pipeline.time_text(time)} {place}" for place, time in places.items() if time]
    cause = "the memory limit forces it" if limits else "microbatches are too few"
    return f"idle time of {' and '.join(times)} ({cause})"
