"""Claims of mixed backwards, turned into claims of one kind.

A whole backward, BW, can be replaced by B and then W in its place where BW >= B + W, with or
without a partner F, and B takes no memory: then every schedule has one that is as good and splits
all. In the place of a B, BW can run where BW <= B, and its W is left out: then every schedule has
one that is as good and splits none.

Elsewhere, take a pipeline of split backwards with B' = min(B, BW), W' = min(W, BW - B) but no less
than 0, and no memory taken by B'. Its B' and W' fit, one after the other, into the time of a BW,
and each into the time of a B and a W, and they hold no more. So it has a schedule no worse than
each of the pipeline claimed: if it has none below the bound, that one has none. This says nothing
of backwards that run as one with an F: with such pairs no time is left to B' and W'.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.rechecker.claim import Claim

RELAXATION_SHARE = 0.5
"""Share of the time for the relaxation."""
RELAXED = "every backward split into a B and a W that are no longer than B, W and BW allow"


def of_one_kind(claim: Claim) -> Claim:
    """A claim of one kind of backward that implies a mixed one; any other claim as it is."""
    if not claim.mixed:
        return claim
    if _splitting_is_free(claim.pipeline):
        return claim._replace(backward_kind=BackwardKind.SPLIT)
    if _joining_is_free(claim.pipeline):
        return claim._replace(backward_kind=BackwardKind.WHOLE)
    return claim._replace(pipeline=_relaxed(claim), backward_kind=BackwardKind.SPLIT)


def loses_nothing(claim: Claim) -> bool:
    """Whether a mixed claim and that of one kind are both right or both wrong."""
    return _splitting_is_free(claim.pipeline) or _joining_is_free(claim.pipeline)


def _splitting_is_free(pipeline: Pipeline) -> bool:
    ticks, stages = pipeline.ticks, range(pipeline.num_stages)
    _, partial, weight, full = ticks.durations
    alone = all(full[s] >= partial[s] + weight[s] and ticks.memory_b[s] <= 0 for s in stages)
    return alone and all(
        ticks.pair_time(forward, OpKind.BW, s) >= ticks.pair_time(forward, OpKind.B, s) + weight[s]
        for s in stages
        for forward in stages
        if _meet(pipeline, forward, s)
    )


def _joining_is_free(pipeline: Pipeline) -> bool:
    _, partial, _, full = pipeline.ticks.durations
    return all(whole <= some for whole, some in zip(full, partial, strict=True))


def _meet(pipeline: Pipeline, one: int, other: int) -> bool:
    """Whether two stages share a device on any route, and F and a backward may run as one."""
    if pipeline.overlap is None:
        return False
    return any(mine[one] == theirs[other] for mine in pipeline.hosts for theirs in pipeline.hosts)


def _relaxed(claim: Claim) -> Pipeline:
    """The pipeline of split backwards that has a schedule no worse, in the same ticks."""
    given, zero = claim.pipeline, Fraction(0)
    times = list(zip(given.backward_input, given.weight, given.backward, strict=True))
    partial = tuple(zero if claim.paired else min(b, bw) for b, _, bw in times)
    weight = tuple(zero if claim.paired else max(min(w, bw - b), zero) for b, w, bw in times)
    stated = given if given.model is None else _by_stages(given)
    made = replace(
        stated,
        backward_input=partial,
        weight=weight,
        backward=tuple(b + w for b, w in zip(partial, weight, strict=True)),
        memory_b=tuple(min(change, zero) for change in given.memory_b),
        overlap=None,
        tick_divisor=1,
    )
    return replace(made, tick_divisor=given.ticks.per_unit // made.ticks.per_unit)


def _by_stages(pipeline: Pipeline) -> Pipeline:
    """A pipeline in layers as one with the costs of its stages."""
    return replace(
        pipeline,
        model=None,
        partition=None,
        stages=pipeline.num_stages,
        chunks=None,
        placement=pipeline.hosts[0],
        mem_limit=pipeline.limits,
    )
