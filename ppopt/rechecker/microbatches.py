"""Claims of microbatches that differ, or of their slices, turned into claims of simpler ones.

Microbatches run in their given order.

A factor multiplies every time of a microbatch, another one what it holds, but no workspace. Take
any schedule and make every microbatch as short and as small as the smallest: nothing ends later,
and at no time does a microbatch hold more. So if the pipeline of the smallest has no schedule below
a bound, this one has none. Nor has it any if there is none with unlimited memory, and there is none
at all if a microbatch as large as the largest does not fit alone.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from operator import sub
from typing import Any

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import Trait
from ppopt.rechecker.claim import Claim
from ppopt.verifier.whole_backward import runs_whole_in_weight

MOST_ENUMERATED = 6
"""Most microbatches whose orders are looked at one by one."""
DIFFER = frozenset({Trait.MICROBATCHES, Trait.UNEQUAL_SLICES})
_TIMES = (
    *("forward", "backward_input", "weight", "backward", "recompute_time"),
    *("overlap", "overlap_input"),
)
_MEMORY = ("activation", "memory_b", "kept", "recompute_memory", "offload_memory", "offload_time")


def simpler(claim: Claim) -> tuple[Claim, ...]:
    """Claims of a bound, each of which implies one; itself, if its microbatches are alike."""
    if not claim.traits & DIFFER:
        return (claim,)
    return of_smallest(claim), _of_times(claim)


def of_smallest(claim: Claim) -> Claim:
    """A claim of equal microbatches and slices that implies one of some that differ."""
    if not claim.traits & DIFFER:
        return claim
    time, memory = map(min, zip(*claim.factors, strict=True))
    slices = map(claim.of_slice, range(claim.pipeline.num_slices))
    return _equal(claim, time * min(slices), memory)


def of_largest(claim: Claim) -> list[Claim]:
    """Per route, the claim in which all microbatches are as its largest."""
    routes = (claim.factors[route.start : route.stop] for route in claim.routes())
    return [_equal(claim, *map(max, zip(*factors, strict=True))) for factors in routes]


def claims_of_orders(claim: Claim) -> dict[str, Claim] | None:
    """The claim of every order of the microbatches, by its name; None if there are too many."""
    places = range(claim.pipeline.batches)
    if len(places) > MOST_ENUMERATED:
        return None
    factors = claim.factors
    orders = {tuple(factors[place] for place in order): order for order in permutations(places)}
    return {
        f"order {','.join(map(str, order))}": claim.of_pipeline(claim.pipeline.reordered(order))
        for order in orders.values()
    }


def _equal(claim: Claim, time: Fraction, memory: Fraction) -> Claim:
    """The claim of a pipeline whose microbatches all have these factors."""
    pipeline = claim.pipeline
    costs, ticks = pipeline.costs, pipeline.ticks
    rows = {field: _multiplied(costs[field], time) for field in _TIMES}
    rows |= {field: _multiplied(costs[field], memory) for field in _MEMORY}
    whole = claim.allocated_by_whole(memory)
    beside = tuple(map(min, whole, ticks.workspace[OpKind.BW]))
    rows["backward_workspace"] = tuple(map(ticks.memory, beside))
    rows["recompute_memory"] = tuple(map(ticks.memory, map(sub, whole, beside)))
    if runs_whole_in_weight(pipeline):
        rows["weight_workspace"] = (ticks.memory(whole[0]), *costs.weight_workspace[1:])
    equal = dict.fromkeys(("microbatch_times", "microbatch_memory", "slice_times"))
    alike = pipeline.with_stage_costs(rows, **equal)
    return claim._replace(pipeline=alike)


def _of_times(claim: Claim) -> Claim:
    """A claim of unlimited memory that implies one of microbatches that differ."""
    stages = claim.pipeline.without_model()
    unlimited = replace(stages, mem_limit=None, microbatch_memory=None)
    return claim._replace(pipeline=unlimited.in_ticks_of(claim.pipeline))


def _multiplied(values: tuple[Any, ...], factor: Fraction) -> tuple[Any, ...]:
    return tuple(
        _multiplied(value, factor) if isinstance(value, tuple) else value * factor
        for value in values
    )
