"""Times of a communication order over streams, by a plain simulation of what devices post.

Written from the words of `ppopt.problem.link_mode`, without the package's timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.actions import Action, ActionKind, ActionRow
from tests.factories.schedules import duration_of, lag_of

KINDS = {ActionKind[kind.name]: kind for kind in OpKind}


class Times(NamedTuple):
    """Start and end of every operation, and of every transfer by its send; in ticks."""

    operations: dict[Action, tuple[int, int]]
    transfers: dict[Action, tuple[int, int]]


def simulate(pipeline: Pipeline, rows: Sequence[ActionRow]) -> Times | None:
    """Run the rows; None where they stop for good, or two devices post in different orders."""
    times = Times({}, {})
    clock = [0] * len(rows)
    left = [deque(row) for row in rows]
    queues: dict[frozenset[int], dict[int, deque[tuple[Action, int]]]] = {}
    free: dict[frozenset[int], int] = {}
    progressed = True
    while progressed:
        progressed = False
        for device, row in enumerate(left):
            while row and _step(pipeline, device, row[0], clock, queues, times):
                row.popleft()
                progressed = True
        for pair, ends in queues.items():
            while len(ends) == 2 and all(ends.values()):
                heads = [queue.popleft() for queue in ends.values()]
                sends = {_send(head) for head, _ in heads}
                if len(sends) > 1:
                    return None
                send = sends.pop()
                start = max(free.get(pair, 0), *(posted for _, posted in heads))
                free[pair] = start + _time(pipeline, send)
                times.transfers[send] = start, free[pair]
                progressed = True
    return None if any(left) else times


def _step(
    pipeline: Pipeline,
    device: int,
    cell: tuple[Action, ...],
    clock: list[int],
    queues: dict[frozenset[int], dict[int, deque[tuple[Action, int]]]],
    times: Times,
) -> bool:
    """Do the next cell of a device, if it can be done."""
    action = cell[0]
    if action.kind.startswith(("SEND", "RECV")):
        send = _send(action)
        ends = frozenset(pipeline.device(stage, 0) for stage in (send.stage, _target(send)))
        queue = queues.setdefault(ends, {}).setdefault(device, deque())
        queue.append((action, clock[device]))
        return True
    if action.kind not in KINDS:
        return True
    inputs = [_input(pipeline, action, times) for action in cell]
    if None in inputs:
        return False
    start = max(clock[device], *(time for time in inputs if time is not None))
    ops = [Op(KINDS[action.kind], action.stage, action.microbatch or 0) for action in cell]
    clock[device] = start + duration_of(pipeline, ops)
    times.operations.update(dict.fromkeys(cell, (start, clock[device])))
    return True


def _input(pipeline: Pipeline, action: Action, times: Times) -> int | None:
    """When what an operation needs from another stage is there; None: not yet."""
    step = {ActionKind.F: -1, ActionKind.B: 1, ActionKind.BW: 1}.get(action.kind, 0)
    neighbour = action.stage + step
    if not step or not 0 <= neighbour < pipeline.num_stages:
        return 0
    if pipeline.device(neighbour, 0) != pipeline.device(action.stage, 0):
        kind = ActionKind.SEND_F if action.kind is ActionKind.F else ActionKind.SEND_B
        known = times.transfers.get(Action(kind, neighbour, action.microbatch))
        return None if known is None else known[1]
    kinds = [ActionKind.F] if step < 0 else [ActionKind.B, ActionKind.BW]
    ends = [times.operations.get(Action(kind, neighbour, action.microbatch)) for kind in kinds]
    return next((end[1] for end in ends if end is not None), None)


def _send(post: Action) -> Action:
    if post.kind is ActionKind.RECV_F:
        return Action(ActionKind.SEND_F, post.stage - 1, post.microbatch)
    if post.kind is ActionKind.RECV_B:
        return Action(ActionKind.SEND_B, post.stage + 1, post.microbatch)
    return post


def _target(send: Action) -> int:
    return send.stage + (1 if send.kind is ActionKind.SEND_F else -1)


def _time(pipeline: Pipeline, send: Action) -> int:
    kind = OpKind.F if send.kind is ActionKind.SEND_F else OpKind.BW
    ends = (Op(kind, stage, send.microbatch or 0) for stage in (send.stage, _target(send)))
    return lag_of(pipeline, *ends)
