"""Compute orders of PyTorch's pipeline runtime: CSV text, written and read.

`_PipelineScheduleRuntime._load_csv` of torch.distributed.pipelining (PyTorch 2.13) reads this form:
one row per rank (device), one cell per operation, `<stage><letter><microbatch>`. It has no header,
no times and no empty cells. PyTorch's letters differ from ours: its `I` is our B, its `B` our BW.
An overlapped pair is one cell, `(0F7;7B3)OVERLAP_F_B`. PyTorch runs its parts one after the other
and sends both results at the end of the pair, unless the user registers a function that overlaps
them.

PyTorch requires a backward of every stage (`_validate_schedule`, 2.13). Those of frozen stages that
run none are at the ends of the rows, where they do nothing and wait for nothing. A frozen stage
that passes a gradient on has a `B` and no `W`: all of its backward is that gradient.

The reader accepts more than the writer writes: empty cells, CRLF, blanks around cells, and the
communication actions that `_dump_csv` writes by default (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD,
RESHARD, REDUCE_GRAD), which it skips. It translates two dialects:

- In the older one, a B before a W means today's I. A W without an I identifies it.
- torch's own Schedule1F1B (2.13) numbers the last stage's forwards from 1 and its backwards from 0.

The reader refuses what PyTorch 2.13 accepts in silence: cells with trailing text (`0F0xyz`),
duplicate operations, microbatches numbered from 1, and forwards of the last stage out of order.
The last gives wrong gradients, because PyTorch looks losses up by their position.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppopt.errors import DeadlockError, InputError, NotApplicableError
from ppopt.formats.config import pipeline_of
from ppopt.formats.documents import label, read_text
from ppopt.formats.fields import abbreviated, within
from ppopt.formats.loader_order import microbatch_numbers, read_beside
from ppopt.problem import placement
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.field_values import LARGEST_GRID
from ppopt.problem.hosting import MAX_DEVICES
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import ArgumentClass, handled, refuse_unhandled
from ppopt.schedule import communication, timing
from ppopt.schedule.actions import (
    OF_STAGE,
    OPERATIONS,
    Action,
    ActionKind,
    ActionRow,
    Cell,
)
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import verify
from ppopt.verifier.measured_steps import planned

LETTERS = {OpKind.F: "F", OpKind.B: "I", OpKind.W: "W", OpKind.BW: "B"}
"""PyTorch's letter of every kind of operation."""
KINDS = {letter: kind for kind, letter in LETTERS.items()}
"""Kind of operation of every letter of PyTorch."""
_NAMES = {kind: kind.value for kind in ActionKind} | {
    ActionKind[kind.name]: letter for kind, letter in LETTERS.items()
}
"""PyTorch's name of every kind of action."""
_KINDS = {name: kind for kind, name in _NAMES.items()}
LARGEST_FILE = 2**28
"""Limit in bytes of the files that are read; orders of real pipelines are far below it."""
MAX_CELLS = 2**21
"""Maximum number of cells of a file: more than any search produces, communication included."""
HANDLES = handled(ArgumentClass.EVERY_OPERATION)
"""Traits of the pipelines whose schedules PyTorch can run, as far as their order shows."""
LISTED = 16
"""Maximum number of ranks or stages that a message lists."""
_NUMBER = r"(0|[1-9][0-9]{0,7})"
_OF_STAGE = re.compile(rf"{_NUMBER}({'|'.join(sorted(OF_STAGE))})")
_OF_MICROBATCH = re.compile(rf"{_NUMBER}({'|'.join(sorted(_KINDS.keys() - OF_STAGE))}){_NUMBER}")
_OVERLAP = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")


def order_csv(schedule: Schedule) -> str:
    """Write the compute order of every device, without times.

    Microbatches are numbered by the forward order of the last stage: PyTorch looks losses up by
    their position in that order, and any other numbering silently gives wrong gradients. Raises
    NotApplicableError for two routes and for slices of microbatches, which the format cannot
    express, and InputError if the operations are not a valid schedule of their pipeline. The
    memory limit is ignored.
    """
    check_pipeline(schedule.pipeline)
    check_planned(schedule, "torch csv")
    rows = communication.computations(schedule.pipeline, schedule.orders)
    rows = communication.with_empty_backwards(schedule.pipeline, rows)
    return written(rows, microbatch_numbers(schedule))


def written(rows: Sequence[Sequence[Cell]], numbers: Mapping[int, int]) -> str:
    """The text of rows of operations and of communication, with PyTorch's microbatch numbers."""

    def renumbered(action: Action) -> Action:
        if action.microbatch is None:
            return action
        return action._replace(microbatch=numbers[action.microbatch])

    def written_cell(cell: Cell) -> str:
        both = ";".join(_name(renumbered(action)) for action in cell)
        return both if len(cell) == 1 else f"({both})OVERLAP_F_B"

    return "".join(",".join(map(written_cell, row)) + "\n" for row in rows)


def check_pipeline(pipeline: Pipeline) -> None:
    """Raise NotApplicableError if the format cannot express schedules of this pipeline."""
    if pipeline.routes == 2:
        raise NotApplicableError(
            "torch csv: two routes put a stage on two devices; write .json instead"
        )
    refuse_unhandled("torch csv: it", pipeline.traits, HANDLES, "write .json instead")


def check_planned(schedule: Schedule, form: str) -> None:
    """Raise InputError, prefixed with `form`, unless this is a plan that follows every rule.

    A measured step is not a plan. The memory limit is ignored.
    """
    planned(schedule, form)
    violations = verify(schedule, enforce_limit=False)
    if violations:
        raise InputError(
            f"{form}: not a schedule of its pipeline: {violations[0]}; correct it first"
        )


@dataclass(frozen=True)
class Order:
    """An order without times: complete and well-formed, though it may still deadlock."""

    rows: tuple[ActionRow, ...]
    """Actions of every rank (device) in execution order."""
    placement: tuple[int, ...]
    """Device of every stage."""
    batches: int
    """Microbatches."""
    microbatches: tuple[int, ...] | None = None
    """Microbatch of the user's list that is number j, by j; None: number j."""


def read_order(path: Path) -> Order:
    """Read a file, and the order of microbatches next to it; see `parse_order`."""
    return _read(path, parse_order)


def read_actions(path: Path) -> Order:
    """Read a file, and the order of microbatches next to it; see `parse_actions`."""
    return _read(path, parse_actions)


def _read(path: Path, parse: Callable[[str, str], Order]) -> Order:
    order = parse(read_text(path, LARGEST_FILE, encoding="utf-8"), label(path))
    return replace(order, microbatches=read_beside(path, order.batches))


def parse_order(content: str, where: str) -> Order:
    """Parse the text of a compute order: `parse_actions` without communication."""
    order = parse_actions(content, where)
    return replace(order, rows=tuple(map(_computations, order.rows)))


def parse_actions(content: str, where: str) -> Order:
    """Parse the text of an order with all of its actions.

    Raises InputError, beginning with `where` and naming rank and cell, unless the operations are
    one complete order in which every stage sits on one rank.
    """
    return within(where, _order, content)


def _computations(row: ActionRow) -> ActionRow:
    """The cells of a row that have operations."""
    return tuple(cell for cell in row if cell[0].kind in OPERATIONS)


def schedule(
    order: Order, settings: Mapping[str, object], objective: Objective = Objective.MAKESPAN
) -> Schedule:
    """Time an order on the pipeline that canonical settings describe (`ppopt.formats.config`).

    Stages, microbatches and placement default to those of the order, costs to ppopt's defaults.
    Lists per microbatch are in the user's order, and follow `Order.microbatches`.
    Raises InputError if order and settings contradict each other, and DeadlockError if
    operations wait for each other in a cycle.
    """
    pipeline = pipeline_of_order(order, settings)
    origin = Origin(strategy="torch-csv", objective=objective, status="feasible")
    try:
        orders = communication.orders_of(pipeline, order.rows)
        return timing.schedule(pipeline, orders, objective, origin)
    except DeadlockError as error:
        raise DeadlockError(error.cycle, _name_of_operation) from None


def _order(content: str) -> Order:
    content = content.removesuffix("\n")
    ranks = content.count("\n") + 1
    if ranks > MAX_DEVICES:
        raise InputError(f"{ranks} ranks are above {MAX_DEVICES}; give every rank one line")
    num_cells = content.count(",") + ranks
    if num_cells > MAX_CELLS:
        raise InputError(f"{num_cells} cells are above {MAX_CELLS}, the most that are read")
    lines = content.split("\n")
    cells = [within(f"rank {rank}", _row, line) for rank, line in enumerate(lines)]
    cells = _renamed(cells, _of_older_dialect(_operations(cells)))
    cells = _renamed(cells, _renumbered_last_stage(_operations(cells)))
    rows = _operations(cells)
    batches = _check_numbers(rows)
    _check_complete(rows)
    hosts = _placement(rows)
    _check_losses(rows[hosts[-1]], len(hosts) - 1)
    return Order(tuple(cells), hosts, batches)


def _row(line: str) -> ActionRow:
    if not line.strip():
        raise InputError("the line is blank; give every rank its operations, and no blank lines")
    cells = []
    for index, text in enumerate(line.split(",")):
        try:
            cells.append(_cell(text.strip()))
        except InputError as error:
            raise InputError(f"cell {index}: {error}") from None
    row = tuple(filter(None, cells))
    if not _computations(row):
        raise InputError("runs nothing; every rank needs a stage")
    return row


def _cell(text: str) -> Cell:
    """Parse a cell: nothing, one action, or an overlapped pair."""
    if overlap := _OVERLAP.fullmatch(text):
        forward, backward = (_action(part.strip()) for part in overlap.groups())
        backwards = (ActionKind.B, ActionKind.BW)
        if forward.kind is not ActionKind.F or backward.kind not in backwards:
            raise InputError(f"{abbreviated(text)}: an overlap is of a forward and then a backward")
        return forward, backward
    return (_action(text),) if text else ()


def _action(text: str) -> Action:
    if of_stage := _OF_STAGE.fullmatch(text):
        return Action(ActionKind(of_stage[2]), int(of_stage[1]))
    match = _OF_MICROBATCH.fullmatch(text)
    if match is None:
        raise InputError(
            f"{abbreviated(text)} is no operation; write <stage><F|I|W|B><microbatch>, such as 0F3"
        )
    return Action(_KINDS[match[2]], int(match[1]), int(match[3]))


def _operations(rows: Iterable[ActionRow]) -> list[list[Any]]:
    """The operations of every rank, in order."""
    return [[action for cell in _computations(row) for action in cell] for row in rows]


def _renamed(rows: Iterable[ActionRow], names: Mapping[Action, Action]) -> list[ActionRow]:
    """The rows with other operations in place of some."""
    return [
        tuple(tuple(names.get(action, action) for action in cell) for cell in row) for row in rows
    ]


def _of_older_dialect(rows: Sequence[Sequence[Action]]) -> dict[Action, Action]:
    """B -> I where its stage and microbatch has a W but no I."""
    seen = {op for row in rows for op in row}
    return {
        op._replace(kind=ActionKind.BW): op._replace(kind=ActionKind.B)
        for op in seen
        if op.kind is ActionKind.W and op._replace(kind=ActionKind.B) not in seen
    }


def _renumbered_last_stage(rows: Sequence[Sequence[Any]]) -> dict[Action, Action]:
    """The last stage's forwards, numbered from 0, if they alone are numbered 1 to M.

    `Schedule1F1B._get_pipeline_order` increments its forward counter before it writes the forward.
    That is wrong on the last rank only, which has no warm-up forwards (torch 2.13, schedules.py).
    """
    ops = [op for row in rows for op in row]
    last = max(op.stage for op in ops)
    forwards = [op for op in ops if op.kind is ActionKind.F and op.stage == last]
    remaining = set(ops).difference(forwards)
    batches = 1 + max((op.microbatch for op in remaining), default=-1)
    if len(forwards) != batches or any(op.microbatch != n for n, op in enumerate(forwards, 1)):
        return {}
    return {op: op._replace(microbatch=op.microbatch - 1) for op in forwards}


def _check_numbers(rows: Sequence[Sequence[Any]]) -> int:
    """Check that stages and microbatches are numbered 0, 1, ...; return the microbatch count."""
    counts = []
    for what in ("stage", "microbatch"):
        numbers = {getattr(op, what) for row in rows for op in row}
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if missing < max(numbers):
            raise InputError(
                f"{what} {missing} is missing; number every {what} from 0 without gaps"
            )
        counts.append(len(numbers))
    if counts[0] * counts[1] > LARGEST_GRID:
        raise InputError(f"stages x microbatches is above {LARGEST_GRID}")
    return counts[1]


_COMPLETE = ({ActionKind.F, ActionKind.BW}, {ActionKind.F, ActionKind.B, ActionKind.W})
"""Kinds of the operations of a stage and a microbatch."""


def _check_complete(rows: Sequence[Sequence[Any]]) -> None:
    """Check that every stage runs F and either B or I and W once for every microbatch."""
    count = Counter(op for row in rows for op in row)
    stages = {op.stage for op in count}
    microbatches = {op.microbatch for op in count}
    for op, times in count.items():
        if times > 1:
            raise InputError(
                f"{_name(op)} is given {times} times{_describe_ranks(rows, op)}; keep one"
            )
    for stage in sorted(stages):
        for microbatch in sorted(microbatches):
            ops = [kind for kind in _NAMES if Action(kind, stage, microbatch) in count]
            if set(ops) not in (
                {ActionKind.F, ActionKind.BW},
                {ActionKind.F, ActionKind.B, ActionKind.W},
            ):
                letters = " ".join(_NAMES[kind] for kind in ops) or "nothing"
                raise InputError(
                    f"stage {stage} runs {letters} for microbatch {microbatch}; "
                    "each needs one F and either one B or one I and one W"
                )


def _name(action: Action) -> str:
    number = "" if action.microbatch is None else action.microbatch
    return f"{action.stage}{_NAMES[action.kind]}{number}"


def _name_of_operation(op: Op) -> str:
    return _name(Action(ActionKind[op.kind.name], op.stage, op.microbatch))


def _describe_ranks(rows: Sequence[Sequence[Any]], op: Action) -> str:
    ranks = sorted({rank for rank, row in enumerate(rows) if op in row})
    suffix = ", .." if len(ranks) > LISTED else ""
    return f" (rank {', '.join(map(str, ranks[:LISTED]))}{suffix})"


def _placement(rows: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    host: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for op in row:
            if host.setdefault(op.stage, rank) != rank:
                raise InputError(
                    f"rank {rank}: {_name(op)}: stage {op.stage} is on rank {host[op.stage]} too; "
                    "a stage sits on one rank"
                )
    return tuple(host[stage] for stage in range(len(host)))


def _check_losses(row: Sequence[Action], last: int) -> None:
    forwards = [op.microbatch for op in row if op.kind is ActionKind.F and op.stage == last]
    for index, microbatch in enumerate(forwards):
        if index != microbatch:
            raise InputError(
                f"the last stage runs {last}F{microbatch} as forward number {index}; PyTorch looks "
                "losses up by that number and would give wrong gradients: number the microbatches "
                "by the last stage's forwards"
            )


def pipeline_of_order(order: Order, settings: Mapping[str, object]) -> Pipeline:
    """The pipeline of an order, as `schedule` describes it."""
    fields = dict(settings)
    fields.setdefault("batches", order.batches)
    if fields.keys().isdisjoint(("placement", "chunks")):
        fields |= _shape(order, fields)
    pipeline = pipeline_of(fields)
    if pipeline.batches != order.batches:
        raise InputError(
            f"the order has {order.batches} microbatches, the pipeline {pipeline.batches}; "
            f"give --batches {order.batches}"
        )
    if pipeline.hosts != (order.placement,):
        raise InputError(
            f"the order puts its stages on the ranks {_listed(order.placement)}, the pipeline on "
            f"{' and '.join(map(_listed, pipeline.hosts))}; give a pipeline of the same placement"
        )
    return pipeline if order.microbatches is None else pipeline.reordered(order.microbatches)


def _shape(order: Order, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Describe stages and placement of an order.

    The placement is given by name if it has one, unless some cost has one entry per stage.
    """
    stages, devices = len(order.placement), len(order.rows)
    lists = [fields[cost.field] for cost in STAGE_COSTS if isinstance(fields.get(cost.field), list)]
    per_stage = any(len(costs) == stages for costs in lists)
    form = placement.name_and_chunks(order.placement)
    if form is not None and (stages == devices or not per_stage):
        named = dict(zip(("placement", "chunks"), form, strict=True))
        return {"stages": devices, **fields, **({} if stages == devices else named)}
    return {"stages": stages, **fields, "placement": list(order.placement)}


def _listed(numbers: tuple[int, ...]) -> str:
    head = ",".join(map(str, numbers[:LISTED]))
    return f"{head},.." if len(numbers) > LISTED else head
