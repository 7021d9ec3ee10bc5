"""Lower bound on the makespan, or on the span of a device, by the link between it and its host.

All activations that the stages of a device offload go over this link, one at a time in each
direction, or one at a time on a shared link. The first move starts after F of its stage. After the
last move out, the activation comes back, and its backward and those of all stages below follow;
after the last move back, only the latter. The span of a device counts its own operations alone.
Times are those of `RouteTimes`: no operation is shorter.

Within a memory limit: what F retains is live during F, its moves and its backward at least, on the
device. The sum over all microbatches of amount times duration is at most headroom times the time
between the first F of the device and its last backward.
"""

from __future__ import annotations

from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.objective import Objective
from ppopt.solver.relaxation.route_times import RouteTimes


def host_link_bound(
    costs: InstanceCosts, route: RouteTimes, device: int, objective: Objective
) -> int:
    """Lower bound in ticks; 0 without offload. `route` is of a relaxation in the same ticks."""
    ticks, slices = costs.ticks, costs.pipeline.num_slices
    times, hosted = ticks.costs.offload_time, route.hosted[device]
    stages = [stage for stage in hosted if times[stage]]
    if not stages:
        return 0
    factors = [memory for _, memory in costs.factors]
    moves = {stage: [int(times[stage] * factor) for factor in factors] for stage in hosted}
    total = slices * sum(map(sum, moves.values()))
    move = {stage: min(moves[stage]) for stage in stages}
    makespan = objective is Objective.MAKESPAN
    head = {stage: route.head(stage) if makespan else 0 for stage in hosted}
    tail = {stage: route.tail(stage) if makespan else 0 for stage in hosted}
    before = {stage: head[stage] + route.forward[stage] for stage in stages}
    after = {stage: route.backward[stage] + tail[stage] for stage in stages}
    first, last = min(before.values()), min(after.values())
    bounds = [0]
    if costs.shares_host_link:
        bounds.append(first + 2 * total + last)
    else:
        bounds.append(first + total + min(move[stage] + after[stage] for stage in stages))
        bounds.append(min(before[stage] + move[stage] for stage in stages) + total + last)
    if ticks.limits is not None and (headroom := ticks.limits[device] - ticks.static[device]) > 0:
        area = 0
        for stage in hosted:
            live = ticks.costs.kept[stage]
            alone = route.forward[stage] + route.backward[stage]
            area += slices * sum(
                int(live * factor) * (alone + 2 * time)
                for factor, time in zip(factors, moves[stage], strict=True)
            )
        bounds.append(min(head.values()) + -(-area // headroom) + min(tail.values()))
    return max(bounds)
