"""The bound over all partitions of one configuration, and partitions worth trying.

A configuration is a problem whose pipeline has the devices, the placement, the batches and the
limits, and a model in layers. Where its `recompute` is `search`, the bound is also over all choices
of the layers that recompute.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.decisions import Decisions
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.partitions.partition_bounds import (
    SHARES,
    bounds_of,
    memory_of_all,
    partition_bounds,
)
from ppopt.solver.partitions.partition_program import Counts
from ppopt.solver.partitions.space import FOREVER, PartitionSpace, space_of


def partition_bound(space: PartitionSpace, counts: Counts) -> int:
    """Bound of the schedules of one partition; FOREVER if it exceeds the memory limits."""
    return partition_bounds(space, [counts])[0]


class BoundedPartition(NamedTuple):
    """A partition with a bound of its own, in the user's unit."""

    counts: Counts
    """Layers per stage."""
    bound: Fraction


class OverPartitions(NamedTuple):
    """What is known of all partitions of a configuration."""

    bound: Fraction | None
    """No schedule of any partition is below, in the user's unit; None: none keeps the limits."""
    certificate: Certificate
    candidates: tuple[BoundedPartition, ...]
    """Partitions worth trying, none twice: the most even ones of low bounds."""


def over_partitions(problem: Problem) -> OverPartitions:
    """Bound all partitions of a configuration, whatever partition its pipeline has.

    Raises InputError where partitions cannot be searched.
    """
    space = space_of(problem)
    chosen = space.options is not None
    decisions = Decisions.PARTITION | (Decisions.RECOMPUTE if chosen else Decisions.NONE)
    certificate = Certificate(Argument.SEARCH, decisions=decisions)
    if space.limits is not None and memory_of_all(space) > sum(space.limits):
        return OverPartitions(None, certificate, ())
    bounds = bounds_of(space)
    if bounds.min_bound == FOREVER:
        return OverPartitions(None, certificate, ())
    even = dict.fromkeys(filter(None, map(bounds.most_even, SHARES)))
    candidates = tuple(
        BoundedPartition(counts, Fraction(partition_bound(space, counts), space.grid.time))
        for counts in even
    )
    return OverPartitions(Fraction(bounds.min_bound, space.grid.time), certificate, candidates)
