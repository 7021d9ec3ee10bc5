"""Times and memory of the operations of a claim, in ticks, from the definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil

from ppopt.problem.cost_table import AUXILIARY_TIMES
from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import Row, min_times, pair_time
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


def device_of(claim: Claim, op: Op) -> int:
    """Device of an operation."""
    return claim.pipeline.device(op.stage, op.microbatch)


def time_factor(claim: Claim, op: Op) -> Fraction:
    """Factor on the times of an operation: that of its microbatch times that of its slice."""
    times = claim.pipeline.microbatch_times
    return slice_factors(claim)[op.slice] * (times[op.microbatch] if times else UNIT_FACTOR)


def memory_factor(claim: Claim, microbatch: int) -> Fraction:
    """Factor on the memory of a microbatch."""
    factors = claim.pipeline.microbatch_memory
    return factors[microbatch] if factors else UNIT_FACTOR


def time_of(claim: Claim, op: Op) -> int:
    """Time of an operation alone."""
    return int(time_factor(claim, op) * claim.pipeline.ticks.durations[op.kind][op.stage])


def time_of_pair(claim: Claim, forward: Op, backward: Op) -> int:
    """Time of an F and a B or BW run as one.

    As much of both overlaps as of two with the smaller of their factors on times.
    """
    time = pair_time(claim.pipeline, forward.stage, backward.kind, backward.stage)
    ticks = claim.pipeline.ticks.durations
    saved = ticks[OpKind.F][forward.stage] + ticks[backward.kind][backward.stage] - time
    smaller = min(time_factor(claim, forward), time_factor(claim, backward))
    return time_of(claim, forward) + time_of(claim, backward) - int(smaller * saved)


def shortest_durations(claim: Claim) -> tuple[Row, ...]:
    """Minimum time of an operation, alone or in a pair: [kind][stage]."""
    pipeline = claim.pipeline
    return pipeline.ticks.durations if pipeline.overlap is None else min_times(pipeline)


def memory_of(
    claim: Claim, kind: OpKind, stage: int, factor: Fraction = UNIT_FACTOR
) -> tuple[int, int]:
    """Memory that an operation allocates at its start and frees at its end.

    Every kind allocates and frees its workspace. F allocates the activation that it keeps. B
    allocates the rest of the activation, and its change of memory if positive, or frees it if
    negative. W frees what is left. BW allocates what it recomputes and what was moved to the host,
    and frees these and what F keeps. `factor`, on the memory of the microbatch, multiplies all but
    the workspace.
    """
    ticks, costs = claim.pipeline.ticks, claim.pipeline.ticks.costs
    retained, change = ticks.retained[stage], costs.memory_b[stage]
    offloaded, workspace = costs.offload_memory[stage], Fraction(ticks.workspace[kind][stage])
    if kind is OpKind.BW:
        workspace += costs.recompute_memory[stage]
        if factor != 1:
            workspace = Fraction(allocated_by_whole_backward(claim.pipeline, factor)[stage])
        workspace += factor * offloaded
    if kind is OpKind.F:  # `Ticks` counts the memory that moves to the host as workspace of F
        workspace += (factor - 1) * offloaded
    if kind is OpKind.W and stage == 0 and runs_whole_in_weight(claim.pipeline):
        workspace = Fraction(allocated_by_whole_backward(claim.pipeline, factor)[0])
    allocated, freed = {
        OpKind.F: (retained, 0),
        OpKind.B: (costs.activation[stage] - retained + max(0, change), max(0, -change)),
        OpKind.W: (0, costs.activation[stage] + change),
        OpKind.BW: (0, retained),
    }[kind]
    return int(factor * allocated + workspace), int(factor * freed + workspace)


def live_after_forward(claim: Claim, stage: int) -> int:
    """Live memory of a slice of a microbatch between F and the backward."""
    allocated, freed = memory_of(claim, OpKind.F, stage)
    return allocated - freed


def live_before_weight(claim: Claim, stage: int) -> int:
    """Live memory of a slice of a microbatch between B and W."""
    allocated, freed = memory_of(claim, OpKind.W, stage)
    return freed - allocated


def live_intervals(
    claim: Claim, forward: Op, kinds: Iterable[OpKind]
) -> Iterator[tuple[Op, Op, int]]:
    """Live memory of a slice at a stage: (allocating operation, freeing operation, amount).

    `kinds` are those that the slice runs there, in order. Memory is live from the start of the
    allocating operation to the end of the freeing one, first in, first out.
    """
    live: list[tuple[OpKind, int]] = []
    factor = memory_factor(claim, forward.microbatch)
    for kind in kinds:
        allocated, to_free = memory_of(claim, kind, forward.stage, factor)
        live.append((kind, allocated))
        while to_free:
            first, amount = live.pop(0)
            if amount > to_free:
                live.insert(0, (first, amount - to_free))
            freed = min(amount, to_free)
            to_free -= freed
            if freed:
                yield forward._replace(kind=first), forward._replace(kind=kind), freed


def min_work(times: Mapping[int, int], *, pairs: bool) -> int:
    """Minimum time of one device for operations of these total times per kind.

    They run one after the other. If F and backwards may run in pairs, the larger of the two
    totals counts.
    """
    forward, backward = times.get(OpKind.F, 0), times.get(OpKind.B, 0) + times.get(OpKind.BW, 0)
    return sum(times.values()) - (min(forward, backward) if pairs else 0)
