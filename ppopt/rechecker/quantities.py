"""Times and memory of the operations of a claim, in ticks, from the definitions."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.verifier.rows import required

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
    rows = required(claim.pipeline, costs=claim.costs)
    delays = () if claim.pipeline.has_links else rows.expected.delays
    return int(rows.end.sum() + sum(map(np.sum, delays)))


def factors_of(claim: Claim) -> list[tuple[Fraction, Fraction]]:
    """Factors on the times and on the memory of every microbatch."""
    pipeline, same = claim.pipeline, (UNIT_FACTOR,) * claim.pipeline.batches
    rows = (pipeline.microbatch_times or same, pipeline.microbatch_memory or same)
    return list(zip(*rows, strict=True))


def slice_factors(claim: Claim) -> tuple[Fraction, ...]:
    """Factor on the times of every slice of a microbatch."""
    return claim.pipeline.slice_times or (UNIT_FACTOR,) * claim.pipeline.num_slices


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
    amounts, (allocated, freed) = claim.costs.memory[0, AuxiliaryKind.UNSHARD], claim.memory
    stages = [
        [stage for stage, host in enumerate(hosts) if host == device]
        for hosts in claim.pipeline.hosts
    ]
    own_stages = [stage for route in stages for stage in route]
    forward, *later_kinds = claim.kinds
    if not all(claim.has(OpKind.B, stage) for stage in own_stages):
        return 0
    f_alone = not any(
        freed[forward][stage] or any(allocated[kind][stage] for kind in later_kinds)
        for stage in own_stages
    )
    if len(own_stages) == 1 or (claim.pipeline.routes == 1 and f_alone):
        return int(amounts[own_stages].sum())
    if any(
        allocated[kind][stage]
        for kind in later_kinds[1:]
        for route in stages
        for stage in route[1:]
    ):
        return 0
    return int(min(amounts[route[0]] for route in stages if route))


def min_work(times: Mapping[int, int], *, pairs: bool) -> int:
    """Minimum time of one device for operations of these total times per kind.

    They run one after the other. If F and backwards may run in pairs, the larger of the two
    totals counts.
    """
    forward, backward = times.get(OpKind.F, 0), times.get(OpKind.B, 0) + times.get(OpKind.BW, 0)
    return sum(times.values()) - (min(forward, backward) if pairs else 0)
