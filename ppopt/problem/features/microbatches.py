"""Microbatches and slices that differ: every operation has its own times and memory.

All operations of a class belong to one slice, and have its factor on times. If microbatches differ,
every operation also has its own factors. The modes of the class itself are then those of a
microbatch with the smallest factors on times and on memory: lower bounds for every operation of the
class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.features.offload import move_mode
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.kinds import RECORDS, ResourceKind
from ppopt.problem.microbatches import Factor
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.operation_classes import Mode, OperationClass
from ppopt.problem.traits import Trait

MakeMode = Callable[[InstanceCosts], Mode]


def add_microbatches(draft: InstanceDraft) -> None:
    """Set the modes of every class of one operation per microbatch: of its slice, or of each."""
    pipeline, costs = draft.pipeline, draft.costs
    if not costs.traits & {Trait.MICROBATCHES, Trait.UNEQUAL_SLICES}:
        return
    differ, size = Trait.MICROBATCHES in costs.traits, draft.batches

    @cache
    def costs_at(times: Factor, memory: Factor) -> InstanceCosts:
        return replace(costs, ticks=costs.ticks_at(times, memory))

    smallest = tuple(map(min, zip(*costs.factors, strict=True)))
    for class_id, op_class in enumerate(draft.classes):
        makers = [_maker(draft, op_class, mode) for mode in op_class.modes]
        if not any(makers):
            continue
        slice_factor = pipeline.slice_factor(op_class.slice)
        of_smallest, *own = (
            costs_at(times * slice_factor, memory)
            for times, memory in (
                smallest,
                *costs.factors[op_class.route * size : (op_class.route + 1) * size],
            )
        )
        each = tuple(tuple(map(make, own)) if make else () for make in makers)
        draft.classes[class_id] = op_class._replace(
            modes=tuple(make and make(of_smallest) for make in makers),
            by_microbatch=each if differ else (),
        )


def _maker(draft: InstanceDraft, op_class: OperationClass, mode: Mode | None) -> MakeMode | None:
    """A function from the costs of a microbatch to a mode; None if the mode is the same for all."""
    stage, kind = op_class.stage, None if mode is None else mode.kind
    if isinstance(kind, OpKind):
        with_host = draft.all_resources
        return lambda costs: costs.modes(kind, with_host=with_host)[stage]
    if isinstance(kind, AuxiliaryKind) and RECORDS[kind].resource is ResourceKind.HOST:
        return lambda costs: move_mode(costs.ticks, kind, stage)
    return None
