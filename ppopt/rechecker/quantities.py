"""Times and memory of the operations of a claim, in ticks, from the definitions."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from ppopt.problem.cost_table import AUXILIARY_TIMES
from ppopt.problem.operation import OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import Row, min_times
from ppopt.verifier.whole_backward import allocated_by_whole_backward, runs_whole_in_weight

UNIT_FACTOR = Fraction(1)
"""Factor of a microbatch if all are equal."""


def num_operations(claim: Claim) -> int:
    """Largest number of operations of a schedule."""
    forwards = claim.pipeline.num_stages * claim.pipeline.batches * claim.pipeline.num_slices
    return (2 if claim.fused else 3) * forwards


def horizon(claim: Claim) -> int:
    """Upper bound on the minimum makespan, if any schedule exists.

    It is the sum of all times and delays: any interval in which nothing runs and nothing is in
    transfer can be removed from a schedule.
    """
    ticks, pipeline = claim.pipeline.ticks, claim.pipeline
    links = max(sum(down) + sum(up) for down, up in zip(ticks.down, ticks.up, strict=True))
    per_microbatch, per_step = links + sum(map(sum, ticks.durations)), 0
    for cost in AUXILIARY_TIMES:
        times = cost.runs * sum(ticks.costs[cost.field])
        per_microbatch += times if cost.per_microbatch else 0
        per_step += 0 if cost.per_microbatch else times
    longest = sum((max(UNIT_FACTOR, *factors) for factors in factors_of(claim)), Fraction(0))
    longest *= sum(max(UNIT_FACTOR, factor) for factor in slice_factors(claim))
    return ceil(longest) * per_microbatch + pipeline.routes * per_step


def factors_of(claim: Claim) -> list[tuple[Fraction, Fraction]]:
    """Factors on the times and on the memory of every microbatch."""
    pipeline, same = claim.pipeline, (UNIT_FACTOR,) * claim.pipeline.batches
    rows = (pipeline.microbatch_times or same, pipeline.microbatch_memory or same)
    return list(zip(*rows, strict=True))


def slice_factors(claim: Claim) -> tuple[Fraction, ...]:
    """Factor on the times of every slice of a microbatch."""
    return claim.pipeline.slice_times or (UNIT_FACTOR,) * claim.pipeline.num_slices


def pieces(claim: Claim, route: int) -> Fraction:
    """Slices of a route, each as often as its factors on times say."""
    own = microbatches_of_routes(claim)[route]
    times = (time for time, _ in factors_of(claim)[own.start : own.stop])
    return sum(slice_factors(claim), Fraction(0)) * sum(times, Fraction(0))


def microbatches_of_routes(claim: Claim) -> list[range]:
    """Microbatches of every route."""
    share = claim.pipeline.batches // claim.pipeline.routes
    return [range(share * route, share * (route + 1)) for route in range(claim.pipeline.routes)]


def shortest_durations(claim: Claim) -> tuple[Row, ...]:
    """Minimum time of an operation, alone or in a pair: [kind][stage]."""
    pipeline = claim.pipeline
    return pipeline.ticks.durations if pipeline.overlap is None else min_times(pipeline)


def memory_of(claim: Claim, kind: OpKind, stage: int) -> tuple[int, int]:
    """Memory that an operation allocates at its start and frees at its end.

    Every kind allocates and frees its workspace. F allocates the activation that it keeps. B
    allocates the rest of the activation, and its change of memory if positive, or frees it if
    negative. W frees what is left. BW allocates what it recomputes and what was moved to the host,
    and frees these and what F keeps.
    """
    ticks, costs = claim.pipeline.ticks, claim.pipeline.ticks.costs
    retained, change = ticks.retained[stage], costs.memory_b[stage]
    workspace = ticks.workspace[kind][stage]
    if kind is OpKind.BW:
        workspace += costs.recompute_memory[stage] + costs.offload_memory[stage]
    if kind is OpKind.W and stage == 0 and runs_whole_in_weight(claim.pipeline):
        workspace = allocated_by_whole_backward(claim.pipeline, UNIT_FACTOR)[0]
    allocated, freed = {
        OpKind.F: (retained, 0),
        OpKind.B: (costs.activation[stage] - retained + max(0, change), max(0, -change)),
        OpKind.W: (0, costs.activation[stage] + change),
        OpKind.BW: (0, retained),
    }[kind]
    return allocated + workspace, freed + workspace


def live_after_forward(claim: Claim, stage: int) -> int:
    """Live memory of a slice of a microbatch between F and the backward."""
    allocated, freed = memory_of(claim, OpKind.F, stage)
    return allocated - freed


def live_before_weight(claim: Claim, stage: int) -> int:
    """Live memory of a slice of a microbatch between B and W."""
    allocated, freed = memory_of(claim, OpKind.W, stage)
    return freed - allocated


def live_weights(claim: Claim, device: int) -> int:
    """Gathered weights that are live during all compute of a device, in ticks.

    Weights are live from the start of UNSHARD to the end of GRADIENT_SYNC. On one route on which
    only F allocates, the peak comes when the last of the device's stages has begun and none has
    ended, so the weights of all stages count. Otherwise F, B and BW run between the first F and the
    last W or BW of the lowest stage of their route on the device, so the weights of that stage
    count. A later W of another stage only frees memory, unless it has workspace: then no weights
    count. The weights of a stage without backward are live only to its last F, so none count on its
    device.
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


def min_work(times: Mapping[int, int], *, pairs: bool) -> int:
    """Minimum time of one device for operations of these total times per kind.

    They run one after the other. If F and backwards may run in pairs, the larger of the two
    totals counts.
    """
    forward, backward = times.get(OpKind.F, 0), times.get(OpKind.B, 0) + times.get(OpKind.BW, 0)
    return sum(times.values()) - (min(forward, backward) if pairs else 0)
