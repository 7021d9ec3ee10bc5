"""Compute: F, B, W and BW of every stage, route and slice, for every microbatch.

    F(s-1, j) -> F(s, j)      activations arrive
    X(s+1, j) -> X(s, j)      gradients arrive; X is B or BW
    F(s, j)   -> X(s, j)
    B(s, j)   -> W(s, j)

A class of operations that a frozen stage does not have (`Pipeline.has_operations`) has size 0, and
no class waits for it. These are the rules of synchronous pipeline training (zero-bubble paper,
arXiv 2401.10241, section 2). Slices of a microbatch along the sequence keep causal order at every
stage (Seq1F1B, arXiv 2406.03488, section 3.2): F of slice q after F of slice q - 1, X of slice q
after X of slice q + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.costs import Ticks
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.operation import OpKind, TransferKind
from ppopt.problem.operation_classes import (
    Handover,
    Mode,
    OperationClass,
    Precedence,
)

FORWARD, BACKWARD, WEIGHT = range(3)
"""Rows of classes: the operations of a stage and microbatch, in the order in which they run."""
ROWS: dict[BackwardKind, tuple[tuple[OpKind | None, ...], ...]] = {
    BackwardKind.SPLIT: ((OpKind.F,), (OpKind.B,), (OpKind.W,)),
    BackwardKind.WHOLE: ((OpKind.F,), (OpKind.BW,)),
    BackwardKind.MIXED: ((OpKind.F,), (OpKind.B, OpKind.BW), (OpKind.W, None)),
}
"""Kinds of every row, by mode: if there is a choice, split first, then whole."""
ROW_OF = {OpKind.F: FORWARD, OpKind.B: BACKWARD, OpKind.BW: BACKWARD, OpKind.W: WEIGHT}


def add_compute(draft: InstanceDraft) -> None:
    """Add the classes of compute, their precedence and handovers."""
    pipeline, rows = draft.pipeline, ROWS[draft.backward]
    positions = list(
        product(range(pipeline.routes), range(pipeline.num_slices), range(pipeline.num_stages))
    )
    for kinds in rows:
        modes = [
            tuple(_mode(draft, kind, stage) for kind in kinds)
            for stage in range(pipeline.num_stages)
        ]
        sizes = [draft.batches if any(own) else 0 for own in modes]
        draft.classes += [
            OperationClass(
                *(
                    stage,
                    route,
                    slice_index,
                    pipeline.hosts[route][stage],
                    modes[stage],
                    sizes[stage],
                )
            )
            for route, slice_index, stage in positions
        ]
    keys = [(row, *position) for row in range(len(rows)) for position in positions]
    class_ids = {key: position for position, key in enumerate(keys) if draft.classes[position].size}
    for row, route, slice_index, stage in class_ids:
        draft.precedence += _precedence(draft, class_ids, row, (route, slice_index, stage))
        draft.handovers += _handovers(draft, class_ids, row, (route, slice_index, stage))


def _mode(draft: InstanceDraft, kind: OpKind | None, stage: int) -> Mode | None:
    if kind is None or not draft.pipeline.has_operations[kind][stage]:
        return None
    return compute_mode(draft.costs.ticks, kind, stage, with_host=draft.all_resources)


def compute_mode(ticks: Ticks, kind: OpKind, stage: int, *, with_host: bool) -> Mode:
    """The mode of an operation; `with_host`: moves to the host are operations of their own."""
    in_pair, _ = ticks.memory_amounts(kind, stage, with_host=with_host)
    allocates, frees = ticks.memory_amounts_alone(kind, stage, with_host=with_host)
    return Mode(kind, ticks.durations[kind][stage], allocates, frees, in_pair - allocates)


ClassIds = dict[tuple[int, int, int, int], int]
"""Id of a class that has operations, by row, route, slice and stage."""
Position = tuple[int, int, int]
"""Route, slice and stage."""


def _precedence(
    draft: InstanceDraft, class_ids: ClassIds, row: int, position: Position
) -> Iterator[Precedence]:
    """Operations of the same stage that an operation waits for."""
    route, slice_index, stage = position
    after = class_ids[row, *position]
    if row != FORWARD:
        yield Precedence(class_ids[row - 1, *position], after, 0)
    earlier = slice_index - 1 if row == FORWARD else slice_index + 1
    if row != WEIGHT and 0 <= earlier < draft.pipeline.num_slices:
        yield Precedence(class_ids[row, route, earlier, stage], after, 0)


def _handovers(
    draft: InstanceDraft, class_ids: ClassIds, row: int, position: Position
) -> Iterator[Handover]:
    """Data that an operation gets from the previous stage, or a backward from the next one."""
    route, slice_index, stage = position
    ticks = draft.costs.ticks
    source = stage - 1 if row == FORWARD else stage + 1
    if row == WEIGHT or not 0 <= source < draft.pipeline.num_stages:
        return
    kind = TransferKind.SEND_F if row == FORWARD else TransferKind.SEND_B
    delay = ticks.down[route][source] if row == FORWARD else ticks.up[route][stage]
    yield Handover(
        class_ids[row, route, slice_index, source], class_ids[row, *position], delay, kind
    )
