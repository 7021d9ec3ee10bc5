"""Communication orders: the computations and posts of every device, in order.

`of_schedule` posts in the order of a schedule's own times. `torch_lowering` is PyTorch's own result
for an order of operations alone. `queues_of` derives the queues of an order, for its times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from ppopt.errors import DeadlockError, InputError
from ppopt.problem.arrays import Ints
from ppopt.problem.exact import ratio
from ppopt.problem.kinds import RECORDS
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.actions import POSTS, Action, ActionKind, ActionRow, Cell
from ppopt.schedule.link_queues import (
    MISSING,
    LinkQueues,
    Queues,
    queues_of_schedule,
    receiving_stage,
    sending_stage,
)
from ppopt.schedule.operations import Operation, Operations
from ppopt.schedule.orders import Orders
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule

MAX_UNSHARDED = 3
"""Stages whose weights PyTorch gathers ahead (torch 2.13, `_add_unshard_reshard`)."""
_SEND = {OpKind.F: ActionKind.SEND_F, OpKind.B: ActionKind.SEND_B}
_RECEIVE = {OpKind.F: ActionKind.RECV_F, OpKind.B: ActionKind.RECV_B}
_RESULT_KIND = {ActionKind.F: OpKind.F, ActionKind.B: OpKind.B, ActionKind.BW: OpKind.B}
"""Operation -> kind of its result."""
_CLOSING = (ActionKind.W, ActionKind.BW)
"""The last operation of a stage and microbatch."""


def computations(pipeline: Pipeline, orders: Orders) -> list[list[Cell]]:
    """The operations of every device, as cells."""
    rows: list[list[Cell]] = []
    for order in orders:
        row: list[list[Action]] = []
        for code in order.tolist():
            if code >= 0:
                row.append([])
            kind, stage, microbatch, _ = pipeline.op(~code if code < 0 else code)
            if kind is OpKind.B and pipeline.frozen_stages[stage]:
                kind = OpKind.BW  # B is all of its backward
            row[-1].append(Action(ActionKind[kind.name], stage, microbatch))
            row[-1].sort(key=lambda action: action.kind is not ActionKind.F)
        rows.append(list(map(tuple, row)))
    return rows


def _has_backward(pipeline: Pipeline, stage: int) -> bool:
    return pipeline.has_operations[OpKind.BW][stage]


def with_empty_backwards(
    pipeline: Pipeline, rows: Sequence[Sequence[Cell]], *, received: bool = False
) -> list[list[Cell]]:
    """Rows with the BW that PyTorch requires of stages without a backward, at their ends.

    `received`: if the next stage is on another device, a receive precedes each of them, which
    PyTorch requires before a backward. Nothing is sent there.
    """
    extended = [list(row) for row in rows]
    for stage in reversed(range(pipeline.num_stages)):
        if _has_backward(pipeline, stage):
            continue
        host, *following = pipeline.hosts[0][stage : stage + 2]
        has_receive = received and following not in ([], [host])
        for microbatch in range(pipeline.batches):
            kinds = (ActionKind.RECV_B,) * has_receive + (ActionKind.BW,)
            extended[host] += [(Action(kind, stage, microbatch),) for kind in kinds]
    return extended


def without_empty_backwards(pipeline: Pipeline, rows: Iterable[ActionRow]) -> list[ActionRow]:
    """Rows without what `with_empty_backwards` adds."""
    return [
        tuple(
            cell
            for cell in row
            if cell[0].kind not in (ActionKind.RECV_B, ActionKind.BW)
            or _has_backward(pipeline, cell[0].stage)
        )
        for row in rows
    ]


def orders_of(pipeline: Pipeline, rows: Sequence[ActionRow]) -> Orders:
    """The orders of operations of a communication order; see `ppopt.schedule.orders`."""
    orders = []
    for row in rows:
        codes: list[int] = []
        for cell in row:
            if cell[0].kind in _OPERATION:
                both = [_code(pipeline, action) for action in cell]
                codes += [~code if index else code for index, code in enumerate(both)]
        orders.append(np.array(codes, dtype=np.int64))
    return orders


_OPERATION = {ActionKind[kind.name]: kind for kind in OpKind}


def _code(pipeline: Pipeline, action: Action) -> int:
    code: int = pipeline.code(_OPERATION[action.kind], action.stage, action.microbatch)
    return code


def _sends(pipeline: Pipeline, action: Action) -> tuple[Action, Action] | None:
    """The send and the receive of an operation's result for another device."""
    kind = _RESULT_KIND.get(action.kind)
    if kind is None:
        return None
    (hosts,) = pipeline.hosts
    target_stage = receiving_stage(kind, action.stage)
    if not 0 <= target_stage < len(hosts) or hosts[target_stage] == hosts[action.stage]:
        return None
    if kind is OpKind.B and not _has_backward(pipeline, target_stage):
        return None
    return (
        Action(_SEND[kind], action.stage, action.microbatch),
        Action(_RECEIVE[kind], target_stage, action.microbatch),
    )


def with_stage_actions(row: Iterable[Cell], batches: int) -> list[Cell]:
    """A row of operations with UNSHARD, RESHARD and REDUCE_GRAD, as PyTorch places them.

    (torch 2.13, `_add_unshard_reshard`, `_add_reduce_grad`.) Before every cell, the stages of the
    next operations, `MAX_UNSHARDED` of them, are gathered if they are not, and others released.
    Gradients are reduced after the last W or BW of a stage. All stages are released at the end.
    """
    cells = list(row)
    upcoming = _upcoming_stages(cells)
    active: set[int] = set()
    done: Counter[int] = Counter()
    extended: list[Cell] = []
    for cell, wanted in zip(cells, upcoming, strict=True):
        for stage in [stage for stage in active if stage not in wanted]:
            active.remove(stage)
            extended.append((Action(ActionKind.RESHARD, stage),))
        for stage in (stage for stage in wanted if stage not in active):
            extended.append((Action(ActionKind.UNSHARD, stage),))
        active.update(wanted)
        extended.append(cell)
        for action in cell:
            if action.kind in _CLOSING:
                done[action.stage] += 1
                if done[action.stage] == batches:
                    extended.append((Action(ActionKind.REDUCE_GRAD, action.stage),))
    return extended + [(Action(ActionKind.RESHARD, stage),) for stage in active]


def with_own_stage_actions(schedule: Schedule) -> list[list[Cell]]:
    """Rows of the operations of a schedule with the UNSHARDs at its own times.

    An UNSHARD precedes the first operation that starts no sooner. In the model, weights stay
    gathered until gradients are reduced: REDUCE_GRAD and RESHARD follow the last W or BW of a
    stage. A frozen stage reduces nothing, and one without backward ends with its last F.
    """
    rows = computations(schedule.pipeline, schedule.orders)
    table, extended = schedule.operations, []
    opens = table.of(lambda record: record.precedes_compute)
    for device, row in enumerate(rows):
        starts = schedule.start[(schedule.device == device) & ~schedule.seconds]
        own = table.where(opens & (table.device == device))
        before = np.searchsorted(starts, own.start).tolist()
        gathered = list(zip(before, own.stage.tolist(), strict=True))
        extended.append(list(_around(schedule.pipeline, row, gathered)))
    return extended


def _around(
    pipeline: Pipeline, row: Sequence[Cell], gathered: Sequence[tuple[int, int]]
) -> Iterator[Cell]:
    """A row with the UNSHARD of every (cell, stage) before that cell, and the ends of stages."""
    done: Counter[int] = Counter()
    for index, cell in enumerate(row):
        yield from ((Action(ActionKind.UNSHARD, stage),) for at, stage in gathered if at == index)
        yield cell
        for kind, stage, _ in cell:
            closes = _CLOSING if _has_backward(pipeline, stage) else (ActionKind.F,)
            done[stage] += kind in closes
            if kind in closes and done[stage] == pipeline.batches:
                if not pipeline.frozen_stages[stage]:
                    yield (Action(ActionKind.REDUCE_GRAD, stage),)
                yield (Action(ActionKind.RESHARD, stage),)


def _upcoming_stages(cells: Sequence[Cell]) -> list[list[int]]:
    """For every cell the stages of the next operations, that cell included, in order of use."""
    upcoming: list[list[int]] = []
    after: dict[int, int] = {}
    """Stage -> the next cell that uses it."""
    stages = [list(dict.fromkeys(action.stage for action in cell)) for cell in cells]
    for index in reversed(range(len(cells))):
        after.update(dict.fromkeys(stages[index], index))
        wanted: list[int] = []
        for where in sorted(set(after.values())):
            if len(wanted) >= MAX_UNSHARDED:
                break
            wanted += [stage for stage in stages[where] if after[stage] == where]
        upcoming.append(wanted)
    return upcoming[::-1]


def torch_lowering(pipeline: Pipeline, orders: Orders) -> tuple[ActionRow, ...]:
    """PyTorch's runtime order for an order of operations alone (torch 2.13, `_add_send_recv`).

    The devices take turns in the order of their numbers, one cell a turn. A device passes if its
    next operation lacks an input that another device sends. An operation with a result for another
    device is followed by its send; its receive is then appended to the other device's row. Times
    play no part. Raises DeadlockError if all devices pass.
    """
    batches = pipeline.batches
    remaining = [iter(with_stage_actions(row, batches)) for row in computations(pipeline, orders)]
    following = [next(row, None) for row in remaining]
    rows: list[list[Cell]] = [[] for _ in remaining]
    known: list[set[Action]] = [set() for _ in remaining]
    (hosts,) = pipeline.hosts
    while any(following):
        progressed = False
        for device, cell in enumerate(following):
            if cell is None or not all(_ready(pipeline, step, known[device]) for step in cell):
                continue
            progressed = True
            rows[device].append(cell)
            for action in cell:
                known[device].add(action)
                if posts := _sends(pipeline, action):
                    send, receive = posts
                    rows[device].append((send,))
                    rows[hosts[receive.stage]].append((receive,))
                    known[hosts[receive.stage]].add(receive)
            following[device] = next(remaining[device], None)
        if not progressed:
            raise DeadlockError(tuple(str(cell[0]) for cell in following if cell))
    return tuple(map(tuple, rows))


def _ready(pipeline: Pipeline, action: Action, known: set[Action]) -> bool:
    """Whether the row of an operation's device has the source of its input."""
    kind = _RESULT_KIND.get(action.kind)
    if kind is None:
        return True
    source_stage = sending_stage(kind, action.stage)
    if not 0 <= source_stage < pipeline.num_stages:
        return True
    local = [local_kind for local_kind, result_kind in _RESULT_KIND.items() if result_kind is kind]
    local_sources = (Action(local_kind, source_stage, action.microbatch) for local_kind in local)
    received = Action(_RECEIVE[kind], action.stage, action.microbatch)
    return received in known or any(source in known for source in local_sources)


def posted_rows(
    pipeline: Pipeline, rows: Sequence[Sequence[Cell]], queues: Queues
) -> tuple[ActionRow, ...]:
    """Rows with stage actions and posts, as early as the order of the queues allows."""
    links = queues.links
    cell_of = {
        action: (device, index)
        for device, row in enumerate(rows)
        for index, cell in enumerate(row)
        for action in cell
    }
    posts: list[dict[int, list[Action]]] = [{} for _ in rows]
    for pair, order in zip(links.pairs, queues.order, strict=True):
        reached = dict.fromkeys(pair, 0)
        for transfer in Operations.untimed(pipeline, order).rows():
            for device, at, action in _posts(transfer, cell_of):
                reached[device] = max(reached[device], at)
                posts[device].setdefault(reached[device], []).append(action)
    return tuple(tuple(_merged(row, posts[device])) for device, row in enumerate(rows))


def _posts(
    transfer: Operation, cell_of: Mapping[Action, tuple[int, int]]
) -> Iterator[tuple[int, int, Action]]:
    """Both ends of a transfer: device, first cell before which it may be, action."""
    kind, stage, microbatch = RECORDS[transfer.kind].carries, transfer.stage, transfer.microbatch
    assert kind is not None, "it is on a link"
    makers = (ActionKind.F,) if kind is OpKind.F else (ActionKind.B, ActionKind.BW)
    positions = (cell_of.get(Action(maker, stage, microbatch)) for maker in makers)
    device, at = next(position for position in positions if position is not None)
    yield device, at + 1, Action(_SEND[kind], stage, microbatch)
    yield transfer.target, 0, Action(_RECEIVE[kind], receiving_stage(kind, stage), microbatch)


def _merged(row: Sequence[Cell], posts: dict[int, list[Action]]) -> Iterator[Cell]:
    """A row with its posts; its last cell is a stage action, so that no post follows it."""
    assert len(row) not in posts, "a post behind the last cell"
    for index, cell in enumerate(row):
        yield from ((action,) for action in posts.get(index, ()))
        yield cell


def of_schedule(schedule: Schedule) -> tuple[ActionRow, ...]:
    """The communication order of a schedule's own times (see `as_streams`)."""
    streamed = as_streams(schedule)
    if streamed.operations.of(lambda record: record.precedes_compute).any():
        rows = with_own_stage_actions(streamed)
    else:
        batches = streamed.pipeline.batches
        rows = [
            with_stage_actions(row, batches)
            for row in computations(streamed.pipeline, streamed.orders)
        ]
    return posted_rows(streamed.pipeline, rows, queues_of_schedule(streamed))


def as_streams(schedule: Schedule) -> Schedule:
    """The same order with links as streams; the schedule itself if they are streams already.

    Transfers are served by the better of `timing.own_queues`.
    """
    if schedule.pipeline.streams:
        return schedule
    pipeline = replace(schedule.pipeline, link_mode=LinkMode.STREAMS)
    return timing.schedule(pipeline, schedule.orders, schedule.objective, schedule.origin)


def queues_of(pipeline: Pipeline, rows: Sequence[ActionRow]) -> Queues:
    """The queues of a communication order, and behind which operations they are posted.

    Raises InputError if a post is missing, twice, on a wrong device, or if the two ends of a
    link differ; `ppopt.verifier.posting` lists all faults.
    """
    links = LinkQueues(pipeline)
    ends: list[dict[int, list[int]]] = [{} for _ in links.pairs]
    before: list[int] = []
    after: list[int] = []
    for device, row in enumerate(rows):
        last = None
        for cell in row:
            if cell[0].kind in _OPERATION:
                last = _code(pipeline, cell[0])
            elif cell[0].kind in POSTS:
                transfer_id = _transfer_of(links, cell[0])
                ends[links.link[transfer_id]].setdefault(device, []).append(transfer_id)
                if last is not None:
                    before.append(last)
                    after.append(transfer_id)
    order = [_agreed(links, pair, posted) for pair, posted in zip(links.pairs, ends, strict=True)]
    waits = (np.array(positions, dtype=np.int64) for positions in (before, after))
    return Queues(links, tuple(order), *waits)


def _transfer_of(links: LinkQueues, post: Action) -> int:
    """Number of the transfer of a post."""
    kind = OpKind.F if post.kind in (ActionKind.SEND_F, ActionKind.RECV_F) else OpKind.B
    received = post.kind in _RECEIVE.values()
    stage = sending_stage(kind, post.stage) if received else post.stage
    exists = 0 <= stage < links.pipeline.num_stages and post.microbatch is not None
    if not exists or not 0 <= (post.microbatch or 0) < links.pipeline.batches:
        raise InputError(f"{post}: there is no such transfer; remove it")
    transfer_id = links.transfer_id(kind, stage, post.microbatch or 0)
    if links.link[transfer_id] == MISSING:
        raise InputError(f"{post}: no other device is at its other end; remove it")
    return transfer_id


def _agreed(links: LinkQueues, pair: tuple[int, int], ends: Mapping[int, list[int]]) -> Ints:
    """The order of a link, if both of its devices post the same one."""
    first_row, second_row = (ends.get(device, []) for device in pair)
    for index, (first, second) in enumerate(zip_longest(first_row, second_row)):
        if first != second:
            first_text, second_text = (
                "nothing" if n is None else links.transfer(n) for n in (first, second)
            )
            raise InputError(
                f"devices {pair[0]} and {pair[1]}: transfer {index} of their queue is {first_text} "
                f"on device {pair[0]} and {second_text} on {pair[1]}; post transfers in one order "
                "on both"
            )
    return np.array(first_row, dtype=np.int64)


def schedule_of(
    pipeline: Pipeline,
    rows: Sequence[ActionRow],
    objective: Objective = Objective.MAKESPAN,
    origin: Origin | None = None,
) -> Schedule:
    """Time a communication order where links are streams. Raises as `queues_of` and timing do."""
    orders, queues = orders_of(pipeline, rows), queues_of(pipeline, rows)
    return timing.schedule(pipeline, orders, objective, origin, queues)


class Loss(NamedTuple):
    """The makespan of an order with streams, in ticks."""

    own: int
    """Posted in the order of its own times."""
    lowered: int
    """As PyTorch lowers its operations alone."""

    @property
    def share(self) -> float:
        """Loss of a file with operations alone: lowered / own - 1."""
        return ratio(self.lowered - self.own, self.own)


MAX_LOWERED = 100_000
"""Maximum number of operations for a loss that is computed unasked, in a second or two."""


def cheap_loss(schedule: Schedule) -> Loss | None:
    """The same as `loss_of_lowering`, if it is quick to compute and may be above 0.

    None if PyTorch cannot run the order, if transfers take no time, or if the schedule is large.
    """
    pipeline = schedule.pipeline
    if pipeline.routes == 2 or pipeline.num_slices > 1 or len(schedule) > MAX_LOWERED:
        return None
    delays = (*pipeline.ticks.down, *pipeline.ticks.up)
    return loss_of_lowering(schedule) if any(map(any, delays)) else None


def loss_of_lowering(schedule: Schedule) -> Loss:
    """The loss of PyTorch's own lowering of an order if links are streams."""
    streamed = as_streams(schedule)
    pipeline = streamed.pipeline
    lowered = schedule_of(pipeline, torch_lowering(pipeline, streamed.orders))
    own = timing.retimed(streamed, Objective.MAKESPAN)
    return Loss(own.metrics.makespan_ticks, lowered.metrics.makespan_ticks)
