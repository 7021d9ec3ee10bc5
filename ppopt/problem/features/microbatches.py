"""Microbatches that differ: every operation of a class has the times and memory of its microbatch.

The modes of the class itself are those of a microbatch with the smallest factors, on times and on
memory: what they say holds at least for every operation of the class.
"""

from __future__ import annotations

from collections.abc import Callable

from ppopt.problem.costs import Ticks
from ppopt.problem.features.compute import compute_mode
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.features.offload import move_mode
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.operation_classes import Mode, OperationClass
from ppopt.problem.traits import Trait

MakeMode = Callable[[Ticks], Mode]


def add_microbatches(draft: InstanceDraft) -> None:
    """Give every class of one operation per microbatch the modes of each of them."""
    pipeline = draft.pipeline
    if Trait.MICROBATCHES not in pipeline.traits:
        return
    ticks = [pipeline.ticks_at(*factors) for factors in pipeline.factors]
    smallest = pipeline.ticks_at(*map(min, zip(*pipeline.factors, strict=True)))
    size = draft.batches
    for number, op_class in enumerate(draft.classes):
        makers = [_maker(draft, op_class, mode) for mode in op_class.modes]
        if not any(makers):
            continue
        own = ticks[op_class.route * size : (op_class.route + 1) * size]
        draft.classes[number] = op_class._replace(
            modes=tuple(make and make(smallest) for make in makers),
            by_microbatch=tuple(tuple(map(make, own)) if make else () for make in makers),
        )


def _maker(draft: InstanceDraft, op_class: OperationClass, mode: Mode | None) -> MakeMode | None:
    """Makes a mode from the costs of a microbatch; None if it does not depend on it."""
    stage, kind = op_class.stage, None if mode is None else mode.kind
    if isinstance(kind, OpKind):
        with_host = draft.all_resources
        return lambda ticks: compute_mode(ticks, kind, stage, with_host=with_host)
    if isinstance(kind, AuxiliaryKind) and op_class.per_microbatch:
        return lambda ticks: move_mode(ticks, kind, stage)
    return None
