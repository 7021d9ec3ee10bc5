"""Lower bound on the makespan by the link between a device and its host.

All activations that the stages of a device offload go over this link, one at a time in each
direction, or one at a time on a shared link. The first move starts after F of its stage. After the
last move out, the activation comes back, and its backward and those of all stages below follow;
after the last move back, only the latter. Times are those of `RouteTimes`: no operation is shorter.
"""

from __future__ import annotations

from ppopt.problem.instance_costs import InstanceCosts
from ppopt.solver.relaxation.route_times import RouteTimes


def host_link_bound(costs: InstanceCosts, route: RouteTimes, device: int, *, shared: bool) -> int:
    """Lower bound in ticks; 0 without offload. `route` is of a relaxation in the same ticks.

    `shared`: both directions share the link.
    """
    times = costs.ticks.costs.offload_time
    stages = [stage for stage in route.hosted[device] if times[stage]]
    if not stages:
        return 0
    factors = [memory for _, memory in costs.factors]
    total = sum(times[stage] for stage in stages) * costs.pipeline.num_slices * sum(factors)
    move = {stage: times[stage] * min(factors) for stage in stages}
    before = {stage: route.head(stage) + route.forward[stage] for stage in stages}
    after = {stage: route.backward[stage] + route.tail(stage) for stage in stages}
    first, last = min(before.values()), min(after.values())
    if shared:
        return int(first + 2 * total + last)
    out = first + total + min(move[stage] + after[stage] for stage in stages)
    back = min(before[stage] + move[stage] for stage in stages) + total + last
    return int(max(out, back))
