"""Communication orders of PyTorch's pipeline runtime: `compute_comms` text, written and read.

`_PipelineScheduleRuntime._load_csv(path, format="compute_comms")` of PyTorch 2.13 runs exactly
what it reads: one row per rank, one cell per action, operations as in `ppopt.formats.torch_csv`,
and between them

    3SEND_F1, 4RECV_F1    stage 3 sends stage 4 the activation of microbatch 1: both ends
    4SEND_B1, 3RECV_B1    stage 4 sends stage 3 the gradient
    3UNSHARD, 3RESHARD    gather and release the weights of a stage (FSDP); PyTorch skips others
    3REDUCE_GRAD          scale and reduce the gradients of a stage

PyTorch checks almost nothing of such a file: an order that does not match between two ranks hangs,
or gives wrong gradients. So the writer and the reader check it with `ppopt.verifier.posting`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats import torch_csv
from ppopt.formats.documents import label, read_text
from ppopt.formats.loader_order import microbatch_numbers, read_beside
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import communication
from ppopt.schedule.actions import OF_STAGE, POSTS, Action, ActionKind, ActionRow, Cell
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier.posting import posting_faults

_NUMBER = r"(0|[1-9][0-9]{0,7})"
_POST = re.compile(f"{_NUMBER}({'|'.join(sorted(POSTS))}){_NUMBER}")
_OF_STAGE = re.compile(f"{_NUMBER}({'|'.join(sorted(OF_STAGE))})")


def communication_csv(schedule: Schedule) -> str:
    """Write the communication order of a schedule's own times (`schedule.communication`).

    Microbatches are numbered as `torch_csv.order_csv` does. Raises errors as that does.
    """
    torch_csv.check_pipeline(schedule.pipeline)
    torch_csv.check_planned(schedule, "torch comms")
    rows = communication.of_schedule(schedule)
    check(schedule.pipeline, rows)
    extended = communication.with_empty_backwards(schedule.pipeline, rows, received=True)
    return torch_csv.written(extended, microbatch_numbers(schedule))


def check(pipeline: Pipeline, rows: Sequence[ActionRow]) -> None:
    """Raise InputError unless rows follow every rule of a communication order."""
    faults = posting_faults(pipeline, rows)
    if faults:
        suffix = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{suffix}")


class CommunicationOrder(NamedTuple):
    """A communication order as read: its operations, and all its actions."""

    order: torch_csv.Order
    rows: tuple[ActionRow, ...]


def read_communication_order(path: Path) -> CommunicationOrder:
    """Read a file, and the order of microbatches next to it; see `parse_communication_order`."""
    order = parse_communication_order(
        read_text(path, torch_csv.LARGEST_FILE, encoding="utf-8"), label(path)
    )
    microbatches = read_beside(path, order.order.batches)
    return order._replace(order=replace(order.order, microbatches=microbatches))


def parse_communication_order(content: str, where: str) -> CommunicationOrder:
    """Parse the text of a communication order.

    Raises InputError, prefixed with `where` and naming rank and cell, if its operations are not one
    complete order (`torch_csv.parse_order`), or if a cell is no action. Whether its posts are right
    depends on the pipeline: `time_communication_order` checks them.
    """
    order = torch_csv.parse_order(content, where)
    lines = content.removesuffix("\n").split("\n")
    rows = []
    for line, ops in zip(lines, order.rows, strict=True):
        computed = iter(_operations(ops, order.overlapped))
        rows.append(tuple(_read_row(line, computed)))
    posts = any(action.kind in POSTS for row in rows for cell in row for action in cell)
    if len(rows) > 1 and not posts:
        raise InputError(
            f"{where}: it posts no send and no receive; it is an order of operations alone: "
            "use --from torch-csv"
        )
    return CommunicationOrder(order, tuple(rows))


def _operations(ops: Sequence[Op], overlapped: frozenset[Op]) -> Iterator[Cell]:
    """The operations of a rank as cells."""
    cell: list[Action] = []
    for op in ops:
        if cell and op not in overlapped:
            yield tuple(cell)
            cell = []
        cell.append(Action(ActionKind[op.kind.name], op.stage, op.microbatch))
    yield tuple(cell)


def _read_row(line: str, computed: Iterator[Cell]) -> Iterator[Cell]:
    """The cells of a line; those of operations, which `torch_csv` has read, from `computed`."""
    for text in map(str.strip, line.split(",")):
        if post := _POST.fullmatch(text):
            yield (Action(ActionKind(post[2]), int(post[1]), int(post[3])),)
        elif stage := _OF_STAGE.fullmatch(text):
            yield (Action(ActionKind(stage[2]), int(stage[1])),)
        elif text:
            yield next(computed)


def time_communication_order(
    order: CommunicationOrder,
    settings: Mapping[str, object],
    objective: Objective = Objective.MAKESPAN,
) -> Schedule:
    """Time a communication order on the pipeline of `settings` (as `torch_csv.schedule`).

    Its links are streams. Raises InputError if it breaks a rule of `ppopt.verifier.posting`.
    """
    fields = {"link_mode": LinkMode.STREAMS, **settings}
    pipeline = torch_csv.pipeline_of_order(order.order, fields)
    if not pipeline.streams:
        raise InputError("link_mode: delay has no order of transfers; leave it out")
    rows = communication.without_empty_backwards(pipeline, order.rows)
    check(pipeline, rows)
    origin = Origin(strategy="torch-comms", objective=objective, status="feasible")
    return communication.schedule_of(pipeline, rows, objective, origin)
