"""The derived models of a space of parallelism."""

from __future__ import annotations

from ppopt.derivation.derived_model import DerivedModel
from ppopt.solver.engines.engine import DirectEngine
from ppopt.studies.parallel_set_up import PlanArguments, SetUp
from ppopt.studies.parallel_space import Parallelism, ParallelSpace


def models_of(
    space: ParallelSpace,
) -> tuple[dict[Parallelism, DerivedModel], dict[Parallelism, str]]:
    """Models of all valid combinations, and those that are left out, each with the reason."""
    set_up = SetUp(space, PlanArguments(), DirectEngine())
    return {each: entry.model for each, entry in set_up.combinations.items()}, set_up.skipped
