"""Operations besides F, B, W and BW: unshard, gradient sync, optimizer, and moves to the host.

UNSHARD of a stage ends before its first F starts. GRADIENT_SYNC starts after its last operation has
ended. Both run on the collective queue of the device, one at a time. OPTIMIZER of a device runs on
compute after the syncs of its stages, or of all stages with a barrier; without syncs, after their
last W or BW. No optimizer waits for a frozen stage. Gathered weights are live from the start of
UNSHARD to the end of GRADIENT_SYNC.

OFFLOAD moves a part of an activation to the host after F, RELOAD moves it back before B or BW. A
claim counts that part as live while F runs and from the start of the backward on; every schedule
needs at least that (`Ticks.retained`).

Margins. When F(k) of a stage starts, all lower stages on its device and route have begun that
microbatch, so their UNSHARDs and its own have ended: their sum is a release time of F(k). After the
last operation of a device, of stage k say, GRADIENT_SYNC of k and the optimizer still have to run.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from operator import add, sub
from typing import Any, NamedTuple

from ppopt.problem.cost_table import STEP_FIELDS
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.route_delays import RouteDelays

NONE = Fraction(0)
HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, FORMS) - {
    *(Trait.MIXED, Trait.UNEQUAL_SLICES),
}
"""Traits of the claims that `of_compute` reduces to compute alone."""


class CollectiveTimes(NamedTuple):
    """Times of the operations of a stage, in ticks; None: there is no such operation."""

    unshard: int | None
    sync: int | None


def times_of(claim: Claim, stage: int) -> CollectiveTimes:
    """Times of a stage's collectives; if any stage has a kind, or gathered weights, all have it."""
    costs = claim.pipeline.ticks.costs
    gathered = any(costs.unshard_memory)
    unshard, sync = (
        row[stage] if gathered or any(row) else None for row in (costs.unshard, costs.gradient_sync)
    )
    return CollectiveTimes(unshard, sync)


def trained_stages(pipeline: Pipeline) -> set[int]:
    """Stages that are not frozen: optimizers wait for these alone."""
    return {stage for stage, frozen in enumerate(pipeline.frozen_stages) if not frozen}


def optimizer_time(claim: Claim, device: int) -> int | None:
    """Time of a device's optimizer; None if it has none, as if all its stages are frozen."""
    optimizer = claim.pipeline.ticks.costs.optimizer
    stages = [stage for hosted in claim.pipeline.hosted for stage in hosted[device]]
    if not any(optimizer) or trained_stages(claim.pipeline).isdisjoint(stages):
        return None
    return sum(optimizer[stage] for stage in stages)


def has_instants(claim: Claim) -> bool:
    """Whether some of these operations have no length."""
    pipeline = claim.pipeline
    times = [time for stage in range(pipeline.num_stages) for time in times_of(claim, stage)]
    times += [optimizer_time(claim, device) for device in range(pipeline.num_devices)]
    return 0 in times


def head(claim: Claim, device: int) -> int:
    """Minimum time before a device computes, in ticks, from 0 or (span) its first operation."""
    heads = []
    for hosts in claim.pipeline.hosts:
        if device not in hosts:
            continue
        lowest, way = hosts.index(device), RouteDelays(claim, hosts)
        if claim.span:
            heads.append(_release(claim, hosts, lowest))
            continue
        down = [way.way(OpKind.F, stage) for stage in range(lowest + 1)]
        heads.append(
            max(
                _release(claim, hosts, stage) + down[lowest] - down[stage]
                for stage in range(lowest + 1)
            )
        )
    return min(heads)


def _release(claim: Claim, hosts: tuple[int, ...], stage: int) -> int:
    """Time before the first F of a stage: the unshards of its device and route up to it."""
    unshard = claim.pipeline.ticks.costs.unshard
    return sum(unshard[low] for low in range(stage + 1) if hosts[low] == hosts[stage])


def tail(claim: Claim, device: int) -> int:
    """Minimum time after a device's last compute, in ticks, to the makespan or (span) its end."""
    return min(
        _after(claim, hosts, stage)
        for hosts in claim.pipeline.hosts
        for stage, host in enumerate(hosts)
        if host == device
    )


def _after(claim: Claim, hosts: tuple[int, ...], stage: int) -> int:
    """Time after the last W or BW of a stage; if backwards are whole, also on lower stages."""
    if claim.span or not claim.fused:
        return _closing(claim, hosts, stage)
    way = RouteDelays(claim, hosts)
    up = [way.way(OpKind.BW, low) for low in range(stage + 1)]
    return max(up[stage] - up[low] + _closing(claim, hosts, low) for low in range(stage + 1))


def _closing(claim: Claim, hosts: tuple[int, ...], stage: int) -> int:
    if stage not in trained_stages(claim.pipeline):
        return 0
    devices = range(claim.pipeline.num_devices)
    wide = claim.pipeline.optimizer_barrier and not claim.span
    own = [device for device in devices if wide or device == hosts[stage]]
    return claim.pipeline.ticks.costs.gradient_sync[stage] + max(
        optimizer_time(claim, device) or 0 for device in own
    )


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
    heads = [head(claim, host) for host in devices]
    tails = [tail(claim, host) for host in devices]
    margin = min(heads) + min(tails)
    if claim.span:
        margin = min(before + after for before, after in zip(heads, tails, strict=True))
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
    return claim._replace(pipeline=compute_only.in_ticks_of(pipeline), bound=bound)


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
    unmoved = stages.with_stage_costs(fields | {"offload_memory": (), "offload_time": ()})
    return unmoved.in_ticks_of(pipeline)
