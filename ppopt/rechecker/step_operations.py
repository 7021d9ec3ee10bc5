"""Claims of compute alone, without unshard, gradient sync, optimizer, and moves to the host.

All compute of a device lies between the time before its first operation and the time after its
last one (`ppopt.rechecker.precedence`). Gathered weights are live from the start of UNSHARD to the
end of GRADIENT_SYNC. OFFLOAD moves a part of an activation to the host after F, RELOAD moves it
back before B or BW. Without them that part is live while F runs and from the start of the backward
on; every schedule needs at least that.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from operator import add, sub
from typing import Any

from ppopt.problem.cost_table import STEP_FIELDS
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.precedence import Precedence

NONE = Fraction(0)
HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, FORMS) - {
    *(Trait.MIXED, Trait.UNEQUAL_SLICES),
}
"""Traits of the claims that `of_compute` reduces to compute alone."""


def live_weights(claim: Claim, device: int) -> int:
    """Gathered weights that are live during all compute of a device, in ticks.

    On one route on which only F allocates, the peak comes when the last of the device's stages has
    begun and none has ended, so the weights of all stages count. Otherwise F, B and BW run between
    the first F and the last W or BW of the lowest stage of their route on the device, so the
    weights of that stage count. A later W of another stage only frees memory, unless it has
    workspace: then no weights count. The weights of a stage without backward are live only to its
    last F, so none count on its device.
    """
    pipeline, amounts = claim.pipeline, claim.pipeline.ticks.costs.unshard_memory
    stages = [[s for s, host in enumerate(hosts) if host == device] for hosts in pipeline.hosts]
    own_stages = [stage for route in stages for stage in route]
    if not all(claim.has(OpKind.B, stage) for stage in own_stages):
        return 0
    ticks = pipeline.ticks
    f_alone = not any(
        ticks.retained[stage] != ticks.costs.activation[stage]
        or ticks.costs.memory_b[stage] > 0
        or any(row[stage] for row in ticks.workspace)
        for stage in own_stages
    )
    if len(own_stages) == 1 or (pipeline.routes == 1 and f_alone):
        return sum(amounts[stage] for stage in own_stages)
    if any(ticks.workspace[OpKind.W][stage] for route in stages for stage in route[1:]):
        return 0
    return min(amounts[route[0]] for route in stages if route)


def of_compute(claim: Claim) -> Claim:
    """A claim of compute alone that implies this one; the same claim if there is nothing else.

    All compute lies between the minimum head and the minimum tail; for the device span, on every
    device between its own head and tail.
    """
    pipeline = claim.pipeline
    if not claim.has_only(HANDLES):
        return claim
    if pipeline.has_offload:
        return of_compute(claim._replace(pipeline=_unmoved(pipeline)))
    if not pipeline.has_gradient_work:
        return claim
    devices = range(pipeline.num_devices)
    each = Precedence.of_microbatch(claim)
    heads, tails = (
        [margins.on[device] for device in devices] for margins in (each.head, each.tail)
    )
    margin = min(heads) + min(tails)
    if claim.span:
        margin = min(map(add, heads, tails))
    limits = pipeline.limits
    if limits is not None:
        unit = pipeline.ticks.memory_per_unit
        weights = [Fraction(live_weights(claim, device), unit) for device in devices]
        limits = tuple(max(NONE, limit - own) for limit, own in zip(limits, weights, strict=True))
    fields: dict[str, Any] = dict.fromkeys(STEP_FIELDS)
    bare = pipeline.without_model()
    compute_only = replace(
        bare, **fields, mem_limit=limits, optimizer_barrier=False, link_mode=LinkMode.DELAY
    )
    bound = None if claim.bound is None else claim.bound - margin
    return claim._replace(pipeline=compute_only, bound=bound)


def _unmoved(pipeline: Pipeline) -> Pipeline:
    """The pipeline without offload: F frees the offloaded part, the backward allocates it."""
    stages = pipeline.without_model()
    costs = stages.costs
    offloaded = costs.offload_memory
    fields = {
        "kept": tuple(map(sub, costs.kept, offloaded)),
        "forward_workspace": tuple(map(add, costs.forward_workspace, offloaded)),
        "recompute_memory": tuple(map(add, costs.recompute_memory, offloaded)),
    }
    return stages.with_stage_costs(fields | {"offload_memory": (), "offload_time": ()})
