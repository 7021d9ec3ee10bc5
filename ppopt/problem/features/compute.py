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

from collections.abc import Sequence
from itertools import product

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.features.transfers import add_transfer
from ppopt.problem.operation import OpKind, TransferKind
from ppopt.problem.operation_classes import (
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
    """Add the classes of compute, their precedence and their transfers."""
    pipeline, rows = draft.pipeline, ROWS[draft.backward]
    positions = list(
        product(range(pipeline.routes), range(pipeline.num_slices), range(pipeline.num_stages))
    )
    for kinds in rows:
        modes = [*zip(*(_modes(draft, kind) for kind in kinds), strict=True)]
        draft.classes += [
            OperationClass(
                *(stage, route, slice_index, pipeline.hosts[route][stage], modes[stage]),
                draft.batches if any(modes[stage]) else 0,
            )
            for route, slice_index, stage in positions
        ]
    for class_id, op_class in enumerate(draft.classes.copy()):
        if op_class.size:
            _connect(draft, class_id, op_class, class_id // len(positions))


def _modes(draft: InstanceDraft, kind: OpKind | None) -> Sequence[Mode | None]:
    """The mode of a kind of operation on every stage; None: the stage does not run it."""
    pipeline = draft.pipeline
    if kind is None:
        return (None,) * pipeline.num_stages
    modes = draft.costs.modes(kind, with_host=draft.all_resources)
    return [
        mode if exists else None
        for mode, exists in zip(modes, pipeline.has_operations[kind], strict=True)
    ]


def _connect(draft: InstanceDraft, class_id: int, op_class: OperationClass, row: int) -> None:
    """Add what the operations of a class wait for: on their stage, and data of the next one."""
    pipeline, (stage, route, slice_index, *_) = draft.pipeline, op_class
    wait, step = draft.precedence.append, 1 if row == FORWARD else -1
    if row != FORWARD:
        wait(Precedence(class_id - draft.num_positions, class_id, 0))
    if row == WEIGHT:
        return
    if 0 <= slice_index - step < pipeline.num_slices:
        wait(Precedence(class_id - step * pipeline.num_stages, class_id, 0))
    if 0 <= stage - step < pipeline.num_stages:
        kind = TransferKind.SEND_F if row == FORWARD else TransferKind.SEND_B
        ticks = draft.costs.ticks
        delay = ticks.down[route][stage - 1] if row == FORWARD else ticks.up[route][stage]
        add_transfer(draft, class_id - step, class_id, delay, kind)
