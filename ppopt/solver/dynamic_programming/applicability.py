"""Preconditions of the dynamic program, and estimates of its time."""

from __future__ import annotations

from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, handled, unhandled
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.parameters import DynamicProgramParams
from ppopt.solver.relaxation.device_relaxation import DeviceSubset

HANDLES = handled(ArgumentClass.EQUAL_MICROBATCHES)
"""Traits that the dynamic program handles; with further kinds of operations it proves a bound."""


def is_supported(problem: Problem) -> bool:
    """Whether the assumptions of the dynamic program hold for this problem.

    All traits must be handled, and no operation of duration 0 may allocate memory: such an
    operation may start when another one frees memory.
    """
    ticks, fused = problem.instance.costs.ticks, problem.fused
    if unhandled(problem.traits, HANDLES):
        return False
    kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
    return not any(
        ticks.allocates_at_an_instant(kind, stage)
        for kind in kinds
        for stage in range(problem.pipeline.num_stages)
    )


def small_classes(subset: DeviceSubset, params: DynamicProgramParams) -> Classes | None:
    """Classes of a subset; None if a state has too many rows or flags.

    The number of classes is checked first: constructing them takes time quadratic in it.
    """
    if len(subset.instance.kinds) * len(subset.retained) > params.max_rows:
        return None
    classes = Classes(subset)
    return classes if state_is_small(classes, params) else None


def state_is_small(classes: Classes, params: DynamicProgramParams = DynamicProgramParams()) -> bool:
    """Whether a state has few enough rows and flags."""
    return classes.rows <= params.max_rows and len(classes.sharing) <= params.max_flags


def preparing_seconds(
    problem: Problem, params: DynamicProgramParams = DynamicProgramParams()
) -> float:
    """Estimated seconds to prepare a layered DP."""
    return params.preparing_seconds * problem.num_operations


def layer_seconds(
    program: LayeredDP, params: DynamicProgramParams = DynamicProgramParams()
) -> float:
    """Estimated seconds of the next layer."""
    return params.layer_overhead_seconds + params.state_seconds * program.width
